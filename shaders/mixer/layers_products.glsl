// The products of layers.comp: in_proj and sma_proj with their convolutions, and out_proj behind the norm. Lanes of a subgroup share a row.

uvec4 project_words[QUADS];
uvec4 output_words[QUADS];

uint outputs_of_project() { return has(args.flags, HAS_OPEN) ? R + QUERIES + 1u : R; }
// Words of output o, from `chunk` on.
uvec4 project_word(uint layer, uint o, uint chunk)
{
    bool inner = o < R;
    Quads rows = Quads(inner ? PLACE(layer, PLACE_IN_PROJ) : PLACE(layer, PLACE_SMA_PROJ));
    return rows.v[(inner ? o : o - R) * (W / 8u) + chunk * SUBGROUP_SIZE + lane];
}
uvec4 output_word(uint layer, uint o, uint chunk)
{
    return Quads(PLACE(layer, PLACE_OUT_PROJ)).v[o * (I / 8u) + chunk * SUBGROUP_SIZE + lane];
}
// What project() and add_output() ask for before their inputs are there.
void fetch_project(uint layer, uint first)
{
    uint step = SUBGROUPS * gl_NumWorkGroups.x;
    [[unroll]] for (uint i = 0u; i < AHEAD * CHUNKS_X; i++)
        project_words[i] = project_word(layer, min(first + i / CHUNKS_X * step, outputs_of_project() - 1u), i % CHUNKS_X);
}
void fetch_output(uint layer, uint first)
{
    if (first < W) {
        [[unroll]] for (uint i = 0u; i < AHEAD_Y; i++) output_words[i] = output_word(layer, first, i);
    }
}

float add_words(float sum, uvec4 words, uint chunk)
{
    uint at = chunk * SUBGROUP_SIZE + lane;
    sum = add_four(sum, four_16bit(DTYPE_OF(weight), words.xy), low[at]);
    return add_four(sum, four_16bit(DTYPE_OF(weight), words.zw), high[at]);
}

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

// Outputs first, first + step, ... of both products.
void project(uint layer, uint first, uint step, float squares)
{
    uint outputs = outputs_of_project();
    float scale = inversesqrt(squares / float(W) + args.eps);
    [[dont_unroll]] for (uint batch = first; batch < outputs; batch += BATCH * step) {
        uint mine = batch + min(lane, BATCH - 1u) * step;
        float totals[BATCH];
        [[unroll]] for (uint k = 0u; k < BATCH; k++) totals[k] = 0.0;
        if (batch == first) {
            [[unroll]] for (uint i = 0u; i < AHEAD * CHUNKS_X; i++)
                totals[i / CHUNKS_X] = add_words(totals[i / CHUNKS_X], project_words[i], i % CHUNKS_X);
        } else {
            fetch_channel(layer, min(mine, outputs - 1u));
        }
        float value = 0.0;
        [[unroll]] for (uint k = 0u; k < AHEAD; k++) {
            float total = add_lanes(totals[k]);
            if (batch == first && lane == k) value = total;
        }
        [[dont_unroll]] for (uint k = batch == first ? AHEAD : 0u; k < BATCH && batch + k * step < outputs; k += 2u) {
            uvec4 words[2u * CHUNKS_X];
            [[unroll]] for (uint i = 0u; i < 2u * CHUNKS_X; i++)
                words[i] = project_word(layer, min(batch + (k + i / CHUNKS_X) * step, outputs - 1u), i % CHUNKS_X);
            vec2 pair = vec2(0.0);
            [[unroll]] for (uint i = 0u; i < 2u * CHUNKS_X; i++) pair[i / CHUNKS_X] = add_words(pair[i / CHUNKS_X], words[i], i % CHUNKS_X);
            pair = vec2(add_lanes(pair.x), add_lanes(pair.y));
            if (lane == k) value = pair.x;
            if (lane == k + 1u) value = pair.y;
        }
        if (lane < BATCH && mine < outputs) {
            value *= scale;
            float result = is_channel ? convolve(value) : value;
            post(PROJ_AT + mine, result);
        }
    }
}

// Outputs first, first + step, ... of the product behind the norm, added to the stream; `stream` is the first of them as it was.
float add_output(uint layer, uint first, uint step, float squares, float stream)
{
    bool is_last = layer + 1u == args.layers;
    float scale = inversesqrt(squares / float(I) + args.eps);
    [[dont_unroll]] for (uint o = first; o < W; o += step) {
        float sum = 0.0;
        uint c = 0u;
        if (o == first) {
            [[unroll]] for (; c < AHEAD_Y; c++) sum = add_words(sum, output_words[c], c);
        }
        [[dont_unroll]] for (; c < CHUNKS_Y; c += QUADS / 2u) {
            uvec4 words[QUADS / 2u];
            [[unroll]] for (uint i = 0u; i < QUADS / 2u; i++) words[i] = output_word(layer, o, min(c + i, CHUNKS_Y - 1u));
            [[unroll]] for (uint i = 0u; i < QUADS / 2u; i++) {
                if (c + i < CHUNKS_Y) sum = add_words(sum, words[i], c + i);
            }
        }
        float value = scale * add_lanes(sum);
        if (o == first) stream = value += stream;
        else if (lane == 0u) value += load_x(args.x_at + o);
        if (lane == 0u) {
            post(X_AT + o, value);
            if (is_last || o != first) store_x(args.x_at + o, value);
        }
    }
    return stream;
}
