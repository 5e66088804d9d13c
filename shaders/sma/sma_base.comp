#version 460
#extension GL_GOOGLE_include_directive : require
// For each token t, over its memories i: logit_i = sum_p en_p sum_n key_n dh_np, v_i = sum_n value_n dh_np,
// g = softmax(logit), r = sum_i g_i v_i, lse = logsumexp(logit). key, value: see args.h.
// qn, c B L G N; en B L G P; dh B capacity H N P; factor B capacity H N; r B L H P; lse B L H.
// One workgroup takes T0 tokens of one (b, h): a lane owns a column p (and those LANES further on, one after another)
// for all tokens, so that each element of dh is read once for both products of all tokens; [key ; value] lie in
// shared memory in slabs of SLAB rows n. Then T0 lanes add up the logits and carry the online softmax.
// T0 is a multiple of 4 and not above LANES, LANES at least MAX_STATE / GROUPS; with -DP64 for P up to 64.
// Shared memory: 16 SLAB (T0 / 2 + 1) + 4 T0 (LANES + 1) + 8 T0 bytes.
// Guards: differences from the running maximum are clamped to <= 0, LOWEST stands for -infinity; each token has its
// own limit, since a tile may straddle the border of a chunk, and a weight of 0 lets no NaN through.
#include "lib/dart.glsl"
#include "table/sma.glsl"
READS(qn) READS(en) READS(c) READS(dh) READS(factor) READS(seq) READS_WRITES(r) READS_WRITES(lse)
#define PACKS
#include "lib/seq.glsl"
#include "lib/log.glsl"

const uint SLAB = 64u;
const uint QUADS = T0 / 4u;
const uint PITCH = 2u * QUADS + 1u;
#ifdef P64
const uint GROUPS = 64u / LANES;
#else
const uint GROUPS = MAX_STATE / LANES;
#endif
shared vec4 slab[SLAB * PITCH];           // [qn ; c], four tokens each
shared float products[T0 * (LANES + 1u)]; // the parts of the logits
shared float keeps[T0];                   // what becomes of the sums so far
shared float gains[T0];                   // weight of the new value

vec4 quad_of_keeps(uint q) { return vec4(keeps[4u * q], keeps[4u * q + 1u], keeps[4u * q + 2u], keeps[4u * q + 3u]); }
vec4 quad_of_gains(uint q) { return vec4(gains[4u * q], gains[4u * q + 1u], gains[4u * q + 2u], gains[4u * q + 3u]); }

void main()
{
    uint t_blocks = (args.L + T0 - 1u) / T0;
    bool raw = has(args.flags, IS_RAW);
    bool merge = has(args.flags, IS_MERGE);
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint t_first = tile % t_blocks * T0;
        uint head = tile / t_blocks;
        uint b = head / args.H;
        uint h = head % args.H;
        uint g = h / (args.H / args.G);
        Sequence sequence = sequence_of(b);
        uint count = sequence.count;
        if (t_first >= count) continue;
        uint position = sequence.position;
        uint slots = slot_of(sequence, b, args.capacity, args.S);
        uint t_last = min(t_first + T0, count) - 1u;
        uint token = sequence.row;
        uint seen = min((position + t_last) / args.S, args.first + args.count);
        seen = seen > args.first ? seen - args.first : 0u;
        if (seen == 0u && merge) continue;

        uint t_own = t_first + LANE;
        bool owner = LANE < T0 && t_own < count;
        uint limit = owner ? (position + t_own) / args.S : 0u;
        float top = LOWEST;
        float den = 0.0;
        vec4 sums[GROUPS * QUADS]; // these two are reached by constants only, so that they lie in registers
        vec4 kept[GROUPS * QUADS];
        [[unroll]] for (uint i = 0u; i < GROUPS * QUADS; i++) sums[i] = kept[i] = vec4(0.0);

        for (uint m = 0u; m < seen; m++) {
            uint rows = ((slots + m) * args.H + h) * args.N;
            vec4 logits[QUADS];
            [[unroll]] for (uint q = 0u; q < QUADS; q++) logits[q] = vec4(0.0);
            for (uint group = 0u; group < GROUPS && group * LANES < args.P; group++) {
                uint p = min(group * LANES + LANE, args.P - 1u);
                vec4 keys[QUADS];
                vec4 values[QUADS];
                [[unroll]] for (uint q = 0u; q < QUADS; q++) {
                    keys[q] = vec4(0.0);
                    values[q] = vec4(0.0);
                }
                for (uint n_first = 0u; n_first < args.N; n_first += SLAB) {
                    if (args.N > SLAB || m + group == 0u) {
                        barrier();
                        for (uint i = LANE; i < SLAB * QUADS; i += LANES) {
                            uint n = g * args.N + min(n_first + i % SLAB, args.N - 1u);
                            vec4 query;
                            vec4 read;
                            [[unroll]] for (uint r = 0u; r < 4u; r++) {
                                uint row = token + min(t_first + i / SLAB * 4u + r, t_last);
                                query[r] = load_qn(row * args.G * args.N + n);
                                read[r] = load_c(args.c_at + row * args.c_row + n);
                            }
                            slab[i % SLAB * PITCH + i / SLAB] = query;
                            slab[i % SLAB * PITCH + QUADS + i / SLAB] = read;
                        }
                        barrier();
                    }
                    uint end = min(SLAB, args.N - n_first);
                    for (uint k = 0u; k < end; k++) {
                        float value = load_dh(args.dh_at + (rows + n_first + k) * args.P + p);
                        float scaled = value * load_factor(args.factor_at + rows + n_first + k);
                        float key = raw ? scaled : value;
                        value = raw ? value : scaled;
                        [[unroll]] for (uint q = 0u; q < QUADS; q++) {
                            keys[q] += slab[k * PITCH + q] * key;
                            values[q] += slab[k * PITCH + QUADS + q] * value;
                        }
                    }
                }
                bool inside = group * LANES + LANE < args.P;
                [[unroll]] for (uint q = 0u; q < QUADS; q++) {
                    [[unroll]] for (uint i = 0u; i < GROUPS; i++) kept[i * QUADS + q] = i == group ? values[q] : kept[i * QUADS + q];
                    vec4 verifier;
                    [[unroll]] for (uint r = 0u; r < 4u; r++)
                        verifier[r] = load_en(((token + min(t_first + 4u * q + r, t_last)) * args.G + g) * args.P + p);
                    logits[q] += inside ? keys[q] * verifier : vec4(0.0);
                }
            }
            [[unroll]] for (uint q = 0u; q < QUADS; q++) {
                [[unroll]] for (uint r = 0u; r < 4u; r++) products[(4u * q + r) * (LANES + 1u) + LANE] = logits[q][r];
            }
            barrier();
            if (LANE < T0) {
                float logit = 0.0;
                for (uint i = 0u; i < LANES; i++) logit += products[LANE * (LANES + 1u) + i];
                bool visible = args.first + m < limit;
                float new_top = visible ? max(top, logit) : top;
                float keep = exp_neg(top - new_top);
                float gain = visible ? exp_neg(logit - new_top) : 0.0;
                den = den * keep + gain;
                top = new_top;
                keeps[LANE] = keep;
                gains[LANE] = gain;
            }
            barrier();
            [[unroll]] for (uint q = 0u; q < QUADS; q++) {
                vec4 keep = quad_of_keeps(q);
                vec4 gain = quad_of_gains(q);
                [[unroll]] for (uint group = 0u; group < GROUPS; group++)
                    sums[group * QUADS + q] = sums[group * QUADS + q] * keep + mix(gain * kept[group * QUADS + q], vec4(0.0), equal(gain, vec4(0.0)));
            }
        }

        barrier();
        if (owner) {
            float keep = 0.0; // weight of what r holds
            float gain = den > 0.0 ? 1.0 / den : 0.0;
            float result = den > 0.0 ? top + log_above_one(den) : 0.0;
            uint at = args.lse_at + (token + t_own) * args.H + h;
            float held = merge ? load_lse(at) : LOWEST;
            if (!(held > -3e38)) held = LOWEST;
            if (held > LOWEST) {
                float high = den > 0.0 ? max(held, result) : held;
                float old = exp_neg(held - high);
                float new = den > 0.0 ? exp_neg(result - high) : 0.0;
                keep = old / (old + new);
                gain *= new / (old + new);
                result = high + log_above_one(old + new);
            }
            keeps[LANE] = keep;
            gains[LANE] = gain;
            store_lse(at, den > 0.0 || held > LOWEST ? result : uintBitsToFloat(0xff800000u));
        }
        barrier();
        [[unroll]] for (uint group = 0u; group < GROUPS; group++) {
            [[unroll]] for (uint q = 0u; q < QUADS; q++) {
                [[unroll]] for (uint r = 0u; r < 4u; r++) {
                    uint t = t_first + 4u * q + r;
                    if (t <= t_last && group * LANES + LANE < args.P) {
                        uint at = args.r_at + (token + t) * args.r_row + h * args.P + group * LANES + LANE;
                        float value = sums[group * QUADS + q][r] * gains[4u * q + r];
                        if (keeps[4u * q + r] > 0.0) value += keeps[4u * q + r] * load_r(at);
                        store_r(at, value);
                    }
                }
            }
        }
        barrier();
    }
}
