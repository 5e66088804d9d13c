// What ssd_memory, ssd_state and ssd_output without tensor cores share: where the memories of chunks lie, and decay between tokens.
#ifndef DART_SSD_MEMORY_CUH
#define DART_SSD_MEMORY_CUH

#include "lib/dart.cuh"

// Whether the memory of chunk j is stored, and the first of its rows; args of ssd_memory or ssd_state.
template <class Args> __device__ __forceinline__ bool memory_stored(const Args &args, const Piece &piece, uint32_t j)
{
    const uint64_t m = uint64_t(piece.position / args.S) + j;
    return !(args.flags & HAS_RUN) ||
           (chunk_of(piece, args.S, j).closes && m >= args.first && m < uint64_t(args.first) + args.count);
}
template <class Args>
__device__ __forceinline__ size_t memory_row(const Args &args, const Sequence &piece, uint32_t j, uint32_t h)
{
    const size_t slot = args.flags & HAS_RUN ? size_t(piece.b) * args.capacity + (piece.position / args.S + j - args.first)
                                             : size_t(piece.slot(args.M, args.S)) + j;
    return (slot * args.H + h) * args.N;
}

// Log-decay from token `from` to token `to` of one walk of cum, at most 0.
__device__ __forceinline__ float cum_between(const float *to, const float *from)
{
    const float difference = (to[0] - from[0]) + (to[1] - from[1]);
    return difference > 0.0f ? 0.0f : difference;
}

#endif
