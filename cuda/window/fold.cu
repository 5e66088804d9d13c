// Full windows, and those of chunks that close, go into the matrices, see args.h. A block folds one (b, h), a warp a row of N
// at a time.
// 16bit: N 128, P 64, rows, hin and to of 16 bits. A block folds one (b, h), a thread four rows of eight columns, all of them fetched at once, so
// that the few windows that are full at a step take one trip to memory.
#include "lib/eight.cuh"
#include "window.cuh"

// What becomes of the window of sequence b.
struct Fold {
    bool folds;    // the window goes into the matrices
    bool closes;   // ... and its chunk ends, whose memory goes into the run
    uint32_t n, m; // tokens in the window; the number of the chunk
};

__device__ __forceinline__ Fold fold_of(const window_fold_args &args, const int32_t *seq, uint32_t b)
{
    const bool every = args.flags & IS_EVERY, fresh = args.flags & IS_FRESH, step = !every && !fresh;
    const Piece piece = piece_of(seq + args.seq_at, args.flags, 1, b);
    Fold fold;
    fold.n = fresh ? 0 : piece.position % args.S % WINDOW + (step ? 1 : 0);
    fold.m = piece.position / args.S;
    const bool ends = step && (piece.position + 1) % args.S == 0;
    fold.closes = ends && (args.flags & HAS_OPEN) != 0;
    const bool in_run = fold.closes && fold.m >= args.first && fold.m - args.first < args.count;
    fold.folds = (every || piece.count != 0) && (!step || fold.n == WINDOW || ends) && (fold.closes ? in_run : (args.flags & IS_LATER) == 0);
    return fold;
}

KERNEL_FUNCTION(window_fold, simt)
{
    __shared__ WindowShared shared;
    const View rows = VIEW(window_fold, rows), hin = VIEW(window_fold, hin), to = VIEW(window_fold, to);
    float *steps = FLOATS(window_fold, steps), *h_all = FLOATS(window_fold, h), *open = FLOATS(window_fold, open);
    float *open_decay = FLOATS(window_fold, open_decay), *hin_scale = FLOATS(window_fold, hin_scale),
        *scale = FLOATS(window_fold, scale);
    constexpr uint32_t parts = MAX_STATE / 32; // columns of a lane
    const uint32_t N = args.N, P = args.P, lane = threadIdx.x % 32;
    const size_t pitch = size_t(args.H) * P + size_t(args.G) * N;
    const bool has_open = args.flags & HAS_OPEN;
    FOR_TILES(tile) {
        const uint32_t h = tile % args.H, b = tile / args.H, g = h / (args.H / args.G);
        const Fold fold = fold_of(args, INTS(window_fold, seq), b);
        if (!fold.folds) continue;
        const uint32_t n = fold.n, m = fold.m;
        const bool closes = fold.closes;

        weigh_slots(shared, steps, args.H, b, h, n);
        const float keep = exp_below(shared.log_decay_of_all),
            total = has_open ? open_decay[tile] + shared.log_decay_of_all : 0.0f;
        const float keep_h = exp_below(total);
        __syncthreads(); // all threads have read open_decay
        if (threadIdx.x < WINDOW) {
            float *zero = steps + 2 * ((size_t(b) * WINDOW + threadIdx.x) * args.H + h);
            zero[0] = zero[1] = 0.0f;
        }
        if (threadIdx.x == 0 && has_open) open_decay[tile] = closes ? 0.0f : total;
        const size_t x_at = args.rows_at + b * WINDOW * pitch + size_t(h) * P,
            b_at = args.rows_at + b * WINDOW * pitch + size_t(args.H) * P + size_t(g) * N;
        const size_t slot = ((size_t(b) * args.capacity + m - args.first) * args.H + h) * N;
        for (uint32_t i = threadIdx.x / 32; i < N; i += warps) {
            const size_t own = size_t(tile) * N + i;
            float now[parts], state[parts], now_square = 0.0f, state_square = 0.0f;
#pragma unroll
            for (uint32_t q = 0; q < parts; q++) {
                const uint32_t p = q * 32 + lane;
                now[q] = p < P ? keep * (has_open ? open : h_all)[own * P + p] : 0.0f;
            }
            for (uint32_t k = 0; k < n; k++) {
                const float weight = shared.keeps[k] * load(rows, b_at + k * pitch + i);
#pragma unroll
                for (uint32_t q = 0; q < parts; q++) {
                    if (q * 32 + lane < P) now[q] = fmaf(weight, load(rows, x_at + k * pitch + q * 32 + lane), now[q]);
                }
            }
#pragma unroll
            for (uint32_t q = 0; q < parts; q++) {
                const uint32_t p = q * 32 + lane;
                state[q] = has_open && p < P ? fmaf(keep_h, h_all[own * P + p], now[q]) : now[q];
                now_square = fmaf(now[q], now[q], now_square);
                state_square = fmaf(state[q], state[q], state_square);
            }
            const float now_root = sqrtf(warp_sum(now_square) / float(P) + args.eps);
            const float root = args.flags & HAS_HIN_SCALE ? sqrtf(warp_sum(state_square) / float(P) + args.eps) : 1.0f;
#pragma unroll
            for (uint32_t q = 0; q < parts; q++) {
                const uint32_t p = q * 32 + lane;
                if (p >= P) continue;
                if (closes || !has_open) h_all[own * P + p] = state[q];
                if (has_open) open[own * P + p] = closes ? 0.0f : now[q];
                if (closes) store(to, args.to_at + (slot + i) * P + p, now[q] / now_root);
                store(hin, args.hin_at + own * P + p, state[q] / root);
            }
            if (lane == 0 && closes) scale[args.scale_at + slot + i] = now_root;
            if (lane == 0 && (args.flags & HAS_HIN_SCALE)) hin_scale[args.hin_scale_at + own] = root;
        }
    }
}

struct FoldShared {
    float keys[WINDOW][128], values[WINDOW][64]; // b; x times what is kept of it
    float keeps[WINDOW], keep_of_all, total_of_all;
};

template <uint32_t dtype>
__device__ __forceinline__ void fold_16bit(const window_fold_args &args, const CudaBindings &bindings, uint32_t dtypes, FoldShared &shared)
{
    constexpr uint32_t N = 128, P = 64, threads = THREADS_window_fold_16bit, team = P / 8, own_rows = N / (threads / team);
    static_assert(own_rows == 4 && WINDOW == 32, "a quad of b a slot, a lane a slot");
    const View rows = {VIEW(window_fold, rows).base, dtype}, hin = {VIEW(window_fold, hin).base, dtype}, to = VIEW(window_fold, to);
    float *h_all = FLOATS(window_fold, h), *open = FLOATS(window_fold, open), *open_decay = FLOATS(window_fold, open_decay);
    float2 *steps = reinterpret_cast<float2 *>(FLOATS(window_fold, steps));
    float *hin_scale = FLOATS(window_fold, hin_scale), *scale = FLOATS(window_fold, scale);
    const uint32_t lane = threadIdx.x % 32, word = threadIdx.x % team, first_row = threadIdx.x / team * own_rows;
    const size_t pitch = size_t(args.H) * P + size_t(args.G) * N;
    const bool has_open = args.flags & HAS_OPEN;
    for (uint32_t tile = blockIdx.x; tile < args.tiles; tile += gridDim.x) {
        const uint32_t h = tile % args.H, b = tile / args.H, g = h / (args.H / args.G);
        const Fold fold = fold_of(args, INTS(window_fold, seq), b);
        if (!fold.folds) continue;
        const uint32_t n = fold.n, m = fold.m;
        const bool closes = fold.closes;

        const size_t own = (size_t(tile) * N + first_row) * P + 8 * word;
        float4 now[own_rows][2], old[own_rows][2];
#pragma unroll
        for (uint32_t r = 0; r < own_rows; r++) {
#pragma unroll
            for (uint32_t q = 0; q < 2; q++) {
                const size_t at = (own + r * P) / 4 + q;
                now[r][q] = reinterpret_cast<const float4 *>(has_open ? open : h_all)[at];
                old[r][q] = has_open ? reinterpret_cast<const float4 *>(h_all)[at] : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            }
        }
        const size_t x_at = args.rows_at + b * WINDOW * pitch + size_t(h) * P,
                     b_at = args.rows_at + b * WINDOW * pitch + size_t(args.H) * P + size_t(g) * N;
        // A word of x is thread / team's slot, words of b are those of two slots.
        const uint32_t x_slot = threadIdx.x / team, b_slot = threadIdx.x / (N / 8), b_word = threadIdx.x % (N / 8);
        const Words x_raw = x_slot < n ? fetch8(rows, x_at + x_slot * pitch + 8 * word) : no_words();
        Words b_raw[2];
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            const uint32_t slot = b_slot + i * (threads / (N / 8));
            b_raw[i] = slot < n ? fetch8(rows, b_at + slot * pitch + 8 * b_word) : no_words();
        }
        if (threadIdx.x < 32) { // a lane a slot: the log-decays from the next slot on
            float2 *at = &steps[(size_t(b) * WINDOW + lane) * args.H + h];
            const float2 slot = lane < n ? *at : make_float2(0.0f, 0.0f);
            const float before = has_open ? open_decay[tile] : 0.0f;
            float from = slot.x;
#pragma unroll
            for (uint32_t apart = 1; apart < 32; apart *= 2) {
                const float more = __shfl_down_sync(0xffffffffu, from, apart);
                if (lane + apart < 32) from += more;
            }
            const float next = __shfl_down_sync(0xffffffffu, from, 1);
            shared.keeps[lane] = exp_below(lane < 31 ? next : 0.0f) * slot.y;
            *at = make_float2(0.0f, 0.0f);
            if (lane == 0) {
                shared.keep_of_all = exp_below(from);
                shared.total_of_all = has_open ? before + from : 0.0f;
                if (has_open) open_decay[tile] = closes ? 0.0f : before + from;
            }
        }
        __syncthreads();
        float v[8];
        unpack8(x_raw, dtype, v);
        const float own_keep = shared.keeps[x_slot];
#pragma unroll
        for (uint32_t k = 0; k < 8; k++) shared.values[x_slot][8 * word + k] = own_keep * v[k];
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            unpack8(b_raw[i], dtype, v);
#pragma unroll
            for (uint32_t k = 0; k < 8; k++) shared.keys[b_slot + i * (threads / (N / 8))][8 * b_word + k] = v[k];
        }
        const float keep = shared.keep_of_all, keep_h = exp_below(shared.total_of_all);
        __syncthreads();
        float sums[own_rows][8];
#pragma unroll
        for (uint32_t r = 0; r < own_rows; r++) {
#pragma unroll
            for (uint32_t q = 0; q < 2; q++) {
                sums[r][4 * q] = keep * now[r][q].x, sums[r][4 * q + 1] = keep * now[r][q].y;
                sums[r][4 * q + 2] = keep * now[r][q].z, sums[r][4 * q + 3] = keep * now[r][q].w;
            }
        }
        for (uint32_t k = 0; k < n; k++) {
            const float4 low = *reinterpret_cast<const float4 *>(&shared.values[k][8 * word]);
            const float4 high = *reinterpret_cast<const float4 *>(&shared.values[k][8 * word + 4]);
            const float4 key = *reinterpret_cast<const float4 *>(&shared.keys[k][first_row]);
            const float x[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w}, weight[own_rows] = {key.x, key.y, key.z, key.w};
#pragma unroll
            for (uint32_t r = 0; r < own_rows; r++) {
#pragma unroll
                for (uint32_t q = 0; q < 8; q++) sums[r][q] = fmaf(weight[r], x[q], sums[r][q]);
            }
        }
        const size_t slot = ((size_t(b) * args.capacity + m - args.first) * args.H + h) * N + first_row;
#pragma unroll
        for (uint32_t r = 0; r < own_rows; r++) {
            float state[8], now_square = 0.0f, state_square = 0.0f;
#pragma unroll
            for (uint32_t q = 0; q < 8; q++) {
                const float4 &four = old[r][q / 4];
                const float before = q % 4 == 0 ? four.x : q % 4 == 1 ? four.y : q % 4 == 2 ? four.z : four.w;
                state[q] = has_open ? fmaf(keep_h, before, sums[r][q]) : sums[r][q];
                now_square = fmaf(sums[r][q], sums[r][q], now_square);
                state_square = fmaf(state[q], state[q], state_square);
            }
#pragma unroll
            for (int apart = team / 2; apart > 0; apart /= 2) {
                now_square += __shfl_xor_sync(0xffffffffu, now_square, apart);
                state_square += __shfl_xor_sync(0xffffffffu, state_square, apart);
            }
            const float now_root = sqrtf(now_square / float(P) + args.eps);
            const float root = args.flags & HAS_HIN_SCALE ? sqrtf(state_square / float(P) + args.eps) : 1.0f;
            float4 *h_to = reinterpret_cast<float4 *>(h_all + own + r * P), *open_to = reinterpret_cast<float4 *>(open + own + r * P);
            if (closes || !has_open) {
                h_to[0] = make_float4(state[0], state[1], state[2], state[3]);
                h_to[1] = make_float4(state[4], state[5], state[6], state[7]);
            }
            if (has_open) {
                open_to[0] = closes ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : make_float4(sums[r][0], sums[r][1], sums[r][2], sums[r][3]);
                open_to[1] = closes ? make_float4(0.0f, 0.0f, 0.0f, 0.0f) : make_float4(sums[r][4], sums[r][5], sums[r][6], sums[r][7]);
            }
            if (closes) {
#pragma unroll
                for (uint32_t q = 0; q < 8; q++) sums[r][q] /= now_root;
                store8(to, args.to_at + (slot + r) * P + 8 * word, sums[r]);
                if (word == 0) scale[args.scale_at + slot + r] = now_root;
            }
#pragma unroll
            for (uint32_t q = 0; q < 8; q++) state[q] /= root;
            store8(hin, args.hin_at + own + r * P, state);
            if (word == 0 && (args.flags & HAS_HIN_SCALE)) hin_scale[args.hin_scale_at + size_t(tile) * N + first_row + r] = root;
        }
        __syncthreads(); // all threads have read `shared`
    }
}

KERNEL_FUNCTION_BLOCKS(window_fold, 16bit, 2)
{
    __shared__ __align__(16) FoldShared shared;
    if (VIEW(window_fold, rows).dtype == DTYPE_F16) fold_16bit<DTYPE_F16>(args, bindings, dtypes, shared);
    else fold_16bit<DTYPE_BF16>(args, bindings, dtypes, shared);
}
