// square_sum: partial[tile] = the sum of the squares of T0 elements of x, infinity where it is not finite; a block a tile.
// grad_scale: scale = {norm, factor min(1, clip / (norm + 1e-6)), 1, 0}, or {infinity, 0, 0, 0}, from all partials; one block, a thread adds up
// every block_size-th of them in order, with what each addition lost, then the threads are added in pairs. factor is 1 without HAS_FACTOR.
// Both: `ahead` elements of a thread are on their way at once.
#include "lib/dart.cuh"
#include "lib/neumaier.cuh"

constexpr uint32_t ahead = 16;

__device__ __forceinline__ bool is_finite(float value) { return (__float_as_uint(value) & 0x7f800000u) != 0x7f800000u; }

KERNEL_FUNCTION(square_sum, simt)
{
    const float *x = FLOATS(square_sum, x) + args.x_at;
    float *partial = FLOATS(square_sum, partial) + args.partial_at;
    FOR_TILES(tile) {
        static_assert(TILE0_square_sum_simt == ahead * block_size, "a tile is read at once");
        const uint32_t begin = tile * (ahead * block_size) + threadIdx.x;
        float values[ahead], sum = 0.0f;
#pragma unroll
        for (uint32_t k = 0; k < ahead; k++) values[k] = begin + k * block_size < args.count ? x[begin + k * block_size] : 0.0f;
#pragma unroll
        for (uint32_t k = 0; k < ahead; k++) sum = fmaf(values[k], values[k], sum);
        sum = block_sum(sum);
        if (threadIdx.x == 0) partial[tile] = is_finite(sum) ? sum : __uint_as_float(0x7f800000u);
    }
}

KERNEL_FUNCTION(grad_scale, simt)
{
    const float *partial = FLOATS(grad_scale, partial);
    float *scale = FLOATS(grad_scale, scale) + args.scale_at;
    const float factor = args.flags & HAS_FACTOR ? FLOATS(grad_scale, factor)[args.factor_at] : 1.0f;
    FOR_TILES(tile) {
        Neumaier sum = {0.0f, 0.0f};
        for (uint32_t i = threadIdx.x; i < args.count; i += ahead * block_size) {
            float terms[ahead];
#pragma unroll
            for (uint32_t k = 0; k < ahead; k++) terms[k] = i + k * block_size < args.count ? partial[i + k * block_size] : 0.0f;
#pragma unroll
            for (uint32_t k = 0; k < ahead; k++) sum.add(terms[k]);
        }
        const float total = block_sum(sum.total + sum.lost);
        if (threadIdx.x != 0) continue;
        const bool finite = is_finite(total);
        const float norm = sqrtf(total) * factor;
        scale[0] = finite ? norm : __uint_as_float(0x7f800000u);
        scale[1] = finite ? fminf(1.0f, args.clip / (norm + 1e-6f)) * factor : 0.0f;
        scale[2] = finite ? 1.0f : 0.0f;
        scale[3] = 0.0f;
    }
}
