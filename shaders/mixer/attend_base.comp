#version 460
#extension GL_GOOGLE_include_directive : require
// State-memory attention of one token over the memories of one split, from q and e as the convolution left them:
// logit = sum_p e_p sum_n q_n dh_np / (rms(q) rms(e) sqrt(N)), v = sum_n c_n factor_n dh_np;
// partial = {acc[P], top, den}, top = max logit, den = sum exp(logit - top), acc = sum exp(logit - top) v.
//
// q, c B G N; e B G P; dh B capacity H N P; factor B capacity H N; partial splits B H P+4. A workgroup takes one
// (b, h, split). A lane owns four columns p; lanes with the same ones share the rows n out, and read each element of dh
// once for key and value, AHEAD rows at a time. LANES is at least MAX_STATE / 4.
// Shared memory: 2048 + 36 LANES bytes. Guards: differences from the running maximum are clamped to <= 0, LOWEST stands
// for -infinity; eps > 0.
#include "lib/dart.glsl"
#include "table/mixer_attend.glsl"
READS(q) READS(e) READS(c) READS(dh) READS(factor) READS(seq) WRITES(partial)
#include "lib/seq.glsl"
#include "lib/quads.glsl"
#include "lib/eight.glsl"
READS_AS(uvec2, pairs, dh) READS_AS(uvec4, quads, dh)

shared vec2 weights[MAX_STATE]; // q, c
shared vec4 shares[LANES];

// Four elements of a row of dh, where they start at a multiple of four.
vec4 load_four(uint at)
{
    if (is_16bit(DTYPE_OF(dh))) return four_16bit(DTYPE_OF(dh), pairs_dh[at / 4u]);
    return uintBitsToFloat(quads_dh[at / 4u]);
}

#ifdef UNROLLED
#define UNROLL_ROWS [[unroll]]
#else
#define UNROLL_ROWS
#endif
vec4 v[AHEAD];
float factors[AHEAD];

void fetch(uint rows, uint first, uint sharers, uint p, bool by_four)
{
    if (by_four) {
        [[unroll]] for (uint i = 0u; i < AHEAD; i++) {
            uint row = rows + min(first + i * sharers, args.N - 1u);
            v[i] = load_four(args.dh_at + row * args.P + p);
            factors[i] = load_factor(args.factor_at + row);
        }
    } else {
#if defined(UNROLLED) || defined(UNROLLED_COLUMNS)
        // Without a loop in the loop NVK keeps v in registers. Intel's compiler spills then, with eight rows in flight. UNROLLED keeps v in registers
        // with every compiler: with eight rows an NVIDIA H100 takes 1.6 % longer, with four SwiftShader's compiler more than 15 minutes, with two
        // seconds.
        UNROLL_ROWS for (uint i = 0u; i < AHEAD; i++) {
            uint row = rows + min(first + i * sharers, args.N - 1u);
            [[unroll]] for (uint k = 0u; k < 4u; k++) { // beyond the row: 0
                float value = load_dh(args.dh_at + row * args.P + min(p + k, args.P - 1u));
                v[i][k] = p + k < args.P ? value : 0.0;
            }
            factors[i] = load_factor(args.factor_at + row);
        }
#else
        for (uint i = 0u; i < AHEAD; i++) {
            uint row = rows + min(first + i * sharers, args.N - 1u);
            vec4 four = vec4(0.0); // beyond the row: 0
            for (uint k = 0u; k < 4u && p + k < args.P; k++) four[k] = load_dh(args.dh_at + row * args.P + p + k);
            v[i] = four;
            factors[i] = load_factor(args.factor_at + row);
        }
#endif
    }
}

void main()
{
    uint quads = (args.P + 3u) / 4u;
    uint sharers = LANES / quads;
    uint part = LANE / quads;
    uint p = LANE % quads * 4u;
    bool by_four = (args.P | args.dh_at) % 4u == 0u;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint split = tile % args.splits;
        uint head = tile / args.splits;
        uint b = head / args.H;
        uint h = head % args.H;
        uint g = h / (args.H / args.G);
        uint run = (args.count + args.splits - 1u) / args.splits;
        uint begin = split * run;
        // The first memory is asked for before it is known whether there is one: its place is there.
        fetch(((b * args.capacity + min(begin, args.count - 1u)) * args.H + h) * args.N, part, sharers, p, by_four);
        vec4 squares = vec4(0.0); // of q, of e, and then the first logit
        for (uint n = LANE; n < args.N; n += LANES) {
            float q = load_q(args.q_at + b * args.q_row + g * args.N + n);
            weights[n] = vec2(q, load_c(args.c_at + b * args.c_row + g * args.N + n));
            squares.x += q * q;
        }
        vec4 e;
        [[unroll]] for (uint i = 0u; i < 4u; i++) {
            float value = load_e(args.e_at + b * args.q_row + g * args.P + min(p + i, args.P - 1u));
            e[i] = part < sharers && p + i < args.P ? value : 0.0;
        }
        if (part == 0u) squares.y = dot(e, e);
        if (seq_count(b, 1u) == 0u) continue;
        uint seen = seq_position(b) / args.S;
        seen = seen > args.first ? min(seen - args.first, args.count) : 0u;
        uint end = min(begin + run, seen);
        float scale = 0.0;
        float top = LOWEST;
        float den = 0.0;
        vec4 acc = vec4(0.0);
        barrier();
        for (uint m = begin; m < end; m++) {
            uint rows = ((b * args.capacity + m) * args.H + h) * args.N;
            vec4 keys = vec4(0.0);
            vec4 values = vec4(0.0);
            for (uint first = part; first < args.N && part < sharers; first += AHEAD * sharers) {
                if (m != begin || first != part) fetch(rows, first, sharers, p, by_four);
                [[unroll]] for (uint i = 0u; i < AHEAD; i++) {
                    uint n = first + i * sharers;
                    vec2 weight = n < args.N ? weights[min(n, args.N - 1u)] : vec2(0.0);
                    keys += weight.x * v[i];
                    values += weight.y * factors[i] * v[i];
                }
            }
            squares.z = dot(e, keys);
            float logit = 0.0;
            if (m == begin) {
                vec4 sum = workgroup_sum4(squares);
                scale = 1.0 / (sqrt(sum.x / float(args.N) + args.eps) * sqrt(sum.y / float(args.P) + args.eps) * sqrt(float(args.N)));
                logit = scale * sum.z;
            } else {
                logit = scale * workgroup_sum(squares.z);
            }
            float now = max(top, logit);
            float keep = exp_neg(top - now);
            float gain = exp_neg(logit - now);
            den = den * keep + gain;
            acc = acc * keep + gain * values;
            top = now;
        }
        shares[LANE] = acc;
        barrier();
        if (LANE < quads) {
            for (uint i = 1u; i < sharers; i++) acc += shares[LANE + i * quads];
        }
        uint to = args.partial_at + (split * args.B * args.H + head) * (args.P + 4u);
        if (LANE < quads) {
            [[unroll]] for (uint i = 0u; i < 4u; i++) {
                if (p + i < args.P) store_partial(to + p + i, acc[i]);
            }
        }
        if (LANE == 0u) {
            store_partial(to + args.P, top);
            store_partial(to + args.P + 1u, den);
        }
        barrier();
    }
}
