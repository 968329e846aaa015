// Where a piece of a row is highest; see Kernels. Only the part with the highest is
// looked through for its place.

constexpr int64_t PEAK_PART = 256;

// The highest of x[0, count), and a sum that is NaN if any of them is. The sum is NaN, too,
// where it has left float's range both ways: whoever reads -1 looks for himself.
static inline float highest_of(const float *x, int64_t count, float *total) {
  const Floats lowest = set1(-__builtin_inff());
  Floats highest[2] = {lowest, lowest}, sums[2] = {set1(0.0f), set1(0.0f)};
  int64_t i = 0;
  for (; i + 2 * LANES <= count; i += 2 * LANES)
    for (int32_t k = 0; k < 2; ++k) {
      const Floats each = load(x + i + k * LANES);
      highest[k] = max(highest[k], each);
      sums[k] = add(sums[k], each);
    }
  float largest[LANES], parts[LANES];
  store(largest, max(highest[0], highest[1]));
  store(parts, add(sums[0], sums[1]));
  for (int32_t lane = 1; lane < LANES; ++lane) {
    largest[0] = largest[lane] > largest[0] ? largest[lane] : largest[0];
    parts[0] += parts[lane];
  }
  for (; i < count; ++i) {
    largest[0] = x[i] > largest[0] ? x[i] : largest[0];
    parts[0] += x[i];
  }
  *total += parts[0];
  return largest[0];
}

static void find_peak(const float *row, int64_t first, int64_t last, Peak *peak) {
  float total = 0.0f, value = peak->value; // NaN stays: nothing is higher
  int64_t best = last;
  for (int64_t part = first, end; part < last; part = end) {
    end = last - part < PEAK_PART ? last : part + PEAK_PART;
    const float highest = highest_of(row + part, end - part, &total);
    if (highest > value) {
      value = highest;
      best = part;
    }
  }
  if (total != total) {
    peak->value = total;
    return;
  }
  if (best == last)
    return;
  while (row[best] != value)
    ++best;
  *peak = {value, static_cast<int32_t>(best)};
}
