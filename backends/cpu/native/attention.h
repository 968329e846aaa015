// Attention of a few queries over the paged cache, by tiles of 32 tokens.
//
// A row's result depends on its position alone: tiles lie at multiples of 32, parts at
// multiples of 512, whoever shares the step and however the prompt was cut.

// 16 numbers of a token's K or V from i on, 0 beyond head_dim.
static inline Floats cell_numbers(const char *row, int32_t i, int32_t dim, int32_t format,
                                  float scale) {
  const int32_t n = dim - i;
  if (format == FORMAT_F32)
    return numbers_at(reinterpret_cast<const float *>(row), i, dim);
  if (format == FORMAT_BF16) {
    const uint16_t *numbers = reinterpret_cast<const uint16_t *>(row) + i;
    if (n >= LANES)
      return load_bf16(numbers);
    uint16_t sixteen[LANES] = {};
    __builtin_memcpy(sixteen, numbers, static_cast<size_t>(n) * 2);
    return load_bf16(sixteen);
  }
  const int8_t *numbers = reinterpret_cast<const int8_t *>(row) + i;
  if (n >= LANES)
    return mul(load_s8(numbers), set1(scale));
  int8_t sixteen[LANES] = {};
  __builtin_memcpy(sixteen, numbers, static_cast<size_t>(n));
  return mul(load_s8(sixteen), set1(scale));
}

// Where a token's K (kv 0) or V (kv 1) of the task's head lies.
struct CellRow {
  const char *numbers;
  float scale;
};

static inline CellRow cell_row(const AttentionTask &task, int32_t token, int32_t kv) {
  const KvPool &pool = *task.pool;
  const int32_t size = pool.block_size, slot = token % size, dim = task.shape.head_dim;
  const char *cell = static_cast<const char *>(pool.base) +
                     task.block_ids[token / size] * pool.block_stride +
                     task.layer * pool.layer_stride + kv * pool.kv_stride;
  const int64_t row = static_cast<int64_t>(task.kv_head) * size + slot;
  const int64_t bytes = pool.format == FORMAT_F32 ? 4 : pool.format == FORMAT_BF16 ? 2 : 1;
  CellRow y = {cell + row * dim * bytes, 1.0f};
  if (pool.format == FORMAT_INT8) {
    const char *scales = cell + static_cast<int64_t>(task.shape.num_kv_heads) * size * dim;
    __builtin_memcpy(&y.scale, scales + row * 4, 4);
  }
  return y;
}

// K of 32 tokens as [padded head_dim][32]; tokens from `last` on are zeros.
static inline void load_keys(const AttentionTask &task, int32_t first, int32_t last,
                             int32_t padded, float *keys) {
  const int32_t dim = task.shape.head_dim;
  for (int32_t half = 0; half < ATTENTION_TILE; half += LANES) {
    CellRow rows[LANES];
    int32_t count = last - first - half;
    count = count < 0 ? 0 : count > LANES ? LANES : count;
    for (int32_t t = 0; t < count; ++t)
      rows[t] = cell_row(task, first + half + t, 0);
    for (int32_t i = 0; i < padded; i += LANES) {
      Floats square[LANES];
      for (int32_t t = 0; t < LANES; ++t)
        square[t] = t < count ? cell_numbers(rows[t].numbers, i, dim, task.pool->format,
                                             rows[t].scale)
                              : set1(0.0f);
      transpose(square);
      for (int32_t d = 0; d < LANES; ++d)
        store(keys + (i + d) * ATTENTION_TILE + half, square[d]);
    }
  }
}

// V of 32 tokens as [32][padded head_dim].
static inline void load_values(const AttentionTask &task, int32_t first, int32_t last,
                               int32_t padded, float *values) {
  const int32_t dim = task.shape.head_dim;
  for (int32_t t = 0; t < ATTENTION_TILE; ++t) {
    float *out = values + t * padded;
    if (first + t >= last) {
      for (int32_t i = 0; i < padded; i += LANES)
        store(out + i, set1(0.0f)); // 0 * what lies there could be no number
      continue;
    }
    const CellRow row = cell_row(task, first + t, 1);
    for (int32_t i = 0; i < padded; i += LANES)
      store(out + i, cell_numbers(row.numbers, i, dim, task.pool->format, row.scale));
  }
}

template <int R>
static inline void make_scores(const float *queries, const float *keys, int32_t padded,
                               float *scores) {
  Floats sums[R][2];
  for (int r = 0; r < R; ++r)
    sums[r][0] = sums[r][1] = set1(0.0f);
  for (int32_t d = 0; d < padded; ++d) {
    const Floats first = load(keys + d * ATTENTION_TILE);
    const Floats second = load(keys + d * ATTENTION_TILE + LANES);
    for (int r = 0; r < R; ++r) {
      const Floats q = set1(queries[r * padded + d]);
      sums[r][0] = fma(q, first, sums[r][0]);
      sums[r][1] = fma(q, second, sums[r][1]);
    }
  }
  for (int r = 0; r < R; ++r) {
    store(scores + r * ATTENTION_TILE, sums[r][0]);
    store(scores + r * ATTENTION_TILE + LANES, sums[r][1]);
  }
}

template <int R, int B>
static inline void add_values(const float *weights, const float *values, int32_t padded,
                              int32_t column, float *sums) {
  Floats y[R][B];
  for (int r = 0; r < R; ++r)
    for (int b = 0; b < B; ++b)
      y[r][b] = load(sums + r * padded + column + b * LANES);
  for (int32_t t = 0; t < ATTENTION_TILE; ++t) {
    Floats v[B];
    for (int b = 0; b < B; ++b)
      v[b] = load(values + t * padded + column + b * LANES);
    for (int r = 0; r < R; ++r) {
      const Floats p = set1(weights[r * ATTENTION_TILE + t]);
      for (int b = 0; b < B; ++b)
        y[r][b] = fma(p, v[b], y[r][b]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int b = 0; b < B; ++b)
      store(sums + r * padded + column + b * LANES, y[r][b]);
}

template <int R>
static inline void add_all_values(const float *weights, const float *values, int32_t padded,
                                  float *sums) {
  int32_t column = 0;
  for (; column + 4 * LANES <= padded; column += 4 * LANES)
    add_values<R, 4>(weights, values, padded, column, sums);
  for (; column < padded; column += LANES)
    add_values<R, 1>(weights, values, padded, column, sums);
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

struct ValueRows {
  const float *weights, *values;
  int32_t padded;
  float *sums;
  template <int R> void run(int32_t r) const {
    add_all_values<R>(weights + r * ATTENTION_TILE, values, padded, sums + r * padded);
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

static void attend(const AttentionTask &task, int32_t first, int32_t last, float *scratch,
                   AttentionRows rows) {
  const int32_t dim = task.shape.head_dim;
  const int32_t padded = static_cast<int32_t>(round_up(dim, LANES));
  const int32_t group = task.shape.num_heads / task.shape.num_kv_heads;
  const int32_t num_rows = task.num_tokens * group;
  float *queries = scratch, *scores = queries + num_rows * padded;
  float *keys = scores + num_rows * ATTENTION_TILE;
  float *values = keys + padded * ATTENTION_TILE;
  for (int32_t r = 0; r < num_rows; ++r) {
    const float *query = task.queries + r / group * task.query_stride +
                         static_cast<int64_t>(task.kv_head * group + r % group) * dim;
    for (int32_t i = 0; i < padded; i += LANES) {
      store(queries + r * padded + i, mul(numbers_at(query, i, dim), set1(task.scale)));
      store(rows.sums + r * padded + i, set1(0.0f));
    }
    rows.parts[r] = {-__builtin_inff(), 0.0f};
  }
  for (int32_t token = first; token < last; token += ATTENTION_TILE) {
    load_keys(task, token, last, padded, keys);
    load_values(task, token, last, padded, values);
    by_fours(num_rows, ScoreRows{queries, keys, padded, scores});
    for (int32_t r = 0; r < num_rows; ++r) {
      const int32_t position = task.first_position + r / group;
      const int32_t oldest = task.window ? position - task.window + 1 : 0;
      const int32_t end = position + 1 - token < ATTENTION_TILE ? position + 1 - token
                                                                : ATTENTION_TILE;
      weigh(scores + r * ATTENTION_TILE, oldest > token ? oldest - token : 0, end, padded,
            rows.parts[r], rows.sums + r * padded);
    }
    by_fours(num_rows, ValueRows{scores, values, padded, rows.sums});
  }
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
