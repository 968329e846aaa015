// Products with packed weights: tiles of a few rows by a few blocks of 16 channels.
//
// Every output is one chain of sums along K, in one order whatever the tile: a row gets
// the same bits alone and in any batch.

template <int32_t FORMAT> struct Product;

template <> struct Product<FORMAT_F32> {
  static constexpr int32_t STEP = 1;
  static constexpr int64_t STEP_BYTES = 64;
  using Sum = Floats;
  static Floats none() { return set1(0.0f); }
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
  using Sum = Floats;
  static Floats none() { return set1(0.0f); }
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

template <> struct Product<FORMAT_INT8> {
  static constexpr int32_t STEP = 4;
  static constexpr int64_t STEP_BYTES = 64;
  using Sum = Ints;
  static Ints none() { return no_ints(); }
  template <int R, int B>
  static inline void step(const char *w, int64_t block_bytes, const char *in, int64_t stride,
                          Ints (&sums)[R][B]) {
    Bytes weights[B];
    HYBRID_UNROLL
    for (int b = 0; b < B; ++b)
      weights[b] = load_bytes(reinterpret_cast<const uint8_t *>(w + b * block_bytes));
    HYBRID_UNROLL
    for (int r = 0; r < R; ++r)
      HYBRID_UNROLL
      for (int b = 0; b < B; ++b)
        sums[r][b] =
            dot4(sums[r][b], weights[b], reinterpret_cast<const int8_t *>(in + r * stride));
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

struct QuantizedRow {
  const int32_t *group_sums;
  int32_t total;
  float scale;
};

static inline QuantizedRow quantized_row(const char *row, int32_t padded) {
  const int32_t *sums = reinterpret_cast<const int32_t *>(row + padded);
  QuantizedRow y = {sums, sums[padded / GROUP], 0.0f};
  __builtin_memcpy(&y.scale, sums + padded / GROUP + 1, 4);
  return y;
}

static inline Floats finished(const LinearTask &, int64_t, int32_t, int32_t, Floats y) {
  return y;
}
static inline Floats finished(const LinearTask &task, int64_t row, int32_t block,
                              int32_t padded, Ints y) {
  QuantizedRow in = quantized_row(task.in + row * task.in_stride, padded);
  // The weights were raised by 128 to be unsigned.
  Floats exact = to_floats(minus(y, in.total * 128));
  Floats scaled = mul(exact, load(task.weight->scales + block * LANES));
  return mul(scaled, set1(in.scale));
}

template <int32_t FORMAT, int R, int B>
static inline void tile(const LinearTask &task, int32_t block, int64_t row) {
  using P = Product<FORMAT>;
  const int32_t padded = static_cast<int32_t>(round_up(task.weight->columns, GROUP));
  const int64_t block_bytes = padded / P::STEP * P::STEP_BYTES;
  const char *w = static_cast<const char *>(task.weight->data) + block * block_bytes;
  const char *in = task.in + row * task.in_stride;
  typename P::Sum sums[R][B];
  HYBRID_UNROLL
  for (int r = 0; r < R; ++r)
    HYBRID_UNROLL
    for (int b = 0; b < B; ++b)
      sums[r][b] = P::none();
  for (int32_t k = 0; k < padded; k += P::STEP) {
    P::template step<R, B>(w, block_bytes, in, task.in_stride, sums);
    w += P::STEP_BYTES;
    in += P::IN_BYTES;
  }
  HYBRID_UNROLL
  for (int r = 0; r < R; ++r)
    HYBRID_UNROLL
    for (int b = 0; b < B; ++b)
      put_out(task, row + r, block + b,
              finished(task, row + r, block + b, padded, sums[r][b]));
}

// Four-bit weights: whole sums of a group, scaled and added group by group.
template <int R> static inline void tile_int4(const LinearTask &task, int32_t block, int64_t row) {
  const int32_t padded = static_cast<int32_t>(round_up(task.weight->columns, GROUP));
  const int32_t num_groups = padded / GROUP;
  const uint8_t *record = static_cast<const uint8_t *>(task.weight->data) +
                          static_cast<int64_t>(block) * num_groups * INT4_RECORD;
  const char *in = task.in + row * task.in_stride;
  Floats sums[R];
  HYBRID_UNROLL
  for (int r = 0; r < R; ++r)
    sums[r] = set1(0.0f);
  for (int32_t g = 0; g < num_groups; ++g, record += INT4_RECORD) {
    Bytes low[4], high[4];
    HYBRID_UNROLL
    for (int j = 0; j < 4; ++j) {
      Bytes both = load_bytes(record + 64 * j);
      low[j] = low_nibbles(both);
      high[j] = high_nibbles(both);
    }
    const uint16_t *halves = reinterpret_cast<const uint16_t *>(record + 256);
    const Floats d = load_f16(halves), m = load_f16(halves + LANES);
    HYBRID_UNROLL
    for (int r = 0; r < R; ++r) {
      const char *x = in + r * task.in_stride;
      const int8_t *numbers = reinterpret_cast<const int8_t *>(x) + g * GROUP;
      const int32_t *group_sums = reinterpret_cast<const int32_t *>(x + padded);
      Ints dots = no_ints();
      HYBRID_UNROLL
      for (int j = 0; j < 4; ++j)
        dots = dot4(dots, low[j], numbers + 4 * j);
      HYBRID_UNROLL
      for (int j = 0; j < 4; ++j)
        dots = dot4(dots, high[j], numbers + 16 + 4 * j);
      sums[r] = fma(d, to_floats(dots), sums[r]);
      sums[r] = fma(m, set1(static_cast<float>(group_sums[g])), sums[r]);
    }
  }
  HYBRID_UNROLL
  for (int r = 0; r < R; ++r) {
    QuantizedRow x = quantized_row(in + r * task.in_stride, padded);
    put_out(task, row + r, block, mul(sums[r], set1(x.scale)));
  }
}

template <int32_t FORMAT, int R>
static void strip(const LinearTask &task, int32_t block, int32_t last, int64_t row) {
  if constexpr (FORMAT == FORMAT_INT4) {
    for (; block < last; ++block)
      tile_int4<R>(task, block, row);
  } else {
    for (; block + 3 <= last; block += 3)
      tile<FORMAT, R, 3>(task, block, row);
    for (; block < last; ++block)
      tile<FORMAT, R, 1>(task, block, row);
  }
}

template <int32_t FORMAT>
static void product(const LinearTask &task, int32_t first_block, int32_t num_blocks,
                    int64_t row, int32_t num_rows) {
  constexpr int32_t GROUP_BLOCKS = FORMAT == FORMAT_INT4 ? 1 : 3;
  const int32_t end_block = first_block + num_blocks;
  for (int32_t block = first_block; block < end_block; block += GROUP_BLOCKS) {
    const int32_t last = block + GROUP_BLOCKS < end_block ? block + GROUP_BLOCKS : end_block;
    int64_t r = row;
    const int64_t end = row + num_rows;
    for (; r + 8 <= end; r += 8)
      strip<FORMAT, 8>(task, block, last, r);
    switch (end - r) {
    case 1: strip<FORMAT, 1>(task, block, last, r); break;
    case 2: strip<FORMAT, 2>(task, block, last, r); break;
    case 3: strip<FORMAT, 3>(task, block, last, r); break;
    case 4: strip<FORMAT, 4>(task, block, last, r); break;
    case 5: strip<FORMAT, 5>(task, block, last, r); break;
    case 6: strip<FORMAT, 6>(task, block, last, r); break;
    case 7: strip<FORMAT, 7>(task, block, last, r); break;
    default: break;
    }
  }
}

static void linear(const LinearTask &task, int32_t first_block, int32_t num_blocks,
                   int32_t first_row, int32_t num_rows) {
  switch (task.weight->format) {
  case FORMAT_F32: product<FORMAT_F32>(task, first_block, num_blocks, first_row, num_rows); break;
  case FORMAT_BF16: product<FORMAT_BF16>(task, first_block, num_blocks, first_row, num_rows); break;
  case FORMAT_INT8: product<FORMAT_INT8>(task, first_block, num_blocks, first_row, num_rows); break;
  default: product<FORMAT_INT4>(task, first_block, num_blocks, first_row, num_rows); break;
  }
}

static inline float from_bf16(uint16_t half) {
  uint32_t bits = static_cast<uint32_t>(half) << 16;
  float y;
  __builtin_memcpy(&y, &bits, 4);
  return y;
}

// Row `id` of a packed weight: lane id % 16 of every step of block id / 16.
static void embed(const Weight &weight, int64_t id, float *out) {
  const int32_t padded = static_cast<int32_t>(round_up(weight.columns, GROUP));
  const int64_t block = id / LANES, lane = id % LANES;
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
    for (int32_t k = 0; k < weight.columns; ++k)
      out[k] = weight.scales[id] *
               static_cast<float>(w[(k / 4 * LANES + lane) * 4 + k % 4] - 128);
  } else {
    const uint8_t *record =
        reinterpret_cast<const uint8_t *>(data) + block * (padded / GROUP) * INT4_RECORD;
    for (int32_t k = 0; k < weight.columns; ++k) {
      const uint8_t *group = record + k / GROUP * INT4_RECORD;
      const int32_t at = k % 16, is_high = k % GROUP / 16;
      const uint8_t both = group[(at / 4 * LANES + lane) * 4 + at % 4];
      const float q = static_cast<float>(is_high ? both >> 4 : both & 15);
      const uint16_t *halves = reinterpret_cast<const uint16_t *>(group + 256);
      float d[LANES], m[LANES];
      store(d, load_f16(halves));
      store(m, load_f16(halves + LANES));
      out[k] = d[lane] * q + m[lane];
    }
  }
}
