// Attention of a few queries over the paged cache, by tiles of 32 tokens.
//
// A row's result depends on its position alone: tiles lie at multiples of 32, parts at
// multiples of 512, whoever shares the step and however the prompt was cut.

constexpr int64_t cell_number_bytes(int32_t format) {
  return format == FORMAT_F32 ? 4 : format == FORMAT_BF16 ? 2 : 1;
}

// 16 numbers of a token's K or V from i on, 0 beyond head_dim.
template <int32_t FORMAT>
static inline Floats cell_numbers(const char *row, int32_t i, int32_t dim, float scale) {
  const char *numbers = row + i * cell_number_bytes(FORMAT);
  char sixteen[LANES * 4] = {};
  if (dim - i < LANES) {
    __builtin_memcpy(sixteen, numbers, static_cast<size_t>((dim - i) * cell_number_bytes(FORMAT)));
    numbers = sixteen;
  }
  if constexpr (FORMAT == FORMAT_F32)
    return load(reinterpret_cast<const float *>(numbers));
  else if constexpr (FORMAT == FORMAT_BF16)
    return load_bf16(reinterpret_cast<const uint16_t *>(numbers));
  else
    return mul(load_s8(reinterpret_cast<const int8_t *>(numbers)), set1(scale));
}

// Where K and V of a tile's tokens lie; `count` of them exist.
struct TileRows {
  int32_t count;
  const char *keys[ATTENTION_TILE];
  const char *values[ATTENTION_TILE];
  float key_scales[ATTENTION_TILE];
  float value_scales[ATTENTION_TILE];
};

template <int32_t FORMAT>
static inline void find_rows(const AttentionTask &task, int32_t first, int32_t last,
                             TileRows &rows) {
  const KvPool &pool = *task.pool;
  const int32_t size = pool.block_size;
  const int64_t row_bytes = task.shape.head_dim * cell_number_bytes(FORMAT);
  const int64_t scales = int64_t{task.shape.num_kv_heads} * size * task.shape.head_dim;
  const int32_t *block = task.block_ids + first / size;
  const int64_t head = int64_t{task.kv_head} * size;
  int32_t slot = first % size;
  rows.count = last - first < ATTENTION_TILE ? last - first : ATTENTION_TILE;
  for (int32_t t = 0; t < rows.count; ++block, slot = 0) {
    const char *cell = static_cast<const char *>(pool.base) + *block * pool.block_stride +
                       task.layer * pool.layer_stride;
    for (; slot < size && t < rows.count; ++slot, ++t) {
      rows.keys[t] = cell + (head + slot) * row_bytes;
      rows.values[t] = rows.keys[t] + pool.kv_stride;
      if constexpr (FORMAT == FORMAT_INT8) {
        const char *scale = cell + scales + (head + slot) * 4;
        __builtin_memcpy(rows.key_scales + t, scale, 4);
        __builtin_memcpy(rows.value_scales + t, scale + pool.kv_stride, 4);
      }
    }
  }
}

// A head's rows in a block are a few KiB: too short a run for the machine to see it coming.
template <int32_t FORMAT>
static inline void prefetch_rows(const char *const *rows, int32_t count, int32_t dim) {
  const int64_t row_bytes = dim * cell_number_bytes(FORMAT);
  for (int32_t t = 0; t < count; ++t)
    for (int64_t i = 0; i < row_bytes; i += 64)
      prefetch(rows[t] + i);
}

// K of 32 tokens as [padded head_dim][32]; tokens that do not exist are zeros.
template <int32_t FORMAT>
static inline void load_keys(const TileRows &rows, int32_t dim, float *keys) {
  for (int32_t half = 0; half < ATTENTION_TILE; half += LANES) {
    const int32_t count = rows.count - half;
    for (int32_t i = 0; i < dim; i += LANES) {
      Floats square[LANES];
      _Pragma("GCC unroll 16")
      for (int32_t t = 0; t < LANES; ++t)
        square[t] = t < count ? cell_numbers<FORMAT>(rows.keys[half + t], i, dim,
                                                     rows.key_scales[half + t])
                              : set1(0.0f);
      transpose(square);
      _Pragma("GCC unroll 16")
      for (int32_t d = 0; d < LANES; ++d)
        store(keys + (i + d) * ATTENTION_TILE + half, square[d]);
    }
  }
}

template <int R>
static inline void make_scores(const float *queries, const float *keys, int32_t padded,
                               float *scores) {
  Floats sums[R][2];
  HYBRID_UNROLL
  for (int r = 0; r < R; ++r)
    sums[r][0] = sums[r][1] = set1(0.0f);
  for (int32_t d = 0; d < padded; ++d) {
    const Floats first = load(keys + d * ATTENTION_TILE);
    const Floats second = load(keys + d * ATTENTION_TILE + LANES);
    HYBRID_UNROLL
    for (int r = 0; r < R; ++r) {
      const Floats q = set1(queries[r * padded + d]);
      sums[r][0] = fma(q, first, sums[r][0]);
      sums[r][1] = fma(q, second, sums[r][1]);
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
                              int32_t padded, int32_t column, float *sums) {
  Floats y[R][B];
  HYBRID_UNROLL
  for (int r = 0; r < R; ++r) {
    HYBRID_UNROLL
    for (int b = 0; b < B; ++b)
      y[r][b] = load(sums + r * padded + column + b * LANES);
  }
  for (int32_t t = 0; t < rows.count; ++t) {
    Floats v[B];
    HYBRID_UNROLL
    for (int b = 0; b < B; ++b)
      v[b] = cell_numbers<FORMAT>(rows.values[t], column + b * LANES, B > 1 ? padded : dim,
                                  rows.value_scales[t]);
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

struct ScoreRows {
  const float *queries, *keys;
  int32_t padded;
  float *scores;
  template <int R> void run(int32_t r) const {
    make_scores<R>(queries + r * padded, keys, padded, scores + r * ATTENTION_TILE);
  }
};

template <int32_t FORMAT> struct ValueRows {
  const float *weights;
  const TileRows &rows;
  int32_t dim, padded;
  float *sums;
  template <int R> void run(int32_t r) const {
    const float *w = weights + r * ATTENTION_TILE;
    int32_t column = 0;
    for (; column + 4 * LANES <= dim; column += 4 * LANES)
      add_values<FORMAT, R, 4>(w, rows, dim, padded, column, sums + r * padded);
    for (; column < dim; column += LANES)
      add_values<FORMAT, R, 1>(w, rows, dim, padded, column, sums + r * padded);
  }
};

// Scores of a row become weights; what came before is scaled to the new maximum.
static inline void weigh(float *scores, int32_t first, int32_t last, int32_t padded,
                         PartOfRow &part, float *sums) {
  const float nothing = -__builtin_inff();
  if (first >= last) {
    for (int32_t i = 0; i < ATTENTION_TILE; i += LANES)
      store(scores + i, set1(0.0f));
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
static void attend_cells(const AttentionTask &task, int32_t first, int32_t last,
                         float *scratch, AttentionRows rows) {
  const int32_t dim = task.shape.head_dim;
  const int32_t padded = static_cast<int32_t>(round_up(dim, LANES));
  const int32_t group = task.shape.num_heads / task.shape.num_kv_heads;
  const int32_t num_rows = task.num_tokens * group;
  float *queries = scratch, *scores = queries + num_rows * padded;
  float *keys = scores + num_rows * ATTENTION_TILE;
  for (int32_t r = 0; r < num_rows; ++r) {
    const float *query = task.queries + r / group * task.query_stride +
                         static_cast<int64_t>(task.kv_head * group + r % group) * dim;
    for (int32_t i = 0; i < padded; i += LANES) {
      store(queries + r * padded + i, mul(numbers_at(query, i, dim), set1(task.scale)));
      store(rows.sums + r * padded + i, set1(0.0f));
    }
    rows.parts[r] = {-__builtin_inff(), 0.0f};
  }
  TileRows tiles[2];
  find_rows<FORMAT>(task, first, last, tiles[0]);
  for (int32_t token = first, i = 0; token < last; token += ATTENTION_TILE, i ^= 1) {
    const TileRows &tile = tiles[i];
    if (token + ATTENTION_TILE < last) {
      find_rows<FORMAT>(task, token + ATTENTION_TILE, last, tiles[i ^ 1]);
      prefetch_rows<FORMAT>(tiles[i ^ 1].keys, tiles[i ^ 1].count, dim);
    }
    load_keys<FORMAT>(tile, dim, keys);
    by_fours(num_rows, ScoreRows{queries, keys, padded, scores});
    if (token + ATTENTION_TILE < last) // K and V apart: so many at once would wait in line
      prefetch_rows<FORMAT>(tiles[i ^ 1].values, tiles[i ^ 1].count, dim);
    for (int32_t r = 0; r < num_rows; ++r) {
      const int32_t position = task.first_position + r / group;
      const int32_t oldest = task.window ? position - task.window + 1 : 0;
      const int32_t end = position + 1 - token < ATTENTION_TILE ? position + 1 - token
                                                                : ATTENTION_TILE;
      weigh(scores + r * ATTENTION_TILE, oldest > token ? oldest - token : 0, end, padded,
            rows.parts[r], rows.sums + r * padded);
    }
    by_fours(num_rows, ValueRows<FORMAT>{scores, tile, dim, padded, rows.sums});
  }
}

static void attend(const AttentionTask &task, int32_t first, int32_t last, float *scratch,
                   AttentionRows rows) {
  if (task.pool->format == FORMAT_F32)
    attend_cells<FORMAT_F32>(task, first, last, scratch, rows);
  else if (task.pool->format == FORMAT_BF16)
    attend_cells<FORMAT_BF16>(task, first, last, scratch, rows);
  else
    attend_cells<FORMAT_INT8>(task, first, last, scratch, rows);
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
      store_part(head + i, mul(load(rows.sums + r * padded + i), factor), dim - i);
  }
}
