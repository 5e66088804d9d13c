// y[i] = value. A block writes T0 consecutive elements.
#include "lib/eight.cuh"

KERNEL_FUNCTION(fill, simt)
{
    const View y = VIEW(fill, y);
    const size_t total = size_t(args.rows) * args.width;
    FOR_TILES(tile) {
        const size_t first = size_t(tile) * TILE0_fill_simt;
        for (uint32_t k = threadIdx.x; k < TILE0_fill_simt && first + k < total; k += block_size) {
            const size_t i = first + k;
            store(y, args.y_at + i / args.width * args.y_row + i % args.width, args.value);
        }
    }
}

// The same for a width that is a multiple of 16, not of i32, in words of 16 bytes.
KERNEL_FUNCTION(fill, eight)
{
    constexpr uint32_t T0 = TILE0_fill_eight;
    const View y = VIEW(fill, y);
    const uint32_t eights = args.width / 8;
    const size_t total = size_t(args.rows) * eights;
    float v[8];
#pragma unroll
    for (uint32_t c = 0; c < 8; c++) v[c] = args.value;
    FOR_TILES(tile) {
#pragma unroll
        for (uint32_t pass = 0; pass < T0 / 8 / block_size; pass++) {
            const size_t k = size_t(tile) * (T0 / 8) + pass * block_size + threadIdx.x;
            if (k < total) store8(y, args.y_at + k / eights * args.y_row + k % eights * 8, v);
        }
    }
}
