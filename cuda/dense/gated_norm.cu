// out = RMSNorm((y + SiLU(gate) r) SiLU(z)) weight. A block works on a row; out may be y, since each thread reads an
// element for the last time right before it writes it.
#include "lib/dart.cuh"

KERNEL_FUNCTION(gated_norm, simt)
{
    const View y = VIEW(gated_norm, y), r = VIEW(gated_norm, r), gate = VIEW(gated_norm, gate), z = VIEW(gated_norm, z);
    const View weight = VIEW(gated_norm, weight), out = VIEW(gated_norm, out);
    const bool sma = args.flags & HAS_SMA;
    FOR_TILES(tile) {
        const size_t y_at = args.y_at + size_t(tile) * args.y_row, z_at = args.z_at + size_t(tile) * args.z_row;
        const size_t r_at = args.r_at + size_t(tile) * args.r_row, out_at = args.out_at + size_t(tile) * args.out_row;
        const float open = sma ? silu(load(gate, args.gate_at + size_t(tile) * args.gate_row)) : 0.0f;
        const auto element = [&](uint32_t i) {
            float v = load(y, y_at + i);
            if (sma) v += open * load(r, r_at + i);
            return v * silu(load(z, z_at + i));
        };
        float square = 0.0f;
        for (uint32_t i = threadIdx.x; i < args.width; i += block_size) {
            const float v = element(i);
            square += v * v;
        }
        const float factor = 1.0f / sqrtf(block_sum(square) / float(args.width) + args.eps);
        for (uint32_t i = threadIdx.x; i < args.width; i += block_size) {
            store(out, out_at + i, element(i) * factor * load(weight, args.weight_at + size_t(i)));
        }
    }
}
