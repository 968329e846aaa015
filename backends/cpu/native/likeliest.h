// Where rows of logits are highest: looked up piece by piece, while a product that writes
// them has the piece near its core.
#ifndef HYBRID_CPU_LIKELIEST_H
#define HYBRID_CPU_LIKELIEST_H

#include "kernels.h"

#include <algorithm>

namespace hybrid {

// Logits that a thread makes before it looks through them: as many as stay near its core
// beside the weights on their way through it.
constexpr int64_t PEAK_TILE = 16384;

// Blocks of these for so many rows: a multiple of 3, the width of a product's panel.
constexpr int64_t blocks_of_peak_tile(int64_t num_rows) {
  return std::max<int64_t>(1, PEAK_TILE / (num_rows * 3 * LANES)) * 3;
}

// Floats that hold them, for any number of rows up to `most_rows`.
constexpr int64_t floats_of_peak_tile(int64_t most_rows) {
  return std::max(PEAK_TILE, most_rows * 3 * LANES);
}

// Of pieces that follow each other, `stride` apart: the index of the highest, or -1 where
// one is NaN or the highest is not finite.
int64_t join_peaks(const Peak *pieces, int32_t num_pieces, int64_t stride);

} // namespace hybrid

#endif
