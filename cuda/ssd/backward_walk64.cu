// The backward pass of the scan in one launch, for chunks of at most 16 tokens, N 64 and P 64, bf16 x, b, c and up_y; formulas: the backward kernels
// in args.h. A block has the heads of a group of a sequence (walk64.cuh): with two of them it walks forwards and puts the states that enter the
// chunks into hin, in bf16, then backwards with lambda in registers; then with the next two, for which the sums of grad_b and grad_c wait in the
// other half of hin. Of hin, G = lambda + up_dh and lambda a warp has the same 16 rows n, and a thread reads from hin what it wrote itself, in an
// order of its own.
//
// Of a chunk, between barriers:
// 1. <lambda, hin>, G into shared memory;
// 2. x G^T and up_y hin^T for the rows n of the warp, all pairs of tokens, in every warp: up_y_t . x_s and c_t . b_s, so weight_ts and u_ts; b G for
//    16 columns p, grad_x, lambda of the chunk before, and what grad_dt needs, each sum of it by one warp;
// 3. grad_b and grad_c of both heads, one by each; grad_dt.
// The sum of z_ts over s < k <= t grows from k to k + 1 by that of z_tk over t > k less that of z_ks over s < k.
// Numbers: G, hin, weight, u, and c times exp(cum), b times keep step are rounded to bf16 once each as operands; all else is f32.
#include "walk64.cuh"

namespace ssd_backward_walk64 {

using namespace ssd_walk64;

struct Shared {
    alignas(128) char b[2][TOKEN_BYTES], c[2][TOKEN_BYTES];
    float4 other[HEADS][2][OF_HEAD]; // of a thread's grad_b and grad_c what the head has that does not write it
    struct OfHead {
        char x[2][TOKEN_BYTES], up[2][TOKEN_BYTES], gain[STATE_BYTES];
        float2 up_dh[16][OF_HEAD]; // a thread's own
        uint4 hin[4][OF_HEAD];
        Decays decays[2];
        // Of tokens: b_s . G x_s and c_t . hin up_y_t in the rows n of each warp; the sums of z_tk over t > k, of z_ks over s < k, of
        // weight_tk (up_y_t . x_k); up_y_t . x_t.
        float written[WARPS][TOKENS], read[WARPS][TOKENS], below[TOKENS], left[TOKENS], seen[TOKENS], along[TOKENS];
        float carry[2][WARPS];
    } heads[HEADS];
};

__device__ __forceinline__ float quad_sum(float v)
{
    v += __shfl_xor_sync(0xffffffffu, v, 1);
    return v + __shfl_xor_sync(0xffffffffu, v, 2);
}
// A fragment of the left operand turned.
__device__ __forceinline__ void turn(uint32_t (&to)[4], const uint32_t (&from)[4])
{
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(to[i]) : "r"(from[i == 1 ? 2 : i == 2 ? 1 : i]));
}
__device__ __forceinline__ void copy_8(uint32_t to, const void *from, bool there)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;" ::"r"(to), "l"(from), "r"(there ? 8 : 0) : "memory");
}

__device__ __forceinline__ void walk(const ssd_backward_walk_args &args, const CudaBindings &bindings, uint32_t dtypes)
{
    Shared &shared = *reinterpret_cast<Shared *>(tensor_memory);
    const uint32_t heads = args.H / args.G, lane = threadIdx.x % 32, quad = lane % 4, line = lane / 4, own = threadIdx.x / OF_HEAD,
                   thread = threadIdx.x % OF_HEAD, warp = thread / 32;
    const uint32_t pairs_of_heads = ceil_div(heads, HEADS);
    const bool decides = warp == 0, steps = warp == 3; // the one of a head that makes grad_dt, the one that makes decays
    const auto halves = [&](uint32_t binding) { return reinterpret_cast<const uint16_t *>(bindings.address[binding]); };
    const View dt = VIEW(ssd_backward_walk, dt);
    Shared::OfHead &of = shared.heads[own];
    for (uint32_t round = 0;; round++) {
        const uint32_t tile = blockIdx.x + round / pairs_of_heads * gridDim.x, first = round % pairs_of_heads * HEADS;
        if (tile >= args.tiles) break;
        const bool there = first + own < heads;
        const uint32_t group = tile % args.G, b = tile / args.G, h = group * heads + first + (there ? own : 0);
        const Sequence sequence = sequence_of(INTS(ssd_backward_walk, seq) + args.seq_at, args.flags, args.L, args.T, b);
        const uint32_t chunks = ceil_div(sequence.count, args.S);
        const size_t slots = sequence.slot(args.M, args.S);
        const Head head = {-expf(load(VIEW(ssd_backward_walk, a_log), args.a_log_at + size_t(h))),
                           args.flags & HAS_BIAS ? load(VIEW(ssd_backward_walk, dt_bias), args.dt_bias_at + size_t(h)) : 0.0f};
        const float skip = args.flags & HAS_D ? load(VIEW(ssd_backward_walk, d), args.d_at + size_t(h)) : 0.0f;
        const auto length_of = [&](uint32_t j) { return min(args.S, sequence.count - j * args.S); };
        const auto token_of = [&](uint32_t j) { return size_t(sequence.row) + size_t(j) * args.S; };
        const auto state_of = [&](uint32_t j) { return ((slots + j) * args.H + h) * size_t(N * P); }; // element 0 of the state of a slot
        const auto hin_of = [&](uint32_t j) { return reinterpret_cast<uint4 *>(FLOATS(ssd_backward_walk, hin) + state_of(j)) + thread; };
        const auto rows = [&](char *to, uint32_t binding, size_t at, uint32_t row, uint32_t j, bool is) {
            copy_tile<TOKENS, OF_HEAD>(shared_address(to), halves(binding) + at + token_of(j) * row, row, is ? length_of(j) : 0, thread);
        };
        const auto fetch_written = [&](uint32_t j) { // x, and b by the first head
            rows(of.x[j % 2], BINDING_ssd_backward_walk_x, args.x_at + h * P, args.x_row, j, there);
            if (own == 0) rows(shared.b[j % 2], BINDING_ssd_backward_walk_b, args.b_at + group * N, args.b_row, j, true);
        };
        const auto fetch = [&](uint32_t j) {
            fetch_written(j);
            rows(of.up[j % 2], BINDING_ssd_backward_walk_up_y, args.up_y_at + h * P, args.up_y_row, j, there);
            if (own == 1) rows(shared.c[j % 2], BINDING_ssd_backward_walk_c, args.c_at + group * N, args.c_row, j, true);
            const float *up_dh = FLOATS(ssd_backward_walk, up_dh) + args.up_dh_at + state_of(j) + (16 * warp + line) * P + 2 * quad;
            const uint4 *hin = hin_of(j);
#pragma unroll
            for (uint32_t e = 0; e < 16; e++)
                copy_8(shared_address(&of.up_dh[e][thread]), up_dh + e / 2 * 8 + e % 2 * (8 * P), there && (args.flags & HAS_DH));
#pragma unroll
            for (uint32_t s = 0; s < 4; s++) copy16(shared_address(&of.hin[s][thread]), hin + s * OF_HEAD, there && j > 0);
            copies_commit();
        };
        const auto fetch_step = [&](uint32_t j) { // what decides the step of token `lane`; j may lie beyond either end
            const bool is = (decides || steps) && j < chunks && lane < length_of(j);
            return is ? load(dt, args.dt_at + (token_of(j) + lane) * args.dt_row + h) : 0.0f;
        };
        const auto decide = [&](uint32_t j, float raw) {
            put_decays(of.decays[j % 2], lane < length_of(j) ? step_size(raw, head, args) : 0.0f, head);
        };

        // The states.
        float lambda[32] = {};
        __syncthreads(); // all are done with the heads before
        float raw = fetch_step(0);
        if (chunks > 1) {
            fetch_written(0);
            copies_commit();
            if (steps) decide(0, raw);
            raw = fetch_step(1);
        }
#pragma unroll 1
        for (uint32_t j = 0; j + 1 < chunks; j++) {
            copies_landed<0>();
            __syncthreads(); // the tokens and decays of this chunk are here, and all are done with those of the chunk before
            if (j + 2 < chunks) {
                fetch_written(j + 1);
                copies_commit();
                if (steps) decide(j + 1, raw);
                raw = fetch_step(j + 2);
            }
            const Decays &decays = of.decays[j % 2];
            uint32_t left[4];
            left_columns(left, shared_address(shared.b[j % 2]), warp, [&](uint32_t t) { return decays.keep[t] * decays.step[t]; });
            const float through = decays.through;
#pragma unroll
            for (uint32_t i = 0; i < 32; i++) lambda[i] *= through;
            add_outer(lambda, left, shared_address(of.x[j % 2]));
            uint4 *to = hin_of(j + 1);
#pragma unroll
            for (uint32_t s = 0; s < 4; s++) {
                const float *v = lambda + 8 * s;
                const uint4 four = make_uint4(pack<true>(v[0], v[1]), pack<true>(v[4], v[5]), pack<true>(v[2], v[3]), pack<true>(v[6], v[7]));
                if (there) to[s * OF_HEAD] = four;
            }
        }
        __threadfence(); // before asynchronous copies of the same thread read hin
#pragma unroll
        for (uint32_t i = 0; i < 32; i++) lambda[i] = 0.0f;

        float totals[3] = {}; // of a_log, dt_bias and d, of the tokens `lane` of all chunks
        __syncthreads();
        if (chunks > 0) {
            fetch(chunks - 1);
            if (steps) decide(chunks - 1, raw);
        }
#pragma unroll 1
        for (uint32_t j = chunks; j-- > 0;) {
            const uint32_t length = length_of(j);
            // 1.
            const float own_raw = raw;
            raw = fetch_step(j - 1);
            copies_landed<0>();
            uint4 hin[4]; // as right operands: 16 p of depth s, columns n of this warp
            {
                float carry = 0.0f;
#pragma unroll
                for (uint32_t s = 0; s < 4; s++) {
                    hin[s] = of.hin[s][thread];
                    const uint32_t pairs[4] = {hin[s].x, hin[s].z, hin[s].y, hin[s].w}; // as lambda has them
#pragma unroll
                    for (uint32_t e = 0; e < 4; e++) {
                        const float2 of_hin = unpack<true>(pairs[e]), of_up = of.up_dh[4 * s + e][thread];
                        const float x = lambda[8 * s + 2 * e], y = lambda[8 * s + 2 * e + 1];
                        carry = fmaf(x, of_hin.x, fmaf(y, of_hin.y, carry));
                        *pair_at(of.gain, 16 * warp + line + e % 2 * 8, 2 * s + e / 2) = pack<true>(x + of_up.x, y + of_up.y);
                    }
                }
                carry = warp_sum(carry);
                if (lane == 0) of.carry[j % 2][warp] = carry;
            }
            __syncthreads();
            if (j > 0) fetch(j - 1);

            // 2.
            const Decays &decays = of.decays[j % 2];
            const uint32_t of_x = shared_address(of.x[j % 2]), of_up = shared_address(of.up[j % 2]), of_b = shared_address(shared.b[j % 2]),
                           of_c = shared_address(shared.c[j % 2]);
            // Elements 4 i + 2 k + {0, 1} of token line + 8 k: of the pairs the tokens t 8 i + 2 quad + {0, 1}, of grad_b and grad_c those columns n
            // behind 16 warp, of value those p.
            float grad_b[8] = {}, grad_c[8] = {}, pairs[8] = {}, cb[8] = {}, value[8] = {};
            uint32_t right[4];
#pragma unroll
            for (uint32_t s = 0; s < P / 16; s++) {
                uint32_t left[4];
                left_tokens(left, of_x, s);
                right_tokens(right, of_up, s);
                multiply_16<true>(pairs, left, right);
                right_tokens(right, shared_address(of.gain) + 16 * warp * tile_row, s);
                multiply_16<true>(grad_b, left, right);
                const uint32_t of_hin[4] = {hin[s].x, hin[s].y, hin[s].z, hin[s].w};
                left_tokens(left, of_up, s);
                multiply_16<true>(grad_c, left, of_hin);
                left_tokens(left, of_b, s);
                right_tokens(right, of_c, s);
                multiply_16<true>(cb, left, right);
                right_columns(right, shared_address(of.gain), s, warp);
                multiply_16<true>(value, left, right);
            }
            uint32_t of_weight[4], of_u[4], turned[4];
            {
                float below[2] = {}, seen[2] = {}, left_of[4] = {};
#pragma unroll
                for (uint32_t i = 0; i < 2; i++) {
#pragma unroll
                    for (uint32_t k = 0; k < 2; k++) {
                        const uint32_t s = line + 8 * k, e = 4 * i + 2 * k;
                        float weight[2] = {}, u[2] = {};
#pragma unroll
                        for (uint32_t n = 0; n < 2; n++) {
                            const uint32_t t = 8 * i + 2 * quad + n;
                            if (s > t) continue;
                            const float decay = decay_from(decays, t, s);
                            weight[n] = decay * cb[e + n];
                            u[n] = decay * decays.step[s] * pairs[e + n];
                            seen[k] = fmaf(weight[n], pairs[e + n], seen[k]);
                            const float z = s < t ? u[n] * cb[e + n] : 0.0f;
                            below[k] += z;
                            left_of[2 * i + n] += z;
                            if (s == t && warp == 0) of.along[s] = pairs[e + n];
                        }
                        of_weight[2 * i + k] = pack<true>(weight[0], weight[1]);
                        of_u[2 * i + k] = pack<true>(u[0], u[1]);
                    }
                }
                if (warp == 1) {
#pragma unroll
                    for (uint32_t k = 0; k < 2; k++) {
                        const float all = quad_sum(seen[k]), z = quad_sum(below[k]);
                        if (quad == 0) of.seen[line + 8 * k] = all, of.below[line + 8 * k] = z;
                    }
                } else if (warp == 2) {
#pragma unroll
                    for (uint32_t i = 0; i < 4; i++) {
                        for (uint32_t apart = 4; apart < 32; apart *= 2) left_of[i] += __shfl_xor_sync(0xffffffffu, left_of[i], apart);
                        if (line == 0) of.left[8 * (i / 2) + 2 * quad + i % 2] = left_of[i];
                    }
                }
            }
            { // what b and c read and write of the states, then what they do within the chunk
                float written[2] = {}, read[2] = {};
#pragma unroll
                for (uint32_t i = 0; i < 2; i++) {
#pragma unroll
                    for (uint32_t k = 0; k < 2; k++) {
                        const uint32_t t = line + 8 * k, e = 4 * i + 2 * k;
                        const float2 key = unpack<true>(*pair_at(shared.b[j % 2], t, 2 * warp + i));
                        const float2 by = unpack<true>(*pair_at(shared.c[j % 2], t, 2 * warp + i));
                        written[k] = fmaf(key.x, grad_b[e], fmaf(key.y, grad_b[e + 1], written[k]));
                        read[k] = fmaf(by.x, grad_c[e], fmaf(by.y, grad_c[e + 1], read[k]));
                        const float of_b = decays.keep[t] * decays.step[t], of_c = decays.read[t];
                        grad_b[e] *= of_b, grad_b[e + 1] *= of_b;
                        grad_c[e] *= of_c, grad_c[e + 1] *= of_c;
                    }
                }
#pragma unroll
                for (uint32_t k = 0; k < 2; k++) {
                    written[k] = quad_sum(written[k]), read[k] = quad_sum(read[k]);
                    if (quad == 0) of.written[warp][line + 8 * k] = written[k], of.read[warp][line + 8 * k] = read[k];
                }
                right_columns(right, of_c, 0, warp);
                multiply_16<true>(grad_b, of_u, right);
                turn(turned, of_u);
                right_columns(right, of_b, 0, warp);
                multiply_16<true>(grad_c, turned, right);
                float give[8];
#pragma unroll
                for (uint32_t e = 0; e < 8; e++) { // the first head stores grad_b
                    give[e] = own == 0 ? grad_c[e] : grad_b[e];
                    grad_b[e] = own == 0 ? grad_b[e] : grad_c[e];
                }
                shared.other[own][0][thread] = make_float4(give[0], give[1], give[2], give[3]);
                shared.other[own][1][thread] = make_float4(give[4], give[5], give[6], give[7]);
            }
            { // grad_x
#pragma unroll
                for (uint32_t e = 0; e < 8; e++) value[e] *= decays.keep[line + e / 2 % 2 * 8];
                right_columns(right, of_up, 0, warp);
                multiply_16<true>(value, of_weight, right);
#pragma unroll
                for (uint32_t i = 0; i < 2; i++) {
#pragma unroll
                    for (uint32_t k = 0; k < 2; k++) {
                        const uint32_t t = line + 8 * k, e = 4 * i + 2 * k;
                        if (!there || t >= length) continue;
                        const float2 up = unpack<true>(*pair_at(of.up[j % 2], t, 2 * warp + i));
                        put_pair(VIEW(ssd_backward_walk, grad_x),
                                 args.grad_x_at + (token_of(j) + t) * args.grad_x_row + h * P + 16 * warp + 8 * i + 2 * quad,
                                 fmaf(decays.step[t], value[e], skip * up.x), fmaf(decays.step[t], value[e + 1], skip * up.y), false);
                    }
                }
            }
            const float through = decays.through;
            if (j > 0) {
                uint32_t left[4];
                left_columns(left, of_c, warp, [&](uint32_t t) { return decays.read[t]; });
#pragma unroll
                for (uint32_t i = 0; i < 32; i++) lambda[i] *= through;
                add_outer(lambda, left, of_up);
                if (steps) decide(j - 1, raw);
            }
            __syncthreads();

            // 3.
            {
                const float4 low = shared.other[own ^ 1][0][thread], high = shared.other[own ^ 1][1][thread];
                float more[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
                const size_t held = ((slots + j) * args.H + group * heads) * size_t(N * P) + N * P / 2;
                float4 *const waits = reinterpret_cast<float4 *>(FLOATS(ssd_backward_walk, hin) + held) + 2 * own * OF_HEAD + thread;
                if (first > 0) {
                    const float4 x = waits[0], y = waits[OF_HEAD];
                    more[0] += x.x, more[1] += x.y, more[2] += x.z, more[3] += x.w;
                    more[4] += y.x, more[5] += y.y, more[6] += y.z, more[7] += y.w;
                }
#pragma unroll
                for (uint32_t e = 0; e < 8; e++) more[e] += grad_b[e];
                const bool last = first + HEADS >= heads;
                if (!last) {
                    waits[0] = make_float4(more[0], more[1], more[2], more[3]);
                    waits[OF_HEAD] = make_float4(more[4], more[5], more[6], more[7]);
                }
                const View to = own == 0 ? VIEW(ssd_backward_walk, grad_b) : VIEW(ssd_backward_walk, grad_c);
                const bool adds = own == 1 && (args.flags & IS_ADD);
                const size_t row = own == 0 ? args.grad_b_row : args.grad_c_row;
                const size_t at = (own == 0 ? args.grad_b_at : args.grad_c_at) + token_of(j) * row + group * N + 16 * warp + 2 * quad;
#pragma unroll
                for (uint32_t i = 0; i < 2; i++) {
#pragma unroll
                    for (uint32_t k = 0; k < 2; k++) {
                        const uint32_t t = line + 8 * k, e = 4 * i + 2 * k;
                        if (last && t < length) put_pair(to, at + t * row + 8 * i, more[e], more[e + 1], adds);
                    }
                }
            }
            if (decides) {
                const uint32_t k = lane % TOKENS;
                const bool is = there && lane < length;
                float written = 0.0f, read = 0.0f, carry = 0.0f;
#pragma unroll
                for (uint32_t w = 0; w < WARPS; w++) written += of.written[w][k], read += of.read[w][k], carry += of.carry[j % 2][w];
                const float step = decays.step[k];
                written *= decays.keep[k];
                const float change = of.below[k] - of.left[k];
                float crossing = change, later = is ? decays.read[k] * read : 0.0f, earlier = is ? step * written : 0.0f;
#pragma unroll
                for (uint32_t apart = 1; apart < TOKENS; apart *= 2) {
                    const float after = __shfl_down_sync(0xffffffffu, later, apart, TOKENS);
                    const float before = __shfl_up_sync(0xffffffffu, earlier, apart, TOKENS);
                    const float changes = __shfl_up_sync(0xffffffffu, crossing, apart, TOKENS);
                    if (k + apart < TOKENS) later += after;
                    if (k >= apart) earlier += before, crossing += changes;
                }
                const float of_decay = (crossing - change) + later + (earlier - (is ? step * written : 0.0f)) + through * carry;
                float grad = of.seen[k] + written + head.rate * of_decay;
                if (!(args.flags & IS_STEP)) {
                    const float v = own_raw + head.bias, e = expf(-fabsf(v)), soft = fmaxf(v, 0.0f) + log1pf(e);
                    grad = soft >= args.dt_min && soft <= args.dt_max ? grad * ((v >= 0.0f ? 1.0f : e) / (1.0f + e)) : 0.0f;
                }
                if (is) {
                    store(VIEW(ssd_backward_walk, grad_dt), args.grad_dt_at + (token_of(j) + lane) * args.grad_dt_row + h, grad);
                    totals[0] += head.rate * step * of_decay;
                    totals[1] += grad;
                    totals[2] += of.along[k];
                }
            }
        }
        if (decides) {
#pragma unroll
            for (uint32_t i = 0; i < 3; i++) totals[i] = warp_sum(totals[i]);
            if (lane == 0 && there) {
                const size_t at = size_t(b) * args.H + h;
                FLOATS(ssd_backward_walk, of_a_log)[at] = totals[0];
                FLOATS(ssd_backward_walk, of_bias)[at] = totals[1];
                FLOATS(ssd_backward_walk, of_d)[at] = totals[2];
            }
        }
    }
}

} // namespace ssd_backward_walk64

KERNEL_FUNCTION_BLOCKS(ssd_backward_walk, walk64_bf16, 2)
{
    static_assert(THREADS_ssd_backward_walk_walk64_bf16 == ssd_walk64::THREADS &&
                      SHARED_ssd_backward_walk_walk64_bf16 == sizeof(ssd_backward_walk64::Shared),
                  "the shape of the row");
    ssd_backward_walk64::walk(args, bindings, dtypes);
}
