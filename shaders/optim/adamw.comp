#version 460
#extension GL_GOOGLE_include_directive : require
// m = beta1 m + (1 - beta1) k grad;  v = beta2 v + (1 - beta2) (k grad)^2;  w -= lr (m / c1 / (sqrt(v / c2) + eps) + decay w);
// copy = w rounded. Nothing changes where scale[2] is 0.
//
// w, m, v, grad count, f32; copy count; scale 4; hyper 8. A workgroup takes T0 consecutive elements, a lane every LANES-th. No shared memory.
#include "lib/dart.glsl"
#include "table/adamw.glsl"
READS_WRITES(w) READS_WRITES(m) READS_WRITES(v) READS(grad) READS(scale) READS(hyper) WRITES(copy)

void main()
{
    if (load_scale(args.scale_at + 2u) == 0.0) return;
    float k = load_scale(args.scale_at + 1u);
    float lr = load_hyper(args.hyper_at);
    float beta1 = load_hyper(args.hyper_at + 1u);
    float beta2 = load_hyper(args.hyper_at + 2u);
    float eps = load_hyper(args.hyper_at + 3u);
    float c1 = load_hyper(args.hyper_at + 4u);
    float c2 = load_hyper(args.hyper_at + 5u);
    float decay = has(args.flags, DECAYS) ? load_hyper(args.hyper_at + 6u) : 0.0;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint end = min((tile + 1u) * T0, args.count);
        for (uint i = tile * T0 + LANE; i < end; i += LANES) {
            float g = k * load_grad(args.grad_at + i);
            float m = beta1 * load_m(args.m_at + i) + (1.0 - beta1) * g;
            float v = beta2 * load_v(args.v_at + i) + (1.0 - beta2) * g * g;
            float w = load_w(args.w_at + i);
            w -= lr * (m / c1 / (sqrt(v / c2) + eps) + decay * w);
            store_m(args.m_at + i, m);
            store_v(args.v_at + i, v);
            store_w(args.w_at + i, w);
            if (has(args.flags, HAS_COPY)) store_copy(args.copy_at + i, w);
        }
    }
}
