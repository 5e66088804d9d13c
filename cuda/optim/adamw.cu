// m = beta1 m + (1 - beta1) k grad;  v = beta2 v + (1 - beta2) (k grad)^2;  w -= lr (m / c1 / (sqrt(v / c2) + eps) + decay w);
// copy = w rounded. Nothing changes where scale[2] is 0. A block takes T0 consecutive elements.
#include "lib/dart.cuh"

KERNEL_FUNCTION(adamw, simt)
{
    constexpr uint32_t T0 = TILE0_adamw_simt;
    const float *scale = FLOATS(adamw, scale) + args.scale_at, *hyper = FLOATS(adamw, hyper) + args.hyper_at;
    if (scale[2] == 0.0f) return;
    const float k = scale[1], lr = hyper[0], beta1 = hyper[1], beta2 = hyper[2], eps = hyper[3], c1 = hyper[4], c2 = hyper[5];
    const float decay = args.flags & DECAYS ? hyper[6] : 0.0f;
    float *w = FLOATS(adamw, w) + args.w_at, *m = FLOATS(adamw, m) + args.m_at, *v = FLOATS(adamw, v) + args.v_at;
    const float *grad = FLOATS(adamw, grad) + args.grad_at;
    const View copy = VIEW(adamw, copy);
    FOR_TILES(tile) {
        const uint32_t end = min((tile + 1) * T0, args.count);
#pragma unroll 4
        for (uint32_t i = tile * T0 + threadIdx.x; i < end; i += block_size) {
            const float g = k * grad[i], first = beta1 * m[i] + (1.0f - beta1) * g, second = beta2 * v[i] + (1.0f - beta2) * g * g;
            const float now = w[i] - lr * (first / c1 / (sqrtf(second / c2) + eps) + decay * w[i]);
            m[i] = first;
            v[i] = second;
            w[i] = now;
            if (args.flags & HAS_COPY) store(copy, args.copy_at + size_t(i), now);
        }
    }
}
