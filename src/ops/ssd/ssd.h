/* What the backward pass of the scan takes from the forward pass. */
#ifndef DART_SSD_H
#define DART_SSD_H

#include "runtime/op.h"

typedef struct ssd_entering {
    op_operand cum, decay, hin, hin_scale;
} ssd_entering;

/* What a call needs for the kernels whose workgroups walk over all chunks of a group: many groups, and packed sequences of similar lengths. Chosen
 * from shapes only: the order of sums does not depend on the device. FITS_SSD_WALK and what it implies, or 0. */
uint32_t ssd_walk_traits(const op_layout *layout, uint32_t H, uint32_t G, uint32_t N, uint32_t P, uint32_t S);

/* quiet of dart_ssd and dart_ssd_backward; enters: a state before the piece is given. */
dart_status ssd_check_quiet(op_call *call, const op_layout *layout, uint32_t L, uint32_t quiet, bool enters);
/* Chunks that have no tokens but quiet ones. */
uint32_t ssd_quiet_chunks(uint32_t L, uint32_t S, uint32_t quiet);

/* Records the stages of the call that lead to the states entering its chunks, in scratch memory of the stream: raw and f32, or with may_be_16bit in
 * the form that dart_ssd keeps for itself, by the same rows. The state before the piece, args->h, is left as it is; args->y is checked and not used.
 * Returns the stream's status. */
dart_status ssd_enter(const op_call *call, const dart_ssd_args *args, bool may_be_16bit, ssd_entering *entering);

#endif
