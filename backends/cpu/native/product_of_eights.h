// Products of four-bit weights with many rows, by numbers of eight bits that were made of
// them before, in steps that two groups share: then no offsets are left to be added, and half
// as many steps to be multiplied by. A weight so moves by little more than half such a step
// at most, a 240th of the largest of its 64: what a row gets depends on how many are beside it.

// Fewer are faster by the weights as they are, which are fewer bytes to read.
constexpr int32_t MANY_ROWS = 32;

// Two groups of a block.
static inline void put_eights(const PairOfFours &pair, uint8_t *numbers, float *step) {
  const Pairs offsets = load_pairs(pair.offsets());
  const Floats middle[2] = {first_of_pairs(offsets), second_of_pairs(offsets)};
  Floats lowest[2], largest = set1(0.0f); // what a nibble of 0 stands for
  for (int32_t half = 0; half < 2; ++half) {
    const Floats d = load_f16(pair.steps(half));
    lowest[half] = fma(d, set1(-8.0f), middle[half]);
    const Floats highest = fma(d, set1(7.0f), middle[half]);
    largest = max(largest, max(magnitude(lowest[half]), magnitude(highest)));
  }
  store(step, mul(largest, set1(1.0f / 127.0f)));
  // In 256ths of the step, begun such that the upper byte is the number, rounded, plus 128.
  const Floats factor = zero_below(largest, LEAST_LARGEST, div(set1(127.0f * 256.0f), largest));
  for (int32_t half = 0; half < 2; ++half) {
    const Bytes slopes = twice_16_bits(mul(load_f16(pair.steps(half)), factor));
    const Bytes starts = twice_16_bits(fma(lowest[half], factor, set1(128.5f * 256.0f)));
    for (int32_t j = 0; j < 4; ++j, numbers += 64)
      store_lines(numbers, numbers + 256, load_bytes(pair.quanta(half) + 64 * j), slopes, starts);
    numbers += 256;
  }
}

static void make_eights(const Weight &weight, const Eights &eights) {
  uint8_t *numbers = eights.numbers;
  float *steps = eights.steps;
  const uint8_t *record = static_cast<const uint8_t *>(weight.data);
  const uint8_t *end = record + round_up(weight.rows, LANES) / LANES *
                                    block_bytes<FORMAT_INT4>(weight.columns);
  for (; record != end; record += INT4_RECORD) {
    put_eights({record}, numbers, steps);
    numbers += 2 * GROUP * LANES;
    steps += LANES;
  }
}

template <int R, int B>
static inline void tile_by_eights(const LinearTask &task, int32_t block, int64_t row,
                                  Fetch fetch) {
  const int64_t next_numbers = round_up(task.weight->columns, 2 * GROUP) * LANES;
  const int64_t next_steps = next_numbers / (2 * GROUP);
  const uint8_t *group = task.eights->numbers + block * next_numbers;
  const uint8_t *const end = group + next_numbers;
  const float *steps = task.eights->steps + block * next_steps;
  GroupTile<R, B> tile(task, row);
  for (; group != end; steps += LANES) {
    fetch.step<B>(group, next_numbers, 2 * GROUP * LANES);
    Floats both[R][B];
    HYBRID_UNROLL
    for (int half = 0; half < 2; ++half, group += GROUP * LANES) {
      Ints dots[R][B];
      tile.start(dots, INT4_STARTS + 4 * half);
      add_group<FORMAT_INT8, R, B>(group, next_numbers, tile.rows, GROUP * half, dots);
      HYBRID_UNROLL
      for (int r = 0; r < R; ++r) {
        const char *exponent = tile.rows[r] + INT4_EXPONENTS + 4 * half;
        HYBRID_UNROLL
        for (int b = 0; b < B; ++b) {
          const Floats scaled = with_exponent(to_floats(dots[r][b]),
                                              *reinterpret_cast<const int32_t *>(exponent));
          both[r][b] = half == 0 ? scaled : add(both[r][b], scaled);
        }
      }
    }
    HYBRID_UNROLL
    for (int b = 0; b < B; ++b) {
      const Floats step = load(steps + b * next_steps);
      HYBRID_UNROLL
      for (int r = 0; r < R; ++r)
        tile.sums[r][b] = fma(step, both[r][b], tile.sums[r][b]);
    }
    tile.advance(INT4_PAIR);
  }
  tile.scale_by_units(1.0f);
  put_tile(task, row, block, tile.sums);
}

template <int B, int R>
static inline void strip_by_eights(const LinearTask &task, int32_t block, int64_t row,
                                   int64_t num_rows, Fetch fetch) {
  if constexpr (R > 1) {
    if (num_rows < R) {
      strip_by_eights<B, R - 1>(task, block, row, num_rows, fetch);
      return;
    }
  }
  tile_by_eights<R, B>(task, block, row, fetch);
}

template <int B>
static void panel_by_eights(const LinearTask &task, int32_t block, bool is_last,
                            int32_t num_rows) {
  constexpr int32_t R = 4;
  const int64_t panel_bytes = B * round_up(task.weight->columns, 2 * GROUP) * LANES;
  const int32_t num_strips = (num_rows + R - 1) / R;
  Fetch fetch = {BYTES_AHEAD, 1, 0};
  for (int32_t s = 1; s <= num_strips; ++s) {
    const int64_t row = int64_t{s - 1} * R;
    strip_by_eights<B, R>(task, block, row, num_rows - row, fetch);
    fetch = {panel_bytes, num_strips - 1, is_last ? -1 : s - 1};
  }
}

static void product_by_eights(const LinearTask &task, int32_t first_block, int32_t num_blocks,
                              int32_t num_rows) {
  const int32_t end = first_block + num_blocks;
  for (int32_t block = first_block; block < end; block += 2) {
    const bool is_last = (block + 2) * LANES >= task.weight->rows;
    if (block + 2 <= end)
      panel_by_eights<2>(task, block, is_last, num_rows);
    else
      panel_by_eights<1>(task, block, is_last, num_rows);
  }
}
