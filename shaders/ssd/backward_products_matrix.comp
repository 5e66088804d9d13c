#version 460
#extension GL_GOOGLE_include_directive : require
// The matrix rows of ssd_backward_products: cb[t, s] = c_t . b_s within a chunk, in the tiles on and below the diagonal. A workgroup makes
// SIDE x SIDE of a (b, j, g), a subgroup 16 x 32, 64 elements n at a time.
// b, c B L G N; cb B M G C C, f32. T0 is 64, LANES eight subgroups. Shared memory: 18,432 bytes.
// Guards: tokens past the chunk are not read and count as 0.
#include "lib/dart.glsl"
#include "table/ssd_backward_products.glsl"
READS(seq) WRITES(cb) READS_AS(uvec4, quads, b) READS_AS(uvec4, quads, c)
#define PACKS
#include "lib/seq.glsl"
#include "ssd.glsl"
#include "lib/matrix.glsl"
#include "matrix.glsl"
#include "backward.glsl"
#include "backward_matrix.glsl"

const uint COLUMN_GROUPS = SUBGROUPS / ROW_GROUPS;
const uint COLUMNS = SIDE / COLUMN_GROUPS;
const uint TN = COLUMNS / MATRIX_N;
const uint SQUARE_PITCH = SIDE / 4u + 1u;
shared uvec4 stage[2u * PANEL]; // c and b, then the sums

void main()
{
    uint side = (args.C + SIDE - 1u) / SIDE;
    uint pairs = side * (side + 1u) / 2u;
    uint line = gl_SubgroupID % ROW_GROUPS * OWN_ROWS;
    uint column = gl_SubgroupID / ROW_GROUPS * COLUMNS;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uvec2 pair = pair_of(tile % pairs) * SIDE;
        uint g = tile / pairs % args.G;
        Place at = place_of(tile / pairs / args.G);
        if (pair.x >= at.size) continue;
        MatrixSum sums[TM * TN];
        [[unroll]] for (uint i = 0u; i < TM * TN; i++) sums[i] = MatrixSum(0.0);
        for (uint n_first = 0u; n_first < args.N; n_first += HEAD) {
            barrier();
            [[unroll]] for (uint i = 0u; i < UNITS; i++) {
                uint row = (LANE + i * LANES) / WORDS;
                uint word = (LANE + i * LANES) % WORDS;
                uint t = pair.x + row;
                uint s = pair.y + row;
                uint from = (g * args.N + n_first) / 8u + word;
                bool inside = n_first / 8u + word < args.N / 8u;
                stage[row * PITCH + word] = inside && t < at.size ? quads_c[(args.c_at + (at.token + t) * args.c_row) / 8u + from] : uvec4(0u);
                stage[PANEL + row * PITCH + word] =
                    inside && s < at.size ? quads_b[(args.b_at + (at.token + s) * args.b_row) / 8u + from] : uvec4(0u);
            }
            barrier();
            [[unroll]] for (uint k = 0u; k < HEAD; k += MATRIX_K) {
                MatrixA left[TM];
                LOAD_LINES(left, stage, 0u, line, k, PITCH)
                [[unroll]] for (uint n = 0u; n < TN; n++) {
                    MatrixB right;
                    coopMatLoad(right, stage, PANEL + (column + n * MATRIX_N) * PITCH + k / 8u, PITCH, COLUMN_MAJOR);
                    [[unroll]] for (uint i = 0u; i < TM; i++) sums[i * TN + n] = coopMatMulAdd(left[i], right, sums[i * TN + n]);
                }
            }
        }
        barrier();
        [[unroll]] for (uint i = 0u; i < TM; i++) {
            [[unroll]] for (uint n = 0u; n < TN; n++)
                coopMatStore(sums[i * TN + n], stage, (line + i * MATRIX_M) * SQUARE_PITCH + (column + n * MATRIX_N) / 4u, SQUARE_PITCH, ROW_MAJOR);
        }
        barrier();
        uint to = (at.slot * args.G + g) * args.C * args.C;
        for (uint e = LANE; e < SIDE * SIDE; e += LANES) {
            uint t = pair.x + e / SIDE;
            uint s = pair.y + e % SIDE;
            if (t < at.size && s < at.size) store_cb(to + t * args.C + s, uintBitsToFloat(stage[e / SIDE * SQUARE_PITCH + e % SIDE / 4u][e % 4u]));
        }
    }
}
