#version 460
#extension GL_GOOGLE_include_directive : require
// The rows of attention for devices with wide subgroups and no matrices: a workgroup takes LINES = 32
// tokens of one (b, h) and KEYS = LANES / 2 tokens of the cache at a time, in halves of 128 lanes, each of which has 64 keys
// and 64 columns: 128 lanes are for heads of up to 64 columns, 256 for MAX_HEAD. Lane l of a half owns tokens 4 (l / 16) .. + 3.
// Scores: a lane sums those of keys l % 16 + 16 j. Queries and keys come in slabs of DEPTH columns, line by line as they lie in
// memory. Softmax: SHARERS lanes a token carry the maximum, and each lane its part of its tokens' denominators. Values: a lane
// sums columns 4 (l % 16) .. + 3. They come in slabs of DEPTH keys, for which the lanes that own the scores give the weights.
// With -DFLOAT16, for f16 q, k and v, operands, weights among them, are f16 in shared memory and in registers (see
// dense/linear_wide.comp); products and sums are f32. Shared memory: 7 KiB for 128 lanes, 11 KiB for 256, 5.5 and 9.5 KiB with
// -DFLOAT16; 64 registers: a GCN SIMD holds four waves.
// Guards: those of attention_base.comp; a weight below 0 marks a token that is not seen, whose value is left out.
#include "lib/dart.glsl"
#include "table/attention.glsl"
READS(q) READS(k) READS(v) READS(seq) WRITES(o) WRITES(lse)
#include "lib/seq.glsl"
#include "lib/log.glsl"
const uint LINES = 32u; // T0
#include "lib/product.glsl"
#include "lib/eight.glsl"
READS_EIGHT(q) READS_EIGHT(k) READS_EIGHT(v)

const uint KEYS = LANES / 2u;
const uint WORDS = 4u; // of a line, four elements each
const uint DEPTH = 4u * WORDS;
const uint QUERY_PITCH = WORDS + 1u;       // words from token to token
const uint WEIGHT_PITCH = LINES / 4u + 1u; // from key to key
const uint SHARERS = LANES / LINES; // lanes of a token's softmax
// Eight elements from `at` on, of which `left` belong to the head: the others count as 0, or with -DTILES, where D is a multiple
// of 16, remain as they are.
#ifdef FLOAT16
#define WORD f16vec4
const uint PERIOD = 4u; // lines of WORDS words that pass the banks once
#define STAGE(name, array, first, second, at, left) \
    if ((left) > 0) { \
        uvec4 words = quads_##name[(at) / 8u]; \
        array[first] = f16vec4(unpackFloat2x16(words.x), unpackFloat2x16(words.y)); \
        array[second] = f16vec4(unpackFloat2x16(words.z), unpackFloat2x16(words.w)); \
    }
#else
#define WORD vec4
const uint PERIOD = 2u;
#ifdef TILES
#define STAGE(name, array, first, second, at, left) \
    if ((left) > 0) { \
        Eight words = load_eight_##name(at); \
        array[first] = words.low; \
        array[second] = words.high; \
    }
#else
#define STAGE(name, array, first, second, at, left) \
    { \
        Eight words = Eight(vec4(0.0), vec4(0.0)); \
        [[unroll]] for (uint e = 0u; e < 4u; e++) { \
            if (int(e) < (left)) words.low[e] = load_##name((at) + e); \
            if (int(e) + 4 < (left)) words.high[e] = load_##name((at) + e + 4u); \
        } \
        array[first] = words.low; \
        array[second] = words.high; \
    }
#endif
#endif
shared WORD slabs[KEYS * WORDS];        // of keys; of values, key by key
shared WORD lines[LINES * QUERY_PITCH]; // of queries; of weights, key by key four tokens each
#ifdef FLOAT16
shared vec4 parts[LINES * SHARERS];
#else
#define parts slabs // which is free when they are needed
#endif
shared float tops[LINES];
shared float keeps[LINES]; // what becomes of the sums so far; at the end, 1 / denominator
#define HALF (LANE / 128u)
#define OWN_QUAD (LANE % 128u / 16u)
#define OWN_LINE(i) (OWN_QUAD * OWN_LINES + (i))

// Keys beside one another keep their words in other places, or their lanes would use the same banks.
uint place(uint line, uint word) { return line * WORDS + (word ^ (line / PERIOD % WORDS)); }
// A lane's number among those that the lanes of a line share.
#define PART(line) parts[(line) * SHARERS + LANE % 16u / 4u + 4u * HALF][LANE % 4u]

// exp for x <= 0. 16-bit results may do with the built-in one: its error, at most 3 + 2 |x| ulp, is that of a weight e^x.
float weight_of(float x) { return is_16bit(DTYPE_OF(o)) ? exp(x) : exp_neg(x); }

void main()
{
    uint t_blocks = (args.L + LINES - 1u) / LINES;
    uint mine = LANE / SHARERS; // the token whose softmax this lane shares
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint t_first = (t_blocks - 1u - tile % t_blocks) * LINES; // the longest first
        uint head = tile / t_blocks;
        uint b = head / args.H;
        uint h = head % args.H;
        uint g = h / (args.H / args.G);
        uint count = seq_count(b, args.L);
        if (t_first >= count) continue;
        uint first_place = seq_position(b) + t_first;
        uint t_last = min(t_first + LINES, count) - 1u;
        uint token = b * args.L;
        uint seen = min(first_place + (t_last - t_first) + 1u, args.first + args.C);
        if (seen <= args.first) continue;

        float top = LOWEST;
        float dens[OWN_LINES];
        vec4 sums[OWN_LINES];
        [[unroll]] for (uint i = 0u; i < OWN_LINES; i++) {
            dens[i] = 0.0;
            sums[i] = vec4(0.0);
        }
        for (uint s = args.first; s < seen; s += KEYS) {
            uint row = b * args.C + s - args.first;
            uint last = seen - 1u - s;                              // key of the block
            bool whole = s + KEYS <= min(first_place + 1u, args.first + args.C); // all of its keys are seen by all tokens
            vec4 scores[OWN_LINES];
            [[unroll]] for (uint i = 0u; i < OWN_LINES; i++) scores[i] = vec4(0.0);
            for (uint d = 0u; d < args.D; d += DEPTH) {
                uint line = LANE / 2u;
                uint word = LANE % 2u * 2u;
                uint column = d + 4u * word;
                barrier();
                STAGE(k, slabs, place(line, word), place(line, word + 1u),
                      args.k_at + (row + min(line, last)) * args.k_row + g * args.D + column, int(args.D) - int(column))
                if (line < LINES)
                    STAGE(q, lines, line * QUERY_PITCH + word, line * QUERY_PITCH + word + 1u,
                          args.q_at + (token + min(t_first + line, t_last)) * args.q_row + h * args.D + column,
                          int(args.D) - int(column))
                barrier();
                [[unroll]] for (uint n = 0u; n < WORDS; n++) {
                    WORD key[4];
                    [[unroll]] for (uint j = 0u; j < 4u; j++) key[j] = slabs[place(64u * HALF + LANE % 16u, n) + 16u * WORDS * j];
                    [[unroll]] for (uint i = 0u; i < OWN_LINES; i++) {
                        WORD query = lines[OWN_LINE(0u) * QUERY_PITCH + n + i * QUERY_PITCH];
                        [[unroll]] for (uint e = 0u; e < 4u; e++) {
                            [[unroll]] for (uint j = 0u; j < 4u; j++) scores[i][j] += float(query[e]) * float(key[j][e]);
                        }
                    }
                }
            }

            barrier();
            uint own = s + 64u * HALF + LANE % 16u; // the lane's first key
            [[unroll]] for (uint i = 0u; i < OWN_LINES; i++) {
                scores[i] *= args.scale;
                if (!whole) {
                    uint end = min(first_place + OWN_LINE(i) + 1u, seen);
                    [[unroll]] for (uint j = 0u; j < 4u; j++) scores[i][j] = own + 16u * j < end ? scores[i][j] : LOWEST;
                }
                PART(OWN_LINE(i)) = max(max(scores[i].x, scores[i].y), max(scores[i].z, scores[i].w));
            }
            barrier();
            float new_top = top;
            [[unroll]] for (uint n = 0u; n < SHARERS; n++) {
                vec4 part = parts[mine * SHARERS + n];
                new_top = max(new_top, max(max(part.x, part.y), max(part.z, part.w)));
            }
            if (LANE % SHARERS == 0u) {
                tops[mine] = new_top;
                keeps[mine] = exp_neg(top - new_top);
            }
            top = new_top;
            barrier();
            [[unroll]] for (uint i = 0u; i < OWN_LINES; i++) {
                dens[i] *= keeps[OWN_LINE(i)];
                sums[i] *= keeps[OWN_LINE(i)];
            }

            for (uint first = 0u; first < KEYS; first += DEPTH) {
                uint key = LANE / (KEYS / 8u);
                uint word = LANE % (KEYS / 8u) * 2u;
                barrier();
                STAGE(v, slabs, key * (KEYS / 4u) + word, key * (KEYS / 4u) + word + 1u,
                      args.v_at + (row + min(first + key, last)) * args.v_row + g * args.D + 4u * word, int(args.D) - int(4u * word))
                if (HALF == first / 64u) {
                    vec4 weights;
                    [[unroll]] for (uint i = 0u; i < OWN_LINES; i++) {
                        bool visible = whole || scores[i].x != LOWEST;
                        float weight = weight_of(scores[i].x - tops[OWN_LINE(i)]);
                        weights[i] = visible ? weight : -1.0;
                        dens[i] += visible ? weight : 0.0;
                        scores[i] = scores[i].yzwx; // a variable index would put them all into memory
                    }
                    lines[LANE % 16u * WEIGHT_PITCH + OWN_QUAD] = WORD(weights);
                }
                barrier();
                [[unroll]] for (uint n = 0u; n < DEPTH; n += 4u) {
                    uint weight_at = n * WEIGHT_PITCH + OWN_QUAD;
                    uint value_at = n * (KEYS / 4u) + 16u * HALF + LANE % 16u;
                    [[unroll]] for (uint e = 0u; e < 4u; e++) {
                        WORD weight = lines[weight_at + e * WEIGHT_PITCH];
                        WORD value = slabs[value_at + e * (KEYS / 4u)];
                        if (whole) {
                            [[unroll]] for (uint i = 0u; i < OWN_LINES; i++) sums[i] += float(weight[i]) * vec4(value);
                        } else {
                            [[unroll]] for (uint i = 0u; i < OWN_LINES; i++) {
                                if (float(weight[i]) >= 0.0) sums[i] += float(weight[i]) * vec4(value);
                            }
                        }
                    }
                }
            }
        }

        barrier();
        [[unroll]] for (uint i = 0u; i < OWN_LINES; i++) PART(OWN_LINE(i)) = dens[i];
        barrier();
        if (LANE % SHARERS == 0u) {
            float den = 0.0;
            [[unroll]] for (uint n = 0u; n < SHARERS; n++) {
                vec4 part = parts[mine * SHARERS + n];
                den += (part.x + part.y) + (part.z + part.w);
            }
            keeps[mine] = 1.0 / den;
            if (t_first + mine <= t_last) store_lse(args.lse_at + (token + t_first + mine) * args.H + h, top + log_above_one(den));
        }
        barrier();
        uint column = 64u * HALF + OWN_COLUMN;
        [[unroll]] for (uint i = 0u; i < OWN_LINES; i++) {
            uint t = t_first + OWN_LINE(i);
            [[unroll]] for (uint k = 0u; k < 4u; k++) {
                if (t <= t_last && column + k < args.D)
                    store_o(args.o_at + (token + t) * args.o_row + h * args.D + column + k, sums[i][k] * keeps[OWN_LINE(i)]);
            }
        }
        barrier();
    }
}
