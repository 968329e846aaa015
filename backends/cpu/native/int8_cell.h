// Where the numbers of an INT8 cell lie: as attention multiplies them; see abi.h.
#ifndef HYBRID_CPU_INT8_CELL_H
#define HYBRID_CPU_INT8_CELL_H

#include "kernels.h"

namespace hybrid {

// Tokens of a group, unless their block ends.
constexpr int32_t KEY_TOKENS = 16;
constexpr int32_t VALUE_TOKENS = 4;

// Of a token among its head's numbers of one block: four numbers of K, or one of V, then
// those of the other tokens of its group, then the next four, or one.
struct PlaceOfToken {
  int64_t offset; // bytes
  int32_t step;   // tokens of the group
};

// Of K or V, whose groups have KEY_TOKENS or VALUE_TOKENS.
constexpr PlaceOfToken place_of(int32_t slot, int32_t group, int32_t block_size,
                                int64_t padded) {
  const int32_t first = slot / group * group, left = block_size - first;
  const int32_t together = group == KEY_TOKENS ? 4 : 1;
  return {first * padded + (slot - first) * together, left < group ? left : group};
}

// Bytes of a head's K or V in one block.
constexpr int64_t int8_head_bytes(int32_t block_size, int32_t head_dim) {
  return block_size * round_up(head_dim, LANES);
}

// Has K and V of the token in `slot` go to a cell of K, and to V's.
inline void put_into_int8(RopeTask &task, const KvPool &pool, char *cell, int32_t slot) {
  const int64_t padded = round_up(task.shape.head_dim, LANES);
  const PlaceOfToken key = place_of(slot, KEY_TOKENS, pool.block_size, padded);
  const PlaceOfToken value = place_of(slot, VALUE_TOKENS, pool.block_size, padded);
  float *scales = reinterpret_cast<float *>(cell + task.shape.num_kv_heads * task.head_bytes);
  task.keys = cell + key.offset;
  task.key_step = key.step;
  task.values = cell + pool.kv_stride + value.offset;
  task.value_step = value.step;
  task.key_scales = scales + slot;
  task.value_scales = scales + pool.kv_stride / 4 + slot;
}

} // namespace hybrid

#endif
