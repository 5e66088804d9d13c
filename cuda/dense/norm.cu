// y_t = x_s / sqrt(mean(x_s^2) + eps) weight, s = rows_t or t; where rows_t is negative, y_t stays as it is.
// A block works on a row and reads it twice.
#include "lib/dart.cuh"

KERNEL_FUNCTION(norm, simt)
{
    const View x = VIEW(norm, x), weight = VIEW(norm, weight), y = VIEW(norm, y);
    const int32_t *rows = INTS(norm, rows);
    FOR_TILES(tile) {
        const size_t source = args.flags & HAS_ROWS ? size_t(uint32_t(rows[args.rows_at + size_t(tile)])) : tile;
        if ((args.flags & HAS_ROWS) && rows[args.rows_at + size_t(tile)] < 0) continue; // the same in every thread
        const size_t from = args.x_at + source * args.x_row;
        const size_t to = args.y_at + size_t(tile) * args.y_row;
        float square = 0.0f;
        for (uint32_t i = threadIdx.x; i < args.width; i += block_size) {
            const float v = load(x, from + i);
            square += v * v;
        }
        const float factor = 1.0f / sqrtf(block_sum(square) / float(args.width) + args.eps);
        for (uint32_t i = threadIdx.x; i < args.width; i += block_size) {
            store(y, to + i, load(x, from + i) * factor * load(weight, args.weight_at + size_t(i)));
        }
    }
}
