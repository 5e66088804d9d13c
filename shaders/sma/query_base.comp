#version 460
#extension GL_GOOGLE_include_directive : require
// qn = q / rms(q) / sqrt(N), en = e / rms(e), rms(v) = sqrt(mean(v^2) + eps); or powers of two apart,
// the rest in unit, with read = c, so too.
// q, c B L G N; e B L G P; qn, read B L G N; en B L G P; unit B L G 2. One workgroup takes one (token, group).
// Shared memory: 20 LANES bytes. Guards: eps > 0; tokens past the count are skipped.
#include "lib/dart.glsl"
#include "table/sma_query.glsl"
READS(q) READS(e) READS(seq) WRITES(qn) WRITES(en) WRITES(unit) READS(c) WRITES(read)
#include "lib/seq.glsl"
#include "lib/quads.glsl"

// The largest power of two that is not above x.
float power_below(float x) { return uintBitsToFloat(floatBitsToUint(max(x, 1.17549435e-38)) & 0x7f800000u); }

void main()
{
    for (uint tile = gl_WorkGroupID.x; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint row = tile / args.G;
        uint g = tile % args.G;
        uint b = row / args.L;
        if (row % args.L >= seq_count(b, args.L)) continue;
        uint q_at = args.q_at + row * args.q_row + g * args.N;
        uint e_at = args.e_at + row * args.e_row + g * args.P;
        vec4 squares = vec4(0.0);
        for (uint n = LANE; n < args.N; n += LANES) {
            float value = load_q(q_at + n);
            squares.x += value * value;
        }
        for (uint p = LANE; p < args.P; p += LANES) {
            float value = load_e(e_at + p);
            squares.y += value * value;
        }
        squares = workgroup_sum4(squares);
        float q_factor = inversesqrt(squares.x / float(args.N) + args.eps) * inversesqrt(float(args.N));
        float e_factor = inversesqrt(squares.y / float(args.P) + args.eps);
        if (has(args.flags, HAS_UNIT)) {
            float q_power = power_below(q_factor);
            float e_power = power_below(e_factor);
            uint c_at = args.c_at + row * args.c_row + g * args.N;
            float top = 1.17549435e-38;
            for (uint n = LANE; n < args.N; n += LANES) top = max(top, abs(load_c(c_at + n)));
            float c_power = power_below(1.0 / workgroup_max(top));
            for (uint n = LANE; n < args.N; n += LANES) store_read(tile * args.N + n, load_c(c_at + n) * c_power);
            if (LANE == 0u) {
                store_unit(2u * tile, q_factor / q_power * (e_factor / e_power));
                store_unit(2u * tile + 1u, 1.0 / c_power);
            }
            q_factor = q_power;
            e_factor = e_power;
        }
        for (uint n = LANE; n < args.N; n += LANES) store_qn(tile * args.N + n, load_q(q_at + n) * q_factor);
        for (uint p = LANE; p < args.P; p += LANES) store_en(tile * args.P + p, load_e(e_at + p) * e_factor);
        barrier();
    }
}
