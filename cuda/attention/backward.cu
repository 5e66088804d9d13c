// The backward pass of softmax attention (args.h). attention_backward_dot: dot = o . up_o of a row, a warp a head.
// attention_backward_k: T0 tokens s of one (sequence, group), all columns; attention_backward_q: T0 tokens t of one (sequence, head). Both take
// T0 tokens of the other kind at a time: scores and up_o . v are products of depth D, whose lines are the tokens t; the weights and then
// their gradients go through shared memory, and their products with up_o and q, or with k, add to the results, 64 columns at a time.
// Shared memory: 17 KiB of panels, 17 KiB of weights.
#include "lib/eight.cuh"
#include "lib/product.cuh"

typedef float BackwardWeights[64][Panels<4>::side + 4];

// Weights of the tile, line t and column s: along s, or turned, along t.
struct BackwardRows {
    static constexpr bool by_line = true;
    typedef float4 Fetched;
    const float (*weights)[Panels<4>::side + 4];
    __device__ __forceinline__ Fetched fetch(uint32_t line, uint32_t k) const { return *reinterpret_cast<const float4 *>(&weights[line][k]); }
    __device__ __forceinline__ float4 value(const Fetched &raw) const { return raw; }
};
struct BackwardTurned {
    static constexpr bool by_line = false;
    typedef float4 Fetched;
    const float (*weights)[Panels<4>::side + 4];
    __device__ __forceinline__ Fetched fetch(uint32_t line, uint32_t k) const { return *reinterpret_cast<const float4 *>(&weights[k][line]); }
    __device__ __forceinline__ float4 value(const Fetched &raw) const { return raw; }
};

KERNEL_FUNCTION(attention_backward_dot, simt)
{
    const View o = VIEW(attention_backward_dot, o), up_o = VIEW(attention_backward_dot, up_o);
    float *dot = FLOATS(attention_backward_dot, dot);
    FOR_TILES(tile) {
        const Piece piece = piece_of(INTS(attention_backward_dot, seq) + args.seq_at, args.flags, args.L, tile / args.L);
        if (tile % args.L >= piece.count) continue;
        for (uint32_t h = threadIdx.x / 32; h < args.H; h += warps) {
            const size_t o_at = args.o_at + size_t(tile) * args.o_row + h * args.D, up_at = args.up_o_at + size_t(tile) * args.up_o_row + h * args.D;
            float sum = 0.0f;
            for (uint32_t d = threadIdx.x % 32; d < args.D; d += 32) sum = fmaf(load(o, o_at + d), load(up_o, up_at + d), sum);
            sum = warp_sum(sum);
            if (threadIdx.x % 32 == 0) dot[size_t(tile) * args.H + h] = sum;
        }
    }
}

// The same for heads and rows of whole words of 16 bytes: a team of threads a head, eight columns each, T0 rows a block.
KERNEL_FUNCTION(attention_backward_dot, eight)
{
    const View o = VIEW(attention_backward_dot, o), up_o = VIEW(attention_backward_dot, up_o);
    float *dot = FLOATS(attention_backward_dot, dot);
    const uint32_t team = team_of(args.D), d = threadIdx.x % team * 8, T0 = TILE0_attention_backward_dot_eight, total = args.B * args.L;
    FOR_TILES(tile) {
        // All teams go through as many rounds, since their sums need the whole warp.
        for (uint32_t first = 0; first < T0 * args.H; first += block_size / team) {
            const uint32_t i = first + threadIdx.x / team, h = i % args.H, row = tile * T0 + i / args.H;
            const bool is = i < T0 * args.H && row < total &&
                            row % args.L < piece_of(INTS(attention_backward_dot, seq) + args.seq_at, args.flags, args.L, row / args.L).count;
            float sum = 0.0f;
            if (is && d < args.D) {
                float x[8], y[8];
                unpack8(fetch8(o, args.o_at + size_t(row) * args.o_row + h * args.D + d), o.dtype, x);
                unpack8(fetch8(up_o, args.up_o_at + size_t(row) * args.up_o_row + h * args.D + d), up_o.dtype, y);
#pragma unroll
                for (uint32_t j = 0; j < 8; j++) sum = fmaf(x[j], y[j], sum);
            }
            sum = team_sum(sum, team);
            if (is && d == 0) dot[size_t(row) * args.H + h] = sum;
        }
    }
}

// Scores become weights, products up_o . v their gradients; both 0 where token s = s0 + column does not precede or equal t = t0 + line.
__device__ __forceinline__ void weigh_pairs(float (&scores)[4][4], float (&products)[4][4], const float *lse, const float *dot, uint32_t H,
                                            uint32_t t0, uint32_t s0, uint32_t count, float scale)
{
    const uint32_t ty = threadIdx.x / 16, tx = threadIdx.x % 16;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t line = output_line(ty, i), t = t0 + line;
        const bool counts = t < count;
        const float own = counts ? lse[size_t(line) * H] : 0.0f, along = counts ? dot[size_t(line) * H] : 0.0f;
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            const bool visible = counts && s0 + output_line(tx, j) <= t;
            scores[i][j] = visible ? exp_below(scale * scores[i][j] - own) : 0.0f;
            products[i][j] = visible && t > 0 ? scores[i][j] * (products[i][j] - along) : 0.0f;
        }
    }
}

__device__ __forceinline__ void put_weights(BackwardWeights &weights, const float (&values)[4][4])
{
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) weights[output_line(threadIdx.x / 16, i)][output_line(threadIdx.x % 16, j)] = values[i][j];
    }
}

template <uint32_t sweeps>
__device__ __forceinline__ void put_gradient(const View &to, size_t at, uint32_t row, uint32_t lines, uint32_t D, float factor,
                                             const float (&acc)[sweeps][4][4])
{
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t line = output_line(threadIdx.x / 16, i);
        if (line >= lines) continue;
#pragma unroll
        for (uint32_t sweep = 0; sweep < sweeps; sweep++) {
#pragma unroll
            for (uint32_t j = 0; j < 4; j++) {
                const uint32_t d = sweep * Panels<4>::side + output_line(threadIdx.x % 16, j);
                if (d < D) store(to, at + size_t(line) * row + d, factor * acc[sweep][i][j]);
            }
        }
    }
}

KERNEL_FUNCTION(attention_backward_k, simt)
{
    constexpr uint32_t T0 = TILE0_attention_backward_k_simt, side = Panels<4>::side, sweeps = MAX_HEAD / side;
    static_assert(T0 == side && TILE1_attention_backward_k_simt == MAX_HEAD, "tile of the product, all columns");
    __shared__ Panels<4> panels;
    __shared__ alignas(16) BackwardWeights weights;
    const View q = VIEW(attention_backward_k, q), k = VIEW(attention_backward_k, k), v = VIEW(attention_backward_k, v);
    const View up_o = VIEW(attention_backward_k, up_o), grad_k = VIEW(attention_backward_k, grad_k), grad_v = VIEW(attention_backward_k, grad_v);
    const float *lse = FLOATS(attention_backward_k, lse) + args.lse_at, *dot = FLOATS(attention_backward_k, dot);
    const uint32_t blocks = ceil_div(args.L, T0), heads = args.H / args.G, D = args.D;
    const bool aligned_q = multiples_of_4(args.q_at, args.q_row, D), aligned_k = multiples_of_4(args.k_at, args.k_row, D);
    const bool aligned_v = multiples_of_4(args.v_at, args.v_row, D), aligned_up = multiples_of_4(args.up_o_at, args.up_o_row, D);
    FOR_TILES(tile) {
        const uint32_t s0 = tile % blocks * T0, g = tile / blocks % args.G, b = tile / blocks / args.G;
        const Sequence piece = sequence_of(INTS(attention_backward_k, seq) + args.seq_at, args.flags, args.L, args.T, b);
        if (s0 >= piece.span) continue;
        const uint32_t keys = s0 < piece.count ? min(piece.count - s0, T0) : 0;
        const size_t token = piece.row;
        const Lines of_k = {k, args.k_at + (token + s0) * args.k_row + g * D, args.k_row, keys, D, aligned_k};
        const Lines of_v = {v, args.v_at + (token + s0) * args.v_row + g * D, args.v_row, keys, D, aligned_v};
        float acc_k[sweeps][4][4], acc_v[sweeps][4][4];
#pragma unroll
        for (uint32_t i = 0; i < sweeps; i++) {
            product_clear(acc_k[i]);
            product_clear(acc_v[i]);
        }
        for (uint32_t h = g * heads; h < (g + 1) * heads; h++) {
            for (uint32_t t0 = s0; t0 < piece.count; t0 += T0) {
                const uint32_t tokens = min(piece.count - t0, T0);
                const size_t q_at = args.q_at + (token + t0) * args.q_row + h * D, up_at = args.up_o_at + (token + t0) * args.up_o_row + h * D;
                float scores[4][4], products[4][4];
                product_clear(scores);
                product(Lines{q, q_at, args.q_row, tokens, D, aligned_q}, of_k, D, panels, scores);
                product_clear(products);
                product(Lines{up_o, up_at, args.up_o_row, tokens, D, aligned_up}, of_v, D, panels, products);
                weigh_pairs(scores, products, lse + (token + t0) * args.H + h, dot + (token + t0) * args.H + h, args.H, t0, s0, piece.count,
                            args.scale);
                put_weights(weights, scores);
#pragma unroll
                for (uint32_t sweep = 0; sweep < sweeps; sweep++) {
                    const uint32_t d0 = sweep * side;
                    if (d0 >= D) break;
                    product(BackwardTurned{weights}, Columns{up_o, up_at + d0, args.up_o_row, D - d0, tokens, aligned_up}, T0, panels,
                            acc_v[sweep]);
                }
                // The last fetches of the weights lie before the last barrier of the product.
                put_weights(weights, products);
#pragma unroll
                for (uint32_t sweep = 0; sweep < sweeps; sweep++) {
                    const uint32_t d0 = sweep * side;
                    if (d0 >= D) break;
                    product(BackwardTurned{weights}, Columns{q, q_at + d0, args.q_row, D - d0, tokens, aligned_q}, T0, panels, acc_k[sweep]);
                }
            }
        }
        const uint32_t lines = min(piece.span - s0, T0);
        put_gradient(grad_k, args.grad_k_at + (token + s0) * args.grad_k_row + g * D, args.grad_k_row, lines, D, args.scale, acc_k);
        put_gradient(grad_v, args.grad_v_at + (token + s0) * args.grad_v_row + g * D, args.grad_v_row, lines, D, 1.0f, acc_v);
    }
}

KERNEL_FUNCTION(attention_backward_q, simt)
{
    constexpr uint32_t T0 = TILE0_attention_backward_q_simt, side = Panels<4>::side, sweeps = MAX_HEAD / side;
    static_assert(T0 == side && TILE1_attention_backward_q_simt == MAX_HEAD, "tile of the product, all columns");
    __shared__ Panels<4> panels;
    __shared__ alignas(16) BackwardWeights weights;
    const View q = VIEW(attention_backward_q, q), k = VIEW(attention_backward_q, k), v = VIEW(attention_backward_q, v);
    const View up_o = VIEW(attention_backward_q, up_o), grad_q = VIEW(attention_backward_q, grad_q);
    const float *lse = FLOATS(attention_backward_q, lse) + args.lse_at, *dot = FLOATS(attention_backward_q, dot);
    const uint32_t blocks = ceil_div(args.L, T0), D = args.D;
    const bool aligned_q = multiples_of_4(args.q_at, args.q_row, D), aligned_k = multiples_of_4(args.k_at, args.k_row, D);
    const bool aligned_v = multiples_of_4(args.v_at, args.v_row, D), aligned_up = multiples_of_4(args.up_o_at, args.up_o_row, D);
    FOR_TILES(tile) {
        const uint32_t t0 = tile % blocks * T0, h = tile / blocks % args.H, b = tile / blocks / args.H, g = h / (args.H / args.G);
        const Sequence piece = sequence_of(INTS(attention_backward_q, seq) + args.seq_at, args.flags, args.L, args.T, b);
        if (t0 >= piece.span) continue;
        const uint32_t tokens = t0 < piece.count ? min(piece.count - t0, T0) : 0;
        const size_t token = piece.row, at = (token + t0) * args.H + h;
        const Lines of_q = {q, args.q_at + (token + t0) * args.q_row + h * D, args.q_row, tokens, D, aligned_q};
        const Lines of_up = {up_o, args.up_o_at + (token + t0) * args.up_o_row + h * D, args.up_o_row, tokens, D, aligned_up};
        float acc[sweeps][4][4];
#pragma unroll
        for (uint32_t i = 0; i < sweeps; i++) product_clear(acc[i]);
        for (uint32_t s0 = 0; s0 < t0 + tokens && tokens > 0; s0 += T0) {
            const uint32_t keys = min(piece.count - s0, T0);
            const size_t k_at = args.k_at + (token + s0) * args.k_row + g * D, v_at = args.v_at + (token + s0) * args.v_row + g * D;
            float scores[4][4], products[4][4];
            product_clear(scores);
            product(of_q, Lines{k, k_at, args.k_row, keys, D, aligned_k}, D, panels, scores);
            product_clear(products);
            product(of_up, Lines{v, v_at, args.v_row, keys, D, aligned_v}, D, panels, products);
            weigh_pairs(scores, products, lse + at, dot + at, args.H, t0, s0, piece.count, args.scale);
            put_weights(weights, products);
#pragma unroll
            for (uint32_t sweep = 0; sweep < sweeps; sweep++) {
                const uint32_t d0 = sweep * side;
                if (d0 >= D) break;
                product(BackwardRows{weights}, Columns{k, k_at + d0, args.k_row, D - d0, keys, aligned_k}, T0, panels, acc[sweep]);
            }
        }
        put_gradient(grad_q, args.grad_q_at + (token + t0) * args.grad_q_row + h * D, args.grad_q_row, min(piece.span - t0, T0), D, args.scale, acc);
    }
}
