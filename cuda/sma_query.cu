// qn = q / rms(q) / sqrt(N), en = e / rms(e). A block works on one (row, group).
#include "dart.cuh"

KERNEL_FUNCTION(sma_query, simt)
{
    const View q = VIEW(sma_query, q), e = VIEW(sma_query, e);
    float *qn = FLOATS(sma_query, qn), *en = FLOATS(sma_query, en);
    FOR_TILES(tile) {
        const uint32_t g = tile % args.G, row = tile / args.G, b = row / args.L, t = row % args.L;
        if (t >= piece_of(INTS(sma_query, seq) + args.seq_at, args.flags, args.L, b).count) continue;
        const size_t q_at = args.q_at + size_t(row) * args.q_row + g * args.N,
                     e_at = args.e_at + size_t(row) * args.e_row + g * args.P;
        const size_t qn_at = (size_t(row) * args.G + g) * args.N, en_at = (size_t(row) * args.G + g) * args.P;
        // MAX_STATE is the size of a block: a thread holds one element of each.
        static_assert(MAX_STATE <= block_size, "a thread per element");
        const uint32_t i = threadIdx.x;
        const float vq = i < args.N ? load(q, q_at + i) : 0.0f, ve = i < args.P ? load(e, e_at + i) : 0.0f;
        const float rms_q = sqrtf(block_sum(vq * vq) / float(args.N) + args.eps);
        const float rms_e = sqrtf(block_sum(ve * ve) / float(args.P) + args.eps);
        if (i < args.N) qn[qn_at + i] = vq / rms_q / sqrtf(float(args.N));
        if (i < args.P) en[en_at + i] = ve / rms_e;
    }
}
