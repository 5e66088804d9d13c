// tail = the last K-1 of (tail, in). A block works on T0 channels of a sequence, a thread on one, oldest first: what it
// reads from the old tail lies at or after the place that it writes.
#include "lib/dart.cuh"

KERNEL_FUNCTION(conv_tail, simt)
{
    static_assert(TILE0_conv_tail_simt == block_size, "a thread per channel");
    const View x = VIEW(conv_tail, x), tail = VIEW(conv_tail, tail);
    const uint32_t blocks = ceil_div(args.C, TILE0_conv_tail_simt), keep = args.K - 1;
    FOR_TILES(tile) {
        const uint32_t ch = tile % blocks * TILE0_conv_tail_simt + threadIdx.x, b = tile / blocks;
        const uint32_t count = piece_of(INTS(conv_tail, seq) + args.seq_at, args.flags, args.L, b).count;
        if (ch >= args.C || count == 0) continue;
        const size_t old = args.tail_at + size_t(b) * keep * args.C + ch;
        for (uint32_t k = 0; k < keep; k++) {
            const uint32_t from = count + k; // within (tail, in)
            const float v = from < keep ? load(tail, old + size_t(from) * args.C)
                                        : load(x, args.x_at + (size_t(b) * args.L + (from - keep)) * args.x_row + ch);
            store(tail, old + size_t(k) * args.C, v);
        }
    }
}
