// One token: open' = exp(a_1) open + step b x, y = c (exp(a_0 + a_1) h + open') + d x, then h and open move on.
// A block works on T0 columns of one (sequence, head), its threads on slices of N, four rows at a time so that
// their loads are in flight together; the sums over N meet in shared memory (3 KiB, with b and c).
#include "step_columns.cuh"

KERNEL_FUNCTION(ssd_step, simt)
{
    constexpr uint32_t T0 = TILE0_ssd_step_simt, slices = block_size / T0, ahead = 4;
    static_assert(T0 * slices == block_size, "a thread per column and slice");
    __shared__ float parts[slices][T0], b_now[MAX_STATE], c_now[MAX_STATE];
    static_assert(MAX_STATE <= block_size, "a thread per n");
    const View x = VIEW(ssd_step, x), b_view = VIEW(ssd_step, b), c = VIEW(ssd_step, c), d = VIEW(ssd_step, d);
    const View dh = VIEW(ssd_step, dh), y = VIEW(ssd_step, y);
    const float *cum = FLOATS(ssd_step, cum), *decay = FLOATS(ssd_step, decay);
    float *h_out = FLOATS(ssd_step, h), *open_out = FLOATS(ssd_step, open), *open_decay = FLOATS(ssd_step, open_decay);
    const bool has_h = args.flags & HAS_H, has_open = args.flags & HAS_OPEN, has_dh = args.flags & HAS_DH;
    const bool closed_only = args.flags & HAS_CLOSED;
    const uint32_t blocks = ceil_div(args.P, T0), column = threadIdx.x % T0, slice = threadIdx.x / T0;
    FOR_TILES(tile) {
        const uint32_t p = tile % blocks * T0 + column, h = tile / blocks % args.H, b = tile / blocks / args.H;
        const Piece piece = piece_of(INTS(ssd_step, seq) + args.seq_at, args.flags, 1, b);
        if (piece.count == 0) continue;
        const size_t head = size_t(b) * args.H + h;
        const uint32_t g = h / (args.H / args.G);
        const float a0 = decay[2 * size_t(b) * args.H + h], a1 = decay[(2 * size_t(b) + 1) * args.H + h];
        const float keep_open = exp_below(a1), keep_h = exp_below(a0 + a1), step = cum[head * CUM_STRIDE + 2];
        const bool merges = !has_open || (piece.position + 1) % args.S == 0;
        const bool keeps_dh = has_dh && (!closed_only || (piece.position + 1) % args.S == 0);
        if (threadIdx.x < args.N) {
            b_now[threadIdx.x] = load(b_view, args.b_at + size_t(b) * args.b_row + g * args.N + threadIdx.x);
            c_now[threadIdx.x] = load(c, args.c_at + size_t(b) * args.c_row + g * args.N + threadIdx.x);
        }
        __syncthreads();

        float v = 0.0f, sum = 0.0f;
        if (p < args.P) {
            v = load(x, args.x_at + size_t(b) * args.x_row + h * args.P + p);
            for (uint32_t n0 = slice; n0 < args.N; n0 += ahead * slices) {
                float old_h[ahead], old_open[ahead];
#pragma unroll
                for (uint32_t i = 0; i < ahead; i++) {
                    const uint32_t n = n0 + i * slices;
                    const size_t at = (head * args.N + n) * args.P + p;
                    old_h[i] = has_h && n < args.N ? h_out[at] : 0.0f;
                    old_open[i] = has_open && n < args.N ? open_out[at] : 0.0f;
                }
#pragma unroll
                for (uint32_t i = 0; i < ahead; i++) {
                    const uint32_t n = n0 + i * slices;
                    if (n >= args.N) break;
                    const size_t at = (head * args.N + n) * args.P + p;
                    const float now_open = keep_open * old_open[i] + step * b_now[n] * v;
                    const float now = keep_h * old_h[i] + now_open;
                    sum = fmaf(c_now[n], now, sum);
                    if (keeps_dh) store(dh, args.dh_at + at, now_open);
                    if (has_open) open_out[at] = merges ? 0.0f : now_open;
                    if (has_h && merges) h_out[at] = now;
                }
            }
        }
        parts[slice][column] = sum;
        __syncthreads();
        if (slice == 0 && p < args.P) {
            float total = 0.0f;
            for (uint32_t i = 0; i < slices; i++) total += parts[i][column];
            if (args.flags & HAS_D) total = fmaf(load(d, args.d_at + size_t(h)), v, total);
            store(y, args.y_at + size_t(b) * args.y_row + h * args.P + p, total);
        }
        if (has_open && threadIdx.x == 0 && tile % blocks == 0) open_decay[head] = merges ? 0.0f : a0 + a1;
        __syncthreads();
    }
}

static_assert(TILE0_ssd_step_n128_p64 == scan_columns, "tiles");
KERNEL_FUNCTION_BLOCKS(ssd_step, n128_p64, 3) { scan_step_run(args, bindings, dtypes, all_blocks()); }
