// y[b, t, ch] = SiLU(bias[ch] + sum_k weight[ch, k] in[t - K + 1 + k]); in[< 0] is tail[b, K - 1 + t', ch], or 0.
//
// x, y B L C; weight C K; bias C; tail B K-1 C; 2 <= K <= 8. A workgroup makes T0 channels x T1 tokens of one
// sequence: a lane walks the tokens of a channel and keeps the last K inputs and the weights in registers, at the
// right end of arrays of 8. No shared memory.
// EIGHT, for K = 4: a lane walks the tokens of eight channels at a time, in words of 16 bytes.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/dart.glsl"
PUSH(ConvArgs)
READS(0, x)
READS(1, weight)
READS(2, bias)
READS(3, tail)
READS(4, seq)
WRITES(5, y)
#include "lib/seq.glsl"

#ifdef EIGHT
#include "lib/eight.glsl"
READS_EIGHT(0, x)
READS_EIGHT(1, weight)
READS_EIGHT(2, bias)
READS_EIGHT(3, tail)
WRITES_EIGHT(5, y)

Eight input_at(uint b, int t, uint channel)
{
    if (t >= 0) return load_eight_x(args.x_at + (b * args.L + uint(t)) * args.x_row + channel);
    if (!has(args.flags, HAS_TAIL)) return Eight(vec4(0.0), vec4(0.0));
    return load_eight_tail(args.tail_at + (b * 3u + uint(3 + t)) * args.C + channel);
}

void main()
{
    uint channel_blocks = (args.C + T0 - 1u) / T0;
    uint token_blocks = (args.L + T1 - 1u) / T1;
    for (uint tile = gl_WorkGroupID.x; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint rest = tile / channel_blocks;
        uint channel_begin = (tile - rest * channel_blocks) * T0;
        uint channel_end = min(channel_begin + T0, args.C);
        uint b = rest / token_blocks;
        uint begin = (rest - b * token_blocks) * T1;
        uint end = min(begin + T1, seq_count(b, args.L));
        if (begin >= end) continue;
        for (uint channel = channel_begin + 8u * LANE; channel < channel_end; channel += 8u * LANES) {
            // Four taps of a channel lie together: two channels to each group of eight.
            vec4 low[4], high[4];
            [[unroll]] for (uint i = 0u; i < 2u; i++) {
                Eight first = load_eight_weight(args.weight_at + 4u * channel + 8u * i);
                Eight second = load_eight_weight(args.weight_at + 4u * channel + 16u + 8u * i);
                [[unroll]] for (uint k = 0u; k < 4u; k++) {
                    low[k][2u * i] = first.low[k];
                    low[k][2u * i + 1u] = first.high[k];
                    high[k][2u * i] = second.low[k];
                    high[k][2u * i + 1u] = second.high[k];
                }
            }
            Eight bias = Eight(vec4(0.0), vec4(0.0));
            if (has(args.flags, HAS_BIAS)) bias = load_eight_bias(args.bias_at + channel);
            Eight oldest = input_at(b, int(begin) - 3, channel);
            Eight older = input_at(b, int(begin) - 2, channel);
            Eight old = input_at(b, int(begin) - 1, channel);
            Eight now[T1]; // all of them under way at once
            [[unroll]] for (uint i = 0u; i < T1; i++)
                now[i] = load_eight_x(args.x_at + (b * args.L + min(begin + i, end - 1u)) * args.x_row + channel);
            [[unroll]] for (uint i = 0u; i < T1; i++) {
                if (begin + i >= end) break;
                Eight sum = bias;
                sum.low = sum.low + low[0] * oldest.low + low[1] * older.low + low[2] * old.low + low[3] * now[i].low;
                sum.high = sum.high + high[0] * oldest.high + high[1] * older.high + high[2] * old.high + high[3] * now[i].high;
                uint to = args.y_at + (b * args.L + begin + i) * args.y_row + channel;
                store_eight_y(to, Eight(silu_four(DTYPE_OF(5), sum.low), silu_four(DTYPE_OF(5), sum.high)));
                oldest = older;
                older = old;
                old = now[i];
            }
        }
    }
}
#else
const uint TAPS = 8u;

float input_at(uint b, int t, uint channel)
{
    if (t >= 0) return load_x(args.x_at + (b * args.L + uint(t)) * args.x_row + channel);
    if (!has(args.flags, HAS_TAIL)) return 0.0;
    return load_tail(args.tail_at + (b * (args.K - 1u) + uint(int(args.K) - 1 + t)) * args.C + channel);
}

void main()
{
    uint channel_blocks = (args.C + T0 - 1u) / T0;
    uint token_blocks = (args.L + T1 - 1u) / T1;
    uint first_tap = TAPS - args.K;
    for (uint tile = gl_WorkGroupID.x; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint rest = tile / channel_blocks;
        uint channel_begin = (tile - rest * channel_blocks) * T0;
        uint channel_end = min(channel_begin + T0, args.C);
        uint b = rest / token_blocks;
        uint begin = (rest - b * token_blocks) * T1;
        uint end = min(begin + T1, seq_count(b, args.L));
        if (begin >= end) continue;
        for (uint channel = channel_begin + LANE; channel < channel_end; channel += LANES) {
            float weight[TAPS];
            float recent[TAPS];
            [[unroll]] for (uint k = 0u; k < TAPS; k++) {
                weight[k] = k >= first_tap ? load_weight(args.weight_at + channel * args.K + k - first_tap) : 0.0;
                recent[k] = k > first_tap ? input_at(b, int(begin + k) - int(TAPS), channel) : 0.0;
            }
            float bias = has(args.flags, HAS_BIAS) ? load_bias(args.bias_at + channel) : 0.0;
            for (uint t = begin; t < end; t++) {
                [[unroll]] for (uint k = 0u; k + 1u < TAPS; k++) recent[k] = recent[k + 1u];
                recent[TAPS - 1u] = load_x(args.x_at + (b * args.L + t) * args.x_row + channel);
                float sum = bias;
                [[unroll]] for (uint k = 0u; k < TAPS; k++) {
                    if (k >= first_tap) sum += weight[k] * recent[k];
                }
                store_y(args.y_at + (b * args.L + t) * args.y_row + channel, silu(sum));
            }
        }
    }
}
#endif
