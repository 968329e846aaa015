// Products with packed weights: tiles of a few rows by a few blocks of 16 channels.
//
// Every output is one chain of sums along K, in one order whatever the tile: a row gets
// the same bits alone and in any batch.

template <int32_t FORMAT> struct Product;

template <> struct Product<FORMAT_F32> {
  static constexpr int32_t STEP = 1;
  static constexpr int64_t STEP_BYTES = 64;
  template <int R, int B>
  static inline void step(const char *w, int64_t block_bytes, const char *in, int64_t stride,
                          Floats (&sums)[R][B]) {
    Floats weights[B];
    HYBRID_UNROLL
    for (int b = 0; b < B; ++b)
      weights[b] = load(reinterpret_cast<const float *>(w + b * block_bytes));
    HYBRID_UNROLL
    for (int r = 0; r < R; ++r) {
      Floats x = set1(*reinterpret_cast<const float *>(in + r * stride));
      HYBRID_UNROLL
      for (int b = 0; b < B; ++b)
        sums[r][b] = fma(x, weights[b], sums[r][b]);
    }
  }
  static constexpr int64_t IN_BYTES = 4;
};

template <> struct Product<FORMAT_BF16> {
  static constexpr int32_t STEP = 2;
  static constexpr int64_t STEP_BYTES = 64;
  template <int R, int B>
  static inline void step(const char *w, int64_t block_bytes, const char *in, int64_t stride,
                          Floats (&sums)[R][B]) {
    Pairs weights[B];
    HYBRID_UNROLL
    for (int b = 0; b < B; ++b)
      weights[b] = load_pairs(reinterpret_cast<const uint16_t *>(w + b * block_bytes));
    HYBRID_UNROLL
    for (int r = 0; r < R; ++r)
      HYBRID_UNROLL
      for (int b = 0; b < B; ++b)
        sums[r][b] =
            dot2(sums[r][b], weights[b], reinterpret_cast<const uint16_t *>(in + r * stride));
  }
  static constexpr int64_t IN_BYTES = 4;
};

// Adds the bias and what is there, and puts 16 channels of a row.
static inline void put_out(const LinearTask &task, int64_t row, int32_t block, Floats y) {
  const int32_t channel = block * LANES, left = task.weight->rows - channel;
  float *out = task.out + row * task.out_stride + channel;
  if (task.weight->bias)
    y = add(y, load_part(task.weight->bias + channel, left));
  if (task.accumulate)
    y = add(y, load_part(out, left));
  if (left >= LANES)
    store(out, y);
  else
    store_part(out, y, left);
}

template <int32_t FORMAT, int R, int B>
static inline void tile(const LinearTask &task, int32_t block, int64_t row) {
  using P = Product<FORMAT>;
  const int32_t padded = static_cast<int32_t>(round_up(task.weight->columns, GROUP));
  const int64_t block_bytes = padded / P::STEP * P::STEP_BYTES;
  const char *w = static_cast<const char *>(task.weight->data) + block * block_bytes;
  const char *in = task.in + row * task.in_stride;
  Floats sums[R][B];
  HYBRID_UNROLL
  for (int r = 0; r < R; ++r) {
    HYBRID_UNROLL
    for (int b = 0; b < B; ++b)
      sums[r][b] = set1(0.0f);
  }
  for (int32_t k = 0; k < padded; k += P::STEP) {
    P::template step<R, B>(w, block_bytes, in, task.in_stride, sums);
    w += P::STEP_BYTES;
    in += P::IN_BYTES;
  }
  HYBRID_UNROLL
  for (int r = 0; r < R; ++r) {
    HYBRID_UNROLL
    for (int b = 0; b < B; ++b)
      put_out(task, row + r, block + b, sums[r][b]);
  }
}

constexpr int64_t group_bytes(int32_t format) {
  return format == FORMAT_INT4 ? INT4_RECORD : GROUP * LANES;
}

// Adds one group's products, as whole numbers.
template <int32_t FORMAT, int R, int B>
static inline void add_group(const uint8_t *group, int64_t block_bytes, const int8_t *numbers,
                             int64_t stride, Ints (&dots)[R][B]) {
  constexpr int NUM_LOADS = FORMAT == FORMAT_INT8 ? 8 : 4;
  HYBRID_UNROLL
  for (int j = 0; j < NUM_LOADS; ++j) {
    Bytes w[B];
    HYBRID_UNROLL
    for (int b = 0; b < B; ++b)
      w[b] = load_bytes(group + b * block_bytes + 64 * j);
    HYBRID_UNROLL
    for (int r = 0; r < R; ++r) {
      HYBRID_UNROLL
      for (int b = 0; b < B; ++b)
        dots[r][b] = dot4(dots[r][b], FORMAT == FORMAT_INT8 ? w[b] : low_nibbles(w[b]),
                          numbers + r * stride + 4 * j);
    }
    if constexpr (FORMAT == FORMAT_INT4) {
      HYBRID_UNROLL
      for (int r = 0; r < R; ++r) {
        HYBRID_UNROLL
        for (int b = 0; b < B; ++b)
          dots[r][b] = dot4(dots[r][b], high_nibbles(w[b]), numbers + r * stride + 16 + 4 * j);
      }
    }
  }
}

// Which groups' weights a tile fetches into the cache while it multiplies: those `offset`
// bytes on, at every group g with g % every == phase.
struct Fetch {
  int64_t offset;
  int32_t every, phase;
};

// Scales of a row's groups, then their sums times these.
static inline const float *group_scales(const char *row, int32_t padded) {
  return reinterpret_cast<const float *>(row + padded);
}

// Eight-bit and 4-bit weights: whole sums of a group, scaled and added group by group.
template <int32_t FORMAT, int R, int B>
static inline void tile_of_groups(const LinearTask &task, int32_t block, int64_t row,
                                  Fetch fetch) {
  const Weight &weight = *task.weight;
  const int32_t padded = static_cast<int32_t>(round_up(weight.columns, GROUP));
  const int32_t num_groups = padded / GROUP;
  const int64_t block_bytes = num_groups * group_bytes(FORMAT);
  const uint8_t *group = static_cast<const uint8_t *>(weight.data) + block * block_bytes;
  const char *in = task.in + row * task.in_stride;
  Floats sums[R][B];
  HYBRID_UNROLL
  for (int r = 0; r < R; ++r) {
    HYBRID_UNROLL
    for (int b = 0; b < B; ++b)
      sums[r][b] = set1(0.0f);
  }
  int32_t until_fetch = fetch.phase;
  for (int32_t g = 0; g < num_groups; ++g, group += group_bytes(FORMAT)) {
    if (until_fetch-- == 0) {
      until_fetch = fetch.every - 1;
      HYBRID_UNROLL
      for (int b = 0; b < B; ++b) {
        for (int64_t i = 0; i < group_bytes(FORMAT); i += 64)
          prefetch_far(group + b * block_bytes + fetch.offset + i);
      }
    }
    Ints dots[R][B];
    HYBRID_UNROLL
    for (int r = 0; r < R; ++r) {
      HYBRID_UNROLL
      for (int b = 0; b < B; ++b)
        dots[r][b] = no_ints();
    }
    add_group<FORMAT, R, B>(group, block_bytes,
                            reinterpret_cast<const int8_t *>(in) + g * GROUP, task.in_stride,
                            dots);
    HYBRID_UNROLL
    for (int b = 0; b < B; ++b) {
      const uint16_t *halves =
          FORMAT == FORMAT_INT8
              ? weight.scales + (int64_t{block + b} * num_groups + g) * LANES
              : reinterpret_cast<const uint16_t *>(group + b * block_bytes + 256);
      HYBRID_UNROLL
      for (int r = 0; r < R; ++r) {
        const float *scales = group_scales(in + r * task.in_stride, padded);
        const Floats d = load_f16(halves);
        // INT8: the weights were raised by 128 to be unsigned.
        const Floats m =
            FORMAT == FORMAT_INT8 ? mul(d, set1(-128.0f)) : load_f16(halves + LANES);
        sums[r][b] = fma(mul(d, set1(scales[g])), to_floats(dots[r][b]), sums[r][b]);
        sums[r][b] = fma(m, set1(scales[num_groups + g]), sums[r][b]);
      }
    }
  }
  HYBRID_UNROLL
  for (int r = 0; r < R; ++r) {
    HYBRID_UNROLL
    for (int b = 0; b < B; ++b)
      put_out(task, row + r, block + b, sums[r][b]);
  }
}

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

static inline float from_bf16(uint16_t half) {
  uint32_t bits = static_cast<uint32_t>(half) << 16;
  float y;
  __builtin_memcpy(&y, &bits, 4);
  return y;
}

static inline float from_half(const uint16_t *p) {
  const uint16_t halves[LANES] = {*p};
  float numbers[LANES];
  store(numbers, load_f16(halves));
  return numbers[0];
}

// Row `id` of a packed weight: lane id % 16 of every step of block id / 16.
static void embed(const Weight &weight, int64_t id, float *out) {
  const int32_t padded = static_cast<int32_t>(round_up(weight.columns, GROUP));
  const int64_t block = id / LANES, lane = id % LANES, num_groups = padded / GROUP;
  const char *data = static_cast<const char *>(weight.data);
  if (weight.format == FORMAT_F32) {
    const float *w = reinterpret_cast<const float *>(data) + block * padded * LANES + lane;
    for (int32_t k = 0; k < weight.columns; ++k)
      out[k] = w[k * LANES];
  } else if (weight.format == FORMAT_BF16) {
    const uint16_t *w = reinterpret_cast<const uint16_t *>(data) + block * padded * LANES;
    for (int32_t k = 0; k < weight.columns; ++k)
      out[k] = from_bf16(w[(k / 2 * LANES + lane) * 2 + k % 2]);
  } else if (weight.format == FORMAT_INT8) {
    const uint8_t *w = reinterpret_cast<const uint8_t *>(data) + block * padded * LANES;
    const uint16_t *scales = weight.scales + block * num_groups * LANES + lane;
    for (int32_t first = 0; first < weight.columns; first += GROUP) {
      const float scale = from_half(scales + first / GROUP * LANES);
      const int32_t end = first + GROUP < weight.columns ? first + GROUP : weight.columns;
      for (int32_t k = first; k < end; ++k)
        out[k] = scale * static_cast<float>(w[(k / 4 * LANES + lane) * 4 + k % 4] - 128);
    }
  } else {
    const uint8_t *record =
        reinterpret_cast<const uint8_t *>(data) + block * num_groups * INT4_RECORD;
    for (int32_t first = 0; first < weight.columns; first += GROUP) {
      const uint8_t *group = record + first / GROUP * INT4_RECORD;
      const uint16_t *halves = reinterpret_cast<const uint16_t *>(group + 256) + lane;
      const float scale = from_half(halves), least = from_half(halves + LANES);
      const int32_t end = first + GROUP < weight.columns ? first + GROUP : weight.columns;
      for (int32_t k = first; k < end; ++k) {
        const int32_t at = k % 16;
        const uint8_t both = group[(at / 4 * LANES + lane) * 4 + at % 4];
        out[k] = scale * static_cast<float>(k % GROUP < 16 ? both & 15 : both >> 4) + least;
      }
    }
  }
}
