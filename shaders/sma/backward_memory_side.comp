#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_shuffle : require
// sma_backward_memory_side on cooperative matrices, for N 128, P 64 and normalised memories w of the 16-bit type of q, e, c and up_r: see args.h.
//   Y = sum_t g c up_r, X = sum_t slope q e for rows n and columns p, over the tokens that see the memory; then
//   grad_dh = Y + (X - w mean_p(X w)) / scale.
// A workgroup takes T0 / N memories of a (b, h), which share all rows of tokens; those that most tokens see come first. SHARES subgroups share a
// memory, each has OWN of its rows. Y is made first, whole, and left in grad_dh; X follows, and the same lanes add it. T1 tokens at a time lie in
// shared memory, as left^T (q or c) and as the right operand of each memory, slope e or g up_r, while the next ones come through registers.
// Numbers: slope e and g up_r are rounded once, in f16 relative to a power of two above the largest weight of the memory so far (sums are made
// smaller where it grows); other operands are inputs as they are, sums are f32.
// Shared memory: 16 max(STAGES T1 (LEFT_PITCH + PITCH T0 / N), SUBGROUPS MATRIX_M X_PITCH) + 4 SUBGROUPS T0 / N bytes: with matrices of
// 16 x 16 x 16 35,904 for two memories and 64 tokens, 26,640 for one and 32.
// Guards: tokens past the count count as 0, in place of their rows the last one is read; g and slope of what a token does not see count as 0,
// whatever is there; of a memory that no token sees only grad_dh is written.
#include "lib/dart.glsl"
#include "lib/matrix.glsl"
#include "table/sma_backward_memory_side.glsl"
READS_AS(uvec4, quads, q) READS_AS(uvec4, quads, e) READS_AS(uvec4, quads, c) READS_AS(uvec4, quads, dh) READS_AS(float, floats, factor) READS(seq)
READS_AS(uvec4, quads, up_r) READS_AS(float, floats, g) READS_AS(float, floats, slope) READS_WRITES_AS(vec4, fours, grad_dh)
#define PACKS
#include "lib/seq.glsl"
#include "sma/backward.glsl"

const uint N = 128u;
const uint P = 64u;
const uint MEMORIES = T0 / N;
const uint SHARES = SUBGROUPS / MEMORIES;        // subgroups of a memory
const uint OWN = N / SHARES;                     // rows of a subgroup
const uint STAGES = T1 == 32u && MEMORIES < 4u ? 2u : 1u; // of tokens: with two those of the next step are stored without another barrier
const uint LEFT_PITCH = N / 8u + 1u;             // 16-byte words from one token of q or c to the next
const uint PITCH = P / 8u + 1u;                  // ... of slope e or g up_r
const uint X_PITCH = P / 4u + 1u;                // ... from one row of sums to the next
const uint RIGHT = T1 * LEFT_PITCH;
const uint TOKENS_SIZE = RIGHT + MEMORIES * T1 * PITCH;
const uint SUMS_SIZE = SUBGROUPS * MATRIX_M * X_PITCH;
const uint ROW_TILES = OWN / MATRIX_M;
const uint COLUMN_TILES = P / MATRIX_N;
const uint LEFT_FETCH = T1 * N / 8u / LANES;
const uint RIGHT_FETCH = T1 * P / 8u / LANES;
const uint TURNS = MATRIX_M * 4u / SUBGROUP_SIZE; // of a subgroup over MATRIX_M rows, four lanes a row
const uint EIGHTHS = P / 32u;                    // of a row, of a lane
shared uvec4 tile_rows[STAGES * TOKENS_SIZE > SUMS_SIZE ? STAGES * TOKENS_SIZE : SUMS_SIZE];
shared float tops[SUBGROUPS * MEMORIES];
MatrixSum sums[ROW_TILES][COLUMN_TILES];
uvec4 next_left[LEFT_FETCH];
uvec4 next_right[RIGHT_FETCH];
float next_weight[RIGHT_FETCH * MEMORIES];
float power[MEMORIES];                           // of two, that weights are divided by

// q and e, or with of_y c and up_r, and their weights, of T1 tokens from t_first on; those past the count have the weight 0 and any finite row. from:
// the first token that sees each memory.
void fetch(Sequence own, bool of_y, uint thread, uint t_first, uint h, uint group, uint m_first, uint from[MEMORIES])
{
    uint rows = has(args.flags, HAS_CU) ? args.T : args.B * args.L;
    [[unroll]] for (uint x = 0u; x < LEFT_FETCH; x++) {
        uint i = x * LANES + thread;
        uint row = own.row + min(t_first + i / (N / 8u), own.count - 1u);
        if (of_y) next_left[x] = quads_c[(args.c_at + row * args.c_row + group * N) / 8u + i % (N / 8u)];
        else next_left[x] = quads_q[(args.q_at + row * args.q_row + group * N) / 8u + i % (N / 8u)];
    }
    [[unroll]] for (uint x = 0u; x < RIGHT_FETCH; x++) {
        uint i = x * LANES + thread;
        uint t = t_first + i / (P / 8u);
        uint row = own.row + min(t, own.count - 1u);
        if (of_y) next_right[x] = quads_up_r[(args.up_r_at + row * args.up_r_row + h * P) / 8u + i % (P / 8u)];
        else next_right[x] = quads_e[(args.e_at + row * args.e_row + group * P) / 8u + i % (P / 8u)];
        [[unroll]] for (uint j = 0u; j < MEMORIES; j++) {
            uint at = (h * args.M + min(m_first + j, args.M - 1u)) * rows + row;
            float weight = of_y ? floats_g[at] : floats_slope[at];
            next_weight[x * MEMORIES + j] = t >= from[j] && t < own.count ? weight : 0.0;
        }
    }
}
void put_tops(uint s)
{
    [[unroll]] for (uint j = 0u; j < MEMORIES; j++) {
        float most = 0.0;
        [[unroll]] for (uint x = 0u; x < RIGHT_FETCH; x++) most = max(most, abs(next_weight[x * MEMORIES + j]));
        tops[s * MEMORIES + j] = subgroupMax(most);
    }
}
// The power of each memory, no smaller than before.
void find_powers()
{
    [[unroll]] for (uint j = 0u; j < MEMORIES; j++) {
        float most = 0.0;
        [[unroll]] for (uint i = 0u; i < SUBGROUPS; i++) most = max(most, tops[i * MEMORIES + j]);
        uint above = (floatBitsToUint(most) & 0x7f800000u) + 0x00800000u;
        power[j] = max(power[j], uintBitsToFloat(min(above, 0x7e000000u)));
    }
}
float power_of(uint j)
{
#ifdef MATRIX_F16
    float value = power[0];
    [[unroll]] for (uint i = 1u; i < MEMORIES; i++) value = i == j ? power[i] : value;
    return value;
#else
    return 1.0;
#endif
}
uint weigh(uint word, float by)
{
    vec2 pair = by * unpack_elements(word);
    return pack_elements(pair.x, pair.y);
}
void put(uint thread, uint stage)
{
    [[unroll]] for (uint x = 0u; x < LEFT_FETCH; x++) {
        uint i = x * LANES + thread;
        tile_rows[stage + i / (N / 8u) * LEFT_PITCH + i % (N / 8u)] = next_left[x];
    }
    [[unroll]] for (uint x = 0u; x < RIGHT_FETCH; x++) {
        uint i = x * LANES + thread;
        [[unroll]] for (uint j = 0u; j < MEMORIES; j++) {
            float by = next_weight[x * MEMORIES + j];
#ifdef MATRIX_F16
            by *= uintBitsToFloat(0x7f000000u - floatBitsToUint(power[j]));
#endif
            uvec4 words = next_right[x];
            tile_rows[stage + RIGHT + (j * T1 + i / (P / 8u)) * PITCH + i % (P / 8u)] =
                uvec4(weigh(words.x, by), weigh(words.y, by), weigh(words.z, by), weigh(words.w, by));
        }
    }
}

// The tokens of a step. Where they make many small matrices it is a number that compilers do not know: unrolled, lavapipe's takes minutes.
uint depth() { return MATRIX_K < 16u ? T1 + gl_WorkGroupID.y : T1; }

// sums = the rows n from n0 on of left^T right of memory j of the workgroup, without its power.
void multiply(Sequence own, bool of_y, uint s, uint thread, uint from[MEMORIES], uint h, uint group, uint m_first)
{
    uint n0 = s % SHARES * OWN;
    uint j = s / SHARES;
    uint begin = from[0];
    uint own_from = begin;
    [[unroll]] for (uint i = 1u; i < MEMORIES; i++) own_from = i == j ? from[i] : own_from;
    [[unroll]] for (uint i = 0u; i < ROW_TILES; i++) {
        [[unroll]] for (uint x = 0u; x < COLUMN_TILES; x++) sums[i][x] = MatrixSum(0.0);
    }
    [[unroll]] for (uint i = 0u; i < MEMORIES; i++) power[i] = uintBitsToFloat(0x00800000u);
    if (begin < own.count) fetch(own, of_y, thread, begin, h, group, m_first, from);
    for (uint t_first = begin; t_first < own.count; t_first += T1) {
#ifdef MATRIX_F16
        float before = power_of(j);
        put_tops(s);
        barrier();
        find_powers();
        float less = before * uintBitsToFloat(0x7f000000u - floatBitsToUint(power_of(j)));
        if (less < 1.0) {
            [[unroll]] for (uint i = 0u; i < ROW_TILES; i++) {
                [[unroll]] for (uint x = 0u; x < COLUMN_TILES; x++) sums[i][x] *= less;
            }
        }
#else
        if (STAGES == 1u) barrier();
#endif
        uint stage = (t_first - begin) / T1 % STAGES * TOKENS_SIZE;
        put(thread, stage);
        barrier();
        if (t_first + T1 < own.count) fetch(own, of_y, thread, t_first + T1, h, group, m_first, from);
        [[unroll]] for (uint k = 0u; k < depth(); k += MATRIX_K) {
            if (t_first + k >= own.count || t_first + k + MATRIX_K <= own_from) continue;
            MatrixA left[ROW_TILES];
            [[unroll]] for (uint i = 0u; i < ROW_TILES; i++)
                coopMatLoad(left[i], tile_rows, stage + k * LEFT_PITCH + (n0 + i * MATRIX_M) / 8u, LEFT_PITCH, COLUMN_MAJOR);
            [[unroll]] for (uint x = 0u; x < COLUMN_TILES; x++) {
                MatrixB right;
                coopMatLoad(right, tile_rows, stage + RIGHT + (j * T1 + k) * PITCH + x * (MATRIX_N / 8u), PITCH, ROW_MAJOR);
                [[unroll]] for (uint i = 0u; i < ROW_TILES; i++) sums[i][x] = coopMatMulAdd(left[i], right, sums[i][x]);
            }
        }
    }
}

// The gradient of the subgroup's rows, `row` is the first, by the sums: Y, then what X adds.
void put_sums(bool of_y, uint s, uint lane, uint row, bool live)
{
    uint part = s * MATRIX_M * X_PITCH;
    float by = power_of(s / SHARES);
    [[unroll]] for (uint i = 0u; i < ROW_TILES; i++) {
        subgroup_sync();
        [[unroll]] for (uint x = 0u; x < COLUMN_TILES; x++)
            coopMatStore(sums[i][x], tile_rows, part + x * (MATRIX_N / 4u), X_PITCH, ROW_MAJOR);
        subgroup_sync();
        for (uint turn = 0u; turn < TURNS; turn++) {
            uint item = turn * SUBGROUP_SIZE + lane;
            uint at = (row + i * MATRIX_M + item / 4u) * P;
            vec4 value[2u * EIGHTHS];
            vec4 w[2u * EIGHTHS];
            float along = 0.0;
            [[unroll]] for (uint x = 0u; x < EIGHTHS; x++) {
                uint p = (item % 4u + 4u * x) * 8u;
                uint from = part + item / 4u * X_PITCH + p / 4u;
                value[2u * x] = by * uintBitsToFloat(tile_rows[from]);
                value[2u * x + 1u] = by * uintBitsToFloat(tile_rows[from + 1u]);
                if (of_y || !live) continue;
                uvec4 words = quads_dh[(args.dh_at + at + p) / 8u];
                w[2u * x] = vec4(unpack_elements(words.x), unpack_elements(words.y));
                w[2u * x + 1u] = vec4(unpack_elements(words.z), unpack_elements(words.w));
                along += dot(value[2u * x], w[2u * x]) + dot(value[2u * x + 1u], w[2u * x + 1u]);
            }
            float rho = 0.0;
            if (!of_y && live) {
                along += subgroupShuffleXor(along, 1u);
                along += subgroupShuffleXor(along, 2u);
                along /= float(P);
                rho = 1.0 / floats_factor[args.factor_at + row + i * MATRIX_M + item / 4u];
            }
            [[unroll]] for (uint x = 0u; x < 2u * EIGHTHS; x++) {
                uint to = (args.grad_dh_at + at) / 4u + (item % 4u + x / 2u * 4u) * 2u + x % 2u;
                if (of_y) fours_grad_dh[to] = value[x];
                else if (live) fours_grad_dh[to] += rho * (value[x] - along * w[x]);
            }
        }
    }
}

void main()
{
    uint s = gl_SubgroupID;
    uint lane = gl_SubgroupInvocationID;
    uint thread = s * SUBGROUP_SIZE + lane;
    uint of_row = args.H * args.B;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint h = tile % args.H;
        uint b = tile % of_row / args.H;
        uint group = h / (args.H / args.G);
        uint m_first = tile / of_row * MEMORIES;
        uint m = m_first + s / SHARES;
        Sequence piece = sequence_of(b);
        // Memories that there is room for: of packed sequences those of their own chunks, for all others M.
        uint room = has(args.flags, HAS_CU) ? min((piece.count + args.S - 1u) / args.S, args.M) : args.M;
        if (m_first >= room) continue;
        uint from[MEMORIES];
        [[unroll]] for (uint j = 0u; j < MEMORIES; j++)
            from[j] = m_first + j < args.M ? first_to_see(piece.position, m_first + j) : args.L;
        bool live = m < args.M && first_to_see(piece.position, m) < piece.count;
        uint row = ((slot_of(piece, b, args.M, args.S) + m) * args.H + h) * N + s % SHARES * OWN;
        for (uint which = 0u; which < 2u; which++) { // Y, then X
            barrier();
            multiply(piece, which == 0u, s, thread, from, h, group, m_first);
            barrier();
            if (m < room) put_sums(which == 0u, s, lane, row, live);
        }
    }
}
