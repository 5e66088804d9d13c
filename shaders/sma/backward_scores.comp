#version 460
#extension GL_GOOGLE_include_directive : require
// g = exp(logit - lse), slope = g (v . up_r - r . up_r) of tokens, heads and memories, logit = qn . (key w en), v = value c w: see args.h.
// qn B L G N, en B L G P; c B L G N; dh B M H N P, factor B M H N; r, up_r B L H P; lse B L H; g, slope B L H M. A workgroup of 128 lanes takes
// T0 = 32 tokens of a (b, h), memory after memory: the lines of its product are the tokens' keys, then their values, its columns 64 numbers p.
// Shared memory: 4,352 + 512 + 384 bytes. Guards: exponents are clamped to <= 0; what a token does not see is not written.
#include "lib/dart.glsl"
#include "table/sma_backward_scores.glsl"
READS(qn) READS(en) READS(c) READS(dh) READS(factor) READS(seq) READS(r) READS(lse) READS(up_r) WRITES(g) WRITES(slope)
#define PACKS
#include "lib/seq.glsl"
#include "sma/backward.glsl"
const uint TOKENS = 32u;
const uint ROWS = 16u;
const uint LINES = 2u * TOKENS;
const uint COLUMNS = 64u;
#include "lib/tile.glsl"

shared float parts[LANES];
shared float totals[LINES]; // logits, then v . up_r
shared float dots[TOKENS];  // r . up_r

void main()
{
    uint tiles = (args.L + TOKENS - 1u) / TOKENS;
    bool raw = has(args.flags, IS_RAW);
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint first = tile % tiles * TOKENS;
        uint h = tile / tiles % args.H;
        uint b = tile / tiles / args.H;
        uint group = h / (args.H / args.G);
        Sequence sequence = sequence_of(b);
        uint count = sequence.count;
        uint position = sequence.position;
        if (first >= count) continue;
        uint seen = seen_by(position, min(first + TOKENS, count) - 1u);
        uint row = sequence.row + first;
        uint slots = slot_of(sequence, b, args.M, args.S);
        barrier();
        float along = 0.0;
        for (uint p = LANE % 4u; p < args.P && first + LANE / 4u < count; p += 4u)
            along += load_r(args.r_at + (row + LANE / 4u) * args.r_row + h * args.P + p) *
                     load_up_r(args.up_r_at + (row + LANE / 4u) * args.up_r_row + h * args.P + p);
        parts[LANE] = along;
        barrier();
        if (LANE < TOKENS) dots[LANE] = parts[4u * LANE] + parts[4u * LANE + 1u] + parts[4u * LANE + 2u] + parts[4u * LANE + 3u];
        for (uint m = 0u; m < seen; m++) {
            uint matrix = ((slots + m) * args.H + h) * args.N;
            barrier();
            if (LANE < LINES) totals[LANE] = 0.0;
            for (uint p_first = 0u; p_first < args.P; p_first += COLUMNS) {
                clear_sums();
                for (uint n_first = 0u; n_first < args.N; n_first += DEPTH) {
                    barrier();
                    for (uint e = LANE; e < LINES * DEPTH; e += LANES) {
                        uint line = e / DEPTH;
                        uint n = n_first + e % DEPTH;
                        float value = 0.0;
                        if (first + line % TOKENS < count && n < args.N) {
                            bool of_key = line < TOKENS;
                            uint t = row + line % TOKENS;
                            value = of_key ? load_qn((t * args.G + group) * args.N + n) : load_c(args.c_at + t * args.c_row + group * args.N + n);
                            if (of_key == raw) value *= load_factor(args.factor_at + matrix + n);
                        }
                        put_a(line, e % DEPTH, value);
                    }
                    for (uint e = LANE; e < COLUMNS * DEPTH; e += LANES) {
                        uint n = n_first + e / COLUMNS;
                        uint p = p_first + e % COLUMNS;
                        put_b(e % COLUMNS, e / COLUMNS, n < args.N && p < args.P ? load_dh(args.dh_at + (matrix + n) * args.P + p) : 0.0);
                    }
                    barrier();
                    multiply();
                }
                for (uint k = 0u; k < OWN_LINES; k++) {
                    barrier();
                    put_strip(k);
                    barrier();
                    uint line = strip_line(k, LANE / 8u);
                    uint t = row + line % TOKENS;
                    float sum = 0.0;
                    for (uint i = LANE % 8u; i < COLUMNS && first + line % TOKENS < count && p_first + i < args.P; i += 8u) {
                        uint p = p_first + i;
                        float with = line < TOKENS ? load_en((t * args.G + group) * args.P + p) :
                                                     load_up_r(args.up_r_at + t * args.up_r_row + h * args.P + p);
                        sum += strip_at(LANE / 8u, i) * with;
                    }
                    parts[LANE] = sum;
                    barrier();
                    if (LANE < ROWS) {
                        float total = 0.0;
                        for (uint i = 0u; i < 8u; i++) total += parts[LANE * 8u + i];
                        totals[strip_line(k, LANE)] += total;
                    }
                }
            }
            barrier();
            uint own = seen_by(position, first + LANE);
            if (LANE < TOKENS && first + LANE < count && m < own) {
                uint head = (row + LANE) * args.H + h;
                float weight = exp_neg(totals[LANE] - load_lse(args.lse_at + head));
                store_g(head * args.M + m, weight);
                store_slope(head * args.M + m, own == 1u ? 0.0 : weight * (totals[TOKENS + LANE] - dots[LANE]));
            }
        }
    }
}
