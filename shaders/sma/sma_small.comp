#version 460
#extension GL_GOOGLE_include_directive : require
// sma on cooperative matrices for small memories: what sma_base.comp says, where N is 16 T1, 16 or 32, and P a multiple of 16, at most 64. qn, en and
// c are f16 as sma_query makes them with HAS_UNIT; memories of bf16 become f16 on their way (their rows have unit RMS).
// A workgroup takes T0 tokens of one (b, h), a subgroup OWN of them; lines.glsl says how memories lie. All that belongs to a token stays in matrices
// whose row it is, one memory after the other:
//   u = qn (en w^T), tokens x N;  logit = unit u 1, the sum over n in every column: with -DMATRIX2 a reduction along the rows, else a product with
//   ones, u as the sum of two f16 numbers, which becomes a left operand through shared memory;
//   weight = exp(logit - top) in every column;  v = (c scale) w, tokens x P;  sums = keep sums + weight v.
// The reference `top` of a token changes when a logit exceeds it by more than SLACK (powers of 2), so that sums are seldom scaled; the
// reference itself once had weight 1. Scales are divided by the power of two of the largest one of the memory, which comes back with the weight.
// With -DMATRIX2 MATRIX_K is MATRIX_N.
// Shared memory: that of lines.glsl + 2 LINES + 4 LINES / STATE + 8 SUBGROUPS OWN bytes, 29,584 with T0 64 and T1 1.
// Guards: as in sma_base.comp; what a token does not see is dropped before it is weighted, so that neither NaN nor infinity of later memories
// reaches it.
#include "lib/dart.glsl"
#include "lib/matrix.glsl"
#include "lib/eight.glsl"
#include "table/sma.glsl"
READS_AS(uvec4, quads, qn) READS_AS(uvec4, quads, en) READS_AS(uvec4, quads, c) READS_AS(uvec4, quads, dh) READS(factor)
READS(seq) READS_WRITES_AS(uvec4, quads, r) LOADS_EIGHT(r) READS_WRITES(lse) READS_AS(vec2, pairs, unit)
#define PACKS
#include "lib/seq.glsl"
#include "lib/log.glsl"

#include "sma/lines.glsl"
#include "sma/small.glsl"

void store_eight(uint at, vec4 low, vec4 high)
{
    if (is_16bit(DTYPE_OF(r))) {
        quads_r[at / 8u] = uvec4(as_16bit(DTYPE_OF(r), low), as_16bit(DTYPE_OF(r), high));
    } else {
        quads_r[at / 4u] = floatBitsToUint(low);
        quads_r[at / 4u + 1u] = floatBitsToUint(high);
    }
}

void main()
{
    uint s = gl_SubgroupID;
    uint lane = gl_SubgroupInvocationID;
    uint part = s * PARTS;
    uint t_blocks = (args.L + T0 - 1u) / T0;
    bool merge = has(args.flags, IS_MERGE);
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint t_first = tile % t_blocks * T0;
        uint b = tile / t_blocks / args.H;
        uint h = tile / t_blocks % args.H;
        uint g = h / (args.H / args.G);
        Sequence sequence = sequence_of(b);
        uint count = sequence.count;
        if (t_first >= count) continue;
        uint limit = args.first + args.count;
        uint seen = min((sequence.position + min(t_first + T0, count) - 1u) / args.S, limit);
        seen = seen > args.first ? seen - args.first : 0u;
        if (seen == 0u && merge) continue;
        uint slots = slot_of(sequence, b, args.capacity, args.S);
        uint t_own = t_first + s * OWN;
        uint row = sequence.row + t_own;
        uint live = t_own < count ? min(count - t_own, OWN) : 0u;
        uint own_seen = live > 0u ? min((sequence.position + t_own + live - 1u) / args.S, limit) : 0u;
        own_seen = own_seen > args.first ? own_seen - args.first : 0u;
        uint all_see = live > 0u ? min((sequence.position + t_own) / args.S, limit) : 0u;
        all_see = all_see > args.first ? all_see - args.first : 0u;
        for (uint i = lane; i < OWN; i += SUBGROUP_SIZE) {
            uint t = min(i, max(live, 1u) - 1u);
            firsts[s * OWN + i] = live > 0u ? pairs_unit[(row + t) * args.G + g].x * LOG2_E : 0.0;
            seconds[s * OWN + i] = float(int(min((sequence.position + t_own + t) / args.S, limit)) - int(args.first));
        }
        take_tokens(s, lane, row, live, g);
        for (uint m_first = 0u; m_first < seen; m_first += LINES / STATE) {
            barrier();
            put_lines(slots, h, m_first, seen);
            barrier();
            for (uint i = LANE; i < LINES; i += LANES) {
                float most = 0.0;
                for (uint n = 0u; n < STATE; n++) most = max(most, factors[i / STATE * STATE + n]);
                uint bits = clamp(floatBitsToUint(most) & 0x7f800000u, 0x00800000u, 0x7e000000u);
                scales[i] = float16_t(factors[i] * uintBitsToFloat(0x7f000000u - bits));
                if (i % STATE == 0u) powers[i / STATE] = uintBitsToFloat(bits);
            }
            barrier();
            for (uint line = 0u; line < LINES && m_first + line / STATE < own_seen; line += STATE)
                add_memory(m_first + line / STATE, m_first + line / STATE < all_see, line, part, s * OPERANDS, lane);
        }

        // What becomes of a token's row of r and of the sums, by a lane.
        [[unroll]] for (uint i = 0u; i < TOKEN_ROWS; i++) {
            subgroup_sync();
            coopMatStore(top[i], parts, part, MATRIX_N / 4u, ROW_MAJOR);
            subgroup_sync();
            float reference = parts[part + lane % MATRIX_M * MATRIX_N / 4u].x;
            subgroup_sync();
            coopMatStore(den[i], parts, part, MATRIX_N / 4u, ROW_MAJOR);
            subgroup_sync();
            float total = parts[part + lane % MATRIX_M * MATRIX_N / 4u].x;
            uint t = i * MATRIX_M + lane;
            if (lane >= MATRIX_M || t >= live) continue;
            float keep = 0.0; // weight of what r holds
            float gain = total > 0.0 ? 1.0 / total : 0.0;
            float result = total > 0.0 ? reference * LN_2 + log_above_one(total) : 0.0;
            uint at = args.lse_at + (row + t) * args.H + h;
            float held = merge ? load_lse(at) : LOWEST;
            if (!(held > -3e38)) held = LOWEST;
            if (held > LOWEST) {
                float high = total > 0.0 ? max(held, result) : held;
                float old = exp_neg(held - high);
                float new = total > 0.0 ? exp_neg(result - high) : 0.0;
                keep = old / (old + new);
                gain *= new / (old + new);
                result = high + log_above_one(old + new);
            }
            firsts[s * OWN + t] = keep;
            seconds[s * OWN + t] = gain * pairs_unit[(row + t) * args.G + g].y;
            store_lse(at, total > 0.0 || held > LOWEST ? result : uintBitsToFloat(0xff800000u));
        }
        for (uint p = 0u; p < args.P; p += WIDTH / 2u) {
            subgroup_sync();
            put_columns(part, p);
            subgroup_sync();
            uint eights = min(args.P - p, WIDTH / 2u) / 8u;
            for (uint i = lane; i < live * eights; i += SUBGROUP_SIZE) {
                uint t = i / eights;
                uint at = args.r_at + (row + t) * args.r_row + h * args.P + p + i % eights * 8u;
                float keep = firsts[s * OWN + t];
                float gain = seconds[s * OWN + t];
                vec4 low = parts[part + t * OUT_PITCH + i % eights * 2u] * gain;
                vec4 high = parts[part + t * OUT_PITCH + i % eights * 2u + 1u] * gain;
                if (keep > 0.0) {
                    Eight old = load_eight_r(at);
                    low += keep * old.low;
                    high += keep * old.high;
                }
                store_eight(at, low, high);
            }
        }
    }
}
