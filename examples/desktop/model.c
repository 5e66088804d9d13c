#include "model.h"

#include "attention.h"
#include "sequence.h"

#include <dartlm/model.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* What the program asks of the thread. */
typedef struct request {
    bool run, quit, cancel, save, load, restart, memories;
    uint32_t S; /* 0: the model's */
} request;

struct model {
    model_options options;
    host *host;
    pthread_t thread;
    pthread_mutex_t lock; /* of wanted and view */
    pthread_cond_t wake;
    request wanted;
    model_view view;

    /* The thread's own. */
    attention attention;
    dart_context *context;
    dart_device *device;
    dart_model *model;
    dart_state *state;
    dart_model_config config;
    sequence sequence;
    uint32_t S;
    bool memories;
    double began, counted; /* of the tokens per second: since when, and how many */
};

uint32_t model_map_pitch(uint32_t tokens) { return tokens / MODEL_SMALLEST_CHUNK + 1; }

/* ---- Telling ---- */

static void tell(model *m, const char *text)
{
    pthread_mutex_lock(&m->lock);
    snprintf(m->view.text, sizeof m->view.text, "%s", text);
    pthread_mutex_unlock(&m->lock);
}

/* A failure pauses the sequence. The text lies with the object on which the call was made. */
static bool tell_failure(model *m, dart_status status)
{
    char text[512] = "";
    if (status == DART_OK) return false;
    if (m->state != NULL) dart_state_error(m->state, text, sizeof text);
    else if (m->model != NULL) dart_model_error(m->model, text, sizeof text);
    else if (m->device != NULL) dart_device_error(m->device, text, sizeof text);
    else if (m->context != NULL) dart_context_error(m->context, text, sizeof text);
    tell(m, status == DART_CANCELLED ? "cancelled" : text[0] != '\0' ? text : dart_status_name(status));
    pthread_mutex_lock(&m->lock);
    m->wanted.run = false;
    pthread_mutex_unlock(&m->lock);
    return true;
}

static void tell_state(model *m)
{
    const uint32_t position = (uint32_t)dart_state_position(m->state, 0);
    uint64_t bytes = 0;
    for (int kind = DART_STATE_CONVOLUTION; kind <= DART_STATE_RECURRENT; kind++) bytes += dart_state_bytes(m->state, (dart_state_kind)kind);
    bytes += dart_state_bytes(m->state, DART_STATE_MEMORIES_USED);
    pthread_mutex_lock(&m->lock);
    m->view.S = m->S;
    m->view.memories = m->memories;
    m->view.position = position;
    m->view.longest_ms = (double)dart_state_longest(m->state) / 1e6;
    m->view.state_bytes = bytes;
    m->view.cache_bytes = dart_state_bytes(m->state, DART_STATE_KV_CACHE);
    m->view.asked = m->sequence.asked;
    m->view.recalled = m->sequence.recalled;
    pthread_mutex_unlock(&m->lock);
}

/* ---- The work of the thread ---- */

static bool go_on(void *user)
{
    model *m = user;
    pthread_mutex_lock(&m->lock);
    const bool on = !m->wanted.quit && !m->wanted.cancel;
    pthread_mutex_unlock(&m->lock);
    return on;
}

/* Reads the first n tokens at once. */
static dart_status read_together(model *m, uint32_t n)
{
    if (n == 0) return DART_OK;
    tell(m, "reading");
    const dart_status status = dart_prefill(m->state, &(dart_prefill_args){.ids = m->sequence.ids, .L = n, .go_on = go_on, .user = m});
    pthread_mutex_lock(&m->lock);
    m->view.read += dart_state_position(m->state, 0);
    pthread_mutex_unlock(&m->lock);
    return status;
}

/* A new state with what is wanted now, which reads the first n tokens. Its map begins there. */
static dart_status begin(model *m, uint32_t n)
{
    pthread_mutex_lock(&m->lock);
    m->S = m->wanted.S != 0 ? m->wanted.S : m->config.S;
    m->memories = m->wanted.memories && m->config.sma;
    m->wanted.S = m->S;
    m->wanted.memories = m->memories;
    pthread_mutex_unlock(&m->lock);
    dart_state_destroy(&m->state);
    /* Short submissions: on one queue a frame waits for two of them at most. Small pieces: cancelling ends a prefill behind one. A processor takes
     * longer to begin and end one than to compute 2 ms of it, and draws no sooner for that. */
    dart_device_info info;
    dart_status status = dart_device_describe(m->device, &info);
    if (status != DART_OK) return status;
    const uint32_t slice = m->options.slice_ms != 0 || info.type == DART_DEVICE_CPU ? m->options.slice_ms : 2;
    const dart_state_options options = {.S = m->config.transformer ? 0 : m->S, .no_sma = !m->memories, .slice_ms = slice,
                                        .max_piece = m->options.piece, .keep_queries = m->memories};
    status = dart_state_create(m->model, &options, &m->state);
    if (status != DART_OK) return status;
    attention_clear(&m->attention);
    status = read_together(m, n);
    sequence_recount(&m->sequence);
    tell_state(m);
    return status;
}

/* Tokens that are read together where the sequence starts. */
static uint32_t at_start(const model *m) { return m->options.together < m->options.tokens ? m->options.together : m->options.tokens; }

static dart_status open_model(model *m)
{
    const dart_vulkan_adopt_args adopt = {
        .instance = m->host->instance, .physical_device = m->host->physical, .device = m->host->device,
        .get_instance_proc_addr = vkGetInstanceProcAddr, .api_version = m->host->api_version, .extensions = m->host->extensions,
        .extensions_count = m->host->extensions_count, .features = m->host->needs->features, .queue_family = m->host->compute_family,
        .lock_queue = host_lock_queue, .unlock_queue = host_unlock_queue, .queue_user = m->host};
    const dart_context_options alone = {.without_vulkan = true}; /* no instance of dartlm's own */
    dart_model_info info;
    dart_status status = dart_context_create(&alone, &m->context);
    if (status == DART_OK) status = dart_device_adopt(m->context, &adopt, NULL, &m->device);
    if (status == DART_OK && m->options.preset != NULL) {
        status = dart_config_preset(m->options.preset, &m->config);
        if (status == DART_OK) status = dart_model_random(m->device, &m->config, 1, &(dart_model_options){.weights = DART_STORAGE_BF16}, &m->model);
    } else if (status == DART_OK) status = dart_model_open(m->device, m->options.folder, NULL, &m->model);
    if (status == DART_OK) status = dart_model_describe(m->model, &info);
    if (status != DART_OK) return status;
    m->config = info.config;
    sequence_make(&m->sequence, m->config.V, m->options.tokens, m->options.seed);
    return begin(m, at_start(m));
}

static dart_status take_token(model *m)
{
    const uint32_t position = (uint32_t)dart_state_position(m->state, 0);
    int32_t next = 0;
    dart_status status = dart_decode(m->state, &(dart_decode_args){.ids = &m->sequence.ids[position], .next_ids = &next});
    if (status != DART_OK) return status;
    sequence_answer(&m->sequence, position, next);
    if (m->memories) {
        dart_queries queries;
        status = dart_state_queries(m->state, 0, m->config.layers - 1, &queries);
        if (status == DART_OK) attention_add_row(&m->attention, &m->config, &queries, position);
    }
    m->counted++;
    const double elapsed = now_ms() - m->began;
    if (elapsed > 50) {
        pthread_mutex_lock(&m->lock);
        m->view.tokens_per_second = m->counted * 1e3 / elapsed;
        pthread_mutex_unlock(&m->lock);
        m->began += elapsed;
        m->counted = 0;
    }
    tell_state(m);
    return status;
}

static void save(model *m)
{
    const dart_status status = dart_state_save(m->state, -1, m->options.state_path);
    if (tell_failure(m, status)) return;
    tell(m, sequence_save(&m->sequence, m->options.state_path) ? "saved" : "the tokens could not be saved");
}

static void load(model *m)
{
    const dart_status status = dart_state_load(m->state, -1, m->options.state_path);
    if (tell_failure(m, status)) return;
    const uint32_t position = (uint32_t)dart_state_position(m->state, 0);
    if (position > m->sequence.tokens || !sequence_load(&m->sequence, m->options.state_path, position)) {
        tell(m, "the file's tokens are missing or too many");
        (void)tell_failure(m, begin(m, 0));
        return;
    }
    attention_clear(&m->attention); /* its rows are of the sequence that was there */
    tell(m, "loaded");
    tell_state(m);
}

static bool same_settings(const model *m, const request *r) { return (r->S == 0 || r->S == m->S) && r->memories == m->memories; }

/* Waits for something to do and takes it. */
static request take_request(model *m, bool ended)
{
    pthread_mutex_lock(&m->lock);
    while (!m->wanted.quit && !m->wanted.save && !m->wanted.load && !m->wanted.restart && same_settings(m, &m->wanted) &&
           (!m->wanted.run || ended)) {
        m->view.running = false;
        pthread_cond_wait(&m->wake, &m->lock);
        m->began = now_ms();
        m->counted = 0;
    }
    const request taken = m->wanted;
    m->wanted.save = m->wanted.load = m->wanted.restart = m->wanted.cancel = false;
    m->view.running = taken.run && !ended;
    pthread_mutex_unlock(&m->lock);
    return taken;
}

static void pace(const model *m)
{
    if (m->options.rate == 0) return;
    const struct timespec time = {.tv_nsec = 999999999 / m->options.rate};
    nanosleep(&time, NULL);
}

static void *work(void *argument)
{
    model *m = argument;
    tell(m, "loading");
    if (!tell_failure(m, open_model(m))) tell(m, "ready");
    const bool failed = m->state == NULL;
    pthread_mutex_lock(&m->lock);
    m->view.ready = !failed;
    m->view.failed = failed;
    pthread_mutex_unlock(&m->lock);
    for (bool ended = failed; !failed;) {
        const request r = take_request(m, ended);
        if (r.quit) break;
        if (r.restart) (void)tell_failure(m, begin(m, at_start(m)));
        else if (!same_settings(m, &r)) (void)tell_failure(m, begin(m, (uint32_t)dart_state_position(m->state, 0)));
        if (m->state == NULL) { /* no room for another state */
            pthread_mutex_lock(&m->lock);
            m->view.failed = true;
            m->view.running = false;
            pthread_mutex_unlock(&m->lock);
            break;
        }
        if (r.save) save(m);
        if (r.load) load(m);
        ended = dart_state_position(m->state, 0) >= m->sequence.tokens;
        if (!r.run || ended) continue;
        if (!r.save && !r.load) tell(m, dart_state_position(m->state, 0) < m->sequence.given ? "reading" : "generating");
        const bool stuck = tell_failure(m, take_token(m));
        pthread_mutex_lock(&m->lock);
        m->view.failed = stuck;
        pthread_mutex_unlock(&m->lock);
        ended = dart_state_position(m->state, 0) >= m->sequence.tokens;
        if (ended) tell(m, "at the end");
        pace(m);
    }
    return NULL;
}

/* ---- What the program calls ---- */

model *model_start(host *h, const model_options *options, const buffer *weights)
{
    model *m = calloc(1, sizeof *m);
    if (m == NULL) die("no memory for the model's thread");
    m->options = *options;
    m->host = h;
    m->wanted = (request){.S = options->S, .memories = !options->no_memories, .run = options->run};
    attention_open(&m->attention, h, weights, model_map_pitch(options->tokens));
    attention_clear(&m->attention);
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->wake, NULL);
    if (pthread_create(&m->thread, NULL, work, m) != 0) die("no thread for the model");
    return m;
}

void model_stop(model **stopped)
{
    model *m = *stopped;
    pthread_mutex_lock(&m->lock);
    m->wanted.quit = true;
    pthread_cond_signal(&m->wake);
    pthread_mutex_unlock(&m->lock);
    pthread_join(m->thread, NULL);
    attention_close(&m->attention);
    dart_state_destroy(&m->state);
    dart_model_destroy(&m->model);
    dart_device_destroy(&m->device);
    dart_context_destroy(&m->context);
    sequence_free(&m->sequence);
    pthread_mutex_destroy(&m->lock);
    pthread_cond_destroy(&m->wake);
    free(m);
    *stopped = NULL;
}

model_view model_look(model *m)
{
    pthread_mutex_lock(&m->lock);
    const model_view view = m->view;
    pthread_mutex_unlock(&m->lock);
    return view;
}

void model_do(model *m, model_action action)
{
    pthread_mutex_lock(&m->lock);
    request *r = &m->wanted;
    switch (action) {
    case MODEL_RUN: r->run = true; break;
    case MODEL_PAUSE: r->run = false; break;
    case MODEL_CANCEL:
        r->cancel = true;
        r->run = false;
        break;
    case MODEL_SAVE: r->save = true; break;
    case MODEL_LOAD: r->load = true; break;
    case MODEL_RESTART: r->restart = true; break;
    }
    pthread_cond_signal(&m->wake);
    pthread_mutex_unlock(&m->lock);
}

void model_set(model *m, uint32_t S, bool memories)
{
    pthread_mutex_lock(&m->lock);
    m->wanted.S = S;
    m->wanted.memories = memories;
    pthread_cond_signal(&m->wake);
    pthread_mutex_unlock(&m->lock);
}
