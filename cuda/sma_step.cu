// sma for L = 1: a block looks at a run of memories of one (sequence, head) and writes {top, den, acc[P]}.
// Threads stand in groups over P, four columns each, and the groups share out N; a memory is read once, and one
// barrier a memory brings its logit together.
// Shared memory: 6.1 KiB.
#include "dart.cuh"

struct StepShared {
    float4 sums[block_size];
    float key[MAX_STATE], value[MAX_STATE], logits[2][warps];
};

template <uint32_t dtype>
__device__ __forceinline__ void sma_step_tiles(const sma_step_args &args, const CudaBindings &bindings, uint32_t dtypes,
                                               StepShared &shared)
{
    const View dh = {VIEW(sma_step, dh).base, dtype}, c = VIEW(sma_step, c);
    const float *qn = FLOATS(sma_step, qn), *en = FLOATS(sma_step, en);
    float *partial = FLOATS(sma_step, partial);
    const bool raw = args.flags & IS_RAW, aligned = multiples_of_4(args.dh_at, args.P);
    const uint32_t quads = ceil_div(args.P, 4), groups = block_size / quads; // quads <= MAX_STATE / 4
    const uint32_t p = threadIdx.x % quads * 4, group = threadIdx.x / quads;
    const uint32_t share = ceil_div(args.count, args.splits);
    FOR_TILES(tile) {
        const uint32_t split = tile % args.splits, h = tile / args.splits % args.H, b = tile / args.splits / args.H,
                       g = h / (args.H / args.G);
        const Piece piece = piece_of(INTS(sma_step, seq) + args.seq_at, args.flags, 1, b);
        const uint32_t seen = piece.count ? piece.position / args.S : 0;
        const uint32_t memories = seen > args.first ? min(seen - args.first, args.count) : 0;
        const uint32_t begin = uint32_t(min(uint64_t(split) * share, uint64_t(memories)));
        const uint32_t end = uint32_t(min((uint64_t(split) + 1) * share, uint64_t(memories)));
        float e[4] = {};
        if (begin < end) {
            if (threadIdx.x < args.N) {
                shared.key[threadIdx.x] = qn[(size_t(b) * args.G + g) * args.N + threadIdx.x];
                shared.value[threadIdx.x] = load(c, args.c_at + size_t(b) * args.c_row + g * args.N + threadIdx.x);
            }
#pragma unroll
            for (uint32_t k = 0; k < 4; k++) {
                if (group < groups && p + k < args.P) e[k] = en[(size_t(b) * args.G + g) * args.P + p + k];
            }
        }
        __syncthreads();

        float top = lowest, den = 0.0f;
        float4 acc = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        for (uint32_t i = begin; i < end; i++) {
            const size_t memory = ((size_t(b) * args.capacity + i) * args.H + h) * args.N;
            const float *factors = FLOATS(sma_step, factor) + args.factor_at + memory;
            float4 keyed = make_float4(0.0f, 0.0f, 0.0f, 0.0f), valued = keyed;
            if (group < groups) {
#pragma unroll 4
                for (uint32_t n = group; n < args.N; n += groups) {
                    const float4 v =
                        unpack4(fetch4(dh, args.dh_at + (memory + n) * args.P + p, args.P - p, aligned), dtype);
                    const float factor = factors[n], k = raw ? shared.key[n] * factor : shared.key[n],
                                w = raw ? shared.value[n] : shared.value[n] * factor;
                    keyed.x = fmaf(k, v.x, keyed.x), keyed.y = fmaf(k, v.y, keyed.y);
                    keyed.z = fmaf(k, v.z, keyed.z), keyed.w = fmaf(k, v.w, keyed.w);
                    valued.x = fmaf(w, v.x, valued.x), valued.y = fmaf(w, v.y, valued.y);
                    valued.z = fmaf(w, v.z, valued.z), valued.w = fmaf(w, v.w, valued.w);
                }
            }
            const float part = warp_sum(e[0] * keyed.x + e[1] * keyed.y + e[2] * keyed.z + e[3] * keyed.w);
            // Two sets of slots: before a set is written again every thread has passed the barrier of the other.
            float *slots = shared.logits[(i - begin) % 2];
            if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = part;
            __syncthreads();
            float logit = 0.0f;
            for (uint32_t w = 0; w < warps; w++) logit += slots[w];
            const float now = fmaxf(top, logit), correction = exp_below(top - now), weight = exp_below(logit - now);
            top = now;
            den = den * correction + weight;
            acc.x = acc.x * correction + weight * valued.x;
            acc.y = acc.y * correction + weight * valued.y;
            acc.z = acc.z * correction + weight * valued.z;
            acc.w = acc.w * correction + weight * valued.w;
        }
        shared.sums[threadIdx.x] = acc;
        __syncthreads();
        float *to = partial + size_t(tile) * (args.P + 2);
        if (threadIdx.x == 0) {
            to[0] = top;
            to[1] = den;
        }
        if (threadIdx.x < args.P) {
            float sum = 0.0f;
            for (uint32_t k = 0; k < groups; k++)
                sum += reinterpret_cast<const float *>(&shared.sums[k * quads])[threadIdx.x];
            to[2 + threadIdx.x] = sum;
        }
        __syncthreads();
    }
}

KERNEL_FUNCTION_BLOCKS(sma_step, simt, 3)
{
    __shared__ StepShared shared;
    switch (VIEW(sma_step, dh).dtype) {
    case DTYPE_F32: sma_step_tiles<DTYPE_F32>(args, bindings, dtypes, shared); break;
    case DTYPE_F16: sma_step_tiles<DTYPE_F16>(args, bindings, dtypes, shared); break;
    default: sma_step_tiles<DTYPE_BF16>(args, bindings, dtypes, shared); break;
    }
}
