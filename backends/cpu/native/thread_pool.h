// A fixed team of threads that runs one job at a time, with barriers inside it.
#ifndef HYBRID_CPU_THREAD_POOL_H
#define HYBRID_CPU_THREAD_POOL_H

#include <atomic>
#include <cstdint>
#include <thread>
#include <vector>

namespace hybrid {

// A place where all threads of a team meet. Whoever waits spins for a moment, since the
// next step is microseconds away, and then sleeps: a spinning thread may hold the very
// core that the one it waits for needs.
class Barrier {
public:
  explicit Barrier(int32_t num_threads) : num_threads_(num_threads) {}

  // `last` is called by the last to come, before anyone goes on.
  template <class F> void wait(F last) {
    const uint32_t turn = turn_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == num_threads_) {
      arrived_.store(0, std::memory_order_relaxed);
      last();
      turn_.store(turn + 1, std::memory_order_seq_cst);
      if (num_sleepers_.load(std::memory_order_seq_cst) > 0)
        turn_.notify_all();
      return;
    }
    wait_for_change(turn_, turn, num_sleepers_);
  }

  static void wait_for_change(std::atomic<uint32_t> &turn, uint32_t old,
                              std::atomic<int32_t> &num_sleepers);

private:
  const int32_t num_threads_;
  alignas(64) std::atomic<int32_t> arrived_{0};
  alignas(64) std::atomic<uint32_t> turn_{0};
  std::atomic<int32_t> num_sleepers_{0};
};

// Thread 0 is whoever calls `run`.
class ThreadPool {
public:
  using Job = void (*)(void *context, int32_t thread);

  explicit ThreadPool(int32_t num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool &) = delete;
  ThreadPool &operator=(const ThreadPool &) = delete;

  // Returns once every thread has returned from the job.
  void run(Job job, void *context);

  Barrier &barrier() { return barrier_; }

private:
  void work(int32_t thread);

  Barrier barrier_;
  Job job_ = nullptr;
  void *context_ = nullptr;
  alignas(64) std::atomic<uint32_t> turn_{0};
  std::atomic<int32_t> num_sleepers_{0};
  std::vector<std::thread> threads_;
};

} // namespace hybrid

#endif
