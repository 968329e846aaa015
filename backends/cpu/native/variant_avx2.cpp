#include "int8_cell.h"
#include "kernels.h"

#include <cstddef>
#include <cstdint>

#ifdef HYBRID_CPU_X86
#include <immintrin.h>

// Everything below may use these instructions: no function of a standard header may be
// defined there, since the linker could hand it to callers on lesser machines.
#pragma GCC target("avx2,fma,f16c")

namespace hybrid {
namespace {
#include "lanes_avx2.h"

#include "variant.h"
} // namespace

extern constinit const Kernels kernels_avx2 = make_kernels();
} // namespace hybrid
#endif
