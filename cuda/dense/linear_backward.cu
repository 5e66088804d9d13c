// linear_backward_x: grad_x[part, t, i] (+)= the sum of up_y[t, o] weight[o, i] over the part's outputs o. A block computes T1 rows x T0 inputs
// of a part (see product.cuh).
// linear_backward_weight: grad_weight[part, o, i] (+)= the sum of up_y[t, o] x[t, i] over the part's rows t. A block computes T1 outputs
// x T0 inputs of a part.
#include "lib/product.cuh"

template <int R>
__device__ __forceinline__ void product_store(const View &to, size_t at, uint32_t row, uint32_t lines, uint32_t columns, bool add, float (&acc)[R][R])
{
#pragma unroll
    for (int i = 0; i < R; i++) {
        const uint32_t line = output_line(threadIdx.x / 16, i);
        if (line >= lines) continue;
#pragma unroll
        for (int j = 0; j < R; j++) {
            const uint32_t column = output_line(threadIdx.x % 16, j);
            if (column >= columns) continue;
            const size_t k = at + size_t(line) * row + column;
            store(to, k, add ? load(to, k) + acc[i][j] : acc[i][j]);
        }
    }
}

template <int R>
__device__ __forceinline__ void backward_x(const linear_backward_x_args &args, const View &up_y, const View &weight, const View &grad_x)
{
    __shared__ Panels<R> panels;
    constexpr uint32_t side = Panels<R>::side;
    const uint32_t blocks = ceil_div(args.inputs, side), t_blocks = ceil_div(args.rows, side);
    FOR_TILES(tile) {
        const uint32_t i0 = tile % blocks * side, t0 = tile / blocks % t_blocks * side, part = tile / blocks / t_blocks;
        const uint32_t begin = part * args.share, outputs = min(args.share, args.outputs - begin);
        const Lines a = {up_y, args.up_y_at + size_t(t0) * args.up_y_row + begin, args.up_y_row, args.rows - t0, outputs,
                         multiples_of_4(args.up_y_at + begin, args.up_y_row)};
        const Columns b = {weight, args.weight_at + size_t(begin) * args.inputs + i0, args.inputs, args.inputs - i0, outputs,
                           multiples_of_4(args.weight_at, args.inputs)};
        float acc[R][R];
        product_clear(acc);
        product(a, b, outputs, panels, acc);
        product_store(grad_x, args.grad_x_at + (size_t(part) * args.rows + t0) * args.grad_x_row + i0, args.grad_x_row, args.rows - t0,
                      args.inputs - i0, args.flags & IS_ADD, acc);
    }
}

KERNEL_FUNCTION(linear_backward_x, simt)
{
    static_assert(TILE0_linear_backward_x_simt == Panels<4>::side && TILE1_linear_backward_x_simt == Panels<4>::side, "tile of the product");
    backward_x<4>(args, VIEW(linear_backward_x, up_y), VIEW(linear_backward_x, weight), VIEW(linear_backward_x, grad_x));
}

KERNEL_FUNCTION(linear_backward_x, simt_wide)
{
    static_assert(TILE0_linear_backward_x_simt_wide == Panels<8>::side && TILE1_linear_backward_x_simt_wide == Panels<8>::side,
                  "tile of the product");
    backward_x<8>(args, VIEW(linear_backward_x, up_y), VIEW(linear_backward_x, weight), VIEW(linear_backward_x, grad_x));
}

KERNEL_FUNCTION(linear_backward_weight, simt)
{
    constexpr uint32_t side = Panels<4>::side;
    static_assert(TILE0_linear_backward_weight_simt == side && TILE1_linear_backward_weight_simt == side, "tile of the product");
    __shared__ Panels<4> panels;
    const View up_y = VIEW(linear_backward_weight, up_y), x = VIEW(linear_backward_weight, x), grad = VIEW(linear_backward_weight, grad_weight);
    const uint32_t i_blocks = ceil_div(args.inputs, side), o_blocks = ceil_div(args.outputs, side);
    FOR_TILES(tile) {
        const uint32_t i0 = tile % i_blocks * side, o0 = tile / i_blocks % o_blocks * side, part = tile / i_blocks / o_blocks;
        const uint32_t begin = part * args.share, rows = min(args.share, args.rows - begin);
        const Columns a = {up_y, args.up_y_at + size_t(begin) * args.up_y_row + o0, args.up_y_row, args.outputs - o0, rows,
                           multiples_of_4(args.up_y_at, args.up_y_row)};
        const Columns b = {x, args.x_at + size_t(begin) * args.x_row + i0, args.x_row, args.inputs - i0, rows,
                           multiples_of_4(args.x_at, args.x_row)};
        float acc[4][4];
        product_clear(acc);
        product(a, b, rows, panels, acc);
        product_store(grad, args.grad_weight_at + (size_t(part) * args.outputs + o0) * args.inputs + i0, args.inputs, args.outputs - o0,
                      args.inputs - i0, args.flags & IS_ADD, acc);
    }
}
