// ssd_memory on the warp products of sm_80, for chunks of at most 256 tokens, N at most 128, P at most 64 and 16-bit operands
// of one type.
//
// A block walks a run of neighbouring tiles (one head of one chunk each). A warp makes 16 rows n; its part of b^T, the same for
// all heads of a group, stays in registers. A head's x is on its way into one of two stages of shared memory one turn ahead,
// where each thread multiplies what it copied by exp(cum_last - cum_t) step_t and rounds once. P below 64 is padded with zeros.
// f16: the factors are divided by the power of two below the largest, so that they neither overflow nor lose digits.
//
// Shared memory: two stages of x (b at first) 64 KiB, rows of results 8 KiB, factors 4 KiB.
// Every warp reads all of x, which keeps shared memory busy for some two thirds of the time on an H200.
#include "warp.cuh"

namespace ssd_warp {
namespace memory {

struct Shared {
    alignas(1024) char x[2][tokens * tile_row];
    char results[threads / 32][8 * tile_row];
    uint2 weight[2][tokens]; // factors_of a pair
    float top[2][threads / 32];
};

template <bool bf> __device__ __forceinline__ void tiles(const ssd_memory_args &args, const CudaBindings &bindings)
{
    Shared &shared = *reinterpret_cast<Shared *>(tensor_memory);
    const uint16_t *x = reinterpret_cast<const uint16_t *>(bindings.address[BINDING_ssd_memory_x]) + args.x_at;
    const uint16_t *b = reinterpret_cast<const uint16_t *>(bindings.address[BINDING_ssd_memory_b]) + args.b_at;
    const float *cum = FLOATS(ssd_memory, cum), *decay = FLOATS(ssd_memory, decay), *open = FLOATS(ssd_memory, open);
    const int32_t *seq = INTS(ssd_memory, seq) + args.seq_at;
    uint16_t *memory = reinterpret_cast<uint16_t *>(bindings.address[BINDING_ssd_memory_memory]) + args.memory_at;
    float *scale = FLOATS(ssd_memory, scale) + args.scale_at, *tail = FLOATS(ssd_memory, tail);
    const uint32_t warp = uniform(threadIdx.x / 32), lane = threadIdx.x % 32, g = lane / 4, column = lane % 4 * 2;
    const uint32_t N = args.N, P = args.P, n0 = 16 * warp, end = run_begin(args, blockIdx.x + 1);

    for (Segment at = find(args, seq, run_begin(args, blockIdx.x), end); at.first < end; at = find(args, seq, at.end, end)) {
        const size_t token = size_t(at.b) * args.L + at.begin;
        const uint16_t *b_from = b + token * args.b_row + at.group * N, *x_from = x + token * args.x_row + size_t(at.head) * P;
        const float *cum_from = cum + (size_t(at.b) * args.H + at.head) * args.L * CUM_STRIDE + at.begin * size_t(CUM_STRIDE);
        const size_t cum_row = size_t(args.L) * CUM_STRIDE;
        Token own;
        float2 last;
        const auto fetch = [&](uint32_t turn) {
            const float *chunk = cum_from + turn * cum_row, *final = chunk + size_t(at.length - 1) * CUM_STRIDE;
            own = fetch_token(chunk, at.length);
            last = make_float2(final[0], final[1]);
        };
        const auto weigh = [&](uint32_t turn) {
            const float weight = own.step * decay_between(last, own.cum);
            shared.weight[turn % 2][threadIdx.x] = factors_of<bf>(weight, weight);
            if (!bf) {
                const float top = warp_top(fabsf(weight));
                if (lane == 0) shared.top[turn % 2][warp] = top;
            }
        };
        const auto copy_x = [&](uint32_t turn) {
            copy_tile<tokens, threads>(shared_address(shared.x[turn % 2]), x_from + turn * P, args.x_row, at.length,
                                       threadIdx.x, P / 8);
            copies_commit();
        };

        __syncthreads(); // no warp still multiplies with the last segment's x
        copy_tile<tokens, threads>(shared_address(shared.x[0]), b_from, args.b_row, at.length, threadIdx.x, min(N / 8, 8));
        copy_tile<tokens, threads>(shared_address(shared.x[1]), b_from + 64, args.b_row, at.length, threadIdx.x,
                                   N > 64 ? N / 8 - 8 : 0);
        copies_commit();
        fetch(0);
        weigh(0);
        copies_wait<0>();
        __syncthreads();
        uint32_t left[tokens / 16][4];
#pragma unroll
        for (uint32_t k = 0; k < tokens / 16; k++)
            load_matrices_turned(left[k], shared_address(shared.x[warp / 4]) +
                                              tile_at(16 * k + lane % 8 + lane / 16 * 8, warp % 4 * 2 + lane / 8 % 2));
        __syncthreads();
        const uint32_t turns = at.end - at.first;
        copy_x(0);
        if (turns > 1) fetch(1);

        for (uint32_t turn = 0; turn < turns; turn++) {
            float unit = 1.0f, inverse_unit = 1.0f;
            if (!bf) {
                const float4 low = *reinterpret_cast<const float4 *>(shared.top[turn % 2]),
                             high = *reinterpret_cast<const float4 *>(shared.top[turn % 2] + 4);
                /* Above the largest weight: no x grows, or it might leave the range of f16. */
                unit = 2.0f * unit_below(fmaxf(fmaxf(fmaxf(low.x, low.y), fmaxf(low.z, low.w)),
                                                fmaxf(fmaxf(high.x, high.y), fmaxf(high.z, high.w))));
                inverse_unit = 1.0f / unit;
            }
            copies_wait<0>(); // a thread weighs what it has copied
#pragma unroll
            for (uint32_t i = 0; i < tokens / rows_apart; i++) {
                const uint32_t r = threadIdx.x / 8 + i * rows_apart;
                uint2 weight = shared.weight[turn % 2][r];
                if (!bf) weight.x = weight.y = __float_as_uint(__uint_as_float(weight.x) * inverse_unit);
                char *const x = shared.x[turn % 2];
                put16(x, r, threadIdx.x % 8, scale8<bf>(get16(x, r, threadIdx.x % 8), weight));
            }
            if (turn + 1 < turns) weigh(turn + 1);
            __syncthreads();
            if (turn + 1 < turns) copy_x(turn + 1);
            if (turn + 2 < turns) fetch(turn + 2);
            if (n0 >= N) continue;

            float sums[32];
            clear(sums);
            const uint32_t right = shared_address(shared.x[turn % 2]) + tile_at(lane % 16, 0);
#pragma unroll
            for (uint32_t k = 0; k < tokens / 16; k++) {
                if (k % 4 == 0 && 16 * k >= at.length) break;
#pragma unroll
                for (uint32_t i = 0; i < columns / 16; i++) {
                    uint32_t matrices[4];
                    load_matrices_turned(matrices, (right ^ (2 * i + lane / 16) << 4) + 16 * k * tile_row);
                    multiply_16<bf>(&sums[8 * i], left[k], matrices);
                }
            }
            if (!bf) {
#pragma unroll
                for (uint32_t i = 0; i < 32; i++) sums[i] *= unit;
            }

            const uint32_t head = at.head + turn;
            const size_t old_row = (size_t(at.b) * args.H + head) * N + n0;
            if ((args.flags & HAS_OPEN) && (at.j == 0 || !at.closes)) {
                const float keep = decay_exp(decay[(size_t(at.b) * (args.M + 1) + 1) * args.H + head]);
#pragma unroll
                for (uint32_t i = 0; i < 16; i++) {
                    if (i / 2 * 8 >= P) continue;
                    const size_t place = (old_row + g + i % 2 * 8) * P + i / 2 * 8 + column;
                    if (at.j == 0) {
                        const float2 old = *reinterpret_cast<const float2 *>(open + place);
                        sums[2 * i] = fmaf(keep, old.x, sums[2 * i]);
                        sums[2 * i + 1] = fmaf(keep, old.y, sums[2 * i + 1]);
                    }
                    if (!at.closes) *reinterpret_cast<float2 *>(tail + place) = make_float2(sums[2 * i], sums[2 * i + 1]);
                }
            }
            const bool in_run = at.closes && at.m >= args.first && at.m - args.first < args.count;
            if ((args.flags & HAS_RUN) && !in_run) continue;
            const size_t matrix =
                args.flags & HAS_RUN ? size_t(at.b) * args.capacity + at.m - args.first : size_t(at.b) * args.M + at.j;
            const size_t row = (matrix * args.H + head) * N + n0;
            float squares[2] = {}, inverse[2];
#pragma unroll
            for (uint32_t i = 0; i < 32; i++) squares[i / 2 % 2] = fmaf(sums[i], sums[i], squares[i / 2 % 2]);
#pragma unroll
            for (uint32_t i = 0; i < 2; i++) {
                squares[i] += __shfl_xor_sync(0xffffffffu, squares[i], 1);
                squares[i] += __shfl_xor_sync(0xffffffffu, squares[i], 2);
                const float mean = squares[i] / float(P) + args.eps;
                inverse[i] = inverse_root(mean);
                if (lane % 4 == 0) scale[row + g + 8 * i] = mean * inverse[i];
            }
#pragma unroll
            for (uint32_t i = 0; i < 32; i++) sums[i] *= inverse[i / 2 % 2];
            store_block<bf>(memory + row * P, P, 16, P / 8, sums, shared.results[warp]);
        }
    }
}

} // namespace memory
} // namespace ssd_warp

KERNEL_FUNCTION_BLOCKS(ssd_memory, tensor_warp_f16, 2)
{
    static_assert(sizeof(ssd_warp::memory::Shared) <= SHARED_ssd_memory_tensor_warp_f16, "shared memory");
    ssd_warp::memory::tiles<false>(args, bindings);
}

KERNEL_FUNCTION_BLOCKS(ssd_memory, tensor_warp_bf16, 2)
{
    static_assert(sizeof(ssd_warp::memory::Shared) <= SHARED_ssd_memory_tensor_warp_bf16, "shared memory");
    ssd_warp::memory::tiles<true>(args, bindings);
}
