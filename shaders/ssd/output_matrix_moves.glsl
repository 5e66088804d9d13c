// What output_matrix.comp moves between buffers, the lanes' registers and the stage, and products with rows of the stage; the
// variables are those of its main().
#define FETCH_HIN(h, n_first) \
    { \
        uint hin_first = (args.hin_at + ((b * args.M + j) * args.H + (h)) * SIZE_N * SIZE_P) / 8u + unit_p; \
        [[unroll]] for (uint i = 0u; i < UNITS; i++) { \
            uint n = (n_first) + unit_row + i * UNIT_ROWS; \
            next[i] = n < SIZE_N && unit_p * 8u < SIZE_P ? quads_hin[hin_first + n * (SIZE_P / 8u)] : uvec4(0u); \
        } \
    }
#define FETCH_BELOW(k, h) \
    { \
        uint x_first = (h) * SIZE_P / 8u + (k) * T1 * below_row; \
        [[unroll]] for (uint i = 0u; i < X_UNITS; i++) \
            below[(k) * X_UNITS + i] = unit_p * 8u < SIZE_P ? quads_x[below_first + (x_first + i * UNIT_ROWS * below_row)] : uvec4(0u); \
    }
// What else head h needs.
#define FETCH_HEAD(h) \
    { \
        FETCH_BELOW(0u, h) \
        [[unroll]] for (uint i = 0u; i < X_UNITS; i++) \
            next_own[i] = unit_p * 8u < SIZE_P ? quads_x[own_rows[i] + (h) * SIZE_P / 8u] : uvec4(0u); \
        uint cum = (b * args.H + (h)) * args.L + chunk.begin; \
        reference = cum_at(cum + max(t_first, 1u) - 1u).xy; \
        [[unroll]] for (uint i = 0u; i < TOKENS; i++) tokens[i] = cum_at(cum + min(LANE + i * LANES, t_end - 1u)); \
        if (has(args.flags, HAS_HIN_SCALE)) { \
            [[unroll]] for (uint i = 0u; i < SCALES; i++) { \
                uint n = LANE + i * LANES; \
                next_scales[i] = n < SIZE_N ? load_hin_scale(args.hin_scale_at + ((b * args.M + j) * args.H + (h)) * SIZE_N + n) : 0.0; \
            } \
        } \
    }
#define FETCH_B(s_first, n_first) \
    { \
        uint b_first = (args.b_at + token * args.b_row + g * SIZE_N + (n_first)) / 8u + unit_p; \
        [[unroll]] for (uint i = 0u; i < UNITS; i++) { \
            uint s = (s_first) + (unit_row + i * UNIT_ROWS) % HEAD; \
            uint n = (unit_row + i * UNIT_ROWS) / HEAD * HEAD; \
            next[i] = (n_first) + n + unit_p * 8u < SIZE_N && s < t_end ? quads_b[b_first + s * (args.b_row / 8u) + n / 8u] : uvec4(0u); \
        } \
    }
#define PUT(words) \
    [[unroll]] for (uint i = 0u; i < UNITS; i++) { \
        if (UNIT_ROWS <= 2u * T1 || unit_row < 2u * T1) stage[WORK + (unit_row + i * UNIT_ROWS) * PITCH + unit_p] = words; \
    }
#define PUT_X(half_first, words) \
    [[unroll]] for (uint i = 0u; i < X_UNITS; i++) { \
        if (UNIT_ROWS <= T1 || unit_row < T1) stage[(half_first) + (unit_row + i * UNIT_ROWS) * PITCH + unit_p] = words; \
    }
#define MULTIPLY(row, from) \
    [[unroll]] for (uint n = 0u; n < TN; n++) { \
        MatrixB column; \
        coopMatLoad(column, stage, (from) + (column_first + n * MATRIX_N) / 8u, PITCH, ROW_MAJOR); \
        [[unroll]] for (uint i = 0u; i < TM; i++) sums[i * TN + n] = coopMatMulAdd(row(i), column, sums[i * TN + n]); \
    }
#define PUT_SUMS \
    [[unroll]] for (uint i = 0u; i < TM; i++) { \
        [[unroll]] for (uint n = 0u; n < TN; n++) \
            coopMatStore(sums[i * TN + n], stage, \
                         WORK + (row_first + i * MATRIX_M) * SUM_PITCH + (column_first + n * MATRIX_N) / 4u, SUM_PITCH, ROW_MAJOR); \
    }
