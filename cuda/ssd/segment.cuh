// How blocks walk over tiles of one head of one chunk each, where neighbouring tiles share what a group of heads has.
#ifndef DART_SSD_SEGMENT_CUH
#define DART_SSD_SEGMENT_CUH

#include "lib/tensor.cuh"

// The neighbouring tiles of a block. `some` of them share what costs most to begin with, so that no run holds two kinds where
// there are no more kinds than blocks.
struct Run {
    uint32_t first, end;
};
__device__ __forceinline__ Run run_of(uint32_t tiles, uint32_t some)
{
    const uint32_t kinds = tiles / some, parts = min(gridDim.x / kinds, some);
    const uint64_t all = tiles;
    if (parts == 0) return {uint32_t(all * blockIdx.x / gridDim.x), uint32_t(all * (blockIdx.x + 1) / gridDim.x)};
    const uint32_t kind = blockIdx.x / parts, part = blockIdx.x % parts;
    if (kind >= kinds) return {tiles, tiles};
    return {kind * some + some * part / parts, kind * some + some * (part + 1) / parts};
}

// Tiles of one chunk and group, one head each: from first up to end. m: the number of the chunk in the sequence.
struct Segment {
    uint32_t first, end, head, b, j, group, begin, length, m;
    bool closes;
};
// The first segment with tokens from tile `first` on; first >= last when there is none.
template <class Args>
__device__ __forceinline__ Segment find(const Args &args, const int32_t *seq, uint32_t first, uint32_t last)
{
    const uint32_t heads = args.H / args.G;
    Segment s = {};
#pragma unroll 1
    for (s.first = first; s.first < last; s.first = s.end) {
        const uint32_t groups = s.first / heads, chunks = quotient(groups, args.G);
        s.end = min((groups + 1) * heads, last);
        s.group = groups - chunks * args.G;
        s.head = s.group * heads + s.first - groups * heads;
        s.b = quotient(chunks, args.M);
        s.j = chunks - s.b * args.M;
        const Piece piece = piece_of(seq, args.flags, args.L, s.b);
        const Chunk chunk = chunk_of(piece, args.S, s.j);
        s.begin = chunk.begin;
        s.length = chunk.length();
        s.m = quotient(piece.position, args.S) + s.j;
        s.closes = chunk.closes;
        if (s.length > 0) break;
    }
    return s;
}

#endif
