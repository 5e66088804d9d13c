// What both kernels share that keep logits in registers (shaders/loss/args.h): a workgroup multiplies T0 rows of a left tensor, kept as
// matrices of the subgroup, with BLOCK rows of a right one at a time, which pass through shared memory, and the result with the same BLOCK rows
// again. For rows compiled with -DWIDTH, the most columns that a row may have; further columns count as 0.
// T0 is a multiple of SUBGROUPS MATRIX_M, MATRIX_K one of MATRIX_N (equal with -DMATRIX2), SUBGROUP_SIZE >= MATRIX_M.
// Shared memory: 16 BLOCK (WIDTH / 8 + 1) + 4 SUBGROUPS MATRIX_M MATRIX_K (half as much again without -DMATRIX2) + 4 MATRIX_M
// (MATRIX_N + 1) bytes.
#define WIDTH_QUADS (WIDTH / 8u)
const uint BLOCK = MATRIX_M < 16u ? 16u : T1; // small matrices make for many, which compile slowly
const uint ROWS = T0 / SUBGROUPS;
const uint R = ROWS / MATRIX_M;
const uint BLOCK_TILES = BLOCK / MATRIX_N;
const uint DEPTH_TILES = WIDTH / MATRIX_K;
const uint WIDTH_TILES = WIDTH / MATRIX_N;
const uint LEFT_TILES = BLOCK / MATRIX_K;
const uint PITCH = WIDTH_QUADS + 1u; // 16-byte words a row in shared memory, odd to spread the banks
const uint QUADS = BLOCK * WIDTH_QUADS;
const uint FETCH = (QUADS + LANES - 1u) / LANES;
const uint PART = MATRIX_M * MATRIX_K; // floats of a subgroup's scratch memory
const uint ELEMENTS = MATRIX_M * MATRIX_N / SUBGROUP_SIZE; // components of an accumulator in a lane
const uint LEFT_WORDS = MATRIX_M * MATRIX_K / 8u;
const uint LEFT_FETCH = (LEFT_WORDS + SUBGROUP_SIZE - 1u) / SUBGROUP_SIZE;
const uint RESULT_STORES = (MATRIX_M * MATRIX_N / 8u + SUBGROUP_SIZE - 1u) / SUBGROUP_SIZE;
const float LOG2_E = 1.44269504;
const float LN_2 = 0.693147181;

shared uvec4 block[BLOCK * PITCH];
// Vectors, because matrices want addresses of whole 16 bytes.
shared vec4 scratch[SUBGROUPS * PART / 4u];
#ifndef MATRIX2
shared uvec4 packed[SUBGROUPS * PART / 8u];
#endif
shared vec4 table[(MATRIX_N + 1u) * MATRIX_M / 4u]; // column of each element, row by row; then the rows

void fill_table()
{
    for (uint i = LANE; i < (MATRIX_N + 1u) * MATRIX_M / 4u; i += LANES)
        table[i] = vec4(i * 4u % (i < MATRIX_N * MATRIX_M / 4u ? MATRIX_N : MATRIX_M)) + vec4(0.0, 1.0, 2.0, 3.0);
}

#include "lib/rounded.glsl"

// A row's value in every column, from scratch; a column's in every row, from a vector of BLOCK.
#define LOAD_ROWS(matrix, first) coopMatLoad(matrix, scratch, (first) / 4u, 0u, COLUMN_MAJOR)
#define LOAD_COLUMNS(matrix, vector, first) coopMatLoad(matrix, vector, (first) / 4u, 0u, ROW_MAJOR)

// left[r DEPTH_TILES + d] = rows first + r MATRIX_M .. of a tensor, at most row last: `quads` names its memory, at + row pitch the word of the
// row's first column. Through the place of the block, one tile of each subgroup at a time.
#define LOAD_LEFT(left, quads, at, pitch, first, last, width_quads) \
    [[unroll]] for (uint r = 0u; r < R; r++) { \
        [[unroll]] for (uint d = 0u; d < DEPTH_TILES; d++) { \
            [[unroll]] for (uint round = 0u; round < LEFT_FETCH; round++) { \
                uint i = min(lane + round * SUBGROUP_SIZE, LEFT_WORDS - 1u); \
                uint row = min((first) + r * MATRIX_M + i / (MATRIX_K / 8u), last); \
                uint quad = d * MATRIX_K / 8u + i % (MATRIX_K / 8u); \
                uvec4 words = quads[(at) + row * (pitch) + min(quad, (width_quads) - 1u)]; \
                block[gl_SubgroupID * LEFT_WORDS + i] = quad < (width_quads) ? words : uvec4(0u); \
            } \
            subgroup_sync(); \
            coopMatLoad(left[r * DEPTH_TILES + d], block, gl_SubgroupID * LEFT_WORDS, MATRIX_K / 8u, ROW_MAJOR); \
            subgroup_sync(); \
        } \
    }

// products[r BLOCK_TILES + j] = left, tile r, times the rows of the block, tile j.
#define MULTIPLY_BLOCK(products, left) \
    [[unroll]] for (uint j = 0u; j < BLOCK_TILES; j++) { \
        [[unroll]] for (uint r = 0u; r < R; r++) products[r * BLOCK_TILES + j] = MatrixSum(0.0); \
        [[unroll]] for (uint d = 0u; d < DEPTH_TILES; d++) { \
            MatrixB right; \
            coopMatLoad(right, block, j * MATRIX_N * PITCH + d * MATRIX_K / 8u, PITCH, COLUMN_MAJOR); \
            [[unroll]] for (uint r = 0u; r < R; r++) \
                products[r * BLOCK_TILES + j] = coopMatMulAdd(left[r * DEPTH_TILES + d], right, products[r * BLOCK_TILES + j]); \
        } \
    }

// to = tiles `first` .. of products, as a left operand.
#ifdef MATRIX2
#define CONVERT_LEFT(to, products, first) to = MatrixA(products[first]);
#else
#define CONVERT_LEFT(to, products, first) \
    [[unroll]] for (uint n = 0u; n < MATRIX_K / MATRIX_N; n++) \
        coopMatStore(products[(first) + n], scratch, (part + n * MATRIX_N) / 4u, MATRIX_K / 4u, ROW_MAJOR); \
    subgroup_sync(); \
    for (uint i = lane; i < PART / 8u; i += SUBGROUP_SIZE) { \
        vec4 low = scratch[part / 4u + 2u * i]; \
        vec4 high = scratch[part / 4u + 2u * i + 1u]; \
        packed[part / 8u + i] = uvec4(pack_elements(low.x, low.y), pack_elements(low.z, low.w), \
                                      pack_elements(high.x, high.y), pack_elements(high.z, high.w)); \
    } \
    subgroup_sync(); \
    coopMatLoad(to, packed, part / 8u, MATRIX_K / 8u, ROW_MAJOR);
#endif

// sums[r WIDTH_TILES + d] += products, rounded to the element type, times the block.
#define ADD_BLOCK(sums, products) \
    [[unroll]] for (uint j = 0u; j < LEFT_TILES; j++) { \
        MatrixA again[R]; \
        [[unroll]] for (uint r = 0u; r < R; r++) { CONVERT_LEFT(again[r], products, r * BLOCK_TILES + j * (MATRIX_K / MATRIX_N)) } \
        [[unroll]] for (uint d = 0u; d < WIDTH_TILES; d++) { \
            MatrixB right; \
            coopMatLoad(right, block, j * MATRIX_K * PITCH + d * MATRIX_N / 8u, PITCH, ROW_MAJOR); \
            [[unroll]] for (uint r = 0u; r < R; r++) \
                sums[r * WIDTH_TILES + d] = coopMatMulAdd(again[r], right, sums[r * WIDTH_TILES + d]); \
        } \
    }
