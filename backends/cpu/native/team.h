// A fixed team of threads that goes through a job's stages together.
#ifndef HYBRID_CPU_TEAM_H
#define HYBRID_CPU_TEAM_H

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace hybrid {

// Stages one after the other, each cut into units that run in any order, at once.
class Job {
public:
  virtual ~Job() = default;

  virtual int32_t num_stages() const = 0;
  // Called once, by one thread, when all stages before are done. 0: nothing to do.
  virtual int32_t begin(int32_t stage) = 0;
  virtual void run(int32_t stage, int32_t unit, int32_t thread) = 0;
  // Called once, by one thread, when all units of the stage are done.
  virtual void end(int32_t stage) = 0;
};

// Each thread has a share of a stage's units: the first its first ones, and so on, so that
// rows that it has worked on are still near its core in the next stage. It takes them by a
// ticket, then helps with the others' shares; who finishes a stage's last unit opens the
// next stage. So nobody waits for a thread, only for units: one whose core somebody else
// has for now holds up the others by the unit that it is in, if any, and a stage of one
// unit is run without a word to anyone. Waiters spin for a moment and then sleep: a
// spinning thread may hold the very core that the one it waits for needs.
class Team {
public:
  // Thread 0 is whoever calls `run`.
  explicit Team(int32_t num_threads);
  ~Team();
  Team(const Team &) = delete;
  Team &operator=(const Team &) = delete;

  // Returns when all stages are done. One caller at a time.
  void run(Job &job);

private:
  // From high to low bits: turn, units of the share, units taken.
  struct alignas(64) Share {
    std::atomic<uint64_t> ticket{0};
  };

  void work(int32_t thread);
  int32_t take_unit(int32_t thread);
  int32_t first_unit(int32_t share) const;
  void open_stage(int32_t stage);
  void publish(int32_t num_units);
  void close();
  void wait_for_turn(uint32_t old);

  const int32_t num_shares_;
  std::unique_ptr<Share[]> shares_; // the first is empty only where the job is done
  alignas(64) std::atomic<int32_t> num_done_{0};
  alignas(64) std::atomic<uint32_t> turn_{0};
  std::atomic<int32_t> num_sleepers_{0};
  std::atomic<bool> is_closed_{false};
  Job *job_ = nullptr;
  int32_t stage_ = 0;
  int32_t num_units_ = 0; // of the stage
  std::vector<std::thread> threads_;
};

} // namespace hybrid

#endif
