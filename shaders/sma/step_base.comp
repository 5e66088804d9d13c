#version 460
#extension GL_GOOGLE_include_directive : require
// sma for one token, over the memories of one split: logit = sum_p e_p sum_n q_n dh_np / (rms(q) rms(e) sqrt(N)),
// partial = {top, den, acc[P]}, top = max logit, den = sum exp(logit - top), acc = sum exp(logit - top) v; then, of the
// split of a (b, h) that is done last, r and lse.
// q, c B G N; e B G P; dh B capacity H N P; factor B capacity H N; partial B H splits P+2; tickets B H; r B H P; lse B H.
// One workgroup takes one (b, h, split), BATCH memories at a time and reads each element of dh once for key and value:
// a lane owns a column p (and those LANES further on); with fewer columns than lanes several lanes share a column and take its
// rows n in turn. LANES is at least MAX_STATE / GROUPS.
// Shared memory: 6144 + 20 LANES bytes, and that of merge.glsl.
// Guards: eps > 0; differences from the running maximum are clamped to <= 0, LOWEST stands for -infinity.
#include "lib/dart.glsl"
#include "table/sma_step.glsl"
READS(q) READS(e) READS(c) READS(dh) READS(factor) READS(seq) READS_WRITES_COHERENT(float, floats, partial)
READS_WRITES(r) READS_WRITES(lse)
#include "lib/seq.glsl"
#include "lib/quads.glsl"
#include "lib/log.glsl"
#include "merge.glsl"
#include "last.glsl"

const uint BATCH = 4u;
const uint GROUPS = MAX_STATE / LANES;
shared vec2 weights[MAX_STATE]; // q, c
shared vec4 factors[MAX_STATE]; // of the batch

void main()
{
    uint columns = min(args.P, LANES);
    uint sharers = LANES / columns;
    uint part = LANE / columns;
    bool sharing = part < sharers;
    bool raw = has(args.flags, IS_RAW);
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint split = tile % args.splits;
        uint head = tile / args.splits;
        uint b = head / args.H;
        uint h = head % args.H;
        uint g = h / (args.H / args.G);
        if (seq_count(b, 1u) == 0u) continue;
        uint seen = seq_position(b) / args.S;
        seen = seen > args.first ? min(seen - args.first, args.count) : 0u;
        uint q_at = args.q_at + b * args.q_row + g * args.N;
        uint e_at = args.e_at + b * args.e_row + g * args.P;
        uint c_at = args.c_at + b * args.c_row + g * args.N;
        uint run = (args.count + args.splits - 1u) / args.splits;
        uint end = min((split + 1u) * run, seen);

        barrier();
        vec4 squares = vec4(0.0);
        for (uint n = LANE; n < args.N; n += LANES) {
            float q = load_q(q_at + n);
            weights[n] = vec2(q, load_c(c_at + n));
            squares.x += q * q;
        }
        for (uint p = LANE; p < args.P; p += LANES) {
            float e = load_e(e_at + p);
            squares.y += e * e;
        }
        squares = workgroup_sum4(squares);
        float q_factor = inversesqrt(squares.x / float(args.N) + args.eps) * inversesqrt(float(args.N));
        float e_factor = inversesqrt(squares.y / float(args.P) + args.eps);
        float top = LOWEST;
        float den = 0.0;
        float sums[GROUPS]; // these two are reached by constants only, so that they lie in registers
        vec4 kept[GROUPS];
        [[unroll]] for (uint i = 0u; i < GROUPS; i++) {
            sums[i] = 0.0;
            kept[i] = vec4(0.0);
        }
        for (uint first = split * run; first < end; first += BATCH) {
            uint rows[BATCH];
            [[unroll]] for (uint i = 0u; i < BATCH; i++)
                rows[i] = ((b * args.capacity + min(first + i, end - 1u)) * args.H + h) * args.N;
            for (uint n = LANE; n < args.N; n += LANES) {
                vec4 factor;
                [[unroll]] for (uint i = 0u; i < BATCH; i++) factor[i] = load_factor(args.factor_at + rows[i] + n);
                factors[n] = factor;
            }
            barrier();
            vec4 logits = vec4(0.0);
            for (uint group = 0u; group * LANES < args.P; group++) {
                uint p = group * LANES + LANE % columns;
                vec4 keys = vec4(0.0);
                vec4 values = vec4(0.0);
                if (sharing && p < args.P) {
                    for (uint n = part; n < args.N; n += sharers) {
                        vec4 value;
                        [[unroll]] for (uint i = 0u; i < BATCH; i++)
                            value[i] = load_dh(args.dh_at + (rows[i] + n) * args.P + p);
                        vec4 scaled = value * factors[n];
                        keys += weights[n].x * q_factor * (raw ? scaled : value);
                        values += weights[n].y * (raw ? value : scaled);
                    }
                    logits += keys * (load_e(e_at + p) * e_factor);
                }
                [[unroll]] for (uint i = 0u; i < GROUPS; i++) kept[i] = i == group ? values : kept[i];
            }
            logits = workgroup_sum4(logits);
            [[unroll]] for (uint i = 0u; i < BATCH; i++) logits[i] = first + i < end ? logits[i] : LOWEST;
            float new_top = max(max(max(logits.x, logits.y), max(logits.z, logits.w)), top);
            float keep = exp_neg(top - new_top);
            vec4 gains;
            [[unroll]] for (uint i = 0u; i < BATCH; i++)
                gains[i] = first + i < end ? exp_neg(logits[i] - new_top) : 0.0;
            den = den * keep + ((gains.x + gains.y) + (gains.z + gains.w));
            top = new_top;
            [[unroll]] for (uint group = 0u; group < GROUPS; group++) sums[group] = sums[group] * keep + dot(gains, kept[group]);
            barrier();
        }

        uint to = tile * (args.P + 2u);
        if (LANE == 0u) {
            floats_partial[to] = top;
            floats_partial[to + 1u] = den;
        }
        if (sharers == 1u) {
            [[unroll]] for (uint group = 0u; group < GROUPS; group++)
                if (group * LANES + LANE < args.P) floats_partial[to + 2u + group * LANES + LANE] = sums[group];
        } else {
            barrier();
            shares[LANE] = sums[0];
            barrier();
            if (LANE < columns) {
                float sum = 0.0;
                for (uint i = 0u; i < sharers; i++) sum += shares[LANE + i * columns];
                floats_partial[to + 2u + LANE] = sum;
            }
        }
        merge_when_last(head);
    }
}
