// g and slope of sma_backward_scores and the sums of sma_backward_sums in one pass over the memories: see args.h.
// A block of 128 threads takes 32 tokens of a (b, group), head after head, and 32 rows of memories w at a time: two of up to 16 rows, or one.
// It multiplies those rows once: with Z = w en and U = w up_r (32 rows x 32 tokens each, in registers)
//   logit = sum_n qn key Z;  v . up_r = sum_n c value U;  of_q += slope key Z;  grad_c += g value U;  of_e += (slope qn key)^T w.
// Thread (i, j) of 8 x 16 holds rows i + 8 r, r < 4, of Z and U at the tokens j and j + 16, of of_q and grad_c alike, and of of_e the tokens 4 i to
// 4 i + 3 x the columns 4 j to 4 j + 3. Shared memory: 41,088 bytes.
#include "sma/backward.cuh"

namespace {

constexpr uint32_t TOKENS = 32, ROWS = 32, WIDTH = 64, QUADS = WIDTH / 4, THREADS = 128;
constexpr uint32_t pitch = WIDTH + 4;        // floats: threads beside one another then read other banks of shared memory
constexpr uint32_t weighted_pitch = TOKENS + 8, own_pitch = ROWS + 4;

struct Shared {
    alignas(16) float memory[ROWS][pitch];            // w
    alignas(16) float columns[2 * TOKENS][pitch];     // en of the tokens, then up_r
    alignas(16) float weighted[ROWS][weighted_pitch]; // slope qn key of (row, token); before that the threads' parts of logits and of v . up_r
    float qn[TOKENS][own_pitch], c[TOKENS][own_pitch]; // of a token
    float weights[2][2][TOKENS];                      // of each memory slope, then g
    float factors[ROWS];
};

__device__ __forceinline__ float4 quad(const float *from) { return *reinterpret_cast<const float4 *>(from); }

// acc += a . b
__device__ __forceinline__ void add_dot(float &acc, const float4 &a, const float4 &b)
{
    acc = fmaf(a.x, b.x, acc);
    acc = fmaf(a.y, b.y, acc);
    acc = fmaf(a.z, b.z, acc);
    acc = fmaf(a.w, b.w, acc);
}

// Rows of the tokens, P columns each, zeros past live and P. element: of the first row; step: from one row to the next.
__device__ __forceinline__ void stage(float (*to)[pitch], const View &view, size_t element, size_t step, uint32_t live, uint32_t P, bool aligned)
{
#pragma unroll
    for (uint32_t x = 0; x < TOKENS * QUADS / THREADS; x++) {
        const uint32_t e = x * THREADS + threadIdx.x, t = e / QUADS, p = e % QUADS * 4;
        const uint4 raw = fetch4(view, element + t * step + p, t < live && p < P ? P - p : 0, aligned);
        *reinterpret_cast<float4 *>(&to[t][p]) = unpack4(raw, view.dtype);
    }
}

} // namespace

KERNEL_FUNCTION_BLOCKS(sma_backward_tokens, tokens, 4)
{
    static_assert(TILE0_sma_backward_tokens_tokens == TOKENS && THREADS_sma_backward_tokens_tokens == THREADS, "the shape of the row");
    __shared__ Shared shared;
    const View c = VIEW(sma_backward_tokens, c), dh = VIEW(sma_backward_tokens, dh), r = VIEW(sma_backward_tokens, r);
    const View up_r = VIEW(sma_backward_tokens, up_r), grad_c = VIEW(sma_backward_tokens, grad_c);
    const View en = {reinterpret_cast<char *>(FLOATS(sma_backward_tokens, en)), DTYPE_F32};
    const float *qn = FLOATS(sma_backward_tokens, qn), *factor = FLOATS(sma_backward_tokens, factor) + args.factor_at;
    const float *lse = FLOATS(sma_backward_tokens, lse) + args.lse_at;
    float *g = FLOATS(sma_backward_tokens, g), *slope = FLOATS(sma_backward_tokens, slope);
    float *of_q = FLOATS(sma_backward_tokens, of_q), *of_e = FLOATS(sma_backward_tokens, of_e);
    const uint32_t tiles = ceil_div(args.L, TOKENS), in_group = args.H / args.G;
    const bool raw = args.flags & IS_RAW, adds = args.flags & IS_ADD;
    const uint32_t padded = args.N <= ROWS / 2 ? ROWS / 2 : ROWS, together = ROWS / padded; // rows from one memory to the next; memories at a time
    const uint32_t quads = ceil_div(args.P, 4);
    const bool dh_aligned = multiples_of_4(args.dh_at, args.P), up_aligned = multiples_of_4(args.up_r_at, args.up_r_row, args.P);
    // Of the threads of a warp, four have different i and eight different j.
    const uint32_t i = threadIdx.x / 64 * 4 + threadIdx.x % 32 / 8, j = threadIdx.x / 32 % 2 * 8 + threadIdx.x % 8;
    // The token for which a thread makes weights, and of which memory of those taken together.
    const uint32_t token = threadIdx.x % TOKENS, put = threadIdx.x / TOKENS;
    FOR_TILES(tile) {
        const uint32_t first = tile % tiles * TOKENS, group = tile / tiles % args.G, b = tile / tiles / args.G;
        const Sequence piece = sequence_of(INTS(sma_backward_tokens, seq) + args.seq_at, args.flags, args.L, args.T, b);
        if (first >= piece.span) continue;
        const uint32_t live = first < piece.count ? min(piece.count - first, TOKENS) : 0;
        const uint32_t seen = live > 0 ? seen_by(args, piece.position, first + live - 1) : 0;
        const uint32_t own = token < live ? seen_by(args, piece.position, first + token) : 0;
        const size_t row = size_t(piece.row) + first, slots = piece.slot(args.M, args.S);
        __syncthreads();
        stage(shared.columns, en, (row * args.G + group) * args.P, size_t(args.G) * args.P, live, args.P, multiples_of_4(args.P, 0));
        for (uint32_t e = threadIdx.x; e < TOKENS * ROWS; e += THREADS) {
            const uint32_t t = e / ROWS, n = e % ROWS;
            const bool is = n < args.N && t < live;
            shared.qn[t][n] = is ? qn[((row + t) * args.G + group) * args.N + n] : 0.0f;
            shared.c[t][n] = is ? load(c, args.c_at + (row + t) * args.c_row + group * args.N + n) : 0.0f;
        }
        float sum_q[4][2] = {}, sum_c[4][2] = {}; // of row i + 8 k and token j + 16 x
        float4 sum_e[4] = {};
        for (uint32_t h = group * in_group; h < (group + 1) * in_group && seen > 0; h++) {
            __syncthreads();
            stage(shared.columns + TOKENS, up_r, args.up_r_at + row * args.up_r_row + h * args.P, args.up_r_row, live, args.P, up_aligned);
            { // four threads a token
                const uint32_t t = threadIdx.x / 4;
                float along = 0.0f;
                for (uint32_t p = threadIdx.x % 4; p < args.P && t < live; p += 4)
                    along += load(r, args.r_at + (row + t) * args.r_row + h * args.P + p) *
                             load(up_r, args.up_r_at + (row + t) * args.up_r_row + h * args.P + p);
                for (int step = 2; step > 0; step /= 2) along += __shfl_xor_sync(0xffffffffu, along, step);
                if (threadIdx.x % 4 == 0) shared.weights[0][0][t] = along;
            }
            __syncthreads();
            const size_t head = (row + token) * args.H + h;
            const float dot = shared.weights[0][0][token], own_lse = own > 0 ? lse[head] : 0.0f;
            for (uint32_t m_first = 0; m_first < seen; m_first += together) {
                uint4 ahead[ROWS * QUADS / THREADS];
#pragma unroll
                for (uint32_t x = 0; x < ROWS * QUADS / THREADS; x++) {
                    const uint32_t e = x * THREADS + threadIdx.x, line = e / QUADS, p = e % QUADS * 4, m = m_first + line / padded, n = line % padded;
                    ahead[x] = fetch4(dh, args.dh_at + (((slots + m) * args.H + h) * args.N + n) * args.P + p,
                                      m < seen && n < args.N && p < args.P ? args.P - p : 0, dh_aligned);
                }
                __syncthreads();
#pragma unroll
                for (uint32_t x = 0; x < ROWS * QUADS / THREADS; x++) {
                    const uint32_t e = x * THREADS + threadIdx.x;
                    *reinterpret_cast<float4 *>(&shared.memory[e / QUADS][e % QUADS * 4]) = unpack4(ahead[x], dh.dtype);
                }
                if (threadIdx.x < ROWS) {
                    const uint32_t m = m_first + threadIdx.x / padded, n = threadIdx.x % padded;
                    shared.factors[threadIdx.x] = m < seen && n < args.N ? factor[((slots + m) * args.H + h) * args.N + n] : 0.0f;
                }
                __syncthreads();

                float z[4][2] = {}, u[4][2] = {};
#pragma unroll 1
                for (uint32_t q = 0; q < quads; q++) { // one at a time, for want of registers
                    float4 w[4];
#pragma unroll
                    for (uint32_t k = 0; k < 4; k++) w[k] = quad(&shared.memory[i + 8 * k][4 * q]);
#pragma unroll
                    for (uint32_t x = 0; x < 2; x++) {
                        const float4 e = quad(&shared.columns[j + 16 * x][4 * q]);
#pragma unroll
                        for (uint32_t k = 0; k < 4; k++) add_dot(z[k][x], w[k], e);
                        const float4 up = quad(&shared.columns[TOKENS + j + 16 * x][4 * q]);
#pragma unroll
                        for (uint32_t k = 0; k < 4; k++) add_dot(u[k][x], w[k], up);
                    }
                }
                // The factors: keys of raw memories, values of normalised ones. Then logit and v . up_r of each memory, first over a thread's rows.
                float part[2][2][2] = {}; // memory; logit or v . up_r; token
#pragma unroll
                for (uint32_t k = 0; k < 4; k++) {
                    const float by = shared.factors[i + 8 * k];
#pragma unroll
                    for (uint32_t x = 0; x < 2; x++) {
                        z[k][x] *= raw ? by : 1.0f;
                        u[k][x] *= raw ? 1.0f : by;
                        part[k / 2][0][x] += shared.qn[j + 16 * x][(i + 8 * k) % padded] * z[k][x];
                        part[k / 2][1][x] += shared.c[j + 16 * x][(i + 8 * k) % padded] * u[k][x];
                    }
                }
#pragma unroll
                for (uint32_t x = 0; x < 4; x++) {
                    const float one = part[0][x / 2][x % 2], two = part[1][x / 2][x % 2];
                    shared.weighted[x / 2 * 8 + i][j + 16 * (x % 2)] = together == 1 ? one + two : one;
                    if (together == 2) shared.weighted[16 + x / 2 * 8 + i][j + 16 * (x % 2)] = two;
                }
                __syncthreads();
                if (put < together) {
                    float logit = 0.0f, value = 0.0f;
                    for (uint32_t k = 0; k < 8; k++) {
                        logit += shared.weighted[put * 16 + k][token];
                        value += shared.weighted[put * 16 + 8 + k][token];
                    }
                    const uint32_t m = m_first + put;
                    float own_g = 0.0f, own_slope = 0.0f;
                    if (m < own) {
                        own_g = exp_below(logit - own_lse);
                        own_slope = own == 1 ? 0.0f : own_g * (value - dot);
                        g[head * args.M + m] = own_g;
                        slope[head * args.M + m] = own_slope;
                    }
                    shared.weights[put][0][token] = own_slope;
                    shared.weights[put][1][token] = own_g;
                }
                __syncthreads();
#pragma unroll
                for (uint32_t k = 0; k < 4; k++) {
                    const uint32_t line = i + 8 * k;
                    const float by = raw ? shared.factors[line] : 1.0f;
#pragma unroll
                    for (uint32_t x = 0; x < 2; x++) {
                        const uint32_t t = j + 16 * x;
                        const float *of = shared.weights[line / padded][0] + t;
                        sum_q[k][x] += of[0] * z[k][x];
                        sum_c[k][x] += of[TOKENS] * u[k][x];
                        shared.weighted[line][t] = of[0] * shared.qn[t][line % padded] * by;
                    }
                }
                __syncthreads();
#pragma unroll 2
                for (uint32_t line = 0; line < ROWS && j < quads; line++) {
                    const float4 by = quad(&shared.weighted[line][4 * i]), w = quad(&shared.memory[line][4 * j]);
                    const float of[4] = {by.x, by.y, by.z, by.w};
#pragma unroll
                    for (uint32_t k = 0; k < 4; k++) {
                        sum_e[k].x = fmaf(of[k], w.x, sum_e[k].x);
                        sum_e[k].y = fmaf(of[k], w.y, sum_e[k].y);
                        sum_e[k].z = fmaf(of[k], w.z, sum_e[k].z);
                        sum_e[k].w = fmaf(of[k], w.w, sum_e[k].w);
                    }
                }
            }
        }
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) {
#pragma unroll
            for (uint32_t x = 0; x < 2; x++) {
                const uint32_t n = i + 8 * k, t = j + 16 * x;
                // rows 16 to 31 of two memories are rows of the second, and belong to n below 16
                if (n >= args.N || first + t >= piece.span) continue;
                const float sum = together == 2 ? sum_c[k][x] + sum_c[(k + 2) % 4][x] : sum_c[k][x];
                of_q[((row + t) * args.G + group) * args.N + n] = together == 2 ? sum_q[k][x] + sum_q[(k + 2) % 4][x] : sum_q[k][x];
                const size_t to = args.grad_c_at + (row + t) * args.grad_c_row + group * args.N + n;
                if (!adds || t < live) store(grad_c, to, adds ? load(grad_c, to) + sum : sum);
            }
        }
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) {
            const uint32_t t = 4 * i + k, p = 4 * j;
            float *to = of_e + ((row + t) * args.G + group) * args.P + p;
            if (first + t >= piece.span) continue;
            if (p < args.P) to[0] = sum_e[k].x;
            if (p + 1 < args.P) to[1] = sum_e[k].y;
            if (p + 2 < args.P) to[2] = sum_e[k].z;
            if (p + 3 < args.P) to[3] = sum_e[k].w;
        }
    }
}
