#version 460
#extension GL_GOOGLE_include_directive : require
// y_t = sum over s <= t of (c_t . b_s) exp(cum_t - cum_s) step_s x_s + exp(cum_t) c_t hin + d x_t, within a chunk.
// x, y B L H P; b, c B L G N; cum B H L 3; hin B M H N P, raw or with hin_scale B M H N; d H.
// One workgroup computes T1 tokens of T0 heads of a group, WIDTH columns p at a time: a lane owns COLUMNS columns of each
// head with all T1 tokens in registers. First c hin, then the source tokens, SLAB at a time, a lane for each: their products
// with c are computed once for the heads. The sums are kept relative to the cumulative decay at the end of the last slab
// below the tile, so that only the tile on the diagonal needs an exponential per element and head.
// T1 is a multiple of 4, LANES is SLAB. Shared memory: 32 SLAB (T1 / 4 + 1) + 4 T0 SLAB + 4 T1 bytes.
// Guards: every exponent is a two-float difference towards a later token, clamped to <= 0; above the diagonal counts
// as 0; tokens past the chunk are never read.
#include "lib/dart.glsl"
#include "table/ssd_output.glsl"
READS(x) READS(b) READS(c) READS(cum) READS(hin) READS(hin_scale) READS(d) READS(seq) WRITES(y)
#define PACKS
#include "lib/seq.glsl"
#define SSD_CUM
#include "ssd.glsl"

const uint SLAB = 32u;
const uint DEPTH = SLAB; // states n at a time
const uint QUADS = T1 / 4u;
const uint PITCH = QUADS + 1u;
const uint COLUMNS = 2u;
const uint WIDTH = LANES * COLUMNS;
const uint SUMS = QUADS * COLUMNS;   // of a head
shared vec4 slab[SLAB * PITCH];      // c of state k for four tokens each, or products with their decay for one head
shared vec4 products[SLAB * PITCH];  // c . b of source k for four tokens each
shared float factors[T0 * SLAB];
shared float rows[T1];

// c of the tile's tokens for states n_first ..; tokens past the chunk repeat the last one.
void stage_c(uint c_at, uint n_first, uint first, uint last)
{
    for (uint i = LANE; i < DEPTH * QUADS; i += LANES) {
        uint n = min(n_first + i % DEPTH, args.N - 1u);
        uint t = first + i / DEPTH * 4u;
        vec4 value;
        [[unroll]] for (uint r = 0u; r < 4u; r++) value[r] = load_c(c_at + min(t + r, last) * args.c_row + n);
        slab[i % DEPTH * PITCH + i / DEPTH] = value;
    }
}

void main()
{
    uint in_group = args.H / args.G;
    uint h_blocks = (in_group + T0 - 1u) / T0;
    uint t_blocks = (args.C + T1 - 1u) / T1;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint t_first = tile % t_blocks * T1;
        uint rest = tile / t_blocks;
        uint h_first = rest % h_blocks * T0;
        rest /= h_blocks;
        uint g = rest % args.G;
        rest /= args.G;
        uint j = rest % args.M;
        uint b = rest / args.M;
        Sequence sequence = sequence_of(b);
        Chunk chunk = chunk_of(sequence.position, sequence.count, args.S, j);
        uint size = chunk.begin < chunk.end ? chunk.end - chunk.begin : 0u;
        if (t_first >= size) continue;
        uint t_end = min(t_first + T1, size);
        uint token = sequence.row + chunk.begin;
        uint b_at = args.b_at + token * args.b_row + g * args.N;
        uint c_at = args.c_at + token * args.c_row + g * args.N;
        uint first_head = g * in_group + h_first;
        uint last_head = g * in_group + in_group - 1u;
        uint cum[T0]; // of the heads; one past the last repeats it
        uint hin[T0];
        [[unroll]] for (uint i = 0u; i < T0; i++) {
            uint h = min(first_head + i, last_head);
            cum[i] = sequence.row * args.H + h * sequence.span + chunk.begin;
            hin[i] = ((slot_of(sequence, b, args.M, args.S) + j) * args.H + h) * args.N;
        }

        for (uint p_first = 0u; p_first < args.P; p_first += WIDTH) {
            vec4 sums[T0 * SUMS];
            [[unroll]] for (uint q = 0u; q < T0 * SUMS; q++) sums[q] = vec4(0.0);
            uint p[COLUMNS];
            [[unroll]] for (uint i = 0u; i < COLUMNS; i++) p[i] = min(p_first + LANE + i * LANES, args.P - 1u);

            for (uint n_first = 0u; n_first < args.N; n_first += DEPTH) {
                barrier();
                stage_c(c_at, n_first, t_first, size - 1u);
                barrier();
                uint top = min(DEPTH, args.N - n_first);
                [[dont_unroll]] for (uint k = 0u; k < top; k++) {
                    float value[T0 * COLUMNS];
                    [[unroll]] for (uint i = 0u; i < T0 * COLUMNS; i++) {
                        uint row = hin[i / COLUMNS] + n_first + k;
                        value[i] = load_hin(args.hin_at + row * args.P + p[i % COLUMNS]);
                        if (has(args.flags, HAS_HIN_SCALE)) value[i] *= load_hin_scale(args.hin_scale_at + row);
                    }
                    [[unroll]] for (uint q = 0u; q < QUADS; q++) {
                        vec4 weight = slab[k * PITCH + q];
                        [[unroll]] for (uint i = 0u; i < T0 * COLUMNS; i++) sums[i * QUADS + q] += weight * value[i];
                    }
                }
            }

            vec2 reference[T0];
            [[unroll]] for (uint i = 0u; i < T0; i++) reference[i] = vec2(0.0);
            for (uint s_first = 0u; s_first < t_end; s_first += min(SLAB, s_first < t_first ? t_first - s_first : SLAB)) {
                bool below = s_first < t_first;
                uint top = min(SLAB, (below ? t_first : t_end) - s_first);
                uint source = s_first + min(LANE, top - 1u);
                vec4 product[QUADS]; // of the source
                [[unroll]] for (uint q = 0u; q < QUADS; q++) product[q] = vec4(0.0);
                for (uint n_first = 0u; n_first < args.N; n_first += DEPTH) {
                    barrier();
                    stage_c(c_at, n_first, t_first, size - 1u);
                    barrier();
                    uint depth = min(DEPTH, args.N - n_first);
                    [[dont_unroll]] for (uint k = 0u; k < depth; k++) {
                        float value = load_b(b_at + source * args.b_row + n_first + k);
                        [[unroll]] for (uint q = 0u; q < QUADS; q++) product[q] += value * slab[k * PITCH + q];
                    }
                }
                [[unroll]] for (uint q = 0u; q < QUADS; q++) products[LANE * PITCH + q] = product[q];
                [[unroll]] for (uint i = 0u; i < T0; i++) {
                    vec3 at = cum_at(cum[i] + source);
                    vec2 before = reference[i];
                    if (below) reference[i] = cum_at(cum[i] + s_first + top - 1u).xy;
                    factors[i * SLAB + LANE] = (below ? exp_neg(cum_between(at.xy, reference[i])) : 1.0) * at.z;
                    float factor = below ? exp_neg(cum_between(before, reference[i])) : 1.0;
                    [[unroll]] for (uint q = 0u; q < SUMS; q++) sums[i * SUMS + q] *= factor;
                }
                if (below) {
                    barrier();
                    [[dont_unroll]] for (uint k = 0u; k < top; k++) {
                        uint x_row = args.x_at + (token + s_first + k) * args.x_row;
                        float value[T0 * COLUMNS];
                        [[unroll]] for (uint i = 0u; i < T0 * COLUMNS; i++) {
                            uint h = min(first_head + i / COLUMNS, last_head);
                            value[i] = load_x(x_row + h * args.P + p[i % COLUMNS]) * factors[i / COLUMNS * SLAB + k];
                        }
                        [[unroll]] for (uint q = 0u; q < QUADS; q++) {
                            vec4 weight = products[k * PITCH + q];
                            [[unroll]] for (uint i = 0u; i < T0 * COLUMNS; i++) sums[i * QUADS + q] += weight * value[i];
                        }
                    }
                } else {
                    [[unroll]] for (uint head = 0u; head < T0; head++) {
                        uint h = min(first_head + head, last_head);
                        vec2 from = cum_at(cum[head] + source).xy;
                        barrier();
                        for (uint i = LANE; i < SLAB * QUADS; i += LANES) {
                            vec4 weight = products[LANE * PITCH + i / SLAB];
                            [[unroll]] for (uint r = 0u; r < 4u; r++) {
                                uint t = t_first + i / SLAB * 4u + r;
                                float decay = exp_neg(cum_between(from, cum_at(cum[head] + min(t, size - 1u)).xy));
                                // With the step, so that one that is no number reaches no earlier token.
                                weight[r] = source <= t ? weight[r] * decay * factors[head * SLAB + LANE] : 0.0;
                            }
                            slab[LANE * PITCH + i / SLAB] = weight;
                        }
                        for (uint i = LANE; i < T1; i += LANES)
                            rows[i] = exp_neg(cum_between(reference[head], cum_at(cum[head] + min(t_first + i, size - 1u)).xy));
                        barrier();
                        if (s_first == t_first) {
                            [[unroll]] for (uint q = 0u; q < QUADS; q++) {
                                vec4 factor = vec4(rows[4u * q], rows[4u * q + 1u], rows[4u * q + 2u], rows[4u * q + 3u]);
                                [[unroll]] for (uint i = 0u; i < COLUMNS; i++) sums[head * SUMS + i * QUADS + q] *= factor;
                            }
                        }
                        [[dont_unroll]] for (uint k = 0u; k < top; k++) {
                            uint x_row = args.x_at + (token + s_first + k) * args.x_row + h * args.P;
                            float value[COLUMNS];
                            [[unroll]] for (uint i = 0u; i < COLUMNS; i++) value[i] = load_x(x_row + p[i]);
                            [[unroll]] for (uint q = 0u; q < QUADS; q++) {
                                vec4 weight = slab[k * PITCH + q];
                                [[unroll]] for (uint i = 0u; i < COLUMNS; i++) sums[head * SUMS + i * QUADS + q] += weight * value[i];
                            }
                        }
                    }
                }
            }

            [[unroll]] for (uint i = 0u; i < T0 * COLUMNS; i++) {
                uint h = first_head + i / COLUMNS;
                if (p_first + LANE + i % COLUMNS * LANES < args.P && h <= last_head) {
                    float skip = has(args.flags, HAS_D) ? load_d(args.d_at + h) : 0.0;
                    uint at = h * args.P + p[i % COLUMNS];
                    [[unroll]] for (uint q = 0u; q < QUADS; q++) {
                        [[unroll]] for (uint r = 0u; r < 4u; r++) {
                            uint t = t_first + 4u * q + r;
                            if (t < t_end) {
                                float value = sums[i * QUADS + q][r];
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
