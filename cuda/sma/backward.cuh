// Which tokens see which memories, for the kernels of the backward pass, whose arguments have L, S and M.
#ifndef DART_SMA_BACKWARD_CUH
#define DART_SMA_BACKWARD_CUH

#include "lib/dart.cuh"

// Memories below this number are seen by token t.
template <class Args> __device__ __forceinline__ uint32_t seen_by(const Args &args, uint32_t position, uint32_t t)
{
    return min((position + t) / args.S, args.M);
}
// The first token that sees memory m, L where none of the piece can: whose border may lie beyond 2^32.
template <class Args> __device__ __forceinline__ uint32_t first_to_see(const Args &args, uint32_t position, uint32_t m)
{
    if (m >= (position + args.L - 1) / args.S) return args.L;
    const uint32_t border = (m + 1) * args.S;
    return border > position ? border - position : 0;
}

#endif
