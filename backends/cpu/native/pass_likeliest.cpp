// How a pass finds the highest logits: of each row in each unit of the product, and of the
// units when all are through.

#include "likeliest.h"
#include "pass.h"

#include <algorithm>
#include <limits>

namespace hybrid {

// Nothing may be thrown once the team runs.
void Pass::allocate_peaks() {
  size_t most = 0;
  for (const Op &op : model_.ops_) {
    if (!has(op) || !seeks_likeliest(op) || num_rows(op) == 0)
      continue;
    begin_linear(op);
    most = std::max(most, static_cast<size_t>(cut_.block_units * num_rows(op)));
  }
  peaks_.resize(most);
}

// A few blocks at a time, so that what they put out is still near when it is looked
// through. Without logits it lies in `tile` alone, which the next few overwrite.
void Pass::linear_with_peaks(LinearTask task, Range blocks, int32_t num_rows, Peak *peaks,
                             float *tile) const {
  std::fill_n(peaks, num_rows, Peak{-std::numeric_limits<float>::infinity(), 0});
  const bool has_logits = task.out != nullptr;
  const int64_t most = blocks_of_peak_tile(num_rows), width = task.weight->rows;
  if (!has_logits)
    task.out_stride = most * LANES;
  for (int64_t block = blocks.first, next; block < blocks.last; block = next) {
    next = std::min(block + most, blocks.last);
    // A product puts a channel at its number from `out`: the first one's comes out as 0.
    if (!has_logits)
      task.out = tile - block * LANES;
    model_.kernels_.linear(task, static_cast<int32_t>(block),
                           static_cast<int32_t>(next - block), num_rows);
    for (int32_t row = 0; row < num_rows; ++row)
      model_.kernels_.find_peak(task.out + row * task.out_stride, block * LANES,
                                std::min(width, next * LANES), peaks + row);
  }
}

void Pass::join_rows(const Op &op) {
  const int64_t count = num_rows(op);
  for (int64_t row = 0; row < count; ++row)
    step_.likeliest[first_row_ + row] =
        join_peaks(peaks_.data() + row, cut_.block_units, count);
}

} // namespace hybrid
