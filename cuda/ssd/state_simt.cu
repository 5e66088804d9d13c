// Walks the chunks of a piece: stores the states entering them, from memories as stored, and carries h, open and
// open_decay over. A warp works on one row of one (sequence, head), a thread on every 32nd column of it.
#include "memory.cuh"

KERNEL_FUNCTION(ssd_state, simt)
{
    static_assert(TILE0_ssd_state_simt == warps, "a warp per row");
    constexpr uint32_t parts = MAX_STATE / 32;
    const float *decay = FLOATS(ssd_state, decay), *scale = FLOATS(ssd_state, scale), *tail = FLOATS(ssd_state, tail);
    float *h_out = FLOATS(ssd_state, h), *open_out = FLOATS(ssd_state, open), *hin_scale = FLOATS(ssd_state, hin_scale);
    float *open_decay = FLOATS(ssd_state, open_decay);
    const View memory = VIEW(ssd_state, memory), hin = VIEW(ssd_state, hin);
    const bool has_open = args.flags & HAS_OPEN, has_h = args.flags & HAS_H;
    const uint32_t blocks = ceil_div(args.N, warps), lane = threadIdx.x % 32, P = args.P;
    FOR_TILES(tile) {
        const uint32_t n = tile % blocks * warps + threadIdx.x / 32, h = tile / blocks % args.H, b = tile / blocks / args.H;
        const Sequence piece = sequence_of(INTS(ssd_state, seq) + args.seq_at, args.flags, args.L, args.T, b);
        if (n >= args.N || piece.count == 0) continue;
        const size_t head = size_t(b) * args.H + h, own = (head * args.N + n) * P;
        const size_t slots = piece.slot(args.M, args.S);
        const float *log_decay = decay + (slots + b) * args.H + h;
        const uint32_t chunks =
            uint32_t(min(uint64_t(args.M), (uint64_t(piece.position % args.S) + piece.count + args.S - 1) / args.S));
        const bool closes = (uint64_t(piece.position) + piece.count) % args.S == 0;
        float state[parts], total = 0.0f;
#pragma unroll
        for (uint32_t i = 0; i < parts; i++) {
            const uint32_t p = i * 32 + lane;
            state[i] = has_h && p < P ? h_out[own + p] : 0.0f;
        }
        for (uint32_t j = 0; j < chunks; j++) {
            const bool folds = j + 1 < chunks || closes || !has_open;
            const size_t row = memory_row(args, piece, j, h) + n, hin_row = ((slots + j) * args.H + h) * args.N + n;
            const float before = j == 0 ? log_decay[0] : 0.0f;
            const float size = folds && (args.flags & HAS_SCALE) ? scale[args.scale_at + row] : 1.0f;
            float mem[parts], enter[parts], square = 0.0f;
            total = before + log_decay[(size_t(j) + 1) * args.H];
#pragma unroll
            for (uint32_t i = 0; i < parts; i++) {
                const uint32_t p = i * 32 + lane;
                mem[i] = folds && p < P ? load(memory, args.memory_at + row * P + p) : 0.0f;
                enter[i] = state[i];
                if (j == 0 && has_open && p < P) enter[i] = fmaf(exp_below(before), state[i], open_out[own + p]);
                square = fmaf(enter[i], enter[i], square);
            }
            float root = 1.0f;
            if (args.flags & HAS_HIN_SCALE) {
                root = sqrtf(warp_sum(square) / float(P) + args.eps);
                if (lane == 0) hin_scale[args.hin_scale_at + hin_row] = root;
            }
#pragma unroll
            for (uint32_t i = 0; i < parts; i++) {
                const uint32_t p = i * 32 + lane;
                if (p < P) store(hin, args.hin_at + hin_row * P + p, enter[i] / root);
                if (folds) state[i] = fmaf(exp_below(total), state[i], size * mem[i]);
            }
        }
#pragma unroll
        for (uint32_t i = 0; i < parts; i++) {
            const uint32_t p = i * 32 + lane;
            if (p >= P) continue;
            if (has_h) h_out[own + p] = state[i];
            if (has_open) open_out[own + p] = closes ? 0.0f : tail[own + p];
        }
        if (has_open && n == 0 && lane == 0) open_decay[head] = closes ? 0.0f : total;
    }
}
