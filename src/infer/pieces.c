/* How a dart_prefill is cut into pieces: rows of one length, or sequences packed one behind the other. */
#include "pieces.h"

/* Do the states of the scan's chunks fit? */
static bool fits(const dart_state *state, uint64_t B, uint64_t L)
{
    const dart_model_config *c = &state->model->config;
    const uint64_t states = model_config_memory(c) * 4;
    return states == 0 || B * dart_ssd_chunks((uint32_t)L, state->S, true) <= state->chunks_bytes / states;
}

/* Sequences of a part: few enough that a piece takes a good number of tokens of each, as one chunk's matrices fill the
 * device better than one token's. */
uint32_t piece_sequences(const dart_state *state, uint32_t L)
{
    const uint32_t rows = model_piece_rows(state, 0);
    const uint32_t good = state->S < 64 ? 64 : state->S > 256 ? 256 : state->S;
    const uint32_t tokens = L < good ? L : good;
    const uint32_t sequences = rows / tokens / state->step * state->step;
    return sequences < state->step ? state->step : sequences > state->B ? state->B : sequences;
}

uint32_t piece_length(const dart_state *state, uint32_t B, uint32_t L, uint64_t position)
{
    const uint32_t whole = state->rows / B < L ? state->rows / B : L, rows = model_piece_rows(state, position + whole);
    uint32_t length = rows / B < whole ? rows / B : whole;
    if (length == 0) length = 1;
    while (length > 1 && !fits(state, B, length)) length -= length / 4 > 0 ? length / 4 : 1;
    /* Whole chunks where there is room for some: then no later piece cuts one in two. */
    return length < L && length > state->S ? length - length % state->S : length;
}

/* A packed piece costs every sequence some small launches a layer, and no variant for matrix hardware takes one: it pays where rows of one
 * length would hold many times its tokens, and much for each sequence. On one H200 with dart-130m in bf16, Vulkan and CUDA, packed took: 15
 * sequences of 32 tokens and one of 1,024, 1 / 2.17 and 1 / 1.22 of the time; 63 of 32 and one of 512, 1.07 and 1.3 times as long; 16 of 16
 * to 512, 1.5 and 2.3 times. */
enum { LEAST_TIMES = 8, LEAST_PADDING = 768 };

bool piece_pack(const dart_state *state, const dart_prefill_args *a, uint32_t b, piece *p)
{
    const uint32_t rows = model_piece_rows(state, a->L);
    piece grown = {.b = b, .last = true};
    uint64_t filled = 0, packed = 0; /* sequences that have tokens */
    *p = grown;
    for (uint32_t i = b; i < state->B; i++) {
        const uint32_t count = piece_count(a, i);
        if (count > 0 && state->positions[i] > 0) break;
        if (count > rows - grown.T) break;
        grown.B++;
        grown.T += count;
        if (count > grown.L) grown.L = count;
        filled += count > 0;
        if (model_raw_bytes(state, grown.T, grown.B) > state->chunks_bytes) break;
        if (grown.B % state->step != 0 && i + 1 < state->B) continue;
        *p = grown;
        packed = filled;
    }
    const uint64_t padded = p->L * packed;
    return packed > 1 && (state->packs_any || (padded >= LEAST_TIMES * (uint64_t)p->T && padded - p->T >= LEAST_PADDING * packed));
}
