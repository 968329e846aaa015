// A model as the forward pass needs it: checked once, then read only.
#ifndef HYBRID_CPU_MODEL_H
#define HYBRID_CPU_MODEL_H

#include "abi.h"
#include "kernels.h"
#include "team.h"

#include <cstdlib>
#include <memory>
#include <vector>

#if __has_include(<sys/mman.h>)
#include <sys/mman.h>
#endif

namespace hybrid {

struct FreeMemory {
  void operator()(void *memory) const { std::free(memory); }
};
template <class T> using Memory = std::unique_ptr<T[], FreeMemory>;

// 64-byte aligned and zeroed.
template <class T> Memory<T> allocate(int64_t count) {
  const size_t bytes = static_cast<size_t>(round_up(count * int64_t{sizeof(T)} + 1, 64));
  void *memory = std::aligned_alloc(64, bytes);
  if (!memory)
    throw std::bad_alloc();
  __builtin_memset(memory, 0, bytes);
  return Memory<T>(static_cast<T *>(memory));
}

// 64-byte aligned, not zeroed; in large pages where the system gives them to who asks.
inline Memory<char> allocate_huge(int64_t num_bytes) {
  constexpr int64_t page = int64_t{1} << 21;
  const size_t bytes = static_cast<size_t>(round_up(num_bytes, page));
  void *memory = std::aligned_alloc(page, bytes);
  if (!memory)
    throw std::bad_alloc();
#ifdef MADV_HUGEPAGE
  madvise(memory, bytes, MADV_HUGEPAGE); // small ones do, too
#endif
  return Memory<char>(static_cast<char *>(memory));
}

// Of rows, in a pass that threads take through several ops at once: so that one whose core
// is slow can be helped.
constexpr int32_t ROW_UNITS_PER_THREAD = 2;

// Whether every index and width of a config fits the others.
bool is_sound(const ModelConfig &config);

class Model {
public:
  Model(const ModelConfig &config, const Kernels &kernels);

  Status bind(const KvPool &pool);
  Status check(const Step &step) const;
  // The step has been checked.
  void forward(const Step &step);
  char *arena() { return arenas_.get(); }

private:
  friend class Pass;

  void make_eights();
  int64_t row_capacity() const { return int64_t{num_arenas_} * config_.unit_tokens; }

  ModelConfig config_;
  const Kernels &kernels_;
  std::vector<Op> ops_;
  std::vector<Weight> weights_;
  std::vector<const float *> vectors_;
  std::vector<float> inverse_frequencies_;
  std::vector<int32_t> windows_;
  KvPool pool_{};
  int32_t task_tokens_; // queries that one attention task takes at most
  int32_t task_rows_;   // rows of these
  int32_t num_arenas_;  // for a full pass
  Memory<char> arenas_;
  // Of selected rows, which outlive their pass. Most steps have few: the system gives this
  // memory when it is touched.
  Memory<char> row_memory_;
  char *row_arenas_ = nullptr;
  Memory<float> cosines_; // [chunk_tokens][head_dim / 2]
  Memory<float> sines_;
  std::vector<Eights> eights_; // of each weight; empty: nobody wants them
  Memory<char> eights_memory_;
  std::vector<Memory<float>> scratch_;   // of each thread
  std::vector<Memory<PartOfRow>> parts_; // of each thread: [2][task_rows]
  Memory<float> split_sums_;             // of attention tasks that are split by KV
  Memory<PartOfRow> split_parts_;
  int64_t split_rows_ = 0;
  Team team_;
};

} // namespace hybrid

#endif
