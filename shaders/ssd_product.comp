#version 460
#extension GL_GOOGLE_include_directive : require
// cb[s, t] = c_s . b_t for t <= s within a chunk, 0 elsewhere.
// b, c B L G N; cb B M G C C.
// One workgroup computes T0 x T0 elements: a lane owns column LANE % T0 and T0 T0 / LANES rows, in registers. Both
// operands pass through shared memory in slabs of SLAB states. T0 is a
// multiple of 4, LANES one of T0, and T0 T0 / 4 one of LANES.
// Shared memory: 16 SLAB (T0 / 4 + 1) + 4 SLAB (T0 + 1) bytes.
// Guards: tokens past the chunk are never read; tiles above the diagonal are only filled with 0.
#include "lib/dart.glsl"
PUSH(SsdProductArgs)
READS(0, b)
READS(1, c)
READS(2, seq)
WRITES(3, cb)
#include "lib/seq.glsl"

const uint SLAB = 32u;
const uint PITCH = T0 / 4u + 1u;
const uint QUADS = T0 * T0 / 4u / LANES;
shared vec4 c_slab[SLAB * PITCH];
shared float b_slab[SLAB * (T0 + 1u)];

void main()
{
    uint column = LANE % T0;
    uint first_quad = LANES == T0 ? 0u : LANE / T0 * QUADS;
    uint blocks = (args.C + T0 - 1u) / T0;
    for (uint tile = gl_WorkGroupID.x; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint rest = tile / blocks;
        uint t_first = tile % blocks * T0;
        uint s_first = rest % blocks * T0;
        rest /= blocks;
        uint g = rest % args.G;
        rest /= args.G;
        uint j = rest % args.M;
        uint b = rest / args.M;
        Chunk chunk = chunk_of(seq_position(b), seq_count(b, args.L), args.S, j);
        uint size = chunk.begin < chunk.end ? chunk.end - chunk.begin : 0u;

        vec4 sums[QUADS];
        [[unroll]] for (uint q = 0u; q < QUADS; q++) sums[q] = vec4(0.0);
        if (t_first <= s_first && s_first < size) {
            uint token = b * args.L + chunk.begin;
            uint b_at = args.b_at + g * args.N;
            uint c_at = args.c_at + g * args.N;
            for (uint n_first = 0u; n_first < args.N; n_first += SLAB) {
                barrier();
                for (uint i = LANE; i < SLAB * (T0 / 4u); i += LANES) {
                    uint n = min(n_first + i % SLAB, args.N - 1u);
                    uint quad = i / SLAB;
                    vec4 c;
                    [[unroll]] for (uint r = 0u; r < 4u; r++)
                        c[r] = load_c(c_at + (token + min(s_first + 4u * quad + r, size - 1u)) * args.c_row + n);
                    c_slab[i % SLAB * PITCH + quad] = c;
                }
                for (uint i = LANE; i < SLAB * T0; i += LANES) {
                    uint n = min(n_first + i % SLAB, args.N - 1u);
                    uint t = min(t_first + i / SLAB, size - 1u);
                    b_slab[i % SLAB * (T0 + 1u) + i / SLAB] = load_b(b_at + (token + t) * args.b_row + n);
                }
                barrier();
                uint top = min(SLAB, args.N - n_first);
                for (uint k = 0u; k < top; k++) {
                    float value = b_slab[k * (T0 + 1u) + column];
                    [[unroll]] for (uint q = 0u; q < QUADS; q++) sums[q] += value * c_slab[k * PITCH + first_quad + q];
                }
            }
        }
        uint t = t_first + column;
        uint to = ((b * args.M + j) * args.G + g) * args.C * args.C + t;
        if (t < args.C) {
            [[unroll]] for (uint q = 0u; q < QUADS; q++) {
                [[unroll]] for (uint r = 0u; r < 4u; r++) {
                    uint s = s_first + 4u * (first_quad + q) + r;
                    if (s < args.C) store_cb(to + s * args.C, t <= s && s < size ? sums[q][r] : 0.0);
                }
            }
        }
    }
}
