// A tile of 32 tokens of the paged cache: where its rows lie, and its K as attention
// multiplies it; of INT8 cells see attention_int8_tile.h.

constexpr int64_t cell_number_bytes(int32_t format) {
  return format == FORMAT_F32 ? 4 : 2;
}

constexpr int32_t TILES_AHEAD = 2;

// 16 numbers of a token's K or V from i on, 0 beyond head_dim.
template <int32_t FORMAT>
static inline Floats cell_numbers(const char *row, int32_t i, int32_t dim) {
  const char *numbers = row + i * cell_number_bytes(FORMAT);
  char sixteen[LANES * 4] = {};
  if (dim - i < LANES) {
    __builtin_memcpy(sixteen, numbers, static_cast<size_t>((dim - i) * cell_number_bytes(FORMAT)));
    numbers = sixteen;
  }
  if constexpr (FORMAT == FORMAT_F32)
    return load(reinterpret_cast<const float *>(numbers));
  else
    return load_bf16(reinterpret_cast<const uint16_t *>(numbers));
}

// Where K and V of a tile's tokens lie; `count` of them exist.
struct TileRows {
  int32_t count;
  const char *keys[ATTENTION_TILE];
  const char *values[ATTENTION_TILE];
};

// Calls f(cell, slot, t, n) for each run of n tokens, from token t of the tile on, that lie
// side by side from `slot` on in one block.
template <class F>
static inline void for_runs(const AttentionTask &task, int32_t first, int32_t count, F f) {
  const KvPool &pool = *task.pool;
  const int32_t *block = task.block_ids + first / pool.block_size;
  int32_t slot = first % pool.block_size;
  for (int32_t t = 0, n; t < count; t += n, slot = 0, ++block) {
    n = pool.block_size - slot < count - t ? pool.block_size - slot : count - t;
    const char *cell = static_cast<const char *>(pool.base) + *block * pool.block_stride +
                       task.layer * pool.layer_stride;
    f(cell, slot, t, n);
  }
}

template <int32_t FORMAT>
static inline void find_rows(const AttentionTask &task, int32_t first, int32_t last,
                             TileRows &rows) {
  const int64_t row_bytes = task.shape.head_dim * cell_number_bytes(FORMAT);
  const int64_t head = int64_t{task.kv_head} * task.pool->block_size;
  rows.count = last - first < ATTENTION_TILE ? last - first : ATTENTION_TILE;
  for_runs(task, first, rows.count, [&](const char *cell, int32_t slot, int32_t t, int32_t n) {
    const char *key = cell + (head + slot) * row_bytes;
    for (int32_t i = 0; i < n; ++i, key += row_bytes) {
      asm(""); // or GCC scatters vectors of pointers, which takes longer
      rows.keys[t + i] = key;
      rows.values[t + i] = key + task.pool->kv_stride;
    }
  });
}

// The tiles of some KV tokens, then those that are likely to be attended to next. A tile is
// done sooner than memory answers: two are on their way.
template <class Tile, class Find> struct TileQueue {
  const AttentionTask &task;
  const int32_t first, last, num_tiles;
  const Upcoming after;
  const Find find_tokens; // (task, first, last, tile)
  Tile tiles[1 + TILES_AHEAD];

  TileQueue(const AttentionTask &task, int32_t first, int32_t last, Upcoming after, Find find)
      : task(task), first(first), last(last),
        num_tiles((last - first + ATTENTION_TILE - 1) / ATTENTION_TILE), after(after),
        find_tokens(find) {
    for (int32_t i = 0; i < TILES_AHEAD; ++i)
      this->find(i);
  }

  Tile &operator[](int32_t i) { return tiles[i % (1 + TILES_AHEAD)]; }

  // Without tokens if there is no such tile.
  Tile &find(int32_t i) {
    const bool is_ours = i < num_tiles;
    const AttentionTask *from = is_ours ? &task : after.task;
    const int32_t end = is_ours ? last : after.last;
    const int32_t token =
        is_ours ? first + i * ATTENTION_TILE : after.first + (i - num_tiles) * ATTENTION_TILE;
    Tile &tile = (*this)[i];
    tile.count = 0;
    if (from && token < end)
      find_tokens(*from, token, end, tile);
    return tile;
  }
};

// Fetches K or V of a tile to come a row at a time, between this tile's sums: a head's rows
// in a block are too short a run for the machine to see it coming, and all of them at once
// wait in line for the few fetches that a core has under way.
struct Ahead {
  const char *const *rows;
  int32_t count; // 0: there is no such tile
  int64_t row_bytes;
  int32_t fetched = 0;

  inline void fetch_row() {
    if (fetched >= count)
      return;
    for (int64_t i = 0; i < row_bytes; i += 64)
      prefetch(rows[fetched] + i);
    ++fetched;
  }
};

// Numbers of K that one 32-bit lane holds: bfloat16 goes by pairs, as it is multiplied.
constexpr int32_t numbers_per_lane(int32_t format) { return format == FORMAT_BF16 ? 2 : 1; }

// 16 lanes of a token's K from number i on, 0 beyond head_dim.
template <int32_t FORMAT>
static inline Floats key_lanes(const char *row, int32_t i, int32_t dim) {
  if constexpr (FORMAT == FORMAT_BF16) {
    float sixteen[LANES] = {};
    if (dim - i >= 2 * LANES)
      return load(reinterpret_cast<const float *>(row + i * 2));
    __builtin_memcpy(sixteen, row + i * 2, static_cast<size_t>(dim - i) * 2);
    return load(sixteen);
  } else {
    return cell_numbers<FORMAT>(row, i, dim);
  }
}

// K of 32 tokens as [lanes of a token][32]; tokens that do not exist are zeros.
template <int32_t FORMAT>
static inline void load_keys(const TileRows &rows, int32_t dim, float *keys) {
  constexpr int32_t PER_LANE = numbers_per_lane(FORMAT);
  for (int32_t half = 0; half < ATTENTION_TILE; half += LANES) {
    const int32_t count = rows.count - half;
    for (int32_t i = 0; i < dim; i += LANES * PER_LANE) {
      Floats square[LANES];
      _Pragma("GCC unroll 16")
      for (int32_t t = 0; t < LANES; ++t)
        square[t] = t < count ? key_lanes<FORMAT>(rows.keys[half + t], i, dim)
                              : set1(0.0f);
      transpose(square);
      _Pragma("GCC unroll 16")
      for (int32_t d = 0; d < LANES; ++d)
        store(keys + (i / PER_LANE + d) * ATTENTION_TILE + half, square[d]);
    }
  }
}
