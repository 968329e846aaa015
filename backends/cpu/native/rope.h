// Heads of one token: normalised where the model does, rotated, keys and values stored.

// Whole registers go by plain stores: what a masked one wrote is late for who reads it next.
static inline void put_numbers(float *row, int32_t i, int32_t width, Floats x) {
  if (i + LANES <= width)
    store(row + i, x);
  else
    store_part(row + i, x, width - i);
}

static inline void rotate(float *head, const float *cosines, const float *sines, int32_t half) {
  for (int32_t i = 0; i < half; i += LANES) {
    const Floats x = numbers_at(head, i, half), y = numbers_at(head + half, i, half);
    const Floats c = numbers_at(cosines, i, half), s = numbers_at(sines, i, half);
    put_numbers(head + half, i, half, add(mul(y, c), mul(x, s)));
    put_numbers(head, i, half, sub(mul(x, c), mul(y, s)));
  }
}

static inline void normalize(float *head, const float *weight, float epsilon, int32_t dim) {
  const Floats factor = set1(inverse_rms(head, dim, epsilon));
  for (int32_t i = 0; i < dim; i += LANES) {
    Floats y = mul(mul(numbers_at(head, i, dim), factor), numbers_at(weight, i, dim));
    put_numbers(head, i, dim, y);
  }
}

// One head's K or V into its row of a cell of floats.
static inline void put_floats(const float *head, int32_t dim, int32_t format, char *row) {
  if (format == FORMAT_F32) {
    __builtin_memcpy(row, head, static_cast<size_t>(dim) * 4);
    return;
  }
  uint16_t *numbers = reinterpret_cast<uint16_t *>(row);
  for (int32_t i = 0; i < dim; i += LANES) {
    alignas(64) uint16_t sixteen[LANES];
    store_bf16(sixteen, numbers_at(head, i, dim));
    const int32_t n = dim - i < LANES ? dim - i : LANES;
    __builtin_memcpy(numbers + i, sixteen, static_cast<size_t>(n) * 2);
  }
}

// Sixteen numbers, or as many as there are, of a token among `step`. No byte of its
// neighbours is touched: another thread may be writing them.
static inline void put_key_bytes(const int8_t *numbers, int32_t count, char *to, int32_t step) {
  uint8_t raised[LANES];
  for (int32_t i = 0; i < LANES; ++i)
    raised[i] = static_cast<uint8_t>(numbers[i]) ^ 128;
  HYBRID_UNROLL
  for (int32_t i = 0; i < LANES; i += 4)
    if (i < count)
      __builtin_memcpy(to + i * int64_t{step}, raised + i, 4);
}

static inline void put_value_bytes(const int8_t *numbers, int32_t count, char *to,
                                   int32_t step) {
  if (count == LANES) {
    HYBRID_UNROLL_16
    for (int32_t i = 0; i < LANES; ++i)
      to[i * int64_t{step}] = static_cast<char>(numbers[i]);
    return;
  }
  for (int32_t i = 0; i < count; ++i)
    to[i * int64_t{step}] = static_cast<char>(numbers[i]);
}

// One head's K or V into an INT8 cell; `put` as the two above.
template <class Put>
static inline void put_whole(const float *head, int32_t dim, char *to, int32_t step,
                             float *scale, Put put) {
  Floats top = set1(0.0f), broken = set1(0.0f);
  for (int32_t i = 0; i < dim; i += LANES) {
    Floats x = numbers_at(head, i, dim);
    top = max(top, magnitude(x));
    broken = fma(x, set1(0.0f), broken);
  }
  const float largest_one = largest(top);
  const bool is_zero = largest_one < LEAST_LARGEST;
  const Floats factor = set1(is_zero ? 0.0f : 127.0f / largest_one);
  *scale = (is_zero ? 0.0f : largest_one / 127.0f) + sum(broken);
  for (int32_t i = 0; i < dim; i += LANES) {
    alignas(64) int8_t sixteen[LANES];
    put_s8(sixteen, mul(numbers_at(head, i, dim), factor));
    put(sixteen, dim - i < LANES ? dim - i : LANES, to + i * int64_t{step}, step);
  }
}

static inline void put_key(const RopeTask &task, int32_t kv_head, const float *head) {
  char *row = task.keys + kv_head * task.head_bytes;
  if (task.format == FORMAT_INT8)
    put_whole(head, task.shape.head_dim, row, task.key_step,
              task.key_scales + kv_head * task.head_scales, put_key_bytes);
  else
    put_floats(head, task.shape.head_dim, task.format, row);
}

static inline void put_value(const RopeTask &task, int32_t kv_head, const float *head) {
  char *row = task.values + kv_head * task.head_bytes;
  if (task.format == FORMAT_INT8)
    put_whole(head, task.shape.head_dim, row, task.value_step,
              task.value_scales + kv_head * task.head_scales, put_value_bytes);
  else
    put_floats(head, task.shape.head_dim, task.format, row);
}

static void rope_head(const RopeTask &task, int32_t head) {
  const HeadShape &shape = task.shape;
  const int32_t dim = shape.head_dim;
  float *numbers = task.qkv + static_cast<int64_t>(head) * dim;
  const int32_t num_rotated = shape.num_heads + shape.num_kv_heads;
  if (head < num_rotated) {
    const float *weight = head < shape.num_heads ? task.query_norm : task.key_norm;
    if (weight)
      normalize(numbers, weight, task.epsilon, dim);
    rotate(numbers, task.cosines, task.sines, dim / 2);
  }
  if (head < shape.num_heads)
    return;
  if (head < num_rotated)
    put_key(task, head - shape.num_heads, numbers);
  else
    put_value(task, head - num_rotated, numbers);
}

static void rope_kv(const RopeTask &task, int32_t first_head, int32_t last_head) {
  for (int32_t head = first_head; head < last_head; ++head)
    rope_head(task, head);
}
