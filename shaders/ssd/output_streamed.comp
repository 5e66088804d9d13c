#version 460
#extension GL_GOOGLE_include_directive : require
// The rows of ssd_output for devices of NV_cooperative_matrix2, N = 128, P = 64: a workgroup makes T1 tokens of T0 heads of a group.
//   y = after (cb (before x) + enter c hin) + (cb decay step + d) x,
// where the first cb is that of sources below the tile and the last that of the tile itself. The reference is the token before the
// tile: before_s is what is left there of source s (times its step), after_t what is left of it at token t, enter what is left there
// of hin. Decays are computed one by one within the tile only.
// A subgroup owns ROWS tokens, all columns of them. Its left factors are the same for all heads and stay in registers: c, cb of the
// sources below, and cb of the tile's sources in blocks of ROWS up to its own, which are weighed where they lie. A head's right factors
// pass through two halves of the stage, a slab of T1 rows at a time: hin, x below the tile, x of the tile. While a slab is multiplied
// the next one comes into the other half, so that a slab costs one barrier. Of three slabs the halves change places from head to
// head. A subgroup writes those rows of a slab that it owns as tokens, so that what it does to them alone (c, y) needs no barrier.
// Subgroups that share a scheduler (every fourth) own an early and a late block, which costs them the same.
// bf16 takes hin as it is unless it comes with scales. What is multiplied here (cb, before x, the tile's weights) and y in bf16 are cut
// after being raised by CUT (NVIDIA 580 cuts in conversions, too); cb of the tile is kept in f16 relative to the subgroup's largest.
// What NVIDIA's compiler makes of it decides the time (dumps of its code, 2026): loads are waited for all together, so that they are
// made in one place of a slab's time, after what came before has been put away; those of x, hin and its scales stay there as they are
// volatile and a barrier follows.
// Shared memory: 288 T1 + 8 (256 - T1) + 32 T1 + 4 T0 bytes, f16 64 more. T0 is at most LANES; T1 is N, LANES 256 in 8 subgroups of
// 32, M, N and K of a product are 16. Relied on beyond what is promised, and told by conformance: conversions to bf16 cut, elements of
// f16 sums lie where those of f32 sums do, and moving bf16 halves as f16 leaves what would be a NaN there alone.
// Guards: as in output_base.comp, but 0 times a number that is none is none: NaN and infinities of later tokens reach the tokens of
// their own block. A step that is no number makes cum none from its token on, which after_t hands to y. Differences within a tile have
// the digits of f32 at the size of the log-decay since the reference; a token weighs its own step exactly. cb of the tile loses digits
// below 2^-29 of the largest among a subgroup's 16 tokens and all sources up to the last of them, is 0 below 2^-40 and infinite above
// 2^121. In f16 the weights below the tile and the scales of hin count relative to the largest of them, so that no weight makes x or
// hin larger.
#include "lib/dart.glsl"
#include "table/ssd_output.glsl"
READS(x) READS(b) READS(c) READS(cum) READS(hin) READS(hin_scale) READS(d) READS(seq) WRITES(y)
#include "lib/seq.glsl"
#define SSD_CUM
#include "ssd.glsl"
#include "lib/matrix.glsl"
#include "matrix.glsl"
// volatile: see above.
READS_AS(volatile uvec4, quads, x) READS_AS(uvec4, quads, b) READS_AS(uvec4, quads, c)
READS_AS(volatile uvec4, quads, hin)
#ifndef MATRIX_BF16
READS_AS(volatile vec4, quads, hin_scale)
#endif
#include "output_y.glsl"

// In 16-byte words. The odd ones put rows that are read together into different banks.
const uint WORDS = HEAD / 8u;
const uint PITCH = WORDS + 1u;
const uint HALF = T1 * PITCH;
const uint BEFORE = (MAX_CHUNK - T1) / 4u;
shared uvec4 stage[2u * HALF];
// Of a head and of the next one:
shared vec4 before[2u * BEFORE];        // of a source below the tile: what it weighs at the tile's first token
shared float logs[2u * T1];             // of the tile's tokens: log2 of what is left since the reference,
shared vec2 sources[2u * T1];           // the same of a token as a source, and its step
shared float after[2u * T1];            // exp(cum_t - cum_reference)
shared float skips[T0];                 // d of the heads
#ifndef MATRIX_BF16
shared vec4 tops[2u * SUBGROUPS / 4u];  // the largest of `before` in a subgroup
#endif

const uint BLOCKS = SUBGROUPS;          // of a tile's tokens, one a subgroup
const uint ROWS = T1 / BLOCKS;
const uint TN = HEAD / MATRIX_N;
const uint TK = T1 / MATRIX_K;          // of a slab
const uint STATES = MAX_N / MATRIX_K / 2u; // steps over half of the states
const uint UNIT_ROWS = SUBGROUP_SIZE / WORDS; // rows that a subgroup's lanes fill at a time
const uint UNITS = ROWS / UNIT_ROWS;          // words of a lane in a slab: of so many neighbouring rows
const uint ELEMENTS = MATRIX_M * MATRIX_N / SUBGROUP_SIZE; // of a matrix, in a lane
const uint LEAD = 1u; // steps of a slab's product before the next slab is put away: its loads have longer to arrive
// f16: of cb, or bits of bf16
#define Halves coopmat<float16_t, gl_ScopeSubgroup, MATRIX_M, MATRIX_N, gl_MatrixUseAccumulator>

#ifdef MATRIX_BF16
#define WEIGH(words, factor) cut_eight(words, factor)
const float LIFT = 1.0;     // cb is stored divided by this
#else
#define WEIGH(words, factor) scale_eight(words, (factor) * lower_unit)
const float LIFT = 64.0; // products of c and b beyond what f16 holds
#endif

const float LEAST_LOG = -1e30;     // a number still, so that differences are
const float LARGEST_STEP = 3.39e38; // of a step raised by CUT, so that it is a number

// cb of a subgroup's block on the diagonal.
float up_to_own(const in uint row, const in uint column, const in float product) { return column <= row ? product : 0.0; }
// Weights of a tile's tokens t with sources of an earlier block, from s on, and of the own block. The difference of a token to itself
// is 0, so that it weighs its step exactly.
float weight_earlier(const in uint row, const in uint column, const in float product, const in uint t, const in uint s)
{
    vec2 source = sources[s + column];
    return exp2(min(logs[t + row] - source.x, 0.0)) * source.y * product; // in this order: what is left of a huge step may be 0
}
float weight_own(const in uint row, const in uint column, const in float product, const in uint t, const in float skip)
{
    float weight = weight_earlier(row, column, product, t, t);
    return row == column ? weight + skip : weight;
}

void main()
{
    uint t_blocks = (args.C + T1 - 1u) / T1;
    uint group_heads = args.H / args.G;
    uint h_blocks = (group_heads + T0 - 1u) / T0;
    uint block = subgroupMin(gl_SubgroupID < BLOCKS / 2u ? gl_SubgroupID : BLOCKS + BLOCKS / 2u - 1u - gl_SubgroupID);
    uint row_first = block * ROWS;
    // This lane's first word of the subgroup's rows.
    uint row = row_first + gl_SubgroupInvocationID / WORDS * UNITS;
    uint word = gl_SubgroupInvocationID % WORDS;
    uint put_at = row * PITCH + word;

    for (uint tile = gl_WorkGroupID.x; tile < args.tiles; tile += gl_NumWorkGroups.x) {
#include "output_tile.glsl"
        bool below = t_first > 0u; // there are sources below the tile: T1 of them
        uint h_first = g * group_heads + block_first;
        // In 16-byte words: this lane's rows of x, of the first slab and of the tile. Rows past the chunk are its last one, and nobody
        // reads what becomes of them.
        uint x_row = args.x_row / 8u;
        uint below_first = args.x_at / 8u + (token + row) * x_row + word;
        uint own_rows[UNITS];
        [[unroll]] for (uint i = 0u; i < UNITS; i++)
            own_rows[i] = args.x_at / 8u + (token + min(t_first + row + i, t_end - 1u)) * x_row + word;

        uvec4 own[UNITS];   // of x
        uvec4 lower[UNITS]; // of x below the tile
        float enter;
#define HIN_ROW(h) (((b * args.M + j) * args.H + (h)) * SIZE_N)
#define FETCH_HIN(words, h) \
        { \
            uint hin_first = (args.hin_at + (HIN_ROW(h) + row) * SIZE_P) / 8u + word; \
            [[unroll]] for (uint i = 0u; i < UNITS; i++) words[i] = quads_hin[hin_first + i * WORDS]; \
        }
#define FETCH_BELOW(h) \
        [[unroll]] for (uint i = 0u; i < UNITS; i++) lower[i] = quads_x[below_first + (h) * WORDS + i * x_row];
#define FETCH_OWN(h) \
        [[unroll]] for (uint i = 0u; i < UNITS; i++) own[i] = quads_x[own_rows[i] + (h) * WORDS];
#define FETCH_TOKENS(tokens, reference, h) \
        { \
            uint cum = (b * args.H + (h)) * args.L + chunk.begin; \
            reference = cum_at(cum + max(t_first, 1u) - 1u).xy; \
            tokens = cum_at(cum + min(LANE, t_end - 1u)); \
        }
// Loads before this are made before what follows.
#define ISSUE subgroup_sync();
#ifdef MATRIX_BF16
#define FETCH_SCALES(h)
#define PUT_HIN(half_at, words, h) \
        if (has(args.flags, HAS_HIN_SCALE)) { \
            [[unroll]] for (uint i = 0u; i < UNITS; i++) \
                PUT_UNIT(half_at, i, scale_eight(words[i], load_hin_scale(args.hin_scale_at + HIN_ROW(h) + (row + i)))) \
        } else { \
            PUT(half_at, words) \
        }
#else
        vec4 own_scales; // of this lane's UNITS rows
        vec4 all_scales; // a lane's share of all N
        float largest_scale;
#define FETCH_SCALES(h) \
        { \
            uint scale_first = args.hin_scale_at + HIN_ROW(h); \
            own_scales = quads_hin_scale[(scale_first + row) / 4u]; \
            all_scales = quads_hin_scale[scale_first / 4u + gl_SubgroupInvocationID]; \
        }
#define PUT_HIN(half_at, words, h) \
        { \
            largest_scale = subgroupMax(max(max(all_scales.x, all_scales.y), max(all_scales.z, all_scales.w))); \
            float shrink = largest_scale > 0.0 ? 1.0 / largest_scale : 0.0; \
            [[unroll]] for (uint i = 0u; i < UNITS; i++) PUT_UNIT(half_at, i, scale_eight(words[i], own_scales[i] * shrink)) \
        }
#endif
#define PUT_UNIT(half_at, i, unit) stage[put_at + (half_at) + (i) * PITCH] = unit;
#define PUT(half_at, words) [[unroll]] for (uint i = 0u; i < UNITS; i++) PUT_UNIT(half_at, i, words[i])
#define PUT_BELOW(half_at) \
        { \
            vec4 factors = before[now * BEFORE + row / 4u]; \
            [[unroll]] for (uint i = 0u; i < UNITS; i++) PUT_UNIT(half_at, i, WEIGH(lower[i], factors[i])) \
        }
// sums += a left factor of the subgroup's rows times MATRIX_K rows of the stage.
#define ADD(left, from) \
        [[unroll]] for (uint n = 0u; n < TN; n++) { \
            MatrixB column; \
            coopMatLoad(column, stage, (from) + n * MATRIX_N / 8u, PITCH, ROW_MAJOR); \
            sums[n] = coopMatMulAdd(left, column, sums[n]); \
        }
#ifdef MATRIX_BF16
#define PUT_TOP(set)
#else
#define PUT_TOP(set) \
        { \
            float top = subgroupMax(LANE < t_first ? before[(set) * BEFORE + LANE / 4u][LANE % 4u] : 0.0); \
            if (subgroupElect()) tops[(set) * SUBGROUPS / 4u + gl_SubgroupID / 4u][gl_SubgroupID % 4u] = top; \
        }
#endif
// What a head's tokens weigh, into shared memory.
#define PUT_FACTORS(set, tokens, reference) \
        { \
            if (!below) reference = vec2(0.0); \
            float step = min(tokens.z, LARGEST_STEP / CUT) * CUT; \
            if (LANE < t_first) { \
                before[(set) * BEFORE + LANE / 4u][LANE % 4u] = decay_exp(cum_between(tokens.xy, reference)) * step; \
            } else if (LANE < t_first + T1) { \
                float left = cum_between(reference, tokens.xy) * 1.44269504; \
                bool none = (floatBitsToUint(left) & 0x7fffffffu) > 0x7f800000u; /* by its bits: what min and max do with NaN is open */ \
                if (!none) left = clamp(left, LEAST_LOG, 0.0); \
                uint t = (set) * T1 + LANE - t_first; \
                logs[t] = left; \
                after[t] = exp2(left); \
                sources[t] = none ? vec2(-LEAST_LOG, 0.0) : vec2(left, step); \
            } \
            PUT_TOP(set) \
            enter = decay_exp(reference.x); \
        }

        uvec4 first_hin[UNITS];
        // c . b of the tile's tokens with all sources up to them, for all heads: T1 sources at a time, half of their states at a time.
        MatrixA c_rows[2u * STATES];
        MatrixA cb_rows[TK];   // with the sources below
        Halves own_cb[BLOCKS]; // with the own block, then with those before it, from the nearest on; in units of own_unit
        float own_unit;
        uint now = 0u; // set of factors
        {
            vec3 first_tokens;
            vec2 first_reference;
            uint b_row = args.b_row / 8u;
            uint b_first = (args.b_at + token * args.b_row + g * SIZE_N) / 8u + word;
            uint c_first = (args.c_at + token * args.c_row + g * SIZE_N) / 8u + word;
            uvec4 b_0[UNITS];
            uvec4 b_1[UNITS];
            uvec4 c_0[UNITS];
            uvec4 c_1[UNITS];
            MatrixSum products[BLOCKS];
#define FETCH_B(words, s_first, n_first) \
            [[unroll]] for (uint i = 0u; i < UNITS; i++) \
                words[i] = quads_b[b_first + min((s_first) + row + i, t_end - 1u) * b_row + (n_first) / 8u];
            [[unroll]] for (uint i = 0u; i < UNITS; i++) {
                uint at = c_first + min(t_first + row + i, t_end - 1u) * (args.c_row / 8u);
                c_0[i] = quads_c[at];
                c_1[i] = quads_c[at + WORDS];
            }
            FETCH_B(b_0, 0u, 0u)
            FETCH_B(b_1, 0u, HEAD)
            FETCH_HIN(first_hin, h_first)
            // d goes through shared memory: a load that is the same in all lanes is waited for at once, with all others on their way.
            float own_skip = has(args.flags, HAS_D) ? load_d(args.d_at + h_first + min(LANE, block_heads - 1u)) : 0.0;
            PUT(0u, c_0)
            PUT(HALF, c_1)
            subgroup_sync();
            [[unroll]] for (uint k = 0u; k < STATES; k++) {
                coopMatLoad(c_rows[k], stage, row_first * PITCH + k * MATRIX_K / 8u, PITCH, ROW_MAJOR);
                coopMatLoad(c_rows[STATES + k], stage, HALF + row_first * PITCH + k * MATRIX_K / 8u, PITCH, ROW_MAJOR);
            }
            subgroup_sync();
            if (LANE < T0) skips[LANE] = own_skip * CUT;
            PUT(0u, b_0)
// products[n] += c times b of block block_of, half of the states.
#define MULTIPLY_B(half_at, k_first, block_of) \
            [[unroll]] for (uint k = 0u; k < STATES; k++) { \
                MatrixB column; \
                coopMatLoad(column, stage, (half_at) + (block_of) * ROWS * PITCH + k * MATRIX_K / 8u, PITCH, COLUMN_MAJOR); \
                products[n] = coopMatMulAdd(c_rows[(k_first) + k], column, products[n]); \
            }
            [[unroll]] for (uint n = 0u; n < BLOCKS; n++) products[n] = MatrixSum(0.0);
            if (below) {
                barrier();
                FETCH_B(b_0, T1, 0u)
                PUT(HALF, b_1)
                FETCH_B(b_1, T1, HEAD)
                [[unroll]] for (uint n = 0u; n < BLOCKS; n++) MULTIPLY_B(0u, 0u, n)
                barrier();
                [[unroll]] for (uint n = 0u; n < BLOCKS; n++) MULTIPLY_B(HALF, STATES, n)
                PUT(0u, b_0)
                [[unroll]] for (uint n = 0u; n < BLOCKS; n++) {
                    cb_rows[n] = MatrixA(products[n] * (CUT / LIFT));
                    products[n] = MatrixSum(0.0);
                }
            }
#define OWN_BLOCK ((block - n) % BLOCKS)
            barrier();
            PUT(HALF, b_1)
            if (below) FETCH_BELOW(h_first)
            FETCH_OWN(h_first)
            FETCH_TOKENS(first_tokens, first_reference, h_first)
            FETCH_SCALES(h_first)
            [[unroll]] for (uint n = 0u; n < BLOCKS; n++) {
                if (n == 0u || n <= block) MULTIPLY_B(0u, 0u, OWN_BLOCK)
            }
            barrier();
            PUT_HIN(0u, first_hin, h_first)
            uint largest = floatBitsToUint(1e-30); // of the numbers among them, by their bits
            [[unroll]] for (uint n = 0u; n < BLOCKS; n++) {
                if (n == 0u || n <= block) MULTIPLY_B(HALF, STATES, OWN_BLOCK)
                if (n == 0u) coopMatPerElementNV(products[n], products[n], up_to_own);
                [[unroll]] for (uint e = 0u; e < ELEMENTS; e++) {
                    uint bits = floatBitsToUint(products[n][e]) & 0x7fffffffu;
                    if (bits < 0x7f800000u) largest = max(largest, bits);
                }
            }
            own_unit = power_above(uintBitsToFloat(subgroupMax(largest))) * exp2(-15.0);
            [[unroll]] for (uint n = 0u; n < BLOCKS; n++) {
                [[unroll]] for (uint e = 0u; e < ELEMENTS; e++) own_cb[n][e] = float16_t(products[n][e] * (1.0 / own_unit));
            }
            PUT_FACTORS(0u, first_tokens, first_reference)
            barrier();
        }

        uint side = 0u; // the half in which a head begins
        for (uint head = 0u; head < block_heads; head++) {
            uint h = h_first + head;
            uint h_next = h_first + min(head + 1u, block_heads - 1u); // the last one fetches for nobody: a condition costs more
            uint other = HALF - side;
            float skip = skips[head];
            now = head % 2u;
#ifndef MATRIX_BF16
            vec4 largest = max(tops[now * SUBGROUPS / 4u], tops[now * SUBGROUPS / 4u + 1u]);
            float unit = max(max(max(largest.x, largest.y), max(largest.z, largest.w)), 5.9604645e-8);
            float lower_unit = 1.0 / unit;
            enter *= largest_scale * lower_unit / LIFT;
#endif
            uvec4 next_hin[UNITS];
            vec3 next_tokens;
            vec2 next_reference;
            // The entering state.
            MatrixSum sums[TN];
            [[unroll]] for (uint n = 0u; n < TN; n++) sums[n] = MatrixSum(0.0);
#define MULTIPLY(left, half_at, k_first, k_end) \
            [[unroll]] for (uint k = k_first; k < k_end; k++) ADD(left[k], (half_at) + k * MATRIX_K * PITCH)
            MULTIPLY(c_rows, side, 0u, LEAD)
            if (below) {
                PUT_BELOW(other)
            } else {
                PUT(other, own)
            }
            FETCH_TOKENS(next_tokens, next_reference, h_next)
            FETCH_HIN(next_hin, h_next)
            FETCH_SCALES(h_next)
            ISSUE
            MULTIPLY(c_rows, side, LEAD, TK)
            [[unroll]] for (uint n = 0u; n < TN; n++) sums[n] = sums[n] * enter;
            barrier();
            // Sources below the tile, weighed by what is left of them at its first token.
            if (below) {
                MULTIPLY(cb_rows, other, 0u, LEAD)
                PUT(side, own)
                MULTIPLY(cb_rows, other, LEAD, TK)
                barrier();
            }
            {
                MatrixSum decays;
                coopMatLoad(decays, after, now * T1 + row_first, 0u, COLUMN_MAJOR);
#ifndef MATRIX_BF16
                decays = decays * (unit * LIFT);
#endif
                [[unroll]] for (uint n = 0u; n < TN; n++) sums[n] = sums[n] * decays;
            }

            // The tile on the diagonal, and the next head's first slab.
            uint last = below ? side : other;
            side = HALF - last;
#define OWN_PRODUCTS(i) \
                MatrixSum weight; \
                [[unroll]] for (uint e = 0u; e < ELEMENTS; e++) weight[e] = float(own_cb[i][e]) * own_unit;
#define ADD_WEIGHTED(i) \
                MatrixA weights = MatrixA(weight); \
                ADD(weights, last + (block - (i)) * ROWS * PITCH)
            {
                OWN_PRODUCTS(0u)
                coopMatPerElementNV(weight, weight, weight_own, now * T1 + row_first, skip);
                ADD_WEIGHTED(0u)
            }
            PUT_HIN(side, next_hin, h_next)
            if (below) FETCH_BELOW(h_next)
            FETCH_OWN(h_next)
            ISSUE
            [[unroll]] for (uint i = 1u; i < BLOCKS; i++) {
                if (i <= block) {
                    OWN_PRODUCTS(i)
                    coopMatPerElementNV(weight, weight, weight_earlier, now * T1 + row_first, now * T1 + (block - i) * ROWS);
                    ADD_WEIGHTED(i)
                }
            }
            PUT_FACTORS(1u - now, next_tokens, next_reference)
            barrier();

            // y passes through the subgroup's own rows of the last slab.
            uint y_first = args.y_at + (token + t_first + row) * args.y_row + h * SIZE_P;
            if (DTYPE_OF(y) == DTYPE_OF(x)) {
                [[unroll]] for (uint n = 0u; n < TN; n++) {
#ifdef MATRIX_BF16
                    // Cut; as f16, whose halves NVIDIA puts together with one instruction instead of three.
                    Halves halves;
                    [[unroll]] for (uint e = 0u; e < ELEMENTS; e++) halves[e] = unpackFloat2x16(floatBitsToUint(sums[n][e] * CUT)).y;
#else
                    MatrixA halves = MatrixA(sums[n]);
#endif
                    coopMatStore(halves, stage, last + row_first * PITCH + n * MATRIX_N / 8u, PITCH, ROW_MAJOR);
                }
                subgroup_sync();
                uvec4 y_words[UNITS]; // all of them before the first store: one after the other would wait for the store before
                [[unroll]] for (uint i = 0u; i < UNITS; i++) y_words[i] = stage[put_at + last + i * PITCH];
                if (t_first + T1 <= t_end) {
                    [[unroll]] for (uint i = 0u; i < UNITS; i++) quads_y[y_first / 8u + word + i * (args.y_row / 8u)] = y_words[i];
                } else {
                    [[unroll]] for (uint i = 0u; i < UNITS; i++) {
                        if (t_first + row + i < t_end) quads_y[y_first / 8u + word + i * (args.y_row / 8u)] = y_words[i];
                    }
                }
            } else {
                // Half of the columns at a time, as f32.
                [[unroll]] for (uint n_first = 0u; n_first < TN; n_first += TN / 2u) {
                    subgroup_sync();
                    [[unroll]] for (uint n = 0u; n < TN / 2u; n++)
                        coopMatStore(sums[n_first + n], stage, last + row_first * PITCH + n * MATRIX_N / 4u, PITCH, ROW_MAJOR);
                    subgroup_sync();
                    for (uint i = gl_SubgroupInvocationID; i < ROWS * WORDS / 2u; i += SUBGROUP_SIZE) {
                        uint t = row_first + i / (WORDS / 2u);
                        uint at = last + t * PITCH + i % (WORDS / 2u) * 2u;
                        uint to = args.y_at + (token + t_first + t) * args.y_row + h * SIZE_P + n_first * MATRIX_N + i % (WORDS / 2u) * 8u;
                        if (t_first + t < t_end) put_eight(to, uintBitsToFloat(stage[at]), uintBitsToFloat(stage[at + 1u]));
                    }
                }
            }
            subgroup_sync();
        }
    }
}
