// Full windows, and those of chunks that close, go into the matrices, see args.h. A block folds one (b, h), a warp a row of N
// at a time.
#include "window.cuh"

KERNEL_FUNCTION(window_fold, simt)
{
    __shared__ WindowShared shared;
    const View rows = VIEW(window_fold, rows), hin = VIEW(window_fold, hin), to = VIEW(window_fold, to);
    float *steps = FLOATS(window_fold, steps), *h_all = FLOATS(window_fold, h), *open = FLOATS(window_fold, open);
    float *open_decay = FLOATS(window_fold, open_decay), *hin_scale = FLOATS(window_fold, hin_scale),
        *scale = FLOATS(window_fold, scale);
    constexpr uint32_t parts = MAX_STATE / 32; // columns of a lane
    const uint32_t N = args.N, P = args.P, lane = threadIdx.x % 32;
    const size_t pitch = size_t(args.H) * P + size_t(args.G) * N;
    const bool has_open = args.flags & HAS_OPEN, every = args.flags & IS_EVERY, fresh = args.flags & IS_FRESH, step = !every && !fresh;
    FOR_TILES(tile) {
        const uint32_t h = tile % args.H, b = tile / args.H, g = h / (args.H / args.G);
        const Piece piece = piece_of(INTS(window_fold, seq) + args.seq_at, args.flags, 1, b);
        const uint32_t n = fresh ? 0 : piece.position % args.S % WINDOW + (step ? 1 : 0), m = piece.position / args.S;
        const bool ends = step && (piece.position + 1) % args.S == 0, closes = ends && has_open;
        const bool in_run = closes && m >= args.first && m - args.first < args.count;
        if ((!every && piece.count == 0) || (step && n < WINDOW && !ends)) continue;
        if (closes ? !in_run : (args.flags & IS_LATER) != 0) continue;

        weigh_slots(shared, steps, args.H, b, h, n);
        const float keep = exp_below(shared.log_decay_of_all),
            total = has_open ? open_decay[tile] + shared.log_decay_of_all : 0.0f;
        const float keep_h = exp_below(total);
        __syncthreads(); // all threads have read open_decay
        if (threadIdx.x < WINDOW) {
            float *zero = steps + 2 * ((size_t(b) * WINDOW + threadIdx.x) * args.H + h);
            zero[0] = zero[1] = 0.0f;
        }
        if (threadIdx.x == 0 && has_open) open_decay[tile] = closes ? 0.0f : total;
        const size_t x_at = args.rows_at + b * WINDOW * pitch + size_t(h) * P,
            b_at = args.rows_at + b * WINDOW * pitch + size_t(args.H) * P + size_t(g) * N;
        const size_t slot = ((size_t(b) * args.capacity + m - args.first) * args.H + h) * N;
        for (uint32_t i = threadIdx.x / 32; i < N; i += warps) {
            const size_t own = size_t(tile) * N + i;
            float now[parts], state[parts], now_square = 0.0f, state_square = 0.0f;
#pragma unroll
            for (uint32_t q = 0; q < parts; q++) {
                const uint32_t p = q * 32 + lane;
                now[q] = p < P ? keep * (has_open ? open : h_all)[own * P + p] : 0.0f;
            }
            for (uint32_t k = 0; k < n; k++) {
                const float weight = shared.keeps[k] * load(rows, b_at + k * pitch + i);
#pragma unroll
                for (uint32_t q = 0; q < parts; q++) {
                    if (q * 32 + lane < P) now[q] = fmaf(weight, load(rows, x_at + k * pitch + q * 32 + lane), now[q]);
                }
            }
#pragma unroll
            for (uint32_t q = 0; q < parts; q++) {
                const uint32_t p = q * 32 + lane;
                state[q] = has_open && p < P ? fmaf(keep_h, h_all[own * P + p], now[q]) : now[q];
                now_square = fmaf(now[q], now[q], now_square);
                state_square = fmaf(state[q], state[q], state_square);
            }
            const float now_root = sqrtf(warp_sum(now_square) / float(P) + args.eps);
            const float root = args.flags & HAS_HIN_SCALE ? sqrtf(warp_sum(state_square) / float(P) + args.eps) : 1.0f;
#pragma unroll
            for (uint32_t q = 0; q < parts; q++) {
                const uint32_t p = q * 32 + lane;
                if (p >= P) continue;
                if (closes || !has_open) h_all[own * P + p] = state[q];
                if (has_open) open[own * P + p] = closes ? 0.0f : now[q];
                if (closes) store(to, args.to_at + (slot + i) * P + p, now[q] / now_root);
                store(hin, args.hin_at + own * P + p, state[q] / root);
            }
            if (lane == 0 && closes) scale[args.scale_at + slot + i] = now_root;
            if (lane == 0 && (args.flags & HAS_HIN_SCALE)) hin_scale[args.hin_scale_at + own] = root;
        }
    }
}
