// Walks the chunks of a piece: turns memories into entering states and carries h, open and open_decay over.
// A block works on T0 consecutive elements of one (sequence, head), a thread on one, four chunks at a time so that
// their memories are in flight together.
#include "dart.cuh"

KERNEL_FUNCTION(ssd_state, simt)
{
    static_assert(TILE0_ssd_state_simt == block_size, "a thread per element");
    constexpr uint32_t ahead = 4;
    const float *decay = FLOATS(ssd_state, decay);
    float *memory = FLOATS(ssd_state, memory), *h_out = FLOATS(ssd_state, h), *open_out = FLOATS(ssd_state, open);
    float *open_decay = FLOATS(ssd_state, open_decay);
    const View dh = VIEW(ssd_state, dh);
    const uint32_t size = args.N * args.P, blocks = ceil_div(size, TILE0_ssd_state_simt);
    FOR_TILES(tile) {
        const uint32_t element = tile % blocks * TILE0_ssd_state_simt + threadIdx.x, h = tile / blocks % args.H,
                       b = tile / blocks / args.H;
        const Piece piece = piece_of(INTS(ssd_state, seq) + args.seq_at, args.flags, args.L, b);
        if (element >= size || piece.count == 0) continue;
        const size_t at = (size_t(b) * args.H + h) * size + element, stride = size_t(args.H) * size;
        const size_t first = (size_t(b) * args.M * args.H + h) * size + element;
        const float *log_decay = decay + size_t(b) * (args.M + 1) * args.H + h;
        const uint32_t chunks =
            uint32_t(min(uint64_t(args.M), (uint64_t(piece.position % args.S) + piece.count + args.S - 1) / args.S));
        const bool ends_at_border = (uint64_t(piece.position) + piece.count) % args.S == 0;

        float state = args.flags & HAS_H ? h_out[at] : 0.0f;
        float rest = 0.0f, rest_decay = 0.0f; // of the chunk that stays open
        for (uint32_t j0 = 0; j0 < chunks; j0 += ahead) {
            float mems[ahead], totals[ahead];
#pragma unroll
            for (uint32_t i = 0; i < ahead; i++) {
                const bool inside = j0 + i < chunks;
                mems[i] = inside ? memory[first + (j0 + i) * stride] : 0.0f;
                totals[i] = inside ? log_decay[(size_t(j0) + i + 1) * args.H] : 0.0f;
            }
#pragma unroll
            for (uint32_t i = 0; i < ahead; i++) {
                const uint32_t j = j0 + i;
                if (j >= chunks) break;
                float mem = mems[i], total = totals[i], enter = state;
                if (j == 0) {
                    const float before = log_decay[0], open = args.flags & HAS_OPEN ? open_out[at] : 0.0f;
                    enter = exp_below(before) * state + open;
                    mem = exp_below(total) * open + mem;
                    total = before + total;
                }
                memory[first + j * stride] = enter;
                if (args.flags & HAS_DH) store(dh, args.dh_at + first + j * stride, mem);
                if (j + 1 == chunks && !ends_at_border && (args.flags & HAS_OPEN)) {
                    rest = mem;
                    rest_decay = total;
                } else {
                    state = exp_below(total) * state + mem;
                }
            }
        }
        if (args.flags & HAS_H) h_out[at] = state;
        if (args.flags & HAS_OPEN) {
            open_out[at] = rest;
            if (element == 0) open_decay[size_t(b) * args.H + h] = rest_decay;
        }
    }
}
