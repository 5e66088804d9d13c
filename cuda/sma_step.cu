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

// The same over memories of 16 bits, N 128 and P 64, with 16-byte loads: a warp takes a whole memory at a time, 8 threads share
// a row, each with 8 columns, and each has 8 rows in flight. Shared memory: 9.3 KiB.
constexpr uint32_t half_warps = 4, half_n = 128, half_p = 64, half_fetch = 8;

struct HalfShared {
    float2 queries[half_n], weights[half_warps][half_n], ends[half_warps]; // qn and c; key and value; top and den
    float sums[half_warps][4][half_p];
};

template <uint32_t dtype>
__device__ __forceinline__ void sma_step_half_tiles(const sma_step_args &args, const CudaBindings &bindings, uint32_t dtypes,
                                                    HalfShared &shared)
{
    const uint4 *dh = reinterpret_cast<const uint4 *>(VIEW(sma_step, dh).base) + args.dh_at / 8;
    const View c = VIEW(sma_step, c);
    const float *qn = FLOATS(sma_step, qn), *en = FLOATS(sma_step, en), *factors = FLOATS(sma_step, factor) + args.factor_at;
    const bool raw = args.flags & IS_RAW;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, column = lane % 8, row = lane / 8;
    const uint32_t share = ceil_div(args.count, args.splits);
    FOR_TILES(tile) {
        const uint32_t split = tile % args.splits, h = tile / args.splits % args.H, b = tile / args.splits / args.H,
                       g = h / (args.H / args.G);
        const Piece piece = piece_of(INTS(sma_step, seq) + args.seq_at, args.flags, 1, b);
        const uint32_t seen = piece.count ? piece.position / args.S : 0;
        const uint32_t memories = seen > args.first ? min(seen - args.first, args.count) : 0;
        const uint32_t begin = uint32_t(min(uint64_t(split) * share, uint64_t(memories)));
        const uint32_t end = uint32_t(min((uint64_t(split) + 1) * share, uint64_t(memories)));
        float e[8] = {}, acc[8] = {}, top = lowest, den = 0.0f;
        if (begin < end) {
            shared.queries[threadIdx.x] = make_float2(qn[(size_t(b) * args.G + g) * half_n + threadIdx.x],
                                                      load(c, args.c_at + size_t(b) * args.c_row + g * half_n + threadIdx.x));
#pragma unroll
            for (uint32_t k = 0; k < 8; k++) e[k] = en[(size_t(b) * args.G + g) * half_p + column * 8 + k];
        }
        __syncthreads();
        size_t rows = ((size_t(b) * args.capacity + begin + warp) * args.H + h) * half_n;
        uint4 fetched[half_fetch];
        if (begin + warp < end) {
#pragma unroll
            for (uint32_t k = 0; k < half_fetch; k++) fetched[k] = dh[rows * (half_p / 8) + lane + k * 32];
        }
        for (uint32_t i = begin + warp; i < end; i += half_warps) {
            const uint4 *memory = dh + rows * (half_p / 8) + lane;
            const size_t next = rows + size_t(half_warps) * args.H * half_n;
            const bool more = i + half_warps < end;
            const float4 factor = reinterpret_cast<const float4 *>(factors + rows)[lane];
#pragma unroll
            for (uint32_t k = 0; k < 4; k++) {
                const float2 query = shared.queries[4 * lane + k];
                const float f = k == 0 ? factor.x : k == 1 ? factor.y : k == 2 ? factor.z : factor.w;
                shared.weights[warp][4 * lane + k] = raw ? make_float2(query.x * f, query.y) : make_float2(query.x, query.y * f);
            }
            __syncwarp();
            float logit = 0.0f, values[8] = {};
#pragma unroll
            for (uint32_t from = 0; from < half_n / 4; from += half_fetch) {
#pragma unroll
                for (uint32_t k = 0; k < half_fetch; k++) {
                    const float2 weight = shared.weights[warp][(from + k) * 4 + row];
                    const uint32_t words[4] = {fetched[k].x, fetched[k].y, fetched[k].z, fetched[k].w};
                    float key = 0.0f;
#pragma unroll
                    for (uint32_t w = 0; w < 4; w++) {
                        const float low = dtype == DTYPE_F16 ? from_half(words[w] & 0xffffu) : from_bfloat(words[w] & 0xffffu);
                        const float high = dtype == DTYPE_F16 ? from_half(words[w] >> 16) : from_bfloat(words[w] >> 16);
                        key = fmaf(e[2 * w], low, fmaf(e[2 * w + 1], high, key));
                        values[2 * w] = fmaf(weight.y, low, values[2 * w]);
                        values[2 * w + 1] = fmaf(weight.y, high, values[2 * w + 1]);
                    }
                    logit = fmaf(weight.x, key, logit);
                    // The last rows go to work while the next memory's first ones are on their way.
                    if (from + half_fetch < half_n / 4) fetched[k] = memory[(from + half_fetch + k) * 32];
                    else if (more) fetched[k] = dh[next * (half_p / 8) + lane + k * 32];
                }
            }
            logit = warp_sum(logit);
            const float now = fmaxf(top, logit), correction = exp_below(top - now), gain = exp_below(logit - now);
            top = now;
            den = den * correction + gain;
#pragma unroll
            for (uint32_t k = 0; k < 8; k++) acc[k] = acc[k] * correction + gain * values[k];
            rows = next;
            __syncwarp();
        }
        if (lane == 0) shared.ends[warp] = make_float2(top, den);
#pragma unroll
        for (uint32_t k = 0; k < 8; k++) shared.sums[warp][row][column * 8 + k] = acc[k];
        __syncthreads();
        float all = lowest, total = 0.0f, sum = 0.0f;
        for (uint32_t w = 0; w < half_warps; w++) all = fmaxf(all, shared.ends[w].x);
        for (uint32_t w = 0; w < half_warps; w++) {
            const float weight = exp_below(shared.ends[w].x - all);
            total += shared.ends[w].y * weight;
            float part = 0.0f;
            for (uint32_t k = 0; k < 4; k++) part += shared.sums[w][k][threadIdx.x % half_p];
            sum += part * weight;
        }
        float *to = FLOATS(sma_step, partial) + size_t(tile) * (half_p + 2);
        if (threadIdx.x == 0) {
            to[0] = all;
            to[1] = total;
        }
        if (threadIdx.x < half_p) to[2 + threadIdx.x] = sum;
        __syncthreads();
    }
}

KERNEL_FUNCTION_SHAPED(sma_step, half, 5)
{
    static_assert(THREADS_sma_step_half == half_n && THREADS_sma_step_half == 32 * half_warps, "a thread a row, a warp a memory");
    __shared__ HalfShared shared;
    if (VIEW(sma_step, dh).dtype == DTYPE_F16) sma_step_half_tiles<DTYPE_F16>(args, bindings, dtypes, shared);
    else sma_step_half_tiles<DTYPE_BF16>(args, bindings, dtypes, shared);
}
