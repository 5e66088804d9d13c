// ssd_backward_products and ssd_backward_read on warp products.
// cb[t, s] = c_t . b_s: a block makes 64 x 64 tokens of a (chunk, group), a warp 16 rows x 32 columns. Shared memory: 32 KiB.
// read[n, p] = sum_t exp(cum_t) c_t[n] up_y_t[p]: a block makes a (chunk, head), a warp 16 rows n. exp(cum_t) c_t is rounded to bf16 once, as a
// fragment. Shared memory: c 64 KiB, up_y 32 KiB, factors 1 KiB.
#include "backward_tensor.cuh"

KERNEL_FUNCTION_BLOCKS(ssd_backward_products, tensor_bf16, 3)
{
    using namespace ssd_backward_tensor;
    struct Shared { char c[2][side * tile_row], b[2][side * tile_row]; };
    static_assert(sizeof(Shared) <= SHARED_ssd_backward_products_tensor_bf16, "shared memory");
    static_assert(TILE0_ssd_backward_products_tensor_bf16 == side, "tile of the product");
    Shared &shared = *reinterpret_cast<Shared *>(tensor_memory);
    const uint16_t *b = HALVES(ssd_backward_products, b) + args.b_at;
    const uint16_t *c = HALVES(ssd_backward_products, c) + args.c_at;
    const uint32_t across = ceil_div(args.C, side), pairs = across * (across + 1) / 2;
    const uint32_t warp = uniform(threadIdx.x / 32), lane = threadIdx.x % 32, row = warp % 4 * 16 + lane / 4, column = warp / 4 * 32 + lane % 4 * 2;
    FOR_TILES(tile) {
        const uint2 pair = pair_of(tile % pairs);
        const uint32_t t0 = pair.x * side, s0 = pair.y * side, g = tile / pairs % args.G;
        const Place at = place_of(args, INTS(ssd_backward_products, seq) + args.seq_at, tile / pairs / args.G);
        if (t0 >= at.size) continue;
        __syncthreads(); // no warp still uses the last tiles
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            const uint32_t pieces = args.N > 64 * i ? min(args.N / 8 - 8 * i, 8) : 0, n0 = g * args.N + 64 * i;
            const uint16_t *from_c = c + (at.token + t0) * args.c_row + n0, *from_b = b + (at.token + s0) * args.b_row + n0;
            copy_tile<side, threads>(shared_address(shared.c[i]), from_c, args.c_row, at.size - t0, threadIdx.x, pieces);
            copy_tile<side, threads>(shared_address(shared.b[i]), from_b, args.b_row, at.size - s0, threadIdx.x, pieces);
        }
        copies_commit();
        copies_wait<0>();
        __syncthreads();
        float sums[16] = {};
#pragma unroll
        for (uint32_t k = 0; k < 8; k++) {
            uint32_t left[4];
            left_rows(left, shared_address(shared.c[k / 4]), warp % 4 * 16, k % 4);
            multiply_right_lines<2>(sums, left, shared_address(shared.b[k / 4]), warp / 4 * 32, k % 4);
        }
        float *to = FLOATS(ssd_backward_products, cb) + (at.slot * args.G + g) * args.C * args.C;
#pragma unroll
        for (uint32_t i = 0; i < 16; i++) {
            const uint32_t t = t0 + row + i / 2 % 2 * 8, s = s0 + column + i / 4 * 8 + i % 2;
            if (t < at.size && s < at.size) to[size_t(t) * args.C + s] = sums[i];
        }
    }
}

KERNEL_FUNCTION_BLOCKS(ssd_backward_read, tensor_bf16, 2)
{
    using namespace ssd_backward_tensor;
    struct Shared {
        char c[2][tokens * tile_row], up[tokens * tile_row];
        uint2 factors[tokens / 2]; // of pairs of tokens
    };
    static_assert(sizeof(Shared) <= SHARED_ssd_backward_read_tensor_bf16, "shared memory");
    static_assert(TILE0_ssd_backward_read_tensor_bf16 == 128 && TILE1_ssd_backward_read_tensor_bf16 == 64, "a block has all rows and columns");
    Shared &shared = *reinterpret_cast<Shared *>(tensor_memory);
    const uint16_t *c = HALVES(ssd_backward_read, c) + args.c_at;
    const uint16_t *up_y = HALVES(ssd_backward_read, up_y) + args.up_y_at;
    const uint32_t warp = uniform(threadIdx.x / 32), lane = threadIdx.x % 32, N = args.N, P = args.P, n0 = 16 * warp;
    FOR_TILES(tile) {
        const uint32_t h = tile % args.H, g = h / (args.H / args.G);
        const Place at = place_of(args, INTS(ssd_backward_read, seq) + args.seq_at, tile / args.H);
        if (at.size == 0) continue;
        const float *cum = cum_of(args, FLOATS(ssd_backward_read, cum), at, h);
        const uint16_t *from = c + at.token * args.c_row + size_t(g) * N, *from_up = up_y + at.token * args.up_y_row + size_t(h) * P;
        __syncthreads(); // no warp still uses the last tiles
#pragma unroll
        for (uint32_t part = 0; part < 2; part++) { // of the tokens
            constexpr uint32_t some = tokens / 2;
            const uint32_t t0 = part * some, to = t0 * tile_row, valid = at.size > t0 ? at.size - t0 : 0;
            const uint16_t *own = from + uint64_t(t0) * args.c_row, *own_up = from_up + uint64_t(t0) * args.up_y_row;
            copy_tile<some, threads>(shared_address(shared.c[0]) + to, own, args.c_row, valid, threadIdx.x, min(N / 8, 8));
            copy_tile<some, threads>(shared_address(shared.c[1]) + to, own + 64, args.c_row, valid, threadIdx.x, N > 64 ? N / 8 - 8 : 0);
            copy_tile<some, threads>(shared_address(shared.up) + to, own_up, args.up_y_row, valid, threadIdx.x, P / 8);
            copies_commit();
        }
        if (threadIdx.x < tokens / 2) {
            const float2 zero = make_float2(0.0f, 0.0f);
            shared.factors[threadIdx.x] = factors_of<true>(decay_between(cum_at(cum, min(2 * threadIdx.x, at.size - 1)), zero),
                                                           decay_between(cum_at(cum, min(2 * threadIdx.x + 1, at.size - 1)), zero));
        }
        float sums[32];
        clear(sums);
        const uint32_t left = shared_address(shared.c[warp / 4]), right = shared_address(shared.up);
#pragma unroll 1
        for (uint32_t part = 0; part < 2; part++) {
            if (part == 0) copies_wait<1>();
            else copies_wait<0>();
            __syncthreads();
            if (n0 >= N) continue;
#pragma unroll 4
            for (uint32_t i = 0; i < tokens / 32; i++) {
                const uint32_t k = part * (tokens / 32) + i;
                if (16 * k >= at.size) break;
                uint32_t a[4];
                load_matrices_turned(a, left + tile_at(16 * k + lane % 8 + lane / 16 * 8, warp % 4 * 2 + lane / 8 % 2));
                const uint2 near = shared.factors[8 * k + lane % 4], far = shared.factors[8 * k + lane % 4 + 4];
                a[0] = multiply_pair<true>(a[0], near);
                a[1] = multiply_pair<true>(a[1], near);
                a[2] = multiply_pair<true>(a[2], far);
                a[3] = multiply_pair<true>(a[3], far);
                multiply_right_depth(sums, a, right, 16 * k);
            }
        }
        if (n0 >= N) continue;
        float *to = FLOATS(ssd_backward_read, read) + ((at.slot * args.H + h) * N + n0) * P;
#pragma unroll
        for (uint32_t i = 0; i < 16; i++) {
            const uint32_t n = lane / 4 + i % 2 * 8, p = i / 2 * 8 + lane % 4 * 2;
            if (p < P) *reinterpret_cast<float2 *>(to + n * P + p) = make_float2(sums[2 * i], sums[2 * i + 1]);
        }
    }
}
