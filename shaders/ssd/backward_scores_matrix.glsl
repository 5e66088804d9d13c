// Part of backward_scores_matrix.comp: the shares of head h in the sums of z, 64 of each of the four tiles of 32 x 32, from the sums `before` (0, 1)
// of rows and columns.
void put_shares(Place at, uvec2 pair, uint h, uint before, uint halves_across)
{
    uint to = (at.slot * args.H + h) * (halves_across * (halves_across + 1u) / 2u);
    for (uint e = LANE; e < 4u * 64u; e += LANES) {
        uint i = e / 64u / 2u;
        uint j = e / 64u % 2u;
        uint own = e % 32u;
        uint row_tile = pair.x / SCORE_SIDE + i;
        uint column_tile = pair.y / SCORE_SIDE + j;
        if (row_tile >= halves_across || column_tile > row_tile) continue;
        uint columns = (before * ROW_GROUPS + 2u * i) * SIDE + SCORE_SIDE * j;
        uint own_sums = (to + row_tile * (row_tile + 1u) / 2u + column_tile) * 64u + e % 64u;
        if (row_tile == column_tile) {
            if (e % 64u < 32u) store_sums(own_sums, column_sums[columns + own] + column_sums[columns + SIDE + own]);
        } else if (SUBGROUP_SIZE == 32u) { // 32 neighbours are a subgroup
            uint rows = (before * COLUMN_GROUPS + j) * SIDE + SCORE_SIDE * i;
            if (e % 64u < 32u) store_sums(own_sums + 31u - 2u * own, subgroupInclusiveAdd(row_sums[rows + 31u - own]));
            else store_sums(own_sums, subgroupExclusiveAdd(column_sums[columns + own] + column_sums[columns + SIDE + own]));
        } else if (e % 64u < 32u) {
            float sum = 0.0;
            for (uint k = 32u; k-- > own;) sum += row_sums[(before * COLUMN_GROUPS + j) * SIDE + SCORE_SIDE * i + k];
            store_sums(own_sums, sum);
        } else {
            float sum = 0.0;
            for (uint k = 0u; k < own; k++) sum += column_sums[columns + k] + column_sums[columns + SIDE + k];
            store_sums(own_sums, sum);
        }
    }
}
