#include "int8_cell.h"
#include "kernels.h"

#include <cstddef>
#include <cstdint>

namespace hybrid {
namespace {
#include "lanes_portable.h"

#define HYBRID_UNROLL // registers are the compiler's to find: unrolled, it takes minutes
#include "variant.h"
} // namespace

extern constinit const Kernels kernels_portable = make_kernels();
} // namespace hybrid
