// y[t, o] (+)= sum_i x[t, i] weight[o, i].
// simt, simt_wide: a block computes T1 tokens x T0 outputs (see product.cuh).
// simt_few: a warp computes one output for up to T1 tokens, so that each weight is read once. simt_narrow: the same for few outputs of more tokens.
#include "lib/product.cuh"

template <int R>
__device__ __forceinline__ void linear_tiles(const linear_args &args, const View &x, const View &weight, const View &y)
{
    __shared__ Panels<R> panels;
    constexpr uint32_t side = Panels<R>::side;
    const uint32_t blocks = ceil_div(args.outputs, side);
    FOR_TILES(tile) {
        const uint32_t o0 = tile % blocks * side, t0 = tile / blocks * side;
        const Lines a = {x, args.x_at + size_t(t0) * args.x_row, args.x_row, args.rows - t0, args.inputs,
                         multiples_of_4(args.x_at, args.x_row)};
        const Lines b = {weight, args.weight_at + size_t(o0) * args.inputs, args.inputs, args.outputs - o0, args.inputs,
                         multiples_of_4(args.weight_at, args.inputs)};
        float acc[R][R];
        product_clear(acc);
        product(a, b, args.inputs, panels, acc);
#pragma unroll
        for (int i = 0; i < R; i++) {
            const uint32_t t = t0 + output_line(threadIdx.x / 16, i);
            if (t >= args.rows) continue;
#pragma unroll
            for (int j = 0; j < R; j++) {
                const uint32_t o = o0 + output_line(threadIdx.x % 16, j);
                if (o >= args.outputs) continue;
                const size_t at = args.y_at + size_t(t) * args.y_row + o;
                store(y, at, args.flags & IS_ADD ? load(y, at) + acc[i][j] : acc[i][j]);
            }
        }
    }
}

KERNEL_FUNCTION(linear, simt)
{
    static_assert(TILE0_linear_simt == Panels<4>::side && TILE1_linear_simt == Panels<4>::side, "tile of the product");
    linear_tiles<4>(args, VIEW(linear, x), VIEW(linear, weight), VIEW(linear, y));
}

KERNEL_FUNCTION(linear, simt_wide)
{
    static_assert(TILE0_linear_simt_wide == Panels<8>::side && TILE1_linear_simt_wide == Panels<8>::side,
                  "tile of the product");
    linear_tiles<8>(args, VIEW(linear, x), VIEW(linear, weight), VIEW(linear, y));
}

template <uint32_t dtype>
__device__ __forceinline__ void linear_few(const linear_args &args, const View &x, char *weights, const View &y)
{
    constexpr uint32_t T1 = TILE1_linear_simt_few;
    static_assert(TILE0_linear_simt_few == warps, "one warp per output");
    const View weight = {weights, dtype};
    const uint32_t blocks = ceil_div(args.outputs, warps), lane = threadIdx.x % 32;
    const bool x_aligned = multiples_of_4(args.x_at, args.x_row),
               w_aligned = multiples_of_4(args.weight_at, args.inputs);
    FOR_TILES(tile) {
        const uint32_t o = tile % blocks * warps + threadIdx.x / 32, t0 = tile / blocks * T1;
        if (o >= args.outputs) continue;
        const uint32_t rows = min(args.rows - t0, T1);
        const size_t line = args.weight_at + size_t(o) * args.inputs;
        float sum[T1] = {};
#pragma unroll 4
        for (uint32_t i = lane * 4; i < args.inputs; i += 128) {
            const float4 w = unpack4(fetch4(weight, line + i, args.inputs - i, w_aligned), dtype);
#pragma unroll
            for (uint32_t t = 0; t < T1; t++) {
                if (t >= rows) break;
                const float4 v = unpack4(
                    fetch4(x, args.x_at + size_t(t0 + t) * args.x_row + i, args.inputs - i, x_aligned), x.dtype);
                sum[t] = fmaf(w.x, v.x, fmaf(w.y, v.y, fmaf(w.z, v.z, fmaf(w.w, v.w, sum[t]))));
            }
        }
#pragma unroll
        for (uint32_t t = 0; t < T1; t++) {
            if (t >= rows) break;
            const float total = warp_sum(sum[t]);
            const size_t at = args.y_at + size_t(t0 + t) * args.y_row + o;
            if (lane == 0) store(y, at, args.flags & IS_ADD ? load(y, at) + total : total);
        }
    }
}

__device__ __forceinline__ void linear_few(const linear_args &args, const View &x, const View &weight, const View &y)
{
    switch (weight.dtype) {
    case DTYPE_F32: linear_few<DTYPE_F32>(args, x, weight.base, y); break;
    case DTYPE_F16: linear_few<DTYPE_F16>(args, x, weight.base, y); break;
    default: linear_few<DTYPE_BF16>(args, x, weight.base, y); break;
    }
}

KERNEL_FUNCTION(linear, simt_few) { linear_few(args, VIEW(linear, x), VIEW(linear, weight), VIEW(linear, y)); }

KERNEL_FUNCTION(linear, simt_narrow)
{
    static_assert(TILE0_linear_simt_narrow == TILE0_linear_simt_few && TILE1_linear_simt_narrow == TILE1_linear_simt_few, "one function");
    linear_few(args, VIEW(linear, x), VIEW(linear, weight), VIEW(linear, y));
}
