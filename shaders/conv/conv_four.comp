#version 460
#extension GL_GOOGLE_include_directive : require
// y[b, t, ch] = SiLU(bias[ch] + sum_k weight[ch, k] in[t - K + 1 + k]); in[< 0] is tail[b, K - 1 + t', ch], or 0.
//
// x, y B L C; weight C K; bias C; tail B K-1 C; K = 4. A workgroup makes T0 channels x T1 tokens of one sequence, without
// shared memory: a lane walks the tokens of four channels and reads AHEAD tokens at once, in words of 8 bytes (16 of f32). With
// eight channels and tokens a lane takes twice the registers and 1.2 to 1.6 times the time (H200, 2026-11-22).
#include "lib/dart.glsl"
#include "table/conv.glsl"
READS(x) READS(weight) READS(bias) READS(tail) READS(seq) WRITES(y)
#include "lib/seq.glsl"

#include "lib/eight.glsl"
#include "lib/four.glsl"
READS_FOUR(x) READS_FOUR(weight) READS_FOUR(bias) READS_FOUR(tail) WRITES_FOUR(y)
const uint AHEAD = 4u;

vec4 input_at(uint b, int t, uint channel)
{
    if (t >= 0) return load_four_x(args.x_at + (b * args.L + uint(t)) * args.x_row + channel);
    if (!has(args.flags, HAS_TAIL)) return vec4(0.0);
    return load_four_tail(args.tail_at + (b * 3u + uint(3 + t)) * args.C + channel);
}

void main()
{
    uint channel_blocks = (args.C + T0 - 1u) / T0;
    uint token_blocks = (args.L + T1 - 1u) / T1;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint rest = tile / channel_blocks;
        uint channel_begin = (tile - rest * channel_blocks) * T0;
        uint channel_end = min(channel_begin + T0, args.C);
        uint b = rest / token_blocks;
        uint begin = (rest - b * token_blocks) * T1;
        uint end = min(begin + T1, seq_count(b, args.L));
        if (begin >= end) continue;
        for (uint channel = channel_begin + 4u * LANE; channel < channel_end; channel += 4u * LANES) {
            vec4 weights[4]; // of a tap, in memory tap by tap of a channel
            [[unroll]] for (uint i = 0u; i < 4u; i++) {
                vec4 taps = load_four_weight(args.weight_at + 4u * (channel + i));
                [[unroll]] for (uint k = 0u; k < 4u; k++) weights[k][i] = taps[k];
            }
            vec4 bias = has(args.flags, HAS_BIAS) ? load_four_bias(args.bias_at + channel) : vec4(0.0);
            vec4 oldest = input_at(b, int(begin) - 3, channel);
            vec4 older = input_at(b, int(begin) - 2, channel);
            vec4 old = input_at(b, int(begin) - 1, channel);
            [[dont_unroll]] for (uint t = begin; t < end; t += AHEAD) {
                uvec4 words[AHEAD]; // all of them under way at once
                [[unroll]] for (uint i = 0u; i < AHEAD; i++)
                    words[i] = load_words_x(args.x_at + (b * args.L + min(t + i, end - 1u)) * args.x_row + channel);
                [[unroll]] for (uint i = 0u; i < AHEAD; i++) {
                    vec4 now = four_of(DTYPE_OF(x), words[i]);
                    vec4 sum = bias + weights[0] * oldest + weights[1] * older + weights[2] * old + weights[3] * now;
                    sum = silu_four(DTYPE_OF(y), sum);
                    if (t + i < end) store_four_y(args.y_at + (b * args.L + t + i) * args.y_row + channel, sum);
                    oldest = older;
                    older = old;
                    old = now;
                }
            }
        }
    }
}
