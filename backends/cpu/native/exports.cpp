// The C interface of abi.h; nothing thrown leaves it.

#include "model.h"

#define HYBRID_EXPORT __attribute__((visibility("default")))

namespace {

struct Variant {
  const char *name;
  const hybrid::Kernels *kernels;
  bool (*runs_here)();
};

#ifdef HYBRID_CPU_X86
bool has_avx2() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
         __builtin_cpu_supports("f16c");
}
bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") &&
         __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
}
bool has_avx512_bf16() { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }
#endif

const Variant VARIANTS[] = {
    {"portable", &hybrid::kernels_portable, [] { return true; }},
#ifdef HYBRID_CPU_X86
    {"avx2", &hybrid::kernels_avx2, has_avx2},
    {"avx512", &hybrid::kernels_avx512, has_avx512},
    {"avx512_bf16", &hybrid::kernels_avx512_bf16, has_avx512_bf16},
#endif
};
constexpr int32_t NUM_VARIANTS = sizeof VARIANTS / sizeof VARIANTS[0];

bool is_variant(int32_t variant) { return variant >= 0 && variant < NUM_VARIANTS; }

} // namespace

extern "C" {

HYBRID_EXPORT int32_t hybrid_cpu_abi_version() { return HYBRID_CPU_ABI_VERSION; }

HYBRID_EXPORT int32_t hybrid_cpu_num_variants() { return NUM_VARIANTS; }

HYBRID_EXPORT const char *hybrid_cpu_variant_name(int32_t variant) {
  return is_variant(variant) ? VARIANTS[variant].name : nullptr;
}

HYBRID_EXPORT int32_t hybrid_cpu_variant_runs_here(int32_t variant) {
  return is_variant(variant) && VARIANTS[variant].runs_here();
}

HYBRID_EXPORT int32_t hybrid_cpu_create(const ModelConfig *config, void **model) {
  *model = nullptr;
  if (config->abi_version != HYBRID_CPU_ABI_VERSION)
    return STATUS_BAD_ABI;
  if (!hybrid_cpu_variant_runs_here(config->variant) || !hybrid::is_sound(*config))
    return STATUS_BAD_CONFIG;
  try {
    *model = new hybrid::Model(*config, *VARIANTS[config->variant].kernels);
  } catch (...) { // of memory, or of threads, which the standard library says otherwise
    return STATUS_NO_MEMORY;
  }
  return STATUS_OK;
}

HYBRID_EXPORT int32_t hybrid_cpu_bind_kv(void *model, const KvPool *pool) {
  return static_cast<hybrid::Model *>(model)->bind(*pool);
}

HYBRID_EXPORT int32_t hybrid_cpu_forward(void *model, const Step *step) {
  hybrid::Model &target = *static_cast<hybrid::Model *>(model);
  const Status status = target.check(*step);
  if (status != STATUS_OK)
    return status;
  try {
    target.forward(*step);
  } catch (...) { // of memory: before the first pass, or between two
    return STATUS_NO_MEMORY;
  }
  return STATUS_OK;
}

HYBRID_EXPORT void *hybrid_cpu_arena(void *model) {
  return static_cast<hybrid::Model *>(model)->arena();
}

HYBRID_EXPORT void hybrid_cpu_destroy(void *model) {
  delete static_cast<hybrid::Model *>(model);
}

} // extern "C"
