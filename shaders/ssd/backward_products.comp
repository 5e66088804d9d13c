#version 460
#extension GL_GOOGLE_include_directive : require
// cb[t, s] = c_t . b_s within a chunk, in the tiles on and below the diagonal.
// b, c B L G N; cb B M G C C, f32. A workgroup of 128 lanes makes 64 x 64 of a (b, j, g). Shared memory: 4,352 bytes (lib/tile.glsl).
// Guards: tokens past the chunk are not read and count as 0.
#include "lib/dart.glsl"
#include "table/ssd_backward_products.glsl"
READS(b) READS(c) READS(seq) WRITES(cb)
#define PACKS
#include "lib/seq.glsl"
#include "ssd.glsl"
#include "backward.glsl"
const uint ROWS = 16u;
const uint LINES = 64u;
const uint COLUMNS = 64u;
#include "lib/tile.glsl"

void main()
{
    uint side = (args.C + 63u) / 64u;
    uint pairs = side * (side + 1u) / 2u;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uvec2 pair = pair_of(tile % pairs) * 64u;
        uint g = tile / pairs % args.G;
        Place at = place_of(tile / pairs / args.G);
        if (pair.x >= at.size) continue;
        clear_sums();
        for (uint n_first = 0u; n_first < args.N; n_first += DEPTH) {
            barrier();
            for (uint e = LANE; e < 64u * DEPTH; e += LANES) {
                uint n = n_first + e % DEPTH;
                uint t = pair.x + e / DEPTH;
                uint s = pair.y + e / DEPTH;
                put_a(e / DEPTH, e % DEPTH, t < at.size && n < args.N ? load_c(args.c_at + (at.token + t) * args.c_row + g * args.N + n) : 0.0);
                put_b(e / DEPTH, e % DEPTH, s < at.size && n < args.N ? load_b(args.b_at + (at.token + s) * args.b_row + g * args.N + n) : 0.0);
            }
            barrier();
            multiply();
        }
        uint to = (at.slot * args.G + g) * args.C * args.C;
        for (uint k = 0u; k < OWN_LINES; k++) {
            barrier();
            put_strip(k);
            barrier();
            for (uint e = LANE; e < STRIP; e += LANES) {
                uint t = pair.x + strip_line(k, e / COLUMNS);
                uint s = pair.y + e % COLUMNS;
                if (t < at.size && s < at.size) {
                    float value = strip_at(e / COLUMNS, e % COLUMNS);
                    store_cb(to + t * args.C + s, value);
                }
            }
        }
    }
}
