#version 460
#extension GL_GOOGLE_include_directive : require
// grad_c_t = sum_(s <= t) grad_cb_ts b_s + the sum over the heads of a group of exp(cum_t) hin up_y_t, added to what grad_c holds with
// IS_ADD; and of each token and head exp(cum_t) c_t . hin up_y_t.
// up_y B L H P; b, c, grad_c B L G N; cum B H L 3; grad_cb B M G C C; hin B M H N P, raw or with hin_scale B M H N; token B L H 4.
// A workgroup of 64 lanes makes 32 tokens of a (b, j, g), 32 columns n at a time: with 64, Intel has too few registers.
// Shared memory: 2,304 + 256 bytes.
// Guards: exponents <= 0; tokens past the chunk are not read and count as 0.
#include "lib/dart.glsl"
#include "table/ssd_backward_c.glsl"
READS(b) READS(c) READS(up_y) READS(cum) READS(grad_cb) READS(hin) READS(hin_scale) READS(seq) READS_WRITES(grad_c) READS_WRITES(token)
#define PACKS
#include "lib/seq.glsl"
#define SSD_CUM
#include "ssd.glsl"
#include "backward.glsl"
const uint ROWS = 8u;
const uint LINES = 32u;
const uint COLUMNS = 32u;
#include "lib/tile.glsl"

shared float parts[LANES];

void main()
{
    uint tiles = (args.C + LINES - 1u) / LINES;
    uint in_group = args.H / args.G;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint first = tile % tiles * LINES;
        uint g = tile / tiles % args.G;
        Place at = place_of(tile / tiles / args.G);
        if (first >= at.size) continue;
        uint square = (at.slot * args.G + g) * args.C * args.C;
        uint last = min(first + LINES, at.size);
        for (uint n_first = 0u; n_first < args.N; n_first += COLUMNS) {
            clear_sums();
            for (uint s_first = 0u; s_first < last; s_first += DEPTH) {
                barrier();
                for (uint e = LANE; e < LINES * DEPTH; e += LANES) {
                    uint t = first + e / DEPTH;
                    uint s = s_first + e % DEPTH;
                    put_a(e / DEPTH, e % DEPTH, s <= t && t < at.size ? load_grad_cb(square + t * args.C + s) : 0.0);
                }
                for (uint e = LANE; e < COLUMNS * DEPTH; e += LANES) {
                    uint s = s_first + e / COLUMNS;
                    uint n = n_first + e % COLUMNS;
                    put_b(e % COLUMNS, e / COLUMNS,
                          s < at.size && n < args.N ? load_b(args.b_at + (at.token + s) * args.b_row + g * args.N + n) : 0.0);
                }
                barrier();
                multiply();
            }
            vec4 total[OWN_LINES * OWN_QUADS];
            [[unroll]] for (uint i = 0u; i < OWN_LINES * OWN_QUADS; i++) total[i] = sums[i];
            for (uint head = 0u; head < in_group; head++) {
                uint h = g * in_group + head;
                uint cum = cum_of(at, h);
                uint row = (at.slot * args.H + h) * args.N;
                clear_sums();
                for (uint p_first = 0u; p_first < args.P; p_first += DEPTH) {
                    barrier();
                    for (uint e = LANE; e < LINES * DEPTH; e += LANES) {
                        uint t = first + e / DEPTH;
                        uint p = p_first + e % DEPTH;
                        put_a(e / DEPTH, e % DEPTH, t < at.size && p < args.P ?
                                                        load_up_y(args.up_y_at + (at.token + t) * args.up_y_row + h * args.P + p) : 0.0);
                    }
                    for (uint e = LANE; e < COLUMNS * DEPTH; e += LANES) {
                        uint n = n_first + e / DEPTH;
                        uint p = p_first + e % DEPTH;
                        float value = 0.0;
                        if (n < args.N && p < args.P) {
                            value = load_hin(args.hin_at + (row + n) * args.P + p);
                            if (has(args.flags, HAS_HIN_SCALE)) value *= load_hin_scale(args.hin_scale_at + row + n);
                        }
                        put_b(e / DEPTH, e % DEPTH, value);
                    }
                    barrier();
                    multiply();
                }
                [[unroll]] for (uint l = 0u; l < OWN_LINES; l++) {
                    float factor = exp_neg(cum_at(cum + min(first + strip_line(l, LANE / 8u), at.size - 1u)).x);
                    [[unroll]] for (uint q = 0u; q < OWN_QUADS; q++) {
                        sums[l * OWN_QUADS + q] *= factor;
                        total[l * OWN_QUADS + q] += sums[l * OWN_QUADS + q];
                    }
                }
                for (uint k = 0u; k < OWN_LINES; k++) {
                    barrier();
                    put_strip(k);
                    barrier();
                    uint t = first + strip_line(k, LANE / 8u);
                    float along = 0.0;
                    for (uint i = LANE % 8u; i < COLUMNS && t < at.size && n_first + i < args.N; i += 8u)
                        along += strip_at(LANE / 8u, i) * load_c(args.c_at + (at.token + t) * args.c_row + g * args.N + n_first + i);
                    parts[LANE] = along;
                    barrier();
                    uint own = first + strip_line(k, LANE);
                    if (LANE < ROWS && own < at.size) {
                        uint to = ((at.token + own) * args.H + h) * 4u + 3u;
                        float sum = n_first > 0u ? load_token(to) : 0.0;
                        for (uint i = 0u; i < 8u; i++) sum += parts[LANE * 8u + i];
                        store_token(to, sum);
                    }
                }
            }
            [[unroll]] for (uint i = 0u; i < OWN_LINES * OWN_QUADS; i++) sums[i] = total[i];
            for (uint k = 0u; k < OWN_LINES; k++) {
                barrier();
                put_strip(k);
                barrier();
                for (uint e = LANE; e < STRIP; e += LANES) {
                    uint t = first + strip_line(k, e / COLUMNS);
                    uint n = n_first + e % COLUMNS;
                    if (t < at.size && n < args.N) {
                        uint to = args.grad_c_at + (at.token + t) * args.grad_c_row + g * args.N + n;
                        float value = strip_at(e / COLUMNS, e % COLUMNS);
                        store_grad_c(to, has(args.flags, IS_ADD) ? load_grad_c(to) + value : value);
                    }
                }
            }
        }
    }
}
