#version 460
#extension GL_GOOGLE_include_directive : require
// With pre = bias + the convolution of x, up_pre = up_y SiLU'(pre): grad_x_s = sum_k weight_k up_pre_(s+K-1-k), and sums over the tokens t of the
// tile, in order: of_weight = sum_t up_pre_t x_(t-K+1+k), of_bias = sum_t up_pre_t.
//
// x, up_y, grad_x B L C; weight C K; bias C; of_weight slots C K; of_bias slots C; 2 <= K <= 8. A workgroup takes T0 channels x T1 tokens of one
// sequence: a lane walks the tokens of a channel, and K - 1 more, with the last 8 of x and up_pre in registers, and the weights at the right
// end of an array of 8. No shared memory. Guards: tokens past the count are not read and count as 0.
#include "lib/dart.glsl"
#include "table/conv_backward.glsl"
READS(x) READS(weight) READS(bias) READS(seq) READS(up_y) WRITES(grad_x) WRITES(of_weight) WRITES(of_bias)
#define PACKS
#include "lib/seq.glsl"
#include "lib/slope.glsl"

const uint TAPS = 8u;

void main()
{
    uint channel_blocks = (args.C + T0 - 1u) / T0;
    uint token_blocks = (args.L + T1 - 1u) / T1;
    uint first_tap = TAPS - args.K;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint place = tile / channel_blocks;
        uint channel_begin = (tile - place * channel_blocks) * T0;
        uint channel_end = min(channel_begin + T0, args.C);
        uint b = place / token_blocks;
        uint block = place - b * token_blocks;
        Sequence sequence = sequence_of(b);
        uint begin = block * T1;
        uint end = min(begin + T1, sequence.span);
        if (begin >= end) continue;
        uint count = sequence.count;
        uint row = sequence.row;
        uint slot = slot_of(sequence, b, token_blocks, T1) + block;
        for (uint channel = channel_begin + LANE; channel < channel_end; channel += LANES) {
            float weight[TAPS];
            float recent[TAPS];
            float ups[TAPS];
            float sums[TAPS];
            [[unroll]] for (uint k = 0u; k < TAPS; k++) {
                weight[k] = k >= first_tap ? load_weight(args.weight_at + channel * args.K + k - first_tap) : 0.0;
                uint back = TAPS - k; // tokens before the first one
                bool there = k > first_tap && begin >= back && begin - back < count;
                recent[k] = there ? load_x(args.x_at + (row + begin - back) * args.x_row + channel) : 0.0;
                ups[k] = 0.0;
                sums[k] = 0.0;
            }
            float bias = has(args.flags, HAS_BIAS) ? load_bias(args.bias_at + channel) : 0.0;
            float bias_sum = 0.0;
            for (uint t = begin; t < end + args.K - 1u; t++) {
                [[unroll]] for (uint k = 0u; k + 1u < TAPS; k++) {
                    recent[k] = recent[k + 1u];
                    ups[k] = ups[k + 1u];
                }
                recent[TAPS - 1u] = t < count ? load_x(args.x_at + (row + t) * args.x_row + channel) : 0.0;
                ups[TAPS - 1u] = 0.0;
                if (t < count) {
                    float pre = bias;
                    [[unroll]] for (uint k = 0u; k < TAPS; k++) {
                        if (k >= first_tap) pre += weight[k] * recent[k];
                    }
                    ups[TAPS - 1u] = load_up_y(args.up_y_at + (row + t) * args.up_y_row + channel) * silu_slope(pre).slope;
                }
                if (t < end) {
                    [[unroll]] for (uint k = 0u; k < TAPS; k++) sums[k] += ups[TAPS - 1u] * recent[k];
                    bias_sum += ups[TAPS - 1u];
                }
                if (t + 1u < begin + args.K) continue;
                /* weight k of the K, at first_tap + k, goes with up_pre of token t - k. */
                float grad = 0.0;
                [[unroll]] for (uint k = 0u; k < TAPS; k++) {
                    [[unroll]] for (uint tap = 0u; tap < TAPS; tap++) {
                        if (tap == first_tap + k) grad += weight[tap] * ups[TAPS - 1u - k];
                    }
                }
                store_grad_x(args.grad_x_at + (row + t + 1u - args.K) * args.grad_x_row + channel, grad);
            }
            [[unroll]] for (uint k = 0u; k < TAPS; k++) {
                if (k >= first_tap) store_of_weight((slot * args.C + channel) * args.K + k - first_tap, sums[k]);
            }
            if (has(args.flags, HAS_BIAS)) store_of_bias(slot * args.C + channel, bias_sum);
        }
    }
}
