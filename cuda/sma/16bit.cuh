// One token of (sequence, head) against a run of memories of 16 bits, N 128 and P 64, for sma_step and mixer_attend, with
// 16-byte loads: a warp takes a whole memory at a time, 8 threads share a row, each with 8 columns, and each has half_fetch
// rows in flight, the first of them before it is known whether the token sees the memory: its place is there. Rows of a
// thread stand in fours, so that their factors come in one load.
#ifndef DART_SMA_HALF_CUH
#define DART_SMA_HALF_CUH

#include "token.cuh"

constexpr uint32_t half_warps = 4, threads_16bit = 32 * half_warps, half_n = 128, half_p = 64;
constexpr uint32_t half_fetch = 8; // 16 gained nothing

struct Shared16bit {
    float4 queries[half_n / 4], reads[half_n / 4], sums[half_warps][4][half_p / 4];
    float2 ends[half_warps]; // top, den
    float squares[half_warps];
};

__device__ __forceinline__ float part_of(const float4 &v, uint32_t k)
{
    return k == 0 ? v.x : k == 1 ? v.y : k == 2 ? v.z : v.w;
}

// What a thread has in flight: rows 16 (i / 4) + 4 row + i % 4 of a memory, `from` <= i < from + half_fetch, and their factors.
struct Fetched {
    uint4 rows[half_fetch];
    float4 factors[half_fetch / 4];
    const uint4 *dh;      // of the thread's columns
    const float4 *factor; // both from row 4 * row on
    __device__ __forceinline__ void row(size_t memory, uint32_t from, uint32_t k)
    {
        rows[k] = __ldg(dh + (memory + (from + k) / 4 * 16 + k % 4) * (half_p / 8));
    }
    __device__ __forceinline__ void four(size_t memory, uint32_t from, uint32_t j)
    {
        factors[j] = __ldg(factor + (memory + (from + 4 * j) * 4) / 4);
    }
};

// give as for attend_token, sum being that of column threadIdx.x % half_p.
template <uint32_t dtype, class Args, class Give>
__device__ __forceinline__ void attend_16bit(const Args &args, const TokenInputs &in, Shared16bit &shared, const Give &give)
{
    const bool raw = args.flags & IS_RAW;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, column = lane % 8, row = lane / 8;
    const uint32_t share = ceil_div(args.count, args.splits);
    Fetched fetched;
    fetched.dh = reinterpret_cast<const uint4 *>(in.dh.base) + args.dh_at / 8 + row * 4 * (half_p / 8) + column;
    fetched.factor = reinterpret_cast<const float4 *>(in.factor + args.factor_at) + row;
    FOR_TILES(tile) {
        const uint32_t split = tile % args.splits, head = tile / args.splits, h = head % args.H, b = head / args.H,
                       g = h / (args.H / args.G);
        size_t memory = ((size_t(b) * args.capacity + min(split * share + warp, args.count - 1)) * args.H + h) * half_n;
#pragma unroll
        for (uint32_t k = 0; k < half_fetch; k++) fetched.row(memory, 0, k);
#pragma unroll
        for (uint32_t j = 0; j < half_fetch / 4; j++) fetched.four(memory, 0, j);
        const float vq = load(in.q, args.q_at + size_t(b) * args.q_row + g * half_n + threadIdx.x);
        float e[8], acc[8] = {}, e_squares = 0.0f, top = lowest, den = 0.0f;
#pragma unroll
        for (uint32_t k = 0; k < 8; k++) e[k] = load(in.e, args.e_at + size_t(b) * in.e_row + g * half_p + column * 8 + k);
        const float vc = load(in.c, args.c_at + size_t(b) * args.c_row + g * half_n + threadIdx.x);
        const TokenRun run = token_run(args, in.seq, split, b);
        if (!run.there) continue;
        reinterpret_cast<float *>(shared.queries)[threadIdx.x] = vq;
        reinterpret_cast<float *>(shared.reads)[threadIdx.x] = vc;
        const float squares = warp_sum(vq * vq);
        if (lane == 0) shared.squares[warp] = squares;
#pragma unroll
        for (uint32_t k = 0; k < 8; k++) e_squares = fmaf(e[k], e[k], e_squares);
        for (int apart = 4; apart > 0; apart /= 2) e_squares += __shfl_xor_sync(0xffffffffu, e_squares, apart);
        const float e_scale = 1.0f / sqrtf(e_squares / float(half_p) + args.eps);
#pragma unroll
        for (uint32_t k = 0; k < 8; k++) e[k] *= e_scale;
        __syncthreads();
        float q_scale = 0.0f;
        for (uint32_t w = 0; w < half_warps; w++) q_scale += shared.squares[w];
        q_scale = 1.0f / (sqrtf(q_scale / float(half_n) + args.eps) * sqrtf(float(half_n)));
        for (uint32_t i = run.begin + warp; i < run.end; i += half_warps) {
            const size_t next = memory + size_t(half_warps) * args.H * half_n;
            const bool more = i + half_warps < run.end;
            float logit = 0.0f, values[8] = {};
#pragma unroll
            for (uint32_t from = 0; from < half_n / 4; from += half_fetch) {
                const bool within = from + half_fetch < half_n / 4;
#pragma unroll
                for (uint32_t j = 0; j < half_fetch / 4; j++) {
                    const float4 factor = fetched.factors[j], query = shared.queries[from + 4 * j + row],
                                 read = shared.reads[from + 4 * j + row];
                    // The next rows, or the next memory's first ones, are on their way while these go to work.
                    if (within) fetched.four(memory, from + half_fetch, j);
                    else if (more) fetched.four(next, 0, j);
#pragma unroll
                    for (uint32_t k = 0; k < 4; k++) {
                        const uint4 four = fetched.rows[4 * j + k];
                        const uint32_t words[4] = {four.x, four.y, four.z, four.w};
                        if (within) fetched.row(memory, from + half_fetch, 4 * j + k);
                        else if (more) fetched.row(next, 0, 4 * j + k);
                        const float f = part_of(factor, k), weight = part_of(query, k) * (raw ? f : 1.0f),
                                    value = part_of(read, k) * (raw ? 1.0f : f);
                        float key = 0.0f;
#pragma unroll
                        for (uint32_t w = 0; w < 4; w++) {
                            const bool f16 = dtype == DTYPE_F16;
                            const float low = f16 ? from_half(words[w] & 0xffffu) : from_bfloat(words[w] & 0xffffu);
                            const float high = f16 ? from_half(words[w] >> 16) : __uint_as_float(words[w] & 0xffff0000u);
                            key = fmaf(e[2 * w], low, fmaf(e[2 * w + 1], high, key));
                            values[2 * w] = fmaf(value, low, values[2 * w]);
                            values[2 * w + 1] = fmaf(value, high, values[2 * w + 1]);
                        }
                        logit = fmaf(weight, key, logit);
                    }
                }
            }
            logit = warp_sum(logit) * q_scale;
            const float now = fmaxf(top, logit), correction = exp_below(top - now), gain = exp_below(logit - now);
            top = now;
            den = den * correction + gain;
#pragma unroll
            for (uint32_t k = 0; k < 8; k++) acc[k] = acc[k] * correction + gain * values[k];
            memory = next;
        }
        if (lane == 0) shared.ends[warp] = make_float2(top, den);
        shared.sums[warp][row][2 * column] = make_float4(acc[0], acc[1], acc[2], acc[3]);
        shared.sums[warp][row][2 * column + 1] = make_float4(acc[4], acc[5], acc[6], acc[7]);
        __syncthreads();
        float all = lowest, total = 0.0f, sum = 0.0f;
        for (uint32_t w = 0; w < half_warps; w++) all = fmaxf(all, shared.ends[w].x);
        for (uint32_t w = 0; w < half_warps; w++) {
            const float weight = exp_below(shared.ends[w].x - all);
            total += shared.ends[w].y * weight;
            float part = 0.0f;
            for (uint32_t k = 0; k < 4; k++) part += reinterpret_cast<const float *>(shared.sums[w][k])[threadIdx.x % half_p];
            sum += part * weight;
        }
        give(split, head, all, total, sum);
    }
}

template <class Args, class Give>
__device__ __forceinline__ void attend_16bit(const Args &args, const TokenInputs &in, Shared16bit &shared, const Give &give)
{
    if (in.dh.dtype == DTYPE_F16) attend_16bit<DTYPE_F16>(args, in, shared, give);
    else attend_16bit<DTYPE_BF16>(args, in, shared, give);
}

#endif
