// The backward pass of state-memory attention; see args.h for all five kernels. Products are made by blocks of 256 threads, 64 x 64 outputs
// (see product.cuh).
#include "lib/product.cuh"
#include "sma/backward.cuh"

namespace {

// The sum of a value over the 16 neighbouring threads that share output lines, the same in all of them.
__device__ __forceinline__ float line_sum(float value)
{
    for (int step = 8; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
    return value;
}

__device__ __forceinline__ View view_of(const float *values) { return {reinterpret_cast<char *>(const_cast<float *>(values)), DTYPE_F32}; }

// Lines whose elements are multiplied by a factor that the staging thread holds and, unless nullptr, by one of each step.
struct WeighedLines {
    static constexpr bool by_line = true;
    struct Fetched { uint4 raw; float4 by; };
    Lines lines;
    float factor;
    const float *steps;
    __device__ __forceinline__ Fetched fetch(uint32_t line, uint32_t k) const
    {
        float by[4];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) by[i] = steps != nullptr && k + i < lines.K ? steps[k + i] : 1.0f;
        return {lines.fetch(line, k), make_float4(by[0], by[1], by[2], by[3])};
    }
    __device__ __forceinline__ float4 value(const Fetched &f) const
    {
        const float4 v = lines.value(f.raw);
        return make_float4(factor * v.x * f.by.x, factor * v.y * f.by.y, factor * v.z * f.by.z, factor * v.w * f.by.w);
    }
};

// Columns of the rows m N + n: element (row, k) is view[at + k step + n] times the weight that token k has for memory m, 0 where it does not see
// it. A thread stages the same four rows all through.
struct SeenColumns {
    static constexpr bool by_line = false;
    struct Fetched { float4 value; };
    View view;
    size_t at;
    uint32_t step, tokens;
    const float *weights;
    size_t weights_step;
    uint32_t m[4], n[4], from[4]; // of the four rows; from: the first token that sees memory m
    __device__ __forceinline__ float one(uint32_t i, uint32_t k) const
    {
        return k >= from[i] && k < tokens ? weights[k * weights_step + m[i]] * load(view, at + size_t(k) * step + n[i]) : 0.0f;
    }
    __device__ __forceinline__ Fetched fetch(uint32_t, uint32_t k) const { return {make_float4(one(0, k), one(1, k), one(2, k), one(3, k))}; }
    __device__ __forceinline__ float4 value(const Fetched &f) const { return f.value; }
};

} // namespace

// Lines 0 to 31 of the product are the tokens' keys, the others their values.
KERNEL_FUNCTION(sma_backward_scores, simt)
{
    constexpr uint32_t T = TILE0_sma_backward_scores_simt;
    static_assert(2 * T == Panels<4>::side, "keys and values of a tile");
    __shared__ Panels<4> panels;
    __shared__ float totals[2 * T], dots[T];
    const View c = VIEW(sma_backward_scores, c), dh = VIEW(sma_backward_scores, dh), r = VIEW(sma_backward_scores, r);
    const View up_r = VIEW(sma_backward_scores, up_r);
    const float *qn = FLOATS(sma_backward_scores, qn), *en = FLOATS(sma_backward_scores, en);
    const float *factor = FLOATS(sma_backward_scores, factor) + args.factor_at, *lse = FLOATS(sma_backward_scores, lse) + args.lse_at;
    float *g = FLOATS(sma_backward_scores, g), *slope = FLOATS(sma_backward_scores, slope);
    const uint32_t tiles = ceil_div(args.L, T);
    const bool raw = args.flags & IS_RAW;
    FOR_TILES(tile) {
        const uint32_t first = tile % tiles * T, h = tile / tiles % args.H, b = tile / tiles / args.H, group = h / (args.H / args.G);
        const Sequence piece = sequence_of(INTS(sma_backward_scores, seq) + args.seq_at, args.flags, args.L, args.T, b);
        if (first >= piece.count) continue;
        const uint32_t live = min(piece.count - first, T), seen = seen_by(args, piece.position, first + live - 1);
        const size_t row = size_t(piece.row) + first, slots = piece.slot(args.M, args.S);
        { // eight threads a token
            const uint32_t own = threadIdx.x / 8;
            float along = 0.0f;
            for (uint32_t p = threadIdx.x % 8; p < args.P && own < live; p += 8)
                along += load(r, args.r_at + (row + own) * args.r_row + h * args.P + p) *
                         load(up_r, args.up_r_at + (row + own) * args.up_r_row + h * args.P + p);
            for (int step = 4; step > 0; step /= 2) along += __shfl_xor_sync(0xffffffffu, along, step);
            if (threadIdx.x % 8 == 0) dots[own] = along;
        }
        // The line that this thread stages.
        const uint32_t staged = staged_line<4>(), token = staged % T;
        const bool of_key = staged < T;
        const size_t own_row = row + min(token, live - 1);
        for (uint32_t m = 0; m < seen; m++) {
            const size_t matrix = ((slots + m) * args.H + h) * args.N;
            __syncthreads();
            if (threadIdx.x < 2 * T) totals[threadIdx.x] = 0.0f;
            // One line alone: the product asks for `staged`, which begins at 0 here.
            Lines line = of_key ? Lines{view_of(qn), (own_row * args.G + group) * args.N, 0, 2 * T, args.N, multiples_of_4(args.N, 0)}
                                : Lines{c, args.c_at + own_row * args.c_row + group * args.N, 0, 2 * T, args.N,
                                        multiples_of_4(args.c_at, args.c_row, args.N)};
            if (token >= live) line.lines = 0;
            const WeighedLines left = {line, 1.0f, of_key == raw ? factor + matrix : nullptr};
            for (uint32_t p0 = 0; p0 < args.P; p0 += 2 * T) {
                float acc[4][4];
                product_clear(acc);
                product(left, Columns{dh, args.dh_at + matrix * args.P + p0, args.P, args.P - p0, args.N, multiples_of_4(args.dh_at, args.P)}, args.N,
                        panels, acc);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const uint32_t out = output_line(threadIdx.x / 16, i), t = out % T;
                    float sum = 0.0f;
#pragma unroll
                    for (int k = 0; k < 4; k++) {
                        const uint32_t p = p0 + output_line(threadIdx.x % 16, k);
                        if (t >= live || p >= args.P) continue;
                        sum += acc[i][k] * (out < T ? en[((row + t) * args.G + group) * args.P + p]
                                                    : load(up_r, args.up_r_at + (row + t) * args.up_r_row + h * args.P + p));
                    }
                    sum = line_sum(sum);
                    if (threadIdx.x % 16 == 0) totals[out] += sum;
                }
            }
            __syncthreads();
            if (threadIdx.x >= live) continue;
            const uint32_t own = seen_by(args, piece.position, first + threadIdx.x);
            if (m >= own) continue;
            const size_t head = (row + threadIdx.x) * args.H + h;
            const float weight = exp_below(totals[threadIdx.x] - lse[head]);
            g[head * args.M + m] = weight;
            slope[head * args.M + m] = own == 1 ? 0.0f : weight * (totals[T + threadIdx.x] - dots[threadIdx.x]);
        }
        __syncthreads();
    }
}

KERNEL_FUNCTION(sma_backward_sums, simt)
{
    enum { OF_Q, OF_C, OF_E };
    constexpr uint32_t T = TILE0_sma_backward_sums_simt;
    static_assert(T == Panels<4>::side && TILE1_sma_backward_sums_simt == T, "tile of the product");
    __shared__ Panels<4> panels;
    const View dh = VIEW(sma_backward_sums, dh), up_r = VIEW(sma_backward_sums, up_r), grad_c = VIEW(sma_backward_sums, grad_c);
    const float *qn = FLOATS(sma_backward_sums, qn), *en = FLOATS(sma_backward_sums, en), *g = FLOATS(sma_backward_sums, g);
    const float *slope = FLOATS(sma_backward_sums, slope), *factor = FLOATS(sma_backward_sums, factor) + args.factor_at;
    float *of_q = FLOATS(sma_backward_sums, of_q), *of_e = FLOATS(sma_backward_sums, of_e);
    const uint32_t n_blocks = ceil_div(args.N, T), blocks = 2 * n_blocks + ceil_div(args.P, T), tiles = ceil_div(args.L, T);
    const uint32_t in_group = args.H / args.G;
    const bool raw = args.flags & IS_RAW;
    FOR_TILES(tile) {
        const uint32_t block = tile % blocks, which = min(block / n_blocks, uint32_t(OF_E)), column = (block - which * n_blocks) * T;
        const uint32_t first = tile / blocks % tiles * T, group = tile / blocks / tiles % args.G, b = tile / blocks / tiles / args.G;
        const Sequence piece = sequence_of(INTS(sma_backward_sums, seq) + args.seq_at, args.flags, args.L, args.T, b);
        if (first >= piece.span) continue;
        const uint32_t live = first < piece.count ? min(piece.count - first, T) : 0;
        const uint32_t seen = live > 0 ? seen_by(args, piece.position, first + live - 1) : 0;
        const uint32_t width = which == OF_E ? args.P : args.N, depth = which == OF_E ? args.N : args.P;
        const bool scaled = (which == OF_C) != raw; // by the factor: keys of raw memories, values of normalised ones
        const size_t row = size_t(piece.row) + first, slots = piece.slot(args.M, args.S);
        const uint32_t staged = staged_line<4>();
        const uint32_t own_seen = staged < live ? seen_by(args, piece.position, first + staged) : 0;
        float acc[4][4];
        product_clear(acc);
        for (uint32_t h = group * in_group; h < (group + 1) * in_group; h++) {
            for (uint32_t m = 0; m < seen; m++) {
                const size_t matrix = ((slots + m) * args.H + h) * args.N;
                const size_t at = ((row + staged) * args.H + h) * args.M + m;
                const float weight = m < own_seen ? (which == OF_C ? g[at] : slope[at]) : 0.0f;
                Lines lines = which == OF_C
                                  ? Lines{up_r, args.up_r_at + row * args.up_r_row + h * args.P, args.up_r_row, live, args.P,
                                          multiples_of_4(args.up_r_at, args.up_r_row, args.P)}
                              : which == OF_Q
                                  ? Lines{view_of(en), (row * args.G + group) * args.P, args.G * args.P, live, args.P, multiples_of_4(args.P, 0)}
                                  : Lines{view_of(qn), (row * args.G + group) * args.N, args.G * args.N, live, args.N, multiples_of_4(args.N, 0)};
                if (m >= own_seen) lines.lines = min(lines.lines, staged); // 0 for a token that does not see the memory
                const WeighedLines left = {lines, weight, which == OF_E && scaled ? factor + matrix : nullptr};
                if (which == OF_E) {
                    const Columns right = {dh, args.dh_at + matrix * args.P + column, args.P, args.P - column, args.N,
                                           multiples_of_4(args.dh_at, args.P)};
                    product(left, right, args.N, panels, acc);
                } else {
                    const uint32_t n = column + staged;
                    const ScaledLines right = {{dh, args.dh_at + (matrix + column) * args.P, args.P, args.N - column, args.P,
                                                multiples_of_4(args.dh_at, args.P)},
                                               scaled && n < args.N ? factor[matrix + n] : 1.0f};
                    product(left, right, depth, panels, acc);
                }
            }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t line = output_line(threadIdx.x / 16, i);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const uint32_t col = column + output_line(threadIdx.x % 16, k);
                if (first + line >= piece.span || col >= width) continue;
                const size_t of_group = (row + line) * args.G + group;
                if (which == OF_Q) of_q[of_group * args.N + col] = acc[i][k];
                else if (which == OF_E) of_e[of_group * args.P + col] = acc[i][k];
                else {
                    const size_t to = args.grad_c_at + (row + line) * args.grad_c_row + group * args.N + col;
                    const bool adds = args.flags & IS_ADD;
                    if (!adds || line < live) store(grad_c, to, adds ? load(grad_c, to) + acc[i][k] : acc[i][k]);
                }
            }
        }
        __syncthreads();
    }
}

// grad = i o - v i^3 mean(o v), i = 1 / rms(v), o = scale of, of one row; zeros unless live. Call with all threads of the block, two warps.
static __device__ __forceinline__ void through_norm(const View &v, size_t at, const float *of, const View &grad, size_t to, uint32_t count,
                                                    float scale, float eps, bool live)
{
    __shared__ float2 parts[2];
    float2 sum = make_float2(0.0f, 0.0f); // of v^2 and of o v
    for (uint32_t i = threadIdx.x; i < count && live; i += 64) {
        const float value = load(v, at + i);
        sum.x += value * value;
        sum.y += scale * of[i] * value;
    }
    sum.x = warp_sum(sum.x);
    sum.y = warp_sum(sum.y);
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = sum;
    __syncthreads();
    const float inverse = 1.0f / sqrtf((parts[0].x + parts[1].x) / float(count) + eps);
    const float back = (parts[0].y + parts[1].y) / float(count) * inverse * inverse * inverse;
    for (uint32_t i = threadIdx.x; i < count; i += 64) store(grad, to + i, live ? inverse * scale * of[i] - back * load(v, at + i) : 0.0f);
}

KERNEL_FUNCTION(sma_backward_norm, simt)
{
    static_assert(THREADS_sma_backward_norm_simt == 64, "two warps");
    const View q = VIEW(sma_backward_norm, q), e = VIEW(sma_backward_norm, e);
    const View grad_q = VIEW(sma_backward_norm, grad_q), grad_e = VIEW(sma_backward_norm, grad_e);
    const float root = 1.0f / sqrtf(float(args.N));
    FOR_TILES(tile) {
        const uint32_t group = tile % args.G, row = tile / args.G;
        const int32_t *seq = INTS(sma_backward_norm, seq) + args.seq_at;
        if ((args.flags & HAS_CU) && row >= uint32_t(max(seq[args.B], 0))) continue;
        const bool live = row % args.L < piece_of(seq, args.flags, args.L, row / args.L).count;
        through_norm(q, args.q_at + size_t(row) * args.q_row + group * args.N, FLOATS(sma_backward_norm, of_q) + size_t(tile) * args.N, grad_q,
                     args.grad_q_at + size_t(row) * args.grad_q_row + group * args.N, args.N, root, args.eps, live);
        through_norm(e, args.e_at + size_t(row) * args.e_row + group * args.P, FLOATS(sma_backward_norm, of_e) + size_t(tile) * args.P, grad_e,
                     args.grad_e_at + size_t(row) * args.grad_e_row + group * args.P, args.P, 1.0f, args.eps, live);
    }
}

KERNEL_FUNCTION(sma_backward_memories, simt)
{
    constexpr uint32_t T = TILE0_sma_backward_memories_simt;
    static_assert(T == Panels<4>::side && TILE1_sma_backward_memories_simt == T, "tile of the product");
    __shared__ Panels<4> panels;
    const View c = VIEW(sma_backward_memories, c), up_r = VIEW(sma_backward_memories, up_r);
    const float *qn = FLOATS(sma_backward_memories, qn), *en = FLOATS(sma_backward_memories, en);
    const uint32_t blocks = ceil_div(args.M * args.N, T), p_blocks = ceil_div(args.P, T);
    FOR_TILES(tile) {
        const uint32_t first = tile % blocks * T, p0 = tile / blocks % p_blocks * T, rest = tile / blocks / p_blocks;
        const uint32_t h = rest / 2 % args.H, b = rest / 2 / args.H, group = h / (args.H / args.G);
        const bool of_values = rest % 2 == 1;
        const Sequence piece = sequence_of(INTS(sma_backward_memories, seq) + args.seq_at, args.flags, args.L, args.T, b);
        const uint32_t begin = first_to_see(args, piece.position, first / args.N), tokens = begin < piece.count ? piece.count - begin : 0;
        const size_t row = size_t(piece.row) + begin, slots = piece.slot(args.M, args.S);
        // Memories that there is room for: of packed sequences those of their own chunks, for all others M.
        const uint32_t room = piece.packed ? min(ceil_div(piece.count, args.S), args.M) : args.M;
        const float *weights = (of_values ? FLOATS(sma_backward_memories, g) : FLOATS(sma_backward_memories, slope)) + (row * args.H + h) * args.M;
        SeenColumns of_n = {of_values ? c : view_of(qn), of_values ? args.c_at + row * args.c_row + group * args.N : (row * args.G + group) * args.N,
                            of_values ? args.c_row : args.G * args.N, tokens, weights, size_t(args.H) * args.M, {}, {}, {}};
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t own = first + threadIdx.x % (T / 4) * 4 + i;
            of_n.m[i] = own / args.N, of_n.n[i] = own % args.N;
            of_n.from[i] = of_n.m[i] < args.M ? first_to_see(args, piece.position, of_n.m[i]) - begin : tokens;
        }
        const Columns of_p = of_values ? Columns{up_r, args.up_r_at + row * args.up_r_row + h * args.P + p0, args.up_r_row, args.P - p0, tokens,
                                                 multiples_of_4(args.up_r_at, args.up_r_row, args.P)}
                                       : Columns{view_of(en), (row * args.G + group) * args.P + p0, args.G * args.P, args.P - p0, tokens,
                                                 multiples_of_4(args.P, 0)};
        float acc[4][4];
        product_clear(acc);
        product(of_n, of_p, tokens, panels, acc);
        float *to = of_values ? FLOATS(sma_backward_memories, grad_dh) + args.grad_dh_at : FLOATS(sma_backward_memories, x);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t own = first + output_line(threadIdx.x / 16, i), m = own / args.N, n = own % args.N;
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const uint32_t p = p0 + output_line(threadIdx.x % 16, k);
                if (m < room && p < args.P) to[(((slots + m) * args.H + h) * args.N + n) * args.P + p] = acc[i][k];
            }
        }
    }
}

KERNEL_FUNCTION(sma_backward_dh, simt)
{
    static_assert(TILE0_sma_backward_dh_simt == warps, "a warp a row");
    const View dh = VIEW(sma_backward_dh, dh);
    const uint32_t blocks = ceil_div(args.N, warps), lane = threadIdx.x % 32;
    const bool raw = args.flags & IS_RAW;
    FOR_TILES(tile) {
        const uint32_t n = tile % blocks * warps + threadIdx.x / 32, head = tile / blocks, m = head / args.H % args.M, b = head / args.H / args.M;
        const Sequence piece = sequence_of(INTS(sma_backward_dh, seq) + args.seq_at, args.flags, args.L, args.T, b);
        if (n >= args.N || (piece.packed && m * args.S >= piece.count)) continue; // without a chunk the slot is another sequence's
        const size_t row = ((size_t(piece.slot(args.M, args.S)) + m) * args.H + head % args.H) * args.N + n;
        const float *x = FLOATS(sma_backward_dh, x) + row * args.P;
        float *grad = FLOATS(sma_backward_dh, grad_dh) + args.grad_dh_at + row * args.P;
        if (first_to_see(args, piece.position, m) >= piece.count) {
            for (uint32_t p = lane; p < args.P; p += 32) grad[p] = 0.0f;
            continue;
        }
        const float factor = FLOATS(sma_backward_dh, factor)[args.factor_at + row], rho = raw ? factor : 1.0f / factor;
        float along = 0.0f;
        for (uint32_t p = lane; p < args.P; p += 32) along += x[p] * load(dh, args.dh_at + row * args.P + p);
        along = warp_sum(along) * (raw ? factor * factor : 1.0f) / float(args.P);
        for (uint32_t p = lane; p < args.P; p += 32) grad[p] += rho * (x[p] - along * load(dh, args.dh_at + row * args.P + p));
    }
}
