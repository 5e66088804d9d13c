/* engine_load DEVICE [KEY=VALUE]...: what the engine of `dartlm serve` gives, without HTTP.
 *
 * Clients that each ask for one answer after another, prompts of random ids and lengths, answers of random lengths, of a model with random weights.
 * The first seconds, in which all slots begin together, are left out. Keys: preset, dtype (f32, f16, bf16), tokenizer, clients, slots,
 * seconds, prompt and tokens (least:most), greedy, answers (n of a request), begin (so many tokens of a prompt are those of all), budget, seed. */
#define _POSIX_C_SOURCE 200809L
#include "serve/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct load {
    const char *device, *preset, *dtype, *tokenizer;
    uint32_t clients, slots, seconds, prompt_least, prompt_most, least, most, greedy, answers, begin, budget, seed;
    uint32_t V;
    engine *engine;
    atomic_bool over;
    atomic_uint failed;
} load;

typedef struct client {
    load *of;
    uint64_t random; /* not 0 */
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool woken;
    pthread_t thread;
} client;

/* Below limit. */
static uint32_t draw(client *c, uint32_t limit)
{
    c->random ^= c->random << 13;
    c->random ^= c->random >> 7;
    c->random ^= c->random << 17;
    return (uint32_t)((c->random >> 16) % limit);
}

static void wake(void *user)
{
    client *c = user;
    pthread_mutex_lock(&c->lock);
    c->woken = true;
    pthread_cond_signal(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

/* The next request, or NULL without memory. */
static job *make_job(client *c)
{
    const load *l = c->of;
    const uint32_t count = l->prompt_least + draw(c, l->prompt_most - l->prompt_least + 1);
    api_request request = {.prompts = calloc(1, sizeof *request.prompts), .prompts_count = 1};
    job *made = NULL;
    if (request.prompts == NULL) return NULL;
    request.settings = (api_settings){.max_tokens = l->least + draw(c, l->most - l->least + 1), .logprobs = -1, .ignore_eos = true,
                                      .temperature = l->greedy ? 0.0f : 0.8f, .top_p = 1, .repetition_penalty = 1, .n = l->answers};
    dart_status status = DART_OK;
    for (uint32_t i = 0; i < count && status == DART_OK; i++)
        status = dart_token_list_add(&request.prompts[0].ids, (int32_t)(i < l->begin ? i % l->V : draw(c, l->V)));
    if (status == DART_OK) made = job_create(&request, "m");
    if (made == NULL) api_request_free(&request);
    return made;
}

static void *ask(void *user)
{
    client *c = user;
    load *l = c->of;
    api_error error = {.status = 0};
    while (!atomic_load(&l->over)) {
        job *j = make_job(c);
        if (j == NULL) break;
        j->wake = wake;
        j->user = c;
        j->sleeping = true;
        c->woken = false;
        if (!engine_submit(l->engine, j, &error)) {
            job_release(j);
            break;
        }
        pthread_mutex_lock(&c->lock);
        while (!c->woken) pthread_cond_wait(&c->changed, &c->lock);
        pthread_mutex_unlock(&c->lock);
        pthread_mutex_lock(&j->lock);
        if (j->failure.status != 0 && !atomic_load(&l->over)) {
            if (atomic_fetch_add(&l->failed, 1) == 0) fprintf(stderr, "%s\n", j->failure.message);
        }
        pthread_mutex_unlock(&j->lock);
        job_release(j);
    }
    return NULL;
}

typedef struct sample {
    uint64_t ns, prompt, shared, generated, prefill, join, decode;
} sample;

static sample look(metrics *m)
{
    return (sample){.ns = base_now_ns(), .prompt = atomic_load(&m->prompt_tokens), .shared = atomic_load(&m->shared_tokens),
                    .generated = atomic_load(&m->generated_tokens), .prefill = atomic_load(&m->prefill_ns), .join = atomic_load(&m->join_ns),
                    .decode = atomic_load(&m->decode_ns)};
}

static void run(load *l, metrics *m)
{
    client *clients = calloc(l->clients, sizeof *clients);
    uint32_t started = 0;
    for (; clients != NULL && started < l->clients; started++) {
        client *c = &clients[started];
        *c = (client){.of = l, .random = (l->seed + 1) * UINT64_C(0x9E3779B97F4A7C15) + (started + 1) * UINT64_C(0xBF58476D1CE4E5B9)};
        pthread_mutex_init(&c->lock, NULL);
        pthread_cond_init(&c->changed, NULL);
        if (pthread_create(&c->thread, NULL, ask, c) != 0) break;
    }
    base_pause_ns(2000000000);
    const unsigned long long rounds = atomic_load(&m->rounds), steps = atomic_load(&m->steps);
    const sample a = look(m);
    uint64_t slots = 0, looks = 0;
    while (base_now_ns() - a.ns < UINT64_C(1000000000) * l->seconds) {
        base_pause_ns(1000000);
        slots += atomic_load(&m->decoding);
        looks++;
    }
    const sample z = look(m);
    const double s = (double)(z.ns - a.ns) / 1e9, n = (double)(atomic_load(&m->rounds) - rounds), k = (double)(atomic_load(&m->steps) - steps);
    atomic_store(&l->over, true);
    printf("%8.0f generated, %7.0f of prompts, %6.0f shared; prompts %5.1f %% (%.0f x %.2f ms), joins %4.1f %% (%.2f ms), steps %5.1f %% (%.3f ms); "
           "slots %.1f; failed %u\n",
           (double)(z.generated - a.generated) / s, (double)(z.prompt - a.prompt) / s, (double)(z.shared - a.shared) / s,
           (double)(z.prefill - a.prefill) / 1e7 / s, n, n > 0 ? (double)(z.prefill - a.prefill) / 1e6 / n : 0, (double)(z.join - a.join) / 1e7 / s,
           n > 0 ? (double)(z.join - a.join) / 1e6 / n : 0, (double)(z.decode - a.decode) / 1e7 / s,
           k > 0 ? (double)(z.decode - a.decode) / 1e6 / k : 0, looks > 0 ? (double)slots / (double)looks : 0, atomic_load(&l->failed));
    fflush(stdout);
    engine_stop(l->engine, true);
    for (uint32_t i = 0; i < started; i++) pthread_join(clients[i].thread, NULL);
    free(clients);
}

/* LEAST:MOST */
static bool read_span(const char *text, uint32_t *least, uint32_t *most)
{
    char *end;
    *least = (uint32_t)strtoul(text, &end, 10);
    if (*least == 0 || *end != ':') return false;
    *most = (uint32_t)strtoul(end + 1, &end, 10);
    return *end == '\0' && *most >= *least;
}

static bool read_option(load *l, const char *text)
{
    const struct {
        const char *name;
        uint32_t *value;
    } numbers[] = {{"clients", &l->clients}, {"slots", &l->slots}, {"seconds", &l->seconds}, {"greedy", &l->greedy},
                   {"answers", &l->answers}, {"begin", &l->begin}, {"budget", &l->budget}, {"seed", &l->seed}};
    const char *value = strchr(text, '=');
    if (value == NULL) return false;
    const size_t length = (size_t)(value++ - text);
    const bool prompt = length == 6 && strncmp(text, "prompt", 6) == 0, tokens = length == 6 && strncmp(text, "tokens", 6) == 0;
    if (prompt) return read_span(value, &l->prompt_least, &l->prompt_most);
    if (tokens) return read_span(value, &l->least, &l->most);
    if (length == 6 && strncmp(text, "preset", 6) == 0) l->preset = value;
    else if (length == 5 && strncmp(text, "dtype", 5) == 0) l->dtype = value;
    else if (length == 9 && strncmp(text, "tokenizer", 9) == 0) l->tokenizer = value;
    else {
        for (size_t i = 0; i < COUNT_OF(numbers); i++)
            if (strlen(numbers[i].name) == length && strncmp(text, numbers[i].name, length) == 0) {
                *numbers[i].value = (uint32_t)strtoul(value, NULL, 10);
                return true;
            }
        return false;
    }
    return true;
}

static dart_storage storage_of(const char *name)
{
    return strcmp(name, "bf16") == 0 ? DART_STORAGE_BF16 : strcmp(name, "f16") == 0 ? DART_STORAGE_F16 : DART_STORAGE_F32;
}

int main(int argc, char **argv)
{
    static metrics counts;
    load l = {.device = argc > 1 ? argv[1] : "cpu", .preset = "dart-130m", .dtype = "f32", .tokenizer = "tests/data/tokenizer",
              .clients = 64, .slots = 64, .seconds = 5, .prompt_least = 16, .prompt_most = 256, .least = 64, .most = 512,
              .answers = 1, .seed = 1};
    dart_context *context = NULL;
    dart_device *device = NULL;
    dart_tokenizer *tokenizer = NULL;
    dart_model *model = NULL;
    dart_model_config config;
    char error[640] = "";
    for (int i = 2; i < argc; i++)
        if (!read_option(&l, argv[i])) {
            fprintf(stderr, "what is '%s'?\n", argv[i]);
            return 2;
        }
    const dart_model_options storage = {.weights = storage_of(l.dtype), .activations = storage_of(l.dtype), .memories = storage_of(l.dtype)};
    dart_status status = dart_context_create(&(dart_context_options){.only_for = l.device}, &context);
    if (status == DART_OK) status = dart_device_open(context, &(dart_device_options){.spec = l.device}, &device);
    if (status == DART_OK) status = dart_tokenizer_open(l.tokenizer, &tokenizer, error, sizeof error);
    if (status == DART_OK) status = dart_config_preset(l.preset, &config);
    if (status == DART_OK) status = dart_model_random(device, &config, 1, &storage, &model);
    l.engine = engine_create(4096, &counts);
    const batch_options options = {.slots = l.slots, .context = l.prompt_most + l.most, .budget = l.budget};
    l.V = config.V;
    if (status == DART_OK && l.engine != NULL) status = engine_start(l.engine, model, tokenizer, &options, error, sizeof error);
    if (status == DART_OK && l.engine != NULL) run(&l, &counts);
    else fprintf(stderr, "%s: %s\n", dart_status_name(status), error);
    engine_destroy(&l.engine);
    dart_model_destroy(&model);
    dart_tokenizer_destroy(&tokenizer);
    dart_device_destroy(&device);
    dart_context_destroy(&context);
    return status == DART_OK && atomic_load(&l.failed) == 0 ? 0 : 1;
}
