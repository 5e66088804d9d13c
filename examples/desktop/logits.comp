// logit_{h,m} = qn . (dh_{m,h} en) / sqrt(N), qn = q / rms(q), en = e / rms(e): one workgroup a memory of the run and head.
// q G N, e G P, dh M H N P: normalised memories. logits H pitch.
#version 450
layout(local_size_x = 64) in;
layout(std430, set = 0, binding = 0) readonly buffer Q { uint q[]; };
layout(std430, set = 0, binding = 1) readonly buffer E { uint e[]; };
layout(std430, set = 0, binding = 2) readonly buffer Memories { uint dh[]; };
layout(std430, set = 0, binding = 3) writeonly buffer Logits { float logits[]; };
layout(push_constant) uniform Constants {
    uint N, P, H, G, first, M, pitch, row, q_at, e_at, dh_at, query_dtype, memory_dtype;
    float eps;
};
shared float sums[3][64];

// Element i of words of f32 (0), f16 (1) or bf16 (2).
float element(uint word, uint i, uint dtype)
{
    if (dtype == 0) return uintBitsToFloat(word);
    const uint half_word = (i & 1) == 0 ? word & 0xffff : word >> 16;
    return dtype == 1 ? unpackHalf2x16(half_word).x : uintBitsToFloat(half_word << 16);
}
uint word_of(uint i, uint dtype) { return dtype == 0 ? i : i / 2; }
float q_of(uint i) { return element(q[word_of(i, query_dtype)], i, query_dtype); }
float e_of(uint i) { return element(e[word_of(i, query_dtype)], i, query_dtype); }
float dh_of(uint i) { return element(dh[word_of(i, memory_dtype)], i, memory_dtype); }

void main()
{
    const uint m = gl_WorkGroupID.x, h = gl_WorkGroupID.y, lane = gl_LocalInvocationIndex, g = h / (H / G);
    const uint memory = dh_at + (m * H + h) * N * P;
    float product = 0, q_squares = 0, e_squares = 0;
    for (uint i = lane; i < N * P; i += 64) product += q_of(q_at + g * N + i / P) * dh_of(memory + i) * e_of(e_at + g * P + i % P);
    for (uint n = lane; n < N; n += 64) q_squares += q_of(q_at + g * N + n) * q_of(q_at + g * N + n);
    for (uint p = lane; p < P; p += 64) e_squares += e_of(e_at + g * P + p) * e_of(e_at + g * P + p);
    sums[0][lane] = product;
    sums[1][lane] = q_squares;
    sums[2][lane] = e_squares;
    for (uint width = 32; width > 0; width /= 2) {
        barrier();
        if (lane < width)
            for (uint i = 0; i < 3; i++) sums[i][lane] += sums[i][lane + width];
    }
    if (lane == 0) {
        const float rms = sqrt((sums[1][0] / N + eps) * (sums[2][0] / P + eps));
        logits[h * pitch + first + m] = sums[0][0] / (rms * sqrt(float(N)));
    }
}
