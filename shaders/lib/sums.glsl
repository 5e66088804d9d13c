// SUMS sums over the workgroup at once, through shared memory: a subgroup takes a sum, so that the sums do not follow one another as subgroupAdds
// do. Include where SUMS is defined. Shared memory: 4 SUMS (LANES + 1) bytes.
shared float lane_sums[SUMS * gl_WorkGroupSize.x];
shared float totals[SUMS];

// totals = the sums, in a fixed order. Call in uniform flow, with a barrier between the last use of totals and the next call.
void add_up_all(float sums[SUMS])
{
    [[unroll]] for (uint k = 0u; k < SUMS; k++) lane_sums[k * LANES + LANE] = sums[k];
    barrier();
    for (uint k = gl_SubgroupID; k < SUMS; k += gl_NumSubgroups) {
        float sum = 0.0;
        for (uint i = gl_SubgroupInvocationID; i < LANES; i += gl_SubgroupSize) sum += lane_sums[k * LANES + i];
        sum = subgroupAdd(sum);
        if (subgroupElect()) totals[k] = sum;
    }
    barrier();
}
