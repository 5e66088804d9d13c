#version 460
#extension GL_GOOGLE_include_directive : require
// qn, en, read and unit as query_base.comp computes them with HAS_UNIT, where all else has 16 bits and lies in whole 16-byte words.
// A workgroup takes T0 (token, group)s, TEAM neighbouring lanes each: 16 with rows of T0 = LANES / 16. The words of q, c and e, in this order, are
// dealt to the lanes, and nothing is read twice. Shared memory: 16 LANES bytes. Guards: eps > 0; tokens past the count are skipped.
#include "lib/dart.glsl"
#include "table/sma_query.glsl"
READS_AS(uvec4, quads, q) READS_AS(uvec4, quads, e) READS(seq) WRITES_AS(uvec4, quads, qn) WRITES_AS(uvec4, quads, en)
WRITES_AS(vec2, pairs, unit) READS_AS(uvec4, quads, c) WRITES_AS(uvec4, quads, read)
#include "lib/seq.glsl"
#include "query.glsl"

const uint TEAM = 16u;
const uint MOST = 3u * MAX_STATE / 8u / TEAM; // words of a lane
shared vec4 parts[LANES]; // squares of q and of e, the largest of c

void main()
{
    uint own = LANE % TEAM;
    uint wide = args.N / 8u;
    uint all = 2u * wide + args.P / 8u;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint item = tile * T0 + LANE / TEAM;
        uint row = item / args.G;
        uint g = item % args.G;
        bool there = row < args.B * args.L;
        uint q_at = (args.q_at + row * args.q_row + g * args.N) / 8u;
        uint c_at = (args.c_at + row * args.c_row + g * args.N) / 8u;
        uint e_at = (args.e_at + row * args.e_row + g * args.P) / 8u;
        uvec4 words[MOST]; // all of them under way before the first is looked at, those of tokens past the count as well
        [[unroll]] for (uint x = 0u; x < MOST; x++) {
            uint i = own + x * TEAM;
            words[x] = uvec4(0u);
            if (x * TEAM >= all || i >= all || !there) continue;
            if (i < wide) words[x] = quads_q[q_at + i];
            else if (i < 2u * wide) words[x] = quads_c[c_at + i - wide];
            else words[x] = quads_e[e_at + i - 2u * wide];
        }
        bool live = there && row % args.L < seq_count(row / args.L, args.L);
        vec4 sums = vec4(0.0);
        [[unroll]] for (uint x = 0u; x < MOST; x++) {
            uint i = own + x * TEAM;
            if (x * TEAM >= all || i >= all) continue;
            if (i < wide) sums.x += squares_of(DTYPE_OF(q), words[x]);
            else if (i < 2u * wide) sums.z = max(sums.z, largest_of(DTYPE_OF(c), words[x]));
            else sums.y += squares_of(DTYPE_OF(e), words[x]);
        }
        barrier();
        parts[LANE] = sums;
        barrier();
        sums = vec4(0.0);
        [[unroll]] for (uint i = 0u; i < TEAM; i++) {
            vec4 other = parts[LANE - own + i];
            sums = vec4(sums.xy + other.xy, max(sums.z, other.z), 0.0);
        }
        float q_factor = inversesqrt(sums.x / float(args.N) + args.eps) * inversesqrt(float(args.N));
        float e_factor = inversesqrt(sums.y / float(args.P) + args.eps);
        float q_power = power_below(q_factor);
        float e_power = power_below(e_factor);
        float c_power = power_below(1.0 / max(sums.z, 1.17549435e-38));
        [[unroll]] for (uint x = 0u; x < MOST; x++) {
            uint i = own + x * TEAM;
            if (x * TEAM >= all || i >= all || !live) continue;
            if (i < wide) quads_qn[item * wide + i] = times(DTYPE_OF(q), DTYPE_OF(qn), words[x], q_power);
            else if (i < 2u * wide) quads_read[item * wide + i - wide] = times(DTYPE_OF(c), DTYPE_OF(read), words[x], c_power);
            else quads_en[item * (args.P / 8u) + i - 2u * wide] = times(DTYPE_OF(e), DTYPE_OF(en), words[x], e_power);
        }
        if (own == 0u && live) pairs_unit[item] = vec2(q_factor / q_power * (e_factor / e_power), 1.0 / c_power);
    }
}
