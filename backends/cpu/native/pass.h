// Some tokens of a step on their way through all ops.
#ifndef HYBRID_CPU_PASS_H
#define HYBRID_CPU_PASS_H

#include "model.h"

#include <algorithm>
#include <utility>

namespace hybrid {

// Pieces that an op's work is cut into, so that a thread whose core is shared delays the
// others by one of them.
constexpr int32_t UNITS_PER_THREAD = 8;

class Pass {
public:
  // Tokens [first_token, last_token) and rows [first_row, last_row) of the step.
  Pass(Model &model, const Step &step, int32_t first_token, int32_t last_token,
       int32_t first_row, int32_t last_row);

  void run();

private:
  // Queries of one sequence under one KV head, and the KV parts that they see.
  struct Task {
    const int32_t *block_ids;
    int32_t kv_head;
    int32_t token; // of the pass
    int32_t num_tokens;
    int32_t position;
    int64_t first_split_row;
  };

  void plan_attention();
  bool plan_split(int32_t most_parts);
  void work(int32_t thread);
  void run_op(const Op &op, int32_t thread);
  void make_angles();
  void embed(const Op &op);
  void row_op(const Op &op, int32_t thread);
  void linear(const Op &op);
  void rope_kv(const Op &op);
  void attention(const Op &op, int32_t thread);
  void attend_whole(const Op &op, const Task &task, int32_t thread);
  void attend_split(const Op &op, int32_t thread);
  AttentionTask attention_task(const Op &op, const Task &task) const;
  void sync();

  // Whoever is free takes the next: a thread whose core is shared takes fewer.
  template <class F> void take_turns(int32_t count, F f) {
    for (;;) {
      const int32_t i = turn_.fetch_add(1, std::memory_order_relaxed);
      if (i >= count)
        return;
      f(i);
    }
  }

  // The same for many small pieces, a few at a time.
  template <class F> void share(int64_t count, F f) {
    const int64_t units = std::min<int64_t>(count, UNITS_PER_THREAD * model_.config_.num_threads);
    take_turns(static_cast<int32_t>(units), [&](int64_t unit) {
      const int64_t last = count * (unit + 1) / units;
      for (int64_t i = count * unit / units; i < last; ++i)
        f(i);
    });
  }

  int32_t count(const Op &op) const {
    return op.flags & FLAG_ROWS ? last_row_ - first_row_ : last_token_ - first_token_;
  }
  char *row(int64_t offset, int64_t index, int64_t stride) const {
    return model_.arena_.get() + offset + index * stride;
  }
  int64_t qkv_width() const {
    return (model_.config_.num_heads + 2 * int64_t{model_.config_.num_kv_heads}) *
           model_.config_.head_dim;
  }
  HeadShape shape() const {
    return {model_.config_.num_heads, model_.config_.num_kv_heads, model_.config_.head_dim};
  }

  Model &model_;
  const Step &step_;
  const int32_t first_token_, last_token_, first_row_, last_row_;
  std::vector<Task> tasks_;
  std::vector<std::pair<const int32_t *, int32_t>> tables_; // of each token: ids, seq
  bool is_split_ = false;
  int32_t most_parts_ = 1;
  alignas(64) std::atomic<int32_t> turn_{0};
};

} // namespace hybrid

#endif
