#include "pass.h"

#include "int8_cell.h"

#include <algorithm>
#include <chrono>
#include <cmath>

namespace hybrid {
namespace {

// With fewer rows than these for each thread, all weights are worth a core's time more
// than rows that stay near it.
constexpr int32_t CHAIN_ROWS = 32;
// Enough that a thread with half a core delays nobody for long.
constexpr int32_t UNITS_PER_THREAD = 8;
// Of the steps between products: less than this is done sooner than handed over.
constexpr int64_t UNIT_NUMBERS = 8192;

int32_t num_blocks(const Weight &weight) { return (weight.rows - 1) / LANES + 1; }

double now() {
  using namespace std::chrono;
  return duration<double>(steady_clock::now().time_since_epoch()).count();
}

} // namespace

Pass::Pass(Model &model, const Step &step, Span tokens, Span rows, int32_t row_base)
    : model_(model), step_(step), first_token_(tokens.first), last_token_(tokens.last),
      first_row_(rows.first), last_row_(rows.last), row_base_(row_base) {
  cut_rows();
  if (has_tokens() && model_.pool_.base && step_.num_seqs > 0)
    plan_attention();
  add_stages();
  allocate_peaks();
  if (step_.seconds) {
    chain_seconds_.resize(static_cast<size_t>(model_.config_.num_threads) * model_.ops_.size());
    started_ = now();
  }
}

// As few units as their arenas allow, or a multiple of the threads.
void Pass::cut_rows() {
  const int32_t num_tokens = last_token_ - first_token_, most = model_.config_.unit_tokens;
  const int32_t threads = model_.config_.num_threads;
  if (!has_tokens()) {
    unit_rows_ = most;
    return;
  }
  int64_t num_units = (num_tokens - 1) / most + 1;
  const int64_t finest =
      std::min<int64_t>(num_tokens / CHAIN_ROWS, ROW_UNITS_PER_THREAD * int64_t{threads});
  has_chains_ = num_tokens > most && num_tokens >= int64_t{CHAIN_ROWS} * threads;
  if (has_chains_)
    num_units = round_up(std::max(num_units, finest), threads);
  const int64_t rows = round_up((num_tokens + num_units - 1) / num_units, MOST_ROWS_OF_TILE);
  unit_rows_ = static_cast<int32_t>(std::min<int64_t>(rows, most));
}

bool Pass::can_chain(const Op &op) const {
  return has_chains_ && op.kind != OP_ATTENTION && op.kind != OP_SELECT_ROWS;
}

void Pass::add_stages() {
  if (has_tokens())
    stages_.push_back({nullptr});
  bool is_open = false;
  for (const Op &op : model_.ops_) {
    if (!has(op)) {
      is_open = false;
      continue;
    }
    if (is_open && can_chain(op)) {
      ++stages_.back().num_ops;
      continue;
    }
    stages_.push_back({&op});
    is_open = can_chain(op);
    if (op.kind == OP_ATTENTION && is_split_)
      stages_.push_back({&op, 1, true});
  }
}

int64_t Pass::num_rows(const Op &op) const {
  const bool selected = (op.flags & FLAG_ROWS) || op.kind == OP_SELECT_ROWS;
  return selected ? last_row_ - first_row_ : last_token_ - first_token_;
}

int32_t Pass::share(int64_t num_pieces, int64_t numbers) {
  num_pieces_ = num_pieces;
  const int64_t most = std::min<int64_t>(num_pieces, UNITS_PER_THREAD * model_.config_.num_threads);
  const int64_t worth = (num_pieces * numbers + UNIT_NUMBERS - 1) / UNIT_NUMBERS;
  num_units_ = static_cast<int32_t>(std::min(most, worth));
  return num_units_;
}

Pass::Range Pass::pieces(int32_t unit) const {
  return {num_pieces_ * unit / num_units_, num_pieces_ * (unit + 1) / num_units_};
}

int32_t Pass::begin(int32_t stage) {
  const Stage &each = stages_[static_cast<size_t>(stage)];
  const Op *op = each.op;
  const int32_t num_tasks = static_cast<int32_t>(tasks_.size());
  if (!op)
    return share(last_token_ - first_token_, 16 * model_.config_.head_dim);
  if (each.num_ops > 1)
    return (last_token_ - first_token_ - 1) / unit_rows_ + 1;
  switch (op->kind) {
  case OP_LINEAR: return begin_linear(*op);
  case OP_ROPE_KV:
    return share(num_rows(*op) * (model_.config_.num_heads + 2 * model_.config_.num_kv_heads),
                 model_.config_.head_dim);
  case OP_ATTENTION:
    if (is_split_ && !each.merges)
      return num_tasks * most_parts_;
    return num_tasks;
  case OP_EMBED:
    return share(num_rows(*op), model_.weights_[static_cast<size_t>(op->weight)].columns);
  case OP_SILU_MUL: return share(num_rows(*op), 4 * int64_t{op->width});
  default: return share(num_rows(*op), op->width);
  }
}

void Pass::run(int32_t stage, int32_t unit, int32_t thread) {
  const Stage &each = stages_[static_cast<size_t>(stage)];
  if (!each.op) {
    make_angles(pieces(unit));
    return;
  }
  const Op &op = *each.op;
  if (each.num_ops > 1)
    run_chain(each, unit, thread);
  else if (op.kind == OP_LINEAR)
    linear(op, unit, thread);
  else if (op.kind != OP_ATTENTION)
    run_op(op, pieces(unit), thread);
  else if (each.merges)
    merge_parts(op, tasks_[static_cast<size_t>(unit)]);
  else if (is_split_)
    attend_part(op, unit, thread);
  else
    attend(op, unit, thread);
}

// All but products and attention; rope_kv counts rows in heads.
void Pass::run_op(const Op &op, Range range, int32_t thread) {
  if (op.kind == OP_EMBED)
    embed(op, range);
  else if (op.kind == OP_ROPE_KV)
    rope_kv(op, range);
  else
    row_op(op, range, thread);
}

void Pass::run_chain(const Stage &stage, int32_t unit, int32_t thread) {
  const int64_t first = int64_t{unit} * unit_rows_;
  const Range rows = {first, std::min<int64_t>(first + unit_rows_, last_token_ - first_token_)};
  double *seconds = step_.seconds ? seconds_of(thread) : nullptr;
  double before = step_.seconds ? now() : 0.0;
  for (const Op *op = stage.op; op != stage.op + stage.num_ops; ++op) {
    if (op->kind == OP_LINEAR) {
      const LinearTask task = linear_task(*op, first);
      model_.kernels_.linear(task, 0, num_blocks(*task.weight),
                             static_cast<int32_t>(rows.last - first));
    } else if (op->kind == OP_ROPE_KV) {
      const int64_t heads = model_.config_.num_heads + 2 * int64_t{model_.config_.num_kv_heads};
      rope_kv(*op, {first * heads, rows.last * heads});
    } else {
      run_op(*op, rows, thread);
    }
    if (step_.seconds) {
      const double after = now();
      seconds[op - model_.ops_.data()] += after - before;
      before = after;
    }
  }
}

void Pass::end(int32_t stage) {
  const Op *op = stages_[static_cast<size_t>(stage)].op;
  if (op && seeks_likeliest(*op))
    join_rows(*op);
  if (!step_.seconds)
    return;
  const double ended = now();
  if (stages_[static_cast<size_t>(stage)].op)
    share_seconds(stages_[static_cast<size_t>(stage)], ended - started_);
  started_ = ended;
}

// Ops of a chain get what the stage took as they took the threads' time.
void Pass::share_seconds(const Stage &stage, double seconds) {
  const int64_t first = stage.op - model_.ops_.data();
  if (stage.num_ops == 1) {
    step_.seconds[first] += seconds;
    return;
  }
  double *sums = seconds_of(0), all = 0.0;
  for (int64_t op = first; op < first + stage.num_ops; ++op) {
    for (int32_t thread = 1; thread < model_.config_.num_threads; ++thread)
      sums[op] += seconds_of(thread)[op];
    all += sums[op];
  }
  for (int64_t op = first; op < first + stage.num_ops && all > 0.0; ++op)
    step_.seconds[op] += seconds * sums[op] / all;
}

void Pass::make_angles(Range tokens) {
  const int64_t half = model_.config_.head_dim / 2;
  for (int64_t token = tokens.first; token < tokens.last; ++token) {
    const float position = static_cast<float>(step_.positions[first_token_ + token]);
    for (int64_t i = 0; i < half; ++i) {
      const float angle = position * model_.inverse_frequencies_[static_cast<size_t>(i)];
      model_.cosines_[token * half + i] = std::cos(angle) * model_.config_.rope_scale;
      model_.sines_[token * half + i] = std::sin(angle) * model_.config_.rope_scale;
    }
  }
}

void Pass::embed(const Op &op, Range tokens) {
  const Weight &weight = model_.weights_[static_cast<size_t>(op.weight)];
  for (int64_t token = tokens.first; token < tokens.last; ++token) {
    char *out = row(op.out, token, int64_t{weight.columns} * 4);
    model_.kernels_.embed(weight, step_.input_ids[first_token_ + token],
                          reinterpret_cast<float *>(out));
  }
}

void Pass::row_op(const Op &op, Range rows, int32_t thread) {
  const Kernels &kernels = model_.kernels_;
  const bool selects = op.kind == OP_SELECT_ROWS;
  const int64_t width = op.width;
  const int64_t in_stride = width * (op.kind == OP_SILU_MUL ? 8 : 4);
  const int64_t out_stride = selects ? width * 4 : activation_stride(op.format, op.width);
  for (int64_t i = rows.first; i < rows.last; ++i) {
    const int64_t from = selects ? step_.logits_rows[first_row_ + i] - first_token_ : i;
    const float *in = reinterpret_cast<const float *>(row(op.in, from, in_stride));
    char *out = selects ? selected_row(op.out, i, out_stride) : row(op.out, i, out_stride);
    if (selects)
      std::copy(in, in + width, reinterpret_cast<float *>(out));
    else if (op.kind == OP_NORM)
      kernels.norm(in, model_.vectors_[static_cast<size_t>(op.norm)],
                   model_.config_.norm_epsilon, op.width, op.format, out);
    else if (op.kind == OP_SILU_MUL)
      kernels.silu_mul(in, op.width, op.format, out,
                       model_.scratch_[static_cast<size_t>(thread)].get());
    else
      kernels.convert(in, op.width, op.format, out);
  }
}

LinearTask Pass::linear_task(const Op &op, int64_t first_row) const {
  const Weight &weight = model_.weights_[static_cast<size_t>(op.weight)];
  LinearTask task = {};
  task.weight = &weight;
  if (!model_.eights_.empty() && weight.format == FORMAT_INT4)
    task.eights = &model_.eights_[static_cast<size_t>(op.weight)];
  task.in_stride = activation_stride(weight.format, weight.columns);
  task.in = row(op.in, first_row, task.in_stride);
  task.out_stride = weight.rows;
  if (!(op.flags & FLAG_LOGITS))
    task.out = reinterpret_cast<float *>(row(op.out, first_row, task.out_stride * 4));
  else if (step_.logits)
    task.out = step_.logits + (first_row_ + first_row) * task.out_stride;
  task.accumulate = op.flags & FLAG_ACCUMULATE;
  return task;
}

int32_t Pass::begin_linear(const Op &op) {
  const int32_t rows = static_cast<int32_t>(num_rows(op));
  const int32_t row_units = (rows + unit_rows_ - 1) / unit_rows_;
  cut_.num_blocks = num_blocks(model_.weights_[static_cast<size_t>(op.weight)]);
  // Multiples of 3 blocks, the width of a tile; fewer, larger units where there are many.
  const int32_t wanted = UNITS_PER_THREAD * model_.config_.num_threads;
  const int32_t triples = (cut_.num_blocks + 2) / 3;
  const int64_t worth = int64_t{triples} * row_units / wanted;
  cut_.unit_blocks = 3 * std::max(1, static_cast<int32_t>(worth));
  cut_.block_units = (cut_.num_blocks + cut_.unit_blocks - 1) / cut_.unit_blocks;
  return cut_.block_units * row_units;
}

void Pass::linear(const Op &op, int32_t unit, int32_t thread) {
  const int32_t block_unit = unit % cut_.block_units, block = block_unit * cut_.unit_blocks;
  const int32_t last = std::min(cut_.num_blocks, block + cut_.unit_blocks);
  const int64_t first = int64_t{unit / cut_.block_units} * unit_rows_, rows = num_rows(op);
  const int32_t count = static_cast<int32_t>(std::min<int64_t>(unit_rows_, rows - first));
  if (seeks_likeliest(op))
    linear_with_peaks(linear_task(op, first), {block, last}, count,
                      peaks_.data() + block_unit * rows + first,
                      model_.scratch_[static_cast<size_t>(thread)].get());
  else
    model_.kernels_.linear(linear_task(op, first), block, last - block, count);
}

void Pass::rope_kv(const Op &op, Range heads) {
  const KvPool &pool = model_.pool_;
  const ModelConfig &config = model_.config_;
  const int32_t size = pool.block_size, dim = config.head_dim, half = dim / 2;
  const bool is_int8 = pool.format == FORMAT_INT8;
  const int64_t row_bytes = dim * (pool.format == FORMAT_F32 ? 4 : 2);
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
  task.head_bytes = is_int8 ? int8_head_bytes(size, dim) : size * row_bytes;
  task.head_scales = size;
  for (int64_t head = heads.first, end; head < heads.last; head = end) {
    const int64_t token = head / num_heads;
    end = std::min(heads.last, (token + 1) * num_heads);
    const int64_t position = step_.positions[first_token_ + token], slot = position % size;
    const int64_t block = tables_[static_cast<size_t>(token)][position / size];
    char *cell = static_cast<char *>(pool.base) + block * pool.block_stride +
                 op.layer * pool.layer_stride;
    task.qkv = reinterpret_cast<float *>(row(op.in, token, qkv_width() * 4));
    task.cosines = model_.cosines_.get() + token * half;
    task.sines = model_.sines_.get() + token * half;
    if (is_int8) {
      put_into_int8(task, pool, cell, static_cast<int32_t>(slot));
    } else {
      task.keys = cell + slot * row_bytes;
      task.values = task.keys + pool.kv_stride;
    }
    model_.kernels_.rope_kv(task, static_cast<int32_t>(head - token * num_heads),
                            static_cast<int32_t>(end - token * num_heads));
  }
}

} // namespace hybrid
