// Order-preserving integers for floats: a < b as numbers gives order_of(a) < order_of(b), zeros of both signs are
// equal, and every NaN is 0, below all numbers.
uint order_of(float value)
{
    uint u = floatBitsToUint(value);
    if ((u & 0x7fffffffu) > 0x7f800000u) return 0u;
    if ((u & 0x7fffffffu) == 0u) return 0x80000000u;
    return (u & 0x80000000u) != 0u ? ~u : u | 0x80000000u;
}

// The number of an order other than 0, of zeros +0.
float of_order(uint order) { return uintBitsToFloat((order & 0x80000000u) != 0u ? order & 0x7fffffffu : ~order); }

// Over the workgroup, the same in every lane. Call in uniform flow; the shared array is free again on return.
shared uint lane_words[gl_WorkGroupSize.x];
#ifdef SUBGROUP
uint workgroup_max_uint(uint value)
{
    value = subgroupMax(value);
    if (subgroupElect()) lane_words[gl_SubgroupID] = value;
    barrier();
    uint top = lane_words[0];
    for (uint i = 1u; i < gl_NumSubgroups; i++) top = max(top, lane_words[i]);
    barrier();
    return top;
}
#else
uint workgroup_max_uint(uint value)
{
    lane_words[LANE] = value;
    for (uint half_size = LANES / 2u; half_size > 0u; half_size /= 2u) {
        barrier();
        if (LANE < half_size) lane_words[LANE] = max(lane_words[LANE], lane_words[LANE + half_size]);
    }
    barrier();
    uint top = lane_words[0];
    barrier();
    return top;
}
#endif
