/* Arguments that several ops take: their checks, and the operands that are made of them. */
#ifndef DART_OPS_ARGUMENTS_H
#define DART_OPS_ARGUMENTS_H

#include "runtime/op.h"

#include <float.h>

/* Checks fail the stream with DART_INVALID_ARGUMENT and return its status. */

/* Sizes of the scan and of state-memory attention, all of which but N and P are known to be above 0: H a multiple of G, N and P from 1 to MAX_STATE,
 * S at most 2^30. */
dart_status ops_check_sizes(op_call *call, uint32_t H, uint32_t G, uint32_t N, uint32_t P, uint32_t S);
/* K of a causal convolution. */
dart_status ops_check_taps(op_call *call, uint32_t K);
/* Limits of step sizes: neither below 0, and dt_max, where it is not 0 (no limit), not below dt_min. */
dart_status ops_check_steps(op_call *call, float dt_min, float dt_max);
/* The largest step size, as kernels take it: FLT_MAX where dt_max sets no limit. */
static inline float ops_most_step(float dt_max) { return dt_max == 0 || dt_max > FLT_MAX ? FLT_MAX : dt_max; }

/* The chunk state memories of a run, and the scales of their rows. */
typedef struct ops_run {
    op_operand dh, scale;
} ops_run;
/* dh: count x H N P;  scale: count x H N.  The names stand in messages. */
ops_run ops_run_of(const dart_memories *run, const char *dh, const char *scale, uint64_t count, uint32_t H, uint32_t N, uint32_t P);

#endif
