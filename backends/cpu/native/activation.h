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

// Below this 127 / largest overflows: groups that are zeros for every purpose.
constexpr float LEAST_LARGEST = 1e-36f;

// Quantises up to 16 groups from `first` on; `at(i)` gives 16 numbers from i on, 0 beyond
// the width. A scale is no chain of steps within one register: groups go side by side.
template <int MOST, class At>
static inline Floats put_groups(At at, int32_t first, int32_t count, int8_t *numbers,
                                float *scales, float *sums) {
  Floats rows[LANES], broken = set1(0.0f);
  HYBRID_UNROLL_16
  for (int32_t g = 0; g < LANES; ++g) {
    rows[g] = set1(0.0f);
    if (g >= MOST || g >= count)
      continue;
    const Floats low = at((first + g) * GROUP), high = at((first + g) * GROUP + LANES);
    rows[g] = max(magnitude(low), magnitude(high));
    // No number if one of x is none, or infinite.
    broken = fma(low, set1(0.0f), fma(high, set1(0.0f), broken));
  }
  const Floats top = largest_of_each(rows);
  const Floats scale = zero_below(top, LEAST_LARGEST, mul(top, set1(1.0f / 127.0f)));
  float factors[LANES];
  store(factors, zero_below(top, LEAST_LARGEST, div(set1(127.0f), top)));
  HYBRID_UNROLL_16
  for (int32_t g = 0; g < LANES; ++g) {
    rows[g] = set1(0.0f);
    if (g >= MOST || g >= count)
      continue;
    const int32_t i = (first + g) * GROUP;
    const Floats low = nearest(mul(at(i), set1(factors[g])));
    const Floats high = nearest(mul(at(i + LANES), set1(factors[g])));
    store_s8(numbers + i, low);
    store_s8(numbers + i + LANES, high);
    rows[g] = add(low, high);
  }
  store_part(scales + first, scale, count);
  store_part(sums + first, mul(scale, sum_of_each(rows)), count);
  return broken;
}

template <class At> static inline void put_int8(At at, int32_t width, char *out) {
  const int32_t padded = static_cast<int32_t>(round_up(width, GROUP));
  const int32_t num_groups = padded / GROUP;
  int8_t *numbers = reinterpret_cast<int8_t *>(out);
  float *scales = reinterpret_cast<float *>(out + padded), *sums = scales + num_groups;
  Floats broken = set1(0.0f);
  for (int32_t first = 0; first < num_groups; first += LANES) {
    const int32_t count = num_groups - first;
    if (count >= LANES)
      broken = add(broken, put_groups<16>(at, first, LANES, numbers, scales, sums));
    else if (count > 2)
      broken = add(broken, put_groups<16>(at, first, count, numbers, scales, sums));
    else
      broken = add(broken, put_groups<2>(at, first, count, numbers, scales, sums));
  }
  const float poison = sum(broken);
  if (poison != 0.0f) // no number: nor is anything made of this row
    for (int32_t g = 0; g < 2 * num_groups; ++g)
      scales[g] = poison;
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
    Floats gated = zero_below(gate, -87.0f, div(gate, divisor));
    Floats y = mul(gated, numbers_at(up, i, width));
    store(scratch + i, y); // it has room for whole registers
  }
  convert(scratch, width, format, out);
}
