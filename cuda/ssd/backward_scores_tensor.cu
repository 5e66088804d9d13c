// ssd_backward_scores on warp products: u_ts = exp(cum_t - cum_s) step_s (up_y_t . x_s) for s <= t, grad_cb = the sum of u over the heads of a group,
// z = u cb, and the shares of tiles of 32 x 32 in the sums of z. up_y and x are multiplied as they are; nothing here is rounded to 16 bits.
//
// A block makes 64 x 64 tokens of a (chunk, group), head after head; a warp 16 rows x 32 columns. The next head's rows are on their way
// while one is multiplied. Off the diagonal exp(cum_t - cum_s) step_s is a factor of the row times one of the column, with e the last token of the
// columns: exp(cum_t - cum_e) and exp(cum_e - cum_s) step_s.
//
// In tiles of 32 x 32 on the diagonal each row of z is replaced by the sums of the columns before each, and columns are added from the diagonal down.
//
// The blocks of a cluster may share the heads, four (row cluster) or two (pair): block r of four has heads r, r + 4, ... and adds up, block after
// block, what all have of 16 rows.
//
// Shared memory: three stages of up_y and x 48 KiB, c.b 16 KiB, two stages of sums and factors 7 KiB.
#include "backward_tensor.cuh"

namespace ssd_backward_tensor {
namespace scores {

struct Shared {
    alignas(1024) char up[3][side * tile_row];
    alignas(1024) char x[3][side * tile_row];
    float2 row_cum[2][side], column_cum[2][side];
    float step[2][side], row_factor[2][side], column_factor[2][side];
    float row_sums[2][2][side], column_sums[2][4][side]; // of halves of a row, of quarters of a column
    float2 weights[8][threads];                          // c.b of each thread's pairs of columns
};

// store(r, c, v) takes the sums over the blocks of a cluster of grads, as far as they are in the rows r of this block. grads: of the rows row,
// row + 8 and of two of each eight columns from column on.
template <uint32_t parts, class Store>
__device__ __forceinline__ void add_parts(const float (&grads)[16], uint32_t row, uint32_t column, uint32_t part, Store store)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    constexpr uint32_t pitch = 72; // f32 numbers: eight rows of pairs hit all banks twice
    static_assert(side * pitch * sizeof(float) <= sizeof(Shared::up) && side / parts % (threads / 16) == 0, "in place of up; four sums at a time");
    float *const to = reinterpret_cast<float *>(tensor_memory) + row * pitch + column;
#pragma unroll
    for (uint32_t i = 0; i < 8; i++)
        *reinterpret_cast<float2 *>(to + i % 2 * 8 * pitch + i / 2 * 8) = make_float2(grads[2 * i], grads[2 * i + 1]);
    cluster_sync();
#pragma unroll
    for (uint32_t begin = 0; begin < side / parts; begin += threads / 16) {
        const uint32_t r = part * (side / parts) + begin + threadIdx.x / 16, c = threadIdx.x % 16 * 4;
        float sums[4] = {};
#pragma unroll
        for (uint32_t k = 0; k < parts; k++) {
            const float4 v = load_from(shared_address(tensor_memory) + (r * pitch + c) * sizeof(float), k);
            sums[0] += v.x, sums[1] += v.y, sums[2] += v.z, sums[3] += v.w;
        }
        for (uint32_t i = 0; i < 4; i++) store(r, c + i, sums[i]);
    }
    cluster_sync(); // all have read
#endif
}

template <uint32_t parts> __device__ __forceinline__ void run(const ssd_backward_scores_args &args, const CudaBindings &bindings)
{
    Shared &shared = *reinterpret_cast<Shared *>(tensor_memory);
    const uint16_t *x = HALVES(ssd_backward_scores, x) + args.x_at;
    const uint16_t *up_y = HALVES(ssd_backward_scores, up_y) + args.up_y_at;
    const float *cb = FLOATS(ssd_backward_scores, cb);
    float *grad_cb = FLOATS(ssd_backward_scores, grad_cb), *sums = FLOATS(ssd_backward_scores, sums);
    const uint32_t warp = uniform(threadIdx.x / 32), lane = threadIdx.x % 32, row = warp % 4 * 16 + lane / 4, column = warp / 4 * 32 + lane % 4 * 2;
    const uint32_t across = ceil_div(args.C, side), tile_pairs = across * (across + 1) / 2, halves_across = ceil_div(args.C, SCORE_SIDE);
    const uint32_t pairs = halves_across * (halves_across + 1) / 2, in_group = args.H / args.G;
    FOR_TILES(tile) {
        const uint32_t part = tile % parts, shared_tile = tile / parts, heads = (in_group - part + parts - 1) / parts;
        const uint2 pair = pair_of(shared_tile % tile_pairs);
        const uint32_t t0 = pair.x * side, s0 = pair.y * side, g = shared_tile / tile_pairs % args.G;
        const Place at = place_of(args, INTS(ssd_backward_scores, seq) + args.seq_at, shared_tile / tile_pairs / args.G);
        if (t0 >= at.size) continue;
        const bool diagonal = t0 == s0, crosses = diagonal && warp / 4 == warp % 4 / 2; // the latter: the warp's columns are a tile with its rows
        const size_t square = (at.slot * args.G + g) * args.C * args.C;
        const auto head_of = [&](uint32_t turn) { return part + turn * parts; }; // the number in its group of this block's turn'th head
        float grads[16] = {};
        const auto weight = [&](uint32_t t, uint32_t s) { return s <= t && t < at.size ? cb[square + size_t(t) * args.C + s] : 0.0f; };
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) {
            const uint32_t t = t0 + row + i % 2 * 8, s = s0 + column + i / 2 * 8;
            shared.weights[i][threadIdx.x] = make_float2(weight(t, s), weight(t, s + 1));
        }
        // The token of this thread: threads 0 to 63 have the rows, the next 64 the columns.
        const bool of_row = threadIdx.x < side;
        const uint32_t own = threadIdx.x % side, own_token = min((of_row ? t0 : s0) + own, at.size - 1);
        float2 own_cum = make_float2(0.0f, 0.0f), border = own_cum;
        float own_step = 0.0f;
        const float *const first_cum = cum_of(args, FLOATS(ssd_backward_scores, cum), at, g * in_group);
        const auto fetch_cum = [&](uint32_t turn) {
            if (threadIdx.x >= 2 * side) return;
            const float *cum = first_cum + size_t(head_of(turn)) * at.span * CUM_STRIDE;
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
        // Half of the threads copy up_y, the others x.
        const bool copies_x = threadIdx.x >= threads / 2;
        const uint32_t copied_row = copies_x ? args.x_row : args.up_y_row, copied_to = shared_address(copies_x ? shared.x[0] : shared.up[0]);
        const uint16_t *const copied = (copies_x ? x : up_y) + (at.token + (copies_x ? s0 : t0)) * copied_row + size_t(g) * in_group * args.P;
        const auto copy = [&](uint32_t turn) {
            if (turn < heads)
                copy_tile<side, threads / 2>(copied_to + turn % 3 * (side * tile_row), copied + size_t(head_of(turn)) * args.P, copied_row,
                                             at.size - (copies_x ? s0 : t0), threadIdx.x % (threads / 2), args.P / 8);
            copies_commit();
        };
        // The shares of a head in the sums of z: a warp adds up one of two directions of one of the four tiles of 32 x 32.
        const auto finish = [&](uint32_t turn) {
            const uint32_t i = warp / 2 % 2, j = warp / 4, row_tile = t0 / SCORE_SIDE + i, column_tile = s0 / SCORE_SIDE + j;
            if (row_tile >= halves_across || column_tile > row_tile) return;
            const float *rows = shared.row_sums[turn % 2][j], (*columns)[side] = shared.column_sums[turn % 2];
            const float sum = columns[2 * i][SCORE_SIDE * j + lane] + columns[2 * i + 1][SCORE_SIDE * j + lane];
            float *to = sums + ((at.slot * args.H + g * in_group + head_of(turn)) * pairs + row_tile * (row_tile + 1) / 2 + column_tile) * 64;
            if (row_tile == column_tile) {
                if (warp % 2 == 0) to[lane] = sum;
            } else if (warp % 2 == 0) {
                to[lane] = sum_from(rows[SCORE_SIDE * i + lane]);
            } else {
                to[SCORE_SIDE + lane] = sum_before(sum);
            }
        };
        __syncthreads(); // no warp still uses the last tile's sums
        copy(0);
        copy(1);
        fetch_cum(0);
        put_cum(0);
#pragma unroll 1
        for (uint32_t turn = 0; turn < heads; turn++) {
            const uint32_t stage = turn % 3, vectors = turn % 2;
            if (turn + 1 < heads) fetch_cum(turn + 1);
            copies_wait<1>();
            __syncthreads();
            copy(turn + 2);
            if (turn > 0) finish(turn - 1);

            float acc[16] = {};
#pragma unroll
            for (uint32_t k = 0; k < 4; k++) {
                uint32_t left[4];
                left_rows(left, shared_address(shared.up[stage]), warp % 4 * 16, k);
                multiply_right_lines<2>(acc, left, shared_address(shared.x[stage]), warp / 4 * 32, k);
            }
            float row_parts[2] = {}, column_parts[8] = {};
#pragma unroll
            for (uint32_t j = 0; j < 2; j++) {
                const uint32_t r = row + 8 * j;
                const float row_factor = shared.row_factor[vectors][r];
                const float2 own = shared.row_cum[vectors][r];
                float z[8];
#pragma unroll
                for (uint32_t i = 0; i < 8; i++) {
                    const float2 pair = shared.weights[i / 2 * 2 + j][threadIdx.x];
                    const uint32_t c = column + i / 2 * 8 + i % 2, of = i / 2 * 4 + 2 * j + i % 2;
                    float factor = row_factor * shared.column_factor[vectors][c];
                    if (diagonal) {
                        const float own_factor = decay_between(own, shared.column_cum[vectors][c]) * shared.step[vectors][c];
                        factor = c <= r && t0 + r < at.size ? own_factor : 0.0f;
                    }
                    const float u = factor * acc[of];
                    grads[of] += u;
                    z[i] = u * (i % 2 == 0 ? pair.x : pair.y);
                    row_parts[j] += z[i];
                }
                if (crosses) sum_columns_before(z);
#pragma unroll
                for (uint32_t i = 0; i < 8; i++)
                    if (!crosses || column + i / 2 * 8 + i % 2 <= r) column_parts[i] += z[i];
            }
#pragma unroll
            for (uint32_t i = 0; i < 2; i++) {
                const float sum = row_sum(row_parts[i]);
                if (lane % 4 == 0) shared.row_sums[vectors][warp / 4][row + 8 * i] = sum;
            }
            add_halves<4>(column_parts, 16);
            add_halves<2>(column_parts, 8);
            add_halves<1>(column_parts, 4);
            {
                const uint32_t i = (lane & 16 ? 4 : 0) + (lane & 8 ? 2 : 0) + (lane & 4 ? 1 : 0);
                shared.column_sums[vectors][warp % 4][column + i / 2 * 8 + i % 2] = column_parts[0];
            }
            if (turn + 1 < heads) put_cum(1 - vectors);
        }
        copies_wait<0>();
        __syncthreads();
        finish(heads - 1);
        if constexpr (parts > 1) {
            add_parts<parts>(grads, row, column, part, [&](uint32_t r, uint32_t c, float v) {
                if (t0 + r < at.size && s0 + c < at.size) grad_cb[square + size_t(t0 + r) * args.C + s0 + c] = v;
            });
        } else {
#pragma unroll
            for (uint32_t i = 0; i < 16; i++) {
                const uint32_t t = t0 + row + i / 2 % 2 * 8, s = s0 + column + i / 4 * 8 + i % 2;
                if (t < at.size && s < at.size) grad_cb[square + size_t(t) * args.C + s] = grads[i];
            }
        }
    }
}

} // namespace scores
} // namespace ssd_backward_tensor

#define SCORES_FIT(variant, T1) \
    static_assert(sizeof(ssd_backward_tensor::scores::Shared) <= SHARED_ssd_backward_scores_##variant && \
                      TILE0_ssd_backward_scores_##variant == ssd_backward_tensor::side && TILE1_ssd_backward_scores_##variant == (T1), \
                  "the shape of the row")
SCORES_FIT(cluster_bf16, 16);
SCORES_FIT(pair_bf16, 32);
SCORES_FIT(tensor_bf16, 64);
#undef SCORES_FIT
KERNEL_BOUNDED(ssd_backward_scores, cluster_bf16, __launch_bounds__(THREADS_ssd_backward_scores_cluster_bf16, 3) BACKWARD_CLUSTER(4))
{
    ssd_backward_tensor::scores::run<4>(args, bindings);
}
KERNEL_BOUNDED(ssd_backward_scores, pair_bf16, __launch_bounds__(THREADS_ssd_backward_scores_pair_bf16, 3) BACKWARD_CLUSTER(2))
{
    ssd_backward_tensor::scores::run<2>(args, bindings);
}
KERNEL_FUNCTION_BLOCKS(ssd_backward_scores, tensor_bf16, 3) { ssd_backward_tensor::scores::run<1>(args, bindings); }
