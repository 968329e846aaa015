// Where the numbers of an INT8 cell lie: as attention multiplies them; see abi.h.
#ifndef HYBRID_CPU_INT8_CELL_H
#define HYBRID_CPU_INT8_CELL_H

#include "kernels.h"

namespace hybrid {

// Tokens whose numbers lie side by side, unless their block ends.
constexpr int32_t KEY_TOKENS = 16;
constexpr int32_t VALUE_TOKENS = 4;

// A token of a block: where its first number lies within its head's, and how far apart its
// tokens' neighbours leave them.
struct PlaceOfToken {
  int64_t offset; // bytes
  int32_t step;   // tokens of its group
};

// Of K or V, by the tokens of a group.
constexpr PlaceOfToken place_of(int32_t slot, int32_t group, int32_t block_size, int64_t padded) {
  const int32_t first = slot / group * group;
  const int32_t left = block_size - first;
  const int32_t unit = group == KEY_TOKENS ? 4 : 1; // bytes of a token that stay together
  return {first * padded + int64_t{slot - first} * unit, left < group ? left : group};
}

// Bytes of a head's K or V in one block.
constexpr int64_t int8_head_bytes(int32_t block_size, int32_t head_dim) {
  return block_size * round_up(head_dim, LANES);
}

} // namespace hybrid

#endif
