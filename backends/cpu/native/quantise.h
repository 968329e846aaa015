// Rows of float32 into eight bits, by groups of 32; see abi.h for how they lie.

// Groups side by side: what a group is scaled by is no chain of steps within one register.
template <int N> struct Most {
  static constexpr int32_t groups = N;
};

// Runs f(most, first, count) over up to sixteen groups at a time.
template <class F> static inline void by_sixteens(int32_t num_groups, F f) {
  for (int32_t first = 0; first < num_groups; first += LANES) {
    const int32_t count = num_groups - first;
    if (count >= LANES)
      f(Most<16>{}, first, int32_t{LANES});
    else if (count > 2)
      f(Most<16>{}, first, count);
    else
      f(Most<2>{}, first, count);
  }
}

// The largest magnitude of each group, no number or infinite if one of them is; `at(i)` gives
// 16 numbers from i on, 0 beyond the width.
template <class N, class At>
static inline Floats largest_of_groups(N, At at, int32_t first, int32_t count) {
  Floats rows[LANES];
  HYBRID_UNROLL_16
  for (int32_t g = 0; g < LANES; ++g) {
    rows[g] = set1(0.0f);
    if (g >= N::groups || g >= count)
      continue;
    const int32_t i = (first + g) * GROUP;
    rows[g] = larger_magnitude(magnitude(at(i)), magnitude(at(i + LANES)));
  }
  return largest_magnitude_of_each(rows);
}

// Puts each group times its factor where `place` says; gives the sums of what was put.
template <class N, class At, class Place>
static inline Ints put_quanta(N, At at, int32_t first, int32_t count, Floats factors,
                              Place place) {
  float factor[LANES];
  store(factor, factors);
  Ints rows[LANES];
  HYBRID_UNROLL_16
  for (int32_t g = 0; g < LANES; ++g) {
    rows[g] = same_ints(0);
    if (g >= N::groups || g >= count)
      continue;
    const int32_t i = (first + g) * GROUP;
    int8_t *quanta = reinterpret_cast<int8_t *>(place(first + g));
    const Ints low = put_s8(quanta, mul(at(i), set1(factor[g])));
    const Ints high = put_s8(quanta + LANES, mul(at(i + LANES), set1(factor[g])));
    rows[g] = add(low, high);
  }
  return sum_of_each(rows);
}

template <class T> static inline void put_number(char *at, T number) {
  __builtin_memcpy(at, &number, sizeof number);
}

// Below this 127 / largest overflows: groups that are zeros for every purpose.
constexpr float LEAST_LARGEST = 1e-36f;

// A row that INT8 weights are multiplied with: every group has a scale of its own.
template <class At> static inline void put_scaled_groups(At at, int32_t width, char *out) {
  const int32_t num_groups = static_cast<int32_t>(round_up(width, GROUP) / GROUP);
  auto place = [=](int32_t g) { return out + int64_t{g} * INT8_GROUP; };
  Floats broken = set1(0.0f);
  by_sixteens(num_groups, [&](auto most, int32_t first, int32_t count) {
    const Floats top = largest_of_groups(most, at, first, count);
    broken = fma(top, set1(0.0f), broken);
    const Floats factor = zero_below(top, LEAST_LARGEST, div(set1(127.0f), top));
    float scales[LANES];
    int32_t sums[LANES];
    store(sums, put_quanta(most, at, first, count, factor, place));
    store(scales, zero_below(top, LEAST_LARGEST, mul(top, set1(1.0f / 127.0f))));
    for (int32_t g = 0; g < count; ++g) {
      put_number(place(first + g) + INT8_SCALE, scales[g]);
      put_number(place(first + g) + INT8_START, -128 * sums[g]);
    }
  });
  const float poison = sum(broken);
  if (poison != 0.0f) // no number: nor is anything made of this row
    for (int32_t g = 0; g < num_groups; ++g)
      put_number(place(g) + INT8_SCALE, poison);
}

// A row that INT4 weights are multiplied with. A group's step is the row's largest, halved as
// often as its numbers allow: an exponent added in the product's inner loop instead of a
// multiplication, for which a group other than the largest gives up to a bit. None is halved
// further than this: a row's products then stay far from what float32 can hold, and a
// smaller group is zeros beside the largest.
constexpr float LEAST_OF_STEPS = 0x1p-64f;
constexpr float LEAST_UNIT = 0x1p-126f;

static inline char *pair_of(char *row, int32_t group) {
  return row + int64_t{group / 2} * INT4_PAIR;
}

// What stands behind the quanta of groups, `powers` of two times the unit each.
static inline void put_stepped_sums(char *row, int32_t first, int32_t count, Floats powers,
                                    Ints exact) {
  uint16_t scaled[LANES];
  int32_t sums[LANES], bits[LANES];
  float power[LANES];
  store_bf16(scaled, mul(mul(to_floats(exact), powers), set1(16.0f)));
  store(sums, exact);
  store(power, powers);
  __builtin_memcpy(bits, power, sizeof bits);
  for (int32_t g = 0; g < count; ++g) {
    char *pair = pair_of(row, first + g);
    const int32_t half = (first + g) % 2;
    put_number(pair + INT4_EXPONENTS + 4 * half, bits[g] - 0x3f800000); // those of 1
    put_number(pair + INT4_STARTS + 4 * half, -128 * sums[g]);
    put_number(pair + INT4_SUMS + 2 * half, scaled[g]);
  }
}

static inline void put_empty_group(char *row, int32_t group) {
  char *pair = pair_of(row, group);
  const int32_t half = group % 2;
  __builtin_memset(pair + half * GROUP, 0, GROUP);
  put_number(pair + INT4_EXPONENTS + 4 * half, 0);
  put_number(pair + INT4_STARTS + 4 * half, 0);
  put_number(pair + INT4_SUMS + 2 * half, uint16_t{0});
}

template <class At> static inline void put_stepped_groups(At at, int32_t width, char *out) {
  const int32_t num_groups = static_cast<int32_t>(round_up(width, GROUP) / GROUP);
  char *end = pair_of(out, num_groups + 1);
  // Until they are used: what is put before reaches none that is still to come.
  float *steps = reinterpret_cast<float *>(end) - num_groups;
  Floats broken = set1(0.0f), largest_step = set1(LEAST_UNIT);
  by_sixteens(num_groups, [&](auto most, int32_t first, int32_t count) {
    const Floats top = largest_of_groups(most, at, first, count);
    broken = fma(top, set1(0.0f), broken);
    const Floats step = mul(top, set1(1.0f / 127.0f));
    largest_step = max(largest_step, step);
    store_part(steps + first, step, count);
  });
  const float poison = sum(broken);
  // Of a row that holds no numbers the unit says all.
  const float base = poison == 0.0f ? largest(largest_step) : LEAST_UNIT;
  const Floats least = max(set1(LEAST_OF_STEPS), power_above(set1(LEAST_UNIT / base)));
  by_sixteens(num_groups, [&](auto most, int32_t first, int32_t count) {
    const Floats part = min(set1(1.0f), div(load_part(steps + first, count), set1(base)));
    const Floats power = max(least, power_above(part));
    const Floats factor = div(set1(1.0f), mul(power, set1(base)));
    const Ints sums = put_quanta(most, at, first, count, factor, [=](int32_t g) {
      return pair_of(out, g) + g % 2 * GROUP;
    });
    put_stepped_sums(out, first, count, div(power, least), sums);
  });
  if (num_groups % 2)
    put_empty_group(out, num_groups);
  put_number(end, base * largest(least) + poison);
}
