// Sixteen lanes in two registers. Included inside the namespace of a variant.

struct Floats {
  __m256 low, high;
};
struct Ints {
  // Each register's lanes in the order 0 1 4 5 2 3 6 7, as hadd leaves them.
  __m256i low, high;
};
struct Bytes {
  __m256i low, high;
};
using Pairs = Bytes;

static inline __m256i lanes_below(int n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static inline Floats set1(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
static inline Floats load(const float *p) {
  return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
static inline Floats load_part(const float *p, int n) {
  Floats y = {_mm256_maskload_ps(p, lanes_below(n)), _mm256_setzero_ps()};
  if (n > 8)
    y.high = _mm256_maskload_ps(p + 8, lanes_below(n - 8));
  return y;
}
static inline void store(float *p, Floats x) {
  _mm256_storeu_ps(p, x.low);
  _mm256_storeu_ps(p + 8, x.high);
}
static inline void store_part(float *p, Floats x, int n) {
  _mm256_maskstore_ps(p, lanes_below(n), x.low);
  if (n > 8)
    _mm256_maskstore_ps(p + 8, lanes_below(n - 8), x.high);
}
#define HYBRID_BOTH(name, intrinsic)                                                           \
  static inline Floats name(Floats a, Floats b) {                                              \
    return {intrinsic(a.low, b.low), intrinsic(a.high, b.high)};                               \
  }
HYBRID_BOTH(add, _mm256_add_ps)
HYBRID_BOTH(sub, _mm256_sub_ps)
HYBRID_BOTH(mul, _mm256_mul_ps)
HYBRID_BOTH(div, _mm256_div_ps)
HYBRID_BOTH(max, _mm256_max_ps)
HYBRID_BOTH(min, _mm256_min_ps)
#undef HYBRID_BOTH
static inline Floats fma(Floats a, Floats b, Floats c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
static inline Floats inverse(Floats a) { return div(set1(1.0f), a); }
static inline Floats magnitude(Floats a) {
  const __m256 sign = _mm256_set1_ps(-0.0f);
  return {_mm256_andnot_ps(sign, a.low), _mm256_andnot_ps(sign, a.high)};
}
static inline __m256 larger_magnitude(__m256 a, __m256 b) {
  return _mm256_castsi256_ps(
      _mm256_max_epi32(_mm256_castps_si256(a), _mm256_castps_si256(b)));
}
static inline Floats larger_magnitude(Floats a, Floats b) {
  return {larger_magnitude(a.low, b.low), larger_magnitude(a.high, b.high)};
}
static inline Floats nearest(Floats a) {
  constexpr int mode = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  return {_mm256_round_ps(a.low, mode), _mm256_round_ps(a.high, mode)};
}
static inline __m256 with_low_bits_as_exponent(__m256 x, __m256 bits) {
  const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256(bits), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(x), exponent));
}
static inline Floats with_low_bits_as_exponent(Floats x, Floats bits) {
  return {with_low_bits_as_exponent(x.low, bits.low),
          with_low_bits_as_exponent(x.high, bits.high)};
}
static inline __m256 plus_bits(__m256 x, int32_t bits) {
  return _mm256_castsi256_ps(
      _mm256_add_epi32(_mm256_castps_si256(x), _mm256_set1_epi32(bits)));
}
static inline Floats with_exponent(Floats x, int32_t exponent) {
  return {plus_bits(x.low, exponent), plus_bits(x.high, exponent)};
}
static inline Floats power_above(Floats x) {
  const __m256 mask = _mm256_castsi256_ps(_mm256_set1_epi32(0x7f800000));
  return {_mm256_and_ps(plus_bits(x.low, 0x7fffff), mask),
          _mm256_and_ps(plus_bits(x.high, 0x7fffff), mask)};
}
static inline Floats zero_below(Floats x, float limit, Floats value) {
  const __m256 least = _mm256_set1_ps(limit);
  return {_mm256_and_ps(_mm256_cmp_ps(x.low, least, _CMP_NLT_UQ), value.low),
          _mm256_and_ps(_mm256_cmp_ps(x.high, least, _CMP_NLT_UQ), value.high)};
}
static inline __m256 kept(__m256 x, int first, int last, float other) {
  __m256i mask = _mm256_andnot_si256(lanes_below(first), lanes_below(last));
  return _mm256_blendv_ps(_mm256_set1_ps(other), x, _mm256_castsi256_ps(mask));
}
static inline Floats keep_range(Floats x, int first, int last, float other) {
  return {kept(x.low, first, last, other), kept(x.high, first - 8, last - 8, other)};
}
static inline float sum(Floats a) {
  __m256 eight = _mm256_add_ps(a.low, a.high);
  __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}
static inline float largest(Floats a) {
  __m256 eight = _mm256_max_ps(a.low, a.high);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
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
  for (int g = 0; g < N; ++g) {
    const __m256 eight = larger_magnitude(rows[g].low, rows[g].high);
    const __m256 four = larger_magnitude(eight, _mm256_permute2f128_ps(eight, eight, 1));
    const __m256 two = larger_magnitude(four, _mm256_permute_ps(four, 0x4e));
    y[g] = _mm256_cvtss_f32(larger_magnitude(two, _mm256_permute_ps(two, 0xb1)));
  }
  return load(y);
}
static inline Ints load(const int32_t *p) {
  const __m256i *from = reinterpret_cast<const __m256i *>(p);
  return {_mm256_permute4x64_epi64(_mm256_loadu_si256(from), 0xd8),
          _mm256_permute4x64_epi64(_mm256_loadu_si256(from + 1), 0xd8)};
}
static inline void store(int32_t *p, Ints a) {
  __m256i *to = reinterpret_cast<__m256i *>(p);
  _mm256_storeu_si256(to, _mm256_permute4x64_epi64(a.low, 0xd8));
  _mm256_storeu_si256(to + 1, _mm256_permute4x64_epi64(a.high, 0xd8));
}
static inline Ints add(Ints a, Ints b) {
  return {_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)};
}
template <int N> static inline Ints sum_of_each(const Ints (&rows)[N]) {
  int32_t y[16] = {};
  for (int g = 0; g < N; ++g) {
    const __m256i eight = _mm256_add_epi32(rows[g].low, rows[g].high);
    const __m256i four = _mm256_hadd_epi32(eight, eight), two = _mm256_hadd_epi32(four, four);
    y[g] = _mm256_cvtsi256_si32(two) + _mm256_extract_epi32(two, 4);
  }
  return load(y);
}
static inline __m256 widened(const uint16_t *p) {
  __m128i words = _mm_loadu_si128(reinterpret_cast<const __m128i *>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(words), 16));
}
static inline Floats load_bf16(const uint16_t *p) { return {widened(p), widened(p + 8)}; }
static inline __m128i narrowed(__m256 x) {
  __m256i bits = _mm256_castps_si256(x);
  __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  __m256i round = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
  __m256i top = _mm256_srli_epi32(_mm256_add_epi32(bits, round), 16);
  __m256i quiet = _mm256_or_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(0x40));
  __m256i none = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  top = _mm256_blendv_epi8(top, quiet, none);
  return _mm_packus_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
}
static inline void store_bf16(uint16_t *p, Floats x) {
  _mm_storeu_si128(reinterpret_cast<__m128i *>(p), narrowed(x.low));
  _mm_storeu_si128(reinterpret_cast<__m128i *>(p + 8), narrowed(x.high));
}
static inline __m256 from_halves(const uint16_t *p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
}
static inline Floats load_f16(const uint16_t *p) {
  return {from_halves(p), from_halves(p + 8)};
}
static inline __m256i whole_numbers(__m256 x) {
  // No number becomes INT_MIN, which is none of ours.
  return _mm256_max_epi32(_mm256_cvtps_epi32(x), _mm256_set1_epi32(-127));
}
static inline Ints put_s8(int8_t *p, Floats x) {
  const __m256i low = whole_numbers(x.low), high = whole_numbers(x.high);
  __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(low, high), 0xd8);
  __m128i bytes =
      _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i *>(p), bytes);
  return {_mm256_permute4x64_epi64(low, 0xd8), _mm256_permute4x64_epi64(high, 0xd8)};
}
static inline void store_bytes(uint8_t *p, __m256i low, __m256i high) {
  const __m256i mask = _mm256_set1_epi32(255);
  __m256i words = _mm256_packs_epi32(_mm256_and_si256(low, mask), _mm256_and_si256(high, mask));
  words = _mm256_permute4x64_epi64(words, 0xd8);
  __m128i bytes =
      _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i *>(p), bytes);
}
static inline void store_halves(uint8_t *high, uint8_t *low, Floats x) {
  const __m256i first = _mm256_cvtps_epi32(x.low), second = _mm256_cvtps_epi32(x.high);
  store_bytes(high, _mm256_srli_epi32(first, 8), _mm256_srli_epi32(second, 8));
  store_bytes(low, first, second);
}
static inline Ints same_ints(int32_t x) {
  return {_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
}
static inline Floats to_floats(Ints a) {
  return {_mm256_cvtepi32_ps(_mm256_permute4x64_epi64(a.low, 0xd8)),
          _mm256_cvtepi32_ps(_mm256_permute4x64_epi64(a.high, 0xd8))};
}
static inline Bytes load_bytes(const uint8_t *p) {
  return {_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)),
          _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p + 32))};
}
static inline Bytes high_nibbles(Bytes a) {
  const __m256i mask = _mm256_set1_epi8(static_cast<char>(0xf0));
  return {_mm256_and_si256(a.low, mask), _mm256_and_si256(a.high, mask)};
}
static inline Bytes low_nibbles(Bytes a) {
  return high_nibbles({_mm256_slli_epi16(a.low, 4), _mm256_slli_epi16(a.high, 4)});
}
static inline __m256i twice_16_bits(__m256 x) {
  const __m256i whole = _mm256_cvtps_epi32(x);
  return _mm256_blend_epi16(whole, _mm256_slli_epi32(whole, 16), 0xaa);
}
static inline Bytes twice_16_bits(Floats x) {
  return {twice_16_bits(x.low), twice_16_bits(x.high)};
}
static inline void store_lines(uint8_t *low, uint8_t *high, __m256i packed, __m256i slopes,
                               __m256i starts) {
  __m256i y[4]; // of each half byte, in the upper byte of 16 bits
  for (int i = 0; i < 4; ++i) {
    const __m256i q =
        _mm256_and_si256(_mm256_srli_epi16(packed, 4 * i), _mm256_set1_epi16(15));
    y[i] = _mm256_add_epi16(_mm256_mullo_epi16(q, slopes), starts);
  }
  const __m256i odd = _mm256_set1_epi16(static_cast<int16_t>(0xff00));
  _mm256_storeu_si256(reinterpret_cast<__m256i *>(low),
                      _mm256_blendv_epi8(_mm256_srli_epi16(y[0], 8), y[2], odd));
  _mm256_storeu_si256(reinterpret_cast<__m256i *>(high),
                      _mm256_blendv_epi8(_mm256_srli_epi16(y[1], 8), y[3], odd));
}
static inline void store_lines(uint8_t *low, uint8_t *high, Bytes packed, Bytes slopes,
                               Bytes starts) {
  store_lines(low, high, packed.low, slopes.low, starts.low);
  store_lines(low + 32, high + 32, packed.high, slopes.high, starts.high);
}
// In 16 bits, not by maddubs, whose sums of two saturate.
static inline __m256i dots(__m256i a, __m256i first, __m256i second, __m256i four) {
  return _mm256_add_epi32(
      a, _mm256_hadd_epi32(_mm256_madd_epi16(first, four), _mm256_madd_epi16(second, four)));
}
static inline __m256i unsigned_dots(__m256i a, __m256i w, __m256i four) {
  return dots(a, _mm256_cvtepu8_epi16(_mm256_castsi256_si128(w)),
              _mm256_cvtepu8_epi16(_mm256_extracti128_si256(w, 1)), four);
}
static inline __m256i signed_dots(__m256i a, __m256i w, __m256i four) {
  return dots(a, _mm256_cvtepi8_epi16(_mm256_castsi256_si128(w)),
              _mm256_cvtepi8_epi16(_mm256_extracti128_si256(w, 1)), four);
}
static inline __m128i four_bytes(const void *p) {
  int32_t bytes;
  __builtin_memcpy(&bytes, p, 4);
  return _mm_cvtsi32_si128(bytes);
}
static inline Ints dot4(Ints a, Bytes w, const int8_t *p) {
  __m256i four = _mm256_broadcastq_epi64(_mm_cvtepi8_epi16(four_bytes(p)));
  return {unsigned_dots(a.low, w.low, four), unsigned_dots(a.high, w.high, four)};
}
static inline Ints dot4_signed(Ints a, const uint8_t *p, Bytes v) {
  __m256i four = _mm256_broadcastq_epi64(_mm_cvtepu8_epi16(four_bytes(p)));
  return {signed_dots(a.low, v.low, four), signed_dots(a.high, v.high, four)};
}
static inline Pairs load_pairs(const uint16_t *p) {
  return load_bytes(reinterpret_cast<const uint8_t *>(p));
}
static inline __m256 first_of_pairs(__m256i a) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(a, 16));
}
static inline __m256 second_of_pairs(__m256i a) {
  const __m256i high = _mm256_set1_epi32(static_cast<int32_t>(0xffff0000u));
  return _mm256_castsi256_ps(_mm256_and_si256(a, high));
}
static inline Floats first_of_pairs(Pairs a) {
  return {first_of_pairs(a.low), first_of_pairs(a.high)};
}
static inline Floats second_of_pairs(Pairs a) {
  return {second_of_pairs(a.low), second_of_pairs(a.high)};
}
static inline __m256 pair_dots(__m256 a, __m256i w, __m256i pair) {
  a = _mm256_fmadd_ps(first_of_pairs(w), first_of_pairs(pair), a);
  return _mm256_fmadd_ps(second_of_pairs(w), second_of_pairs(pair), a);
}
static inline Floats dot2(Floats a, Pairs w, const uint16_t *p) {
  int32_t two;
  __builtin_memcpy(&two, p, 4);
  __m256i pair = _mm256_set1_epi32(two);
  return {pair_dots(a.low, w.low, pair), pair_dots(a.high, w.high, pair)};
}
static inline void transpose(Floats (&row)[16]) {
  alignas(32) float lanes[16][16];
  for (int i = 0; i < 16; ++i)
    store(lanes[i], row[i]);
  for (int i = 0; i < 16; ++i) {
    alignas(32) float column[16];
    for (int j = 0; j < 16; ++j)
      column[j] = lanes[j][i];
    row[i] = load(column);
  }
}
static inline void prefetch(const void *p) {
  _mm_prefetch(static_cast<const char *>(p), _MM_HINT_T0);
}
static inline void prefetch_far(const void *p) { prefetch(p); }
