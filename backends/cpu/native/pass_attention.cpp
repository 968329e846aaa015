// How a pass shares attention among threads: by sequence, KV head and queries, and by
// parts of the KV where that leaves threads idle. The sums are the same either way.

#include "pass.h"

#include <algorithm>

namespace hybrid {
namespace {

// Splitting pays for few tasks with long contexts; more memory than this it never takes.
constexpr int64_t MOST_SPLIT_FLOATS = 1 << 24;

int32_t first_seen(int32_t position, int32_t window) {
  return window && position >= window ? position - window + 1 : 0;
}

} // namespace

void Pass::plan_attention() {
  tables_.resize(static_cast<size_t>(last_token_ - first_token_));
  int32_t longest = 0;
  for (int32_t seq = 0; seq < step_.num_seqs; ++seq) {
    const int32_t begin = std::max(step_.query_start[seq], first_token_);
    const int32_t end = std::min(step_.query_start[seq + 1], last_token_);
    const int32_t *ids = step_.block_ids + step_.table_start[seq];
    for (int32_t token = begin; token < end; ++token)
      tables_[static_cast<size_t>(token - first_token_)] = {ids, seq};
    for (int32_t token = begin; token < end; token += model_.task_tokens_) {
      const int32_t count = std::min(model_.task_tokens_, end - token);
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
  if (threads == 1 || most_parts < 2 || static_cast<int32_t>(tasks_.size()) >= 4 * threads)
    return false;
  const int32_t group = model_.config_.num_heads / model_.config_.num_kv_heads;
  const int64_t padded = round_up(model_.config_.head_dim, LANES);
  int64_t num_rows = 0;
  for (Task &task : tasks_) {
    task.first_split_row = num_rows;
    num_rows += int64_t{task.num_tokens} * group * most_parts;
  }
  if (num_rows * padded > MOST_SPLIT_FLOATS)
    return false;
  if (num_rows > model_.split_rows_) {
    model_.split_sums_ = allocate<float>(num_rows * padded);
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

void Pass::attention(const Op &op, int32_t thread) {
  if (is_split_) {
    attend_split(op, thread);
    return;
  }
  take_turns(static_cast<int32_t>(tasks_.size()),
             [&](int32_t i) { attend_whole(op, tasks_[static_cast<size_t>(i)], thread); });
}

void Pass::attend_whole(const Op &op, const Task &each, int32_t thread) {
  const AttentionTask task = attention_task(op, each);
  const ModelConfig &config = model_.config_;
  const int64_t padded = round_up(config.head_dim, LANES);
  float *scratch = model_.scratch_[static_cast<size_t>(thread)].get();
  PartOfRow *parts = model_.parts_[static_cast<size_t>(thread)].get();
  float *sums = scratch + attention_scratch(model_.task_rows_, config.head_dim);
  const AttentionRows into = {parts, sums};
  const AttentionRows from = {parts + model_.task_rows_, sums + model_.task_rows_ * padded};
  const int32_t end = each.position + each.num_tokens;
  int32_t token = first_seen(each.position, task.window) / ATTENTION_TILE * ATTENTION_TILE;
  for (bool is_first = true; token < end; is_first = false) {
    const int32_t last = std::min(end, (token / ATTENTION_PART + 1) * ATTENTION_PART);
    model_.kernels_.attend(task, token, last, scratch, is_first ? into : from);
    if (!is_first) {
      const int32_t rows = each.num_tokens * (config.num_heads / config.num_kv_heads);
      model_.kernels_.merge(rows, config.head_dim, into, from);
    }
    token = last;
  }
  float *out = reinterpret_cast<float *>(
      row(op.out, each.token, int64_t{config.num_heads} * config.head_dim * 4));
  model_.kernels_.finish(task, into, out, int64_t{config.num_heads} * config.head_dim);
}

void Pass::attend_split(const Op &op, int32_t thread) {
  const ModelConfig &config = model_.config_;
  const int64_t padded = round_up(config.head_dim, LANES);
  float *scratch = model_.scratch_[static_cast<size_t>(thread)].get();
  const int32_t num_tasks = static_cast<int32_t>(tasks_.size());
  const int32_t group = config.num_heads / config.num_kv_heads;
  auto rows_of = [&](const Task &task, int32_t part) {
    const int64_t first = task.first_split_row + int64_t{part} * task.num_tokens * group;
    return AttentionRows{model_.split_parts_.get() + first,
                         model_.split_sums_.get() + first * padded};
  };
  // First part and token of a task; parts beyond the last are left out.
  auto begin = [&](const Task &task) {
    return first_seen(task.position, model_.windows_[static_cast<size_t>(op.layer)]) /
           ATTENTION_TILE * ATTENTION_TILE;
  };
  take_turns(num_tasks * most_parts_, [&](int32_t i) {
    const Task &each = tasks_[static_cast<size_t>(i / most_parts_)];
    const int32_t part = i % most_parts_;
    const int32_t first = std::max(begin(each), part * ATTENTION_PART);
    const int32_t last =
        std::min(each.position + each.num_tokens, (part + 1) * ATTENTION_PART);
    if (first < last)
      model_.kernels_.attend(attention_task(op, each), first, last, scratch,
                             rows_of(each, part));
  });
  sync();
  take_turns(num_tasks, [&](int32_t i) {
    const Task &each = tasks_[static_cast<size_t>(i)];
    const int32_t first = begin(each) / ATTENTION_PART;
    const int32_t last = (each.position + each.num_tokens - 1) / ATTENTION_PART;
    const AttentionRows into = rows_of(each, first);
    for (int32_t part = first + 1; part <= last; ++part)
      model_.kernels_.merge(each.num_tokens * group, config.head_dim, into,
                            rows_of(each, part));
    const int64_t width = int64_t{config.num_heads} * config.head_dim;
    float *out = reinterpret_cast<float *>(row(op.out, each.token, width * 4));
    model_.kernels_.finish(attention_task(op, each), into, out, width);
  });
}

} // namespace hybrid
