#version 460
#extension GL_GOOGLE_include_directive : require
// rho[i] = (mean_p dh[i, p]^2 + eps)^(-1/2), for dh of 16 bits and P a multiple of 8, in words of 16 bytes.
// dh rows P; rho rows. One workgroup takes T0 rows: TEAM neighbouring lanes read a row together, a word each, and have ROWS such words
// on their way at once; then one lane adds up their parts. Shared memory: 4 T0 (TEAM + 1) bytes. Guards: eps > 0.
#include "lib/dart.glsl"
#include "table/sma_rho.glsl"
READS_AS(uvec4, quads, dh) WRITES(rho)

const uint TEAM = 8u;                // divides LANES
const uint ROWS = T0 * TEAM / LANES; // of a lane
shared float parts[T0 * (TEAM + 1u)];

float square_sum(uvec4 words)
{
    float sum = 0.0;
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        float first = element_of(DTYPE_OF(dh), words[i], 0u);
        float second = element_of(DTYPE_OF(dh), words[i], 1u);
        sum += first * first + second * second;
    }
    return sum;
}

void main()
{
    uint member = LANE % TEAM;
    uint words = args.P / 8u;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint rows = min(T0, args.rows - tile * T0);
        float sums[ROWS];
        [[unroll]] for (uint i = 0u; i < ROWS; i++) sums[i] = 0.0;
        for (uint word = member; word < words; word += TEAM) {
            uvec4 fetched[ROWS];
            [[unroll]] for (uint i = 0u; i < ROWS; i++) {
                uint row = min(LANE / TEAM + i * (LANES / TEAM), rows - 1u);
                fetched[i] = quads_dh[args.dh_at / 8u + (tile * T0 + row) * words + word];
            }
            [[unroll]] for (uint i = 0u; i < ROWS; i++) sums[i] += square_sum(fetched[i]);
        }
        [[unroll]] for (uint i = 0u; i < ROWS; i++) parts[(LANE / TEAM + i * (LANES / TEAM)) * (TEAM + 1u) + member] = sums[i];
        barrier();
        for (uint row = LANE; row < rows; row += LANES) {
            float sum = 0.0;
            for (uint i = 0u; i < TEAM; i++) sum += parts[row * (TEAM + 1u) + i];
            store_rho(tile * T0 + row, inversesqrt(sum / float(args.P) + args.eps));
        }
        barrier();
    }
}
