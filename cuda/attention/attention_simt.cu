// Softmax attention of T0 tokens of one (sequence, head) over the cache, T0 tokens of it at a time: scores are the product
// of queries and keys, weights go through shared memory, and their product with the values adds to o, 64 columns at a time.
// Where a block holds tokens that some query must not see, the values are added one by one, so that what those
// tokens hold (it may be NaN) takes no part.
// Shared memory: 17 KiB of panels, 17 KiB of weights.
#include "lib/product.cuh"

// Weights of the tile: line t, one column a token of the cache.
struct Weights {
    static constexpr bool by_line = true;
    typedef float4 Fetched;
    const float (*weights)[Panels<4>::side + 4];
    __device__ __forceinline__ Fetched fetch(uint32_t line, uint32_t k) const
    {
        return *reinterpret_cast<const float4 *>(&weights[line][k]);
    }
    __device__ __forceinline__ float4 value(const Fetched &raw) const { return raw; }
};

struct AttentionViews {
    View q, k, v, o;
    const int32_t *seq;
    float *lse;
};

// D at most HEAD.
template <uint32_t HEAD>
__device__ __forceinline__ void attention_tiles(const AttentionArgs &args, const AttentionViews &views, Panels<4> &panels,
                                                float (&weights)[Panels<4>::side][Panels<4>::side + 4])
{
    constexpr uint32_t side = Panels<4>::side, T0 = side, sweeps = HEAD / side;
    const View q = views.q, k = views.k, v = views.v, o = views.o;
    float *lse = views.lse;
    const uint32_t t_blocks = ceil_div(args.L, T0), ty = threadIdx.x / 16, tx = threadIdx.x % 16;
    const bool aligned_k = multiples_of_4(args.k_at, args.k_row, args.D), aligned_v = multiples_of_4(args.v_at, args.v_row, args.D);
    FOR_TILES(tile) {
        const uint32_t t0 = (t_blocks - 1 - tile % t_blocks) * T0, h = tile / t_blocks % args.H, b = tile / t_blocks / args.H,
                       g = h / (args.H / args.G);
        const Sequence piece = sequence_of(views.seq + args.seq_at, args.flags, args.L, args.T, b);
        if (t0 >= piece.count) continue;
        const uint32_t lines = min(piece.count - t0, T0);
        const uint64_t place = uint64_t(piece.position) + t0; // of line 0
        const uint32_t seen = uint32_t(min(place + lines, uint64_t(args.first) + args.C));
        if (seen <= args.first) continue;
        const size_t row0 = size_t(piece.row) + t0, cached = piece.packed ? piece.row : size_t(b) * args.C;
        const Lines queries = {q, args.q_at + row0 * args.q_row + h * args.D, args.q_row, lines, args.D,
                               multiples_of_4(args.q_at, args.q_row, args.D)};
        float acc[sweeps][4][4], top[4], den[4] = {}; // den: of this thread's columns
#pragma unroll
        for (uint32_t i = 0; i < sweeps; i++) product_clear(acc[i]);
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) top[i] = lowest;

        for (uint32_t s = args.first; s < seen; s += T0) {
            const uint32_t keys = min(seen - s, T0);
            const bool whole = uint64_t(s) + T0 <= min(place + 1, uint64_t(args.first) + args.C);
            const size_t row = cached + (s - args.first);
            const size_t k_at = args.k_at + row * args.k_row + g * args.D, v_at = args.v_at + row * args.v_row + g * args.D;
            float scores[4][4];
            product_clear(scores);
            product(queries, Lines{k, k_at, args.k_row, keys, args.D, aligned_k}, args.D, panels, scores);
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                const uint32_t t = output_line(ty, i);
                float highest = lowest;
#pragma unroll
                for (uint32_t j = 0; j < 4; j++) {
                    const uint32_t key = output_line(tx, j);
                    const bool visible = key < keys && uint64_t(s) + key <= place + t;
                    scores[i][j] = visible ? scores[i][j] * args.scale : lowest;
                    highest = fmaxf(highest, scores[i][j]);
                }
                for (int step = 8; step > 0; step /= 2) highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, step));
                const float now = fmaxf(top[i], highest), keep = exp_below(top[i] - now);
                top[i] = now;
                den[i] *= keep;
#pragma unroll
                for (uint32_t j = 0; j < 4; j++) {
                    const float weight = scores[i][j] == lowest ? 0.0f : exp_below(scores[i][j] - now);
                    weights[t][output_line(tx, j)] = weight;
                    den[i] += weight;
                }
#pragma unroll
                for (uint32_t sweep = 0; sweep < sweeps; sweep++) {
#pragma unroll
                    for (uint32_t j = 0; j < 4; j++) acc[sweep][i][j] *= keep;
                }
            }
            __syncthreads();
#pragma unroll
            for (uint32_t sweep = 0; sweep < sweeps; sweep++) {
                const uint32_t d0 = sweep * side, width = d0 < args.D ? args.D - d0 : 0;
                if (width == 0) break;
                if (whole) {
                    product(Weights{weights}, Columns{v, v_at + d0, args.v_row, width, T0, aligned_v}, T0, panels, acc[sweep]);
                    continue;
                }
                for (uint32_t key = 0; key < keys; key++) {
#pragma unroll
                    for (uint32_t j = 0; j < 4; j++) {
                        const uint32_t d = output_line(tx, j);
                        const float value = d < width ? load(v, v_at + size_t(key) * args.v_row + d0 + d) : 0.0f;
#pragma unroll
                        for (uint32_t i = 0; i < 4; i++) {
                            const uint32_t t = output_line(ty, i);
                            if (uint64_t(s) + key <= place + t) acc[sweep][i][j] = fmaf(weights[t][key], value, acc[sweep][i][j]);
                        }
                    }
                }
            }
            __syncthreads();
        }
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t t = output_line(ty, i);
            float total = den[i];
            for (int step = 8; step > 0; step /= 2) total += __shfl_xor_sync(0xffffffffu, total, step);
            if (t >= lines) continue;
#pragma unroll
            for (uint32_t sweep = 0; sweep < sweeps; sweep++) {
#pragma unroll
                for (uint32_t j = 0; j < 4; j++) {
                    const uint32_t d = sweep * side + output_line(tx, j);
                    if (d < args.D) store(o, args.o_at + (row0 + t) * args.o_row + h * args.D + d, acc[sweep][i][j] / total);
                }
            }
            if (tx == 0) lse[args.lse_at + (row0 + t) * args.H + h] = top[i] + logf(total);
        }
    }
}

#define ATTENTION_TILES(kernel, head) \
    static_assert(TILE0_##kernel##_simt == Panels<4>::side, "tile of the product"); \
    __shared__ Panels<4> panels; \
    __shared__ alignas(16) float weights[Panels<4>::side][Panels<4>::side + 4]; \
    const AttentionViews views = {VIEW(kernel, q), VIEW(kernel, k), VIEW(kernel, v), VIEW(kernel, o), INTS(kernel, seq), FLOATS(kernel, lse)}; \
    attention_tiles<head>(args, views, panels, weights)

KERNEL_FUNCTION(attention, simt) { ATTENTION_TILES(attention, MAX_HEAD); }
KERNEL_FUNCTION(attention_large, simt) { ATTENTION_TILES(attention_large, MAX_LARGE_HEAD); }
