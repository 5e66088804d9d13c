// ssd_backward_x for N = 128, P = 64 and chunks of at most 256 tokens, bf16, by warpgroup products: v_s = keep_s b_s G + sum_(t >= s) cb_ts
// exp(cum_t - cum_s) up_y_t, grad_x = step v + d up_y, with G = lambda + up_dh in bf16 (ssd_backward_gain).
//
// It is ssd_output (chunk.cuh) with time reversed. A block walks over the heads of a (chunk, group); each of four warpgroups has 64 tokens s and
// keeps their fragments of b and of cb among them in registers, those of later blocks of 64 lie in shared memory: cb is read, and rounded, once
// for all heads of a block. With e_j the last token of block j, tokens s of block i take from block j > i
//   exp(cum_e(i) - cum_s) exp(cum_e(i+1) - cum_e(i)) ... exp(cum_e(j-1) - cum_e(j-2)) sum_t cb_ts (exp(cum_t - cum_e(j-1)) up_y_t)
// and from G the same with exp(cum_e(3) - cum_e(2)) (b_s G), cum_e(3) = tot: what is in brackets is rounded once as it is put into shared memory,
// all other factors go into the f32 sums from block to block, and no exponent is above 0. Within the own block the fragments of cb are multiplied:
// by factors that split at every 16 tokens after the own 16 in the same way, there by the exponential itself.
//
// A head's up_y, G and cum are on their way to one of two stages one turn ahead; x of a warp's 16 tokens belongs to the warp, which asks for the
// next head's when it has stored this one's results.
//
// Shared memory: two stages of up_y and G 96 KiB, weighted up_y 24 KiB, x 32 KiB, cb 48 KiB, cum as it is and vectors 10 KiB.
#include "backward_tensor.cuh"
#include "chunk.cuh"

namespace ssd_backward_x_warpgroup {

using namespace ssd_chunk;

constexpr uint32_t threads = 512;
struct Shared {
    alignas(1024) char up[2][tokens * tile_row];
    char gain[2][N * tile_row];
    char weighted[(tokens - 64) * tile_row]; // block j of 64 at 3 - j
    char x[threads / 32][16 * tile_row];
    char cb[blocks * (blocks - 1) / 2][64 * tile_row]; // of tokens of block i with block j > i at k (k - 1) / 2 + 3 - j, k = 3 - i
    float raw[2][tokens * CUM_STRIDE];                 // cum of a head
    float2 cum[tokens];                                // those of the last token beyond the chunk
    float near[tokens];                                // exp(cum_t - cum_e) with e the last token before the 16 that t is one of
    float step[tokens];                                // 0 beyond the chunk
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// threadIdx.x through a volatile asm: addresses computed from it are recomputed each turn, not held in registers.
__device__ __forceinline__ uint32_t thread_now()
{
    uint32_t thread = threadIdx.x;
    asm volatile("" : "+r"(thread));
    return thread;
}
// Asynchronous copy of 4 bytes.
__device__ __forceinline__ void copy_float(uint32_t to, const float *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

// cb_ts of a warpgroup's tokens s as fragments with rows s and depth t: those of the own block in cb, those of later ones as tiles.
__device__ __forceinline__ void enter_chunk(uint32_t (&cb)[4][4], const float *square, uint32_t C, uint32_t size, uint32_t block,
                                            char (*cb_tiles)[64 * tile_row])
{
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, later = blocks - 1 - block;
    const uint32_t s0 = 64 * block + 16 * slab_of(block) + lane / 4, t0 = lane % 4 * 2;
#pragma unroll 1
    for (uint32_t k = 0; k <= later; k++) {
        const uint32_t first = 64 * (blocks - 1 - k);
#pragma unroll
        for (uint32_t i = 0; i < 16; i++) {
            float v[2];
#pragma unroll
            for (uint32_t q = 0; q < 2; q++) {
                const uint32_t s = s0 + i % 2 * 8, t = first + t0 + i / 4 * 16 + i / 2 % 2 * 8 + q;
                v[q] = s <= t && t < size ? square[t * C + s] : 0.0f;
            }
            cb[i / 4][i % 4] = pack<true>(v[0], v[1]);
        }
        if (k == later) break;
        // A warp multiplies 16 lines of a tile by its place in the warpgroup, whichever tokens they are.
        const uint32_t to = shared_address(cb_tiles[later * (later - 1) / 2 + k]);
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) store_matrices(to + tile_at(warp % 4 * 16 + lane % 16, 2 * i + lane / 16), cb[i]);
    }
    stores_done();
}

// 16 tokens s x 64 columns of v of a warp. written: sums along rows g and g + 8 of x (b G), of the lane's columns; x: rows of the warp, on their way.
__device__ __forceinline__ void multiply_head(float (&sums)[32], float (&written)[2], uint32_t block, const uint32_t (&b)[N / 16][4],
                                              const uint32_t (&cb)[4][4], uint32_t cb_tiles, uint32_t gain_tile, uint32_t up_tile,
                                              uint32_t weighted_tile, const Shared &v, const char *x)
{
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, column = lane % 4 * 2, slab = slab_of(block), later = blocks - 1 - block;
    const uint32_t s0 = 64 * block + 16 * slab;
    const uint64_t gains = operand_at(gain_tile), up = operand_at(up_tile + 64 * block * tile_row);
    clear(sums);
    products_begin();
#pragma unroll
    for (uint32_t k = 0; k < N / 16; k++) multiply<true>(sums, b[k], operand_on(gains, 16 * k * tile_row));
    products_commit();
    // The triangle within the own 16 tokens, while products run; selected, since the compiler lets products that it finds among branches run one by
    // one.
    const float2 end = v.cum[s0 + 15], cum[2] = {v.cum[s0 + g], v.cum[s0 + g + 8]};
    const float own[2] = {decay_between(end, cum[0]), decay_between(end, cum[1])};
    uint32_t last[4][4];
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t t = column + i / 2 * 8, s = g + i % 2 * 8;
        uint32_t pair = cb[0][i];
#pragma unroll
        for (uint32_t k = 1; k < 4; k++) pair = k == slab ? cb[k][i] : pair;
        const float4 two = *reinterpret_cast<const float4 *>(&v.cum[s0 + t]);
        const float2 products = unpack<true>(pair);
        const float left = products.x * decay_between(make_float2(two.x, two.y), cum[i % 2]);
        const float right = products.y * decay_between(make_float2(two.z, two.w), cum[i % 2]);
        last[0][i] = pack<true>(t >= s ? left : 0.0f, t + 1 >= s ? right : 0.0f);
    }
    copies_landed<1>(); // x, which was asked for before the next turn's up_y and G
    __syncwarp();
    products_wait(sums);
#pragma unroll
    for (uint32_t i = 0; i < 16; i++) {
        const float2 pair = unpack<true>(*reinterpret_cast<const uint32_t *>(x + tile_at(g + i % 2 * 8, i / 2) + 2 * column));
        written[i % 2] = fmaf(sums[2 * i], pair.x, fmaf(sums[2 * i + 1], pair.y, written[i % 2]));
    }

    // From block to block, the last one first.
    float2 before = v.cum[tokens - 1];
    uint64_t left = operand_at(cb_tiles + later * (later - 1) / 2 * (64 * tile_row));
    uint64_t weighted = operand_at(weighted_tile);
#pragma unroll 1
    for (uint32_t k = 0; k < later; k++) {
        const float2 here = v.cum[64 * (blocks - 1 - k) - 1];
        const float factor = decay_between(before, here);
        before = here;
        products_wait(sums);
#pragma unroll
        for (int i = 0; i < 32; i++) sums[i] *= factor;
        products_begin();
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) multiply<true, false>(sums, operand_on(left, 32 * i), operand_on(weighted, 16 * i * tile_row));
        left = operand_on(left, 64 * tile_row);
        weighted = operand_on(weighted, 64 * tile_row);
        products_commit();
    }
    // The own block: the triangle, whole fragments after it, nothing before.
#pragma unroll
    for (uint32_t k = 1; k < 4; k++) {
        const uint32_t q = 4 * block + k;
        const float between = decay_between(v.cum[16 * q - 1], end);
        const float factors[2] = {own[0] * between, own[1] * between};
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const float2 keys = *reinterpret_cast<const float2 *>(v.near + 16 * q + column + i / 2 * 8);
            const float2 all = unpack<true>(cb[k][i]);
            const uint32_t whole = pack<true>(all.x * (keys.x * factors[i % 2]), all.y * (keys.y * factors[i % 2]));
            last[k][i] = k > slab ? whole : k == slab ? last[0][i] : 0;
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) last[0][i] = slab == 0 ? last[0][i] : 0;

    const float factors[2] = {decay_between(before, cum[0]), decay_between(before, cum[1])};
    products_wait(sums);
#pragma unroll
    for (int i = 0; i < 32; i++) sums[i] *= factors[i / 2 % 2];
    products_begin();
#pragma unroll
    for (uint32_t k = 0; k < 4; k++) multiply<true>(sums, last[k], operand_on(up, 16 * k * tile_row));
    products_wait(sums);
}

#endif

} // namespace ssd_backward_x_warpgroup

KERNEL_FUNCTION_BLOCKS(ssd_backward_x, tensor_warpgroup_bf16, 1)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    using namespace ssd_backward_x_warpgroup;
    static_assert(sizeof(Shared) <= SHARED_ssd_backward_x_tensor_warpgroup_bf16, "shared memory");
    static_assert(TILE0_ssd_backward_x_tensor_warpgroup_bf16 == tokens && THREADS_ssd_backward_x_tensor_warpgroup_bf16 == threads, "a chunk a tile");
    Shared &shared = *reinterpret_cast<Shared *>(tensor_memory);
    const uint16_t *const x = HALVES(ssd_backward_x, x) + args.x_at, *const b_rows = HALVES(ssd_backward_x, b) + args.b_at;
    const uint16_t *const up_y = HALVES(ssd_backward_x, up_y) + args.up_y_at;
    const View d = VIEW(ssd_backward_x, d);
    const uint32_t block = uniform(threadIdx.x / 128), warp = uniform(threadIdx.x / 32), slab = slab_of(block), s0 = 64 * block + 16 * slab;
    const uint32_t in_group = args.H / args.G;
    const Run run = run_of(args.tiles, in_group);
    uint32_t end; // of the heads of one chunk and group
#pragma unroll 1
    for (uint32_t tile = run.first; tile < run.end; tile = end) {
        const uint32_t first = tile % args.H, group = first / in_group;
        end = min(run.end, tile + in_group - first % in_group);
        const Place at = place_of(args, INTS(ssd_backward_x, seq) + args.seq_at, tile / args.H);
        if (at.size == 0) continue;
        const auto fetch = [&](uint32_t h, uint32_t stage) {
            const uint32_t me = thread_now();
            const uint16_t *const gain = HALVES(ssd_backward_x, lambda) + (at.slot * args.H + h) * (N * P);
            copy_tile<tokens, threads>(shared_address(shared.up[stage]), up_y + at.token * args.up_y_row + size_t(h) * P, args.up_y_row, at.size, me);
            copy_tile<N, threads>(shared_address(shared.gain[stage]), gain, P, N, me);
            const float *const cum = cum_of(args, FLOATS(ssd_backward_x, cum), at, h);
#pragma unroll
            for (uint32_t i = 0; i < 2; i++) {
                const uint32_t own = me + i * threads;
                if (own < at.size * CUM_STRIDE) copy_float(shared_address(&shared.raw[stage][own]), cum + own);
            }
        };
        const auto fetch_x = [&](uint32_t h) {
            const uint32_t me = thread_now() % 32, to = shared_address(shared.x[warp]);
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                const uint32_t r = me / 8 + 4 * i;
                copy16(to + tile_at(r, me % 8), x + (at.token + s0 + r) * args.x_row + size_t(h) * P + me % 8 * 8, s0 + r < at.size);
            }
        };
        // Factors, and up_y weighted by them, of what this thread has copied.
        const auto put = [&](uint32_t stage) {
            const uint32_t me = thread_now();
            const float *const raw = shared.raw[stage];
            const auto cum_of_token = [&](uint32_t t) {
                const float *const own = raw + min(t, at.size - 1) * CUM_STRIDE;
                return make_float2(own[0], own[1]);
            };
            if (me < tokens) {
                const float2 mine = cum_of_token(me);
                shared.cum[me] = mine;
                shared.near[me] = decay_between(mine, cum_of_token(max(me / 16 * 16, 1u) - 1));
                shared.step[me] = me < at.size ? raw[me * CUM_STRIDE + 2] : 0.0f;
            }
#pragma unroll
            for (uint32_t i = 1; i < blocks; i++) {
                const uint32_t r = me / 8 + 64 * i;
                const float weight = decay_between(cum_of_token(r), cum_of_token(64 * i - 1));
                put16(shared.weighted, r % 64 + 64 * (blocks - 1 - i), me % 8,
                      scale8<true>(get16(shared.up[stage], r, me % 8), factors_of<true>(weight, weight)));
            }
            stores_done();
        };

        barrier(1, threads); // no warp still uses what the last chunk had
        fetch(first, 0);
        copies_commit();
        fetch_x(first);
        copies_commit();
        // What all heads share. b passes through the stage that holds nothing yet.
        uint32_t b[N / 16][4], cb[4][4];
        fetch_c(b, b_rows + at.token * args.b_row + size_t(group) * N, args.b_row, at.size, block);
        turn_c(b, shared.up[1] + warp * (16 * tile_row));
        enter_chunk(cb, FLOATS(ssd_backward_x, cb) + (at.slot * args.G + group) * args.C * args.C, args.C, at.size, block, shared.cb);
        const uint32_t heads = end - tile;
#pragma unroll 1
        for (uint32_t turn = 0; turn < heads; turn++) {
            const uint32_t stage = turn % 2, h = first + turn;
            copies_wait<1>(); // all but x
            barrier(1, threads); // and no warp still uses what the last head had
            put(stage);
            barrier(1, threads);
            if (turn + 1 < heads) fetch(h + 1, 1 - stage);
            copies_commit();
            float sums[32], written[2] = {};
            multiply_head(sums, written, block, b, cb, shared_address(shared.cb), shared_address(shared.gain[stage]),
                          shared_address(shared.up[stage]), shared_address(shared.weighted), shared, shared.x[warp]);

            const uint32_t me = thread_now(), g = me % 32 / 4, column = me % 4 * 2;
            const float skip = args.flags & HAS_D ? load(d, args.d_at + size_t(h)) : 0.0f;
            const float steps[2] = {shared.step[s0 + g], shared.step[s0 + g + 8]};
            float along[2] = {}, skipped[2] = {};
#pragma unroll
            for (uint32_t i = 0; i < 16; i++) {
                const uint32_t r = g + i % 2 * 8;
                const float2 v = unpack<true>(*reinterpret_cast<const uint32_t *>(shared.x[warp] + tile_at(r, i / 2) + 2 * column));
                const float2 up = unpack<true>(*reinterpret_cast<const uint32_t *>(shared.up[stage] + tile_at(s0 + r, i / 2) + 2 * column));
                float &left = sums[2 * i], &right = sums[2 * i + 1];
                along[i % 2] = fmaf(left, v.x, fmaf(right, v.y, along[i % 2]));
                skipped[i % 2] = fmaf(up.x, v.x, fmaf(up.y, v.y, skipped[i % 2]));
                left = fmaf(steps[i % 2], left, skip * up.x);
                right = fmaf(steps[i % 2], right, skip * up.y);
            }
            const float2 total = shared.cum[tokens - 1];
            float *const token = FLOATS(ssd_backward_x, token);
#pragma unroll
            for (uint32_t i = 0; i < 2; i++) {
                const uint32_t s = s0 + g + 8 * i, part = me % 4;
                const float one = ssd_backward_tensor::row_sum(along[i]), three = ssd_backward_tensor::row_sum(skipped[i]);
                const float two = ssd_backward_tensor::row_sum(written[i]) * (decay_between(total, shared.cum[s]) * steps[i]);
                if (s < at.size && part < 3) token[((at.token + s) * args.H + h) * 4 + part] = part == 0 ? one : part == 1 ? two : three;
            }
            const uint32_t valid = s0 < at.size ? at.size - s0 : 0;
            store_rows<true>(HALVES(ssd_backward_x, grad_x) + args.grad_x_at + (at.token + s0) * args.grad_x_row + size_t(h) * P, args.grad_x_row,
                             valid, sums, shared.x[warp]);
            __syncwarp(); // all lanes have read these rows
            if (turn + 1 < heads) fetch_x(h + 1);
            copies_commit();
        }
        copies_landed<0>();
    }
#endif
}
