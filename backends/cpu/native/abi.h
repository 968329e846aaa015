// What Python and the kernels agree on; mirrored by backends/cpu/abi.py, field by field.
//
// All arrays belong to the caller. What `hybrid_cpu_create` and `hybrid_cpu_bind_kv` are
// given by pointer (weights, vectors, the pool) must outlive the model; structs and op
// lists are copied.
#ifndef HYBRID_CPU_ABI_H
#define HYBRID_CPU_ABI_H

#include <cstdint>

#define HYBRID_CPU_ABI_VERSION 7

// How numbers of a weight, or of an activation that a LINEAR reads, are stored.
//
// Weights are [N, K] matrices, padded with zeros to Np = ceil16(N), Kp = ceil32(K):
//   FORMAT_F32   float  [Np/16][Kp][16]
//   FORMAT_BF16  uint16 [Np/16][Kp/2][16][2]
//   FORMAT_INT8  uint8  [Np/16][Kp/4][16][4], q + 128; float16 scales [Np/16][Kp/32][16];
//                w = scale * q, as in a GGUF's Q8_0 blocks
//   FORMAT_INT4  records [Np/16][ceil(Kp/64)] of 640 bytes, two groups of 32 columns each:
//                uint8 nibbles [2][4][16][4], where byte (i, j, n, b) holds q[n][4j + b] of
//                group i low and q[n][16 + 4j + b] high; float16 d[2][16]; bfloat16
//                m[16][2]; w = d * (q - 8) + m, q in 0..15; a group too many is zeros
// Activations are rows of a buffer, K padded with zeros to Kp, named after the weights that
// they are multiplied with; rows of whole numbers are an odd number of 64 bytes apart:
//   FORMAT_F32   float  [Kp]
//   FORMAT_BF16  uint16 [Kp]
//   FORMAT_INT8  groups [Kp/32] of 40 bytes: int8 q[32]; float scale; int32, the sum of q
//                times -128; x = scale * q
//   FORMAT_INT4  pairs of groups [ceil(Kp/64)] of 84 bytes: int8 q[2][32]; int32 [2], n *
//                2^23 of each group, n in 0..64; int32 [2], the sum of q times -128;
//                bfloat16 [2], the sum of q times 2^(n + 4). Then float unit;
//                x = unit * 2^n * q. A group too many is zeros
enum Format : int32_t { FORMAT_F32 = 0, FORMAT_BF16 = 1, FORMAT_INT8 = 2, FORMAT_INT4 = 3 };

struct Weight {
  int32_t format;
  int32_t rows;         // N: what it puts out
  int32_t columns;      // K: what it takes in
  int32_t reserved;
  const void *data;       // 64-byte aligned
  const uint16_t *scales; // FORMAT_INT8 only
  const float *bias;      // [N] or null
};

enum OpKind : int32_t {
  OP_EMBED = 0,       // token ids -> out f32 [width], row of `weight`
  OP_NORM = 1,        // in f32 [width] -> RMS norm by vectors[norm] -> out in `format`
  OP_LINEAR = 2,      // in (activation for `weight`) -> out f32 [weight.rows]
  OP_ROPE_KV = 3,     // in f32 [q|k|v]: norms heads if asked, rotates q in place, stores k, v
  OP_ATTENTION = 4,   // in f32 [q|k|v] (q rotated) -> out f32 [num_heads * head_dim]; over
                      // bfloat16 cells the scaled q is rounded to bfloat16, too
  OP_SILU_MUL = 5,    // in f32 [2 * width], gate then up -> silu(gate) * up in `format`
  OP_CONVERT = 6,     // in f32 [width] -> out in `format`
  OP_SELECT_ROWS = 7, // in f32 [width] of all tokens -> out f32 of the rows with logits,
                      // which ops with FLAG_ROWS read, in arenas of their own; all such
                      // ops run after all others
};

enum OpFlag : int32_t {
  FLAG_ACCUMULATE = 1, // LINEAR adds to what is in `out`
  FLAG_LOGITS = 2,     // `out` is the step's logits, not the arena
  FLAG_ROWS = 4,       // works on selected rows, not on all tokens
};

struct Op {
  int32_t kind;
  int32_t flags;
  int32_t layer;  // ROPE_KV and ATTENTION: of the pool and of `windows`
  int32_t weight; // index into weights, or -1
  int32_t norm;   // index into vectors, or -1; ROPE_KV: of queries
  int32_t norm2;  // ROPE_KV: of keys, or -1
  int32_t format; // of the activation put out
  int32_t width;  // elements a token, where the weight does not say
  int64_t in;     // byte offsets into an arena, or -1
  int64_t out;
};

struct ModelConfig {
  int32_t abi_version;
  int32_t variant; // index of an instruction set
  int32_t num_threads;
  int32_t chunk_tokens; // tokens of one pass; steps of more take several
  int32_t num_heads;
  int32_t num_kv_heads;
  int32_t head_dim; // even
  int32_t num_layers;
  int32_t num_ops;
  int32_t num_weights;
  int32_t num_vectors;
  int32_t vocab_size; // ids at or above it are refused
  float norm_epsilon;
  float attention_scale;
  float rope_scale; // factor of cosines and sines
  int32_t unit_tokens; // rows of an arena: a pass works in as many arenas as it needs
  // 0: products of INT4 weights with many rows are made by copies of them in 8 bits, rounded
  // to steps that 64 columns share: what a row gets depends on how many are beside it.
  int32_t batch_invariant;
  int32_t reserved;
  int64_t arena_bytes; // of one
  const Op *ops;
  const Weight *weights;
  const float *const *vectors;
  const float *inverse_frequencies; // [head_dim / 2]
  const int32_t *windows;           // [num_layers]: tokens a query sees, 0: all
};

// A cell is one block's K or V in one layer: of FORMAT_F32 and FORMAT_BF16
// [head][token][head_dim] dense. Of FORMAT_INT8 it holds numbers the way attention multiplies
// them, in P = ceil16(head_dim) columns; those that are too many may hold anything:
//   K   uint8 [head][group of 16 tokens][P/4][n][4], q + 128
//   V   int8 [head][group of 4 tokens][P][n]
// where n is 16, or 4, and in a block's last group what is left of its tokens; behind them
// float scales [head][token], x = scale * q. Cells of INT8 are padded to 64 bytes.
struct KvPool {
  void *base;
  int64_t block_stride; // bytes from one block to the next, of one layer's K or V
  int64_t layer_stride;
  int64_t kv_stride; // from K to V
  int64_t num_blocks;
  int32_t format; // FORMAT_F32, FORMAT_BF16 or FORMAT_INT8
  int32_t block_size;
};

struct Step {
  int32_t num_tokens;
  int32_t num_seqs;
  int32_t num_rows;
  int32_t reserved;
  const int64_t *input_ids;     // [num_tokens]
  const int64_t *positions;     // [num_tokens]
  const int32_t *query_start;   // [num_seqs + 1]
  const int32_t *table_start;   // [num_seqs + 1], into block_ids
  const int32_t *block_ids;     // each sequence's block table
  const int64_t *logits_rows;   // [num_rows], ascending
  float *logits;                // [num_rows, vocab_size]; or null, where `likeliest` will do
  double *seconds;              // [num_ops], added to; or null
  // [num_rows]: the index of each row's highest logit, the first of equal ones; or -1 where
  // it does not say, as where one of them is no number, or the highest is not finite. Or null.
  int64_t *likeliest;
};

enum Status : int32_t {
  STATUS_OK = 0,
  STATUS_BAD_ABI = 1,
  STATUS_BAD_CONFIG = 2,
  STATUS_NO_MEMORY = 3,
  // An id, a row or a block is out of range, or nothing is asked of rows; nothing was written.
  STATUS_BAD_STEP = 4,
};

extern "C" {
int32_t hybrid_cpu_abi_version();
int32_t hybrid_cpu_num_variants();
// "portable", "avx2", "avx512", "avx512_bf16": later ones need more of the machine.
const char *hybrid_cpu_variant_name(int32_t variant);
int32_t hybrid_cpu_variant_runs_here(int32_t variant);
int32_t hybrid_cpu_create(const ModelConfig *config, void **model);
int32_t hybrid_cpu_bind_kv(void *model, const KvPool *pool);
// Runs all ops over a step's tokens. One thread at a time; others do their own work.
int32_t hybrid_cpu_forward(void *model, const Step *step);
// The first arena, for tests that run single ops.
void *hybrid_cpu_arena(void *model);
void hybrid_cpu_destroy(void *model);
}

#endif
