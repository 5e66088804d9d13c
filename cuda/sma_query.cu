// qn = q / rms(q) / sqrt(N), en = e / rms(e), or powers of two apart with the rest in unit. A block works on one (row, group).
#include "dart.cuh"

// The largest power of two that is not above x.
__device__ __forceinline__ float power_below(float x)
{
    return __uint_as_float(__float_as_uint(fmaxf(x, 0x1p-126f)) & 0x7f800000u);
}

// Over the whole block, for values of at least 0.
__device__ __forceinline__ float largest(float value)
{
    __shared__ float parts[warps];
    for (int apart = 16; apart > 0; apart /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, apart));
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
    __syncthreads();
    for (uint32_t w = 0; w < warps; w++) value = fmaxf(value, parts[w]);
    __syncthreads();
    return value;
}

KERNEL_FUNCTION(sma_query, simt)
{
    const View q = VIEW(sma_query, q), e = VIEW(sma_query, e);
    const View qn = VIEW(sma_query, qn), en = VIEW(sma_query, en);
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
        float q_factor = 1.0f / (sqrtf(block_sum(vq * vq) / float(args.N) + args.eps) * sqrtf(float(args.N)));
        float e_factor = 1.0f / sqrtf(block_sum(ve * ve) / float(args.P) + args.eps);
        if (args.flags & HAS_UNIT) {
            const float q_power = power_below(q_factor), e_power = power_below(e_factor);
            const float vc = i < args.N ? load(VIEW(sma_query, c), args.c_at + size_t(row) * args.c_row + g * args.N + i) : 0.0f;
            const float c_power = power_below(1.0f / fmaxf(largest(fabsf(vc)), 0x1p-126f));
            if (i < args.N) store(VIEW(sma_query, read), qn_at + i, vc * c_power);
            if (i == 0) {
                FLOATS(sma_query, unit)[2 * size_t(tile)] = q_factor / q_power * (e_factor / e_power);
                FLOATS(sma_query, unit)[2 * size_t(tile) + 1] = 1.0f / c_power;
            }
            q_factor = q_power;
            e_factor = e_power;
        }
        if (i < args.N) store(qn, qn_at + i, vq * q_factor);
        if (i < args.P) store(en, en_at + i, ve * e_factor);
    }
}
