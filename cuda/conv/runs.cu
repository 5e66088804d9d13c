// The convolution of four taps and its backward pass, for channels that are a multiple of 16; formulas: args.h. A block takes T0 channels, or as
// many as are left, x T1 tokens of one sequence, cut into runs: a thread for each four channels walks a run, and as many runs are walked as the
// block has threads for. A thread reads several tokens at once, `ahead`, in words of 8 bytes (16 of f32).
#include "lib/eight.cuh"

// A thread's place in a block of the channels from `first` on.
struct Lane { uint32_t groups, runs, run, first, channel; };
__device__ __forceinline__ Lane lane_of(uint32_t first, uint32_t channels, uint32_t threads)
{
    const uint32_t groups = channels / 4;
    return {groups, threads / groups, threadIdx.x / groups, first, first + threadIdx.x % groups * 4};
}
__device__ __forceinline__ float4 load4(const View &view, size_t i) { return unpack4(fetch4_whole(view, i), view.dtype); }
__device__ __forceinline__ float4 zero4() { return make_float4(0.0f, 0.0f, 0.0f, 0.0f); }
__device__ __forceinline__ float4 add_product(const float4 &a, const float4 &b, const float4 &c) // c + a b
{
    return make_float4(fmaf(a.x, b.x, c.x), fmaf(a.y, b.y, c.y), fmaf(a.z, b.z, c.z), fmaf(a.w, b.w, c.w));
}
// The weights of each tap of four channels; in memory they lie tap by tap of a channel.
__device__ __forceinline__ void load_taps(const View &weight, size_t at, float4 (&tap)[4])
{
    const float4 a = load4(weight, at), b = load4(weight, at + 4), c = load4(weight, at + 8), d = load4(weight, at + 12);
    tap[0] = make_float4(a.x, b.x, c.x, d.x);
    tap[1] = make_float4(a.y, b.y, c.y, d.y);
    tap[2] = make_float4(a.z, b.z, c.z, d.z);
    tap[3] = make_float4(a.w, b.w, c.w, d.w);
}

// bf: x and y are bf16, so that the compiler drops the branches of other types.
template <bool bf> __device__ __forceinline__ void conv_runs_of(const conv_args &args, const CudaBindings &bindings, uint32_t dtypes)
{
    constexpr uint32_t T0 = TILE0_conv_runs, T1 = TILE1_conv_runs, ahead = 4;
    View x = VIEW(conv, x), y = VIEW(conv, y);
    if (bf) x.dtype = y.dtype = DTYPE_BF16;
    const View tail = VIEW(conv, tail), bias = VIEW(conv, bias);
    const uint32_t blocks = ceil_div(args.C, T0), token_blocks = ceil_div(args.L, T1);
    FOR_TILES(tile) {
        const uint32_t place = quotient(tile, blocks), b = place / token_blocks, first = place % token_blocks * T1;
        const uint32_t first_channel = (tile - place * blocks) * T0;
        const Lane own = lane_of(first_channel, min(T0, args.C - first_channel), THREADS_conv_runs);
        if (own.run >= own.runs) continue;
        const uint32_t channel = own.channel;
        float4 tap[4];
        load_taps(VIEW(conv, weight), args.weight_at + 4 * size_t(channel), tap);
        const float4 start = args.flags & HAS_BIAS ? load4(bias, args.bias_at + size_t(channel)) : zero4();
        const Sequence piece = sequence_of(INTS(conv, seq) + args.seq_at, args.flags, args.L, args.T, b);
        const uint32_t stop = min(first + T1, piece.count);
        if (first >= stop) continue;
        const uint32_t share = ceil_div(stop - first, own.runs), begin = first + own.run * share, end = min(begin + share, stop);
        if (begin >= end) continue;
        const size_t from = args.x_at + size_t(piece.row) * args.x_row + channel, to = args.y_at + size_t(piece.row) * args.y_row + channel;
        float4 in[3]; // the three tokens before, the oldest first
#pragma unroll
        for (uint32_t k = 0; k < 3; k++) {
            const uint32_t back = 3 - k;
            in[k] = zero4();
            if (begin >= back) in[k] = load4(x, from + size_t(begin - back) * args.x_row);
            else if (args.flags & HAS_TAIL) in[k] = load4(tail, args.tail_at + (size_t(b) * 3 + 3 + begin - back) * args.C + channel);
        }
#pragma unroll 1
        for (uint32_t t = begin; t < end; t += ahead) {
            uint4 words[ahead]; // all of them under way at once
#pragma unroll
            for (uint32_t i = 0; i < ahead; i++) words[i] = fetch4_whole(x, from + size_t(min(t + i, end - 1)) * args.x_row);
#pragma unroll
            for (uint32_t i = 0; i < ahead; i++) {
                const float4 now = unpack4(words[i], x.dtype);
                float4 sum = add_product(tap[0], in[0], start);
                sum = add_product(tap[3], now, add_product(tap[2], in[2], add_product(tap[1], in[1], sum)));
                const bool half = bf || y.dtype != DTYPE_F32;
                sum = half ? make_float4(silu_for(true, sum.x), silu_for(true, sum.y), silu_for(true, sum.z), silu_for(true, sum.w))
                           : make_float4(silu(sum.x), silu(sum.y), silu(sum.z), silu(sum.w));
                if (t + i < end) store4(y, to + size_t(t + i) * args.y_row, sum);
                in[0] = in[1];
                in[1] = in[2];
                in[2] = now;
            }
        }
    }
}

KERNEL_FUNCTION(conv, runs)
{
    if (VIEW(conv, x).dtype == DTYPE_BF16 && VIEW(conv, y).dtype == DTYPE_BF16) conv_runs_of<true>(args, bindings, dtypes);
    else conv_runs_of<false>(args, bindings, dtypes);
}

// Four sums for the taps of each of four channels, then four for the bias: a thread's, in the order of of_weight.
constexpr uint32_t run_parts = 5;

// Walks the tokens begin to end - 1 of four channels, of which there is one at least, and three tokens more, whose up_pre reaches grad_x. The
// last three of x and up_pre stay in registers.
template <uint32_t ahead>
__device__ __forceinline__ void walk(const conv_backward_args &args, const View &x, const View &up_y, const View &grad_x, const float4 (&tap)[4],
                                     const float4 &start, const Sequence &piece, uint32_t begin, uint32_t end, uint32_t channel, float4 *sums_to)
{
    const size_t from = args.x_at + size_t(piece.row) * args.x_row + channel, up_at = args.up_y_at + size_t(piece.row) * args.up_y_row + channel;
    const size_t to = args.grad_x_at + size_t(piece.row) * args.grad_x_row + channel;
    const bool half = grad_x.dtype != DTYPE_F32;
    const uint32_t limit = min(piece.count, end + 3), last = max(limit, 1u) - 1; // stands for tokens past the limit, whose values are not used
    float4 in[3], up[3], sums[4], bias_sum = zero4();
#pragma unroll
    for (uint32_t k = 0; k < 3; k++) {
        const uint32_t back = 3 - k;
        const bool there = begin >= back && begin - back < piece.count;
        in[k] = there ? load4(x, from + size_t(begin - back) * args.x_row) : zero4();
        up[k] = zero4();
    }
#pragma unroll
    for (uint32_t k = 0; k < 4; k++) sums[k] = zero4();
#pragma unroll 1
    for (uint32_t t = begin; t < end + 3; t += ahead) {
        uint4 x_words[ahead], up_words[ahead]; // all of them under way at once
#pragma unroll
        for (uint32_t i = 0; i < ahead; i++) {
            const size_t token = min(t + i, last);
            x_words[i] = fetch4_whole(x, from + token * args.x_row);
            up_words[i] = fetch4_whole(up_y, up_at + token * args.up_y_row);
        }
#pragma unroll
        for (uint32_t i = 0; i < ahead; i++) {
            float4 now = zero4(), above = zero4();
            if (t + i < limit) {
                now = unpack4(x_words[i], x.dtype);
                above = unpack4(up_words[i], up_y.dtype);
                float4 pre = add_product(tap[0], in[0], start);
                pre = add_product(tap[3], now, add_product(tap[2], in[2], add_product(tap[1], in[1], pre)));
                above.x *= silu_slope_for(half, pre.x).slope;
                above.y *= silu_slope_for(half, pre.y).slope;
                above.z *= silu_slope_for(half, pre.z).slope;
                above.w *= silu_slope_for(half, pre.w).slope;
            }
            if (t + i < end) {
                sums[0] = add_product(above, in[0], sums[0]);
                sums[1] = add_product(above, in[1], sums[1]);
                sums[2] = add_product(above, in[2], sums[2]);
                sums[3] = add_product(above, now, sums[3]);
                bias_sum = make_float4(bias_sum.x + above.x, bias_sum.y + above.y, bias_sum.z + above.z, bias_sum.w + above.w);
            }
            if (t + i >= begin + 3 && t + i < end + 3) {
                const float4 grad = add_product(tap[0], above,
                                add_product(tap[1], up[2], add_product(tap[2], up[1], add_product(tap[3], up[0], zero4()))));
                store4(grad_x, to + size_t(t + i - 3) * args.grad_x_row, grad);
            }
            in[0] = in[1];
            in[1] = in[2];
            in[2] = now;
            up[0] = up[1];
            up[1] = up[2];
            up[2] = above;
        }
    }
    sums_to[0] = make_float4(sums[0].x, sums[1].x, sums[2].x, sums[3].x);
    sums_to[1] = make_float4(sums[0].y, sums[1].y, sums[2].y, sums[3].y);
    sums_to[2] = make_float4(sums[0].z, sums[1].z, sums[2].z, sums[3].z);
    sums_to[3] = make_float4(sums[0].w, sums[1].w, sums[2].w, sums[3].w);
    sums_to[4] = bias_sum;
}

KERNEL_FUNCTION_BLOCKS(conv_backward, runs, 4)
{
    constexpr uint32_t T0 = TILE0_conv_backward_runs, T1 = TILE1_conv_backward_runs, threads = THREADS_conv_backward_runs;
    __shared__ float4 run_sums[run_parts * threads];
    View x = VIEW(conv_backward, x), up_y = VIEW(conv_backward, up_y), grad_x = VIEW(conv_backward, grad_x);
    const bool bf = x.dtype == DTYPE_BF16 && up_y.dtype == DTYPE_BF16 && grad_x.dtype == DTYPE_BF16;
    const View bias = VIEW(conv_backward, bias);
    float4 *of_weight = reinterpret_cast<float4 *>(FLOATS(conv_backward, of_weight));
    float4 *of_bias = reinterpret_cast<float4 *>(FLOATS(conv_backward, of_bias));
    const uint32_t blocks = ceil_div(args.C, T0), token_blocks = ceil_div(args.L, T1);
    FOR_TILES(tile) {
        const uint32_t place = quotient(tile, blocks), b = place / token_blocks, block = place % token_blocks;
        const uint32_t first_channel = (tile - place * blocks) * T0;
        const Lane own = lane_of(first_channel, min(T0, args.C - first_channel), threads);
        const uint32_t items = run_parts * own.groups;
        const Sequence piece = sequence_of(INTS(conv_backward, seq) + args.seq_at, args.flags, args.L, args.T, b);
        const uint32_t begin = block * T1, end = min(begin + T1, piece.span);
        if (begin >= end) continue; // in all threads
        const uint32_t share = ceil_div(end - begin, own.runs), used = ceil_div(end - begin, share); // used: runs that have tokens
        const uint32_t slot = piece.slot(token_blocks, T1) + block;
        __syncthreads();
        if (own.run < used) {
            const uint32_t first = begin + own.run * share, stop = min(first + share, end);
            float4 *sums_to = run_sums + run_parts * threadIdx.x;
            float4 tap[4];
            load_taps(VIEW(conv_backward, weight), args.weight_at + 4 * size_t(own.channel), tap);
            const float4 start = args.flags & HAS_BIAS ? load4(bias, args.bias_at + size_t(own.channel)) : zero4();
            if (bf) { // the compiler then drops the branches of other types
                const View bf_x = {x.base, DTYPE_BF16}, bf_up = {up_y.base, DTYPE_BF16}, bf_grad = {grad_x.base, DTYPE_BF16};
                walk<4>(args, bf_x, bf_up, bf_grad, tap, start, piece, first, stop, own.channel, sums_to);
            } else {
                walk<2>(args, x, up_y, grad_x, tap, start, piece, first, stop, own.channel, sums_to);
            }
        }
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < items; i += threads) {
            float4 sum = run_sums[i];
            for (uint32_t k = 1; k < used; k++) {
                const float4 more = run_sums[k * items + i];
                sum = make_float4(sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w);
            }
            const size_t channel = size_t(slot) * args.C + own.first + i / run_parts * 4;
            if (i % run_parts < 4) of_weight[channel + i % run_parts] = sum;
            else if (args.flags & HAS_BIAS) of_bias[channel / 4] = sum;
        }
    }
}
