// One token of conv and conv_tail: y[b, ch] = SiLU(bias[ch] + sum_k weight[ch, k] in_k) with
// in = (tail[b, :, ch], x[b, ch]); then tail[b, :, ch] = in_1 .. in_{K-1}. A count of 0 leaves tail and y alone.
//
// x, y B C; weight C K; bias C; tail B K-1 C; 2 <= K <= 8. A workgroup makes T0 consecutive channels of one sequence.
// No shared memory.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/dart.glsl"
#include "table/conv_step.glsl"
READS(x) READS(weight) READS(bias) READS_WRITES(tail) READS(seq) WRITES(y)
#include "lib/seq.glsl"

const uint MAX_ROWS = 7u;

void main()
{
    uint blocks = (args.C + T0 - 1u) / T0;
    uint rows = args.K - 1u;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint b = tile / blocks;
        uint begin = (tile - b * blocks) * T0;
        uint end = min(begin + T0, args.C);
        if (seq_count(b, 1u) == 0u) continue;
        for (uint channel = begin + LANE; channel < end; channel += LANES) {
            uint at = args.tail_at + b * rows * args.C + channel;
            uint weight_at = args.weight_at + channel * args.K;
            float last = load_x(args.x_at + b * args.x_row + channel);
            float sum = has(args.flags, HAS_BIAS) ? load_bias(args.bias_at + channel) : 0.0;
            float last_tap = load_weight(weight_at + rows);
            float kept[MAX_ROWS];
            float taps[MAX_ROWS];
            [[unroll]] for (uint j = 0u; j < MAX_ROWS; j++) { // all at once: branches would put the fetches in a row
                kept[j] = load_tail(at + min(j, rows - 1u) * args.C);
                taps[j] = load_weight(weight_at + min(j, rows));
            }
            [[unroll]] for (uint j = 0u; j < MAX_ROWS; j++) {
                if (j < rows) sum += taps[j] * kept[j];
            }
            sum += last_tap * last;
            [[unroll]] for (uint j = 0u; j < MAX_ROWS; j++) {
                if (j < rows) store_tail(at + j * args.C, j + 1u < rows ? kept[min(j + 1u, MAX_ROWS - 1u)] : last);
            }
            store_y(args.y_at + b * args.y_row + channel, silu(sum));
        }
    }
}
