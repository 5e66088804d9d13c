// r and lse of one (b, h) from its partials {top, den, acc[P]}, and from what they hold when merging.
// Threads stand in groups over P, and the groups share out the partials. The first of those are asked for before anything
// else, so that they come while the maximum is found. They are read past the first-level cache, since other blocks of the
// same launch may have written them.
#ifndef DART_SMA_MERGE_CUH
#define DART_SMA_MERGE_CUH

#include "lib/dart.cuh"

template <uint32_t threads> struct MergeShared {
    float gains[MERGE_PARTS], sums[threads];
    bool last;
};

// Where partial s of a head lies.
template <class Args> __device__ __forceinline__ size_t partial_at(const Args &args, uint32_t head, uint32_t s)
{
    return (size_t(head) * args.splits + s) * (args.P + 2);
}
__device__ __forceinline__ size_t partial_at(const SmaMergeArgs &args, uint32_t head, uint32_t s)
{
    return size_t(s / args.group) * args.group_size + (size_t(head) * args.group + s % args.group) * (args.P + 2);
}

// To be called by the whole block.
template <uint32_t threads, class Args>
__device__ __forceinline__ void merge_partials(const Args &args, uint32_t head, const float *partial, const View &r, float *lse,
                                               MergeShared<threads> &shared)
{
    constexpr uint32_t ahead = 8, ends = MERGE_PARTS / 32;
    const uint32_t h = head % args.H, b = head / args.H, lane = threadIdx.x % 32;
    const uint32_t groups = threads / args.P, p = threadIdx.x % args.P, group = threadIdx.x / args.P;
    float values[ahead], tops[ends], dens[ends];
#pragma unroll
    for (uint32_t k = 0; k < ends; k++) {
        const uint32_t s = lane + 32 * k;
        tops[k] = s < args.splits ? __ldcg(partial + partial_at(args, head, s)) : lowest;
        dens[k] = s < args.splits ? __ldcg(partial + partial_at(args, head, s) + 1) : 0.0f;
    }
#pragma unroll
    for (uint32_t k = 0; k < ahead; k++) values[k] = __ldcg(partial + partial_at(args, head, min(group + k * groups, args.splits - 1)) + 2 + p);
    const float old = args.flags & IS_MERGE ? lse[args.lse_at + head] : lowest;
    const bool any_old = !(old <= lowest);
    float top = any_old ? old : lowest, den = 0.0f, sum = 0.0f;
#pragma unroll
    for (uint32_t k = 0; k < ends; k++) {
        if (dens[k] != 0.0f) top = fmaxf(top, tops[k]);
    }
    for (int apart = 16; apart > 0; apart /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, apart));
#pragma unroll
    for (uint32_t k = 0; k < ends; k++) {
        const float gain = dens[k] != 0.0f ? exp_below(tops[k] - top) : 0.0f;
        den = fmaf(gain, dens[k], den);
        if (threadIdx.x < 32) shared.gains[lane + 32 * k] = gain;
    }
    const float held = any_old ? exp_below(old - top) : 0.0f;
    den = warp_sum(den) + held;
    __syncthreads(); // every thread has read lse by now, and sees the gains
    if (group < groups) {
#pragma unroll
        for (uint32_t k = 0; k < ahead; k++) {
            const uint32_t s = group + k * groups;
            if (s < args.splits) sum = fmaf(shared.gains[s], values[k], sum);
        }
#pragma unroll 8
        for (uint32_t s = group + ahead * groups; s < args.splits; s += groups)
            sum = fmaf(shared.gains[s], __ldcg(partial + partial_at(args, head, s) + 2 + p), sum);
    }
    shared.sums[threadIdx.x] = sum;
    __syncthreads();
    if (group == 0) {
        for (uint32_t k = 1; k < groups; k++) sum += shared.sums[threadIdx.x + k * args.P];
        const size_t at = args.r_at + size_t(b) * args.r_row + h * args.P + p;
        if (any_old) sum += held * load(r, at);
        store(r, at, den != 0.0f ? sum / den : 0.0f);
        if (p == 0) lse[args.lse_at + head] = den != 0.0f ? top + logf(den) : __uint_as_float(0xff800000u);
    }
    __syncthreads();
}

// The same by the block that is done last with the partials of this (b, h); called by each when its own is written. Nobody
// waits for anybody: a block takes a ticket when its partial is there for all to see, and the last ticket turns the counter
// to 0 again.
template <uint32_t threads, class Args>
__device__ __forceinline__ void merge_when_last(const Args &args, uint32_t head, uint32_t *tickets, const float *partial,
                                                const View &r, float *lse, MergeShared<threads> &shared)
{
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence(); // what the others wrote before the barrier included
        shared.last = atomicInc(&tickets[head], args.splits - 1) == args.splits - 1;
        __threadfence();
    }
    __syncthreads();
    if (shared.last) merge_partials<threads>(args, head, partial, r, lse, shared);
}

#endif
