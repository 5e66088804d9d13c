// The products of windows.comp: in_proj and sma_proj with their convolutions, and out_proj behind the norm.

const uint PIECES_IN = W / (PARTS * PIECE);  // of a subgroup
const uint PIECES_OUT = I / (PARTS * PIECE);
const uint LINE = PIECE / 8u;                // words of 16 bytes in a row of a piece: neighbouring lanes have those of a row
const uint LINES = SUBGROUP_SIZE / LINE;     // rows that a subgroup reads at a time
const uint WEIGHTS_IN = OUTPUTS_IN / LINES;  // words of a piece in a lane
const uint WEIGHTS_OUT = OUTPUTS_OUT / LINES;
const uint INPUTS_IN = ROWS_IN / LINES;      // of inputs
const uint INPUTS_OUT = ROWS_OUT / LINES;
const uint FOURS = OUTPUTS_IN / 4u;
const uint UNITS = ROWS_OUT * FOURS / SIZE;  // four outputs each that a lane finishes of 16 rows of the first products
const uint SUM_PITCH_IN = OUTPUTS_IN / 4u + 1u; // words of a row of sums
const uint SUM_PITCH_OUT = OUTPUTS_OUT / 4u + 1u;
const uint PAIRS_OUT = ROWS_OUT * OUTPUTS_OUT / 2u / SIZE; // two outputs each of a lane's

const uint STEPS = PIECE / MATRIX_K;         // of a piece
const uint COLUMNS_IN = OUTPUTS_IN / MATRIX_N;
const uint COLUMNS_OUT = OUTPUTS_OUT / MATRIX_N;
const uint TOGETHER_IN = PIECES_IN < 2u ? PIECES_IN : 2u;   // pieces of inputs that lie in shared memory at a time
const uint TOGETHER_OUT = PIECES_OUT < 3u ? PIECES_OUT : 3u;

// Weights as they come, and as matrices once they have.
uvec4 weights_in[PIECES_IN * WEIGHTS_IN], weights_out[PIECES_OUT * WEIGHTS_OUT];
MatrixB matrices_in[PIECES_IN * STEPS * COLUMNS_IN], matrices_out[PIECES_OUT * STEPS * COLUMNS_OUT];

uint outputs_of_project() { return has(args.flags, HAS_OPEN) ? R + QUERIES + 1u : R; }

void fetch_in(uint layer)
{
    uint64_t one = packUint2x32(PLACE(layer, PLACE_IN_PROJ));
    uint64_t other = packUint2x32(PLACE(layer, PLACE_SMA_PROJ)) - uint64_t(R * W * 2u);
    uint within = subgroup * PIECES_IN * PIECE * 2u + lane % LINE * 16u;
    [[unroll]] for (uint i = 0u; i < WEIGHTS_IN; i++) {
        uint o = min(member * OUTPUTS_IN + i * LINES + lane / LINE, outputs_of_project() - 1u);
        uint64_t row = (o < R ? one : other) + uint64_t(o * (W * 2u) + within);
        [[unroll]] for (uint p = 0u; p < PIECES_IN; p++) weights_in[p * WEIGHTS_IN + i] = Quads(row + uint64_t(p * PIECE * 2u)).v[0];
    }
}
void fetch_out(uint layer, uint first_column)
{
    uint64_t from = packUint2x32(PLACE(layer, PLACE_OUT_PROJ)) + uint64_t(subgroup * PIECES_OUT * PIECE * 2u + lane % LINE * 16u);
    [[unroll]] for (uint i = 0u; i < WEIGHTS_OUT; i++) {
        uint64_t row = from + uint64_t((first_column + i * LINES + lane / LINE) * (I * 2u));
        [[unroll]] for (uint p = 0u; p < PIECES_OUT; p++) weights_out[p * WEIGHTS_OUT + i] = Quads(row + uint64_t(p * PIECE * 2u)).v[0];
    }
}

// ---- What the channels of in_proj and sma_proj go on from ----

struct Ends {
    vec4 taps[TAPS]; // a channel each; of steps a_log of the four heads first
    vec4 bias;       // of steps dt_bias
    uvec2 kept[TAPS - 1u];
};
struct Channel {
    bool inner, is_channel, is_step; // of in_proj or of sma_proj
    uint number;                     // of the channel, or of the head
};
Channel channel_of(uint o)
{
    bool inner = o < R, is_step = inner && o >= I + CHANNELS;
    bool is_channel = inner ? o >= I && !is_step : o - R < QUERIES;
    return Channel(inner, is_channel, is_step, !is_channel && !is_step ? 0u : !inner ? o - R : is_step ? o - I - CHANNELS : o - I);
}
uint64_t tail_at(uint layer, Channel c, uint b)
{
    uint64_t tail = packUint2x32(c.inner ? PLACE(layer, PLACE_TAIL) : PLACE(layer, PLACE_SMA_TAIL));
    return tail + uint64_t((b * (TAPS - 1u) * (c.inner ? CHANNELS : QUERIES) + (c.is_step ? 0u : c.number)) * 2u);
}
// Every lane, those without channels what the first ones have.
Ends fetch_ends(uint layer, uint b, uint o)
{
    Ends ends;
    Channel c = channel_of(o);
    uvec2 bias = c.is_step ? PLACE(layer, PLACE_DT_BIAS) : c.inner ? PLACE(layer, PLACE_BIAS) : PLACE(layer, PLACE_SMA_BIAS);
    uvec2 taps = c.is_step ? PLACE(layer, PLACE_A_LOG) : c.inner ? PLACE(layer, PLACE_TAPS) : PLACE(layer, PLACE_SMA_TAPS);
    uint stride = c.is_step ? 4u : TAPS * 4u;
    [[unroll]] for (uint j = 0u; j < TAPS; j++)
        ends.taps[j] = Fours(packUint2x32(taps) + uint64_t(c.number * stride + (c.is_step ? 0u : j * 16u))).v[0];
    ends.bias = vec4(0.0);
    if (any(notEqual(bias, uvec2(0u)))) ends.bias = Fours(packUint2x32(bias) + uint64_t(c.number * 4u)).v[0];
    uint64_t tail = tail_at(layer, c, b);
    [[unroll]] for (uint k = 0u; k + 1u < TAPS; k++) ends.kept[k] = Pairs(tail + uint64_t(k * (c.inner ? CHANNELS : QUERIES) * 2u)).v[0];
    return ends;
}

void finish(uint layer, uint b, uint slot, uint o, vec4 v, Ends ends)
{
    Channel c = channel_of(o);
    if (slot == NONE || o >= outputs_of_project()) return;
    if (c.is_step) {
        NewTwos steps = NewTwos(packUint2x32(PLACE(layer, PLACE_STEPS)) + uint64_t(((b * WINDOW + slot) * H + c.number) * 8u));
        [[unroll]] for (uint j = 0u; j < 4u; j++) {
            float step_size = min(max(softplus(v[j] + ends.bias[j]), args.dt_min), args.dt_max);
            float a_log = ends.taps[0][j];
            steps.v[j] = vec2((a_log > 0.0 ? -1.0 / exp_neg(-a_log) : -exp_neg(a_log)) * step_size, step_size);
        }
    } else if (c.is_channel) {
        uint64_t tail = tail_at(layer, c, b);
        uint row = (c.inner ? CHANNELS : QUERIES) * 2u;
        [[unroll]] for (uint k = 0u; k + 2u < TAPS; k++) Pairs(tail + uint64_t(k * row)).v[0] = ends.kept[k + 1u];
        Pairs(tail + uint64_t((TAPS - 2u) * row)).v[0] = as_16bit(DTYPE_OF(tail), v);
        if (!c.inner) return; // nobody asks the memories
        vec4 sum = ends.bias;
        [[unroll]] for (uint k = 0u; k + 1u < TAPS; k++) {
            vec4 before = four_16bit(DTYPE_OF(tail), ends.kept[k]);
            [[unroll]] for (uint j = 0u; j < 4u; j++) sum[j] += ends.taps[j][k] * before[j];
        }
        [[unroll]] for (uint j = 0u; j < 4u; j++) sum[j] += ends.taps[j][TAPS - 1u] * v[j];
        sum = silu_four(TYPE_F32, sum);
        if (c.number < KEPT) {
            uint64_t rows = packUint2x32(PLACE(layer, PLACE_ROWS)) + uint64_t(((b * WINDOW + slot) * KEPT + c.number) * 2u);
            NewPairs(rows).v[0] = as_16bit(DTYPE_OF(tail), sum);
        } else {
            quads_work[(C_AT + b * N + c.number - KEPT) / 4u] = floatBitsToUint(sum);
        }
    } else if (c.inner) {
        quads_work[(Z_AT + b * I + o) / 4u] = floatBitsToUint(v);
    }
}

// ---- Matrices ----

// What a lane has of weights becomes matrices, piece by piece through the subgroup's part of shared memory.
#define SETTLES(name, words, matrices, PIECES, WORDS, COLUMNS) \
    void name() \
    { \
        uint to = subgroup * TEAM + lane / LINE * PITCH + lane % LINE; \
        [[unroll]] for (uint p = 0u; p < PIECES; p++) { \
            subgroup_sync(); \
            [[unroll]] for (uint i = 0u; i < WORDS; i++) slabs[to + i * LINES * PITCH] = words[p * WORDS + i]; \
            subgroup_sync(); \
            [[unroll]] for (uint k = 0u; k < STEPS; k++) \
                [[unroll]] for (uint o = 0u; o < COLUMNS; o++) \
                    coopMatLoad(matrices[(p * STEPS + k) * COLUMNS + o], slabs, \
                                subgroup * TEAM + o * MATRIX_N * PITCH + k * (MATRIX_K / 8u), PITCH, COLUMN_MAJOR); \
        } \
        subgroup_sync(); \
    }
SETTLES(settle_in, weights_in, matrices_in, PIECES_IN, WEIGHTS_IN, COLUMNS_IN)
SETTLES(settle_out, weights_out, matrices_out, PIECES_OUT, WEIGHTS_OUT, COLUMNS_OUT)

void forget_matrices()
{
    [[unroll]] for (uint i = 0u; i < PIECES_IN * STEPS * COLUMNS_IN; i++) matrices_in[i] = MatrixB(ELEMENT(0.0));
    [[unroll]] for (uint i = 0u; i < PIECES_OUT * STEPS * COLUMNS_OUT; i++) matrices_out[i] = MatrixB(ELEMENT(0.0));
}

const uint MATRICES_IN = ROWS_IN / MATRIX_M, MATRICES_OUT = ROWS_OUT / MATRIX_M; // of rows
MatrixSum sums_in[MATRICES_IN * COLUMNS_IN], sums_out[MATRICES_OUT * COLUMNS_OUT];

// Pieces FROM .. TO - 1 of the inputs that a lane has, times weights.
#define MULTIPLIES(name, FROM, TO, inputs, WORDS, ROWS, matrices, COLUMNS, sums) \
    void name() \
    { \
        const uint COUNT = (TO) - (FROM); \
        uint to = subgroup * TEAM + lane / LINE * (COUNT * LINE + 1u) + lane % LINE; \
        subgroup_sync(); \
        [[unroll]] for (uint p = 0u; p < COUNT; p++) \
            [[unroll]] for (uint i = 0u; i < WORDS; i++) \
                slabs[to + i * LINES * (COUNT * LINE + 1u) + p * LINE] = inputs[((FROM) + p) * WORDS + i]; \
        subgroup_sync(); \
        [[unroll]] for (uint k = 0u; k < COUNT * STEPS; k++) { \
            MatrixA a[ROWS]; \
            [[unroll]] for (uint r = 0u; r < ROWS; r++) \
                coopMatLoad(a[r], slabs, subgroup * TEAM + r * MATRIX_M * (COUNT * LINE + 1u) + k * (MATRIX_K / 8u), COUNT * LINE + 1u, ROW_MAJOR); \
            [[unroll]] for (uint o = 0u; o < COLUMNS; o++) \
                [[unroll]] for (uint r = 0u; r < ROWS; r++) \
                    sums[r * COLUMNS + o] = coopMatMulAdd(a[r], matrices[((FROM) * STEPS + k) * COLUMNS + o], sums[r * COLUMNS + o]); \
        } \
    }
uvec4 inputs_in[PIECES_IN * INPUTS_IN], inputs_out[PIECES_OUT * INPUTS_OUT];
MULTIPLIES(multiply_in_first, 0u, TOGETHER_IN, inputs_in, INPUTS_IN, MATRICES_IN, matrices_in, COLUMNS_IN, sums_in)
MULTIPLIES(multiply_in_rest, TOGETHER_IN, PIECES_IN, inputs_in, INPUTS_IN, MATRICES_IN, matrices_in, COLUMNS_IN, sums_in)
MULTIPLIES(multiply_out_first, 0u, TOGETHER_OUT, inputs_out, INPUTS_OUT, MATRICES_OUT, matrices_out, COLUMNS_OUT, sums_out)
MULTIPLIES(multiply_out_rest, TOGETHER_OUT, PIECES_OUT, inputs_out, INPUTS_OUT, MATRICES_OUT, matrices_out, COLUMNS_OUT, sums_out)

// The sum of a row's parts in row_parts, of which it has `count`.
float sum_parts(uint row, uint count)
{
    float sum = 0.0;
    [[unroll]] for (uint i = 0u; i < count; i++) sum += row_parts[row * count + i];
    return sum;
}

Ends ends[ROWS_IN / ROWS_OUT * UNITS];

void fetch_ends_of(uint layer, uint r)
{
    [[unroll]] for (uint u = 0u; u < UNITS; u++) {
        uint e = LANE + u * SIZE;
        ends[r * UNITS + u] = fetch_ends(layer, sequence(r * ROWS_OUT + e / FOURS), min(member * OUTPUTS_IN + e % FOURS * 4u, R + QUERIES));
    }
}

// Both products of this workgroup's outputs. The states of the first heads of `b` from first_head on are asked for before sums are added up.
void project(uint layer, uint b, uint first_head, uint heads)
{
    const uint LANES_OF_ROW = SIZE / ROWS_IN; // that add up its squares
    [[unroll]] for (uint i = 0u; i < INPUTS_IN; i++) {
        uint row = (INPUTS_AT * 2u + sequence(i * LINES + lane / LINE) * W) / 8u + subgroup * PIECES_IN * LINE + lane % LINE;
        [[unroll]] for (uint p = 0u; p < PIECES_IN; p++) inputs_in[p * INPUTS_IN + i] = quads_work[row + p * LINE];
    }
    float squares = 0.0;
    [[unroll]] for (uint i = 0u; i < INPUT_PARTS; i += LANES_OF_ROW)
        if (INPUT_PARTS % LANES_OF_ROW == 0u || i + LANE % LANES_OF_ROW < INPUT_PARTS)
            squares += floats_work[INPUT_SQUARES_AT + sequence(LANE / LANES_OF_ROW) * INPUT_PARTS + i + LANE % LANES_OF_ROW];
    [[unroll]] for (uint i = 0u; i < MATRICES_IN * COLUMNS_IN; i++) sums_in[i] = MatrixSum(0.0);
    multiply_in_first();
    fetch_ends_of(layer, 0u);
    if (TOGETHER_IN < PIECES_IN) multiply_in_rest();
    fetch_ends_of(layer, 1u);
    fetch_states_first(layer, b, first_head, heads);
    row_parts[LANE] = squares;
    [[unroll]] for (uint r = 0u; r < ROWS_IN / ROWS_OUT; r++) {
        barrier();
        [[unroll]] for (uint i = 0u; i < MATRICES_IN * COLUMNS_IN; i++) {
            const uint row = i / COLUMNS_IN * MATRIX_M, column = i % COLUMNS_IN * MATRIX_N;
            if (row / ROWS_OUT != r) continue;
            coopMatStore(sums_in[i], slabs, (subgroup * ROWS_OUT + row % ROWS_OUT) * SUM_PITCH_IN + column / 4u, SUM_PITCH_IN, ROW_MAJOR);
        }
        barrier();
        [[unroll]] for (uint u = 0u; u < UNITS; u++) {
            uint e = LANE + u * SIZE, row = r * ROWS_OUT + e / FOURS;
            vec4 value = vec4(0.0);
            [[unroll]] for (uint k = 0u; k < PARTS; k++) value += uintBitsToFloat(slabs[(k * ROWS_OUT + e / FOURS) * SUM_PITCH_IN + e % FOURS]);
            value *= inversesqrt(sum_parts(row, LANES_OF_ROW) / float(W) + args.eps);
            const uint i = r * UNITS + u;
            if (row < group_rows) finish(layer, sequence(row), slots[i], member * OUTPUTS_IN + e % FOURS * 4u, value, ends[i]);
        }
    }
}

// ---- The stream ----

vec2 stream[PAIRS_OUT];

// Two neighbouring numbers of the stream go on to `layer`, times its norm; so does the sum of squares of eight lanes' numbers.
void pass_on(uint layer, uint u, uint first_row, uint first_column)
{
    const uint LANES_OF_ROW = OUTPUTS_OUT / 2u;
    uint e = LANE + u * SIZE, row = first_row + e / LANES_OF_ROW, column = first_column + e % LANES_OF_ROW * 2u;
    vec2 norm = Twos(packUint2x32(PLACE(layer, PLACE_NORM)) + uint64_t(column * 4u)).v[0];
    float squares = dot(stream[u], stream[u]);
    [[unroll]] for (uint apart = 1u; apart < 8u; apart *= 2u) squares += subgroupShuffleXor(squares, apart);
    if (row >= group_rows) return;
    words_work[(INPUTS_AT * 2u + sequence(row) * W + column) / 2u] = pack_elements(stream[u].x * norm.x, stream[u].y * norm.y);
    if (lane % 8u == 0u) floats_work[INPUT_SQUARES_AT + sequence(row) * INPUT_PARTS + column / 16u] = squares;
}
void begin_stream(uint first_row, uint first_column)
{
    [[unroll]] for (uint u = 0u; u < PAIRS_OUT; u++) {
        uint e = LANE + u * SIZE, at = args.x_at + sequence(first_row + e / (OUTPUTS_OUT / 2u)) * W + first_column + e % (OUTPUTS_OUT / 2u) * 2u;
        stream[u] = vec2(load_x(at), load_x(at + 1u));
        pass_on(0u, u, first_row, first_column);
    }
}
void end_stream(uint first_row, uint first_column)
{
    [[unroll]] for (uint u = 0u; u < PAIRS_OUT; u++) {
        uint e = LANE + u * SIZE, row = first_row + e / (OUTPUTS_OUT / 2u);
        uint at = args.x_at + sequence(row) * W + first_column + e % (OUTPUTS_OUT / 2u) * 2u;
        if (row >= group_rows || seq_count(sequence(row), 1u) == 0u) continue;
        store_x(at, stream[u].x);
        store_x(at + 1u, stream[u].y);
    }
}

void output_stream(uint layer, uint first_row, uint first_column, bool goes_on)
{
    const uint LANES_OF_ROW = SIZE / ROWS_OUT;
    [[unroll]] for (uint i = 0u; i < INPUTS_OUT; i++) {
        uint row = (GATED_AT * 2u + sequence(first_row + i * LINES + lane / LINE) * I) / 8u + subgroup * PIECES_OUT * LINE + lane % LINE;
        [[unroll]] for (uint p = 0u; p < PIECES_OUT; p++) inputs_out[p * INPUTS_OUT + i] = quads_work[row + p * LINE];
    }
    float squares = 0.0;
    for (uint i = LANE % LANES_OF_ROW; i < args.share; i += LANES_OF_ROW)
        squares += floats_work[GATED_SQUARES_AT + sequence(first_row + LANE / LANES_OF_ROW) * args.share + i];
    [[unroll]] for (uint i = 0u; i < MATRICES_OUT * COLUMNS_OUT; i++) sums_out[i] = MatrixSum(0.0);
    multiply_out_first();
    if (TOGETHER_OUT < PIECES_OUT) multiply_out_rest();
    row_parts[LANE] = squares;
    barrier();
    [[unroll]] for (uint i = 0u; i < MATRICES_OUT * COLUMNS_OUT; i++) {
        const uint row = i / COLUMNS_OUT * MATRIX_M, column = i % COLUMNS_OUT * MATRIX_N;
        coopMatStore(sums_out[i], slabs, (subgroup * ROWS_OUT + row) * SUM_PITCH_OUT + column / 4u, SUM_PITCH_OUT, ROW_MAJOR);
    }
    barrier();
    [[unroll]] for (uint u = 0u; u < PAIRS_OUT; u++) {
        uint e = LANE + u * SIZE, row = e / (OUTPUTS_OUT / 2u), pair = e % (OUTPUTS_OUT / 2u);
        vec2 value = vec2(0.0);
        [[unroll]] for (uint k = 0u; k < PARTS; k++) {
            uvec4 four = slabs[(k * ROWS_OUT + row) * SUM_PITCH_OUT + pair / 2u];
            value += uintBitsToFloat(pair % 2u == 0u ? four.xy : four.zw);
        }
        stream[u] += value * inversesqrt(sum_parts(row, LANES_OF_ROW) / float(I) + args.eps);
        if (goes_on) pass_on(layer + 1u, u, first_row, first_column);
    }
}
