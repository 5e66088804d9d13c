// What the rows of keys (-DOF_KEYS) and of queries of backward_matrix.comp and backward_late.comp read and write, and their products with w and u.
// The macros use the constants and shared memory of these files, and `part`, `lane`, `own_first`, `own_head` and `sequence` of their main().

// Eight 16-bit elements of a row.
uvec4 own_x(uint token, uint head, uint group, uint quad)
{
#ifdef OF_KEYS
    return quads_k[(args.k_at + token * args.k_row + group * args.D) / 8u + quad];
#else
    return quads_q[(args.q_at + token * args.q_row + head * args.D) / 8u + quad];
#endif
}
uvec4 own_y(uint token, uint head, uint group, uint quad)
{
#ifdef OF_KEYS
    return quads_v[(args.v_at + token * args.v_row + group * args.D) / 8u + quad];
#else
    return quads_up_o[(args.up_o_at + token * args.up_o_row + head * args.D) / 8u + quad];
#endif
}
uvec4 passing_x(uint token, uint head, uint group, uint quad)
{
#ifdef OF_KEYS
    return quads_q[(args.q_at + token * args.q_row + head * args.D) / 8u + quad];
#else
    return quads_k[(args.k_at + token * args.k_row + group * args.D) / 8u + quad];
#endif
}
uvec4 passing_y(uint token, uint head, uint group, uint quad)
{
#ifdef OF_KEYS
    return quads_up_o[(args.up_o_at + token * args.up_o_row + head * args.D) / 8u + quad];
#else
    return quads_v[(args.v_at + token * args.v_row + group * args.D) / 8u + quad];
#endif
}

// The subgroup's own rows as left operands, tile by tile through the place of the passing rows.
#define TAKE_OWN(left, rows) \
    [[unroll]] for (uint n = 0u; n < R * DEPTH_TILES; n++) { \
        for (uint i = lane; i < OWN_WORDS; i += SUBGROUP_SIZE) { \
            uint line = own_first + n / DEPTH_TILES * MATRIX_M + i / (MATRIX_K / 8u); \
            uint quad = n % DEPTH_TILES * MATRIX_K / 8u + i % (MATRIX_K / 8u); \
            bool is = line < sequence.count && quad < head_quads; \
            xs[gl_SubgroupID * OWN_WORDS + i] = is ? rows(sequence.row + line, own_head, group, quad) : uvec4(0u); \
        } \
        subgroup_sync(); \
        coopMatLoad(left[n], xs, gl_SubgroupID * OWN_WORDS, MATRIX_K / 8u, ROW_MAJOR); \
        subgroup_sync(); \
    }
// A row's value in every column, from scratch.
#define LOAD_ROWS(matrix, first) coopMatLoad(matrix, scratch, (first) / 4u, 0u, COLUMN_MAJOR)
// MATRIX_K columns of sums of row tile r, the j-th ones, as a left operand.
#ifdef MATRIX2
#define TAKE_LEFT(left, from, r, j) left = MatrixA(from[(r) * OTHER_TILES + (j)]);
#else
#define TAKE_LEFT(left, from, r, j) \
    [[unroll]] for (uint n = 0u; n < MATRIX_K / MATRIX_N; n++) \
        coopMatStore(from[(r) * OTHER_TILES + (j) * (MATRIX_K / MATRIX_N) + n], scratch, (part + n * MATRIX_N) / 4u, MATRIX_K / 4u, ROW_MAJOR); \
    subgroup_sync(); \
    for (uint i = lane; i < PART / 8u; i += SUBGROUP_SIZE) \
        packed[part / 8u + i] = pack_eight(scratch[part / 4u + 2u * i], scratch[part / 4u + 2u * i + 1u]); \
    subgroup_sync(); \
    coopMatLoad(left, packed, part / 8u, MATRIX_K / 8u, ROW_MAJOR);
#endif
// to += from (R row tiles x BLOCK columns) x the rows in shared memory `rows` from its word `at` on.
#define MULTIPLY(to, from, rows, at) \
    [[unroll]] for (uint j = 0u; j < WEIGHT_TILES; j++) { \
        MatrixA left[R]; \
        [[unroll]] for (uint r = 0u; r < R; r++) { TAKE_LEFT(left[r], from, r, j) } \
        [[unroll]] for (uint d = 0u; d < HEAD_TILES; d++) { \
            MatrixB right; \
            coopMatLoad(right, rows, (at) + j * MATRIX_K * PITCH + d * MATRIX_N / 8u, PITCH, ROW_MAJOR); \
            [[unroll]] for (uint r = 0u; r < R; r++) to[r * HEAD_TILES + d] = coopMatMulAdd(left[r], right, to[r * HEAD_TILES + d]); \
        } \
    }
// Eight columns of a gradient from element `at` on.
#define STORE_EIGHT(name, at, low, high) \
    if (DTYPE_OF(name) == TYPE_F32) { \
        quads_##name[(at) / 4u] = floatBitsToUint(low); \
        quads_##name[(at) / 4u + 1u] = floatBitsToUint(high); \
    } else { \
        uvec4 bits_low = uvec4(bits_16bit(DTYPE_OF(name), low.x), bits_16bit(DTYPE_OF(name), low.y), bits_16bit(DTYPE_OF(name), low.z), \
                               bits_16bit(DTYPE_OF(name), low.w)); \
        uvec4 bits_high = uvec4(bits_16bit(DTYPE_OF(name), high.x), bits_16bit(DTYPE_OF(name), high.y), bits_16bit(DTYPE_OF(name), high.z), \
                                bits_16bit(DTYPE_OF(name), high.w)); \
        quads_##name[(at) / 8u] = \
            uvec4(bits_low.x | bits_low.y << 16, bits_low.z | bits_low.w << 16, bits_high.x | bits_high.y << 16, bits_high.z | bits_high.w << 16); \
    }
// factor x from as rows of a gradient.
#define STORE(name, from, factor) \
    [[unroll]] for (uint n = 0u; n < R * HEAD_TILES; n++) { \
        coopMatStore(from[n] * (factor), scratch, part / 4u, MATRIX_N / 4u, ROW_MAJOR); \
        subgroup_sync(); \
        for (uint i = lane; i < MATRIX_M * MATRIX_N / 8u; i += SUBGROUP_SIZE) { \
            uint line = own_first + n / HEAD_TILES * MATRIX_M + i / (MATRIX_N / 8u); \
            uint column = n % HEAD_TILES * MATRIX_N + i % (MATRIX_N / 8u) * 8u; \
            if (line < sequence.span && column < args.D) { \
                uint to = args.name##_at + (sequence.row + line) * args.name##_row + own_head * args.D + column; \
                vec4 low = scratch[part / 4u + 2u * i]; \
                vec4 high = scratch[part / 4u + 2u * i + 1u]; \
                STORE_EIGHT(name, to, low, high) \
            } \
        } \
        subgroup_sync(); \
    }
