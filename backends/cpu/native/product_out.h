// Where products of either kind end.

// Adds the bias and what is there, and puts 16 channels of a row.
static inline void put_out(const LinearTask &task, int64_t row, int32_t block, Floats y) {
  const int32_t channel = block * LANES, left = task.weight->rows - channel;
  float *out = task.out + row * task.out_stride + channel;
  if (task.weight->bias)
    y = add(y, load_part(task.weight->bias + channel, left));
  if (task.accumulate)
    y = add(y, load_part(out, left));
  if (left >= LANES)
    store(out, y);
  else
    store_part(out, y, left);
}

// A tile's sums. Most are of whole blocks without a bias: one branch for all of them.
template <int R, int B>
static inline void put_tile(const LinearTask &task, int64_t row, int32_t block,
                            const Floats (&sums)[R][B]) {
  const bool is_plain = !task.weight->bias && (block + B) * LANES <= task.weight->rows;
  float *out = task.out + row * task.out_stride + block * LANES;
  if (!is_plain) {
    float numbers[R][B][LANES];
    HYBRID_UNROLL
    for (int r = 0; r < R; ++r) {
      HYBRID_UNROLL
      for (int b = 0; b < B; ++b)
        store(numbers[r][b], sums[r][b]);
    }
    for (int r = 0; r < R; ++r)
      for (int b = 0; b < B; ++b)
        put_out(task, row + r, block + b, load(numbers[r][b]));
  } else if (task.accumulate) {
    HYBRID_UNROLL
    for (int r = 0; r < R; ++r, out += task.out_stride) {
      HYBRID_UNROLL
      for (int b = 0; b < B; ++b)
        store(out + b * LANES, add(sums[r][b], load(out + b * LANES)));
    }
  } else {
    HYBRID_UNROLL
    for (int r = 0; r < R; ++r, out += task.out_stride) {
      HYBRID_UNROLL
      for (int b = 0; b < B; ++b)
        store(out + b * LANES, sums[r][b]);
    }
  }
}
