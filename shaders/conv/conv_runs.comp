#version 460
#extension GL_GOOGLE_include_directive : require
// y[b, t, ch] = SiLU(bias[ch] + sum_k weight[ch, k] in[t - 3 + k]); in[< 0] is tail[b, 3 + t', ch], or 0.
//
// x, y B L C; weight C 4; bias C; tail B 3 C; K = 4, C a multiple of 16 and at most T0. A workgroup makes all channels x T1 tokens of one
// sequence, cut into runs: C / 4 lanes walk a run, four channels each, and as many runs are walked as lanes allow. A lane reads AHEAD tokens
// at once, in words of 8 bytes (16 of f32). No shared memory.
#include "lib/dart.glsl"
#include "table/conv.glsl"
READS(x) READS(weight) READS(bias) READS(tail) READS(seq) WRITES(y)
#define PACKS
#include "lib/seq.glsl"
#include "lib/eight.glsl"
#include "lib/four.glsl"
READS_FOUR(x) READS_FOUR(weight) READS_FOUR(bias) READS_FOUR(tail) WRITES_FOUR(y)

const uint AHEAD = 4u;

vec4 before(Sequence sequence, uint b, uint t, uint back, uint channel) // input t - back
{
    if (t >= back) return load_four_x(args.x_at + (sequence.row + t - back) * args.x_row + channel);
    if (!has(args.flags, HAS_TAIL)) return vec4(0.0);
    return load_four_tail(args.tail_at + (b * 3u + 3u + t - back) * args.C + channel);
}

void main()
{
    uint token_blocks = (args.L + T1 - 1u) / T1;
    uint groups = args.C / 4u;
    uint runs = LANES / groups;
    uint run = LANE / groups;
    uint channel = LANE % groups * 4u;
    if (run >= runs) return;
    vec4 weight[4]; // of a tap; in memory tap by tap of a channel
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        vec4 taps = load_four_weight(args.weight_at + 4u * (channel + i));
        [[unroll]] for (uint k = 0u; k < 4u; k++) weight[k][i] = taps[k];
    }
    vec4 bias = has(args.flags, HAS_BIAS) ? load_four_bias(args.bias_at + channel) : vec4(0.0);
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint b = tile / token_blocks;
        Sequence sequence = sequence_of(b);
        uint first = (tile - b * token_blocks) * T1;
        uint stop = min(first + T1, sequence.count);
        if (first >= stop) continue;
        uint share = (stop - first + runs - 1u) / runs;
        uint begin = first + run * share;
        uint end = min(begin + share, stop);
        if (begin >= end) continue;
        vec4 x3 = before(sequence, b, begin, 3u, channel);
        vec4 x2 = before(sequence, b, begin, 2u, channel);
        vec4 x1 = before(sequence, b, begin, 1u, channel);
        [[dont_unroll]] for (uint t = begin; t < end; t += AHEAD) {
            uvec4 words[AHEAD]; // all of them under way at once
            [[unroll]] for (uint i = 0u; i < AHEAD; i++)
                words[i] = load_words_x(args.x_at + (sequence.row + min(t + i, end - 1u)) * args.x_row + channel);
            [[unroll]] for (uint i = 0u; i < AHEAD; i++) {
                vec4 x = four_of(DTYPE_OF(x), words[i]);
                vec4 sum = bias + weight[0] * x3 + weight[1] * x2 + weight[2] * x1 + weight[3] * x;
                if (t + i < end) store_four_y(args.y_at + (sequence.row + t + i) * args.y_row + channel, silu_four(DTYPE_OF(y), sum));
                x3 = x2;
                x2 = x1;
                x1 = x;
            }
        }
    }
}
