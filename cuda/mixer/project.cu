// v_o = RMSNorm(x_t) norm . weight_o for one token of each sequence; channels go on through their convolution, step sizes
// into cum and decay. A block makes 8 outputs of 4 rows; the thread that finishes one fetches its convolution first.
#include "mixer.cuh"

template <bool quantised, uint32_t most>
__device__ __forceinline__ void mixer_project_rows(const mixer_project_args &args, const CudaBindings &bindings, uint32_t dtypes)
{
    constexpr uint32_t taps_most = 8;
    __shared__ MixerShared<most> shared;
    const View x = VIEW(mixer_project, x), norm = VIEW(mixer_project, norm), weight = VIEW(mixer_project, weight);
    const View y = VIEW(mixer_project, y), taps = VIEW(mixer_project, taps), bias = VIEW(mixer_project, bias);
    const View tail = VIEW(mixer_project, tail), a_log = VIEW(mixer_project, a_log), dt_bias = VIEW(mixer_project, dt_bias);
    const float *open_decay = FLOATS(mixer_project, open_decay);
    float *cum = FLOATS(mixer_project, cum), *decay = cum + args.decay_at;
    const uint32_t blocks = ceil_div(args.outputs, mixer_outputs), keep = args.K - 1;
    const bool x_aligned = multiples_of_4(args.x_at, args.x_row);
    FOR_TILES(tile) {
        const uint32_t first = tile % blocks * mixer_outputs, t0 = tile / blocks * most, rows = min(args.rows - t0, most);
        const uint32_t r = threadIdx.x / mixer_outputs, k_own = threadIdx.x % mixer_outputs, o = first + k_own;
        const size_t t = t0 + min(r, rows - 1);
        const uint32_t count = piece_of(INTS(mixer_project, seq) + args.seq_at, args.flags, 1, uint32_t(t)).count;
        const bool channel = r < rows && o >= args.first && o - args.first < args.C;
        const size_t ch = channel ? o - args.first : 0, old = args.tail_at + t * keep * args.C + ch, taps_at = args.taps_at + ch * args.K;
        float in[taps_most], tap[taps_most];
#pragma unroll
        for (uint32_t k = 0; k < taps_most; k++) {
            in[k] = channel && k < keep ? load(tail, old + size_t(k) * args.C) : 0.0f;
            tap[k] = channel && k < keep ? load(taps, taps_at + k) : 0.0f;
        }
        const float last = channel ? load(taps, taps_at + keep) : 0.0f;
        const float offset = channel && (args.flags & HAS_BIAS) ? load(bias, args.bias_at + ch) : 0.0f;
        mixer_product<quantised, most>([&](uint32_t row, uint32_t i, uint32_t valid) {
            return unpack4(fetch4(x, args.x_at + size_t(t0 + row) * args.x_row + i, valid, x_aligned), x.dtype);
        }, rows, {norm, weight, args.norm_at, args.weight_at, args.inputs, args.outputs, first}, shared);
        if (r < rows && o < args.outputs && count != 0) {
            const float mean = shared.totals[r][mixer_outputs] / float(args.inputs);
            const float value = shared.totals[r][k_own] * (1.0f / sqrtf(mean + args.eps));
            float result = value;
            if (channel) {
                float sum = offset;
#pragma unroll
                for (uint32_t k = 0; k < taps_most; k++) sum = fmaf(tap[k], in[k], sum);
                result = silu(fmaf(last, value, sum));
#pragma unroll
                for (uint32_t k = 1; k < taps_most; k++) {
                    if (k < keep) store(tail, old + size_t(k - 1) * args.C, in[k]);
                }
                store(tail, old + size_t(keep - 1) * args.C, value);
            } else if ((args.flags & HAS_STEPS) && o >= args.first + args.C && o - args.first - args.C < args.H) {
                const size_t h = o - args.first - args.C, head = t * args.H + h;
                const float raw = value + load(dt_bias, args.dt_bias_at + h);
                const float step = fminf(fmaxf(raw > 20.0f ? raw : log1pf(expf(raw)), args.dt_min), args.dt_max);
                const float log_decay = -expf(load(a_log, args.a_log_at + h)) * step;
                cum[head * CUM_STRIDE] = log_decay;
                cum[head * CUM_STRIDE + 1] = 0.0f;
                cum[head * CUM_STRIDE + 2] = step;
                decay[2 * t * args.H + h] = args.flags & HAS_OPEN ? open_decay[head] : 0.0f;
                decay[(2 * t + 1) * args.H + h] = log_decay;
            }
            store(y, args.y_at + t * args.y_row + o, result);
        }
        __syncthreads();
    }
}

static_assert(TILE0_mixer_project_simt == mixer_outputs && TILE0_mixer_project_one == mixer_outputs && TILE1_mixer_project_one == 1,
              "tiles of the product");
KERNEL_FUNCTION(mixer_project, simt) { mixer_project_rows<false, TILE1_mixer_project_simt>(args, bindings, dtypes); }
KERNEL_FUNCTION_BLOCKS(mixer_project, one, 2) { mixer_project_rows<false, 1>(args, bindings, dtypes); }

// The bindings are in the same places.
static_assert(TILE0_mixer_project_quantised_simt == mixer_outputs && TILE0_mixer_project_quantised_one == mixer_outputs &&
                  TILE1_mixer_project_quantised_one == 1,
              "tiles of the product");
KERNEL_FUNCTION(mixer_project_quantised, simt) { mixer_project_rows<true, TILE1_mixer_project_quantised_simt>(args, bindings, dtypes); }
KERNEL_FUNCTION_BLOCKS(mixer_project_quantised, one, 2) { mixer_project_rows<true, 1>(args, bindings, dtypes); }
