// Products with weights of floats.

template <int32_t FORMAT> struct Product;

template <> struct Product<FORMAT_F32> {
  static constexpr int32_t STEP = 1;
  static constexpr int64_t STEP_BYTES = 64;
  template <int R, int B>
  static inline void step(const char *w, int64_t block_bytes, const char *in, int64_t stride,
                          Floats (&sums)[R][B]) {
    Floats weights[B];
    HYBRID_UNROLL
    for (int b = 0; b < B; ++b)
      weights[b] = load(reinterpret_cast<const float *>(w + b * block_bytes));
    HYBRID_UNROLL
    for (int r = 0; r < R; ++r) {
      Floats x = set1(*reinterpret_cast<const float *>(in + r * stride));
      HYBRID_UNROLL
      for (int b = 0; b < B; ++b)
        sums[r][b] = fma(x, weights[b], sums[r][b]);
    }
  }
  static constexpr int64_t IN_BYTES = 4;
};

template <> struct Product<FORMAT_BF16> {
  static constexpr int32_t STEP = 2;
  static constexpr int64_t STEP_BYTES = 64;
  template <int R, int B>
  static inline void step(const char *w, int64_t block_bytes, const char *in, int64_t stride,
                          Floats (&sums)[R][B]) {
    Pairs weights[B];
    HYBRID_UNROLL
    for (int b = 0; b < B; ++b)
      weights[b] = load_pairs(reinterpret_cast<const uint16_t *>(w + b * block_bytes));
    HYBRID_UNROLL
    for (int r = 0; r < R; ++r)
      HYBRID_UNROLL
      for (int b = 0; b < B; ++b)
        sums[r][b] =
            dot2(sums[r][b], weights[b], reinterpret_cast<const uint16_t *>(in + r * stride));
  }
  static constexpr int64_t IN_BYTES = 4;
};

template <int32_t FORMAT, int R, int B>
static inline void tile(const LinearTask &task, int32_t block, int64_t row) {
  using P = Product<FORMAT>;
  const int32_t padded = static_cast<int32_t>(round_up(task.weight->columns, GROUP));
  const int64_t block_bytes = padded / P::STEP * P::STEP_BYTES;
  const char *w = static_cast<const char *>(task.weight->data) + block * block_bytes;
  const char *in = task.in + row * task.in_stride;
  Floats sums[R][B];
  HYBRID_UNROLL
  for (int r = 0; r < R; ++r) {
    HYBRID_UNROLL
    for (int b = 0; b < B; ++b)
      sums[r][b] = set1(0.0f);
  }
  for (int32_t k = 0; k < padded; k += P::STEP) {
    P::template step<R, B>(w, block_bytes, in, task.in_stride, sums);
    w += P::STEP_BYTES;
    in += P::IN_BYTES;
  }
  put_tile(task, row, block, sums);
}
