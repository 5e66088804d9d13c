// ssd_backward_scores on warp products, a tile of 32 x 32 tokens a warp: u_ts = exp(cum_t - cum_s) step_s (up_y_t . x_s) for s <= t, grad_cb = the
// sum of u over the heads of a group, z = u cb, and the shares of tiles of 32 x 32 in the sums of z. up_y and x are multiplied as they are;
// nothing here is rounded to 16 bits.
//
// A block of four warps makes 64 x 64 tokens of a (chunk, group), head after head. A tile of sums is one warp's, so that its shares need no other
// warp: one barrier a head is for the copies. Below the diagonal exp(cum_t - cum_s) step_s is a factor of the row times one of the column, with e
// the last token of the tile's columns: exp(cum_t - cum_e) and exp(cum_e - cum_s) step_s. Sums over columns take the column's factor once, when
// all rows are added up. On the diagonal each element has its own exponential, and each row of z is replaced by the sums of the columns before
// each. The tile above the diagonal has nothing to do but its copies.
//
// The next head's rows are on their way while one is multiplied.
//
// Shared memory: two stages of up_y and x 32 KiB, c.b 16 KiB, cum and factors 8 KiB.
#include "backward_tensor.cuh"

namespace ssd_backward_tensor {
namespace scores_warps {

constexpr uint32_t block_threads = 128;

template <bool on_diagonal> struct Where { static constexpr bool value = on_diagonal; };

struct Shared {
    alignas(1024) char up[2][side * tile_row];
    alignas(1024) char x[2][side * tile_row];
    float2 weights[16][block_threads]; // c.b of each thread's pairs of columns
    float fetched[7][block_threads]; // cum on its way to the thread that makes factors of it
    float2 row_cum[2][side], column_cum[2][side];
    float step[2][side], column_factor[2][side], row_factor[2][2][side]; // the latter for both tiles of columns
};

// Asynchronous copy of 4 bytes.
__device__ __forceinline__ void copy_float(uint32_t to, const float *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

// threadIdx.x through a volatile asm: what is computed from it is computed again for each head. Held in registers from head to head, it would push
// sums to local memory.
__device__ __forceinline__ uint32_t thread_now()
{
    uint32_t thread = threadIdx.x;
    asm volatile("" : "+r"(thread));
    return thread;
}

// 16 x 32 of up_y x^T: [4 i + 2 j + q] of row g + 8 j, column 8 i + 2 c + q. up and x: this lane's addresses of the first 16 of depth.
__device__ __forceinline__ void multiply_rows(float (&sums)[16], uint32_t up, uint32_t x)
{
#pragma unroll
    for (uint32_t k = 0; k < 4; k++) {
        uint32_t left[4];
        load_matrices(left, up ^ k << 5);
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            uint32_t right[4];
            load_matrices(right, (x ^ k << 5) + 16 * i * tile_row);
            multiply_16<true>(sums + 8 * i, left, right);
        }
    }
}

__device__ __forceinline__ void run(const ssd_backward_scores_args &args, const CudaBindings &bindings)
{
    Shared &shared = *reinterpret_cast<Shared *>(tensor_memory);
    const uint16_t *x = HALVES(ssd_backward_scores, x) + args.x_at;
    const uint16_t *up_y = HALVES(ssd_backward_scores, up_y) + args.up_y_at;
    const float *cb = FLOATS(ssd_backward_scores, cb);
    float *grad_cb = FLOATS(ssd_backward_scores, grad_cb), *sums = FLOATS(ssd_backward_scores, sums);
    // The warp's tile is row_half, column_half of the block's; row and column are the lane's first ones.
    const uint32_t warp = uniform(threadIdx.x / 32), lane = threadIdx.x % 32, row_half = warp % 2, column_half = warp / 2;
    const uint32_t row = row_half * SCORE_SIDE + lane / 4, column = column_half * SCORE_SIDE + lane % 4 * 2;
    const uint32_t across = ceil_div(args.C, side), tile_pairs = across * (across + 1) / 2, halves_across = ceil_div(args.C, SCORE_SIDE);
    const uint32_t pairs = halves_across * (halves_across + 1) / 2, heads = args.H / args.G;
    FOR_TILES(tile) {
        const uint2 pair = pair_of(tile % tile_pairs);
        const uint32_t t0 = pair.x * side, s0 = pair.y * side, g = tile / tile_pairs % args.G;
        const Place at = place_of(args, INTS(ssd_backward_scores, seq) + args.seq_at, tile / tile_pairs / args.G);
        if (t0 >= at.size) continue;
        const bool diagonal = t0 == s0, crosses = diagonal && row_half == column_half, idle = diagonal && row_half < column_half;
        const size_t square = (at.slot * args.G + g) * args.C * args.C;
        float grads[32];
        clear(grads);
        __syncthreads(); // no warp still uses the last tile's copies and factors
        const float *const own_cb = cb + square;
        const auto weight = [&](uint32_t t, uint32_t s) { return s <= t && t < at.size ? own_cb[t * args.C + s] : 0.0f; };
#pragma unroll 8
        for (uint32_t i = 0; i < 16; i++) { // of row i / 4, columns i % 4
            const uint32_t t = t0 + row + i / 4 * 8, s = s0 + column + i % 4 * 8;
            shared.weights[i][threadIdx.x] = make_float2(weight(t, s), weight(t, s + 1));
        }
        // Each thread has a row, for one of the tiles of columns; the first two warps have a column, too, and a tile of columns each.
        const uint32_t own = threadIdx.x % side, of_half = threadIdx.x / side;
        const float *const first_cum = cum_of(args, FLOATS(ssd_backward_scores, cum), at, g * heads);
        const auto fetch_cum = [&](uint32_t head) {
            const float *cum = first_cum + size_t(head) * at.span * CUM_STRIDE;
            const uint32_t me = thread_now(), to = shared_address(&shared.fetched[0][me]);
            const uint32_t own_row = min(t0 + me % side, at.size - 1), own_column = min(s0 + me % side, at.size - 1);
            const uint32_t last_column = min(s0 + me / side * SCORE_SIDE + SCORE_SIDE - 1, at.size - 1); // of the tile of columns
            constexpr uint32_t apart = block_threads * sizeof(float);
#pragma unroll
            for (uint32_t i = 0; i < 2; i++) {
                copy_float(to + i * apart, cum + own_row * CUM_STRIDE + i);
                copy_float(to + (2 + i) * apart, cum + last_column * CUM_STRIDE + i);
            }
            if (of_half != 0) return;
#pragma unroll
            for (uint32_t i = 0; i < 3; i++) copy_float(to + (4 + i) * apart, cum + own_column * CUM_STRIDE + i);
        };
        const auto put_cum = [&](uint32_t stage) {
            const float(&own_cum)[7][block_threads] = shared.fetched;
            const float2 row_cum = make_float2(own_cum[0][threadIdx.x], own_cum[1][threadIdx.x]);
            const float2 border = make_float2(own_cum[2][threadIdx.x], own_cum[3][threadIdx.x]);
            shared.row_factor[stage][of_half][own] = t0 + own < at.size ? decay_between(row_cum, border) : 0.0f;
            if (of_half != 0) return;
            const float2 column_cum = make_float2(own_cum[4][threadIdx.x], own_cum[5][threadIdx.x]);
            const float column_step = own_cum[6][threadIdx.x];
            const float2 last = make_float2(__shfl_sync(0xffffffffu, column_cum.x, 31), __shfl_sync(0xffffffffu, column_cum.y, 31));
            shared.column_factor[stage][own] = decay_between(last, column_cum) * column_step;
            if (!diagonal) return;
            shared.row_cum[stage][own] = row_cum;
            shared.column_cum[stage][own] = column_cum;
            shared.step[stage][own] = column_step;
        };
        // Half of the threads copy up_y, the others x.
        const bool copies_x = threadIdx.x >= block_threads / 2;
        const uint32_t copied_row = copies_x ? args.x_row : args.up_y_row, copied_to = shared_address(copies_x ? shared.x[0] : shared.up[0]);
        const uint16_t *const copied = (copies_x ? x : up_y) + (at.token + (copies_x ? s0 : t0)) * copied_row + size_t(g) * heads * args.P;
        const auto copy = [&](uint32_t head) {
            if (head < heads) {
                copy_tile<side, block_threads / 2>(copied_to + head % 2 * (side * tile_row), copied + size_t(head) * args.P, copied_row,
                                                   at.size - (copies_x ? s0 : t0), threadIdx.x % (block_threads / 2), args.P / 8);
                fetch_cum(head);
            }
            copies_commit();
        };
        // Where the warp's shares of the first head go; nowhere where the tile is above the diagonal or beyond C.
        const uint32_t row_tile = t0 / SCORE_SIDE + row_half, column_tile = s0 / SCORE_SIDE + column_half;
        const bool shares = row_tile < halves_across && column_tile <= row_tile;
        float *to = sums + ((at.slot * args.H + size_t(g) * heads) * pairs + row_tile * (row_tile + 1) / 2 + column_tile) * 64;

        copy(0);
        copies_landed<0>();
        put_cum(0);
        // Compiled apart for tiles on the diagonal, whose warps come to the same barriers elsewhere.
        const auto walk = [&](auto where) {
            constexpr bool on_diagonal = decltype(where)::value;
#pragma unroll 1
            for (uint32_t head = 0; head < heads; head++, to += pairs * 64) {
                const uint32_t stage = head % 2;
                __syncthreads();
                copy(head + 1); // in place of the head before
                if (!idle) {
                    const uint32_t now = thread_now() % 32;
                    const uint32_t left_at = shared_address(shared.up[stage]) + tile_at(row_half * SCORE_SIDE + now % 16, now / 16);
                    const uint32_t right_at =
                        shared_address(shared.x[stage]) + tile_at(column_half * SCORE_SIDE + now % 8 + now / 16 * 8, now / 8 % 2);
                    float row_parts[4] = {}, column_parts[8] = {};
#pragma unroll
                    for (uint32_t m = 0; m < 2; m++) { // of 16 rows
                        float acc[16] = {};
                        multiply_rows(acc, left_at + 16 * m * tile_row, right_at);
#pragma unroll
                        for (uint32_t j = 0; j < 2; j++) {
                            const uint32_t r = 2 * m + j, own_row = row + 8 * r;
                            if constexpr (!on_diagonal) {
                                const float factor = shared.row_factor[stage][column_half][own_row];
#pragma unroll
                                for (uint32_t i = 0; i < 4; i++) {
                                    const float2 weights = shared.weights[4 * r + i][threadIdx.x];
                                    const float2 keys = *reinterpret_cast<const float2 *>(&shared.column_factor[stage][column + 8 * i]);
                                    const float left = factor * acc[4 * i + 2 * j], right = factor * acc[4 * i + 2 * j + 1];
                                    grads[8 * r + 2 * i] = fmaf(left, keys.x, grads[8 * r + 2 * i]);
                                    grads[8 * r + 2 * i + 1] = fmaf(right, keys.y, grads[8 * r + 2 * i + 1]);
                                    const float first = left * weights.x, second = right * weights.y;
                                    row_parts[r] = fmaf(first, keys.x, fmaf(second, keys.y, row_parts[r]));
                                    column_parts[2 * i] += first;
                                    column_parts[2 * i + 1] += second;
                                }
                            } else {
                                const float2 own_cum = shared.row_cum[stage][own_row];
                                float z[8];
#pragma unroll
                                for (uint32_t i = 0; i < 8; i++) {
                                    const uint32_t own_column = column + i / 2 * 8 + i % 2;
                                    const float2 weights = shared.weights[4 * r + i / 2][threadIdx.x];
                                    const float factor =
                                        decay_between(own_cum, shared.column_cum[stage][own_column]) * shared.step[stage][own_column];
                                    const float u = own_column <= own_row && t0 + own_row < at.size ? factor * acc[i / 2 * 4 + 2 * j + i % 2] : 0.0f;
                                    grads[8 * r + i] += u;
                                    z[i] = u * (i % 2 == 0 ? weights.x : weights.y);
                                }
                                sum_columns_before(z);
#pragma unroll
                                for (uint32_t i = 0; i < 8; i++)
                                    if (column + i / 2 * 8 + i % 2 <= own_row) column_parts[i] += z[i];
                            }
                        }
                    }
                    add_halves<4>(column_parts, 16);
                    add_halves<2>(column_parts, 8);
                    add_halves<1>(column_parts, 4);
                    // A lane has now the sum of column 2 c + 8 (2 b4 + b3) + b2, b4 to b2 the upper bits of its number; of rows that of row 8 c + g.
                    const uint32_t own_lane = thread_now() % 32, its_column = own_lane % 4 * 2 + own_lane / 8 * 8 + own_lane / 4 % 2;
                    if constexpr (on_diagonal) {
                        if (shares) to[its_column] = column_parts[0];
                    } else {
                        add_halves<2>(row_parts, 2);
                        add_halves<1>(row_parts, 1);
                        const float of_column = column_parts[0] * shared.column_factor[stage][column_half * SCORE_SIDE + its_column];
                        const uint32_t with_column = own_lane / 8 * 8 + own_lane % 2 * 4 + own_lane / 2 % 4;
                        const uint32_t with_row = own_lane % 8 * 4 + own_lane / 8;
                        const float of_rows = sum_from(__shfl_sync(0xffffffffu, row_parts[0], with_row));
                        const float of_columns = sum_before(__shfl_sync(0xffffffffu, of_column, with_column));
                        if (shares) {
                            to[own_lane] = of_rows;
                            to[SCORE_SIDE + own_lane] = of_columns;
                        }
                    }
                }
                copies_landed<0>();
                if (head + 1 < heads) put_cum(1 - stage);
            }
        };
        if (crosses) walk(Where<true>());
        else walk(Where<false>());
        float *const to_cb = grad_cb + square;
        const uint32_t thread = thread_now(), t_own = t0 + thread / 32 % 2 * SCORE_SIDE + thread % 32 / 4;
        const uint32_t s_own = s0 + thread / 64 * SCORE_SIDE + thread % 4 * 2;
#pragma unroll
        for (uint32_t i = 0; i < 32; i++) {
            const uint32_t t = t_own + i / 8 * 8, s = s_own + i / 2 % 4 * 8 + i % 2;
            if (t < at.size && s < at.size) to_cb[t * args.C + s] = grads[i];
        }
    }
}

} // namespace scores_warps
} // namespace ssd_backward_tensor

KERNEL_FUNCTION_BLOCKS(ssd_backward_scores, warps_bf16, 4)
{
    using namespace ssd_backward_tensor;
    static_assert(THREADS_ssd_backward_scores_warps_bf16 == scores_warps::block_threads && TILE0_ssd_backward_scores_warps_bf16 == side &&
                      TILE1_ssd_backward_scores_warps_bf16 == side && sizeof(scores_warps::Shared) <= SHARED_ssd_backward_scores_warps_bf16,
                  "the shape of the row");
    scores_warps::run(args, bindings);
}
