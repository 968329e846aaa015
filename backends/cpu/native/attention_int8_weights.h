// Scores of a tile become weights of V, as whole numbers of 16 bits. Rows go side by side:
// what is largest in each, and what it is scaled by, is one register for sixteen rows.

constexpr float MOST_OF_WEIGHT = 65535.0f;
// In the place of the largest score where there is none yet.
constexpr float NO_SCORE = -3e38f;

// What attention keeps of its rows from tile to tile; arrays [rows], and room for 16 more.
struct WholeRows {
  float *scores;  // [rows][32]; then bytes of weights: 32 high ones, 32 low ones
  float *totals;  // [rows][16]: sums of weights by lanes
  float *largest; // scores so far
  float *factors; // what sums so far are to be multiplied with
  float *units;   // of the weights
};

// Which tokens of a tile a row sees.
struct Sight {
  int32_t first_position, group, window, token;

  bool is_whole(int32_t num_rows) const {
    const int32_t last = first_position + (num_rows - 1) / group;
    return token + ATTENTION_TILE <= first_position + 1 &&
           (!window || last - window + 1 <= token);
  }
  Floats keep(int32_t row, int32_t first, Floats scores) const {
    const int32_t position = first_position + row / group;
    const int32_t oldest = window ? position - window + 1 : 0;
    const int32_t begin = oldest > token ? oldest - token : 0;
    return keep_range(scores, begin - first, position + 1 - token - first, -__builtin_inff());
  }
};

// 0, or no number if a scale is none.
static inline float poison_of(const float *scales) {
  return sum(fma(load(scales), set1(0.0f), mul(load(scales + LANES), set1(0.0f))));
}

// Weights, 1 at most, of up to N rows from `first` on, times V's scales.
template <int N>
static inline void weigh_rows(const WholeRows &rows, const float *scales, float poison,
                              int32_t first, int32_t count) {
  float *scores = rows.scores + first * ATTENTION_TILE;
  Floats tops[N];
  HYBRID_UNROLL_16
  for (int r = 0; r < N; ++r) {
    const float *row = scores + (r < count ? r : 0) * ATTENTION_TILE;
    tops[r] = max(load(row), load(row + LANES));
  }
  const Floats before = load(rows.largest + first);
  const Floats now = max(before, largest_of_each(tops)); // a score that is no number wins
  const Floats base = max(set1(NO_SCORE), now);
  const Floats factors = exponential(sub(before, base));
  float bases[LANES], factor[LANES];
  store(bases, base);
  store(factor, factors);
  store(rows.factors + first, factors);
  store_part(rows.largest + first, now, count);
  const Floats low_scales = load(scales), high_scales = load(scales + LANES);
  HYBRID_UNROLL_16
  for (int r = 0; r < N; ++r) {
    if (r >= count)
      continue;
    float *row = scores + r * ATTENTION_TILE, *total = rows.totals + (first + r) * LANES;
    Floats low = exponential(sub(load(row), set1(bases[r])));
    Floats high = exponential(sub(load(row + LANES), set1(bases[r])));
    store(total, fma(load(total), set1(factor[r]), add(low, high)));
    low = mul(low, low_scales);
    high = mul(high, high_scales);
    store(row, low);
    store(row + LANES, high);
    tops[r] = max(low, high);
  }
  const Floats top = max(largest_of_each(tops), set1(0.0f)); // 0 of no number
  const Floats unit = zero_below(top, LEAST_WHOLE, mul(top, set1(1.0f / MOST_OF_WEIGHT)));
  store(rows.units + first, add(unit, set1(poison)));
  store(factor, zero_below(top, LEAST_WHOLE, div(set1(MOST_OF_WEIGHT), top)));
  HYBRID_UNROLL_16
  for (int r = 0; r < N; ++r) {
    if (r >= count)
      continue;
    float *row = scores + r * ATTENTION_TILE;
    uint8_t *bytes = reinterpret_cast<uint8_t *>(row);
    const Floats low = mul(load(row), set1(factor[r]));
    const Floats high = mul(load(row + LANES), set1(factor[r]));
    store_halves(bytes, bytes + ATTENTION_TILE, low);
    store_halves(bytes + LANES, bytes + ATTENTION_TILE + LANES, high);
  }
}

static inline void hide_unseen(const Sight &sight, float *scores, int32_t num_rows) {
  if (sight.is_whole(num_rows))
    return;
  for (int32_t r = 0; r < num_rows; ++r, scores += ATTENTION_TILE) {
    store(scores, sight.keep(r, 0, load(scores)));
    store(scores + LANES, sight.keep(r, LANES, load(scores + LANES)));
  }
}
