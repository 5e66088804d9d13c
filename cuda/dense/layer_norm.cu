// y_t = (x_s - mean(x_s)) / sqrt(mean((x_s - mean(x_s))^2) + eps) weight + bias, s = rows_t or t; where rows_t is negative, y_t stays as it is.
// A block works on a row and reads it three times: the mean is subtracted before squares are taken.
#include "lib/dart.cuh"

KERNEL_FUNCTION(layer_norm, simt)
{
    const View x = VIEW(layer_norm, x), weight = VIEW(layer_norm, weight), bias = VIEW(layer_norm, bias), y = VIEW(layer_norm, y);
    const int32_t *rows = INTS(layer_norm, rows);
    FOR_TILES(tile) {
        const size_t source = args.flags & HAS_ROWS ? size_t(uint32_t(rows[args.rows_at + size_t(tile)])) : tile;
        if ((args.flags & HAS_ROWS) && rows[args.rows_at + size_t(tile)] < 0) continue; // the same in every thread
        const size_t from = args.x_at + source * args.x_row;
        const size_t to = args.y_at + size_t(tile) * args.y_row;
        float sum = 0.0f, square = 0.0f;
        for (uint32_t i = threadIdx.x; i < args.width; i += block_size) sum += load(x, from + i);
        const float mean = block_sum(sum) / float(args.width);
        for (uint32_t i = threadIdx.x; i < args.width; i += block_size) {
            const float v = load(x, from + i) - mean;
            square += v * v;
        }
        const float factor = 1.0f / sqrtf(block_sum(square) / float(args.width) + args.eps);
        for (uint32_t i = threadIdx.x; i < args.width; i += block_size)
            store(y, to + i, (load(x, from + i) - mean) * factor * load(weight, args.weight_at + size_t(i)) + load(bias, args.bias_at + size_t(i)));
    }
}
