#version 460
#extension GL_GOOGLE_include_directive : require
// The matrix rows of ssd_backward_read: read[n, p] = sum_t exp(cum_t) c_t[n] up_y_t[p] over a chunk. A workgroup makes all rows n and columns p of
// a (b, j, h), a subgroup 16 rows. SIDE tokens at a time of c and of exp(cum_t) up_y_t, rounded once, lie in shared memory, while the next ones are
// fetched into registers.
// c B L G N; up_y B L H P; cum B H L 3; read B M H N P, f32. T0 is 128, T1 64, LANES eight subgroups. Shared memory: 26,624 bytes.
// Guards: exponents <= 0; tokens past the chunk are not read and count as 0.
#include "lib/dart.glsl"
#include "table/ssd_backward_read.glsl"
READS(cum) READS(seq) READS_AS(uvec4, quads, c) READS_AS(uvec4, quads, up_y) WRITES_AS(float, floats, read)
#define PACKS
#include "lib/seq.glsl"
#define SSD_CUM
#include "ssd.glsl"
#include "lib/matrix.glsl"
#include "matrix.glsl"
#include "backward.glsl"
#include "backward_matrix.glsl"

const uint C_WORDS = T0 / 8u;
const uint C_PITCH = C_WORDS + 1u;
const uint C_UNITS = SIDE * C_WORDS / LANES;
const uint TN = HEAD / MATRIX_N;
shared uvec4 rows[SIDE * C_PITCH]; // of c
shared uvec4 ups[PANEL];           // of up_y

#ifdef MATRIX_BF16
#define SLAB(i) ((i) * SIDE)
#else
#define SLAB(i) ((slabs - 1u - (i)) * SIDE)
#endif

void main()
{
    uint line = gl_SubgroupID * OWN_ROWS; // of the subgroup's rows n
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint h = tile % args.H;
        uint g = h / (args.H / args.G);
        Place at = place_of(tile / args.H);
        if (at.size == 0u) continue;
        uint cum = cum_of(at, h);
        uvec4 next_c[C_UNITS];
        uvec4 next_up[UNITS];
        vec2 next_cum[UNITS];
        uint c_first = (args.c_at + at.token * args.c_row + g * args.N) / 8u;
        uint up_first = (args.up_y_at + at.token * args.up_y_row + h * args.P) / 8u;
#define FETCH(t_first) \
        { \
            [[unroll]] for (uint i = 0u; i < C_UNITS; i++) { \
                uint e = LANE + i * LANES; \
                uint t = (t_first) + e / C_WORDS; \
                next_c[i] = t < at.size && e % C_WORDS < args.N / 8u ? quads_c[c_first + t * (args.c_row / 8u) + e % C_WORDS] : uvec4(0u); \
            } \
            [[unroll]] for (uint i = 0u; i < UNITS; i++) { \
                uint e = LANE + i * LANES; \
                uint t = (t_first) + e / WORDS; \
                next_up[i] = t < at.size && e % WORDS < args.P / 8u ? quads_up_y[up_first + t * (args.up_y_row / 8u) + e % WORDS] : uvec4(0u); \
                next_cum[i] = cum_at(cum + min(t, at.size - 1u)).xy; \
            } \
        }
        MatrixSum sums[TM * TN];
        [[unroll]] for (uint i = 0u; i < TM * TN; i++) sums[i] = MatrixSum(0.0);
        uint slabs = (at.size + SIDE - 1u) / SIDE;
        FETCH(SLAB(0u))
#ifndef MATRIX_BF16
        vec2 begin = cum_at(cum + SLAB(0u)).xy;
#endif
        for (uint slab = 0u; slab < slabs; slab++) {
            barrier();
#ifndef MATRIX_BF16
            // Tokens are taken in blocks from the last block back. Decays are relative to the first token of a block, so that up_y is
            // scaled by at most one block's decay.
            vec2 later = begin;
            begin = cum_at(cum + SLAB(slab)).xy;
            float since = exp_neg(cum_between(begin, later));
            [[unroll]] for (uint i = 0u; i < TM * TN; i++) sums[i] = sums[i] * since;
#endif
            [[unroll]] for (uint i = 0u; i < C_UNITS; i++) rows[(LANE + i * LANES) / C_WORDS * C_PITCH + (LANE + i * LANES) % C_WORDS] = next_c[i];
            [[unroll]] for (uint i = 0u; i < UNITS; i++) {
#ifdef MATRIX_BF16
                float factor = decay_exp(next_cum[i].x);
#else
                float factor = decay_exp(cum_between(begin, next_cum[i]));
#endif
                ups[(LANE + i * LANES) / WORDS * PITCH + (LANE + i * LANES) % WORDS] =
                    pack_eight(low_four(next_up[i]) * factor, high_four(next_up[i]) * factor);
            }
            barrier();
            if (slab + 1u < slabs) FETCH(SLAB(slab + 1u))
            if (line < args.N) {
                [[unroll]] for (uint k = 0u; k < SIDE; k += MATRIX_K) {
                    MatrixA left[TM];
                    LOAD_LINES_TURNED(left, rows, 0u, line, k, C_PITCH)
                    [[unroll]] for (uint n = 0u; n < TN; n++) {
                        MatrixB right;
                        coopMatLoad(right, ups, k * PITCH + n * MATRIX_N / 8u, PITCH, ROW_MAJOR);
                        [[unroll]] for (uint i = 0u; i < TM; i++) sums[i * TN + n] = coopMatMulAdd(left[i], right, sums[i * TN + n]);
                    }
                }
            }
        }
        if (line >= args.N) continue;
#ifndef MATRIX_BF16
        float since = exp_neg(begin.x);
        [[unroll]] for (uint i = 0u; i < TM * TN; i++) sums[i] = sums[i] * since;
#endif
        uint to = ((at.slot * args.H + h) * args.N + line) * args.P;
        [[unroll]] for (uint i = 0u; i < TM; i++) {
            [[unroll]] for (uint n = 0u; n < TN; n++) {
                if (n * MATRIX_N < args.P)
                    coopMatStore(sums[i * TN + n], floats_read, to + i * MATRIX_M * args.P + n * MATRIX_N, args.P, ROW_MAJOR);
            }
        }
    }
}
