#include "serve/batch.h"
#include "base/base.h"

#include <stdlib.h>
#include <string.h>

/* ---- Making ---- */

static dart_status make_state(dart_model *model, uint32_t B, const batch_options *o, dart_state **state, batch *b)
{
    const dart_state_options options = {.B = B, .S = o->S, .no_sma = o->no_sma, .slice_ms = UINT32_MAX};
    const dart_status status = dart_state_create(model, &options, state);
    if (status != DART_OK) dart_model_error(model, b->failure, sizeof b->failure);
    return status;
}

dart_status batch_create(dart_model *model, dart_tokenizer *tokenizer, const batch_options *options, metrics *counts, batch *b)
{
    dart_model_info info;
    dart_tokenizer_info text;
    *b = (batch){.tokenizer = tokenizer, .options = *options, .counts = counts, .given = true};
    b->fill_size = options->slots < BATCH_FILL ? options->slots : BATCH_FILL;
    const uint32_t larger = options->slots > b->fill_size ? options->slots : b->fill_size;
    b->filling = calloc(b->fill_size, sizeof *b->filling);
    b->running = calloc(options->slots, sizeof *b->running);
    b->sampling = calloc(larger, sizeof *b->sampling);
    b->next = calloc(larger, sizeof *b->next);
    b->last = calloc(options->slots, sizeof *b->last);
    b->steps = calloc((size_t)options->slots * BATCH_STEPS, sizeof *b->steps);
    b->lengths = calloc(b->fill_size, sizeof *b->lengths);
    b->from = calloc(b->fill_size, sizeof *b->from);
    b->to = calloc(b->fill_size, sizeof *b->to);
    if (b->filling == NULL || b->running == NULL || b->sampling == NULL || b->next == NULL || b->last == NULL || b->steps == NULL ||
        b->lengths == NULL || b->from == NULL || b->to == NULL)
        return DART_OUT_OF_MEMORY;
    dart_status status = dart_model_describe(model, &info);
    if (status == DART_OK) status = dart_tokenizer_describe(tokenizer, &text);
    if (status == DART_OK) status = make_state(model, b->fill_size, options, &b->fill, b);
    if (status == DART_OK) status = make_state(model, options->slots, options, &b->run, b);
    if (status != DART_OK) return status;
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
    free(b->filling);
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

static const api_settings *settings_of(const job_sequence *s) { return &s->of->request.settings; }

/* Whether it needs a slot: its first token comes with the prompt. */
static bool goes_on(const job_sequence *s) { return settings_of(s)->max_tokens > 1; }

bool batch_room(const batch *b, const job_sequence *s)
{
    return b->filling_count < b->fill_size && (!goes_on(s) || b->running_count + b->reserved < b->options.slots);
}

void batch_add(batch *b, job_sequence *s)
{
    const api_settings *set = settings_of(s);
    const dart_text_options text = {.stops = (const char *const *)set->stops, .stops_count = set->stops_count};
    uint32_t at = 0;
    dart_status status = dart_text_stream_create(b->tokenizer, &text, &s->stream);
    while (b->filling[at] != NULL) at++;
    if (status == DART_OK && dart_state_position(b->fill, at) > 0) status = dart_state_reset(b->fill, (int32_t)at);
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

static void leave_filling(batch *b, uint32_t at, bool to_slot)
{
    job_sequence *s = b->filling[at];
    b->filling[at] = NULL;
    b->filling_count--;
    b->reserved -= goes_on(s);
    atomic_store(&b->counts->prefilling, b->filling_count);
    if (!to_slot) job_release(s->of);
}

static void leave_slot(batch *b, uint32_t at)
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
            leave_filling(b, i, false);
        }
    for (uint32_t i = 0; i < b->options.slots; i++)
        if (b->running[i] != NULL && unwanted(b->running[i])) {
            atomic_fetch_add(&b->counts->cancelled, 1);
            leave_slot(b, i);
        }
}

static void fail_filling(batch *b, int status, const char *message)
{
    for (uint32_t i = 0; i < b->fill_size && b->filling != NULL; i++)
        if (b->filling[i] != NULL) {
            job_fail(b->filling[i]->of, status, message);
            leave_filling(b, i, false);
        }
}

static void fail_running(batch *b, int status, const char *message)
{
    for (uint32_t i = 0; i < b->options.slots && b->running != NULL; i++)
        if (b->running[i] != NULL) {
            job_fail(b->running[i]->of, status, message);
            leave_slot(b, i);
        }
}

void batch_fail(batch *b, int status, const char *message)
{
    fail_filling(b, status, message);
    fail_running(b, status, message);
}

/* A call on a state has failed: those that it computes end, and the state is made new. false: it cannot be. teller has the text. */
static bool recover(batch *b, dart_state *state, const dart_state *teller, dart_status status)
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

static dart_sampling sampling_of(const batch *b, const job_sequence *s)
{
    const api_settings *set = settings_of(s);
    dart_sampling sampling = {.temperature = set->temperature, .top_k = set->top_k, .top_p = set->top_p, .min_p = set->min_p, .anywhere = true,
                              .repetition_penalty = set->repetition_penalty, .ids_below = b->ids_below, .seed = s->seed,
                              .last_position = (uint64_t)s->count + set->max_tokens - 1};
    if (!set->ignore_eos && b->eos >= 0) {
        sampling.end_ids_count = 1;
        sampling.end_ids[0] = b->eos;
    }
    return sampling;
}

/* Appends row `row` of a call's scores, without one a place that has no meaning. */
static bool add_score(job_sequence *s, const dart_scores *scores, size_t row)
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

/* With the job's lock held. */
static void finish(batch *b, job_sequence *s, const char *reason)
{
    job *j = s->of;
    s->finish = reason;
    if (++j->done < j->count) return;
    metrics_time(&b->counts->whole, base_now_ns() - j->arrived_ns);
    job_wake(j);
}

/* The next token of a sequence. true: it was the last one. */
static bool accept(batch *b, job_sequence *s, int32_t id, const dart_scores *scores, size_t row)
{
    job *j = s->of;
    const api_settings *set = settings_of(s);
    const char *text = "", *reason = NULL;
    size_t bytes = 0;
    bool stopped = false, done = true;
    const bool ends = id == b->eos && !set->ignore_eos;
    atomic_fetch_add(&b->counts->generated_tokens, 1);
    pthread_mutex_lock(&j->lock);
    if (!j->has_first) metrics_time(&b->counts->first, base_now_ns() - j->arrived_ns);
    j->has_first = true;
    done = dart_token_list_add(&s->tokens, id) == DART_OK && (set->logprobs < 0 || add_score(s, scores, row));
    if (done && !ends) done = dart_text_stream_feed(s->stream, &id, 1, &text, &bytes, &stopped) == DART_OK;
    if (done) api_add(&s->text, text, bytes);
    if (done && (ends || stopped)) reason = "stop";
    else if (done && s->tokens.count == set->max_tokens) reason = "length";
    if (reason != NULL && !stopped) { /* what might have begun a stop, or a character */
        done = dart_text_stream_end(s->stream, &text, &bytes) == DART_OK;
        if (done) api_add(&s->text, text, bytes);
    }
    done = done && !s->text.failed;
    if (done && reason != NULL) finish(b, s, reason);
    pthread_mutex_unlock(&j->lock);
    if (!done) job_fail(j, 503, "no memory for the answer");
    return !done || reason != NULL;
}

/* Tells the readers of streams that there is news. */
static void wake_streams(job_sequence **sequences, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (sequences[i] == NULL || !settings_of(sequences[i])->stream) continue;
        pthread_mutex_lock(&sequences[i]->of->lock);
        job_wake(sequences[i]->of);
        pthread_mutex_unlock(&sequences[i]->of->lock);
    }
}

/* Room for the scores of that many rows of a call, k each. */
static bool prepare_scores(batch *b, dart_scores *scores, size_t rows, uint32_t k)
{
    b->scores.k = k;
    b->scores.count = b->scores.capacity = 0;
    if (!api_scores_reserve(&b->scores, rows)) return false;
    *scores = (dart_scores){.k = k, .target = b->scores.own, .top_ids = k > 0 ? b->scores.top_ids : NULL, .top = k > 0 ? b->scores.top : NULL};
    return true;
}

/* ---- Prompts ---- */

/* A round: tokens of each prompt, and rows whose log-probabilities are wanted. */
typedef struct fill_round {
    uint32_t L;             /* of the longest */
    size_t rows;
    uint32_t k, choice_k;   /* likeliest tokens of rows; of the tokens that are chosen */
    bool chooses, scored;   /* some prompt ends and wants a token; with its log-probability */
} fill_round;

static bool ends_in(const batch *b, uint32_t i) { return b->filling[i]->fed + b->lengths[i] == b->filling[i]->count; }

static bool grow(void **at, size_t *room, size_t wanted, size_t size)
{
    if (wanted <= *room) return true;
    void *grown = realloc(*at, wanted * size);
    if (grown == NULL) return false;
    *at = grown;
    *room = wanted;
    return true;
}

/* All that is left where the budget has room for it, else the same number of tokens of each. */
static fill_round plan_round(batch *b)
{
    const uint64_t budget = (uint64_t)b->options.budget * (b->running_count > 0 ? 1 : 4);
    uint64_t left = 0, each = budget / b->filling_count;
    fill_round r = {.L = 0};
    for (uint32_t i = 0; i < b->fill_size; i++)
        if (b->filling[i] != NULL) left += b->filling[i]->count - b->filling[i]->fed;
    if (left <= budget || each == 0) each = left <= budget ? UINT32_MAX : 1;
    for (uint32_t i = 0; i < b->fill_size; i++) {
        const job_sequence *s = b->filling[i];
        b->lengths[i] = 0;
        if (s == NULL) continue;
        const api_settings *set = settings_of(s);
        const uint32_t rest = s->count - s->fed, k = s->scores.k;
        b->lengths[i] = rest < each ? rest : (uint32_t)each;
        if (b->lengths[i] > r.L) r.L = b->lengths[i];
        if (set->logprobs >= 0 && set->echo) {
            r.rows += b->lengths[i] - (ends_in(b, i) ? 1 : 0);
            if (k > r.k) r.k = k;
        }
        if (!ends_in(b, i) || set->max_tokens == 0) continue;
        r.chooses = true;
        if (set->logprobs < 0) continue;
        r.scored = true;
        if (k > r.choice_k) r.choice_k = k;
    }
    return r;
}

static bool write_round(batch *b, const fill_round *r)
{
    size_t rows = 0, room = b->rows_room;
    void *ids = b->ids, *places = b->rows, *targets = b->targets;
    const bool done = grow(&ids, &b->ids_room, (size_t)b->fill_size * r->L, sizeof *b->ids) && grow(&places, &room, r->rows, sizeof *b->rows) &&
                      grow(&targets, &b->rows_room, r->rows, sizeof *b->targets);
    b->ids = ids;
    b->rows = places;
    b->targets = targets;
    for (uint32_t i = 0; i < b->fill_size && done; i++) {
        const job_sequence *s = b->filling[i];
        if (s == NULL) continue;
        memcpy(b->ids + (size_t)i * r->L, s->ids + s->fed, b->lengths[i] * sizeof *b->ids);
        b->sampling[i] = sampling_of(b, s);
        if (settings_of(s)->logprobs < 0 || !settings_of(s)->echo) continue;
        for (uint32_t t = 0; t < b->lengths[i] && s->fed + t + 1 < s->count; t++) {
            b->rows[rows] = (uint64_t)i * r->L + t;
            b->targets[rows++] = s->ids[s->fed + t + 1];
        }
    }
    return done;
}

/* The rows of prompts, in the order of write_round. */
static void take_rows(batch *b, const dart_scores *scores)
{
    size_t row = 0;
    for (uint32_t i = 0; i < b->fill_size; i++) {
        job_sequence *s = b->filling[i];
        if (s == NULL || settings_of(s)->logprobs < 0 || !settings_of(s)->echo) continue;
        pthread_mutex_lock(&s->of->lock);
        bool done = s->fed > 0 || add_score(s, NULL, 0);
        for (uint32_t t = 0; t < b->lengths[i] && s->fed + t + 1 < s->count; t++) done = done && add_score(s, scores, row++);
        pthread_mutex_unlock(&s->of->lock);
        if (!done) job_fail(s->of, 503, "no memory for log-probabilities");
    }
}

/* Those whose prompt is complete take their first token, and go to a slot if more are to come. */
static dart_status take_first(batch *b, const dart_scores *scores)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < b->fill_size; i++) {
        job_sequence *s = b->filling[i];
        if (s == NULL) continue;
        s->fed += b->lengths[i];
        atomic_fetch_add(&b->counts->prompt_tokens, b->lengths[i]);
        if (s->fed < s->count) continue;
        bool over = settings_of(s)->max_tokens == 0;
        if (over) {
            pthread_mutex_lock(&s->of->lock);
            finish(b, s, "length");
            pthread_mutex_unlock(&s->of->lock);
        } else over = accept(b, s, b->next[i], scores, i);
        if (over) leave_filling(b, i, false);
        else b->from[count++] = i;
    }
    for (uint32_t n = 0, at = 0; n < count; n++, at++) {
        while (b->running[at] != NULL) at++;
        b->to[n] = at;
    }
    const dart_status status = dart_state_copy_several(b->run, b->to, b->fill, b->from, count);
    if (status != DART_OK) return status;
    for (uint32_t n = 0; n < count; n++) {
        job_sequence *s = b->filling[b->from[n]];
        leave_filling(b, b->from[n], true);
        b->running[b->to[n]] = s;
        b->running_count++;
        b->last[b->to[n]] = s->tokens.ids[s->tokens.count - 1];
        b->given = true;
    }
    atomic_store(&b->counts->decoding, b->running_count);
    return DART_OK;
}

bool batch_prefill(batch *b)
{
    if (b->filling_count == 0) return true;
    const uint64_t begin = base_now_ns();
    const uint32_t ran = b->running_count;
    const fill_round r = plan_round(b);
    dart_scores scores = {.k = 0};
    const dart_prefill_args choice = {.sampling = b->sampling, .sampling_count = b->fill_size, .next_ids = b->next,
                                      .want = r.scored ? DART_LOGITS_LAST : DART_LOGITS_NONE, .scores = r.scored ? &scores : NULL};
    dart_prefill_args args = r.chooses && r.rows == 0 ? choice : (dart_prefill_args){.L = 0};
    const dart_state *teller = b->fill;
    dart_status status = DART_OUT_OF_MEMORY;
    for (uint32_t i = 0; i < b->fill_size; i++) b->sampling[i] = (dart_sampling){.temperature = 0};
    if (!write_round(b, &r)) goto fail;
    if (!prepare_scores(b, &scores, r.rows > 0 ? r.rows : b->fill_size, r.rows > 0 ? r.k : r.choice_k)) goto fail;
    args.L = r.L;
    args.ids = b->ids;
    args.counts = b->lengths;
    if (r.rows > 0) {
        scores.targets = b->targets;
        args.want = DART_LOGITS_ROWS;
        args.rows = b->rows;
        args.rows_count = r.rows;
        args.scores = &scores;
    }
    status = dart_prefill(b->fill, &args);
    if (status != DART_OK) goto fail;
    take_rows(b, &scores);
    if (r.rows > 0 && r.chooses) { /* a call has rows, or the tokens that it chooses */
        status = DART_OUT_OF_MEMORY;
        if (r.scored && !prepare_scores(b, &scores, b->fill_size, r.choice_k)) goto fail;
        status = dart_prefill(b->fill, &choice);
        if (status != DART_OK) goto fail;
    }
    teller = b->run;
    status = take_first(b, &scores);
    if (status != DART_OK) goto fail;
    teller = b->fill;
    if (b->given) { /* sequences have joined; without some to interrupt nothing was lost */
        b->joined_at_ns = base_now_ns();
        b->join_ns = ran > 0 ? b->joined_at_ns - begin : 0;
    }
    wake_streams(b->running, b->options.slots);
    return b->filling_count > 0 || dart_state_reset(b->fill, -1) == DART_OK;
fail:
    return recover(b, b->fill, teller, status);
}

/* ---- Steps ---- */

/* How many steps to submit together: for about 16 ms, so that streams flow and others can join. */
static uint32_t steps_together(const batch *b)
{
    const double most = b->step_ns > 0 ? 16e6 / b->step_ns : 1;
    return most < 1 ? 1 : most > BATCH_STEPS ? BATCH_STEPS : (uint32_t)most;
}

bool batch_decode(batch *b)
{
    const uint32_t B = b->options.slots;
    uint32_t k = 0, steps = 1;
    bool scored = false;
    dart_scores scores = {.k = 0};
    if (b->running_count == 0) return true;
    for (uint32_t i = 0; i < B; i++) {
        const job_sequence *s = b->running[i];
        b->sampling[i] = (dart_sampling){.idle = true};
        if (s == NULL) {
            b->last[i] = 0;
            continue;
        }
        b->sampling[i] = sampling_of(b, s);
        scored = scored || settings_of(s)->logprobs >= 0;
        if (settings_of(s)->logprobs >= 0 && s->scores.k > k) k = s->scores.k;
    }
    dart_status status = DART_OUT_OF_MEMORY;
    const uint64_t begin = base_now_ns();
    if (scored && !prepare_scores(b, &scores, B, k)) goto fail;
    if (scored || b->given) {
        const dart_decode_args args = {.ids = b->given ? b->last : NULL, .sampling = b->sampling, .sampling_count = B, .next_ids = b->steps,
                                       .scores = scored ? &scores : NULL};
        status = dart_decode(b->run, &args);
    } else {
        steps = steps_together(b);
        const dart_generate_args args = {.n = steps, .together = steps, .sampling = b->sampling, .sampling_count = B, .ids = b->steps};
        status = dart_generate(b->run, &args);
    }
    if (status != DART_OK) goto fail;
    b->step_ns = (double)(base_now_ns() - begin) / steps;
    b->given = false;
    for (uint32_t i = 0; i < B; i++)
        for (uint32_t n = 0; n < steps && b->running[i] != NULL; n++) {
            const int32_t id = b->steps[(size_t)n * B + i];
            if (id < 0) break;
            b->last[i] = id;
            if (accept(b, b->running[i], id, &scores, i)) leave_slot(b, i);
        }
    wake_streams(b->running, B);
    /* Empty slots give their memories back, and the next answer is computed as in a new state. */
    if (b->running_count > 0) return true;
    b->given = true;
    status = dart_state_reset(b->run, -1);
    if (status == DART_OK) return true;
fail:
    return recover(b, b->run, b->run, status);
}
