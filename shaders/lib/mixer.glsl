// The product of a mixer's step: a workgroup makes OUTPUTS = T0 outputs of up to ROWS = T1 rows, its lanes share the
// inputs out, eight (or one) at a time, and add up what they have beside the squares that the norm wants. So the rows
// are read once, and nothing waits for the norm. Include after dart.glsl.
#include "eight.glsl"

const uint OUTPUTS = 8u; // T0
const uint ROWS = T1;
const uint SUMS = OUTPUTS + 1u; // the last one is that of the squares

float sums[ROWS][SUMS];

void clear_sums()
{
    [[unroll]] for (uint r = 0u; r < ROWS; r++) {
        [[unroll]] for (uint o = 0u; o < SUMS; o++) sums[r][o] = 0.0;
    }
}

float add_four(float sum, vec4 a, vec4 b)
{
    sum += a.x * b.x;
    sum += a.y * b.y;
    sum += a.z * b.z;
    sum += a.w * b.w;
    return sum;
}

#ifdef SUBGROUP
shared float lane_sums[ROWS * SUMS * gl_WorkGroupSize.x / 4u]; // no subgroup is smaller than 4
const uint PITCH = gl_WorkGroupSize.x / 4u;
#else
const uint PITCH = gl_WorkGroupSize.x + 1u;
shared float lane_sums[ROWS * SUMS * PITCH];
#endif
shared float totals[ROWS * SUMS];

// totals[r SUMS + o] over the workgroup in a fixed order. Call in uniform flow.
void add_up(uint rows)
{
#ifdef SUBGROUP
    uint parts = gl_NumSubgroups;
    [[unroll]] for (uint r = 0u; r < ROWS; r++) {
        if (r < rows) {
            [[unroll]] for (uint o = 0u; o < SUMS; o++) {
                float sum = subgroupAdd(sums[r][o]);
                if (subgroupElect()) lane_sums[(r * SUMS + o) * PITCH + gl_SubgroupID] = sum;
            }
        }
    }
#else
    uint parts = LANES;
    [[unroll]] for (uint r = 0u; r < ROWS; r++) {
        if (r < rows) {
            [[unroll]] for (uint o = 0u; o < SUMS; o++) lane_sums[(r * SUMS + o) * PITCH + LANE] = sums[r][o];
        }
    }
#endif
    barrier();
    for (uint e = LANE; e < rows * SUMS; e += LANES) {
        float sum = 0.0;
        for (uint i = 0u; i < parts; i++) sum += lane_sums[e * PITCH + i];
        totals[e] = sum;
    }
    barrier();
}
