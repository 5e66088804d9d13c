// sma for L = 1: a block looks at a run of memories of one (sequence, head) and writes {top, den, acc[P]}; the one of a
// head that is done last merges them. Threads stand in groups over P, four columns each, and the groups share out N; a
// memory is read once, and one barrier a memory brings its logit together.
// Shared memory: 7.7 KiB.
#include "sma_half.cuh"
#include "sma_merge.cuh"

struct StepShared {
    float4 sums[block_size];
    float key[MAX_STATE], value[MAX_STATE], logits[2][warps];
    MergeShared<block_size> merge;
};

template <uint32_t dtype>
__device__ __forceinline__ void sma_step_tiles(const sma_step_args &args, const CudaBindings &bindings, uint32_t dtypes,
                                               StepShared &shared)
{
    const View dh = {VIEW(sma_step, dh).base, dtype}, q = VIEW(sma_step, q), e_view = VIEW(sma_step, e), c = VIEW(sma_step, c);
    float *partial = FLOATS(sma_step, partial);
    uint32_t *tickets = reinterpret_cast<uint32_t *>(INTS(sma_step, tickets));
    const bool raw = args.flags & IS_RAW, aligned = multiples_of_4(args.dh_at, args.P);
    const uint32_t quads = ceil_div(args.P, 4), groups = block_size / quads; // quads <= MAX_STATE / 4
    const uint32_t p = threadIdx.x % quads * 4, group = threadIdx.x / quads;
    const uint32_t share = ceil_div(args.count, args.splits);
    FOR_TILES(tile) {
        const uint32_t split = tile % args.splits, h = tile / args.splits % args.H, b = tile / args.splits / args.H,
                       g = h / (args.H / args.G);
        const Piece piece = piece_of(INTS(sma_step, seq) + args.seq_at, args.flags, 1, b);
        if (piece.count == 0) continue;
        const uint32_t seen = piece.position / args.S;
        const uint32_t memories = seen > args.first ? min(seen - args.first, args.count) : 0;
        const uint32_t begin = uint32_t(min(uint64_t(split) * share, uint64_t(memories)));
        const uint32_t end = uint32_t(min((uint64_t(split) + 1) * share, uint64_t(memories)));
        float e[4] = {};
        if (begin < end) { // the same for all threads
            const size_t e_at = args.e_at + size_t(b) * args.e_row + g * args.P;
            const size_t q_at = args.q_at + size_t(b) * args.q_row + g * args.N;
            const float vq = threadIdx.x < args.N ? load(q, q_at + threadIdx.x) : 0.0f;
            const float ve = threadIdx.x < args.P ? load(e_view, e_at + threadIdx.x) : 0.0f;
            const float q_scale = 1.0f / (sqrtf(block_sum(vq * vq) / float(args.N) + args.eps) * sqrtf(float(args.N)));
            const float e_scale = 1.0f / sqrtf(block_sum(ve * ve) / float(args.P) + args.eps);
            if (threadIdx.x < args.N) {
                shared.key[threadIdx.x] = vq * q_scale;
                shared.value[threadIdx.x] = load(c, args.c_at + size_t(b) * args.c_row + g * args.N + threadIdx.x);
            }
#pragma unroll
            for (uint32_t k = 0; k < 4; k++) {
                if (group < groups && p + k < args.P) e[k] = load(e_view, e_at + p + k) * e_scale;
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
        merge_when_last(args, tile / args.splits, tickets, partial, VIEW(sma_step, r), FLOATS(sma_step, lse), shared.merge);
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

KERNEL_FUNCTION_SHAPED(sma_step, half, 4)
{
    static_assert(THREADS_sma_step_half == half_threads, "a thread a row, a warp a memory");
    __shared__ HalfShared shared;
    __shared__ MergeShared<half_threads> merge;
    const View dh = VIEW(sma_step, dh);
    const HalfInputs in = {VIEW(sma_step, q), VIEW(sma_step, e),         VIEW(sma_step, c),    args.e_row,
                           dh.base,           FLOATS(sma_step, factor), INTS(sma_step, seq)};
    float *partial = FLOATS(sma_step, partial);
    uint32_t *tickets = reinterpret_cast<uint32_t *>(INTS(sma_step, tickets));
    const auto give = [&](uint32_t split, uint32_t head, float top, float den, float sum) {
        float *to = partial + (size_t(head) * args.splits + split) * (half_p + 2);
        if (threadIdx.x == 0) {
            to[0] = top;
            to[1] = den;
        }
        if (threadIdx.x < half_p) to[2 + threadIdx.x] = sum;
        merge_when_last(args, head, tickets, partial, VIEW(sma_step, r), FLOATS(sma_step, lse), merge);
    };
    if (dh.dtype == DTYPE_F16) attend_half<DTYPE_F16>(args, in, shared, give);
    else attend_half<DTYPE_BF16>(args, in, shared, give);
}
