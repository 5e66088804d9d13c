#version 460
#extension GL_GOOGLE_include_directive : require
// y_t = sum over s <= t of cb[t, s] exp(cum_t - cum_s) step_s x_s + exp(cum_t) c_t hin + d x_t, within a chunk.
// x, y B L H P; c B L G N; cb B M G C C; cum B H L 3; hin B M H N P; d H.
// One workgroup computes T1 tokens x T0 columns p: a lane owns T0 / LANES columns with all T1 tokens in registers.
// First c hin, then the source tokens below the tile, SLAB at a time: the sums are kept relative to the cumulative
// decay at the end of the last slab, so that only the T1 x T1 tile on the diagonal needs an exponential per element.
// T1 is a multiple of 4, T0 one of LANES. Shared memory: 16 SLAB (T1 / 4 + 1) + 4 SLAB + 4 T1 bytes.
// Guards: every exponent is a two-float difference towards a later token, clamped to <= 0; above the diagonal counts
// as 0; tokens past the chunk are never read.
#include "lib/dart.glsl"
PUSH(SsdOutputArgs)
READS(0, x)
READS(1, c)
READS(2, cb)
READS(3, cum)
READS(4, hin)
READS(5, d)
READS(6, seq)
WRITES(7, y)
#include "lib/seq.glsl"
#include "lib/ssd.glsl"

const uint SLAB = 32u;
const uint QUADS = T1 / 4u;
const uint PITCH = QUADS + 1u;
const uint COLUMNS = T0 / LANES;
shared vec4 weights[SLAB * PITCH]; // of source k for four tokens each
shared float factors[SLAB];
shared float rows[T1];

void main()
{
    uint p_blocks = (args.P + T0 - 1u) / T0;
    uint t_blocks = (args.C + T1 - 1u) / T1;
    for (uint tile = gl_WorkGroupID.x; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint p_first = tile % p_blocks * T0;
        uint rest = tile / p_blocks;
        uint t_first = rest % t_blocks * T1;
        rest /= t_blocks;
        uint h = rest % args.H;
        rest /= args.H;
        uint j = rest % args.M;
        uint b = rest / args.M;
        uint g = h / (args.H / args.G);
        Chunk chunk = chunk_of(seq_position(b), seq_count(b, args.L), args.S, j);
        uint size = chunk.begin < chunk.end ? chunk.end - chunk.begin : 0u;
        if (t_first >= size) continue;
        uint token = b * args.L + chunk.begin;
        uint cum = (b * args.H + h) * args.L + chunk.begin;
        uint cb = ((b * args.M + j) * args.G + g) * args.C * args.C;
        uint hin = ((b * args.M + j) * args.H + h) * args.N * args.P;

        vec4 sums[QUADS * COLUMNS];
        [[unroll]] for (uint q = 0u; q < QUADS * COLUMNS; q++) sums[q] = vec4(0.0);
        uint p[COLUMNS];
        [[unroll]] for (uint i = 0u; i < COLUMNS; i++) p[i] = min(p_first + LANE + i * LANES, args.P - 1u);

        for (uint n_first = 0u; n_first < args.N; n_first += SLAB) {
            barrier();
            for (uint i = LANE; i < SLAB * QUADS; i += LANES) {
                uint n = min(n_first + i % SLAB, args.N - 1u);
                uint t = t_first + i / SLAB * 4u;
                vec4 weight;
                [[unroll]] for (uint r = 0u; r < 4u; r++)
                    weight[r] = load_c(args.c_at + (token + min(t + r, size - 1u)) * args.c_row + g * args.N + n);
                weights[i % SLAB * PITCH + i / SLAB] = weight;
            }
            barrier();
            uint top = min(SLAB, args.N - n_first);
            for (uint k = 0u; k < top; k++) {
                float value[COLUMNS];
                [[unroll]] for (uint i = 0u; i < COLUMNS; i++) value[i] = load_hin(hin + (n_first + k) * args.P + p[i]);
                [[unroll]] for (uint q = 0u; q < QUADS; q++) {
                    vec4 weight = weights[k * PITCH + q];
                    [[unroll]] for (uint i = 0u; i < COLUMNS; i++) sums[i * QUADS + q] += weight * value[i];
                }
            }
        }

        vec2 reference = vec2(0.0);
        uint t_end = min(t_first + T1, size);
        for (uint s_first = 0u; s_first < t_end; s_first += min(SLAB, s_first < t_first ? t_first - s_first : SLAB)) {
            bool below = s_first < t_first;
            uint top = min(SLAB, (below ? t_first : t_end) - s_first);
            vec2 before = reference;
            if (below) reference = cum_at(cum + s_first + top - 1u).xy;
            barrier();
            for (uint i = LANE; i < SLAB; i += LANES) {
                vec3 at = cum_at(cum + s_first + min(i, top - 1u));
                factors[i] = (below ? exp_neg(cum_between(at.xy, reference)) : 1.0) * at.z;
            }
            if (s_first == t_first) {
                for (uint i = LANE; i < T1; i += LANES)
                    rows[i] = exp_neg(cum_between(reference, cum_at(cum + min(t_first + i, size - 1u)).xy));
            }
            for (uint i = LANE; i < SLAB * QUADS; i += LANES) {
                uint s = s_first + min(i % SLAB, top - 1u);
                uint t = t_first + i / SLAB * 4u;
                vec4 weight;
                [[unroll]] for (uint r = 0u; r < 4u; r++) weight[r] = load_cb(cb + min(t + r, size - 1u) * args.C + s);
                if (!below) {
                    vec2 source = cum_at(cum + s).xy;
                    for (uint r = 0u; r < 4u; r++) {
                        float decay = exp_neg(cum_between(source, cum_at(cum + min(t + r, size - 1u)).xy));
                        weight[r] = s <= t + r ? weight[r] * decay : 0.0;
                    }
                }
                weights[i % SLAB * PITCH + i / SLAB] = weight;
            }
            barrier();
            if (below) {
                float factor = exp_neg(cum_between(before, reference));
                [[unroll]] for (uint q = 0u; q < QUADS * COLUMNS; q++) sums[q] *= factor;
            } else if (s_first == t_first) {
                [[unroll]] for (uint q = 0u; q < QUADS; q++) {
                    vec4 factor = vec4(rows[4u * q], rows[4u * q + 1u], rows[4u * q + 2u], rows[4u * q + 3u]);
                    [[unroll]] for (uint i = 0u; i < COLUMNS; i++) sums[i * QUADS + q] *= factor;
                }
            }
            for (uint k = 0u; k < top; k++) {
                uint x_row = args.x_at + (token + s_first + k) * args.x_row + h * args.P;
                float value[COLUMNS];
                [[unroll]] for (uint i = 0u; i < COLUMNS; i++) value[i] = load_x(x_row + p[i]) * factors[k];
                [[unroll]] for (uint q = 0u; q < QUADS; q++) {
                    vec4 weight = weights[k * PITCH + q];
                    [[unroll]] for (uint i = 0u; i < COLUMNS; i++) sums[i * QUADS + q] += weight * value[i];
                }
            }
        }

        float skip = has(args.flags, HAS_D) ? load_d(args.d_at + h) : 0.0;
        [[unroll]] for (uint i = 0u; i < COLUMNS; i++) {
            if (p_first + LANE + i * LANES < args.P) {
                [[unroll]] for (uint q = 0u; q < QUADS; q++) {
                    [[unroll]] for (uint r = 0u; r < 4u; r++) {
                        uint t = t_first + 4u * q + r;
                        if (t < size) {
                            float value = sums[i * QUADS + q][r];
                            uint row = token + t;
                            uint at = h * args.P + p[i];
                            if (has(args.flags, HAS_D)) value += skip * load_x(args.x_at + row * args.x_row + at);
                            store_y(args.y_at + row * args.y_row + at, value);
                        }
                    }
                }
            }
        }
    }
}
