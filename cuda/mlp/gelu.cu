// h = a (1 + erf(a / sqrt(2))) / 2, or with IS_TANH a (1 + tanh(v)) / 2 (args.h). A block takes T0 consecutive elements, counted row by row.
#include "lib/dart.cuh"

__device__ __forceinline__ float gelu(float a, bool by_tanh)
{
    if (!by_tanh) return 0.5f * a * erfcf(a * -0.70710678f);
    const float e = expf(-1.5957691f * fabsf(a) * (1.0f + 0.044715f * a * a)); // 2 sqrt(2 / pi) = 1.5957691
    return a * ((a >= 0.0f ? 1.0f : e) / (1.0f + e));
}

KERNEL_FUNCTION(gelu, simt)
{
    constexpr uint32_t T0 = TILE0_gelu_simt;
    const View a = VIEW(gelu, a), h = VIEW(gelu, h);
    FOR_TILES(tile) {
        for (uint32_t e = threadIdx.x; e < T0; e += block_size) {
            const uint64_t element = uint64_t(tile) * T0 + e, row = element / args.width, i = element % args.width;
            if (row >= args.rows) continue;
            store(h, size_t(args.h_at + row * args.h_row + i), gelu(load(a, size_t(args.a_at + row * args.a_row + i)), (args.flags & IS_TANH) != 0));
        }
    }
}
