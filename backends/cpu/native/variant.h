// The kernels over one kind of lanes; included by a variant's file, inside its namespace.

#include "activation.h"
#include "linear.h"
#include "rope.h"
#include "attention.h"

static constexpr Kernels make_kernels() {
  return {embed, norm, convert, silu_mul, linear, rope_kv, attend, merge, finish};
}
