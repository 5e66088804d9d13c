// qn = q / rms(q) / sqrt(N), en = e / rms(e), or powers of two apart with the rest in unit. A warp works on one (row, group),
// a lane on four elements at a time.
#include "lib/attend.cuh"

// The largest power of two that is not above x.
__device__ __forceinline__ float power_below(float x)
{
    return __uint_as_float(__float_as_uint(fmaxf(x, 0x1p-126f)) & 0x7f800000u);
}

// Elements i to i + 3 of a row that begins at `at` in a packed tensor, as far as its width goes.
__device__ __forceinline__ void write_four(const View &view, size_t at, uint32_t i, uint32_t width, const float4 &of, float factor)
{
    const float v[4] = {of.x * factor, of.y * factor, of.z * factor, of.w * factor};
    if (width % 4 == 0 && i < width) {
        if (view.dtype == DTYPE_F32) {
            *reinterpret_cast<float4 *>(view.base + 4 * (at + i)) = make_float4(v[0], v[1], v[2], v[3]);
            return;
        }
        const bool half = view.dtype == DTYPE_F16;
        uint32_t bits[4];
        for (int j = 0; j < 4; j++) bits[j] = half ? to_half(v[j]) : to_bfloat(v[j]);
        *reinterpret_cast<uint2 *>(view.base + 2 * (at + i)) = make_uint2(bits[0] | bits[1] << 16, bits[2] | bits[3] << 16);
        return;
    }
    for (uint32_t j = 0; j < 4; j++)
        if (i + j < width) store(view, at + i + j, v[j]);
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
        for (uint32_t k = 0; k < PARTS; k++) write_four(view, at, threadIdx.x % 32 * 4 + k * 128, width, part[k], factor);
    }
};

KERNEL_FUNCTION_BLOCKS(sma_query, simt, 2)
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

// N at most 32 `parts`, P at most 64: eight lanes work on one (row, group), each with `parts` times four elements of q and of c and two times four of
// e, all loaded before the first use.
template <uint32_t parts> __device__ __forceinline__ void query_few(const sma_query_args &args, const CudaBindings &bindings, uint32_t dtypes)
{
    constexpr uint32_t share = 8, together = THREADS_sma_query_few / share; // tiles
    const View q = VIEW(sma_query, q), e = VIEW(sma_query, e), c = VIEW(sma_query, c);
    const uint32_t N = args.N, P = args.P, i = threadIdx.x % share * 4;
    const bool unit = args.flags & HAS_UNIT;
    const auto width = [](uint32_t at, uint32_t end, bool is) { return is && at < end ? end - at : 0u; };
    const auto squares = [](const float4 &v) { return v.x * v.x + v.y * v.y + (v.z * v.z + v.w * v.w); };
    const auto sum = [](float v) {
        for (int apart = share / 2; apart > 0; apart /= 2) v += __shfl_xor_sync(0xffffffffu, v, apart);
        return v;
    };
    // All lanes of a warp go round together, for the sums.
    for (uint64_t first = uint64_t(blockIdx.x) * together; first < args.tiles; first += uint64_t(gridDim.x) * together) {
        const uint64_t tile = first + threadIdx.x / share;
        const size_t row = tile / args.G, g = tile % args.G;
        const bool is = tile < args.tiles && uint32_t(row) % args.L < piece_of(INTS(sma_query, seq) + args.seq_at, args.flags, args.L,
                                                                               uint32_t(row) / args.L).count;
        const size_t q_at = args.q_at + row * args.q_row + g * N, e_at = args.e_at + row * args.e_row + g * P,
                     c_at = args.c_at + row * args.c_row + g * N;
        const bool e_aligned = multiples_of_4(args.e_at, args.e_row, P);
        const bool q_aligned = multiples_of_4(args.q_at, args.q_row, N), c_aligned = multiples_of_4(args.c_at, args.c_row, N);
        uint4 of_q[parts], of_c[parts];
#pragma unroll
        for (uint32_t k = 0; k < parts; k++) of_q[k] = fetch4(q, q_at + 32 * k + i, width(32 * k + i, N, is), q_aligned);
        const uint4 of_e0 = fetch4(e, e_at + i, width(i, P, is), e_aligned);
        const uint4 of_e1 = fetch4(e, e_at + 32 + i, width(32 + i, P, is), e_aligned);
#pragma unroll
        for (uint32_t k = 0; k < parts; k++) of_c[k] = fetch4(c, c_at + 32 * k + i, width(32 * k + i, N, is && unit), c_aligned);
        const float4 ve0 = unpack4(of_e0, e.dtype), ve1 = unpack4(of_e1, e.dtype);
        float4 vq[parts], vc[parts];
        float q_squares = 0.0f, most = 0.0f;
#pragma unroll
        for (uint32_t k = 0; k < parts; k++) {
            vq[k] = unpack4(of_q[k], q.dtype), vc[k] = unpack4(of_c[k], c.dtype);
            q_squares += squares(vq[k]);
            most = fmaxf(most, fmaxf(fmaxf(fabsf(vc[k].x), fabsf(vc[k].y)), fmaxf(fabsf(vc[k].z), fabsf(vc[k].w))));
        }
        float q_factor = 1.0f / (sqrtf(sum(q_squares) / float(N) + args.eps) * sqrtf(float(N)));
        float e_factor = 1.0f / sqrtf(sum(squares(ve0) + squares(ve1)) / float(P) + args.eps);
        for (int apart = share / 2; apart > 0; apart /= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, apart));
        if (!is) continue;
        if (unit) {
            const float q_power = power_below(q_factor), e_power = power_below(e_factor), c_power = power_below(1.0f / fmaxf(most, 0x1p-126f));
#pragma unroll
            for (uint32_t k = 0; k < parts; k++) write_four(VIEW(sma_query, read), tile * N, 32 * k + i, N, vc[k], c_power);
            if (i == 0)
                reinterpret_cast<float2 *>(FLOATS(sma_query, unit))[tile] = make_float2(q_factor / q_power * (e_factor / e_power), 1.0f / c_power);
            q_factor = q_power;
            e_factor = e_power;
        }
#pragma unroll
        for (uint32_t k = 0; k < parts; k++) write_four(VIEW(sma_query, qn), tile * N, 32 * k + i, N, vq[k], q_factor);
        write_four(VIEW(sma_query, en), tile * P, i, P, ve0, e_factor);
        write_four(VIEW(sma_query, en), tile * P, 32 + i, P, ve1, e_factor);
    }
}
KERNEL_FUNCTION_BLOCKS(sma_query, few, 4) { query_few<1>(args, bindings, dtypes); }
KERNEL_FUNCTION_BLOCKS(sma_query, few64, 4)
{
    static_assert(THREADS_sma_query_few64 == THREADS_sma_query_few, "the threads of one");
    query_few<2>(args, bindings, dtypes);
}

// 16-bit rows of one type for N 128, P 64, with HAS_UNIT: what a lane has of q, e and c is one load of each, all three before
// the first use, in 40 registers; the general kernel takes 71 and waits for one row before it asks for the next.
template <uint32_t dtype>
__device__ __forceinline__ void query_pairs(const sma_query_args &args, const CudaBindings &bindings)
{
    typedef attend::Pair<dtype> Pair;
    constexpr uint32_t N = 128, P = 64;
    const uint32_t lane = threadIdx.x % 32;
    const auto elements = [&](uint32_t binding) { return reinterpret_cast<uint16_t *>(bindings.address[binding]); };
    for (uint32_t tile = blockIdx.x * warps + threadIdx.x / 32; tile < args.tiles; tile += gridDim.x * warps) {
        const uint32_t g = tile % args.G, row = tile / args.G, b = row / args.L, t = row % args.L;
        if (t >= piece_of(INTS(sma_query, seq) + args.seq_at, args.flags, args.L, b).count) continue;
        const uint16_t *q_from = elements(BINDING_sma_query_q) + args.q_at + size_t(row) * args.q_row + g * N,
                       *c_from = elements(BINDING_sma_query_c) + args.c_at + size_t(row) * args.c_row + g * N,
                       *e_from = elements(BINDING_sma_query_e) + args.e_at + size_t(row) * args.e_row + g * P;
        const uint2 q = reinterpret_cast<const uint2 *>(q_from)[lane], c = reinterpret_cast<const uint2 *>(c_from)[lane];
        const uint32_t e = reinterpret_cast<const uint32_t *>(e_from)[lane];
        const float2 q0 = Pair::unpack(q.x), q1 = Pair::unpack(q.y), c0 = Pair::unpack(c.x), c1 = Pair::unpack(c.y),
                     e0 = Pair::unpack(e);
        const float q_squares = warp_sum(q0.x * q0.x + q0.y * q0.y + (q1.x * q1.x + q1.y * q1.y));
        const float e_squares = warp_sum(e0.x * e0.x + e0.y * e0.y);
        const float c_lane = fmaxf(fmaxf(fabsf(c0.x), fabsf(c0.y)), fmaxf(fabsf(c1.x), fabsf(c1.y)));
        const float c_most = __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(c_lane)));
        const float q_factor = 1.0f / (sqrtf(q_squares / float(N) + args.eps) * sqrtf(float(N)));
        const float e_factor = 1.0f / sqrtf(e_squares / float(P) + args.eps);
        const float q_power = power_below(q_factor), e_power = power_below(e_factor);
        const float c_power = power_below(1.0f / fmaxf(c_most, 0x1p-126f));
        const auto scaled = [](float2 v, float power) { return Pair::round(v.x * power, v.y * power); };
        const auto to = [&](uint32_t binding, uint32_t width) { return elements(binding) + size_t(tile) * width; };
        reinterpret_cast<uint2 *>(to(BINDING_sma_query_qn, N))[lane] = make_uint2(scaled(q0, q_power), scaled(q1, q_power));
        reinterpret_cast<uint2 *>(to(BINDING_sma_query_read, N))[lane] = make_uint2(scaled(c0, c_power), scaled(c1, c_power));
        reinterpret_cast<uint32_t *>(to(BINDING_sma_query_en, P))[lane] = scaled(e0, e_power);
        if (lane == 0)
            reinterpret_cast<float2 *>(FLOATS(sma_query, unit))[tile] =
                make_float2(q_factor / q_power * (e_factor / e_power), 1.0f / c_power);
    }
}
KERNEL_FUNCTION_BLOCKS(sma_query, n128_bf16, 6) { query_pairs<DTYPE_BF16>(args, bindings); }
KERNEL_FUNCTION_BLOCKS(sma_query, n128_f16, 6) { query_pairs<DTYPE_F16>(args, bindings); }
