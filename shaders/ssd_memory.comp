#version 460
#extension GL_GOOGLE_include_directive : require
// memory[n, p] = sum over tokens t of a chunk of exp(cum_end - cum_t) step_t b_t[n] x_t[p].
// x B L H P; b B L G N; cum B H L 3; memory B M H N P.
// One workgroup computes T0 rows n x T1 columns p: a lane owns T1 / LANES columns with all T0 rows in registers, reads
// its x once and shares b in slabs of SLAB tokens. T0 is a multiple of 4, T1 one of LANES.
// Shared memory: 4 SLAB (T0 + 1) bytes.
// Guards: exponents are clamped to <= 0 and come from two-float differences; tokens past the chunk are never read.
#include "lib/dart.glsl"
PUSH(SsdMemoryArgs)
READS(0, x)
READS(1, b)
READS(2, cum)
READS(3, seq)
WRITES(4, memory)
#include "lib/seq.glsl"
#include "lib/ssd.glsl"

const uint SLAB = 32u;
const uint QUADS = T0 / 4u;
const uint COLUMNS = T1 / LANES;
shared vec4 b_slab[SLAB * QUADS];
shared float factors[SLAB];

void main()
{
    uint p_blocks = (args.P + T1 - 1u) / T1;
    uint n_blocks = (args.N + T0 - 1u) / T0;
    for (uint tile = gl_WorkGroupID.x; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint p_first = tile % p_blocks * T1;
        uint rest = tile / p_blocks;
        uint n_first = rest % n_blocks * T0;
        rest /= n_blocks;
        uint h = rest % args.H;
        rest /= args.H;
        uint j = rest % args.M;
        uint b = rest / args.M;
        uint g = h / (args.H / args.G);
        Chunk chunk = chunk_of(seq_position(b), seq_count(b, args.L), args.S, j);
        uint size = chunk.begin < chunk.end ? chunk.end - chunk.begin : 0u;
        uint token = b * args.L + chunk.begin;
        uint cum = (b * args.H + h) * args.L + chunk.begin;

        vec4 sums[QUADS * COLUMNS];
        [[unroll]] for (uint q = 0u; q < QUADS * COLUMNS; q++) sums[q] = vec4(0.0);
        vec2 end = size > 0u ? cum_at(cum + size - 1u).xy : vec2(0.0);
        uint x_first[COLUMNS];
        [[unroll]] for (uint i = 0u; i < COLUMNS; i++)
            x_first[i] = args.x_at + h * args.P + min(p_first + LANE + i * LANES, args.P - 1u);
        for (uint t_first = 0u; t_first < size; t_first += SLAB) {
            barrier();
            for (uint i = LANE; i < SLAB * QUADS; i += LANES) {
                uint t = min(t_first + i / QUADS, size - 1u);
                uint n = n_first + i % QUADS * 4u;
                vec4 value;
                [[unroll]] for (uint r = 0u; r < 4u; r++)
                    value[r] = load_b(args.b_at + (token + t) * args.b_row + g * args.N + min(n + r, args.N - 1u));
                b_slab[i] = value;
            }
            for (uint i = LANE; i < SLAB; i += LANES) {
                vec3 at = cum_at(cum + min(t_first + i, size - 1u));
                factors[i] = exp_neg(cum_between(at.xy, end)) * at.z;
            }
            barrier();
            uint top = min(SLAB, size - t_first);
            for (uint k = 0u; k < top; k++) {
                float factor = factors[k];
                uint x_row = (token + t_first + k) * args.x_row;
                float value[COLUMNS];
                [[unroll]] for (uint i = 0u; i < COLUMNS; i++) value[i] = load_x(x_first[i] + x_row) * factor;
                [[unroll]] for (uint q = 0u; q < QUADS; q++) {
                    vec4 weight = b_slab[k * QUADS + q];
                    [[unroll]] for (uint i = 0u; i < COLUMNS; i++) sums[i * QUADS + q] += weight * value[i];
                }
            }
        }
        uint to = ((b * args.M + j) * args.H + h) * args.N * args.P;
        [[unroll]] for (uint i = 0u; i < COLUMNS; i++) {
            uint p = p_first + LANE + i * LANES;
            if (p < args.P) {
                [[unroll]] for (uint q = 0u; q < QUADS; q++) {
                    [[unroll]] for (uint r = 0u; r < 4u; r++) {
                        uint n = n_first + 4u * q + r;
                        if (n < args.N) store_memory(to + n * args.P + p, sums[i * QUADS + q][r]);
                    }
                }
            }
        }
    }
}
