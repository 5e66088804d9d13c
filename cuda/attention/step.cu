// attention for L = 1: a thread block looks at a run of a block of the cache of one (sequence, head) and writes {top, den, acc[D]}.
// Threads stand in groups over D, four columns each, or twice four, 128 apart, where D is above MAX_HEAD; groups take tokens in turn, each
// with an online softmax of its own, and are merged at the end.
// Keys and values are of one type. Shared memory: 6.5 KiB, or 11 KiB.
#include "lib/dart.cuh"

template <uint32_t quads> struct AttentionStepShared {
    float4 sums[quads][block_size];
    float query[quads * MAX_HEAD], top[block_size], den[block_size];
};
struct AttentionStepViews {
    View q, k, v;
    const int32_t *seq;
    float *partial;
};

// quads: columns of a thread by four, D at most 128 of them.
template <uint32_t dtype, uint32_t quads>
__device__ __forceinline__ void attention_step_tiles(const AttentionStepArgs &args, const AttentionStepViews &views,
                                                     AttentionStepShared<quads> &shared)
{
    const View q = views.q, k = {views.k.base, dtype}, v = {views.v.base, dtype};
    const bool aligned = multiples_of_4(args.k_at, args.k_row, args.D) && multiples_of_4(args.v_at, args.v_row);
    // Lanes of a group: a power of two, so that it lies within a warp.
    uint32_t lanes = 1;
    while (lanes * 4 < min(args.D, uint32_t(MAX_HEAD))) lanes *= 2;
    const uint32_t groups = block_size / lanes, group = threadIdx.x / lanes, d = threadIdx.x % lanes * 4;
    FOR_TILES(tile) {
        const uint32_t split = tile % args.splits, h = tile / args.splits % args.H, b = tile / args.splits / args.H,
                       g = h / (args.H / args.G);
        const Piece piece = piece_of(views.seq + args.seq_at, args.flags, 1, b);
        if (piece.count == 0) continue;
        const uint32_t seen = piece.position < args.first ? 0 : min(piece.position - args.first, args.C - 1) + 1;
        const uint64_t run = uint64_t(ceil_div(seen, args.splits * STEP_TOKENS)) * STEP_TOKENS;
        const uint32_t begin = uint32_t(min(split * run, uint64_t(seen))), end = uint32_t(min((split + 1) * run, uint64_t(seen)));
        __syncthreads();
        if (threadIdx.x < quads * MAX_HEAD)
            shared.query[threadIdx.x] =
                threadIdx.x < args.D ? args.scale * load(q, args.q_at + size_t(b) * args.q_row + h * args.D + threadIdx.x) : 0.0f;
        __syncthreads();
        const size_t k_at = args.k_at + size_t(b) * args.C * args.k_row + g * args.D + d;
        const size_t v_at = args.v_at + size_t(b) * args.C * args.v_row + g * args.D + d;
        float top = lowest, den = 0.0f;
        float4 query[quads], acc[quads];
        uint32_t valid[quads];
#pragma unroll
        for (uint32_t i = 0; i < quads; i++) {
            query[i] = *reinterpret_cast<const float4 *>(&shared.query[d + i * MAX_HEAD]);
            acc[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            valid[i] = d + i * MAX_HEAD < args.D ? args.D - d - i * MAX_HEAD : 0;
        }
        // All groups go through as many rounds, since the sums over a group need the whole warp.
        const uint32_t rounds = ceil_div(end - begin, groups);
#pragma unroll 4
        for (uint32_t round = 0; round < rounds; round++) {
            const uint32_t s = begin + round * groups + group;
            const bool there = s < end;
            float4 value[quads];
            float score = 0.0f;
#pragma unroll
            for (uint32_t i = 0; i < quads; i++) {
                const float4 key = unpack4(fetch4(k, k_at + size_t(s) * args.k_row + i * MAX_HEAD, there ? valid[i] : 0, aligned), dtype);
                value[i] = unpack4(fetch4(v, v_at + size_t(s) * args.v_row + i * MAX_HEAD, there ? valid[i] : 0, aligned), dtype);
                score += query[i].x * key.x + query[i].y * key.y + query[i].z * key.z + query[i].w * key.w;
            }
            for (uint32_t step = lanes / 2; step > 0; step /= 2) score += __shfl_xor_sync(0xffffffffu, score, step);
            const float now = there ? fmaxf(top, score) : top, keep = exp_below(top - now), weight = there ? exp_below(score - now) : 0.0f;
            top = now;
            den = den * keep + weight;
#pragma unroll
            for (uint32_t i = 0; i < quads; i++) {
                acc[i].x = acc[i].x * keep + weight * value[i].x;
                acc[i].y = acc[i].y * keep + weight * value[i].y;
                acc[i].z = acc[i].z * keep + weight * value[i].z;
                acc[i].w = acc[i].w * keep + weight * value[i].w;
            }
        }
#pragma unroll
        for (uint32_t i = 0; i < quads; i++) shared.sums[i][threadIdx.x] = acc[i];
        shared.top[threadIdx.x] = top;
        shared.den[threadIdx.x] = den;
        __syncthreads();
        const uint32_t quad = threadIdx.x / MAX_HEAD, column = threadIdx.x % MAX_HEAD; // that this thread puts together
        float most = lowest, total = 0.0f, sum = 0.0f;
        for (uint32_t i = 0; i < groups; i++) {
            if (shared.den[i * lanes] != 0.0f) most = fmaxf(most, shared.top[i * lanes]);
        }
        for (uint32_t i = 0; i < groups; i++) {
            const float part = shared.den[i * lanes];
            if (part == 0.0f) continue;
            const float weight = exp_below(shared.top[i * lanes] - most);
            total += weight * part;
            if (threadIdx.x < args.D) sum = fmaf(weight, reinterpret_cast<const float *>(&shared.sums[quad][i * lanes])[column], sum);
        }
        float *to = views.partial + size_t(tile) * (args.D + 2);
        if (threadIdx.x == 0) {
            to[0] = most;
            to[1] = total;
        }
        if (threadIdx.x < args.D) to[2 + threadIdx.x] = sum;
    }
}

// k and v are of the same type.
template <uint32_t quads> __device__ __forceinline__ void attention_step_typed(const AttentionStepArgs &args, const AttentionStepViews &views)
{
    static_assert(quads * MAX_HEAD <= block_size, "a thread per column");
    __shared__ AttentionStepShared<quads> shared;
    switch (views.k.dtype) {
    case DTYPE_F32: attention_step_tiles<DTYPE_F32>(args, views, shared); break;
    case DTYPE_F16: attention_step_tiles<DTYPE_F16>(args, views, shared); break;
    default: attention_step_tiles<DTYPE_BF16>(args, views, shared); break;
    }
}

#define STEP_VIEWS(kernel) {VIEW(kernel, q), VIEW(kernel, k), VIEW(kernel, v), INTS(kernel, seq), FLOATS(kernel, partial)}
KERNEL_FUNCTION(attention_step, simt) { attention_step_typed<1>(args, STEP_VIEWS(attention_step)); }
KERNEL_FUNCTION(attention_step_large, simt) { attention_step_typed<2>(args, STEP_VIEWS(attention_step_large)); }
