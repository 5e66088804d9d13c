// The product of a mixer's step: a workgroup makes OUTPUTS = T0 outputs of up to ROWS = T1 rows. A team of LANES / ROWS lanes
// takes a row and shares its inputs out, eight (or one) at a time; a lane adds up what it has beside the squares that the norm
// wants. So the rows are read once, and nothing waits for the norm; the weights are read once a team, from a cache. (A lane
// that takes all rows, to read each weight once, needs up to 256 registers for it.) Include after dart.glsl.
// With subgroups a team is whole ones of them: 64 lanes or more.
#include "lib/eight.glsl"

#ifndef MIXER_OUTPUTS // T0
#define MIXER_OUTPUTS 8u
#endif
const uint OUTPUTS = MIXER_OUTPUTS;
const uint ROWS = T1;
const uint SUMS = OUTPUTS + 1u; // the last one is that of the squares

float sums[SUMS];
#define TEAM (gl_WorkGroupSize.x / ROWS)
#ifdef SUBGROUP
#define PARTS (gl_NumSubgroups / ROWS) // subgroups of a team
#define OWN_ROW (gl_SubgroupID / PARTS)
#define MEMBER (gl_SubgroupID % PARTS * gl_SubgroupSize + gl_SubgroupInvocationID)
#else
#define PARTS TEAM
#define OWN_ROW (LANE / TEAM)
#define MEMBER (LANE % TEAM)
#endif

void clear_sums()
{
    [[unroll]] for (uint o = 0u; o < SUMS; o++) sums[o] = 0.0;
}

const uint AT_ONCE = 2u; // outputs whose weights are fetched together

#ifdef SUBGROUP
shared float lane_sums[SUMS * gl_WorkGroupSize.x / 4u]; // no subgroup is smaller than 4
const uint PITCH = gl_WorkGroupSize.x / 4u;
#else
const uint PITCH = gl_WorkGroupSize.x + 1u;
shared float lane_sums[SUMS * PITCH];
#endif
shared float totals[ROWS * SUMS];

// totals[r SUMS + o] over the workgroup in a fixed order. Call in uniform flow.
void add_up(uint rows)
{
#ifdef SUBGROUP
    [[unroll]] for (uint o = 0u; o < SUMS; o++) {
        float sum = subgroupAdd(sums[o]);
        if (subgroupElect()) lane_sums[o * PITCH + gl_SubgroupID] = sum;
    }
#else
    [[unroll]] for (uint o = 0u; o < SUMS; o++) lane_sums[o * PITCH + LANE] = sums[o];
#endif
    barrier();
    for (uint e = LANE; e < rows * SUMS; e += LANES) {
        float sum = 0.0;
        for (uint i = 0u; i < PARTS; i++) sum += lane_sums[e % SUMS * PITCH + e / SUMS * PARTS + i];
        totals[e] = sum;
    }
    barrier();
}
