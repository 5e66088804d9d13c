#include "serve/job.h"
#include "base/base.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* A number that the next call does not give again, and that another start of the server does not give, either. */
static uint64_t fresh_number(void)
{
    static atomic_ullong count;
    struct timespec now = {0, 0};
    (void)timespec_get(&now, TIME_UTC);
    uint64_t x = (uint64_t)now.tv_sec * UINT64_C(1000000000) + (uint64_t)now.tv_nsec;
    x ^= (atomic_fetch_add(&count, 1) + 1) * UINT64_C(0x9E3779B97F4A7C15);
    x = (x ^ x >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    x = (x ^ x >> 27) * UINT64_C(0x94D049BB133111EB);
    return x ^ x >> 31;
}

job *job_create(api_request *request, const char *model)
{
    job *j = calloc(1, sizeof *j);
    if (j == NULL) return NULL;
    const api_settings *s = &request->settings;
    j->count = request->prompts_count * s->n;
    j->sequences = calloc(j->count, sizeof *j->sequences);
    if (j->sequences == NULL || pthread_mutex_init(&j->lock, NULL) != 0) {
        free(j->sequences);
        free(j);
        return NULL;
    }
    j->references = 1;
    j->arrived_ns = base_now_ns();
    snprintf(j->id, sizeof j->id, "cmpl-%016llx", (unsigned long long)fresh_number());
    j->head = (api_head){.id = j->id, .model = model, .created = (int64_t)time(NULL)};
    for (uint32_t i = 0; i < j->count; i++) {
        const dart_token_list *ids = &request->prompts[i / s->n].ids;
        j->sequences[i] = (job_sequence){.of = j, .index = i, .ids = ids->ids, .count = (uint32_t)ids->count,
                                         .seed = s->seeded ? s->seed + i % s->n : fresh_number(),
                                         .scores.k = s->logprobs > 0 ? (uint32_t)s->logprobs : 0};
    }
    j->request = *request;
    *request = (api_request){.prompts = NULL};
    return j;
}

void job_keep(job *j)
{
    pthread_mutex_lock(&j->lock);
    j->references++;
    pthread_mutex_unlock(&j->lock);
}

void job_release(job *j)
{
    if (j == NULL) return;
    pthread_mutex_lock(&j->lock);
    const bool last = --j->references == 0;
    pthread_mutex_unlock(&j->lock);
    if (!last) return;
    for (uint32_t i = 0; i < j->count; i++) {
        job_sequence *s = &j->sequences[i];
        dart_token_list_free(&s->tokens);
        api_scores_free(&s->scores);
        api_text_free(&s->text);
        dart_text_stream_destroy(&s->stream);
    }
    pthread_mutex_destroy(&j->lock);
    api_request_free(&j->request);
    free(j->sequences);
    free(j);
}

bool job_over(const job *j) { return j->failure.status != 0 || j->done == j->count; }

void job_wake(job *j)
{
    if (!j->sleeping) return;
    j->sleeping = false;
    j->wake(j->user);
}

void job_fail(job *j, int status, const char *message)
{
    pthread_mutex_lock(&j->lock);
    if (!job_over(j)) {
        api_fail(&j->failure, status, NULL, "%s", message);
        job_wake(j);
    }
    pthread_mutex_unlock(&j->lock);
}

/* ---- Answers ---- */

static api_usage usage_of(const job *j)
{
    api_usage usage = {0, 0};
    for (uint32_t i = 0; i < j->count; i++) {
        if (i % j->request.settings.n == 0) usage.prompt += j->sequences[i].count;
        usage.completion += j->sequences[i].tokens.count;
    }
    return usage;
}

/* All that a sequence has behind what was sent. */
static api_choice news_of(const job *j, const job_sequence *s)
{
    const api_settings *set = &j->request.settings;
    const bool echo = set->echo && s->sent_tokens == 0 && s->sent_text == 0 && s->points == 0;
    const size_t before = set->echo ? s->count : 0;
    return (api_choice){.index = s->index, .text = s->text.at != NULL ? s->text.at + s->sent_text : "", .bytes = s->text.bytes - s->sent_text,
                        .prompt = echo ? &j->request.prompts[s->index / set->n] : NULL, .ids = s->tokens.ids + s->sent_tokens,
                        .ids_count = s->tokens.count - s->sent_tokens, .scores = set->logprobs >= 0 ? &s->scores : NULL,
                        .scores_at = echo ? 0 : before + s->sent_tokens, .offset = s->points, .finish = s->finish};
}

void job_write(const job *j, api_text *to, const api_names *names, dart_tokenizer *tokenizer)
{
    api_choice *choices = calloc(j->count, sizeof *choices);
    const api_usage usage = usage_of(j);
    to->failed = to->failed || choices == NULL;
    if (choices == NULL) return;
    for (uint32_t i = 0; i < j->count; i++) choices[i] = news_of(j, &j->sequences[i]);
    api_write_completion(to, &j->head, choices, j->count, &usage, names, tokenizer);
    free(choices);
}

bool job_write_news(job *j, api_text *to, const api_names *names, dart_tokenizer *tokenizer)
{
    if (j->failure.status != 0) {
        api_add(to, "data: ", 6);
        api_write_error(to, &j->failure);
        api_add(to, "\n\n", 2);
        return true;
    }
    for (uint32_t i = 0; i < j->count; i++) {
        job_sequence *s = &j->sequences[i];
        const bool scored = j->request.settings.logprobs >= 0 && s->tokens.count > s->sent_tokens;
        if (s->ended || (s->finish == NULL && s->text.bytes == s->sent_text && !scored)) continue;
        const api_choice news = news_of(j, s);
        s->points += api_write_chunk(to, &j->head, &news, NULL, names, tokenizer);
        s->sent_text = s->text.bytes;
        s->sent_tokens = s->tokens.count;
        s->ended = s->finish != NULL;
    }
    if (j->done < j->count) return false;
    const api_usage usage = usage_of(j);
    if (j->request.settings.usage) api_write_chunk(to, &j->head, NULL, &usage, names, tokenizer);
    api_print(to, "data: [DONE]\n\n");
    return true;
}
