#version 460
#extension GL_GOOGLE_include_directive : require
// dot[(b L + t) H + h] = o_t . up_o_t over the columns of head h, where rows lie in whole 16-byte words: D is a multiple of 8. o, up_o B L H D;
// dot B L H, f32. A workgroup takes T0 rows, a lane a head of one. No shared memory.
#include "lib/dart.glsl"
#include "table/attention_backward_dot.glsl"
READS(o) READS(up_o) READS(seq) WRITES(dot)
#include "lib/seq.glsl"
#include "lib/eight.glsl"
READS_EIGHT(o) READS_EIGHT(up_o)

const uint AHEAD = 4u; // words of each that are fetched together

void main()
{
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        for (uint item = tile * T0 * args.H + LANE; item < min((tile + 1u) * T0, args.B * args.L) * args.H; item += LANES) {
            uint row = item / args.H;
            uint h = item % args.H;
            if (row % args.L >= seq_count(row / args.L, args.L)) continue;
            uint o_at = args.o_at + row * args.o_row + h * args.D;
            uint up_at = args.up_o_at + row * args.up_o_row + h * args.D;
            vec4 sum = vec4(0.0);
            for (uint d = 0u; d < args.D; d += 8u * AHEAD) {
                Words o[AHEAD];
                Words up[AHEAD];
                [[unroll]] for (uint i = 0u; i < AHEAD; i++) {
                    uint column = min(d + 8u * i, args.D - 8u);
                    o[i] = load_words_o(o_at + column);
                    up[i] = load_words_up_o(up_at + column);
                }
                [[unroll]] for (uint i = 0u; i < AHEAD; i++) {
                    if (d + 8u * i >= args.D) continue;
                    Eight a = eight_of(DTYPE_OF(o), o[i]);
                    Eight b = eight_of(DTYPE_OF(up_o), up[i]);
                    sum += a.low * b.low + a.high * b.high;
                }
            }
            store_dot(item, (sum.x + sum.y) + (sum.z + sum.w));
        }
    }
}
