// The walk over chunks, backwards: carry_j = exp(tot_j) <lambda, hin_j> row by row, read_j is replaced by lambda, then
// lambda = exp(tot_j) lambda + read_j. A warp takes one row of a (sequence, head), a thread every 32nd column of it.
#include "backward.cuh"

KERNEL_FUNCTION(ssd_backward_state, simt)
{
    constexpr uint32_t rows = TILE0_ssd_backward_state_simt, parts = MAX_STATE / 32;
    static_assert(rows <= warps, "a warp a row");
    const float *decay = FLOATS(ssd_backward_state, decay), *hin_scale = FLOATS(ssd_backward_state, hin_scale);
    const float *up_h = FLOATS(ssd_backward_state, up_h) + args.up_h_at;
    float *read = FLOATS(ssd_backward_state, read), *grad_h = FLOATS(ssd_backward_state, grad_h) + args.grad_h_at;
    float *carry = FLOATS(ssd_backward_state, carry);
    const View hin = VIEW(ssd_backward_state, hin);
    const uint32_t blocks = ceil_div(args.N, rows), lane = threadIdx.x % 32, P = args.P;
    FOR_TILES(tile) {
        const uint32_t n = tile % blocks * rows + threadIdx.x / 32, h = tile / blocks % args.H, b = tile / blocks / args.H;
        const Sequence piece = sequence_of(INTS(ssd_backward_state, seq) + args.seq_at, args.flags, args.L, args.T, b);
        if (threadIdx.x / 32 >= rows || n >= args.N) continue;
        const size_t own = ((size_t(b) * args.H + h) * args.N + n) * P;
        const size_t slots = piece.slot(args.M, args.S);
        const float *log_decay = decay + (slots + b) * args.H + h;
        const uint32_t chunks = piece.count == 0 ? 0 :
            uint32_t(min(uint64_t(args.M), (uint64_t(piece.position % args.S) + piece.count + args.S - 1) / args.S));
        float state[parts];
#pragma unroll
        for (uint32_t i = 0; i < parts; i++) {
            const uint32_t p = i * 32 + lane;
            state[i] = (args.flags & HAS_UP_H) && p < P ? up_h[own + p] : 0.0f;
        }
        for (uint32_t j = chunks; j-- > 0;) {
            const size_t row = ((slots + j) * args.H + h) * args.N + n;
            const float keep = exp_below(log_decay[(size_t(j) + 1) * args.H]);
            float along = 0.0f;
#pragma unroll
            for (uint32_t i = 0; i < parts; i++) {
                const uint32_t p = i * 32 + lane;
                if (p >= P) continue;
                const float gained = read[row * P + p];
                along = fmaf(state[i], load(hin, args.hin_at + row * P + p), along);
                read[row * P + p] = state[i];
                state[i] = fmaf(keep, state[i], gained);
            }
            along = warp_sum(along) * keep;
            if (lane == 0) carry[row] = args.flags & HAS_HIN_SCALE ? along * hin_scale[args.hin_scale_at + row] : along;
        }
#pragma unroll
        for (uint32_t i = 0; i < parts; i++) {
            const uint32_t p = i * 32 + lane;
            if (p < P && (args.flags & HAS_H)) grad_h[own + p] = state[i];
        }
    }
}
