#version 460
#extension GL_GOOGLE_include_directive : require
// sma on cooperative matrices, 16-bit operands, P at most 64: what sma_base.comp says. qn, en and c are f16 as sma_query makes
// them with HAS_UNIT; memories of bf16 become f16 on their way (their rows have unit RMS, so that nothing is lost that counts).
// A workgroup takes T0 tokens of one (b, h), a subgroup OWN of them; SLAB rows n of a memory lie in shared memory, and
// both products, [qn ; c scale] dh, are made from the same matrices of it. The sums of the keys go to shared memory
// matrix by matrix, where lanes multiply them by en; the weights come back as matrices whose columns are alike.
// Scales are divided by the power of two of the largest one of the memory, which comes back with the weights.
// Shared memory: 16 SLAB (MAX_P / 8 + 1) + 2 MAX_STATE + 4 T0 (MATRIX_N + 6) + 4 LANES bytes.
// Guards: as in sma_base.comp; what a token does not see is dropped from the products before it is weighted, so that
// neither NaN nor infinity of later memories reaches it.
#include "lib/dart.glsl"
#include "lib/matrix.glsl"
#include "table/sma.glsl"
READS_AS(uvec4, quads, qn) READS_AS(uvec4, quads, en) READS_AS(uvec4, quads, c) READS_AS(uvec4, quads, dh) READS(factor)
READS(seq) READS_WRITES(r) READS_WRITES(lse) READS_AS(vec2, pairs, unit)
#include "lib/seq.glsl"
#include "lib/log.glsl"

const uint MAX_P = 64u;
const uint SLAB = 64u;
const uint PITCH = MAX_P / 8u + 1u;                                    // 16-byte words
const uint OWN = T0 / SUBGROUPS;                                       // tokens of a subgroup
const uint TILES = OWN / MATRIX_M;
const uint COLUMNS = MAX_P / MATRIX_N;
const uint OWNED = (OWN + SUBGROUP_SIZE - 1u) / SUBGROUP_SIZE;         // tokens of a lane
const uint PART_PITCH = MATRIX_N / 4u + 1u;
shared uvec4 slab[SLAB * PITCH];
shared float16_t scales[MAX_STATE];
shared vec4 parts[T0 * PART_PITCH]; // sums of one matrix
shared float keeps[T0];             // what becomes of the sums so far
shared float gains[T0];             // weight of the new value

MatrixSum keys[TILES][COLUMNS];
MatrixSum values[TILES][COLUMNS];
MatrixSum sums[TILES][COLUMNS];

uint to_f16(uint word)
{
    if (DTYPE_OF(dh) == TYPE_F16) return word;
    return packFloat2x16(f16vec2(vec2(uintBitsToFloat(word << 16), uintBitsToFloat(word & 0xffff0000u))));
}

// Both products of SLAB rows n. row: of the first token of the subgroup; left: that many rows are there.
void add_products(uint row, uint g, uint n_first, uint left)
{
    for (uint k = 0u; k < left; k += MATRIX_K) {
        MatrixA scale;
        MatrixA query[TILES];
        MatrixA read[TILES];
        coopMatLoad(scale, scales, n_first + k, 0u, ROW_MAJOR);
        [[unroll]] for (uint i = 0u; i < TILES; i++) {
            uint at = (((row + i * MATRIX_M) * args.G + g) * args.N + n_first + k) / 8u;
            coopMatLoad(query[i], quads_qn, at, args.G * args.N / 8u, ROW_MAJOR);
            coopMatLoad(read[i], quads_c, args.c_at / 8u + at, args.G * args.N / 8u, ROW_MAJOR);
            read[i] *= scale;
        }
        [[unroll]] for (uint j = 0u; j < COLUMNS; j++) {
            if (j * MATRIX_N < args.P) {
                MatrixB memory;
                coopMatLoad(memory, slab, k * PITCH + j * MATRIX_N / 8u, PITCH, ROW_MAJOR);
                [[unroll]] for (uint i = 0u; i < TILES; i++) {
                    keys[i][j] = coopMatMulAdd(query[i], memory, keys[i][j]);
                    values[i][j] = coopMatMulAdd(read[i], memory, values[i][j]);
                }
            }
        }
    }
}

void main()
{
    uint s = gl_SubgroupID;
    uint lane = gl_SubgroupInvocationID;
    uint t_blocks = (args.L + T0 - 1u) / T0;
    bool merge = has(args.flags, IS_MERGE);
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint t_first = tile % t_blocks * T0;
        uint head = tile / t_blocks;
        uint b = head / args.H;
        uint h = head % args.H;
        uint g = h / (args.H / args.G);
        uint count = seq_count(b, args.L);
        if (t_first >= count) continue;
        uint position = seq_position(b);
        uint t_end = min(t_first + T0, count);
        uint token = b * args.L;
        uint seen = min((position + t_end - 1u) / args.S, args.first + args.count);
        seen = seen > args.first ? seen - args.first : 0u;
        if (seen == 0u && merge) continue;

        uint t_own = t_first + s * OWN;
        float top[OWNED];
        float den[OWNED];
        [[unroll]] for (uint i = 0u; i < OWNED; i++) {
            top[i] = LOWEST;
            den[i] = 0.0;
        }
        [[unroll]] for (uint i = 0u; i < TILES; i++) {
            [[unroll]] for (uint j = 0u; j < COLUMNS; j++) sums[i][j] = MatrixSum(0.0);
        }

        for (uint m = 0u; m < seen; m++) {
            uint rows = ((b * args.capacity + m) * args.H + h) * args.N;
            float most = 0.0;
            for (uint n = LANE; n < args.N; n += LANES) most = max(most, load_factor(args.factor_at + rows + n));
            uint bits = clamp(floatBitsToUint(workgroup_max(most)) & 0x7f800000u, 0x00800000u, 0x7e000000u);
            for (uint n = LANE; n < args.N; n += LANES)
                scales[n] = float16_t(load_factor(args.factor_at + rows + n) * uintBitsToFloat(0x7f000000u - bits));
            [[unroll]] for (uint i = 0u; i < TILES; i++) {
                [[unroll]] for (uint j = 0u; j < COLUMNS; j++) {
                    keys[i][j] = MatrixSum(0.0);
                    values[i][j] = MatrixSum(0.0);
                }
            }
            for (uint n_first = 0u; n_first < args.N; n_first += SLAB) {
                uint left = min(SLAB, args.N - n_first);
                uint width = args.P / 8u;
                barrier();
                for (uint i = LANE; i < left * width; i += LANES) {
                    uvec4 words = quads_dh[(args.dh_at + (rows + n_first) * args.P) / 8u + i];
                    slab[i / width * PITCH + i % width] = uvec4(to_f16(words.x), to_f16(words.y), to_f16(words.z), to_f16(words.w));
                }
                barrier();
                add_products(token + t_own, g, n_first, left);
            }

            float logits[OWNED];
            [[unroll]] for (uint i = 0u; i < OWNED; i++) logits[i] = 0.0;
            [[unroll]] for (uint j = 0u; j < COLUMNS; j++) {
                if (j * MATRIX_N < args.P) {
                    [[unroll]] for (uint i = 0u; i < TILES; i++)
                        coopMatStore(keys[i][j], parts, (s * OWN + i * MATRIX_M) * PART_PITCH, PART_PITCH, ROW_MAJOR);
                    subgroupMemoryBarrierShared();
                    subgroupBarrier();
                    [[unroll]] for (uint i = 0u; i < OWNED; i++) {
                        uint row = i * SUBGROUP_SIZE + lane;
                        if (row < OWN) {
                            uint en_at = (((token + min(t_own + row, t_end - 1u)) * args.G + g) * args.P + j * MATRIX_N) / 8u;
                            uint at = (s * OWN + row) * PART_PITCH;
                            [[unroll]] for (uint p = 0u; p < MATRIX_N / 8u; p++) {
                                uvec4 words = quads_en[en_at + p];
                                logits[i] += dot(parts[at + 2u * p], vec4(unpack_elements(words.x), unpack_elements(words.y))) +
                                             dot(parts[at + 2u * p + 1u], vec4(unpack_elements(words.z), unpack_elements(words.w)));
                            }
                        }
                    }
                    subgroupBarrier();
                }
            }
            [[unroll]] for (uint i = 0u; i < OWNED; i++) {
                uint row = i * SUBGROUP_SIZE + lane;
                if (row < OWN) {
                    uint t = min(t_own + row, t_end - 1u);
                    float logit = logits[i] * pairs_unit[(token + t) * args.G + g].x;
                    bool visible = args.first + m < (position + t) / args.S;
                    float new_top = visible ? max(top[i], logit) : top[i];
                    float keep = exp_neg(top[i] - new_top);
                    float gain = visible ? exp_neg(logit - new_top) : 0.0;
                    den[i] = den[i] * keep + gain;
                    top[i] = new_top;
                    keeps[s * OWN + row] = keep;
                    gains[s * OWN + row] = gain * uintBitsToFloat(bits);
                }
            }
            subgroupMemoryBarrierShared();
            subgroupBarrier();
            [[unroll]] for (uint i = 0u; i < TILES; i++) {
                MatrixSum keep;
                MatrixSum gain;
                coopMatLoad(keep, keeps, s * OWN + i * MATRIX_M, 0u, COLUMN_MAJOR);
                coopMatLoad(gain, gains, s * OWN + i * MATRIX_M, 0u, COLUMN_MAJOR);
                [[unroll]] for (uint j = 0u; j < COLUMNS; j++) {
                    [[unroll]] for (uint n = 0u; n < keep.length(); n++)
                        sums[i][j][n] = sums[i][j][n] * keep[n] + (gain[n] == 0.0 ? 0.0 : values[i][j][n] * gain[n]);
                }
            }
            subgroupBarrier();
        }

        [[unroll]] for (uint i = 0u; i < OWNED; i++) {
            uint row = i * SUBGROUP_SIZE + lane;
            if (row < OWN && t_own + row < t_end) {
                float keep = 0.0; // weight of what r holds
                float gain = den[i] > 0.0 ? 1.0 / den[i] : 0.0;
                float result = den[i] > 0.0 ? top[i] + log_above_one(den[i]) : 0.0;
                uint at = args.lse_at + (token + t_own + row) * args.H + h;
                float held = merge ? load_lse(at) : LOWEST;
                if (!(held > -3e38)) held = LOWEST;
                if (held > LOWEST) {
                    float high = den[i] > 0.0 ? max(held, result) : held;
                    float old = exp_neg(held - high);
                    float new = den[i] > 0.0 ? exp_neg(result - high) : 0.0;
                    keep = old / (old + new);
                    gain *= new / (old + new);
                    result = high + log_above_one(old + new);
                }
                keeps[s * OWN + row] = keep;
                gains[s * OWN + row] = gain * pairs_unit[(token + t_own + row) * args.G + g].y;
                store_lse(at, den[i] > 0.0 || held > LOWEST ? result : uintBitsToFloat(0xff800000u));
            }
        }
        [[unroll]] for (uint j = 0u; j < COLUMNS; j++) {
            if (j * MATRIX_N < args.P) {
                [[unroll]] for (uint i = 0u; i < TILES; i++)
                    coopMatStore(sums[i][j], parts, (s * OWN + i * MATRIX_M) * PART_PITCH, PART_PITCH, ROW_MAJOR);
                subgroupMemoryBarrierShared();
                subgroupBarrier();
                for (uint i = lane; i < OWN * MATRIX_N; i += SUBGROUP_SIZE) {
                    uint row = i / MATRIX_N;
                    uint p = i % MATRIX_N;
                    if (t_own + row < t_end) {
                        uint at = args.r_at + (token + t_own + row) * args.r_row + h * args.P + j * MATRIX_N + p;
                        float value = parts[(s * OWN + row) * PART_PITCH + p / 4u][p % 4u] * gains[s * OWN + row];
                        if (keeps[s * OWN + row] > 0.0) value += keeps[s * OWN + row] * load_r(at);
                        store_r(at, value);
                    }
                }
                subgroupBarrier();
            }
        }
        barrier();
    }
}
