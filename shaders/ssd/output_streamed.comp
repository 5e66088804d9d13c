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
// 32, M, N and K of a product are 16. Relied on beyond what is promised, and probed when the device is opened: conversions to bf16 cut
// (DART_CAP_MATRIX_CUTS); elements of f16 sums lie where those of f32 sums do, and moving bf16 halves as f16 preserves their bits, NaN
// included (DART_CAP_MATRIX_PLACES).
// Guards: as in output_base.comp, but 0 * NaN is NaN: a NaN or infinity of a later token reaches earlier tokens of the same block of 16.
// A NaN step makes cum NaN from that token on, and after_t carries the NaN into y. Differences within a tile have
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
#define SumF16 coopmat<float16_t, gl_ScopeSubgroup, MATRIX_M, MATRIX_N, gl_MatrixUseAccumulator>

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

#include "output_streamed_moves.glsl"

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

    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
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
#ifndef MATRIX_BF16
        vec4 own_scales; // of this lane's UNITS rows
        vec4 all_scales; // a lane's share of all N
        float largest_scale;
#endif
#include "output_streamed_cb.glsl"

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
                    // Cut; as f16, whose elements NVIDIA puts together with one instruction instead of three.
                    SumF16 results;
                    [[unroll]] for (uint e = 0u; e < ELEMENTS; e++) results[e] = unpackFloat2x16(floatBitsToUint(sums[n][e] * CUT)).y;
#else
                    MatrixA results = MatrixA(sums[n]);
#endif
                    coopMatStore(results, stage, last + row_first * PITCH + n * MATRIX_N / 8u, PITCH, ROW_MAJOR);
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
