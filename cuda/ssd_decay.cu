// Step sizes and cumulative log-decays, chunk by chunk. A block works on T0 items (head, chunk), 32 tokens at a time:
// all threads compute steps, one thread an item adds them up as a two-float sum, all threads write. Neighbouring
// threads read neighbouring heads and write neighbouring tokens.
// Shared memory: 3.1 KiB.
#include "dart.cuh"

KERNEL_FUNCTION(ssd_decay, simt)
{
    constexpr uint32_t T0 = TILE0_ssd_decay_simt, run = block_size / T0, words = run * CUM_STRIDE;
    static_assert(T0 * run == block_size, "a thread per item and token");
    __shared__ float walk[T0][words + 1];
    __shared__ uint64_t walk_at[T0];
    __shared__ uint32_t walk_length[T0];
    const View dt = VIEW(ssd_decay, dt), a_log = VIEW(ssd_decay, a_log), dt_bias = VIEW(ssd_decay, dt_bias);
    const float *open_decay = FLOATS(ssd_decay, open_decay);
    float *cum = FLOATS(ssd_decay, cum), *decay = FLOATS(ssd_decay, decay);
    const uint32_t longest = min(args.S, args.L), i = threadIdx.x % T0, k = threadIdx.x / T0;
    const size_t items = size_t(args.H) * args.M * args.B;

    FOR_TILES(tile) {
        const size_t item = size_t(tile) * T0 + i;
        const bool there = item < items;
        const uint32_t h = uint32_t(item % args.H), j = uint32_t(item / args.H % args.M),
                       b = uint32_t(item / args.H / args.M);
        uint32_t begin = 0, length = 0;
        float rate = 0.0f, bias = 0.0f;
        if (there) {
            const Chunk chunk =
                chunk_of(piece_of(INTS(ssd_decay, seq) + args.seq_at, args.flags, args.L, b), args.S, j);
            begin = chunk.begin;
            length = chunk.length();
            rate = -expf(load(a_log, args.a_log_at + size_t(h)));
            if (args.flags & HAS_BIAS) bias = load(dt_bias, args.dt_bias_at + size_t(h));
        }
        if (k == 0) {
            walk_at[i] = ((uint64_t(b) * args.H + h) * args.L + begin) * CUM_STRIDE;
            walk_length[i] = length;
        }
        float hi = 0.0f, lo = 0.0f;
        for (uint32_t base = 0; base < longest; base += run) {
            if (base + k < length) {
                float step = load(dt, args.dt_at + (size_t(b) * args.L + begin + base + k) * args.dt_row + h);
                if (!(args.flags & IS_STEP)) {
                    const float v = step + bias;
                    step = fmaxf(fmaxf(v, 0.0f) + log1pf(expf(-fabsf(v))), args.dt_min);
                    if (args.dt_max > 0.0f) step = fminf(step, args.dt_max);
                }
                walk[i][k * CUM_STRIDE] = __fmul_rn(rate, step);
                walk[i][k * CUM_STRIDE + 2] = step;
            }
            __syncthreads();
            if (k == 0) {
                for (uint32_t t = 0; t < run && base + t < length; t++) {
                    const float add = walk[i][t * CUM_STRIDE];
                    const float sum = __fadd_rn(hi, add), part = __fsub_rn(sum, hi);
                    const float lost = __fadd_rn(__fsub_rn(hi, __fsub_rn(sum, part)), __fsub_rn(add, part));
                    const float rest = __fadd_rn(lo, lost);
                    hi = __fadd_rn(sum, rest);
                    lo = __fsub_rn(rest, __fsub_rn(hi, sum));
                    walk[i][t * CUM_STRIDE] = hi;
                    walk[i][t * CUM_STRIDE + 1] = lo;
                }
            }
            __syncthreads();
            for (uint32_t n = threadIdx.x; n < T0 * words; n += block_size) {
                const uint32_t to = n / words, word = n % words;
                if (base + word / CUM_STRIDE >= walk_length[to]) continue;
                cum[walk_at[to] + base * CUM_STRIDE + word] = walk[to][word];
            }
            __syncthreads();
        }
        if (k == 0 && there) {
            const size_t first = size_t(b) * (args.M + 1) * args.H + h;
            decay[first + (size_t(j) + 1) * args.H] = hi;
            if (j == 0) decay[first] = args.flags & HAS_OPEN ? open_decay[size_t(b) * args.H + h] : 0.0f;
        }
        __syncthreads();
    }
}
