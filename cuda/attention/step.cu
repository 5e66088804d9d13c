// attention for L = 1: a block looks at a run of the cache of one (sequence, head) and writes {top, den, acc[D]}.
// Threads stand in groups over D, four columns each; a group takes every so-many-th token with an online softmax of its
// own, and the groups are put together at the end.
// Keys and values are of one type. Shared memory: 6.5 KiB.
#include "lib/dart.cuh"

struct AttentionStepShared {
    float4 sums[block_size];
    float query[MAX_HEAD], top[block_size], den[block_size];
};

template <uint32_t dtype>
__device__ __forceinline__ void attention_step_tiles(const attention_step_args &args, const CudaBindings &bindings, uint32_t dtypes,
                                                     AttentionStepShared &shared)
{
    const View q = VIEW(attention_step, q), k = {VIEW(attention_step, k).base, dtype}, v = {VIEW(attention_step, v).base, dtype};
    float *partial = FLOATS(attention_step, partial);
    const bool aligned = multiples_of_4(args.k_at, args.k_row, args.D) && multiples_of_4(args.v_at, args.v_row);
    // Lanes of a group: a power of two, so that it lies within a warp.
    uint32_t lanes = 1;
    while (lanes * 4 < args.D) lanes *= 2;
    const uint32_t groups = block_size / lanes, group = threadIdx.x / lanes, d = threadIdx.x % lanes * 4;
    const uint32_t valid = d < args.D ? args.D - d : 0;
    FOR_TILES(tile) {
        const uint32_t split = tile % args.splits, h = tile / args.splits % args.H, b = tile / args.splits / args.H,
                       g = h / (args.H / args.G);
        const Piece piece = piece_of(INTS(attention_step, seq) + args.seq_at, args.flags, 1, b);
        if (piece.count == 0) continue;
        const uint32_t seen = min(piece.position, args.C - 1) + 1;
        const uint64_t run = uint64_t(ceil_div(seen, args.splits * STEP_TOKENS)) * STEP_TOKENS;
        const uint32_t begin = uint32_t(min(split * run, uint64_t(seen))), end = uint32_t(min((split + 1) * run, uint64_t(seen)));
        __syncthreads();
        if (threadIdx.x < MAX_HEAD)
            shared.query[threadIdx.x] =
                threadIdx.x < args.D ? args.scale * load(q, args.q_at + size_t(b) * args.q_row + h * args.D + threadIdx.x) : 0.0f;
        __syncthreads();
        const float4 query = *reinterpret_cast<const float4 *>(&shared.query[d]);
        const size_t k_at = args.k_at + size_t(b) * args.C * args.k_row + g * args.D + d;
        const size_t v_at = args.v_at + size_t(b) * args.C * args.v_row + g * args.D + d;
        float top = lowest, den = 0.0f;
        float4 acc = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        // All groups go through as many rounds, since the sums over a group need the whole warp.
        const uint32_t rounds = ceil_div(end - begin, groups);
#pragma unroll 4
        for (uint32_t round = 0; round < rounds; round++) {
            const uint32_t s = begin + round * groups + group;
            const bool there = s < end;
            const float4 key = unpack4(fetch4(k, k_at + size_t(s) * args.k_row, there ? valid : 0, aligned), dtype);
            const float4 value = unpack4(fetch4(v, v_at + size_t(s) * args.v_row, there ? valid : 0, aligned), dtype);
            float score = query.x * key.x + query.y * key.y + query.z * key.z + query.w * key.w;
            for (uint32_t step = lanes / 2; step > 0; step /= 2) score += __shfl_xor_sync(0xffffffffu, score, step);
            const float now = there ? fmaxf(top, score) : top, keep = exp_below(top - now), weight = there ? exp_below(score - now) : 0.0f;
            top = now;
            den = den * keep + weight;
            acc.x = acc.x * keep + weight * value.x;
            acc.y = acc.y * keep + weight * value.y;
            acc.z = acc.z * keep + weight * value.z;
            acc.w = acc.w * keep + weight * value.w;
        }
        shared.sums[threadIdx.x] = acc;
        shared.top[threadIdx.x] = top;
        shared.den[threadIdx.x] = den;
        __syncthreads();
        float most = lowest, total = 0.0f, sum = 0.0f;
        for (uint32_t i = 0; i < groups; i++) {
            if (shared.den[i * lanes] != 0.0f) most = fmaxf(most, shared.top[i * lanes]);
        }
        for (uint32_t i = 0; i < groups; i++) {
            const float part = shared.den[i * lanes];
            if (part == 0.0f) continue;
            const float weight = exp_below(shared.top[i * lanes] - most);
            total += weight * part;
            if (threadIdx.x < args.D)
                sum = fmaf(weight, reinterpret_cast<const float *>(&shared.sums[i * lanes])[threadIdx.x], sum);
        }
        float *to = partial + size_t(tile) * (args.D + 2);
        if (threadIdx.x == 0) {
            to[0] = most;
            to[1] = total;
        }
        if (threadIdx.x < args.D) to[2 + threadIdx.x] = sum;
    }
}

KERNEL_FUNCTION(attention_step, simt)
{
    __shared__ AttentionStepShared shared;
    switch (VIEW(attention_step, k).dtype) { // v is of the same type
    case DTYPE_F32: attention_step_tiles<DTYPE_F32>(args, bindings, dtypes, shared); break;
    case DTYPE_F16: attention_step_tiles<DTYPE_F16>(args, bindings, dtypes, shared); break;
    default: attention_step_tiles<DTYPE_BF16>(args, bindings, dtypes, shared); break;
    }
}
