// How a pass finds the highest logits: of each row in each unit of the product, while what
// the unit has written is near its core, and of the units when all are through.

#include "pass.h"

#include <algorithm>

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

void Pass::find_peaks(const Op &op, int32_t unit) {
  const int32_t block_unit = unit % cut_.block_units;
  const int64_t width = model_.weights_[static_cast<size_t>(op.weight)].rows;
  const int64_t first = int64_t{block_unit} * cut_.unit_blocks * LANES;
  const int64_t last = std::min(width, first + int64_t{cut_.unit_blocks} * LANES);
  const int64_t first_row = int64_t{unit / cut_.block_units} * unit_rows_;
  const int64_t last_row = std::min(first_row + unit_rows_, num_rows(op));
  Peak *peaks = peaks_.data() + block_unit * num_rows(op);
  for (int64_t row = first_row; row < last_row; ++row)
    peaks[row] = model_.find_peak_(step_.logits + (first_row_ + row) * width, first, last);
}

void Pass::join_rows(const Op &op) {
  const int64_t count = num_rows(op);
  for (int64_t row = 0; row < count; ++row)
    step_.likeliest[first_row_ + row] =
        join_peaks(peaks_.data() + row, cut_.block_units, count);
}

} // namespace hybrid
