// Teams of lanes: the lanes of a team take eight neighbouring elements each of a row, a multiple of 8. Lane LANE is member LANE % team_of(width) of
// team LANE / team_of(width); members from width / 8 on have no elements. A row of at most 256 elements has a small team, whose sums go
// through shared memory in the order of its members, as the size of a subgroup is not known. With WIDE the workgroup is one team.
#ifdef WIDE
#include "lib/quads.glsl"
uint team_of(uint width) { return LANES; }
// The sum over the team, the same in every lane. Call with the whole workgroup.
vec4 team_sum(vec4 value)
{
    vec4 sum = workgroup_sum4(value);
    barrier(); // until every lane has read
    return sum;
}
#else
uint team_of(uint width)
{
    uint team = 2u;
    while (8u * team < width) team *= 2u;
    return team;
}
#endif
