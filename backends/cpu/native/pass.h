// Some tokens of a step on their way through all ops but those of selected rows, or some
// rows through these.
#ifndef HYBRID_CPU_PASS_H
#define HYBRID_CPU_PASS_H

#include "model.h"

namespace hybrid {

class Pass final : public Job {
public:
  struct Span {
    int32_t first = 0, last = 0;
  };

  // Tokens of the step, and the rows among them; no tokens: what is to be done with rows.
  // Rows lie in their arenas from `row_base` on.
  Pass(Model &model, const Step &step, Span tokens, Span rows, int32_t row_base);

  int32_t num_stages() const override { return static_cast<int32_t>(stages_.size()); }
  int32_t begin(int32_t stage) override;
  void run(int32_t stage, int32_t unit, int32_t thread) override;
  void end(int32_t stage) override;

private:
  // What is done at once: angles of all tokens, then ops; attention in two halves. Where
  // there are rows enough, ops that work row by row follow each other without a halt: a
  // unit takes its rows through all of them, and they stay near its core.
  struct Stage {
    const Op *op;        // the first; null: angles
    int32_t num_ops = 1; // more than one: a chain
    bool merges = false; // the second half, where attention is split by KV
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
    int32_t num_blocks, unit_blocks, block_units;
  };

  // Each piece is about `numbers` numbers of work.
  int32_t share(int64_t num_pieces, int64_t numbers);
  Range pieces(int32_t unit) const;
  int32_t begin_linear(const Op &op);
  int64_t num_rows(const Op &op) const;
  void cut_rows();
  void add_stages();
  bool can_chain(const Op &op) const;
  void run_op(const Op &op, Range rows, int32_t thread);
  void run_chain(const Stage &stage, int32_t unit, int32_t thread);
  void share_seconds(const Stage &stage, double seconds);
  double *seconds_of(int32_t thread) {
    return chain_seconds_.data() + static_cast<size_t>(thread) * model_.ops_.size();
  }

  void make_angles(Range tokens);
  void embed(const Op &op, Range tokens);
  void row_op(const Op &op, Range rows, int32_t thread);
  LinearTask linear_task(const Op &op, int64_t first_row) const;
  void linear(const Op &op, int32_t unit, int32_t thread);
  // Where somebody asks for the likeliest: before, for a unit of the product, at its end.
  void allocate_peaks();
  void linear_with_peaks(LinearTask task, Range blocks, int32_t num_rows, Peak *peaks,
                         float *tile) const;
  void join_rows(const Op &op);
  void rope_kv(const Op &op, Range heads);

  void plan_attention();
  bool plan_split(int32_t most_parts);
  AttentionTask attention_task(const Op &op, const Task &task) const;
  AttentionRows split_rows(const Task &task, int32_t part) const;
  int32_t first_token_seen(const Op &op, const Task &task) const;
  float *attention_out(const Op &op, const Task &task) const;
  void attend(const Op &op, int32_t unit, int32_t thread);
  Upcoming next_of(const Op &op, int32_t unit, AttentionTask &task) const;
  void attend_part(const Op &op, int32_t unit, int32_t thread);
  void merge_parts(const Op &op, const Task &task);

  // Row `index` of the pass in a buffer: rows of a unit lie in its arena.
  char *row(int64_t offset, int64_t index, int64_t stride) const {
    if (!has_tokens())
      return selected_row(offset, index, stride);
    return model_.arenas_.get() + index / unit_rows_ * model_.config_.arena_bytes + offset +
           index % unit_rows_ * stride;
  }
  char *selected_row(int64_t offset, int64_t index, int64_t stride) const {
    const int64_t place = first_row_ - row_base_ + index, unit = model_.config_.unit_tokens;
    return model_.row_arenas_ + place / unit * model_.config_.arena_bytes + offset +
           place % unit * stride;
  }
  bool seeks_likeliest(const Op &op) const { return step_.likeliest && op.flags & FLAG_LOGITS; }
  bool has_tokens() const { return last_token_ > first_token_; }
  // Whether the op is of this pass.
  bool has(const Op &op) const {
    return has_tokens() != ((op.flags & FLAG_ROWS) && op.kind != OP_SELECT_ROWS);
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
  const int32_t first_token_, last_token_, first_row_, last_row_, row_base_;
  std::vector<Stage> stages_;
  std::vector<Task> tasks_;
  std::vector<const int32_t *> tables_; // of each token
  int32_t unit_rows_ = 1;   // that share an arena
  bool has_chains_ = false;
  bool is_split_ = false;
  int32_t most_parts_ = 1;
  int64_t num_pieces_ = 0;
  int32_t num_units_ = 0;
  Cut cut_{};
  std::vector<Peak> peaks_; // of logits: [unit of blocks][row]
  double started_ = 0.0;
  std::vector<double> chain_seconds_; // [thread][op]
};

} // namespace hybrid

#endif
