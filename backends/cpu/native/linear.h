// Products with packed weights: tiles of a few rows by a few blocks of 16 channels.
//
// Every output is one chain of sums along K, in one order whatever the tile: a row gets
// the same bits alone and in any batch.

// R rows by all blocks from `block` to `last`.
template <int32_t FORMAT, int R>
static void strip(const LinearTask &task, int32_t block, int32_t last, int64_t row,
                  [[maybe_unused]] Fetch fetch) {
  constexpr bool has_groups = FORMAT == FORMAT_INT8 || FORMAT == FORMAT_INT4;
  for (; block + 3 <= last; block += 3) {
    if constexpr (has_groups)
      tile_of_groups<FORMAT, R, 3>(task, block, row, fetch);
    else
      tile<FORMAT, R, 3>(task, block, row);
  }
  for (; block < last; ++block) {
    if constexpr (has_groups)
      tile_of_groups<FORMAT, R, 1>(task, block, row, fetch);
    else
      tile<FORMAT, R, 1>(task, block, row);
  }
}

// Fetched ahead by the first rows of a panel, where nobody has fetched it before.
constexpr int32_t GROUPS_AHEAD = 8;

// A panel of three blocks at a time, whose weights stay near for all rows; rows but the
// first four fetch the next panel between their sums.
template <int32_t FORMAT>
static void product(const LinearTask &task, int32_t first_block, int32_t num_blocks,
                    int32_t num_rows) {
  const int32_t end_block = first_block + num_blocks;
  const int32_t num_strips = (num_rows + ROWS_OF_TILE - 1) / ROWS_OF_TILE;
  const int64_t panel_bytes =
      3 * (round_up(task.weight->columns, GROUP) / GROUP) * group_bytes(FORMAT);
  for (int32_t block = first_block; block < end_block; block += 3) {
    const int32_t last = block + 3 < end_block ? block + 3 : end_block;
    Fetch fetch = {GROUPS_AHEAD * group_bytes(FORMAT), 1, 0};
    int64_t r = 0;
    for (int32_t s = 1; r < num_rows; r += ROWS_OF_TILE, ++s) {
      switch (num_rows - r) {
      case 1: strip<FORMAT, 1>(task, block, last, r, fetch); break;
      case 2: strip<FORMAT, 2>(task, block, last, r, fetch); break;
      case 3: strip<FORMAT, 3>(task, block, last, r, fetch); break;
      default: strip<FORMAT, 4>(task, block, last, r, fetch); break;
      }
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
  default: product<FORMAT_INT4>(task, first_block, num_blocks, num_rows); break;
  }
}
