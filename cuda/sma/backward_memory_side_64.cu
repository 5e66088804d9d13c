// sma_backward_memory_side on the warpgroup products of sm_90a, for N 64, P 64 and normalised memories w of the 16-bit type of q, e, c and up_r:
//   Y = sum_t g c up_r, X = sum_t slope q e for rows n and columns p, over the tokens that see the memory; then
//   grad_dh = Y + (X - w mean_p(X w)) / scale.
// Small memories are many, and what is written of them is what takes long: a warpgroup has Y and X of one memory in registers and writes them once. A
// block, two warpgroups, has two memories of a (b, h), which share all rows of tokens. Blocks of a sequence follow one another and find its tokens in
// the L2 cache. Tokens pass through shared memory 64 at a time, from the first that sees a memory of the block on.
// Numbers: slope q and g c are rounded to 16 bits once, in f16 relative to a power of two of the largest weight of the memory; other operands are
// inputs as they are, sums are f32.
// A lane holds of the rows 16 warp + lane / 4 (k = 0) and 8 later (k = 1) the columns 8 i + 2 (lane % 4) + {0, 1} as elements 4 i + 2 k + {0, 1}.
// Shared memory: 3 x (32 KiB tokens, 4 x 72 floats), 64 bytes: 101,824 bytes.
#include "sma/products.cuh"
#include "sma/backward.cuh"

namespace sma_memory_side_64 {

constexpr uint32_t N = 64, P = 64, TOKENS = 64, STAGES = 3, MEMORIES = 2, THREADS = 256;
static_assert(2 * N == tile_row && 2 * P == tile_row, "rows of tiles");
constexpr uint32_t TILE_BYTES = TOKENS * tile_row, ROWS_BYTES = 4 * TILE_BYTES; // c, up_r, q, e: left and right of Y, then of X
constexpr uint32_t PITCH = TOKENS + 8, OF_SUM = MEMORIES * PITCH;               // floats; those of g, then those of slope
constexpr uint32_t WEIGHTS_AT = STAGES * ROWS_BYTES, TOPS_AT = WEIGHTS_AT + STAGES * 2 * OF_SUM * 4, BYTES = TOPS_AT + 64;

// The tokens of a block, for Y and for X.
struct Tokens {
    Sequence piece;
    uint32_t begin, m_first;  // token; memory
    const float *weights[2];  // of token 0 of the sequence and memory m_first; a memory's lie together
    size_t weights_step;
    const uint16_t *left[2], *right[2]; // of token 0: c and q of the group, up_r and e
    uint32_t left_row[2], right_row[2];
};

__device__ __forceinline__ void fetch(const sma_backward_memory_side_args &args, const Tokens &of, uint32_t base, uint32_t step)
{
    const uint32_t t0 = of.begin + step * TOKENS, to = base + step % STAGES * ROWS_BYTES;
    if (t0 < of.piece.count) {
        const uint32_t live = min(of.piece.count - t0, TOKENS), which = threadIdx.x / 128, j = threadIdx.x / TOKENS % 2, t = threadIdx.x % TOKENS;
        const bool sees = t < live && of.m_first + j < seen_by(args, of.piece.position, t0 + t); // what a token does not see was not written
        const float *weights = which == 0 ? of.weights[0] : of.weights[1];
        copy4(base + WEIGHTS_AT + 4 * ((step % STAGES * 2 + which) * OF_SUM + j * PITCH + t), weights + j * of.weights_step + t0 + t, sees);
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            copy_tile<TOKENS, THREADS>(to + 2 * i * TILE_BYTES, of.left[i] + size_t(t0) * of.left_row[i], of.left_row[i], live, threadIdx.x);
            copy_tile<TOKENS, THREADS>(to + (2 * i + 1) * TILE_BYTES, of.right[i] + size_t(t0) * of.right_row[i], of.right_row[i], live, threadIdx.x);
        }
    }
    copies_commit();
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// The 64 tokens of a step for the memory of a warpgroup: sums[0] is Y, sums[1] is X. While 16 tokens of one are multiplied, those of the other are
// weighed.
template <bool bf> __device__ __forceinline__ void multiply_step(uint32_t rows, const float *weights, const float (&inverse)[2], float (&sums)[2][32])
{
    const uint32_t lane = threadIdx.x % 32, piece = threadIdx.x / 32 % 4 * 2 + lane / 8 % 2;
    uint32_t weighed[2][4];
#pragma unroll
    for (uint32_t s = 0; s < TOKENS / 16; s++) {
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            const uint64_t right = operand_at(rows + (2 * i + 1) * TILE_BYTES);
            uint32_t left[4];
            load_matrices_turned(left, rows + 2 * i * TILE_BYTES + tile_at(16 * s + lane / 16 * 8 + lane % 8, piece));
            if (s > 0) products_leave<1>(); // those that read weighed[i]
#pragma unroll
            for (uint32_t k = 0; k < 2; k++) { // of the tokens 2 (lane % 4) + {0, 1}, and 8 later
                const float2 v = *reinterpret_cast<const float2 *>(weights + i * OF_SUM + 16 * s + 8 * k);
                const uint2 by = bf ? factors_of<bf>(v.x, v.y) : factors_of<bf>(v.x * inverse[i], v.y * inverse[i]);
                weighed[i][2 * k] = multiply_pair<bf>(left[2 * k], by);
                weighed[i][2 * k + 1] = multiply_pair<bf>(left[2 * k + 1], by);
            }
            products_begin();
            multiply<bf>(sums[i], weighed[i], operand_on(right, 16 * tile_row * s));
            products_commit();
        }
    }
    products_leave<0>();
}
#endif

// The power of two that the weights of the memory of a warpgroup, g and slope, are divided by in f16: the largest not above the largest weight.
__device__ __forceinline__ void find_powers(const sma_backward_memory_side_args &args, const Tokens &of, float (&power)[2])
{
    float *tops = reinterpret_cast<float *>(tensor_memory + TOPS_AT); // of each warp, of g and slope
    const uint32_t own = threadIdx.x / 128;
    float most[2] = {};
    for (uint32_t t = of.begin + threadIdx.x % 128; t < of.piece.count; t += 128) {
        if (of.m_first + own >= seen_by(args, of.piece.position, t)) continue;
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) most[i] = fmaxf(most[i], fabsf(of.weights[i][own * of.weights_step + t]));
    }
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        most[i] = warp_top(most[i]);
        if (threadIdx.x % 32 == 0) tops[2 * (threadIdx.x / 32) + i] = most[i];
    }
    __syncthreads();
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        float top = 0.0f;
#pragma unroll
        for (uint32_t w = 0; w < 4; w++) top = fmaxf(top, tops[2 * (4 * own + w) + i]);
        power[i] = fmaxf(__uint_as_float(__float_as_uint(top) & 0x7f800000u), 0x1p-126f);
    }
}

template <bool bf>
__device__ __forceinline__ void run(const sma_backward_memory_side_args &args, const CudaBindings &bindings, uint32_t dtypes)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    const auto halves = [&](uint32_t binding) { return reinterpret_cast<const uint16_t *>(bindings.address[binding]); };
    const uint32_t H = args.H, lane = threadIdx.x % 32, quad = lane % 4, line = lane / 4, warp = threadIdx.x / 32 % 4, own = threadIdx.x / 128;
    const uint32_t base = shared_address(tensor_memory), blocks = ceil_div(args.M, MEMORIES);
    FOR_TILES(tile) {
        const uint32_t h = tile / blocks % H, b = tile / blocks / H, group = h / (H / args.G), m_first = tile % blocks * MEMORIES;
        Tokens of;
        of.piece = sequence_of(INTS(sma_backward_memory_side, seq) + args.seq_at, args.flags, args.L, args.T, b);
        of.m_first = m_first;
        of.begin = first_to_see(args, of.piece.position, m_first);
        of.weights_step = args.flags & HAS_CU ? args.T : args.B * args.L;
        // Memories that there is room for: of packed sequences those of their own chunks, for all others M.
        const uint32_t room = of.piece.packed ? min(ceil_div(of.piece.count, args.S), args.M) : args.M;
        const size_t row = of.piece.row, slots = of.piece.slot(args.M, args.S), weights_at = (h * args.M + m_first) * of.weights_step + row;
        of.weights[0] = FLOATS(sma_backward_memory_side, g) + weights_at, of.weights[1] = FLOATS(sma_backward_memory_side, slope) + weights_at;
        of.left_row[0] = args.c_row, of.left_row[1] = args.q_row, of.right_row[0] = args.up_r_row, of.right_row[1] = args.e_row;
        of.left[0] = halves(BINDING_sma_backward_memory_side_c) + args.c_at + row * args.c_row + group * N;
        of.left[1] = halves(BINDING_sma_backward_memory_side_q) + args.q_at + row * args.q_row + group * N;
        of.right[0] = halves(BINDING_sma_backward_memory_side_up_r) + args.up_r_at + row * args.up_r_row + h * P;
        of.right[1] = halves(BINDING_sma_backward_memory_side_e) + args.e_at + row * args.e_row + group * P;
        const uint32_t m = m_first + own;
        const uint32_t from = uniform(m < args.M ? first_to_see(args, of.piece.position, m) : args.L); // the first token that sees it
        float power[2] = {1.0f, 1.0f}, inverse[2] = {1.0f, 1.0f};
        __syncthreads(); // all are done with the memories before
        if (!bf) {
            find_powers(args, of, power);
            inverse[0] = 1.0f / power[0], inverse[1] = 1.0f / power[1];
        }
        float sums[2][32] = {};
        const uint32_t steps = of.begin < of.piece.count ? ceil_div(of.piece.count - of.begin, TOKENS) : 0;
        fetch(args, of, base, 0);
        fetch(args, of, base, 1);
#pragma unroll 1
        for (uint32_t step = 0; step < steps; step++) {
            copies_wait<1>();
            __syncthreads(); // the tokens of this step are here, and all are done with those of the step before
            fetch(args, of, base, step + 2);
            const uint32_t rows = base + step % STAGES * ROWS_BYTES, end = of.begin + (step + 1) * TOKENS;
            const float *weights = reinterpret_cast<const float *>(tensor_memory + WEIGHTS_AT) + step % STAGES * 2 * OF_SUM + own * PITCH + 2 * quad;
            if (end > from) multiply_step<bf>(rows, weights, inverse, sums);
        }
        copies_landed<0>();
        if (m >= room) continue;
        const bool seen = from < of.piece.count; // else the memory may hold anything
#pragma unroll
        for (uint32_t k = 0; k < 2; k++) {
            const size_t memory_row = ((slots + m) * H + h) * N + 16 * warp + line + 8 * k, at = memory_row * P + 2 * quad;
            const float *y = &sums[0][2 * k], *x = &sums[1][2 * k];
            const float scale = seen ? FLOATS(sma_backward_memory_side, factor)[args.factor_at + memory_row] : 1.0f;
            const uint16_t *dh = halves(BINDING_sma_backward_memory_side_dh) + args.dh_at + at;
            uint32_t pairs[8];
            float along = 0.0f;
#pragma unroll
            for (uint32_t i = 0; i < 8; i++) {
                pairs[i] = seen ? *reinterpret_cast<const uint32_t *>(dh + 8 * i) : 0u;
                const float2 w = unpack<bf>(pairs[i]);
                along = fmaf(x[4 * i], w.x, fmaf(x[4 * i + 1], w.y, along));
            }
            along = lines_sum(along) / float(P);
            const float of_x = power[1] / scale;
            float2 *grad = reinterpret_cast<float2 *>(FLOATS(sma_backward_memory_side, grad_dh) + args.grad_dh_at + at);
#pragma unroll
            for (uint32_t i = 0; i < 8; i++) {
                const float2 w = unpack<bf>(pairs[i]);
                grad[4 * i] = make_float2(fmaf(of_x, x[4 * i] - along * w.x, power[0] * y[4 * i]),
                                          fmaf(of_x, x[4 * i + 1] - along * w.y, power[0] * y[4 * i + 1]));
            }
        }
    }
#endif
}

} // namespace sma_memory_side_64

#define DART_CHECK(variant) \
    static_assert(sma_memory_side_64::BYTES == SHARED_sma_backward_memory_side_##variant && \
                      sma_memory_side_64::MEMORIES * sma_memory_side_64::N == TILE0_sma_backward_memory_side_##variant && \
                      sma_memory_side_64::THREADS == THREADS_sma_backward_memory_side_##variant, \
                  "the shape of the row")
DART_CHECK(sm90_n64_bf16);
DART_CHECK(sm90_n64_f16);
#undef DART_CHECK
KERNEL_FUNCTION_BLOCKS(sma_backward_memory_side, sm90_n64_bf16, 2) { sma_memory_side_64::run<true>(args, bindings, dtypes); }
KERNEL_FUNCTION_BLOCKS(sma_backward_memory_side, sm90_n64_f16, 2) { sma_memory_side_64::run<false>(args, bindings, dtypes); }
