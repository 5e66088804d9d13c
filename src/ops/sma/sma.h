/* What sma and its gradients share. */
#ifndef DART_SMA_H
#define DART_SMA_H

#include "ops/arguments.h"

/* A run that piece or step attends to: with scales, or raw. */
static inline ops_run sma_run_of(const op_layout *layout, const dart_memories *run, uint32_t S, uint32_t H, uint32_t N, uint32_t P)
{
    ops_run of = ops_run_of(run, "dh", "scale", op_slots(layout, run->M, S), H, N, P);
    of.scale.kinds |= OP_OPTIONAL;
    return of;
}

/* Which rows of sma_rho take memories as they lie in a buffer: those for 16 bits read words of eight elements. */
static inline uint32_t sma_rho_fits(const dart_tensor *dh, uint32_t P)
{
    return (dh->dtype != DART_F32 ? FITS_16BIT : 0) | (P % 8 == 0 && dh->offset % 8 == 0 ? FITS_WORDS : 0);
}

/* Whether copy engines take the run's normalised memories. */
static inline uint32_t sma_bulk_fits(const dart_memories *run)
{
    return run->dh.offset % 64 == 0 && run->scale.offset % 4 == 0 ? FITS_SMA_BULK : 0;
}

#endif
