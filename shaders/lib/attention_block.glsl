// One block of attention_matrix.glsl: tokens s to s + KEYS of the cache, with masks where MASKED is 1. Matrices are never
// changed in a branch.
            if (STAGES == 1u || s == 0u) barrier();
#if MASKED
            uvec4 any = uvec4(0u);
            [[unroll]] for (uint n = 0u; n < FETCH; n++) {
                uvec4 masks = wild_halves(next_values[n]);
                next_values[n] &= ~masks;
                any |= masks;
            }
            if (any != uvec4(0u)) atomicOr(wild, 1u);
#endif
            [[unroll]] for (uint n = 0u; n < FETCH; n++) {
                uint i = min(LANE + n * LANES, QUADS - 1u);
                uint at = stage + i / (HEAD / 8u) * PITCH + i % (HEAD / 8u);
                keys[at] = next_keys[n];
                values[at] = next_values[n];
            }
            barrier();
            FETCH_BLOCK(s + KEYS)

            MatrixSum scores[R * KEY_TILES];
            [[unroll]] for (uint j = 0u; j < KEY_TILES; j++) {
                [[unroll]] for (uint r = 0u; r < R; r++) scores[r * KEY_TILES + j] = MatrixSum(0.0);
                [[unroll]] for (uint d = 0u; d < DEPTH_TILES; d++) {
                    MatrixB key;
                    coopMatLoad(key, keys, stage + j * MATRIX_N * PITCH + d * MATRIX_K / 8u, PITCH, COLUMN_MAJOR);
                    [[unroll]] for (uint r = 0u; r < R; r++)
                        scores[r * KEY_TILES + j] = coopMatMulAdd(queries[r * DEPTH_TILES + d], key, scores[r * KEY_TILES + j]);
                }
            }
            [[unroll]] for (uint n = 0u; n < R * KEY_TILES; n++) scores[n] = scores[n] * scale;
#if MASKED
            MatrixSum row;
            MatrixSum column;
            coopMatLoad(row, table, MATRIX_N * MATRIX_M, 0u, COLUMN_MAJOR);
            coopMatLoad(column, table, 0u, MATRIX_N, ROW_MAJOR);
            [[unroll]] for (uint n = 0u; n < R * KEY_TILES; n++) {
                float first = float(int(s + n % KEY_TILES * MATRIX_N) - int(place + n / KEY_TILES * MATRIX_M));
                float end = float(int(s + n % KEY_TILES * MATRIX_N) + 1 - int(seen));
                [[unroll]] for (uint i = 0u; i < ELEMENTS; i++) {
                    float beyond = max(column[i] - row[i] + first, column[i] + end);
                    scores[n][i] = beyond > 0.0 ? LOWEST : scores[n][i];
                }
            }
#endif

            MatrixSum highest[R];
            float excess = LOWEST; // over the reference
            [[unroll]] for (uint r = 0u; r < R; r++) {
                [[unroll]] for (uint i = 0u; i < ELEMENTS; i++) {
                    float most = scores[r * KEY_TILES][i];
                    [[unroll]] for (uint j = 1u; j < KEY_TILES; j++) most = max(most, scores[r * KEY_TILES + j][i]);
                    highest[r][i] = most;
                    excess = max(excess, most - top[r][i]);
                }
            }
            if (subgroupMax(excess) > SLACK) {
                [[unroll]] for (uint r = 0u; r < R; r++) {
                    coopMatStore(highest[r], scratch, part, MATRIX_N, ROW_MAJOR);
                    subgroup_sync();
                    float most = LOWEST;
                    [[unroll]] for (uint i = 0u; i < MATRIX_N; i++) most = max(most, scratch[part + lane % MATRIX_M * MATRIX_N + i]);
                    // Each row by itself, so that what its neighbours see changes no bit of it.
                    uint at = gl_SubgroupID * ROWS + r * MATRIX_M + lane % MATRIX_M;
                    float before = tops[at];
                    subgroup_sync();
                    if (lane < MATRIX_M && most > before + SLACK) tops[at] = most;
                }
                subgroup_sync();
            }
            [[unroll]] for (uint r = 0u; r < R; r++) {
                MatrixSum now;
                coopMatLoad(now, tops, gl_SubgroupID * ROWS + r * MATRIX_M, 0u, COLUMN_MAJOR);
                MatrixSum keep;
                [[unroll]] for (uint i = 0u; i < ELEMENTS; i++) keep[i] = exp2(top[r][i] - now[i]);
                top[r] = now;
                [[unroll]] for (uint d = 0u; d < HEAD_TILES; d++) sums[r * HEAD_TILES + d] = sums[r * HEAD_TILES + d] * keep;
                [[unroll]] for (uint i = 0u; i < ELEMENTS; i++) {
                    float sum = den[r][i] * keep[i];
                    [[unroll]] for (uint j = 0u; j < KEY_TILES; j++) {
                        float weight = exp2(scores[r * KEY_TILES + j][i] - now[i]);
                        sum += weight;
                        scores[r * KEY_TILES + j][i] = weight;
                    }
                    den[r][i] = sum;
                }
            }

            [[unroll]] for (uint j = 0u; j < WEIGHT_TILES; j++) {
                MatrixA weights[R];
                [[unroll]] for (uint r = 0u; r < R; r++) {
#ifdef MATRIX2
                    weights[r] = MatrixA(scores[r * KEY_TILES + j]);
#else
                    [[unroll]] for (uint n = 0u; n < MATRIX_K / MATRIX_N; n++)
                        coopMatStore(scores[r * KEY_TILES + j * (MATRIX_K / MATRIX_N) + n], scratch, part + n * MATRIX_N, MATRIX_K, ROW_MAJOR);
                    subgroup_sync();
                    [[unroll]] for (uint n = 0u; n < PART / 2u / SUBGROUP_SIZE; n++) {
                        uint at = part / 2u + lane + n * SUBGROUP_SIZE;
                        packed[at] = pack_elements(scratch[2u * at], scratch[2u * at + 1u]);
                    }
                    subgroup_sync();
                    coopMatLoad(weights[r], packed, part / 2u, MATRIX_K / 2u, ROW_MAJOR);
#endif
                }
                [[unroll]] for (uint d = 0u; d < HEAD_TILES; d++) {
                    MatrixB value;
                    coopMatLoad(value, values, stage + j * MATRIX_K * PITCH + d * MATRIX_N / 8u, PITCH, ROW_MAJOR);
                    [[unroll]] for (uint r = 0u; r < R; r++)
                        sums[r * HEAD_TILES + d] = coopMatMulAdd(weights[r], value, sums[r * HEAD_TILES + d]);
                }
            }
            if (STAGES == 2u) stage = KEYS * PITCH - stage;
