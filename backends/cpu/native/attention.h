// Attention of a few queries over the paged cache, by tiles of 32 tokens.
//
// A row's result depends on its position alone, where K and V are numbers: tiles lie at
// multiples of 32, parts at multiples of 512, whoever shares the step and however the
// prompt was cut.

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

// Runs f<R>(row) over rows by fours, then the rest.
template <class F> static inline void by_fours(int32_t num_rows, F f) {
  int32_t r = 0;
  for (; r + 4 <= num_rows; r += 4)
    f.template run<4>(r);
  switch (num_rows - r) {
  case 1: f.template run<1>(r); break;
  case 2: f.template run<2>(r); break;
  case 3: f.template run<3>(r); break;
  default: break;
  }
}

template <int32_t FORMAT> struct ScoreRows {
  const float *queries, *keys;
  int32_t lanes;
  const TileRows &tile;
  float *scores;
  Ahead &ahead;
  template <int R> void run(int32_t r) const {
    float *y = scores + r * ATTENTION_TILE;
    if constexpr (FORMAT == FORMAT_INT8)
      make_whole_scores<R>(queries + r * lanes, reinterpret_cast<const uint8_t *>(keys), lanes,
                           tile, y, ahead);
    else
      make_scores<FORMAT, R>(queries + r * lanes, keys, lanes, y, ahead);
  }
};

template <int32_t FORMAT> struct ValueRows {
  const float *weights;
  const TileRows &rows;
  const int8_t *values; // INT8 only: V as it is multiplied
  int32_t dim, padded;
  float *sums;
  Ahead &ahead;
  template <int R, int B> void add_columns(int32_t r, int32_t column) const {
    const float *w = weights + r * ATTENTION_TILE;
    if constexpr (FORMAT == FORMAT_INT8)
      add_whole_values<R, B>(w, values + column * 4, rows.count, round_up(dim, VALUES_AT_ONCE),
                             padded, sums + r * padded + column, ahead);
    else
      add_values<FORMAT, R, B>(w, rows, dim, padded, column, sums + r * padded, ahead);
  }
  template <int R> void run(int32_t r) const {
    // Two sums each, of high and of low bytes: more columns would leave the registers.
    constexpr int B = FORMAT == FORMAT_INT8 && R == 4 ? 2 : 4;
    int32_t column = 0;
    for (; column + B * LANES <= dim; column += B * LANES)
      add_columns<R, B>(r, column);
    for (; column < dim; column += LANES)
      add_columns<R, 1>(r, column);
  }
};

// Scores of a row become weights, 1 at most, which `put` takes by 16 tokens; what came
// before is scaled to the new maximum.
template <class Put>
static inline void weigh(const float *scores, int32_t first, int32_t last, int32_t padded,
                         PartOfRow &part, float *sums, Put put) {
  const float nothing = -__builtin_inff();
  if (first >= last) {
    put(set1(0.0f), set1(0.0f));
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
  put(low, high);
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
  // Behind INT8's keys.
  int8_t *values = reinterpret_cast<int8_t *>(keys) + ATTENTION_TILE * padded;
  for (int32_t r = 0; r < num_rows; ++r) {
    const float *query = task.queries + r / group * task.query_stride +
                         static_cast<int64_t>(task.kv_head * group + r % group) * dim;
    for (int32_t i = 0; i < lanes * PER_LANE; i += LANES) {
      const Floats scaled = mul(numbers_at(query, i, dim), set1(task.scale));
      if constexpr (FORMAT == FORMAT_BF16)
        store_bf16(reinterpret_cast<uint16_t *>(queries + r * lanes) + i, scaled);
      else
        store(queries + r * lanes + i, scaled);
    }
    if constexpr (FORMAT == FORMAT_INT8)
      split_query(queries + r * lanes, lanes);
    for (int32_t i = 0; i < padded; i += LANES)
      store(rows.sums + r * padded + i, set1(0.0f));
    rows.parts[r] = {-__builtin_inff(), 0.0f};
  }
  const int32_t num_tiles = (last - first + ATTENTION_TILE - 1) / ATTENTION_TILE;
  // A tile is done sooner than memory answers: two are on their way.
  TileRows tiles[1 + TILES_AHEAD];
  auto find_tile = [&](int32_t i) {
    TileRows &tile = tiles[i % (1 + TILES_AHEAD)];
    const bool is_ours = i < num_tiles;
    const AttentionTask *from = is_ours ? &task : after.task;
    const int32_t end = is_ours ? last : after.last;
    const int32_t token =
        is_ours ? first + i * ATTENTION_TILE : after.first + (i - num_tiles) * ATTENTION_TILE;
    tile.count = 0;
    if (from && token < end)
      find_rows<FORMAT>(*from, token, end, tile);
  };
  for (int32_t i = 0; i < TILES_AHEAD; ++i)
    find_tile(i);
  for (int32_t i = 0; i < num_tiles; ++i) {
    const int32_t token = first + i * ATTENTION_TILE;
    TileRows &tile = tiles[i % (1 + TILES_AHEAD)];
    const TileRows &ahead = tiles[(i + TILES_AHEAD) % (1 + TILES_AHEAD)];
    find_tile(i + TILES_AHEAD);
    Ahead next_keys = {ahead.keys, ahead.count, dim * cell_number_bytes(FORMAT)};
    Ahead next_values = {ahead.values, ahead.count, dim * cell_number_bytes(FORMAT)};
    [[maybe_unused]] float poison = 0.0f;
    if constexpr (FORMAT == FORMAT_INT8) {
      load_scales(task, token, tile);
      poison = poison_of(tile.value_scales);
      load_raised_keys(tile, dim, padded, reinterpret_cast<uint8_t *>(keys));
    } else {
      load_keys<FORMAT>(tile, dim, keys);
    }
    by_fours(num_rows, ScoreRows<FORMAT>{queries, keys, lanes, tile, scores, next_keys});
    for (int32_t r = 0; r < num_rows; ++r) {
      const int32_t position = task.first_position + r / group;
      const int32_t oldest = task.window ? position - task.window + 1 : 0;
      const int32_t begin = oldest > token ? oldest - token : 0;
      const int32_t end = position + 1 - token < ATTENTION_TILE ? position + 1 - token
                                                                : ATTENTION_TILE;
      float *row = scores + r * ATTENTION_TILE;
      weigh(row, begin, end, padded, rows.parts[r], rows.sums + r * padded,
            [&](Floats low, Floats high) {
              if constexpr (FORMAT == FORMAT_INT8) {
                put_whole_weights(row, tile.value_scales, poison, low, high);
              } else {
                store(row, low);
                store(row + LANES, high);
              }
            });
    }
    if constexpr (FORMAT == FORMAT_INT8)
      load_values(tile, dim, values);
    by_fours(num_rows, ValueRows<FORMAT>{scores, tile, values, dim, padded, rows.sums,
                                         next_values});
  }
}

static void attend(const AttentionTask &task, int32_t first, int32_t last, Upcoming after,
                   float *scratch, AttentionRows rows) {
  if (task.pool->format == FORMAT_F32)
    attend_cells<FORMAT_F32>(task, first, last, after, scratch, rows);
  else if (task.pool->format == FORMAT_BF16)
    attend_cells<FORMAT_BF16>(task, first, last, after, scratch, rows);
  else
    attend_cells<FORMAT_INT8>(task, first, last, after, scratch, rows);
}

static void merge(int32_t num_rows, int32_t head_dim, AttentionRows into, AttentionRows from) {
  const int32_t padded = static_cast<int32_t>(round_up(head_dim, LANES));
  const float nothing = -__builtin_inff();
  for (int32_t r = 0; r < num_rows; ++r) {
    PartOfRow &a = into.parts[r];
    const PartOfRow &b = from.parts[r];
    if (b.largest == nothing)
      continue;
    const float top = a.largest > b.largest ? a.largest : b.largest;
    const float keep = a.largest == nothing ? 0.0f : largest(exponential(set1(a.largest - top)));
    const float take = largest(exponential(set1(b.largest - top)));
    a = {top, a.total * keep + b.total * take};
    float *sums = into.sums + r * padded;
    const float *more = from.sums + r * padded;
    for (int32_t i = 0; i < padded; i += LANES)
      store(sums + i, fma(load(sums + i), set1(keep), mul(load(more + i), set1(take))));
  }
}

static void finish(const AttentionTask &task, AttentionRows rows, float *out,
                   int64_t out_stride) {
  const int32_t dim = task.shape.head_dim;
  const int32_t padded = static_cast<int32_t>(round_up(dim, LANES));
  const int32_t group = task.shape.num_heads / task.shape.num_kv_heads;
  for (int32_t r = 0; r < task.num_tokens * group; ++r) {
    float *head = out + r / group * out_stride +
                  static_cast<int64_t>(task.kv_head * group + r % group) * dim;
    const Floats factor = set1(1.0f / rows.parts[r].total);
    for (int32_t i = 0; i < dim; i += LANES)
      put_numbers(head, i, dim, mul(load(rows.sums + r * padded + i), factor));
  }
}
