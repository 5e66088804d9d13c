// One token of each sequence from hin and the tokens of its window: y = sum_k (c . b_k) keep_k step_k x_k + keep_-1 c hin
// + d x.
// A block makes one (b, h): a warp a slot for the products c . b_k, then threads of a column share the rows.
#include "window.cuh"

KERNEL_FUNCTION(window_output, simt)
{
    __shared__ WindowShared shared;
    __shared__ float c_now[MAX_STATE], c_scaled[MAX_STATE], sums[block_size];
    const View rows = VIEW(window_output, rows), c = VIEW(window_output, c), hin = VIEW(window_output, hin),
        d = VIEW(window_output, d);
    const View y = VIEW(window_output, y);
    const float *scale = FLOATS(window_output, hin_scale);
    const uint32_t N = args.N, P = args.P, slices = block_size / P, p = threadIdx.x % P, slice = threadIdx.x / P;
    const size_t pitch = size_t(args.H) * P + size_t(args.G) * N;
    static_assert(MAX_STATE <= block_size, "a thread per column");
    FOR_TILES(tile) {
        const uint32_t h = tile % args.H, b = tile / args.H, g = h / (args.H / args.G);
        const Piece piece = piece_of(INTS(window_output, seq) + args.seq_at, args.flags, 1, b);
        if (piece.count == 0) continue;
        const uint32_t n = piece.position % args.S % WINDOW + 1;
        const size_t x_at = args.rows_at + b * WINDOW * pitch + size_t(h) * P,
            b_at = args.rows_at + b * WINDOW * pitch + size_t(args.H) * P + size_t(g) * N;
        weigh_slots(shared, FLOATS(window_output, steps), args.H, b, h, n);
        for (uint32_t i = threadIdx.x; i < N; i += block_size) {
            c_now[i] = load(c, args.c_at + size_t(b) * args.c_row + size_t(g) * N + i);
            c_scaled[i] = c_now[i] * (args.flags & HAS_HIN_SCALE ? scale[args.hin_scale_at + size_t(tile) * N + i] : 1.0f);
        }
        __syncthreads();
        for (uint32_t k = threadIdx.x / 32; k < n; k += warps) {
            float product = 0.0f;
            for (uint32_t i = threadIdx.x % 32; i < N; i += 32)
                product = fmaf(c_now[i], load(rows, b_at + k * pitch + i), product);
            product = warp_sum(product);
            if (threadIdx.x % 32 == 0) shared.keeps[k] *= product;
        }
        __syncthreads();
        float sum = 0.0f;
        if (slice < slices) {
            for (uint32_t i = slice; i < N; i += slices)
                sum = fmaf(c_scaled[i], load(hin, args.hin_at + (size_t(tile) * N + i) * P + p), sum);
            sum *= exp_below(shared.log_decay_of_all);
            for (uint32_t k = slice; k < n; k += slices) sum = fmaf(shared.keeps[k], load(rows, x_at + k * pitch + p), sum);
        }
        sums[threadIdx.x] = sum;
        __syncthreads();
        if (threadIdx.x < P) {
            float total = 0.0f;
            for (uint32_t i = 0; i < slices; i++) total += sums[i * P + p];
            if (args.flags & HAS_D) total = fmaf(load(d, args.d_at + size_t(h)), load(rows, x_at + (n - 1) * pitch + p), total);
            store(y, args.y_at + size_t(b) * args.y_row + size_t(h) * P + p, total);
        }
        __syncthreads();
    }
}
