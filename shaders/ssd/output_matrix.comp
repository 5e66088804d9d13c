#version 460
#extension GL_GOOGLE_include_directive : require
// The matrix rows of ssd_output for any size, and for devices without NV_cooperative_matrix2 (with it, and N = 128, P = 64:
// output_streamed.comp): a workgroup makes T1 tokens of T0 heads of a group, HEAD columns at a time.
//   y = after (cb (before x) + enter c hin) + (cb decay step + d) x,
// where the first cb is that of sources below the tile and the last that of the tile on the diagonal. The reference is the token
// before the tile: before_s is what is left there of source s (times its step), after_t what is left of it at token t, enter what
// is left there of hin. Decays are computed one by one on the diagonal only.
// So c and the cb below the tile are the left factors of all heads as they are: c stays in registers, cb = c b^T in shared memory,
// the diagonal's cb with the lanes that weigh it. The right factors of a head, hin and x, pass through 2 T1 shared rows, hin all of
// them at a time, x half of them. What a head begins with (hin, the first x, the x on the diagonal, the decays) is fetched a head
// ahead, the rest of x while hin is multiplied. bf16 takes hin as it is unless it comes with scales; what is multiplied here (cb and
// before x) is rounded or cut once.
// Loads ahead have no condition, and no loop carries one: registers that paths or rounds share would be waited for where they are
// moved.
// A subgroup owns T1 / ROW_GROUPS tokens of HEAD / COLUMN_GROUPS columns.
// Shared memory: 16 T1 ((256 - T1) / 8 + 1) + 288 T1 + 16 T1 + 4 T0 + 1536 bytes. T0 is at most LANES.
// Guards: as in output_base.comp, but 0 * NaN is NaN: a NaN or infinity of a later token reaches earlier tokens of the same block of
// GRAIN tokens. A NaN step makes cum NaN from that token on, and after_t carries the NaN into y. In f16 the weights below the
// tile and the scales of hin count relative to the largest of them, so that no weight makes x or hin larger.
#include "lib/dart.glsl"
#include "table/ssd_output.glsl"
READS(x) READS(b) READS(c) READS(cum) READS(hin) READS(hin_scale) READS(d) READS(seq) WRITES(y)
#include "lib/seq.glsl"
#define SSD_CUM
#include "ssd.glsl"
#include "lib/matrix.glsl"
#include "matrix.glsl"
READS_AS(uvec4, quads, x) READS_AS(uvec4, quads, b) READS_AS(uvec4, quads, c) READS_AS(uvec4, quads, hin)
#include "output_y.glsl"

// In 16-byte words. The odd ones put rows that are read together into different banks.
const uint PITCH = HEAD / 8u + 1u;
const uint CB_PITCH = (MAX_CHUNK - T1) / 8u + 1u;
const uint DIAGONAL_PITCH = T1 / 8u + 1u;
const uint SUM_PITCH = HEAD / 4u + 1u;
const uint HALF = T1 * PITCH;
const uint WORK = T1 * CB_PITCH;
shared uvec4 stage[WORK + 2u * HALF]; // cb, then two halves: >= T1 rows of sums, a half >= the diagonal's weights
shared float before[MAX_CHUNK];       // of a source below the tile: what it weighs at the tile's first token
shared float logs[T1];                // of the tile's tokens: log2 of what is left since the reference,
shared vec4 sources[T1 / 4u];         // the same less log2 of what the token weighs as a source: its step
shared float steps[T1];
shared float after[T1];               // exp(cum_t - cum_reference)
shared float scales[MAX_N];
shared float skips[T0];               // d of the heads

const uint ROW_GROUPS = 2u; // 32 tokens and 32 columns read half the shared memory that 16 and 64 do
const uint COLUMN_GROUPS = SUBGROUPS / ROW_GROUPS;
const uint ROWS = T1 / ROW_GROUPS;           // of a subgroup
const uint COLUMNS = HEAD / COLUMN_GROUPS;
const uint TM = ROWS / MATRIX_M;
const uint TN = COLUMNS / MATRIX_N;
const uint GRAIN = ROWS > MATRIX_K ? ROWS : MATRIX_K; // columns of the diagonal tile come in these
const uint PAIR = (T1 / GRAIN + 1u) * (GRAIN / 8u);   // words of rows t and T1 - 1 - t up to the diagonal
const uint OWN = (T1 / 2u * PAIR + LANES - 1u) / LANES;
const uint UNIT_ROWS = LANES / (HEAD / 8u);  // rows that the lanes fill at a time
const uint UNITS = (2u * T1 + UNIT_ROWS - 1u) / UNIT_ROWS; // words of a lane: of both halves, and of one
const uint X_UNITS = (T1 + UNIT_ROWS - 1u) / UNIT_ROWS;
const uint SLABS = MAX_CHUNK / T1 - 1u;      // T1 sources each, below the last tile of a chunk
const uint DEPTH = 2u * T1;                  // states n at a time
const uint C_TK = MAX_N / MATRIX_K;
const uint TOKENS = (MAX_CHUNK + LANES - 1u) / LANES;
const uint SCALES = (MAX_N + LANES - 1u) / LANES;

#ifdef MATRIX_BF16
#define WEIGHTS(low, high) join_eight(low, high)
#define WEIGH(words, factor) cut_eight(words, factor)
const float LIFT = 1.0;     // cb is stored divided by this
#else
#define WEIGHTS(low, high) pack_eight(low, high)
#define WEIGH(words, factor) scale_eight(words, (factor) * lower)
const float LIFT = 64.0; // products of c and b beyond what f16 holds
// The largest of the first `count` values, in every lane.
#define LARGEST(values, count, result) \
    float result = 0.0; \
    for (uint n = gl_SubgroupInvocationID; n < (count); n += SUBGROUP_SIZE) result = max(result, values[n]); \
    result = subgroupMax(result);
#endif

const float LEAST_LOG = -1e30;   // a number still, so that differences are
const float LARGEST_LOG = 127.9; // exp2 of it, too: above the diagonal c . b is 0

#include "output_matrix_moves.glsl"

void main()
{
    uint t_blocks = (args.C + T1 - 1u) / T1;
    uint group_heads = args.H / args.G;
    uint h_blocks = (group_heads + T0 - 1u) / T0;
    uint row_first = gl_SubgroupID % ROW_GROUPS * ROWS;
    uint column_first = gl_SubgroupID / ROW_GROUPS * COLUMNS;
    uint unit_row = LANE / (HEAD / 8u); // of the first of this lane's words
    uint unit_p = LANE % (HEAD / 8u);

    // This lane's words of the diagonal tile: token and first source, or token T1 for none.
    uint own_t[OWN];
    uint own_s[OWN];
    [[unroll]] for (uint i = 0u; i < OWN; i++) {
        uint q = LANE + i * LANES;
        uint t = q / PAIR;
        uint k = q % PAIR;
        uint words = (t / GRAIN + 1u) * (GRAIN / 8u);
        own_t[i] = q >= T1 / 2u * PAIR ? T1 : k < words ? t : T1 - 1u - t;
        own_s[i] = (k < words ? k : k - words) * 8u;
    }

    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
#include "output_tile.glsl"
        // In 16-byte words, of x: this lane's first row of the sources below the tile (where there is none, the chunk's first row
        // again and again), and its rows of the tile.
        uint x_row = args.x_row / 8u;
        uint x_lane = args.x_at / 8u + token * x_row + unit_p;
        uint below_row = t_first > 0u ? x_row : 0u;
        uint below_first = x_lane + (UNIT_ROWS > T1 ? min(unit_row, T1 - 1u) : unit_row) * below_row;
        uint own_rows[X_UNITS];
        [[unroll]] for (uint i = 0u; i < X_UNITS; i++) own_rows[i] = x_lane + min(t_first + unit_row + i * UNIT_ROWS, t_end - 1u) * x_row;
        uint h_first = g * group_heads + block_first;

        // Fetched ahead: hin, and x of sources below the tile and on the diagonal; before the heads b and c.
        uvec4 next[UNITS];
        uvec4 below[SLABS * X_UNITS];
        uvec4 next_own[X_UNITS];
        vec3 tokens[TOKENS];
        float next_scales[SCALES];
        vec2 reference;
#include "output_matrix_cb.glsl"

        for (uint head = 0u; head < block_heads; head++) {
            uint h = h_first + head;
            uint h_next = h_first + min(head + 1u, block_heads - 1u); // the last one fetches for nobody: a condition costs more
            if (t_first == 0u) reference = vec2(0.0);
            // The last head's factors have been read: barriers lie between.
            [[unroll]] for (uint i = 0u; i < TOKENS; i++) {
                uint s = LANE + i * LANES;
                if (s < t_first) {
                    before[s] = decay_exp(cum_between(tokens[i].xy, reference)) * (tokens[i].z * CUT);
                } else if (s < t_first + T1) {
                    float left = cum_between(reference, tokens[i].xy) * 1.44269504;
                    bool none = (floatBitsToUint(left) & 0x7fffffffu) > 0x7f800000u; // by its bits: what min and max do with NaN is open
                    if (!none) left = clamp(left, LEAST_LOG, 0.0);
                    uint t = s - t_first;
                    float own_step = tokens[i].z * CUT;
                    after[t] = exp2(left);
                    logs[t] = left;
                    steps[t] = own_step;
                    sources[t / 4u][t % 4u] = none || own_step == 0.0 ? -LEAST_LOG : left - log2(own_step);
                }
            }
            if (has(args.flags, HAS_HIN_SCALE)) {
                [[unroll]] for (uint i = 0u; i < SCALES; i++) {
                    if (LANE + i * LANES < MAX_N) scales[LANE + i * LANES] = next_scales[i];
                }
            }
            float enter = decay_exp(reference.x);
            barrier();
#ifndef MATRIX_BF16
            LARGEST(scales, MAX_N, largest_scale)
            LARGEST(before, t_first, largest_before)
            float shrink = largest_scale > 0.0 ? 1.0 / largest_scale : 0.0;
            float unit = max(largest_before, 5.9604645e-8);
            float lower = 1.0 / unit;
            enter *= largest_scale * lower / LIFT;
#endif

            // The entering state.
            [[unroll]] for (uint i = 0u; i < TM * TN; i++) sums[i] = MatrixSum(0.0);
            [[unroll]] for (uint n_first = 0u; n_first < MAX_N; n_first += DEPTH) {
                if (n_first < SIZE_N) {
                    if (n_first > 0u) barrier();
#ifdef MATRIX_BF16
                    if (has(args.flags, HAS_HIN_SCALE)) {
                        PUT(scale_eight(next[i], scales[n_first + unit_row + i * UNIT_ROWS]))
                    } else {
                        PUT(next[i])
                    }
#else
                    PUT(scale_eight(next[i], scales[n_first + unit_row + i * UNIT_ROWS] * shrink))
#endif
                    barrier();
                    if (n_first + DEPTH < SIZE_N) {
                        FETCH_HIN(h, n_first + DEPTH)
                    } else {
                        [[unroll]] for (uint k = 1u; k < SLABS; k++) {
                            if (k * T1 < t_first) FETCH_BELOW(k, h)
                        }
                    }
#define C_ROW(i) c_rows[(i) * C_TK + n_first / MATRIX_K + k]
                    [[unroll]] for (uint k = 0u; k < DEPTH / MATRIX_K; k++) {
                        MULTIPLY(C_ROW, WORK + k * MATRIX_K * PITCH)
                    }
                }
            }
            // What the diagonal's factors are, while the products above go on.
            float skip = skips[head];
            uvec4 weights[OWN];
            [[unroll]] for (uint i = 0u; i < OWN; i++) {
                uint t = min(own_t[i], T1 - 1u);
                float left = logs[t];
                float own_step = steps[t];
                vec4 weight[2];
                [[unroll]] for (uint q = 0u; q < 2u; q++) {
                    weight[q] = exp2(min(left - sources[own_s[i] / 4u + q], vec4(LARGEST_LOG)));
                    [[unroll]] for (uint e = 0u; e < 4u; e++) {
                        float product = own_cb[i * 8u + q * 4u + e];
                        weight[q][e] *= product;
                        // A token weighs its step itself exactly: left may be so large that the difference has few digits.
                        if (own_s[i] + q * 4u + e == t) weight[q][e] = fma(product, own_step, skip);
                    }
                }
                weights[i] = WEIGHTS(weight[0], weight[1]);
            }
            [[unroll]] for (uint i = 0u; i < TM * TN; i++) sums[i] = sums[i] * enter;

            // Sources below the tile, weighed by what is left of them at its first token, two slabs at a time.
#define PUT_BELOW(k) \
            { \
                float factors[X_UNITS]; \
                [[unroll]] for (uint i = 0u; i < X_UNITS; i++) factors[i] = before[(k) * T1 + unit_row + i * UNIT_ROWS]; \
                PUT_X(WORK + (k) % 2u * HALF, WEIGH(below[(k) * X_UNITS + i], factors[i])) \
            }
#define MULTIPLY_BELOW(first) \
            [[unroll]] for (uint k = 0u; k < T1 / MATRIX_K; k++) { \
                [[unroll]] for (uint i = 0u; i < TM; i++) \
                    coopMatLoad(cb_rows[i], stage, (row_first + i * MATRIX_M) * CB_PITCH + ((first) * T1 + k * MATRIX_K) / 8u, CB_PITCH, ROW_MAJOR); \
                MULTIPLY(CB_ROW, WORK + (first) % 2u * HALF + k * MATRIX_K * PITCH) \
            }
#define CB_ROW(i) cb_rows[i]
            MatrixA cb_rows[TM];
            [[unroll]] for (uint slab = 0u; slab < SLABS; slab += 2u) {
                if (slab * T1 < t_first) {
                    barrier();
                    PUT_BELOW(slab)
                    if (slab + 1u < SLABS && (slab + 1u) * T1 < t_first) PUT_BELOW(slab + 1u)
                    barrier();
                    MULTIPLY_BELOW(slab)
                    if (slab + 1u < SLABS && (slab + 1u) * T1 < t_first) MULTIPLY_BELOW(slab + 1u)
                }
            }
            [[unroll]] for (uint i = 0u; i < TM; i++) {
                MatrixSum decays;
                coopMatLoad(decays, after, row_first + i * MATRIX_M, 0u, COLUMN_MAJOR);
#ifndef MATRIX_BF16
                decays = decays * (unit * LIFT);
#endif
                [[unroll]] for (uint n = 0u; n < TN; n++) sums[i * TN + n] = sums[i * TN + n] * decays;
            }

            // The tile on the diagonal.
            barrier();
            PUT_X(WORK, next_own[i])
            [[unroll]] for (uint i = 0u; i < OWN; i++) {
                if (OWN * LANES <= T1 / 2u * PAIR || own_t[i] < T1)
                    stage[WORK + HALF + own_t[i] * DIAGONAL_PITCH + own_s[i] / 8u] = weights[i];
            }
            barrier();
            FETCH_HIN(h_next, 0u)
            FETCH_HEAD(h_next)
            MatrixA weight_rows[TM];
#define WEIGHT_ROW(i) weight_rows[i]
            [[unroll]] for (uint s_first = 0u; s_first < T1; s_first += GRAIN) {
                if (s_first == 0u || s_first <= row_first) {
                    [[unroll]] for (uint s = s_first; s < s_first + GRAIN; s += MATRIX_K) {
                        [[unroll]] for (uint i = 0u; i < TM; i++)
                            coopMatLoad(weight_rows[i], stage, WORK + HALF + (row_first + i * MATRIX_M) * DIAGONAL_PITCH + s / 8u, DIAGONAL_PITCH,
                                        ROW_MAJOR);
                        MULTIPLY(WEIGHT_ROW, WORK + s * PITCH)
                    }
                }
            }

            // y passes through the subgroup's own part of shared rows: of those of the last slab's cb where there is none.
            uint y_first = args.y_at + (token + t_first) * args.y_row + h * SIZE_P;
            barrier();
            PUT_SUMS
            subgroup_sync();
            for (uint word = gl_SubgroupInvocationID; word < ROWS * (COLUMNS / 8u); word += SUBGROUP_SIZE) {
                uint t = row_first + word / (COLUMNS / 8u);
                uint p = column_first + word % (COLUMNS / 8u) * 8u;
                uint at = WORK + t * SUM_PITCH + p / 4u;
                if (t < t_end - t_first && p < SIZE_P)
                    put_eight(y_first + t * args.y_row + p, uintBitsToFloat(stage[at]), uintBitsToFloat(stage[at + 1u]));
            }
        }
    }
}
