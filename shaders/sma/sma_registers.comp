#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_shuffle : require
// sma on cooperative matrices for N 128 and P 64 where a subgroup's registers hold MATRIX_M tokens whole: what sma_matrix.comp
// says, with qn, c and en of the tokens held from the first memory to the last. 16-bit operands as there.
// A workgroup takes TOKENS of one (b, h), which T0 is a multiple of: tiles are counted from the last tokens on, since they see
// most memories, and head by head, which was as fast or faster in every variant timed. Two memories lie in shared
// memory: while one is multiplied, the next one comes through registers; one barrier a memory.
// The sums of the keys are multiplied by en where they lie (en as it lies in a matrix of sums, two elements a word), added up
// over columns by the reduction of NV_cooperative_matrix2, and one lane a token carries the softmax.
// Registers bound it: 248 of 255 on an H200, where the same with 48 more took 1.80 ms instead of 1.32. So
//   - a memory is one block without branches, in which the compiler puts the last products into the softmax: a rescaling
//     that is left out where no maximum grew, or a copy that is fetched a memory ahead, took longer;
//   - qn and c come as matrices out of shared memory: out of a storage buffer an element is a load of 16 bits and lies in a
//     register of its own for good;
//   - en stays in words (see step).
// Subgroups have at least N / 4 lanes.
// Shared memory: 16 SHARED_TILE + 4 N + 8 TOKENS PART_PITCH + 8 TOKENS + 16 bytes, below 48 KiB.
// Guards: as in sma_matrix.comp; exponents are clamped to at least -150, where the weight is 0.
#include "lib/dart.glsl"
#include "lib/matrix.glsl"
#include "table/sma.glsl"
READS_AS(uvec4, quads, qn) READS_AS(uvec4, quads, en) READS_AS(uvec4, quads, c) READS_AS(uvec4, quads, dh)
READS_AS(vec4, quads, factor) READS(seq) READS_WRITES_AS(uvec4, quads, r) READS_WRITES_AS(float, floats, lse)
READS_AS(vec2, pairs, unit)
#include "lib/seq.glsl"
#include "lib/log.glsl"
#include "sma/registers.glsl"

void main()
{
    uint s = gl_SubgroupID;
    uint lane = gl_SubgroupInvocationID;
    uint t_blocks = (args.L + T0 - 1u) / T0 * PASSES;
    uint heads = args.B * args.H;
    bool merge = has(args.flags, IS_MERGE);
    own = s * MATRIX_M;
    uint base = own * TOKEN_PITCH;
    for (uint tile = WORKGROUP; tile < args.tiles * PASSES; tile += gl_NumWorkGroups.x) {
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
        uint seen_by_all = min((position + t_first) / args.S, args.first + args.count);
        seen_by_all = seen_by_all > args.first ? seen_by_all - args.first : 0u;

        uint t_own = t_first + own + lane % MATRIX_M;
        limit = t_own < count ? (position + t_own) / args.S : 0u;
        vec2 own_units = pairs_unit[(token + min(t_own, t_last)) * args.G + g];
        unit = own_units.x * 1.44269504;
        top = LOWEST;
        den = 0.0;
        uint rows = (b * args.capacity * args.H + h) * N;
        uvec4 first_qn[QUERIES];
        uvec4 first_c[QUERIES];
        uvec4 first_en[VERIFIERS];
        [[unroll]] for (uint i = 0u; i < QUERIES; i++) {
            uint at = i * SUBGROUP_SIZE + lane;
            uint from = ((token + t_first + own + at / (N / 8u)) * args.G + g) * (N / 8u) + at % (N / 8u);
            first_qn[i] = quads_qn[from];
            first_c[i] = quads_c[args.c_at / 8u + from];
        }
        [[unroll]] for (uint i = 0u; i < VERIFIERS; i++) {
            uint at = i * SUBGROUP_SIZE + lane;
            uint t = min(t_first + own + at / (P / 8u), t_last);
            first_en[i] = quads_en[((token + t) * args.G + g) * (P / 8u) + at % (P / 8u)];
        }
        if (seen > 0u) fetch(rows);

        [[unroll]] for (uint i = 0u; i < QUERIES; i++) {
            uint at = i * SUBGROUP_SIZE + lane;
            tile_dh[base + at / (N / 8u) * TOKEN_PITCH + at % (N / 8u)] = first_qn[i];
        }
        sync();
        [[unroll]] for (uint k = 0u; k < ROWS; k++)
            coopMatLoad(query[k], tile_dh, base + k * (MATRIX_K / 8u), TOKEN_PITCH, ROW_MAJOR);
        sync();
        [[unroll]] for (uint i = 0u; i < QUERIES; i++) {
            uint at = i * SUBGROUP_SIZE + lane;
            tile_dh[base + at / (N / 8u) * TOKEN_PITCH + at % (N / 8u)] = first_c[i];
        }
        sync();
        [[unroll]] for (uint k = 0u; k < ROWS; k++)
            coopMatLoad(read[k], tile_dh, base + k * (MATRIX_K / 8u), TOKEN_PITCH, ROW_MAJOR);
        sync();
        [[unroll]] for (uint i = 0u; i < VERIFIERS; i++) {
            uint at = i * SUBGROUP_SIZE + lane;
            uint to = base + at / (P / 8u) * TOKEN_PITCH + at % (P / 8u) * 2u;
            tile_dh[to] = floatBitsToUint(vec4(unpack_elements(first_en[i].x), unpack_elements(first_en[i].y)));
            tile_dh[to + 1u] = floatBitsToUint(vec4(unpack_elements(first_en[i].z), unpack_elements(first_en[i].w)));
        }
        sync();
        [[unroll]] for (uint j = 0u; j < COLUMNS; j++) {
            MatrixSum sum;
            coopMatLoad(sum, tile_dh, base + j * (MATRIX_N / 4u), TOKEN_PITCH, ROW_MAJOR);
            [[unroll]] for (uint i = 0u; i < ELEMENTS; i += 2u)
                verifier[(j * ELEMENTS + i) / 2u] = pack_elements(sum[i], sum[i + 1u]);
            results[j] = MatrixSum(0.0);
        }
        barrier();

        if (seen > 0u) put(0u);
        uint m = 0u;
        for (; m < seen_by_all; m++) {
            if (m + 1u < seen) rows += args.H * N;
            barrier();
            step(m, rows, true);
        }
        for (; m < seen; m++) {
            if (m + 1u < seen) rows += args.H * N;
            barrier();
            step(m, rows, false);
        }
        barrier();

        float keep = 0.0; // weight of what r holds
        float gain = den > 0.0 ? own_units.y / den : 0.0;
        if (t_own < count && lane < MATRIX_M) {
            float result = den > 0.0 ? top * 0.693147181 + log_above_one(den) : 0.0;
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
            coopMatStore(results[j], tile_dh, base + j * (MATRIX_N / 4u), TOKEN_PITCH, ROW_MAJOR);
        sync();
        [[unroll]] for (uint i = 0u; i < VERIFIERS; i++) {
            uint row = own + (i * SUBGROUP_SIZE + lane) / (P / 8u);
            uint part = (i * SUBGROUP_SIZE + lane) % (P / 8u);
            if (t_first + row > t_last) break;
            vec4 low = uintBitsToFloat(tile_dh[row * TOKEN_PITCH + 2u * part]) * gains[row];
            vec4 high = uintBitsToFloat(tile_dh[row * TOKEN_PITCH + 2u * part + 1u]) * gains[row];
            float old = keeps[row];
            uint at = (args.r_at + (token + t_first + row) * args.r_row + h * P) / 8u + part;
            if (DTYPE_OF(r) == TYPE_F32) {
                if (old > 0.0) {
                    low += old * uintBitsToFloat(quads_r[2u * at]);
                    high += old * uintBitsToFloat(quads_r[2u * at + 1u]);
                }
                quads_r[2u * at] = floatBitsToUint(low);
                quads_r[2u * at + 1u] = floatBitsToUint(high);
            } else {
                uvec4 words = uvec4(0u);
                if (old > 0.0) words = quads_r[at];
                [[unroll]] for (uint n = 0u; n < 4u; n++) {
                    vec2 pair = n < 2u ? vec2(low[2u * n], low[2u * n + 1u]) : vec2(high[2u * n - 4u], high[2u * n - 3u]);
                    if (old > 0.0)
                        pair += old * vec2(element_of(DTYPE_OF(r), words[n], 0u), element_of(DTYPE_OF(r), words[n], 1u));
                    words[n] = bits_16bit(DTYPE_OF(r), pair.x) | bits_16bit(DTYPE_OF(r), pair.y) << 16;
                }
                quads_r[at] = words;
            }
        }
        barrier();
    }
}
