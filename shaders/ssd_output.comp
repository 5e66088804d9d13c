#version 460
#extension GL_GOOGLE_include_directive : require
// y_t = sum over s <= t of (c_t . b_s) exp(cum_t - cum_s) step_s x_s + exp(cum_t) c_t hin + d x_t, within a chunk.
// x, y B L H P; b, c B L G N; cum B H L 3; hin B M H N P, raw or with hin_scale B M H N; d H.
// One workgroup computes T1 tokens of T0 heads of a group, WIDTH columns p at a time: a lane owns COLUMNS columns of one
// head with all T1 tokens in registers. First c hin, then the source tokens, SLAB at a time: their products with c are
// computed once for the heads. The sums are kept relative to the cumulative decay at the end of the last slab below the
// tile, so that only the tile on the diagonal needs an exponential per element and head.
// T1 is a multiple of 4, LANES one of T0 SLAB.
// Shared memory: 16 (DEPTH + T0 SLAB) (T1 / 4 + 1) + 4 DEPTH (SLAB + 1) + 4 T0 (SLAB + T1) bytes.
// Guards: every exponent is a two-float difference towards a later token, clamped to <= 0; above the diagonal counts
// as 0; tokens past the chunk are never read.
#include "lib/dart.glsl"
PUSH(SsdOutputArgs)
READS(0, x)
READS(1, b)
READS(2, c)
READS(3, cum)
READS(4, hin)
READS(5, hin_scale)
READS(6, d)
READS(7, seq)
WRITES(8, y)
#include "lib/seq.glsl"
#define SSD_CUM
#include "lib/ssd.glsl"

const uint SLAB = 32u;
const uint DEPTH = 16u; // states n at a time
const uint QUADS = T1 / 4u;
const uint PITCH = QUADS + 1u;
const uint COLUMNS = 2u;
const uint TEAM = LANES / T0; // lanes of a head
const uint WIDTH = TEAM * COLUMNS;
const uint OWN_QUADS = QUADS * SLAB / LANES; // of one source's products
shared vec4 c_slab[DEPTH * PITCH];           // of state k for four tokens each
shared float b_slab[DEPTH * (SLAB + 1u)];
shared vec4 weights[T0 * SLAB * PITCH]; // of source k for four tokens each; below the tile those of all heads
shared float factors[T0 * SLAB];
shared float rows[T0 * T1];

// c of the tile's tokens for states n_first ..; tokens past the chunk repeat the last one.
void stage_c(uint c_at, uint n_first, uint first, uint last)
{
    for (uint i = LANE; i < DEPTH * QUADS; i += LANES) {
        uint n = min(n_first + i % DEPTH, args.N - 1u);
        uint t = first + i / DEPTH * 4u;
        vec4 value;
        [[unroll]] for (uint r = 0u; r < 4u; r++) value[r] = load_c(c_at + min(t + r, last) * args.c_row + n);
        c_slab[i % DEPTH * PITCH + i / DEPTH] = value;
    }
}

void main()
{
    uint in_group = args.H / args.G;
    uint h_blocks = (in_group + T0 - 1u) / T0;
    uint t_blocks = (args.C + T1 - 1u) / T1;
    uint slot = LANE / TEAM;
    for (uint tile = gl_WorkGroupID.x; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint t_first = tile % t_blocks * T1;
        uint rest = tile / t_blocks;
        uint h_first = rest % h_blocks * T0;
        rest /= h_blocks;
        uint g = rest % args.G;
        rest /= args.G;
        uint j = rest % args.M;
        uint b = rest / args.M;
        Chunk chunk = chunk_of(seq_position(b), seq_count(b, args.L), args.S, j);
        uint size = chunk.begin < chunk.end ? chunk.end - chunk.begin : 0u;
        if (t_first >= size) continue;
        uint t_end = min(t_first + T1, size);
        uint token = b * args.L + chunk.begin;
        uint b_at = args.b_at + token * args.b_row + g * args.N;
        uint c_at = args.c_at + token * args.c_row + g * args.N;
        uint first_head = g * in_group + h_first;
        uint last_head = g * in_group + in_group - 1u;
        uint h = min(first_head + slot, last_head);
        uint cum = (b * args.H + h) * args.L + chunk.begin;
        uint hin = ((b * args.M + j) * args.H + h) * args.N;

        for (uint p_first = 0u; p_first < args.P; p_first += WIDTH) {
            vec4 sums[QUADS * COLUMNS];
            [[unroll]] for (uint q = 0u; q < QUADS * COLUMNS; q++) sums[q] = vec4(0.0);
            uint p[COLUMNS];
            [[unroll]] for (uint i = 0u; i < COLUMNS; i++) p[i] = min(p_first + LANE % TEAM + i * TEAM, args.P - 1u);

            for (uint n_first = 0u; n_first < args.N; n_first += DEPTH) {
                barrier();
                stage_c(c_at, n_first, t_first, size - 1u);
                barrier();
                uint top = min(DEPTH, args.N - n_first);
                for (uint k = 0u; k < top; k++) {
                    float scale = has(args.flags, HAS_HIN_SCALE) ? load_hin_scale(args.hin_scale_at + hin + n_first + k) : 1.0;
                    float value[COLUMNS];
                    [[unroll]] for (uint i = 0u; i < COLUMNS; i++)
                        value[i] = scale * load_hin(args.hin_at + (hin + n_first + k) * args.P + p[i]);
                    [[unroll]] for (uint q = 0u; q < QUADS; q++) {
                        vec4 weight = c_slab[k * PITCH + q];
                        [[unroll]] for (uint i = 0u; i < COLUMNS; i++) sums[i * QUADS + q] += weight * value[i];
                    }
                }
            }

            vec2 reference = vec2(0.0); // of this lane's head
            for (uint s_first = 0u; s_first < t_end; s_first += min(SLAB, s_first < t_first ? t_first - s_first : SLAB)) {
                bool below = s_first < t_first;
                uint top = min(SLAB, (below ? t_first : t_end) - s_first);
                vec4 products[OWN_QUADS]; // c . b of source LANE % SLAB
                [[unroll]] for (uint q = 0u; q < OWN_QUADS; q++) products[q] = vec4(0.0);
                for (uint n_first = 0u; n_first < args.N; n_first += DEPTH) {
                    barrier();
                    stage_c(c_at, n_first, t_first, size - 1u);
                    for (uint i = LANE; i < DEPTH * SLAB; i += LANES) {
                        uint n = min(n_first + i % DEPTH, args.N - 1u);
                        uint s = min(s_first + i / DEPTH, size - 1u);
                        b_slab[i % DEPTH * (SLAB + 1u) + i / DEPTH] = load_b(b_at + s * args.b_row + n);
                    }
                    barrier();
                    uint depth = min(DEPTH, args.N - n_first);
                    for (uint k = 0u; k < depth; k++) {
                        float value = b_slab[k * (SLAB + 1u) + LANE % SLAB];
                        [[unroll]] for (uint q = 0u; q < OWN_QUADS; q++)
                            products[q] += value * c_slab[k * PITCH + LANE / SLAB * OWN_QUADS + q];
                    }
                }

                vec2 before = reference;
                if (below) reference = cum_at(cum + s_first + top - 1u).xy;
                for (uint i = LANE; i < T0 * SLAB; i += LANES) {
                    uint walk = (b * args.H + min(first_head + i / SLAB, last_head)) * args.L + chunk.begin;
                    vec3 at = cum_at(walk + s_first + min(i % SLAB, top - 1u));
                    factors[i] = (below ? exp_neg(cum_between(at.xy, cum_at(walk + s_first + top - 1u).xy)) : 1.0) * at.z;
                }
                if (!below && s_first == t_first) {
                    for (uint i = LANE; i < T0 * T1; i += LANES) {
                        uint walk = (b * args.H + min(first_head + i / T1, last_head)) * args.L + chunk.begin;
                        vec2 from = t_first > 0u ? cum_at(walk + t_first - 1u).xy : vec2(0.0);
                        rows[i] = exp_neg(cum_between(from, cum_at(walk + min(t_first + i % T1, size - 1u)).xy));
                    }
                }
                [[unroll]] for (uint q = 0u; q < OWN_QUADS; q++) {
                    uint quad = LANE / SLAB * OWN_QUADS + q;
                    uint t = t_first + 4u * quad;
                    uint s = s_first + min(LANE % SLAB, top - 1u);
                    if (below) weights[LANE % SLAB * PITCH + quad] = products[q];
                    for (uint head = 0u; head < T0 && !below; head++) {
                        uint walk = (b * args.H + min(first_head + head, last_head)) * args.L + chunk.begin;
                        vec2 source = cum_at(walk + s).xy;
                        vec4 weight;
                        [[unroll]] for (uint r = 0u; r < 4u; r++) {
                            float decay = exp_neg(cum_between(source, cum_at(walk + min(t + r, size - 1u)).xy));
                            weight[r] = s <= t + r ? products[q][r] * decay : 0.0;
                        }
                        weights[(head * SLAB + LANE % SLAB) * PITCH + quad] = weight;
                    }
                }
                barrier();
                if (below) {
                    float factor = exp_neg(cum_between(before, reference));
                    [[unroll]] for (uint q = 0u; q < QUADS * COLUMNS; q++) sums[q] *= factor;
                } else if (s_first == t_first) {
                    [[unroll]] for (uint q = 0u; q < QUADS; q++) {
                        vec4 factor;
                        [[unroll]] for (uint r = 0u; r < 4u; r++) factor[r] = rows[slot * T1 + 4u * q + r];
                        [[unroll]] for (uint i = 0u; i < COLUMNS; i++) sums[i * QUADS + q] *= factor;
                    }
                }
                uint from = below ? 0u : slot * SLAB;
                for (uint k = 0u; k < top; k++) {
                    uint x_row = args.x_at + (token + s_first + k) * args.x_row + h * args.P;
                    float value[COLUMNS];
                    [[unroll]] for (uint i = 0u; i < COLUMNS; i++) value[i] = load_x(x_row + p[i]) * factors[slot * SLAB + k];
                    [[unroll]] for (uint q = 0u; q < QUADS; q++) {
                        vec4 weight = weights[(from + k) * PITCH + q];
                        [[unroll]] for (uint i = 0u; i < COLUMNS; i++) sums[i * QUADS + q] += weight * value[i];
                    }
                }
            }

            float skip = has(args.flags, HAS_D) ? load_d(args.d_at + h) : 0.0;
            [[unroll]] for (uint i = 0u; i < COLUMNS; i++) {
                if (p_first + LANE % TEAM + i * TEAM < args.P && first_head + slot <= last_head) {
                    [[unroll]] for (uint q = 0u; q < QUADS; q++) {
                        [[unroll]] for (uint r = 0u; r < 4u; r++) {
                            uint t = t_first + 4u * q + r;
                            if (t < t_end) {
                                float value = sums[i * QUADS + q][r];
                                uint at = h * args.P + p[i];
                                if (has(args.flags, HAS_D)) value += skip * load_x(args.x_at + (token + t) * args.x_row + at);
                                store_y(args.y_at + (token + t) * args.y_row + at, value);
                            }
                        }
                    }
                }
            }
        }
    }
}
