// y = x in another dtype, for the tokens that are there. A block converts T0 consecutive elements, counted row by row. With HAS_ROWS row t
// stands for a pair {from, to} of rows of x and y; a negative number leaves it out. With HAS_FROM row t becomes row from_t of x, or 0.
#include "lib/eight.cuh"

// The rows {from, to} of row t. Without a `to` there is nothing to do, without a `from` row `to` becomes 0.
__device__ __forceinline__ int2 row_pair(const convert_args &args, const int32_t *seq, uint32_t t)
{
    if (args.flags & HAS_FROM) return make_int2(seq[t], int(t));
    if (!(args.flags & HAS_ROWS)) return make_int2(int(t), int(t));
    const int from = seq[2 * size_t(t)], to = seq[2 * size_t(t) + 1];
    return make_int2(from, from < 0 ? -1 : to);
}

KERNEL_FUNCTION(convert, simt)
{
    const View x = VIEW(convert, x), y = VIEW(convert, y);
    const int32_t *seq = INTS(convert, seq) + args.seq_at;
    const size_t total = size_t(args.rows) * args.width;
    FOR_TILES(tile) {
        const size_t first = size_t(tile) * TILE0_convert_simt;
        for (uint32_t k = threadIdx.x; k < TILE0_convert_simt && first + k < total; k += block_size) {
            const uint32_t row = uint32_t((first + k) / args.width), column = uint32_t((first + k) % args.width);
            if (args.flags & HAS_SEQ && row % args.L >= piece_of(seq, args.flags, args.L, row / args.L).count) continue;
            const int2 pair = row_pair(args, seq, row);
            if (pair.y < 0) continue;
            const float value = pair.x < 0 ? 0.0f : load(x, args.x_at + size_t(pair.x) * args.x_row + column);
            store(y, args.y_at + size_t(pair.y) * args.y_row + column, value);
        }
    }
}

// The same for a width that is a multiple of 16, in words of 16 bytes.
KERNEL_FUNCTION(convert, eight)
{
    constexpr uint32_t T0 = TILE0_convert_eight;
    const View x = VIEW(convert, x), y = VIEW(convert, y);
    const int32_t *seq = INTS(convert, seq) + args.seq_at;
    const uint32_t eights = args.width / 8;
    const size_t total = size_t(args.rows) * eights;
    FOR_TILES(tile) {
#pragma unroll
        for (uint32_t pass = 0; pass < T0 / 8 / block_size; pass++) {
            const size_t k = size_t(tile) * (T0 / 8) + pass * block_size + threadIdx.x;
            if (k >= total) continue;
            const uint32_t row = uint32_t(k / eights), i = uint32_t(k % eights) * 8;
            if (args.flags & HAS_SEQ && row % args.L >= piece_of(seq, args.flags, args.L, row / args.L).count) continue;
            const int2 pair = row_pair(args, seq, row);
            if (pair.y < 0) continue;
            float v[8] = {};
            if (pair.x >= 0) unpack8(fetch8(x, args.x_at + size_t(pair.x) * args.x_row + i), x.dtype, v);
            store8(y, args.y_at + size_t(pair.y) * args.y_row + i, v);
        }
    }
}
