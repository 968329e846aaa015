// Refuses configs and steps that would make a kernel leave its memory.

#include "model.h"

namespace hybrid {
namespace {

constexpr int32_t MOST_THREADS = 1 << 12, MOST_TOKENS = 1 << 20, MOST_HEADS = 1 << 12;
constexpr int64_t MOST_SHARE = 1 << 18; // of a stage, by one thread: see Team

bool fits(const ModelConfig &config, int64_t offset, int64_t row_bytes) {
  return offset >= 0 && offset <= config.arena_bytes && offset % 64 == 0 && row_bytes > 0 &&
         row_bytes <= (config.arena_bytes - offset) / config.unit_tokens;
}

bool is_format(int32_t format) {
  return format == FORMAT_F32 || format == FORMAT_BF16 || format == FORMAT_INT8 ||
         format == FORMAT_INT4;
}

bool is_sound_linear(const ModelConfig &config, const Op &op) {
  if (op.weight < 0 || op.weight >= config.num_weights)
    return false;
  const Weight &weight = config.weights[op.weight];
  if (!fits(config, op.in, activation_stride(weight.format, weight.columns)))
    return false;
  if (op.flags & FLAG_LOGITS)
    return weight.rows == config.vocab_size && (op.flags & FLAG_ROWS) &&
           !(op.flags & FLAG_ACCUMULATE);
  return fits(config, op.out, int64_t{weight.rows} * 4);
}

bool is_sound_attention(const ModelConfig &config, const Op &op) {
  const int64_t dim = config.head_dim;
  const int64_t qkv = (config.num_heads + 2 * int64_t{config.num_kv_heads}) * dim * 4;
  if (op.layer < 0 || op.layer >= config.num_layers || !fits(config, op.in, qkv))
    return false;
  if (op.kind == OP_ROPE_KV)
    return op.norm < config.num_vectors && op.norm2 < config.num_vectors;
  return fits(config, op.out, config.num_heads * dim * 4);
}

bool is_sound_row_op(const ModelConfig &config, const Op &op) {
  const bool is_select = op.kind == OP_SELECT_ROWS;
  const int64_t in_bytes = int64_t{op.width} * (op.kind == OP_SILU_MUL ? 8 : 4);
  const int64_t out_bytes =
      is_select ? int64_t{op.width} * 4 : activation_stride(op.format, op.width);
  if (op.kind == OP_NORM && (op.norm < 0 || op.norm >= config.num_vectors))
    return false;
  return op.width > 0 && is_format(op.format) && fits(config, op.in, in_bytes) &&
         fits(config, op.out, out_bytes);
}

bool is_sound_op(const ModelConfig &config, const Op &op) {
  const bool needs_tokens =
      op.kind == OP_EMBED || op.kind == OP_ROPE_KV || op.kind == OP_ATTENTION;
  if (needs_tokens && (op.flags & FLAG_ROWS))
    return false;
  switch (op.kind) {
  case OP_EMBED:
    return op.weight >= 0 && op.weight < config.num_weights &&
           config.weights[op.weight].rows >= config.vocab_size &&
           fits(config, op.out, int64_t{config.weights[op.weight].columns} * 4);
  case OP_LINEAR: return is_sound_linear(config, op);
  case OP_ROPE_KV:
  case OP_ATTENTION: return is_sound_attention(config, op);
  case OP_NORM:
  case OP_CONVERT:
  case OP_SILU_MUL:
  case OP_SELECT_ROWS: return is_sound_row_op(config, op);
  default: return false;
  }
}

bool is_sound_weight(const Weight &weight) {
  return weight.format >= FORMAT_F32 && weight.format <= FORMAT_INT4 && weight.rows > 0 &&
         weight.columns > 0 && weight.data &&
         (weight.scales || weight.format != FORMAT_INT8);
}

// The sequence's tokens are consecutive and its table names real blocks for them.
bool is_sound_sequence(const Step &step, const KvPool &pool, int32_t seq) {
  const int32_t begin = step.query_start[seq], end = step.query_start[seq + 1];
  if (begin < 0 || end < begin || end > step.num_tokens)
    return false;
  if (begin == end)
    return true;
  const int64_t first = step.positions[begin];
  if (first < 0 || first + (end - begin) > INT32_MAX)
    return false;
  for (int32_t i = begin; i < end; ++i)
    if (step.positions[i] != first + (i - begin))
      return false;
  const int64_t table = step.table_start[seq];
  const int64_t num_blocks = step.table_start[seq + 1] - table;
  const int64_t needed = (first + (end - begin) + pool.block_size - 1) / pool.block_size;
  if (table < 0 || num_blocks < needed)
    return false;
  for (int64_t i = 0; i < needed; ++i) {
    const int32_t block = step.block_ids[table + i];
    if (block < 0 || block >= pool.num_blocks)
      return false;
  }
  return true;
}

// So that neither a product of sizes nor a thread's share of units leaves its type.
bool has_sizes_in_range(const ModelConfig &config) {
  const int64_t threads = config.num_threads, tokens = config.chunk_tokens;
  return config.num_threads <= MOST_THREADS && config.chunk_tokens <= MOST_TOKENS &&
         config.unit_tokens <= MOST_TOKENS && config.num_heads <= MOST_HEADS &&
         config.head_dim <= MOST_HEADS && tokens * config.num_kv_heads <= threads * MOST_SHARE;
}

} // namespace

bool is_sound(const ModelConfig &config) {
  if (config.num_threads < 1 || config.chunk_tokens < 1 || config.unit_tokens < 1 ||
      config.arena_bytes % 64 || config.num_ops < 0 ||
      config.arena_bytes < 0 || config.vocab_size < 1 || config.num_kv_heads < 1 ||
      config.num_heads < 1 || config.num_heads % config.num_kv_heads ||
      config.head_dim < 2 || config.head_dim % 2 || config.num_layers < 0 ||
      config.num_weights < 0 || config.num_vectors < 0)
    return false;
  if (!has_sizes_in_range(config))
    return false;
  for (int32_t layer = 0; layer < config.num_layers; ++layer)
    if (config.windows[layer] < 0)
      return false;
  for (int32_t i = 0; i < config.num_weights; ++i)
    if (!is_sound_weight(config.weights[i]))
      return false;
  for (int32_t i = 0; i < config.num_ops; ++i)
    if (!is_sound_op(config, config.ops[i]))
      return false;
  return true;
}

Status Model::bind(const KvPool &pool) {
  const bool has_format = pool.format == FORMAT_F32 || pool.format == FORMAT_BF16 ||
                          pool.format == FORMAT_INT8;
  if (!pool.base || !has_format || pool.block_size < 1 || pool.num_blocks < 1)
    return STATUS_BAD_CONFIG;
  pool_ = pool;
  return STATUS_OK;
}

Status Model::check(const Step &step) const {
  bool attends = false, has_head = false;
  for (const Op &op : ops_) {
    attends = attends || op.kind == OP_ROPE_KV || op.kind == OP_ATTENTION;
    has_head = has_head || op.flags & FLAG_LOGITS;
  }
  if (attends && !pool_.base)
    return STATUS_BAD_CONFIG;
  if (step.num_tokens < 0 || step.num_seqs < 0 || step.num_rows < 0)
    return STATUS_BAD_STEP;
  for (int32_t i = 0; i < step.num_tokens; ++i)
    if (step.input_ids[i] < 0 || step.input_ids[i] >= config_.vocab_size)
      return STATUS_BAD_STEP;
  if (has_head && step.num_rows > 0 && !step.logits && !step.likeliest)
    return STATUS_BAD_STEP;
  int64_t before = -1;
  for (int32_t i = 0; i < step.num_rows; before = step.logits_rows[i++])
    if (step.logits_rows[i] <= before || step.logits_rows[i] >= step.num_tokens)
      return STATUS_BAD_STEP;
  if (!attends)
    return STATUS_OK;
  if (step.query_start[0] != 0 || step.query_start[step.num_seqs] != step.num_tokens)
    return STATUS_BAD_STEP;
  for (int32_t seq = 0; seq < step.num_seqs; ++seq)
    if (!is_sound_sequence(step, pool_, seq))
      return STATUS_BAD_STEP;
  return STATUS_OK;
}

} // namespace hybrid
