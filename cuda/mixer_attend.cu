// State-memory attention of one token over the memories of one split, from q and e as the convolution left them:
// {acc[P], top, den}. Threads stand in groups over P, four columns each, and the groups share out N; a memory is read
// once, ahead rows at a time, and one barrier a memory brings its logit together.
// Shared memory: 6.2 KiB.
#include "mixer.cuh"
#include "sma_half.cuh"

struct AttendShared {
    float4 sums[block_size];
    float key[MAX_STATE], value[MAX_STATE], logits[2][warps];
};

template <uint32_t dtype>
__device__ __forceinline__ void mixer_attend_tiles(const mixer_attend_args &args, const CudaBindings &bindings, uint32_t dtypes,
                                                   AttendShared &shared)
{
    constexpr uint32_t ahead = 8;
    static_assert(MAX_STATE <= block_size, "a thread per element");
    const View dh = {VIEW(mixer_attend, dh).base, dtype}, c = VIEW(mixer_attend, c);
    const View q = VIEW(mixer_attend, q), e_view = VIEW(mixer_attend, e);
    float *partial = FLOATS(mixer_attend, partial);
    const bool aligned = multiples_of_4(args.dh_at, args.P);
    const uint32_t quads = ceil_div(args.P, 4), groups = block_size / quads; // quads <= MAX_STATE / 4
    const uint32_t p = threadIdx.x % quads * 4, group = threadIdx.x / quads, share = ceil_div(args.count, args.splits);
    FOR_TILES(tile) {
        const uint32_t split = tile % args.splits, head = tile / args.splits, h = head % args.H, b = head / args.H;
        const uint32_t g = h / (args.H / args.G);
        const Piece piece = piece_of(INTS(mixer_attend, seq) + args.seq_at, args.flags, 1, b);
        if (piece.count == 0) continue;
        const uint32_t seen = piece.position / args.S, memories = seen > args.first ? min(seen - args.first, args.count) : 0;
        const uint32_t begin = uint32_t(min(uint64_t(split) * share, uint64_t(memories)));
        const uint32_t end = uint32_t(min((uint64_t(split) + 1) * share, uint64_t(memories)));
        float top = lowest, den = 0.0f;
        float4 acc = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        if (begin < end) { // the same for all threads
            float e[4] = {};
            const size_t e_at = args.e_at + size_t(b) * args.q_row + g * args.P;
            const float vq = threadIdx.x < args.N ? load(q, args.q_at + size_t(b) * args.q_row + g * args.N + threadIdx.x) : 0.0f;
            const float ve = threadIdx.x < args.P ? load(e_view, e_at + threadIdx.x) : 0.0f;
            if (threadIdx.x < args.N) {
                shared.key[threadIdx.x] = vq;
                shared.value[threadIdx.x] = load(c, args.c_at + size_t(b) * args.c_row + g * args.N + threadIdx.x);
            }
            const float rms_q = sqrtf(block_sum(vq * vq) / float(args.N) + args.eps);
            const float rms_e = sqrtf(block_sum(ve * ve) / float(args.P) + args.eps);
            const float scale = 1.0f / (rms_q * rms_e * sqrtf(float(args.N)));
#pragma unroll
            for (uint32_t k = 0; k < 4; k++) {
                if (group < groups && p + k < args.P) e[k] = load(e_view, e_at + p + k) * scale;
            }
            for (uint32_t i = begin; i < end; i++) {
                const size_t memory = ((size_t(b) * args.capacity + i) * args.H + h) * args.N;
                const float *factors = FLOATS(mixer_attend, factor) + args.factor_at + memory;
                float4 keyed = make_float4(0.0f, 0.0f, 0.0f, 0.0f), valued = keyed;
                for (uint32_t n0 = group; group < groups && n0 < args.N; n0 += ahead * groups) {
                    uint4 raw[ahead];
                    float factor[ahead];
#pragma unroll
                    for (uint32_t k = 0; k < ahead; k++) {
                        const uint32_t n = min(n0 + k * groups, args.N - 1);
                        raw[k] = aligned ? fetch4_whole(dh, args.dh_at + (memory + n) * args.P + p)
                                         : fetch4(dh, args.dh_at + (memory + n) * args.P + p, args.P - p, false);
                        factor[k] = factors[n];
                    }
#pragma unroll
                    for (uint32_t k = 0; k < ahead; k++) {
                        const uint32_t n = n0 + k * groups;
                        if (n >= args.N) break;
                        const float4 v = unpack4(raw[k], dtype);
                        const float key = shared.key[n], w = shared.value[n] * factor[k];
                        keyed.x = fmaf(key, v.x, keyed.x), keyed.y = fmaf(key, v.y, keyed.y);
                        keyed.z = fmaf(key, v.z, keyed.z), keyed.w = fmaf(key, v.w, keyed.w);
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
        }
        shared.sums[threadIdx.x] = acc;
        __syncthreads();
        float *to = partial + args.partial_at + (size_t(split) * args.B * args.H + head) * (args.P + 4);
        if (threadIdx.x == 0) {
            to[args.P] = top;
            to[args.P + 1] = den;
        }
        if (threadIdx.x < args.P) {
            float sum = 0.0f;
            for (uint32_t k = 0; k < groups; k++) sum += reinterpret_cast<const float *>(&shared.sums[k * quads])[threadIdx.x];
            to[threadIdx.x] = sum;
        }
        __syncthreads();
    }
}

KERNEL_FUNCTION_BLOCKS(mixer_attend, simt, 2)
{
    __shared__ AttendShared shared;
    switch (VIEW(mixer_attend, dh).dtype) {
    case DTYPE_F32: mixer_attend_tiles<DTYPE_F32>(args, bindings, dtypes, shared); break;
    case DTYPE_F16: mixer_attend_tiles<DTYPE_F16>(args, bindings, dtypes, shared); break;
    default: mixer_attend_tiles<DTYPE_BF16>(args, bindings, dtypes, shared); break;
    }
}

KERNEL_FUNCTION_SHAPED(mixer_attend, half, 4)
{
    static_assert(THREADS_mixer_attend_half == half_threads, "a thread a row, a warp a memory");
    __shared__ HalfShared shared;
    const View dh = VIEW(mixer_attend, dh);
    const HalfInputs in = {VIEW(mixer_attend, q), VIEW(mixer_attend, e), VIEW(mixer_attend, c), args.q_row, dh.base,
                           FLOATS(mixer_attend, factor), INTS(mixer_attend, seq)};
    float *partial = FLOATS(mixer_attend, partial) + args.partial_at;
    const auto give = [&](uint32_t split, uint32_t head, float top, float den, float sum) {
        float *to = partial + (size_t(split) * args.B * args.H + head) * (half_p + 4);
        if (threadIdx.x < half_p) to[threadIdx.x] = sum;
        if (threadIdx.x == 0) {
            to[half_p] = top;
            to[half_p + 1] = den;
        }
        __syncthreads();
    };
    if (dh.dtype == DTYPE_F16) attend_half<DTYPE_F16>(args, in, shared, give);
    else attend_half<DTYPE_BF16>(args, in, shared, give);
}
