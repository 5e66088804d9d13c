/* Decoding: one token of every sequence, recorded once and submitted again, several steps at a time. */
#include "state.h"

#include "runtime/stream.h"

#include <string.h>

/* HEAD_LAUNCHES: of the head, the choice and what follows, about. */
enum { HEAD_LAUNCHES = 4, MOST_CUTS_AGAIN = 8 };

static bool same_span(const model_span *a, const model_span *b)
{
    return a->runs == b->runs && a->seen == b->seen && a->close_from == b->close_from && a->close_to == b->close_to;
}

/* Records the step for the present positions. It can be submitted again until a sequence enters another block of memories or of keys, or its second
 * chunk. */
static dart_status record(dart_state *state, const char *call)
{
    const model_span span = model_span_of(state, 0, state->B, state->host_seq, true);
    if (state->recorded && same_span(&span, &state->recorded_span)) return DART_OK;
    dart_stream *stream = state->decode;
    const dart_tensor last = model_work_tensor(state, WORK_LAST), live = model_work_tensor(state, WORK_LIVE);
    const double ratio = state->step_ratio > 0 ? state->step_ratio : 1;
    state->recorded = false;
    dart_status status = model_begin_paced(state, stream, ratio, call);
    const model_pass pass = {.B = state->B, .L = 1, .windowed = state->windowed, .step = true, .span = span};
    if (status == DART_OK) status = model_record_embedding(state, stream, &pass, WORK_NEXT);
    if (status == DART_OK) status = model_record_layers(state, stream, &pass, 0, state->model->config.layers);
    if (status == DART_OK) status = model_record_norm(state, stream, state->B, &live, &last);
    const bool beside = state->fused && model_norm_head_pays(state);
    stream_pace(stream, model_step_head(state), HEAD_LAUNCHES);
    if (status == DART_OK)
        status = beside ? model_record_norm_head(state, stream) : model_record_head(state, stream, state->B, &last);
    if (status == DART_OK) status = model_record_choice(state, stream, true);
    if (status == DART_OK) status = model_record_advance(state, stream);
    if (status != DART_OK) return model_take_stream(state, stream, status, call);
    state->recorded = true;
    state->step_ns = 0;
    state->step_ratio = ratio;
    state->step_work = state->model->config.layers * model_step_layer(state) + model_step_head(state);
    state->recorded_span = span;
    return DART_OK;
}

/* Records the next step anew where this one was cut too coarsely, or far finer than its time asks for. Results do not depend on it. */
static void judge_cuts(dart_state *state, double slowest_ns)
{
    const double ratio = state->step_ns / state->step_work;
    if (state->slice_ns == UINT64_MAX || !(state->step_ns > 0)) return;
    if (slowest_ns > (double)state->slice_ns && state->steps_cut < MOST_CUTS_AGAIN) {
        state->step_ratio *= slowest_ns / (DEVICE_SLICE_SHARE * (double)state->slice_ns);
        state->steps_cut++;
        state->recorded = false;
    } else if (state->decode->parts.count > 1 && state->steps_cut == 0 && 2 * ratio < state->step_ratio) {
        state->step_ratio = ratio;
        state->recorded = false;
    }
}

/* ids: those of the step, or NULL. */
static dart_status check(dart_state *state, const int32_t *ids, const char *call)
{
    const uint32_t V = state->model->config.V;
    for (uint32_t b = 0; b < state->B; b++) {
        REQUIRE(&state->report, state->positions[b] < INT32_MAX, "%s: sequence %u would grow beyond 2^31 - 1 tokens",
                call, b);
        REQUIRE(&state->report, ids == NULL || (ids[b] >= 0 && (uint32_t)ids[b] < V),
                "%s: id %d of sequence %u is not within 0 to %u", call, ids != NULL ? ids[b] : 0, b, V - 1);
    }
    REQUIRE(&state->report, ids != NULL || state->chosen, "%s: no ids, and no earlier call has chosen any", call);
    return DART_OK;
}

/* The batch's seq as it is `ahead` steps from now, if no sequence ends before. */
static void look_ahead(dart_state *state, uint32_t ahead)
{
    for (uint32_t b = 0; b < state->B; b++) {
        state->host_seq[2 * b] = state->positions[b] + (state->ended[b] ? 0 : (int32_t)ahead);
        state->host_seq[2 * b + 1] = !state->ended[b];
    }
}

static dart_status reserve(dart_state *state, const char *call)
{
    uint64_t memories = 0, longest = 0;
    for (uint32_t b = 0; b < state->B; b++) {
        if (state->ended[b]) continue;
        if (state->sma) memories = base_larger(memories, ((uint64_t)state->positions[b] + 1) / state->S);
        longest = base_larger(longest, (uint64_t)state->positions[b] + 1);
    }
    const dart_status status = model_memories_reserve(state, memories, call);
    return status == DART_OK ? model_cache_reserve(state, longest, call) : status;
}

/* Of `wanted` steps, those that the recording of the next one serves and a slice has time for. */
static uint32_t steps_together(dart_state *state, uint32_t wanted)
{
    double most = MODEL_LOG;
    if (state->model->device->profile != NULL) return 1; /* launches are timed run by run */
    if (state->decode->parts.count > 1) return 1;
    if (state->slice_ns != UINT64_MAX) most = state->step_ns > 0 ? (double)state->slice_ns / state->step_ns : 1;
    uint32_t steps = wanted < MODEL_LOG ? wanted : MODEL_LOG;
    if (steps > most) steps = most < 1 ? 1 : (uint32_t)most;
    uint32_t fit = 1;
    for (; fit < steps; fit++) {
        for (uint32_t b = 0; b < state->B; b++)
            if (state->positions[b] >= INT32_MAX - (int32_t)fit) return fit;
        look_ahead(state, fit);
        const model_span span = model_span_of(state, 0, state->B, state->host_seq, true);
        const uint64_t room = model_memories_room(state), tokens = model_cache_room(state);
        for (uint32_t b = 0; b < state->B && state->sma; b++)
            if (!state->ended[b] && ((uint64_t)state->host_seq[2 * b] + 1) / state->S > room) return fit;
        for (uint32_t b = 0; b < state->B && state->model->config.transformer; b++)
            if (!state->ended[b] && (uint64_t)state->host_seq[2 * b] >= tokens) return fit;
        if (!same_span(&span, &state->recorded_span)) return fit;
    }
    return fit;
}

/* What a submission of that many steps has done to the sequences: by the tokens, as dart_advance decides it, since a caller mostly wants them
 * as well, and a second read is another wait for the device. They are left in host_log. */
static dart_status follow(dart_state *state, uint32_t steps, const char *call)
{
    if (state->stops) {
        const dart_status status = model_state_read(state, WORK_LOG, 0, state->host_log, (uint64_t)state->B * MODEL_LOG, call);
        if (status != DART_OK) return status;
    }
    for (uint32_t b = 0; b < state->B; b++) {
        uint32_t taken = state->stops ? 0 : steps;
        bool ended = state->stops && state->ended[b];
        while (!ended && taken < steps) {
            const int32_t position = state->positions[b] + (int32_t)++taken;
            ended = model_ends(state, b, state->host_log[b * MODEL_LOG + (uint32_t)position % MODEL_LOG], position);
        }
        state->taken[b] = taken;
        state->positions[b] += (int32_t)taken;
        state->ended[b] = ended;
        if (state->keeps_queries && state->taken[b] > 0) state->queries_at[b] = state->positions[b];
    }
    return DART_OK;
}

/* Which sequences take part: those that are not idle where the caller gives the ids, else those that have not ended, either. *any: some do. */
static dart_status choose_sequences(dart_state *state, const int32_t *ids, bool *any, const char *call)
{
    *any = false;
    if (ids == NULL) {
        const dart_status status = model_judge(state, call);
        if (status != DART_OK) return status;
    }
    for (uint32_t b = 0; b < state->B; b++) {
        if (ids != NULL && state->ended[b] != state->idle[b]) {
            state->ended[b] = state->idle[b];
            state->seq_current = false;
        }
        *any = *any || !state->ended[b];
    }
    return DART_OK;
}

/* *steps: how many are wanted, then how many were taken, 0 where all sequences have ended. ids: those of the first step, or NULL. */
static dart_status decode(dart_state *state, const int32_t *ids, const dart_sampling *sampling, uint32_t count, uint32_t *steps, const char *call)
{
    dart_status status = DART_OK;
    bool any = false;
    TRY(model_state_usable(state, call));
    TRY(check(state, ids, call));
    TRY(model_check_sampling(state, sampling, count, call));
    TRY(model_use_sampling(state, sampling, count, call));
    TRY(choose_sequences(state, ids, &any, call));
    if (!any) {
        if (ids != NULL) {
            TRY(model_state_write(state, WORK_NEXT, 0, ids, state->B, call));
            state->chosen = true;
            state->judged = false;
        }
        *steps = 0;
        memset(state->taken, 0, state->B * sizeof *state->taken);
        return DART_OK;
    }
    TRY(reserve(state, call));
    TRY(model_windows_open(state, call));
    look_ahead(state, 0);
    TRY(record(state, call));
    *steps = steps_together(state, *steps);
    TRY(model_write_seq(state, call));
    if (ids != NULL) {
        state->chosen = false;
        TRY(model_state_write(state, WORK_NEXT, 0, ids, state->B, call));
    }
    state->broken = DART_INTERNAL;
    uint64_t ns = 0, slowest = 0;
    if (state->decode->parts.count > 1) TRY(model_state_run_parts(state, state->decode, NULL, NULL, &ns, &slowest, call));
    else TRY(model_state_run(state, state->decode, *steps, &ns, call));
    state->step_ns = (double)ns / *steps;
    judge_cuts(state, slowest > 0 ? (double)slowest : state->step_ns);
    state->last_steps = *steps;
    TRY(follow(state, *steps, call));
    state->judged = true;
    state->chosen = true;
    return DART_OK;
fail:
    if (state->broken == DART_INTERNAL) state->broken = status;
    return status;
}

/* Rows of the logits and of the scores of sequences that took a token. */
static dart_status read_rows(dart_state *state, float *logits, const dart_scores *scores, const char *call)
{
    const uint64_t V = state->model->config.V;
    dart_status status = DART_OK;
    for (uint32_t b = 0, n; b < state->B && status == DART_OK; b += n) {
        for (n = 0; b + n < state->B && state->taken[b + n] > 0; n++) continue;
        if (n > 0 && logits != NULL) status = model_state_read(state, WORK_LOGITS, b * V, &logits[b * V], n * V, call);
        if (n > 0 && scores != NULL && status == DART_OK) status = model_read_scores(state, scores, b, b, n, call);
        if (n == 0) n = 1;
    }
    return status;
}

dart_status dart_decode(dart_state *state, const dart_decode_args *args)
{
    static const char call[] = "dart_decode";
    if (state == NULL) return DART_INVALID_ARGUMENT;
    REQUIRE(&state->report, args != NULL, "%s: no arguments", call);
    uint32_t steps = 1;
    dart_status status = model_check_scores(state, args->scores, true, call);
    if (status == DART_OK) status = decode(state, args->ids, args->sampling, args->sampling_count, &steps, call);
    if (status != DART_OK) return status;
    if (args->scores != NULL && steps > 0) TRY(model_run_scores(state, args->scores, call));
    if (args->logits != NULL || args->scores != NULL) TRY(read_rows(state, args->logits, args->scores, call));
    if (args->next_ids != NULL) TRY(model_state_read(state, WORK_NEXT, 0, args->next_ids, state->B, call));
    for (uint32_t b = 0; b < state->B && args->next_ids != NULL; b++)
        if (state->taken[b] == 0) args->next_ids[b] = -1;
fail:
    state->broken = status;
    return status;
}

/* The tokens that the last `steps` steps chose, to ids (steps B); -1 where a sequence had ended. */
static dart_status read_log(dart_state *state, uint32_t steps, int32_t *ids, const char *call)
{
    dart_status status = DART_OK;
    if (!state->stops) status = model_state_read(state, WORK_LOG, 0, state->host_log, (uint64_t)state->B * MODEL_LOG, call); /* else follow has */
    for (uint32_t i = 0; i < steps && status == DART_OK; i++)
        for (uint32_t b = 0; b < state->B; b++) {
            const uint32_t position = (uint32_t)state->positions[b] - state->taken[b] + i + 1;
            ids[(size_t)i * state->B + b] = i < state->taken[b] ? state->host_log[b * MODEL_LOG + position % MODEL_LOG] : -1;
        }
    return status;
}

/* Steps of the last submission in which some sequence took a token. */
static uint32_t steps_taken(const dart_state *state)
{
    uint32_t most = 0;
    for (uint32_t b = 0; b < state->B; b++)
        if (state->taken[b] > most) most = state->taken[b];
    return most;
}

dart_status dart_generate(dart_state *state, const dart_generate_args *args)
{
    static const char call[] = "dart_generate";
    if (state == NULL) return DART_INVALID_ARGUMENT;
    REQUIRE(&state->report, args != NULL, "%s: no arguments", call);
    const uint32_t together = args->together != 0 ? args->together : args->step != NULL ? 1 : MODEL_LOG;
    const bool reports = args->step != NULL || args->ids != NULL;
    uint32_t done = 0;
    while (done < args->n) {
        uint32_t steps = args->n - done < together ? args->n - done : together;
        dart_status status = decode(state, NULL, args->sampling, args->sampling_count, &steps, call);
        if (status == DART_OK) steps = steps_taken(state);
        if (status == DART_OK && reports && steps > 0) status = read_log(state, steps, state->host_steps, call);
        if (status == DART_OK || state->broken == DART_INTERNAL) state->broken = status;
        if (status != DART_OK) return status;
        if (steps == 0) break; /* all have ended */
        const size_t count = (size_t)steps * state->B;
        if (args->ids != NULL) memcpy(args->ids + (size_t)done * state->B, state->host_steps, count * sizeof *args->ids);
        for (uint32_t k = 0; k < steps && args->step != NULL; k++)
            if (!args->step(args->user, done + k, state->host_steps + (size_t)k * state->B)) return DART_OK;
        done += steps;
    }
    for (size_t i = (size_t)done * state->B; i < (size_t)args->n * state->B && args->ids != NULL; i++) args->ids[i] = -1;
    return DART_OK;
}
