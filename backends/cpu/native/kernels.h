// The kernels of one instruction set, as the forward pass calls them.
#ifndef HYBRID_CPU_KERNELS_H
#define HYBRID_CPU_KERNELS_H

#include "abi.h"

namespace hybrid {

constexpr int32_t LANES = 16;
constexpr int32_t GROUP = 32;         // numbers along K that share a scale
constexpr int32_t INT4_RECORD = 640;  // bytes of 16 channels times two groups

constexpr int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// A row that INT8 weights are multiplied with, by groups of 32; see abi.h.
constexpr int32_t INT8_SCALE = 32, INT8_START = 36, INT8_GROUP = 40;
// One that INT4 weights are, by pairs of groups.
constexpr int32_t INT4_EXPONENTS = 64, INT4_STARTS = 72, INT4_SUMS = 80, INT4_PAIR = 84;

// Bytes from one row of an activation buffer to the next; see abi.h.
constexpr int64_t activation_stride(int32_t format, int32_t columns) {
  const int64_t num_groups = round_up(columns, GROUP) / GROUP;
  if (format == FORMAT_F32)
    return num_groups * GROUP * 4;
  if (format == FORMAT_BF16)
    return num_groups * GROUP * 2;
  const int64_t bytes = format == FORMAT_INT8 ? num_groups * INT8_GROUP
                                              : (num_groups + 1) / 2 * INT4_PAIR + 4;
  // An odd number of cache lines: rows a power of two apart would share their places.
  return ((bytes + 63) / 64 | 1) * 64;
}

// Rows that a product's tile takes at most: with four bits it pays to have more, over which
// the work of taking nibbles apart is spread.
constexpr int32_t rows_of_tile(int32_t format) { return format == FORMAT_INT4 ? 8 : 4; }
constexpr int32_t MOST_ROWS_OF_TILE = 8;

// INT4 weights as numbers of eight bits, for products with many rows:
//   numbers uint8 [Np/16][ceil64(K)/4][16][4], q + 128
//   steps   float [Np/16][ceil64(K)/64][16]; w is about step * q
struct Eights {
  uint8_t *numbers;
  float *steps;
};

struct LinearTask {
  const Weight *weight;
  const Eights *eights; // or null: then the number of rows does not matter
  const char *in;
  int64_t in_stride; // bytes
  float *out;
  int64_t out_stride; // floats
  bool accumulate;
};

struct HeadShape {
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
};

struct RopeTask {
  HeadShape shape;
  const float *query_norm; // or null
  const float *key_norm;
  float epsilon;
  const float *cosines; // of this token: [head_dim / 2]
  const float *sines;
  float *qkv; // of this token
  // Where this token's K and V go: its own row of head 0, and bytes to the next head's.
  char *keys;
  char *values;
  int32_t key_step; // INT8 only, see int8_cell.h
  int32_t value_step;
  float *key_scales; // INT8 only
  float *value_scales;
  int64_t head_bytes;
  int64_t head_scales; // floats
  int32_t format;
};

// Queries of one sequence under one KV head.
struct AttentionTask {
  HeadShape shape;
  const KvPool *pool;
  int32_t layer;
  int32_t kv_head;
  int32_t window; // tokens a query sees, 0: all
  float scale;
  const int32_t *block_ids; // of the sequence
  int32_t first_position;   // of the first query
  int32_t num_tokens;       // queries, at consecutive positions
  const float *queries;     // of the first token, head 0
  int64_t query_stride;     // floats, token to token
};

// What a thread is likely to attend to next: some KV tokens of a task, or nothing.
struct Upcoming {
  const AttentionTask *task;
  int32_t first, last;
};

struct PartOfRow {
  float largest; // -inf: saw nothing
  float total;
};

// Rows (token, head of the group) of a task after some of the KV: not yet divided.
struct AttentionRows {
  PartOfRow *parts; // [num_tokens * group]
  float *sums;      // [num_tokens * group][padded head_dim]
};

// Where a row is highest, as far as it has been looked through.
struct Peak {
  float value;   // NaN: one of the numbers is none, or the sum of some is
  int32_t index; // of the highest, the first of equal ones
};

struct Kernels {
  void (*embed)(const Weight &weight, int64_t id, float *out);
  void (*norm)(const float *in, const float *weight, float epsilon, int32_t width,
               int32_t format, char *out);
  void (*convert)(const float *in, int32_t width, int32_t format, char *out);
  void (*silu_mul)(const float *gate_up, int32_t width, int32_t format, char *out,
                   float *scratch);
  void (*linear)(const LinearTask &task, int32_t first_block, int32_t num_blocks,
                 int32_t num_rows);
  // Heads [first, last) of q, k and v joined.
  void (*rope_kv)(const RopeTask &task, int32_t first_head, int32_t last_head);
  // KV tokens [first, last) for all rows of the task, into `rows`; what comes next is
  // fetched on the way.
  void (*attend)(const AttentionTask &task, int32_t first, int32_t last, Upcoming next,
                 float *scratch, AttentionRows rows);
  // into += from, both of the same rows.
  void (*merge)(int32_t num_rows, int32_t head_dim, AttentionRows into, AttentionRows from);
  // Divides and puts the rows of a task to `out` [token][num_heads * head_dim].
  void (*finish)(const AttentionTask &task, AttentionRows rows, float *out,
                 int64_t out_stride);
  // Looks through row[first, last), too; what was before, came before it.
  void (*find_peak)(const float *row, int64_t first, int64_t last, Peak *peak);
  void (*make_eights)(const Weight &weight, const Eights &eights);
};

// Most rows that `attend` takes at once, a single token's group apart.
constexpr int32_t ATTENTION_ROWS = 48;
// KV tokens whose scores are made at once; KV parts begin at multiples of PART.
constexpr int32_t ATTENTION_TILE = 32;
constexpr int32_t ATTENTION_PART = 512;

// Floats of scratch for `attend`.
constexpr int64_t attention_scratch(int32_t rows, int32_t head_dim) {
  const int64_t padded = round_up(head_dim, LANES);
  // K of a tile, or K and V in bytes; over INT8 cells a register of totals a row, too, and
  // three numbers, in arrays that are read by whole registers.
  return rows * (padded + ATTENTION_TILE + LANES) + 3 * (round_up(rows, LANES) + LANES) +
         ATTENTION_TILE * padded;
}

extern const Kernels kernels_portable;
// Clang does not know the pragma that allows a file its instructions.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define HYBRID_CPU_X86 1
extern const Kernels kernels_avx2;
extern const Kernels kernels_avx512;
extern const Kernels kernels_avx512_bf16;
#endif

} // namespace hybrid

#endif
