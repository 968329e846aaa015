// Rows of float32 into what a product reads: norms, the gated unit, conversions.

// e^x; 0 below -87, where float32 has no normal numbers left.
static inline Floats exponential(Floats x) {
  Floats bounded = min(set1(88.0f), max(set1(-87.0f), x));
  Floats n = nearest(mul(bounded, set1(1.44269504f)));
  Floats r = fma(n, set1(-0.693359375f), bounded);
  r = fma(n, set1(2.12194440e-4f), r);
  // Cephes' polynomial for e^r on [-ln(2)/2, ln(2)/2].
  Floats y = set1(1.9875691500e-4f);
  y = fma(y, r, set1(1.3981999507e-3f));
  y = fma(y, r, set1(8.3334519073e-3f));
  y = fma(y, r, set1(4.1665795894e-2f));
  y = fma(y, r, set1(1.6666665459e-1f));
  y = fma(y, r, set1(5.0000001201e-1f));
  y = add(fma(y, mul(r, r), r), set1(1.0f));
  return zero_below(x, -87.0f, times_power_of_2(y, n));
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

static void silu_mul(const float *gate_up, int32_t width, int32_t format, char *out,
                     float *scratch) {
  const float *up = gate_up + width;
  for (int32_t i = 0; i < width; i += LANES) {
    Floats gate = numbers_at(gate_up, i, width);
    Floats divisor = add(set1(1.0f), exponential(sub(set1(0.0f), gate)));
    // e^-gate is bounded: a gate far below would not come out as the 0 that it is.
    Floats gated = zero_below(gate, -87.0f, mul(gate, inverse(divisor)));
    Floats y = mul(gated, numbers_at(up, i, width));
    store(scratch + i, y); // it has room for whole registers
  }
  convert(scratch, width, format, out);
}
