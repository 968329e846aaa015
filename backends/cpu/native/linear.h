// Products with packed weights: tiles of a few rows by a few blocks of 16 channels.
//
// Every output is one chain of sums along K, in one order whatever the tile: a row gets
// the same bits alone and in any batch, but for what product_of_eights.h does.

template <int32_t FORMAT, int R, int B>
static inline void any_tile(const LinearTask &task, int32_t block, int64_t row,
                            [[maybe_unused]] Fetch fetch) {
  if constexpr (FORMAT == FORMAT_INT8)
    tile_of_eights<R, B>(task, block, row, fetch);
  else if constexpr (FORMAT == FORMAT_INT4)
    tile_of_fours<R, B>(task, block, row, fetch);
  else
    tile<FORMAT, R, B>(task, block, row);
}

// R rows by all blocks from `block` to `last`.
template <int32_t FORMAT, int R>
static void strip(const LinearTask &task, int32_t block, int32_t last, int64_t row,
                  Fetch fetch) {
  // More than four rows fill the registers by themselves.
  for (; R <= 4 && block + 3 <= last; block += 3)
    any_tile<FORMAT, R, R <= 4 ? 3 : 1>(task, block, row, fetch);
  for (; block < last; ++block)
    any_tile<FORMAT, R, 1>(task, block, row, fetch);
}

// The next rows, R at most.
template <int32_t FORMAT, int R>
static void strip_of_rows(const LinearTask &task, int32_t block, int32_t last, int64_t row,
                          int64_t num_rows, Fetch fetch) {
  if constexpr (R > 1) {
    if (num_rows < R) {
      strip_of_rows<FORMAT, R - 1>(task, block, last, row, num_rows, fetch);
      return;
    }
  }
  strip<FORMAT, R>(task, block, last, row, fetch);
}

// A panel of three blocks at a time, whose weights stay near for all rows; rows but the
// first tile's fetch the next panel between their sums.
template <int32_t FORMAT>
static void product(const LinearTask &task, int32_t first_block, int32_t num_blocks,
                    int32_t num_rows) {
  const int32_t end_block = first_block + num_blocks;
  constexpr int32_t MOST_ROWS = rows_of_tile(FORMAT);
  const int32_t num_strips = (num_rows + MOST_ROWS - 1) / MOST_ROWS;
  const int64_t panel_bytes = 3 * block_bytes<FORMAT>(task.weight->columns);
  for (int32_t block = first_block; block < end_block; block += 3) {
    const int32_t last = block + 3 < end_block ? block + 3 : end_block;
    Fetch fetch = {BYTES_AHEAD, 1, 0};
    int64_t r = 0;
    for (int32_t s = 1; r < num_rows; r += MOST_ROWS, ++s) {
      strip_of_rows<FORMAT, MOST_ROWS>(task, block, last, r, num_rows - r, fetch);
      fetch = {panel_bytes, num_strips - 1, s - 1};
      if (last * LANES >= task.weight->rows)
        fetch.phase = -1; // never: there is no next panel
    }
  }
}

static void linear(const LinearTask &task, int32_t first_block, int32_t num_blocks,
                   int32_t num_rows) {
  switch (task.weight->format) {
  case FORMAT_F32: product<FORMAT_F32>(task, first_block, num_blocks, num_rows); break;
  case FORMAT_BF16: product<FORMAT_BF16>(task, first_block, num_blocks, num_rows); break;
  case FORMAT_INT8: product<FORMAT_INT8>(task, first_block, num_blocks, num_rows); break;
  default:
    if (task.eights && num_rows >= MANY_ROWS)
      product_by_eights(task, first_block, num_blocks, num_rows);
    else
      product<FORMAT_INT4>(task, first_block, num_blocks, num_rows);
  }
}
