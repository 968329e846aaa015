#include "pass.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace hybrid {
namespace {

// Rows that a unit of a product takes: what stays in a core's own cache beside weights.
constexpr int32_t UNIT_ROWS = 64;

double now() {
  using namespace std::chrono;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}

} // namespace

Pass::Pass(Model &model, const Step &step, int32_t first_token, int32_t last_token,
           int32_t first_row, int32_t last_row)
    : model_(model), step_(step), first_token_(first_token), last_token_(last_token),
      first_row_(first_row), last_row_(last_row) {
  if (model_.pool_.base && step_.num_seqs > 0)
    plan_attention();
}

void Pass::run() {
  model_.threads_.run(
      [](void *pass, int32_t thread) { static_cast<Pass *>(pass)->work(thread); }, this);
}

void Pass::sync() {
  model_.threads_.barrier().wait([this] { turn_.store(0, std::memory_order_relaxed); });
}

void Pass::work(int32_t thread) {
  make_angles();
  sync();
  double *seconds = thread == 0 ? step_.seconds : nullptr;
  double start = seconds ? now() : 0.0;
  for (size_t i = 0; i < model_.ops_.size(); ++i) {
    const Op &op = model_.ops_[i];
    if (count(op) == 0)
      continue;
    if (op.kind == OP_SELECT_ROWS && first_row_ == last_row_)
      continue;
    run_op(op, thread);
    sync();
    if (seconds) {
      const double end = now();
      seconds[i] += end - start;
      start = end;
    }
  }
}

void Pass::run_op(const Op &op, int32_t thread) {
  switch (op.kind) {
  case OP_EMBED: embed(op); break;
  case OP_LINEAR: linear(op); break;
  case OP_ROPE_KV: rope_kv(op); break;
  case OP_ATTENTION: attention(op, thread); break;
  default: row_op(op, thread); break;
  }
}

void Pass::make_angles() {
  const int64_t half = model_.config_.head_dim / 2;
  share(last_token_ - first_token_, [&](int64_t token) {
    const float position = static_cast<float>(step_.positions[first_token_ + token]);
    for (int64_t i = 0; i < half; ++i) {
      const float angle = position * model_.inverse_frequencies_[static_cast<size_t>(i)];
      model_.cosines_[token * half + i] = std::cos(angle) * model_.config_.rope_scale;
      model_.sines_[token * half + i] = std::sin(angle) * model_.config_.rope_scale;
    }
  });
}

void Pass::embed(const Op &op) {
  const Weight &weight = model_.weights_[static_cast<size_t>(op.weight)];
  share(count(op), [&](int64_t token) {
    char *out = row(op.out, token, int64_t{weight.columns} * 4);
    model_.kernels_.embed(weight, step_.input_ids[first_token_ + token],
                          reinterpret_cast<float *>(out));
  });
}

void Pass::row_op(const Op &op, int32_t thread) {
  const Kernels &kernels = model_.kernels_;
  const int64_t width = op.width;
  const int64_t out_stride =
      op.kind == OP_SELECT_ROWS ? width * 4 : activation_stride(op.format, op.width);
  const int64_t in_stride = width * (op.kind == OP_SILU_MUL ? 8 : 4);
  float *scratch = model_.scratch_[static_cast<size_t>(thread)].get();
  const bool selects = op.kind == OP_SELECT_ROWS;
  share(selects ? last_row_ - first_row_ : count(op), [&](int64_t i) {
    const int64_t from = selects ? step_.logits_rows[first_row_ + i] - first_token_ : i;
    const float *in = reinterpret_cast<const float *>(row(op.in, from, in_stride));
    char *out = row(op.out, i, out_stride);
    if (selects)
      std::copy(in, in + width, reinterpret_cast<float *>(out));
    else if (op.kind == OP_NORM)
      kernels.norm(in, model_.vectors_[static_cast<size_t>(op.norm)],
                   model_.config_.norm_epsilon, op.width, op.format, out);
    else if (op.kind == OP_SILU_MUL)
      kernels.silu_mul(in, op.width, op.format, out, scratch);
    else
      kernels.convert(in, op.width, op.format, out);
  });
}

void Pass::linear(const Op &op) {
  const Weight &weight = model_.weights_[static_cast<size_t>(op.weight)];
  const bool is_logits = op.flags & FLAG_LOGITS;
  const int32_t format = weight.format == FORMAT_INT4 ? int32_t{FORMAT_INT8} : weight.format;
  const int64_t out_stride = weight.rows;
  LinearTask task = {};
  task.weight = &weight;
  task.in_stride = activation_stride(format, weight.columns);
  task.in = row(op.in, 0, 0);
  task.out = is_logits ? step_.logits + first_row_ * out_stride
                       : reinterpret_cast<float *>(row(op.out, 0, 0));
  task.out_stride = out_stride;
  task.accumulate = op.flags & FLAG_ACCUMULATE;

  const int32_t num_rows = count(op), num_blocks = (weight.rows + LANES - 1) / LANES;
  const int32_t row_units = (num_rows + UNIT_ROWS - 1) / UNIT_ROWS;
  // Multiples of 3 blocks, the width of a tile; fewer, larger units where there are many.
  const int32_t wanted = UNITS_PER_THREAD * model_.config_.num_threads;
  const int32_t triples = (num_blocks + 2) / 3;
  const int32_t width = 3 * std::max(1, triples * row_units / wanted);
  const int32_t block_units = (num_blocks + width - 1) / width;
  take_turns(block_units * row_units, [&](int32_t unit) {
    const int32_t block = unit / row_units * width, first = unit % row_units * UNIT_ROWS;
    model_.kernels_.linear(task, block, std::min(width, num_blocks - block), first,
                           std::min(UNIT_ROWS, num_rows - first));
  });
}

void Pass::rope_kv(const Op &op) {
  const KvPool &pool = model_.pool_;
  const ModelConfig &config = model_.config_;
  const int32_t size = pool.block_size, dim = config.head_dim, half = dim / 2;
  const int64_t number_bytes = pool.format == FORMAT_F32 ? 4 : pool.format == FORMAT_BF16 ? 2 : 1;
  const int32_t num_heads = config.num_heads + 2 * config.num_kv_heads;
  auto vector = [&](int32_t index) {
    return index < 0 ? nullptr : model_.vectors_[static_cast<size_t>(index)];
  };
  RopeTask task = {};
  task.shape = shape();
  task.query_norm = vector(op.norm);
  task.key_norm = vector(op.norm2);
  task.epsilon = config.norm_epsilon;
  task.format = pool.format;
  task.head_bytes = int64_t{size} * dim * number_bytes;
  task.head_scales = size;
  share(int64_t{count(op)} * num_heads, [&](int64_t unit) {
    const int64_t token = unit / num_heads;
    const int64_t position = step_.positions[first_token_ + token];
    const int64_t block = tables_[static_cast<size_t>(token)].first[position / size];
    const int64_t slot = position % size;
    char *keys = static_cast<char *>(pool.base) + block * pool.block_stride +
                 op.layer * pool.layer_stride;
    task.qkv = reinterpret_cast<float *>(row(op.in, token, qkv_width() * 4));
    task.cosines = model_.cosines_.get() + token * half;
    task.sines = model_.sines_.get() + token * half;
    task.keys = keys + slot * dim * number_bytes;
    task.values = task.keys + pool.kv_stride;
    if (pool.format == FORMAT_INT8) {
      const int64_t scales = int64_t{config.num_kv_heads} * size * dim;
      task.key_scales = reinterpret_cast<float *>(keys + scales) + slot;
      task.value_scales = reinterpret_cast<float *>(keys + pool.kv_stride + scales) + slot;
    }
    model_.kernels_.rope_kv(task, static_cast<int32_t>(unit % num_heads));
  });
}

} // namespace hybrid
