// Attention over cells of floats: of 32 bits, or of bfloat16.

// Adds one lane's products to the scores of 16 tokens.
template <int32_t FORMAT>
static inline Floats add_score(Floats sum, const float *query, const float *keys) {
  if constexpr (FORMAT == FORMAT_BF16)
    return dot2(sum, load_pairs(reinterpret_cast<const uint16_t *>(keys)),
                reinterpret_cast<const uint16_t *>(query));
  else
    return fma(set1(*query), load(keys), sum);
}

// Scores of R queries of `lanes` each.
template <int32_t FORMAT, int R>
static inline void make_scores(const float *queries, const float *keys, int32_t lanes,
                               float *scores, Ahead &ahead) {
  Floats sums[R][2];
  HYBRID_UNROLL
  for (int r = 0; r < R; ++r)
    sums[r][0] = sums[r][1] = set1(0.0f);
  const int32_t every = lanes / ATTENTION_TILE > 1 ? lanes / ATTENTION_TILE : 1;
  for (int32_t d = 0; d < lanes; ++d) {
    if (d % every == 0)
      ahead.fetch_row();
    const float *tokens = keys + d * ATTENTION_TILE;
    HYBRID_UNROLL
    for (int r = 0; r < R; ++r) {
      const float *query = queries + r * lanes + d;
      sums[r][0] = add_score<FORMAT>(sums[r][0], query, tokens);
      sums[r][1] = add_score<FORMAT>(sums[r][1], query, tokens + LANES);
    }
  }
  HYBRID_UNROLL
  for (int r = 0; r < R; ++r) {
    store(scores + r * ATTENTION_TILE, sums[r][0]);
    store(scores + r * ATTENTION_TILE + LANES, sums[r][1]);
  }
}

// Adds weighted V of a tile to 16 * B columns of R rows.
template <int32_t FORMAT, int R, int B>
static inline void add_values(const float *weights, const TileRows &rows, int32_t dim,
                              int32_t padded, int32_t column, float *sums,
                              Ahead &ahead) {
  Floats y[R][B];
  HYBRID_UNROLL
  for (int r = 0; r < R; ++r) {
    HYBRID_UNROLL
    for (int b = 0; b < B; ++b)
      y[r][b] = load(sums + r * padded + column + b * LANES);
  }
  for (int32_t t = 0; t < rows.count; ++t) {
    ahead.fetch_row();
    Floats v[B];
    HYBRID_UNROLL
    for (int b = 0; b < B; ++b)
      v[b] = cell_numbers<FORMAT>(rows.values[t], column + b * LANES, B > 1 ? padded : dim);
    HYBRID_UNROLL
    for (int r = 0; r < R; ++r) {
      const Floats p = set1(weights[r * ATTENTION_TILE + t]);
      HYBRID_UNROLL
      for (int b = 0; b < B; ++b)
        y[r][b] = fma(p, v[b], y[r][b]);
    }
  }
  HYBRID_UNROLL
  for (int r = 0; r < R; ++r) {
    HYBRID_UNROLL
    for (int b = 0; b < B; ++b)
      store(sums + r * padded + column + b * LANES, y[r][b]);
  }
}

template <int32_t FORMAT> struct ScoreRows {
  const float *queries, *keys;
  int32_t lanes;
  float *scores;
  Ahead &ahead;
  template <int R> void run(int32_t r) const {
    make_scores<FORMAT, R>(queries + r * lanes, keys, lanes, scores + r * ATTENTION_TILE, ahead);
  }
};

template <int32_t FORMAT> struct ValueRows {
  const float *weights;
  const TileRows &rows;
  int32_t dim, padded;
  float *sums;
  Ahead &ahead;
  template <int R, int B> void add_columns(int32_t r, int32_t column) const {
    add_values<FORMAT, R, B>(weights + r * ATTENTION_TILE, rows, dim, padded, column,
                             sums + r * padded, ahead);
  }
  template <int R> void run(int32_t r) const {
    constexpr int B = 4;
    int32_t column = 0;
    for (; column + B * LANES <= dim; column += B * LANES)
      add_columns<R, B>(r, column);
    for (; column < dim; column += LANES)
      add_columns<R, 1>(r, column);
  }
};

// Scores of a row become weights, 1 at most, in their place; what came before is scaled to
// the new maximum.
static inline void weigh(float *scores, int32_t first, int32_t last, int32_t padded,
                         PartOfRow &part, float *sums) {
  const float nothing = -__builtin_inff();
  if (first >= last) {
    store(scores, set1(0.0f));
    store(scores + LANES, set1(0.0f));
    return;
  }
  Floats low = keep_range(load(scores), first, last, nothing);
  Floats high = keep_range(load(scores + LANES), first - LANES, last - LANES, nothing);
  const float top = largest(max(low, high));
  if (!(top <= part.largest)) {
    const float factor =
        part.largest == nothing ? 0.0f : largest(exponential(set1(part.largest - top)));
    part.total *= factor;
    for (int32_t i = 0; i < padded; i += LANES)
      store(sums + i, mul(load(sums + i), set1(factor)));
    part.largest = top;
  }
  const Floats base = set1(part.largest);
  low = exponential(sub(low, base));
  high = exponential(sub(high, base));
  part.total += sum(add(low, high));
  store(scores, low);
  store(scores + LANES, high);
}

template <int32_t FORMAT>
static void attend_cells(const AttentionTask &task, int32_t first, int32_t last, Upcoming after,
                         float *scratch, AttentionRows rows) {
  const int32_t dim = task.shape.head_dim;
  const int32_t padded = static_cast<int32_t>(round_up(dim, LANES));
  constexpr int32_t PER_LANE = numbers_per_lane(FORMAT);
  const int32_t lanes = static_cast<int32_t>(round_up(dim, LANES * PER_LANE)) / PER_LANE;
  const int32_t group = task.shape.num_heads / task.shape.num_kv_heads;
  const int32_t num_rows = task.num_tokens * group;
  float *queries = scratch, *scores = queries + num_rows * padded;
  float *keys = scores + num_rows * ATTENTION_TILE;
  for (int32_t r = 0; r < num_rows; ++r) {
    const float *query = query_of_row(task, r);
    for (int32_t i = 0; i < lanes * PER_LANE; i += LANES) {
      const Floats scaled = mul(numbers_at(query, i, dim), set1(task.scale));
      if constexpr (FORMAT == FORMAT_BF16)
        store_bf16(reinterpret_cast<uint16_t *>(queries + r * lanes) + i, scaled);
      else
        store(queries + r * lanes + i, scaled);
    }
    for (int32_t i = 0; i < padded; i += LANES)
      store(rows.sums + r * padded + i, set1(0.0f));
    rows.parts[r] = {-__builtin_inff(), 0.0f};
  }
  auto find = [](const AttentionTask &from, int32_t token, int32_t end, TileRows &tile) {
    find_rows<FORMAT>(from, token, end, tile);
  };
  TileQueue<TileRows, decltype(find)> tiles(task, first, last, after, find);
  for (int32_t i = 0; i < tiles.num_tiles; ++i) {
    const int32_t token = first + i * ATTENTION_TILE;
    const TileRows &tile = tiles[i], &ahead = tiles.find(i + TILES_AHEAD);
    Ahead next_keys = {ahead.keys, ahead.count, dim * cell_number_bytes(FORMAT)};
    Ahead next_values = {ahead.values, ahead.count, dim * cell_number_bytes(FORMAT)};
    load_keys<FORMAT>(tile, dim, keys);
    by_fours(num_rows, ScoreRows<FORMAT>{queries, keys, lanes, scores, next_keys});
    for (int32_t r = 0; r < num_rows; ++r) {
      const int32_t position = task.first_position + r / group;
      const int32_t oldest = task.window ? position - task.window + 1 : 0;
      const int32_t begin = oldest > token ? oldest - token : 0;
      const int32_t end = position + 1 - token < ATTENTION_TILE ? position + 1 - token
                                                                : ATTENTION_TILE;
      weigh(scores + r * ATTENTION_TILE, begin, end, padded, rows.parts[r],
            rows.sums + r * padded);
    }
    by_fours(num_rows, ValueRows<FORMAT>{scores, tile, dim, padded, rows.sums, next_values});
  }
}
