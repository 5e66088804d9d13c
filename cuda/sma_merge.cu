// r and lse from the partials {top, den, acc[P]} of the splits, and from what they hold when merging.
// A block works on one (sequence, head); threads stand in groups over P, and the groups share out the splits.
#include "dart.cuh"

KERNEL_FUNCTION(sma_merge, simt)
{
    static_assert(MAX_STATE <= block_size, "a thread per column");
    __shared__ float sums[block_size];
    const float *partial = FLOATS(sma_merge, partial);
    const View r = VIEW(sma_merge, r);
    float *lse = FLOATS(sma_merge, lse);
    const uint32_t groups = block_size / args.P, p = threadIdx.x % args.P, group = threadIdx.x / args.P;
    FOR_TILES(tile) {
        const uint32_t h = tile % args.H, b = tile / args.H;
        if (piece_of(INTS(sma_merge, seq) + args.seq_at, args.flags, 1, b).count == 0) continue;
        const size_t stride = args.P + 2, lse_at = args.lse_at + size_t(b) * args.H + h;
        const float *parts = partial + size_t(tile) * args.splits * stride;
        const float old = args.flags & IS_MERGE ? lse[lse_at] : lowest;
        const bool any_old = !(old <= lowest);
        float top = any_old ? old : lowest, den = 0.0f, sum = 0.0f;
        for (uint32_t s = threadIdx.x; s < args.splits; s += block_size) {
            if (parts[s * stride + 1] != 0.0f) top = fmaxf(top, parts[s * stride]);
        }
        top = block_top(top);
        for (uint32_t s = threadIdx.x; s < args.splits; s += block_size) {
            const float part = parts[s * stride + 1];
            if (part != 0.0f) den += exp_below(parts[s * stride] - top) * part;
        }
        const float held = any_old ? exp_below(old - top) : 0.0f;
        den = block_sum(den) + held; // every thread has read lse by now
        if (group < groups) {
#pragma unroll 8
            for (uint32_t s = group; s < args.splits; s += groups) {
                const float weight = parts[s * stride + 1] != 0.0f ? exp_below(parts[s * stride] - top) : 0.0f;
                sum = fmaf(weight, parts[s * stride + 2 + p], sum);
            }
        }
        sums[threadIdx.x] = sum;
        __syncthreads();
        if (group == 0) {
            for (uint32_t k = 1; k < groups; k++) sum += sums[threadIdx.x + k * args.P];
            const size_t at = args.r_at + size_t(b) * args.r_row + h * args.P + p;
            if (any_old) sum += held * load(r, at);
            store(r, at, den != 0.0f ? sum / den : 0.0f);
            if (p == 0) lse[lse_at] = den != 0.0f ? top + logf(den) : __uint_as_float(0xff800000u);
        }
        __syncthreads();
    }
}
