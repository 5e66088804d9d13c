// ssd_backward_x on warp products: v_s = keep_s b_s G + sum_(t >= s) cb_ts exp(cum_t - cum_s) up_y_t, grad_x = step v + d up_y, with G = lambda +
// up_dh in bf16 (ssd_backward_gain).
//
// A block makes a (chunk, head). A warp has two times 16 tokens s, those of the first with the most to add together with those of the last.
// With e the last of its 16 tokens, first b G, times exp(tot - cum_e); then the later tokens t in blocks of 16, weighted by cb_ts exp(cum_t - cum_e);
// then all of it times exp(cum_e - cum_s), and last the own 16 with their own decays: no exponent is above 0. The weights are
// computed as fragments, each in the lane that multiplies it, so that cb goes from memory straight to registers.
//
// Shared memory: b 64 KiB, the first half of it up_y later, the second sums; G 16 KiB, rows of results 8 KiB, cum and step 3 KiB.
#include "backward_tensor.cuh"

namespace ssd_backward_tensor {
namespace of_x {

constexpr uint32_t ahead = 3; // fragments of cb on their way

struct Shared {
    alignas(1024) char first[tokens * tile_row];
    alignas(1024) char second[tokens * tile_row];
    alignas(1024) char gain[128 * tile_row];
    alignas(1024) char results[threads / 32][8 * tile_row];
    float2 cum[tokens];
    float step[tokens];
};

// cb_ts of the lane's elements of a fragment with rows s and depth t, clamped to tokens that exist: [2 j + 4 m + q] of token
// s = s0 + g + 8 j, t = t0 + 2 c + 8 m + q.
__device__ __forceinline__ void fetch_square(float (&v)[8], const float *square, uint32_t C, uint32_t t0, uint32_t s0, uint32_t size)
{
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (uint32_t i = 0; i < 8; i++) {
        const uint32_t t = t0 + lane % 4 * 2 + i / 4 * 8 + i % 2, s = s0 + lane / 4 + i / 2 % 2 * 8;
        v[i] = square[min(t, size - 1) * C + min(s, size - 1)];
    }
}

// What a lane has of 16 rows of x: pairs of columns of rows g and g + 8.
__device__ __forceinline__ void fetch_x(uint32_t (&x)[16], const uint16_t *from, uint32_t row, uint32_t s0, uint32_t size, uint32_t P)
{
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (uint32_t j = 0; j < 2; j++) {
        const uint32_t s = s0 + lane / 4 + 8 * j;
        const uint16_t *own = from + uint64_t(s) * row + lane % 4 * 2;
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) x[2 * i + j] = s < size && 8 * i < P ? *reinterpret_cast<const uint32_t *>(own + 8 * i) : 0;
    }
}

} // namespace of_x
} // namespace ssd_backward_tensor

KERNEL_FUNCTION_BLOCKS(ssd_backward_x, tensor_bf16, 2)
{
    using namespace ssd_backward_tensor;
    using namespace ssd_backward_tensor::of_x;
    static_assert(sizeof(Shared) <= SHARED_ssd_backward_x_tensor_bf16, "shared memory");
    static_assert(TILE0_ssd_backward_x_tensor_bf16 == tokens, "a block a chunk");
    Shared &shared = *reinterpret_cast<Shared *>(tensor_memory);
    const uint16_t *x = HALVES(ssd_backward_x, x) + args.x_at, *b = HALVES(ssd_backward_x, b) + args.b_at;
    const uint16_t *up_y = HALVES(ssd_backward_x, up_y) + args.up_y_at;
    const uint16_t *gain = HALVES(ssd_backward_x, lambda);
    uint16_t *grad_x = HALVES(ssd_backward_x, grad_x) + args.grad_x_at;
    const View d = VIEW(ssd_backward_x, d);
    float *token = FLOATS(ssd_backward_x, token);
    const uint32_t warp = uniform(threadIdx.x / 32), lane = threadIdx.x % 32, g = lane / 4, column = lane % 4 * 2, N = args.N, P = args.P;
    const uint32_t first = shared_address(shared.first), second = shared_address(shared.second), gains = shared_address(shared.gain);
    FOR_TILES(tile) {
        const uint32_t h = tile % args.H, group = h / (args.H / args.G);
        const Place at = place_of(args, INTS(ssd_backward_x, seq) + args.seq_at, tile / args.H);
        if (at.size == 0) continue;
        const float *cum = cum_of(args, FLOATS(ssd_backward_x, cum), at, h);
        const float *square = FLOATS(ssd_backward_x, cb) + (at.slot * args.G + group) * args.C * args.C;
        const uint16_t *b_from = b + at.token * args.b_row + size_t(group) * N, *x_from = x + at.token * args.x_row + size_t(h) * P;
        __syncthreads(); // no warp still uses the tiles of the last chunk
        copy_tile<tokens, threads>(first, b_from, args.b_row, at.size, threadIdx.x, min(N / 8, 8));
        copy_tile<128, threads>(gains, gain + (at.slot * args.H + h) * N * P, P, N, threadIdx.x, P / 8);
        copies_commit();
        copy_tile<tokens, threads>(second, b_from + 64, args.b_row, at.size, threadIdx.x, N > 64 ? N / 8 - 8 : 0);
        copies_commit();
        shared.cum[threadIdx.x] = cum_at(cum, min(threadIdx.x, at.size - 1));
        shared.step[threadIdx.x] = threadIdx.x < at.size ? cum[threadIdx.x * CUM_STRIDE + 2] : 0.0f;
        copies_wait<1>();
        __syncthreads();

        const uint32_t starts[2] = {16 * warp, 16 * (15 - warp)};
        float sums[2][32];
        clear(sums[0]);
        clear(sums[1]);
        const auto multiply_gain = [&](uint32_t of_b, uint32_t n0) {
#pragma unroll 2
            for (uint32_t k = 0; k < 4; k++) {
                uint32_t left[2][4];
                left_rows(left[0], of_b, starts[0], k);
                left_rows(left[1], of_b, starts[1], k);
                const uint32_t right = gains + tile_at(n0 + 16 * k + lane % 16, 0);
#pragma unroll
                for (uint32_t i = 0; i < 4; i++) {
                    uint32_t matrices[4];
                    load_matrices_turned(matrices, right ^ (2 * i + lane / 16) << 4);
                    multiply_16<true>(&sums[0][8 * i], left[0], matrices);
                    multiply_16<true>(&sums[1][8 * i], left[1], matrices);
                }
            }
        };
        multiply_gain(first, 0);
        copies_wait<0>();
        __syncthreads();
        copy_tile<tokens, threads>(first, up_y + at.token * args.up_y_row + size_t(h) * P, args.up_y_row, at.size, threadIdx.x, P / 8);
        copies_commit();
        if (N > 64) multiply_gain(second, 64);

        copies_wait<0>();
        __syncthreads();

        // The second half of the sums waits in place of b.
        float4 *const waiting = reinterpret_cast<float4 *>(shared.second) + threadIdx.x;
#pragma unroll
        for (uint32_t i = 0; i < 8; i++)
            waiting[i * threads] = make_float4(sums[1][4 * i], sums[1][4 * i + 1], sums[1][4 * i + 2], sums[1][4 * i + 3]);
#pragma unroll 1
        for (uint32_t half = 0; half < 2; half++) {
            const uint32_t s0 = half == 0 ? 16 * warp : 16 * (15 - warp), last = min(s0 + 15, at.size - 1);
            if (s0 >= at.size) continue;
            if (half == 1) {
#pragma unroll
                for (uint32_t i = 0; i < 8; i++) {
                    const float4 four = waiting[i * threads];
                    sums[0][4 * i] = four.x, sums[0][4 * i + 1] = four.y, sums[0][4 * i + 2] = four.z, sums[0][4 * i + 3] = four.w;
                }
            }
            const float2 border = shared.cum[last], total = shared.cum[at.size - 1];
            uint32_t values[16];
            fetch_x(values, x_from, args.x_row, s0, at.size, P);
            const uint32_t last_block = (at.size - 1) / 16, later = last_block - s0 / 16; // blocks of 16 tokens after the own one
            float v[ahead][8], diagonal[8];
#pragma unroll
            for (uint32_t i = 0; i < ahead; i++) fetch_square(v[i], square, args.C, 16 * (i < later ? last_block - i : s0 / 16), s0, at.size);
            fetch_square(diagonal, square, args.C, s0, s0, at.size);
            float written[2] = {};
#pragma unroll
            for (uint32_t i = 0; i < 16; i++) {
                const float2 pair = unpack<true>(values[i]);
                written[i % 2] = fmaf(sums[0][2 * i], pair.x, fmaf(sums[0][2 * i + 1], pair.y, written[i % 2]));
            }
#pragma unroll
            for (uint32_t i = 0; i < 2; i++) {
                const uint32_t s = s0 + g + 8 * i;
                const float sum = row_sum(written[i]) * (decay_between(total, shared.cum[s]) * shared.step[s]);
                if (s < at.size && lane % 4 == 0) token[((at.token + s) * args.H + h) * 4 + 1] = sum;
            }
            const float keep = decay_between(total, border);
#pragma unroll
            for (uint32_t i = 0; i < 32; i++) sums[0][i] *= keep;
#pragma unroll 1
            for (uint32_t done = 0; done < later; done += ahead) {
#pragma unroll
                for (uint32_t i = 0; i < ahead; i++) {
                    if (done + i >= later) break;
                    const uint32_t t0 = 16 * (last_block - done - i);
                    uint32_t weights[4];
#pragma unroll
                    for (uint32_t m = 0; m < 2; m++) {
                        const uint32_t t = t0 + column + 8 * m;
                        const float4 pair = *reinterpret_cast<const float4 *>(&shared.cum[t]);
                        const float even = t < at.size ? decay_between(make_float2(pair.x, pair.y), border) : 0.0f;
                        const float odd = t + 1 < at.size ? decay_between(make_float2(pair.z, pair.w), border) : 0.0f;
                        weights[2 * m] = pack<true>(v[i][4 * m] * even, v[i][4 * m + 1] * odd);
                        weights[2 * m + 1] = pack<true>(v[i][4 * m + 2] * even, v[i][4 * m + 3] * odd);
                    }
                    if (done + i + ahead < later) fetch_square(v[i], square, args.C, t0 - 16 * ahead, s0, at.size);
                    multiply_right_depth(sums[0], weights, first, t0);
                }
            }
            const float2 own[2] = {shared.cum[s0 + g], shared.cum[s0 + g + 8]};
            const float keeps[2] = {decay_between(border, own[0]), decay_between(border, own[1])};
#pragma unroll
            for (uint32_t i = 0; i < 32; i++) sums[0][i] *= keeps[i / 2 % 2];
            uint32_t weights[4];
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                float pair[2];
#pragma unroll
                for (uint32_t q = 0; q < 2; q++) {
                    const uint32_t t = column + i / 2 * 8 + q, s = g + i % 2 * 8;
                    const float weight = diagonal[i / 2 * 4 + i % 2 * 2 + q] * decay_between(shared.cum[s0 + t], own[i % 2]);
                    pair[q] = s <= t && s0 + t < at.size ? weight : 0.0f;
                }
                weights[i] = pack<true>(pair[0], pair[1]);
            }
            multiply_right_depth(sums[0], weights, first, s0);

            fetch_x(values, x_from, args.x_row, s0, at.size, P);
            const float skip = args.flags & HAS_D ? load(d, args.d_at + size_t(h)) : 0.0f;
            const float steps[2] = {shared.step[s0 + g], shared.step[s0 + g + 8]};
            float along[2] = {}, skipped[2] = {};
#pragma unroll
            for (uint32_t i = 0; i < 16; i++) {
                const uint32_t s = s0 + g + i % 2 * 8;
                const float2 v = unpack<true>(values[i]);
                const float2 up = unpack<true>(*reinterpret_cast<const uint32_t *>(shared.first + tile_at(s, i / 2) + 2 * column));
                float &left = sums[0][2 * i], &right = sums[0][2 * i + 1];
                along[i % 2] = fmaf(left, v.x, fmaf(right, v.y, along[i % 2]));
                skipped[i % 2] = fmaf(up.x, v.x, fmaf(up.y, v.y, skipped[i % 2]));
                left = fmaf(steps[i % 2], left, skip * up.x);
                right = fmaf(steps[i % 2], right, skip * up.y);
            }
            ssd_warp::store_block<true>(grad_x + (at.token + s0) * args.grad_x_row + size_t(h) * P, args.grad_x_row, at.size - s0, P / 8, sums[0],
                                        shared.results[warp]);
#pragma unroll
            for (uint32_t i = 0; i < 2; i++) {
                const uint32_t s = s0 + g + 8 * i;
                const float one = row_sum(along[i]), three = row_sum(skipped[i]);
                if (s < at.size && lane % 2 == 0)
                    token[((at.token + s) * args.H + h) * 4 + lane % 4] = lane % 4 == 0 ? one : three;
            }
        }
    }
}
