#version 460
#extension GL_GOOGLE_include_directive : require
// With pre = bias + the convolution of x, up_pre = up_y SiLU'(pre): grad_x_s = sum_k weight_k up_pre_(s+3-k), and sums over the tokens t of the
// tile: of_weight = sum_t up_pre_t x_(t-3+k), of_bias = sum_t up_pre_t.
//
// x, up_y, grad_x B L C; weight C 4; bias C; of_weight slots C 4; of_bias slots C; K = 4, C a multiple of 16. A workgroup takes T0 channels, or as
// many as are left, x T1 tokens of one sequence, cut into runs: a lane for each four channels walks a run, and as many runs are walked as lanes
// allow. A lane walks its run and three tokens more, with the last three of x and up_pre in registers, and reads AHEAD tokens at once in words of
// 8 bytes (16 of f32). The sums of the runs are added in their order.
// Shared memory: 80 LANES bytes. Guards: tokens past the count are not used and count as 0.
#include "lib/dart.glsl"
#include "table/conv_backward.glsl"
READS(x) READS(weight) READS(bias) READS(seq) READS(up_y) WRITES(grad_x)
#define PACKS
#include "lib/seq.glsl"
#include "lib/slope.glsl"
#include "lib/eight.glsl"
#include "lib/four.glsl"
#include "lib/slopes.glsl"
READS_FOUR(x) READS_FOUR(weight) READS_FOUR(bias) READS_FOUR(up_y) WRITES_FOUR(grad_x)
WRITES_AS(vec4, fours, of_weight) WRITES_AS(vec4, fours, of_bias)

const uint AHEAD = 4u;
const uint PARTS = 5u; // sums of a lane: four taps of each of four channels, then of the bias
shared vec4 run_sums[PARTS * LANES];

vec4 before(Sequence sequence, uint t, uint back, uint channel) // x of token t - back
{
    if (t < back || t - back >= sequence.count) return vec4(0.0);
    return load_four_x(args.x_at + (sequence.row + t - back) * args.x_row + channel);
}

// Walks the tokens begin to end - 1 of four channels, of which there is one at least, and stores their sums.
void walk(Sequence sequence, uint begin, uint end, uint channel, uint sums_at)
{
    vec4 weight[4]; // of a tap; in memory tap by tap of a channel
    vec4 sums[4];
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        vec4 taps = load_four_weight(args.weight_at + 4u * (channel + i));
        [[unroll]] for (uint k = 0u; k < 4u; k++) weight[k][i] = taps[k];
        sums[i] = vec4(0.0);
    }
    vec4 bias = has(args.flags, HAS_BIAS) ? load_four_bias(args.bias_at + channel) : vec4(0.0);
    vec4 bias_sum = vec4(0.0);
    vec4 x3 = before(sequence, begin, 3u, channel);
    vec4 x2 = before(sequence, begin, 2u, channel);
    vec4 x1 = before(sequence, begin, 1u, channel);
    vec4 up3 = vec4(0.0);
    vec4 up2 = vec4(0.0);
    vec4 up1 = vec4(0.0);
    uint limit = min(sequence.count, end + 3u);
    uint last = max(limit, 1u) - 1u; // stands for tokens past the limit, whose values are not used
    [[dont_unroll]] for (uint t = begin; t < end + 3u; t += AHEAD) {
        uvec4 x_words[AHEAD]; // all of them under way at once
        uvec4 up_words[AHEAD];
        [[unroll]] for (uint i = 0u; i < AHEAD; i++) {
            uint row = sequence.row + min(t + i, last);
            x_words[i] = load_words_x(args.x_at + row * args.x_row + channel);
            up_words[i] = load_words_up_y(args.up_y_at + row * args.up_y_row + channel);
        }
        [[unroll]] for (uint i = 0u; i < AHEAD; i++) {
            bool there = t + i < limit;
            vec4 x = there ? four_of(DTYPE_OF(x), x_words[i]) : vec4(0.0);
            vec4 pre = bias + weight[0] * x3 + weight[1] * x2 + weight[2] * x1 + weight[3] * x;
            vec4 up = four_of(DTYPE_OF(up_y), up_words[i]) * silu_slopes(DTYPE_OF(grad_x), pre).slope;
            if (!there) up = vec4(0.0);
            if (t + i < end) {
                sums[0] += up * x3;
                sums[1] += up * x2;
                sums[2] += up * x1;
                sums[3] += up * x;
                bias_sum += up;
            }
            if (t + i >= begin + 3u && t + i < end + 3u) {
                vec4 grad = weight[0] * up + weight[1] * up1 + weight[2] * up2 + weight[3] * up3;
                store_four_grad_x(args.grad_x_at + (sequence.row + t + i - 3u) * args.grad_x_row + channel, grad);
            }
            x3 = x2;
            x2 = x1;
            x1 = x;
            up3 = up2;
            up2 = up1;
            up1 = up;
        }
    }
    [[unroll]] for (uint i = 0u; i < 4u; i++) run_sums[sums_at + i] = vec4(sums[0][i], sums[1][i], sums[2][i], sums[3][i]);
    run_sums[sums_at + 4u] = bias_sum;
}

void main()
{
    uint blocks = (args.C + T0 - 1u) / T0;
    uint token_blocks = (args.L + T1 - 1u) / T1;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint place = tile / blocks;
        uint first_channel = (tile - place * blocks) * T0;
        uint groups = min(T0, args.C - first_channel) / 4u;
        uint runs = LANES / groups;
        uint run = LANE / groups;
        uint b = place / token_blocks;
        uint block = place - b * token_blocks;
        Sequence sequence = sequence_of(b);
        uint begin = block * T1;
        uint end = min(begin + T1, sequence.span);
        if (begin >= end) continue; // in all lanes
        uint share = (end - begin + runs - 1u) / runs;
        uint used = (end - begin + share - 1u) / share; // runs that have tokens
        barrier();
        if (run < used) walk(sequence, begin + run * share, min(begin + (run + 1u) * share, end), first_channel + LANE % groups * 4u,
                             PARTS * LANE);
        barrier();
        uint slot = slot_of(sequence, b, token_blocks, T1) + block;
        for (uint i = LANE; i < PARTS * groups; i += LANES) {
            vec4 sum = run_sums[i];
            for (uint k = 1u; k < used; k++) sum += run_sums[k * PARTS * groups + i];
            uint channel = slot * args.C + first_channel + i / PARTS * 4u;
            if (i % PARTS < 4u) fours_of_weight[channel + i % PARTS] = sum;
            else if (has(args.flags, HAS_BIAS)) fours_of_bias[channel / 4u] = sum;
        }
    }
}
