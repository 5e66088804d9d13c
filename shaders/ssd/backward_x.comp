#version 460
#extension GL_GOOGLE_include_directive : require
// v_s = sum_(t >= s) cb_ts exp(cum_t - cum_s) up_y_t + keep_s b_s (lambda + up_dh), grad_x = step v + d up_y; and of each token x . v, the
// part of it that went into the memory, and up_y . x.
// x, up_y, grad_x B L H P; b B L G N; cum B H L 3; cb B M G C C; lambda, up_dh B M H N P; d H; token B L H 4.
// A workgroup of 128 lanes makes 64 tokens of a (b, j, h), COLUMNS columns at a time, 64 or 32. Shared memory: 4,352 + 4 128 + 12 64 bytes.
// Guards: exponents <= 0; tokens past the chunk are not read and count as 0.
#include "lib/dart.glsl"
#include "table/ssd_backward_x.glsl"
READS(x) READS(b) READS(up_y) READS(cum) READS(cb) READS(lambda) READS(up_dh) READS(d) READS(seq) WRITES(grad_x) WRITES(token)
#define PACKS
#include "lib/seq.glsl"
#define SSD_CUM
#include "ssd.glsl"
#include "backward.glsl"
const uint ROWS = 16u;
const uint LINES = 64u;
#ifndef COLUMNS
#define COLUMNS 64u
#endif
#include "lib/tile.glsl"

shared float parts[LANES];
shared vec3 totals[LINES]; // x . v, keep b G . x, up_y . x

// Adds a number of each line of a strip, from the eight lanes that share it, to element i of totals.
void add_totals(uint k, float own, uint i)
{
    barrier();
    parts[LANE] = own;
    barrier();
    if (LANE < ROWS) {
        float sum = 0.0;
        for (uint e = 0u; e < 8u; e++) sum += parts[LANE * 8u + e];
        totals[strip_line(k, LANE)][i] += sum;
    }
}

void main()
{
    uint tiles = (args.C + LINES - 1u) / LINES;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint first = tile % tiles * LINES;
        uint h = tile / tiles % args.H;
        uint g = h / (args.H / args.G);
        Place at = place_of(tile / tiles / args.H);
        if (first >= at.size) continue;
        uint cum = cum_of(at, h);
        uint square = (at.slot * args.G + g) * args.C * args.C;
        uint row = (at.slot * args.H + h) * args.N;
        vec2 end = cum_at(cum + at.size - 1u).xy;
        float skip = has(args.flags, HAS_D) ? load_d(args.d_at + h) : 0.0;
        barrier();
        if (LANE < LINES) totals[LANE] = vec3(0.0);
        for (uint p_first = 0u; p_first < args.P; p_first += COLUMNS) {
            clear_sums();
            for (uint n_first = 0u; n_first < args.N; n_first += DEPTH) {
                barrier();
                for (uint e = LANE; e < LINES * DEPTH; e += LANES) {
                    uint s = first + e / DEPTH;
                    uint n = n_first + e % DEPTH;
                    float value = 0.0;
                    if (s < at.size && n < args.N)
                        value = load_b(args.b_at + (at.token + s) * args.b_row + g * args.N + n) * exp_neg(cum_between(cum_at(cum + s).xy, end));
                    put_a(e / DEPTH, e % DEPTH, value);
                    if (e >= COLUMNS * DEPTH) continue;
                    uint p = p_first + e % COLUMNS;
                    n = n_first + e / COLUMNS;
                    value = 0.0;
                    if (n < args.N && p < args.P) {
                        value = load_lambda((row + n) * args.P + p);
                        if (has(args.flags, HAS_DH)) value += load_up_dh(args.up_dh_at + (row + n) * args.P + p);
                    }
                    put_b(e % COLUMNS, e / COLUMNS, value);
                }
                barrier();
                multiply();
            }
            for (uint k = 0u; k < OWN_LINES; k++) {
                barrier();
                put_strip(k);
                barrier();
                uint s = first + strip_line(k, LANE / 8u);
                float along = 0.0;
                for (uint c = LANE % 8u; c < COLUMNS && s < at.size && p_first + c < args.P; c += 8u)
                    along += strip_at(LANE / 8u, c) * load_x(args.x_at + (at.token + s) * args.x_row + h * args.P + p_first + c);
                add_totals(k, along, 1u);
            }
            for (uint t_first = first; t_first < at.size; t_first += DEPTH) {
                barrier();
                for (uint e = LANE; e < LINES * DEPTH; e += LANES) {
                    uint s = first + e % LINES;
                    uint t = t_first + e / LINES;
                    float value = 0.0;
                    if (s <= t && t < at.size)
                        value = load_cb(square + t * args.C + s) * exp_neg(cum_between(cum_at(cum + s).xy, cum_at(cum + t).xy));
                    put_a(e % LINES, e / LINES, value);
                    if (e >= COLUMNS * DEPTH) continue;
                    t = t_first + e / COLUMNS;
                    uint p = p_first + e % COLUMNS;
                    put_b(e % COLUMNS, e / COLUMNS, t < at.size && p < args.P ?
                                                        load_up_y(args.up_y_at + (at.token + t) * args.up_y_row + h * args.P + p) : 0.0);
                }
                barrier();
                multiply();
            }
            for (uint k = 0u; k < OWN_LINES; k++) {
                barrier();
                put_strip(k);
                barrier();
                uint s = first + strip_line(k, LANE / 8u);
                float step_size = cum_at(cum + min(s, at.size - 1u)).z;
                float along = 0.0;
                float skipped = 0.0;
                for (uint c = LANE % 8u; c < COLUMNS && s < at.size && p_first + c < args.P; c += 8u) {
                    uint p = h * args.P + p_first + c;
                    float value = strip_at(LANE / 8u, c);
                    float x = load_x(args.x_at + (at.token + s) * args.x_row + p);
                    float up = load_up_y(args.up_y_at + (at.token + s) * args.up_y_row + p);
                    along += value * x;
                    skipped += up * x;
                    store_grad_x(args.grad_x_at + (at.token + s) * args.grad_x_row + p, step_size * value + skip * up);
                }
                add_totals(k, along, 0u);
                add_totals(k, skipped, 2u);
            }
        }
        barrier();
        if (LANE < LINES && first + LANE < at.size) {
            uint to = ((at.token + first + LANE) * args.H + h) * 4u;
            store_token(to, totals[LANE].x);
            store_token(to + 1u, totals[LANE].y * cum_at(cum + first + LANE).z);
            store_token(to + 2u, totals[LANE].z);
        }
    }
}
