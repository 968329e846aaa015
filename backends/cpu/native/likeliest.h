// Where rows of logits are highest: looked up piece by piece, while a product that writes
// them has the piece near its core.
#ifndef HYBRID_CPU_LIKELIEST_H
#define HYBRID_CPU_LIKELIEST_H

#include "kernels.h"

namespace hybrid {

struct Peak {
  float value;   // NaN: one of the numbers is none, or their sum is
  int32_t index; // of the highest, the first of equal ones
};

// Of row[first, last).
using FindPeak = Peak (*)(const float *row, int64_t first, int64_t last);

// Of pieces that follow each other, `stride` apart: the index of the highest, or -1 where
// one is NaN or the highest is not finite.
int64_t join_peaks(const Peak *pieces, int32_t num_pieces, int64_t stride);

extern const FindPeak find_peak_portable;
#ifdef HYBRID_CPU_X86
extern const FindPeak find_peak_avx2;
extern const FindPeak find_peak_avx512;
extern const FindPeak find_peak_avx512_bf16;
#endif

} // namespace hybrid

#endif
