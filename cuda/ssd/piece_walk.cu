// All of the scan in one launch, for small chunks: a block has a group of heads of a sequence (walk.cuh) and walks over the chunks with the states
// in registers, a batch of heads after the other.
//
// Of a chunk, between barriers:
// 1. x, b, c, the decays and the state that enters it into shared memory;
// 2. c h, the memory, which goes out with HAS_DH, the next state, and weight_ts = c_t . b_s exp(cum_t - cum_s) step_s for s <= t;
// 3. y. A token multiplies no x of a later one: that may be a number that is not finite.
// The first `quiet` chunks only update the state: of 2. the memory, and no 3.
// Shared memory: 22.6 KiB where R is 16, 31.1 KiB where it is 32.
#include "walk.cuh"

namespace ssd_piece_walk_parts {

using namespace ssd_walk;

template <uint32_t R> struct Shared {
    static constexpr uint32_t batch = lines / R, parts = threads / 32 / batch; // parts: warps that share a head's pairs
    alignas(16) Sheet x;
    alignas(16) Sheet state;
    Matrix<R> b, c, weight[batch];
    Decays decays;
};

template <uint32_t R, bool whole>
__device__ __forceinline__ void walk(const ssd_piece_args &args, const CudaBindings &bindings, uint32_t dtypes, char *memory_of_block)
{
    constexpr uint32_t batch = Shared<R>::batch, parts = Shared<R>::parts;
    constexpr uint32_t side = R / 8, across = R / 2; // pairs of a thread: lines i + 8 a, columns k and k + across
    Shared<R> &shared = *reinterpret_cast<Shared<R> *>(memory_of_block);
    const uint32_t heads = args.H / args.G, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Piece4 own = own_piece<R>();
    const Limits limits = {args.dt_min, args.dt_max};
    const View x = VIEW(ssd_piece, x), dt = VIEW(ssd_piece, dt), of_b = VIEW(ssd_piece, b), of_c = VIEW(ssd_piece, c);
    const View a_log = VIEW(ssd_piece, a_log), dt_bias = VIEW(ssd_piece, dt_bias), d = VIEW(ssd_piece, d);
    const View y = VIEW(ssd_piece, y), memory = VIEW(ssd_piece, memory);
    float *scale = FLOATS(ssd_piece, scale) + args.scale_at;
    const uint32_t valid = of_four(own.p, args.P);

    FOR_TILES(tile) {
        const uint32_t first = tile % args.G * heads, b = tile / args.G;
        const size_t keys = size_t(tile % args.G) * args.N; // columns of b and c
#pragma unroll 1
        for (uint32_t h0 = 0; h0 < heads; h0 += batch) {
            const bool there = h0 + own.head < heads, decides = warp < batch && h0 + warp < heads;
            const uint32_t h = first + h0 + (there ? own.head : 0), decided = first + h0 + (decides ? warp : 0);
            const uint32_t rows = there ? of_four(own.t, args.N) : 0;
            const Head head = {-expf(load(a_log, args.a_log_at + size_t(decided))),
                               args.flags & HAS_BIAS ? load(dt_bias, args.dt_bias_at + size_t(decided)) : 0.0f};
            const float skip = args.flags & HAS_D ? load(d, args.d_at + size_t(h)) : 0.0f;
            const size_t column = size_t(h) * args.P + own.p;
            float4 state[four];
            Raw4 raw_x;
            Keys<R, whole> b_key, c_key;
            float raw = 0.0f;
            const auto length_of = [&](uint32_t j) { return min(args.S, args.L - j * args.S); };
            const auto source = [&](uint32_t j) {
                return Source{x, args.x_at + (size_t(b) * args.L + size_t(j) * args.S + own.t) * args.x_row + column, args.x_row,
                              there ? of_four(own.t, length_of(j)) : 0, valid};
            };
            const auto fetch = [&](uint32_t j) {
                const size_t token = size_t(b) * args.L + size_t(j) * args.S;
                const uint32_t length = length_of(j);
                if (decides && lane < length) raw = load(dt, args.dt_at + (token + lane) * args.dt_row + decided);
                b_key.fetch(of_b, args.b_at + token * args.b_row + keys, args.b_row, length, args.N);
                if (j >= args.quiet) c_key.fetch(of_c, args.c_at + token * args.c_row + keys, args.c_row, length, args.N);
                fetch_piece<whole>(raw_x, source(j));
            };
#pragma unroll
            for (uint32_t i = 0; i < four; i++) state[i] = zero4();
            fetch(0);
#pragma unroll 1
            for (uint32_t j = 0; j < args.M; j++) {
                const uint32_t length = length_of(j), tokens = there ? of_four(own.t, length) : 0;
                const size_t token = size_t(b) * args.L + size_t(j) * args.S;
                const bool quiet = j < args.quiet;

                // 1.
                if (warp < batch) put_decays<R>(shared.decays, decides && lane < length ? step_size(raw, head, limits, args.flags) : 0.0f, head);
                put_piece<whole>(shared.x, own, raw_x, source(j));
                b_key.put(shared.b, of_b, args.b_at + token * args.b_row + keys, args.b_row, length, args.N);
                if (!quiet) c_key.put(shared.c, of_c, args.c_at + token * args.c_row + keys, args.c_row, length, args.N);
#pragma unroll
                for (uint32_t i = 0; i < four; i++) *reinterpret_cast<float4 *>(&shared.state[own.line + i][own.p]) = state[i];
                __syncthreads();
                if (j + 1 < args.M) fetch(j + 1);

                // 2.
                if (!quiet) {
                    const uint32_t of = warp / parts, k = own_pairs<R>().k, i = own_pairs<R>().i;
                    float cb[side][2] = {};
#pragma unroll 2
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
#pragma unroll
                        for (uint32_t half = 0; half < 2; half++) {
                            const uint32_t t = i + 8 * a, s = k + half * across;
                            float weight = 0.0f;
                            if (s <= t) weight = cb[a][half] * (decay_from(shared.decays, of * R + t, of * R + s) * shared.decays.step[of * R + s]);
                            shared.weight[of].of[t][s] = weight;
                        }
                    }
                }
                {
                    float4 made[four];
                    outer_sum(made, own, shared.b, shared.x, length,
                              [&](uint32_t line) { return shared.decays.keep[line] * shared.decays.step[line]; });
                    const float through = shared.decays.read[own.head * R + R - 1];
#pragma unroll
                    for (uint32_t i = 0; i < four; i++) {
                        const float4 from = state[i];
                        state[i] = made[i];
                        add_scaled(state[i], through, from);
                    }
                    if (args.flags & HAS_DH) {
                        const size_t row = ((size_t(b) * args.M + j) * args.H + h) * args.N + own.t;
#pragma unroll
                        for (uint32_t i = 0; i < four; i++) {
                            float root = 1.0f;
                            if (args.flags & HAS_SCALE) {
                                root = sqrtf(line_sum4(dot(made[i], made[i], 0.0f)) / float(args.P) + args.eps);
                                if (i < rows && own.p == 0) scale[row + i] = root;
                            }
                            if (i >= rows) continue;
                            const float4 v = make_float4(made[i].x / root, made[i].y / root, made[i].z / root, made[i].w / root);
                            store_four<whole>(memory, args.memory_at + (row + i) * args.P + own.p, v, valid);
                        }
                    }
                }
                if (quiet) {
                    __syncthreads();
                    continue;
                }
                float4 value[four];
                inner_sum(value, own, shared.c, shared.state);
#pragma unroll
                for (uint32_t i = 0; i < four; i++) value[i] = scaled(shared.decays.read[own.line + i], value[i]);
                __syncthreads();

                // 3.
#pragma unroll 1
                for (uint32_t s = 0; s < own.t; s += four) {
                    float4 w[four];
#pragma unroll
                    for (uint32_t i = 0; i < four; i++) w[i] = matrix4(shared.weight[own.head], own.t + i, s);
                    const uint32_t line = own.head * R + s;
                    const float4 x0 = line4(shared.x, line, own.p), x1 = line4(shared.x, line + 1, own.p);
                    const float4 x2 = line4(shared.x, line + 2, own.p), x3 = line4(shared.x, line + 3, own.p);
#pragma unroll
                    for (uint32_t i = 0; i < four; i++) {
                        add_scaled(value[i], w[i].x, x0);
                        add_scaled(value[i], w[i].y, x1);
                        add_scaled(value[i], w[i].z, x2);
                        add_scaled(value[i], w[i].w, x3);
                    }
                }
#pragma unroll
                for (uint32_t k = 0; k < four; k++) { // own.t + k is seen by itself and the later ones
                    const float4 seen = line4(shared.x, own.line + k, own.p);
#pragma unroll
                    for (uint32_t i = k; i < four; i++) add_scaled(value[i], shared.weight[own.head].of[own.t + i][own.t + k], seen);
                    if (k >= tokens) continue;
                    if (args.flags & HAS_D) add_scaled(value[k], skip, seen);
                    store_four<whole>(y, args.y_at + (token + own.t + k) * args.y_row + column, value[k], valid);
                }
                __syncthreads();
            }
        }
    }
}

} // namespace ssd_piece_walk_parts

// Chunks and N of at most 16, pieces that are whole.
KERNEL_FUNCTION_BLOCKS(ssd_piece, walk16, 4)
{
    using namespace ssd_piece_walk_parts;
    static_assert(THREADS_ssd_piece_walk16 == threads, "pieces of all lines");
    __shared__ alignas(16) char memory[sizeof(Shared<16>)];
    walk<16, true>(args, bindings, dtypes, memory);
}

KERNEL_FUNCTION_BLOCKS(ssd_piece, walk, 4)
{
    using namespace ssd_piece_walk_parts;
    static_assert(THREADS_ssd_piece_walk == threads, "pieces of all lines");
    __shared__ alignas(16) char memory[sizeof(Shared<32>)];
    const bool whole = multiples_of_4(args.P, args.N) && multiples_of_4(args.x_at, args.x_row) && multiples_of_4(args.b_at, args.b_row) &&
                       multiples_of_4(args.c_at, args.c_row) && multiples_of_4(args.y_at, args.y_row) &&
                       (!(args.flags & HAS_DH) || multiples_of_4(args.memory_at, 0));
    if (whole) walk<32, true>(args, bindings, dtypes, memory);
    else walk<32, false>(args, bindings, dtypes, memory);
}
