// sma_backward_tokens on the warp products of sm_80, for 16-bit c, memories and up_r, N 16 or 32 and P a multiple of 16 up to 64. With w the
// rows of a memory, Z = en w^T and U = up_r w^T (tokens x N, over P):
//   logit = sum_n qn key Z;  v . up_r = sum_n c value U;  of_q += slope key Z;  grad_c += g value U;  of_e += (slope qn key) w.
// A block takes 64 tokens of a (b, group), a warp 16 of them with its own bound of memories, head after head. Memories pass through shared
// memory 32 rows at a time (two of N 16, or one), two steps ahead.
// Numbers: w and up_r are exact, en is the sum of two 16-bit numbers, qn, c, Z, U and all sums are f32; one operand is rounded: slope qn key
// or, in f16, whose range slope may leave, qn key relative to a power of two, with the slope in f32.
// A lane holds of the tokens lane / 4 (k = 0) and lane / 4 + 8 (k = 1) the columns 8 i + 2 (lane % 4) + {0, 1} as elements 4 i + 2 k + {0, 1}.
// In Z and U it takes 16 neighbouring p as its share of the depth, in both operands: sums do not depend on the order of the depth.
// Shared memory: 3 x (32 rows of 128 bytes, 32 factors), 12 KiB of qn and c: 24,960 bytes.
#include "sma/products.cuh"
#include "sma/backward.cuh"

namespace sma_tokens_tensor {

constexpr uint32_t TOKENS = 64, ROWS = 32, THREADS = 128, STAGES = 3;

struct Shared {
    alignas(1024) char rows[STAGES][ROWS * tile_row];
    float factors[STAGES][ROWS];
    // What each lane holds of qn and c, which would be too many registers: elements 4 i + {0, 1, 2, 3}, of c as pairs.
    float4 queries[4][THREADS];
    uint2 reads[4][THREADS];
};

// 16 neighbouring 16-bit elements of two tokens as fragments of a left operand.
struct Fragments {
    uint32_t a[4][4]; // of step s
    __device__ __forceinline__ void take(uint32_t k, const uint32_t (&words)[8])
    {
#pragma unroll
        for (uint32_t s = 0; s < 4; s++) a[s][k] = words[2 * s], a[s][2 + k] = words[2 * s + 1];
    }
};

// Two neighbouring elements. pairs: they lie in one word.
__device__ __forceinline__ void put_two(const View &view, size_t at, float x, float y, bool adds, bool pairs)
{
    if (adds) {
        x += load(view, at);
        y += load(view, at + 1);
    }
    if (pairs && view.dtype != DTYPE_F32) {
        reinterpret_cast<uint32_t *>(view.base)[at / 2] = view.dtype == DTYPE_BF16 ? pack<true>(x, y) : pack<false>(x, y);
        return;
    }
    store(view, at, x);
    store(view, at + 1, y);
}

template <bool bf, uint32_t steps> // N is 16 steps
__device__ __forceinline__ void run(const sma_backward_tokens_args &args, const CudaBindings &bindings, uint32_t dtypes, Shared &shared)
{
    constexpr uint32_t N = 16 * steps, together = 2 / steps, blocks = 2 * steps; // memories at a time; blocks of 8 n
    const View r = VIEW(sma_backward_tokens, r), grad_c = VIEW(sma_backward_tokens, grad_c);
    const float *qn = FLOATS(sma_backward_tokens, qn), *en = FLOATS(sma_backward_tokens, en), *lse = FLOATS(sma_backward_tokens, lse) + args.lse_at;
    const float *factor = FLOATS(sma_backward_tokens, factor) + args.factor_at;
    const auto halves = [&](uint32_t binding) { return reinterpret_cast<const uint16_t *>(bindings.address[binding]); };
    const uint16_t *c = halves(BINDING_sma_backward_tokens_c) + args.c_at, *up_r = halves(BINDING_sma_backward_tokens_up_r) + args.up_r_at;
    const uint16_t *dh = halves(BINDING_sma_backward_tokens_dh) + args.dh_at;
    float *g = FLOATS(sma_backward_tokens, g), *slope = FLOATS(sma_backward_tokens, slope);
    float *of_q = FLOATS(sma_backward_tokens, of_q), *of_e = FLOATS(sma_backward_tokens, of_e);
    const uint32_t tiles = ceil_div(args.L, TOKENS), in_group = args.H / args.G, P = args.P;
    const bool raw = args.flags & IS_RAW, adds = args.flags & IS_ADD, r_aligned = multiples_of_4(args.r_at, args.r_row);
    const bool pairs = ((args.grad_c_at | args.grad_c_row) & 1u) == 0;
    const uint32_t lane = threadIdx.x % 32, quad = lane % 4, line = lane / 4, line0 = threadIdx.x / 32 * 16, p_own = 16 * quad;
    const uint32_t rows = shared_address(shared.rows), factors = shared_address(shared.factors);
    FOR_TILES(tile) {
        const uint32_t first = tile % tiles * TOKENS, group = tile / tiles % args.G, b = tile / tiles / args.G;
        const Sequence piece = sequence_of(INTS(sma_backward_tokens, seq) + args.seq_at, args.flags, args.L, args.T, b);
        if (first >= piece.span) continue;
        const uint32_t live = first < piece.count ? min(piece.count - first, TOKENS) : 0;
        const uint32_t seen = live > 0 ? seen_by(args, piece.position, first + live - 1) : 0;
        const uint32_t warp_seen = live > line0 ? seen_by(args, piece.position, first + min(live, line0 + 16) - 1) : 0;
        const uint32_t row = piece.row + first;
        const size_t slots = piece.slot(args.M, args.S);
        const uint32_t turns = ceil_div(seen, together), total = turns * in_group;
        const auto fetch = [&](uint32_t turn) {
            if (turn < total) {
                const uint32_t h = group * in_group + turn / turns, m_first = turn % turns * together, to = turn % STAGES;
#pragma unroll
                for (uint32_t i = 0; i < 2; i++) {
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
        uint32_t of_token[2];
        Fragments e_high, e_low, up;
#pragma unroll
        for (uint32_t k = 0; k < 2; k++) {
            const uint32_t t = line0 + line + 8 * k;
            const bool is = t < live;
            own[k] = is ? seen_by(args, piece.position, first + t) : 0;
            of_token[k] = row + t;
            const size_t of_group = size_t(of_token[k]) * args.G + group;
#pragma unroll
            for (uint32_t i = 0; i < blocks; i++) { // a lane reads what it wrote itself
                const uint32_t n = 8 * i + 2 * quad;
                reinterpret_cast<float2 *>(&shared.queries[i][threadIdx.x])[k] =
                    is ? *reinterpret_cast<const float2 *>(qn + of_group * N + n) : make_float2(0.0f, 0.0f);
                reinterpret_cast<uint32_t *>(&shared.reads[i][threadIdx.x])[k] =
                    is ? *reinterpret_cast<const uint32_t *>(c + size_t(of_token[k]) * args.c_row + group * N + n) : 0u;
            }
            uint32_t high[8], low[8];
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                const float4 v = is && p_own < P ?
                                        *reinterpret_cast<const float4 *>(en + of_group * P + p_own + 4 * i) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                high[2 * i] = pack<bf>(v.x, v.y);
                high[2 * i + 1] = pack<bf>(v.z, v.w);
                const float2 x = unpack<bf>(high[2 * i]), y = unpack<bf>(high[2 * i + 1]);
                low[2 * i] = pack<bf>(v.x - x.x, v.y - x.y);
                low[2 * i + 1] = pack<bf>(v.z - y.x, v.w - y.y);
            }
            e_high.take(k, high);
            e_low.take(k, low);
        }
        float sum_q[4 * blocks] = {}, sum_c[4 * blocks] = {}, sum_e[32] = {};
        float dot[2] = {}, own_lse[2] = {}, held_g[2] = {}, held_slope[2] = {};
        for (uint32_t turn = 0; turn < total; turn++) {
            const uint32_t h = group * in_group + turn / turns, m_first = turn % turns * together;
            if (m_first == 0) { // another head
#pragma unroll
                for (uint32_t k = 0; k < 2; k++) {
                    const bool is = line0 + line + 8 * k < live && p_own < P;
                    const uint4 *from = reinterpret_cast<const uint4 *>(up_r + size_t(of_token[k]) * args.up_r_row + h * P + p_own);
                    const uint4 none = make_uint4(0, 0, 0, 0), x = is ? from[0] : none, y = is ? from[1] : none;
                    const uint32_t words[8] = {x.x, x.y, x.z, x.w, y.x, y.y, y.z, y.w};
                    up.take(k, words);
                    float along = 0.0f;
#pragma unroll
                    for (uint32_t i = 0; i < 4; i++) {
                        const float4 v =
                            unpack4(fetch4(r, args.r_at + size_t(of_token[k]) * args.r_row + h * P + p_own + 4 * i, is ? 4 : 0, r_aligned), r.dtype);
                        const float2 low = unpack<bf>(words[2 * i]), high = unpack<bf>(words[2 * i + 1]);
                        along += v.x * low.x + v.y * low.y + (v.z * high.x + v.w * high.y);
                    }
                    dot[k] = lines_sum(along);
                    own_lse[k] = own[k] > 0 ? lse[size_t(of_token[k]) * args.H + h] : 0.0f;
                }
            }
            copies_landed<1>();
            __syncthreads(); // the rows of this turn are here, and all are done with those of the turn before
            fetch(turn + 2);
            const char *const at = shared.rows[turn % STAGES];
            const uint32_t at_address = rows + turn % STAGES * (ROWS * tile_row);
#pragma unroll 1
            for (uint32_t x = 0; x < together; x++) {
                const uint32_t m = m_first + x;
                if (m >= warp_seen) break;
                float z[4 * blocks], u[4 * blocks], part[4] = {}; // part: logit, then v . up_r
#pragma unroll
                for (uint32_t i = 0; i < blocks; i++) {
                    const uint4 w0 = get16(at, N * x + 8 * i + line, 2 * quad), w1 = get16(at, N * x + 8 * i + line, 2 * quad + 1);
                    const uint32_t w[8] = {w0.x, w0.y, w0.z, w0.w, w1.x, w1.y, w1.z, w1.w};
                    float rest[4] = {};
                    float(&zi)[4] = *reinterpret_cast<float(*)[4]>(z + 4 * i);
                    float(&ui)[4] = *reinterpret_cast<float(*)[4]>(u + 4 * i);
#pragma unroll
                    for (uint32_t j = 0; j < 4; j++) zi[j] = ui[j] = 0.0f;
#pragma unroll
                    for (uint32_t s = 0; s < 4; s++) {
                        multiply_8<bf>(zi, e_high.a[s], w[2 * s], w[2 * s + 1]);
                        multiply_8<bf>(ui, up.a[s], w[2 * s], w[2 * s + 1]);
                        multiply_8<bf>(rest, e_low.a[s], w[2 * s], w[2 * s + 1]);
                    }
                    const float2 by = *reinterpret_cast<const float2 *>(&shared.factors[turn % STAGES][N * x + 8 * i + 2 * quad]);
                    const float4 query = shared.queries[i][threadIdx.x];
                    const uint2 pairs_of_c = shared.reads[i][threadIdx.x];
                    const float2 read0 = unpack<bf>(pairs_of_c.x), read1 = unpack<bf>(pairs_of_c.y);
                    const float queries[4] = {query.x, query.y, query.z, query.w}, reads[4] = {read0.x, read0.y, read1.x, read1.y};
#pragma unroll
                    for (uint32_t j = 0; j < 4; j++) {
                        const float of_n = j % 2 == 0 ? by.x : by.y;
                        zi[j] = (zi[j] + rest[j]) * (raw ? of_n : 1.0f);
                        ui[j] *= raw ? 1.0f : of_n;
                        part[j / 2] = fmaf(queries[j], zi[j], part[j / 2]);
                        part[2 + j / 2] = fmaf(reads[j], ui[j], part[2 + j / 2]);
                    }
                }
                float own_g[2], own_slope[2];
#pragma unroll
                for (uint32_t k = 0; k < 2; k++) {
                    const float logit = lines_sum(part[k]), value = lines_sum(part[2 + k]);
                    const bool sees = m < own[k];
                    own_g[k] = sees ? exp_below(logit - own_lse[k]) : 0.0f;
                    own_slope[k] = sees && own[k] > 1 ? own_g[k] * (value - dot[k]) : 0.0f;
                    // Lane `quad` of four writes every fourth memory, so that four neighbours are written at once.
                    if (m % 4 == quad) held_g[k] = own_g[k], held_slope[k] = own_slope[k];
                    if (m % 4 == 3 || m + 1 == warp_seen) {
                        const uint32_t to = (m & ~3u) + quad;
                        const size_t element = (size_t(of_token[k]) * args.H + h) * args.M + to;
                        if (to < own[k]) g[element] = held_g[k], slope[element] = held_slope[k];
                    }
                }
                float power = 1.0f; // of factors, f16 only
                if (!bf && raw) {
                    const float most = threadIdx.x % 32 < N ? fabsf(shared.factors[turn % STAGES][N * x + threadIdx.x % 32]) : 0.0f;
                    power = fmaxf(__uint_as_float(__float_as_uint(warp_top(most)) & 0x7f800000u), 0x1p-126f);
                }
                uint32_t left[steps][4];
#pragma unroll
                for (uint32_t i = 0; i < blocks; i++) {
                    const float2 by = *reinterpret_cast<const float2 *>(&shared.factors[turn % STAGES][N * x + 8 * i + 2 * quad]);
                    const float4 query = shared.queries[i][threadIdx.x];
                    const float queries[4] = {query.x, query.y, query.z, query.w};
#pragma unroll
                    for (uint32_t k = 0; k < 2; k++) {
                        const uint32_t j = 4 * i + 2 * k;
                        sum_q[j] = fmaf(own_slope[k], z[j], sum_q[j]);
                        sum_q[j + 1] = fmaf(own_slope[k], z[j + 1], sum_q[j + 1]);
                        sum_c[j] = fmaf(own_g[k], u[j], sum_c[j]);
                        sum_c[j + 1] = fmaf(own_g[k], u[j + 1], sum_c[j + 1]);
                        const float scale = bf ? own_slope[k] : 1.0f / power;
                        left[i / 2][k + i % 2 * 2] = pack<bf>(scale * queries[2 * k] * (raw ? by.x : 1.0f),
                                                     scale * queries[2 * k + 1] * (raw ? by.y : 1.0f));
                    }
                }
#pragma unroll
                for (uint32_t i = 0; i < 4; i++) { // 16 columns at a time
                    if (16 * i >= P) continue;
                    float apart[8] = {};
                    float(&to)[8] = bf ? *reinterpret_cast<float(*)[8]>(sum_e + 8 * i) : apart;
#pragma unroll
                    for (uint32_t s = 0; s < steps; s++) {
                        uint32_t right[4];
                        load_matrices_turned(right, at_address + tile_at(N * x + 16 * s + lane % 16, 2 * i + lane / 16));
                        multiply_16<bf>(to, left[s], right);
                    }
#pragma unroll
                    for (uint32_t j = 0; j < 8 && !bf; j++) sum_e[8 * i + j] = fmaf(own_slope[j / 2 % 2] * power, apart[j], sum_e[8 * i + j]);
                }
            }
        }
        copies_landed<0>();
#pragma unroll
        for (uint32_t k = 0; k < 2; k++) {
            const uint32_t t = line0 + line + 8 * k;
            if (first + t >= piece.span) continue;
            const size_t of_group = size_t(of_token[k]) * args.G + group;
#pragma unroll
            for (uint32_t i = 0; i < blocks; i++) {
                const uint32_t n = 8 * i + 2 * quad, j = 4 * i + 2 * k;
                *reinterpret_cast<float2 *>(of_q + of_group * N + n) = make_float2(sum_q[j], sum_q[j + 1]);
                if (!adds || t < live)
                    put_two(grad_c, args.grad_c_at + size_t(of_token[k]) * args.grad_c_row + group * N + n, sum_c[j], sum_c[j + 1], adds, pairs);
            }
#pragma unroll
            for (uint32_t i = 0; i < 8; i++)
                if (8 * i < P)
                    *reinterpret_cast<float2 *>(of_e + of_group * P + 8 * i + 2 * quad) = make_float2(sum_e[4 * i + 2 * k], sum_e[4 * i + 2 * k + 1]);
        }
    }
}

template <bool bf>
__device__ __forceinline__ void run(const sma_backward_tokens_args &args, const CudaBindings &bindings, uint32_t dtypes)
{
    __shared__ Shared shared;
    if (args.N == 16) run<bf, 1>(args, bindings, dtypes, shared);
    else run<bf, 2>(args, bindings, dtypes, shared);
}

} // namespace sma_tokens_tensor

static_assert(sma_tokens_tensor::TOKENS == TILE0_sma_backward_tokens_tensor_bf16 &&
                  sma_tokens_tensor::TOKENS == TILE0_sma_backward_tokens_tensor_f16 &&
                  sma_tokens_tensor::THREADS == THREADS_sma_backward_tokens_tensor_bf16 &&
                  sma_tokens_tensor::THREADS == THREADS_sma_backward_tokens_tensor_f16,
              "the shape of the rows");
KERNEL_FUNCTION_BLOCKS(sma_backward_tokens, tensor_bf16, 3) { sma_tokens_tensor::run<true>(args, bindings, dtypes); }
KERNEL_FUNCTION_BLOCKS(sma_backward_tokens, tensor_f16, 2) { sma_tokens_tensor::run<false>(args, bindings, dtypes); }
