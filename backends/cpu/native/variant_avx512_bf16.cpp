#include "int8_cell.h"
#include "kernels.h"

#include <cstddef>
#include <cstdint>

#ifdef HYBRID_CPU_X86
#include <immintrin.h>

// Everything below may use these instructions: no function of a standard header may be
// defined there, since the linker could hand it to callers on lesser machines.
#pragma GCC target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16")
// Products take a hundredth less than as GCC arranges them for any machine.
#pragma GCC target("tune=skylake-avx512")
#define HYBRID_DOTS_BF16 1

namespace hybrid {
namespace {
#include "lanes_avx512.h"

#include "variant.h"
} // namespace

extern constinit const Kernels kernels_avx512_bf16 = make_kernels();
} // namespace hybrid
#endif
