#include "serve/metrics.h"

static const int statuses[METRICS_STATUSES] = {200, 400, 401, 403, 404, 405, 413, 429, 499, 500, 503, 0}; /* 0: others */

void metrics_answer(metrics *m, int status)
{
    size_t i = 0;
    while (statuses[i] != 0 && statuses[i] != status) i++;
    atomic_fetch_add(&m->answers[i], 1);
}

void metrics_time(metrics_times *times, uint64_t ns)
{
    size_t i = 0;
    while (i + 1 < METRICS_BUCKETS && ns > UINT64_C(1000000) << i) i++;
    atomic_fetch_add(&times->buckets[i], 1);
    atomic_fetch_add(&times->ns, ns);
}

static void write_number(api_text *to, const char *name, const char *kind, const char *about, unsigned long long value)
{
    api_print(to, "# HELP dartlm_%s %s\n# TYPE dartlm_%s %s\n", name, about, name, kind);
    api_print(to, "dartlm_%s %llu\n", name, value);
}

static void write_times(api_text *to, const char *name, const char *about, metrics_times *times)
{
    unsigned long long count = 0;
    api_print(to, "# HELP dartlm_%s %s\n# TYPE dartlm_%s histogram\n", name, about, name);
    for (int i = 0; i < METRICS_BUCKETS; i++) {
        count += atomic_load(&times->buckets[i]);
        if (i + 1 < METRICS_BUCKETS) api_print(to, "dartlm_%s_bucket{le=\"%g\"} %llu\n", name, 0.001 * (double)(1 << i), count);
        else api_print(to, "dartlm_%s_bucket{le=\"+Inf\"} %llu\n", name, count);
    }
    api_print(to, "dartlm_%s_sum %.6f\ndartlm_%s_count %llu\n", name, (double)atomic_load(&times->ns) / 1e9, name, count);
}

void metrics_write(metrics *m, api_text *to)
{
    api_print(to, "# HELP dartlm_answers_total Answers by status of HTTP; 499: the client was gone.\n# TYPE dartlm_answers_total counter\n");
    for (int i = 0; i < METRICS_STATUSES; i++) {
        const unsigned long long count = atomic_load(&m->answers[i]);
        if (statuses[i] != 0) api_print(to, "dartlm_answers_total{code=\"%d\"} %llu\n", statuses[i], count);
        else api_print(to, "dartlm_answers_total{code=\"other\"} %llu\n", count);
    }
    write_number(to, "prompt_tokens_total", "counter", "Tokens of prompts that were computed.", atomic_load(&m->prompt_tokens));
    write_number(to, "shared_tokens_total", "counter", "Tokens of prompts that were copied from a prompt with the same beginning.",
                 atomic_load(&m->shared_tokens));
    write_number(to, "generated_tokens_total", "counter", "Tokens that were chosen.", atomic_load(&m->generated_tokens));
    write_number(to, "cancelled_total", "counter", "Sequences whose client left.", atomic_load(&m->cancelled));
    api_print(to, "# HELP dartlm_busy_seconds_total Time by what it was for: prompts, putting sequences into slots, steps.\n");
    api_print(to, "# TYPE dartlm_busy_seconds_total counter\n");
    api_print(to, "dartlm_busy_seconds_total{for=\"prefill\"} %.6f\n", (double)atomic_load(&m->prefill_ns) / 1e9);
    api_print(to, "dartlm_busy_seconds_total{for=\"join\"} %.6f\n", (double)atomic_load(&m->join_ns) / 1e9);
    api_print(to, "dartlm_busy_seconds_total{for=\"decode\"} %.6f\n", (double)atomic_load(&m->decode_ns) / 1e9);
    write_number(to, "prompt_rounds_total", "counter", "Calls that computed prompts.", atomic_load(&m->rounds));
    write_number(to, "steps_total", "counter", "Steps of decoding.", atomic_load(&m->steps));
    write_number(to, "waiting", "gauge", "Sequences in the queue.", atomic_load(&m->waiting));
    write_number(to, "prefilling", "gauge", "Sequences whose prompt is being computed.", atomic_load(&m->prefilling));
    write_number(to, "decoding", "gauge", "Sequences in slots.", atomic_load(&m->decoding));
    write_number(to, "slots", "gauge", "Sequences that can be decoded at once.", atomic_load(&m->slots));
    write_times(to, "completion_seconds", "From the request to its whole answer.", &m->whole);
    write_times(to, "first_token_seconds", "From the request to its first token.", &m->first);
}
