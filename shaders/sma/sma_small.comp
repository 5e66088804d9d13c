#version 460
#extension GL_GOOGLE_include_directive : require
// sma on cooperative matrices for small memories: what sma_base.comp says, where N is 16 T1, 16 or 32, and P a multiple of 16, at most 64. qn, en and
// c are f16 as sma_query makes them with HAS_UNIT; memories of bf16 become f16 on their way (their rows have unit RMS).
// A workgroup takes T0 tokens of one (b, h), a subgroup OWN of them; lines.glsl says how memories lie. A subgroup multiplies one memory or two at a
// time: logit = sum_n qn Z with Z = w en^T, rows (m, n) x tokens; then v = (c scale) w, tokens x P. The sums over n go through shared memory, where a
// lane adds up those of a (memory, token); weights come back as matrices whose columns are alike. Scales are divided by the power of two of the
// largest one of the memory, which comes back with the weights.
// Shared memory: that of lines.glsl + 2 LINES + 4 LINES / STATE + 4 SUBGROUPS OWN (TOGETHER + 1) bytes, 29,840 with T0 64 and T1 1.
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
const uint STATE_DEPTH = STATE / MATRIX_K;        // of n, as the inner index
const uint READ_PITCH = STATE / 8u + 1u;          // 16-byte words from one token of c to the next
shared float16_t scales[LINES];
shared float powers[LINES / STATE];               // of two, by which the scales of a memory are divided
shared float logits[SUBGROUPS * TOGETHER * OWN];  // then the weights of the new values
shared float keeps[SUBGROUPS * OWN];              // what becomes of the sums so far

MatrixA read[TOKEN_ROWS * STATE_DEPTH]; // c

// The first `live` tokens from `row` on, on their way into matrices; those past the count are 0.
void take_tokens(uint s, uint lane, uint row, uint live, uint group)
{
    uint part = s * PARTS;
    uint half_at = s * HALVES;
    uint width = args.P / 8u;
    subgroup_sync();
    for (uint i = lane; i < OWN * width; i += SUBGROUP_SIZE) {
        uint t = i / width;
        uint at = ((row + t) * args.G + group) * width + i % width;
        halves[half_at + t * PITCH + i % width] = t < live ? quads_en[at] : uvec4(0u);
    }
    for (uint i = lane; i < OWN * STATE / 8u; i += SUBGROUP_SIZE) {
        uint t = i / (STATE / 8u);
        uint q = i % (STATE / 8u);
        uvec4 words = t < live ? quads_qn[((row + t) * args.G + group) * STATE / 8u + q] : uvec4(0u);
        put_part(part, t, q, words);
    }
    subgroup_sync();
    [[unroll]] for (uint j = 0u; j < TOKEN_TILES; j++) {
        [[unroll]] for (uint k = 0u; k < DEPTH_TILES; k++)
            if (k * MATRIX_K < args.P)
                coopMatLoad(verifier[k][j], halves, half_at + j * MATRIX_N * PITCH + k * MATRIX_K / 8u, PITCH, COLUMN_MAJOR);
        [[unroll]] for (uint i = 0u; i < STATE_TILES; i++)
            coopMatLoad(query[i][j], parts, part_at(part, i, j), PART_PITCH, COLUMN_MAJOR);
    }
    subgroup_sync();
    for (uint i = lane; i < OWN * STATE / 8u; i += SUBGROUP_SIZE) {
        uint t = i / (STATE / 8u);
        uint q = i % (STATE / 8u);
        halves[half_at + t * READ_PITCH + q] = t < live ? quads_c[(args.c_at + (row + t) * args.c_row + group * STATE) / 8u + q] : uvec4(0u);
    }
    subgroup_sync();
    [[unroll]] for (uint i = 0u; i < TOKEN_ROWS; i++) {
        [[unroll]] for (uint k = 0u; k < STATE_DEPTH; k++)
            coopMatLoad(read[i * STATE_DEPTH + k], halves, half_at + i * MATRIX_M * READ_PITCH + k * MATRIX_K / 8u, READ_PITCH, ROW_MAJOR);
        [[unroll]] for (uint j = 0u; j < COLUMN_TILES; j++) sums[i][j] = MatrixSum(0.0);
    }
}

// Over n, of each (memory, token): what add up to its logit, into parts.
void put_logits(uint part, uint line)
{
    [[unroll]] for (uint i = 0u; i < ROW_TILES; i++) {
        MatrixSum z[TOKEN_TILES];
        [[unroll]] for (uint j = 0u; j < TOKEN_TILES; j++) z[j] = MatrixSum(0.0);
        [[unroll]] for (uint k = 0u; k < DEPTH_TILES; k++) {
            if (k * MATRIX_K < args.P) {
                MatrixA w;
                coopMatLoad(w, memory, (line + i * MATRIX_M) * PITCH + k * MATRIX_K / 8u, PITCH, ROW_MAJOR);
                [[unroll]] for (uint j = 0u; j < TOKEN_TILES; j++) z[j] = coopMatMulAdd(w, verifier[k][j], z[j]);
            }
        }
        [[unroll]] for (uint j = 0u; j < TOKEN_TILES; j++) {
            z[j] *= query[i % STATE_TILES][j];
            coopMatStore(z[j], parts, part_at(part, i, j), PART_PITCH, COLUMN_MAJOR);
        }
    }
}

// The values of the memories, weighed, into sums.
void add_values(uint s, uint line)
{
    [[unroll]] for (uint i = 0u; i < TOKEN_ROWS; i++) {
        MatrixSum keep;
        MatrixSum gain[TOGETHER];
        MatrixA by[TOGETHER * STATE_DEPTH];
        coopMatLoad(keep, keeps, s * OWN + i * MATRIX_M, 0u, COLUMN_MAJOR);
        [[unroll]] for (uint put = 0u; put < TOGETHER; put++) {
            coopMatLoad(gain[put], logits, (s * TOGETHER + put) * OWN + i * MATRIX_M, 0u, COLUMN_MAJOR);
            [[unroll]] for (uint k = 0u; k < STATE_DEPTH; k++) {
                MatrixA scale;
                coopMatLoad(scale, scales, line + put * STATE + k * MATRIX_K, 0u, ROW_MAJOR);
                by[put * STATE_DEPTH + k] = scale * read[i * STATE_DEPTH + k];
            }
        }
        [[unroll]] for (uint j = 0u; j < COLUMN_TILES; j++) {
            if (j * MATRIX_N < args.P) {
                sums[i][j] *= keep;
                [[unroll]] for (uint put = 0u; put < TOGETHER; put++) {
                    MatrixSum value = MatrixSum(0.0);
                    [[unroll]] for (uint k = 0u; k < STATE_DEPTH; k++) {
                        MatrixB w;
                        coopMatLoad(w, memory, (line + put * STATE + k * MATRIX_K) * PITCH + j * MATRIX_N / 8u, PITCH, ROW_MAJOR);
                        value = coopMatMulAdd(by[put * STATE_DEPTH + k], w, value);
                    }
                    [[unroll]] for (uint n = 0u; n < keep.length(); n++)
                        sums[i][j][n] += gain[put][n] == 0.0 ? 0.0 : value[n] * gain[put][n];
                }
            }
        }
    }
}

void store_eight(uint at, vec4 low, vec4 high)
{
    if (is_half(DTYPE_OF(r))) {
        quads_r[at / 8u] = uvec4(as_halves(DTYPE_OF(r), low), as_halves(DTYPE_OF(r), high));
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
    for (uint tile = gl_WorkGroupID.x; tile < args.tiles; tile += gl_NumWorkGroups.x) {
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
        take_tokens(s, lane, row, live, g);
        // Of the token of a lane's pair; where it has two pairs, both lanes compute the same.
        float top[ITEMS];
        float den[ITEMS];
        [[unroll]] for (uint x = 0u; x < ITEMS; x++) {
            top[x] = LOWEST;
            den[x] = 0.0;
        }
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
            for (uint line = 0u; line < LINES && m_first + line / STATE < own_seen; line += LINES_ONCE) {
                uint m = m_first + line / STATE;
                put_logits(part, line);
                subgroup_sync();
                [[unroll]] for (uint x = 0u; x < ITEMS; x++) {
                    uint item = lane + x * SUBGROUP_SIZE;
                    if (item >= TOGETHER * OWN) continue;
                    uint t = min(item % OWN, max(live, 1u) - 1u);
                    bool visible = args.first + m + item / OWN < min((sequence.position + t_own + t) / args.S, limit);
                    logits[s * TOGETHER * OWN + item] = visible ? part_sum(part, item) * pairs_unit[(row + t) * args.G + g].x : LOWEST;
                }
                subgroup_sync();
                float gain[ITEMS];
                [[unroll]] for (uint x = 0u; x < ITEMS; x++) {
                    uint item = min(lane + x * SUBGROUP_SIZE, TOGETHER * OWN - 1u);
                    float new_top = top[x];
                    [[unroll]] for (uint put = 0u; put < TOGETHER; put++)
                        new_top = max(new_top, logits[(s * TOGETHER + put) * OWN + item % OWN]);
                    float keep = exp_neg(top[x] - new_top);
                    den[x] *= keep;
                    [[unroll]] for (uint put = 0u; put < TOGETHER; put++) {
                        float logit = logits[(s * TOGETHER + put) * OWN + item % OWN];
                        float weight = logit > LOWEST ? exp_neg(logit - new_top) : 0.0;
                        den[x] += weight;
                        if (put == item / OWN) gain[x] = weight * powers[(line / STATE + put)];
                    }
                    top[x] = new_top;
                    if (item < OWN) keeps[s * OWN + item] = keep;
                }
                subgroup_sync();
                [[unroll]] for (uint x = 0u; x < ITEMS; x++) {
                    uint item = lane + x * SUBGROUP_SIZE;
                    if (item < TOGETHER * OWN) logits[s * TOGETHER * OWN + item] = gain[x];
                }
                subgroup_sync();
                add_values(s, line);
            }
        }

        subgroup_sync();
        [[unroll]] for (uint x = 0u; x < ITEMS; x++) {
            uint t = lane + x * SUBGROUP_SIZE;
            if (t >= live) continue;
            float keep = 0.0; // weight of what r holds
            float gain = den[x] > 0.0 ? 1.0 / den[x] : 0.0;
            float result = den[x] > 0.0 ? top[x] + log_above_one(den[x]) : 0.0;
            uint at = args.lse_at + (row + t) * args.H + h;
            float held = merge ? load_lse(at) : LOWEST;
            if (!(held > -3e38)) held = LOWEST;
            if (held > LOWEST) {
                float high = den[x] > 0.0 ? max(held, result) : held;
                float old = exp_neg(held - high);
                float new = den[x] > 0.0 ? exp_neg(result - high) : 0.0;
                keep = old / (old + new);
                gain *= new / (old + new);
                result = high + log_above_one(old + new);
            }
            keeps[s * OWN + t] = keep;
            logits[s * TOGETHER * OWN + t] = gain * pairs_unit[(row + t) * args.G + g].y;
            store_lse(at, den[x] > 0.0 || held > LOWEST ? result : uintBitsToFloat(0xff800000u));
        }
        for (uint p = 0u; p < args.P; p += WIDTH / 2u) {
            subgroup_sync();
            put_columns(part, p);
            subgroup_sync();
            uint eights = min(args.P - p, WIDTH / 2u) / 8u;
            for (uint i = lane; i < live * eights; i += SUBGROUP_SIZE) {
                uint t = i / eights;
                uint at = args.r_at + (row + t) * args.r_row + h * args.P + p + i % eights * 8u;
                float keep = keeps[s * OWN + t];
                float gain = logits[s * TOGETHER * OWN + t];
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
