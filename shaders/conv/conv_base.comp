#version 460
#extension GL_GOOGLE_include_directive : require
// y[b, t, ch] = SiLU(bias[ch] + sum_k weight[ch, k] in[t - K + 1 + k]); in[< 0] is tail[b, K - 1 + t', ch], or 0.
//
// x, y B L C; weight C K; bias C; tail B K-1 C; 2 <= K <= 8. A workgroup makes T0 channels x T1 tokens of one
// sequence: a lane walks the tokens of a channel and keeps the last K inputs and the weights in registers, at the
// right end of arrays of 8. No shared memory.
#include "lib/dart.glsl"
#include "table/conv.glsl"
READS(x) READS(weight) READS(bias) READS(tail) READS(seq) WRITES(y)
#define PACKS
#include "lib/seq.glsl"

const uint TAPS = 8u;

float input_at(uint b, uint row, int t, uint channel)
{
    if (t >= 0) return load_x(args.x_at + (row + uint(t)) * args.x_row + channel);
    if (!has(args.flags, HAS_TAIL)) return 0.0;
    return load_tail(args.tail_at + (b * (args.K - 1u) + uint(int(args.K) - 1 + t)) * args.C + channel);
}

void main()
{
    uint channel_blocks = (args.C + T0 - 1u) / T0;
    uint token_blocks = (args.L + T1 - 1u) / T1;
    uint first_tap = TAPS - args.K;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint rest = tile / channel_blocks;
        uint channel_begin = (tile - rest * channel_blocks) * T0;
        uint channel_end = min(channel_begin + T0, args.C);
        uint b = rest / token_blocks;
        uint begin = (rest - b * token_blocks) * T1;
        Sequence sequence = sequence_of(b);
        uint row = sequence.row;
        uint end = min(begin + T1, sequence.count);
        if (begin >= end) continue;
        for (uint channel = channel_begin + LANE; channel < channel_end; channel += LANES) {
            float weight[TAPS];
            float recent[TAPS];
            [[unroll]] for (uint k = 0u; k < TAPS; k++) {
                weight[k] = k >= first_tap ? load_weight(args.weight_at + channel * args.K + k - first_tap) : 0.0;
                recent[k] = k > first_tap ? input_at(b, row, int(begin + k) - int(TAPS), channel) : 0.0;
            }
            float bias = has(args.flags, HAS_BIAS) ? load_bias(args.bias_at + channel) : 0.0;
            for (uint t = begin; t < end; t++) {
                [[unroll]] for (uint k = 0u; k + 1u < TAPS; k++) recent[k] = recent[k + 1u];
                recent[TAPS - 1u] = load_x(args.x_at + (row + t) * args.x_row + channel);
                float sum = bias;
                [[unroll]] for (uint k = 0u; k < TAPS; k++) {
                    if (k >= first_tap) sum += weight[k] * recent[k];
                }
                store_y(args.y_at + (row + t) * args.y_row + channel, silu(sum));
            }
        }
    }
}
