// The backward pass of the scan in one launch, for small chunks; formulas: the backward kernels in args.h. A block has a group of heads of a
// sequence (walk.cuh): it walks forwards and puts the states that enter the chunks into hin, then backwards with lambda in registers. Of
// heads that are more than a batch, lambda of chunk j - 1 replaces the state in slot j of hin. A thread reads from hin what it wrote itself.
//
// Of a chunk and a batch, between barriers:
// 1. x, up_y, hin and G = lambda + up_dh into shared memory, with <lambda, hin>;
// 2. b G, lambda of the chunk before, and the products of tokens and rows n: G x for grad_b and hin up_y for grad_c, of which the heads' sum
//    stays in registers, and b_s . G x_s, c_t . hin up_y_t;
// 3. up_y_t . x_s and c_t . b_s of all pairs, so weight_ts = cb_ts E_ts, u_ts and the sums of z over s < k <= t;
// 4. grad_x, the sums of u with b and c, grad_dt.
// x_s . v_s is sum_t weight_ts (up_y_t . x_s) + keep_s b_s . G x_s.
// The first `quiet` chunks have no up_y: of them no pairs, no u, and for grad_c nothing.
// Shared memory: 37.9 KiB where R is 16, 44.4 KiB where it is 32.
#include "walk.cuh"

namespace ssd_backward_walk_parts {

using namespace ssd_walk;

constexpr uint32_t most_heads = 4, folded = 8; // of a group; lanes that sums of a head are kept by

template <uint32_t R> struct Shared {
    static constexpr uint32_t batch = lines / R, parts = threads / 32 / batch; // warps that share a head's pairs
    alignas(16) Sheet x;
    alignas(16) Sheet up;
    union {
        alignas(16) Sheet hin;
        struct { // and when it is used up
            Matrix<R> weight[batch];
            float crossing[parts][lines], seen[parts][lines]; // of column k: sums of z over s < k <= t, of weight_tk (up_y_t . x_k)
        };
    };
    union {
        alignas(16) Sheet gain;
        Matrix<R> u[batch];
    };
    Matrix<R> b, c;
    Decays decays;
    float written[lines], read[lines], along[lines]; // keep_s b_s . G x_s, exp(cum_t) c_t . hin up_y_t, up_y_t . x_t
    float carry[threads / 32];
    float sums[3][most_heads][folded]; // of a_log, dt_bias and d
};
__device__ __forceinline__ Head head_of(const ssd_backward_walk_args &args, const CudaBindings &bindings, uint32_t dtypes, uint32_t h)
{
    return {-expf(load(VIEW(ssd_backward_walk, a_log), args.a_log_at + size_t(h))),
            args.flags & HAS_BIAS ? load(VIEW(ssd_backward_walk, dt_bias), args.dt_bias_at + size_t(h)) : 0.0f};
}

template <uint32_t R, bool whole>
__device__ __forceinline__ void walk(const ssd_backward_walk_args &args, const CudaBindings &bindings, uint32_t dtypes, char *memory)
{
    constexpr uint32_t batch = Shared<R>::batch, parts = Shared<R>::parts;
    constexpr uint32_t side = R / 8;   // lines, or columns, of a thread in products of tokens and rows n
    constexpr uint32_t across = R / 2; // threads across the pairs of a head
    Shared<R> &shared = *reinterpret_cast<Shared<R> *>(memory);
    const uint32_t heads = args.H / args.G, batches = ceil_div(heads, batch), warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Piece4 own = own_piece<R>();
    const Limits limits = {args.dt_min, args.dt_max};
    const View x = VIEW(ssd_backward_walk, x), dt = VIEW(ssd_backward_walk, dt), of_b = VIEW(ssd_backward_walk, b), of_c = VIEW(ssd_backward_walk, c);
    const View up_y = VIEW(ssd_backward_walk, up_y), up_dh = VIEW(ssd_backward_walk, up_dh), hin = VIEW(ssd_backward_walk, hin);
    const uint32_t valid = of_four(own.p, args.P), rows = of_four(own.t, args.N);

    FOR_TILES(tile) {
        const uint32_t first = tile % args.G * heads, b = tile / args.G;
        const Sequence sequence = sequence_of(INTS(ssd_backward_walk, seq) + args.seq_at, args.flags, args.L, args.T, b);
        const uint32_t chunks = ceil_div(sequence.count, args.S);
        const size_t slots = sequence.slot(args.M, args.S);
        const size_t keys = size_t(tile % args.G) * args.N; // columns of b and c
        float4 lambda[four];
        for (uint32_t i = threadIdx.x; i < 3 * most_heads * folded; i += threads) (&shared.sums[0][0][0])[i] = 0.0f;
        __syncthreads(); // for a sequence without tokens

        // The states.
        for (uint32_t h0 = 0; h0 < heads && chunks > 1; h0 += batch) {
            const bool there = h0 + own.head < heads, decides = warp < batch && h0 + warp < heads;
            const uint32_t h = first + h0 + (there ? own.head : 0);
            const Head head = head_of(args, bindings, dtypes, first + h0 + (decides ? warp : 0));
            Raw4 raw_x;
            Keys<R, whole> key;
            float raw = 0.0f;
            const auto source = [&](uint32_t j) { // all chunks but the last one are full
                return Source{x, args.x_at + (sequence.row + size_t(j) * args.S + own.t) * args.x_row + size_t(h) * args.P + own.p, args.x_row,
                              there ? of_four(own.t, args.S) : 0, valid};
            };
            const auto fetch = [&](uint32_t j) {
                const size_t token = sequence.row + size_t(j) * args.S;
                if (decides && lane < args.S) raw = load(dt, args.dt_at + (token + lane) * args.dt_row + first + h0 + warp);
                key.fetch(of_b, args.b_at + token * args.b_row + keys, args.b_row, args.S, args.N);
                fetch_piece<whole>(raw_x, source(j));
            };
#pragma unroll
            for (uint32_t i = 0; i < four; i++) lambda[i] = zero4();
            fetch(0);
            for (uint32_t j = 0; j + 1 < chunks; j++) {
                if (warp < batch) put_decays<R>(shared.decays, decides && lane < args.S ? step_size(raw, head, limits, args.flags) : 0.0f, head);
                put_piece<whole>(shared.x, own, raw_x, source(j));
                key.put(shared.b, of_b, args.b_at + (sequence.row + size_t(j) * args.S) * args.b_row + keys, args.b_row, args.S, args.N);
                __syncthreads();
                if (j + 2 < chunks) fetch(j + 1);
                float4 sum[four];
                outer_sum(sum, own, shared.b, shared.x, args.S,
                          [&](uint32_t line) { return shared.decays.keep[line] * shared.decays.step[line]; });
                const float through = shared.decays.read[own.head * R + R - 1];
                const size_t to = (((slots + j + 1) * args.H + h) * args.N + own.t) * args.P + own.p;
#pragma unroll
                for (uint32_t i = 0; i < four; i++) {
                    add_scaled(sum[i], through, lambda[i]);
                    lambda[i] = sum[i];
                    if (there && i < rows) store_four<whole>(hin, to + size_t(i) * args.P, sum[i], valid);
                }
                __syncthreads();
            }
        }

#pragma unroll
        for (uint32_t i = 0; i < four; i++) lambda[i] = zero4();
#pragma unroll 1
        for (uint32_t j = chunks; j-- > 0;) {
            const bool quiet = R == 16 && j < args.quiet;
            const uint32_t length = min(args.S, sequence.count - j * args.S);
            const size_t token = sequence.row + size_t(j) * args.S;
            // Threads 0 to 63 have grad_b, the others grad_c: tokens i + 8 k, columns n of the same form.
            const bool reads = threadIdx.x >= threads / 2;
            const uint32_t ti = threadIdx.x / 16 % 4 * 2 + threadIdx.x % 2, ni = threadIdx.x / 2 % 8;
            float total[side][side] = {};
#pragma unroll 1
            for (uint32_t h0 = 0; h0 < heads; h0 += batch) {
                const bool there = h0 + own.head < heads, decides = warp < batch && h0 + warp < heads;
                const uint32_t h = first + h0 + (there ? own.head : 0), decided = first + h0 + (decides ? warp : 0);
                const size_t column = size_t(h) * args.P + own.p, state = (((slots + j) * args.H + h) * args.N + own.t) * args.P + own.p;
                const uint32_t tokens = there ? of_four(own.t, length) : 0, entries = there ? rows : 0;

                // 1.
                const float raw = decides && lane < length ? load(dt, args.dt_at + (token + lane) * args.dt_row + decided) : 0.0f;
                {
                    const size_t b_at = args.b_at + token * args.b_row + keys, c_at = args.c_at + token * args.c_row + keys;
                    const Source of_x = {x, args.x_at + (token + own.t) * args.x_row + column, args.x_row, tokens, valid};
                    const Source of_up = {up_y, args.up_y_at + (token + own.t) * args.up_y_row + column, args.up_y_row, quiet ? 0 : tokens, valid};
                    Raw4 raw_x, raw_up;
                    Keys<R, whole> b_key, c_key;
                    fetch_piece<whole>(raw_x, of_x);
                    fetch_piece<whole>(raw_up, of_up);
                    if (h0 == 0) b_key.fetch(of_b, b_at, args.b_row, length, args.N);
                    if (h0 == 0) c_key.fetch(of_c, c_at, args.c_row, length, args.N);
                    put_piece<whole>(shared.x, own, raw_x, of_x);
                    put_piece<whole>(shared.up, own, raw_up, of_up);
                    if (h0 == 0) b_key.put(shared.b, of_b, b_at, args.b_row, length, args.N);
                    if (h0 == 0) c_key.put(shared.c, of_c, c_at, args.c_row, length, args.N);
                }
                {
                    Raw4 raw_hin, raw_gain;
                    if (batches > 1) {
                        const Source later = {hin, state + size_t(args.H) * args.N * args.P, args.P, j + 1 < chunks ? entries : 0, valid};
                        fetch_piece<whole>(raw_gain, later);
                        put_piece<whole>(shared.gain, own, raw_gain, later);
#pragma unroll
                        for (uint32_t i = 0; i < four; i++) lambda[i] = line4(shared.gain, own.line + i, own.p);
                    }
                    const Source enters = {hin, state, args.P, j > 0 ? entries : 0, valid};
                    const Source gained = {up_dh, args.up_dh_at + state, args.P, args.flags & HAS_DH ? entries : 0, valid};
                    fetch_piece<whole>(raw_hin, enters);
                    fetch_piece<whole>(raw_gain, gained);
                    put_piece<whole>(shared.hin, own, raw_hin, enters);
                    put_piece<whole>(shared.gain, own, raw_gain, gained);
                    float carry = 0.0f;
#pragma unroll
                    for (uint32_t i = 0; i < four; i++) {
                        carry = dot(lambda[i], line4(shared.hin, own.line + i, own.p), carry);
                        float4 gain = line4(shared.gain, own.line + i, own.p);
                        add_scaled(gain, 1.0f, lambda[i]);
                        *reinterpret_cast<float4 *>(&shared.gain[own.line + i][own.p]) = gain;
                    }
                    carry = warp_sum(carry);
                    if (lane == 0) shared.carry[warp] = carry;
                    if (warp < batch) {
                        const Head head = head_of(args, bindings, dtypes, decided);
                        put_decays<R>(shared.decays, decides && lane < length ? step_size(raw, head, limits, args.flags) : 0.0f, head);
                    }
                }
                __syncthreads();

                // 2.
                float4 value[four];
                inner_sum(value, own, shared.b, shared.gain);
                if (j > 0) {
                    float4 sum[four];
                    outer_sum(sum, own, shared.c, shared.up, quiet ? 0 : length, [&](uint32_t line) { return shared.decays.read[line]; });
                    const float through = shared.decays.read[own.head * R + R - 1];
#pragma unroll
                    for (uint32_t i = 0; i < four; i++) {
                        add_scaled(sum[i], through, lambda[i]);
                        lambda[i] = sum[i];
                        if (batches > 1 && i < entries) store_four<whole>(hin, state + size_t(i) * args.P, sum[i], valid);
                    }
                }
                {
                    const Sheet &left = reads ? shared.up : shared.x, &right = reads ? shared.hin : shared.gain;
                    const Matrix<R> &key = reads ? shared.c : shared.b;
#pragma unroll 1
                    for (uint32_t head = quiet && reads ? batch : 0; head < batch; head++) {
                        float sum[side][side] = {};
#pragma unroll 2
                        for (uint32_t p = 0; p < columns; p += four) {
                            float4 l[side], r[side];
#pragma unroll
                            for (uint32_t i = 0; i < side; i++) {
                                l[i] = line4(left, head * R + ti + 8 * i, p);
                                r[i] = line4(right, head * R + ni + 8 * i, p);
                            }
#pragma unroll
                            for (uint32_t i = 0; i < side; i++) {
#pragma unroll
                                for (uint32_t k = 0; k < side; k++) sum[i][k] = dot(l[i], r[k], sum[i][k]);
                            }
                        }
#pragma unroll
                        for (uint32_t i = 0; i < side; i++) {
                            const uint32_t line = head * R + ti + 8 * i;
                            const float factor = reads ? shared.decays.read[line] : shared.decays.keep[line];
                            const float step = reads ? 1.0f : shared.decays.step[line];
                            float found = 0.0f;
#pragma unroll
                            for (uint32_t k = 0; k < side; k++) {
                                found = fmaf(key.of[ti + 8 * i][ni + 8 * k], sum[i][k], found);
                                total[i][k] = fmaf(factor * step, sum[i][k], total[i][k]);
                            }
                            for (uint32_t apart = 2; apart < 16; apart *= 2) found += __shfl_xor_sync(0xffffffffu, found, apart);
                            if (ni == 0) (reads ? shared.read : shared.written)[line] = factor * found;
                        }
                    }
                }
                __syncthreads();

                // 3.
                if (!quiet) {
                    const uint32_t head = warp / parts, k = own_pairs<R>().k, i = own_pairs<R>().i;
                    float pairs[side][2] = {}, cb[side][2] = {}, crossing[2] = {}, seen[2] = {};
#pragma unroll 2
                    for (uint32_t p = 0; p < columns; p += four) {
                        const float4 s0 = line4(shared.x, head * R + k, p), s1 = line4(shared.x, head * R + k + across, p);
#pragma unroll
                        for (uint32_t a = 0; a < side; a++) {
                            const float4 t = line4(shared.up, head * R + i + 8 * a, p);
                            pairs[a][0] = dot(t, s0, pairs[a][0]);
                            if (8 * a + 7 >= across) pairs[a][1] = dot(t, s1, pairs[a][1]);
                        }
                    }
#pragma unroll 4
                    for (uint32_t n = 0; n < R; n += four) {
                        const float4 s0 = matrix4(shared.b, k, n), s1 = matrix4(shared.b, k + across, n);
#pragma unroll
                        for (uint32_t a = 0; a < side; a++) {
                            const float4 t = matrix4(shared.c, i + 8 * a, n);
                            cb[a][0] = dot(t, s0, cb[a][0]);
                            if (8 * a + 7 >= across) cb[a][1] = dot(t, s1, cb[a][1]);
                        }
                    }
#pragma unroll
                    for (uint32_t a = 0; a < side; a++) {
                        const uint32_t t = i + 8 * a;
                        float before = 0.0f; // of z over the columns to the left of those of `half`
#pragma unroll
                        for (uint32_t half = 0; half < 2; half++) {
                            const uint32_t s = k + half * across;
                            float weight = 0.0f, u = 0.0f, z = 0.0f;
                            if (s <= t && t < length) {
                                const float decay = decay_from(shared.decays, head * R + t, head * R + s);
                                weight = decay * cb[a][half];
                                u = decay * shared.decays.step[head * R + s] * pairs[a][half];
                                z = u * cb[a][half];
                                seen[half] = fmaf(weight, pairs[a][half], seen[half]);
                            }
                            shared.weight[head].of[t][s] = weight;
                            shared.u[head].of[t][s] = u;
                            if (s == t) shared.along[head * R + t] = pairs[a][half];
                            if (half == 1 && 8 * a + 7 < across) continue; // no column of this half is before a token of these
#pragma unroll
                            for (uint32_t apart = 1; apart < across; apart *= 2) {
                                const float other = __shfl_up_sync(0xffffffffu, z, 2 * apart, R);
                                if (k >= apart) z += other;
                            }
                            const float left = __shfl_up_sync(0xffffffffu, z, 2, R);
                            if (t >= s) crossing[half] += before + (k > 0 ? left : 0.0f);
                            if (half == 0) before = __shfl_sync(0xffffffffu, z, R - 2 + lane % 2, R);
                        }
                    }
#pragma unroll
                    for (uint32_t half = 0; half < 2; half++) {
#pragma unroll
                        for (uint32_t apart = 1; apart < 32; apart = apart == 1 ? R : 2 * apart) { // over the lanes of a column
                            crossing[half] += __shfl_xor_sync(0xffffffffu, crossing[half], apart);
                            seen[half] += __shfl_xor_sync(0xffffffffu, seen[half], apart);
                        }
                        if (lane >= R || lane % 2 != 0) continue;
                        shared.crossing[warp % parts][head * R + k + half * across] = crossing[half];
                        shared.seen[warp % parts][head * R + k + half * across] = seen[half];
                    }
                    __syncthreads();
                }

                // 4.
                {
                    const float skip = args.flags & HAS_D ? load(VIEW(ssd_backward_walk, d), args.d_at + size_t(h)) : 0.0f;
#pragma unroll
                    for (uint32_t i = 0; i < four; i++) value[i] = scaled(shared.decays.keep[own.line + i], value[i]);
#pragma unroll 4
                    for (uint32_t t = quiet ? length : own.t; t < length; t++) {
                        const float4 w = matrix4(shared.weight[own.head], t, own.t);
                        const float4 up = line4(shared.up, own.head * R + t, own.p);
                        add_scaled(value[0], w.x, up);
                        add_scaled(value[1], w.y, up);
                        add_scaled(value[2], w.z, up);
                        add_scaled(value[3], w.w, up);
                    }
#pragma unroll
                    for (uint32_t i = 0; i < four; i++) {
                        if (i >= tokens) continue;
                        float4 grad = scaled(skip, line4(shared.up, own.line + i, own.p));
                        add_scaled(grad, shared.decays.step[own.line + i], value[i]);
                        store_four<whole>(VIEW(ssd_backward_walk, grad_x), args.grad_x_at + (token + own.t + i) * args.grad_x_row + column, grad,
                                          valid);
                    }
                }
                // u is 0 where s > t.
#pragma unroll 4
                for (uint32_t k = quiet ? length : reads ? 0 : ti; k < length; k++) {
                    float of_pair[side], of_key[side];
#pragma unroll
                    for (uint32_t i = 0; i < side; i++) {
                        const uint32_t t = reads ? ti + 8 * i : k, s = reads ? k : ti + 8 * i;
                        of_pair[i] = shared.u[0].of[t][s];
                        for (uint32_t head = 1; head < batch; head++) of_pair[i] += shared.u[head].of[t][s];
                        of_key[i] = (reads ? shared.b : shared.c).of[k][ni + 8 * i];
                    }
#pragma unroll
                    for (uint32_t i = 0; i < side; i++) {
#pragma unroll
                        for (uint32_t n = 0; n < side; n++) total[i][n] = fmaf(of_pair[i], of_key[n], total[i][n]);
                    }
                }
                if (warp < batch) {
                    const uint32_t line = warp * R + lane % R;
                    const bool token_there = decides && lane < length;
                    const Head head = head_of(args, bindings, dtypes, decided);
                    float crossing = 0.0f, along = 0.0f, carry = 0.0f;
#pragma unroll
                    for (uint32_t part = 0; part < parts; part++) {
                        if (!quiet) crossing += shared.crossing[part][line];
                        if (!quiet) along += shared.seen[part][line];
                        carry += shared.carry[warp * parts + part];
                    }
                    const float step = shared.decays.step[line], written = shared.written[line];
                    const float read = shared.read[line];
                    float later = !quiet && token_there ? read : 0.0f, earlier = token_there ? step * written : 0.0f;
#pragma unroll
                    for (uint32_t apart = 1; apart < 32; apart *= 2) {
                        const float after = __shfl_down_sync(0xffffffffu, later, apart), before = __shfl_up_sync(0xffffffffu, earlier, apart);
                        if (lane + apart < 32) later += after;
                        if (lane >= apart) earlier += before;
                    }
                    earlier = __shfl_up_sync(0xffffffffu, earlier, 1);
                    if (lane == 0) earlier = 0.0f;
                    const float of_decay = crossing + later + earlier + shared.decays.read[warp * R + R - 1] * carry;
                    float grad = along + written + head.rate * of_decay;
                    if (!(args.flags & IS_STEP)) {
                        const float v = raw + head.bias, e = expf(-fabsf(v)), soft = fmaxf(v, 0.0f) + log1pf(e);
                        grad = soft >= args.dt_min && soft <= args.dt_max ? grad * ((v >= 0.0f ? 1.0f : e) / (1.0f + e)) : 0.0f;
                    }
                    if (token_there) store(VIEW(ssd_backward_walk, grad_dt), args.grad_dt_at + (token + lane) * args.grad_dt_row + decided, grad);
                    float sums[3] = {head.rate * step * of_decay, grad, quiet ? 0.0f : shared.along[line]};
#pragma unroll
                    for (uint32_t i = 0; i < 3; i++) {
                        if (!token_there) sums[i] = 0.0f;
                        for (uint32_t apart = 16; apart >= folded; apart /= 2) sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], apart);
                        if (decides && lane < folded) shared.sums[i][h0 + warp][lane] += sums[i];
                    }
                }
                __syncthreads();
            }

            const View grad_b = VIEW(ssd_backward_walk, grad_b), grad_c = VIEW(ssd_backward_walk, grad_c);
            const View to = {reads ? grad_c.base : grad_b.base, reads ? grad_c.dtype : grad_b.dtype};
            const size_t to_row = reads ? args.grad_c_row : args.grad_b_row;
            const size_t to_at = (reads ? args.grad_c_at : args.grad_b_at) + token * to_row + keys;
#pragma unroll
            for (uint32_t i = 0; i < side; i++) {
#pragma unroll
                for (uint32_t n = 0; n < side; n++) {
                    if (ti + 8 * i >= length || ni + 8 * n >= args.N || (quiet && reads && (args.flags & IS_ADD))) continue;
                    const size_t at = to_at + (ti + 8 * i) * to_row + ni + 8 * n;
                    store(to, at, reads && (args.flags & IS_ADD) ? load(to, at) + total[i][n] : total[i][n]);
                }
            }
        }

        if (threadIdx.x < heads) {
            float sums[3] = {};
#pragma unroll
            for (uint32_t i = 0; i < 3; i++) {
                for (uint32_t k = 0; k < folded; k++) sums[i] += shared.sums[i][threadIdx.x][k];
            }
            const size_t at = size_t(b) * args.H + first + threadIdx.x;
            FLOATS(ssd_backward_walk, of_a_log)[at] = sums[0];
            FLOATS(ssd_backward_walk, of_bias)[at] = sums[1];
            FLOATS(ssd_backward_walk, of_d)[at] = sums[2];
        }
        __syncthreads();
    }
}

} // namespace ssd_backward_walk_parts

// Chunks and N of at most 16, pieces that are whole. More than four blocks a multiprocessor would spill.
KERNEL_FUNCTION_BLOCKS(ssd_backward_walk, walk16, 4)
{
    using namespace ssd_backward_walk_parts;
    static_assert(THREADS_ssd_backward_walk_walk16 == threads, "pieces of all lines");
    __shared__ alignas(16) char memory[sizeof(Shared<16>)];
    walk<16, true>(args, bindings, dtypes, memory);
}

KERNEL_FUNCTION_BLOCKS(ssd_backward_walk, walk, 3)
{
    using namespace ssd_backward_walk_parts;
    static_assert(THREADS_ssd_backward_walk_walk == threads, "pieces of all lines");
    __shared__ alignas(16) char memory[sizeof(Shared<32>)];
    const bool whole = multiples_of_4(args.P, args.N) && multiples_of_4(args.x_at, args.x_row) && multiples_of_4(args.b_at, args.b_row) &&
                       multiples_of_4(args.c_at, args.c_row) && multiples_of_4(args.up_y_at, args.up_y_row, args.up_dh_at) &&
                       multiples_of_4(args.grad_x_at, args.grad_x_row);
    if (whole) walk<32, true>(args, bindings, dtypes, memory);
    else walk<32, false>(args, bindings, dtypes, memory);
}
