/* The form of state files: what lies where, and whether bytes are one. */
#include "state_file.h"

#include "base/checksum.h"

#include <stdlib.h>
#include <string.h>

static const char *const flag_names[] = {"sma", "transformer", "tied", "no_conv_bias", "independent_c", "neox", "sequential", "gelu_tanh"};
static const char *const config_names[STATE_FILE_CONFIG] = {NULL, "V", "W", "layers", "H", "P", "G", "N", "K", "F", "base", "eps",
                                                            "sma_eps", "dt_min", "dt_max"};

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

void state_file_config(const dart_model_config *c, uint32_t words[STATE_FILE_CONFIG])
{
    const uint32_t flags = (uint32_t)c->sma | (uint32_t)c->transformer << 1 | (uint32_t)c->tied << 2 | (uint32_t)c->no_conv_bias << 3 |
                           (uint32_t)c->independent_c << 4 | (uint32_t)c->neox << 5 | (uint32_t)c->sequential << 6 | (uint32_t)c->gelu_tanh << 7;
    const uint32_t all[STATE_FILE_CONFIG] = {flags, c->V, c->W, c->layers, c->H, c->P, c->G, c->N, c->transformer ? c->R : c->K, c->F,
                                             bits_of(c->base), bits_of(c->eps), bits_of(c->sma_eps), bits_of(c->dt_min), bits_of(c->dt_max)};
    memcpy(words, all, sizeof all);
}

uint64_t state_file_head_bytes(const state_file_header *header)
{
    return base_round_up(sizeof *header + 8 * (uint64_t)header->sequences + 4 * (uint64_t)header->blocks, STATE_FILE_ALIGN);
}

uint64_t state_file_head_checksum(const void *head, uint64_t bytes)
{
    const uint64_t before = offsetof(state_file_header, checksum);
    const uint64_t sum = base_checksum(STATE_FILE_VERSION, head, before);
    return base_checksum(sum, (const uint8_t *)head + sizeof(state_file_header), bytes - sizeof(state_file_header));
}

/* ---- Places ---- */

/* A run behind the others; false where the bytes do not fit 64 bits. */
static bool add_run(state_file *file, state_file_kind kind, uint32_t index, dart_dtype dtype, uint64_t rows, uint64_t width, uint64_t *at)
{
    state_file_run *run = &file->runs[file->runs_count++];
    uint64_t elements, bytes;
    if (!base_mul(rows, width, &elements) || !base_mul(elements, dart_dtype_size(dtype), &bytes) || bytes > UINT64_MAX / 4 ||
        *at > UINT64_MAX / 4)
        return false;
    *run = (state_file_run){.kind = kind, .index = index, .dtype = dtype, .at = *at, .elements = elements};
    *at += base_round_up(bytes, STATE_FILE_ALIGN);
    return true;
}

/* Data, zeros, and 8 bytes of checksum at the end of a multiple of STATE_FILE_ALIGN. */
static uint64_t section_bytes(uint64_t data) { return base_round_up(data + 8, STATE_FILE_ALIGN); }

dart_status state_file_place(state_file *file, const dart_state *state, uint64_t *total, base_report *report, const char *name)
{
    const dart_model_config *c = &state->model->config;
    const state_file_header *h = &file->header;
    const dart_dtype activations = (dart_dtype)h->activations, memories = (dart_dtype)h->memories;
    const uint64_t memory = model_config_memory(c), n = h->sequences;
    model_part parts[MODEL_PARTS] = {{0}};
    const uint32_t count = model_parts(state, parts);
    uint64_t at = 0, layers;
    file->runs = calloc(MODEL_PARTS + 2 * (size_t)n, sizeof *file->runs);
    file->runs_count = 0;
    if (file->runs == NULL) return base_fail(report, DART_OUT_OF_MEMORY, "%s: no memory for the places of %u sequences", name, h->sequences);
    bool fits = true;
    for (uint32_t i = 0; i < count; i++)
        fits = fits && add_run(file, STATE_FILE_PART, i, parts[i].tail ? activations : DART_F32, n, parts[i].width, &at);
    for (uint32_t i = 0; i < n && fits; i++) {
        const uint64_t position = (uint64_t)file->positions[2 * i], closed = state->sma ? position / state->S : 0;
        if (c->transformer) {
            fits = add_run(file, STATE_FILE_KEYS, i, memories, position, (uint64_t)c->G * c->P, &at) &&
                   add_run(file, STATE_FILE_VALUES, i, memories, position, (uint64_t)c->G * c->P, &at);
        } else if (closed > 0) {
            fits = add_run(file, STATE_FILE_MEMORIES, i, memories, closed, memory, &at) &&
                   add_run(file, STATE_FILE_SCALES, i, DART_F32, closed, (uint64_t)c->H * c->N, &at);
        }
    }
    file->head_bytes = state_file_head_bytes(h);
    file->seen_at = base_round_up(n * c->W * dart_dtype_size(activations), STATE_FILE_ALIGN);
    file->last_bytes = section_bytes(file->seen_at + 4 * n * base_ceil_div(c->V, 32));
    file->layer_bytes = section_bytes(at);
    fits = fits && base_mul(file->layer_bytes, c->layers, &layers) && base_add(layers, file->head_bytes + file->last_bytes, total) &&
           file->layer_bytes <= SIZE_MAX;
    if (fits) return DART_OK;
    free(file->runs);
    file->runs = NULL;
    return base_fail(report, DART_BAD_DATA, "%s: no memory has room for what it says to hold", name);
}

/* ---- Bytes from anywhere ---- */

static dart_status check_model(const state_file *file, dart_state *state, const char *name)
{
    const state_file_header *h = &file->header;
    uint32_t words[STATE_FILE_CONFIG];
    state_file_config(&state->model->config, words);
    for (uint32_t i = 0; i < COUNT_OF(flag_names); i++) {
        const uint32_t has = h->config[0] >> i & 1, wanted = words[0] >> i & 1;
        REQUIRE(&state->report, has == wanted, "%s is of another model: its %s is %u, of this one %u", name, flag_names[i], has, wanted);
    }
    REQUIRE(&state->report, h->config[0] == words[0], "%s is of another model: its flags %x are unknown", name, h->config[0]);
    for (uint32_t i = 1; i < STATE_FILE_CONFIG; i++) {
        const bool is_float = i >= 10;
        float values[2];
        memcpy(&values[0], &h->config[i], 4);
        memcpy(&values[1], &words[i], 4);
        if (h->config[i] == words[i]) continue;
        if (is_float)
            return base_fail(&state->report, DART_INVALID_ARGUMENT, "%s is of another model: its %s is %g, of this one %g", name, config_names[i],
                             (double)values[0], (double)values[1]);
        const bool is_rotary = i == 8 && state->model->config.transformer; /* in the place of K */
        return base_fail(&state->report, DART_INVALID_ARGUMENT, "%s is of another model: its %s is %u, of this one %u", name,
                         is_rotary ? "R" : config_names[i], h->config[i], words[i]);
    }
    REQUIRE(&state->report, h->fingerprint == state->model->fingerprint,
            "%s is of another model: the weights differ (fingerprint %016llx, of this one %016llx)", name, (unsigned long long)h->fingerprint,
            (unsigned long long)state->model->fingerprint);
    REQUIRE(&state->report, h->S == state->S, "%s has chunks of %u tokens, this state of %u", name, h->S, state->S);
    REQUIRE(&state->report, h->sma == (uint32_t)state->sma, "%s was saved %s state-memory attention, this state is %s it", name,
            h->sma != 0 ? "with" : "without", state->sma ? "with" : "without");
    return DART_OK;
}

static dart_status check_tables(const state_file *file, const dart_state *state, base_report *report, const char *name)
{
    const state_file_header *h = &file->header;
    const int64_t V = state->model->config.V;
    if (h->activations > DART_BF16 || h->memories > DART_BF16 || h->unused != 0)
        return base_fail(report, DART_BAD_DATA, "%s: dtypes %u and %u", name, h->activations, h->memories);
    for (uint32_t i = 0; i < h->sequences; i++)
        if (file->positions[2 * i] < 0 || file->positions[2 * i + 1] < -1 || file->positions[2 * i + 1] >= V)
            return base_fail(report, DART_BAD_DATA, "%s: sequence %u has position %d and token %d", name, i, file->positions[2 * i],
                             file->positions[2 * i + 1]);
    for (uint32_t i = 0; i < h->blocks; i++)
        if (file->blocks[i] == 0) return base_fail(report, DART_BAD_DATA, "%s: block %u is empty", name, i);
    return DART_OK;
}

dart_status state_file_parse(state_file *file, dart_state *state, uint32_t sequences, const uint8_t *data, uint64_t bytes, const char *name)
{
    base_report *report = &state->report;
    state_file_header *h = &file->header;
    uint64_t total = 0;
    *file = (state_file){.runs = NULL};
    if (bytes < sizeof *h) return base_fail(report, DART_BAD_DATA, "%s: %llu bytes are no state", name, (unsigned long long)bytes);
    memcpy(h, data, sizeof *h);
    if (memcmp(h->magic, STATE_FILE_MAGIC, sizeof h->magic) != 0) return base_fail(report, DART_BAD_DATA, "%s is no state of dartlm", name);
    if (h->version != STATE_FILE_VERSION)
        return base_fail(report, DART_BAD_DATA, "%s has version %u of state files, this library reads version %u", name, h->version,
                         STATE_FILE_VERSION);
    if (h->bytes != bytes)
        return base_fail(report, DART_BAD_DATA, "%s is damaged: it has %llu bytes, and %llu according to its header", name, (unsigned long long)bytes,
                         (unsigned long long)h->bytes);
    const uint64_t head = state_file_head_bytes(h);
    if (head > bytes) return base_fail(report, DART_BAD_DATA, "%s is damaged: it ends within its header", name);
    if (h->checksum != state_file_head_checksum(data, head))
        return base_fail(report, DART_BAD_DATA, "%s is damaged: the checksum of its header is wrong", name);
    file->positions = (const int32_t *)(const void *)(data + sizeof *h);
    file->blocks = (const uint32_t *)(const void *)(data + sizeof *h + 8 * (uint64_t)h->sequences);
    dart_status status = check_model(file, state, name);
    if (status == DART_OK) status = check_tables(file, state, report, name);
    if (status != DART_OK) return status;
    REQUIRE(report, h->sequences == sequences, "%s has %u sequences, %u are to be loaded", name, h->sequences, sequences);
    status = state_file_place(file, state, &total, report, name);
    if (status != DART_OK || total == bytes) return status;
    free(file->runs);
    file->runs = NULL;
    return base_fail(report, DART_BAD_DATA, "%s is damaged: %llu bytes, %llu by its tables", name, (unsigned long long)bytes,
                     (unsigned long long)total);
}
