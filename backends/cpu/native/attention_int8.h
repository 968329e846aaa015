// What attention over INT8 cells does in whole numbers: scores are queries of 16 bits times
// K, sums are weights of 16 bits times V. Products and their sums are exact until they
// become float32.

// Both bytes are in -127..127.
constexpr float BASE_OF_QUERY = 254.0f;
constexpr float MOST_OF_QUERY = 127.0f * BASE_OF_QUERY + 126.0f;
constexpr float MOST_OF_WEIGHT = 65535.0f;
// Below this 65535 / largest overflows, or the scale leaves the normal numbers.
constexpr float LEAST_WHOLE = 1e-33f;

// A query: x = scale * (254 * high + low). Bytes lie by 16, high before low.
struct SplitQuery {
  const int8_t *bytes;
  float scale;
  int32_t high_sum, low_sum;
};

// Behind a row's bytes, which take half of what its floats took.
template <class Float> static inline Float *query_end(Float *row, int32_t padded) {
  return row + padded / 2;
}

// A row of floats becomes bytes in place.
static inline void split_query(float *row, int32_t padded) {
  Floats top = set1(0.0f), broken = set1(0.0f);
  for (int32_t i = 0; i < padded; i += LANES) {
    const Floats x = load(row + i);
    top = max(top, magnitude(x));
    broken = fma(x, set1(0.0f), broken);
  }
  const float largest_one = largest(top), poison = sum(broken);
  const bool is_zero = largest_one < LEAST_WHOLE || poison != 0.0f;
  const Floats factor = set1(is_zero ? 0.0f : MOST_OF_QUERY / largest_one);
  int8_t *bytes = reinterpret_cast<int8_t *>(row);
  Floats high_sum = set1(0.0f), low_sum = set1(0.0f);
  for (int32_t i = 0; i < padded && !is_zero; i += LANES) {
    const Floats x = nearest(mul(load(row + i), factor));
    const Floats high = nearest(mul(x, set1(1.0f / BASE_OF_QUERY)));
    const Floats low = fma(high, set1(-BASE_OF_QUERY), x);
    store_s8(bytes + 2 * i, high);
    store_s8(bytes + 2 * i + LANES, low);
    high_sum = add(high_sum, high);
    low_sum = add(low_sum, low);
  }
  if (is_zero)
    __builtin_memset(bytes, 0, static_cast<size_t>(padded) * 2);
  float *end = query_end(row, padded);
  end[0] = is_zero ? poison : largest_one / MOST_OF_QUERY;
  end[1] = sum(high_sum);
  end[2] = sum(low_sum);
}

static inline SplitQuery query_of(const float *row, int32_t padded) {
  const float *end = query_end(row, padded);
  return {reinterpret_cast<const int8_t *>(row), end[0], static_cast<int32_t>(end[1]),
          static_cast<int32_t>(end[2])};
}

// K of 32 tokens as [padded / 4][32][4] bytes raised by 128; 0 where there is none.
static inline void load_raised_keys(const TileRows &rows, int32_t dim, int32_t padded,
                                    uint8_t *keys) {
  constexpr int32_t AT_ONCE = LANES * 4;
  for (int32_t half = 0; half < ATTENTION_TILE; half += LANES) {
    const int32_t count = rows.count - half;
    for (int32_t i = 0; i < padded; i += AT_ONCE) {
      Floats square[LANES];
      _Pragma("GCC unroll 16")
      for (int32_t t = 0; t < LANES; ++t) {
        float sixteen[LANES] = {};
        if (t < count && dim - i >= AT_ONCE)
          __builtin_memcpy(sixteen, rows.keys[half + t] + i, AT_ONCE);
        else if (t < count)
          __builtin_memcpy(sixteen, rows.keys[half + t] + i, static_cast<size_t>(dim - i));
        square[t] = load(sixteen);
      }
      transpose(square);
      const int32_t quads = (padded - i) / 4 < LANES ? (padded - i) / 4 : LANES;
      _Pragma("GCC unroll 16")
      for (int32_t d = 0; d < LANES; ++d)
        if (d < quads)
          store_raised(keys + ((i / 4 + d) * ATTENTION_TILE + half) * 4, square[d]);
    }
  }
}

// Scores of R queries of `padded` floats each.
template <int R>
static inline void make_whole_scores(const float *queries, const uint8_t *keys, int32_t padded,
                                     const TileRows &tile, float *scores, Ahead &ahead) {
  Ints high[R][2], low[R][2];
  SplitQuery query[R];
  HYBRID_UNROLL
  for (int r = 0; r < R; ++r) {
    query[r] = query_of(queries + r * padded, padded);
    // K was raised by 128 to be unsigned.
    high[r][0] = high[r][1] = same_ints(-128 * query[r].high_sum);
    low[r][0] = low[r][1] = same_ints(-128 * query[r].low_sum);
  }
  for (int32_t i = 0; i < padded; i += LANES) {
    for (int32_t t = 0; t < ATTENTION_TILE * LANES; t += padded)
      ahead.fetch_row();
    HYBRID_UNROLL
    for (int j = 0; j < 4; ++j) {
      const uint8_t *quad = keys + (i / 4 + j) * ATTENTION_TILE * 4;
      const Bytes first = load_bytes(quad), second = load_bytes(quad + 64);
      HYBRID_UNROLL
      for (int r = 0; r < R; ++r) {
        const int8_t *bytes = query[r].bytes + 2 * i + 4 * j;
        high[r][0] = dot4(high[r][0], first, bytes);
        high[r][1] = dot4(high[r][1], second, bytes);
        low[r][0] = dot4(low[r][0], first, bytes + LANES);
        low[r][1] = dot4(low[r][1], second, bytes + LANES);
      }
    }
  }
  HYBRID_UNROLL
  for (int r = 0; r < R; ++r) {
    HYBRID_UNROLL
    for (int half = 0; half < 2; ++half) {
      const Floats whole =
          fma(to_floats(high[r][half]), set1(BASE_OF_QUERY), to_floats(low[r][half]));
      const Floats scale = mul(load(tile.key_scales + half * LANES), set1(query[r].scale));
      store(scores + r * ATTENTION_TILE + half * LANES, mul(whole, scale));
    }
  }
}

// 0, or no number if a scale is none.
static inline float poison_of(const float *scales) {
  return sum(fma(load(scales), set1(0.0f), mul(load(scales + LANES), set1(0.0f))));
}

// V of 32 tokens as [8][columns][4] bytes: four tokens of a column side by side. Columns
// are padded to 64; a token too many is one of the others, whose weight there is 0.
constexpr int32_t VALUES_AT_ONCE = 64;

static inline void load_values(const TileRows &rows, int32_t dim, int8_t *values) {
  const int64_t columns = round_up(dim, VALUES_AT_ONCE);
  for (int32_t t = 0; t < rows.count; t += 4, values += columns * 4) {
    for (int32_t i = 0; i < dim; i += VALUES_AT_ONCE) {
      const int32_t left = dim - i;
      const int8_t *four[4];
      int8_t padding[4][VALUES_AT_ONCE];
      for (int32_t j = 0; j < 4; ++j) {
        const int32_t token = t + j < rows.count ? t + j : rows.count - 1;
        four[j] = reinterpret_cast<const int8_t *>(rows.values[token]) + i;
        if (left < VALUES_AT_ONCE) {
          __builtin_memset(padding[j], 0, VALUES_AT_ONCE);
          __builtin_memcpy(padding[j], four[j], static_cast<size_t>(left));
          four[j] = padding[j];
        }
      }
      store_quads(values + i * 4, four);
    }
  }
}

// A row's weights times V's scales, as whole numbers of 16 bits in the place of its scores:
// 32 high bytes, then 32 low ones. Behind them, what these are to be multiplied with.
static inline void put_whole_weights(float *row, const float *scales, float poison, Floats low,
                                     Floats high) {
  low = mul(low, load(scales));
  high = mul(high, load(scales + LANES));
  const float top = largest(max(low, high));
  const bool is_zero = !(top >= LEAST_WHOLE);
  const Floats factor = set1(is_zero ? 0.0f : MOST_OF_WEIGHT / top);
  uint8_t *bytes = reinterpret_cast<uint8_t *>(row);
  store_halves(bytes, bytes + ATTENTION_TILE, mul(low, factor));
  store_halves(bytes + LANES, bytes + ATTENTION_TILE + LANES, mul(high, factor));
  row[LANES] = (is_zero ? 0.0f : top / MOST_OF_WEIGHT) + poison;
}

// Adds weighted V of a tile to 16 * B columns of R rows.
template <int R, int B>
static inline void add_whole_values(const float *weights, const int8_t *values, int32_t count,
                                    int64_t columns, int32_t padded, float *sums,
                                    Ahead &ahead) {
  Ints high[R][B], low[R][B];
  HYBRID_UNROLL
  for (int r = 0; r < R; ++r) {
    HYBRID_UNROLL
    for (int b = 0; b < B; ++b)
      high[r][b] = low[r][b] = same_ints(0);
  }
  for (int32_t t = 0; t < count; t += 4, values += columns * 4) {
    for (int i = 0; i < 4; ++i)
      ahead.fetch_row();
    HYBRID_UNROLL
    for (int b = 0; b < B; ++b) {
      const Bytes four = load_bytes(reinterpret_cast<const uint8_t *>(values) + 64 * b);
      HYBRID_UNROLL
      for (int r = 0; r < R; ++r) {
        const uint8_t *bytes =
            reinterpret_cast<const uint8_t *>(weights + r * ATTENTION_TILE) + t;
        high[r][b] = dot4_signed(high[r][b], bytes, four);
        low[r][b] = dot4_signed(low[r][b], bytes + ATTENTION_TILE, four);
      }
    }
  }
  HYBRID_UNROLL
  for (int r = 0; r < R; ++r) {
    const Floats unit = set1(weights[r * ATTENTION_TILE + LANES]);
    HYBRID_UNROLL
    for (int b = 0; b < B; ++b) {
      float *sum = sums + r * padded + b * LANES;
      const Floats whole = fma(to_floats(high[r][b]), set1(256.0f), to_floats(low[r][b]));
      store(sum, fma(whole, unit, load(sum)));
    }
  }
}
