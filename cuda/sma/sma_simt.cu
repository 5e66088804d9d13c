// State-memory attention of T0 tokens of one (sequence, head) over the memories of a launch, one after the other:
//   logit_t = sum_p en_p sum_n key_n dh_np, then r_t = sum over memories of g_t sum_n value_n dh_np
// with the softmax weights g kept relative to the largest logit so far. Both sums over n are products of the tile
// (tokens x N) with the memory (N x P), 64 columns at a time; g is folded into the second one, which adds to r.
// A P above 64 takes further sweeps over the memories, each with the logits anew.
// Shared memory: 17 KiB of panels, 6 words a token.
#include "lib/product.cuh"

// A memory, each row n times its factor where that is asked for. It stands on the side of the memory because a thread
// stages four columns of one row there.
struct FactoredMemory {
    static constexpr bool by_line = false;
    struct Fetched { uint4 raw; float factor; };
    Columns dh;
    const float *factors; // one an n, or NULL
    __device__ __forceinline__ Fetched fetch(uint32_t line, uint32_t n) const
    {
        return {dh.fetch(line, n), factors && n < dh.K ? factors[n] : 1.0f};
    }
    __device__ __forceinline__ float4 value(const Fetched &f) const
    {
        const float4 v = dh.value(f.raw);
        return make_float4(f.factor * v.x, f.factor * v.y, f.factor * v.z, f.factor * v.w);
    }
};

KERNEL_FUNCTION_BLOCKS(sma, simt, 2)
{
    constexpr uint32_t T0 = TILE0_sma_simt, side = Panels<4>::side;
    static_assert(T0 == side, "tile of the product");
    __shared__ Panels<4> panels;
    __shared__ float logits[T0], top[T0], den[T0], weight[T0], correction[T0];
    __shared__ uint32_t seen[T0]; // memories of this launch that a token sees
    __shared__ size_t c_at, r_at, lse_at; // wait here until they are needed, since registers are scarce
    const View qn = VIEW(sma, qn), c = VIEW(sma, c), dh = VIEW(sma, dh), r = VIEW(sma, r);
    float *lse = FLOATS(sma, lse);
    const bool raw = args.flags & IS_RAW, merge = args.flags & IS_MERGE;
    const uint32_t t_blocks = ceil_div(args.L, T0), ty = threadIdx.x / 16, tx = threadIdx.x % 16;
    FOR_TILES(tile) {
        const uint32_t t0 = tile % t_blocks * T0, h = tile / t_blocks % args.H, b = tile / t_blocks / args.H,
                       g = h / (args.H / args.G);
        const Sequence piece = sequence_of(INTS(sma, seq) + args.seq_at, args.flags, args.L, args.T, b);
        if (t0 >= piece.count) continue;
        const uint32_t lines = min(piece.count - t0, T0);
        const auto seen_by = [&](uint32_t t) {
            const uint32_t before = (piece.position + t0 + t) / args.S;
            return before > args.first ? min(before - args.first, args.count) : 0u;
        };
        const uint32_t memories = seen_by(lines - 1);
        const size_t row0 = size_t(piece.row) + t0, slots = piece.slot(args.capacity, args.S);
        const Lines queries = {
            qn, (row0 * args.G + g) * args.N, args.G * args.N, lines, args.N, multiples_of_4(args.N, 0)};
        const uint32_t e_row = args.G * args.P;
        const float *e = FLOATS(sma, en) + (row0 * args.G + g) * args.P;

        for (uint32_t p0 = 0; p0 < args.P; p0 += side) {
            float acc[4][4];
            product_clear(acc);
            if (threadIdx.x == 0) {
                c_at = args.c_at + row0 * args.c_row + g * args.N;
                r_at = args.r_at + row0 * args.r_row + h * args.P + p0;
                lse_at = args.lse_at + row0 * args.H + h;
            }
            if (threadIdx.x < T0) {
                top[threadIdx.x] = lowest;
                den[threadIdx.x] = 0.0f;
                seen[threadIdx.x] = threadIdx.x < lines ? seen_by(threadIdx.x) : 0;
            }
            for (uint32_t i = 0; i < memories; i++) {
                const size_t memory = ((slots + i) * args.H + h) * args.N;
                const float *factors = FLOATS(sma, factor) + args.factor_at + memory;
                const bool aligned = multiples_of_4(args.dh_at, args.P);
                float partial[4] = {};
                for (uint32_t q0 = 0; q0 < args.P; q0 += side) {
                    float keyed[4][4];
                    product_clear(keyed);
                    product(
                        queries,
                        FactoredMemory{{dh, args.dh_at + memory * args.P + q0, args.P, args.P - q0, args.N, aligned},
                                       raw ? factors : nullptr},
                        args.N, panels, keyed);
                    const uint32_t p = q0 + output_line(tx, 0), width = p < args.P ? args.P - p : 0;
                    const float *line = e + output_line(ty, 0) * e_row + p;
#pragma unroll
                    for (uint32_t k = 0; k < 4; k++, line += e_row) {
                        if (output_line(ty, k) >= lines) break;
#pragma unroll
                        for (uint32_t l = 0; l < 4; l++) {
                            if (l < width) partial[k] = fmaf(line[l], keyed[k][l], partial[k]);
                        }
                    }
                }
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    for (int step = 8; step > 0; step /= 2)
                        partial[k] += __shfl_xor_sync(0xffffffffu, partial[k], step);
                    if (tx == 0) logits[output_line(ty, k)] = partial[k];
                }
                __syncthreads();
                if (threadIdx.x < T0) {
                    const uint32_t t = threadIdx.x;
                    const bool visible = i < seen[t];
                    const float now = visible ? fmaxf(top[t], logits[t]) : top[t];
                    correction[t] = visible ? exp_below(top[t] - now) : 1.0f;
                    weight[t] = visible ? exp_below(logits[t] - now) : 0.0f;
                    den[t] = den[t] * correction[t] + weight[t];
                    top[t] = now;
                }
                __syncthreads();
                float found[4][4];
                product_clear(found);
                const Lines readers = {
                    c, c_at, args.c_row, lines, args.N, multiples_of_4(args.c_at, args.c_row, args.N)};
                product(ScaledLines{readers, weight[staged_line<4>()]},
                        FactoredMemory{{dh, args.dh_at + memory * args.P + p0, args.P, args.P - p0, args.N, aligned},
                                       raw ? nullptr : factors},
                        args.N, panels, found);
                // A weight of 0 does not stop a NaN.
#pragma unroll
                for (int k = 0; k < 4; k++) {
                    const float factor = correction[output_line(ty, k)];
                    const bool visible = i < seen[output_line(ty, k)];
#pragma unroll
                    for (int l = 0; l < 4; l++) acc[k][l] = visible ? fmaf(acc[k][l], factor, found[k][l]) : acc[k][l];
                }
            }
            __syncthreads();
            // From here weight and correction are the shares of these memories and of what r and lse hold.
            if (threadIdx.x < lines) {
                const uint32_t t = threadIdx.x;
                const size_t at = lse_at + size_t(t) * args.H;
                const float old = merge ? lse[at] : lowest;
                const bool any = den[t] != 0.0f, any_old = !(old <= lowest);
                const float most = any_old ? fmaxf(top[t], old) : top[t];
                const float mine = any ? exp_below(top[t] - most) : 0.0f,
                            theirs = any_old ? exp_below(old - most) : 0.0f;
                const float total = den[t] * mine + theirs;
                weight[t] = any ? mine / total : 0.0f;
                correction[t] = any_old ? theirs / total : 0.0f;
                if (p0 + side >= args.P) lse[at] = any || any_old ? most + logf(total) : __uint_as_float(0xff800000u);
            }
            __syncthreads();
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const uint32_t t = output_line(ty, k);
                if (t >= lines) continue;
#pragma unroll
                for (int l = 0; l < 4; l++) {
                    const uint32_t p = output_line(tx, l);
                    if (p0 + p >= args.P) continue;
                    const size_t at = r_at + size_t(t) * args.r_row + p;
                    float sum = acc[k][l] * weight[t];
                    if (correction[t] != 0.0f) sum = fmaf(correction[t], load(r, at), sum);
                    store(r, at, sum);
                }
            }
            __syncthreads();
        }
    }
}
