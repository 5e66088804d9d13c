#version 460
#extension GL_GOOGLE_include_directive : require
// Sums over the heads of a group and the memories m that a token sees: of_q = sum slope key (w en), grad_c = sum g value (w up_r),
// of_e = sum slope (qn key) w: see args.h.
// qn, of_q, grad_c B L G N; en, of_e B L G P; up_r B L H P; g, slope B L H M; dh B M H N P, factor B M H N. A workgroup of 128 lanes makes
// T0 = 64 tokens x T1 = 32 columns of one of the three. Shared memory: 3,328 bytes (lib/tile.glsl).
// Guards: g and slope of what a token does not see are not read and count as 0.
#include "lib/dart.glsl"
#include "table/sma_backward_sums.glsl"
READS(qn) READS(en) READS(g) READS(slope) READS(dh) READS(factor) READS(seq) READS(up_r) WRITES(of_q) WRITES(of_e) READS_WRITES(grad_c)
#define PACKS
#include "lib/seq.glsl"
#include "sma/backward.glsl"
const uint ROWS = 16u;
const uint LINES = 64u;
const uint COLUMNS = 32u;
#include "lib/tile.glsl"

const uint OF_Q = 0u;
const uint OF_C = 1u;
const uint OF_E = 2u;

void main()
{
    uint n_blocks = (args.N + COLUMNS - 1u) / COLUMNS;
    uint blocks = 2u * n_blocks + (args.P + COLUMNS - 1u) / COLUMNS;
    uint tiles = (args.L + LINES - 1u) / LINES;
    uint in_group = args.H / args.G;
    bool raw = has(args.flags, IS_RAW);
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint block = tile % blocks;
        uint which = min(block / n_blocks, OF_E);
        uint column = (block - which * n_blocks) * COLUMNS;
        uint first = tile / blocks % tiles * LINES;
        uint group = tile / blocks / tiles % args.G;
        uint b = tile / blocks / tiles / args.G;
        Sequence sequence = sequence_of(b);
        if (first >= sequence.span) continue;
        uint count = sequence.count;
        uint position = sequence.position;
        uint row = sequence.row + first;
        uint slots = slot_of(sequence, b, args.M, args.S);
        uint seen = first < count ? seen_by(position, min(first + LINES, count) - 1u) : 0u;
        uint width = which == OF_E ? args.P : args.N;
        uint depth = which == OF_E ? args.N : args.P;
        bool scaled = (which == OF_C) != raw; // by the factor: keys of raw memories, values of normalised ones
        clear_sums();
        for (uint pair = 0u; pair < in_group * seen; pair++) {
            uint h = group * in_group + pair / seen;
            uint m = pair % seen;
            uint matrix = ((slots + m) * args.H + h) * args.N;
            for (uint k_first = 0u; k_first < depth; k_first += DEPTH) {
                barrier();
                for (uint e = LANE; e < LINES * DEPTH; e += LANES) {
                    uint t = first + e / DEPTH;
                    uint k = k_first + e % DEPTH;
                    float value = 0.0;
                    if (t < count && k < depth && m < seen_by(position, t)) {
                        uint at = ((sequence.row + t) * args.H + h) * args.M + m;
                        uint of_group = (sequence.row + t) * args.G + group;
                        if (which == OF_Q) value = load_slope(at) * load_en(of_group * args.P + k);
                        else if (which == OF_C) value = load_g(at) * load_up_r(args.up_r_at + (sequence.row + t) * args.up_r_row + h * args.P + k);
                        else value = load_slope(at) * load_qn(of_group * args.N + k);
                    }
                    put_a(e / DEPTH, e % DEPTH, value);
                }
                for (uint e = LANE; e < COLUMNS * DEPTH; e += LANES) {
                    uint i = which == OF_E ? e % COLUMNS : e / DEPTH;
                    uint k = which == OF_E ? e / COLUMNS : e % DEPTH;
                    uint n = which == OF_E ? k_first + k : column + i;
                    uint p = which == OF_E ? column + i : k_first + k;
                    float value = 0.0;
                    if (n < args.N && p < args.P) {
                        value = load_dh(args.dh_at + (matrix + n) * args.P + p);
                        if (scaled) value *= load_factor(args.factor_at + matrix + n);
                    }
                    put_b(i, k, value);
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
                uint line = strip_line(k, e / COLUMNS);
                uint i = column + e % COLUMNS;
                if (first + line >= sequence.span || i >= width) continue;
                float value = strip_at(e / COLUMNS, e % COLUMNS);
                uint of_group = (row + line) * args.G + group;
                if (which == OF_Q) store_of_q(of_group * args.N + i, value);
                else if (which == OF_E) store_of_e(of_group * args.P + i, value);
                else {
                    uint to = args.grad_c_at + (row + line) * args.grad_c_row + group * args.N + i;
                    bool adds = has(args.flags, IS_ADD);
                    if (!adds || first + line < count) store_grad_c(to, adds ? load_grad_c(to) + value : value);
                }
            }
        }
    }
}
