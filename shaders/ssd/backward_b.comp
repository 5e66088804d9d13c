#version 460
#extension GL_GOOGLE_include_directive : require
// grad_b_s = sum_(t >= s) grad_cb_ts c_t + the sum over the heads of a group of keep_s step_s (lambda + up_dh) x_s.
// x B L H P; c, grad_b B L G N; cum B H L 3; grad_cb B M G C C; lambda, up_dh B M H N P. A workgroup of 128 lanes makes T1 = 64 tokens x
// T0 = 64 columns n of a (b, j, g). Shared memory: 4,352 bytes (lib/tile.glsl).
// Guards: exponents <= 0; tokens past the chunk are not read and count as 0.
#include "lib/dart.glsl"
#include "table/ssd_backward_b.glsl"
READS(x) READS(c) READS(cum) READS(grad_cb) READS(lambda) READS(up_dh) READS(seq) WRITES(grad_b)
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
    uint n_blocks = (args.N + COLUMNS - 1u) / COLUMNS;
    uint tiles = (args.C + LINES - 1u) / LINES;
    uint in_group = args.H / args.G;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint n_first = tile % n_blocks * COLUMNS;
        uint first = tile / n_blocks % tiles * LINES;
        uint rest = tile / n_blocks / tiles;
        uint g = rest % args.G;
        Place at = place_of(rest / args.G);
        if (first >= at.size) continue;
        uint square = (at.slot * args.G + g) * args.C * args.C;
        clear_sums();
        for (uint t_first = first; t_first < at.size; t_first += DEPTH) {
            barrier();
            for (uint e = LANE; e < 64u * DEPTH; e += LANES) {
                uint s = first + e % 64u;
                uint t = t_first + e / 64u;
                uint n = n_first + e % 64u;
                put_a(e % 64u, e / 64u, s <= t && t < at.size ? load_grad_cb(square + t * args.C + s) : 0.0);
                put_b(e % 64u, e / 64u, t < at.size && n < args.N ? load_c(args.c_at + (at.token + t) * args.c_row + g * args.N + n) : 0.0);
            }
            barrier();
            multiply();
        }
        for (uint head = 0u; head < in_group; head++) {
            uint h = g * in_group + head;
            uint cum = cum_of(at, h);
            uint row = (at.slot * args.H + h) * args.N;
            vec2 end = cum_at(cum + at.size - 1u).xy;
            for (uint p_first = 0u; p_first < args.P; p_first += DEPTH) {
                barrier();
                for (uint e = LANE; e < 64u * DEPTH; e += LANES) {
                    uint p = p_first + e % DEPTH;
                    uint s = first + e / DEPTH;
                    uint n = n_first + e / DEPTH;
                    float value = 0.0;
                    if (s < at.size && p < args.P) {
                        vec3 source = cum_at(cum + s);
                        value = load_x(args.x_at + (at.token + s) * args.x_row + h * args.P + p) * exp_neg(cum_between(source.xy, end)) * source.z;
                    }
                    put_a(e / DEPTH, e % DEPTH, value);
                    value = 0.0;
                    if (n < args.N && p < args.P) {
                        value = load_lambda((row + n) * args.P + p);
                        if (has(args.flags, HAS_DH)) value += load_up_dh(args.up_dh_at + (row + n) * args.P + p);
                    }
                    put_b(e / DEPTH, e % DEPTH, value);
                }
                barrier();
                multiply();
            }
        }
        for (uint k = 0u; k < OWN_LINES; k++) {
            barrier();
            put_strip(k);
            barrier();
            for (uint e = LANE; e < STRIP; e += LANES) {
                uint s = first + strip_line(k, e / COLUMNS);
                uint n = n_first + e % COLUMNS;
                if (s < at.size && n < args.N) {
                    float value = strip_at(e / COLUMNS, e % COLUMNS);
                    store_grad_b(args.grad_b_at + (at.token + s) * args.grad_b_row + g * args.N + n, value);
                }
            }
        }
    }
}
