#include "model.h"

#include "likeliest.h"
#include "pass.h"

#include <algorithm>

namespace hybrid {

Model::Model(const ModelConfig &config, const Kernels &kernels)
    : config_(config), kernels_(kernels), ops_(config.ops, config.ops + config.num_ops),
      weights_(config.weights, config.weights + config.num_weights),
      vectors_(config.vectors, config.vectors + config.num_vectors),
      inverse_frequencies_(config.inverse_frequencies,
                           config.inverse_frequencies + config.head_dim / 2),
      windows_(config.windows, config.windows + config.num_layers),
      team_(config.num_threads) {
  const int32_t group = config.num_heads / config.num_kv_heads;
  task_tokens_ = std::max(1, ATTENTION_ROWS / group);
  task_rows_ = task_tokens_ * group;
  const int64_t padded = round_up(config.head_dim, LANES);
  // For passes that are cut finer than they must be, too.
  const int64_t needed = (config.chunk_tokens - 1) / config.unit_tokens + 1;
  const int64_t finest = ROW_UNITS_PER_THREAD * int64_t{config.num_threads};
  num_arenas_ = static_cast<int32_t>(round_up(std::max(needed, finest), config.num_threads));
  if (config.arena_bytes > INT64_MAX / num_arenas_ - 64)
    throw std::bad_alloc();
  arenas_ = allocate<char>(config.arena_bytes * num_arenas_);
  row_memory_.reset(static_cast<char *>(
      std::calloc(1, static_cast<size_t>(config.arena_bytes * num_arenas_ + 64))));
  if (!row_memory_)
    throw std::bad_alloc();
  row_arenas_ = row_memory_.get() + (64 - reinterpret_cast<uintptr_t>(row_memory_.get()) % 64);
  cosines_ = allocate<float>(int64_t{config.chunk_tokens} * (config.head_dim / 2));
  sines_ = allocate<float>(int64_t{config.chunk_tokens} * (config.head_dim / 2));
  int64_t scratch = attention_scratch(task_rows_, config.head_dim) + 2 * task_rows_ * padded;
  for (const Op &op : ops_) {
    if (op.kind == OP_SILU_MUL)
      scratch = std::max(scratch, round_up(op.width, LANES));
    if (op.flags & FLAG_LOGITS)
      scratch = std::max(scratch, floats_of_peak_tile(config.unit_tokens));
  }
  if (!config.batch_invariant)
    make_eights();
  for (int32_t thread = 0; thread < config.num_threads; ++thread) {
    scratch_.push_back(allocate<float>(scratch));
    parts_.push_back(allocate<PartOfRow>(2 * task_rows_));
  }
}

// Copies of what LINEARs read in four bits, in eight.
void Model::make_eights() {
  auto cells = [](const Weight &weight) {
    const int64_t columns = round_up(weight.columns, 2 * GROUP);
    return weight.format == FORMAT_INT4 ? round_up(weight.rows, LANES) * columns : 0;
  };
  int64_t num_cells = 0;
  for (const Weight &weight : weights_)
    num_cells += cells(weight);
  if (num_cells == 0)
    return;
  // A step of 64 columns is 4 bytes.
  eights_memory_ = allocate_huge(num_cells + num_cells / 16);
  char *next = eights_memory_.get();
  for (const Weight &weight : weights_) {
    char *steps = next + cells(weight);
    eights_.push_back({reinterpret_cast<uint8_t *>(next), reinterpret_cast<float *>(steps)});
    if (weight.format == FORMAT_INT4)
      kernels_.make_eights(weight, eights_.back());
    next = steps + cells(weight) / 16;
  }
}

// What is done with selected rows is done with those of several passes at once: it reads
// weights as large as the rest's for a few rows.
void Model::forward(const Step &step) {
  int32_t first_row = 0, row = 0;
  auto finish_rows = [&] {
    if (row == first_row)
      return;
    Pass pass(*this, step, {}, {first_row, row}, first_row);
    team_.run(pass);
    first_row = row;
  };
  for (int32_t token = 0; token < step.num_tokens; token += config_.chunk_tokens) {
    const int32_t end = std::min(step.num_tokens, token + config_.chunk_tokens);
    int32_t last_row = row;
    while (last_row < step.num_rows && step.logits_rows[last_row] < end)
      ++last_row;
    if (last_row - first_row > row_capacity())
      finish_rows();
    Pass pass(*this, step, {token, end}, {row, last_row}, first_row);
    team_.run(pass);
    row = last_row;
  }
  finish_rows();
}

} // namespace hybrid
