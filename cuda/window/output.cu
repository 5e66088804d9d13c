// One token of each sequence from hin and the tokens of its window: y = sum_k (c . b_k) keep_k step_k x_k + keep_-1 c hin
// + d x.
// A block makes one (b, h): a warp a slot for the products c . b_k, then threads of a column share the rows.
// 16bit: N 128, P 64, rows and hin of 16 bits. All that a thread reads is asked for at once: 8 threads share a row of hin or x, 16 a row of b.
#include "lib/eight.cuh"
#include "window.cuh"

KERNEL_FUNCTION(window_output, simt)
{
    __shared__ WindowShared shared;
    __shared__ float c_now[MAX_STATE], c_scaled[MAX_STATE], sums[block_size];
    const View rows = VIEW(window_output, rows), c = VIEW(window_output, c), hin = VIEW(window_output, hin),
        d = VIEW(window_output, d);
    const View y = VIEW(window_output, y);
    const float *scale = FLOATS(window_output, hin_scale);
    const uint32_t N = args.N, P = args.P, slices = block_size / P, p = threadIdx.x % P, slice = threadIdx.x / P;
    const size_t pitch = size_t(args.H) * P + size_t(args.G) * N;
    static_assert(MAX_STATE <= block_size, "a thread per column");
    FOR_TILES(tile) {
        const uint32_t h = tile % args.H, b = tile / args.H, g = h / (args.H / args.G);
        const Piece piece = piece_of(INTS(window_output, seq) + args.seq_at, args.flags, 1, b);
        if (piece.count == 0) continue;
        const uint32_t n = piece.position % args.S % WINDOW + 1;
        const size_t x_at = args.rows_at + b * WINDOW * pitch + size_t(h) * P,
            b_at = args.rows_at + b * WINDOW * pitch + size_t(args.H) * P + size_t(g) * N;
        weigh_slots(shared, FLOATS(window_output, steps), args.H, b, h, n);
        for (uint32_t i = threadIdx.x; i < N; i += block_size) {
            c_now[i] = load(c, args.c_at + size_t(b) * args.c_row + size_t(g) * N + i);
            c_scaled[i] = c_now[i] * (args.flags & HAS_HIN_SCALE ? scale[args.hin_scale_at + size_t(tile) * N + i] : 1.0f);
        }
        __syncthreads();
        for (uint32_t k = threadIdx.x / 32; k < n; k += warps) {
            float product = 0.0f;
            for (uint32_t i = threadIdx.x % 32; i < N; i += 32)
                product = fmaf(c_now[i], load(rows, b_at + k * pitch + i), product);
            product = warp_sum(product);
            if (threadIdx.x % 32 == 0) shared.keeps[k] *= product;
        }
        __syncthreads();
        float sum = 0.0f;
        if (slice < slices) {
            for (uint32_t i = slice; i < N; i += slices)
                sum = fmaf(c_scaled[i], load(hin, args.hin_at + (size_t(tile) * N + i) * P + p), sum);
            sum *= exp_below(shared.log_decay_of_all);
            for (uint32_t k = slice; k < n; k += slices) sum = fmaf(shared.keeps[k], load(rows, x_at + k * pitch + p), sum);
        }
        sums[threadIdx.x] = sum;
        __syncthreads();
        if (threadIdx.x < P) {
            float total = 0.0f;
            for (uint32_t i = 0; i < slices; i++) total += sums[i * P + p];
            if (args.flags & HAS_D) total = fmaf(load(d, args.d_at + size_t(h)), load(rows, x_at + (n - 1) * pitch + p), total);
            store(y, args.y_at + size_t(b) * args.y_row + size_t(h) * P + p, total);
        }
        __syncthreads();
    }
}

template <uint32_t dtype>
__device__ __forceinline__ void output_16bit(const window_output_args &args, const CudaBindings &bindings, uint32_t dtypes)
{
    constexpr uint32_t N = 128, P = 64, threads = THREADS_window_output_16bit, parts = threads / 32;
    constexpr uint32_t lines = threads / (P / 8), b_lines = threads / (N / 8); // rows at a time
    constexpr uint32_t hin_words = N / lines, x_words = WINDOW / lines, b_words = WINDOW / b_lines;
    static_assert(threads == N && WINDOW == 32, "a thread a row of hin, a lane a slot");
    __shared__ float c_now[N], c_scaled[N], products[WINDOW], weights[WINDOW], keep_of_all, sums[parts][P];
    const View rows = {VIEW(window_output, rows).base, dtype}, hin = {VIEW(window_output, hin).base, dtype};
    const View c = VIEW(window_output, c), d = VIEW(window_output, d), y = VIEW(window_output, y);
    const float *scale = FLOATS(window_output, hin_scale), *steps = FLOATS(window_output, steps);
    const uint32_t lane = threadIdx.x % 32, line = threadIdx.x / (P / 8), word = threadIdx.x % (P / 8);
    const uint32_t b_line = threadIdx.x / (N / 8), b_word = threadIdx.x % (N / 8);
    const size_t pitch = size_t(args.H) * P + size_t(args.G) * N;
    FOR_TILES(tile) {
        const uint32_t h = tile % args.H, b = tile / args.H, g = h / (args.H / args.G);
        Words hin_raw[hin_words], x_raw[x_words], b_raw[b_words];
#pragma unroll
        for (uint32_t i = 0; i < hin_words; i++)
            hin_raw[i] = fetch8(hin, args.hin_at + (size_t(tile) * N + line + i * lines) * P + 8 * word);
        const float c_own = load(c, args.c_at + size_t(b) * args.c_row + size_t(g) * N + threadIdx.x);
        const float scale_own = args.flags & HAS_HIN_SCALE ? scale[args.hin_scale_at + size_t(tile) * N + threadIdx.x] : 1.0f;
        const Piece piece = piece_of(INTS(window_output, seq) + args.seq_at, args.flags, 1, b);
        if (piece.count == 0) continue;
        const uint32_t n = piece.position % args.S % WINDOW + 1;
        const size_t x_at = args.rows_at + b * WINDOW * pitch + size_t(h) * P,
                     b_at = args.rows_at + b * WINDOW * pitch + size_t(args.H) * P + size_t(g) * N;
#pragma unroll
        for (uint32_t i = 0; i < b_words; i++) b_raw[i] = fetch8(rows, b_at + min(b_line + i * b_lines, n - 1) * pitch + 8 * b_word);
#pragma unroll
        for (uint32_t i = 0; i < x_words; i++) x_raw[i] = fetch8(rows, x_at + min(line + i * lines, n - 1) * pitch + 8 * word);
        float2 step = make_float2(0.0f, 0.0f);
        if (threadIdx.x < n) step = reinterpret_cast<const float2 *>(steps)[(size_t(b) * WINDOW + threadIdx.x) * args.H + h];
        const float newest = threadIdx.x < P ? load(rows, x_at + (n - 1) * pitch + threadIdx.x) : 0.0f;
        c_now[threadIdx.x] = c_own;
        c_scaled[threadIdx.x] = c_own * scale_own;
        __syncthreads();
#pragma unroll
        for (uint32_t i = 0; i < b_words; i++) { // c . b_k
            float v[8], product = 0.0f;
            unpack8(b_raw[i], dtype, v);
#pragma unroll
            for (uint32_t k = 0; k < 8; k++) product = fmaf(c_now[8 * b_word + k], v[k], product);
#pragma unroll
            for (int apart = N / 16; apart > 0; apart /= 2) product += __shfl_xor_sync(0xffffffffu, product, apart);
            if (b_word == 0) products[b_line + i * b_lines] = product;
        }
        __syncthreads();
        if (threadIdx.x < 32) { // a lane a slot: the log-decays from the next slot on
            float from = step.x;
#pragma unroll
            for (uint32_t apart = 1; apart < 32; apart *= 2) {
                const float more = __shfl_down_sync(0xffffffffu, from, apart);
                if (lane + apart < 32) from += more;
            }
            const float next = __shfl_down_sync(0xffffffffu, from, 1), after = lane < 31 ? next : 0.0f;
            weights[lane] = lane < n ? exp_below(after) * step.y * products[lane] : 0.0f;
            if (lane == 0) keep_of_all = exp_below(from);
        }
        float sum[8] = {};
#pragma unroll
        for (uint32_t i = 0; i < hin_words; i++) {
            float v[8];
            unpack8(hin_raw[i], dtype, v);
            const float weight = c_scaled[line + i * lines];
#pragma unroll
            for (uint32_t k = 0; k < 8; k++) sum[k] = fmaf(weight, v[k], sum[k]);
        }
        __syncthreads();
        const float keep = keep_of_all;
#pragma unroll
        for (uint32_t k = 0; k < 8; k++) sum[k] *= keep;
#pragma unroll
        for (uint32_t i = 0; i < x_words; i++) {
            float v[8];
            unpack8(x_raw[i], dtype, v);
            const float weight = weights[line + i * lines];
#pragma unroll
            for (uint32_t k = 0; k < 8; k++) sum[k] = fmaf(weight, v[k], sum[k]);
        }
#pragma unroll
        for (uint32_t k = 0; k < 8; k++) {
            sum[k] += __shfl_xor_sync(0xffffffffu, sum[k], 8);
            sum[k] += __shfl_xor_sync(0xffffffffu, sum[k], 16);
            if (lane < P / 8) sums[threadIdx.x / 32][8 * word + k] = sum[k];
        }
        __syncthreads();
        if (threadIdx.x < P) {
            float total = 0.0f;
#pragma unroll
            for (uint32_t i = 0; i < parts; i++) total += sums[i][threadIdx.x];
            if (args.flags & HAS_D) total = fmaf(load(d, args.d_at + size_t(h)), newest, total);
            store(y, args.y_at + size_t(b) * args.y_row + size_t(h) * P + threadIdx.x, total);
        }
    }
}

KERNEL_FUNCTION_BLOCKS(window_output, 16bit, 4)
{
    if (VIEW(window_output, rows).dtype == DTYPE_F16) output_16bit<DTYPE_F16>(args, bindings, dtypes);
    else output_16bit<DTYPE_BF16>(args, bindings, dtypes);
}
