// The kernels over one kind of lanes; included by a variant's file, inside its namespace.

// Sums stay in registers only if the loops over them are gone before GCC looks for those.
#ifndef HYBRID_UNROLL
#define HYBRID_UNROLL _Pragma("GCC unroll 8")
#endif
#define HYBRID_UNROLL_16 _Pragma("GCC unroll 16")

#include "quantise.h"
#include "activation.h"
#include "product_out.h"
#include "product_of_floats.h"
#include "product_of_groups.h"
#include "product_of_eights.h"
#include "linear.h"
#include "embedding.h"
#include "peak.h"
#include "rope.h"
#include "attention_tile.h"
#include "attention_rows.h"
#include "attention_floats.h"
#include "attention_int8_tile.h"
#include "attention_int8_query.h"
#include "attention_int8_weights.h"
#include "attention_int8.h"
#include "attention.h"

static constexpr Kernels make_kernels() {
  return {embed, norm, convert, silu_mul, linear, rope_kv, attend, merge, finish,
          find_peak, make_eights};
}
