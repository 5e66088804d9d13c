// ssd_decay with a warp an item: a block has T0 items (head, chunk), 256 tokens at a time. All threads compute steps,
// neighbouring ones of neighbouring heads; each lane adds up eight tokens of its warp's item in f64 and the warp scans the
// lanes, so that hi and lo are the sum rounded once and what that rounding lost.
// Shared memory: 6.3 KiB.
#include "lib/tensor.cuh"

KERNEL_FUNCTION_BLOCKS(ssd_decay, scan, 1)
{
    constexpr uint32_t T0 = TILE0_ssd_decay_scan, threads = THREADS_ssd_decay_scan, run = 256;
    constexpr uint32_t lane_run = run / 32, lane_words = lane_run * CUM_STRIDE, apart = threads / T0, parts = run / apart;
    static_assert(T0 * 32 == threads, "a warp an item");
    __shared__ float walk[T0][32 * (lane_words + 1) + 1]; // a word between lanes for the banks
    __shared__ uint32_t walk_length[T0];
    __shared__ size_t walk_at[T0];
    const View dt = VIEW(ssd_decay, dt), a_log = VIEW(ssd_decay, a_log), dt_bias = VIEW(ssd_decay, dt_bias);
    const float *open_decay = FLOATS(ssd_decay, open_decay);
    float *cum = FLOATS(ssd_decay, cum), *decay = FLOATS(ssd_decay, decay);
    const uint32_t longest = min(args.S, args.L), i = threadIdx.x % T0, k = threadIdx.x / T0;
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const size_t items = size_t(args.H) * args.M * args.B;

    FOR_TILES(tile) {
        const size_t item = size_t(tile) * T0 + i;
        uint32_t h = 0, begin = 0, length = 0, row = 0;
        float rate = 0.0f, bias = 0.0f;
        if (item < items) {
            h = uint32_t(item % args.H);
            const uint32_t j = uint32_t(item / args.H % args.M), b = uint32_t(item / args.H / args.M);
            const Sequence piece = sequence_of(INTS(ssd_decay, seq) + args.seq_at, args.flags, args.L, args.T, b);
            const Chunk chunk = chunk_of(piece, args.S, j);
            row = piece.row;
            if (k == 0) walk_at[i] = (size_t(row) * args.H + size_t(h) * piece.span + chunk.begin) * CUM_STRIDE;
            begin = chunk.begin;
            length = chunk.length();
            rate = -expf(load(a_log, args.a_log_at + size_t(h)));
            if (args.flags & HAS_BIAS) bias = load(dt_bias, args.dt_bias_at + size_t(h));
        }
        if (k == 0) walk_length[i] = length;
        double carried = 0.0;
        for (uint32_t base = 0; base < longest; base += run) {
            // All loads first: one after another they would take as long as all the rest.
            const size_t from = args.dt_at + (size_t(row) + begin + base + k) * args.dt_row + h;
            float steps[parts];
            if (dt.dtype == DTYPE_F32) {
                const float *next = reinterpret_cast<const float *>(dt.base) + from;
#pragma unroll
                for (uint32_t t = 0; t < parts; t++, next += apart * size_t(args.dt_row))
                    steps[t] = base + t * apart + k < length ? *next : 0.0f;
            } else {
                const uint16_t *next = reinterpret_cast<const uint16_t *>(dt.base) + from;
                uint32_t raw[parts];
#pragma unroll
                for (uint32_t t = 0; t < parts; t++, next += apart * size_t(args.dt_row))
                    raw[t] = base + t * apart + k < length ? *next : 0;
#pragma unroll
                for (uint32_t t = 0; t < parts; t++) steps[t] = dt.dtype == DTYPE_F16 ? from_half(raw[t]) : from_bfloat(raw[t]);
            }
#pragma unroll
            for (uint32_t t = 0; t < parts; t++) {
                const uint32_t token = t * apart + k;
                float step = steps[t];
                if (!(args.flags & IS_STEP)) {
                    const float v = step + bias;
                    step = fmaxf(fmaxf(v, 0.0f) + log1pf(expf(-fabsf(v))), args.dt_min);
                    if (args.dt_max > 0.0f) step = fminf(step, args.dt_max);
                }
                if (base + token >= length) step = 0.0f;
                float *to = &walk[i][token * CUM_STRIDE + token / lane_run];
                to[0] = __fmul_rn(rate, step);
                to[2] = step;
            }
            __syncthreads();
            float *mine = &walk[warp][lane * (lane_words + 1)];
            double sums[lane_run], before = 0.0;
#pragma unroll
            for (uint32_t t = 0; t < lane_run; t++) {
                before += double(mine[t * CUM_STRIDE]);
                sums[t] = before;
            }
#pragma unroll
            for (uint32_t distance = 1; distance < 32; distance *= 2) {
                const double other = __shfl_up_sync(0xffffffffu, before, distance);
                if (lane >= distance) before += other;
            }
            const double total = carried + __shfl_sync(0xffffffffu, before, 31);
            before = __shfl_up_sync(0xffffffffu, before, 1);
            before = carried + (lane == 0 ? 0.0 : before);
            carried = total;
#pragma unroll
            for (uint32_t t = 0; t < lane_run; t++) {
                const double sum = before + sums[t];
                const float hi = float(sum);
                mine[t * CUM_STRIDE] = hi;
                mine[t * CUM_STRIDE + 1] = float(sum - double(hi));
            }
            __syncthreads();
#pragma unroll
            for (uint32_t to = 0; to < T0; to++) {
                const uint32_t there = walk_length[to] > base ? min(walk_length[to] - base, run) * CUM_STRIDE : 0;
                for (uint32_t word = threadIdx.x; word < there; word += threads)
                    cum[walk_at[to] + base * CUM_STRIDE + word] = walk[to][word + word / lane_words];
            }
            __syncthreads();
        }
        // Beyond the chunk's tokens steps are 0: lane by lane the sum is that of the chunk.
        const size_t own = size_t(tile) * T0 + warp;
        if (lane == 0 && own < items) {
            const uint32_t head = uint32_t(own % args.H), number = uint32_t(own / args.H % args.M), sequence = uint32_t(own / args.H / args.M);
            const Sequence piece = sequence_of(INTS(ssd_decay, seq) + args.seq_at, args.flags, args.L, args.T, sequence);
            const size_t first = (size_t(piece.slot(args.M, args.S)) + sequence) * args.H + head;
            if (!piece.packed || walk_length[warp] > 0) {
                decay[first + (size_t(number) + 1) * args.H] = float(carried);
                if (number == 0) decay[first] = args.flags & HAS_OPEN ? open_decay[size_t(sequence) * args.H + head] : 0.0f;
            }
        }
        __syncthreads();
    }
}
