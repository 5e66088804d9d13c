#version 460
#extension GL_GOOGLE_include_directive : require
// The rows of ssd_output for devices with wide subgroups and no matrices: a workgroup of 256 lanes computes LINES = 32 tokens
// of two heads of a group, 64 columns at a time, 128 lanes a head: lane l makes lines l / 16 + 8 i of its head. c . b of
// SOURCES = 32 sources is made for both heads together, each half of the lanes adding up half of the states; it is kept, with
// what has decayed, as each head's weights of x. The sums are kept relative to the cumulative decay at the end of the last
// block of sources below the tile, so that only the block on the diagonal needs an exponential per element and head. 64 tokens
// by 128 lanes for both heads took 156 registers and 27 KiB, with which a GCN SIMD holds one wave; of this it holds four.
// With -DTILES, for sizes that fit tiles, operands are read eight elements at a time. With -DFLOAT16 besides, for f16 operands,
// c and b stay f16 in shared memory and in registers (see dense/linear_wide.comp). Shared memory: 14.8 KiB.
#include "lib/dart.glsl"
#include "table/ssd_output.glsl"
READS(x) READS(b) READS(c) READS(cum) READS(hin) READS(hin_scale) READS(d) READS(seq) WRITES(y)
#define PACKS
#include "lib/seq.glsl"
#define SSD_CUM
#include "ssd.glsl"
const uint LINES = 32u; // T1
#include "lib/product.glsl"
const uint HEADS = 2u;  // T0
const uint DEPTH = 8u;  // rows of a slab
const uint STATES = 16u;
const uint SOURCES = 32u;
const uint CHUNKS = SOURCES / 4u;
shared vec4 slabs[HEADS * DEPTH * QUADS];      // of hin or x
shared vec4 weights[HEADS * LINES * CHUNKS];   // [line][source / 4]
shared float factors[HEADS * SOURCES];
shared vec2 walk[HEADS * SOURCES];             // of the block's sources
#ifdef TILES
#include "lib/eight.glsl"
READS_EIGHT(x) READS_EIGHT(b) READS_EIGHT(c) READS_EIGHT(hin)
#endif
#ifdef FLOAT16
shared uvec4 reads[LINES * STATES / 8u], keys[SOURCES * STATES / 8u]; // states of c and of b
#else
shared vec4 reads[LINES * STATES / 4u];
#define keys slabs // of which c . b has no need
#endif
#define WEIGHT(head, line, source) weights[((head) * LINES + (line)) * CHUNKS + (source) / 4u][(source) % 4u]
#define HEAD (LANE / 128u)
#define OWN_LINE(i) (LANE % 128u / 16u + 8u * (i))
// Of c . b a lane makes its lines and sources l % 16, + 16.
#define OWN_SOURCE(i) (LANE % 16u + 16u * (i))

// States from + k .. from + k + 3 of a line, `from` a multiple of 8, k 0 or 4. Lines beside one another keep theirs in other
// places, or their lanes would read the same banks.
#ifdef FLOAT16
const uint WORDS = STATES / 8u; // of 16 bytes
uint place(uint line, uint word) { return line * WORDS + (word ^ (line / 4u % WORDS)); }
#define FOUR_OF(array, line, from, k) \
    four_f16((k) == 0u ? array[place(line, (from) / 8u)].xy : array[place(line, (from) / 8u)].zw)
#else
const uint WORDS = STATES / 4u;
uint place(uint line, uint word) { return line * WORDS + (word ^ (line / 2u % WORDS)); }
#define FOUR_OF(array, line, from, k) array[place(line, (from) / 4u + (k) / 4u)]
#endif

// States n_first .. of c or b, by 128 lanes; lines past the last one repeat it, states past N are 0.
#ifdef TILES
#define STAGE_LINES(name, to, at, pitch, first, last) \
    if (LANE % 128u < LINES * STATES / 8u) { \
        uint eight = LANE % 128u; \
        uint from = (at) + min((first) + eight / 2u, last) * (pitch) + n_first + eight % 2u * 8u; \
        PUT_EIGHT(name, to, eight, from) \
    }
#ifdef FLOAT16
#define PUT_EIGHT(name, to, eight, from) to[place(eight / 2u, eight % 2u)] = quads_##name[from / 8u];
#else
#define PUT_EIGHT(name, to, eight, from) \
    Eight value = load_eight_##name(from); \
    to[place(eight / 2u, eight % 2u * 2u)] = value.low; \
    to[place(eight / 2u, eight % 2u * 2u + 1u)] = value.high;
#endif
#else
#define STAGE_LINES(name, to, at, pitch, first, last) \
    { \
        uint n = n_first + LANE % 4u * 4u; \
        uint inside = min(n, args.N - 1u); \
        uint line = LANE % 128u / 4u; \
        vec4 value = FOUR(load_##name, (at) + min((first) + line, last) * (pitch) + inside, args.N - inside); \
        bvec4 is_state = lessThan(uvec4(n) + uvec4(0u, 1u, 2u, 3u), uvec4(args.N)); \
        to[place(line, LANE % 4u)] = mix(vec4(0.0), value, is_state); \
    }
#endif
// DEPTH states or sources from k_first on as rows of columns, for the lane's head; at: of row 0 and the first column.
#ifdef TILES
#define STAGE_ROWS(name, at, pitch, k_first, last, factor) \
    if (LANE % 128u < DEPTH * QUADS / 2u) { \
        uint k = min((k_first) + LANE % 128u / 8u, last); \
        Eight value = load_eight_##name((at) + k * (pitch) + min(8u * (LANE % 8u), columns - 8u)); \
        uint to = HEAD * DEPTH * QUADS + 2u * (LANE % 128u); \
        slabs[to] = value.low * (factor); \
        slabs[to + 1u] = value.high * (factor); \
    }
#else
#define STAGE_ROWS(name, at, pitch, k_first, last, factor) \
    { \
        uint k = min((k_first) + LANE % 128u / QUADS, last); \
        uint column = min(4u * (LANE % QUADS), columns - 1u); \
        slabs[LANE] = FOUR(load_##name, (at) + k * (pitch) + column, columns - column) * (factor); \
    }
#endif

float hin_size(uint row) { return has(args.flags, HAS_HIN_SCALE) ? load_hin_scale(args.hin_scale_at + row) : 1.0; }

// sums += lines slabs, over four rows of the slabs from k on.
void multiply_four(inout vec4 sums[OWN_LINES], vec4 lines[OWN_LINES], uint k)
{
    [[unroll]] for (uint e = 0u; e < 4u; e++) {
        vec4 value = slabs[(HEAD * DEPTH + k + e) * QUADS + LANE % 16u];
        [[unroll]] for (uint i = 0u; i < OWN_LINES; i++) sums[i] += lines[i][e] * value;
    }
}

void main()
{
    uint in_group = args.H / args.G;
    uint h_blocks = (in_group + HEADS - 1u) / HEADS;
    uint t_blocks = (args.C + LINES - 1u) / LINES;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint t_first = tile % t_blocks * LINES;
        uint rest = tile / t_blocks;
        uint h_first = rest % h_blocks * HEADS;
        rest /= h_blocks;
        uint g = rest % args.G;
        rest /= args.G;
        uint j = rest % args.M;
        uint b = rest / args.M;
        Sequence sequence = sequence_of(b);
        Chunk chunk = chunk_of(sequence.position, sequence.count, args.S, j);
        uint size = chunk.begin < chunk.end ? chunk.end - chunk.begin : 0u;
        if (t_first >= size) continue;
        uint t_end = min(t_first + LINES, size);
        uint token = sequence.row + chunk.begin;
        uint b_at = args.b_at + token * args.b_row + g * args.N;
        uint c_at = args.c_at + token * args.c_row + g * args.N;
        bool there = h_first + HEAD < in_group; // or the last head is computed again
        uint h = g * in_group + min(h_first + HEAD, in_group - 1u);
        uint cum = sequence.row * args.H + h * sequence.span + chunk.begin;
        uint hin_row = ((slot_of(sequence, b, args.M, args.S) + j) * args.H + h) * args.N;

        for (uint p_first = 0u; p_first < args.P; p_first += COLUMNS) {
            uint columns = min(COLUMNS, args.P - p_first);
            uint x_at = args.x_at + token * args.x_row + h * args.P + p_first;
            vec4 sums[OWN_LINES];
            [[unroll]] for (uint i = 0u; i < OWN_LINES; i++) sums[i] = vec4(0.0);
            for (uint n_first = 0u; n_first < args.N; n_first += STATES) {
                [[unroll]] for (uint n = 0u; n < STATES; n += DEPTH) {
                    barrier();
                    if (n == 0u && HEAD == 0u) { STAGE_LINES(c, reads, c_at, args.c_row, t_first, size - 1u) }
                    STAGE_ROWS(hin, args.hin_at + hin_row * args.P + p_first, args.P, n_first + n, args.N - 1u,
                               hin_size(hin_row + k))
                    barrier();
                    [[unroll]] for (uint k = 0u; k < DEPTH; k += 4u) {
                        vec4 lines[OWN_LINES];
                        [[unroll]] for (uint i = 0u; i < OWN_LINES; i++) lines[i] = FOUR_OF(reads, OWN_LINE(i), n, k);
                        multiply_four(sums, lines, k);
                    }
                }
            }

            for (uint s_first = 0u; s_first < t_end; s_first += SOURCES) {
                bool below = s_first < t_first;
                vec2 products[OWN_LINES];
                [[unroll]] for (uint i = 0u; i < OWN_LINES; i++) products[i] = vec2(0.0);
                for (uint n_first = 0u; n_first < args.N; n_first += STATES) {
                    barrier();
                    if (HEAD == 0u) {
                        STAGE_LINES(c, reads, c_at, args.c_row, t_first, size - 1u)
                    } else {
                        STAGE_LINES(b, keys, b_at, args.b_row, s_first, size - 1u)
                    }
                    barrier();
                    [[unroll]] for (uint k = 0u; k < STATES / 2u; k += 4u) {
                        vec4 lines[OWN_LINES];
                        [[unroll]] for (uint i = 0u; i < OWN_LINES; i++)
                            lines[i] = FOUR_OF(reads, OWN_LINE(i), HEAD * (STATES / 2u), k);
                        [[unroll]] for (uint source = 0u; source < 2u; source++) {
                            vec4 key = FOUR_OF(keys, OWN_SOURCE(source), HEAD * (STATES / 2u), k);
                            [[unroll]] for (uint i = 0u; i < OWN_LINES; i++) {
                                [[unroll]] for (uint e = 0u; e < 4u; e++) products[i][source] += lines[i][e] * key[e];
                            }
                        }
                    }
                }
                [[unroll]] for (uint i = 0u; i < OWN_LINES; i++) {
                    [[unroll]] for (uint source = 0u; source < 2u; source++)
                        WEIGHT(HEAD, OWN_LINE(i), OWN_SOURCE(source)) = products[i][source];
                }
                vec2 before = s_first > 0u ? cum_at(cum + s_first - 1u).xy : vec2(0.0);
                vec2 after = cum_at(cum + min(s_first + SOURCES, size) - 1u).xy;
                if (LANE % 128u < SOURCES) {
                    vec3 at = cum_at(cum + min(s_first + LANE % 128u, size - 1u));
                    factors[HEAD * SOURCES + LANE % 128u] = (below ? exp_neg(cum_between(at.xy, after)) : 1.0) * at.z;
                    walk[HEAD * SOURCES + LANE % 128u] = at.xy;
                }
                barrier();
                if (below) {
                    float factor = exp_neg(cum_between(before, after));
                    [[unroll]] for (uint i = 0u; i < OWN_LINES; i++) sums[i] *= factor;
                } else {
                    [[unroll]] for (uint i = 0u; i < OWN_LINES; i++)
                        sums[i] *= exp_neg(cum_between(before, walk[HEAD * SOURCES + OWN_LINE(i)]));
                }
                [[unroll]] for (uint i = 0u; i < OWN_LINES; i++) {
                    [[unroll]] for (uint source = 0u; source < 2u; source++)
                        products[i][source] =
                            WEIGHT(0u, OWN_LINE(i), OWN_SOURCE(source)) + WEIGHT(1u, OWN_LINE(i), OWN_SOURCE(source));
                }
                barrier();
                [[unroll]] for (uint source = 0u; source < 2u; source++) {
                    uint own = HEAD * SOURCES + OWN_SOURCE(source);
                    [[unroll]] for (uint i = 0u; i < OWN_LINES; i++) {
                        float weight = products[i][source] * factors[own];
                        if (!below) {
                            float decay = exp_neg(cum_between(walk[own], walk[HEAD * SOURCES + OWN_LINE(i)]));
                            weight = OWN_SOURCE(source) <= OWN_LINE(i) ? weight * decay : 0.0;
                        }
                        WEIGHT(HEAD, OWN_LINE(i), OWN_SOURCE(source)) = weight;
                    }
                }
                for (uint s = 0u; s < min(SOURCES, t_end - s_first); s += DEPTH) {
                    if (s > 0u) barrier();
                    STAGE_ROWS(x, x_at, args.x_row, s_first + s, size - 1u, 1.0)
                    barrier();
                    [[unroll]] for (uint k = 0u; k < DEPTH; k += 4u) {
                        vec4 lines[OWN_LINES];
                        [[unroll]] for (uint i = 0u; i < OWN_LINES; i++)
                            lines[i] = weights[(HEAD * LINES + OWN_LINE(i)) * CHUNKS + (s + k) / 4u];
                        multiply_four(sums, lines, k);
                    }
                }
            }

            float skip = has(args.flags, HAS_D) ? load_d(args.d_at + h) : 0.0;
            [[unroll]] for (uint i = 0u; i < OWN_LINES; i++) {
                uint t = t_first + OWN_LINE(i);
                [[unroll]] for (uint column = 0u; column < 4u; column++) {
                    if (there && t < t_end && OWN_COLUMN + column < columns) {
                        float value = sums[i][column];
                        if (has(args.flags, HAS_D)) value += skip * load_x(x_at + t * args.x_row + OWN_COLUMN + column);
                        store_y(args.y_at + (token + t) * args.y_row + h * args.P + p_first + OWN_COLUMN + column, value);
                    }
                }
            }
        }
    }
}
