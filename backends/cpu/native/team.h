// A fixed team of threads that goes through a job's stages together.
#ifndef HYBRID_CPU_TEAM_H
#define HYBRID_CPU_TEAM_H

#include <atomic>
#include <cstdint>
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

// Threads take units by a ticket; who finishes a stage's last unit opens the next stage.
// So nobody waits for a thread, only for units: one whose core somebody else has for now
// holds up the others by the unit that it is in, if any, and a stage of one unit is run
// without a word to anyone. Waiters spin for a moment and then sleep: a spinning thread
// may hold the very core that the one it waits for needs.
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
  void work(int32_t thread);
  void open_stage(int32_t stage);
  void publish(int32_t num_units);
  void close();
  void wait_for_turn(uint32_t old);

  // From high to low bits: turn, units of the open stage (0: the job is done), units taken.
  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) std::atomic<int32_t> num_done_{0};
  alignas(64) std::atomic<uint32_t> turn_{0};
  std::atomic<int32_t> num_sleepers_{0};
  std::atomic<bool> is_closed_{false};
  Job *job_ = nullptr;
  int32_t stage_ = 0;
  std::vector<std::thread> threads_;
};

} // namespace hybrid

#endif
