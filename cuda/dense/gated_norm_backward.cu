// Gradients of out = v / sqrt(mean(v^2) + eps) weight, v = w SiLU(z), w = y + SiLU(gate) r; formulas: args.h. With u = up_out weight, a row
// needs sum v^2, sum u v and for the gate sum SiLU(z) r u and sum SiLU(z) r v.
// A block takes 16 rows: half a warp adds up a row, then a thread takes a column of all rows.
#include "lib/slope.cuh"

KERNEL_FUNCTION(gated_norm_backward, simt)
{
    constexpr uint32_t T0 = TILE0_gated_norm_backward_simt, team = 16;
    static_assert(T0 * team == block_size, "a team a row");
    __shared__ float3 factors[T0]; // i, i^3 mean(u v), SiLU(gate)
    const View y = VIEW(gated_norm_backward, y), r = VIEW(gated_norm_backward, r), gate = VIEW(gated_norm_backward, gate);
    const View z = VIEW(gated_norm_backward, z), weight = VIEW(gated_norm_backward, weight), up_out = VIEW(gated_norm_backward, up_out);
    const View grad_y = VIEW(gated_norm_backward, grad_y), grad_r = VIEW(gated_norm_backward, grad_r);
    const View grad_gate = VIEW(gated_norm_backward, grad_gate), grad_z = VIEW(gated_norm_backward, grad_z);
    float *partial = FLOATS(gated_norm_backward, partial);
    const bool sma = args.flags & HAS_SMA;
    FOR_TILES(tile) {
        const uint32_t first = tile * T0, count = min(T0, args.rows - first), own = threadIdx.x / team;
        const size_t mine = first + own;
        Slope slope = {0.0f, 0.0f};
        float squares = 0.0f, along = 0.0f, straight = 0.0f, across = 0.0f;
        if (own < count) {
            if (sma) slope = silu_slope(load(gate, args.gate_at + mine * args.gate_row));
            for (uint32_t i = threadIdx.x % team; i < args.width; i += team) {
                const float open = silu(load(z, args.z_at + mine * args.z_row + i));
                const float read = sma ? load(r, args.r_at + mine * args.r_row + i) : 0.0f;
                const float v = (load(y, args.y_at + mine * args.y_row + i) + slope.value * read) * open;
                const float u = load(up_out, args.up_out_at + mine * args.up_out_row + i) * load(weight, args.weight_at + size_t(i));
                squares += v * v;
                along += u * v;
                straight += open * read * u;
                across += open * read * v;
            }
        }
        for (int step = team / 2; step > 0; step /= 2) {
            squares += __shfl_xor_sync(0xffffffffu, squares, step);
            along += __shfl_xor_sync(0xffffffffu, along, step);
            straight += __shfl_xor_sync(0xffffffffu, straight, step);
            across += __shfl_xor_sync(0xffffffffu, across, step);
        }
        if (threadIdx.x % team == 0 && own < count) {
            const float inverse = 1.0f / sqrtf(squares / float(args.width) + args.eps);
            const float slant = inverse * inverse * inverse * along / float(args.width);
            factors[own] = make_float3(inverse, slant, slope.value);
            if (sma) store(grad_gate, args.grad_gate_at + mine * args.grad_gate_row, slope.slope * (inverse * straight - slant * across));
        }
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < args.width; i += block_size) {
            const float scale = load(weight, args.weight_at + size_t(i));
            float sum = 0.0f;
            for (uint32_t row = 0; row < count; row++) {
                const size_t t = first + row;
                const float3 factor = factors[row];
                const Slope open = silu_slope(load(z, args.z_at + t * args.z_row + i));
                float w = load(y, args.y_at + t * args.y_row + i);
                if (sma) w += factor.z * load(r, args.r_at + t * args.r_row + i);
                const float up = load(up_out, args.up_out_at + t * args.up_out_row + i);
                const float grad = factor.x * up * scale - factor.y * w * open.value; // of v
                sum += up * w * open.value * factor.x;
                store(grad_y, args.grad_y_at + t * args.grad_y_row + i, grad * open.value);
                store(grad_z, args.grad_z_at + t * args.grad_z_row + i, grad * w * open.slope);
                if (sma) store(grad_r, args.grad_r_at + t * args.grad_r_row + i, factor.z * grad * open.value);
            }
            partial[size_t(tile) * args.width + i] = sum;
        }
        __syncthreads();
    }
}
