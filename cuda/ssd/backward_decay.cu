// The gradients of the log-decays of a chunk, of its steps and dt, and its shares of the gradients of a_log, dt_bias and d; see args.h. A block takes
// one (chunk, head), a thread every 256th token: forwards for the sums of tokens before one, backwards for those of later ones.
#include "backward.cuh"

// scan[i] = the sum of the values of threads 0 .. i, or with backwards of the last i + 1 threads, in a fixed order. Returns this thread's
// place in scan. Call with the whole block, and let it pass a barrier before the next call.
__device__ __forceinline__ uint32_t running_sums(float (&scan)[block_size], float value, bool backwards)
{
    const uint32_t place = backwards ? block_size - 1 - threadIdx.x : threadIdx.x;
    scan[place] = value;
    for (uint32_t apart = 1; apart < block_size; apart *= 2) {
        __syncthreads();
        const float other = place >= apart ? scan[place - apart] : 0.0f;
        __syncthreads();
        scan[place] += other;
    }
    __syncthreads();
    return place;
}

// The shares of all pairs of tiles in the sum of z over u >= k > s.
__device__ __forceinline__ float crossing(const float *sums, uint32_t k, uint32_t tiles)
{
    const uint32_t tile = k / SCORE_SIDE, r = k % SCORE_SIDE;
    float sum = sums[(tile * (tile + 1) / 2 + tile) * 64 + r];
    for (uint32_t c = 0; c < tile; c++) sum += sums[(tile * (tile + 1) / 2 + c) * 64 + r];
    for (uint32_t i = tile + 1; i < tiles; i++) {
        sum += sums[(i * (i + 1) / 2 + tile) * 64 + SCORE_SIDE + r];
        for (uint32_t c = 0; c < tile; c++) sum += sums[(i * (i + 1) / 2 + c) * 64];
    }
    return sum;
}

KERNEL_FUNCTION(ssd_backward_decay, simt)
{
    const View dt = VIEW(ssd_backward_decay, dt), a_log = VIEW(ssd_backward_decay, a_log), dt_bias = VIEW(ssd_backward_decay, dt_bias);
    const View grad_dt = VIEW(ssd_backward_decay, grad_dt);
    const float *carry = FLOATS(ssd_backward_decay, carry);
    float *token = FLOATS(ssd_backward_decay, token);
    __shared__ float scan[block_size];
    const uint32_t side = ceil_div(args.C, SCORE_SIDE), pairs = side * (side + 1) / 2;
    FOR_TILES(tile) {
        const uint32_t h = tile % args.H;
        const Place at = place_of(args, INTS(ssd_backward_decay, seq) + args.seq_at, tile / args.H);
        if (at.size == 0 && (args.flags & HAS_CU)) continue;
        const size_t own = at.slot * args.H + h;
        const float *cum = cum_of(args, FLOATS(ssd_backward_decay, cum), at, h);
        const float *sums = FLOATS(ssd_backward_decay, sums) + own * pairs * 64;
        const float a = -expf(load(a_log, args.a_log_at + size_t(h)));
        const float bias = args.flags & HAS_BIAS ? load(dt_bias, args.dt_bias_at + size_t(h)) : 0.0f;
        float carried = 0.0f;
        for (uint32_t n = threadIdx.x; n < args.N && at.size > 0; n += block_size) carried += carry[own * args.N + n];
        carried = block_sum(carried);
        const uint32_t blocks = ceil_div(at.size, block_size);
        float before = 0.0f, later = 0.0f, of_a_log = 0.0f, of_bias = 0.0f, of_d = 0.0f;
        for (uint32_t block = 0; block < blocks; block++) {
            const uint32_t k = block * block_size + threadIdx.x;
            const bool there = k < at.size;
            float *of = token + ((at.token + (there ? k : 0)) * args.H + h) * 4;
            const uint32_t place = running_sums(scan, there ? of[1] : 0.0f, false);
            if (there) of[1] = before + (place > 0 ? scan[place - 1] : 0.0f); // of the tokens before
            before += scan[block_size - 1];
            __syncthreads();
        }
        for (uint32_t block = blocks; block-- > 0;) {
            const uint32_t k = block * block_size + threadIdx.x;
            const bool there = k < at.size;
            const float *of = token + ((at.token + (there ? k : 0)) * args.H + h) * 4;
            const uint32_t place = running_sums(scan, there ? of[3] : 0.0f, true);
            const float read_later = later + scan[place];
            later += scan[block_size - 1];
            __syncthreads();
            if (!there) continue;
            const float grad_a = crossing(sums, k, ceil_div(at.size, SCORE_SIDE)) + read_later + of[1] + carried;
            float grad = of[0] + a * grad_a;
            if (!(args.flags & IS_STEP)) {
                const float raw = load(dt, args.dt_at + (at.token + k) * args.dt_row + h) + bias, e = expf(-fabsf(raw));
                const float soft = fmaxf(raw, 0.0f) + log1pf(e);
                grad = soft >= args.dt_min && soft <= args.dt_max ? grad * ((raw >= 0.0f ? 1.0f : e) / (1.0f + e)) : 0.0f;
            }
            store(grad_dt, args.grad_dt_at + (at.token + k) * args.grad_dt_row + h, grad);
            of_a_log += a * cum[size_t(k) * CUM_STRIDE + 2] * grad_a;
            of_bias += grad;
            of_d += of[2];
        }
        of_a_log = block_sum(of_a_log);
        of_bias = block_sum(of_bias);
        of_d = block_sum(of_d);
        if (threadIdx.x == 0) {
            FLOATS(ssd_backward_decay, of_a_log)[own] = of_a_log;
            FLOATS(ssd_backward_decay, of_bias)[own] = of_bias;
            FLOATS(ssd_backward_decay, of_d)[own] = of_d;
        }
    }
}
