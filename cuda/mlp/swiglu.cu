// swiglu: h = SiLU(a) u. swiglu_backward: grad_a = up_h u SiLU'(a), grad_u = up_h SiLU(a). A block takes T0 consecutive elements, counted row by
// row; rows `eight` of the table do so in words of 16 bytes, for a width that is a multiple of 16.
#include "lib/eight.cuh"

KERNEL_FUNCTION(swiglu, simt)
{
    constexpr uint32_t T0 = TILE0_swiglu_simt;
    const View a = VIEW(swiglu, a), u = VIEW(swiglu, u), h = VIEW(swiglu, h);
    FOR_TILES(tile) {
        for (uint32_t e = threadIdx.x; e < T0; e += block_size) {
            const uint64_t element = uint64_t(tile) * T0 + e, row = element / args.width, i = element % args.width;
            if (row >= args.rows) continue;
            store(h, size_t(args.h_at + row * args.h_row + i),
                  silu(load(a, size_t(args.a_at + row * args.a_row + i))) * load(u, size_t(args.u_at + row * args.u_row + i)));
        }
    }
}

KERNEL_FUNCTION(swiglu_backward, simt)
{
    constexpr uint32_t T0 = TILE0_swiglu_backward_simt;
    const View a = VIEW(swiglu_backward, a), u = VIEW(swiglu_backward, u), up_h = VIEW(swiglu_backward, up_h);
    const View grad_a = VIEW(swiglu_backward, grad_a), grad_u = VIEW(swiglu_backward, grad_u);
    FOR_TILES(tile) {
        for (uint32_t e = threadIdx.x; e < T0; e += block_size) {
            const uint64_t element = uint64_t(tile) * T0 + e, row = element / args.width, i = element % args.width;
            if (row >= args.rows) continue;
            const Slope at = silu_slope(load(a, size_t(args.a_at + row * args.a_row + i)));
            const float up = load(up_h, size_t(args.up_h_at + row * args.up_h_row + i));
            store(grad_a, size_t(args.grad_a_at + row * args.grad_a_row + i), up * load(u, size_t(args.u_at + row * args.u_row + i)) * at.slope);
            store(grad_u, size_t(args.grad_u_at + row * args.grad_u_row + i), up * at.value);
        }
    }
}

// Where the thread's word `pass` of the tile lies: its row, and its first column.
struct EightPlace { size_t row; uint32_t column; };
template <uint32_t T0> __device__ __forceinline__ EightPlace eight_place(uint32_t tile, uint32_t pass, uint32_t width)
{
    const uint32_t eights = width / 8;
    const uint64_t first = uint64_t(tile) * (T0 / 8), row = first / eights; // the same in every thread
    const uint32_t k = uint32_t(first - row * eights) + pass * block_size + threadIdx.x;
    return {size_t(row + k / eights), k % eights * 8};
}

KERNEL_FUNCTION(swiglu, eight)
{
    constexpr uint32_t T0 = TILE0_swiglu_eight;
    const View a = VIEW(swiglu, a), u = VIEW(swiglu, u), h = VIEW(swiglu, h);
    FOR_TILES(tile) {
#pragma unroll
        for (uint32_t pass = 0; pass < T0 / 8 / block_size; pass++) {
            const EightPlace at = eight_place<T0>(tile, pass, args.width);
            if (at.row >= args.rows) continue;
            float v[8], other[8];
            const Words a_words = fetch8(a, args.a_at + at.row * args.a_row + at.column);
            const Words u_words = fetch8(u, args.u_at + at.row * args.u_row + at.column);
            unpack8(a_words, a.dtype, v);
            unpack8(u_words, u.dtype, other);
            if (h.dtype != DTYPE_F32) {
#pragma unroll
                for (uint32_t k = 0; k < 8; k++) v[k] = silu_for(true, v[k]) * other[k];
            } else {
#pragma unroll
                for (uint32_t k = 0; k < 8; k++) v[k] = silu(v[k]) * other[k];
            }
            store8(h, args.h_at + at.row * args.h_row + at.column, v);
        }
    }
}

KERNEL_FUNCTION(swiglu_backward, eight)
{
    constexpr uint32_t T0 = TILE0_swiglu_backward_eight;
    const View a = VIEW(swiglu_backward, a), u = VIEW(swiglu_backward, u), up_h = VIEW(swiglu_backward, up_h);
    const View grad_a = VIEW(swiglu_backward, grad_a), grad_u = VIEW(swiglu_backward, grad_u);
    const bool half = grad_a.dtype != DTYPE_F32 && grad_u.dtype != DTYPE_F32;
    FOR_TILES(tile) {
#pragma unroll
        for (uint32_t pass = 0; pass < T0 / 8 / block_size; pass++) {
            const EightPlace at = eight_place<T0>(tile, pass, args.width);
            if (at.row >= args.rows) continue;
            float v[8], other[8], up[8];
            const Words a_words = fetch8(a, args.a_at + at.row * args.a_row + at.column);
            const Words u_words = fetch8(u, args.u_at + at.row * args.u_row + at.column);
            const Words up_words = fetch8(up_h, args.up_h_at + at.row * args.up_h_row + at.column);
            unpack8(a_words, a.dtype, v);
            unpack8(u_words, u.dtype, other);
            unpack8(up_words, up_h.dtype, up);
            if (half) {
#pragma unroll
                for (uint32_t k = 0; k < 8; k++) {
                    const Slope slope = silu_slope_for(true, v[k]);
                    v[k] = up[k] * other[k] * slope.slope;
                    other[k] = up[k] * slope.value;
                }
            } else {
#pragma unroll
                for (uint32_t k = 0; k < 8; k++) {
                    const Slope slope = silu_slope(v[k]);
                    v[k] = up[k] * other[k] * slope.slope;
                    other[k] = up[k] * slope.value;
                }
            }
            store8(grad_a, args.grad_a_at + at.row * args.grad_a_row + at.column, v);
            store8(grad_u, args.grad_u_at + at.row * args.grad_u_row + at.column, other);
        }
    }
}
