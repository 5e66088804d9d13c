// ssd_backward_read on warp products, several heads a block: read[n, p] = sum_t exp(cum_t) c_t[n] up_y_t[p].
//
// A block walks over a run of neighbouring tiles (one head of one chunk each). A warp has 16 rows n, whose fragments of c, transposed, stay in
// registers for all heads of a group. up_y of the next two heads is on its way while one is multiplied; its rows are multiplied by exp(cum_t) and
// rounded once, by the threads that have copied them.
//
// Shared memory: three stages of up_y 96 KiB, two of which c passes through; two stages of factors 4 KiB.
#include "backward_tensor.cuh"

namespace ssd_backward_tensor {
namespace read_heads {

constexpr uint32_t stages = 3, rows_apart = threads / 8;
struct Shared {
    alignas(1024) char up[stages][tokens * tile_row];
    uint2 weight[2][tokens]; // factors_of a pair, of each token
    Run rest;                // of the block's tiles: what registers need not hold through all heads
};

} // namespace read_heads
} // namespace ssd_backward_tensor

KERNEL_FUNCTION_BLOCKS(ssd_backward_read, heads_bf16, 2)
{
    using namespace ssd_backward_tensor;
    using namespace ssd_backward_tensor::read_heads;
    static_assert(sizeof(Shared) <= SHARED_ssd_backward_read_heads_bf16 && THREADS_ssd_backward_read_heads_bf16 == threads, "the shape of the row");
    static_assert(TILE0_ssd_backward_read_heads_bf16 == 128 && TILE1_ssd_backward_read_heads_bf16 == 64, "a block has all rows and columns");
    static_assert(threads == tokens, "a thread has a token");
    Shared &shared = *reinterpret_cast<Shared *>(tensor_memory);
    const uint16_t *const c = HALVES(ssd_backward_read, c) + args.c_at, *const up_y = HALVES(ssd_backward_read, up_y) + args.up_y_at;
    const uint32_t warp = uniform(threadIdx.x / 32), lane = threadIdx.x % 32, N = args.N, P = args.P, n0 = 16 * warp;
    const uint32_t in_group = args.H / args.G;
    if (threadIdx.x == 0) shared.rest = run_of(args.tiles, in_group);
#pragma unroll 1
    for (;;) {
        __syncthreads(); // no warp still uses the stages of the last chunk
        const Run run = shared.rest;
        if (run.first >= run.end) break;
        const uint32_t tile = run.first, first = tile % args.H, heads = min(run.end - tile, in_group - first % in_group); // of a chunk and group
        __syncthreads();
        if (threadIdx.x == 0) shared.rest.first = tile + heads;
        const Place at = place_of(args, INTS(ssd_backward_read, seq) + args.seq_at, tile / args.H);
        if (at.size == 0) continue;
        const uint16_t *const from = c + at.token * args.c_row + size_t(first / in_group) * N;
        copy_tile<tokens, threads>(shared_address(shared.up[0]), from, args.c_row, at.size, threadIdx.x, min(N / 8, 8));
        copy_tile<tokens, threads>(shared_address(shared.up[1]), from + 64, args.c_row, at.size, threadIdx.x, N > 64 ? N / 8 - 8 : 0);
        copies_commit();

        const uint16_t *const up_from = up_y + at.token * args.up_y_row + size_t(first) * P;
        const auto copy = [&](uint32_t turn) {
            if (turn < heads)
                copy_tile<tokens, threads>(shared_address(shared.up[turn % stages]), up_from + turn * P, args.up_y_row, at.size, threadIdx.x, P / 8);
            copies_commit();
        };
        const float *const own_cum = cum_of(args, FLOATS(ssd_backward_read, cum), at, first) + min(threadIdx.x, at.size - 1) * CUM_STRIDE;
        float2 fetched = make_float2(0.0f, 0.0f);
        const auto fetch = [&](uint32_t turn) {
            if (turn < heads) fetched = cum_at(own_cum + size_t(turn) * at.span * CUM_STRIDE, 0);
        };
        const auto weigh = [&](uint32_t turn) {
            const float weight = decay_between(fetched, make_float2(0.0f, 0.0f));
            shared.weight[turn % 2][threadIdx.x] = factors_of<true>(weight, weight);
        };
        fetch(0);
        weigh(0);
        fetch(1);
        copies_landed<0>();
        __syncthreads();
        uint32_t left[tokens / 16][4];
#pragma unroll
        for (uint32_t k = 0; k < tokens / 16; k++)
            load_matrices_turned(left[k], shared_address(shared.up[warp / 4]) +
                                              tile_at(16 * k + lane % 8 + lane / 16 * 8, warp % 4 * 2 + lane / 8 % 2));
        __syncthreads();
        copy(0);
        copy(1);
#pragma unroll 1
        for (uint32_t turn = 0; turn < heads; turn++) {
            char *const up = shared.up[turn % stages];
            copies_landed<1>(); // a thread weighs what it has copied
#pragma unroll 4
            for (uint32_t i = 0; i < tokens / rows_apart; i++) {
                const uint32_t r = threadIdx.x / 8 + i * rows_apart;
                put16(up, r, threadIdx.x % 8, scale8<true>(get16(up, r, threadIdx.x % 8), shared.weight[turn % 2][r]));
            }
            if (turn + 1 < heads) weigh(turn + 1);
            __syncthreads();
            copy(turn + 2);
            fetch(turn + 2);
            if (n0 >= N) continue;

            float sums[32];
            clear(sums);
            const uint32_t right = shared_address(up) + tile_at(lane % 16, 0);
#pragma unroll
            for (uint32_t k = 0; k < tokens / 16; k++) {
                if (k % 4 == 0 && 16 * k >= at.size) break;
#pragma unroll
                for (uint32_t i = 0; i < 4; i++) {
                    uint32_t matrices[4];
                    load_matrices_turned(matrices, (right ^ (2 * i + lane / 16) << 4) + 16 * k * tile_row);
                    multiply_16<true>(sums + 8 * i, left[k], matrices);
                }
            }
            float *const to = FLOATS(ssd_backward_read, read) + ((at.slot * args.H + first + turn) * N + n0) * P;
#pragma unroll
            for (uint32_t i = 0; i < 16; i++) {
                const uint32_t n = lane / 4 + i % 2 * 8, p = i / 2 * 8 + lane % 4 * 2;
                if (p < P) *reinterpret_cast<float2 *>(to + n * P + p) = make_float2(sums[2 * i], sums[2 * i + 1]);
            }
        }
        copies_landed<0>();
    }
}
