#include "team.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace hybrid {
namespace {

constexpr uint64_t COUNT_BITS = 20, COUNT_MASK = (1u << COUNT_BITS) - 1;
constexpr uint32_t TURN_MASK = (1u << 24) - 1;
// About 30 microseconds: longer than most waits between two stages of balanced threads.
constexpr int SPINS = 1000;

uint32_t turn_of(uint64_t ticket) { return static_cast<uint32_t>(ticket >> (2 * COUNT_BITS)); }

int32_t units_of(uint64_t ticket) {
  return static_cast<int32_t>(ticket >> COUNT_BITS & COUNT_MASK);
}

bool has_unit(uint64_t ticket) {
  return static_cast<int32_t>(ticket & COUNT_MASK) < units_of(ticket);
}

void pause() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

} // namespace

Team::Team(int32_t num_threads)
    : num_shares_(num_threads),
      shares_(std::make_unique<Share[]>(static_cast<size_t>(num_threads))) {
  try {
    for (int32_t thread = 1; thread < num_threads; ++thread)
      threads_.emplace_back([this, thread] { work(thread); });
  } catch (...) {
    close();
    throw;
  }
}

Team::~Team() { close(); }

void Team::close() {
  is_closed_.store(true);
  publish(0);
  for (std::thread &thread : threads_)
    thread.join();
}

void Team::run(Job &job) {
  job_ = &job;
  open_stage(0);
  work(0);
}

void Team::work(int32_t thread) {
  for (;;) {
    // Read first: if all that is published with it is taken, so is the stage.
    const uint64_t newest = shares_[0].ticket.load(std::memory_order_acquire);
    const int32_t unit = take_unit(thread);
    if (unit < 0) {
      if (units_of(newest) == 0 && (thread == 0 || is_closed_.load()))
        return;
      wait_for_turn(turn_of(newest));
      continue;
    }
    // While this unit is not done nobody opens another stage or ends the job.
    const int32_t num_units = num_units_;
    job_->run(stage_, unit, thread);
    if (num_done_.fetch_add(1, std::memory_order_acq_rel) + 1 == num_units) {
      job_->end(stage_);
      open_stage(stage_ + 1);
    }
  }
}

// One of the thread's own share, or else of another's; -1: none is left.
int32_t Team::take_unit(int32_t thread) {
  for (int32_t i = 0; i < num_shares_; ++i) {
    const int32_t share = (thread + i) % num_shares_;
    std::atomic<uint64_t> &tickets = shares_[static_cast<size_t>(share)].ticket;
    // Looked at first: adds to a ticket without units left would carry into its turn.
    if (!has_unit(tickets.load(std::memory_order_relaxed)))
      continue;
    const uint64_t ticket = tickets.fetch_add(1, std::memory_order_acq_rel);
    if (has_unit(ticket))
      return first_unit(share) + static_cast<int32_t>(ticket & COUNT_MASK);
  }
  return -1;
}

// Rounded up, so that the first share has units wherever there are any.
int32_t Team::first_unit(int32_t share) const {
  return static_cast<int32_t>((int64_t{num_units_} * share + num_shares_ - 1) / num_shares_);
}

void Team::open_stage(int32_t stage) {
  int32_t num_units = 0;
  while (stage < job_->num_stages() && (num_units = job_->begin(stage)) == 0)
    ++stage;
  stage_ = stage;
  num_done_.store(0, std::memory_order_relaxed);
  publish(num_units);
}

void Team::publish(int32_t num_units) {
  num_units_ = num_units;
  const uint64_t turn = (turn_.load(std::memory_order_relaxed) + 1) & TURN_MASK;
  // Before the tickets: once they are out, others may run the stage and publish the next
  // one, or `run` may return and be called again, with this thread asleep on this line.
  turn_.store(static_cast<uint32_t>(turn), std::memory_order_seq_cst);
  // The first share goes last: without its units the stage, or the job, cannot end.
  for (int32_t share = num_shares_ - 1; share >= 0; --share) {
    const int32_t count = first_unit(share + 1) - first_unit(share);
    shares_[static_cast<size_t>(share)].ticket.store(
        turn << (2 * COUNT_BITS) | static_cast<uint64_t>(count) << COUNT_BITS,
        std::memory_order_seq_cst);
  }
  // A single unit is run by the thread that publishes it, before it could be handed over.
  if (num_units != 1 && num_sleepers_.load(std::memory_order_seq_cst) > 0)
    turn_.notify_all();
}

void Team::wait_for_turn(uint32_t old) {
  for (int i = 0; i < SPINS; ++i) {
    if (turn_of(shares_[0].ticket.load(std::memory_order_relaxed)) != old)
      return;
    pause();
  }
  // Counted before the last look, so that who changes `turn_` sees one of the two.
  num_sleepers_.fetch_add(1, std::memory_order_seq_cst);
  while (turn_.load(std::memory_order_seq_cst) == old)
    turn_.wait(old, std::memory_order_seq_cst);
  num_sleepers_.fetch_sub(1, std::memory_order_relaxed);
}

} // namespace hybrid
