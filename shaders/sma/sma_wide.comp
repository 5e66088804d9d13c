#version 460
#extension GL_GOOGLE_include_directive : require
// The rows of sma for devices with wide subgroups and no matrices, sizes that fit tiles, P up to 64: a workgroup of 256 lanes
// takes LINES = 32 tokens of one (b, h). The first 128 lanes make their keys' products with a memory, the others those of their
// values: lane l of either half owns columns 4 (l % 16) .. + 3 of tokens l / 16 + 8 i. Each element of dh is read once for all
// tokens; both operands pass through shared memory. Then a lane a token adds up its logit and carries the online softmax.
// With -DFLOAT16, for normalised f16 memories, what is multiplied with them is f16 as well and stays so in shared memory and in
// registers (see dense/linear_wide.comp). Shared memory: 10.7 KiB, 8.7 KiB with -DFLOAT16; 64 registers: a GCN SIMD holds four
// waves.
// Guards: those of sma_base.comp.
#include "lib/dart.glsl"
#include "table/sma.glsl"
READS(qn) READS(en) READS(c) READS(dh) READS(factor) READS(seq) READS_WRITES(r) READS_WRITES(lse) READS(unit)
#define PACKS
#include "lib/seq.glsl"
#include "lib/log.glsl"
const uint LINES = 32u; // T0
#include "lib/product.glsl"
const uint DEPTH = 8u;  // rows of a slab
const uint STATES = 16u;
shared vec4 slabs[2u * DEPTH * QUADS]; // of dh for keys, of dh for values
#include "lib/eight.glsl"
READS_EIGHT(qn) READS_EIGHT(c) READS_EIGHT(dh)
#ifdef FLOAT16
shared uvec4 reads[2u * LINES * STATES / 8u]; // states of qn, of c
#else
shared vec4 reads[2u * LINES * STATES / 4u];
#endif
shared float parts[LINES * 17u]; // of the logits
shared float tops[LINES];        // of the tokens so far: here they leave a register each to the products
shared float dens[LINES];
shared float keeps[LINES];       // what becomes of the sums so far
shared float gains[LINES];       // weight of the new value
#define VALUES (LANE / 128u)     // 0: this lane makes keys
#define OWN_LINE(i) (LANE % 128u / 16u + 8u * (i))

// States k .. k + 3 of a line of the lane's half.
vec4 four_of(uint line, uint k)
{
#ifdef FLOAT16
    uvec4 q = reads[(VALUES * LINES + line) * (STATES / 8u) + k / 8u];
    return four_f16(k % 8u == 0u ? q.xy : q.zw);
#else
    return reads[(VALUES * LINES + line) * (STATES / 4u) + k / 4u];
#endif
}

// States n_first .. of the lane's half, tokens after the last repeat it.
void stage_lines(uint token, uint t_first, uint t_last, uint g, uint n_first)
{
#ifdef FLOAT16
    uint e = LANE % 128u;
    if (e < LINES * STATES / 8u) {
        uint row = token + min(t_first + e / 2u, t_last);
        uint n = g * args.N + n_first + e % 2u * 8u;
        reads[VALUES * (LINES * STATES / 8u) + e] =
            VALUES == 0u ? quads_qn[(row * args.G * args.N + n) / 8u] : quads_c[(args.c_at + row * args.c_row + n) / 8u];
    }
#else
    uint row = token + min(t_first + LANE % 128u / 4u, t_last);
    uint n = g * args.N + n_first + LANE % 4u * 4u;
    if (VALUES == 0u) reads[LANE] = FOUR(load_qn, row * args.G * args.N + n, 4u);
    else reads[LANE] = FOUR(load_c, args.c_at + row * args.c_row + n, 4u);
#endif
}

void main()
{
    uint t_blocks = (args.L + LINES - 1u) / LINES;
    bool raw = has(args.flags, IS_RAW);
    bool merge = has(args.flags, IS_MERGE);
    bool scaled = raw == (VALUES == 0u); // this half takes dh with its factor
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint t_first = tile % t_blocks * LINES;
        uint head = tile / t_blocks;
        uint b = head / args.H;
        uint h = head % args.H;
        uint g = h / (args.H / args.G);
        Sequence sequence = sequence_of(b);
        uint count = sequence.count;
        if (t_first >= count) continue;
        uint position = sequence.position;
        uint slots = slot_of(sequence, b, args.capacity, args.S);
        uint t_last = min(t_first + LINES, count) - 1u;
        uint token = sequence.row;
        uint seen = min((position + t_last) / args.S, args.first + args.count);
        seen = seen > args.first ? seen - args.first : 0u;
        if (seen == 0u && merge) continue;

        uint t_own = t_first + LANE;
        bool owner = LANE < LINES && t_own < count;
        uint unit = 2u * ((token + min(t_own, t_last)) * args.G + g);
        bool units = has(args.flags, HAS_UNIT);
        if (LANE < LINES) {
            tops[LANE] = LOWEST;
            dens[LANE] = 0.0;
        }
        bool inside = OWN_COLUMN < args.P;
        vec4 held[OWN_LINES]; // en in the first half, sums in the second
        [[unroll]] for (uint i = 0u; i < OWN_LINES; i++) {
            held[i] = vec4(0.0);
            if (VALUES == 0u && inside) {
                uint row = (token + min(t_first + OWN_LINE(i), t_last)) * args.G + g;
                held[i] = FOUR(load_en, row * args.P + OWN_COLUMN, 4u);
            }
        }

        for (uint m = 0u; m < seen; m++) {
            uint rows = ((slots + m) * args.H + h) * args.N;
            vec4 sums[OWN_LINES];
            [[unroll]] for (uint i = 0u; i < OWN_LINES; i++) sums[i] = vec4(0.0);
            for (uint n_first = 0u; n_first < args.N; n_first += STATES) {
                [[unroll]] for (uint n = 0u; n < STATES; n += DEPTH) {
                    barrier();
                    if (n == 0u) stage_lines(token, t_first, t_last, g, n_first);
                    if (LANE % 128u < DEPTH * QUADS / 2u) {
                        uint row = rows + n_first + n + LANE % 128u / 8u;
                        Eight value = load_eight_dh(args.dh_at + row * args.P + min(8u * (LANE % 8u), args.P - 8u));
                        float factor = scaled ? load_factor(args.factor_at + row) : 1.0;
                        uint to = VALUES * DEPTH * QUADS + 2u * (LANE % 128u);
                        slabs[to] = value.low * factor;
                        slabs[to + 1u] = value.high * factor;
                    }
                    barrier();
                    [[unroll]] for (uint k = 0u; k < DEPTH; k += 4u) {
                        vec4 lines[OWN_LINES];
                        [[unroll]] for (uint i = 0u; i < OWN_LINES; i++) lines[i] = four_of(OWN_LINE(i), n + k);
                        [[unroll]] for (uint e = 0u; e < 4u; e++) {
                            vec4 value = slabs[(VALUES * DEPTH + k + e) * QUADS + LANE % 16u];
                            [[unroll]] for (uint i = 0u; i < OWN_LINES; i++) sums[i] += lines[i][e] * value;
                        }
                    }
                }
            }
            if (VALUES == 0u) {
                [[unroll]] for (uint i = 0u; i < OWN_LINES; i++) {
                    vec4 term = sums[i] * held[i];
                    parts[OWN_LINE(i) * 17u + LANE % 16u] = inside ? (term.x + term.y) + (term.z + term.w) : 0.0;
                }
            }
            barrier();
            if (LANE < LINES) {
                float logit = 0.0;
                for (uint i = 0u; i < 16u; i++) logit += parts[LANE * 17u + i];
                if (units) logit *= load_unit(unit);
                bool visible = owner && position + t_own >= (args.first + m + 1u) * args.S;
                float top = tops[LANE];
                float new_top = visible ? max(top, logit) : top;
                float keep = exp_neg(top - new_top);
                float gain = visible ? exp_neg(logit - new_top) : 0.0;
                dens[LANE] = dens[LANE] * keep + gain;
                tops[LANE] = new_top;
                keeps[LANE] = keep;
                gains[LANE] = gain;
            }
            barrier();
            if (VALUES != 0u) {
                [[unroll]] for (uint i = 0u; i < OWN_LINES; i++) {
                    float gain = gains[OWN_LINE(i)];
                    held[i] = held[i] * keeps[OWN_LINE(i)] + (gain != 0.0 ? gain * sums[i] : vec4(0.0));
                }
            }
        }

        barrier();
        if (owner) {
            float den = dens[LANE];
            float top = tops[LANE];
            float keep = 0.0; // weight of what r holds
            float gain = den > 0.0 ? (units ? load_unit(unit + 1u) : 1.0) / den : 0.0;
            float result = den > 0.0 ? top + log_above_one(den) : 0.0;
            uint at = args.lse_at + (token + t_own) * args.H + h;
            float before = merge ? load_lse(at) : LOWEST;
            if (!(before > -3e38)) before = LOWEST;
            if (before > LOWEST) {
                float high = den > 0.0 ? max(before, result) : before;
                float old = exp_neg(before - high);
                float new = den > 0.0 ? exp_neg(result - high) : 0.0;
                keep = old / (old + new);
                gain *= new / (old + new);
                result = high + log_above_one(old + new);
            }
            keeps[LANE] = keep;
            gains[LANE] = gain;
            store_lse(at, den > 0.0 || before > LOWEST ? result : uintBitsToFloat(0xff800000u));
        }
        barrier();
        [[unroll]] for (uint i = 0u; i < OWN_LINES; i++) {
            uint t = t_first + OWN_LINE(i);
            if (VALUES != 0u && t <= t_last && inside) {
                [[unroll]] for (uint k = 0u; k < 4u; k++) {
                    uint at = args.r_at + (token + t) * args.r_row + h * args.P + OWN_COLUMN + k;
                    float value = held[i][k] * gains[OWN_LINE(i)];
                    if (keeps[OWN_LINE(i)] > 0.0) value += keeps[OWN_LINE(i)] * load_r(at);
                    store_r(at, value);
                }
            }
        }
        barrier();
    }
}
