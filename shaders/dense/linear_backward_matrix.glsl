// What the rows of linear_backward_x and linear_backward_weight share that compute with cooperative matrices: the product of up_y and of a
// right operand (weight, or x with -DSUM_ROWS), both of one 16-bit type, with f32 sums. An up_y of f32 is rounded to the type of
// the right operand as it goes into shared memory (bf16 only, as f16 might not hold it).
// Include after right_word(line, column), eight elements of the right operand, and put_four(line, column, value), which stores four sums. With
// -DAHEAD loads have no conditions, which most rows gain by; grad_x of 128 inputs and 64 outputs takes 98 us so in place of 83 (H100, November 2026).
//
// A workgroup makes T1 lines x T0 columns: lines are rows of up_y, or its columns with SUM_ROWS; columns are inputs. Slabs of SLAB steps of the
// sum (outputs; rows with SUM_ROWS) go through one of two places in shared memory: the next slab travels from memory to registers
// while the matrices of this one are multiplied, and one barrier a slab is enough. Both operands lie in a slab as they do in memory; the
// left matrix is loaded with columns for rows where SUM_ROWS. Subgroups split the tile into LINES_SPLIT bands of lines, and bands of
// columns for the rest of them. At the end sums pass through shared memory, so that any edge can be cut and results are written in
// whole words.
// Shared memory: 32 (up_y's lines (its words + 1) + SLAB (T0 / 8 + 1)) bytes, up_y having T1 lines of SLAB / 8 words, with SUM_ROWS SLAB
// lines of T1 / 8 words; or where that is more, 4 MATRIX_M (T0 + 4 bands of columns) LINES_SPLIT bytes. The odd word of padding puts
// lines that are read together into different banks.
// Needs: inputs a multiple of 8; rows of both operands at 16-byte borders; parts of a sum that begin at multiples of 8; LANES a multiple of the words
// of a line of either operand, and the words of a slab of either one a multiple of LANES; with AHEAD eight elements of up_y side by side from its
// first one on.
// Guards: rows, outputs and inputs past the end count as 0, whatever lies there, and nothing behind the last row is read; sums past the end are
// dropped.
#include "lib/matrix.glsl"

#ifdef SUM_ROWS
const uint UP_LINES = SLAB;
const uint UP_WORDS = T1 / 8u; // of a line
#define LEFT_MAJOR COLUMN_MAJOR
#else
const uint UP_LINES = T1;
const uint UP_WORDS = SLAB / 8u;
#define LEFT_MAJOR ROW_MAJOR
#endif
const uint UP_PITCH = UP_WORDS + 1u;
const uint UP_STEP = LANES / UP_WORDS;  // lines that the lanes read at a time
const uint UP_OWN = UP_LINES / UP_STEP; // words of a lane
const uint RIGHT_WORDS = T0 / 8u;
const uint RIGHT_PITCH = RIGHT_WORDS + 1u;
const uint RIGHT_STEP = LANES / RIGHT_WORDS;
const uint RIGHT_OWN = SLAB / RIGHT_STEP;
const uint RIGHT_AT = UP_LINES * UP_PITCH; // in a slab
const uint SLAB_WORDS = RIGHT_AT + SLAB * RIGHT_PITCH;
const uint COLUMNS_SPLIT = SUBGROUPS / LINES_SPLIT;
const uint LINE_MATRICES = T1 / (LINES_SPLIT * MATRIX_M); // of a subgroup
const uint COLUMN_MATRICES = T0 / (COLUMNS_SPLIT * MATRIX_N);
const uint BAND_WORDS = COLUMN_MATRICES * MATRIX_N / 4u; // f32 words of a line of a band
const uint BAND_PITCH = BAND_WORDS + 1u;
const uint SUMS = MATRIX_M * BAND_PITCH; // words that a subgroup hands over at a time
const uint SHARED_WORDS = 2u * SLAB_WORDS > SUBGROUPS * SUMS ? 2u * SLAB_WORDS : SUBGROUPS * SUMS;

shared uvec4 slabs[SHARED_WORDS];

// Where a tile lies in up_y and in the right operand. A slab begins at `rows.x` or `outputs.x`, and moves along one of them.
struct Extent {
    uvec2 rows, outputs; // first and end
    uint first_input;
};
uint first_step(Extent e)
{
#ifdef SUM_ROWS
    return e.rows.x;
#else
    return e.outputs.x;
#endif
}
uint end_step(Extent e)
{
#ifdef SUM_ROWS
    return e.rows.y;
#else
    return e.outputs.y;
#endif
}

#ifdef AHEAD
// Of eight elements of up_y the first `left`, below 8; the others count as 0. `behind`: the tensor ends with them, so that they were not fetched.
Words up_edge(Words word, uint at, uint left, bool behind)
{
    uvec4 lines = uvec4(0u, 1u, 2u, 3u);
    if (is_16bit(DTYPE_OF(up_y))) {
        if (behind) {
            [[unroll]] for (uint i = 0u; i < 4u; i++)
                if (2u * i < left) word.low[i] = words_up_y[at / 2u + i];
        }
        word.low &= mix(uvec4(0u), uvec4(0xffffu), lessThan(2u * lines, uvec4(left))) |
                    mix(uvec4(0u), uvec4(0xffff0000u), lessThan(2u * lines + 1u, uvec4(left)));
    } else {
        if (behind) {
            [[unroll]] for (uint i = 0u; i < 4u; i++) {
                if (i < left) word.low[i] = words_up_y[at + i];
                if (i + 4u < left) word.high[i] = words_up_y[at + i + 4u];
            }
        }
        word.low = mix(uvec4(0u), word.low, lessThan(lines, uvec4(left)));
        word.high = mix(uvec4(0u), word.high, lessThan(lines + 4u, uvec4(left)));
    }
    return word;
}
#else
// Eight elements of up_y, of which `left` are there.
Words up_words(uint at, uint left)
{
    if (left >= 8u) return load_words_up_y(at);
    uint bits[8];
    bool words_16bit = is_16bit(DTYPE_OF(up_y));
    [[unroll]] for (uint i = 0u; i < 8u; i++) {
        bits[i] = i < left ? words_up_y[word_of(DTYPE_OF(up_y), at + i)] : 0u;
        if (words_16bit) bits[i] = i % 2u == 0u ? bits[i] & 0xffffu : bits[i] & 0xffff0000u; // `at` is even
    }
    if (words_16bit) return Words(uvec4(bits[0] | bits[1], bits[2] | bits[3], bits[4] | bits[5], bits[6] | bits[7]), uvec4(0u));
    return Words(uvec4(bits[0], bits[1], bits[2], bits[3]), uvec4(bits[4], bits[5], bits[6], bits[7]));
}
#endif

Words up_next[UP_OWN];
uvec4 right_next[RIGHT_OWN];

// The lane's words of the slab.
#ifdef AHEAD
// A load under a condition may end with a move where paths meet, and that waits for it: other words stand in for those that are not there, which
// put_down makes 0.
void fetch(Extent e)
{
    uint o = e.outputs.x + LANE % UP_WORDS * 8u;
    bool whole = o + 8u <= e.outputs.y;
    [[unroll]] for (uint i = 0u; i < UP_OWN; i++) {
        uint row = e.rows.x + LANE / UP_WORDS + i * UP_STEP;
        bool is_there = row < e.rows.y && (whole || (o < e.outputs.y && row + 1u < args.rows));
        up_next[i] = load_words_up_y(is_there ? args.up_y_at + row * args.up_y_row + o : args.up_y_at);
    }
    uint column = min(e.first_input + LANE % RIGHT_WORDS * 8u, args.inputs - 8u);
    [[unroll]] for (uint i = 0u; i < RIGHT_OWN; i++)
        right_next[i] = right_word(min(first_step(e) + LANE / RIGHT_WORDS + i * RIGHT_STEP, end_step(e) - 1u), column);
}
#else
void fetch(Extent e)
{
    uint o = e.outputs.x + LANE % UP_WORDS * 8u;
    uint left = o < e.outputs.y ? e.outputs.y - o : 0u;
    [[unroll]] for (uint i = 0u; i < UP_OWN; i++) {
        uint row = e.rows.x + LANE / UP_WORDS + i * UP_STEP;
        up_next[i] = up_words(args.up_y_at + row * args.up_y_row + o, row < e.rows.y ? left : 0u);
    }
    uint column = e.first_input + LANE % RIGHT_WORDS * 8u;
    [[unroll]] for (uint i = 0u; i < RIGHT_OWN; i++) {
        uint line = first_step(e) + LANE / RIGHT_WORDS + i * RIGHT_STEP;
        right_next[i] = line < end_step(e) && column < args.inputs ? right_word(line, column) : uvec4(0u);
    }
}
#endif

uvec4 packed_words(Words words)
{
    if (DTYPE_OF(up_y) != TYPE_F32) return words.low;
    Eight v = eight_of(TYPE_F32, words);
    return uvec4(pack_elements(v.low.x, v.low.y), pack_elements(v.low.z, v.low.w), pack_elements(v.high.x, v.high.y),
                 pack_elements(v.high.z, v.high.w));
}

void put_down(Extent e, uint place)
{
    uint up_at = place + LANE / UP_WORDS * UP_PITCH + LANE % UP_WORDS;
    uint right_at = place + RIGHT_AT + LANE / RIGHT_WORDS * RIGHT_PITCH + LANE % RIGHT_WORDS;
#ifdef AHEAD
    uint o = e.outputs.x + LANE % UP_WORDS * 8u;
    uint left = o < e.outputs.y ? min(e.outputs.y - o, 8u) : 0u;
    [[unroll]] for (uint i = 0u; i < UP_OWN; i++) {
        uint row = e.rows.x + LANE / UP_WORDS + i * UP_STEP;
        Words words = up_next[i];
        if (left < 8u) words = up_edge(words, args.up_y_at + row * args.up_y_row + o, row < e.rows.y ? left : 0u, row + 1u == args.rows);
        slabs[up_at + i * UP_STEP * UP_PITCH] = row < e.rows.y ? packed_words(words) : uvec4(0u);
    }
    uint column = e.first_input + LANE % RIGHT_WORDS * 8u;
    [[unroll]] for (uint i = 0u; i < RIGHT_OWN; i++) {
        bool is_there = first_step(e) + LANE / RIGHT_WORDS + i * RIGHT_STEP < end_step(e) && column < args.inputs;
        slabs[right_at + i * RIGHT_STEP * RIGHT_PITCH] = is_there ? right_next[i] : uvec4(0u);
    }
#else
    [[unroll]] for (uint i = 0u; i < UP_OWN; i++) slabs[up_at + i * UP_STEP * UP_PITCH] = packed_words(up_next[i]);
    [[unroll]] for (uint i = 0u; i < RIGHT_OWN; i++) slabs[right_at + i * RIGHT_STEP * RIGHT_PITCH] = right_next[i];
#endif
}

// Where the left matrix lies in a slab that has its upper left element `line` lines and `depth` steps on.
uint left_at(uint line, uint depth)
{
#ifdef SUM_ROWS
    return depth * UP_PITCH + line / 8u;
#else
    return line * UP_PITCH + depth / 8u;
#endif
}

// The tile at `first_line` of all `lines`. Call with the whole workgroup.
void multiply_tile(Extent extent, uint first_line, uint lines)
{
    uint band_line = gl_SubgroupID / COLUMNS_SPLIT * LINE_MATRICES * MATRIX_M;
    uint band_column = gl_SubgroupID % COLUMNS_SPLIT * COLUMN_MATRICES * MATRIX_N;
    MatrixSum sum[LINE_MATRICES * COLUMN_MATRICES];
    [[unroll]] for (uint i = 0u; i < LINE_MATRICES * COLUMN_MATRICES; i++) sum[i] = MatrixSum(0.0);
    uint place = 0u;
    uint count = (end_step(extent) - first_step(extent) + SLAB - 1u) / SLAB;
    fetch(extent);
    barrier(); // until the sums of the tile before have been read
    for (uint slab = 0u; slab < count; slab++) {
        put_down(extent, place);
        barrier();
        if (slab + 1u < count) {
#ifdef SUM_ROWS
            extent.rows.x += SLAB;
#else
            extent.outputs.x += SLAB;
#endif
            fetch(extent);
        }
        [[unroll]] for (uint depth = 0u; depth < SLAB; depth += MATRIX_K) {
            MatrixA a[LINE_MATRICES];
            [[unroll]] for (uint l = 0u; l < LINE_MATRICES; l++)
                coopMatLoad(a[l], slabs, place + left_at(band_line + l * MATRIX_M, depth), UP_PITCH, LEFT_MAJOR);
            [[unroll]] for (uint c = 0u; c < COLUMN_MATRICES; c++) {
                MatrixB b;
                coopMatLoad(b, slabs, place + RIGHT_AT + depth * RIGHT_PITCH + (band_column + c * MATRIX_N) / 8u, RIGHT_PITCH, ROW_MAJOR);
                [[unroll]] for (uint l = 0u; l < LINE_MATRICES; l++)
                    sum[l * COLUMN_MATRICES + c] = coopMatMulAdd(a[l], b, sum[l * COLUMN_MATRICES + c]);
            }
        }
        place = SLAB_WORDS - place;
    }
    for (uint l = 0u; l < LINE_MATRICES; l++) {
        barrier();
        [[unroll]] for (uint i = 0u; i < LINE_MATRICES * COLUMN_MATRICES; i++) { // sums are reached by constants only
            if (i / COLUMN_MATRICES != l) continue;
            coopMatStore(sum[i], slabs, gl_SubgroupID * SUMS + i % COLUMN_MATRICES * MATRIX_N / 4u, BAND_PITCH, ROW_MAJOR);
        }
        barrier();
        for (uint e = LANE; e < SUBGROUPS * MATRIX_M * BAND_WORDS; e += LANES) {
            uint band = e / (MATRIX_M * BAND_WORDS);
            uint within = e / BAND_WORDS % MATRIX_M;
            uint line = first_line + (band / COLUMNS_SPLIT * LINE_MATRICES + l) * MATRIX_M + within;
            uint column = extent.first_input + band % COLUMNS_SPLIT * COLUMN_MATRICES * MATRIX_N + e % BAND_WORDS * 4u;
            if (line >= lines || column >= args.inputs) continue;
            put_four(line, column, uintBitsToFloat(slabs[band * SUMS + within * BAND_PITCH + e % BAND_WORDS]));
        }
    }
}
