/* How each sequence's next token is chosen, and what ends a sequence: settings of the caller, as words on the device. */
#include "state.h"

#include <string.h>

_Static_assert(END_IDS == DART_END_IDS && STOP_WORDS == END_IDS + 1, "the caller's end ids are those of the kernel, the last position follows them");

dart_status model_check_sampling(dart_state *state, const dart_sampling *sampling, uint32_t count, const char *call)
{
    base_report *report = &state->report;
    const uint32_t V = state->model->config.V;
    REQUIRE(report, count <= 1 || count == state->B, "%s: sampling_count %u must be 0, 1 or the %u sequences", call, count, state->B);
    REQUIRE(report, sampling != NULL || count == 0, "%s: sampling_count %u without sampling", call, count);
    if (sampling == NULL) return DART_OK;
    for (uint32_t i = 0; i < (count > 1 ? count : 1); i++) {
        const dart_sampling *s = &sampling[i];
        REQUIRE(report, s->temperature >= 0 && s->temperature <= 1e6f, "%s: temperature %g of sequence %u must be 0 to 1e6", call,
                (double)s->temperature, i);
        REQUIRE(report, s->top_p >= 0 && s->top_p <= 1, "%s: top_p %g of sequence %u must be 0 to 1", call, (double)s->top_p, i);
        REQUIRE(report, s->min_p >= 0 && s->min_p <= 1, "%s: min_p %g of sequence %u must be 0 to 1", call, (double)s->min_p, i);
        REQUIRE(report, s->repetition_penalty >= 0 && s->repetition_penalty <= 1e6f, "%s: repetition_penalty %g of sequence %u must be 0 to 1e6",
                call, (double)s->repetition_penalty, i);
        REQUIRE(report, s->ids_below <= V, "%s: ids_below %u of sequence %u exceeds the %u ids", call, s->ids_below, i, V);
        REQUIRE(report, s->end_ids_count <= DART_END_IDS, "%s: %u end ids of sequence %u, at most %d", call, s->end_ids_count, i, DART_END_IDS);
        for (uint32_t k = 0; k < s->end_ids_count; k++)
            REQUIRE(report, s->end_ids[k] >= 0 && (uint32_t)s->end_ids[k] < V, "%s: end id %d of sequence %u is not within 0 to %u", call,
                    s->end_ids[k], i, V - 1);
    }
    return DART_OK;
}

/* Puts the words in place; returns whether any of them differs from the one that was there. */
static bool replace(int32_t *words, const int32_t *by, size_t count)
{
    if (memcmp(words, by, count * sizeof *by) == 0) return false;
    memcpy(words, by, count * sizeof *by);
    return true;
}

dart_status model_use_sampling(dart_state *state, const dart_sampling *sampling, uint32_t count, const char *call)
{
    static const dart_sampling greedy = {0};
    bool changed = !state->settings_current, other_stops = !state->settings_current;
    state->stops = false;
    for (uint32_t b = 0; b < state->B; b++) {
        const dart_sampling *s = sampling == NULL ? &greedy : count > 1 ? &sampling[b] : sampling;
        int32_t settings[SETTING_WORDS] = {0, (int32_t)s->top_k, (int32_t)(uint32_t)s->seed, (int32_t)(s->seed >> 32), 0, 0, 0,
                                           (int32_t)(s->ids_below | (s->anywhere ? ROW_ZERO : 0))};
        int32_t stops[STOP_WORDS];
        memcpy(&settings[0], &s->temperature, sizeof s->temperature);
        memcpy(&settings[4], &s->top_p, sizeof s->top_p);
        memcpy(&settings[5], &s->min_p, sizeof s->min_p);
        memcpy(&settings[6], &s->repetition_penalty, sizeof s->repetition_penalty);
        for (uint32_t i = 0; i < DART_END_IDS; i++) stops[i] = i < s->end_ids_count ? s->end_ids[i] : -1;
        stops[DART_END_IDS] = s->last_position <= INT32_MAX ? (int32_t)s->last_position : 0;
        if (replace(&state->host_settings[SETTING_WORDS * b], settings, SETTING_WORDS)) changed = true;
        if (replace(&state->host_stops[STOP_WORDS * b], stops, STOP_WORDS)) other_stops = true;
        if (s->idle != state->idle[b]) state->judged = false;
        state->idle[b] = s->idle;
        if (s->end_ids_count > 0 || stops[DART_END_IDS] > 0 || s->idle) state->stops = true;
    }
    if (!changed && !other_stops) return DART_OK;
    if (other_stops) state->judged = false;
    state->settings_current = false;
    const uint64_t B = state->B;
    dart_status status = model_state_write(state, WORK_SETTINGS, 0, state->host_settings, SETTING_WORDS * B, call);
    if (status == DART_OK) status = model_state_write(state, WORK_STOPS, 0, state->host_stops, STOP_WORDS * B, call);
    state->settings_current = status == DART_OK;
    return status;
}

bool model_ends(const dart_state *state, uint32_t b, int32_t id, int32_t position)
{
    const int32_t *stops = &state->host_stops[STOP_WORDS * b];
    if (stops[DART_END_IDS] > 0 && position >= stops[DART_END_IDS]) return true;
    for (uint32_t i = 0; i < DART_END_IDS; i++)
        if (stops[i] == id) return true;
    return false;
}

dart_status model_judge(dart_state *state, const char *call)
{
    if (state->judged) return DART_OK;
    if (state->stops) {
        const dart_status status = model_state_read(state, WORK_NEXT, 0, state->host_next, state->B, call);
        if (status != DART_OK) return status;
    }
    for (uint32_t b = 0; b < state->B; b++) {
        const bool ended = state->idle[b] || (state->stops && model_ends(state, b, state->host_next[b], state->positions[b]));
        if (ended != state->ended[b]) state->seq_current = false;
        state->ended[b] = ended;
    }
    state->judged = true;
    return DART_OK;
}

dart_status model_write_seq(dart_state *state, const char *call)
{
    if (state->seq_current) return DART_OK;
    for (uint32_t b = 0; b < state->B; b++) {
        state->host_seq[2 * b] = state->positions[b];
        state->host_seq[2 * b + 1] = !state->ended[b];
        state->host_ends[b] = state->ended[b] ? -1 : (int32_t)b;
    }
    dart_status status = model_state_write(state, WORK_SEQ, 0, state->host_seq, 2 * (uint64_t)state->B, call);
    if (status == DART_OK) status = model_state_write(state, WORK_LIVE, 0, state->host_ends, state->B, call);
    state->seq_current = status == DART_OK;
    return status;
}

bool dart_state_ended(const dart_state *state, uint32_t b)
{
    return state != NULL && b < state->B && state->ended[b];
}
