#version 460
#extension GL_GOOGLE_include_directive : require
// x = sum slope qn^T en, grad_dh = sum g c^T up_r over the tokens that see memory m: see args.h.
// qn, c B L G N; en B L G P; up_r B L H P; g, slope B L H M; x, grad_dh B M H N P, f32. A workgroup of 128 lanes makes T0 = 64 of the rows m N + n
// of a head x T1 = 64 columns p of one of the two. Shared memory: 4,352 bytes (lib/tile.glsl). Guards: tokens past the count are not read; g and
// slope of what a token does not see are not read and count as 0.
#include "lib/dart.glsl"
#include "table/sma_backward_memories.glsl"
READS(qn) READS(en) READS(c) READS(g) READS(slope) READS(seq) READS(up_r) WRITES(x) WRITES(grad_dh)
#define PACKS
#include "lib/seq.glsl"
#include "sma/backward.glsl"
const uint ROWS = 16u;
const uint LINES = 64u;
const uint COLUMNS = 64u;
#include "lib/tile.glsl"

void main()
{
    uint blocks = (args.M * args.N + LINES - 1u) / LINES;
    uint p_blocks = (args.P + COLUMNS - 1u) / COLUMNS;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint first = tile % blocks * LINES;
        uint p_first = tile / blocks % p_blocks * COLUMNS;
        uint rest = tile / blocks / p_blocks;
        bool of_values = rest % 2u == 1u;
        uint h = rest / 2u % args.H;
        uint b = rest / 2u / args.H;
        uint group = h / (args.H / args.G);
        Sequence sequence = sequence_of(b);
        uint count = sequence.count;
        uint position = sequence.position;
        // Memories that there is room for: of packed sequences those of their own chunks, for all others M.
        uint room = (has(args.flags, HAS_CU) ? min((count + args.S - 1u) / args.S, args.M) : args.M) * args.N;
        if (first >= room) continue;
        // A lane fills the same line of the panel all through.
        uint own_m = (first + LANE % LINES) / args.N;
        uint own_n = (first + LANE % LINES) % args.N;
        uint own_begin = own_m < args.M ? first_to_see(position, own_m) : count;
        clear_sums();
        for (uint t_first = first_to_see(position, first / args.N); t_first < count; t_first += DEPTH) {
            barrier();
            for (uint e = LANE; e < LINES * DEPTH; e += LANES) {
                uint t = t_first + e / LINES;
                float value = 0.0;
                if (t < count && t >= own_begin) {
                    uint row = sequence.row + t;
                    uint at = (row * args.H + h) * args.M + own_m;
                    value = of_values ? load_g(at) * load_c(args.c_at + row * args.c_row + group * args.N + own_n) :
                                        load_slope(at) * load_qn((row * args.G + group) * args.N + own_n);
                }
                put_a(e % LINES, e / LINES, value);
            }
            for (uint e = LANE; e < COLUMNS * DEPTH; e += LANES) {
                uint t = t_first + e / COLUMNS;
                uint p = p_first + e % COLUMNS;
                float value = 0.0;
                if (t < count && p < args.P) {
                    uint row = sequence.row + t;
                    value = of_values ? load_up_r(args.up_r_at + row * args.up_r_row + h * args.P + p) : load_en((row * args.G + group) * args.P + p);
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
            for (uint e = LANE; e < STRIP; e += LANES) {
                uint line = first + strip_line(k, e / COLUMNS);
                uint p = p_first + e % COLUMNS;
                if (line >= room || p >= args.P) continue;
                uint to = (((slot_of(sequence, b, args.M, args.S) + line / args.N) * args.H + h) * args.N + line % args.N) * args.P + p;
                float value = strip_at(e / COLUMNS, e % COLUMNS);
                if (of_values) store_grad_dh(args.grad_dh_at + to, value);
                else store_x(to, value);
            }
        }
    }
}
