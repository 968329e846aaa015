#include "thread_pool.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace hybrid {
namespace {

// About 30 microseconds: longer than any wait between two ops of balanced threads.
constexpr int SPINS = 1000;

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

} // namespace

void Barrier::wait_for_change(std::atomic<uint32_t> &turn, uint32_t old,
                              std::atomic<int32_t> &num_sleepers) {
  for (int i = 0; i < SPINS; ++i) {
    if (turn.load(std::memory_order_acquire) != old)
      return;
    pause();
  }
  // Counted before the last look, so that who changes `turn` sees one of the two.
  num_sleepers.fetch_add(1, std::memory_order_seq_cst);
  while (turn.load(std::memory_order_seq_cst) == old)
    turn.wait(old, std::memory_order_acquire);
  num_sleepers.fetch_sub(1, std::memory_order_relaxed);
}

ThreadPool::ThreadPool(int32_t num_threads) : barrier_(num_threads) {
  for (int32_t thread = 1; thread < num_threads; ++thread)
    threads_.emplace_back([this, thread] { work(thread); });
}

ThreadPool::~ThreadPool() {
  job_ = nullptr;
  turn_.fetch_add(1, std::memory_order_seq_cst);
  turn_.notify_all();
  for (std::thread &thread : threads_)
    thread.join();
}

void ThreadPool::run(Job job, void *context) {
  job_ = job;
  context_ = context;
  turn_.fetch_add(1, std::memory_order_seq_cst);
  if (num_sleepers_.load(std::memory_order_seq_cst) > 0)
    turn_.notify_all();
  job(context, 0);
  barrier_.wait([] {});
}

void ThreadPool::work(int32_t thread) {
  uint32_t seen = 0;
  for (;;) {
    Barrier::wait_for_change(turn_, seen, num_sleepers_);
    ++seen;
    if (!job_)
      return;
    job_(context_, thread);
    barrier_.wait([] {});
  }
}

} // namespace hybrid
