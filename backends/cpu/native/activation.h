// Rows of float32 into what a product reads: norms, the gated unit, conversions.

// e^x for x in -87..88, to within two bits: 2^n * e^part.
static inline Floats power_of_e(Floats x) {
  const Floats round = set1(12582912.0f); // 1.5 * 2^23: puts n into the lowest bits
  const Floats shifted = fma(x, set1(1.44269504f), round);
  const Floats n = sub(shifted, round);
  // n * ln(2) in two pieces, of which n times the first is exact.
  const Floats part = fma(n, set1(2.12194440e-4f), fma(n, set1(-0.693359375f), x));
  // On [-ln(2)/2, ln(2)/2], of least relative error: 9e-8.
  Floats y = set1(8.29027162e-03f);
  y = fma(y, part, set1(4.18981599e-02f));
  y = fma(y, part, set1(1.66676381e-01f));
  y = fma(y, part, set1(4.99991478e-01f));
  y = fma(y, part, set1(9.99999706e-01f));
  y = fma(y, part, set1(1.0f));
  return with_low_bits_as_exponent(y, shifted);
}

// e^x; 0 below -87, where float32 has no normal numbers left.
static inline Floats exponential(Floats x) {
  return zero_below(x, -87.0f, power_of_e(min(set1(88.0f), max(set1(-87.0f), x))));
}

template <class At>
static inline void put_row(At at, int32_t width, int32_t format, char *out) {
  const int32_t padded = static_cast<int32_t>(round_up(width, GROUP));
  if (format == FORMAT_F32) {
    for (int32_t i = 0; i < padded; i += LANES)
      store(reinterpret_cast<float *>(out) + i, at(i));
  } else if (format == FORMAT_BF16) {
    for (int32_t i = 0; i < padded; i += LANES)
      store_bf16(reinterpret_cast<uint16_t *>(out) + i, at(i));
  } else if (format == FORMAT_INT8) {
    put_scaled_groups(at, width, out);
  } else {
    put_stepped_groups(at, width, out);
  }
}

// 16 numbers of a row from i on, 0 beyond its end.
static inline Floats numbers_at(const float *row, int32_t i, int32_t width) {
  return i + LANES <= width ? load(row + i) : load_part(row + i, width - i);
}

static void convert(const float *in, int32_t width, int32_t format, char *out) {
  put_row([=](int32_t i) { return numbers_at(in, i, width); }, width, format, out);
}

static inline float inverse_rms(const float *in, int32_t width, float epsilon) {
  Floats squares[4] = {set1(0.0f), set1(0.0f), set1(0.0f), set1(0.0f)};
  for (int32_t i = 0; i < width; i += 4 * LANES) {
    HYBRID_UNROLL
    for (int32_t j = 0; j < 4; ++j) {
      if (i + j * LANES >= width)
        continue;
      const Floats x = numbers_at(in, i + j * LANES, width);
      squares[j] = fma(x, x, squares[j]);
    }
  }
  const float all = sum(add(add(squares[0], squares[1]), add(squares[2], squares[3])));
  return 1.0f / __builtin_sqrtf(all / static_cast<float>(width) + epsilon);
}

static void norm(const float *in, const float *weight, float epsilon, int32_t width,
                 int32_t format, char *out) {
  const Floats factor = set1(inverse_rms(in, width, epsilon));
  auto at = [=](int32_t i) {
    return mul(mul(numbers_at(in, i, width), factor), numbers_at(weight, i, width));
  };
  put_row(at, width, format, out);
}

static inline Floats gated(Floats gate, Floats up) {
  const Floats bounded = min(set1(87.0f), max(set1(-87.0f), gate));
  const Floats divisor = add(set1(1.0f), power_of_e(sub(set1(0.0f), bounded)));
  // Bounded, a gate far below would not come out as the 0 that it is.
  return mul(zero_below(gate, -87.0f, mul(gate, inverse(divisor))), up);
}

static void silu_mul(const float *gate_up, int32_t width, int32_t format, char *out,
                     float *scratch) {
  const float *up = gate_up + width;
  int32_t i = 0;
  for (; i + LANES <= width; i += LANES)
    store(scratch + i, gated(load(gate_up + i), load(up + i)));
  if (i < width) // it has room for whole registers
    store(scratch + i, gated(load_part(gate_up + i, width - i), load_part(up + i, width - i)));
  convert(scratch, width, format, out);
}
