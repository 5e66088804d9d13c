// Teams of lanes: the lanes of a team take eight neighbouring elements each of a row of at most 256 elements, a multiple of 8. Lane LANE is
// member LANE % team_of(width) of team LANE / team_of(width); members from width / 8 on have no elements. Sums over a team go through shared
// memory, in the order of its members, as the size of a subgroup is not known.
uint team_of(uint width)
{
    uint team = 2u;
    while (8u * team < width) team *= 2u;
    return team;
}
