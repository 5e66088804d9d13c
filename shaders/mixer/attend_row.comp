#version 460
#extension GL_GOOGLE_include_directive : require
// State-memory attention of one token of one sequence over the memories of one split: what attend_base.comp computes, for memories of 16 bits of
// N = 128, P = 64, at most TOGETHER = T0 of them a split. All are on their way before the first is looked at, and before it is known if the token
// sees them: their places are there. Eight lanes share a row n; a lane has ROWS rows of each memory, LANES = 8 N / ROWS, and keeps them until the
// logits are known.
// Shared memory: 32 LANES + 4 (TOGETHER + 2) (LANES + 1) bytes. Guards as in attend_base.comp.
#include "lib/dart.glsl"
#include "table/mixer_attend.glsl"
READS(q) READS(e) READS(c) READS(dh) READS(factor) READS(seq) WRITES(partial)
#include "lib/seq.glsl"
#include "lib/eight.glsl"
#include "lib/together.glsl"
READS_AS(uvec4, quads, dh)
READS_EIGHT(e)

const uint N = 128u;
const uint P = 64u;
const uint COLUMNS = P / 8u; // lanes of a row
const uint GROUPS = N / ROWS; // of such lanes
const uint SUMS = TOGETHER + 2u; // of the logits, then of the squares of q and e
#include "lib/sums.glsl"
shared vec4 found[GROUPS * P / 4u];

uvec4 fetched[TOGETHER * ROWS];
float factors[TOGETHER * ROWS];

// Memories from `memory` on, past `last` that one again: rows at, at + GROUPS, ... of stride in all. Returns bits of all of them.
uint fetch(uint memory, uint last, uint stride, uint at, uint column)
{
    uint bits = 0u;
    [[unroll]] for (uint m = 0u; m < TOGETHER; m++) {
        uint rows = min(memory + m, last) * stride + at;
        [[unroll]] for (uint r = 0u; r < ROWS; r++) {
            fetched[m * ROWS + r] = quads_dh[args.dh_at / 8u + (rows + r * GROUPS) * COLUMNS + column];
            factors[m * ROWS + r] = load_factor(args.factor_at + rows + r * GROUPS);
            bits |= fetched[m * ROWS + r].x | floatBitsToUint(factors[m * ROWS + r]);
        }
    }
    return bits;
}

void main()
{
    uint column = LANE % COLUMNS;
    uint group = LANE / COLUMNS;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint split = tile % args.splits;
        uint head = tile / args.splits;
        uint g = head / (args.H / args.G);
        uint run = (args.count + args.splits - 1u) / args.splits;
        uint stride = args.H * N;
        uint at = head * N + group;
        uint first = split * run;
        uint bits = fetch(first, args.count - 1u, stride, at, column);
        Words e_words = load_words_e(args.e_at + g * P + 8u * column);
        bits |= e_words.low.x | e_words.high.x;
        float q[ROWS];
        float read[ROWS];
        vec2 squares = vec2(0.0);
        [[unroll]] for (uint r = 0u; r < ROWS; r++) {
            q[r] = load_q(args.q_at + g * N + group + r * GROUPS);
            read[r] = load_c(args.c_at + g * N + group + r * GROUPS);
            bits |= floatBitsToUint(q[r]) | floatBitsToUint(read[r]);
        }
        uint position = seq_position(0u);
        uint count = seq_count(0u, 1u);
        uint none = nothing(bits | position | count);
        position += none;
        count += none;
        Eight verifier = eight_of(DTYPE_OF(e), e_words);
        [[unroll]] for (uint r = 0u; r < ROWS; r++) {
            q[r] += uintBitsToFloat(none);
            if (column == 0u) squares.x += q[r] * q[r];
        }
        if (group == 0u) squares.y = dot(verifier.low, verifier.low) + dot(verifier.high, verifier.high);
        uint seen = position / args.S;
        if (count == 0u) continue;
        seen = seen > args.first ? min(seen - args.first, args.count) : 0u;
        uint end = min(first + run, seen);
        float zero = uintBitsToFloat(none);
        vec4 low = verifier.low + zero, high = verifier.high + zero;
        float keys[SUMS];
        [[unroll]] for (uint m = 0u; m < TOGETHER; m++) {
            float key = 0.0;
            [[unroll]] for (uint r = 0u; r < ROWS; r++) {
                Eight v = eight_of(DTYPE_OF(dh), Words(fetched[m * ROWS + r], uvec4(0u)));
                key += q[r] * (dot(low, v.low) + dot(high, v.high));
            }
            keys[m] = key;
        }
        keys[TOGETHER] = squares.x;
        keys[TOGETHER + 1u] = squares.y;
        add_up_all(keys);
        float q_scale = inversesqrt(totals[TOGETHER] / float(N) + args.eps), e_scale = inversesqrt(totals[TOGETHER + 1u] / float(P) + args.eps);
        float scale = q_scale * e_scale * inversesqrt(float(N));
        float top = LOWEST;
        [[unroll]] for (uint m = 0u; m < TOGETHER; m++) {
            if (first + m < end) top = max(top, scale * totals[m]);
        }
        uint again = nothing(floatBitsToUint(totals[0])); // memories are kept as words, not as the numbers of the loop above
        float den = 0.0;
        Eight sum = Eight(vec4(0.0), vec4(0.0));
        [[unroll]] for (uint m = 0u; m < TOGETHER; m++) {
            float gain = first + m < end ? exp_neg(scale * totals[m] - top) : 0.0;
            den += gain;
            [[unroll]] for (uint r = 0u; r < ROWS; r++) {
                Eight v = eight_of(DTYPE_OF(dh), Words(fetched[m * ROWS + r] | again, uvec4(0u)));
                float weight = gain * read[r] * factors[m * ROWS + r];
                if (first + m < end) { // what lies beyond may be no number
                    sum.low += weight * v.low;
                    sum.high += weight * v.high;
                }
            }
        }
        barrier();
        found[2u * LANE] = sum.low;
        found[2u * LANE + 1u] = sum.high;
        barrier();
        // Four lanes add up each four columns.
        uint to = args.partial_at + (split * args.H + head) * (P + 4u);
        const uint SHARERS = 4u;
        vec4 total = vec4(0.0);
        if (LANE < SHARERS * P / 4u) {
            for (uint i = LANE / (P / 4u); i < GROUPS; i += SHARERS) total += found[i * (P / 4u) + LANE % (P / 4u)];
        }
        barrier();
        if (LANE < SHARERS * P / 4u) found[LANE] = total;
        barrier();
        if (LANE < P / 4u) {
            [[unroll]] for (uint i = 1u; i < SHARERS; i++) total += found[i * (P / 4u) + LANE];
            [[unroll]] for (uint i = 0u; i < 4u; i++) store_partial(to + 4u * LANE + i, total[i]);
        }
        if (LANE == 0u) {
            store_partial(to + P, top);
            store_partial(to + P + 1u, den);
        }
    }
}
