// sma_backward_memory_side on the warp products of sm_80 or, f16, the warpgroup products of sm_90a (row sm90; bf16 in
// backward_memory_side_halves.cu), for N 128, P 64 and normalised memories w of the 16-bit type of q, e, c and up_r:
//   Y = sum_t g c up_r, X = sum_t slope q e for rows n and columns p, over the tokens that see the memory; then
//   grad_dh = Y + (X - w mean_p(X w)) / scale.
// A block takes four memories of a (b, h), of warpgroups two, which share all rows of tokens; those that most tokens see come first. Y is made
// first, whole, and left in grad_dh; X follows, and the same threads add it. A warp has 32 rows n of two memories, in a warpgroup 16 of each half:
// each row's mean_p lies in it. Tokens pass through shared memory 64 at a time, from the first that sees a memory of the block on.
// Numbers: slope q and g c are rounded to 16 bits once, in f16 relative to a power of two of the largest weight of the memory; other operands are
// inputs as they are, sums are f32.
// A lane holds of the rows lane / 4 (k = 0) and lane / 4 + 8 (k = 1) of 16 the columns 8 i + 2 (lane % 4) + {0, 1} as elements 4 i + 2 k + {0, 1}.
// Shared memory: 3 x (24 KiB tokens, 72 floats a memory), 128 bytes: 77,312 bytes for four memories, 75,584 for two.
#include "sma/backward_memory_side.cuh"

namespace sma_memory_side {

constexpr uint32_t N = 128, P = 64, TOKENS = 64, STAGES = 3;
constexpr uint32_t TILE_BYTES = TOKENS * tile_row, ROWS_BYTES = 3 * TILE_BYTES; // q or c in two tiles, then e or up_r
constexpr uint32_t PITCH = TOKENS + 8;                                           // floats: other banks for another memory
constexpr uint32_t WEIGHTS_AT = STAGES * ROWS_BYTES;

// What a block is: two memories a warpgroup, of which it has one, or two memories for each four of eight warps.
template <bool sm90> struct Block {
    static constexpr uint32_t MEMORIES = sm90 ? 2 : 4, THREADS = 64 * MEMORIES;
    static constexpr uint32_t TOPS_AT = WEIGHTS_AT + STAGES * MEMORIES * PITCH * 4, BYTES = TOPS_AT + 128;
};

// The tokens of a block, and what it multiplies of them.
struct Tokens {
    Sequence piece;
    uint32_t begin, m_first;  // token; memory
    const float *weights;     // of token 0 of the sequence and memory m_first; a memory's lie together
    size_t weights_step;
    const uint16_t *left, *right; // of token 0: q or c of the group, e or up_r
    uint32_t left_row, right_row;
};

template <bool sm90, class Args> __device__ __forceinline__ void fetch(const Args &args, const Tokens &of, uint32_t base, uint32_t step)
{
    constexpr uint32_t THREADS = Block<sm90>::THREADS, MEMORIES = Block<sm90>::MEMORIES;
    const uint32_t t0 = of.begin + step * TOKENS, to = base + step % STAGES * ROWS_BYTES;
    if (t0 < of.piece.count) {
        const uint32_t live = min(of.piece.count - t0, TOKENS);
        const uint16_t *left = of.left + size_t(t0) * of.left_row;
        copy_tile<TOKENS, THREADS>(to, left, of.left_row, live, threadIdx.x);
        copy_tile<TOKENS, THREADS>(to + TILE_BYTES, left + 64, of.left_row, live, threadIdx.x);
        copy_tile<TOKENS, THREADS>(to + 2 * TILE_BYTES, of.right + size_t(t0) * of.right_row, of.right_row, live, threadIdx.x);
        const uint32_t i = threadIdx.x / TOKENS, t = threadIdx.x % TOKENS; // what a token does not see was not written
        const bool sees = t < live && of.m_first + i < seen_by(args, of.piece.position, t0 + t);
        copy4(base + WEIGHTS_AT + 4 * ((step % STAGES * MEMORIES + i) * PITCH + t), of.weights + i * of.weights_step + t0 + t, sees);
    }
    copies_commit();
}

// The weights of 16 tokens of the first `count` of two memories, for the columns of a fragment.
template <bool bf, uint32_t count>
__device__ __forceinline__ void weights_of(uint2 (&by)[count][2], const float *weights, const float (&inverse)[2])
{
#pragma unroll
    for (uint32_t j = 0; j < count; j++) {
#pragma unroll
        for (uint32_t k = 0; k < 2; k++) { // of the tokens 2 quad + {0, 1}, and 8 later
            const float2 v = *reinterpret_cast<const float2 *>(weights + j * PITCH + 8 * k);
            by[j][k] = bf ? factors_of<bf>(v.x, v.y) : factors_of<bf>(v.x * inverse[j], v.y * inverse[j]);
        }
    }
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// The 64 tokens of a step for the first `count` memories of a warpgroup. While 64 rows n of 16 tokens are multiplied, the next ones are
// weighed.
template <bool bf, uint32_t count>
__device__ __forceinline__ void multiply_step(uint32_t rows, const float *weights, const float (&inverse)[2], float (&sums)[2][2][32])
{
    const uint32_t lane = threadIdx.x % 32, piece = threadIdx.x / 32 % 4 * 2 + lane / 8 % 2;
    const uint64_t right = operand_at(rows + 2 * TILE_BYTES);
    uint32_t weighed[2][count][4];
#pragma unroll
    for (uint32_t s = 0; s < TOKENS / 16; s++) {
        uint2 by[count][2];
        weights_of<bf, count>(by, weights + 16 * s, inverse);
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            uint32_t left[4];
            load_matrices_turned(left, rows + i * TILE_BYTES + tile_at(16 * s + lane / 16 * 8 + lane % 8, piece));
            if (s > 0) products_leave<1>(); // those that read weighed[i]
#pragma unroll
            for (uint32_t j = 0; j < count; j++) {
#pragma unroll
                for (uint32_t x = 0; x < 4; x++) weighed[i][j][x] = multiply_pair<bf>(left[x], by[j][x / 2]);
            }
            products_begin();
#pragma unroll
            for (uint32_t j = 0; j < count; j++) multiply<bf>(sums[j][i], weighed[i][j], operand_on(right, 16 * tile_row * s));
            products_commit();
        }
    }
    products_leave<0>();
}
#endif

// sums[j] += the rows n of this warp of sum_t (weight / power) left right for memory j of its two. from: the first token that sees it.
template <bool bf, bool sm90, class Args>
__device__ __forceinline__ void multiply(const Args &args, const Tokens &of, const uint32_t (&from)[2], const float (&inverse)[2],
                                         float (&sums)[2][2][32])
{
    constexpr uint32_t MEMORIES = Block<sm90>::MEMORIES;
    const uint32_t lane = threadIdx.x % 32, quad = lane % 4, warp = threadIdx.x / 32, base = shared_address(tensor_memory);
    const uint32_t tile = warp % 4 / 2 * TILE_BYTES, piece = warp % 2 * 4 + lane / 8 % 2, own = warp / 4 * 2;
    const uint32_t steps = of.begin < of.piece.count ? ceil_div(of.piece.count - of.begin, TOKENS) : 0;
    __syncthreads(); // all are done with the tokens before
    fetch<sm90>(args, of, base, 0);
    fetch<sm90>(args, of, base, 1);
#pragma unroll 1
    for (uint32_t step = 0; step < steps; step++) {
        copies_wait<1>();
        __syncthreads(); // the tokens of this step are here, and all are done with those of the step before
        fetch<sm90>(args, of, base, step + 2);
        const uint32_t rows = base + step % STAGES * ROWS_BYTES, t0 = of.begin + step * TOKENS;
        const float *weights = reinterpret_cast<const float *>(tensor_memory + WEIGHTS_AT) + (step % STAGES * MEMORIES + own) * PITCH + 2 * quad;
        if constexpr (sm90) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
            if (t0 + TOKENS > from[1]) multiply_step<bf, 2>(rows, weights, inverse, sums);
            else if (t0 + TOKENS > from[0]) multiply_step<bf, 1>(rows, weights, inverse, sums);
#endif
        } else {
#pragma unroll 1
            for (uint32_t s = 0; s < TOKENS; s += 16) { // 16 tokens of depth at a time
                if (t0 + s >= of.piece.count || t0 + s + 16 <= from[0]) continue;
                uint32_t right[4][4];
#pragma unroll
                for (uint32_t i = 0; i < 4; i++) load_matrices_turned(right[i], rows + 2 * TILE_BYTES + tile_at(s + lane % 16, 2 * i + lane / 16));
                uint2 by[2][2];
                weights_of<bf, 2>(by, weights + s, inverse);
#pragma unroll
                for (uint32_t i = 0; i < 2; i++) {
                    uint32_t left[4];
                    load_matrices_turned(left, rows + tile + tile_at(s + lane / 16 * 8 + lane % 8, piece + 2 * i));
#pragma unroll
                    for (uint32_t j = 0; j < 2; j++) {
                        if (t0 + s + 16 <= from[j]) continue;
                        const uint32_t weighed[4] = {multiply_pair<bf>(left[0], by[j][0]), multiply_pair<bf>(left[1], by[j][0]),
                                                     multiply_pair<bf>(left[2], by[j][1]), multiply_pair<bf>(left[3], by[j][1])};
#pragma unroll
                        for (uint32_t x = 0; x < 4; x++) multiply_16<bf>(&sums[j][i][8 * x], weighed, right[x]);
                    }
                }
            }
        }
    }
    copies_landed<0>();
}

// The power of two that the weights of each memory are divided by in f16: the largest not above the largest weight.
template <bool sm90, class Args> __device__ __forceinline__ void find_powers(const Args &args, const Tokens &of, uint32_t own, float (&power)[2])
{
    float *tops = reinterpret_cast<float *>(tensor_memory + Block<sm90>::TOPS_AT);
    const uint32_t i = threadIdx.x / TOKENS, warp = threadIdx.x / 32;
    float most = 0.0f;
    for (uint32_t t = of.begin + threadIdx.x % TOKENS; t < of.piece.count; t += TOKENS)
        if (of.m_first + i < seen_by(args, of.piece.position, t)) most = fmaxf(most, fabsf(of.weights[i * of.weights_step + t]));
    most = warp_top(most);
    __syncthreads();
    if (threadIdx.x % 32 == 0) tops[warp] = most;
    __syncthreads();
#pragma unroll
    for (uint32_t j = 0; j < 2; j++) {
        most = 0.0f;
        for (uint32_t w = 0; w < TOKENS / 32; w++) most = fmaxf(most, tops[(own + j) * (TOKENS / 32) + w]);
        power[j] = fmaxf(__uint_as_float(__float_as_uint(most) & 0x7f800000u), 0x1p-126f);
    }
}

template <bool bf, bool sm90>
__device__ __forceinline__ void run(const sma_backward_memory_side_args &args, const CudaBindings &bindings, uint32_t dtypes)
{
    constexpr uint32_t MEMORIES = Block<sm90>::MEMORIES;
    const auto halves = [&](uint32_t binding) { return reinterpret_cast<const uint16_t *>(bindings.address[binding]); };
    const uint32_t H = args.H, lane = threadIdx.x % 32, quad = lane % 4, line = lane / 4, warp = threadIdx.x / 32, own = warp / 4 * 2;
    const uint32_t n0 = warp % 4 * (sm90 ? 16 : 32), row_step = sm90 ? 64 : 16;
    FOR_TILES(tile) {
        const uint32_t of_row = H * args.B, h = tile % H, b = tile % of_row / H, group = h / (H / args.G), m_first = tile / of_row * MEMORIES;
        Tokens of;
        of.piece = sequence_of(INTS(sma_backward_memory_side, seq) + args.seq_at, args.flags, args.L, args.T, b);
        of.m_first = m_first;
        of.begin = first_to_see(args, of.piece.position, m_first);
        of.weights_step = args.flags & HAS_CU ? args.T : args.B * args.L;
        // Memories that there is room for: of packed sequences those of their own chunks, for all others M.
        const uint32_t room = of.piece.packed ? min(ceil_div(of.piece.count, args.S), args.M) : args.M;
        const size_t row = of.piece.row, slots = of.piece.slot(args.M, args.S), weights_at = (h * args.M + m_first) * of.weights_step + row;
        float *grad = FLOATS(sma_backward_memory_side, grad_dh) + args.grad_dh_at;
        uint32_t from[2];
#pragma unroll
        for (uint32_t j = 0; j < 2; j++) {
            const uint32_t m = m_first + own + j;
            from[j] = uniform(m < args.M ? first_to_see(args, of.piece.position, m) : args.L);
        }
        // Element 0 of row k of fragment i, of memory j of this warp.
        const auto row_at = [&](uint32_t j, uint32_t i, uint32_t k) {
            return ((slots + m_first + own + j) * H + h) * size_t(N * P) + (n0 + row_step * i + line + 8 * k) * P + 2 * quad;
        };
        float power[2] = {1.0f, 1.0f}, inverse[2] = {1.0f, 1.0f};
#pragma unroll 1
        for (uint32_t which = 0; which < 2; which++) { // Y, then X
            float sums[2][2][32] = {};
            of.weights = (which == 0 ? FLOATS(sma_backward_memory_side, g) : FLOATS(sma_backward_memory_side, slope)) + weights_at;
            of.left_row = which == 0 ? args.c_row : args.q_row, of.right_row = which == 0 ? args.up_r_row : args.e_row;
            of.left = (which == 0 ? halves(BINDING_sma_backward_memory_side_c) + args.c_at : halves(BINDING_sma_backward_memory_side_q) + args.q_at) +
                      row * of.left_row + group * N;
            of.right = which == 0 ? halves(BINDING_sma_backward_memory_side_up_r) + args.up_r_at + row * of.right_row + h * P
                                  : halves(BINDING_sma_backward_memory_side_e) + args.e_at + row * of.right_row + group * P;
            if (!bf) {
                find_powers<sm90>(args, of, own, power);
                inverse[0] = 1.0f / power[0], inverse[1] = 1.0f / power[1];
            }
            multiply<bf, sm90>(args, of, from, inverse, sums);
#pragma unroll
            for (uint32_t j = 0; j < 2; j++) {
                if (m_first + own + j >= room) continue;
                const bool seen = from[j] < of.piece.count; // else the memory may hold anything
#pragma unroll
                for (uint32_t i = 0; i < 2; i++) {
#pragma unroll
                    for (uint32_t k = 0; k < 2; k++) {
                        const float *sum = &sums[j][i][2 * k];
                        const size_t at = row_at(j, i, k);
                        if (which == 0) {
                            put_memory_row(grad + at, power[j], sum);
                        } else if (seen) {
                            const float scale = FLOATS(sma_backward_memory_side, factor)[args.factor_at + at / P];
                            add_memory_row<bf>(grad + at, halves(BINDING_sma_backward_memory_side_dh) + args.dh_at + at, power[j] / scale, sum);
                        }
                    }
                }
            }
        }
    }
}

} // namespace sma_memory_side

#define DART_CHECK(variant, sm90) \
    static_assert(sma_memory_side::Block<sm90>::BYTES == SHARED_sma_backward_memory_side_##variant && \
                      sma_memory_side::Block<sm90>::MEMORIES * sma_memory_side::N == TILE0_sma_backward_memory_side_##variant && \
                      sma_memory_side::Block<sm90>::THREADS == THREADS_sma_backward_memory_side_##variant, \
                  "the shape of the row")
DART_CHECK(tensor_bf16, false);
DART_CHECK(tensor_f16, false);
DART_CHECK(sm90_f16, true);
#undef DART_CHECK
KERNEL_FUNCTION_BLOCKS(sma_backward_memory_side, tensor_bf16, 1) { sma_memory_side::run<true, false>(args, bindings, dtypes); }
KERNEL_FUNCTION_BLOCKS(sma_backward_memory_side, tensor_f16, 1) { sma_memory_side::run<false, false>(args, bindings, dtypes); }
KERNEL_FUNCTION_BLOCKS(sma_backward_memory_side, sm90_f16, 2)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    sma_memory_side::run<false, true>(args, bindings, dtypes);
#endif
}
