// grad_x = i v - x i^3 mean(v x), i = 1 / sqrt(mean(x^2) + eps), v = up_y weight; partial[tile] = the sum of up_y x i over the tile's rows.
// A block takes 16 rows: half a warp adds up a row, then a thread takes a column of all rows. grad_x or copy may be
// up_y. from, copy: args.h.
#include "lib/dart.cuh"

KERNEL_FUNCTION(norm_backward, simt)
{
    constexpr uint32_t T0 = TILE0_norm_backward_simt, team = 16;
    static_assert(T0 * team == block_size, "a team a row");
    __shared__ float2 factors[T0]; // i, i^3 mean(v x)
    __shared__ int32_t sources[T0];
    const View x = VIEW(norm_backward, x), weight = VIEW(norm_backward, weight), up_y = VIEW(norm_backward, up_y);
    const View grad_x = VIEW(norm_backward, grad_x), from = VIEW(norm_backward, from), copy = VIEW(norm_backward, copy);
    const int32_t *rows = INTS(norm_backward, rows), *from_rows = INTS(norm_backward, from_rows) + args.from_rows_at;
    float *partial = FLOATS(norm_backward, partial);
    FOR_TILES(tile) {
        const uint32_t first = tile * T0, count = min(T0, args.rows - first), own = threadIdx.x / team;
        int32_t source = -1;
        if (own < count) source = args.flags & HAS_ROWS ? rows[args.rows_at + first + own] : int32_t(first + own);
        float squares = 0.0f, along = 0.0f;
        if (source >= 0) {
            const size_t x_at = args.x_at + size_t(source) * args.x_row, up_at = args.up_y_at + size_t(first + own) * args.up_y_row;
            for (uint32_t i = threadIdx.x % team; i < args.width; i += team) {
                const float v = load(x, x_at + i);
                squares += v * v;
                along += load(up_y, up_at + i) * load(weight, args.weight_at + size_t(i)) * v;
            }
        }
        for (int step = team / 2; step > 0; step /= 2) {
            squares += __shfl_xor_sync(0xffffffffu, squares, step);
            along += __shfl_xor_sync(0xffffffffu, along, step);
        }
        if (threadIdx.x % team == 0) {
            const float inverse = 1.0f / sqrtf(squares / float(args.width) + args.eps);
            factors[own] = make_float2(inverse, inverse * inverse * inverse * along / float(args.width));
            sources[own] = source;
        }
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < args.width; i += block_size) {
            const float w = load(weight, args.weight_at + size_t(i));
            float sum = 0.0f;
            for (uint32_t row = 0; row < count; row++) {
                if (sources[row] < 0) continue;
                const float v = load(x, args.x_at + size_t(sources[row]) * args.x_row + i);
                const float up = load(up_y, args.up_y_at + size_t(first + row) * args.up_y_row + i);
                const size_t to = args.grad_x_at + size_t(sources[row]) * args.grad_x_row + i;
                float grad = factors[row].x * up * w - factors[row].y * v;
                sum += up * v * factors[row].x;
                if (args.flags & IS_ADD) grad += load(grad_x, to);
                const int of = args.flags & HAS_FROM ? from_rows[first + row] : -1;
                if (of >= 0) grad += load(from, args.from_at + size_t(of) * args.from_row + i);
                store(grad_x, to, grad);
                if (args.flags & WRITES_COPY) store(copy, args.copy_at + size_t(first + row) * args.copy_row + i, grad);
            }
            partial[size_t(tile) * args.width + i] = sum;
        }
        __syncthreads();
    }
}
