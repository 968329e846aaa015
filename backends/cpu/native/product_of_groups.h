// Products with weights of eight and four bits: whole sums of a group of 32 columns, scaled
// and added group by group.

constexpr int64_t group_bytes(int32_t format) {
  return format == FORMAT_INT4 ? INT4_RECORD : GROUP * LANES;
}

// Adds one group's products, as whole numbers.
template <int32_t FORMAT, int R, int B>
static inline void add_group(const uint8_t *group, int64_t block_bytes, const int8_t *numbers,
                             int64_t stride, Ints (&dots)[R][B]) {
  constexpr int NUM_LOADS = FORMAT == FORMAT_INT8 ? 8 : 4;
  HYBRID_UNROLL
  for (int j = 0; j < NUM_LOADS; ++j) {
    Bytes w[B];
    HYBRID_UNROLL
    for (int b = 0; b < B; ++b)
      w[b] = load_bytes(group + b * block_bytes + 64 * j);
    HYBRID_UNROLL
    for (int r = 0; r < R; ++r) {
      HYBRID_UNROLL
      for (int b = 0; b < B; ++b)
        dots[r][b] = dot4(dots[r][b], FORMAT == FORMAT_INT8 ? w[b] : low_nibbles(w[b]),
                          numbers + r * stride + 4 * j);
    }
    if constexpr (FORMAT == FORMAT_INT4) {
      HYBRID_UNROLL
      for (int r = 0; r < R; ++r) {
        HYBRID_UNROLL
        for (int b = 0; b < B; ++b)
          dots[r][b] = dot4(dots[r][b], high_nibbles(w[b]), numbers + r * stride + 16 + 4 * j);
      }
    }
  }
}

// Which groups' weights a tile fetches into the cache while it multiplies: those `offset`
// bytes on, at every group g with g % every == phase.
struct Fetch {
  int64_t offset;
  int32_t every, phase;
};

// What a row has behind its numbers, and how a group's whole sums are added with it.
template <int32_t FORMAT> struct GroupsOfRow;

template <> struct GroupsOfRow<FORMAT_INT8> {
  const float *scales;
  const int32_t *starts;

  GroupsOfRow(const char *row, int32_t padded)
      : scales(reinterpret_cast<const float *>(row + padded)),
        starts(reinterpret_cast<const int32_t *>(scales + padded / GROUP)) {}
  Ints start(int32_t g) const { return same_ints(starts[g]); }
  Floats add(Floats sum, Ints dots, const uint16_t *halves, int32_t g) const {
    return fma(mul(load_f16(halves), set1(scales[g])), to_floats(dots), sum);
  }
  Floats finish(Floats sum) const { return sum; }
};

template <> struct GroupsOfRow<FORMAT_INT4> {
  const int32_t *exponents;
  const float *sums;
  float unit;

  GroupsOfRow(const char *row, int32_t padded)
      : exponents(reinterpret_cast<const int32_t *>(row + padded)),
        sums(reinterpret_cast<const float *>(exponents + padded / GROUP)),
        unit(sums[padded / GROUP]) {}
  Ints start(int32_t) const { return same_ints(0); }
  Floats add(Floats sum, Ints dots, const uint16_t *halves, int32_t g) const {
    sum = fma(load_f16(halves), with_exponent(to_floats(dots), exponents[g]), sum);
    return fma(load_f16(halves + LANES), set1(sums[g]), sum);
  }
  Floats finish(Floats sum) const { return mul(sum, set1(unit)); }
};

template <int32_t FORMAT, int R, int B>
static inline void tile_of_groups(const LinearTask &task, int32_t block, int64_t row,
                                  Fetch fetch) {
  const Weight &weight = *task.weight;
  const int32_t padded = static_cast<int32_t>(round_up(weight.columns, GROUP));
  const int32_t num_groups = padded / GROUP;
  const int64_t block_bytes = num_groups * group_bytes(FORMAT);
  const uint8_t *group = static_cast<const uint8_t *>(weight.data) + block * block_bytes;
  const char *in = task.in + row * task.in_stride;
  auto groups = [&](int r) { return GroupsOfRow<FORMAT>(in + r * task.in_stride, padded); };
  Floats sums[R][B];
  HYBRID_UNROLL
  for (int r = 0; r < R; ++r) {
    HYBRID_UNROLL
    for (int b = 0; b < B; ++b)
      sums[r][b] = set1(0.0f);
  }
  int32_t until_fetch = fetch.phase;
  for (int32_t g = 0; g < num_groups; ++g, group += group_bytes(FORMAT)) {
    if (until_fetch-- == 0) {
      until_fetch = fetch.every - 1;
      HYBRID_UNROLL
      for (int b = 0; b < B; ++b) {
        for (int64_t i = 0; i < group_bytes(FORMAT); i += 64)
          prefetch_far(group + b * block_bytes + fetch.offset + i);
      }
    }
    Ints dots[R][B];
    HYBRID_UNROLL
    for (int r = 0; r < R; ++r) {
      HYBRID_UNROLL
      for (int b = 0; b < B; ++b)
        dots[r][b] = groups(r).start(g);
    }
    add_group<FORMAT, R, B>(group, block_bytes,
                            reinterpret_cast<const int8_t *>(in) + g * GROUP, task.in_stride,
                            dots);
    HYBRID_UNROLL
    for (int b = 0; b < B; ++b) {
      const uint16_t *halves =
          FORMAT == FORMAT_INT8
              ? weight.scales + (int64_t{block + b} * num_groups + g) * LANES
              : reinterpret_cast<const uint16_t *>(group + b * block_bytes + 256);
      HYBRID_UNROLL
      for (int r = 0; r < R; ++r)
        sums[r][b] = groups(r).add(sums[r][b], dots[r][b], halves, g);
    }
  }
  HYBRID_UNROLL
  for (int r = 0; r < R; ++r) {
    HYBRID_UNROLL
    for (int b = 0; b < B; ++b)
      put_out(task, row + r, block + b, groups(r).finish(sums[r][b]));
  }
}
