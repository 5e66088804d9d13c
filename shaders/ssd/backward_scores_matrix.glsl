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

// Sums of the subgroup's part of z over its columns and over its rows, into row_sums and column_sums from there on. With `crosses` the part
// belongs to a tile on the diagonal, whose row `lower` it begins with: rows are replaced by the sums of the columns before each, and columns are
// added from the diagonal down.
void add_up(uint part, uint own_rows, uint own_columns, bool crosses, uint lower)
{
    uint lane = gl_SubgroupInvocationID;
    uint own_halves = gl_SubgroupID * 2u * OWN_ROWS;
    for (uint e = lane; e < 2u * OWN_ROWS; e += SUBGROUP_SIZE) {
        uint from = part + e % OWN_ROWS * PART_PITCH + e / OWN_ROWS * 4u;
        vec4 sum = vec4(0.0);
        [[unroll]] for (uint q = 0u; q < 4u; q++) sum += uintBitsToFloat(stage[from + q]);
        halves[own_halves + e] = (sum.x + sum.y) + (sum.z + sum.w);
    }
    subgroup_sync();
    if (crosses) {
        for (uint e = lane; e < 2u * OWN_ROWS; e += SUBGROUP_SIZE) {
            uint from = part + e % OWN_ROWS * PART_PITCH + e / OWN_ROWS * 4u;
            float before = e >= OWN_ROWS ? halves[own_halves + e - OWN_ROWS] : 0.0;
            [[unroll]] for (uint q = 0u; q < 4u; q++) {
                vec4 four = uintBitsToFloat(stage[from + q]);
                vec4 sum;
                sum.x = before;
                sum.y = sum.x + four.x;
                sum.z = sum.y + four.y;
                sum.w = sum.z + four.z;
                before = sum.w + four.w;
                stage[from + q] = floatBitsToUint(sum);
            }
        }
        subgroup_sync();
    }
    for (uint e = lane; e < OWN_ROWS; e += SUBGROUP_SIZE)
        row_sums[own_rows + e] = halves[own_halves + e] + halves[own_halves + OWN_ROWS + e];
    for (uint c = lane; c < PART; c += SUBGROUP_SIZE) {
        float sum = 0.0;
        [[unroll]] for (uint r = 0u; r < OWN_ROWS; r++) {
            float value = uintBitsToFloat(stage[part + r * PART_PITCH + c / 4u][c % 4u]);
            sum += !crosses || lower + r >= c ? value : 0.0;
        }
        column_sums[own_columns + c] = sum;
    }
}
