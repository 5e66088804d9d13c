// y = x in another dtype, for the tokens that are there. A block converts T0 consecutive elements, counted row by row.
#include "lib/dart.cuh"

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
            store(y, args.y_at + size_t(row) * args.y_row + column,
                  load(x, args.x_at + size_t(row) * args.x_row + column));
        }
    }
}
