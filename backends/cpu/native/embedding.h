// Rows of a packed weight, as float32.

static inline float from_bf16(uint16_t half) {
  uint32_t bits = static_cast<uint32_t>(half) << 16;
  float y;
  __builtin_memcpy(&y, &bits, 4);
  return y;
}

static inline float from_half(const uint16_t *p) {
  const uint16_t halves[LANES] = {*p};
  float numbers[LANES];
  store(numbers, load_f16(halves));
  return numbers[0];
}

// Row `id` of a packed weight: lane id % 16 of every step of block id / 16.
static void embed(const Weight &weight, int64_t id, float *out) {
  const int32_t padded = static_cast<int32_t>(round_up(weight.columns, GROUP));
  const int64_t block = id / LANES, lane = id % LANES, num_groups = padded / GROUP;
  const char *data = static_cast<const char *>(weight.data);
  if (weight.format == FORMAT_F32) {
    const float *w = reinterpret_cast<const float *>(data) + block * padded * LANES + lane;
    for (int32_t k = 0; k < weight.columns; ++k)
      out[k] = w[k * LANES];
  } else if (weight.format == FORMAT_BF16) {
    const uint16_t *w = reinterpret_cast<const uint16_t *>(data) + block * padded * LANES;
    for (int32_t k = 0; k < weight.columns; ++k)
      out[k] = from_bf16(w[(k / 2 * LANES + lane) * 2 + k % 2]);
  } else if (weight.format == FORMAT_INT8) {
    const uint8_t *w = reinterpret_cast<const uint8_t *>(data) + block * padded * LANES;
    const uint16_t *scales = weight.scales + block * num_groups * LANES + lane;
    for (int32_t first = 0; first < weight.columns; first += GROUP) {
      const float scale = from_half(scales + first / GROUP * LANES);
      const int32_t end = first + GROUP < weight.columns ? first + GROUP : weight.columns;
      for (int32_t k = first; k < end; ++k)
        out[k] = scale * static_cast<float>(w[(k / 4 * LANES + lane) * 4 + k % 4] - 128);
    }
  } else {
    const uint8_t *records = reinterpret_cast<const uint8_t *>(data) +
                             block * block_bytes<FORMAT_INT4>(weight.columns);
    for (int32_t first = 0; first < weight.columns; first += GROUP) {
      const PairOfFours pair = {records + first / (2 * GROUP) * INT4_RECORD};
      const int32_t half = first / GROUP % 2;
      const float step = from_half(pair.steps(half) + lane);
      const float middle = from_bf16(pair.offsets()[lane * 2 + half]);
      const int32_t end = first + GROUP < weight.columns ? first + GROUP : weight.columns;
      for (int32_t k = first; k < end; ++k) {
        const int32_t at = k % 16;
        const uint8_t both = pair.quanta(half)[(at / 4 * LANES + lane) * 4 + at % 4];
        const int32_t q = k % GROUP < 16 ? both & 15 : both >> 4;
        out[k] = step * static_cast<float>(q - 8) + middle;
      }
    }
  }
}
