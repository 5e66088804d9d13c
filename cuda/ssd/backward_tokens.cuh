// ssd_backward_b and ssd_backward_c on warp products. A block makes 64 tokens of a (chunk, group); a warp 16 tokens x 64 columns n.
//   grad_b_s = sum_(t >= s) grad_cb_ts c_t + the sum over the heads of a group of keep_s step_s G x_s, G = lambda + up_dh in bf16;
//   grad_c_t = sum_(s <= t) grad_cb_ts b_s + the sum over the heads of a group of exp(cum_t) hin up_y_t, hin in bf16,
// and of each token and head exp(cum_t) c_t . hin up_y_t. The products with G and hin are made of x and up_y as they are, and scaled in f32 when they
// are added to the sum; only grad_cb is rounded to bf16 on its way into a product.
//
// `parts` blocks of a cluster share the work of one block: block r has heads r, r + parts, ... of the group and its share of the tokens that grad_cb
// weighs. Then it adds up, block after block, what all have of its 64 / parts tokens.
//
// Shared memory: three stages of 64 tokens of a head and N x P of its state 72 KiB; rows of b or c take the place of the state at first.
#ifndef DART_SSD_BACKWARD_TOKENS_CUH
#define DART_SSD_BACKWARD_TOKENS_CUH

#include "backward_tensor.cuh"

#include <cstddef>

namespace ssd_backward_tensor {
namespace of_tokens {

struct Shared {
    alignas(1024) char rows[3][side * tile_row];
    alignas(1024) char state[3][2][side * tile_row]; // 128 rows n; or 64 tokens, columns 0 to 63 and 64 to 127
    alignas(1024) char results[threads / 32][8 * tile_row];
    float factor[2][side];
    float along[2][2][side]; // of both halves of the columns
};

// What the two kernels call by different names.
struct Operands {
    const uint16_t *rows, *state, *others; // x, G and c; up_y, hin and b: of the tile's tokens and the group, of the group, of the chunk
    uint32_t row, other_row;
    const float *square; // grad_cb
    uint32_t C, N, P, size, first, heads; // first: of the tile's tokens; heads: of this block
    uint32_t part;                        // of the block, among `parts`
};
// The number in its group of a block's turn'th head.
template <uint32_t parts> __device__ __forceinline__ uint32_t head_of(const Operands &of, uint32_t turn) { return of.part + turn * parts; }

// Adds the products of grad_cb with the rows of b or c.
template <uint32_t parts, bool reads> __device__ __forceinline__ void add_others(float (&total)[32], const Operands &of, Shared &shared)
{
    const uint32_t warp = uniform(threadIdx.x / 32), lane = threadIdx.x % 32, own = of.first + warp % 4 * 16 + lane / 4;
    const uint32_t begin = reads ? 0 : of.first / side, end = reads ? of.first / side + 1 : (of.size + side - 1) / side;
    const auto copy = [&](uint32_t block, uint32_t stage) {
        const uint16_t *from = of.others + uint64_t(block) * side * of.other_row;
#pragma unroll
        for (uint32_t i = 0; i < 2; i++)
            copy_tile<side, threads>(shared_address(shared.state[stage][i]), from + 64 * i, of.other_row, of.size - block * side, threadIdx.x,
                                     of.N > 64 * i ? min(of.N / 8 - 8 * i, 8) : 0);
        copies_commit();
    };
    const uint32_t first = begin + of.part;
    if (first >= end) return;
    copy(first, 0);
#pragma unroll 1
    for (uint32_t block = first, stage = 0; block < end; block += parts, stage ^= 1) {
        if (block + parts < end) copy(block + parts, 1 - stage);
        if (block + parts < end) copies_wait<1>();
        else copies_wait<0>();
        __syncthreads();
#pragma unroll 1
        for (uint32_t part = 0; part < 2; part++) { // of the depth: elements on their way at once
            uint32_t weights[2][4];
#pragma unroll
            for (uint32_t i = 0; i < 8; i++) {
                float v[2];
#pragma unroll
                for (uint32_t q = 0; q < 2; q++) {
                    const uint32_t line = own + i % 2 * 8, depth = block * side + part * 32 + i / 4 * 16 + i / 2 % 2 * 8 + lane % 4 * 2 + q;
                    const uint32_t t = reads ? line : depth, s = reads ? depth : line;
                    v[q] = s <= t && t < of.size ? of.square[t * of.C + s] : 0.0f;
                }
                weights[i / 4][i % 4] = pack<true>(v[0], v[1]);
            }
#pragma unroll
            for (uint32_t k = 0; k < 2; k++)
                multiply_right_depth(total, weights[k], shared_address(shared.state[stage][warp / 4]), 32 * part + 16 * k);
        }
        __syncthreads();
    }
}

// Adds the products of each head of the block, times factor(head), that of token threadIdx.x of the tile. With reads done(head, value) takes what
// they come to along c. c: pairs of columns of the lane's sums.
template <uint32_t parts, bool reads, class Factor, class Done>
__device__ __forceinline__ void add_heads(float (&total)[32], const Operands &of, Shared &shared, const uint32_t (&c)[16], Factor factor, Done done)
{
    const uint32_t warp = uniform(threadIdx.x / 32), lane = threadIdx.x % 32, row = warp % 4 * 16 + lane / 4;
    const auto copy = [&](uint32_t turn) {
        if (turn < of.heads) {
            const uint32_t stage = turn % 3;
            const size_t column = size_t(head_of<parts>(of, turn)) * of.P;
            copy_tile<side, threads>(shared_address(shared.rows[stage]), of.rows + column, of.row, of.size - of.first, threadIdx.x, of.P / 8);
            copy_tile<2 * side, threads>(shared_address(shared.state[stage][0]), of.state + column * of.N, of.P, of.N, threadIdx.x, of.P / 8);
        }
        copies_commit();
    };
    const auto finish = [&](uint32_t turn) {
        if (reads && threadIdx.x < side)
            done(head_of<parts>(of, turn), shared.along[turn % 2][0][threadIdx.x] + shared.along[turn % 2][1][threadIdx.x]);
    };
    copy(0);
    copy(1);
    if (threadIdx.x < side) shared.factor[0][threadIdx.x] = factor(head_of<parts>(of, 0));
#pragma unroll 1
    for (uint32_t turn = 0; turn < of.heads; turn++) {
        const uint32_t stage = turn % 3;
        float next = 0.0f;
        if (turn + 1 < of.heads && threadIdx.x < side) next = factor(head_of<parts>(of, turn + 1));
        copies_wait<1>();
        __syncthreads();
        copy(turn + 2);
        if (turn > 0) finish(turn - 1);
        float sums[32];
        clear(sums);
#pragma unroll 2
        for (uint32_t k = 0; k < 4; k++) {
            uint32_t left[4];
            left_rows(left, shared_address(shared.rows[stage]), warp % 4 * 16, k);
            multiply_right_lines<4>(sums, left, shared_address(shared.state[stage][0]), warp / 4 * 64, k);
        }
        const float factors[2] = {shared.factor[turn % 2][row], shared.factor[turn % 2][row + 8]};
        float along[2] = {};
#pragma unroll
        for (uint32_t i = 0; i < 16; i++) {
            if (reads) {
                const float2 v = unpack<true>(c[i]);
                along[i % 2] = fmaf(sums[2 * i], v.x, fmaf(sums[2 * i + 1], v.y, along[i % 2]));
            }
            total[2 * i] = fmaf(factors[i % 2], sums[2 * i], total[2 * i]);
            total[2 * i + 1] = fmaf(factors[i % 2], sums[2 * i + 1], total[2 * i + 1]);
        }
        if (reads) {
#pragma unroll
            for (uint32_t i = 0; i < 2; i++) {
                const float sum = row_sum(along[i]) * factors[i];
                if (lane % 4 == 0) shared.along[turn % 2][warp / 4][row + 8 * i] = sum;
            }
        }
        if (threadIdx.x < side) shared.factor[(turn + 1) % 2][threadIdx.x] = next;
    }
    copies_wait<0>();
    __syncthreads();
    finish(of.heads - 1);
}

// A warp's pairs of columns of rows of b or c, 0 where there are none: [2 i + j] of row g + 8 j, columns 8 i + 2 c.
__device__ __forceinline__ void fetch_pairs(uint32_t (&pairs)[16], const uint16_t *from, uint32_t row, uint32_t rows, uint32_t N)
{
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, n0 = warp / 4 * 64;
#pragma unroll
    for (uint32_t j = 0; j < 2; j++) {
        const uint32_t t = warp % 4 * 16 + lane / 4 + 8 * j;
        const uint16_t *own = from + uint64_t(t) * row + n0 + lane % 4 * 2;
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) pairs[2 * i + j] = t < rows && n0 + 8 * i < N ? *reinterpret_cast<const uint32_t *>(own + 8 * i) : 0;
    }
}

// Rows of the tile, from the first one of the tile on.
__device__ __forceinline__ void store_tile(uint16_t *to, uint32_t row, uint32_t rows, uint32_t N, const float (&total)[32], Shared &shared)
{
    const uint32_t warp = uniform(threadIdx.x / 32), line = warp % 4 * 16, n0 = warp / 4 * 64;
    if (line < rows && n0 < N)
        ssd_warp::store_block<true>(to + uint64_t(line) * row + n0, row, rows - line, min((N - n0) / 8, 8), total, shared.results[warp]);
}

// ---- Sums of the blocks of a cluster ----

constexpr uint32_t sum_row = 136; // f32 numbers from token to token: eight rows of pairs hit all banks twice
static_assert(side * sum_row * sizeof(float) <= offsetof(Shared, results), "in place of rows and states");

// store(t, n, sums) takes the sums over the blocks of a cluster for columns n to n + 7 of the tile's token t, one of this block's 64 / parts.
template <uint32_t parts, class Store> __device__ __forceinline__ void sum_parts(const float (&total)[32], uint32_t part, Store store)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    static_assert(side / parts % (threads / 16) == 0, "a thread has eight columns of a token at a time");
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, base = shared_address(tensor_memory);
    float *const to = reinterpret_cast<float *>(tensor_memory) + (warp % 4 * 16 + lane / 4) * sum_row + warp / 4 * 64 + lane % 4 * 2;
    __syncthreads(); // no warp still reads what lies there
#pragma unroll
    for (uint32_t i = 0; i < 16; i++)
        *reinterpret_cast<float2 *>(to + i % 2 * 8 * sum_row + i / 2 * 8) = make_float2(total[2 * i], total[2 * i + 1]);
    cluster_sync();
#pragma unroll
    for (uint32_t i = 0; i < side / parts; i += threads / 16) {
        const uint32_t t = part * (side / parts) + i + threadIdx.x / 16, n = threadIdx.x % 16 * 8, from = base + (t * sum_row + n) * sizeof(float);
        float own[8] = {};
#pragma unroll
        for (uint32_t r = 0; r < parts; r++) {
            const float4 low = load_from(from, r), high = load_from(from + 16, r);
            own[0] += low.x, own[1] += low.y, own[2] += low.z, own[3] += low.w;
            own[4] += high.x, own[5] += high.y, own[6] += high.z, own[7] += high.w;
        }
        store(t, n, own);
    }
    cluster_sync(); // all have read
#endif
}

// Eight sums in bf16 to their place, with `add` to what is there.
__device__ __forceinline__ void store_sums(uint16_t *to, const float (&own)[8], bool add)
{
    uint4 *const place = reinterpret_cast<uint4 *>(to);
    const uint4 held = add ? *place : make_uint4(0, 0, 0, 0);
    const uint32_t words[4] = {held.x, held.y, held.z, held.w};
    uint32_t made[4];
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        const float2 v = unpack<true>(words[i]);
        made[i] = pack<true>(v.x + own[2 * i], v.y + own[2 * i + 1]);
    }
    *place = make_uint4(made[0], made[1], made[2], made[3]);
}

// ---- The kernels ----

template <uint32_t parts> __device__ __forceinline__ void of_b(const ssd_backward_b_args &args, const CudaBindings &bindings)
{
    Shared &shared = *reinterpret_cast<Shared *>(tensor_memory);
    const uint16_t *x = HALVES(ssd_backward_b, x) + args.x_at, *c = HALVES(ssd_backward_b, c) + args.c_at;
    const uint16_t *gain = HALVES(ssd_backward_b, lambda);
    uint16_t *grad_b = HALVES(ssd_backward_b, grad_b) + args.grad_b_at;
    const uint32_t tiles = ceil_div(args.C, side) * parts, heads = args.H / args.G;
    FOR_TILES(tile) {
        const uint32_t s0 = tile % tiles / parts * side, part = tile % parts, g = tile / tiles % args.G;
        const Place at = place_of(args, INTS(ssd_backward_b, seq) + args.seq_at, tile / tiles / args.G);
        if (s0 >= at.size) continue;
        const Operands of = {x + (at.token + s0) * args.x_row + size_t(g) * heads * args.P,
                             gain + (at.slot * args.H + g * heads) * args.N * args.P,
                             c + at.token * args.c_row + size_t(g) * args.N, args.x_row, args.c_row,
                             FLOATS(ssd_backward_b, grad_cb) + (at.slot * args.G + g) * args.C * args.C,
                             args.C, args.N, args.P, at.size, s0, (heads - part + parts - 1) / parts, part};
        float total[32];
        clear(total);
        __syncthreads(); // no warp still uses the last tile
        add_others<parts, false>(total, of, shared);
        const uint32_t none[16] = {};
        // Of the token and the last one of the chunk.
        const float *const own = cum_of(args, FLOATS(ssd_backward_b, cum), at, g * heads) + min(s0 + threadIdx.x, at.size - 1) * CUM_STRIDE;
        const uint32_t after = (at.size - 1 - min(s0 + threadIdx.x, at.size - 1)) * CUM_STRIDE, apart = at.span * CUM_STRIDE;
        const auto factor = [=](uint32_t head) {
            const float *cum = own + size_t(head) * apart;
            return decay_between(cum_at(cum + after, 0), cum_at(cum, 0)) * cum[2];
        };
        add_heads<parts, false>(total, of, shared, none, factor, [](uint32_t, float) {});
        if constexpr (parts > 1) {
            sum_parts<parts>(total, part, [&](uint32_t s, uint32_t n, const float (&own)[8]) {
                if (s0 + s < at.size && n < args.N) store_sums(grad_b + (at.token + s0 + s) * args.grad_b_row + size_t(g) * args.N + n, own, false);
            });
            continue;
        }
        store_tile(grad_b + (at.token + s0) * args.grad_b_row + size_t(g) * args.N, args.grad_b_row, at.size - s0, args.N, total, shared);
    }
}

template <uint32_t parts> __device__ __forceinline__ void of_c(const ssd_backward_c_args &args, const CudaBindings &bindings)
{
    Shared &shared = *reinterpret_cast<Shared *>(tensor_memory);
    const uint16_t *up_y = HALVES(ssd_backward_c, up_y) + args.up_y_at;
    const uint16_t *b = HALVES(ssd_backward_c, b) + args.b_at, *c = HALVES(ssd_backward_c, c) + args.c_at;
    const uint16_t *hin = HALVES(ssd_backward_c, hin) + args.hin_at;
    uint16_t *grad_c = HALVES(ssd_backward_c, grad_c) + args.grad_c_at;
    float *token = FLOATS(ssd_backward_c, token);
    const uint32_t tiles = ceil_div(args.C, side) * parts, heads = args.H / args.G;
    FOR_TILES(tile) {
        const uint32_t t0 = tile % tiles / parts * side, part = tile % parts, g = tile / tiles % args.G;
        const Place at = place_of(args, INTS(ssd_backward_c, seq) + args.seq_at, tile / tiles / args.G);
        if (t0 >= at.size) continue;
        const Operands of = {up_y + (at.token + t0) * args.up_y_row + size_t(g) * heads * args.P,
                             hin + (at.slot * args.H + g * heads) * args.N * args.P,
                             b + at.token * args.b_row + size_t(g) * args.N, args.up_y_row, args.b_row,
                             FLOATS(ssd_backward_c, grad_cb) + (at.slot * args.G + g) * args.C * args.C,
                             args.C, args.N, args.P, at.size, t0, (heads - part + parts - 1) / parts, part};
        uint32_t pairs[16];
        float total[32];
        clear(total);
        __syncthreads(); // no warp still uses the last tile
        add_others<parts, true>(total, of, shared);
        fetch_pairs(pairs, c + (at.token + t0) * args.c_row + size_t(g) * args.N, args.c_row, at.size - t0, args.N);
        const uint32_t t = t0 + threadIdx.x, apart = at.span * CUM_STRIDE;
        const float *const own = cum_of(args, FLOATS(ssd_backward_c, cum), at, g * heads) + min(t, at.size - 1) * CUM_STRIDE;
        float *const own_token = token + ((at.token + t) * args.H + g * heads) * 4 + 3;
        const auto factor = [=](uint32_t head) { return decay_between(cum_at(own + size_t(head) * apart, 0), make_float2(0.0f, 0.0f)); };
        const auto done = [&](uint32_t head, float along) {
            if (t < at.size) own_token[4 * head] = along;
        };
        add_heads<parts, true>(total, of, shared, pairs, factor, done);
        if constexpr (parts > 1) {
            sum_parts<parts>(total, part, [&](uint32_t t, uint32_t n, const float (&own)[8]) {
                if (t0 + t < at.size && n < args.N)
                    store_sums(grad_c + (at.token + t0 + t) * args.grad_c_row + size_t(g) * args.N + n, own, args.flags & IS_ADD);
            });
            continue;
        }
        uint16_t *const to = grad_c + (at.token + t0) * args.grad_c_row + size_t(g) * args.N;
        if (args.flags & IS_ADD) {
            fetch_pairs(pairs, to, args.grad_c_row, at.size - t0, args.N);
#pragma unroll
            for (uint32_t i = 0; i < 16; i++) {
                const float2 v = unpack<true>(pairs[i]);
                total[2 * i] += v.x;
                total[2 * i + 1] += v.y;
            }
        }
        store_tile(to, args.grad_c_row, at.size - t0, args.N, total, shared);
    }
}

} // namespace of_tokens
} // namespace ssd_backward_tensor

#endif
