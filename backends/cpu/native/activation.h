// Rows of float32 into what a product reads: norms, the gated unit, quantisation.

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

// Quantises a row given lane by lane; `at(i)` gives 16 numbers from i on, 0 beyond width.
template <class At> static inline void put_int8(At at, int32_t width, char *out) {
  const int32_t padded = static_cast<int32_t>(round_up(width, GROUP));
  Floats top = set1(0.0f), broken = set1(0.0f);
  for (int32_t i = 0; i < width; i += LANES) {
    Floats x = at(i);
    top = max(top, magnitude(x));
    broken = fma(x, set1(0.0f), broken); // no number if one of x is none, or infinite
  }
  const float largest_one = largest(top);
  // Below this 127 / largest overflows; such rows are zeros for every purpose.
  const bool is_zero = largest_one < 1e-36f;
  const float scale = (is_zero ? 0.0f : largest_one / 127.0f) + sum(broken);
  const Floats factor = set1(is_zero ? 0.0f : 127.0f / largest_one);
  int8_t *numbers = reinterpret_cast<int8_t *>(out);
  int32_t *sums = reinterpret_cast<int32_t *>(out + padded);
  int32_t total = 0;
  for (int32_t i = 0; i < padded; i += GROUP) {
    int32_t group = store_s8(numbers + i, mul(at(i), factor));
    group += store_s8(numbers + i + LANES, mul(at(i + LANES), factor));
    sums[i / GROUP] = group;
    total += group;
  }
  sums[padded / GROUP] = total;
  __builtin_memcpy(sums + padded / GROUP + 1, &scale, 4);
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
  } else {
    put_int8(at, width, out);
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
  Floats squares = set1(0.0f);
  for (int32_t i = 0; i < width; i += LANES) {
    Floats x = numbers_at(in, i, width);
    squares = fma(x, x, squares);
  }
  return 1.0f / __builtin_sqrtf(sum(squares) / static_cast<float>(width) + epsilon);
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
    Floats gated = zero_below(gate, -87.0f, div(gate, divisor));
    Floats y = mul(gated, numbers_at(up, i, width));
    store_part(scratch + i, y, width - i);
  }
  convert(scratch, width, format, out);
}
