#version 460
#extension GL_GOOGLE_include_directive : require
// What rows of the table rely on where NV_cooperative_matrix2 is used, each in the operation that is relied on; see MatrixCheckArgs.
// a, patterns, reduced, summed and numbered 16 x 16 f32; converted, placed and moved 128 words, joined 256.
// One subgroup of at most 32 lanes; matrices are 16 x 16 x 16. Shared memory: none.
#include "lib/dart.glsl"
#include "lib/matrix.glsl"
#include "table/matrix2_check.glsl"
READS_AS(vec4, quads, a) READS_AS(vec4, quads, patterns) WRITES_AS(vec4, quads, reduced) WRITES_AS(vec4, quads, summed)
WRITES_AS(vec4, quads, numbered) WRITES_AS(uvec4, quads, converted) WRITES_AS(uvec4, quads, placed)
WRITES_AS(uvec4, quads, moved) WRITES_AS(uint, words, joined)

const uint SIDE = 16u;
const uint ELEMENTS = MATRIX_M * MATRIX_N / SUBGROUP_SIZE; // of a matrix, in a lane
#define SumF16 coopmat<float16_t, gl_ScopeSubgroup, MATRIX_M, MATRIX_N, gl_MatrixUseAccumulator>

float sum_of(const in float a, const in float b) { return a + b; }
float number(const in uint row, const in uint column, const in float value, const in float factor)
{
    return factor * value + float(SIDE * row + column);
}

void main()
{
    MatrixSum a;
    coopMatLoad(a, quads_a, 0u, SIDE / 4u, ROW_MAJOR);

    MatrixSum reduced;
    coopMatReduceNV(reduced, a, gl_CooperativeMatrixReduceRowNV, sum_of);
    coopMatStore(reduced, quads_reduced, 0u, SIDE / 4u, ROW_MAJOR);

    MatrixSum summed;
    coopMatReduceNV(summed, a, gl_CooperativeMatrixReduceColumnNV, sum_of);
    coopMatStore(summed, quads_summed, 0u, SIDE / 4u, ROW_MAJOR);

    MatrixSum numbered = a;
    coopMatPerElementNV(numbered, numbered, number, 2.0);
    coopMatStore(numbered, quads_numbered, 0u, SIDE / 4u, ROW_MAJOR);

    coopMatStore(MatrixA(a), quads_converted, 0u, SIDE / 8u, ROW_MAJOR);

    SumF16 placed;
    [[unroll]] for (uint e = 0u; e < ELEMENTS; e++) placed[e] = float16_t(a[e]);
    coopMatStore(placed, quads_placed, 0u, SIDE / 8u, ROW_MAJOR);

    MatrixSum patterns;
    SumF16 moved;
    coopMatLoad(patterns, quads_patterns, 0u, SIDE / 4u, ROW_MAJOR);
    [[unroll]] for (uint e = 0u; e < ELEMENTS; e++) moved[e] = unpackFloat2x16(floatBitsToUint(patterns[e])).y;
    coopMatStore(moved, quads_moved, 0u, SIDE / 8u, ROW_MAJOR);

    for (uint i = LANE; i < SIDE * SIDE; i += LANES) {
        uint next = (i + 1u) % (SIDE * SIDE);
        uint low = floatBitsToUint(quads_patterns[i / 4u][i % 4u]);
        uint high = floatBitsToUint(quads_patterns[next / 4u][next % 4u]);
        words_joined[i] = packFloat2x16(f16vec2(unpackFloat2x16(low).y, unpackFloat2x16(high).y));
    }
}
