// ssd_backward_decay for chunks of at most 256 tokens: a block takes a (chunk, head), a thread a token, a warp a tile of the sums of z.
#include "backward.cuh"

KERNEL_FUNCTION(ssd_backward_decay, scan)
{
    static_assert(THREADS_ssd_backward_decay_scan == block_size && SCORE_SIDE == 32, "a token a thread, a tile a warp");
    const View dt = VIEW(ssd_backward_decay, dt), a_log = VIEW(ssd_backward_decay, a_log), dt_bias = VIEW(ssd_backward_decay, dt_bias);
    const View grad_dt = VIEW(ssd_backward_decay, grad_dt);
    const float *carry = FLOATS(ssd_backward_decay, carry), *token = FLOATS(ssd_backward_decay, token);
    const uint32_t k = threadIdx.x, lane = k % 32, own_tile = k / 32;
    const uint32_t side = ceil_div(args.C, SCORE_SIDE), pairs = side * (side + 1) / 2;
    __shared__ float written[warps], reads[warps], carries[warps], totals[3][warps]; // of warps
    FOR_TILES(tile) {
        const uint32_t h = tile % args.H;
        const Place at = place_of(args, INTS(ssd_backward_decay, seq) + args.seq_at, tile / args.H);
        if (at.size == 0 && (args.flags & HAS_CU)) continue;
        const size_t own = at.slot * args.H + h;
        const bool there = k < at.size;
        const float a = -expf(load(a_log, args.a_log_at + size_t(h)));
        const float bias = args.flags & HAS_BIAS ? load(dt_bias, args.dt_bias_at + size_t(h)) : 0.0f;
        float4 of = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        float raw = 0.0f, step = 0.0f, carried = 0.0f, crossing = 0.0f, whole = 0.0f;
        if (there) {
            of = *reinterpret_cast<const float4 *>(token + ((at.token + k) * args.H + h) * 4);
            raw = load(dt, args.dt_at + (at.token + k) * args.dt_row + h) + bias;
            step = cum_of(args, FLOATS(ssd_backward_decay, cum), at, h)[k * CUM_STRIDE + 2];
        }
        for (uint32_t n = k; n < args.N && at.size > 0; n += block_size) carried += carry[own * args.N + n];
        // The shares of pairs of tiles in the sum of z over u >= k > s: of later rows, of earlier columns, and of both.
        const uint32_t tiles = ceil_div(at.size, SCORE_SIDE);
        if (own_tile < tiles) {
            const float *sums = FLOATS(ssd_backward_decay, sums) + own * pairs * 64, *rows = sums + own_tile * (own_tile + 1) / 2 * 64;
            crossing = rows[own_tile * 64 + lane];
#pragma unroll 4
            for (uint32_t c = 0; c < own_tile; c++) crossing += rows[c * 64 + lane];
#pragma unroll 4
            for (uint32_t i = own_tile + 1; i < tiles; i++) crossing += sums[(i * (i + 1) / 2 + own_tile) * 64 + SCORE_SIDE + lane];
            if (own_tile > 0 && lane < (tiles - 1 - own_tile) * own_tile) { // 12 at most
                const uint32_t i = own_tile + 1 + lane / own_tile, c = lane % own_tile;
                whole = sums[(i * (i + 1) / 2 + c) * 64];
            }
        }
        crossing += warp_sum(whole);
        const float before = sum_before(of.y), later = sum_from(of.w), carries_of = warp_sum(carried);
        if (lane == 31) written[own_tile] = before + of.y;
        if (lane == 0) reads[own_tile] = later;
        if (lane == 0) carries[own_tile] = carries_of;
        __syncthreads();
        float outside = 0.0f;
#pragma unroll
        for (uint32_t w = 0; w < warps; w++) {
            outside += carries[w];
            if (w < own_tile) outside += written[w];
            if (w > own_tile) outside += reads[w];
        }
        const float grad_a = crossing + (before + later) + outside;
        float grad = of.x + a * grad_a;
        if (!(args.flags & IS_STEP)) {
            const float e = expf(-fabsf(raw)), soft = fmaxf(raw, 0.0f) + log1pf(e);
            grad = soft >= args.dt_min && soft <= args.dt_max ? grad * ((raw >= 0.0f ? 1.0f : e) / (1.0f + e)) : 0.0f;
        }
        if (there) store(grad_dt, args.grad_dt_at + (at.token + k) * args.grad_dt_row + h, grad);
        const float sums[3] = {warp_sum(there ? a * step * grad_a : 0.0f), warp_sum(there ? grad : 0.0f), warp_sum(of.z)};
#pragma unroll
        for (uint32_t i = 0; i < 3; i++)
            if (lane == 0) totals[i][own_tile] = sums[i];
        __syncthreads();
        if (k < 3) {
            float sum = 0.0f;
            for (uint32_t w = 0; w < warps; w++) sum += totals[k][w];
            float *const to[3] = {FLOATS(ssd_backward_decay, of_a_log), FLOATS(ssd_backward_decay, of_bias), FLOATS(ssd_backward_decay, of_d)};
            (k == 0 ? to[0] : k == 1 ? to[1] : to[2])[own] = sum;
        }
    }
}
