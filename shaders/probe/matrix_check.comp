#version 460
#extension GL_GOOGLE_include_directive : require
// y = 2 (r 1^T + a b) for 16 x 16 matrices, r being a column that all columns of the sum start with: what the matrix rows of
// the table rely on, in one small shader that a device must get right before they are used. The factor goes through the elements that each lane
// holds, of which the rows take M N / subgroup for granted.
// a, b 16 x 16, r 16 f32, y 16 x 16 f32. One subgroup. Shared memory: none.
#include "lib/dart.glsl"
#include "lib/matrix.glsl"
#include "table/matrix_check.glsl"
READS_AS(uvec4, quads, a) READS_AS(uvec4, quads, b) READS_AS(float, floats, r) WRITES_AS(float, floats, y)

const uint SIDE = 16u;
const uint PITCH = SIDE / 8u; // 16-byte words a row
const uint ELEMENTS = MATRIX_M * MATRIX_N / SUBGROUP_SIZE; // of a matrix, in a lane

void main()
{
    for (uint i = 0u; i < SIDE; i += MATRIX_M) {
        for (uint j = 0u; j < SIDE; j += MATRIX_N) {
            MatrixSum sum;
            coopMatLoad(sum, floats_r, i, 0u, COLUMN_MAJOR);
            for (uint k = 0u; k < SIDE; k += MATRIX_K) {
                MatrixA a;
                MatrixB b;
                coopMatLoad(a, quads_a, i * PITCH + k / 8u, PITCH, ROW_MAJOR);
                coopMatLoad(b, quads_b, k * PITCH + j / 8u, PITCH, ROW_MAJOR);
                sum = coopMatMulAdd(a, b, sum);
            }
            if (uint(sum.length()) == ELEMENTS) {
                [[unroll]] for (uint e = 0u; e < ELEMENTS; e++) sum[e] = 2.0 * sum[e];
            }
            coopMatStore(sum, floats_y, i * SIDE + j, SIDE, ROW_MAJOR);
        }
    }
}
