#version 460
#extension GL_GOOGLE_include_directive : require
// u_ts = exp(cum_t - cum_s) step_s (up_y_t . x_s) for s <= t, grad_cb = the sum of u over the heads of a group, z = u cb; shares of sums
// of z, see args.h.
// x, up_y B L H P; cum B H L 3; cb, grad_cb B M G C C; sums B M H pairs 64. A workgroup of 128 lanes makes 32 x 32 tokens of a (b, j, g),
// head after head. Shared memory: 2,304 + 4 32 33 + 4 64 bytes. Guards: exponents <= 0; tokens past the chunk are not read.
#include "lib/dart.glsl"
#include "table/ssd_backward_scores.glsl"
READS(x) READS(up_y) READS(cum) READS(cb) READS(seq) READS_WRITES(grad_cb) WRITES(sums)
#define PACKS
#include "lib/seq.glsl"
#define SSD_CUM
#include "ssd.glsl"
#include "backward.glsl"
const uint SIDE = SCORE_SIDE;
const uint ROWS = 16u;
const uint LINES = SIDE;
const uint COLUMNS = SIDE;
#include "lib/tile.glsl"

shared float z[SIDE * (SIDE + 1u)];
shared float totals[2u * SIDE];

void main()
{
    uint side = (args.C + SIDE - 1u) / SIDE;
    uint pairs = side * (side + 1u) / 2u;
    uint in_group = args.H / args.G;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uvec2 pair = pair_of(tile % pairs) * SIDE;
        uint g = tile / pairs % args.G;
        Place at = place_of(tile / pairs / args.G);
        if (pair.x >= at.size) continue;
        uint square = (at.slot * args.G + g) * args.C * args.C;
        for (uint head = 0u; head < in_group; head++) {
            uint h = g * in_group + head;
            uint cum = cum_of(at, h);
            clear_sums();
            for (uint p_first = 0u; p_first < args.P; p_first += DEPTH) {
                barrier();
                for (uint e = LANE; e < SIDE * DEPTH; e += LANES) {
                    uint p = p_first + e % DEPTH;
                    uint t = pair.x + e / DEPTH;
                    uint s = pair.y + e / DEPTH;
                    put_a(e / DEPTH, e % DEPTH, t < at.size && p < args.P ?
                                                    load_up_y(args.up_y_at + (at.token + t) * args.up_y_row + h * args.P + p) : 0.0);
                    put_b(e / DEPTH, e % DEPTH, s < at.size && p < args.P ?
                                                    load_x(args.x_at + (at.token + s) * args.x_row + h * args.P + p) : 0.0);
                }
                barrier();
                multiply();
            }
            for (uint k = 0u; k < OWN_LINES; k++) {
                barrier();
                put_strip(k);
                barrier();
                for (uint e = LANE; e < STRIP; e += LANES) {
                    uint line = strip_line(k, e / SIDE);
                    uint t = pair.x + line;
                    uint s = pair.y + e % SIDE;
                    float u = 0.0;
                    float weight = 0.0;
                    if (s <= t && t < at.size) {
                        vec3 source = cum_at(cum + s);
                        u = exp_neg(cum_between(source.xy, cum_at(cum + t).xy)) * source.z * strip_at(e / SIDE, e % SIDE);
                        weight = load_cb(square + t * args.C + s);
                    }
                    if (t < at.size && s < at.size) { // the same lane for every head
                        uint own = square + t * args.C + s;
                        store_grad_cb(own, head == 0u ? u : load_grad_cb(own) + u);
                    }
                    z[line * (SIDE + 1u) + e % SIDE] = u * weight;
                }
            }
            barrier();
            uint to = (((at.slot * args.H + h) * pairs) + tile % pairs) * 64u;
            uint own = LANE % SIDE;
            if (pair.x == pair.y) {
                if (LANE < SIDE) { // row own: sums of the columns before each
                    float before = 0.0;
                    for (uint k = 0u; k < SIDE; k++) {
                        float value = z[own * (SIDE + 1u) + k];
                        z[own * (SIDE + 1u) + k] = before;
                        before += value;
                    }
                }
                barrier();
                if (LANE < SIDE) {
                    float sum = 0.0;
                    for (uint r = own; r < SIDE; r++) sum += z[r * (SIDE + 1u) + own];
                    store_sums(to + own, sum);
                }
            } else {
                float sum = 0.0;
                for (uint k = 0u; k < SIDE; k++) sum += LANE < SIDE ? z[own * (SIDE + 1u) + k] : z[k * (SIDE + 1u) + own];
                if (LANE < 2u * SIDE) totals[LANE] = sum;
                barrier();
                sum = 0.0;
                if (LANE < SIDE) {
                    for (uint r = SIDE; r-- > own;) sum += totals[r];
                } else {
                    for (uint c = 0u; c < own; c++) sum += totals[SIDE + c];
                }
                if (LANE < 2u * SIDE) store_sums(to + LANE, sum);
            }
        }
    }
}
