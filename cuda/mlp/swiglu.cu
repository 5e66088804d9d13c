// swiglu: h = SiLU(a) u. swiglu_backward: grad_a = up_h u SiLU'(a), grad_u = up_h SiLU(a). A block takes T0 consecutive elements, counted row by
// row.
#include "lib/dart.cuh"
#include "lib/slope.cuh"

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
