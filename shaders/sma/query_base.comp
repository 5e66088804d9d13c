#version 460
#extension GL_GOOGLE_include_directive : require
// qn = q / rms(q) / sqrt(N), en = e / rms(e), rms(v) = sqrt(mean(v^2) + eps); or powers of two apart,
// the rest in unit, with read = c, so too.
// q, c B L G N; e B L G P; qn, read B L G N; en B L G P; unit B L G 2. A workgroup takes T0 (token, group)s, TEAM neighbouring lanes each.
// Shared memory: 16 LANES bytes. Guards: eps > 0; tokens past the count are skipped.
#include "lib/dart.glsl"
#include "table/sma_query.glsl"
READS(q) READS(e) READS(seq) WRITES(qn) WRITES(en) WRITES(unit) READS(c) WRITES(read)
#include "lib/seq.glsl"

// The largest power of two that is not above x.
float power_below(float x) { return uintBitsToFloat(floatBitsToUint(max(x, 1.17549435e-38)) & 0x7f800000u); }

#define TEAM (LANES / T0)
shared vec4 parts[LANES]; // squares of q and of e, the largest of c

void main()
{
    bool apart = has(args.flags, HAS_UNIT);
    uint own = LANE % TEAM;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint item = tile * T0 + LANE / TEAM;
        uint row = item / args.G;
        uint g = item % args.G;
        bool live = row < args.B * args.L && row % args.L < seq_count(row / args.L, args.L);
        uint q_at = args.q_at + row * args.q_row + g * args.N;
        uint e_at = args.e_at + row * args.e_row + g * args.P;
        uint c_at = args.c_at + row * args.c_row + g * args.N;
        vec4 sums = vec4(0.0);
        for (uint n = own; n < args.N && live; n += TEAM) {
            float value = load_q(q_at + n);
            sums.x += value * value;
            if (apart) sums.z = max(sums.z, abs(load_c(c_at + n)));
        }
        for (uint p = own; p < args.P && live; p += TEAM) {
            float value = load_e(e_at + p);
            sums.y += value * value;
        }
        barrier();
        parts[LANE] = sums;
        barrier();
        sums = vec4(0.0);
        for (uint i = 0u; i < TEAM; i++) {
            vec4 other = parts[LANE - own + i];
            sums = vec4(sums.xy + other.xy, max(sums.z, other.z), 0.0);
        }
        float q_factor = inversesqrt(sums.x / float(args.N) + args.eps) * inversesqrt(float(args.N));
        float e_factor = inversesqrt(sums.y / float(args.P) + args.eps);
        if (apart) {
            float q_power = power_below(q_factor);
            float e_power = power_below(e_factor);
            float c_power = power_below(1.0 / max(sums.z, 1.17549435e-38));
            for (uint n = own; n < args.N && live; n += TEAM) store_read(item * args.N + n, load_c(c_at + n) * c_power);
            if (own == 0u && live) {
                store_unit(2u * item, q_factor / q_power * (e_factor / e_power));
                store_unit(2u * item + 1u, 1.0 / c_power);
            }
            q_factor = q_power;
            e_factor = e_power;
        }
        for (uint n = own; n < args.N && live; n += TEAM) store_qn(item * args.N + n, load_q(q_at + n) * q_factor);
        for (uint p = own; p < args.P && live; p += TEAM) store_en(item * args.P + p, load_e(e_at + p) * e_factor);
    }
}
