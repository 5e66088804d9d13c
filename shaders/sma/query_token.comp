#version 460
#extension GL_GOOGLE_include_directive : require
// What query_16bit.comp computes, with a workgroup of at least 64 lanes for each (token, group): where few tokens leave most of a device idle,
// what counts is how much a lane does one after the other. The words of q, c and e, in this order, are dealt to the lanes.
// q, c, e are of one type, and so are qn, en, read. Shared memory: 4 LANES bytes. Guards: eps > 0; tokens past the count are skipped.
#include "lib/dart.glsl"
#include "table/sma_query.glsl"
READS_AS(uvec4, quads, q) READS_AS(uvec4, quads, e) READS(seq) WRITES_AS(uvec4, quads, qn) WRITES_AS(uvec4, quads, en)
WRITES_AS(vec2, pairs, unit) READS_AS(uvec4, quads, c) WRITES_AS(uvec4, quads, read)
#include "lib/seq.glsl"
#include "query.glsl"

const uint MOST = (3u * MAX_STATE / 8u + 63u) / 64u; // words of a lane
shared vec4 parts[LANES / 4u];                       // one a subgroup: squares of q and of e, the largest of c

void main()
{
    uint wide = args.N / 8u;
    uint all = 2u * wide + args.P / 8u;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint row = tile / args.G;
        uint g = tile % args.G;
        uint q_at = (args.q_at + row * args.q_row + g * args.N) / 8u;
        uint c_at = (args.c_at + row * args.c_row + g * args.N) / 8u;
        uint e_at = (args.e_at + row * args.e_row + g * args.P) / 8u;
        uvec4 words[MOST]; // asked for before it is known whether the token counts
        [[unroll]] for (uint x = 0u; x < MOST; x++) {
            uint i = LANE + x * LANES;
            words[x] = uvec4(0u);
            if (i < wide) words[x] = quads_q[q_at + i];
            else if (i < 2u * wide) words[x] = quads_c[c_at + i - wide];
            else if (i < all) words[x] = quads_e[e_at + i - 2u * wide];
        }
        bool live = row % args.L < seq_count(row / args.L, args.L);
        vec3 part = vec3(0.0);
        [[unroll]] for (uint x = 0u; x < MOST; x++) {
            uint i = LANE + x * LANES;
            bool of_c = i >= wide && i < 2u * wide;
            float squares = squares_of(DTYPE_OF(q), words[x]);
            part.x += i < wide ? squares : 0.0;
            part.y += i >= 2u * wide ? squares : 0.0;
            part.z = max(part.z, of_c ? largest_of(DTYPE_OF(q), words[x]) : 0.0);
        }
        part = vec3(subgroupAdd(part.xy), subgroupMax(part.z));
        if (subgroupElect()) parts[gl_SubgroupID] = vec4(part, 0.0);
        barrier();
        part = parts[0].xyz;
        for (uint i = 1u; i < gl_NumSubgroups; i++) part = vec3(part.xy + parts[i].xy, max(part.z, parts[i].z));
        barrier(); // all lanes have read
        float q_factor = inversesqrt(part.x / float(args.N) + args.eps) * inversesqrt(float(args.N));
        float e_factor = inversesqrt(part.y / float(args.P) + args.eps);
        float q_power = power_below(q_factor);
        float e_power = power_below(e_factor);
        float c_power = power_below(1.0 / max(part.z, 1.17549435e-38));
        [[unroll]] for (uint x = 0u; x < MOST; x++) {
            uint i = LANE + x * LANES;
            if (i >= all || !live) continue;
            uvec4 scaled = times(DTYPE_OF(q), DTYPE_OF(qn), words[x], i < wide ? q_power : i < 2u * wide ? c_power : e_power);
            if (i < wide) quads_qn[tile * wide + i] = scaled;
            else if (i < 2u * wide) quads_read[tile * wide + i - wide] = scaled;
            else quads_en[tile * (args.P / 8u) + i - 2u * wide] = scaled;
        }
        if (LANE == 0u && live) pairs_unit[tile] = vec2(q_factor / q_power * (e_factor / e_power), 1.0 / c_power);
    }
}
