// Attention over INT8 cells, in whole numbers: scores are queries of 16 bits times K, sums
// are weights of 16 bits times V. Products and their sums are exact until they become
// float32.

// Scores of R queries of `padded` floats each. K of a tile to come, `next` if it is not null,
// is fetched a line at a time between the sums: all of it at once would wait in line for the
// few fetches that a core has under way. There are more of these into its second cache.
// Not inlined: what the caller keeps in registers would push sums out of them.
template <int R, int H>
[[gnu::noinline]] static void make_whole_scores(const float *queries, int32_t padded,
                                                const WholeTile &tile, const WholeTile *next,
                                                float *scores) {
  Ints high[R][H], low[R][H];
  SplitQuery query[R];
  HYBRID_UNROLL
  for (int r = 0; r < R; ++r) {
    query[r] = query_of(queries + r * padded, padded);
    HYBRID_UNROLL
    for (int half = 0; half < H; ++half) {
      high[r][half] = same_ints(query[r].high_start);
      low[r][half] = same_ints(query[r].low_start);
    }
  }
  for (int32_t i = 0; i < padded; i += LANES) {
    HYBRID_UNROLL
    for (int j = 0; j < 4; ++j) {
      const int32_t quad = (i / 4 + j) * KEY_TOKENS * 4; // a line of each half
      if (next) {
        prefetch_far(next->keys[0] + quad);
        prefetch_far(next->keys[1] + quad);
      }
      Bytes keys[H];
      HYBRID_UNROLL
      for (int half = 0; half < H; ++half)
        keys[half] = load_bytes(tile.keys[half] + quad);
      HYBRID_UNROLL
      for (int r = 0; r < R; ++r) {
        const int8_t *bytes = query[r].bytes + 2 * i + 4 * j;
        HYBRID_UNROLL
        for (int half = 0; half < H; ++half) {
          high[r][half] = dot4(high[r][half], keys[half], bytes);
          low[r][half] = dot4(low[r][half], keys[half], bytes + LANES);
        }
      }
    }
  }
  HYBRID_UNROLL
  for (int r = 0; r < R; ++r) {
    HYBRID_UNROLL
    for (int half = 0; half < H; ++half) {
      const Floats whole =
          fma(to_floats(high[r][half]), set1(BASE_OF_QUERY), to_floats(low[r][half]));
      const Floats scale = mul(load(tile.key_scales + half * LANES), set1(query[r].scale));
      store(scores + r * ATTENTION_TILE + half * LANES, mul(whole, scale));
    }
    if constexpr (H == 1) // nobody sees them
      store(scores + r * ATTENTION_TILE + LANES, set1(0.0f));
  }
}

// Adds weighted V of a tile to 16 * B columns of R rows, whose sums so far are scaled.
template <int R, int B>
[[gnu::noinline]] static void add_whole_values(const WholeRows &rows, int32_t row,
                                               const WholeTile &tile, const WholeTile *next,
                                               int32_t column, int32_t padded, float *sums) {
  const float *weights = rows.scores + row * ATTENTION_TILE;
  Ints high[R][B], low[R][B];
  HYBRID_UNROLL
  for (int r = 0; r < R; ++r) {
    HYBRID_UNROLL
    for (int b = 0; b < B; ++b)
      high[r][b] = low[r][b] = same_ints(0);
  }
  const int32_t num_quads = tile.num_quads();
  for (int32_t quad = 0; quad < num_quads; ++quad) {
    const int8_t *values = tile.values[quad] + column * VALUE_TOKENS;
    HYBRID_UNROLL
    for (int b = 0; b < B; ++b) {
      if (next)
        prefetch_far(next->values[quad] + (column + b * LANES) * VALUE_TOKENS);
      const Bytes four = load_bytes(reinterpret_cast<const uint8_t *>(values) + 64 * b);
      HYBRID_UNROLL
      for (int r = 0; r < R; ++r) {
        const uint8_t *bytes =
            reinterpret_cast<const uint8_t *>(weights + r * ATTENTION_TILE) + quad * VALUE_TOKENS;
        high[r][b] = dot4_signed(high[r][b], bytes, four);
        low[r][b] = dot4_signed(low[r][b], bytes + ATTENTION_TILE, four);
      }
    }
  }
  // A tile of fewer tokens than the one to come.
  for (int32_t quad = num_quads; next && quad < next->num_quads(); ++quad)
    for (int b = 0; b < B; ++b)
      prefetch_far(next->values[quad] + (column + b * LANES) * VALUE_TOKENS);
  HYBRID_UNROLL
  for (int r = 0; r < R; ++r) {
    const Floats unit = set1(rows.units[row + r]), factor = set1(rows.factors[row + r]);
    HYBRID_UNROLL
    for (int b = 0; b < B; ++b) {
      float *sum = sums + (row + r) * padded + column + b * LANES;
      const Floats whole = fma(to_floats(high[r][b]), set1(256.0f), to_floats(low[r][b]));
      store(sum, fma(whole, unit, mul(load(sum), factor)));
    }
  }
}

struct WholeScores {
  const float *queries;
  int32_t padded;
  const WholeTile &tile;
  const WholeTile *next;
  float *scores;
  template <int R> void run(int32_t r) const {
    const float *query = queries + r * padded;
    float *row = scores + r * ATTENTION_TILE;
    if (tile.count > KEY_TOKENS)
      make_whole_scores<R, 2>(query, padded, tile, r ? nullptr : next, row);
    else
      make_whole_scores<R, 1>(query, padded, tile, r ? nullptr : next, row);
  }
};

struct WholeValues {
  const WholeRows &rows;
  int32_t padded;
  const WholeTile &tile;
  const WholeTile *next;
  float *sums;
  template <int R> void run(int32_t r) const {
    // Two sums each, of high and of low bytes: more columns would leave the registers.
    constexpr int B = R > 2 ? 2 : 4;
    const WholeTile *to_fetch = r ? nullptr : next;
    int32_t column = 0;
    for (; column + B * LANES <= padded; column += B * LANES)
      add_whole_values<R, B>(rows, r, tile, to_fetch, column, padded, sums);
    for (; column < padded; column += LANES)
      add_whole_values<R, 1>(rows, r, tile, to_fetch, column, padded, sums);
  }
};

// Runs f<N>(first row, count) over rows by sixteens, then the rest by fours.
template <class F> static inline void by_sixteen_rows(int32_t num_rows, F f) {
  int32_t r = 0;
  for (; r + LANES <= num_rows; r += LANES)
    f(Most<LANES>{}, r, LANES);
  for (; r < num_rows; r += 4)
    f(Most<4>{}, r, num_rows - r < 4 ? num_rows - r : 4);
}

// Where rows and copies lie in the scratch of `attend`.
struct WholeScratch {
  float *queries;
  WholeRows rows;
  uint8_t *copy;
};

static inline WholeScratch whole_scratch(float *scratch, int32_t num_rows, int32_t padded) {
  const int64_t numbers = round_up(num_rows, LANES) + LANES;
  WholeScratch y;
  y.queries = scratch;
  y.rows.scores = y.queries + num_rows * padded;
  y.rows.totals = y.rows.scores + num_rows * ATTENTION_TILE;
  y.rows.largest = y.rows.totals + num_rows * LANES;
  y.rows.factors = y.rows.largest + numbers;
  y.rows.units = y.rows.factors + numbers;
  y.copy = reinterpret_cast<uint8_t *>(y.rows.units + numbers);
  return y;
}

static inline void begin_rows(const AttentionTask &task, int32_t num_rows, int32_t padded,
                              const WholeScratch &scratch, float *sums) {
  const int32_t dim = task.shape.head_dim;
  for (int32_t r = 0; r < num_rows; ++r) {
    const float *query = query_of_row(task, r);
    for (int32_t i = 0; i < padded; i += LANES)
      store(scratch.queries + r * padded + i,
            mul(numbers_at(query, i, dim), set1(task.scale)));
    store(scratch.rows.totals + r * LANES, set1(0.0f));
    scratch.rows.largest[r] = -__builtin_inff();
    for (int32_t i = 0; i < padded; i += LANES)
      store(sums + r * padded + i, set1(0.0f));
  }
  by_sixteen_rows(num_rows, [&](auto most, int32_t r, int32_t count) {
    split_queries<decltype(most)::groups>(scratch.queries + r * padded, padded, count);
  });
}

static inline void end_rows(const WholeRows &rows, int32_t num_rows, PartOfRow *parts) {
  by_sixteen_rows(num_rows, [&](auto most, int32_t first, int32_t count) {
    constexpr int N = decltype(most)::groups;
    Floats lanes[N];
    for (int r = 0; r < N; ++r)
      lanes[r] = r < count ? load(rows.totals + (first + r) * LANES) : set1(0.0f);
    float totals[LANES];
    store(totals, sum_of_each(lanes));
    for (int32_t r = 0; r < count; ++r)
      parts[first + r] = {rows.largest[first + r], totals[r]};
  });
}

static void attend_whole(const AttentionTask &task, int32_t first, int32_t last, Upcoming after,
                         float *memory, AttentionRows out) {
  const int32_t padded = static_cast<int32_t>(round_up(task.shape.head_dim, LANES));
  const int32_t group = task.shape.num_heads / task.shape.num_kv_heads;
  const int32_t num_rows = task.num_tokens * group;
  const WholeScratch scratch = whole_scratch(memory, num_rows, padded);
  const WholeRows &rows = scratch.rows;
  begin_rows(task, num_rows, padded, scratch, out.sums);
  auto find = [](const AttentionTask &from, int32_t token, int32_t end, WholeTile &tile) {
    find_whole(from, token, end, tile);
  };
  TileQueue<WholeTile, decltype(find)> tiles(task, first, last, after, find);
  // Of what is copied there is nothing to fetch where it will be read.
  const bool has_keys = has_whole_groups(task, KEY_TOKENS);
  const bool has_values = has_whole_groups(task, VALUE_TOKENS);
  for (int32_t i = 0; i < tiles.num_tiles; ++i) {
    const int32_t token = first + i * ATTENTION_TILE;
    WholeTile &tile = tiles[i];
    const WholeTile &ahead = tiles.find(i + TILES_AHEAD);
    load_whole(task, token, tile, scratch.copy);
    by_fours(num_rows, WholeScores{scratch.queries, padded, tile,
                                   ahead.count && has_keys ? &ahead : nullptr, rows.scores});
    hide_unseen({task.first_position, group, task.window, token}, rows.scores, num_rows);
    const float poison = poison_of(tile.value_scales);
    by_sixteen_rows(num_rows, [&](auto most, int32_t r, int32_t count) {
      weigh_rows<decltype(most)::groups>(rows, tile.value_scales, poison, r, count);
    });
    by_fours(num_rows, WholeValues{rows, padded, tile,
                                   ahead.count && has_values ? &ahead : nullptr, out.sums});
  }
  end_rows(rows, num_rows, out.parts);
}
