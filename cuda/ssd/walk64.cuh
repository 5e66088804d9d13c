// What the kernels share that walk over chunks of at most 16 tokens for N 64 and P 64, on the warp products of sm_80 with bf16 operands: a block has
// the heads of a group of one sequence, two at a time, four warps a head. A state, N x P, lies in the f32 registers of these warps: of warp w the
// rows 16 w + lane / 4 (k = 0) and 8 later (k = 1), the columns 8 i + 2 (lane % 4) + {0, 1} as elements 4 i + 2 k + {0, 1}. Tokens are rows of tiles
// (lib/tensor.cuh), zeros past the chunk.
#ifndef DART_SSD_WALK64_CUH
#define DART_SSD_WALK64_CUH

#include "lib/tensor.cuh"

namespace ssd_walk64 {

constexpr uint32_t N = 64, P = 64, TOKENS = 16, HEADS = 2, WARPS = 4, THREADS = HEADS * WARPS * 32, OF_HEAD = WARPS * 32;
constexpr uint32_t TOKEN_BYTES = TOKENS * tile_row, STATE_BYTES = N * tile_row;

// Of the tokens of a chunk, those beyond it with a step of 0: {hi, lo} of cum, step, exp(cum), keep; exp(cum) of the last one.
struct alignas(128) Decays { float hi[TOKENS], lo[TOKENS], step[TOKENS], read[TOKENS], keep[TOKENS], through; };

// The parameters of a head.
struct Head { float rate, bias; };

template <class Args> __device__ __forceinline__ float step_size(float raw, const Head &head, const Args &args)
{
    if (args.flags & IS_STEP) return raw;
    const float v = raw + head.bias, step = fmaxf(fmaxf(v, 0.0f) + log1pf(expf(-fabsf(v))), args.dt_min);
    return args.dt_max > 0.0f ? fminf(step, args.dt_max) : step;
}
// By a whole warp, step: of token `lane`, 0 from lane 16 on. The sum is f64, rounded once to hi + lo.
__device__ __forceinline__ void put_decays(Decays &to, float step, const Head &head)
{
    const uint32_t lane = threadIdx.x % 32;
    double sum = double(__fmul_rn(head.rate, step));
#pragma unroll
    for (uint32_t apart = 1; apart < TOKENS; apart *= 2) {
        const double other = __shfl_up_sync(0xffffffffu, sum, apart, TOKENS);
        if (lane % TOKENS >= apart) sum += other;
    }
    const double all = __shfl_sync(0xffffffffu, sum, TOKENS - 1);
    if (lane >= TOKENS) return;
    const float hi = float(sum);
    to.hi[lane] = hi;
    to.lo[lane] = float(sum - double(hi));
    to.step[lane] = step;
    to.read[lane] = exp_below(hi);
    to.keep[lane] = exp_below(float(all - sum));
    if (lane == TOKENS - 1) to.through = exp_below(hi);
}
// exp(cum_t - cum_s)
__device__ __forceinline__ float decay_from(const Decays &of, uint32_t t, uint32_t s)
{
    return exp_below((of.hi[t] - of.hi[s]) + (of.lo[t] - of.lo[s]));
}

// ---- Operands, 16 of depth at a time ----

// Left: the tokens, with depth along their columns 16 s.
__device__ __forceinline__ void left_tokens(uint32_t (&a)[4], uint32_t tile, uint32_t s)
{
    load_matrices(a, tile + tile_at(threadIdx.x % 16, 2 * s + threadIdx.x % 32 / 16));
}
// Left: the columns 16 i of the tokens, with depth over tokens, times factor(token).
template <class Factor> __device__ __forceinline__ void left_columns(uint32_t (&a)[4], uint32_t tile, uint32_t i, Factor factor)
{
    const uint32_t lane = threadIdx.x % 32, t = lane % 4 * 2;
    load_matrices_turned(a, tile + tile_at(lane / 16 * 8 + lane % 8, 2 * i + lane / 8 % 2));
    const uint2 early = factors_of<true>(factor(t), factor(t + 1)), late = factors_of<true>(factor(t + 8), factor(t + 9));
    a[0] = multiply_pair<true>(a[0], early), a[1] = multiply_pair<true>(a[1], early);
    a[2] = multiply_pair<true>(a[2], late), a[3] = multiply_pair<true>(a[3], late);
}
// Right: 16 tokens as columns, with depth along their columns 16 s.
__device__ __forceinline__ void right_tokens(uint32_t (&b)[4], uint32_t tile, uint32_t s)
{
    const uint32_t lane = threadIdx.x % 32;
    load_matrices(b, tile + tile_at(lane % 8 + lane / 16 * 8, 2 * s + lane / 8 % 2));
}
// Right: columns 16 i of a tile, with depth over its rows 16 s.
__device__ __forceinline__ void right_columns(uint32_t (&b)[4], uint32_t tile, uint32_t s, uint32_t i)
{
    load_matrices_turned(b, tile + tile_at(16 * s + threadIdx.x % 16, 2 * i + threadIdx.x % 32 / 16));
}

// state += columns^T (16 rows n of this warp, weighed) times all columns of `values`.
__device__ __forceinline__ void add_outer(float (&state)[32], const uint32_t (&left)[4], uint32_t values)
{
#pragma unroll
    for (uint32_t i = 0; i < P / 16; i++) {
        uint32_t right[4];
        right_columns(right, values, 0, i);
        multiply_16<true>(state + 8 * i, left, right);
    }
}

// The pair of elements 8 i + 2 (lane % 4) + {0, 1} of a row of a tile.
__device__ __forceinline__ uint32_t *pair_at(char *tile, uint32_t row, uint32_t i)
{
    return reinterpret_cast<uint32_t *>(tile + tile_at(row, i) + threadIdx.x % 4 * 4);
}

// Two neighbouring elements from an even one on, added to what is there or not.
__device__ __forceinline__ void put_pair(const View &view, size_t at, float x, float y, bool adds)
{
    if (view.dtype == DTYPE_F32) {
        float2 *to = reinterpret_cast<float2 *>(view.base + 4 * at);
        const float2 held = adds ? *to : make_float2(0.0f, 0.0f);
        *to = make_float2(x + held.x, y + held.y);
        return;
    }
    uint32_t *to = reinterpret_cast<uint32_t *>(view.base + 2 * at);
    const bool bf = view.dtype == DTYPE_BF16;
    const uint32_t pair = adds ? *to : 0u;
    const float2 held = bf ? unpack<true>(pair) : unpack<false>(pair);
    *to = bf ? pack<true>(x + held.x, y + held.y) : pack<false>(x + held.x, y + held.y);
}

} // namespace ssd_walk64

#endif
