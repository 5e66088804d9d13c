#version 460
#extension GL_GOOGLE_include_directive : require
// qn, en, read and unit as query_base.comp computes them with HAS_UNIT, where all else has 16 bits and lies in whole 16-byte words: a
// lane has eight elements of q and of e, or of c, and nothing is read twice. One workgroup takes one (token, group). LANES is 64 at
// least. Shared memory: 16 LANES bytes. Guards: eps > 0; tokens past the count are skipped.
#include "lib/dart.glsl"
#include "table/sma_query.glsl"
READS_AS(uvec4, quads, q) READS_AS(uvec4, quads, e) READS(seq) WRITES_AS(uvec4, quads, qn) WRITES_AS(uvec4, quads, en)
WRITES_AS(vec2, pairs, unit) READS_AS(uvec4, quads, c) WRITES_AS(uvec4, quads, read)
#include "lib/seq.glsl"

// The largest power of two that is not above x.
float power_below(float x) { return uintBitsToFloat(floatBitsToUint(max(x, 1.17549435e-38)) & 0x7f800000u); }

const uint WIDEST = MAX_STATE / 8u; // lanes of a row; as many again have c

vec2 unpack(uint type, uint word)
{
    return type == TYPE_F16 ? unpackHalf2x16(word) : vec2(uintBitsToFloat(word << 16), uintBitsToFloat(word & 0xffff0000u));
}
// Times a power of two: exact, but for what is too small for f16.
uint pack(uint type, vec2 value)
{
    return type == TYPE_F16 ? packFloat2x16(f16vec2(value)) : bf16_bits(value.x) | bf16_bits(value.y) << 16;
}
uvec4 times(uint from, uint to, uvec4 words, float factor)
{
    uvec4 result;
    [[unroll]] for (uint i = 0u; i < 4u; i++) result[i] = pack(to, unpack(from, words[i]) * factor);
    return result;
}
float squares_of(uint type, uvec4 words)
{
    float sum = 0.0;
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        vec2 value = unpack(type, words[i]);
        sum += dot(value, value);
    }
    return sum;
}
float largest_of(uint type, uvec4 words)
{
    float most = 0.0;
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        vec2 value = abs(unpack(type, words[i]));
        most = max(most, max(value.x, value.y));
    }
    return most;
}

shared vec3 parts[gl_WorkGroupSize.x];

void main()
{
    uint own = LANE % WIDEST;
    bool reads = LANE / WIDEST == 1u;
    for (uint tile = gl_WorkGroupID.x; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint row = tile / args.G;
        uint g = tile % args.G;
        uint b = row / args.L;
        if (row % args.L >= seq_count(b, args.L)) continue;
        bool wide = LANE < 2u * WIDEST && own < args.N / 8u;
        bool narrow = LANE < args.P / 8u;
        uvec4 words = uvec4(0u); // of q or of c
        uvec4 verifier = uvec4(0u);
        if (wide && reads) words = quads_c[(args.c_at + row * args.c_row + g * args.N) / 8u + own];
        if (wide && !reads) words = quads_q[(args.q_at + row * args.q_row + g * args.N) / 8u + own];
        if (narrow) verifier = quads_e[(args.e_at + row * args.e_row + g * args.P) / 8u + own];
        vec3 part; // squares of q and of e, the largest of c
        part.x = subgroupAdd(reads ? 0.0 : squares_of(DTYPE_OF(q), words));
        part.y = subgroupAdd(squares_of(DTYPE_OF(e), verifier));
        part.z = subgroupMax(reads ? largest_of(DTYPE_OF(c), words) : 0.0);
        if (subgroupElect()) parts[gl_SubgroupID] = part;
        barrier();
        part = parts[0];
        for (uint i = 1u; i < gl_NumSubgroups; i++) part = vec3(part.xy + parts[i].xy, max(part.z, parts[i].z));
        barrier();

        float q_factor = inversesqrt(part.x / float(args.N) + args.eps) * inversesqrt(float(args.N));
        float e_factor = inversesqrt(part.y / float(args.P) + args.eps);
        float q_power = power_below(q_factor);
        float e_power = power_below(e_factor);
        float c_power = power_below(1.0 / max(part.z, 1.17549435e-38));
        if (wide && reads) quads_read[tile * (args.N / 8u) + own] = times(DTYPE_OF(c), DTYPE_OF(read), words, c_power);
        if (wide && !reads) quads_qn[tile * (args.N / 8u) + own] = times(DTYPE_OF(q), DTYPE_OF(qn), words, q_power);
        if (narrow) quads_en[tile * (args.P / 8u) + own] = times(DTYPE_OF(e), DTYPE_OF(en), verifier, e_power);
        if (LANE == 0u) pairs_unit[tile] = vec2(q_factor / q_power * (e_factor / e_power), 1.0 / c_power);
    }
}
