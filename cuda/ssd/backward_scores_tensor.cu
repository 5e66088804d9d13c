// ssd_backward_scores on warp products: u_ts = exp(cum_t - cum_s) step_s (up_y_t . x_s) for s <= t, grad_cb = the sum of u over the heads of a group,
// z = u cb, and the shares of tiles of 32 x 32 in the sums of z. up_y and x are multiplied as they are; nothing here is rounded to 16 bits.
//
// A block makes 64 x 64 tokens of a (chunk, group), head after head; a warp 16 rows x 32 columns. The next head's rows are on their way
// while one is multiplied. Off the diagonal exp(cum_t - cum_s) step_s is a factor of the row times one of the column, with e the last token of the
// columns: exp(cum_t - cum_e) and exp(cum_e - cum_s) step_s.
//
// Shared memory: two stages of up_y and x 32 KiB, z of the tiles on the diagonal 8.3 KiB, sums and factors.
#include "backward_tensor.cuh"

namespace ssd_backward_tensor {
namespace scores {

struct Shared {
    alignas(1024) char up[2][side * tile_row];
    alignas(1024) char x[2][side * tile_row];
    float2 row_cum[2][side], column_cum[2][side];
    float step[2][side], row_factor[2][side], column_factor[2][side];
    float row_sums[2][side], column_sums[4][side]; // of halves of a row, of quarters of a column
    float z[2][SCORE_SIDE][SCORE_SIDE + 1];
};

// Sums of the values of lanes 0 .. lane - 1.
__device__ __forceinline__ float sum_before(float value)
{
    const uint32_t lane = threadIdx.x % 32;
    float sum = value;
#pragma unroll
    for (uint32_t apart = 1; apart < 32; apart *= 2) {
        const float other = __shfl_up_sync(0xffffffffu, sum, apart);
        if (lane >= apart) sum += other;
    }
    const float before = __shfl_up_sync(0xffffffffu, sum, 1);
    return lane > 0 ? before : 0.0f;
}
// Sums of the values of lanes lane .. 31.
__device__ __forceinline__ float sum_from(float value)
{
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (uint32_t apart = 1; apart < 32; apart *= 2) {
        const float other = __shfl_down_sync(0xffffffffu, value, apart);
        if (lane + apart < 32) value += other;
    }
    return value;
}
// Of lane r the sum over rows >= r and columns < r of a tile, which is overwritten.
__device__ __forceinline__ float sum_across(float (&z)[SCORE_SIDE][SCORE_SIDE + 1])
{
    const uint32_t lane = threadIdx.x % 32;
    float values[SCORE_SIDE], sum = 0.0f;
#pragma unroll
    for (uint32_t k = 0; k < SCORE_SIDE; k++) values[k] = z[lane][k];
#pragma unroll
    for (uint32_t k = 0; k < SCORE_SIDE; k++) {
        z[lane][k] = sum;
        sum += values[k];
    }
    __syncwarp();
#pragma unroll
    for (uint32_t k = 0; k < SCORE_SIDE; k++) values[k] = z[k][lane];
    sum = 0.0f;
#pragma unroll
    for (uint32_t k = 0; k < SCORE_SIDE; k++) sum += k >= lane ? values[k] : 0.0f;
    return sum;
}

} // namespace scores
} // namespace ssd_backward_tensor

KERNEL_FUNCTION_BLOCKS(ssd_backward_scores, tensor_bf16, 2)
{
    using namespace ssd_backward_tensor;
    using namespace ssd_backward_tensor::scores;
    static_assert(sizeof(Shared) <= SHARED_ssd_backward_scores_tensor_bf16, "shared memory");
    static_assert(TILE0_ssd_backward_scores_tensor_bf16 == side, "tile of the product");
    Shared &shared = *reinterpret_cast<Shared *>(tensor_memory);
    const uint16_t *x = HALVES(ssd_backward_scores, x) + args.x_at;
    const uint16_t *up_y = HALVES(ssd_backward_scores, up_y) + args.up_y_at;
    const float *cb = FLOATS(ssd_backward_scores, cb);
    float *grad_cb = FLOATS(ssd_backward_scores, grad_cb), *sums = FLOATS(ssd_backward_scores, sums);
    const uint32_t warp = uniform(threadIdx.x / 32), lane = threadIdx.x % 32, row = warp % 4 * 16 + lane / 4, column = warp / 4 * 32 + lane % 4 * 2;
    const uint32_t across = ceil_div(args.C, side), tile_pairs = across * (across + 1) / 2, halves_across = ceil_div(args.C, SCORE_SIDE);
    const uint32_t pairs = halves_across * (halves_across + 1) / 2, in_group = args.H / args.G;
    FOR_TILES(tile) {
        const uint2 pair = pair_of(tile % tile_pairs);
        const uint32_t t0 = pair.x * side, s0 = pair.y * side, g = tile / tile_pairs % args.G;
        const Place at = place_of(args, INTS(ssd_backward_scores, seq) + args.seq_at, tile / tile_pairs / args.G);
        if (t0 >= at.size) continue;
        const bool diagonal = t0 == s0;
        const size_t square = (at.slot * args.G + g) * args.C * args.C;
        float weights[16], grads[16] = {};
#pragma unroll
        for (uint32_t i = 0; i < 16; i++) {
            const uint32_t t = t0 + row + i / 2 % 2 * 8, s = s0 + column + i / 4 * 8 + i % 2;
            weights[i] = s <= t && t < at.size ? cb[square + size_t(t) * args.C + s] : 0.0f;
        }
        // The token of this thread: threads 0 to 63 have the rows, the next 64 the columns.
        const bool of_row = threadIdx.x < side;
        const uint32_t own = threadIdx.x % side, own_token = min((of_row ? t0 : s0) + own, at.size - 1);
        float2 own_cum = make_float2(0.0f, 0.0f), border = own_cum;
        float own_step = 0.0f;
        const auto fetch_cum = [&](uint32_t h) {
            if (threadIdx.x >= 2 * side) return;
            const float *cum = cum_of(args, FLOATS(ssd_backward_scores, cum), at, h);
            own_cum = cum_at(cum, own_token);
            own_step = cum[own_token * CUM_STRIDE + 2];
            if (!diagonal) border = cum_at(cum, s0 + side - 1);
        };
        const auto put_cum = [&](uint32_t stage) {
            if (threadIdx.x >= 2 * side) return;
            if (of_row) {
                shared.row_cum[stage][own] = own_cum;
                shared.row_factor[stage][own] = t0 + own < at.size ? decay_between(own_cum, border) : 0.0f;
            } else {
                shared.column_cum[stage][own] = own_cum;
                shared.step[stage][own] = own_step;
                shared.column_factor[stage][own] = decay_between(border, own_cum) * own_step;
            }
        };
        const auto copy = [&](uint32_t h, uint32_t stage) {
            copy_tile<side, threads>(shared_address(shared.up[stage]), up_y + (at.token + t0) * args.up_y_row + size_t(h) * args.P, args.up_y_row,
                                     at.size - t0, threadIdx.x, args.P / 8);
            copy_tile<side, threads>(shared_address(shared.x[stage]), x + (at.token + s0) * args.x_row + size_t(h) * args.P, args.x_row,
                                     at.size - s0, threadIdx.x, args.P / 8);
            copies_commit();
        };
        __syncthreads(); // no warp still uses the last tile's sums
        copy(g * in_group, 0);
        fetch_cum(g * in_group);
        put_cum(0);
        for (uint32_t turn = 0; turn < in_group; turn++) {
            const uint32_t h = g * in_group + turn, stage = turn % 2;
            const bool more = turn + 1 < in_group;
            if (more) copy(h + 1, 1 - stage);
            if (more) fetch_cum(h + 1);
            if (more) copies_wait<1>();
            else copies_wait<0>();
            __syncthreads();

            float acc[16] = {};
#pragma unroll
            for (uint32_t k = 0; k < 4; k++) {
                uint32_t left[4];
                left_rows(left, shared_address(shared.up[stage]), warp % 4 * 16, k);
                multiply_right_lines<2>(acc, left, shared_address(shared.x[stage]), warp / 4 * 32, k);
            }
            float row_parts[2] = {}, column_parts[8] = {};
#pragma unroll
            for (uint32_t i = 0; i < 16; i++) {
                const uint32_t r = row + i / 2 % 2 * 8, c = column + i / 4 * 8 + i % 2;
                float factor = shared.row_factor[stage][r] * shared.column_factor[stage][c];
                if (diagonal) {
                    const float own_factor = decay_between(shared.row_cum[stage][r], shared.column_cum[stage][c]) * shared.step[stage][c];
                    factor = c <= r && t0 + r < at.size ? own_factor : 0.0f;
                }
                const float u = factor * acc[i], z = u * weights[i];
                grads[i] += u;
                acc[i] = z;
                row_parts[i / 2 % 2] += z;
                column_parts[i / 4 * 2 + i % 2] += z;
            }
#pragma unroll
            for (uint32_t i = 0; i < 2; i++) {
                const float sum = row_sum(row_parts[i]);
                if (lane % 4 == 0) shared.row_sums[warp / 4][row + 8 * i] = sum;
            }
            add_halves<4>(column_parts, 16);
            add_halves<2>(column_parts, 8);
            add_halves<1>(column_parts, 4);
            {
                const uint32_t i = (lane & 16 ? 4 : 0) + (lane & 8 ? 2 : 0) + (lane & 4 ? 1 : 0);
                shared.column_sums[warp % 4][column + i / 2 * 8 + i % 2] = column_parts[0];
            }
            if (diagonal && warp / 4 == warp % 4 / 2) {
#pragma unroll
                for (uint32_t i = 0; i < 16; i++)
                    shared.z[warp / 4][row % SCORE_SIDE + i / 2 % 2 * 8][column % SCORE_SIDE + i / 4 * 8 + i % 2] = acc[i];
            }
            if (more) put_cum(1 - stage);
            __syncthreads();

            // A warp adds up one of two directions of one of the four tiles of 32 x 32.
            const uint32_t i = warp / 2 % 2, j = warp / 4, row_tile = t0 / SCORE_SIDE + i, column_tile = s0 / SCORE_SIDE + j;
            if (row_tile < halves_across && column_tile <= row_tile) {
                float *to = sums + ((at.slot * args.H + h) * pairs + row_tile * (row_tile + 1) / 2 + column_tile) * 64;
                if (row_tile == column_tile) {
                    if (warp % 2 == 0) to[lane] = sum_across(shared.z[i]);
                } else if (warp % 2 == 0) {
                    to[lane] = sum_from(shared.row_sums[j][SCORE_SIDE * i + lane]);
                } else {
                    const uint32_t c = SCORE_SIDE * j + lane;
                    to[SCORE_SIDE + lane] = sum_before(shared.column_sums[2 * i][c] + shared.column_sums[2 * i + 1][c]);
                }
            }
        }
#pragma unroll
        for (uint32_t i = 0; i < 16; i++) {
            const uint32_t t = t0 + row + i / 2 % 2 * 8, s = s0 + column + i / 4 * 8 + i % 2;
            if (t < at.size && s < at.size) grad_cb[square + size_t(t) * args.C + s] = grads[i];
        }
    }
}
