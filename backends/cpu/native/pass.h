// Some tokens of a step on their way through all ops.
#ifndef HYBRID_CPU_PASS_H
#define HYBRID_CPU_PASS_H

#include "model.h"

namespace hybrid {

class Pass final : public Job {
public:
  // Tokens [first_token, last_token) and rows [first_row, last_row) of the step.
  Pass(Model &model, const Step &step, int32_t first_token, int32_t last_token,
       int32_t first_row, int32_t last_row);

  int32_t num_stages() const override { return static_cast<int32_t>(stages_.size()); }
  int32_t begin(int32_t stage) override;
  void run(int32_t stage, int32_t unit, int32_t thread) override;
  void end(int32_t stage) override;

private:
  // What is done at once: angles of all tokens, then ops, attention in two halves.
  struct Stage {
    const Op *op;         // null: angles
    bool merges = false;  // the second half, where attention is split by KV
  };

  // Queries of one sequence under one KV head.
  struct Task {
    const int32_t *block_ids;
    int32_t kv_head;
    int32_t token; // of the pass
    int32_t num_tokens;
    int32_t position;
    int64_t first_split_row;
  };

  // Small pieces of the open stage, shared out a few to a unit.
  struct Range {
    int64_t first, last;
  };

  // How the open stage cuts a product.
  struct Cut {
    LinearTask task;
    int32_t num_blocks, unit_blocks, num_rows, row_units;
  };

  // Each piece is about `numbers` numbers of work.
  int32_t share(int64_t num_pieces, int64_t numbers);
  Range pieces(int32_t unit) const;
  int32_t begin_linear(const Op &op);
  int64_t num_rows(const Op &op) const;

  void make_angles(Range tokens);
  void embed(const Op &op, Range tokens);
  void row_op(const Op &op, Range rows, int32_t thread);
  void linear(int32_t unit);
  void rope_kv(const Op &op, Range heads);

  void plan_attention();
  bool plan_split(int32_t most_parts);
  AttentionTask attention_task(const Op &op, const Task &task) const;
  AttentionRows split_rows(const Task &task, int32_t part) const;
  int32_t first_token_seen(const Op &op, const Task &task) const;
  float *attention_out(const Op &op, const Task &task) const;
  void attend(const Op &op, const Task &task, int32_t thread);
  void attend_part(const Op &op, int32_t unit, int32_t thread);
  void merge_parts(const Op &op, const Task &task);

  char *row(int64_t offset, int64_t index, int64_t stride) const {
    return model_.arena_.get() + offset + index * stride;
  }
  int64_t qkv_width() const {
    return (model_.config_.num_heads + 2 * int64_t{model_.config_.num_kv_heads}) *
           model_.config_.head_dim;
  }
  int64_t attended_width() const {
    return int64_t{model_.config_.num_heads} * model_.config_.head_dim;
  }
  int32_t group() const { return model_.config_.num_heads / model_.config_.num_kv_heads; }
  int64_t padded_head() const { return round_up(model_.config_.head_dim, LANES); }
  HeadShape shape() const {
    return {model_.config_.num_heads, model_.config_.num_kv_heads, model_.config_.head_dim};
  }

  Model &model_;
  const Step &step_;
  const int32_t first_token_, last_token_, first_row_, last_row_;
  std::vector<Stage> stages_;
  std::vector<Task> tasks_;
  std::vector<const int32_t *> tables_; // of each token
  bool is_split_ = false;
  int32_t most_parts_ = 1;
  int64_t num_pieces_ = 0;
  int32_t num_units_ = 0;
  Cut cut_{};
  double started_ = 0.0;
};

} // namespace hybrid

#endif
