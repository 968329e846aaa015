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

// The largest magnitude of each group; `at(i)` gives 16 numbers from i on, 0 beyond the
// width. `broken` becomes no number if one of them is none, or infinite.
template <class N, class At>
static inline Floats largest_of_groups(N, At at, int32_t first, int32_t count,
                                       Floats &broken) {
  Floats rows[LANES];
  HYBRID_UNROLL_16
  for (int32_t g = 0; g < LANES; ++g) {
    rows[g] = set1(0.0f);
    if (g >= N::groups || g >= count)
      continue;
    const Floats low = at((first + g) * GROUP), high = at((first + g) * GROUP + LANES);
    rows[g] = max(magnitude(low), magnitude(high));
    broken = fma(low, set1(0.0f), fma(high, set1(0.0f), broken));
  }
  return largest_of_each(rows);
}

// Puts each group times its factor where `place` says; gives the sums of what was put.
template <class N, class At, class Place>
static inline Floats put_quanta(N, At at, int32_t first, int32_t count, Floats factors,
                                Place place) {
  float factor[LANES];
  store(factor, factors);
  Floats rows[LANES];
  HYBRID_UNROLL_16
  for (int32_t g = 0; g < LANES; ++g) {
    rows[g] = set1(0.0f);
    if (g >= N::groups || g >= count)
      continue;
    const int32_t i = (first + g) * GROUP;
    const Floats low = nearest(mul(at(i), set1(factor[g])));
    const Floats high = nearest(mul(at(i + LANES), set1(factor[g])));
    int8_t *quanta = reinterpret_cast<int8_t *>(place(first + g));
    store_s8(quanta, low);
    store_s8(quanta + LANES, high);
    rows[g] = add(low, high);
  }
  return sum_of_each(rows);
}

template <class T> static inline void put_number(char *at, T number) {
  __builtin_memcpy(at, &number, sizeof number);
}

// Where a group's numbers lie, and what stands behind them: the sum of its quanta and the
// power of two that its step is of the row's unit.
template <int32_t FORMAT> struct RowOfGroups;

template <> struct RowOfGroups<FORMAT_INT8> {
  char *row;
  int32_t num_groups;

  char *group(int32_t g) const { return row + int64_t{g} * INT8_GROUP; }
  char *end() const { return group(num_groups); }
  void put_sum(int32_t g, int32_t exponent, int32_t sum, uint16_t) const {
    put_number(group(g) + INT8_EXPONENT, exponent);
    put_number(group(g) + INT8_START, -128 * sum);
  }
  void pad() const {}
};

template <> struct RowOfGroups<FORMAT_INT4> {
  char *row;
  int32_t num_groups;

  char *pair(int32_t g) const { return row + int64_t{g / 2} * INT4_PAIR; }
  char *group(int32_t g) const { return pair(g) + g % 2 * GROUP; }
  char *end() const { return pair(num_groups + 1); }
  void put_sum(int32_t g, int32_t exponent, int32_t sum, uint16_t scaled) const {
    put_number(pair(g) + INT4_EXPONENTS + g % 2 * 4, exponent);
    put_number(pair(g) + INT4_STARTS + g % 2 * 4, -8 * sum);
    put_number(pair(g) + INT4_SUMS + g % 2 * 2, scaled);
  }
  void pad() const {
    if (num_groups % 2 == 0)
      return;
    __builtin_memset(group(num_groups), 0, GROUP);
    put_sum(num_groups, 0, 0, 0);
  }
};

// A group's step is the row's largest, halved as often as its numbers allow: an exponent
// added in the product's inner loop instead of a multiplication, for which a group other
// than the largest gives up to a bit. None is halved further than this: a row's products
// then stay far from what float32 can hold, and a smaller group is zeros beside the largest.
constexpr float LEAST_OF_STEPS = 0x1p-64f;
constexpr float LEAST_UNIT = 0x1p-126f;

template <int32_t FORMAT, class At>
static inline void put_groups(At at, int32_t width, char *out) {
  const int32_t num_groups = static_cast<int32_t>(round_up(width, GROUP) / GROUP);
  const RowOfGroups<FORMAT> row = {out, num_groups};
  // Until they are used: what is put before reaches none that is still to come.
  float *steps = reinterpret_cast<float *>(row.end()) - num_groups;
  Floats broken = set1(0.0f), largest_step = set1(LEAST_UNIT);
  by_sixteens(num_groups, [&](auto most, int32_t first, int32_t count) {
    const Floats top = largest_of_groups(most, at, first, count, broken);
    const Floats step = mul(top, set1(1.0f / 127.0f));
    largest_step = max(largest_step, step);
    store_part(steps + first, step, count);
  });
  const float poison = sum(broken);
  // Of a row that holds no numbers the unit says all.
  const float base = poison == 0.0f ? largest(largest_step) : LEAST_UNIT;
  const Floats halved = max(set1(LEAST_OF_STEPS), power_above(set1(LEAST_UNIT / base)));
  by_sixteens(num_groups, [&](auto most, int32_t first, int32_t count) {
    const Floats part = min(set1(1.0f), div(load_part(steps + first, count), set1(base)));
    const Floats power = max(halved, power_above(part));
    const Floats factor = div(set1(1.0f), mul(power, set1(base)));
    const Floats sums =
        put_quanta(most, at, first, count, factor, [=](int32_t g) { return row.group(g); });
    const Floats above = div(power, halved);
    uint16_t scaled[LANES];
    float whole[LANES], powers[LANES];
    int32_t bits[LANES];
    store_bf16(scaled, mul(sums, above));
    store(whole, max(sums, set1(-127.0f * GROUP))); // such that no number becomes one
    store(powers, above);
    __builtin_memcpy(bits, powers, sizeof bits);
    for (int32_t g = 0; g < count; ++g)
      row.put_sum(first + g, bits[g] - 0x3f800000, static_cast<int32_t>(whole[g]), scaled[g]);
  });
  row.pad();
  put_number(row.end(), base * largest(halved) + poison);
}
