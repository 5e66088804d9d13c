// The gradient of memories on the warp products of sm_80, for 16-bit c, memories and up_r, N 16 or 32 and P a multiple of 16 up to 64:
//   X = sum_t slope qn en, Y = sum_t g c up_r for rows (m, n) and columns p, over the tokens that see memory m; then
//   grad_dh = Y + rho (X - u mean_p(X u)), u = key w the normalised row.
// A block takes 128 of the M N rows of one (b, h), a warp 16 of them, which belong to one memory, with X and Y whole in its registers: mean_p
// needs no other warp. Tokens pass through shared memory 64 at a time, from the first that sees a memory of the block on.
// Numbers: en, and slope qn and g c, are rounded to 16 bits once each, in f16 slope relative to a power of two of its memory; sums are f32.
// A lane holds of the rows lane / 4 (k = 0) and lane / 4 + 8 (k = 1) the columns 8 i + 2 (lane % 4) + {0, 1} as elements 4 i + 2 k + {0, 1}.
// Shared memory: 2 x 64 rows of 128 bytes, (2 x 32 + 2 x 8) x 80 floats = 41,984 bytes.
#include "sma/products.cuh"
#include "sma/backward.cuh"

namespace sma_rows {

constexpr uint32_t ROWS = 128, TOKENS = 64, THREADS = 256;
constexpr uint32_t pitch = TOKENS + 16; // floats: rows beside one another then lie in the other half of the banks

struct Shared {
    alignas(1024) char en[TOKENS * tile_row];
    alignas(1024) char up_r[TOKENS * tile_row];
    alignas(16) float qn[32][pitch], c[32][pitch]; // n, then the place of the token
    alignas(16) float slope[8][pitch], g[8][pitch]; // memory of the block, then the place of the token
};

// The place of a token among those of a tile: places 4 i to 4 i + 3 are the tokens that lane i of four holds of the depth of 16.
__device__ __forceinline__ uint32_t place(uint32_t t) { return (t & ~15u) | (t % 8 / 2 * 4 + t / 8 % 2 * 2 + t % 2); }

__device__ __forceinline__ float4 four(const float *from) { return *reinterpret_cast<const float4 *>(from); }

// Weights of four neighbouring tokens for two rows as a fragment.
template <bool bf> __device__ __forceinline__ void weigh(uint32_t (&a)[4], const float4 &by, const float4 &row0, const float4 &row1)
{
    a[0] = pack<bf>(by.x * row0.x, by.y * row0.y);
    a[1] = pack<bf>(by.x * row1.x, by.y * row1.y);
    a[2] = pack<bf>(by.z * row0.z, by.w * row0.w);
    a[3] = pack<bf>(by.z * row1.z, by.w * row1.w);
}

template <bool bf>
__device__ __forceinline__ void run(const sma_backward_rows_args &args, const CudaBindings &bindings, uint32_t dtypes)
{
    __shared__ Shared shared;
    const float *qn = FLOATS(sma_backward_rows, qn), *en = FLOATS(sma_backward_rows, en);
    const float *g = FLOATS(sma_backward_rows, g), *slope = FLOATS(sma_backward_rows, slope);
    const auto halves = [&](uint32_t binding) { return reinterpret_cast<const uint16_t *>(bindings.address[binding]); };
    const uint32_t N = args.N, P = args.P, blocks = ceil_div(args.M * N, ROWS), in_block = ROWS / N;
    const uint32_t lane = threadIdx.x % 32, quad = lane % 4, line = lane / 4;
    const bool raw = args.flags & IS_RAW, fours = args.M % 4 == 0;
    FOR_TILES(tile) {
        const uint32_t first = tile % blocks * ROWS, h = tile / blocks % args.H, b = tile / blocks / args.H, group = h / (args.H / args.G);
        const Sequence piece = sequence_of(INTS(sma_backward_rows, seq) + args.seq_at, args.flags, args.L, args.T, b);
        // Memories that there is room for: of packed sequences those of their own chunks, for all others M.
        const uint32_t room = piece.packed ? min(ceil_div(piece.count, args.S), args.M) : args.M;
        const size_t slots = piece.slot(args.M, args.S);
        const uint32_t m_first = first / N, own_row = first + threadIdx.x / 32 * 16, m = own_row / N, n0 = own_row % N;
        const uint32_t own = m - m_first, begin = first_to_see(args, piece.position, m_first);
        const uint32_t from = m < args.M ? first_to_see(args, piece.position, m) : args.L; // the first token of this warp
        float power = 1.0f; // of slope, f16 only
        if (!bf) {
            float most = 0.0f;
            for (uint32_t t = from + lane; t < piece.count; t += 32)
                most = fmaxf(most, fabsf(slope[(size_t(piece.row + t) * args.H + h) * args.M + m]));
            power = fmaxf(__uint_as_float(__float_as_uint(warp_top(most)) & 0x7f800000u), 0x1p-126f);
        }
        const float inverse = 1.0f / power;
        float x[32] = {}, y[32] = {};
        for (uint32_t t0 = begin; t0 < piece.count; t0 += TOKENS) {
            const uint32_t live = min(piece.count - t0, TOKENS);
            const size_t row = size_t(piece.row) + t0;
            __syncthreads(); // all are done with the tokens before
            const uint16_t *up_r = halves(BINDING_sma_backward_rows_up_r) + args.up_r_at + row * args.up_r_row + h * P;
            copy_tile<TOKENS, THREADS>(shared_address(shared.up_r), up_r, args.up_r_row, live, threadIdx.x, P / 8);
            copies_commit();
            const uint32_t t = threadIdx.x % TOKENS, at = place(t);
            const bool is = t < live;
#pragma unroll
            for (uint32_t i = 0; i < 2; i++) {
                const uint32_t n = threadIdx.x / TOKENS * 4 + 16 * i;
                if (n >= N) continue;
                const float4 none = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                const float4 query = is ? four(qn + ((row + t) * args.G + group) * N + n) : none;
                const uint16_t *c = halves(BINDING_sma_backward_rows_c) + args.c_at + (row + t) * args.c_row + group * N + n;
                const uint2 pairs = is ? *reinterpret_cast<const uint2 *>(c) : make_uint2(0, 0);
                const float2 low = unpack<bf>(pairs.x), high = unpack<bf>(pairs.y);
                shared.qn[n][at] = query.x, shared.qn[n + 1][at] = query.y, shared.qn[n + 2][at] = query.z, shared.qn[n + 3][at] = query.w;
                shared.c[n][at] = low.x, shared.c[n + 1][at] = low.y, shared.c[n + 2][at] = high.x, shared.c[n + 3][at] = high.y;
            }
            { // a thread takes four memories of a token; what a token does not see was not written
                const uint32_t which = threadIdx.x / TOKENS % 2, i = threadIdx.x / TOKENS / 2 * 4;
                if (i < in_block) {
                    const uint32_t seen = is ? seen_by(args, piece.position, t0 + t) : 0;
                    const float *weights = (which == 0 ? slope : g) + ((row + t) * args.H + h) * args.M + m_first + i;
                    float(*to)[pitch] = which == 0 ? shared.slope : shared.g;
                    float v[4] = {};
                    if (fours && m_first + i < seen) {
                        const float4 all = four(weights);
                        v[0] = all.x, v[1] = all.y, v[2] = all.z, v[3] = all.w;
                    }
#pragma unroll
                    for (uint32_t k = 0; k < 4; k++) {
                        const bool sees = m_first + i + k < seen;
                        if (!fours && sees) v[k] = weights[k];
                        to[i + k][at] = sees ? v[k] : 0.0f;
                    }
                }
            }
#pragma unroll
            for (uint32_t i = 0; i < TOKENS * 8 / THREADS; i++) {
                const uint32_t one = threadIdx.x / 8 + i * (THREADS / 8), p = threadIdx.x % 8 * 8;
                float4 low = make_float4(0.0f, 0.0f, 0.0f, 0.0f), high = low;
                if (one < live && p < P) {
                    const float *of = en + ((row + one) * args.G + group) * P + p;
                    low = four(of), high = four(of + 4);
                }
                put16(shared.en, one, threadIdx.x % 8,
                      make_uint4(pack<bf>(low.x, low.y), pack<bf>(low.z, low.w), pack<bf>(high.x, high.y), pack<bf>(high.z, high.w)));
            }
            copies_landed<0>();
            __syncthreads();
            const uint32_t of_en = shared_address(shared.en), of_up_r = shared_address(shared.up_r);
#pragma unroll 1
            for (uint32_t s = 0; s < TOKENS; s += 16) { // 16 tokens of depth at a time
                if (s >= live || t0 + s + 16 <= from) continue;
                float4 by = four(&shared.slope[own][s + 4 * quad]);
                if (!bf) by = make_float4(by.x * inverse, by.y * inverse, by.z * inverse, by.w * inverse);
                uint32_t of_x[4], of_y[4];
                weigh<bf>(of_x, by, four(&shared.qn[n0 + line][s + 4 * quad]), four(&shared.qn[n0 + line + 8][s + 4 * quad]));
                weigh<bf>(of_y, four(&shared.g[own][s + 4 * quad]), four(&shared.c[n0 + line][s + 4 * quad]),
                          four(&shared.c[n0 + line + 8][s + 4 * quad]));
#pragma unroll
                for (uint32_t i = 0; i < 4; i++) {
                    if (16 * i >= P) continue;
                    uint32_t right[4];
                    load_matrices_turned(right, of_en + tile_at(s + lane % 16, 2 * i + lane / 16));
                    multiply_16<bf>(x + 8 * i, of_x, right);
                    load_matrices_turned(right, of_up_r + tile_at(s + lane % 16, 2 * i + lane / 16));
                    multiply_16<bf>(y + 8 * i, of_y, right);
                }
            }
        }
        if (m >= room) continue;
        const bool seen = from < piece.count; // else the memory may hold anything
#pragma unroll
        for (uint32_t k = 0; k < 2; k++) {
            const size_t row = ((slots + m) * args.H + h) * N + n0 + line + 8 * k;
            const uint16_t *dh = halves(BINDING_sma_backward_rows_dh) + args.dh_at + row * P + 2 * quad;
            float *grad = FLOATS(sma_backward_rows, grad_dh) + args.grad_dh_at + row * P + 2 * quad;
            const float factor = seen ? FLOATS(sma_backward_rows, factor)[args.factor_at + row] : 1.0f, rho = raw ? factor : 1.0f / factor;
            uint32_t pairs[8];
            float along = 0.0f;
#pragma unroll
            for (uint32_t i = 0; i < 8; i++) {
                pairs[i] = seen && 8 * i < P ? *reinterpret_cast<const uint32_t *>(dh + 8 * i) : 0u;
                const float2 w = unpack<bf>(pairs[i]);
                along = fmaf(x[4 * i + 2 * k], w.x, fmaf(x[4 * i + 2 * k + 1], w.y, along));
            }
            along += __shfl_xor_sync(0xffffffffu, along, 1);
            along += __shfl_xor_sync(0xffffffffu, along, 2);
            along *= (raw ? factor * factor : 1.0f) / float(P);
#pragma unroll
            for (uint32_t i = 0; i < 8; i++) {
                if (8 * i >= P) continue;
                const float2 w = unpack<bf>(pairs[i]);
                const float of = rho * power;
                const float2 out = make_float2(fmaf(of, x[4 * i + 2 * k] - along * w.x, y[4 * i + 2 * k]),
                                               fmaf(of, x[4 * i + 2 * k + 1] - along * w.y, y[4 * i + 2 * k + 1]));
                // the gradient may start at any element
                if (args.grad_dh_at % 2 == 0) *reinterpret_cast<float2 *>(grad + 8 * i) = out;
                else grad[8 * i] = out.x, grad[8 * i + 1] = out.y;
            }
        }
    }
}

} // namespace sma_rows

static_assert(sma_rows::ROWS == TILE0_sma_backward_rows_rows_bf16 && sma_rows::ROWS == TILE0_sma_backward_rows_rows_f16 &&
                  sma_rows::THREADS == THREADS_sma_backward_rows_rows_bf16 && sma_rows::THREADS == THREADS_sma_backward_rows_rows_f16,
              "the shape of the rows");
KERNEL_FUNCTION_BLOCKS(sma_backward_rows, rows_bf16, 2) { sma_rows::run<true>(args, bindings, dtypes); }
KERNEL_FUNCTION_BLOCKS(sma_backward_rows, rows_f16, 2) { sma_rows::run<false>(args, bindings, dtypes); }
