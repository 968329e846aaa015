// The rows of an attention task: a token's heads of one group, token after token.

// A row's query, not yet scaled.
static inline const float *query_of_row(const AttentionTask &task, int32_t row) {
  const int32_t group = task.shape.num_heads / task.shape.num_kv_heads;
  return task.queries + row / group * task.query_stride +
         static_cast<int64_t>(task.kv_head * group + row % group) * task.shape.head_dim;
}

// Runs f<R>(row) over rows by fours, then the rest.
template <class F> static inline void by_fours(int32_t num_rows, F f) {
  int32_t r = 0;
  for (; r + 4 <= num_rows; r += 4)
    f.template run<4>(r);
  switch (num_rows - r) {
  case 1: f.template run<1>(r); break;
  case 2: f.template run<2>(r); break;
  case 3: f.template run<3>(r); break;
  default: break;
  }
}
