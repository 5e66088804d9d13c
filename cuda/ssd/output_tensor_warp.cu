// ssd_output on the warp products of sm_80, for chunks of at most 256 tokens, N at most 128, P at most 64 and 16-bit
// operands of one type.
//
// A block walks a run of neighbouring tiles (one head of one chunk each). Warp w makes tokens 16 w to 16 w + 15 and, so that
// all have the same to do, the 16 tokens as far from the other end. c of its tokens and their c.b with all earlier ones, made
// once for all heads of a group, stay in registers as left operands. x and hin are the right ones: x as it comes, into one of
// two stages one turn ahead, hin as it comes where it is raw, else times its scales, rounded once. With e_q the last token of
// the q-th 16,
//   y_t = exp(cum_t) c_t (scale hin)
//         + sum over q < t / 16, s in q: (c_t.b_s exp(cum_t - cum_e(q)) exp(cum_e(q) - cum_s) step_s) x_s
//         + sum over s <= t of the own 16: (c_t.b_s exp(cum_t - cum_s) step_s, + d where s = t) x_s,
// where what is in brackets is rounded to 16 bits, as is c.b itself; in the own 16 what rounding left is multiplied as well, since
// few products, or one, make the first tokens. No exponent is above 0. P below 64 is padded with zeros.
// What of the own 16 rows of x is not finite is left out of the product and added one by one, so that it reaches no earlier
// token; all else that comes from later tokens is selected away.
// f16: c.b is held 2^-4 as large, so that products above 65504 do not overflow. Scales are divided by the power of two below
// the largest of the head, steps by that below the largest up to the token.
//
// Shared memory: two stages of x (b at first) 64 KiB, hin 16 KiB, rows of results 8 KiB, vectors 8 KiB.
// On an H200 the schedulers issue in a third of the cycles: eight warps a multiprocessor, which registers allow, do not hide
// that instructions wait for one another.
#include "warp.cuh"

namespace ssd_warp {
namespace output {

constexpr uint32_t state = 128, sixteens = tokens / 16, pairs = threads / 32;
struct Vectors { // of one head
    float2 cum[tokens]; // {hi, lo}; those of the last token beyond the chunk
    float near[tokens]; // exp(cum_e - cum_s) step_s, 0 beyond the chunk
    float step[tokens]; // 0 beyond the chunk
    float top[sixteens]; // f16: the largest step of the 16 tokens
};
struct Shared {
    alignas(1024) char x[2][tokens * tile_row];
    char hin[state * tile_row];
    char results[pairs][8 * tile_row];
    Vectors vectors[2];
};

template <bool bf> __device__ constexpr float shrink() { return bf ? 1.0f : 0.0625f; }

// Left operands that serve all heads of a group: of the warp's early tokens at 0, of the late ones at 1. Products with whole
// sixteens: late q at [q], early q at [14 - q], 15 together.
struct Held {
    uint32_t c[2][state / 16][4], whole[sixteens - 1][4];
    float own[2][8];
};

// Elements of a pair that are not finite, as a mask.
template <bool bf> __device__ __forceinline__ uint32_t not_finite(uint32_t pair)
{
    constexpr uint32_t exponent = bf ? 0x7f80u : 0x7c00u;
    return ((pair & exponent) == exponent ? 0xffffu : 0) | ((pair >> 16 & exponent) == exponent ? 0xffff0000u : 0);
}

// 0 x + sum of two elements: 0 as long as all are finite, NaN from then on.
template <bool bf> __device__ __forceinline__ uint32_t add_times_zero(uint32_t x, uint32_t sum)
{
    if (bf) asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(sum) : "r"(x), "r"(0u));
    else asm("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(sum) : "r"(x), "r"(0u));
    return sum;
}

// The 16 tokens of x at tile_rows as right operands.
__device__ __forceinline__ void load_columns(uint32_t (&right)[4][4], uint32_t tile_rows)
{
    const uint32_t lane = threadIdx.x % 32, at = tile_rows + tile_at(lane % 16, 0);
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) load_matrices_turned(right[i], at ^ (2 * i + lane / 16) << 4);
}

// sums += (weights + what rounding left of them) x the 16 tokens of x they are the triangle of.
template <bool bf>
__device__ __forceinline__ void multiply_own(float (&sums)[32], const uint32_t (&weights)[4], const uint32_t (&left)[4],
                                             const char *x, uint32_t t0)
{
    uint32_t right[4][4], zeros = 0;
    load_columns(right, shared_address(x) + t0 * tile_row);
#pragma unroll
    for (uint32_t i = 0; i < 16; i++) zeros = add_times_zero<bf>(right[i / 4][i % 4], zeros);
    const bool found = __any_sync(0xffffffffu, not_finite<bf>(zeros));
    if (found) {
#pragma unroll
        for (uint32_t i = 0; i < 16; i++) right[i / 4][i % 4] &= ~not_finite<bf>(right[i / 4][i % 4]);
    }
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        multiply_16<bf>(&sums[8 * i], weights, right[i]);
        multiply_16<bf>(&sums[8 * i], left, right[i]);
    }
    if (!found) return;
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, column = lane % 4 * 2;
#pragma unroll 1
    for (uint32_t s = 0; s < 16; s++) {
        const uint32_t holder = (lane & ~3u) | s % 8 / 2;
        const uint32_t low = __shfl_sync(0xffffffffu, s < 8 ? weights[0] : weights[2], holder),
                       high = __shfl_sync(0xffffffffu, s < 8 ? weights[1] : weights[3], holder);
        const float2 rows[2] = {unpack<bf>(low), unpack<bf>(high)};
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) {
            const uint32_t pair = *reinterpret_cast<const uint32_t *>(x + tile_at(t0 + s, i) + 2 * column),
                           bad = not_finite<bf>(pair);
            const float2 values = unpack<bf>(pair);
#pragma unroll
            for (uint32_t half = 0; half < 2; half++) {
                if (s > g + 8 * half) continue;
                const float weight = s % 2 ? rows[half].y : rows[half].x;
                float *sum = &sums[4 * i + 2 * half];
                if (bad & 0xffffu) sum[0] = fmaf(weight, values.x, sum[0]);
                if (bad >> 16) sum[1] = fmaf(weight, values.y, sum[1]);
            }
        }
    }
}

// c.b of the warp's tokens.
template <bool bf>
__device__ __forceinline__ void multiply_chunk(Held &held, const uint16_t *c, size_t row, uint32_t N, uint32_t length,
                                               uint32_t b)
{
    const uint32_t lane = threadIdx.x % 32, warp = uniform(threadIdx.x / 32), late = sixteens - 1 - warp;
#pragma unroll
    for (uint32_t r = 0; r < 2; r++) {
        const uint32_t t = 16 * (r ? late : warp) + lane / 4;
        const uint16_t *from = c + t * row + lane % 4 * 2;
#pragma unroll
        for (uint32_t k = 0; k < state / 16; k++) {
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                held.c[r][k][i] = t + i % 2 * 8 < length && 16 * k < N
                                      ? *reinterpret_cast<const uint32_t *>(from + i % 2 * 8 * row + 16 * k + i / 2 * 8)
                                      : 0;
        }
    }
    copies_wait<1>(); // b
    __syncthreads();
    const auto multiply = [&](float (&sums)[8], uint32_t r, uint32_t q) {
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) sums[i] = 0.0f;
#pragma unroll
        for (uint32_t k = 0; k < state / 16; k++) {
            uint32_t right[4];
            load_matrices(right, b + k / 4 * (tokens * tile_row) + 16 * q * tile_row +
                                     tile_at(lane % 8 + lane / 16 * 8, k % 4 * 2 + lane / 8 % 2));
            multiply_16<bf>(sums, held.c[r][k], right);
        }
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) sums[i] *= shrink<bf>();
    };
#pragma unroll
    for (uint32_t q = 0; q < sixteens - 1; q++) {
        float sums[8];
        if (q < late) multiply(sums, 1, q);
        else multiply(sums, 0, sixteens - 2 - q);
        // Sums lie as a left operand takes them: rows g and g + 8 of columns 2 c, then of columns 2 c + 8.
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) held.whole[q][i] = pack<bf>(sums[2 * i], sums[2 * i + 1]);
    }
    multiply(held.own[0], 0, warp);
    multiply(held.own[1], 1, late);
}

template <bool bf>
__device__ __forceinline__ void tiles(const ssd_output_args &args, const CudaBindings &bindings, uint32_t dtypes)
{
    Shared &shared = *reinterpret_cast<Shared *>(tensor_memory);
    const uint16_t *x = reinterpret_cast<const uint16_t *>(bindings.address[BINDING_ssd_output_x]) + args.x_at;
    const uint16_t *b = reinterpret_cast<const uint16_t *>(bindings.address[BINDING_ssd_output_b]) + args.b_at;
    const uint16_t *c = reinterpret_cast<const uint16_t *>(bindings.address[BINDING_ssd_output_c]) + args.c_at;
    const uint16_t *hin = reinterpret_cast<const uint16_t *>(bindings.address[BINDING_ssd_output_hin]) + args.hin_at;
    const float *hin_scale = FLOATS(ssd_output, hin_scale) + args.hin_scale_at, *cum = FLOATS(ssd_output, cum);
    const int32_t *seq = INTS(ssd_output, seq) + args.seq_at;
    const View d = VIEW(ssd_output, d), y = VIEW(ssd_output, y);
    const uint32_t warp = uniform(threadIdx.x / 32), late = sixteens - 1 - warp, lane = threadIdx.x % 32, g = lane / 4,
                   column = lane % 4 * 2;
    const uint32_t N = args.N, P = args.P, end = run_begin(args, blockIdx.x + 1);
    const bool normalised = !bf || args.flags & HAS_HIN_SCALE; // hin

    for (Segment at = find(args, seq, run_begin(args, blockIdx.x), end); at.first < end; at = find(args, seq, at.end, end)) {
        const size_t token = size_t(at.b) * args.L + at.begin, matrix = (size_t(at.b) * args.M + at.j) * args.H + at.head;
        const uint16_t *b_from = b + token * args.b_row + at.group * N, *x_from = x + token * args.x_row + size_t(at.head) * P;
        const float *cum_from = cum + ((size_t(at.b) * args.H + at.head) * args.L + at.begin) * CUM_STRIDE;
        const uint32_t stages = shared_address(shared.x[0]), turns = at.end - at.first;

        Token own;
        float scales[state / rows_apart], largest = 0.0f, skip = 0.0f, next_skip = 0.0f; // scales: of this thread's rows of hin
        const auto fetch = [&](uint32_t turn) {
            own = fetch_token(cum_from + turn * size_t(args.L) * CUM_STRIDE, at.length);
            const float *scale = hin_scale + (matrix + turn) * N;
            if (normalised) {
#pragma unroll
                for (uint32_t i = 0; i < state / rows_apart; i++) {
                    const uint32_t n = threadIdx.x / 8 + i * rows_apart;
                    scales[i] = n < N ? scale[n] : 0.0f;
                }
            }
            if (!bf && 4 * lane < N) {
                const float4 four = *reinterpret_cast<const float4 *>(scale + 4 * lane);
                largest = fmaxf(fmaxf(four.x, four.y), fmaxf(four.z, four.w));
            }
            if (args.flags & HAS_D) next_skip = load(d, args.d_at + size_t(at.head + turn));
        };
        const auto weigh = [&](uint32_t turn) {
            Vectors &v = shared.vectors[turn % 2];
            const float2 sixteenth =
                make_float2(__shfl_sync(0xffffffffu, own.cum.x, lane | 15u), __shfl_sync(0xffffffffu, own.cum.y, lane | 15u));
            v.cum[threadIdx.x] = own.cum;
            v.near[threadIdx.x] = own.step * decay_between(sixteenth, own.cum);
            v.step[threadIdx.x] = own.step;
            if (!bf) {
                float top = own.step;
#pragma unroll
                for (uint32_t apart = 8; apart > 0; apart /= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, apart));
                if (lane % 16 == 0) v.top[threadIdx.x / 16] = top;
            }
            skip = next_skip;
        };
        const auto copy_x = [&](uint32_t turn) {
            copy_tile<tokens, threads>(shared_address(shared.x[turn % 2]), x_from + turn * P, args.x_row, at.length,
                                       threadIdx.x, P / 8);
            copies_commit();
        };
        const auto copy_hin = [&](uint32_t turn) {
            copy_tile<state, threads>(shared_address(shared.hin), hin + (matrix + turn) * N * P, P, N, threadIdx.x, P / 8);
            copies_commit();
        };

        __syncthreads(); // all warps are done with the last segment
        copy_tile<tokens, threads>(stages, b_from, args.b_row, at.length, threadIdx.x, min(N / 8, 8));
        copy_tile<tokens, threads>(stages + tokens * tile_row, b_from + 64, args.b_row, at.length, threadIdx.x,
                                   N > 64 ? N / 8 - 8 : 0);
        copies_commit();
        copy_hin(0);
        fetch(0);
        weigh(0);
        Held held;
        multiply_chunk<bf>(held, c + token * args.c_row + at.group * N, args.c_row, N, at.length, stages);
        __syncthreads(); // x takes the place of b
        copy_x(0);

        for (uint32_t turn = 0; turn < turns; turn++) {
            const Vectors &v = shared.vectors[turn % 2];
            const char *stage = shared.x[turn % 2];
            copies_wait<0>();
            const float unit = bf ? 1.0f : unit_below(warp_top(largest)), inverse_unit = 1.0f / unit;
            if (normalised) { // a thread scales what it has copied
#pragma unroll
                for (uint32_t i = 0; i < state / rows_apart; i++) {
                    const uint32_t n = threadIdx.x / 8 + i * rows_apart;
                    const float scale = scales[i] * inverse_unit;
                    const uint4 raw = get16(shared.hin, n, threadIdx.x % 8);
                    put16(shared.hin, n, threadIdx.x % 8, scale8<bf>(raw, factors_of<bf>(scale, scale)));
                }
            }
            __syncthreads(); // x, hin and vectors of this turn are there, the other stage is free
            if (turn + 1 < turns) {
                copy_x(turn + 1);
                fetch(turn + 1);
            }

            // What comes in.
            float sums[2][32];
            clear(sums[0]);
            clear(sums[1]);
#pragma unroll
            for (uint32_t k = 0; k < state / 16; k++) {
                if (k == 4 && N <= 64) break;
                uint32_t right[4][4];
                load_columns(right, shared_address(shared.hin) + 16 * k * tile_row);
#pragma unroll
                for (uint32_t r = 0; r < 2; r++) {
#pragma unroll
                    for (uint32_t i = 0; i < 4; i++) multiply_16<bf>(&sums[r][8 * i], held.c[r][k], right[i]);
                }
            }
            __syncthreads(); // hin may be overwritten
            if (turn + 1 < turns) copy_hin(turn + 1);

            // A row's sums are in units of its own from here on.
            float2 cum_of[2][2];
            float inverse[2][2]; // of the units
#pragma unroll
            for (uint32_t r = 0; r < 2; r++) {
                const uint32_t q = r ? late : warp;
                float earlier = 0.0f;
                if (!bf) earlier = fmaxf(warp_top(lane < q ? fabsf(v.top[lane % 16]) : 0.0f), fabsf(skip) * 0x1p-16f);
#pragma unroll
                for (uint32_t half = 0; half < 2; half++) {
                    const uint32_t t = g + 8 * half;
                    cum_of[r][half] = v.cum[16 * q + t];
                    inverse[r][half] = 1.0f;
                    if (!bf) {
                        float top = earlier;
#pragma unroll
                        for (uint32_t i = 0; i < 4; i++) {
                            const uint32_t s = column + i % 2 + i / 2 * 8;
                            if (s <= t) top = fmaxf(top, v.step[16 * q + s]);
                        }
                        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
                        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
                        inverse[r][half] = 1.0f / unit_below(top);
                    }
                    const float enters =
                        decay_between(cum_of[r][half], make_float2(0.0f, 0.0f)) * (unit * shrink<bf>() * inverse[r][half]);
#pragma unroll
                    for (uint32_t i = 0; i < 8; i++) {
                        sums[r][4 * i + 2 * half] *= enters;
                        sums[r][4 * i + 2 * half + 1] *= enters;
                    }
                }
            }

            // Whole sixteens before the own ones, the last one first: what is left of it at a token, then factors from each to
            // the one before.
            const float between = decay_between(v.cum[min(16 * lane + 31, tokens - 1)], v.cum[min(16 * lane + 15, tokens - 1)]);
            float factors[2][2];
#pragma unroll
            for (uint32_t r = 0; r < 2; r++) {
                const float2 last = v.cum[max(16 * (r ? late : warp), 1) - 1];
#pragma unroll
                for (uint32_t half = 0; half < 2; half++)
                    factors[r][half] = decay_between(cum_of[r][half], last) * inverse[r][half];
            }
#pragma unroll
            for (int q = sixteens - 2; q >= 0; q--) {
                if (q >= int(pairs) && q >= int(late)) continue;
                uint32_t right[4][4];
                load_columns(right, shared_address(stage) + 16 * q * tile_row);
                const float back = q > 0 ? __shfl_sync(0xffffffffu, between, q - 1) : 1.0f;
                const float2 keys[2] = {*reinterpret_cast<const float2 *>(v.near + 16 * q + column),
                                        *reinterpret_cast<const float2 *>(v.near + 16 * q + column + 8)};
#pragma unroll
                for (int r = 1; r >= 0; r--) {
                    if (r == 0 && (q >= int(pairs) - 1 || q >= int(warp))) continue;
                    uint32_t left[4];
#pragma unroll
                    for (uint32_t i = 0; i < 4; i++) {
                        const float2 pair = unpack<bf>(held.whole[r ? q : sixteens - 2 - q][i]);
                        left[i] = pack<bf>(pair.x * (keys[i / 2].x * factors[r][i % 2]),
                                           pair.y * (keys[i / 2].y * factors[r][i % 2]));
                    }
#pragma unroll
                    for (uint32_t i = 0; i < 4; i++) multiply_16<bf>(&sums[r][8 * i], left, right[i]);
                    factors[r][0] *= back;
                    factors[r][1] *= back;
                }
            }

            // The own ones, then out.
#pragma unroll
            for (uint32_t r = 0; r < 2; r++) {
                const uint32_t t0 = 16 * (r ? late : warp);
                if (t0 >= at.length) continue;
                uint32_t weights[4], left[4];
#pragma unroll
                for (uint32_t i = 0; i < 4; i++) {
                    const uint32_t s = column + i / 2 * 8, t = g + i % 2 * 8;
                    const float4 cums = *reinterpret_cast<const float4 *>(&v.cum[t0 + s]);
                    const float2 steps = *reinterpret_cast<const float2 *>(v.step + t0 + s), to = cum_of[r][i % 2];
                    const float in_units = inverse[r][i % 2], more = skip * shrink<bf>() * in_units;
                    const float low = held.own[r][2 * i] *
                                      (decay_between(to, make_float2(cums.x, cums.y)) * (steps.x * in_units)),
                                high = held.own[r][2 * i + 1] *
                                       (decay_between(to, make_float2(cums.z, cums.w)) * (steps.y * in_units));
                    const float2 whole = make_float2(s <= t ? low + (s == t ? more : 0.0f) : 0.0f,
                                                     s < t ? high + (s + 1 == t ? more : 0.0f) : 0.0f);
                    weights[i] = pack<bf>(whole.x, whole.y);
                    const float2 rounded = unpack<bf>(weights[i]);
                    left[i] = pack<bf>(whole.x - rounded.x, whole.y - rounded.y);
                }
                multiply_own<bf>(sums[r], weights, left, stage, t0);
                if (!bf) {
                    const float units[2] = {1.0f / (shrink<bf>() * inverse[r][0]), 1.0f / (shrink<bf>() * inverse[r][1])};
#pragma unroll
                    for (uint32_t i = 0; i < 32; i++) sums[r][i] *= units[i / 2 % 2];
                }
                const size_t to = args.y_at + (token + t0) * args.y_row + size_t(at.head + turn) * P;
                if (y.dtype == (bf ? DTYPE_BF16 : DTYPE_F16)) {
                    store_block<bf>(reinterpret_cast<uint16_t *>(y.base) + to, args.y_row, at.length - t0, P / 8, sums[r],
                                    shared.results[warp]);
                } else {
#pragma unroll
                    for (uint32_t i = 0; i < 32; i++) {
                        const uint32_t t = g + i / 2 % 2 * 8, p = i / 4 * 8 + column + i % 2;
                        if (t0 + t < at.length && p < P) store(y, to + size_t(t) * args.y_row + p, sums[r][i]);
                    }
                }
            }
            if (turn + 1 < turns) weigh(turn + 1);
        }
    }
}

} // namespace output
} // namespace ssd_warp

KERNEL_FUNCTION_BLOCKS(ssd_output, tensor_warp_f16, 1)
{
    static_assert(sizeof(ssd_warp::output::Shared) <= SHARED_ssd_output_tensor_warp_f16, "shared memory");
    ssd_warp::output::tiles<false>(args, bindings, dtypes);
}

KERNEL_FUNCTION_BLOCKS(ssd_output, tensor_warp_bf16, 1)
{
    static_assert(sizeof(ssd_warp::output::Shared) <= SHARED_ssd_output_tensor_warp_bf16, "shared memory");
    ssd_warp::output::tiles<true>(args, bindings, dtypes);
}
