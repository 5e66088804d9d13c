/* A round of prompts. */
#include "serve/batch_parts.h"

#include <stdlib.h>
#include <string.h>

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
    const uint64_t budget = (uint64_t)b->budget * (b->running_count > 0 ? 1 : 4);
    uint64_t left = 0, each = budget / b->filling_count;
    fill_round r = {.L = 0};
    for (uint32_t i = 0; i < b->fill_size; i++)
        if (b->filling[i] != NULL) left += b->filling[i]->count - b->filling[i]->fed;
    if (left <= budget || each == 0) each = left <= budget ? UINT32_MAX : 1;
    for (uint32_t i = 0; i < b->fill_size; i++) {
        const job_sequence *s = b->filling[i];
        b->lengths[i] = 0;
        if (s == NULL) continue;
        const api_settings *set = batch_settings_of(s);
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

/* A round costs a GPU several milliseconds, however small it is: a budget that cuts prompts in five makes their slots wait five times as long. So
 * it follows the rate of the last round that was not small, or that took too long. */
static void note_round(batch *b, uint64_t ns)
{
    enum { ROUND_NS = 20000000, MOST_BUDGET = 8192 };
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < b->fill_size; i++) tokens += b->lengths[i];
    if (b->options.budget != 0 || (ns <= ROUND_NS && tokens < b->budget / 2)) return;
    const double rate = (double)tokens * ROUND_NS / (double)(ns > 0 ? ns : 1);
    b->budget = rate < BATCH_LEAST_BUDGET ? BATCH_LEAST_BUDGET : rate > MOST_BUDGET ? MOST_BUDGET : (uint32_t)rate;
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
        b->sampling[i] = batch_sampling_of(b, s);
        if (batch_settings_of(s)->logprobs < 0 || !batch_settings_of(s)->echo) continue;
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
        if (s == NULL || batch_settings_of(s)->logprobs < 0 || !batch_settings_of(s)->echo) continue;
        pthread_mutex_lock(&s->of->lock);
        bool done = s->fed > 0 || batch_add_score(s, NULL, 0);
        for (uint32_t t = 0; t < b->lengths[i] && s->fed + t + 1 < s->count; t++) done = done && batch_add_score(s, scores, row++);
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
        bool over = batch_settings_of(s)->max_tokens == 0;
        if (over) {
            pthread_mutex_lock(&s->of->lock);
            batch_finish(b, s, "length");
            pthread_mutex_unlock(&s->of->lock);
        } else over = batch_accept(b, s, b->next[i], scores, i);
        if (over) batch_leave_filling(b, i, false);
        else b->from[count++] = i;
    }
    for (uint32_t n = 0, at = 0; n < count; n++, at++) {
        while (b->running[at] != NULL) at++;
        b->to[n] = at;
    }
    const uint64_t begin = base_now_ns();
    const dart_status status = dart_state_copy_several(b->run, b->to, b->fill, b->from, count);
    atomic_fetch_add(&b->counts->join_ns, base_now_ns() - begin);
    if (status != DART_OK) return status;
    for (uint32_t n = 0; n < count; n++) {
        job_sequence *s = b->filling[b->from[n]];
        batch_leave_filling(b, b->from[n], true);
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
    if (!batch_prepare_scores(b, &scores, r.rows > 0 ? r.rows : b->fill_size, r.rows > 0 ? r.k : r.choice_k)) goto fail;
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
        if (r.scored && !batch_prepare_scores(b, &scores, b->fill_size, r.choice_k)) goto fail;
        status = dart_prefill(b->fill, &choice);
        if (status != DART_OK) goto fail;
    }
    const uint64_t ns = base_now_ns() - begin;
    atomic_fetch_add(&b->counts->prefill_ns, ns);
    note_round(b, ns);
    teller = b->run;
    status = take_first(b, &scores);
    if (status != DART_OK) goto fail;
    if (b->given) { /* sequences have joined; without some to interrupt nothing was lost */
        b->joined_at_ns = base_now_ns();
        b->join_ns = ran > 0 ? b->joined_at_ns - begin : 0;
    }
    batch_wake_streams(b->running, b->options.slots);
    return b->filling_count > 0 || dart_state_reset(b->fill, -1) == DART_OK;
fail:
    return batch_recover(b, b->fill, teller, status);
}
