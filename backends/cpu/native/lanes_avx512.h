// Sixteen lanes in one register. Included inside the namespace of a variant.

using Floats = __m512;
using Ints = __m512i;
using Bytes = __m512i;
using Pairs = __m512i;

static inline __mmask16 first_lanes(int n) {
  return n >= 16 ? 0xffff : n <= 0 ? 0 : static_cast<__mmask16>((1u << n) - 1);
}

static inline Floats set1(float x) { return _mm512_set1_ps(x); }
static inline Floats load(const float *p) { return _mm512_loadu_ps(p); }
static inline Floats load_part(const float *p, int n) {
  return _mm512_maskz_loadu_ps(first_lanes(n), p);
}
static inline void store(float *p, Floats x) { _mm512_storeu_ps(p, x); }
static inline void store_part(float *p, Floats x, int n) {
  _mm512_mask_storeu_ps(p, first_lanes(n), x);
}
static inline Floats add(Floats a, Floats b) { return _mm512_add_ps(a, b); }
static inline Floats sub(Floats a, Floats b) { return _mm512_sub_ps(a, b); }
static inline Floats mul(Floats a, Floats b) { return _mm512_mul_ps(a, b); }
static inline Floats div(Floats a, Floats b) { return _mm512_div_ps(a, b); }
static inline Floats fma(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }
static inline Floats inverse(Floats a) {
  const Floats near = _mm512_rcp14_ps(a); // and a step of Newton's
  return fma(near, _mm512_fnmadd_ps(a, near, set1(1.0f)), near);
}
static inline Floats max(Floats a, Floats b) { return _mm512_max_ps(a, b); }
static inline Floats min(Floats a, Floats b) { return _mm512_min_ps(a, b); }
static inline Floats magnitude(Floats a) { return _mm512_abs_ps(a); }
static inline Floats larger_magnitude(Floats a, Floats b) {
  return _mm512_castsi512_ps(
      _mm512_max_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
}
static inline Floats nearest(Floats a) {
  return _mm512_roundscale_ps(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
static inline Floats with_low_bits_as_exponent(Floats x, Floats bits) {
  const __m512i exponent = _mm512_slli_epi32(_mm512_castps_si512(bits), 23);
  return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(x), exponent));
}
static inline Floats with_exponent(Floats x, int32_t exponent) {
  return _mm512_castsi512_ps(
      _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(exponent)));
}
static inline Floats power_above(Floats x) {
  __m512i bits = _mm512_add_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(0x7fffff));
  return _mm512_castsi512_ps(_mm512_and_si512(bits, _mm512_set1_epi32(0x7f800000)));
}
static inline Floats zero_below(Floats x, float limit, Floats value) {
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, set1(limit), _CMP_NLT_UQ), value);
}
static inline Floats keep_range(Floats x, int first, int last, float other) {
  __mmask16 mask = first_lanes(last) & static_cast<__mmask16>(~first_lanes(first));
  return _mm512_mask_mov_ps(set1(other), mask, x);
}
static inline Floats add_as_ints(Floats a, Floats b) {
  return _mm512_castsi512_ps(
      _mm512_add_epi32(_mm512_castps_si512(a), _mm512_castps_si512(b)));
}
static inline float sum(Floats a) { return _mm512_reduce_add_ps(a); }
static inline float largest(Floats a) { return _mm512_reduce_max_ps(a); }
// Lane g: the largest, or the sum, of rows[g]: by fours within parts of four lanes, then
// the parts.
#define HYBRID_EACH_ROW(name, combine)                                                         \
  static inline Floats name(const Floats (&rows)[16]) {                                        \
    Floats fours[4];                                                                           \
    for (int i = 0; i < 4; ++i) {                                                              \
      const Floats *r = rows + 4 * i;                                                          \
      Floats first = combine(_mm512_unpacklo_ps(r[0], r[1]), _mm512_unpackhi_ps(r[0], r[1]));  \
      Floats last = combine(_mm512_unpacklo_ps(r[2], r[3]), _mm512_unpackhi_ps(r[2], r[3]));   \
      fours[i] = combine(_mm512_shuffle_ps(first, last, 0x44),                                 \
                         _mm512_shuffle_ps(first, last, 0xee));                                \
    }                                                                                          \
    Floats low = combine(_mm512_shuffle_f32x4(fours[0], fours[1], 0x44),                       \
                         _mm512_shuffle_f32x4(fours[0], fours[1], 0xee));                      \
    Floats high = combine(_mm512_shuffle_f32x4(fours[2], fours[3], 0x44),                      \
                          _mm512_shuffle_f32x4(fours[2], fours[3], 0xee));                     \
    return combine(_mm512_shuffle_f32x4(low, high, 0x88),                                      \
                   _mm512_shuffle_f32x4(low, high, 0xdd));                                     \
  }
HYBRID_EACH_ROW(largest_of_each, max)
HYBRID_EACH_ROW(sum_of_each, add)
HYBRID_EACH_ROW(largest_magnitude_of_each, larger_magnitude)
HYBRID_EACH_ROW(whole_sum_of_each, add_as_ints)
#undef HYBRID_EACH_ROW
static inline Ints sum_of_each(const Ints (&rows)[16]) {
  Floats bits[16];
  for (int i = 0; i < 16; ++i)
    bits[i] = _mm512_castsi512_ps(rows[i]);
  return _mm512_castps_si512(whole_sum_of_each(bits));
}
// Of four rows: in the order of sixteen's.
#define HYBRID_EACH_OF_FOUR(name, combine)                                                     \
  static inline Floats name(const Floats (&r)[4]) {                                            \
    Floats first = combine(_mm512_unpacklo_ps(r[0], r[1]), _mm512_unpackhi_ps(r[0], r[1]));    \
    Floats last = combine(_mm512_unpacklo_ps(r[2], r[3]), _mm512_unpackhi_ps(r[2], r[3]));     \
    Floats four = combine(_mm512_shuffle_ps(first, last, 0x44),                                \
                          _mm512_shuffle_ps(first, last, 0xee));                               \
    four = combine(four, _mm512_shuffle_f32x4(four, four, 0x4e));                              \
    return combine(four, _mm512_shuffle_f32x4(four, four, 0xb1));                              \
  }
HYBRID_EACH_OF_FOUR(largest_of_each, max)
HYBRID_EACH_OF_FOUR(sum_of_each, add)
#undef HYBRID_EACH_OF_FOUR
static inline Floats load_bf16(const uint16_t *p) {
  __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(words), 16));
}
static inline void store_bf16(uint16_t *p, Floats x) {
  __m512i bits = _mm512_castps_si512(x);
  __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i round = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
  __m512i top = _mm512_srli_epi32(_mm512_add_epi32(bits, round), 16);
  __m512i quiet = _mm512_or_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(0x40));
  top = _mm512_mask_mov_epi32(top, _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q), quiet);
  _mm256_storeu_si256(reinterpret_cast<__m256i *>(p), _mm512_cvtepi32_epi16(top));
}
static inline Floats load_f16(const uint16_t *p) {
  return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)));
}
static inline Ints put_s8(int8_t *p, Floats x) {
  // No number becomes INT_MIN, which is none of ours.
  const __m512i whole = _mm512_max_epi32(_mm512_cvtps_epi32(x), _mm512_set1_epi32(-127));
  _mm_storeu_si128(reinterpret_cast<__m128i *>(p), _mm512_cvtepi32_epi8(whole));
  return whole;
}
static inline void store(int32_t *p, Ints a) { _mm512_storeu_si512(p, a); }
static inline Ints add(Ints a, Ints b) { return _mm512_add_epi32(a, b); }
static inline void store_halves(uint8_t *high, uint8_t *low, Floats x) {
  const __m512i whole = _mm512_cvtps_epi32(x);
  const __m512i upper = _mm512_srli_epi32(whole, 8);
  _mm_storeu_si128(reinterpret_cast<__m128i *>(high), _mm512_cvtepi32_epi8(upper));
  _mm_storeu_si128(reinterpret_cast<__m128i *>(low), _mm512_cvtepi32_epi8(whole));
}
static inline Ints same_ints(int32_t x) { return _mm512_set1_epi32(x); }
static inline Floats to_floats(Ints a) { return _mm512_cvtepi32_ps(a); }
static inline Bytes load_bytes(const uint8_t *p) { return _mm512_loadu_si512(p); }
static inline Bytes high_nibbles(Bytes a) {
  return _mm512_and_si512(a, _mm512_set1_epi8(static_cast<char>(0xf0)));
}
static inline Bytes low_nibbles(Bytes a) { return high_nibbles(_mm512_slli_epi16(a, 4)); }
static inline Bytes twice_16_bits(Floats x) {
  const __m512i whole = _mm512_cvtps_epi32(x);
  return _mm512_mask_blend_epi16(0xaaaaaaaau, whole, _mm512_slli_epi32(whole, 16));
}
static inline void store_lines(uint8_t *low, uint8_t *high, Bytes packed, Bytes slopes,
                               Bytes starts) {
  const __m512i mask = _mm512_set1_epi16(15);
  __m512i y[4]; // of each half byte, in the upper byte of 16 bits
  for (unsigned i = 0; i < 4; ++i) {
    const __m512i q = _mm512_and_si512(_mm512_srli_epi16(packed, 4 * i), mask);
    y[i] = _mm512_add_epi16(_mm512_mullo_epi16(q, slopes), starts);
  }
  const __mmask64 odd = 0xaaaaaaaaaaaaaaaau;
  _mm512_storeu_si512(low, _mm512_mask_mov_epi8(_mm512_srli_epi16(y[0], 8), odd, y[2]));
  _mm512_storeu_si512(high, _mm512_mask_mov_epi8(_mm512_srli_epi16(y[1], 8), odd, y[3]));
}
static inline Ints dot4(Ints a, Bytes w, const int8_t *p) {
  int32_t four;
  __builtin_memcpy(&four, p, 4);
  // GCC 12 copies the sums of the intrinsic through other registers and spills them, which
  // takes a tile longer than its products.
  asm("vpdpbusd %2, %1, %0" : "+v"(a) : "v"(w), "v"(_mm512_set1_epi32(four)));
  return a;
}
static inline Ints dot4_signed(Ints a, const uint8_t *p, Bytes v) {
  int32_t four;
  __builtin_memcpy(&four, p, 4);
  asm("vpdpbusd %2, %1, %0" : "+v"(a) : "v"(_mm512_set1_epi32(four)), "v"(v));
  return a;
}
static inline Pairs load_pairs(const uint16_t *p) { return _mm512_loadu_si512(p); }
static inline Floats first_of_pairs(Pairs a) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(a, 16));
}
static inline Floats second_of_pairs(Pairs a) {
  const __m512i high = _mm512_set1_epi32(static_cast<int32_t>(0xffff0000u));
  return _mm512_castsi512_ps(_mm512_and_si512(a, high));
}
static inline Floats dot2(Floats a, Pairs w, const uint16_t *p) {
  int32_t two;
  __builtin_memcpy(&two, p, 4);
  __m512i pair = _mm512_set1_epi32(two);
#ifdef HYBRID_DOTS_BF16
  return _mm512_dpbf16_ps(a, reinterpret_cast<__m512bh>(w), reinterpret_cast<__m512bh>(pair));
#else
  a = fma(first_of_pairs(w), first_of_pairs(pair), a);
  return fma(second_of_pairs(w), second_of_pairs(pair), a);
#endif
}
static inline void transpose(Floats (&row)[16]) {
  Floats a[16];
  for (int i = 0; i < 16; i += 2) {
    a[i] = _mm512_unpacklo_ps(row[i], row[i + 1]);
    a[i + 1] = _mm512_unpackhi_ps(row[i], row[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    row[i] = _mm512_shuffle_ps(a[i], a[i + 2], 0x44);
    row[i + 1] = _mm512_shuffle_ps(a[i], a[i + 2], 0xee);
    row[i + 2] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0x44);
    row[i + 3] = _mm512_shuffle_ps(a[i + 1], a[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    a[i] = _mm512_shuffle_f32x4(row[i], row[i + 4], 0x88);
    a[i + 4] = _mm512_shuffle_f32x4(row[i], row[i + 4], 0xdd);
    a[i + 8] = _mm512_shuffle_f32x4(row[i + 8], row[i + 12], 0x88);
    a[i + 12] = _mm512_shuffle_f32x4(row[i + 8], row[i + 12], 0xdd);
  }
  for (int i = 0; i < 8; ++i) {
    row[i] = _mm512_shuffle_f32x4(a[i], a[i + 8], 0x88);
    row[i + 8] = _mm512_shuffle_f32x4(a[i], a[i + 8], 0xdd);
  }
}
static inline void prefetch(const void *p) {
  _mm_prefetch(static_cast<const char *>(p), _MM_HINT_T0);
}
static inline void prefetch_far(const void *p) {
  _mm_prefetch(static_cast<const char *>(p), _MM_HINT_T1);
}
