// Products with weights of eight and four bits: whole sums of a group of 32 columns, scaled
// and added group by group.

// Two groups of a block of four-bit weights.
struct PairOfFours {
  const uint8_t *record;

  const uint8_t *quanta(int32_t half) const { return record + half * 256; }
  const uint16_t *steps(int32_t half) const {
    return reinterpret_cast<const uint16_t *>(record + 512) + half * LANES;
  }
  const uint16_t *offsets() const { return reinterpret_cast<const uint16_t *>(record + 576); }
};

// Of 16 channels.
template <int32_t FORMAT> constexpr int64_t block_bytes(int32_t columns) {
  return FORMAT == FORMAT_INT4 ? round_up(columns, 2 * GROUP) / (2 * GROUP) * INT4_RECORD
                               : round_up(columns, GROUP) * LANES;
}

// Adds one group's products, as whole numbers.
template <int32_t FORMAT, int R, int B>
static inline void add_group(const uint8_t *group, int64_t next_block,
                             const char *const (&rows)[R], int32_t at, Ints (&dots)[R][B]) {
  constexpr int NUM_LOADS = FORMAT == FORMAT_INT8 ? 8 : 4;
  HYBRID_UNROLL
  for (int j = 0; j < NUM_LOADS; ++j) {
    Bytes w[B];
    HYBRID_UNROLL
    for (int b = 0; b < B; ++b)
      w[b] = load_bytes(group + b * next_block + 64 * j);
    HYBRID_UNROLL
    for (int r = 0; r < R; ++r) {
      const int8_t *numbers = reinterpret_cast<const int8_t *>(rows[r]) + at + 4 * j;
      HYBRID_UNROLL
      for (int b = 0; b < B; ++b)
        dots[r][b] = dot4(dots[r][b], FORMAT == FORMAT_INT8 ? w[b] : low_nibbles(w[b]), numbers);
    }
    if constexpr (FORMAT == FORMAT_INT4) {
      HYBRID_UNROLL
      for (int r = 0; r < R; ++r) {
        const int8_t *numbers = reinterpret_cast<const int8_t *>(rows[r]) + at + 16 + 4 * j;
        HYBRID_UNROLL
        for (int b = 0; b < B; ++b)
          dots[r][b] = dot4(dots[r][b], high_nibbles(w[b]), numbers);
      }
    }
  }
}

// Fetched ahead by the first rows of a panel, where nobody has fetched it before. Nearer
// comes too late from memory: at 2,560 bytes eight rows take a quarter longer.
constexpr int64_t BYTES_AHEAD = 11520;

// Which weights a tile fetches into the cache while it multiplies: those `offset` bytes on,
// at every step i, of a group or two, with i % every == phase.
struct Fetch {
  int64_t offset;
  int32_t every, phase;

  template <int B>
  inline void step(const uint8_t *weights, int64_t next_block, int64_t num_bytes) {
    if (phase-- != 0)
      return;
    phase = every - 1;
    HYBRID_UNROLL
    for (int b = 0; b < B; ++b) {
      for (int64_t i = 0; i < num_bytes; i += 64)
        prefetch_far(weights + b * next_block + offset + i);
    }
  }
};

template <int R, int B> struct GroupTile {
  Floats sums[R][B];
  const char *rows[R];

  GroupTile(const LinearTask &task, int64_t row) {
    HYBRID_UNROLL
    for (int r = 0; r < R; ++r) {
      rows[r] = task.in + (row + r) * task.in_stride;
      HYBRID_UNROLL
      for (int b = 0; b < B; ++b)
        sums[r][b] = set1(0.0f);
    }
  }

  // Whole numbers that lie `at` bytes from where the rows are.
  void start(Ints (&dots)[R][B], int32_t at) const {
    HYBRID_UNROLL
    for (int r = 0; r < R; ++r) {
      HYBRID_UNROLL
      for (int b = 0; b < B; ++b)
        dots[r][b] = same_ints(*reinterpret_cast<const int32_t *>(rows[r] + at));
    }
  }

  // Of rows for INT4 weights, behind whose last pair they stand.
  void scale_by_units(float factor) {
    HYBRID_UNROLL
    for (int r = 0; r < R; ++r) {
      const Floats unit = set1(*reinterpret_cast<const float *>(rows[r]));
      HYBRID_UNROLL
      for (int b = 0; b < B; ++b)
        sums[r][b] = mul(mul(sums[r][b], set1(factor)), unit);
    }
  }

  void advance(int64_t num_bytes) {
    HYBRID_UNROLL
    for (int r = 0; r < R; ++r)
      rows[r] += num_bytes;
  }
};

template <int R, int B>
static inline void tile_of_eights(const LinearTask &task, int32_t block, int64_t row,
                                  Fetch fetch) {
  const Weight &weight = *task.weight;
  const int64_t num_groups = round_up(weight.columns, GROUP) / GROUP;
  const int64_t next_block = block_bytes<FORMAT_INT8>(weight.columns);
  const uint8_t *group = static_cast<const uint8_t *>(weight.data) + block * next_block;
  const uint16_t *scales = weight.scales + block * num_groups * LANES;
  GroupTile<R, B> tile(task, row);
  for (int64_t g = 0; g < num_groups; ++g) {
    fetch.step<B>(group, next_block, GROUP * LANES);
    Ints dots[R][B];
    tile.start(dots, INT8_START);
    add_group<FORMAT_INT8, R, B>(group, next_block, tile.rows, 0, dots);
    HYBRID_UNROLL
    for (int b = 0; b < B; ++b) {
      const Floats of_weights = load_f16(scales + b * num_groups * LANES);
      HYBRID_UNROLL
      for (int r = 0; r < R; ++r) {
        const float of_row = *reinterpret_cast<const float *>(tile.rows[r] + INT8_SCALE);
        tile.sums[r][b] =
            fma(mul(of_weights, set1(of_row)), to_floats(dots[r][b]), tile.sums[r][b]);
      }
    }
    group += GROUP * LANES;
    scales += LANES;
    tile.advance(INT8_GROUP);
  }
  put_tile(task, row, block, tile.sums);
}

template <int R, int B>
static inline void tile_of_fours(const LinearTask &task, int32_t block, int64_t row,
                                 Fetch fetch) {
  const Weight &weight = *task.weight;
  const int64_t next_block = block_bytes<FORMAT_INT4>(weight.columns);
  PairOfFours pair = {static_cast<const uint8_t *>(weight.data) + block * next_block};
  const uint8_t *const end = pair.record + next_block;
  GroupTile<R, B> tile(task, row);
  for (; pair.record != end; pair.record += INT4_RECORD) {
    fetch.step<B>(pair.record, next_block, INT4_RECORD);
    HYBRID_UNROLL
    for (int half = 0; half < 2; ++half) {
      Ints dots[R][B];
      tile.start(dots, INT4_STARTS + 4 * half);
      add_group<FORMAT_INT4, R, B>(pair.quanta(half), next_block, tile.rows, GROUP * half, dots);
      HYBRID_UNROLL
      for (int b = 0; b < B; ++b) {
        const Floats steps = load_f16(PairOfFours{pair.record + b * next_block}.steps(half));
        HYBRID_UNROLL
        for (int r = 0; r < R; ++r) {
          const char *exponent = tile.rows[r] + INT4_EXPONENTS + 4 * half;
          const Floats scaled = with_exponent(to_floats(dots[r][b]),
                                              *reinterpret_cast<const int32_t *>(exponent));
          tile.sums[r][b] = fma(steps, scaled, tile.sums[r][b]);
        }
      }
    }
    HYBRID_UNROLL
    for (int b = 0; b < B; ++b) {
      const Pairs offsets = load_pairs(PairOfFours{pair.record + b * next_block}.offsets());
      HYBRID_UNROLL
      for (int r = 0; r < R; ++r) {
        const char *group_sums = tile.rows[r] + INT4_SUMS;
        tile.sums[r][b] = dot2(tile.sums[r][b], offsets,
                               reinterpret_cast<const uint16_t *>(group_sums));
      }
    }
    tile.advance(INT4_PAIR);
  }
  tile.scale_by_units(0x1p-4f); // nibbles came times 16
  put_tile(task, row, block, tile.sums);
}
