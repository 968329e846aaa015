// Sixteen lanes in plain C++: the oracle of the other two, and what any machine runs.
// Included inside the namespace of a variant.

struct Floats {
  float lane[16];
};
struct Ints {
  int32_t lane[16];
};
struct Bytes {
  uint8_t lane[64];
};
struct Pairs {
  uint16_t lane[32];
};

#define HYBRID_EACH for (int i = 0; i < 16; ++i)

static inline Floats set1(float x) {
  Floats y;
  HYBRID_EACH y.lane[i] = x;
  return y;
}
static inline Floats load(const float *p) {
  Floats y;
  HYBRID_EACH y.lane[i] = p[i];
  return y;
}
static inline Floats load_part(const float *p, int n) {
  Floats y;
  HYBRID_EACH y.lane[i] = i < n ? p[i] : 0.0f;
  return y;
}
static inline void store(float *p, Floats x) { HYBRID_EACH p[i] = x.lane[i]; }
static inline void store_part(float *p, Floats x, int n) {
  for (int i = 0; i < n && i < 16; ++i)
    p[i] = x.lane[i];
}
static inline Floats add(Floats a, Floats b) {
  HYBRID_EACH a.lane[i] += b.lane[i];
  return a;
}
static inline Floats sub(Floats a, Floats b) {
  HYBRID_EACH a.lane[i] -= b.lane[i];
  return a;
}
static inline Floats mul(Floats a, Floats b) {
  HYBRID_EACH a.lane[i] *= b.lane[i];
  return a;
}
static inline Floats div(Floats a, Floats b) {
  HYBRID_EACH a.lane[i] /= b.lane[i];
  return a;
}
// 1 / a, to within a bit or two, for a and 1 / a in float32's normal range.
static inline Floats inverse(Floats a) { return div(set1(1.0f), a); }
static inline Floats fma(Floats a, Floats b, Floats c) {
  HYBRID_EACH a.lane[i] = a.lane[i] * b.lane[i] + c.lane[i];
  return a;
}
// b where one of the two is no number, as x86 has it.
static inline Floats max(Floats a, Floats b) {
  HYBRID_EACH a.lane[i] = a.lane[i] > b.lane[i] ? a.lane[i] : b.lane[i];
  return a;
}
static inline Floats min(Floats a, Floats b) {
  HYBRID_EACH a.lane[i] = a.lane[i] < b.lane[i] ? a.lane[i] : b.lane[i];
  return a;
}
static inline Floats magnitude(Floats a) {
  HYBRID_EACH a.lane[i] = __builtin_fabsf(a.lane[i]);
  return a;
}
static inline float larger_magnitude(float a, float b) {
  int32_t bits[2];
  __builtin_memcpy(bits, &a, 4);
  __builtin_memcpy(bits + 1, &b, 4);
  return bits[0] > bits[1] ? a : b;
}
// Of two magnitudes; no number is larger than any.
static inline Floats larger_magnitude(Floats a, Floats b) {
  HYBRID_EACH a.lane[i] = larger_magnitude(a.lane[i], b.lane[i]);
  return a;
}
static inline Floats nearest(Floats a) {
  HYBRID_EACH a.lane[i] = __builtin_nearbyintf(a.lane[i]);
  return a;
}
static inline float plus_bits(float x, uint32_t more) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  bits += more;
  __builtin_memcpy(&x, &bits, 4);
  return x;
}
// x * 2^n, given n * 2^23 with n >= 0; of 0 next to nothing: 2^(n - 127), or 0 for n = 0.
static inline Floats with_exponent(Floats x, int32_t exponent) {
  HYBRID_EACH x.lane[i] = plus_bits(x.lane[i], static_cast<uint32_t>(exponent));
  return x;
}
// x * 2^n, where the lowest nine of the other's bits are those of a whole n that leaves the
// product a normal number.
static inline Floats with_low_bits_as_exponent(Floats x, Floats bits) {
  HYBRID_EACH {
    uint32_t n;
    __builtin_memcpy(&n, &bits.lane[i], 4);
    x.lane[i] = plus_bits(x.lane[i], n << 23);
  }
  return x;
}
// The least power of two that is not below x, for x in 2^-126..2^127; of less 2^-126 or 0.
static inline Floats power_above(Floats x) {
  HYBRID_EACH {
    float above = plus_bits(x.lane[i], 0x7fffff);
    int32_t bits;
    __builtin_memcpy(&bits, &above, 4);
    bits &= 0x7f800000;
    __builtin_memcpy(&x.lane[i], &bits, 4);
  }
  return x;
}
// value, but 0 where x < limit.
static inline Floats zero_below(Floats x, float limit, Floats value) {
  HYBRID_EACH value.lane[i] = x.lane[i] < limit ? 0.0f : value.lane[i];
  return value;
}
// x in lanes first <= i < last, `other` elsewhere.
static inline Floats keep_range(Floats x, int first, int last, float other) {
  HYBRID_EACH x.lane[i] = i >= first && i < last ? x.lane[i] : other;
  return x;
}
static inline float sum(Floats a) {
  for (int width = 8; width; width /= 2)
    for (int i = 0; i < width; ++i)
      a.lane[i] += a.lane[i + width];
  return a.lane[0];
}
static inline float largest(Floats a) {
  float y = a.lane[0];
  HYBRID_EACH y = y > a.lane[i] ? y : a.lane[i];
  return y;
}
// Lane g: the largest, or the sum, of rows[g].
template <int N> static inline Floats largest_of_each(const Floats (&rows)[N]) {
  float y[16] = {};
  for (int g = 0; g < N; ++g)
    y[g] = largest(rows[g]);
  return load(y);
}
template <int N> static inline Floats sum_of_each(const Floats (&rows)[N]) {
  float y[16] = {};
  for (int g = 0; g < N; ++g)
    y[g] = sum(rows[g]);
  return load(y);
}
template <int N> static inline Floats largest_magnitude_of_each(const Floats (&rows)[N]) {
  float y[16] = {};
  for (int g = 0; g < N; ++g)
    for (float each : rows[g].lane)
      y[g] = larger_magnitude(y[g], each);
  return load(y);
}
template <int N> static inline Ints sum_of_each(const Ints (&rows)[N]) {
  Ints y = {};
  for (int g = 0; g < N; ++g)
    for (int32_t each : rows[g].lane)
      y.lane[g] += each;
  return y;
}
static inline float widened(uint16_t half) {
  const uint32_t bits = static_cast<uint32_t>(half) << 16;
  float y;
  __builtin_memcpy(&y, &bits, 4);
  return y;
}
static inline Floats load_bf16(const uint16_t *p) {
  Floats y;
  HYBRID_EACH y.lane[i] = widened(p[i]);
  return y;
}
static inline uint16_t to_bf16(float x) {
  uint32_t bits;
  __builtin_memcpy(&bits, &x, 4);
  if ((bits & 0x7fffffffu) > 0x7f800000u)
    return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}
static inline void store_bf16(uint16_t *p, Floats x) {
  HYBRID_EACH p[i] = to_bf16(x.lane[i]);
}
static inline float from_f16(uint16_t half) {
  uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  uint32_t exponent = (half >> 10) & 31, fraction = half & 0x3ff, bits;
  float y;
  if (exponent == 0) {
    y = static_cast<float>(fraction) * 0x1p-24f;
    __builtin_memcpy(&bits, &y, 4);
    bits |= sign;
  } else {
    bits = sign | (exponent == 31 ? 0xffu << 23 : (exponent + 112) << 23) | fraction << 13;
  }
  __builtin_memcpy(&y, &bits, 4);
  return y;
}
static inline Floats load_f16(const uint16_t *p) {
  Floats y;
  HYBRID_EACH y.lane[i] = from_f16(p[i]);
  return y;
}
// Puts what is nearest to x in -127..127, of two the even one, and gives it; of no number
// something in that range.
static inline Ints put_s8(int8_t *p, Floats x) {
  Ints whole;
  HYBRID_EACH {
    const float near = __builtin_nearbyintf(x.lane[i]);
    whole.lane[i] = near >= -127.0f && near <= 127.0f ? static_cast<int32_t>(near) : -127;
    p[i] = static_cast<int8_t>(whole.lane[i]);
  }
  return whole;
}
static inline void store(int32_t *p, Ints a) { HYBRID_EACH p[i] = a.lane[i]; }
static inline Ints add(Ints a, Ints b) {
  HYBRID_EACH a.lane[i] += b.lane[i];
  return a;
}
// Upper and lower bytes of x in 0..65535, rounded to nearest even.
static inline void store_halves(uint8_t *high, uint8_t *low, Floats x) {
  HYBRID_EACH {
    float y = __builtin_nearbyintf(x.lane[i]);
    int32_t whole = y >= 0.0f && y <= 65535.0f ? static_cast<int32_t>(y) : 0;
    high[i] = static_cast<uint8_t>(whole >> 8);
    low[i] = static_cast<uint8_t>(whole);
  }
}
static inline Ints same_ints(int32_t x) {
  Ints y;
  HYBRID_EACH y.lane[i] = x;
  return y;
}
static inline Floats to_floats(Ints a) {
  Floats y;
  HYBRID_EACH y.lane[i] = static_cast<float>(a.lane[i]);
  return y;
}
static inline Bytes load_bytes(const uint8_t *p) {
  Bytes y;
  __builtin_memcpy(y.lane, p, 64);
  return y;
}
// Half of each byte, times 16.
static inline Bytes low_nibbles(Bytes a) {
  for (uint8_t &x : a.lane)
    x = static_cast<uint8_t>(x << 4);
  return a;
}
static inline Bytes high_nibbles(Bytes a) {
  for (uint8_t &x : a.lane)
    x &= 0xf0;
  return a;
}
// The whole number nearest to x, in 0..65535 or in -32768..32767, twice in each lane's bytes.
static inline Bytes twice_16_bits(Floats x) {
  Bytes y;
  HYBRID_EACH {
    const float near = __builtin_nearbyintf(x.lane[i]);
    const int32_t whole =
        near >= -32768.0f && near <= 65535.0f ? static_cast<int32_t>(near) : 0;
    const uint16_t both[2] = {static_cast<uint16_t>(whole), static_cast<uint16_t>(whole)};
    __builtin_memcpy(y.lane + 4 * i, both, 4);
  }
  return y;
}
// Of each half byte q the upper byte of slope * q + start, which fits 16 bits; slopes and
// starts as above.
static inline void store_lines(uint8_t *low, uint8_t *high, Bytes packed, Bytes slopes,
                               Bytes starts) {
  for (int i = 0; i < 64; ++i) {
    uint16_t slope, start;
    __builtin_memcpy(&slope, slopes.lane + (i & ~1), 2);
    __builtin_memcpy(&start, starts.lane + (i & ~1), 2);
    low[i] = static_cast<uint8_t>((slope * (packed.lane[i] & 15u) + start) >> 8);
    high[i] = static_cast<uint8_t>((slope * (packed.lane[i] >> 4u) + start) >> 8);
  }
}
// Adds to each lane its four bytes times the four signed ones at p.
static inline Ints dot4(Ints a, Bytes w, const int8_t *p) {
  HYBRID_EACH for (int j = 0; j < 4; ++j) a.lane[i] += w.lane[4 * i + j] * p[j];
  return a;
}
// Adds to each lane its four signed bytes times the four unsigned ones at p.
static inline Ints dot4_signed(Ints a, const uint8_t *p, Bytes v) {
  HYBRID_EACH for (int j = 0; j < 4; ++j)
      a.lane[i] += static_cast<int8_t>(v.lane[4 * i + j]) * p[j];
  return a;
}
static inline Pairs load_pairs(const uint16_t *p) {
  Pairs y;
  __builtin_memcpy(y.lane, p, 64);
  return y;
}
// Of each lane's two bfloat16 one.
static inline Floats first_of_pairs(Pairs a) {
  Floats y;
  HYBRID_EACH y.lane[i] = widened(a.lane[2 * i]);
  return y;
}
static inline Floats second_of_pairs(Pairs a) {
  Floats y;
  HYBRID_EACH y.lane[i] = widened(a.lane[2 * i + 1]);
  return y;
}
// Adds to each lane its two bfloat16 times the two at p.
static inline Floats dot2(Floats a, Pairs w, const uint16_t *p) {
  HYBRID_EACH for (int j = 0; j < 2; ++j)
      a.lane[i] += widened(w.lane[2 * i + j]) * widened(p[j]);
  return a;
}
static inline void transpose(Floats (&row)[16]) {
  HYBRID_EACH for (int j = 0; j < i; ++j) {
    float kept = row[i].lane[j];
    row[i].lane[j] = row[j].lane[i];
    row[j].lane[i] = kept;
  }
}
static inline void prefetch(const void *p) { __builtin_prefetch(p); }
static inline void prefetch_far(const void *p) { prefetch(p); }

#undef HYBRID_EACH
