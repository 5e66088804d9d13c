// sma on cooperative matrices for N 128 and P 64 where a subgroup's registers hold MATRIX_M tokens whole: what sma_matrix.glsl
// says, with qn, c and en of the tokens held from the first memory to the last. 16-bit operands as there.
// A workgroup takes TOKENS of one (b, h), which T0 is a multiple of: tiles are counted from the last tokens on, since they see
// most memories, and head by head, which was as fast or faster in every variant timed. Two memories lie in shared
// memory: while one is multiplied, the next one comes in PARTS through registers; one barrier a memory.
// The sums of the keys are multiplied by en where they lie (en as it lies in a matrix of sums, two elements a word), added up
// over columns by the reduction of NV_cooperative_matrix2, and one lane a token carries the softmax. Its reference
// follows the maximum only when that is more than LAZY above it, so that the results are seldom rescaled.
// Shared memory: 16 SHARED_TILE + 4 N + 8 TOKENS + 16 TOKENS HELD_PITCH + 16 bytes, below 48 KiB.
// Guards: as in sma_matrix.glsl; gains are at most 2^LAZY, exponents are clamped.
#include "dart.glsl"
#include "matrix.glsl"
PUSH(SmaArgs)
layout(std430, binding = 0) readonly buffer Block_qn { uvec4 quads_qn[]; };
layout(std430, binding = 1) readonly buffer Block_en { uvec4 quads_en[]; };
layout(std430, binding = 2) readonly buffer Block_c { uvec4 quads_c[]; };
layout(std430, binding = 3) readonly buffer Block_dh { uvec4 quads_dh[]; };
layout(std430, binding = 4) readonly buffer Block_factor { vec4 quads_factor[]; };
READS(5, seq)
layout(std430, binding = 6) buffer Block_r { uint words_r[]; };
layout(std430, binding = 7) buffer Block_lse { float floats_lse[]; };
layout(std430, binding = 8) readonly buffer Block_unit { vec2 units[]; };
#include "seq.glsl"
#include "log.glsl"

const uint N = 128u;
const uint P = 64u;
const float LAZY = 8.0;
const uint TOKENS = SUBGROUPS * MATRIX_M;
const uint PASSES = T0 / TOKENS;
const uint PARTS = 2u;                              // a memory comes in so many parts
const uint APART = 2u;                              // matrices of qn that lie in shared memory for want of registers
const uint ROWS = N / MATRIX_K;                     // matrices of a memory
const uint COLUMNS = P / MATRIX_N;
const uint PITCH = P / 8u + 1u;                     // 16-byte words of a row, as below
const uint MEMORY = N * PITCH;
const uint RESULT_PITCH = P / 4u + 1u;
const uint HELD_PITCH = APART * MATRIX_K / 8u + 1u;
const uint ELEMENTS = MATRIX_M * MATRIX_N / SUBGROUP_SIZE;
const uint COPIES = N * P / 8u / PARTS / LANES;     // 16-byte words that a lane brings of a part
const uint SHARED_TILE = TOKENS * RESULT_PITCH > 2u * MEMORY ? TOKENS * RESULT_PITCH : 2u * MEMORY;
shared uvec4 tile_dh[SHARED_TILE];                  // two memories; before them en, after them the results
shared float16_t scales[2u * N];
shared uvec4 held_qn[TOKENS * HELD_PITCH];
shared float keeps[TOKENS];                             // logits, then what becomes of the results so far
shared float gains[TOKENS];                             // weight of the new value
shared float powers[4];                             // of two, which the scales of a memory were divided by

MatrixA query[ROWS - APART];
MatrixA read[ROWS];
uint verifier[COLUMNS * ELEMENTS / 2u];
MatrixSum keys[COLUMNS];
MatrixSum values[COLUMNS];
MatrixSum results[COLUMNS];
uvec4 copies[COPIES];
vec4 scale;
float top, reference, den, unit;                    // of the lane's token; logits are in units of log 2
uint own, limit, seen_by_all;

float sum_of(const in float a, const in float b) { return a + b; }
float note(const in uint row, const in uint column, const in float value)
{
    if (column == 0u) keeps[own + row] = value;
    return value;
}
uint to_f16(uint word)
{
    if (DTYPE_OF(3) == TYPE_F16) return word;
    return packFloat2x16(f16vec2(vec2(uintBitsToFloat(word << 16), uintBitsToFloat(word & 0xffff0000u))));
}

void fetch(uint rows, uint part)
{
    [[unroll]] for (uint i = 0u; i < COPIES; i++)
        copies[i] = quads_dh[(args.dh_at + rows * P) / 8u + (part * COPIES + i) * LANES + LANE];
    if (part == 0u && LANE < N / 4u) scale = quads_factor[(args.factor_at + rows) / 4u + LANE];
}
void put(uint m, uint part)
{
    [[unroll]] for (uint i = 0u; i < COPIES; i++) {
        uint at = (part * COPIES + i) * LANES + LANE;
        tile_dh[(m & 1u) * MEMORY + at / (P / 8u) * PITCH + at % (P / 8u)] =
            uvec4(to_f16(copies[i].x), to_f16(copies[i].y), to_f16(copies[i].z), to_f16(copies[i].w));
    }
    if (part == 0u && gl_SubgroupID == 0u) {
        float most = subgroupMax(LANE < N / 4u ? max(max(scale.x, scale.y), max(scale.z, scale.w)) : 0.0);
        uint power = clamp(floatBitsToUint(most) & 0x7f800000u, 0x00800000u, 0x7e000000u);
        if (LANE == 0u) powers[m & 3u] = uintBitsToFloat(power);
        if (LANE < N / 4u) {
            [[unroll]] for (uint i = 0u; i < 4u; i++)
                scales[(m & 1u) * N + 4u * LANE + i] = float16_t(scale[i] * uintBitsToFloat(0x7f000000u - power));
        }
    }
}

// Both products with memory m, whose successor, when there is one, starts at `next`.
void multiply(uint m, uint next, bool more)
{
    [[unroll]] for (uint j = 0u; j < COLUMNS; j++) {
        keys[j] = MatrixSum(0.0);
        values[j] = MatrixSum(0.0);
    }
    [[unroll]] for (uint k = 0u; k < ROWS; k++) {
        [[unroll]] for (uint i = 0u; i < PARTS; i++) {
            if (k == i * ROWS / PARTS && more) {
                if (i > 0u) put(m + 1u, i - 1u);
                fetch(next, i);
            }
        }
        MatrixA left;
        MatrixA factor;
        if (k < ROWS - APART) left = query[min(k, ROWS - APART - 1u)];
        else coopMatLoad(left, held_qn, own * HELD_PITCH + (k - (ROWS - APART)) * (MATRIX_K / 8u), HELD_PITCH, ROW_MAJOR);
        coopMatLoad(factor, scales, (m & 1u) * N + k * MATRIX_K, 0u, ROW_MAJOR);
        factor *= read[k];
        [[unroll]] for (uint j = 0u; j < COLUMNS; j++) {
            MatrixB memory;
            coopMatLoad(memory, tile_dh, (m & 1u) * MEMORY + k * MATRIX_K * PITCH + j * (MATRIX_N / 8u), PITCH, ROW_MAJOR);
            keys[j] = coopMatMulAdd(left, memory, keys[j]);
            values[j] = coopMatMulAdd(factor, memory, values[j]);
        }
    }
    if (more) put(m + 1u, PARTS - 1u);
}

// Logits, weights, and the values into the results.
void weigh(uint m)
{
    uint lane = gl_SubgroupInvocationID;
    MatrixSum sums;
    [[unroll]] for (uint i = 0u; i < ELEMENTS; i++) {
        float sum = 0.0;
        [[unroll]] for (uint j = 0u; j < COLUMNS; j++)
            sum += keys[j][i] * unpack_elements(verifier[(j * ELEMENTS + i) / 2u])[i & 1u];
        sums[i] = sum;
    }
    MatrixSum total;
    coopMatReduceNV(total, sums, gl_CooperativeMatrixReduceRowNV, sum_of);
    coopMatPerElementNV(total, total, note);
    subgroupMemoryBarrierShared();
    subgroupBarrier();
    float logit = keeps[own + lane % MATRIX_M] * unit;
    bool visible = args.first + m < limit;
    top = visible ? max(top, logit) : top;
    bool rescale = subgroupOr(top > reference + LAZY ? 1u : 0u) != 0u;
    if (rescale) {
        float keep = exp2(max(reference - top, -150.0));
        reference = top;
        den *= keep;
        if (lane < MATRIX_M) keeps[own + lane] = keep;
    }
    float gain = visible ? exp2(max(logit - reference, -150.0)) : 0.0;
    den += gain;
    if (lane < MATRIX_M) gains[own + lane] = gain * powers[m & 3u];
    subgroupMemoryBarrierShared();
    subgroupBarrier();
    if (rescale) {
        MatrixSum keep;
        coopMatLoad(keep, keeps, own, 0u, COLUMN_MAJOR);
        [[unroll]] for (uint j = 0u; j < COLUMNS; j++) results[j] *= keep;
    }
    MatrixSum weight;
    coopMatLoad(weight, gains, own, 0u, COLUMN_MAJOR);
    if (m >= seen_by_all) {
        [[unroll]] for (uint j = 0u; j < COLUMNS; j++) {
            [[unroll]] for (uint i = 0u; i < ELEMENTS; i++) values[j][i] = weight[i] == 0.0 ? 0.0 : values[j][i];
        }
    }
    [[unroll]] for (uint j = 0u; j < COLUMNS; j++) results[j] += values[j] * weight;
}

void main()
{
    uint s = gl_SubgroupID;
    uint lane = gl_SubgroupInvocationID;
    uint t_blocks = (args.L + T0 - 1u) / T0 * PASSES;
    uint heads = args.B * args.H;
    bool merge = has(args.flags, IS_MERGE);
    own = s * MATRIX_M;
    for (uint tile = gl_WorkGroupID.x; tile < args.tiles * PASSES; tile += gl_NumWorkGroups.x) {
        uint t_first = (t_blocks - 1u - tile / heads) * TOKENS;
        uint head = tile % heads;
        uint b = head / args.H;
        uint h = head % args.H;
        uint g = h / (args.H / args.G);
        uint count = seq_count(b, args.L);
        if (t_first >= count) continue;
        uint position = seq_position(b);
        uint t_last = min(t_first + TOKENS, count) - 1u;
        uint token = b * args.L;
        uint seen = min((position + t_last) / args.S, args.first + args.count);
        seen = seen > args.first ? seen - args.first : 0u;
        if (seen == 0u && merge) continue;
        seen_by_all = min((position + t_first) / args.S, args.first + args.count);
        seen_by_all = seen_by_all > args.first ? seen_by_all - args.first : 0u;

        uint t_own = t_first + own + lane % MATRIX_M;
        limit = t_own < count ? (position + t_own) / args.S : 0u;
        vec2 own_units = units[(token + min(t_own, t_last)) * args.G + g];
        unit = own_units.x * 1.44269504;
        top = LOWEST;
        reference = LOWEST;
        den = 0.0;
        [[unroll]] for (uint k = 0u; k < ROWS; k++) {
            uint at = ((token + t_first + own) * args.G + g) * (N / 8u) + k * (MATRIX_K / 8u);
            if (k < ROWS - APART) coopMatLoad(query[min(k, ROWS - APART - 1u)], quads_qn, at, args.G * (N / 8u), ROW_MAJOR);
            coopMatLoad(read[k], quads_c, at, args.G * (N / 8u), ROW_MAJOR);
        }
        for (uint i = lane; i < MATRIX_M * APART * MATRIX_K / 8u; i += SUBGROUP_SIZE) {
            uint row = own + i / (APART * MATRIX_K / 8u);
            uint column = i % (APART * MATRIX_K / 8u);
            uint at = ((token + t_first + row) * args.G + g) * (N / 8u) + (ROWS - APART) * (MATRIX_K / 8u);
            held_qn[row * HELD_PITCH + column] = quads_qn[at + column];
        }
        for (uint i = lane; i < MATRIX_M * P / 8u; i += SUBGROUP_SIZE) {
            uint row = own + i / (P / 8u);
            uint at = row * RESULT_PITCH + i % (P / 8u) * 2u;
            uvec4 words = quads_en[((token + min(t_first + row, t_last)) * args.G + g) * (P / 8u) + i % (P / 8u)];
            tile_dh[at] = floatBitsToUint(vec4(unpack_elements(words.x), unpack_elements(words.y)));
            tile_dh[at + 1u] = floatBitsToUint(vec4(unpack_elements(words.z), unpack_elements(words.w)));
        }
        barrier();
        [[unroll]] for (uint j = 0u; j < COLUMNS; j++) {
            MatrixSum sum;
            coopMatLoad(sum, tile_dh, own * RESULT_PITCH + j * (MATRIX_N / 4u), RESULT_PITCH, ROW_MAJOR);
            [[unroll]] for (uint i = 0u; i < ELEMENTS; i += 2u)
                verifier[(j * ELEMENTS + i) / 2u] = pack_elements(sum[i], sum[i + 1u]);
            results[j] = MatrixSum(0.0);
        }
        barrier();

        uint rows = (b * args.capacity * args.H + h) * N;
        if (seen > 0u) {
            [[unroll]] for (uint i = 0u; i < PARTS; i++) {
                fetch(rows, i);
                put(0u, i);
            }
        }
        for (uint m = 0u; m < seen; m++) {
            rows += args.H * N;
            barrier();
            multiply(m, rows, m + 1u < seen);
            weigh(m);
        }
        barrier();

        float keep = 0.0; // weight of what r holds
        float gain = den > 0.0 ? own_units.y / den : 0.0;
        if (t_own < count && lane < MATRIX_M) {
            float result = den > 0.0 ? reference * 0.693147181 + (den >= 1.0 ? log_above_one(den) : -log_above_one(1.0 / den)) : 0.0;
            uint at = args.lse_at + (token + t_own) * args.H + h;
            float held = merge ? floats_lse[at] : LOWEST;
            if (!(held > -3e38)) held = LOWEST;
            if (held > LOWEST) {
                float high = den > 0.0 ? max(held, result) : held;
                float old = exp_neg(held - high);
                float new = den > 0.0 ? exp_neg(result - high) : 0.0;
                keep = old / (old + new);
                gain *= new / (old + new);
                result = high + log_above_one(old + new);
            }
            floats_lse[at] = den > 0.0 || held > LOWEST ? result : uintBitsToFloat(0xff800000u);
            keeps[own + lane] = keep;
            gains[own + lane] = gain;
        }
        [[unroll]] for (uint j = 0u; j < COLUMNS; j++)
            coopMatStore(results[j], tile_dh, own * RESULT_PITCH + j * (MATRIX_N / 4u), RESULT_PITCH, ROW_MAJOR);
        subgroupMemoryBarrierShared();
        subgroupBarrier();
        for (uint i = lane; i < MATRIX_M * P / 4u; i += SUBGROUP_SIZE) {
            uint row = own + i / (P / 4u);
            if (t_first + row > t_last) break;
            vec4 result = uintBitsToFloat(tile_dh[row * RESULT_PITCH + i % (P / 4u)]) * gains[row];
            float old = keeps[row];
            uint at = args.r_at + (token + t_first + row) * args.r_row + h * P + i % (P / 4u) * 4u;
            if (DTYPE_OF(6) == TYPE_F32) {
                [[unroll]] for (uint n = 0u; n < 4u; n++) {
                    if (old > 0.0) result[n] += old * uintBitsToFloat(words_r[at + n]);
                    words_r[at + n] = floatBitsToUint(result[n]);
                }
            } else {
                [[unroll]] for (uint n = 0u; n < 4u; n += 2u) {
                    if (old > 0.0) {
                        uint word = words_r[(at + n) / 2u];
                        result[n] += old * element_of(DTYPE_OF(6), word, 0u);
                        result[n + 1u] += old * element_of(DTYPE_OF(6), word, 1u);
                    }
                    words_r[(at + n) / 2u] = half_bits(DTYPE_OF(6), result[n]) | half_bits(DTYPE_OF(6), result[n + 1u]) << 16;
                }
            }
        }
        barrier();
    }
}
