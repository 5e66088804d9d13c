// A piece's keys and values to their places in a block of the cache. A block copies T0 consecutive elements, counted row by row.
#include "lib/dart.cuh"

KERNEL_FUNCTION(kv_append, simt)
{
    const View k = VIEW(kv_append, k), v = VIEW(kv_append, v), to_k = VIEW(kv_append, to_k), to_v = VIEW(kv_append, to_v);
    const size_t width = size_t(args.G) * args.D, total = args.B * size_t(args.L) * width;
    FOR_TILES(tile) {
        const size_t first = size_t(tile) * TILE0_kv_append_simt;
        for (uint32_t i = threadIdx.x; i < TILE0_kv_append_simt && first + i < total; i += block_size) {
            const size_t row = (first + i) / width, column = (first + i) % width;
            const uint32_t b = uint32_t(row / args.L), t = uint32_t(row % args.L);
            const Piece piece = piece_of(INTS(kv_append, seq) + args.seq_at, args.flags, args.L, b);
            const uint64_t place = uint64_t(piece.position) + t;
            if (t >= piece.count || place < args.first || place - args.first >= args.C) continue;
            const size_t to = size_t(b) * args.C + (place - args.first);
            store(to_k, args.to_k_at + to * args.to_k_row + column, load(k, args.k_at + row * args.k_row + column));
            store(to_v, args.to_v_at + to * args.to_v_row + column, load(v, args.v_at + row * args.v_row + column));
        }
    }
}
