#version 460
#extension GL_GOOGLE_include_directive : require
// rho[i] = (mean_p dh[i, p]^2 + eps)^(-1/2).
// dh rows P; rho rows. One workgroup takes T0 rows: TEAM neighbouring lanes read a row together, then one lane adds up
// their parts. TEAM divides LANES. Shared memory: 4 T0 (TEAM + 1) bytes. Guards: eps > 0.
#include "lib/dart.glsl"
#include "table/sma_rho.glsl"
READS(dh) WRITES(rho)

const uint TEAM = 16u;
shared float parts[T0 * (TEAM + 1u)];

void main()
{
    uint member = LANE % TEAM;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint rows = min(T0, args.rows - tile * T0);
        for (uint row = LANE / TEAM; row < rows; row += LANES / TEAM) {
            uint at = args.dh_at + (tile * T0 + row) * args.P;
            float sum = 0.0;
            for (uint p = member; p < args.P; p += TEAM) {
                float value = load_dh(at + p);
                sum += value * value;
            }
            parts[row * (TEAM + 1u) + member] = sum;
        }
        barrier();
        for (uint row = LANE; row < rows; row += LANES) {
            float sum = 0.0;
            for (uint i = 0u; i < TEAM; i++) sum += parts[row * (TEAM + 1u) + i];
            store_rho(tile * T0 + row, inversesqrt(sum / float(args.P) + args.eps));
        }
        barrier();
    }
}
