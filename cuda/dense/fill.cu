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
    const uint32_t word = y.dtype == DTYPE_F32 ? 4 : 8, words = args.width / word; // elements of 16 bytes: neighbours write neighbouring ones
    const size_t total = size_t(args.rows) * words;
    const float value = args.value;
    const uint32_t pair = y.dtype == DTYPE_BF16 ? pack<true>(value, value) : pack<false>(value, value);
    const uint32_t v = y.dtype == DTYPE_F32 ? __float_as_uint(value) : pair;
    uint4 *to = reinterpret_cast<uint4 *>(y.base);
    FOR_TILES(tile) {
        for (uint32_t pass = threadIdx.x; pass < T0 / word; pass += block_size) {
            const size_t k = size_t(tile) * (T0 / word) + pass;
            if (k < total) to[(args.y_at + k / words * args.y_row) / word + k % words] = make_uint4(v, v, v, v);
        }
    }
}
