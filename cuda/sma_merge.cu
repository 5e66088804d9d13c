// r and lse from the partials {top, den, acc[P]} of the splits, and from what they hold when merging.
// A block works on one (sequence, head), a thread on one column.
#include "dart.cuh"

KERNEL_FUNCTION(sma_merge, simt)
{
    static_assert(MAX_STATE <= block_size, "a thread per column");
    const float *partial = FLOATS(sma_merge, partial);
    const View r = VIEW(sma_merge, r);
    float *lse = FLOATS(sma_merge, lse);
    FOR_TILES(tile) {
        const uint32_t h = tile % args.H, b = tile / args.H;
        if (piece_of(INTS(sma_merge, seq) + args.seq_at, args.flags, 1, b).count == 0) continue;
        const size_t stride = args.P + 2, lse_at = args.lse_at + size_t(b) * args.H + h;
        const float *parts = partial + size_t(tile) * args.splits * stride;
        const float old = args.flags & IS_MERGE ? lse[lse_at] : lowest;
        __syncthreads(); // lse is read by all before it is written
        const bool any_old = !(old <= lowest);
        float top = any_old ? old : lowest;
        for (uint32_t s = 0; s < args.splits; s++) {
            if (parts[s * stride + 1] != 0.0f) top = fmaxf(top, parts[s * stride]);
        }
        const uint32_t p = threadIdx.x;
        const size_t at = args.r_at + size_t(b) * args.r_row + h * args.P + p;
        float den = 0.0f, sum = 0.0f;
        if (any_old) {
            den = exp_below(old - top);
            if (p < args.P) sum = den * load(r, at);
        }
        for (uint32_t s = 0; s < args.splits; s++) {
            const float part = parts[s * stride + 1];
            if (part == 0.0f) continue;
            const float weight = exp_below(parts[s * stride] - top);
            den += weight * part;
            if (p < args.P) sum = fmaf(weight, parts[s * stride + 2 + p], sum);
        }
        if (p < args.P) store(r, at, den != 0.0f ? sum / den : 0.0f);
        if (p == 0) lse[lse_at] = den != 0.0f ? top + logf(den) : __uint_as_float(0xff800000u);
    }
}
