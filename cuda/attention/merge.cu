// The results of one block of keys into those of the blocks before it, in place, for tokens that stand in it or behind it. A thread block takes T0
// heads of tokens; a warp at a time reads the two logsumexps of a head and weighs its columns.
#include "lib/dart.cuh"

KERNEL_FUNCTION(attention_merge, simt)
{
    const View x = VIEW(attention_merge, x), o = VIEW(attention_merge, o);
    const float *x_lse = FLOATS(attention_merge, x_lse);
    float *lse = FLOATS(attention_merge, lse) + args.lse_at;
    const size_t heads = size_t(args.B) * args.L * args.H;
    const uint32_t lane = threadIdx.x % 32;
    FOR_TILES(tile) {
        for (uint32_t own = threadIdx.x / 32; own < TILE0_attention_merge_simt; own += block_size / 32) {
            const size_t head = size_t(tile) * TILE0_attention_merge_simt + own;
            if (head >= heads) continue;
            const uint32_t b = uint32_t(head / args.H / args.L), t = uint32_t(head / args.H % args.L);
            const Piece piece = piece_of(INTS(attention_merge, seq) + args.seq_at, args.flags, args.L, b);
            if (t >= piece.count || uint64_t(piece.position) + t < args.first) continue;
            const float before = lse[head], here = x_lse[head], top = fmaxf(before, here);
            const float keep = exp_below(before - top), gain = exp_below(here - top), total = keep + gain;
            __syncwarp(); // all lanes have read lse
            if (lane == 0) lse[head] = top + logf(total);
            const size_t at = args.o_at + head / args.H * args.o_row + head % args.H * args.D;
            for (uint32_t d = lane; d < args.D; d += 32) store(o, at + d, keep / total * load(o, at + d) + gain / total * load(x, head * args.D + d));
        }
    }
}
