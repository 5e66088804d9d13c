// qn = q / rms(q) / sqrt(N), en = e / rms(e), or powers of two apart with the rest in unit. A warp works on one (row, group),
// a lane on four elements at a time.
#include "dart.cuh"

// The largest power of two that is not above x.
__device__ __forceinline__ float power_below(float x)
{
    return __uint_as_float(__float_as_uint(fmaxf(x, 0x1p-126f)) & 0x7f800000u);
}

// A row of at most MAX_STATE elements: of a lane, elements 4 lane + 128 k + {0, 1, 2, 3}, zeros past its width.
struct LaneRow {
    static constexpr uint32_t PARTS = MAX_STATE / 128;
    float4 part[PARTS];

    __device__ __forceinline__ LaneRow(const View &view, size_t at, uint32_t width, bool aligned)
    {
#pragma unroll
        for (uint32_t k = 0; k < PARTS; k++) {
            const uint32_t i = threadIdx.x % 32 * 4 + k * 128;
            part[k] = unpack4(fetch4(view, at + i, i < width ? width - i : 0, aligned), view.dtype);
        }
    }
    __device__ __forceinline__ float squares() const
    {
        float sum = 0.0f;
#pragma unroll
        for (uint32_t k = 0; k < PARTS; k++)
            sum += part[k].x * part[k].x + part[k].y * part[k].y + (part[k].z * part[k].z + part[k].w * part[k].w);
        return warp_sum(sum);
    }
    __device__ __forceinline__ float largest() const
    {
        float most = 0.0f;
#pragma unroll
        for (uint32_t k = 0; k < PARTS; k++)
            most = fmaxf(most, fmaxf(fmaxf(fabsf(part[k].x), fabsf(part[k].y)), fmaxf(fabsf(part[k].z), fabsf(part[k].w))));
        for (int apart = 16; apart > 0; apart /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, apart));
        return most;
    }
    __device__ __forceinline__ void write(const View &view, size_t at, uint32_t width, float factor) const
    {
#pragma unroll
        for (uint32_t k = 0; k < PARTS; k++) {
            const uint32_t i = threadIdx.x % 32 * 4 + k * 128;
            const float v[4] = {part[k].x * factor, part[k].y * factor, part[k].z * factor, part[k].w * factor};
            if (view.dtype != DTYPE_F32 && width % 4 == 0 && i < width) {
                const bool half = view.dtype == DTYPE_F16;
                uint32_t bits[4];
                for (int j = 0; j < 4; j++) bits[j] = half ? to_half(v[j]) : to_bfloat(v[j]);
                *reinterpret_cast<uint2 *>(view.base + 2 * (at + i)) = make_uint2(bits[0] | bits[1] << 16, bits[2] | bits[3] << 16);
                continue;
            }
            for (uint32_t j = 0; j < 4; j++)
                if (i + j < width) store(view, at + i + j, v[j]);
        }
    }
};

KERNEL_FUNCTION_SHAPED(sma_query, simt, 2)
{
    const View q = VIEW(sma_query, q), e = VIEW(sma_query, e), c = VIEW(sma_query, c);
    const uint32_t N = args.N, P = args.P;
    for (uint32_t tile = blockIdx.x * warps + threadIdx.x / 32; tile < args.tiles; tile += gridDim.x * warps) {
        const uint32_t g = tile % args.G, row = tile / args.G, b = row / args.L, t = row % args.L;
        if (t >= piece_of(INTS(sma_query, seq) + args.seq_at, args.flags, args.L, b).count) continue;
        const LaneRow vq(q, args.q_at + size_t(row) * args.q_row + g * N, N, multiples_of_4(args.q_at, args.q_row, N)),
            ve(e, args.e_at + size_t(row) * args.e_row + g * P, P, multiples_of_4(args.e_at, args.e_row, P));
        float q_factor = 1.0f / (sqrtf(vq.squares() / float(N) + args.eps) * sqrtf(float(N)));
        float e_factor = 1.0f / sqrtf(ve.squares() / float(P) + args.eps);
        if (args.flags & HAS_UNIT) {
            const LaneRow vc(c, args.c_at + size_t(row) * args.c_row + g * N, N, multiples_of_4(args.c_at, args.c_row, N));
            const float q_power = power_below(q_factor), e_power = power_below(e_factor);
            const float c_power = power_below(1.0f / fmaxf(vc.largest(), 0x1p-126f));
            vc.write(VIEW(sma_query, read), size_t(tile) * N, N, c_power);
            if (threadIdx.x % 32 == 0)
                reinterpret_cast<float2 *>(FLOATS(sma_query, unit))[tile] =
                    make_float2(q_factor / q_power * (e_factor / e_power), 1.0f / c_power);
            q_factor = q_power;
            e_factor = e_power;
        }
        vq.write(VIEW(sma_query, qn), size_t(tile) * N, N, q_factor);
        ve.write(VIEW(sma_query, en), size_t(tile) * P, P, e_factor);
    }
}
