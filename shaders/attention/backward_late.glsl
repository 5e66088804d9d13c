// How passing rows come into the stages of backward_late.comp, and what its subgroups do with them.

// A lane's share of the block of passing tokens from `from` on. Columns from D on are some of the same row: own rows have zeros there.
void fetch(Sequence sequence, uint from, uint head, uint group, uint head_quads)
{
    [[unroll]] for (uint n = 0u; n < FETCH; n++) {
        uint i = min(LANE + n * LANES, QUADS - 1u);
        uint row = sequence.row + min(from + i / WORDS, sequence.count - 1u);
        uint quad = min(i % WORDS, head_quads - 1u);
        next_x[n] = passing_x(row, head, group, quad);
        next_y[n] = passing_y(row, head, group, quad);
    }
#ifdef OF_KEYS
    [[unroll]] for (uint n = 0u; n < FETCH_FLOATS; n++) {
        uint i = LANE + n * LANES;
        uint place = (sequence.row + min(from + i % BLOCK, sequence.count - 1u)) * args.H + head;
        if (i < BLOCK) next_floats[n] = floats_lse[args.lse_at + place];
        else if (i < 2u * BLOCK) next_floats[n] = floats_dot[place];
    }
#endif
}
void put(Sequence sequence, uint from, uint stage)
{
    [[unroll]] for (uint n = 0u; n < FETCH; n++) {
        uint i = min(LANE + n * LANES, QUADS - 1u);
        uint to = stage * STAGE + i / WORDS * PITCH + i % WORDS;
        xs[to] = next_x[n];
        xs[to + HALF] = next_y[n];
    }
#ifdef OF_KEYS
    [[unroll]] for (uint n = 0u; n < FETCH_FLOATS; n++) {
        uint i = LANE + n * LANES;
        if (i < 2u * BLOCK) {
            float value = i < BLOCK ? -next_floats[n] * LOG2_E : -next_floats[n];
            if (i < BLOCK && from + i >= sequence.count) value = NOTHING;
            floats[stage * (BLOCK / 2u) + i / 4u][i % 4u] = value;
        }
    }
#endif
}

// Adds what the subgroup's rows have to do with a stage, whose first token is `now`, and fetches the block from token `at` of `head` on. masked: some
// row does not see some token of the stage.
void meet(bool masked, uint stage, uint now, uint own_first, Sequence sequence, uint at, uint head, uint group, uint head_quads)
{
    uint rows = stage * STAGE;
    float scale = args.scale * LOG2_E;
    MatrixSum scores[R * OTHER_TILES];   // then w
    MatrixSum products[R * OTHER_TILES]; // then u
    [[unroll]] for (uint j = 0u; j < OTHER_TILES; j++) {
#ifdef OF_KEYS
        MatrixSum along;
        coopMatLoad(along, floats, stage * (BLOCK / 2u) + BLOCK / 4u + j * MATRIX_N / 4u, 0u, ROW_MAJOR);
#endif
        [[unroll]] for (uint r = 0u; r < R; r++) {
            scores[r * OTHER_TILES + j] = MatrixSum(0.0);
#ifdef OF_KEYS
            products[r * OTHER_TILES + j] = along;
#else
            products[r * OTHER_TILES + j] = own_dot[r];
#endif
        }
    }
    [[unroll]] for (uint d = 0u; d < DEPTH_TILES; d++) {
        [[unroll]] for (uint j = 0u; j < OTHER_TILES; j++) {
            MatrixB right;
            coopMatLoad(right, xs, rows + j * MATRIX_N * PITCH + d * MATRIX_K / 8u, PITCH, COLUMN_MAJOR);
            [[unroll]] for (uint r = 0u; r < R; r++)
                scores[r * OTHER_TILES + j] = coopMatMulAdd(x[r * DEPTH_TILES + d], right, scores[r * OTHER_TILES + j]);
            coopMatLoad(right, xs, rows + HALF + j * MATRIX_N * PITCH + d * MATRIX_K / 8u, PITCH, COLUMN_MAJOR);
            [[unroll]] for (uint r = 0u; r < R; r++)
                products[r * OTHER_TILES + j] = coopMatMulAdd(y[r * DEPTH_TILES + d], right, products[r * OTHER_TILES + j]);
        }
    }
    [[unroll]] for (uint j = 0u; j < OTHER_TILES; j++) {
#ifdef OF_KEYS
        MatrixSum lse;
        coopMatLoad(lse, floats, stage * (BLOCK / 2u) + j * MATRIX_N / 4u, 0u, ROW_MAJOR);
#endif
        [[unroll]] for (uint r = 0u; r < R; r++) {
            uint n = r * OTHER_TILES + j;
#ifndef OF_KEYS
            MatrixSum lse = own_lse[r];
#endif
            [[unroll]] for (uint i = 0u; i < ELEMENTS; i++) {
                float weight = exp2(min(scores[n][i] * scale + lse[i], 0.0));
                scores[n][i] = weight;
                products[n][i] *= weight;
            }
        }
    }
    if (masked) { // 0 where token s does not precede or equal t; u is 0 for t = 0
        MatrixSum row;
        MatrixSum column;
        coopMatLoad(row, table, MATRIX_N * MATRIX_M / 4u, 0u, COLUMN_MAJOR);
        coopMatLoad(column, table, 0u, MATRIX_N / 4u, ROW_MAJOR);
        [[unroll]] for (uint n = 0u; n < R * OTHER_TILES; n++) {
            float own = float(own_first + n / OTHER_TILES * MATRIX_M);
            float other = float(now + n % OTHER_TILES * MATRIX_N);
            [[unroll]] for (uint i = 0u; i < ELEMENTS; i++) {
#ifdef OF_KEYS
                float s = own + row[i];
                float t = other + column[i];
#else
                float s = other + column[i];
                float t = own + row[i];
#endif
                scores[n][i] = s <= t ? scores[n][i] : 0.0;
                products[n][i] = s <= t && t > 0.0 ? products[n][i] : 0.0;
            }
        }
    }
    [[unroll]] for (uint n = 0u; n < R * OTHER_TILES; n++) {
        [[unroll]] for (uint i = 0u; i < ELEMENTS; i++) {
            scores[n][i] = rounded(scores[n][i]);
            products[n][i] = rounded(products[n][i]);
        }
    }
    fetch(sequence, at, head, group, head_quads);
    subgroup_sync(); // loads stay before it
#ifdef OF_KEYS
    MULTIPLY(sums_v, scores, xs, rows + HALF)
#endif
    MULTIPLY(sums, products, xs, rows)
}
