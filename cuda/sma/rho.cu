// rho[i] = (mean_p dh[i, p]^2 + eps)^(-1/2). A block works on T0 consecutive rows, a warp on one.
#include "lib/dart.cuh"

KERNEL_FUNCTION(sma_rho, simt)
{
    static_assert(TILE0_sma_rho_simt == warps, "a warp per row");
    const View dh = VIEW(sma_rho, dh);
    float *rho = FLOATS(sma_rho, rho);
    const uint32_t lane = threadIdx.x % 32;
    FOR_TILES(tile) {
        const size_t row = size_t(tile) * TILE0_sma_rho_simt + threadIdx.x / 32;
        if (row >= args.rows) continue;
        float square = 0.0f;
        for (uint32_t p = lane; p < args.P; p += 32) {
            const float v = load(dh, args.dh_at + row * args.P + p);
            square += v * v;
        }
        square = warp_sum(square);
        if (lane == 0) rho[row] = 1.0f / sqrtf(square / float(args.P) + args.eps);
    }
}
