// Where products of either kind end.

// Adds the bias and what is there, and puts 16 channels of a row.
static inline void put_out(const LinearTask &task, int64_t row, int32_t block, Floats y) {
  const int32_t channel = block * LANES, left = task.weight->rows - channel;
  float *out = task.out + row * task.out_stride + channel;
  if (task.weight->bias)
    y = add(y, load_part(task.weight->bias + channel, left));
  if (task.accumulate)
    y = add(y, load_part(out, left));
  if (left >= LANES)
    store(out, y);
  else
    store_part(out, y, left);
}
