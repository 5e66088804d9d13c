#include "serve/batch_parts.h"

#include <stdlib.h>
#include <string.h>

/* ---- Making ---- */

static dart_status make_state(dart_model *model, uint32_t B, const batch_options *o, dart_state **state, batch *b)
{
    const dart_state_options options = {.B = B, .S = o->S, .no_sma = o->no_sma, .slice_ms = UINT32_MAX};
    dart_status status = dart_state_create(model, &options, state);
    if (status != DART_OK) dart_model_error(model, b->failure, sizeof b->failure);
    if (status != DART_OK) return status;
    status = dart_state_warm(*state); /* so that no request waits for a compiler */
    if (status != DART_OK) dart_state_error(*state, b->failure, sizeof b->failure);
    return status;
}

dart_status batch_create(dart_model *model, dart_tokenizer *tokenizer, const batch_options *options, metrics *counts, batch *b)
{
    dart_model_info info;
    dart_tokenizer_info text;
    *b = (batch){.tokenizer = tokenizer, .options = *options, .counts = counts, .given = true};
    b->budget = options->budget != 0 ? options->budget : BATCH_LEAST_BUDGET;
    b->fill_size = options->slots < BATCH_FILL ? options->slots : BATCH_FILL;
    b->filling = calloc(b->fill_size, sizeof *b->filling);
    b->running = calloc(options->slots, sizeof *b->running);
    b->leader = calloc(b->fill_size, sizeof *b->leader);
    b->shared = calloc(b->fill_size, sizeof *b->shared);
    b->sampling = calloc(options->slots, sizeof *b->sampling);
    b->fill_sampling = calloc(b->fill_size, sizeof *b->fill_sampling);
    b->next = calloc(b->fill_size, sizeof *b->next);
    b->last = calloc(options->slots, sizeof *b->last);
    b->steps = calloc((size_t)options->slots * BATCH_STEPS, sizeof *b->steps);
    b->lengths = calloc(b->fill_size, sizeof *b->lengths);
    b->from = calloc(b->fill_size, sizeof *b->from);
    b->to = calloc(b->fill_size, sizeof *b->to);
    if (b->filling == NULL || b->running == NULL || b->leader == NULL || b->shared == NULL || b->sampling == NULL || b->fill_sampling == NULL ||
        b->next == NULL || b->last == NULL || b->steps == NULL ||
        b->lengths == NULL || b->from == NULL || b->to == NULL)
        return DART_OUT_OF_MEMORY;
    dart_status status = dart_model_describe(model, &info);
    if (status == DART_OK) status = dart_tokenizer_describe(tokenizer, &text);
    if (status == DART_OK) status = make_state(model, b->fill_size, options, &b->fill, b);
    if (status == DART_OK) status = make_state(model, options->slots, options, &b->run, b);
    if (status != DART_OK) return status;
    for (uint32_t i = 0; i < b->fill_size; i++) b->leader[i] = BATCH_NONE;
    b->eos = text.eos >= 0 && (uint32_t)text.eos < info.config.V ? text.eos : -1;
    b->ids_below = text.ids < info.config.V ? text.ids : 0;
    atomic_store(&counts->slots, options->slots);
    return DART_OK;
}

void batch_destroy(batch *b)
{
    batch_fail(b, 503, "the server has ended");
    dart_state_destroy(&b->fill);
    dart_state_destroy(&b->run);
    api_scores_free(&b->scores);
    api_scores_free(&b->row_scores);
    api_scores_free(&b->choice_scores);
    free(b->filling);
    free(b->leader);
    free(b->shared);
    free(b->fill_sampling);
    free(b->running);
    free(b->sampling);
    free(b->next);
    free(b->last);
    free(b->steps);
    free(b->lengths);
    free(b->from);
    free(b->to);
    free(b->ids);
    free(b->rows);
    free(b->targets);
    *b = (batch){.eos = -1};
}

/* ---- Sequences come and go ---- */

const api_settings *batch_settings_of(const job_sequence *s) { return &s->of->request.settings; }

/* Whether it needs a slot: its first token comes with the prompt. */
static bool goes_on(const job_sequence *s) { return batch_settings_of(s)->max_tokens > 1; }

bool batch_room(const batch *b, const job_sequence *s)
{
    return b->filling_count < b->fill_size && (!goes_on(s) || b->running_count + b->reserved < b->options.slots);
}

void batch_add(batch *b, job_sequence *s)
{
    const api_settings *set = batch_settings_of(s);
    const dart_text_options text = {.stops = (const char *const *)set->stops, .stops_count = set->stops_count};
    uint32_t at = 0;
    dart_status status = dart_text_stream_create(b->tokenizer, &text, &s->stream);
    while (b->filling[at] != NULL) at++;
    if (status != DART_OK) {
        job_fail(s->of, status == DART_INVALID_ARGUMENT ? 400 : 503, status == DART_INVALID_ARGUMENT ? "a stop is not UTF-8" : "no memory");
        return;
    }
    job_keep(s->of);
    b->filling[at] = s;
    b->filling_count++;
    b->reserved += goes_on(s);
    atomic_store(&b->counts->prefilling, b->filling_count);
}

void batch_leave_filling(batch *b, uint32_t at, bool to_slot)
{
    job_sequence *s = b->filling[at];
    b->filling[at] = NULL;
    b->leader[at] = BATCH_NONE;
    for (uint32_t i = 0; i < b->fill_size; i++)
        if (b->leader[i] == at) b->leader[i] = BATCH_NONE; /* it is computed by itself then */
    b->filling_count--;
    b->reserved -= goes_on(s);
    atomic_store(&b->counts->prefilling, b->filling_count);
    if (!to_slot) job_release(s->of);
}

void batch_leave_slot(batch *b, uint32_t at)
{
    job_sequence *s = b->running[at];
    b->running[at] = NULL;
    b->running_count--;
    atomic_store(&b->counts->decoding, b->running_count);
    job_release(s->of);
}

static bool unwanted(job_sequence *s)
{
    pthread_mutex_lock(&s->of->lock);
    const bool none = s->of->failure.status != 0;
    pthread_mutex_unlock(&s->of->lock);
    return none;
}

void batch_drop_cancelled(batch *b)
{
    for (uint32_t i = 0; i < b->fill_size; i++)
        if (b->filling[i] != NULL && unwanted(b->filling[i])) {
            atomic_fetch_add(&b->counts->cancelled, 1);
            batch_leave_filling(b, i, false);
        }
    for (uint32_t i = 0; i < b->options.slots; i++)
        if (b->running[i] != NULL && unwanted(b->running[i])) {
            atomic_fetch_add(&b->counts->cancelled, 1);
            batch_leave_slot(b, i);
        }
}

static void fail_filling(batch *b, int status, const char *message)
{
    for (uint32_t i = 0; i < b->fill_size && b->filling != NULL; i++)
        if (b->filling[i] != NULL) {
            job_fail(b->filling[i]->of, status, message);
            batch_leave_filling(b, i, false);
        }
}

static void fail_running(batch *b, int status, const char *message)
{
    for (uint32_t i = 0; i < b->options.slots && b->running != NULL; i++)
        if (b->running[i] != NULL) {
            job_fail(b->running[i]->of, status, message);
            batch_leave_slot(b, i);
        }
}

void batch_fail(batch *b, int status, const char *message)
{
    fail_filling(b, status, message);
    fail_running(b, status, message);
}

bool batch_recover(batch *b, dart_state *state, const dart_state *teller, dart_status status)
{
    const int code = status == DART_OUT_OF_MEMORY ? 503 : 500;
    dart_state_error(teller, b->failure, sizeof b->failure);
    const char *text = b->failure[0] != '\0' ? b->failure : dart_status_name(status);
    if (state == b->fill) fail_filling(b, code, text);
    else fail_running(b, code, text);
    b->given = b->given || state == b->run;
    if (dart_state_reset(state, -1) == DART_OK) return true;
    batch_fail(b, 503, text);
    return false;
}

/* ---- Tokens ---- */

dart_sampling batch_sampling_of(const batch *b, const job_sequence *s)
{
    const api_settings *set = batch_settings_of(s);
    dart_sampling sampling = {.temperature = set->temperature, .top_k = set->top_k, .top_p = set->top_p, .min_p = set->min_p, .anywhere = true,
                              .repetition_penalty = set->repetition_penalty, .ids_below = b->ids_below, .seed = s->seed,
                              .last_position = (uint64_t)s->count + set->max_tokens - 1};
    for (; sampling.end_ids_count < set->stop_ids_count; sampling.end_ids_count++)
        sampling.end_ids[sampling.end_ids_count] = set->stop_ids[sampling.end_ids_count];
    if (!set->ignore_eos && b->eos >= 0) sampling.end_ids[sampling.end_ids_count++] = b->eos;
    return sampling;
}

bool batch_add_score(job_sequence *s, const dart_scores *scores, size_t row)
{
    api_scores *to = &s->scores;
    if (!api_scores_reserve(to, 1)) return false;
    to->own[to->count] = scores != NULL ? scores->target[row] : 0;
    for (uint32_t j = 0; j < to->k; j++) {
        to->top_ids[to->count * to->k + j] = scores != NULL ? scores->top_ids[row * scores->k + j] : -1;
        to->top[to->count * to->k + j] = scores != NULL ? scores->top[row * scores->k + j] : 0;
    }
    to->count++;
    return true;
}

void batch_finish(batch *b, job_sequence *s, const char *reason)
{
    job *j = s->of;
    s->finish = reason;
    if (++j->done < j->count) return;
    metrics_time(&b->counts->whole, base_now_ns() - j->arrived_ns);
    job_wake(j);
}

bool batch_accept(batch *b, job_sequence *s, int32_t id, const dart_scores *scores, size_t row)
{
    job *j = s->of;
    const api_settings *set = batch_settings_of(s);
    const char *text = "", *reason = NULL;
    size_t bytes = 0;
    bool stopped = false, done = true;
    const bool ends = id == b->eos && !set->ignore_eos;
    bool stops = ends; /* a token to stop at has its text, unlike the end of text */
    for (uint32_t i = 0; i < set->stop_ids_count; i++) stops = stops || id == set->stop_ids[i];
    atomic_fetch_add(&b->counts->generated_tokens, 1);
    pthread_mutex_lock(&j->lock);
    if (!j->has_first) metrics_time(&b->counts->first, base_now_ns() - j->arrived_ns);
    j->has_first = true;
    done = dart_token_list_add(&s->tokens, id) == DART_OK && (set->logprobs < 0 || batch_add_score(s, scores, row));
    if (done && !ends) done = dart_text_stream_feed(s->stream, &id, 1, &text, &bytes, &stopped) == DART_OK;
    if (done) api_add(&s->text, text, bytes);
    if (done && (stops || stopped)) reason = "stop";
    else if (done && s->tokens.count == set->max_tokens) reason = "length";
    if (reason != NULL && !stopped) { /* what might have begun a stop, or a character */
        done = dart_text_stream_end(s->stream, &text, &bytes) == DART_OK;
        if (done) api_add(&s->text, text, bytes);
    }
    done = done && !s->text.failed;
    if (done && reason != NULL) batch_finish(b, s, reason);
    pthread_mutex_unlock(&j->lock);
    if (!done) job_fail(j, 503, "no memory for the answer");
    return !done || reason != NULL;
}

void batch_wake_streams(job_sequence **sequences, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (sequences[i] == NULL || !batch_settings_of(sequences[i])->stream) continue;
        pthread_mutex_lock(&sequences[i]->of->lock);
        job_wake(sequences[i]->of);
        pthread_mutex_unlock(&sequences[i]->of->lock);
    }
}

bool batch_prepare_scores(api_scores *room, dart_scores *scores, size_t rows, uint32_t k)
{
    room->k = k;
    room->count = room->capacity = 0;
    if (!api_scores_reserve(room, rows)) return false;
    *scores = (dart_scores){.k = k, .target = room->own, .top_ids = k > 0 ? room->top_ids : NULL, .top = k > 0 ? room->top : NULL};
    return true;
}
