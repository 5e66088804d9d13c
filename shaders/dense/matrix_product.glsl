// y = x weight^T on cooperative matrices: x and weight of one 16-bit type, sums in f32, y of any type.
// NORMED: x f32, weight and y 16-bit; y[t, o] = sum_i x[t, i] norm[i] weight[o, i] / sqrt(mean(x_t^2) + eps). x is
// multiplied by norm and rounded as it goes into shared memory, its squares are added up beside that, and a sum meets its row's
// root only when it is whole, so that nothing waits for the norm. bf16 only: f16 might not hold what is not normalised yet. With SHORT besides x
// is of the type of weight.
// QUANTISED: rows of weight are quantised (quantised.glsl), see matrix_slabs.glsl.
// Include after put(row, column, value), which stores one element of y. With NORMED and ENDS in its place: after
// Ends fetch_ends(row, column), which asks for what four outputs need besides before the product, and finish(row, column, values, ends), which
// stores them; outputs are a multiple of 4.
//
// A workgroup makes T0 outputs x T1 rows. Slabs of SLAB inputs of its rows and outputs go through shared memory: the
// next slab travels from memory to registers while the matrices of this one are multiplied. Subgroups split the tile
// into ROWS_SPLIT bands of rows, INPUTS_SPLIT shares of each slab, and bands of outputs for the rest of them. At the end
// sums pass through shared memory, where the shares are added in order, so that any edge can be cut and y is written in
// whole words.
// Shared memory: 16 (T0 + T1) (SLAB / 8 + 1) bytes, or where that is more, 4 MATRIX_M (T0 + 4 bands) ROWS_SPLIT
// INPUTS_SPLIT bytes; NORMED 4 T1 (SLAB / 8 + 1) bytes more. The odd word of padding puts rows that are read together into different banks.
// Needs: inputs a multiple of 8, x and weight rows at 16-byte borders; LANES a multiple of SLAB / 8, T0 and T1 of 8 LANES / SLAB.
// QUANTISED: inputs a multiple of 32.
// Guards: rows and outputs past the end read the last one and are dropped; inputs past the end count as 0 in both.
#include "lib/matrix.glsl"

#ifdef MATRIX_BF16
const uint OPERAND_TYPE = TYPE_BF16;
#else
const uint OPERAND_TYPE = TYPE_F16;
#endif

const uint WORDS = SLAB / 8u; // 16-byte words of a row of a slab
const uint PITCH = WORDS + 1u;
const uint LINES = LANES / WORDS; // rows that the lanes read at a time
const uint ROW_WORDS = T1 / LINES; // of a slab, per lane
#ifdef QUANTISED
const uint BLOCKS = SLAB / 32u; // of a row of a slab
const uint OUTPUT_BLOCKS = (T0 * BLOCKS + LANES - 1u) / LANES; // of a slab, per lane
#else
const uint OUTPUT_WORDS = T0 / LINES;
#endif
const uint SLAB_WORDS = (T0 + T1) * PITCH;
const uint OUTPUTS_SPLIT = SUBGROUPS / (ROWS_SPLIT * INPUTS_SPLIT);
const uint BANDS = ROWS_SPLIT * OUTPUTS_SPLIT;
const uint ROW_MATRICES = T1 / (ROWS_SPLIT * MATRIX_M); // of a subgroup
const uint OUTPUT_MATRICES = T0 / (OUTPUTS_SPLIT * MATRIX_N);
const uint BAND_WORDS = OUTPUT_MATRICES * MATRIX_N / 4u; // f32 words of a row of a band
const uint BAND_PITCH = BAND_WORDS + 1u;
const uint SUMS = MATRIX_M * BAND_PITCH; // words that a subgroup hands over at a time
const uint SHARED_WORDS = SLAB_WORDS > SUBGROUPS * SUMS ? SLAB_WORDS : SUBGROUPS * SUMS;

shared uvec4 slabs[SHARED_WORDS];

#ifdef NORMED
WRITES_AS(uvec4, quads, y) WRITES_AS(uvec2, pairs, y)
#else
#ifdef FROM
READS_AS(uvec4, quads, from) READS_AS(uvec2, pairs, from) WRITES_AS(uvec4, quads, y) WRITES_AS(uvec2, pairs, y)
#define quads_before quads_from
#define pairs_before pairs_from
#else
READS_WRITES_AS(uvec4, quads, y) READS_WRITES_AS(uvec2, pairs, y)
#define quads_before quads_y
#define pairs_before pairs_y
#endif

// The four values that a sum is added to, of y's type, from `at` on, a multiple of 4.
vec4 load_four_before(uint at)
{
    if (DTYPE_OF(y) == TYPE_F32) return uintBitsToFloat(quads_before[at / 4u]);
    return four_16bit(DTYPE_OF(y), pairs_before[at / 4u]);
}
#endif

uint pair_16bit(float low, float high)
{
    if (DTYPE_OF(y) == OPERAND_TYPE) return pack_elements(low, high);
    return bits_16bit(DTYPE_OF(y), low) | bits_16bit(DTYPE_OF(y), high) << 16;
}

void store_four_y(uint at, vec4 v)
{
    if (DTYPE_OF(y) == TYPE_F32) quads_y[at / 4u] = floatBitsToUint(v);
    else pairs_y[at / 4u] = uvec2(pair_16bit(v.x, v.y), pair_16bit(v.z, v.w));
}

#include "matrix_slabs.glsl"

#ifdef ENDS
const uint ENDS_OF_LANE = (BANDS * MATRIX_M * BAND_WORDS + LANES - 1u) / LANES; // of the r-th matrices of each band
#endif

// Where in the tile the four sums e of the r-th matrices of each band lie.
uint row_of(uint e, uint r) { return (e / (MATRIX_M * BAND_WORDS) / OUTPUTS_SPLIT * ROW_MATRICES + r) * MATRIX_M + e / BAND_WORDS % MATRIX_M; }
uint column_of(uint e) { return e / (MATRIX_M * BAND_WORDS) % OUTPUTS_SPLIT * OUTPUT_MATRICES * MATRIX_N + e % BAND_WORDS * 4u; }

void multiply_tiles()
{
    uint blocks = (args.outputs + T0 - 1u) / T0;
    uint slab_count = (args.inputs + SLAB - 1u) / SLAB;
    uint share = gl_SubgroupID / BANDS;
    uint band = gl_SubgroupID % BANDS;
    uint band_row = band / OUTPUTS_SPLIT * ROW_MATRICES * MATRIX_M;
    uint band_output = band % OUTPUTS_SPLIT * OUTPUT_MATRICES * MATRIX_N;
#ifdef NORMED
    bool fours = (args.y_at | args.y_row) % 4u == 0u;
#else
    bool fours = (args.y_at | args.y_row | BEFORE_AT(0u, 0u) | BEFORE_AT(1u, 0u)) % 4u == 0u;
#endif
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint first_output = tile % blocks * T0;
        uint first_row = tile / blocks * T1;
        MatrixSum sum[ROW_MATRICES * OUTPUT_MATRICES];
        [[unroll]] for (uint i = 0u; i < ROW_MATRICES * OUTPUT_MATRICES; i++) sum[i] = MatrixSum(0.0);
        fetch(first_row, first_output, 0u);
#ifdef ENDS
        Ends ends[ROW_MATRICES * ENDS_OF_LANE];
        [[unroll]] for (uint i = 0u; i < ROW_MATRICES * ENDS_OF_LANE; i++) {
            uint e = LANE + i % ENDS_OF_LANE * LANES;
            ends[i] = fetch_ends(first_row + row_of(e, i / ENDS_OF_LANE), first_output + column_of(e));
        }
#endif
#ifdef NORMED
        [[unroll]] for (uint e = 0u; e < ROW_WORDS; e++) squares[e] = 0.0;
#endif
        for (uint slab = 0u; slab < slab_count; slab++) {
            barrier();
            put_down(slab);
            barrier();
            if (slab + 1u < slab_count) fetch(first_row, first_output, slab + 1u);
            [[unroll]] for (uint step = 0u; step < SLAB / (INPUTS_SPLIT * MATRIX_K); step++) {
                uint column = (share + step * INPUTS_SPLIT) * (MATRIX_K / 8u);
                MatrixA a[ROW_MATRICES];
                [[unroll]] for (uint r = 0u; r < ROW_MATRICES; r++)
                    coopMatLoad(a[r], slabs, column + (band_row + r * MATRIX_M) * PITCH, PITCH, ROW_MAJOR);
                [[unroll]] for (uint o = 0u; o < OUTPUT_MATRICES; o++) {
                    MatrixB b;
                    coopMatLoad(b, slabs, column + (T1 + band_output + o * MATRIX_N) * PITCH, PITCH, COLUMN_MAJOR);
                    [[unroll]] for (uint r = 0u; r < ROW_MATRICES; r++)
                        sum[r * OUTPUT_MATRICES + o] = coopMatMulAdd(a[r], b, sum[r * OUTPUT_MATRICES + o]);
                }
            }
        }
#ifdef NORMED
        [[unroll]] for (uint e = 0u; e < ROW_WORDS; e++) row_squares[(LANE / WORDS + e * LINES) * PITCH + LANE % WORDS] = squares[e];
        barrier();
        if (LANE < T1) {
            float sum = 0.0;
            for (uint i = 0u; i < WORDS; i++) sum += row_squares[LANE * PITCH + i];
            row_squares[LANE * PITCH] = 1.0 / sqrt(sum / float(args.inputs) + args.eps);
        }
#endif
        for (uint r = 0u; r < ROW_MATRICES; r++) {
            barrier();
            [[unroll]] for (uint i = 0u; i < ROW_MATRICES * OUTPUT_MATRICES; i++) { // sums are reached by constants only
                if (i / OUTPUT_MATRICES != r) continue;
                uint to = gl_SubgroupID * SUMS + i % OUTPUT_MATRICES * MATRIX_N / 4u;
                coopMatStore(sum[i], slabs, to, BAND_PITCH, ROW_MAJOR);
            }
            barrier();
#ifdef ENDS
            [[unroll]] for (uint i = 0u; i < ENDS_OF_LANE; i++) {
                uint e = LANE + i * LANES;
                if (e >= BANDS * MATRIX_M * BAND_WORDS) continue;
#else
            for (uint e = LANE; e < BANDS * MATRIX_M * BAND_WORDS; e += LANES) {
#endif
                uint at = e / (MATRIX_M * BAND_WORDS) * SUMS + e / BAND_WORDS % MATRIX_M * BAND_PITCH + e % BAND_WORDS;
                uint row = first_row + row_of(e, r);
                uint column = first_output + column_of(e);
                if (row >= args.rows || column >= args.outputs) continue;
                vec4 value = uintBitsToFloat(slabs[at]);
                [[unroll]] for (uint k = 1u; k < INPUTS_SPLIT; k++) value += uintBitsToFloat(slabs[at + k * BANDS * SUMS]);
#ifdef NORMED
                value *= row_squares[(row - first_row) * PITCH];
#endif
#ifdef ENDS
                finish(row, column, value, ends[r * ENDS_OF_LANE + i]);
#else
                if (fours && column + 4u <= args.outputs) {
                    uint to = args.y_at + row * args.y_row + column;
#ifdef NORMED
                    store_four_y(to, value);
#else
                    store_four_y(to, has(args.flags, IS_ADD) ? load_four_before(BEFORE_AT(row, column)) + value : value);
#endif
                } else {
                    for (uint i = 0u; i < min(4u, args.outputs - column); i++) put(row, column + i, value[i]);
                }
#endif
            }
        }
    }
}
