// attention_backward_whole on tensor cores (args.h): sequences of at most 256 tokens, heads of 16 or 32 columns, operands of one 16-bit type.
// A block takes a (sequence, group). Keys and values of the whole sequence stay in shared memory; queries pass by, 64 at a time, one strip ahead.
// A warp has 16 keys at the front and 16 at the back, so that the triangle of pairs is shared out evenly, and keeps their sums in registers:
//   scores = k q^T, products = v up_o^T (16 x 16 over D); w = exp(scale scores - lse), u = w (products - dot); grad_v += w up_o, grad_k += u q.
// u also goes to shared memory, from which the warps make grad_q = u^T k of the strip. Logits and exponentials are made once.
// Numbers: scores, products, w, u and sums f32; w and u are each rounded once, as operands. Every sum has one fixed order.
// Rows past the count are zeros in shared memory, and their w and u are 0.
// Shared memory: keys and values, 256 rows each, and two strips of queries and of up_o, rows of 80 bytes; u, 256 rows of 144; lse and dot of a strip.
#include "lib/eight.cuh"

namespace attention_backward_whole {

constexpr uint32_t TOKENS = 256, STRIP = 64, THREADS = 256, DEPTH = 32, GROUP = 16, GROUPS = TOKENS / GROUP;
constexpr uint32_t PITCH = 2 * DEPTH + 16, SLOPE_PITCH = 2 * STRIP + 16; // bytes from row to row: no bank twice in 8 rows
constexpr uint32_t KEYS_AT = 0, VALUES_AT = TOKENS * PITCH, STRIPS_AT = 2 * VALUES_AT, SLOPES_AT = STRIPS_AT + 4 * STRIP * PITCH;
constexpr uint32_t STATISTICS_AT = SLOPES_AT + TOKENS * SLOPE_PITCH, BYTES = STATISTICS_AT + 2 * STRIP * 4;
constexpr float log2e = 1.4426950408889634f;
static_assert(THREADS / 32 * 2 == GROUPS && THREADS == STRIP * DEPTH / 8, "a warp has two groups of keys, a thread a piece of a strip");

// 2^x; 0 where the result is subnormal.
__device__ __forceinline__ float exp2_of(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// factor x 16 x 16 sums as rows below `lines` from element `at` on.
__device__ __forceinline__ void put(const View &to, size_t at, uint32_t row, uint32_t lines, float factor, const float (&sums)[8])
{
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t line = lane / 4 + i % 2 * 8;
        if (line >= lines) continue;
        const size_t element = at + size_t(line) * row + i / 2 * 8 + lane % 4 * 2;
        const float x = factor * sums[i / 2 * 4 + i % 2 * 2], y = factor * sums[i / 2 * 4 + i % 2 * 2 + 1];
        if (to.dtype == DTYPE_F32) reinterpret_cast<float2 *>(to.base)[element / 2] = make_float2(x, y);
        else reinterpret_cast<uint32_t *>(to.base)[element / 2] = to.dtype == DTYPE_BF16 ? pack<true>(x, y) : pack<false>(x, y);
    }
}

__device__ __forceinline__ void put_zeros(const View &to, size_t at, uint32_t row, uint32_t from, uint32_t end, uint32_t columns)
{
    const float zeros[8] = {};
    const uint32_t pieces = columns / 8;
    for (uint32_t i = threadIdx.x; i < (end - from) * pieces; i += THREADS)
        store8(to, at + size_t(from + i / pieces) * row + i % pieces * 8, zeros);
}

template <bool bf>
__device__ __forceinline__ void run(const attention_backward_whole_args &args, const CudaBindings &bindings, uint32_t dtypes)
{
    const auto halves = [&](uint32_t binding) { return reinterpret_cast<const uint16_t *>(bindings.address[binding]); };
    const uint16_t *q_all = halves(BINDING_attention_backward_whole_q) + args.q_at, *k_all = halves(BINDING_attention_backward_whole_k) + args.k_at;
    const uint16_t *v_all = halves(BINDING_attention_backward_whole_v) + args.v_at;
    const uint16_t *up_all = halves(BINDING_attention_backward_whole_up_o) + args.up_o_at;
    const View o = VIEW(attention_backward_whole, o), grad_q = VIEW(attention_backward_whole, grad_q);
    const View grad_k = VIEW(attention_backward_whole, grad_k), grad_v = VIEW(attention_backward_whole, grad_v);
    const float *lse_all = FLOATS(attention_backward_whole, lse) + args.lse_at;
    const uint32_t base = shared_address(tensor_memory), thread = threadIdx.x, lane = thread % 32, warp = uniform(thread / 32);
    const uint32_t D = args.D, H = args.H, heads = H / args.G, piece = thread % (DEPTH / 8), line = thread / (DEPTH / 8);
    const bool whole_piece = piece * 8 < D;
    float *lses = reinterpret_cast<float *>(tensor_memory + STATISTICS_AT), *dots = lses + STRIP;
    const float scale = args.scale * log2e;
    // Addresses of a lane in fragments of rows.
    const uint32_t left_at = lane % 16 * PITCH + lane / 16 * 16, right_at = (lane % 8 + lane / 16 * 8) * PITCH + lane / 8 % 2 * 16;
    FOR_TILES(tile) {
        const uint32_t g = tile % args.G;
        const Sequence own = sequence_of(INTS(attention_backward_whole, seq) + args.seq_at, args.flags, args.L, args.T, tile / args.G);
        const uint32_t count = own.count, strips = ceil_div(count, STRIP), steps = strips * heads;
        const size_t token = own.row;
        uint32_t next_h = g * heads, next_strip = 0, next_stage = 0;
        Words next_o = no_words();
        float next_lse = 0.0f;
        const auto fetch = [&]() { // a piece of q, up_o and o, and an lse
            const uint32_t t = next_strip * STRIP + line, to = base + STRIPS_AT + next_stage * 2 * STRIP * PITCH + line * PITCH + piece * 16;
            const bool there = t < count && whole_piece;
            const size_t at = token + t, column = size_t(next_h) * D + piece * 8;
            copy16(to, q_all + at * args.q_row + column, there);
            copy16(to + STRIP * PITCH, up_all + at * args.up_o_row + column, there);
            copies_commit();
            next_o = there ? fetch8(o, args.o_at + at * args.o_row + column) : no_words();
            next_lse = t < count ? lse_all[at * H + next_h] * log2e : 0.0f;
            next_stage ^= 1;
            if (++next_strip == strips) next_strip = 0, next_h++;
        };
        __syncthreads(); // all are done with the tile before
        for (uint32_t i = thread; i < strips * STRIP * (DEPTH / 8); i += THREADS) {
            const uint32_t s = i / (DEPTH / 8), to = base + s * PITCH + piece * 16;
            const bool there = s < count && whole_piece;
            copy16(to + KEYS_AT, k_all + (token + s) * args.k_row + size_t(g) * D + piece * 8, there);
            copy16(to + VALUES_AT, v_all + (token + s) * args.v_row + size_t(g) * D + piece * 8, there);
        }
        float sums_k[2][DEPTH / 16][8] = {}, sums_v[2][DEPTH / 16][8] = {};
        if (steps > 0) fetch();
        uint32_t h = g * heads, strip = 0, stage = 0;
#pragma unroll 1
        for (uint32_t step = 0; step < steps; step++) {
            const uint32_t queries = base + STRIPS_AT + stage * 2 * STRIP * PITCH, ups = queries + STRIP * PITCH;
            copies_landed<0>();
            float with[8], up[8], dot = 0.0f;
            unpack8(next_o, o.dtype, with);
            unpack8({*reinterpret_cast<const uint4 *>(tensor_memory + (ups - base) + line * PITCH + piece * 16), make_uint4(0, 0, 0, 0)},
                    bf ? DTYPE_BF16 : DTYPE_F16, up);
#pragma unroll
            for (uint32_t i = 0; i < 8; i++) dot = fmaf(with[i], up[i], dot);
            dot += __shfl_xor_sync(0xffffffffu, dot, 1);
            dot += __shfl_xor_sync(0xffffffffu, dot, 2);
            if (piece == 0) dots[line] = dot;
            if (piece == 1) lses[line] = next_lse;
            __syncthreads(); // the strip is here, and all are done with u of the one before
            if (step + 1 < steps) fetch();
            const uint32_t t_first = strip * STRIP;
#pragma unroll
            for (uint32_t n = 0; n < 2; n++) {
                const uint32_t s_first = (n == 0 ? warp : GROUPS - 1 - warp) * GROUP;
                if (s_first >= count || s_first >= t_first + STRIP) continue;
                uint32_t key[DEPTH / 16][4], value[DEPTH / 16][4];
#pragma unroll
                for (uint32_t j = 0; j < DEPTH / 16; j++) {
                    load_matrices(key[j], base + KEYS_AT + s_first * PITCH + left_at + j * 32);
                    load_matrices(value[j], base + VALUES_AT + s_first * PITCH + left_at + j * 32);
                }
#pragma unroll 1
                for (uint32_t t0 = s_first > t_first ? s_first - t_first : 0; t0 < STRIP; t0 += 16) {
                    float scores[8] = {}, products[8] = {};
#pragma unroll
                    for (uint32_t j = 0; j < DEPTH / 16; j++) {
                        if (j * 16 >= D) continue;
                        uint32_t right[4];
                        load_matrices(right, queries + t0 * PITCH + right_at + j * 32);
                        multiply_16<bf>(scores, key[j], right);
                        load_matrices(right, ups + t0 * PITCH + right_at + j * 32);
                        multiply_16<bf>(products, value[j], right);
                    }
                    const bool masked = s_first + GROUP > t_first + t0 || t_first + t0 == 0 || t_first + t0 + 16 > count;
#pragma unroll
                    for (uint32_t i = 0; i < 2; i++) {
                        const uint32_t column = t0 + 8 * i + lane % 4 * 2;
                        const float2 lse = *reinterpret_cast<const float2 *>(lses + column), along = *reinterpret_cast<const float2 *>(dots + column);
#pragma unroll
                        for (uint32_t r = 0; r < 4; r++) {
                            float w = exp2_of(fmaf(scores[4 * i + r], scale, r % 2 ? -lse.y : -lse.x));
                            float u = w * (products[4 * i + r] - (r % 2 ? along.y : along.x));
                            if (masked) {
                                const uint32_t s = s_first + lane / 4 + r / 2 * 8, t = t_first + column + r % 2;
                                if (s > t || t >= count) w = 0.0f;
                                if (s > t || t >= count || t == 0) u = 0.0f; // token 0 sees itself alone: its weight is 1 whatever the score
                            }
                            scores[4 * i + r] = w;
                            products[4 * i + r] = u;
                        }
                    }
                    uint32_t of_v[4], of_k[4];
#pragma unroll
                    for (uint32_t i = 0; i < 4; i++) {
                        of_v[i] = pack<bf>(scores[2 * i], scores[2 * i + 1]);
                        of_k[i] = pack<bf>(products[2 * i], products[2 * i + 1]);
                        const uint32_t at = (s_first + lane / 4 + i % 2 * 8) * SLOPE_PITCH + (t0 + i / 2 * 8 + lane % 4 * 2) * 2;
                        *reinterpret_cast<uint32_t *>(tensor_memory + SLOPES_AT + at) = of_k[i];
                    }
#pragma unroll
                    for (uint32_t j = 0; j < DEPTH / 16; j++) {
                        if (j * 16 >= D) continue;
                        uint32_t right[4];
                        load_matrices_turned(right, ups + t0 * PITCH + left_at + j * 32);
                        multiply_16<bf>(sums_v[n][j], of_v, right);
                        load_matrices_turned(right, queries + t0 * PITCH + left_at + j * 32);
                        multiply_16<bf>(sums_k[n][j], of_k, right);
                    }
                }
            }
            __syncthreads(); // u of the strip is here
            const uint32_t row = warp % 4 * 16, column = warp / 4 * 16; // of the warp's 16 x 16 of grad_q
            if (column < D && t_first + row < count) {
                float sums[8] = {};
                const uint32_t end = min(t_first + row + 16, count);
#pragma unroll 1
                for (uint32_t s = 0; s < end; s += 16) {
                    uint32_t left[4], right[4];
                    load_matrices_turned(left, base + SLOPES_AT + (s + lane / 16 * 8 + lane % 8) * SLOPE_PITCH + (row + lane / 8 % 2 * 8) * 2);
                    load_matrices_turned(right, base + KEYS_AT + s * PITCH + left_at + column * 2);
                    multiply_16<bf>(sums, left, right);
                }
                const size_t at = args.grad_q_at + (token + t_first + row) * args.grad_q_row + size_t(h) * D + column;
                put(grad_q, at, args.grad_q_row, count - t_first - row, args.scale, sums);
            }
            stage ^= 1;
            if (++strip == strips) strip = 0, h++;
        }
#pragma unroll
        for (uint32_t n = 0; n < 2; n++) {
            const uint32_t s_first = (n == 0 ? warp : GROUPS - 1 - warp) * GROUP;
            if (s_first >= count) continue;
#pragma unroll
            for (uint32_t j = 0; j < DEPTH / 16; j++) {
                if (j * 16 >= D) continue;
                const size_t column = size_t(g) * D + j * 16;
                const size_t k_at = args.grad_k_at + (token + s_first) * args.grad_k_row + column;
                const size_t v_at = args.grad_v_at + (token + s_first) * args.grad_v_row + column;
                put(grad_k, k_at, args.grad_k_row, count - s_first, args.scale, sums_k[n][j]);
                put(grad_v, v_at, args.grad_v_row, count - s_first, 1.0f, sums_v[n][j]);
            }
        }
        if (count == own.span) continue;
        put_zeros(grad_k, args.grad_k_at + token * args.grad_k_row + size_t(g) * D, args.grad_k_row, count, own.span, D);
        put_zeros(grad_v, args.grad_v_at + token * args.grad_v_row + size_t(g) * D, args.grad_v_row, count, own.span, D);
        put_zeros(grad_q, args.grad_q_at + token * args.grad_q_row + size_t(g) * heads * D, args.grad_q_row, count, own.span, heads * D);
    }
}

} // namespace attention_backward_whole

// Two blocks a multiprocessor: one multiplies while the other waits at a barrier.
#define WHOLE_ROW(variant, bf) \
    static_assert(attention_backward_whole::BYTES == SHARED_attention_backward_whole_##variant && \
                      attention_backward_whole::TOKENS == TILE0_attention_backward_whole_##variant && \
                      attention_backward_whole::THREADS == THREADS_attention_backward_whole_##variant, \
                  "attention.def"); \
    KERNEL_FUNCTION_BLOCKS(attention_backward_whole, variant, 2) { attention_backward_whole::run<bf>(args, bindings, dtypes); }
WHOLE_ROW(tensor_bf16, true)
WHOLE_ROW(tensor_f16, false)
