// Attention of a few queries over the paged cache, by tiles of 32 tokens.
//
// A row's result depends on its position alone, where K and V are numbers: tiles lie at
// multiples of 32, parts at multiples of 512, whoever shares the step and however the
// prompt was cut.

static void attend(const AttentionTask &task, int32_t first, int32_t last, Upcoming after,
                   float *scratch, AttentionRows rows) {
  if (task.pool->format == FORMAT_F32)
    attend_cells<FORMAT_F32>(task, first, last, after, scratch, rows);
  else if (task.pool->format == FORMAT_BF16)
    attend_cells<FORMAT_BF16>(task, first, last, after, scratch, rows);
  else
    attend_whole(task, first, last, after, scratch, rows);
}

static void merge(int32_t num_rows, int32_t head_dim, AttentionRows into, AttentionRows from) {
  const int32_t padded = static_cast<int32_t>(round_up(head_dim, LANES));
  const float nothing = -__builtin_inff();
  for (int32_t r = 0; r < num_rows; ++r) {
    PartOfRow &a = into.parts[r];
    const PartOfRow &b = from.parts[r];
    if (b.largest == nothing)
      continue;
    const float top = a.largest > b.largest ? a.largest : b.largest;
    const float keep = a.largest == nothing ? 0.0f : largest(exponential(set1(a.largest - top)));
    const float take = largest(exponential(set1(b.largest - top)));
    a = {top, a.total * keep + b.total * take};
    float *sums = into.sums + r * padded;
    const float *more = from.sums + r * padded;
    for (int32_t i = 0; i < padded; i += LANES)
      store(sums + i, fma(load(sums + i), set1(keep), mul(load(more + i), set1(take))));
  }
}

static void finish(const AttentionTask &task, AttentionRows rows, float *out,
                   int64_t out_stride) {
  const int32_t dim = task.shape.head_dim;
  const int32_t padded = static_cast<int32_t>(round_up(dim, LANES));
  const int32_t group = task.shape.num_heads / task.shape.num_kv_heads;
  for (int32_t r = 0; r < task.num_tokens * group; ++r) {
    float *head = out + r / group * out_stride +
                  static_cast<int64_t>(task.kv_head * group + r % group) * dim;
    const Floats factor = set1(1.0f / rows.parts[r].total);
    for (int32_t i = 0; i < dim; i += LANES)
      put_numbers(head, i, dim, mul(load(rows.sums + r * padded + i), factor));
  }
}
