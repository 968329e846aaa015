// A tile of 32 tokens of INT8 cells, whose K and V lie as they are multiplied: read in
// place, where a block holds whole groups of tokens, else put together anew.

constexpr int32_t HALVES = ATTENTION_TILE / KEY_TOKENS;
constexpr int32_t QUADS = ATTENTION_TILE / VALUE_TOKENS;

// Of tokens that do not exist K and V are any numbers, and the scales 0.
struct WholeTile {
  int32_t count;
  const uint8_t *keys[HALVES]; // [padded / 4][16][4] bytes raised by 128
  const int8_t *values[QUADS]; // [padded][4]
  float key_scales[ATTENTION_TILE];
  float value_scales[ATTENTION_TILE];

  int32_t num_quads() const { return (count + VALUE_TOKENS - 1) / VALUE_TOKENS; }
};

static inline bool has_whole_groups(const AttentionTask &task, int32_t group) {
  return task.pool->block_size % group == 0;
}

// The head's numbers in a cell of K, and its scales; those of V lie kv_stride further on.
static inline const char *head_of_cell(const AttentionTask &task, const char *cell) {
  return cell + task.kv_head * int8_head_bytes(task.pool->block_size, task.shape.head_dim);
}

static inline const char *scales_of_cell(const AttentionTask &task, const char *cell) {
  const int64_t size = task.pool->block_size;
  return cell + task.shape.num_kv_heads * int8_head_bytes(task.pool->block_size,
                                                          task.shape.head_dim) +
         task.kv_head * size * 4;
}

static inline void prefetch_bytes(const char *p, int64_t num_bytes) {
  for (int64_t i = -(reinterpret_cast<intptr_t>(p) % 64); i < num_bytes; i += 64)
    prefetch_far(p + i);
}

// Blocks without whole groups: what will be copied from one is fetched at once.
static inline void find_copied(const AttentionTask &task, const char *cell, int32_t slot,
                               int32_t n) {
  const int64_t padded = round_up(task.shape.head_dim, LANES);
  const char *head = head_of_cell(task, cell) + slot / KEY_TOKENS * KEY_TOKENS * padded;
  const int64_t num_bytes = (slot % KEY_TOKENS + n) * padded;
  prefetch_bytes(head, num_bytes);
  if (!has_whole_groups(task, VALUE_TOKENS))
    prefetch_bytes(head + task.pool->kv_stride, num_bytes);
}

static inline void find_whole(const AttentionTask &task, int32_t first, int32_t last,
                              WholeTile &tile) {
  const int64_t padded = round_up(task.shape.head_dim, LANES), to_values = task.pool->kv_stride;
  const bool has_keys = has_whole_groups(task, KEY_TOKENS);
  const bool has_values = has_whole_groups(task, VALUE_TOKENS);
  tile.count = last - first < ATTENTION_TILE ? last - first : ATTENTION_TILE;
  for_runs(task, first, tile.count, [&](const char *cell, int32_t slot, int32_t t, int32_t n) {
    const char *keys = head_of_cell(task, cell) + slot * padded;
    for (int32_t i = 0; i < n && has_keys; i += KEY_TOKENS)
      tile.keys[(t + i) / KEY_TOKENS] = reinterpret_cast<const uint8_t *>(keys + i * padded);
    for (int32_t i = 0; i < n && has_values; i += VALUE_TOKENS) {
      asm(""); // or GCC scatters vectors of pointers, which takes longer
      tile.values[(t + i) / VALUE_TOKENS] =
          reinterpret_cast<const int8_t *>(keys + to_values + i * padded);
    }
    if (!has_keys)
      find_copied(task, cell, slot, n);
    const char *scales = scales_of_cell(task, cell) + slot * 4;
    prefetch_bytes(scales, n * 4);
    prefetch_bytes(scales + to_values, n * 4);
  });
  // Where there are none, such that something is fetched instead.
  if (has_keys && tile.count <= KEY_TOKENS)
    tile.keys[1] = tile.keys[0];
  for (int32_t quad = tile.num_quads(); quad < QUADS && has_values; ++quad)
    tile.values[quad] = tile.values[0];
}

// Not while they are found: they are fetched while other tiles are worked on.
static inline void load_scales(const AttentionTask &task, int32_t first, WholeTile &tile) {
  if (tile.count < ATTENTION_TILE) {
    __builtin_memset(tile.key_scales, 0, sizeof tile.key_scales);
    __builtin_memset(tile.value_scales, 0, sizeof tile.value_scales);
  }
  for_runs(task, first, tile.count, [&](const char *cell, int32_t slot, int32_t t, int32_t n) {
    const float *keys = reinterpret_cast<const float *>(scales_of_cell(task, cell)) + slot;
    const float *values = keys + task.pool->kv_stride / 4;
    for (int32_t i = 0; i < n; i += LANES) {
      put_numbers(tile.key_scales + t, i, n, numbers_at(keys, i, n));
      put_numbers(tile.value_scales + t, i, n, numbers_at(values, i, n));
    }
  });
}

// K of n tokens that lie side by side in a group of a block, and go to one of a tile.
static inline void copy_tokens(const char *from, int32_t step, uint8_t *to, int64_t num_quads,
                               int32_t n) {
  for (int64_t quad = 0; quad < num_quads; ++quad, from += step * 4, to += KEY_TOKENS * 4) {
    if (n == KEY_TOKENS / 2) // all of a block of 8
      __builtin_memcpy(to, from, KEY_TOKENS / 2 * 4);
    else
      for (int32_t i = 0; i < n; ++i)
        __builtin_memcpy(to + i * 4, from + i * 4, 4);
  }
}

static inline void copy_keys(const AttentionTask &task, int32_t first, WholeTile &tile,
                             uint8_t *copy) {
  const int64_t padded = round_up(task.shape.head_dim, LANES);
  for (int32_t half = 0; half < HALVES; ++half)
    tile.keys[half] = copy + half * KEY_TOKENS * padded;
  for_runs(task, first, tile.count, [&](const char *cell, int32_t slot, int32_t t, int32_t n) {
    for (int32_t i = 0, some; i < n; i += some) {
      const int32_t of_group = KEY_TOKENS - (slot + i) % KEY_TOKENS;
      const int32_t of_half = KEY_TOKENS - (t + i) % KEY_TOKENS;
      some = of_group < of_half ? of_group : of_half;
      some = some < n - i ? some : n - i;
      const PlaceOfToken place = place_of(slot + i, KEY_TOKENS, task.pool->block_size, padded);
      copy_tokens(head_of_cell(task, cell) + place.offset, place.step,
                  copy + (t + i) / KEY_TOKENS * KEY_TOKENS * padded + (t + i) % KEY_TOKENS * 4,
                  padded / 4, some);
    }
  });
}

static inline void copy_values(const AttentionTask &task, int32_t first, WholeTile &tile,
                               int8_t *copy) {
  const int64_t padded = round_up(task.shape.head_dim, LANES);
  for (int32_t quad = 0; quad < QUADS; ++quad)
    tile.values[quad] = copy + quad * VALUE_TOKENS * padded;
  for_runs(task, first, tile.count, [&](const char *cell, int32_t slot, int32_t t, int32_t n) {
    for (const int32_t end = t + n; t < end; ++t, ++slot) {
      const PlaceOfToken place = place_of(slot, VALUE_TOKENS, task.pool->block_size, padded);
      const char *from = head_of_cell(task, cell) + task.pool->kv_stride + place.offset;
      int8_t *to = copy + t / VALUE_TOKENS * VALUE_TOKENS * padded + t % VALUE_TOKENS;
      for (int64_t i = 0; i < padded; ++i)
        to[i * VALUE_TOKENS] = static_cast<int8_t>(from[i * place.step]);
    }
  });
}

// Makes ready what was found; `copy` has room for K and V of a tile.
static inline void load_whole(const AttentionTask &task, int32_t first, WholeTile &tile,
                              uint8_t *copy) {
  load_scales(task, first, tile);
  if (!has_whole_groups(task, KEY_TOKENS))
    copy_keys(task, first, tile, copy);
  if (!has_whole_groups(task, VALUE_TOKENS))
    copy_values(task, first, tile,
                reinterpret_cast<int8_t *>(copy) +
                    ATTENTION_TILE * round_up(task.shape.head_dim, LANES));
}
