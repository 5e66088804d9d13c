// Part of main() in output_matrix.comp, before its loop over heads: what all heads of tile `tile` share.
        // c . b of the tile's tokens with all sources up to them, for all heads: HEAD sources at a time.
        MatrixA c_rows[TM * C_TK];
        float own_cb[OWN * 8u]; // 0 above the diagonal
        MatrixSum sums[TM * TN];
        {
            uint c_first = (args.c_at + (token + t_first) * args.c_row + g * SIZE_N) / 8u + unit_p;
            uvec4 c_words[UNITS];
            [[unroll]] for (uint i = 0u; i < UNITS; i++) {
                uint t = (unit_row + i * UNIT_ROWS) % T1;
                uint n = (unit_row + i * UNIT_ROWS) / T1 * HEAD;
                c_words[i] = n + unit_p * 8u < SIZE_N && t_first + t < size ? quads_c[c_first + t * (args.c_row / 8u) + n / 8u] : uvec4(0u);
            }
            FETCH_B(0u, 0u)
            // d goes through shared memory: a load that is the same in all lanes is waited for at once, with all others on their way.
            float own_skip = has(args.flags, HAS_D) ? load_d(args.d_at + h_first + min(LANE, block_heads - 1u)) : 0.0;
            barrier();
            if (LANE < T0) skips[LANE] = own_skip * CUT;
            PUT(c_words[i])
            barrier();
            [[unroll]] for (uint k = 0u; k < C_TK; k++) {
                [[unroll]] for (uint i = 0u; i < TM; i++)
                    coopMatLoad(c_rows[i * C_TK + k], stage,
                                WORK + k * MATRIX_K / HEAD * HALF + (row_first + i * MATRIX_M) * PITCH + k * MATRIX_K % HEAD / 8u, PITCH, ROW_MAJOR);
            }
        }
        for (uint s_first = 0u; s_first < t_end; s_first += HEAD) {
            [[unroll]] for (uint i = 0u; i < TM * TN; i++) sums[i] = MatrixSum(0.0);
            [[unroll]] for (uint n_first = 0u; n_first < MAX_N; n_first += DEPTH) {
                if (n_first < SIZE_N) {
                    barrier();
                    PUT(next[i])
                    barrier();
                    if (n_first + DEPTH < SIZE_N) {
                        FETCH_B(s_first, n_first + DEPTH)
                    } else if (s_first + HEAD < t_end) {
                        FETCH_B(s_first + HEAD, 0u)
                    }
                    [[unroll]] for (uint k = 0u; k < DEPTH / MATRIX_K; k++) {
                        [[unroll]] for (uint n = 0u; n < TN; n++) {
                            MatrixB column;
                            coopMatLoad(column, stage,
                                        WORK + (k * MATRIX_K / HEAD * HEAD + column_first + n * MATRIX_N) * PITCH + k * MATRIX_K % HEAD / 8u, PITCH,
                                        COLUMN_MAJOR);
                            [[unroll]] for (uint i = 0u; i < TM; i++)
                                sums[i * TN + n] = coopMatMulAdd(c_rows[i * C_TK + n_first / MATRIX_K + k], column, sums[i * TN + n]);
                        }
                    }
                }
            }
            if (s_first + HEAD >= t_end) {
                FETCH_HIN(h_first, 0u)
                FETCH_HEAD(h_first)
            }
            barrier();
            PUT_SUMS
            barrier();
            for (uint t = unit_row; t < T1; t += UNIT_ROWS) {
                uint s = s_first + unit_p * 8u;
                uint at = WORK + t * SUM_PITCH + unit_p * 2u;
                if (s < t_first) stage[t * CB_PITCH + s / 8u] = pack_eight(uintBitsToFloat(stage[at]) / LIFT, uintBitsToFloat(stage[at + 1u]) / LIFT);
            }
            [[unroll]] for (uint i = 0u; i < OWN; i++) {
                uint s = t_first + own_s[i];
                if (s >= s_first && s < s_first + HEAD && own_t[i] < T1) {
                    uint at = WORK + own_t[i] * SUM_PITCH + (s - s_first) / 4u;
                    [[unroll]] for (uint e = 0u; e < 8u; e++)
                        own_cb[i * 8u + e] = own_s[i] + e <= own_t[i] ? uintBitsToFloat(stage[at + e / 4u][e % 4u]) : 0.0;
                }
            }
        }
