// Queries as attention over INT8 cells multiplies them: whole numbers of 16 bits.

// Both bytes are in -127..127.
constexpr float BASE_OF_QUERY = 254.0f;
constexpr float MOST_OF_QUERY = 127.0f * BASE_OF_QUERY + 126.0f;
// Below this 65535 / largest overflows, or the scale leaves the normal numbers.
constexpr float LEAST_WHOLE = 1e-33f;

// A query: x = scale * (254 * high + low). Bytes lie by 16, high before low. K was raised by
// 128 to be unsigned: sums of products with it start from -128 times the sum of the bytes.
struct SplitQuery {
  const int8_t *bytes;
  float scale;
  int32_t high_start, low_start;
};

// Behind a row's bytes, which take half of what its floats took.
template <class Float> static inline Float *query_end(Float *row, int32_t padded) {
  return row + padded / 2;
}

// Gives the sums of high and of low bytes by lanes; a number that is none makes the former none.
static inline void split_row(float *row, int32_t padded, float factor, Floats &high_sum,
                             Floats &low_sum) {
  int8_t *bytes = reinterpret_cast<int8_t *>(row);
  high_sum = low_sum = set1(0.0f);
  for (int32_t i = 0; i < padded; i += LANES) {
    const Floats x = nearest(mul(load(row + i), set1(factor)));
    const Floats high = nearest(mul(x, set1(1.0f / BASE_OF_QUERY)));
    const Floats low = fma(high, set1(-BASE_OF_QUERY), x);
    put_s8(bytes + 2 * i, high);
    put_s8(bytes + 2 * i + LANES, low);
    high_sum = add(high_sum, high);
    low_sum = add(low_sum, low);
  }
}

static inline int32_t start_of(float sum) {
  // Such that no number becomes one.
  return -128 * static_cast<int32_t>(sum > -1e6f ? sum : -1e6f);
}

// Up to N rows of floats become bytes in place.
template <int N>
static inline void split_queries(float *queries, int32_t padded, int32_t count) {
  Floats tops[N], high_sums[N], low_sums[N];
  HYBRID_UNROLL_16
  for (int r = 0; r < N; ++r) {
    tops[r] = high_sums[r] = low_sums[r] = set1(0.0f);
    for (int32_t i = 0; i < padded && r < count; i += LANES)
      tops[r] = max(tops[r], magnitude(load(queries + r * padded + i)));
  }
  const Floats top = largest_of_each(tops);
  float factor[LANES], scale[LANES], high_sum[LANES], low_sum[LANES];
  store(factor, zero_below(top, LEAST_WHOLE, div(set1(MOST_OF_QUERY), top)));
  HYBRID_UNROLL_16
  for (int r = 0; r < N; ++r)
    if (r < count)
      split_row(queries + r * padded, padded, factor[r], high_sums[r], low_sums[r]);
  const Floats high = sum_of_each(high_sums);
  store(high_sum, high);
  store(low_sum, sum_of_each(low_sums));
  store(scale, fma(high, set1(0.0f),
                   zero_below(top, LEAST_WHOLE, div(top, set1(MOST_OF_QUERY)))));
  for (int32_t r = 0; r < count; ++r) {
    float *end = query_end(queries + r * padded, padded);
    const int32_t starts[2] = {start_of(high_sum[r]), start_of(low_sum[r])};
    end[0] = scale[r];
    __builtin_memcpy(end + 1, starts, sizeof starts);
  }
}

static inline SplitQuery query_of(const float *row, int32_t padded) {
  const float *end = query_end(row, padded);
  int32_t starts[2];
  __builtin_memcpy(starts, end + 1, sizeof starts);
  return {reinterpret_cast<const int8_t *>(row), end[0], starts[0], starts[1]};
}
