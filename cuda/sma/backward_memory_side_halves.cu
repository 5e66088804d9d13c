// sma_backward_memory_side on the warpgroup products of sm_90a, for N 128, P 64, bf16 and normalised memories w:
//   Y = sum_t g c up_r, X = sum_t slope q e for rows n and columns p, over the tokens that see the memory; then
//   grad_dh = Y + (X - w mean_p(X w)) / scale.
// A block, one warpgroup, takes half of the n of two memories of a (b, h), those that most tokens see first, and both halves of a last single memory.
// Y is made first, whole, and left in grad_dh; X follows, and the same threads add it. A warp has 16 rows n of both memories: each row's mean_p lies
// in it. Tokens pass through shared memory 128 at a time, from the first that sees a memory of the block on. Their weights are made into factors of
// bf16 pairs a step ahead, by one thread for two tokens of a memory.
// Numbers: slope q and g c are rounded to 16 bits once; other operands are inputs as they are, sums are f32.
// A lane holds of the rows lane / 4 (k = 0) and lane / 4 + 8 (k = 1) of 16 the columns 8 i + 2 (lane % 4) + {0, 1} as elements 4 i + 2 k + {0, 1}.
// Shared memory: 2 x (32 KiB tokens, 512 bytes of factors a memory): 67,584 bytes.
#include "sma/backward_memory_side.cuh"

namespace sma_memory_halves {

constexpr uint32_t N = 128, P = 64, TOKENS = 128, STAGES = 2, MEMORIES = 2, THREADS = 128;
constexpr uint32_t TILE_BYTES = TOKENS * tile_row, ROWS_BYTES = 2 * TILE_BYTES; // q or c, then e or up_r
constexpr uint32_t FACTORS_AT = STAGES * ROWS_BYTES, FACTOR_BYTES = TOKENS / 2 * 8, BYTES = FACTORS_AT + STAGES * MEMORIES * FACTOR_BYTES;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// The tokens of a block, and what it multiplies of them.
struct Tokens {
    uint32_t begin, end;
    const uint16_t *left, *right; // of token 0 of the sequence: q or c from the first n of the block on, e or up_r
    uint32_t left_row, right_row;
    const float *weights; // of token 0 of the sequence and this thread's memory
    uint32_t from;        // the first token that sees that memory

    __device__ __forceinline__ void fetch(uint32_t base, uint32_t step) const
    {
        const uint32_t t0 = begin + step * TOKENS, to = base + step % STAGES * ROWS_BYTES;
        if (t0 < end) {
            const uint32_t live = min(end - t0, TOKENS);
            copy_tile<TOKENS, THREADS>(to, left + size_t(t0) * left_row, left_row, live, threadIdx.x);
            copy_tile<TOKENS, THREADS>(to + TILE_BYTES, right + size_t(t0) * right_row, right_row, live, threadIdx.x);
        }
        copies_commit();
    }
    // The weights of two tokens; what a token does not see was not written.
    __device__ __forceinline__ float2 load_weights(uint32_t step) const
    {
        const uint32_t t = begin + step * TOKENS + threadIdx.x % 64 * 2;
        return make_float2(t >= from && t < end ? weights[t] : 0.0f, t + 1 >= from && t + 1 < end ? weights[t + 1] : 0.0f);
    }
};

// Leaves factors of two tokens where a lane finds those of its four columns of a fragment together: tokens 16 s + 2 c + {0, 1} and 8 later.
__device__ __forceinline__ void put_factors(uint32_t step, float2 of)
{
    const uint32_t pair = threadIdx.x % 64, at = (pair / 8 * 4 + pair % 4) * 2 + pair / 4 % 2;
    reinterpret_cast<uint2 *>(tensor_memory + FACTORS_AT + (step % STAGES * MEMORIES + threadIdx.x / 64) * FACTOR_BYTES)[at] =
        factors_of<true>(of.x, of.y);
}

// The tokens of a step for the first `count` memories. While 16 tokens are multiplied, the next ones are weighed.
template <uint32_t count> __device__ __forceinline__ void multiply_step(uint32_t rows, const char *factors, float (&sums)[MEMORIES][32])
{
    const uint32_t lane = threadIdx.x % 32;
    const uint32_t left_at = rows + tile_at(lane / 16 * 8 + lane % 8, threadIdx.x / 32 * 2 + lane / 8 % 2);
    const uint64_t right = operand_at(rows + TILE_BYTES);
    uint32_t weighed[2][count][4];
#pragma unroll
    for (uint32_t s = 0; s < TOKENS / 16; s++) {
        uint4 by[count];
        uint32_t left[4];
        load_matrices_turned(left, left_at + 16 * tile_row * s);
#pragma unroll
        for (uint32_t j = 0; j < count; j++) by[j] = reinterpret_cast<const uint4 *>(factors + j * FACTOR_BYTES)[4 * s + lane % 4];
        if (s > 1) products_leave<1>(); // those that read weighed[s % 2]
#pragma unroll
        for (uint32_t j = 0; j < count; j++) {
#pragma unroll
            for (uint32_t x = 0; x < 4; x++)
                weighed[s % 2][j][x] = multiply_pair<true>(left[x], x < 2 ? make_uint2(by[j].x, by[j].y) : make_uint2(by[j].z, by[j].w));
        }
        products_begin();
#pragma unroll
        for (uint32_t j = 0; j < count; j++) multiply<true>(sums[j], weighed[s % 2][j], operand_on(right, 16 * tile_row * s));
        products_commit();
    }
    products_leave<0>();
}

// sums[j] += the rows n of this warp of sum_t weight left right for memory j. from: the first token that sees it.
__device__ __forceinline__ void multiply(const Tokens &of, const uint32_t (&from)[MEMORIES], float (&sums)[MEMORIES][32])
{
    const uint32_t base = shared_address(tensor_memory), steps = of.begin < of.end ? ceil_div(of.end - of.begin, TOKENS) : 0;
    __syncthreads(); // all are done with the tokens before
    of.fetch(base, 0);
    put_factors(0, of.load_weights(0));
#pragma unroll 1
    for (uint32_t step = 0; step < steps; step++) {
        copies_wait<0>();
        __syncthreads(); // the tokens and factors of this step are here, and all are done with those of the step before
        of.fetch(base, step + 1);
        const float2 next = of.load_weights(step + 1);
        const uint32_t rows = base + step % STAGES * ROWS_BYTES;
        const char *factors = tensor_memory + FACTORS_AT + step % STAGES * MEMORIES * FACTOR_BYTES;
        if (of.begin + (step + 1) * TOKENS > from[1]) multiply_step<2>(rows, factors, sums);
        else multiply_step<1>(rows, factors, sums);
        put_factors(step + 1, next);
    }
    copies_landed<0>();
}

__device__ __forceinline__ void run(const sma_backward_memory_side_args &args, const CudaBindings &bindings)
{
    const auto halves = [&](uint32_t binding) { return reinterpret_cast<const uint16_t *>(bindings.address[binding]); };
    const uint32_t H = args.H, lane = threadIdx.x % 32, quad = lane % 4, line = lane / 4, of_row = H * args.B;
    FOR_TILES(tile) {
        const uint32_t h = tile % H, b = tile % of_row / H, group = h / (H / args.G), m_first = tile / of_row / 2 * 2;
        const Sequence piece = sequence_of(INTS(sma_backward_memory_side, seq) + args.seq_at, args.flags, args.L, args.T, b);
        const size_t weights_step = args.flags & HAS_CU ? args.T : args.B * args.L;
        // Memories that there is room for: of packed sequences those of their own chunks, for all others M.
        const uint32_t room = piece.packed ? min(ceil_div(piece.count, args.S), args.M) : args.M;
        const size_t row = piece.row, slots = piece.slot(args.M, args.S);
        float *grad = FLOATS(sma_backward_memory_side, grad_dh) + args.grad_dh_at;
        uint32_t from[MEMORIES];
#pragma unroll
        for (uint32_t j = 0; j < MEMORIES; j++) from[j] = uniform(m_first + j < args.M ? first_to_see(args, piece.position, m_first + j) : args.L);
        const uint32_t own = min(m_first + threadIdx.x / 64, args.M - 1); // the memory whose weights this thread has
        const size_t weights_at = (h * args.M + own) * weights_step + row;
        Tokens of;
        of.begin = from[0], of.end = piece.count, of.from = threadIdx.x < 64 ? from[0] : from[1];
        const uint32_t first_half = tile / of_row % 2, halves_end = m_first + 1 == args.M ? 2 : first_half + 1;
#pragma unroll 1
        for (uint32_t half = first_half; half < halves_end; half++) {
            // Element 0 of row k of memory j.
            const auto row_at = [&](uint32_t j, uint32_t k) {
                return ((slots + m_first + j) * H + h) * size_t(N * P) + (64 * half + threadIdx.x / 32 * 16 + line + 8 * k) * P + 2 * quad;
            };
#pragma unroll 1
            for (uint32_t which = 0; which < 2; which++) { // Y, then X
                float sums[MEMORIES][32] = {};
                of.weights = (which == 0 ? FLOATS(sma_backward_memory_side, g) : FLOATS(sma_backward_memory_side, slope)) + weights_at;
                of.left_row = which == 0 ? args.c_row : args.q_row, of.right_row = which == 0 ? args.up_r_row : args.e_row;
                of.left = (which == 0 ? halves(BINDING_sma_backward_memory_side_c) + args.c_at
                                      : halves(BINDING_sma_backward_memory_side_q) + args.q_at) +
                          row * of.left_row + group * N + 64 * half;
                of.right = which == 0 ? halves(BINDING_sma_backward_memory_side_up_r) + args.up_r_at + row * of.right_row + h * P
                                      : halves(BINDING_sma_backward_memory_side_e) + args.e_at + row * of.right_row + group * P;
                multiply(of, from, sums);
#pragma unroll
                for (uint32_t j = 0; j < MEMORIES; j++) {
                    if (m_first + j >= room) continue;
                    const bool seen = from[j] < piece.count; // else the memory may hold anything
#pragma unroll
                    for (uint32_t k = 0; k < 2; k++) {
                        const float *sum = &sums[j][2 * k];
                        const size_t at = row_at(j, k);
                        if (which == 0) {
                            put_memory_row(grad + at, 1.0f, sum);
                        } else if (seen) {
                            const float scale = FLOATS(sma_backward_memory_side, factor)[args.factor_at + at / P];
                            add_memory_row<true>(grad + at, halves(BINDING_sma_backward_memory_side_dh) + args.dh_at + at, 1.0f / scale, sum);
                        }
                    }
                }
            }
        }
    }
}

#endif

} // namespace sma_memory_halves

static_assert(sma_memory_halves::BYTES == SHARED_sma_backward_memory_side_halves_bf16 &&
                  sma_memory_halves::N == TILE0_sma_backward_memory_side_halves_bf16 &&
                  sma_memory_halves::THREADS == THREADS_sma_backward_memory_side_halves_bf16,
              "the shape of the row");
KERNEL_FUNCTION_BLOCKS(sma_backward_memory_side, halves_bf16, 3)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    sma_memory_halves::run(args, bindings);
#endif
}
