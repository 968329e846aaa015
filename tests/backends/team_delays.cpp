// The team of threads with a pause, now and then, around each of its atomic operations:
// whoever may be overtaken there is. Runs jobs and counts what was run.
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

static void delay() {
  static std::atomic<uint32_t> num_calls{1};
  // A hash of the call's number: one in eight sleeps.
  const uint32_t hash = num_calls.fetch_add(1, std::memory_order_relaxed) * 2654435761u;
  if (hash >> 29 == 0)
    std::this_thread::sleep_for(std::chrono::microseconds(100));
}

namespace std {
template <class T> struct delayed_atomic : atomic<T> {
  using atomic<T>::atomic;
  T load(memory_order order = memory_order_seq_cst) const {
    delay();
    return atomic<T>::load(order);
  }
  void store(T value, memory_order order = memory_order_seq_cst) {
    delay();
    atomic<T>::store(value, order);
    delay();
  }
  T fetch_add(T value, memory_order order = memory_order_seq_cst) {
    delay();
    const T before = atomic<T>::fetch_add(value, order);
    delay();
    return before;
  }
};
} // namespace std

#define atomic delayed_atomic
#include "team.cpp"
#undef atomic

// Stages of many units, of one and of none.
struct Count : hybrid::Job {
  explicit Count(int32_t num_units) : num_units_(num_units) {}
  int32_t num_stages() const override { return 6; }
  int32_t begin(int32_t stage) override { return stage % 3 == 2 ? 0 : stage % 3 ? 1 : num_units_; }
  void run(int32_t stage, int32_t, int32_t) override {
    num_run_.fetch_add(1);
    is_early_ = is_early_ || stage < stage_;
  }
  void end(int32_t stage) override { stage_ = stage + 1; }
  bool is_right() const { return num_run_.load() == 2 * (num_units_ + 1) && !is_early_; }

private:
  const int32_t num_units_;
  std::atomic<int32_t> num_run_{0};
  std::atomic<int32_t> stage_{0};
  std::atomic<bool> is_early_{false};
};

int main(int, char **arguments) {
  hybrid::Team team(std::atoi(arguments[1]));
  for (int32_t i = 0; i < 300; ++i) {
    Count job(1 + i % 7);
    team.run(job);
    if (!job.is_right()) {
      std::puts("a unit was lost, run twice, or run after its stage");
      return 1;
    }
  }
  return 0;
}
