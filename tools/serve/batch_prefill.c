/* A round of prompts. */
#include "serve/batch_parts.h"

#include <stdlib.h>
#include <string.h>

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

/* ---- Prompts that begin alike ---- */

static bool wants_rows(const job_sequence *s) { return batch_settings_of(s)->logprobs >= 0 && batch_settings_of(s)->echo; }

/* Tokens that the prompt at `at` has in common with that at `with`, less one: a token's row tells of the next one. 0 where
 * its log-probabilities would be missing. */
static uint32_t common(const batch *b, uint32_t with, uint32_t at)
{
    const job_sequence *s = b->filling[at], *other = b->filling[with];
    const uint32_t most = s->count < other->count ? s->count : other->count;
    uint32_t n = 0;
    if (wants_rows(s) && (!wants_rows(other) || s->scores.k != other->scores.k)) return 0;
    while (n < most && s->ids[n] == other->ids[n]) n++;
    return n > 0 ? n - 1 : 0;
}

/* What the prompt at `at` computes for others before it goes on; 0: it leads none. */
static uint32_t led_by(const batch *b, uint32_t at)
{
    for (uint32_t i = 0; i < b->fill_size; i++)
        if (b->leader[i] == at) return b->shared[i];
    return 0;
}

static bool is_new(const batch *b, uint32_t at)
{
    return b->filling[at] != NULL && b->filling[at]->fed == 0 && b->leader[at] == BATCH_NONE && led_by(b, at) == 0;
}

/* Of prompts that begin alike, as the answers of one request and questions about one text do, the first is computed up to where they part, and
 * its state is copied. That takes one more round, of some milliseconds on a GPU: it pays where it saves an eighth of a budget. */
static void find_shared(batch *b)
{
    uint32_t length[BATCH_FILL];
    for (uint32_t i = 0; i < b->fill_size; i++) {
        uint32_t longest = 0, least = UINT32_MAX, count = 0;
        if (!is_new(b, i)) continue;
        for (uint32_t k = i + 1; k < b->fill_size; k++) {
            length[k] = is_new(b, k) ? common(b, i, k) : 0;
            if (length[k] > longest) longest = length[k];
        }
        for (uint32_t k = i + 1; k < b->fill_size; k++) {
            if (length[k] == 0 || length[k] < longest / 2) length[k] = 0;
            else if (length[k] < least) least = length[k];
            count += length[k] > 0;
        }
        if (count == 0 || (uint64_t)least * count < b->budget / 8) continue;
        for (uint32_t k = i + 1; k < b->fill_size; k++) {
            if (length[k] == 0) continue;
            b->leader[k] = i;
            b->shared[k] = least;
        }
    }
}

/* Whether the round computes what the prompt at `at` waits for. */
static bool is_reached(const batch *b, uint32_t at)
{
    const uint32_t leader = b->leader[at];
    return leader != BATCH_NONE && b->filling[leader]->fed + b->lengths[leader] == b->shared[at];
}

/* ---- Planning ---- */

/* Tokens of a prompt up to its end, or up to where others go on from it. */
static uint32_t tokens_left(const batch *b, uint32_t i)
{
    const job_sequence *s = b->filling[i];
    const uint32_t led = s != NULL ? led_by(b, i) : 0;
    if (s == NULL || b->leader[i] != BATCH_NONE) return 0;
    return (led > 0 ? led : s->count) - s->fed;
}

/* All that is left where the budget has room for it, else the same number of tokens of each. */
static void plan_round(batch *b)
{
    const uint64_t budget = (uint64_t)b->budget * (b->running_count > 0 ? 1 : 4);
    uint64_t left = 0, each = 0, computed = 0; /* computed: prompts that do not wait for another */
    batch_round *r = &b->round;
    *r = (batch_round){.L = 0};
    for (uint32_t i = 0; i < b->fill_size; i++) {
        const uint32_t rest = tokens_left(b, i);
        left += rest;
        computed += rest > 0;
    }
    if (computed > 0) each = budget / computed;
    if (left <= budget || each == 0) each = left <= budget ? UINT32_MAX : 1;
    for (uint32_t i = 0; i < b->fill_size; i++) {
        const job_sequence *s = b->filling[i];
        const uint32_t rest = tokens_left(b, i);
        b->lengths[i] = rest < each ? rest : (uint32_t)each;
        if (b->lengths[i] == 0) continue;
        const api_settings *set = batch_settings_of(s);
        const uint32_t k = s->scores.k;
        if (b->lengths[i] > r->L) r->L = b->lengths[i];
        if (wants_rows(s)) {
            r->rows += b->lengths[i] - (ends_in(b, i) ? 1 : 0);
            if (k > r->k) r->k = k;
        }
        if (!ends_in(b, i) || set->max_tokens == 0) continue;
        r->chooses = true;
        if (set->logprobs < 0) continue;
        r->scored = true;
        if (k > r->choice_k) r->choice_k = k;
    }
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

static bool write_round(batch *b)
{
    const batch_round *r = &b->round;
    size_t rows = 0, room = b->rows_room;
    void *ids = b->ids, *places = b->rows, *targets = b->targets;
    bool done = grow(&ids, &b->ids_room, (size_t)b->fill_size * r->L, sizeof *b->ids) && grow(&places, &room, r->rows, sizeof *b->rows) &&
                      grow(&targets, &b->rows_room, r->rows, sizeof *b->targets);
    b->ids = ids;
    b->rows = places;
    b->targets = targets;
    done = done && batch_prepare_scores(&b->row_scores, &b->round.of_rows, r->rows, r->k) &&
           batch_prepare_scores(&b->choice_scores, &b->round.of_choice, b->fill_size, r->choice_k);
    b->round.of_rows.targets = b->targets;
    for (uint32_t i = 0; i < b->fill_size && done; i++) {
        const job_sequence *s = b->filling[i];
        b->fill_sampling[i] = (dart_sampling){.temperature = 0};
        if (s == NULL) continue;
        memcpy(b->ids + (size_t)i * r->L, s->ids + s->fed, b->lengths[i] * sizeof *b->ids);
        b->fill_sampling[i] = batch_sampling_of(b, s);
        if (!wants_rows(s)) continue;
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
        if (s == NULL || b->lengths[i] == 0 || !wants_rows(s)) continue;
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
    b->joined = count > 0;
    b->given = b->given || (b->joined && b->running_count == 0); /* else the tokens come with the sequences */
    for (uint32_t n = 0; n < count; n++) {
        job_sequence *s = b->filling[b->from[n]];
        batch_leave_filling(b, b->from[n], true);
        b->running[b->to[n]] = s;
        b->running_count++;
        b->last[b->to[n]] = s->tokens.ids[s->tokens.count - 1];
    }
    atomic_store(&b->counts->decoding, b->running_count);
    return DART_OK;
}

/* Those whose beginning has been computed go on from there. */
static void take_shared(batch *b)
{
    for (uint32_t i = 0; i < b->fill_size; i++) {
        job_sequence *s = b->filling[i];
        const uint32_t leader = b->leader[i];
        if (leader == BATCH_NONE || b->filling[leader]->fed != b->shared[i]) continue;
        const api_scores *from = &b->filling[leader]->scores;
        s->fed = b->shared[i];
        b->leader[i] = BATCH_NONE;
        atomic_fetch_add(&b->counts->shared_tokens, s->fed);
        if (!wants_rows(s)) continue;
        pthread_mutex_lock(&s->of->lock);
        const bool done = api_scores_append(&s->scores, from, s->fed + 1);
        pthread_mutex_unlock(&s->of->lock);
        if (!done) job_fail(s->of, 503, "no memory for log-probabilities");
    }
}

/* ---- Rounds ---- */

/* Places of new prompts, which sequences have left. */
static dart_status clear_places(batch *b)
{
    dart_status status = DART_OK;
    bool all = true, any = false;
    for (uint32_t i = 0; i < b->fill_size; i++) {
        all = all && (b->filling[i] == NULL || b->filling[i]->fed == 0);
        any = any || dart_state_position(b->fill, i) > 0;
    }
    if (all) return any ? dart_state_reset(b->fill, -1) : DART_OK;
    for (uint32_t i = 0; i < b->fill_size && status == DART_OK; i++) {
        const bool left = b->filling[i] != NULL && b->filling[i]->fed == 0 && dart_state_position(b->fill, i) > 0;
        if (left) status = dart_state_reset(b->fill, (int32_t)i);
    }
    return status;
}

static dart_status copy_shared(batch *b)
{
    dart_status status = DART_OK;
    for (uint32_t i = 0; i < b->fill_size && status == DART_OK; i++)
        if (is_reached(b, i)) status = dart_state_copy(b->fill, i, b->fill, b->leader[i]);
    return status;
}

static dart_status compute(batch *b)
{
    const batch_round *r = &b->round;
    const dart_prefill_args choice = {.sampling = b->fill_sampling, .sampling_count = b->fill_size, .next_ids = b->next,
                                      .want = r->scored ? DART_LOGITS_LAST : DART_LOGITS_NONE, .scores = r->scored ? &r->of_choice : NULL};
    dart_prefill_args args = r->chooses && r->rows == 0 ? choice : (dart_prefill_args){.L = 0};
    args.L = r->L;
    args.ids = b->ids;
    args.counts = b->lengths;
    if (r->rows > 0) {
        args.want = DART_LOGITS_ROWS;
        args.rows = b->rows;
        args.rows_count = r->rows;
        args.scores = &r->of_rows;
    }
    dart_status status = clear_places(b);
    if (status == DART_OK) status = dart_prefill(b->fill, &args);
    /* A call has rows, or the tokens that it chooses. */
    if (status == DART_OK && r->rows > 0 && r->chooses) status = dart_prefill(b->fill, &choice);
    return status == DART_OK ? copy_shared(b) : status;
}

bool batch_prefill(batch *b)
{
    if (b->filling_count == 0) return true;
    const uint64_t begin = base_now_ns();
    const uint32_t ran = b->running_count;
    const dart_state *teller = b->fill;
    find_shared(b);
    plan_round(b);
    b->joined = false;
    dart_status status = write_round(b) ? compute(b) : DART_OUT_OF_MEMORY;
    if (status != DART_OK) goto fail;
    const uint64_t ns = base_now_ns() - begin;
    atomic_fetch_add(&b->counts->prefill_ns, ns);
    atomic_fetch_add(&b->counts->rounds, 1);
    note_round(b, ns);
    take_rows(b, &b->round.of_rows);
    teller = b->run;
    status = take_first(b, &b->round.of_choice);
    if (status != DART_OK) goto fail;
    take_shared(b);
    if (b->joined) { /* without sequences to interrupt nothing was lost */
        b->joined_at_ns = base_now_ns();
        b->join_ns = ran > 0 ? b->joined_at_ns - begin : 0;
    }
    batch_wake_streams(b->running, b->options.slots);
    return true;
fail:
    return batch_recover(b, b->fill, teller, status);
}
