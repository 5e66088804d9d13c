// For chunks that close: s = sqrt(mean_p dh^2 + eps), to = dh / s, scale = s. A block works on T0 rows of N of one
// (sequence, chunk, head), a warp on one.
#ifndef DART_SMA_APPEND_CUH
#define DART_SMA_APPEND_CUH

#include "lib/dart.cuh"

// always_waits: false where other blocks of the launch wait for its predecessors (CUDA_EARLY). If no block of a launch waited, it could end before
// its predecessors, and the next launch would start too early.
template <bool always_waits>
__device__ __forceinline__ void sma_append_run(const sma_append_args &args, const CudaBindings &bindings, uint32_t dtypes, Blocks blocks_of)
{
    constexpr uint32_t T0 = TILE0_sma_append_simt;
    static_assert(T0 == warps, "a warp per row");
    const View dh = VIEW(sma_append, dh), to = VIEW(sma_append, to);
    float *scale = FLOATS(sma_append, scale);
    const uint32_t blocks = ceil_div(args.N, T0), lane = threadIdx.x % 32;
    if (!always_waits && args.B == 1 && args.M == 1) {
        const Piece only = piece_early(INTS(sma_append, seq) + args.seq_at, args.flags, args.L, 0);
        if (!chunk_of(only, args.S, 0).closes) return;
    }
    predecessors_wait();
    successors_begin();
    FOR_TILES_OF(tile, blocks_of) {
        const uint32_t n = tile % blocks * T0 + threadIdx.x / 32, h = tile / blocks % args.H,
                       rest = tile / blocks / args.H;
        const uint32_t j = rest % args.M, b = rest / args.M;
        const Piece piece = piece_of(INTS(sma_append, seq) + args.seq_at, args.flags, args.L, b);
        const uint32_t m = piece.position / args.S + j;
        if (n >= args.N || !chunk_of(piece, args.S, j).closes || m < args.first || m - args.first >= args.count)
            continue;
        const size_t from = ((size_t(b) * args.M + j) * args.H + h) * args.N + n;
        const size_t row = ((size_t(b) * args.capacity + (m - args.first)) * args.H + h) * args.N + n;
        float square = 0.0f;
        for (uint32_t p = lane; p < args.P; p += 32) {
            const float v = load(dh, args.dh_at + from * args.P + p);
            square += v * v;
        }
        const float s = sqrtf(warp_sum(square) / float(args.P) + args.eps);
        for (uint32_t p = lane; p < args.P; p += 32) {
            store(to, args.to_at + row * args.P + p, load(dh, args.dh_at + from * args.P + p) / s);
        }
        if (lane == 0) scale[args.scale_at + row] = s;
    }
}

#endif
