// attention_backward_k and attention_backward_q on tensor cores (args.h), for operands of one 16-bit type.
// A block has 64 tokens of its own of a (sequence, head or group), a warp 16 of them, and takes 64 tokens of the other kind at a time, which pass
// through shared memory. With own rows x, y and passing rows X, Y (k, v and q, up_o for the keys; q, up_o and k, v for the queries):
//   scores = x X^T, products = y Y^T - dot (64 x 64 over D); w = exp(scale scores - lse); u = w products;
//   keys: grad_v += w Y, grad_k += u X; queries: grad_q += u X. w and u stay in registers: sums of a warp have the layout of a left operand.
// sm_90a runs the products of a warpgroup (wgmma) while the block makes exponentials, sm_80 the same products one after another (mma.sync).
// Rows past the count are zeros in shared memory, lse and dot, too: their w is 1, their u 0, and they add 0.
// Numbers: scores, products, w, u and sums f32; w and u are each rounded once, as operands. Every sum has one fixed order.
// Shared memory: STAGES x (2 SLABS tiles of 8 KiB, lse and dot of 64 tokens), and 2 SLABS tiles of own rows, which stay there: where they were held
// in registers through the loop, as left operands, ptxas 13.0 for sm_90a gave these registers to the fragments w and u and did not load them again.
#include "lib/tensor.cuh"

namespace attention_backward_tensor {

constexpr uint32_t BLOCK = 64, THREADS = 128, TILE = BLOCK * tile_row, FLOATS_BYTES = 2 * BLOCK * 4;
constexpr float log2e = 1.4426950408889634f;
constexpr uint32_t STAGES = 2;
constexpr uint32_t bytes_of(uint32_t slabs) { return STAGES * (2 * slabs * TILE + FLOATS_BYTES) + 2 * slabs * TILE; } // slabs of 64 columns

struct Operands {
    const uint16_t *q, *k, *v, *up_o;
    const float *lse, *dot;
    const int32_t *seq;
};

// Asynchronous copy of 4 bytes; zeros without a read unless there is set.
__device__ __forceinline__ void copy4(uint32_t to, const void *from, bool there)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(there ? 4 : 0) : "memory");
}
// 2^x; 0 where the result is subnormal.
__device__ __forceinline__ float exp2_of(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// ---- Products of four warps: asynchronous on sm_90a, where they read operands and change sums until products_leave has waited ----

#ifndef __CUDA_ARCH_FEAT_SM90_ALL
__device__ __forceinline__ void products_begin() {}
__device__ __forceinline__ void products_commit() {}
template <int count> __device__ __forceinline__ void products_leave() {}
#endif
// Accesses to sums stay behind this.
__device__ __forceinline__ void hold(float (&sums)[32])
{
#pragma unroll
    for (uint32_t i = 0; i < 32; i++) asm volatile("" : "+f"(sums[i])::"memory");
}
// 16 columns `step` of the warp's rows of a tile, as a left operand.
__device__ __forceinline__ void load_left(uint32_t (&a)[4], uint32_t tile, uint32_t step)
{
    load_matrices(a, tile + tile_at(threadIdx.x / 32 * 16 + threadIdx.x % 16, 2 * step + threadIdx.x % 32 / 16));
}
// sums += (16 columns `step` of the block's rows of the tile `left`) x (the same columns of the rows of `tile`)^T.
template <bool bf> __device__ __forceinline__ void multiply_tiles(float (&sums)[32], uint32_t left, uint32_t tile, uint32_t step)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    multiply<bf, false, true>(sums, operand_on(operand_at(left), 32 * step), operand_on(operand_at(tile), 32 * step));
#else
    uint32_t a[4];
    load_left(a, left, step);
    multiply_lines<bf>(sums, a, tile + 32 * step);
#endif
}
// sums += fragment x 16 rows `step` of a tile.
template <bool bf> __device__ __forceinline__ void multiply_rows(float (&sums)[32], const uint32_t (&a)[4], uint32_t tile, uint32_t step)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    multiply<bf>(sums, a, operand_on(operand_at(tile), 16 * step * tile_row));
#else
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t b[4];
        load_matrices_turned(b, tile + tile_at(16 * step + lane % 16, 2 * i + lane / 16));
        multiply_16<bf>(&sums[8 * i], a, b);
    }
#endif
}
template <bool bf> __device__ __forceinline__ void round_left(uint32_t (&a)[4][4], const float (&sums)[32])
{
#pragma unroll
    for (uint32_t i = 0; i < 16; i++) a[i / 4][i % 4] = pack<bf>(sums[2 * i], sums[2 * i + 1]);
}

// factor x sums as 64 columns of the warp's rows from element `at` on; of these the first `columns` and rows below `lines` exist.
__device__ __forceinline__ void put(const View &to, size_t at, uint32_t row, uint32_t lines, uint32_t columns, float factor, const float (&sums)[32])
{
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (uint32_t k = 0; k < 2; k++) {
        const uint32_t line = threadIdx.x / 32 * 16 + lane / 4 + 8 * k;
        if (line >= lines) continue;
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) {
            const uint32_t column = 8 * i + lane % 4 * 2;
            if (column >= columns) continue;
            const size_t element = at + size_t(line) * row + column;
            const float x = factor * sums[4 * i + 2 * k], y = factor * sums[4 * i + 2 * k + 1];
            if (to.dtype == DTYPE_F32) reinterpret_cast<float2 *>(to.base)[element / 2] = make_float2(x, y);
            else reinterpret_cast<uint32_t *>(to.base)[element / 2] = to.dtype == DTYPE_BF16 ? pack<true>(x, y) : pack<false>(x, y);
        }
    }
}

// of_keys: grad_k and grad_v of own keys; else grad_q of own queries.
template <bool bf, uint32_t SLABS, bool of_keys> struct Pass {
    static constexpr uint32_t STAGE = 2 * SLABS * TILE, STEPS = 4 * SLABS;
    // grad: of k or q; grad_v: of v. Unscaled sums of the own rows.
    float grad[SLABS][32], grad_v[of_keys ? SLABS : 1][32];

    template <class Args>
    __device__ __forceinline__ void run(const Args &args, const Operands &of, const Sequence &piece, uint32_t own0, uint32_t lines, uint32_t h0)
    {
        const uint32_t base = shared_address(tensor_memory), statistics = base + STAGES * STAGE;
        const uint32_t own_x = statistics + STAGES * FLOATS_BYTES, own_y = own_x + SLABS * TILE;
        const uint32_t thread = threadIdx.x, lane = thread % 32, line = thread / 32 * 16 + lane / 4, pair = lane % 4 * 2;
        const uint32_t D = args.D, H = args.H, heads = H / args.G, g = h0 / heads;
        const uint32_t own_block = own0 / BLOCK, first = of_keys ? own_block : 0, end = of_keys ? ceil_div(piece.count, BLOCK) : own_block + 1;
        const uint32_t steps = (end - first) * (of_keys ? heads : 1);
        const size_t token = piece.row;
        const auto q_from = [&](uint32_t t, uint32_t h) { return of.q + args.q_at + (token + t) * args.q_row + h * D; };
        const auto up_from = [&](uint32_t t, uint32_t h) { return of.up_o + args.up_o_at + (token + t) * args.up_o_row + h * D; };
        const auto k_from = [&](uint32_t s) { return of.k + args.k_at + (token + s) * args.k_row + g * D; };
        const auto v_from = [&](uint32_t s) { return of.v + args.v_at + (token + s) * args.v_row + g * D; };
        const auto copy = [&](uint32_t to, const uint16_t *from, uint32_t row, uint32_t valid) {
#pragma unroll
            for (uint32_t slab = 0; slab < SLABS; slab++)
                copy_tile<BLOCK, THREADS>(to + slab * TILE, from + 64 * slab, row, valid, thread, D / 8 > 8 * slab ? D / 8 - 8 * slab : 0);
        };
        uint32_t next_h = h0, next_block = first, next_stage = 0;
        const auto fetch = [&]() {
            const uint32_t at = next_block * BLOCK, valid = min(piece.count - at, BLOCK), to = base + next_stage * STAGE;
            if (of_keys) {
                copy(to, q_from(at, next_h), args.q_row, valid);
                copy(to + SLABS * TILE, up_from(at, next_h), args.up_o_row, valid);
                const uint32_t i = thread % BLOCK;
                const float *statistic = thread < BLOCK ? of.lse : of.dot;
                copy4(statistics + next_stage * FLOATS_BYTES + 4 * thread, statistic + (token + at + i) * H + next_h, i < valid);
            } else {
                copy(to, k_from(at), args.k_row, valid);
                copy(to + SLABS * TILE, v_from(at), args.v_row, valid);
            }
            copies_commit();
            next_stage = next_stage + 1 == STAGES ? 0 : next_stage + 1;
            if (++next_block == end) next_block = first, next_h++;
        };

        copy(own_x, of_keys ? k_from(own0) : q_from(own0, h0), of_keys ? args.k_row : args.q_row, lines);
        copy(own_y, of_keys ? v_from(own0) : up_from(own0, h0), of_keys ? args.v_row : args.up_o_row, lines);
        fetch();
        float lse[2], dot[2]; // of the own queries
#pragma unroll
        for (uint32_t k = 0; k < 2 && !of_keys; k++) {
            const bool is = line + 8 * k < lines;
            const size_t at = (token + own0 + line + 8 * k) * H + h0;
            lse[k] = is ? of.lse[at] * log2e : 0.0f;
            dot[k] = is ? of.dot[at] : 0.0f;
        }
        const float scale = args.scale * log2e;
        uint32_t block = first, stage = 0;
#pragma unroll 1
        for (uint32_t step = 0; step < steps; step++) {
            copies_wait<0>();
            __syncthreads(); // this stage is here
            const uint32_t passing_x = base + stage * STAGE, passing_y = passing_x + SLABS * TILE;
            const float *table = reinterpret_cast<const float *>(tensor_memory + STAGES * STAGE + stage * FLOATS_BYTES) + pair;
            float scores[32], products[32];
            clear(scores);
#pragma unroll
            for (uint32_t i = 0; i < 8; i++) {
                const float2 along = of_keys ? *reinterpret_cast<const float2 *>(table + BLOCK + 8 * i) : make_float2(0.0f, 0.0f);
#pragma unroll
                for (uint32_t k = 0; k < 2; k++) {
                    products[4 * i + 2 * k] = of_keys ? -along.x : -dot[k];
                    products[4 * i + 2 * k + 1] = of_keys ? -along.y : -dot[k];
                }
            }
            hold(scores); // in the registers of the sums, so that no copy comes between the products
            hold(products);
            products_begin();
#pragma unroll
            for (uint32_t k = 0; k < STEPS; k++) multiply_tiles<bf>(scores, own_x + k / 4 * TILE, passing_x + k / 4 * TILE, k % 4);
            products_commit();
#pragma unroll
            for (uint32_t k = 0; k < STEPS; k++) multiply_tiles<bf>(products, own_y + k / 4 * TILE, passing_y + k / 4 * TILE, k % 4);
            products_commit();
            products_leave<1>();
            hold(scores);
            if (step + 1 < steps) {
                __syncthreads(); // all are done with the step before
                fetch();
            }
#pragma unroll
            for (uint32_t i = 0; i < 8; i++) {
                const float2 along = of_keys ? *reinterpret_cast<const float2 *>(table + 8 * i) : make_float2(0.0f, 0.0f);
                const float of_token[4] = {of_keys ? along.x * log2e : lse[0], of_keys ? along.y * log2e : lse[0],
                                           of_keys ? along.x * log2e : lse[1], of_keys ? along.y * log2e : lse[1]};
#pragma unroll
                for (uint32_t j = 0; j < 4; j++) scores[4 * i + j] = exp2_of(fmaf(scores[4 * i + j], scale, -of_token[j]));
            }
            if (block == own_block) {
#pragma unroll
                for (uint32_t i = 0; i < 32; i++) {
                    const uint32_t own = line + i % 4 / 2 * 8, other = i / 4 * 8 + pair + i % 2;
                    if (of_keys ? other < own : other > own) scores[i] = 0.0f;
                }
            }
            uint32_t left[4][4];
            if constexpr (of_keys) {
                round_left<bf>(left, scores);
                products_begin();
#pragma unroll
                for (uint32_t k = 0; k < 4; k++) {
#pragma unroll
                    for (uint32_t slab = 0; slab < SLABS; slab++) multiply_rows<bf>(grad_v[slab], left[k], passing_y + slab * TILE, k);
                }
                products_commit();
                products_leave<1>();
            } else {
                products_leave<0>();
            }
            hold(products);
            if (own0 + block + thread == 0) products[0] = 0.0f; // token 0 sees itself alone: its weight is 1 whatever the score
            float slopes[32];
#pragma unroll
            for (uint32_t i = 0; i < 32; i++) slopes[i] = scores[i] * products[i];
            uint32_t right[4][4];
            round_left<bf>(right, slopes);
            products_begin();
#pragma unroll
            for (uint32_t k = 0; k < 4; k++) {
#pragma unroll
                for (uint32_t slab = 0; slab < SLABS; slab++) multiply_rows<bf>(grad[slab], right[k], passing_x + slab * TILE, k);
            }
            products_commit();
            stage = stage + 1 == STAGES ? 0 : stage + 1;
            if (++block == end) block = first;
        }
        products_leave<0>();
#pragma unroll
        for (uint32_t slab = 0; slab < SLABS; slab++) {
            hold(grad[slab]);
            if (of_keys) hold(grad_v[of_keys ? slab : 0]);
        }
    }

    // put_own(pass, slab, row of the tensors, columns before the slab, lines, columns of the slab) stores the sums.
    template <class Args, class Put> static __device__ __forceinline__ void tiles(const Args &args, const Operands &of, Put put_own)
    {
        // Blocks with the most steps first.
        const uint32_t blocks = ceil_div(args.L, BLOCK), wide = of_keys ? args.G : args.H, lots = wide * args.B;
        FOR_TILES(tile) {
            const uint32_t order = tile / lots, own0 = (of_keys ? order : blocks - 1 - order) * BLOCK, head = tile % lots % wide;
            const Sequence piece = sequence_of(of.seq, args.flags, args.L, args.T, tile % lots / wide);
            if (own0 >= piece.span) continue;
            const uint32_t lines = own0 < piece.count ? min(piece.count - own0, BLOCK) : 0;
            Pass pass;
#pragma unroll
            for (uint32_t slab = 0; slab < SLABS; slab++) {
                clear(pass.grad[slab]);
                if (of_keys) clear(pass.grad_v[of_keys ? slab : 0]);
            }
            __syncthreads(); // all are done with the tile before
            if (lines > 0) pass.run(args, of, piece, own0, lines, of_keys ? head * (args.H / args.G) : head);
#pragma unroll
            for (uint32_t slab = 0; slab < SLABS; slab++) {
                const uint32_t column = 64 * slab;
                if (column < args.D)
                    put_own(pass, slab, size_t(piece.row) + own0, head * args.D + column, min(piece.span - own0, BLOCK), min(args.D - column, 64u));
            }
        }
    }
};

template <bool bf, uint32_t SLABS>
__device__ __forceinline__ void run_keys(const attention_backward_k_args &args, const CudaBindings &bindings, uint32_t dtypes)
{
    const auto halves = [&](uint32_t binding) { return reinterpret_cast<const uint16_t *>(bindings.address[binding]); };
    const View grad_k = VIEW(attention_backward_k, grad_k), grad_v = VIEW(attention_backward_k, grad_v);
    const Operands of = {halves(BINDING_attention_backward_k_q), halves(BINDING_attention_backward_k_k), halves(BINDING_attention_backward_k_v),
                         halves(BINDING_attention_backward_k_up_o), FLOATS(attention_backward_k, lse) + args.lse_at,
                         FLOATS(attention_backward_k, dot), INTS(attention_backward_k, seq) + args.seq_at};
    Pass<bf, SLABS, true>::tiles(args, of, [&](const auto &pass, uint32_t slab, size_t row, uint32_t at, uint32_t lines, uint32_t columns) {
        put(grad_k, args.grad_k_at + row * args.grad_k_row + at, args.grad_k_row, lines, columns, args.scale, pass.grad[slab]);
        put(grad_v, args.grad_v_at + row * args.grad_v_row + at, args.grad_v_row, lines, columns, 1.0f, pass.grad_v[slab]);
    });
}

template <bool bf, uint32_t SLABS>
__device__ __forceinline__ void run_queries(const attention_backward_q_args &args, const CudaBindings &bindings, uint32_t dtypes)
{
    const auto halves = [&](uint32_t binding) { return reinterpret_cast<const uint16_t *>(bindings.address[binding]); };
    const View grad_q = VIEW(attention_backward_q, grad_q);
    const Operands of = {halves(BINDING_attention_backward_q_q), halves(BINDING_attention_backward_q_k), halves(BINDING_attention_backward_q_v),
                         halves(BINDING_attention_backward_q_up_o), FLOATS(attention_backward_q, lse) + args.lse_at,
                         FLOATS(attention_backward_q, dot), INTS(attention_backward_q, seq) + args.seq_at};
    Pass<bf, SLABS, false>::tiles(args, of, [&](const auto &pass, uint32_t slab, size_t row, uint32_t at, uint32_t lines, uint32_t columns) {
        put(grad_q, args.grad_q_at + row * args.grad_q_row + at, args.grad_q_row, lines, columns, args.scale, pass.grad[slab]);
    });
}

} // namespace attention_backward_tensor

// Two or three blocks a multiprocessor: one makes exponentials while the products of another run. With mma.sync three would spill.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
constexpr uint32_t attention_backward_q_blocks = 3;
#else
constexpr uint32_t attention_backward_q_blocks = 2;
#endif
#define ATTENTION_BACKWARD_ROW(variant, bf, slabs, blocks_k, blocks_q) \
    static_assert(attention_backward_tensor::bytes_of(slabs) == SHARED_attention_backward_k_##variant && \
                      attention_backward_tensor::bytes_of(slabs) == SHARED_attention_backward_q_##variant && \
                      attention_backward_tensor::BLOCK == TILE0_attention_backward_k_##variant && \
                      attention_backward_tensor::BLOCK == TILE0_attention_backward_q_##variant && \
                      attention_backward_tensor::THREADS == THREADS_attention_backward_k_##variant && \
                      attention_backward_tensor::THREADS == THREADS_attention_backward_q_##variant, \
                  "attention.def"); \
    KERNEL_FUNCTION_BLOCKS(attention_backward_k, variant, blocks_k) \
    { \
        attention_backward_tensor::run_keys<bf, slabs>(args, bindings, dtypes); \
    } \
    KERNEL_FUNCTION_BLOCKS(attention_backward_q, variant, blocks_q) \
    { \
        attention_backward_tensor::run_queries<bf, slabs>(args, bindings, dtypes); \
    }
ATTENTION_BACKWARD_ROW(tensor64_bf16, true, 1, 2, attention_backward_q_blocks)
ATTENTION_BACKWARD_ROW(tensor64_f16, false, 1, 2, 2)
ATTENTION_BACKWARD_ROW(tensor_bf16, true, 2, 2, 2)
ATTENTION_BACKWARD_ROW(tensor_f16, false, 2, 2, 2)
