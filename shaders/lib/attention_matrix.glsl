// attention on cooperative matrices: o_t = sum_s w_s v_s, w = softmax over the tokens s that t sees of scale q_t . k_s.
// q, o B L H D; k, v B C G D, all but o of the matrices' element type; lse B L H. D is a multiple of 16 and at most HEAD.
// One workgroup takes T0 tokens of one (b, h), R tiles of MATRIX_M rows a subgroup, and KEYS tokens of the cache at a time, whose
// keys and values go through shared memory while the next ones are fetched into registers. Everything else stays in
// matrices of the subgroup: a component of one accumulator belongs to the same row as that component of any other, so
// maxima and sums along a row run over the tiles first, component by component, and across the lanes only when needed:
//   - sums of the weights, at the end;
//   - maxima, when some score exceeds the reference of its row by more than SLACK (powers of 2): then the reference becomes the
//     row's maximum and the sums so far are scaled. Weights are at most 2^SLACK, and the reference itself once had weight 1.
// Weights become the left operand of the second product by conversion with -DMATRIX2, else through shared memory.
// T0 is a multiple of SUBGROUPS MATRIX_M, MATRIX_K one of MATRIX_N (equal with -DMATRIX2), SUBGROUP_SIZE >= MATRIX_M.
// Shared memory: 32 STAGES KEYS (HEAD / 8 + 1) + 4 SUBGROUPS MATRIX_M MATRIX_K + 68 bytes.
// Guards: masked scores are LOWEST before exp2; in blocks with masked tokens values that are not finite are taken out of the
// product, which would spread them as 0 x NaN, and added to the rows that see them.
#include "matrix.glsl"
PUSH(AttentionArgs)
layout(std430, binding = 0) readonly buffer Block_q { uvec4 quads_q[]; };
layout(std430, binding = 1) readonly buffer Block_k { uvec4 quads_k[]; };
layout(std430, binding = 2) readonly buffer Block_v { uvec4 quads_v[]; };
READS(3, seq)
WRITES(4, o)
layout(std430, binding = 4) writeonly buffer Quads_o { uvec4 quads_o[]; };
WRITES(5, lse)
#include "seq.glsl"
#include "sma.glsl"

#if HEAD == 64
#define DEPTH 64u // such rows are for just that
#else
#define DEPTH args.D
#endif
const uint KEYS = MATRIX_M < 16u ? 16u : T1; // small matrices make for many, which compile slowly
const uint ROWS = T0 / SUBGROUPS;
const uint R = ROWS / MATRIX_M;
const uint KEY_TILES = KEYS / MATRIX_N;
const uint DEPTH_TILES = HEAD / MATRIX_K;
const uint HEAD_TILES = HEAD / MATRIX_N;
const uint WEIGHT_TILES = KEYS / MATRIX_K;
const uint PITCH = HEAD / 8u + 1u; // 16-byte words a row in shared memory, odd to spread the banks
const uint QUADS = KEYS * HEAD / 8u;
const uint FETCH = (QUADS + LANES - 1u) / LANES;
const uint PART = MATRIX_M * MATRIX_K; // words of a subgroup's scratch memory
const uint ELEMENTS = MATRIX_M * MATRIX_N / SUBGROUP_SIZE; // components of an accumulator in a lane
const uint QUERY_WORDS = MATRIX_M * MATRIX_K / 8u; // 16-byte words of a tile of queries
const uint QUERY_FETCH = (QUERY_WORDS + SUBGROUP_SIZE - 1u) / SUBGROUP_SIZE;
const uint RESULT_STORES = (MATRIX_M * MATRIX_N / 8u + SUBGROUP_SIZE - 1u) / SUBGROUP_SIZE;
const float SLACK = 8.0;
const float LOG2_E = 1.44269504;
const float LN_2 = 0.693147181;

shared uvec4 keys[STAGES * KEYS * PITCH];
shared uvec4 values[STAGES * KEYS * PITCH];
shared float scratch[SUBGROUPS * PART];
#ifndef MATRIX2
shared uint packed[SUBGROUPS * PART / 2u];
#endif
shared float table[MATRIX_N * MATRIX_M + MATRIX_M]; // column of each element, row by row; then the rows
shared float tops[T0]; // the reference of each row
shared uint wild; // some value of a block with masked tokens is not finite

// The halves that are not finite, as masks.
uvec4 wild_halves(uvec4 words)
{
#ifdef MATRIX_BF16
    const uint exponent = 0x7f80u;
#else
    const uint exponent = 0x7c00u;
#endif
    uvec4 low = mix(uvec4(0u), uvec4(0xffffu), equal(words & exponent, uvec4(exponent)));
    return mix(low, low | 0xffff0000u, equal(words >> 16 & exponent, uvec4(exponent)));
}

// Eight columns of o, from scratch to element `at`.
void store_eight(uint at, uint from)
{
    vec4 low = vec4(scratch[from], scratch[from + 1u], scratch[from + 2u],
                    scratch[from + 3u]);
    vec4 high = vec4(scratch[from + 4u], scratch[from + 5u], scratch[from + 6u],
                     scratch[from + 7u]);
    uint type = DTYPE_OF(4);
    if (type == TYPE_F32) {
        quads_o[at / 4u] = floatBitsToUint(low);
        quads_o[at / 4u + 1u] = floatBitsToUint(high);
    } else {
        quads_o[at / 8u] = uvec4(half_bits(type, low.x) | half_bits(type, low.y) << 16, half_bits(type, low.z) | half_bits(type, low.w) << 16,
                                 half_bits(type, high.x) | half_bits(type, high.y) << 16, half_bits(type, high.z) | half_bits(type, high.w) << 16);
    }
}

// A row's value in every column, from scratch.
#define LOAD_ROWS(matrix, first) coopMatLoad(matrix, scratch, first, 0u, COLUMN_MAJOR)

void main()
{
    uint lane = gl_SubgroupInvocationID;
    uint part = gl_SubgroupID * PART;
    uint t_blocks = (args.L + T0 - 1u) / T0;
    float scale = args.scale * LOG2_E;
    uint head_quads = DEPTH / 8u;
    for (uint i = LANE; i < MATRIX_N * MATRIX_M; i += LANES) table[i] = float(i % MATRIX_N);
    if (LANE < MATRIX_M) table[MATRIX_N * MATRIX_M + LANE] = float(LANE);
    for (uint tile = gl_WorkGroupID.x; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint t_first = (t_blocks - 1u - tile % t_blocks) * T0; // the longest first
        uint head = tile / t_blocks;
        uint b = head / args.H;
        uint h = head % args.H;
        uint g = h / (args.H / args.G);
        uint count = seq_count(b, args.L);
        if (t_first >= count) continue;
        uint t_last = min(t_first + T0, count) - 1u;
        uint first_place = seq_position(b) + t_first;            // of the workgroup's first row
        uint own = t_first + gl_SubgroupID * ROWS;               // the subgroup's first row
        uint place = first_place + gl_SubgroupID * ROWS;
        uint seen = min(first_place + (t_last - t_first) + 1u, args.C);
        uint k_quad = (args.k_at + g * DEPTH) / 8u;
        uint v_quad = (args.v_at + g * DEPTH) / 8u;
        uint k_row = args.k_row / 8u;
        uint v_row = args.v_row / 8u;

        barrier();
        if (LANE == 0u) wild = 0u;
        for (uint i = LANE; i < T0; i += LANES) tops[i] = LOWEST;
        MatrixA queries[R * DEPTH_TILES]; // tile by tile through the place of the keys
        [[unroll]] for (uint r = 0u; r < R; r++) {
            [[unroll]] for (uint d = 0u; d < DEPTH_TILES; d++) {
                [[unroll]] for (uint round = 0u; round < QUERY_FETCH; round++) {
                    uint i = min(lane + round * SUBGROUP_SIZE, QUERY_WORDS - 1u);
                    uint row = b * args.L + min(own + r * MATRIX_M + i / (MATRIX_K / 8u), t_last);
                    uint quad = d * MATRIX_K / 8u + i % (MATRIX_K / 8u);
                    uvec4 words = quads_q[(args.q_at + row * args.q_row + h * DEPTH) / 8u + min(quad, head_quads - 1u)];
                    keys[gl_SubgroupID * QUERY_WORDS + i] = quad < head_quads ? words : uvec4(0u);
                }
                subgroup_sync();
                coopMatLoad(queries[r * DEPTH_TILES + d], keys, gl_SubgroupID * QUERY_WORDS, MATRIX_K / 8u, ROW_MAJOR);
                subgroup_sync();
            }
        }
        MatrixSum sums[R * HEAD_TILES];
        MatrixSum den[R];
        MatrixSum top[R];
        [[unroll]] for (uint r = 0u; r < R; r++) {
            [[unroll]] for (uint d = 0u; d < HEAD_TILES; d++) sums[r * HEAD_TILES + d] = MatrixSum(0.0);
            den[r] = MatrixSum(0.0);
            top[r] = MatrixSum(LOWEST);
        }

        uvec4 next_keys[FETCH];
        uvec4 next_values[FETCH];
#define FETCH_BLOCK(s) \
        [[unroll]] for (uint n = 0u; n < FETCH; n++) { \
            uint i = min(LANE + n * LANES, QUADS - 1u); \
            uint key = (s) + i / (HEAD / 8u); \
            uint quad = min(i % (HEAD / 8u), head_quads - 1u); \
            uint row = b * args.C + min(key, seen - 1u); \
            next_keys[n] = quads_k[k_quad + row * k_row + quad]; \
            next_values[n] = key < seen ? quads_v[v_quad + row * v_row + quad] : uvec4(0u); \
        }
        FETCH_BLOCK(0u)
        uint stage = 0u;
        uint whole_end = min(first_place + 1u, seen) / KEYS * KEYS; // blocks before this one every row sees whole
        uint s = 0u;
        for (; s < whole_end; s += KEYS) {
#define MASKED 0
#include "attention_block.glsl"
#undef MASKED
        }
        for (; s < seen; s += KEYS) {
#define MASKED 1
#include "attention_block.glsl"
#undef MASKED
        }

        [[unroll]] for (uint r = 0u; r < R; r++) {
            uint t = own + r * MATRIX_M + lane; // a lane's row
            float highest_row = tops[gl_SubgroupID * ROWS + r * MATRIX_M + lane % MATRIX_M];
            coopMatStore(den[r], scratch, part, MATRIX_N, ROW_MAJOR);
            subgroup_sync();
            float total = 0.0;
            if (lane < MATRIX_M) {
                for (uint i = 0u; i < MATRIX_N; i++) total += scratch[part + lane * MATRIX_N + i];
                if (t <= t_last) store_lse(args.lse_at + (b * args.L + t) * args.H + h, highest_row * LN_2 + log_above_one(total));
            }
            subgroup_sync();
            if (lane < MATRIX_M) scratch[part + lane] = 1.0 / total;
            subgroup_sync();
            MatrixSum share;
            LOAD_ROWS(share, part);
            subgroup_sync();
            [[unroll]] for (uint d = 0u; d < HEAD_TILES; d++) {
                coopMatStore(sums[r * HEAD_TILES + d] * share, scratch, part, MATRIX_N, ROW_MAJOR);
                subgroup_sync();
                [[unroll]] for (uint round = 0u; round < RESULT_STORES; round++) {
                    uint i = lane + round * SUBGROUP_SIZE;
                    uint row = own + r * MATRIX_M + i / (MATRIX_N / 8u);
                    uint column = d * MATRIX_N + i % (MATRIX_N / 8u) * 8u;
                    if (i < MATRIX_M * MATRIX_N / 8u && row <= t_last && column < DEPTH)
                        store_eight(args.o_at + (b * args.L + row) * args.o_row + h * DEPTH + column, part + 8u * i);
                }
                subgroup_sync();
            }
        }
        if (wild != 0u) {
            // Of the blocks whose values were cleaned: what is not finite decides the result of who sees it.
            memoryBarrierBuffer();
            barrier();
            for (uint i = LANE; i < (t_last - t_first + 1u) * DEPTH; i += LANES) {
                uint row = i / DEPTH;
                uint column = i % DEPTH;
                float sum = 0.0;
                for (uint key = whole_end; key < min(first_place + row + 1u, seen); key++) {
                    uvec4 words = quads_v[v_quad + (b * args.C + key) * v_row + column / 8u];
                    words &= wild_halves(words);
                    sum += unpack_elements(words[column / 2u % 4u])[column % 2u];
                }
                if (sum != 0.0) store_o(args.o_at + (b * args.L + t_first + row) * args.o_row + h * DEPTH + column, sum);
            }
        }
    }
}
