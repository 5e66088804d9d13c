// Part of main() in output_streamed.comp, before its loop over heads: what all heads of tile `tile` share, and what the first head
// begins with.
        uvec4 first_hin[UNITS];
        // c . b of the tile's tokens with all sources up to them, for all heads: T1 sources at a time, half of their states at a time.
        MatrixA c_rows[2u * STATES];
        MatrixA cb_rows[TK];   // with the sources below
        SumF16 own_cb[BLOCKS]; // with the own block, then with those before it, from the nearest on; in units of own_unit
        float own_unit;
        uint now = 0u; // set of factors
        {
            vec3 first_tokens;
            vec2 first_reference;
            uint b_row = args.b_row / 8u;
            uint b_first = (args.b_at + token * args.b_row + g * SIZE_N) / 8u + word;
            uint c_first = (args.c_at + token * args.c_row + g * SIZE_N) / 8u + word;
            uvec4 b_0[UNITS];
            uvec4 b_1[UNITS];
            uvec4 c_0[UNITS];
            uvec4 c_1[UNITS];
            MatrixSum products[BLOCKS];
#define FETCH_B(words, s_first, n_first) \
            [[unroll]] for (uint i = 0u; i < UNITS; i++) \
                words[i] = quads_b[b_first + min((s_first) + row + i, t_end - 1u) * b_row + (n_first) / 8u];
            [[unroll]] for (uint i = 0u; i < UNITS; i++) {
                uint at = c_first + min(t_first + row + i, t_end - 1u) * (args.c_row / 8u);
                c_0[i] = quads_c[at];
                c_1[i] = quads_c[at + WORDS];
            }
            FETCH_B(b_0, 0u, 0u)
            FETCH_B(b_1, 0u, HEAD)
            FETCH_HIN(first_hin, h_first)
            // d goes through shared memory: a load that is the same in all lanes is waited for at once, with all others on their way.
            float own_skip = has(args.flags, HAS_D) ? load_d(args.d_at + h_first + min(LANE, block_heads - 1u)) : 0.0;
            PUT(0u, c_0)
            PUT(HALF, c_1)
            subgroup_sync();
            [[unroll]] for (uint k = 0u; k < STATES; k++) {
                coopMatLoad(c_rows[k], stage, row_first * PITCH + k * MATRIX_K / 8u, PITCH, ROW_MAJOR);
                coopMatLoad(c_rows[STATES + k], stage, HALF + row_first * PITCH + k * MATRIX_K / 8u, PITCH, ROW_MAJOR);
            }
            subgroup_sync();
            if (LANE < T0) skips[LANE] = own_skip * CUT;
            PUT(0u, b_0)
// products[n] += c times b of block block_of, half of the states.
#define MULTIPLY_B(half_at, k_first, block_of) \
            [[unroll]] for (uint k = 0u; k < STATES; k++) { \
                MatrixB column; \
                coopMatLoad(column, stage, (half_at) + (block_of) * ROWS * PITCH + k * MATRIX_K / 8u, PITCH, COLUMN_MAJOR); \
                products[n] = coopMatMulAdd(c_rows[(k_first) + k], column, products[n]); \
            }
            [[unroll]] for (uint n = 0u; n < BLOCKS; n++) products[n] = MatrixSum(0.0);
            if (below) {
                barrier();
                FETCH_B(b_0, T1, 0u)
                PUT(HALF, b_1)
                FETCH_B(b_1, T1, HEAD)
                [[unroll]] for (uint n = 0u; n < BLOCKS; n++) MULTIPLY_B(0u, 0u, n)
                barrier();
                [[unroll]] for (uint n = 0u; n < BLOCKS; n++) MULTIPLY_B(HALF, STATES, n)
                PUT(0u, b_0)
                [[unroll]] for (uint n = 0u; n < BLOCKS; n++) {
                    cb_rows[n] = MatrixA(products[n] * (CUT / LIFT));
                    products[n] = MatrixSum(0.0);
                }
            }
#define OWN_BLOCK ((block - n) % BLOCKS)
            barrier();
            PUT(HALF, b_1)
            if (below) FETCH_BELOW(h_first)
            FETCH_OWN(h_first)
            FETCH_TOKENS(first_tokens, first_reference, h_first)
            FETCH_SCALES(h_first)
            [[unroll]] for (uint n = 0u; n < BLOCKS; n++) {
                if (n == 0u || n <= block) MULTIPLY_B(0u, 0u, OWN_BLOCK)
            }
            barrier();
            PUT_HIN(0u, first_hin, h_first)
            uint largest = floatBitsToUint(1e-30); // of the numbers among them, by their bits
            [[unroll]] for (uint n = 0u; n < BLOCKS; n++) {
                if (n == 0u || n <= block) MULTIPLY_B(HALF, STATES, OWN_BLOCK)
                if (n == 0u) coopMatPerElementNV(products[n], products[n], up_to_own);
                [[unroll]] for (uint e = 0u; e < ELEMENTS; e++) {
                    uint bits = floatBitsToUint(products[n][e]) & 0x7fffffffu;
                    if (bits < 0x7f800000u) largest = max(largest, bits);
                }
            }
            // As a float: NVIDIA 580 guards the instruction for integers with a predicate of something else where it does not know that all lanes
            // are there (docs/lab/2026-11-26-loads-outside-tensors.md).
            own_unit = power_above(subgroupMax(uintBitsToFloat(largest))) * exp2(-15.0);
            [[unroll]] for (uint n = 0u; n < BLOCKS; n++) {
                [[unroll]] for (uint e = 0u; e < ELEMENTS; e++) own_cb[n][e] = float16_t(products[n][e] * (1.0 / own_unit));
            }
            PUT_FACTORS(0u, first_tokens, first_reference)
            barrier();
        }
