// Row `row` of the map: weight_m = mean over heads of exp(logit_{h,m} - lse_h), lse_h = log sum_m exp(logit_{h,m}); -1 where there is no memory.
// One workgroup. logits H pitch, weights rows pitch, M <= pitch.
#version 450
layout(local_size_x = 64) in;
layout(std430, set = 0, binding = 3) readonly buffer Logits { float logits[]; };
layout(std430, set = 0, binding = 4) writeonly buffer Weights { float weights[]; };
layout(push_constant) uniform Constants {
    uint N, P, H, G, first, M, pitch, row, q_at, e_at, dh_at, query_dtype, memory_dtype;
    float eps;
};
shared float values[64];

void main()
{
    const uint lane = gl_LocalInvocationIndex;
    // Each lane keeps its own columns of the row; the sums over memories go through shared memory, head by head.
    for (uint m = lane; m < pitch; m += 64) weights[row * pitch + m] = -1;
    for (uint block = 0; block < M; block += 64) {
        const uint mine = block + lane;
        float weight = 0;
        for (uint h = 0; h < H; h++) {
            float largest = -3.4e38, sum = 0;
            for (uint m = lane; m < M; m += 64) largest = max(largest, logits[h * pitch + m]);
            values[lane] = largest;
            barrier();
            for (uint i = 0; i < 64; i++) largest = max(largest, values[i]);
            barrier();
            for (uint m = lane; m < M; m += 64) sum += exp(logits[h * pitch + m] - largest);
            values[lane] = sum;
            barrier();
            sum = 0;
            for (uint i = 0; i < 64; i++) sum += values[i];
            barrier();
            if (mine < M) weight += exp(logits[h * pitch + mine] - largest - log(sum));
        }
        if (mine < M) weights[row * pitch + mine] = weight / H;
    }
}
