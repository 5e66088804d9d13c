// x_t += weight u_t, u = RMSNorm((y + SiLU(gate) r) SiLU(z)) norm, r merged from the partials of mixer_attend.
// A block makes 8 outputs of 4 rows; a thread makes the inputs that it multiplies.
#include "mixer.cuh"

template <bool quantised, uint32_t most>
__device__ __forceinline__ void mixer_output_rows(const mixer_output_args &args, const CudaBindings &bindings, uint32_t dtypes)
{
    __shared__ MixerShared<most> shared;
    const View y = VIEW(mixer_output, y), z = VIEW(mixer_output, z), gate = VIEW(mixer_output, gate), norm = VIEW(mixer_output, norm);
    const View weight = VIEW(mixer_output, weight), x = VIEW(mixer_output, x);
    const float *partial = FLOATS(mixer_output, partial);
    const uint32_t blocks = ceil_div(args.outputs, mixer_outputs), P = args.P, heads = args.inputs / P;
    const bool sma = args.flags & HAS_SMA, y_aligned = multiples_of_4(args.y_at, args.y_row);
    const bool z_aligned = multiples_of_4(args.z_at, args.z_row);
    const size_t pitch = size_t(args.rows) * heads * (P + 4);
    FOR_TILES(tile) {
        const uint32_t first = tile % blocks * mixer_outputs, t0 = tile / blocks * most, rows = min(args.rows - t0, most);
        const uint32_t r = threadIdx.x / mixer_outputs, k_own = threadIdx.x % mixer_outputs, o = first + k_own;
        const size_t t = t0 + min(r, rows - 1), at = args.x_at + t * args.x_row + min(o, args.outputs - 1);
        const uint32_t count = piece_of(INTS(mixer_output, seq) + args.seq_at, args.flags, 1, uint32_t(t)).count;
        const float before = load(x, at);
        float gates[most];
#pragma unroll
        for (uint32_t k = 0; k < most; k++)
            gates[k] = sma && k < rows ? silu(load(gate, args.gate_at + size_t(t0 + k) * args.gate_row)) : 0.0f;
        // r of one element, ahead splits fetched together, their tops beside their sums.
        const auto read_out = [&](uint32_t row, uint32_t i) {
            constexpr uint32_t ahead = 4;
            const float *from = partial + (size_t(t0 + row) * heads + i / P) * (P + 4);
            float top = lowest, den = 0.0f, sum = 0.0f;
            for (uint32_t s = 0; s < args.splits; s += ahead) {
                float tops[ahead], dens[ahead], accs[ahead], now = top;
#pragma unroll
                for (uint32_t k = 0; k < ahead; k++) {
                    const float *part = from + min(s + k, args.splits - 1) * pitch;
                    tops[k] = part[P], dens[k] = part[P + 1], accs[k] = part[i % P];
                }
#pragma unroll
                for (uint32_t k = 0; k < ahead; k++) {
                    if (s + k >= args.splits) dens[k] = 0.0f;
                    if (dens[k] > 0.0f) now = fmaxf(now, tops[k]);
                }
                den *= exp_below(top - now), sum *= exp_below(top - now);
#pragma unroll
                for (uint32_t k = 0; k < ahead; k++) {
                    if (!(dens[k] > 0.0f)) continue;
                    const float scale = exp_below(tops[k] - now);
                    den = fmaf(scale, dens[k], den);
                    sum = fmaf(scale, accs[k], sum);
                }
                top = now;
            }
            return den > 0.0f ? sum / den : 0.0f;
        };
        // The same of four elements of a head, P being a multiple of 4.
        const auto read_out_four = [&](uint32_t row, uint32_t i) {
            constexpr uint32_t ahead = 4;
            const float *from = partial + (size_t(t0 + row) * heads + i / P) * (P + 4);
            float top = lowest, den = 0.0f;
            float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            for (uint32_t s = 0; s < args.splits; s += ahead) {
                float2 ends[ahead];
                float4 accs[ahead];
                float now = top;
#pragma unroll
                for (uint32_t k = 0; k < ahead; k++) {
                    const float *part = from + min(s + k, args.splits - 1) * pitch;
                    ends[k] = *reinterpret_cast<const float2 *>(part + P);
                    accs[k] = *reinterpret_cast<const float4 *>(part + i % P);
                }
#pragma unroll
                for (uint32_t k = 0; k < ahead; k++) {
                    if (s + k >= args.splits) ends[k].y = 0.0f;
                    if (ends[k].y > 0.0f) now = fmaxf(now, ends[k].x);
                }
                const float keep = exp_below(top - now);
                den *= keep, sum.x *= keep, sum.y *= keep, sum.z *= keep, sum.w *= keep;
#pragma unroll
                for (uint32_t k = 0; k < ahead; k++) {
                    if (!(ends[k].y > 0.0f)) continue;
                    const float scale = exp_below(ends[k].x - now);
                    den = fmaf(scale, ends[k].y, den);
                    sum.x = fmaf(scale, accs[k].x, sum.x), sum.y = fmaf(scale, accs[k].y, sum.y);
                    sum.z = fmaf(scale, accs[k].z, sum.z), sum.w = fmaf(scale, accs[k].w, sum.w);
                }
                top = now;
            }
            const float factor = den > 0.0f ? 1.0f / den : 0.0f;
            return make_float4(factor * sum.x, factor * sum.y, factor * sum.z, factor * sum.w);
        };
        mixer_product<quantised, most>([&](uint32_t row, uint32_t i, uint32_t valid) {
            const size_t line = t0 + row;
            float4 v = unpack4(fetch4(y, args.y_at + line * args.y_row + i, valid, y_aligned), y.dtype);
            const float4 g = unpack4(fetch4(z, args.z_at + line * args.z_row + i, valid, z_aligned), z.dtype);
            if (sma) {
                float own = 0.0f;
#pragma unroll
                for (uint32_t k = 0; k < most; k++) own = k == row ? gates[k] : own;
                if (P % 4 == 0) {
                    const float4 r = read_out_four(row, i);
                    v = make_float4(fmaf(own, r.x, v.x), fmaf(own, r.y, v.y), fmaf(own, r.z, v.z), fmaf(own, r.w, v.w));
                } else {
                    v.x = fmaf(own, read_out(row, i), v.x);
                    if (valid > 1) v.y = fmaf(own, read_out(row, i + 1), v.y);
                    if (valid > 2) v.z = fmaf(own, read_out(row, i + 2), v.z);
                    if (valid > 3) v.w = fmaf(own, read_out(row, i + 3), v.w);
                }
            }
            return make_float4(v.x * silu(g.x), v.y * silu(g.y), v.z * silu(g.z), v.w * silu(g.w));
        }, rows, {norm, weight, args.norm_at, args.weight_at, args.inputs, args.outputs, first}, shared);
        if (r < rows && o < args.outputs && count != 0) {
            const float mean = shared.totals[r][mixer_outputs] / float(args.inputs);
            store(x, at, fmaf(shared.totals[r][k_own], 1.0f / sqrtf(mean + args.eps), before));
        }
        __syncthreads();
    }
}

static_assert(TILE0_mixer_output_simt == mixer_outputs && TILE0_mixer_output_one == mixer_outputs && TILE1_mixer_output_one == 1,
              "tiles of the product");
KERNEL_FUNCTION(mixer_output, simt) { mixer_output_rows<false, TILE1_mixer_output_simt>(args, bindings, dtypes); }
KERNEL_FUNCTION_BLOCKS(mixer_output, one, 2) { mixer_output_rows<false, 1>(args, bindings, dtypes); }

// The bindings are in the same places.
static_assert(TILE0_mixer_output_quantised_simt == mixer_outputs && TILE0_mixer_output_quantised_one == mixer_outputs &&
                  TILE1_mixer_output_quantised_one == 1,
              "tiles of the product");
KERNEL_FUNCTION(mixer_output_quantised, simt) { mixer_output_rows<true, TILE1_mixer_output_quantised_simt>(args, bindings, dtypes); }
KERNEL_FUNCTION_BLOCKS(mixer_output_quantised, one, 2) { mixer_output_rows<true, 1>(args, bindings, dtypes); }
