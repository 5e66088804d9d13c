// All of the scan in one launch, for chunks of at most 16 tokens, N 64 and P 64, bf16 x, b and c: a block has the heads of a group of a sequence
// (walk64.cuh) and walks over the chunks with the states of two in registers, then of the next two.
//
// Of a chunk, behind a barrier, a warp makes 16 columns p of y for all tokens, from the state that enters it, which lies in shared memory in bf16:
//   y = exp(cum) c h + weight x + d x, weight_ts = c_t . b_s exp(cum_t - cum_s) step_s for s <= t;
// then 16 rows n of the memory, which goes out with HAS_DH, and of the next state.
// Numbers: the state, weight and keep step b are rounded to bf16 once each as operands; sums, decays and the state itself are f32.
// Shared memory: 8 KiB b and c, for each head 4 KiB x, 16 KiB state, 4 KiB of rows on their way out, 768 bytes: 58,880 bytes.
#include "walk64.cuh"

namespace ssd_piece_walk64 {

using namespace ssd_walk64;

struct Shared {
    alignas(128) char b[2][TOKEN_BYTES], c[2][TOKEN_BYTES];
    struct OfHead {
        char x[2][TOKEN_BYTES], state[2][STATE_BYTES], rows[WARPS][8 * tile_row];
        Decays decays[2];
    } heads[HEADS];
};

__device__ __forceinline__ void walk(const ssd_piece_args &args, const CudaBindings &bindings, uint32_t dtypes)
{
    Shared &shared = *reinterpret_cast<Shared *>(tensor_memory);
    const uint32_t heads = args.H / args.G, lane = threadIdx.x % 32, quad = lane % 4, line = lane / 4, own = threadIdx.x / OF_HEAD,
                   warp = threadIdx.x % OF_HEAD / 32;
    const uint32_t pairs = ceil_div(heads, HEADS);
    const bool decides = warp == 0;
    const auto halves = [&](uint32_t binding) { return reinterpret_cast<const uint16_t *>(bindings.address[binding]); };
    const View dt = VIEW(ssd_piece, dt), y = VIEW(ssd_piece, y), memory = VIEW(ssd_piece, memory);
    float *scale = FLOATS(ssd_piece, scale) + args.scale_at;
    Shared::OfHead &of = shared.heads[own];
    for (uint32_t round = 0;; round++) {
        const uint32_t tile = blockIdx.x + round / pairs * gridDim.x, first = round % pairs * HEADS;
        if (tile >= args.tiles) break;
        const bool there = first + own < heads;
        const uint32_t group = tile % args.G, b = tile / args.G, h = group * heads + first + (there ? own : 0);
        const Head head = {-expf(load(VIEW(ssd_piece, a_log), args.a_log_at + size_t(h))),
                           args.flags & HAS_BIAS ? load(VIEW(ssd_piece, dt_bias), args.dt_bias_at + size_t(h)) : 0.0f};
        const float skip = args.flags & HAS_D ? load(VIEW(ssd_piece, d), args.d_at + size_t(h)) : 0.0f;
        const uint16_t *x = halves(BINDING_ssd_piece_x) + args.x_at + h * P;
        const uint16_t *keys = own == 0 ? halves(BINDING_ssd_piece_b) + args.b_at : halves(BINDING_ssd_piece_c) + args.c_at; // copied by this head
        const uint32_t key_row = own == 0 ? args.b_row : args.c_row;
        const auto length_of = [&](uint32_t j) { return min(args.S, args.L - j * args.S); };
        const auto token_of = [&](uint32_t j) { return size_t(b) * args.L + size_t(j) * args.S; };
        const auto fetch = [&](uint32_t j) {
            const uint32_t length = length_of(j), thread = threadIdx.x % OF_HEAD;
            const size_t token = token_of(j);
            copy_tile<TOKENS, OF_HEAD>(shared_address(of.x[j % 2]), x + token * args.x_row, args.x_row, there ? length : 0, thread);
            copy_tile<TOKENS, OF_HEAD>(shared_address(own == 0 ? shared.b[j % 2] : shared.c[j % 2]), keys + token * key_row + group * N, key_row,
                                       length, thread);
            copies_commit();
        };
        const auto fetch_step = [&](uint32_t j) { // what decides the step of token `lane`
            const bool is = decides && j < args.M && lane < length_of(j);
            return is ? load(dt, args.dt_at + (token_of(j) + lane) * args.dt_row + h) : 0.0f;
        };
        const auto decide = [&](uint32_t j, float raw) {
            put_decays(of.decays[j % 2], lane < length_of(j) ? step_size(raw, head, args) : 0.0f, head);
        };
        __syncthreads(); // all are done with the heads before
        fetch(0);
        float raw = fetch_step(0);
        if (decides) decide(0, raw);
        raw = fetch_step(1);
        float state[32] = {};
#pragma unroll 1
        for (uint32_t j = 0; j < args.M; j++) {
            copies_landed<0>();
            __syncthreads(); // the tokens, decays and state of this chunk are here, and all are done with those of the chunk before
            if (j + 1 < args.M) {
                fetch(j + 1);
                if (decides) decide(j + 1, raw);
                raw = fetch_step(j + 2);
            }
            const uint32_t length = length_of(j), of_x = shared_address(of.x[j % 2]), of_b = shared_address(shared.b[j % 2]);
            const Decays &decays = of.decays[j % 2];
            { // y
                float value[8] = {}, weight[8] = {};
                uint32_t right[4];
#pragma unroll
                for (uint32_t s = 0; s < N / 16; s++) {
                    uint32_t read[4];
                    left_tokens(read, shared_address(shared.c[j % 2]), s);
                    right_tokens(right, of_b, s);
                    multiply_16<true>(weight, read, right);
                    if (j == 0) continue; // no state enters
                    right_columns(right, shared_address(of.state[j % 2]), s, warp);
                    multiply_16<true>(value, read, right);
                }
                uint32_t left[4];
#pragma unroll
                for (uint32_t i = 0; i < 2; i++) {
#pragma unroll
                    for (uint32_t k = 0; k < 2; k++) {
                        const uint32_t t = line + 8 * k, e = 4 * i + 2 * k;
                        value[e] *= decays.read[t], value[e + 1] *= decays.read[t];
                        float by[2];
#pragma unroll
                        for (uint32_t n = 0; n < 2; n++) {
                            const uint32_t s = 8 * i + 2 * quad + n;
                            by[n] = s <= t ? weight[e + n] * (decay_from(decays, t, s) * decays.step[s]) : 0.0f;
                        }
                        left[2 * i + k] = pack<true>(by[0], by[1]);
                    }
                }
                right_columns(right, of_x, 0, warp);
                multiply_16<true>(value, left, right);
#pragma unroll
                for (uint32_t i = 0; i < 2; i++) {
#pragma unroll
                    for (uint32_t k = 0; k < 2; k++) {
                        const uint32_t t = line + 8 * k, e = 4 * i + 2 * k;
                        if (!there || t >= length) continue;
                        const float2 seen = unpack<true>(*pair_at(of.x[j % 2], t, 2 * warp + i));
                        put_pair(y, args.y_at + (token_of(j) + t) * args.y_row + h * P + 16 * warp + 8 * i + 2 * quad,
                                 fmaf(skip, seen.x, value[e]), fmaf(skip, seen.y, value[e + 1]), false);
                    }
                }
            }
            float made[32] = {};
            {
                uint32_t left[4];
                left_columns(left, of_b, warp, [&](uint32_t t) { return decays.keep[t] * decays.step[t]; });
                add_outer(made, left, of_x);
            }
            const float through = decays.through;
#pragma unroll
            for (uint32_t i = 0; i < 32; i++) state[i] = fmaf(through, state[i], made[i]);
            if (j + 1 < args.M) {
#pragma unroll
                for (uint32_t i = 0; i < 8; i++) {
#pragma unroll
                    for (uint32_t k = 0; k < 2; k++)
                        *pair_at(of.state[(j + 1) % 2], 16 * warp + line + 8 * k, i) = pack<true>(state[4 * i + 2 * k], state[4 * i + 2 * k + 1]);
                }
            }
            if (!(args.flags & HAS_DH) || !there) continue;
            const size_t row = ((size_t(b) * args.M + j) * args.H + h) * N + 16 * warp;
            if (args.flags & HAS_SCALE) {
#pragma unroll
                for (uint32_t k = 0; k < 2; k++) {
                    float squares = 0.0f;
#pragma unroll
                    for (uint32_t i = 0; i < 8; i++) {
                        const float v = made[4 * i + 2 * k], w = made[4 * i + 2 * k + 1];
                        squares = fmaf(v, v, fmaf(w, w, squares));
                    }
                    squares += __shfl_xor_sync(0xffffffffu, squares, 1);
                    squares += __shfl_xor_sync(0xffffffffu, squares, 2);
                    const float root = sqrtf(squares / float(P) + args.eps);
                    if (quad == 0) scale[row + line + 8 * k] = root;
#pragma unroll
                    for (uint32_t i = 0; i < 8; i++) made[4 * i + 2 * k] /= root, made[4 * i + 2 * k + 1] /= root;
                }
            }
            const size_t to = args.memory_at + row * P;
            if (memory.dtype == DTYPE_F32) {
#pragma unroll
                for (uint32_t i = 0; i < 8; i++) {
#pragma unroll
                    for (uint32_t k = 0; k < 2; k++)
                        put_pair(memory, to + (line + 8 * k) * P + 8 * i + 2 * quad, made[4 * i + 2 * k], made[4 * i + 2 * k + 1], false);
                }
            } else if (memory.dtype == DTYPE_BF16) {
                store_rows<true>(reinterpret_cast<uint16_t *>(memory.base) + to, P, 16, made, of.rows[warp]);
            } else {
                store_rows<false>(reinterpret_cast<uint16_t *>(memory.base) + to, P, 16, made, of.rows[warp]);
            }
        }
    }
}

} // namespace ssd_piece_walk64

KERNEL_FUNCTION_BLOCKS(ssd_piece, walk64_bf16, 2)
{
    static_assert(THREADS_ssd_piece_walk64_bf16 == ssd_walk64::THREADS && SHARED_ssd_piece_walk64_bf16 == sizeof(ssd_piece_walk64::Shared),
                  "the shape of the row");
    ssd_piece_walk64::walk(args, bindings, dtypes);
}
