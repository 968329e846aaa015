#include "likeliest.h"

#include <cmath>
#include <limits>

namespace hybrid {

int64_t join_peaks(const Peak *pieces, int32_t num_pieces, int64_t stride) {
  Peak highest = {-std::numeric_limits<float>::infinity(), -1};
  for (int32_t i = 0; i < num_pieces; ++i) {
    const Peak &piece = pieces[i * stride];
    if (std::isnan(piece.value))
      return -1;
    if (piece.value > highest.value)
      highest = piece;
  }
  return std::isfinite(highest.value) ? highest.index : -1;
}

} // namespace hybrid
