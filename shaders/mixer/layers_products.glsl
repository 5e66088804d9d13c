// The products of layers.comp: in_proj and sma_proj with their convolutions, and out_proj behind the norm. Lanes of a subgroup share a row.

uvec4 project_words[UNITS_X * WORDS_X];
uvec4 output_words[UNITS_Y * WORDS_Y];

uint outputs_of_project() { return has(args.flags, HAS_OPEN) ? R + QUERIES + 1u : R; }

// Ask for weights of BATCH outputs from `batch` on, behind END the last one again: this subgroup's parts of units FROM .. TO - 1. Rows from SPLIT
// on are those of another matrix.
#define FETCHES(name, words, FROM, TO, CHUNKS, PARTS, STREAMS, WORDS, ONE, SPLIT, OTHER, END) \
    void name(uint layer, uint batch) \
    { \
        uint64_t one = packUint2x32(PLACE(layer, ONE)); \
        uint64_t other = packUint2x32(PLACE(layer, OTHER)) - uint64_t(SPLIT * (CHUNKS * SUBGROUP_SIZE * 16u)); \
        uint within = ((subgroup % PARTS * WORDS) * SUBGROUP_SIZE + lane) * 16u; \
        [[unroll]] for (uint i = FROM * WORDS; i < TO * WORDS; i++) { \
            uint o = min(batch + i / WORDS * STREAMS + subgroup / PARTS, END - 1u); \
            uint64_t row = (o < SPLIT ? one : other) + uint64_t(o * (CHUNKS * SUBGROUP_SIZE * 16u) + within); \
            words[i] = Quads(row + uint64_t(i % WORDS * (SUBGROUP_SIZE * 16u))).v[0]; \
        } \
    }
#define FETCHES_PROJECT(name, FROM, TO) \
    FETCHES(name, project_words, FROM, TO, CHUNKS_X, PARTS_X, STREAMS_X, WORDS_X, PLACE_IN_PROJ, R, PLACE_SMA_PROJ, rows_of.y)
FETCHES_PROJECT(fetch_project_first, 0u, FIRST_X)
FETCHES_PROJECT(fetch_project_second, FIRST_X, SECOND_X)
FETCHES_PROJECT(fetch_project_third, SECOND_X, THIRD_X)
FETCHES_PROJECT(fetch_project_last, THIRD_X, UNITS_X)
void fetch_project(uint layer, uint batch)
{
    fetch_project_first(layer, batch);
    fetch_project_second(layer, batch);
    fetch_project_third(layer, batch);
    fetch_project_last(layer, batch);
}
#define FETCHES_OUTPUT(name, FROM, TO) \
    FETCHES(name, output_words, SMALLER(FROM, UNITS_Y), SMALLER(TO, UNITS_Y), CHUNKS_Y, PARTS_Y, STREAMS_Y, WORDS_Y, PLACE_OUT_PROJ, W, \
            PLACE_OUT_PROJ, rows_of.w)
FETCHES_OUTPUT(fetch_output_first, 0u, THIRD_Y)
FETCHES_OUTPUT(fetch_output_second, THIRD_Y, 2u * THIRD_Y)
FETCHES_OUTPUT(fetch_output_rest, 2u * THIRD_Y, UNITS_Y)
void fetch_output(uint layer, uint batch)
{
    fetch_output_first(layer, batch);
    fetch_output_second(layer, batch);
    fetch_output_rest(layer, batch);
}

void ask_next(uint layer)
{
    if (layer < args.layers) fetch_project_second(layer, rows_of.x);
}
TAKES_ROW(take_x, W, fetch_project_last(layer, rows_of.x))
TAKES_ROW(take_y, I, ask_next(layer))

// The row in low and high times this subgroup's parts: sums over its lanes to halves. Lanes exchange half of what they
// have until each has the sum of one unit.
#define MULTIPLIES(name, words, FROM, TO, PARTS, WORDS) \
    void name() \
    { \
        const uint UNITS = TO - FROM; \
        const uint VALUES = UNITS <= 1u ? 1u : UNITS <= 2u ? 2u : UNITS <= 4u ? 4u : UNITS <= 8u ? 8u : UNITS <= 16u ? 16u : 32u; \
        float totals[VALUES]; \
        [[unroll]] for (uint u = 0u; u < VALUES; u++) totals[u] = 0.0; \
        [[unroll]] for (uint c = 0u; c < WORDS; c++) { \
            uint at = (subgroup % PARTS * WORDS + c) * SUBGROUP_SIZE + lane; \
            vec4 first = low[at], last = high[at]; \
            [[unroll]] for (uint u = 0u; u < UNITS; u++) { \
                totals[u] = add_four(totals[u], four_16bit(DTYPE_OF(weight), words[(FROM + u) * WORDS + c].xy), first); \
                totals[u] = add_four(totals[u], four_16bit(DTYPE_OF(weight), words[(FROM + u) * WORDS + c].zw), last); \
            } \
        } \
        if (VALUES <= SUBGROUP_SIZE) { \
            [[unroll]] for (uint left = VALUES / 2u; left > 0u; left /= 2u) { \
                uint apart = left * (SUBGROUP_SIZE / VALUES); \
                bool upper = (lane & apart) != 0u; \
                [[unroll]] for (uint i = 0u; i < left; i++) \
                    totals[i] = (upper ? totals[left + i] : totals[i]) + subgroupShuffleXor(upper ? totals[i] : totals[left + i], apart); \
            } \
            [[unroll]] for (uint apart = SUBGROUP_SIZE / VALUES / 2u; apart > 0u; apart /= 2u) totals[0] += subgroupShuffleXor(totals[0], apart); \
            uint u = lane / (SUBGROUP_SIZE / VALUES); \
            if (lane % (SUBGROUP_SIZE / VALUES) == 0u && u < UNITS) halves[(FROM + u) * SUBGROUPS + subgroup] = totals[0]; \
        } else { \
            [[unroll]] for (uint u = 0u; u < UNITS; u++) { \
                float total = add_lanes(totals[u]); \
                if (lane == 0u) halves[(FROM + u) * SUBGROUPS + subgroup] = total; \
            } \
        } \
    }
MULTIPLIES(multiply_x, project_words, 0u, BEFORE_OWN_X, PARTS_X, WORDS_X)
MULTIPLIES(multiply_x_rest, project_words, BEFORE_OWN_X, UNITS_X, PARTS_X, WORDS_X)
MULTIPLIES(multiply_y, output_words, 0u, UNITS_Y, PARTS_Y, WORDS_Y)

// ---- The convolution of an output ----

float kept[TAPS - 1u], taps[TAPS], bias;
uvec2 tail_place;
uint tail_row, channel;
bool is_channel;

float load_kept(uint i)
{
    if (DTYPE_OF(tail) == TYPE_F32) return Floats(tail_place).v[i];
    return element_of(DTYPE_OF(tail), uint(Halves(tail_place).v[i]), 0u);
}
void store_kept(uint i, float value)
{
    if (DTYPE_OF(tail) == TYPE_F32) Floats(tail_place).v[i] = value;
    else Halves(tail_place).v[i] = uint16_t(bits_16bit(DTYPE_OF(tail), value));
}
void fetch_channel(uint layer, uint o)
{
    bool inner = o < R;
    is_channel = inner ? o >= I && o - I < CHANNELS : o - R < QUERIES;
    channel = is_channel ? (inner ? o - I : o - R) : 0u;
    tail_row = inner ? CHANNELS : QUERIES;
    tail_place = inner ? PLACE(layer, PLACE_TAIL) : PLACE(layer, PLACE_SMA_TAIL);
    Floats taps_of = Floats(inner ? PLACE(layer, PLACE_TAPS) : PLACE(layer, PLACE_SMA_TAPS));
    uvec2 bias_place = inner ? PLACE(layer, PLACE_BIAS) : PLACE(layer, PLACE_SMA_BIAS);
    [[unroll]] for (uint k = 0u; k < TAPS; k++) taps[k] = taps_of.v[channel * TAPS + k];
    [[unroll]] for (uint k = 0u; k + 1u < TAPS; k++) kept[k] = load_kept(k * tail_row + channel);
    bias = 0.0;
    if (any(notEqual(bias_place, uvec2(0u)))) bias = Floats(bias_place).v[channel];
}
float convolve(float value)
{
    float sum = bias;
    [[unroll]] for (uint k = 0u; k + 1u < TAPS; k++) sum += taps[k] * kept[k];
    [[unroll]] for (uint k = 0u; k + 2u < TAPS; k++) store_kept(k * tail_row + channel, kept[k + 1u]);
    store_kept((TAPS - 2u) * tail_row + channel, value);
    return silu(sum + taps[TAPS - 1u] * value);
}

// ---- Both ends ----

// Of the outputs of both products from `batch` on, whose sums are in halves, a lane finishes one. squares: of the row, see leave_sum.
void post_projected(uint batch, uint end, float squares)
{
    if (LANE >= BATCH_X || batch + LANE >= end) return;
    float scale = inversesqrt(sum_of_all(squares) / float(W) + args.eps);
    float value = 0.0;
    [[unroll]] for (uint k = 0u; k < PARTS_X; k++) value += halves[LANE * PARTS_X + k];
    value *= scale;
    float result = is_channel ? convolve(value) : value;
    post(PROJ_AT + batch + LANE, result);
}

// Outputs begin .. end - 1 of the product behind the norm, added to the stream; `stream` is the lane's of the first of them as it was.
float add_output(uint layer, float squares, float stream)
{
    uint begin = rows_of.z, end = rows_of.w;
    bool is_last = layer + 1u == args.layers;
    [[dont_unroll]] for (uint batch = begin;; batch += BATCH_Y) {
        if (!IS_ONCE_Y && batch != begin) {
            fetch_output(layer, batch);
            barrier(); // halves are read
        }
        multiply_y();
        barrier();
        if (LANE < BATCH_Y && batch + LANE < end) {
            uint o = batch + LANE;
            float value = 0.0;
            [[unroll]] for (uint k = 0u; k < PARTS_Y; k++) value += halves[LANE * PARTS_Y + k];
            value = inversesqrt(sum_of_all(squares) / float(I) + args.eps) * value + (batch == begin ? stream : load_x(args.x_at + o));
            if (batch == begin) stream = value;
            post(X_AT + o, value);
            if (is_last || batch != begin) store_x(args.x_at + o, value);
        }
        if (IS_ONCE_Y || batch + BATCH_Y >= end) break;
    }
    return stream;
}
