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

// One row through its norm, by eight neighbouring threads, four elements at a time: with i = 1 / rms(v) and o = scale of,
// grad = i o - v i^3 mean(o v).
struct NormRow {
    static constexpr uint32_t SHARE = 8;
    View v, grad;
    size_t at, to;
    const float *of;
    uint32_t count;
    bool aligned, grad_aligned;
    __device__ __forceinline__ float4 value(uint32_t i) const { return unpack4(fetch4(v, at + i, count - i, aligned), v.dtype); }
    __device__ __forceinline__ float4 above(uint32_t i) const
    {
        return unpack4(fetch4({reinterpret_cast<char *>(const_cast<float *>(of)), DTYPE_F32}, i, count - i, count % 4 == 0), DTYPE_F32);
    }
    // Of v^2 and of `of` v, over what this thread has.
    __device__ __forceinline__ float2 sums() const
    {
        float2 sum = make_float2(0.0f, 0.0f);
        for (uint32_t i = threadIdx.x % SHARE * 4; i < count; i += 4 * SHARE) {
            const float4 x = value(i), o = above(i);
            sum.x += x.x * x.x + x.y * x.y + (x.z * x.z + x.w * x.w);
            sum.y += x.x * o.x + x.y * o.y + (x.z * o.z + x.w * o.w);
        }
        return sum;
    }
    __device__ __forceinline__ void put(uint32_t i, const float4 &x) const
    {
        if (grad_aligned && i + 4 <= count) {
            if (grad.dtype == DTYPE_F32) {
                *reinterpret_cast<float4 *>(grad.base + 4 * (to + i)) = x;
            } else {
                const bool half = grad.dtype == DTYPE_F16;
                const auto two = [half](float a, float b) { return half ? to_half(a) | to_half(b) << 16 : to_bfloat(a) | to_bfloat(b) << 16; };
                *reinterpret_cast<uint2 *>(grad.base + 2 * (to + i)) = make_uint2(two(x.x, x.y), two(x.z, x.w));
            }
            return;
        }
        const float each[4] = {x.x, x.y, x.z, x.w};
        for (uint32_t k = 0; k < 4; k++)
            if (i + k < count) store(grad, to + i + k, each[k]);
    }
    // sum: over all eight threads; live: else the row becomes zero.
    __device__ __forceinline__ void finish(float2 sum, float scale, float eps, bool live) const
    {
        const float inverse = 1.0f / sqrtf(sum.x / float(count) + eps), back = scale * sum.y / float(count) * inverse * inverse * inverse;
        for (uint32_t i = threadIdx.x % SHARE * 4; i < count; i += 4 * SHARE) {
            float4 out = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (live) {
                const float4 x = value(i), o = above(i);
                const float by = inverse * scale;
                out = make_float4(by * o.x - back * x.x, by * o.y - back * x.y, by * o.z - back * x.z, by * o.w - back * x.w);
            }
            put(i, out);
        }
    }
};

__device__ __forceinline__ float2 share_sum(float2 sum)
{
    for (int step = NormRow::SHARE / 2; step > 0; step /= 2) {
        sum.x += __shfl_xor_sync(0xffffffffu, sum.x, step);
        sum.y += __shfl_xor_sync(0xffffffffu, sum.y, step);
    }
    return sum;
}

KERNEL_FUNCTION_BLOCKS(sma_backward_norm, simt, 4)
{
    constexpr uint32_t together = THREADS_sma_backward_norm_simt / NormRow::SHARE; // tiles
    const float root = 1.0f / sqrtf(float(args.N));
    const int32_t *seq = INTS(sma_backward_norm, seq) + args.seq_at;
    // All threads of a warp go round together, for the sums.
    for (uint64_t first = uint64_t(blockIdx.x) * together; first < args.tiles; first += uint64_t(gridDim.x) * together) {
        const uint64_t tile = first + threadIdx.x / NormRow::SHARE;
        const size_t row = tile / args.G, group = tile % args.G;
        const bool there = tile < args.tiles && !((args.flags & HAS_CU) && row >= uint32_t(max(seq[args.B], 0)));
        const bool live = there && uint32_t(row) % args.L < piece_of(seq, args.flags, args.L, uint32_t(row) / args.L).count;
        const NormRow q = {VIEW(sma_backward_norm, q), VIEW(sma_backward_norm, grad_q), args.q_at + row * args.q_row + group * args.N,
                           args.grad_q_at + row * args.grad_q_row + group * args.N, FLOATS(sma_backward_norm, of_q) + tile * args.N, args.N,
                           multiples_of_4(args.q_at, args.q_row, args.N), multiples_of_4(args.grad_q_at, args.grad_q_row, args.N)};
        const NormRow e = {VIEW(sma_backward_norm, e), VIEW(sma_backward_norm, grad_e), args.e_at + row * args.e_row + group * args.P,
                           args.grad_e_at + row * args.grad_e_row + group * args.P, FLOATS(sma_backward_norm, of_e) + tile * args.P, args.P,
                           multiples_of_4(args.e_at, args.e_row, args.P), multiples_of_4(args.grad_e_at, args.grad_e_row, args.P)};
        const float2 none = make_float2(0.0f, 0.0f), of_q = share_sum(live ? q.sums() : none), of_e = share_sum(live ? e.sums() : none);
        if (!there) continue;
        q.finish(of_q, root, args.eps, live);
        e.finish(of_e, 1.0f, args.eps, live);
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
