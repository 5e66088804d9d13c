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
const uint STATE_DEPTH = STATE / MATRIX_K;        // of n, as the inner index
const uint STATE_COLUMNS = STATE / MATRIX_N;      // of n, as columns
const uint JOINED = MATRIX_K / MATRIX_N;          // accumulators of a left operand
const uint READ_PITCH = STATE / 8u + 1u;          // 16-byte words from one token of c to the next
const uint ELEMENTS = MATRIX_M * MATRIX_N / SUBGROUP_SIZE; // components of an accumulator in a lane
const float SLACK = 8.0;
const float LOG2_E = 1.44269504;
const float LN_2 = 0.693147181;
shared float16_t scales[LINES];
shared float powers[LINES / STATE];               // of two, by which the scales of a memory are divided
shared float firsts[SUBGROUPS * OWN];             // of a token: a number on its way into matrices
shared float seconds[SUBGROUPS * OWN];

MatrixA verify[TOKEN_ROWS * DEPTH_TILES];         // en
MatrixSum asked[TOKEN_ROWS * STATE_COLUMNS];      // qn
MatrixA read[TOKEN_ROWS * STATE_DEPTH];           // c
MatrixSum unit[TOKEN_ROWS];                       // log2 e times what makes a sum a logit
MatrixSum bound[TOKEN_ROWS];                      // the token sees memories below that number
MatrixSum top[TOKEN_ROWS];
MatrixSum den[TOKEN_ROWS];

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
    [[unroll]] for (uint i = 0u; i < TOKEN_ROWS; i++) {
        [[unroll]] for (uint k = 0u; k < DEPTH_TILES; k++)
            if (k * MATRIX_K < args.P)
                coopMatLoad(verify[i * DEPTH_TILES + k], halves, half_at + i * MATRIX_M * PITCH + k * MATRIX_K / 8u, PITCH, ROW_MAJOR);
        [[unroll]] for (uint n = 0u; n < STATE_COLUMNS; n++)
            coopMatLoad(asked[i * STATE_COLUMNS + n], parts, part + i * MATRIX_M * PART_PITCH + n * MATRIX_N / 4u, PART_PITCH, ROW_MAJOR);
        coopMatLoad(unit[i], firsts, s * OWN + i * MATRIX_M, 0u, COLUMN_MAJOR);
        coopMatLoad(bound[i], seconds, s * OWN + i * MATRIX_M, 0u, COLUMN_MAJOR);
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
        top[i] = MatrixSum(LOWEST);
        den[i] = MatrixSum(0.0);
    }
}

#ifdef MATRIX2
float sum_of(const in float a, const in float b) { return a + b; }
#else
// sum += the sums over the columns of u, rounded to f16, in every column.
void add_columns(inout MatrixSum sum, MatrixSum u[JOINED], uint part, uint half_at, uint lane)
{
    MatrixA left;
    [[unroll]] for (uint n = 0u; n < JOINED; n++) coopMatStore(u[n], parts, part + n * MATRIX_N / 4u, MATRIX_K / 4u, ROW_MAJOR);
    subgroup_sync();
    for (uint i = lane; i < MATRIX_M * MATRIX_K / 8u; i += SUBGROUP_SIZE) {
        vec4 low = parts[part + 2u * i];
        vec4 high = parts[part + 2u * i + 1u];
        halves[half_at + i] = uvec4(pack_elements(low.x, low.y), pack_elements(low.z, low.w),
                                    pack_elements(high.x, high.y), pack_elements(high.z, high.w));
    }
    subgroup_sync();
    coopMatLoad(left, halves, half_at, MATRIX_K / 8u, ROW_MAJOR);
    subgroup_sync();
    sum = coopMatMulAdd(left, MatrixB(1.0), sum);
}
#endif

// Memory m, whose rows begin at `line`, into den and sums. all: every token of the subgroup sees it.
void add_memory(uint m, bool all, uint line, uint part, uint half_at, uint lane)
{
    MatrixSum u[TOKEN_ROWS * JOINED];
    [[unroll]] for (uint i = 0u; i < TOKEN_ROWS * JOINED; i++) u[i] = MatrixSum(0.0);
    [[unroll]] for (uint n = 0u; n < STATE_COLUMNS; n++) {
        MatrixSum z[TOKEN_ROWS];
        [[unroll]] for (uint i = 0u; i < TOKEN_ROWS; i++) z[i] = MatrixSum(0.0);
        [[unroll]] for (uint k = 0u; k < DEPTH_TILES; k++) {
            if (k * MATRIX_K < args.P) {
                MatrixB w;
                coopMatLoad(w, memory, (line + n * MATRIX_N) * PITCH + k * MATRIX_K / 8u, PITCH, COLUMN_MAJOR);
                [[unroll]] for (uint i = 0u; i < TOKEN_ROWS; i++) z[i] = coopMatMulAdd(verify[i * DEPTH_TILES + k], w, z[i]);
            }
        }
        [[unroll]] for (uint i = 0u; i < TOKEN_ROWS; i++) u[i * JOINED + n % JOINED] += z[i] * asked[i * STATE_COLUMNS + n];
    }
    float power = powers[line / STATE];
    MatrixSum gain[TOKEN_ROWS];
    [[unroll]] for (uint i = 0u; i < TOKEN_ROWS; i++) {
        MatrixSum logit = MatrixSum(0.0);
#ifdef MATRIX2
        coopMatReduceNV(logit, u[i], gl_CooperativeMatrixReduceRowNV, sum_of);
#else
        MatrixSum high[JOINED];
        MatrixSum low[JOINED];
        [[unroll]] for (uint n = 0u; n < JOINED; n++) {
            [[unroll]] for (uint e = 0u; e < ELEMENTS; e++) {
                float value = u[i * JOINED + n][e];
                high[n][e] = uintBitsToFloat(floatBitsToUint(value) & 0xffffe000u); // 11 digits; compilers drop conversions there and back
                low[n][e] = value - high[n][e];
            }
        }
        add_columns(logit, high, part, half_at, lane);
        add_columns(logit, low, part, half_at, lane);
#endif
        bool beyond = false; // the reference, by more than SLACK
        [[unroll]] for (uint e = 0u; e < ELEMENTS; e++) {
            logit[e] = float(m) < bound[i][e] ? logit[e] * unit[i][e] : LOWEST;
            beyond = beyond || logit[e] > top[i][e] + SLACK;
        }
        if (subgroupOr(beyond ? 1u : 0u) != 0u) {
            MatrixSum keep;
            [[unroll]] for (uint e = 0u; e < ELEMENTS; e++) {
                float before = top[i][e];
                float after = logit[e] > before + SLACK ? logit[e] : before;
                keep[e] = exp2(before - after);
                top[i][e] = after;
            }
            den[i] *= keep;
            [[unroll]] for (uint j = 0u; j < COLUMN_TILES; j++) sums[i][j] *= keep;
        }
        [[unroll]] for (uint e = 0u; e < ELEMENTS; e++) {
            float weight = float(m) < bound[i][e] ? exp2(logit[e] - top[i][e]) : 0.0;
            den[i][e] += weight;
            gain[i][e] = weight * power;
        }
    }
    MatrixA scale[STATE_DEPTH];
    [[unroll]] for (uint k = 0u; k < STATE_DEPTH; k++) coopMatLoad(scale[k], scales, line + k * MATRIX_K, 0u, ROW_MAJOR);
    [[unroll]] for (uint i = 0u; i < TOKEN_ROWS; i++) {
        MatrixA by[STATE_DEPTH];
        [[unroll]] for (uint k = 0u; k < STATE_DEPTH; k++) by[k] = scale[k] * read[i * STATE_DEPTH + k];
        [[unroll]] for (uint j = 0u; j < COLUMN_TILES; j++) {
            if (j * MATRIX_N < args.P) {
                MatrixSum value = MatrixSum(0.0);
                [[unroll]] for (uint k = 0u; k < STATE_DEPTH; k++) {
                    MatrixB w;
                    coopMatLoad(w, memory, (line + k * MATRIX_K) * PITCH + j * MATRIX_N / 8u, PITCH, ROW_MAJOR);
                    value = coopMatMulAdd(by[k], w, value);
                }
                if (all) {
                    [[unroll]] for (uint e = 0u; e < ELEMENTS; e++) sums[i][j][e] += value[e] * gain[i][e];
                } else {
                    [[unroll]] for (uint e = 0u; e < ELEMENTS; e++) sums[i][j][e] += gain[i][e] == 0.0 ? 0.0 : value[e] * gain[i][e];
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
                add_memory(m_first + line / STATE, m_first + line / STATE < all_see, line, part, s * HALVES, lane);
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
