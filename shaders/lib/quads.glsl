// Four sums over the workgroup at once, the same in every lane, in a fixed order. Call in uniform flow. The shared array is free
// again once all lanes have passed another barrier: put one between two calls.
#ifdef SUBGROUP
shared vec4 lane_quads[LANES / 4u]; // one a subgroup
vec4 workgroup_sum4(vec4 value)
{
    value = subgroupAdd(value);
    if (subgroupElect()) lane_quads[gl_SubgroupID] = value;
    barrier();
    vec4 sum = lane_quads[0];
    for (uint i = 1u; i < gl_NumSubgroups; i++) sum += lane_quads[i];
    return sum;
}
#else
shared vec4 lane_quads[LANES];
const uint SUM_GROUPS = 8u;
vec4 workgroup_sum4(vec4 value)
{
    lane_quads[LANE] = value;
    barrier();
    if (LANE < SUM_GROUPS) {
        for (uint i = LANE + SUM_GROUPS; i < LANES; i += SUM_GROUPS) value += lane_quads[i];
        lane_quads[LANE] = value;
    }
    barrier();
    vec4 sum = lane_quads[0];
    for (uint i = 1u; i < SUM_GROUPS; i++) sum += lane_quads[i];
    return sum;
}
#endif
