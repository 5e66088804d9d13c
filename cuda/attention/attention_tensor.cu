// Softmax attention on the warp products of sm_80, for heads of a multiple of 16 and operands of one 16-bit type.
// A block works on 128 tokens of one (sequence, head), late ones first, a warp on 16, whose queries, scores, weights and sums
// stay in registers; keys and values pass through shared memory 64 tokens at a time, one block of them ahead.
// Numbers: scores, statistics and sums f32; weights, at most 1, are rounded to 16 bits for their product with the values.
// A token takes no part in what it does not see, whose weight is 0, unless the value is not finite: blocks that some token sees in part are
// looked through for such values. They count as 0 in the product, and are added one by one for the tokens that see them: the bits of the
// others do not depend on them.
// Shared memory: 2 x 2 x 64 rows of 2 D + 16 bytes.
#include "lib/attend.cuh"

namespace attend {
namespace attention_tensor {

constexpr uint32_t KEYS = 64; // tokens of a block of the cache
constexpr uint32_t bytes_of(uint32_t steps) { return 4 * KEYS * (32 * steps + 16); } // steps of 16 columns

// What a warp does with a block of the cache: `first` is the number of its first token, `place` that of the
// warp's first token; no token from `limit` on is looked at.
template <uint32_t dtype, uint32_t STEPS> struct Warp {
    static constexpr uint32_t PITCH = 32 * STEPS + 16; // bytes from row to row: no bank twice in 8 rows
    uint32_t query[STEPS][4];
    float sums[STEPS][8], top[2], den[2]; // den: of this thread's columns

    // A thread's elements of the scores: rows k = 0, 1 (lane / 4 and 8 more), tokens 8 j + 2 (lane % 4) + {0, 1} at
    // [j][2 k + {0, 1}].
    __device__ __forceinline__ void attend(uint32_t keys, uint32_t values, uint32_t first, uint32_t place, uint32_t limit, uint32_t D,
                                           float scale)
    {
        const uint32_t lane = threadIdx.x % 32;
        const bool whole = first + KEYS <= min(place + 1, limit);
        float scores[KEYS / 8][4] = {};
#pragma unroll
        for (uint32_t j = 0; j < STEPS; j++) {
            if (j * 16 >= D) continue;
#pragma unroll
            for (uint32_t n = 0; n < KEYS / 16; n++) {
                uint32_t b[4]; // the matrices of tokens 0 to 7 at columns 0, 8, then of tokens 8 to 15
                load_matrices(b, keys + (n * 16 + lane / 16 * 8 + lane % 8) * PITCH + j * 32 + lane / 8 % 2 * 16);
                multiply<dtype>(scores[2 * n], query[j], b);
                multiply<dtype>(scores[2 * n + 1], query[j], b + 2);
            }
        }
#pragma unroll
        for (uint32_t k = 0; k < 2; k++) {
            // Tokens of this block that the row sees.
            const uint32_t end = min(place + lane / 4 + 8 * k + 1, limit), seen = end > first ? end - first : 0;
            float most = lowest;
#pragma unroll
            for (uint32_t j = 0; j < KEYS / 8; j++) {
#pragma unroll
                for (uint32_t i = 2 * k; i < 2 * k + 2; i++) {
                    scores[j][i] *= scale;
                    if (!whole && 8 * j + lane % 4 * 2 + i % 2 >= seen) scores[j][i] = __uint_as_float(0xff800000u);
                    most = fmaxf(most, scores[j][i]);
                }
            }
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
            most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
            most = fmaxf(most, top[k]);
            const float correction = exp2_below(top[k] - most);
            top[k] = most;
            den[k] *= correction;
#pragma unroll
            for (uint32_t j = 0; j < KEYS / 8; j++) {
#pragma unroll
                for (uint32_t i = 2 * k; i < 2 * k + 2; i++) den[k] += scores[j][i] = exp2_below(scores[j][i] - most);
            }
#pragma unroll
            for (uint32_t j = 0; j < STEPS; j++) {
#pragma unroll
                for (uint32_t i = 0; i < 8; i += 4) {
                    sums[j][i + 2 * k] *= correction;
                    sums[j][i + 2 * k + 1] *= correction;
                }
            }
        }
        if (whole || finite(values, D)) {
            add<false>(scores, values, D);
        } else {
            add<true>(scores, values, D);
            add_not_finite(scores, values, first, place, limit, D);
        }
    }

    // sums += weights x values; guarded: values that are not finite count as 0.
    template <bool guarded> __device__ __forceinline__ void add(const float (&scores)[KEYS / 8][4], uint32_t values, uint32_t D)
    {
        const uint32_t lane = threadIdx.x % 32;
#pragma unroll
        for (uint32_t n = 0; n < KEYS / 16; n++) {
            uint32_t weights[4];
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                weights[i] = Pair<dtype>::round(scores[2 * n + i / 2][i % 2 * 2], scores[2 * n + i / 2][i % 2 * 2 + 1]);
#pragma unroll
            for (uint32_t j = 0; j < STEPS; j++) {
                if (j * 16 >= D) continue;
                uint32_t b[4];
                load_matrices_turned(b, values + (n * 16 + lane % 16) * PITCH + j * 32 + lane / 16 * 16);
                for (uint32_t i = 0; i < 4 && guarded; i++) b[i] &= (not_finite(b[i]) ? 0u : 0xffffu) | (not_finite(b[i] >> 16) ? 0u : 0xffff0000u);
                multiply<dtype>(sums[j], weights, b);
                multiply<dtype>(sums[j] + 4, weights, b + 2);
            }
        }
    }

    // Of the lower half of a word: an exponent of ones.
    static __device__ __forceinline__ bool not_finite(uint32_t bits)
    {
        constexpr uint32_t exponent = dtype == DTYPE_BF16 ? 0x7f80u : 0x7c00u;
        return (bits & exponent) == exponent;
    }

    static __device__ __forceinline__ bool finite(uint32_t values, uint32_t D)
    {
        bool found = false;
        for (uint32_t i = threadIdx.x % 32; i < KEYS * D / 8; i += 32) {
            const uint4 v = load_shared(values + i / (D / 8) * PITCH + i % (D / 8) * 16);
            for (uint32_t word : {v.x, v.y, v.z, v.w}) found |= not_finite(word) || not_finite(word >> 16);
        }
        return !__any_sync(0xffffffffu, found);
    }

    // sums += weight x value of the values that are not finite, where the token sees them.
    __device__ __forceinline__ void add_not_finite(const float (&scores)[KEYS / 8][4], uint32_t values, uint32_t first, uint32_t place,
                                                   uint32_t limit, uint32_t D)
    {
        const uint32_t lane = threadIdx.x % 32;
#pragma unroll
        for (uint32_t n = 0; n < KEYS / 8; n++) {
#pragma unroll 1
            for (uint32_t i = 0; i < 8; i++) {
                const uint32_t key = 8 * n + i, holder = (lane & ~3u) | i / 2;
                const float weight[2] = {__shfl_sync(0xffffffffu, i % 2 ? scores[n][1] : scores[n][0], holder),
                                         __shfl_sync(0xffffffffu, i % 2 ? scores[n][3] : scores[n][2], holder)};
#pragma unroll
                for (uint32_t j = 0; j < 2 * STEPS; j++) {
                    if (j * 8 >= D) continue;
                    const uint32_t pair = load_shared_word(values + key * PITCH + j * 16 + lane % 4 * 4);
                    const float2 v = Pair<dtype>::unpack(pair);
#pragma unroll
                    for (uint32_t k = 0; k < 2; k++) {
                        if (first + key >= min(place + lane / 4 + 8 * k + 1, limit)) continue;
                        float *to = sums[j / 2] + j % 2 * 4 + 2 * k;
                        if (not_finite(pair)) to[0] += weight[k] * v.x;
                        if (not_finite(pair >> 16)) to[1] += weight[k] * v.y;
                    }
                }
            }
        }
    }
};

template <uint32_t dtype, uint32_t STEPS>
__device__ __forceinline__ void run(const attention_args &args, const CudaBindings &bindings, uint32_t dtypes)
{
    extern __shared__ __align__(16) uint8_t shared[];
    constexpr uint32_t PITCH = Warp<dtype, STEPS>::PITCH, BLOCK_BYTES = KEYS * PITCH;
    const auto halves = [&](uint32_t binding) { return reinterpret_cast<const uint16_t *>(bindings.address[binding]); };
    const View o = VIEW(attention, o);
    const uint32_t base = shared_address(shared), lane = threadIdx.x % 32, line0 = threadIdx.x / 32 * 16;
    const uint32_t t_blocks = ceil_div(args.L, TOKENS), heads = args.H * args.B;
    FOR_TILES(tile) {
        const uint32_t t0 = (t_blocks - 1 - tile / heads) * TOKENS, h = tile % args.H, b = tile % heads / args.H,
                       g = h / (args.H / args.G);
        const Piece piece = piece_of(INTS(attention, seq) + args.seq_at, args.flags, args.L, b);
        if (t0 >= piece.count) continue;
        const uint32_t lines = min(piece.count - t0, TOKENS);
        const uint32_t place = piece.position + t0; // of line 0, below 2^31 + 2^30
        const uint32_t seen = min(place + lines, args.first + args.C);
        if (seen <= args.first) continue;
        const uint32_t keys_seen = seen - args.first, blocks = ceil_div(keys_seen, KEYS);
        const size_t row0 = size_t(b) * args.L + t0, cache0 = size_t(b) * args.C;
        const uint16_t *k_from = halves(BINDING_attention_k) + args.k_at + cache0 * args.k_row + g * args.D,
                       *v_from = halves(BINDING_attention_v) + args.v_at + cache0 * args.v_row + g * args.D;
        const auto fetch = [&](uint32_t block) {
            const uint32_t to = base + block % 2 * 2 * BLOCK_BYTES, chunks = args.D / 8;
            for (uint32_t i = threadIdx.x; i < KEYS * 2 * STEPS; i += block_size) {
                const uint32_t key = i / (2 * STEPS), chunk = i % (2 * STEPS), s = block * KEYS + key;
                if (chunk >= chunks) continue;
                const bool there = s < keys_seen;
                const size_t row = there ? s : 0;
                copy_16_or_0(to + key * PITCH + chunk * 16, k_from + row * args.k_row + chunk * 8, there);
                copy_16_or_0(to + BLOCK_BYTES + key * PITCH + chunk * 16, v_from + row * args.v_row + chunk * 8, there);
            }
        };
        __syncthreads(); // all are done with the tile before
        fetch(0);
        Warp<dtype, STEPS> warp = {};
        for (uint32_t k = 0; k < 2; k++) warp.top[k] = lowest;
        const Operand queries(halves(BINDING_attention_q) + args.q_at + row0 * args.q_row + h * args.D, args.q_row, line0, lines);
#pragma unroll
        for (uint32_t j = 0; j < STEPS; j++)
            if (j * 16 < args.D) queries.fragment(warp.query[j], j * 16);
        for (uint32_t block = 0; block < blocks; block++) {
            const uint32_t keys = base + block % 2 * 2 * BLOCK_BYTES;
            copies_wait();
            __syncthreads(); // the block is here, and all are done with the one before it
            if (block + 1 < blocks) fetch(block + 1);
            if (args.first + block * KEYS <= place + line0 + 15)
                warp.attend(keys, keys + BLOCK_BYTES, args.first + block * KEYS, place + line0, seen, args.D, args.scale * log2e);
        }
#pragma unroll
        for (uint32_t k = 0; k < 2; k++) {
            float total = warp.den[k];
            total += __shfl_xor_sync(0xffffffffu, total, 1);
            total += __shfl_xor_sync(0xffffffffu, total, 2);
            const uint32_t t = line0 + lane / 4 + 8 * k;
            if (t >= lines) continue;
            const size_t o_at = args.o_at + (row0 + t) * args.o_row + h * args.D + lane % 4 * 2;
            if (lane % 4 == 0) FLOATS(attention, lse)[args.lse_at + (row0 + t) * args.H + h] = (warp.top[k] + log2f(total)) * ln2;
#pragma unroll
            for (uint32_t j = 0; j < STEPS; j++) {
                if (j * 16 >= args.D) continue;
                for (uint32_t i = 0; i < 8; i++)
                    if (i / 2 % 2 == k) store(o, o_at + j * 16 + i / 4 * 8 + i % 2, warp.sums[j][i] / total);
            }
        }
    }
}

} // namespace attention_tensor
} // namespace attend

static_assert(attend::attention_tensor::bytes_of(2) == SHARED_attention_tensor32_bf16 &&
                  attend::attention_tensor::bytes_of(2) == SHARED_attention_tensor32_f16 &&
                  attend::attention_tensor::bytes_of(4) == SHARED_attention_tensor64_bf16 &&
                  attend::attention_tensor::bytes_of(4) == SHARED_attention_tensor64_f16 &&
                  attend::attention_tensor::bytes_of(8) == SHARED_attention_tensor_bf16 &&
                  attend::attention_tensor::bytes_of(8) == SHARED_attention_tensor_f16,
              "kernels.def");
static_assert(attend::TOKENS == TILE0_attention_tensor32_bf16 && attend::TOKENS == TILE0_attention_tensor32_f16 &&
                  attend::TOKENS == TILE0_attention_tensor64_bf16 && attend::TOKENS == TILE0_attention_tensor64_f16 &&
                  attend::TOKENS == TILE0_attention_tensor_bf16 && attend::TOKENS == TILE0_attention_tensor_f16 &&
                  block_size == attend::TOKENS * 2 && MAX_HEAD <= 128,
              "a warp for 16 tokens");
KERNEL_FUNCTION_BLOCKS(attention, tensor32_bf16, 2) { attend::attention_tensor::run<DTYPE_BF16, 2>(args, bindings, dtypes); }
KERNEL_FUNCTION_BLOCKS(attention, tensor32_f16, 2) { attend::attention_tensor::run<DTYPE_F16, 2>(args, bindings, dtypes); }
KERNEL_FUNCTION_BLOCKS(attention, tensor64_bf16, 2) { attend::attention_tensor::run<DTYPE_BF16, 4>(args, bindings, dtypes); }
KERNEL_FUNCTION_BLOCKS(attention, tensor64_f16, 2) { attend::attention_tensor::run<DTYPE_F16, 4>(args, bindings, dtypes); }
KERNEL_FUNCTION_BLOCKS(attention, tensor_bf16, 1) { attend::attention_tensor::run<DTYPE_BF16, 8>(args, bindings, dtypes); }
KERNEL_FUNCTION_BLOCKS(attention, tensor_f16, 1) { attend::attention_tensor::run<DTYPE_F16, 8>(args, bindings, dtypes); }
