// State-memory attention on the warp products of sm_80, for normalised memories of 16 bits, N 16, 32 or 64 and P a multiple of 16 up to 64:
//   Z = en w^T (tokens x N, over P), logit = unit sum_n qn Z, r = sum over memories and n of (g c factor) w, online softmax.
// A block takes 64 tokens of one (sequence, head), a warp 16 of them with its own bound of memories, so that tiles of several chunks cost no
// more than their tokens see. Memories pass through shared memory 32 rows at a time (two of N 16, or one; one of N 64), two steps ahead.
// Numbers: qn, en and w are exact, the weighted c is rounded once; in f16 without its weight, relative to a power of two of the memory's
// factors, the weight in f32. Weights are relative to a top that is at least the largest logit so far and at most that + headroom, so that
// it seldom changes: those below e^-59 of the largest are 0.
// A lane holds of the tokens lane / 4 (k = 0) and lane / 4 + 8 (k = 1) the columns 8 i + 2 (lane % 4) + {0, 1} as elements 4 i + 2 k + {0, 1}.
// In Z it takes 16 neighbouring p as its share of the depth, in both operands: sums do not depend on the order of the depth.
// Shared memory: 3 x (32 rows of 128 bytes, 32 factors) = 12,672 bytes; twice that for N 64.
#include "sma/products.cuh"

namespace sma_few {

constexpr uint32_t TOKENS = 64, THREADS = 128, STAGES = 3;
constexpr float headroom = 28.0f;

template <uint32_t ROWS> struct Shared {
    alignas(1024) char rows[STAGES][ROWS * tile_row];
    float factors[STAGES][ROWS];
};

// The sum over the four lanes that share tokens.
__device__ __forceinline__ float lines_sum(float v)
{
    v += __shfl_xor_sync(0xffffffffu, v, 1);
    return v + __shfl_xor_sync(0xffffffffu, v, 2);
}

template <bool bf, uint32_t steps, uint32_t ROWS> // N is 16 steps
__device__ __forceinline__ void run(const sma_args &args, const CudaBindings &bindings, uint32_t dtypes, Shared<ROWS> &shared)
{
    constexpr uint32_t N = 16 * steps, together = ROWS / N, blocks = 2 * steps; // memories at a time; blocks of 8 n
    const View r = VIEW(sma, r);
    const auto halves = [&](uint32_t binding) { return reinterpret_cast<const uint16_t *>(bindings.address[binding]); };
    const uint16_t *qn = halves(BINDING_sma_qn), *en = halves(BINDING_sma_en), *c = halves(BINDING_sma_c) + args.c_at;
    const uint16_t *dh = halves(BINDING_sma_dh) + args.dh_at;
    const float *factor = FLOATS(sma, factor) + args.factor_at, *unit = FLOATS(sma, unit);
    float *lse = FLOATS(sma, lse) + args.lse_at;
    const uint32_t tiles = ceil_div(args.L, TOKENS), P = args.P;
    const uint32_t lane = threadIdx.x % 32, quad = lane % 4, line = lane / 4, line0 = threadIdx.x / 32 * 16, p_own = 16 * quad;
    const uint32_t rows = shared_address(shared.rows), factors = shared_address(shared.factors);
    FOR_TILES(tile) {
        const uint32_t first = tile % tiles * TOKENS, h = tile / tiles % args.H, b = tile / tiles / args.H, group = h / (args.H / args.G);
        const Sequence piece = sequence_of(INTS(sma, seq) + args.seq_at, args.flags, args.L, args.T, b);
        if (first >= piece.count) continue;
        // Memories of this launch that are seen by token t.
        const auto seen_by = [&](uint32_t t) {
            const uint32_t before = (piece.position + t) / args.S;
            return before > args.first ? min(before - args.first, args.count) : 0u;
        };
        const uint32_t live = min(piece.count - first, TOKENS), seen = seen_by(first + live - 1);
        const uint32_t warp_seen = live > line0 ? seen_by(first + min(live, line0 + 16) - 1) : 0, all_see = live > line0 ? seen_by(first + line0) : 0;
        const uint32_t row = piece.row + first, turns = ceil_div(seen, together);
        const size_t slots = piece.slot(args.capacity, args.S);
        const auto fetch = [&](uint32_t turn) {
            if (turn < turns) {
                const uint32_t m_first = turn * together, to = turn % STAGES;
#pragma unroll
                for (uint32_t i = 0; i < ROWS / 16; i++) {
                    const uint32_t n = threadIdx.x / 8 + (together == 1 ? 16 * i : 0), m = m_first + (together == 1 ? 0 : i),
                                   piece8 = threadIdx.x % 8;
                    const size_t at = ((slots + m) * args.H + h) * N + n;
                    copy16(rows + to * (ROWS * tile_row) + tile_at(16 * i + threadIdx.x / 8, piece8), dh + at * P + piece8 * 8,
                           m < seen && piece8 * 8 < P);
                }
                if (threadIdx.x < ROWS) {
                    const uint32_t m = m_first + threadIdx.x / N;
                    copy4(factors + 4 * (to * ROWS + threadIdx.x), factor + ((slots + m) * args.H + h) * N + threadIdx.x % N, m < seen);
                }
            }
            copies_commit();
        };
        __syncthreads(); // all are done with the tile before
        fetch(0);
        fetch(1);

        // What a lane holds of its tokens.
        uint32_t own[2]; // memories that they see
        float of_logit[2], of_result[2], top[2] = {lowest, lowest}, den[2] = {}, result[32] = {};
        uint32_t query[2 * blocks], read[2 * blocks], e[4][4];
#pragma unroll
        for (uint32_t k = 0; k < 2; k++) {
            const uint32_t t = line0 + line + 8 * k;
            const bool is = t < live;
            const size_t of_group = size_t(row + t) * args.G + group;
            own[k] = is ? seen_by(first + t) : 0;
            of_logit[k] = is ? unit[2 * of_group] : 0.0f;
            of_result[k] = is ? unit[2 * of_group + 1] : 0.0f;
#pragma unroll
            for (uint32_t i = 0; i < blocks; i++) {
                const uint32_t n = 8 * i + 2 * quad;
                query[2 * i + k] = is ? *reinterpret_cast<const uint32_t *>(qn + of_group * N + n) : 0u;
                read[2 * i + k] = is ? *reinterpret_cast<const uint32_t *>(c + size_t(row + t) * args.c_row + group * N + n) : 0u;
            }
            const uint4 *from = reinterpret_cast<const uint4 *>(en + of_group * P + p_own);
            const bool some = is && p_own < P;
            const uint4 none = make_uint4(0, 0, 0, 0), x = some ? from[0] : none, y = some ? from[1] : none;
            const uint32_t words[8] = {x.x, x.y, x.z, x.w, y.x, y.y, y.z, y.w};
#pragma unroll
            for (uint32_t s = 0; s < 4; s++) e[s][k] = words[2 * s], e[s][2 + k] = words[2 * s + 1];
        }
        for (uint32_t turn = 0; turn < turns; turn++) {
            copies_landed<1>();
            __syncthreads(); // the rows of this turn are here, and all are done with those of the turn before
            fetch(turn + 2);
            const char *const at = shared.rows[turn % STAGES];
            const uint32_t at_address = rows + turn % STAGES * (ROWS * tile_row);
#pragma unroll 1
            for (uint32_t x = 0; x < together; x++) {
                const uint32_t m = turn * together + x;
                if (m >= warp_seen) break;
                const float *const by = &shared.factors[turn % STAGES][N * x];
                float part[2] = {};
#pragma unroll
                for (uint32_t i = 0; i < blocks; i++) {
                    const uint4 w0 = get16(at, N * x + 8 * i + line, 2 * quad), w1 = get16(at, N * x + 8 * i + line, 2 * quad + 1);
                    const uint32_t w[8] = {w0.x, w0.y, w0.z, w0.w, w1.x, w1.y, w1.z, w1.w};
                    float z[4] = {};
#pragma unroll
                    for (uint32_t s = 0; s < 4; s++) multiply_8<bf>(z, e[s], w[2 * s], w[2 * s + 1]);
#pragma unroll
                    for (uint32_t k = 0; k < 2; k++) {
                        const float2 q = unpack<bf>(query[2 * i + k]);
                        part[k] = fmaf(q.x, z[2 * k], fmaf(q.y, z[2 * k + 1], part[k]));
                    }
                }
                float weight[2], logit[2];
#pragma unroll
                for (uint32_t k = 0; k < 2; k++) {
                    logit[k] = lines_sum(part[k]) * of_logit[k];
                    if (m >= own[k]) logit[k] = __uint_as_float(0xff800000u);
                }
                if (__any_sync(0xffffffffu, logit[0] > top[0] || logit[1] > top[1])) {
#pragma unroll
                    for (uint32_t k = 0; k < 2; k++) {
                        const float now = logit[k] > top[k] ? logit[k] + headroom : top[k], correction = decay_exp(top[k] - now);
                        top[k] = now;
                        den[k] *= correction;
#pragma unroll
                        for (uint32_t i = 0; i < 8; i++) result[4 * i + 2 * k] *= correction, result[4 * i + 2 * k + 1] *= correction;
                    }
                }
#pragma unroll
                for (uint32_t k = 0; k < 2; k++) {
                    weight[k] = decay_exp(logit[k] - top[k]);
                    den[k] += weight[k];
                }
                float power = 1.0f; // of factors, f16 only
                if (!bf) {
                    float most = lane < N ? fabsf(by[lane]) : 0.0f;
                    if (N > 32) most = fmaxf(most, fabsf(by[lane + N - 32]));
                    power = fmaxf(__uint_as_float(__float_as_uint(warp_top(most)) & 0x7f800000u), 0x1p-126f);
                }
                const float inverse = 1.0f / power;
                uint32_t left[steps][4];
#pragma unroll
                for (uint32_t i = 0; i < blocks; i++) {
                    const float2 scale = *reinterpret_cast<const float2 *>(by + 8 * i + 2 * quad);
#pragma unroll
                    for (uint32_t k = 0; k < 2; k++) {
                        const float2 of_c = unpack<bf>(read[2 * i + k]);
                        const float of = bf ? weight[k] : inverse;
                        left[i / 2][k + i % 2 * 2] = pack<bf>(of_c.x * (of * scale.x), of_c.y * (of * scale.y));
                    }
                }
                // A memory that a token does not see may hold anything: 0 times it is not 0.
                const bool apart = !bf || m >= all_see;
#pragma unroll
                for (uint32_t i = 0; i < 4; i++) { // 16 columns at a time
                    if (16 * i >= P) continue;
                    uint32_t right[steps][4];
#pragma unroll
                    for (uint32_t s = 0; s < steps; s++)
                        load_matrices_turned(right[s], at_address + tile_at(N * x + 16 * s + lane % 16, 2 * i + lane / 16));
                    if (!apart) {
#pragma unroll
                        for (uint32_t s = 0; s < steps; s++) multiply_16<bf>(result + 8 * i, left[s], right[s]);
                        continue;
                    }
                    float value[8] = {};
#pragma unroll
                    for (uint32_t s = 0; s < steps; s++) multiply_16<bf>(value, left[s], right[s]);
#pragma unroll
                    for (uint32_t j = 0; j < 8; j++) {
                        const float of = bf ? 1.0f : weight[j / 2 % 2] * power;
                        if (m < own[j / 2 % 2]) result[8 * i + j] = fmaf(of, value[j], result[8 * i + j]);
                    }
                }
            }
        }
        copies_landed<0>();
        // The result of these memories, merged with what r and lse hold where that is asked for.
#pragma unroll
        for (uint32_t k = 0; k < 2; k++) {
            const uint32_t t = line0 + line + 8 * k;
            const bool is = t < live, any = den[k] != 0.0f;
            const size_t lse_at = size_t(row + t) * args.H + h, r_at = args.r_at + size_t(row + t) * args.r_row + h * P + 2 * quad;
            float share = any ? of_result[k] / den[k] : 0.0f, keep = 0.0f, log = any ? top[k] + logf(den[k]) : lowest;
            if ((args.flags & IS_MERGE) && is) {
                const float old = lse[lse_at], most = fmaxf(log, old); // -inf counts as nothing
                if (!(old <= lowest)) {
                    const float mine = decay_exp(log - most), theirs = decay_exp(old - most), total = mine + theirs;
                    share *= mine / total;
                    keep = theirs / total;
                    log = most + logf(total);
                }
            }
            __syncwarp(); // all lanes of the row have read lse
            if (!is) continue;
            if (quad == 0) lse[lse_at] = log <= lowest ? __uint_as_float(0xff800000u) : log;
#pragma unroll
            for (uint32_t i = 0; i < 8; i++) {
                if (8 * i >= P) continue;
                float x = result[4 * i + 2 * k] * share, y = result[4 * i + 2 * k + 1] * share;
                if (keep != 0.0f) {
                    x = fmaf(keep, load(r, r_at + 8 * i), x);
                    y = fmaf(keep, load(r, r_at + 8 * i + 1), y);
                }
                if (r.dtype == DTYPE_F32) *reinterpret_cast<float2 *>(r.base + 4 * (r_at + 8 * i)) = make_float2(x, y);
                else
                    *reinterpret_cast<uint32_t *>(r.base + 2 * (r_at + 8 * i)) = r.dtype == DTYPE_BF16 ? pack<true>(x, y) : pack<false>(x, y);
            }
        }
    }
}

template <bool bf> __device__ __forceinline__ void run(const sma_args &args, const CudaBindings &bindings, uint32_t dtypes)
{
    __shared__ Shared<32> shared;
    if (args.N == 16) run<bf, 1>(args, bindings, dtypes, shared);
    else run<bf, 2>(args, bindings, dtypes, shared);
}

template <bool bf> __device__ __forceinline__ void run_64(const sma_args &args, const CudaBindings &bindings, uint32_t dtypes)
{
    __shared__ Shared<64> shared;
    run<bf, 4>(args, bindings, dtypes, shared);
}

} // namespace sma_few

#define DART_CHECK(variant) \
    static_assert(sma_few::TOKENS == TILE0_sma_##variant && sma_few::THREADS == THREADS_sma_##variant, "the shape of the row")
DART_CHECK(few_bf16);
DART_CHECK(few_f16);
DART_CHECK(few64_bf16);
DART_CHECK(few64_f16);
#undef DART_CHECK
KERNEL_FUNCTION_BLOCKS(sma, few_bf16, 4) { sma_few::run<true>(args, bindings, dtypes); }
KERNEL_FUNCTION_BLOCKS(sma, few_f16, 4) { sma_few::run<false>(args, bindings, dtypes); }
KERNEL_FUNCTION_BLOCKS(sma, few64_bf16, 3) { sma_few::run_64<true>(args, bindings, dtypes); }
KERNEL_FUNCTION_BLOCKS(sma, few64_f16, 3) { sma_few::run_64<false>(args, bindings, dtypes); }
