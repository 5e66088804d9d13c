#version 460
#extension GL_GOOGLE_include_directive : require
// read[n, p] = sum_t exp(cum_t) c_t[n] up_y_t[p] over a chunk.
// c B L G N; up_y B L H P; cum B H L 3; read B M H N P, f32. A workgroup of 128 lanes makes T0 = 64 rows n x T1 = 64 columns p of a
// (b, j, h). Shared memory: 4,352 bytes (lib/tile.glsl). Guards: exponents <= 0; tokens past the chunk are not read and count as 0.
#include "lib/dart.glsl"
#include "table/ssd_backward_read.glsl"
READS(c) READS(up_y) READS(cum) READS(seq) WRITES(read)
#define PACKS
#include "lib/seq.glsl"
#define SSD_CUM
#include "ssd.glsl"
#include "backward.glsl"
const uint ROWS = 16u;
const uint LINES = 64u;
const uint COLUMNS = 64u;
#include "lib/tile.glsl"

void main()
{
    uint n_blocks = (args.N + LINES - 1u) / LINES;
    uint p_blocks = (args.P + COLUMNS - 1u) / COLUMNS;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint n_first = tile % n_blocks * LINES;
        uint p_first = tile / n_blocks % p_blocks * COLUMNS;
        uint rest = tile / n_blocks / p_blocks;
        uint h = rest % args.H;
        uint g = h / (args.H / args.G);
        Place at = place_of(rest / args.H);
        if (at.size == 0u) continue;
        uint cum = cum_of(at, h);
        clear_sums();
        for (uint t_first = 0u; t_first < at.size; t_first += DEPTH) {
            barrier();
            for (uint e = LANE; e < 64u * DEPTH; e += LANES) {
                uint t = t_first + e / 64u;
                uint n = n_first + e % 64u;
                uint p = p_first + e % 64u;
                bool there = t < at.size;
                put_a(e % 64u, e / 64u, there && n < args.N ? load_c(args.c_at + (at.token + t) * args.c_row + g * args.N + n) *
                                                                  exp_neg(cum_at(cum + t).x) : 0.0);
                put_b(e % 64u, e / 64u, there && p < args.P ? load_up_y(args.up_y_at + (at.token + t) * args.up_y_row + h * args.P + p) : 0.0);
            }
            barrier();
            multiply();
        }
        uint to = (at.slot * args.H + h) * args.N;
        for (uint k = 0u; k < OWN_LINES; k++) {
            barrier();
            put_strip(k);
            barrier();
            for (uint e = LANE; e < STRIP; e += LANES) {
                uint n = n_first + strip_line(k, e / COLUMNS);
                uint p = p_first + e % COLUMNS;
                if (n < args.N && p < args.P) {
                    float value = strip_at(e / COLUMNS, e % COLUMNS);
                    store_read((to + n) * args.P + p, value);
                }
            }
        }
    }
}
