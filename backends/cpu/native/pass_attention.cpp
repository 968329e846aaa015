// How a pass shares attention among threads: by sequence, KV head and queries, and by
// parts of the KV where that leaves threads idle. The sums are the same either way.

#include "pass.h"

#include <algorithm>

namespace hybrid {
namespace {

// Splitting pays for few tasks with long contexts; more memory than this it never takes.
constexpr int64_t MOST_SPLIT_FLOATS = 1 << 24;
constexpr int32_t TASKS_PER_THREAD = 4;

} // namespace

void Pass::plan_attention() {
  tables_.resize(static_cast<size_t>(last_token_ - first_token_));
  int32_t longest = 0;
  for (int32_t seq = 0; seq < step_.num_seqs; ++seq) {
    const int32_t begin = std::max(step_.query_start[seq], first_token_);
    const int32_t end = std::min(step_.query_start[seq + 1], last_token_);
    const int32_t *ids = step_.block_ids + step_.table_start[seq];
    for (int32_t token = begin; token < end; ++token)
      tables_[static_cast<size_t>(token - first_token_)] = ids;
    for (int32_t token = begin, count; token < end; token += count) {
      // Of one arena.
      const int32_t left = unit_rows_ - (token - first_token_) % unit_rows_;
      count = std::min({model_.task_tokens_, end - token, left});
      const int32_t position = static_cast<int32_t>(step_.positions[token]);
      longest = std::max(longest, position + count);
      for (int32_t head = 0; head < model_.config_.num_kv_heads; ++head)
        tasks_.push_back({ids, head, token - first_token_, count, position, 0});
    }
  }
  is_split_ = plan_split((longest + ATTENTION_PART - 1) / ATTENTION_PART);
}

bool Pass::plan_split(int32_t most_parts) {
  const int32_t threads = model_.config_.num_threads;
  const int32_t num_tasks = static_cast<int32_t>(tasks_.size());
  if (threads == 1 || most_parts < 2 || num_tasks >= TASKS_PER_THREAD * threads)
    return false;
  int64_t num_rows = 0;
  for (Task &task : tasks_) {
    task.first_split_row = num_rows;
    num_rows += int64_t{task.num_tokens} * group() * most_parts;
  }
  if (num_rows * padded_head() > MOST_SPLIT_FLOATS)
    return false;
  if (num_rows > model_.split_rows_) {
    model_.split_sums_ = allocate<float>(num_rows * padded_head());
    model_.split_parts_ = allocate<PartOfRow>(num_rows);
    model_.split_rows_ = num_rows;
  }
  most_parts_ = most_parts;
  return true;
}

AttentionTask Pass::attention_task(const Op &op, const Task &task) const {
  AttentionTask y = {};
  y.shape = shape();
  y.pool = &model_.pool_;
  y.layer = op.layer;
  y.kv_head = task.kv_head;
  y.window = model_.windows_[static_cast<size_t>(op.layer)];
  y.scale = model_.config_.attention_scale;
  y.block_ids = task.block_ids;
  y.first_position = task.position;
  y.num_tokens = task.num_tokens;
  y.query_stride = qkv_width();
  y.queries = reinterpret_cast<const float *>(row(op.in, task.token, qkv_width() * 4));
  return y;
}

float *Pass::attention_out(const Op &op, const Task &task) const {
  return reinterpret_cast<float *>(row(op.out, task.token, attended_width() * 4));
}

// Where a tile begins that holds the first token which the first query sees.
int32_t Pass::first_token_seen(const Op &op, const Task &task) const {
  const int32_t window = model_.windows_[static_cast<size_t>(op.layer)];
  const int32_t first = window && task.position >= window ? task.position - window + 1 : 0;
  return first / ATTENTION_TILE * ATTENTION_TILE;
}

void Pass::attend(const Op &op, int32_t unit, int32_t thread) {
  const Task &each = tasks_[static_cast<size_t>(unit)];
  const AttentionTask task = attention_task(op, each);
  const int32_t dim = model_.config_.head_dim;
  float *scratch = model_.scratch_[static_cast<size_t>(thread)].get();
  PartOfRow *parts = model_.parts_[static_cast<size_t>(thread)].get();
  float *sums = scratch + attention_scratch(model_.task_rows_, dim);
  const AttentionRows into = {parts, sums};
  const AttentionRows from = {parts + model_.task_rows_,
                              sums + model_.task_rows_ * padded_head()};
  AttentionTask next_task;
  const Upcoming next = next_of(op, unit, next_task);
  const int32_t begin = first_token_seen(op, each), end = each.position + each.num_tokens;
  for (int32_t token = begin, last; token < end; token = last) {
    last = std::min(end, (token / ATTENTION_PART + 1) * ATTENTION_PART);
    model_.kernels_.attend(task, token, last, last < end ? Upcoming{&task, last, end} : next,
                           scratch, token == begin ? into : from);
    if (token > begin)
      model_.kernels_.merge(each.num_tokens * group(), dim, into, from);
  }
  model_.kernels_.finish(task, into, attention_out(op, each), attended_width());
}

// The next unit: most likely the thread's own.
Upcoming Pass::next_of(const Op &op, int32_t unit, AttentionTask &task) const {
  if (unit + 1 >= static_cast<int32_t>(tasks_.size()))
    return {};
  const Task &next = tasks_[static_cast<size_t>(unit) + 1];
  task = attention_task(op, next);
  return {&task, first_token_seen(op, next), next.position + next.num_tokens};
}

AttentionRows Pass::split_rows(const Task &task, int32_t part) const {
  const int64_t first = task.first_split_row + int64_t{part} * task.num_tokens * group();
  return {model_.split_parts_.get() + first,
          model_.split_sums_.get() + first * padded_head()};
}

void Pass::attend_part(const Op &op, int32_t unit, int32_t thread) {
  const Task &each = tasks_[static_cast<size_t>(unit / most_parts_)];
  const int32_t part = unit % most_parts_;
  const int32_t first = std::max(first_token_seen(op, each), part * ATTENTION_PART);
  const int32_t last = std::min(each.position + each.num_tokens, (part + 1) * ATTENTION_PART);
  if (first < last)
    model_.kernels_.attend(attention_task(op, each), first, last, {},
                           model_.scratch_[static_cast<size_t>(thread)].get(),
                           split_rows(each, part));
}

void Pass::merge_parts(const Op &op, const Task &each) {
  const int32_t first = first_token_seen(op, each) / ATTENTION_PART;
  const int32_t last = (each.position + each.num_tokens - 1) / ATTENTION_PART;
  const AttentionRows into = split_rows(each, first);
  for (int32_t part = first + 1; part <= last; ++part)
    model_.kernels_.merge(each.num_tokens * group(), model_.config_.head_dim, into,
                          split_rows(each, part));
  model_.kernels_.finish(attention_task(op, each), into, attention_out(op, each),
                         attended_width());
}

} // namespace hybrid
