#version 460
#extension GL_GOOGLE_include_directive : require
// o_t = sum_s w_s v_s, w = softmax over the tokens s of this block that t sees of scale q_t . k_s, lse = logsumexp.
// q, o B L H D; k, v B C G D; lse B L H; D <= HEAD, which is MAX_HEAD, or with -DLARGE MAX_LARGE_HEAD.
// One workgroup takes T0 tokens of one (b, h) and KEYS tokens of the cache at a time. Scores: the queries lie in shared
// memory, the keys come in slabs of SLAB columns, and a lane adds up SCORES queries of one key. Softmax: SHARERS lanes
// a query, each with KEYS / SHARERS keys, carry the maximum, and each its own part of the denominator. Values: a lane
// owns a column (and those LANES further on) of o for all queries and reads each value once.
// T0 is a multiple of 4, T0 KEYS one of 4 LANES, LANES one of KEYS and of T0, and not below HEAD / 4.
// Shared memory: 4 T0 HEAD + 4 KEYS (SLAB + 1) + 4 T0 KEYS + 4 LANES + 4 T0 bytes.
// Guards: differences from the running maximum are clamped to <= 0, LOWEST stands for -infinity; where a block holds tokens
// that some query must not see, what they hold is left out, not multiplied by 0.
#include "lib/dart.glsl"
#ifdef LARGE
#include "table/attention_large.glsl"
#define HEAD MAX_LARGE_HEAD
#else
#include "table/attention.glsl"
#define HEAD MAX_HEAD
#endif
READS(q) READS(k) READS(v) READS(seq) WRITES(o) WRITES(lse)
#define PACKS
#include "lib/seq.glsl"
#include "lib/log.glsl"

#ifndef KEYS
#define KEYS 32u
#endif
const uint SLAB = 32u;
const uint QUADS = T0 / 4u;
const uint GROUPS = HEAD / LANES;        // columns of a lane
const uint SCORES = T0 * KEYS / LANES;       // queries of a lane
const uint SHARERS = LANES / T0;             // lanes of a query
const uint SHARE = KEYS / SHARERS;
shared vec4 queries[HEAD * QUADS];       // column by column, four queries each
shared float slab[KEYS * (SLAB + 1u)];
shared vec4 weights[KEYS * QUADS];           // scores, then weights: key by key, four queries each
shared float parts[LANES];
shared float keeps[T0];                      // what becomes of the sums so far; at the end, 1 / denominator

vec4 quad_of_keeps(uint i) { return vec4(keeps[4u * i], keeps[4u * i + 1u], keeps[4u * i + 2u], keeps[4u * i + 3u]); }

void main()
{
    uint t_blocks = (args.L + T0 - 1u) / T0;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint t_first = (t_blocks - 1u - tile % t_blocks) * T0; // the longest first
        uint head = tile / t_blocks;
        uint b = head / args.H;
        uint h = head % args.H;
        uint g = h / (args.H / args.G);
        Sequence sequence = sequence_of(b);
        uint count = sequence.count;
        if (t_first >= count) continue;
        uint place = sequence.position + t_first; // of the first query
        uint t_last = min(t_first + T0, count) - 1u;
        uint token = sequence.row;
        uint cached = has(args.flags, HAS_CU) ? token : b * args.C;
        uint seen = min(place + (t_last - t_first) + 1u, args.first + args.C);
        if (seen <= args.first) continue;

        barrier();
        for (uint i = LANE; i < HEAD * QUADS; i += LANES) {
            vec4 query = vec4(0.0);
            if (i / QUADS < args.D) {
                [[unroll]] for (uint r = 0u; r < 4u; r++) {
                    uint row = token + min(t_first + i % QUADS * 4u + r, t_last);
                    query[r] = args.scale * load_q(args.q_at + row * args.q_row + h * args.D + i / QUADS);
                }
            }
            queries[i] = query;
        }
        uint mine = LANE / SHARERS; // the query whose softmax this lane shares
        float top = LOWEST;
        float den = 0.0;
        vec4 sums[GROUPS * QUADS];
        [[unroll]] for (uint i = 0u; i < GROUPS * QUADS; i++) sums[i] = vec4(0.0);

        for (uint s = args.first; s < seen; s += KEYS) {
            uint row = cached + s - args.first;
            uint keys = min(KEYS, seen - s);
            bool whole = s + KEYS <= min(place + 1u, args.first + args.C);
            uint key = LANE % KEYS;
            uint query = LANE / KEYS * SCORES;
            vec4 scores[SCORES / 4u];
            [[unroll]] for (uint i = 0u; i < SCORES / 4u; i++) scores[i] = vec4(0.0);
            for (uint d = 0u; d < args.D; d += SLAB) {
                barrier();
                for (uint i = LANE; i < KEYS * SLAB; i += LANES) {
                    uint column = min(d + i % SLAB, args.D - 1u); // further on the queries are 0
                    slab[i / SLAB * (SLAB + 1u) + i % SLAB] =
                        load_k(args.k_at + (row + min(i / SLAB, keys - 1u)) * args.k_row + g * args.D + column);
                }
                barrier();
                uint end = min(SLAB, args.D - d);
                for (uint i = 0u; i < end; i++) {
                    float value = slab[key * (SLAB + 1u) + i];
                    [[unroll]] for (uint n = 0u; n < SCORES / 4u; n++)
                        scores[n] += queries[(d + i) * QUADS + query / 4u + n] * value;
                }
            }
            [[unroll]] for (uint n = 0u; n < SCORES / 4u; n++) {
                [[unroll]] for (uint r = 0u; r < 4u; r++) {
                    bool visible = key < keys && s + key <= place + query + 4u * n + r;
                    scores[n][r] = visible ? scores[n][r] : LOWEST;
                }
                weights[key * QUADS + query / 4u + n] = scores[n];
            }
            barrier();

            float highest = LOWEST;
            [[unroll]] for (uint i = 0u; i < SHARE; i++)
                highest = max(highest, weights[(LANE % SHARERS + i * SHARERS) * QUADS + mine / 4u][mine % 4u]);
            parts[LANE] = highest;
            barrier();
            float new_top = top;
            [[unroll]] for (uint i = 0u; i < SHARERS; i++) new_top = max(new_top, parts[mine * SHARERS + i]);
            float keep = exp_neg(top - new_top);
            den *= keep;
            top = new_top;
            [[unroll]] for (uint i = 0u; i < SHARE; i++) {
                uint at = (LANE % SHARERS + i * SHARERS) * QUADS + mine / 4u;
                float score = weights[at][mine % 4u];
                float weight = score > LOWEST ? exp_neg(score - top) : 0.0;
                weights[at][mine % 4u] = weight;
                den += weight;
            }
            if (LANE % SHARERS == 0u) keeps[mine] = keep;
            barrier();

            [[unroll]] for (uint i = 0u; i < QUADS; i++) {
                vec4 keep4 = quad_of_keeps(i);
                [[unroll]] for (uint group = 0u; group < GROUPS; group++) sums[group * QUADS + i] *= keep4;
            }
            // The sums are indexed by constants only: NVK does not unroll a loop over groups that holds one over keys. Columns past D, whose sums
            // are not stored, read the last one.
            uint at = args.v_at + row * args.v_row + g * args.D;
            uint whole_keys = whole ? keys : 0u;
            [[dont_unroll]] for (uint i = 0u; i < whole_keys; i++) {
                [[unroll]] for (uint group = 0u; group < GROUPS; group++) {
                    if (group * LANES < args.D) {
                        float value = load_v(at + i * args.v_row + min(group * LANES + LANE, args.D - 1u));
                        [[unroll]] for (uint n = 0u; n < QUADS; n++) sums[group * QUADS + n] += weights[i * QUADS + n] * value;
                    }
                }
            }
            [[dont_unroll]] for (uint i = whole_keys; i < keys; i++) {
                [[unroll]] for (uint group = 0u; group < GROUPS; group++) {
                    if (group * LANES < args.D) {
                        float value = load_v(at + i * args.v_row + min(group * LANES + LANE, args.D - 1u));
                        [[unroll]] for (uint n = 0u; n < QUADS; n++) {
                            uvec4 places = uvec4(place + 4u * n) + uvec4(0u, 1u, 2u, 3u);
                            vec4 term = weights[i * QUADS + n] * value;
                            sums[group * QUADS + n] += mix(vec4(0.0), term, greaterThanEqual(places, uvec4(s + i)));
                        }
                    }
                }
            }
        }

        parts[LANE] = den;
        barrier();
        float total = 0.0;
        [[unroll]] for (uint i = 0u; i < SHARERS; i++) total += parts[mine * SHARERS + i];
        if (LANE % SHARERS == 0u) {
            keeps[mine] = 1.0 / total;
            if (t_first + mine <= t_last)
                store_lse(args.lse_at + (token + t_first + mine) * args.H + h, top + log_above_one(total));
        }
        barrier();
        [[unroll]] for (uint group = 0u; group < GROUPS; group++) {
            uint column = group * LANES + LANE;
            if (column >= args.D) continue;
            [[unroll]] for (uint n = 0u; n < QUADS; n++) {
                [[unroll]] for (uint r = 0u; r < 4u; r++) {
                    uint t = t_first + 4u * n + r;
                    if (t <= t_last)
                        store_o(args.o_at + (token + t) * args.o_row + h * args.D + column,
                                sums[group * QUADS + n][r] * keeps[4u * n + r]);
                }
            }
        }
    }
}
