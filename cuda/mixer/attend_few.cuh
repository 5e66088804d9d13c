// mixer_attend over memories of 16 bits, N 128 and P 64, by all threads of a block together: eight share a row, each with eight columns, and each has
// four rows of a memory, which are on their way before the launch before has ended, as the next memory's are while one goes to work. A barrier a
// memory brings its logit together. Shared memory: 2.4 KiB.
#ifndef DART_MIXER_ATTEND_FEW_CUH
#define DART_MIXER_ATTEND_FEW_CUH

#include "lib/eight.cuh"
#include "sma/token.cuh"

constexpr uint32_t few_n = 128, few_p = 64, few_rows = 4, few_apart = few_n / few_rows; // rows of a thread: so far apart
constexpr uint32_t few_soon = 4;                                                        // memories

struct FewShared {
    float logits[2][warps], squares[warps], sums[warps][few_p];
};

struct FewMemory {
    uint4 rows[few_rows];
    float factors[few_rows];
    __device__ __forceinline__ void fetch(const uint4 *dh, const float *factor, size_t memory)
    {
#pragma unroll
        for (uint32_t k = 0; k < few_rows; k++) {
            rows[k] = __ldcg(dh + (memory + k * few_apart) * (few_p / 8));
            factors[k] = __ldcg(factor + memory + k * few_apart);
        }
    }
};

template <bool bf>
__device__ __forceinline__ void attend_few(const mixer_attend_args &args, const CudaBindings &bindings, uint32_t dtypes, Blocks blocks,
                                           FewShared &shared)
{
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, column = threadIdx.x % 8, row = threadIdx.x / 8;
    const uint4 *dh = reinterpret_cast<const uint4 *>(VIEW(mixer_attend, dh).base) + args.dh_at / 8 + row * (few_p / 8) + column;
    const float *factor = FLOATS(mixer_attend, factor) + args.factor_at + row;
    const uint32_t share = ceil_div(args.count, args.splits);
    FOR_TILES_OF(tile, blocks) {
        const uint32_t split = tile % args.splits, head = tile / args.splits, h = head % args.H, b = head / args.H, g = h / (args.H / args.G);
        const auto place = [&](uint32_t i) { return ((size_t(b) * args.capacity + min(i, args.count - 1)) * args.H + h) * few_n; };
        FewMemory next;
        next.fetch(dh, factor, place(split * share));
        // The memories after it come to the L2 cache: a row is a line of 128 bytes, as 32 factors are.
#pragma unroll 1
        for (uint32_t i = 1; i < min(share, few_soon); i++) {
            const size_t memory = place(split * share + i);
#pragma unroll 1
            for (uint32_t k = 0; k < few_rows; k++) {
                if (column == 0) asm volatile("prefetch.global.L2 [%0];" ::"l"(dh + (memory + k * few_apart) * (few_p / 8)));
                if (column == 1 && row == 0) asm volatile("prefetch.global.L2 [%0];" ::"l"(factor + memory + k * few_apart));
            }
        }
        const TokenRun run = token_run(args, INTS(mixer_attend, seq), split, b);
        predecessors_wait();
        successors_begin();
        if (!run.there) continue;
        const float *from_q = FLOATS(mixer_attend, q) + args.q_at + size_t(b) * args.q_row + g * few_n + row;
        const float *from_c = FLOATS(mixer_attend, c) + args.c_at + size_t(b) * args.c_row + g * few_n + row;
        const float *from_e = FLOATS(mixer_attend, e) + args.e_at + size_t(b) * args.q_row + g * few_p + 8 * column;
        float q[few_rows], c[few_rows], e[8], acc[8] = {}, top = lowest, den = 0.0f, q_square = 0.0f, e_square = 0.0f;
#pragma unroll
        for (uint32_t k = 0; k < few_rows; k++) q[k] = from_q[k * few_apart], c[k] = from_c[k * few_apart];
#pragma unroll
        for (uint32_t k = 0; k < 8; k++) e[k] = from_e[k];
#pragma unroll
        for (uint32_t k = 0; k < few_rows; k++) q_square = fmaf(q[k], q[k], q_square);
#pragma unroll
        for (uint32_t k = 0; k < 8; k++) e_square = fmaf(e[k], e[k], e_square);
        for (uint32_t apart = 1; apart < 8; apart *= 2) e_square += __shfl_xor_sync(0xffffffffu, e_square, apart);
        for (uint32_t apart = 8; apart < 32; apart *= 2) q_square += __shfl_xor_sync(0xffffffffu, q_square, apart);
        if (lane == 0) shared.squares[warp] = q_square;
        float scale = 1.0f / sqrtf(e_square / float(few_p) + args.eps);
        for (uint32_t i = run.begin; i < run.end; i++) {
            const FewMemory now = next;
            if (i + 1 < run.end) next.fetch(dh, factor, place(i + 1));
            float logit = 0.0f, values[8] = {};
#pragma unroll
            for (uint32_t k = 0; k < few_rows; k++) {
                const uint32_t words[4] = {now.rows[k].x, now.rows[k].y, now.rows[k].z, now.rows[k].w};
                const float value = c[k] * now.factors[k];
                float key = 0.0f;
#pragma unroll
                for (uint32_t w = 0; w < 4; w++) {
                    float low, high;
                    unpack_pair(words[w], bf, low, high);
                    key = fmaf(e[2 * w], low, fmaf(e[2 * w + 1], high, key));
                    values[2 * w] = fmaf(value, low, values[2 * w]);
                    values[2 * w + 1] = fmaf(value, high, values[2 * w + 1]);
                }
                logit = fmaf(q[k], key, logit);
            }
            // Two sets of slots: before a set is written again every thread has passed the barrier of the other.
            float *slots = shared.logits[(i - run.begin) % 2];
            logit = warp_sum(logit);
            if (lane == 0) slots[warp] = logit;
            __syncthreads();
            if (i == run.begin) {
                float square = 0.0f;
                for (uint32_t w = 0; w < warps; w++) square += shared.squares[w];
                scale /= sqrtf(square / float(few_n) + args.eps) * sqrtf(float(few_n));
            }
            logit = 0.0f;
            for (uint32_t w = 0; w < warps; w++) logit += slots[w];
            logit *= scale;
            const float larger = fmaxf(top, logit), correction = exp_below(top - larger), gain = exp_below(logit - larger);
            top = larger;
            den = den * correction + gain;
#pragma unroll
            for (uint32_t k = 0; k < 8; k++) acc[k] = acc[k] * correction + gain * values[k];
        }
#pragma unroll
        for (uint32_t k = 0; k < 8; k++)
            for (uint32_t apart = 8; apart < 32; apart *= 2) acc[k] += __shfl_xor_sync(0xffffffffu, acc[k], apart);
        if (lane < 8) {
#pragma unroll
            for (uint32_t k = 0; k < 8; k++) shared.sums[warp][8 * column + k] = acc[k];
        }
        __syncthreads();
        float *to = FLOATS(mixer_attend, partial) + args.partial_at + (size_t(split) * args.B * args.H + head) * (few_p + 4);
        if (threadIdx.x < few_p) {
            float sum = 0.0f;
            for (uint32_t w = 0; w < warps; w++) sum += shared.sums[w][threadIdx.x];
            to[threadIdx.x] = sum;
        } else if (threadIdx.x == few_p) {
            to[few_p] = top;
            to[few_p + 1] = den;
        }
        __syncthreads();
    }
}

__device__ __forceinline__ void attend_few_run(const mixer_attend_args &args, const CudaBindings &bindings, uint32_t dtypes, Blocks blocks)
{
    __shared__ FewShared shared;
    if (VIEW(mixer_attend, dh).dtype == DTYPE_BF16) attend_few<true>(args, bindings, dtypes, blocks, shared);
    else attend_few<false>(args, bindings, dtypes, blocks, shared);
}

#endif
