// One token of (sequence, head) against a run of memories, for sma_step and mixer_attend: what the rows for memories of any
// type and size share with those for 16 bits (16bit.cuh), and the walk of the former. Threads stand in groups over P, four
// columns each, and the groups share out N; a memory is read once, `ahead` rows of a thread at a time, and one barrier a memory
// brings its logit together.
#ifndef DART_SMA_TOKEN_CUH
#define DART_SMA_TOKEN_CUH

#include "lib/dart.cuh"

struct TokenInputs {
    View q, e, c, dh;
    uint32_t e_row;
    const float *factor;
    const int32_t *seq;
};

// Memories begin <= i < end of a split, as far as the token sees them; none where the sequence has no token.
struct TokenRun {
    bool there;
    uint32_t begin, end;
};
template <class Args> __device__ __forceinline__ TokenRun token_run(const Args &args, const int32_t *seq, uint32_t split, uint32_t b)
{
    const Piece piece = piece_early(seq + args.seq_at, args.flags, 1, b);
    if (piece.count == 0) return {false, 0, 0};
    const uint32_t share = ceil_div(args.count, args.splits), seen = piece.position / args.S;
    const uint64_t memories = seen > args.first ? min(seen - args.first, args.count) : 0;
    return {true, uint32_t(min(uint64_t(split) * share, memories)), uint32_t(min((uint64_t(split) + 1) * share, memories))};
}

struct TokenShared {
    float4 sums[block_size];
    float key[MAX_STATE], value[MAX_STATE], logits[2][warps];
};

// give(split, head, top, den, sum) is called by the whole block, sum being that of column threadIdx.x where there is one; it
// ends with a barrier.
template <uint32_t dtype, uint32_t ahead, class Args, class Give>
__device__ __forceinline__ void attend_token(const Args &args, const TokenInputs &in, TokenShared &shared, const Give &give)
{
    static_assert(MAX_STATE <= block_size, "a thread per element");
    const View dh = {in.dh.base, dtype};
    const bool raw = args.flags & IS_RAW, aligned = multiples_of_4(args.dh_at, args.P);
    const uint32_t quads = ceil_div(args.P, 4), groups = block_size / quads; // quads <= MAX_STATE / 4
    const uint32_t p = threadIdx.x % quads * 4, group = threadIdx.x / quads;
    FOR_TILES(tile) {
        const uint32_t split = tile % args.splits, head = tile / args.splits, h = head % args.H, b = head / args.H;
        const uint32_t g = h / (args.H / args.G);
        const TokenRun run = token_run(args, in.seq, split, b);
        if (!run.there) continue;
        float top = lowest, den = 0.0f;
        float4 acc = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (run.begin < run.end) { // the same for all threads
            float e[4] = {};
            const size_t e_at = args.e_at + size_t(b) * in.e_row + g * args.P;
            const float vq = threadIdx.x < args.N ? load(in.q, args.q_at + size_t(b) * args.q_row + g * args.N + threadIdx.x) : 0.0f;
            const float ve = threadIdx.x < args.P ? load(in.e, e_at + threadIdx.x) : 0.0f;
            if (threadIdx.x < args.N) {
                shared.key[threadIdx.x] = vq;
                shared.value[threadIdx.x] = load(in.c, args.c_at + size_t(b) * args.c_row + g * args.N + threadIdx.x);
            }
            const float rms_q = sqrtf(block_sum(vq * vq) / float(args.N) + args.eps);
            const float rms_e = sqrtf(block_sum(ve * ve) / float(args.P) + args.eps);
            const float scale = 1.0f / (rms_q * rms_e * sqrtf(float(args.N)));
#pragma unroll
            for (uint32_t k = 0; k < 4; k++) {
                if (group < groups && p + k < args.P) e[k] = load(in.e, e_at + p + k) * scale;
            }
            for (uint32_t i = run.begin; i < run.end; i++) {
                const size_t memory = ((size_t(b) * args.capacity + i) * args.H + h) * args.N;
                const float *factors = in.factor + args.factor_at + memory;
                float4 keyed = make_float4(0.0f, 0.0f, 0.0f, 0.0f), valued = keyed;
                for (uint32_t n0 = group; group < groups && n0 < args.N; n0 += ahead * groups) {
                    uint4 rows[ahead];
                    float factor[ahead];
#pragma unroll
                    for (uint32_t k = 0; k < ahead; k++) {
                        const uint32_t n = min(n0 + k * groups, args.N - 1);
                        rows[k] = aligned ? fetch4_whole(dh, args.dh_at + (memory + n) * args.P + p)
                                          : fetch4(dh, args.dh_at + (memory + n) * args.P + p, args.P - p, false);
                        factor[k] = factors[n];
                    }
#pragma unroll
                    for (uint32_t k = 0; k < ahead; k++) {
                        const uint32_t n = n0 + k * groups;
                        if (n >= args.N) break;
                        const float4 v = unpack4(rows[k], dtype);
                        const float key = shared.key[n] * (raw ? factor[k] : 1.0f), w = shared.value[n] * (raw ? 1.0f : factor[k]);
                        keyed.x = fmaf(key, v.x, keyed.x), keyed.y = fmaf(key, v.y, keyed.y);
                        keyed.z = fmaf(key, v.z, keyed.z), keyed.w = fmaf(key, v.w, keyed.w);
                        valued.x = fmaf(w, v.x, valued.x), valued.y = fmaf(w, v.y, valued.y);
                        valued.z = fmaf(w, v.z, valued.z), valued.w = fmaf(w, v.w, valued.w);
                    }
                }
                const float part = warp_sum(e[0] * keyed.x + e[1] * keyed.y + e[2] * keyed.z + e[3] * keyed.w);
                // Two sets of slots: before a set is written again every thread has passed the barrier of the other.
                float *slots = shared.logits[(i - run.begin) % 2];
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
        }
        shared.sums[threadIdx.x] = acc;
        __syncthreads();
        float sum = 0.0f;
        for (uint32_t k = 0; k < groups && threadIdx.x < args.P; k++)
            sum += reinterpret_cast<const float *>(&shared.sums[k * quads])[threadIdx.x];
        give(split, head, top, den, sum);
    }
}

// The same for each type of memories.
template <uint32_t ahead, class Args, class Give>
__device__ __forceinline__ void attend_token(const Args &args, const TokenInputs &in, TokenShared &shared, const Give &give)
{
    switch (in.dh.dtype) {
    case DTYPE_F32: attend_token<DTYPE_F32, ahead>(args, in, shared, give); break;
    case DTYPE_F16: attend_token<DTYPE_F16, ahead>(args, in, shared, give); break;
    default: attend_token<DTYPE_BF16, ahead>(args, in, shared, give); break;
    }
}

#endif
