// Loss, choice and slopes of rows of logits; formulas: args.h. What a row reads of its logits it has read before it writes slopes to the same place.
// Rows lie at borders of 256 bytes, so that every word of 16 bytes of a row can be read, what lies behind it included: past the width a logit
// counts as `lowest`. The target's logit is left out of the sum of exponentials, `rest`, so that its slope -share rest / total keeps its digits.
#include "lib/eight.cuh"

// exp(x) for x <= 0. fast: for slopes of 16 bits. Its error, that of the rounded x log2(e), is below 2^-17 of the result.
template <bool fast> __device__ __forceinline__ float exp_slope(float x)
{
    if (!fast) return exp_below(x);
    return exp2f(x * 1.44269504f);
}

// Four logits of a row from column i on, `lowest` where there are none.
__device__ __forceinline__ float4 logits_at(const float4 *quads, uint32_t i, uint32_t width)
{
    float4 v = quads[i / 4];
    if (i + 4 > width) {
        if (i + 1 > width) v.x = lowest;
        if (i + 2 > width) v.y = lowest;
        if (i + 3 > width) v.z = lowest;
        if (i + 4 > width) v.w = lowest;
    }
    return v;
}
__device__ __forceinline__ float largest(const float4 &v) { return fmaxf(fmaxf(v.x, v.y), fmaxf(v.z, v.w)); }
// Raises trouble to 1 if one of the logits from column i on is the choice in place of the target. Leaves `lowest` for the target.
__device__ __forceinline__ void judge(float4 &v, uint32_t i, uint32_t target, float own, float &trouble)
{
    const float top = largest(v);
    if (i / 4 != target / 4) {
        if (top > own || (top == own && i < target)) trouble = fmaxf(trouble, 1.0f);
        return;
    }
    float at[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (uint32_t c = 0; c < 4; c++) {
        if (i + c == target) at[c] = lowest;
        else if (at[c] > own || (at[c] == own && i + c < target)) trouble = fmaxf(trouble, 1.0f);
    }
    v = make_float4(at[0], at[1], at[2], at[3]);
}
// 0, or NaN if one of them is not finite.
__device__ __forceinline__ float poison(const float4 &v) { return fmaf(v.x, 0.0f, fmaf(v.y, 0.0f, fmaf(v.z, 0.0f, v.w * 0.0f))); }
template <bool fast> __device__ __forceinline__ float4 exps(const float4 &v, float top)
{
    return make_float4(exp_slope<fast>(v.x - top), exp_slope<fast>(v.y - top), exp_slope<fast>(v.z - top), exp_slope<fast>(v.w - top));
}
__device__ __forceinline__ float sum4(const float4 &v) { return (v.x + v.y) + (v.z + v.w); }
// The slopes of the logits from column i on, whose exponentials are v.
__device__ __forceinline__ void put_slopes(const View &slopes, size_t to, uint32_t i, const float4 &v, float factor, uint32_t target, float of_target)
{
    float at[4] = {v.x * factor, v.y * factor, v.z * factor, v.w * factor};
    if (i / 4 == target / 4) {
#pragma unroll
        for (uint32_t c = 0; c < 4; c++) at[c] = i + c == target ? of_target : at[c];
    }
    store4(slopes, to + i, make_float4(at[0], at[1], at[2], at[3]));
}

template <bool sum> __device__ __forceinline__ float reduce_lanes(float value, uint32_t lanes)
{
    for (uint32_t step = lanes / 2; step > 0; step /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, value, step);
        value = sum ? value + other : fmaxf(value, other);
    }
    return value;
}
// Sum or maximum over a block of `count` warps, a power of two; `scratch` is used by one call between two barriers.
template <bool sum, uint32_t count> __device__ __forceinline__ float reduce(float value, float (&scratch)[count])
{
    value = reduce_lanes<sum>(value, 32);
    if (threadIdx.x % 32 == 0) scratch[threadIdx.x / 32] = value;
    __syncthreads();
    return reduce_lanes<sum>(scratch[threadIdx.x % count], count);
}

// A block of 1,024 threads takes a row, one block a multiprocessor, so that the second pass over the row finds it in the cache. Each thread
// carries the largest of its logits and the sum of exponentials below it.
template <bool fast> __device__ __forceinline__ void cross_entropy_rows(const cross_entropy_args &args, const CudaBindings &bindings, uint32_t dtypes)
{
    constexpr uint32_t threads = THREADS_cross_entropy_simt, count = threads / 32, ahead = 4;
    __shared__ float scratch[3][count];
    const View slopes = VIEW(cross_entropy, slopes);
    const int32_t *targets = INTS(cross_entropy, targets) + args.targets_at;
    const float share = FLOATS(cross_entropy, share)[args.share_at];
    const bool gradient = args.flags & HAS_GRADIENT;
    FOR_TILES(tile) {
        const uint32_t target = uint32_t(targets[tile]);
        const float *logits = FLOATS(cross_entropy, logits) + args.logits_at + size_t(tile) * args.logits_row;
        const float4 *quads = reinterpret_cast<const float4 *>(logits);
        const size_t to = args.slopes_at + size_t(tile) * args.slopes_row;
        float *parts = FLOATS(cross_entropy, parts) + args.parts_at + 2 * size_t(tile);
        if (target >= args.width) {
            for (uint32_t i = 4 * threadIdx.x; i < args.width && gradient; i += 4 * threads)
                store4(slopes, to + i, make_float4(0.0f, 0.0f, 0.0f, 0.0f));
            if (threadIdx.x < 2) parts[threadIdx.x] = 0.0f;
            continue;
        }
        const float own = logits[target];
        float top = own, sum = 0.0f, bad = own * 0.0f, trouble = 0.0f; // trouble 1: the target is not the choice
        for (uint32_t first = 4 * threadIdx.x; first < args.width; first += 4 * threads * ahead) {
            float4 v[ahead];
#pragma unroll
            for (uint32_t k = 0; k < ahead; k++) {
                const uint32_t i = first + 4 * threads * k;
                v[k] = i < args.width ? logits_at(quads, i, args.width) : make_float4(lowest, lowest, lowest, lowest);
            }
            float next = top;
#pragma unroll
            for (uint32_t k = 0; k < ahead; k++) {
                bad += poison(v[k]);
                judge(v[k], first + 4 * threads * k, target, own, trouble);
                next = fmaxf(next, largest(v[k]));
            }
            sum *= exp_slope<fast>(top - next);
            top = next;
#pragma unroll
            for (uint32_t k = 0; k < ahead; k++) sum += sum4(exps<fast>(v[k], top));
        }
        if (bad != 0.0f) trouble = 2.0f; // NaN: a logit is not finite
        const float highest = reduce<false>(top, scratch[0]);
        trouble = reduce<false>(trouble, scratch[1]);
        const float rest = reduce<true>(sum * exp_slope<fast>(top - highest), scratch[2]);
        const float total = rest + exp_slope<fast>(own - highest), broken = __uint_as_float(0x7fc00000u);
        if (threadIdx.x == 0) {
            parts[0] = trouble > 1.0f ? broken : share * ((highest - own) + logf(total));
            parts[1] = trouble > 0.0f ? 0.0f : 1.0f;
        }
        if (gradient) {
            const float factor = trouble > 1.0f ? broken : share / total, of_target = -factor * rest;
            for (uint32_t first = 4 * threadIdx.x; first < args.width; first += 4 * threads * ahead) {
                float4 v[ahead];
#pragma unroll
                for (uint32_t k = 0; k < ahead; k++) {
                    const uint32_t i = first + 4 * threads * k;
                    if (i < args.width) v[k] = logits_at(quads, i, args.width);
                }
#pragma unroll
                for (uint32_t k = 0; k < ahead; k++) {
                    const uint32_t i = first + 4 * threads * k;
                    if (i < args.width) put_slopes(slopes, to, i, exps<fast>(v[k], highest), factor, target, of_target);
                }
            }
        }
        __syncthreads(); // until every thread has read scratch
    }
}

KERNEL_FUNCTION_BLOCKS(cross_entropy, simt, 1)
{
    if (VIEW(cross_entropy, slopes).dtype != DTYPE_F32 && (args.flags & HAS_GRADIENT)) cross_entropy_rows<true>(args, bindings, dtypes);
    else cross_entropy_rows<false>(args, bindings, dtypes);
}

// The same for a width of at most 32 logits a thread: a block keeps its row in registers, so that it is read once and each exponential is
// computed once.
KERNEL_FUNCTION_BLOCKS(cross_entropy, short, 3)
{
    constexpr uint32_t kept = 8; // words of a thread
    __shared__ float scratch[3][warps];
    const View slopes = VIEW(cross_entropy, slopes);
    const int32_t *targets = INTS(cross_entropy, targets) + args.targets_at;
    const float share = FLOATS(cross_entropy, share)[args.share_at];
    const bool gradient = args.flags & HAS_GRADIENT;
    FOR_TILES(tile) {
        const uint32_t target = uint32_t(targets[tile]);
        const float *logits = FLOATS(cross_entropy, logits) + args.logits_at + size_t(tile) * args.logits_row;
        const float4 *quads = reinterpret_cast<const float4 *>(logits);
        const size_t to = args.slopes_at + size_t(tile) * args.slopes_row;
        float *parts = FLOATS(cross_entropy, parts) + args.parts_at + 2 * size_t(tile);
        if (target >= args.width) {
            for (uint32_t i = 4 * threadIdx.x; i < args.width && gradient; i += 4 * block_size)
                store4(slopes, to + i, make_float4(0.0f, 0.0f, 0.0f, 0.0f));
            if (threadIdx.x < 2) parts[threadIdx.x] = 0.0f;
            continue;
        }
        const float own = logits[target];
        float4 v[kept];
#pragma unroll
        for (uint32_t k = 0; k < kept; k++) {
            const uint32_t i = 4 * (threadIdx.x + k * block_size);
            v[k] = i < args.width ? logits_at(quads, i, args.width) : make_float4(lowest, lowest, lowest, lowest);
        }
        float top = own, sum = 0.0f, bad = own * 0.0f, trouble = 0.0f; // trouble 1: the target is not the choice
#pragma unroll
        for (uint32_t k = 0; k < kept; k++) {
            bad += poison(v[k]);
            judge(v[k], 4 * (threadIdx.x + k * block_size), target, own, trouble);
            top = fmaxf(top, largest(v[k]));
        }
        if (bad != 0.0f) trouble = 2.0f; // NaN: a logit is not finite
        trouble = reduce<false>(trouble, scratch[0]); // its barrier also keeps the target's logit until every thread has read it
        const float highest = reduce<false>(top, scratch[1]), broken = __uint_as_float(0x7fc00000u);
#pragma unroll
        for (uint32_t k = 0; k < kept; k++) {
            v[k] = exps<false>(v[k], highest);
            sum += sum4(v[k]);
        }
        const float rest = reduce<true>(sum, scratch[2]), total = rest + exp_below(own - highest);
        if (threadIdx.x == 0) {
            parts[0] = trouble > 1.0f ? broken : share * ((highest - own) + logf(total));
            parts[1] = trouble > 0.0f ? 0.0f : 1.0f;
        }
        if (gradient) {
            const float factor = trouble > 1.0f ? broken : share / total, of_target = -factor * rest;
#pragma unroll
            for (uint32_t k = 0; k < kept; k++) {
                const uint32_t i = 4 * (threadIdx.x + k * block_size);
                if (i < args.width) put_slopes(slopes, to, i, v[k], factor, target, of_target);
            }
        }
        __syncthreads(); // until every thread has read scratch
    }
}
