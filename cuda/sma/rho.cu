// rho[i] = (mean_p dh[i, p]^2 + eps)^(-1/2). A block works on T0 consecutive rows.
#include "lib/eight.cuh"

__device__ __forceinline__ float rho_of(float squares, const sma_rho_args &args) { return 1.0f / sqrtf(squares / float(args.P) + args.eps); }

// P a multiple of 8, in words of 16 bytes: a team of threads takes a row, and each thread has words of four rows under way at once.
KERNEL_FUNCTION(sma_rho, 16bit)
{
    constexpr uint32_t T0 = TILE0_sma_rho_16bit, ahead = 4;
    static_assert(T0 % 128 == 0 && block_size == 256, "the teams of a block, at most 128, divide T0");
    const View dh = VIEW(sma_rho, dh);
    float *rho = FLOATS(sma_rho, rho);
    const uint32_t team = team_of(args.P), teams = block_size / team, column = threadIdx.x % team * 8;
    FOR_TILES(tile) {
        const uint32_t rows = min(T0, args.rows - tile * T0);
        for (uint32_t first = threadIdx.x / team; first < T0; first += ahead * teams) {
            Words words[ahead];
#pragma unroll
            for (uint32_t k = 0; k < ahead; k++) {
                const uint32_t row = first + k * teams;
                words[k] = row < rows && column < args.P ? fetch8(dh, args.dh_at + (size_t(tile) * T0 + row) * args.P + column) : no_words();
            }
#pragma unroll
            for (uint32_t k = 0; k < ahead; k++) {
                const uint32_t row = first + k * teams;
                float v[8], squares = 0.0f;
                unpack8(words[k], dh.dtype, v);
#pragma unroll
                for (uint32_t i = 0; i < 8; i++) squares = fmaf(v[i], v[i], squares);
                squares = team_sum(squares, team);
                if (column == 0 && row < rows) rho[size_t(tile) * T0 + row] = rho_of(squares, args);
            }
        }
    }
}

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
        if (lane == 0) rho[row] = rho_of(square, args);
    }
}
