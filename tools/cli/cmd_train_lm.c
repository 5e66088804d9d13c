/* dartlm train lm: a language model of bytes. */
#include "training.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

enum { BYTES = 256, END_ID = BYTES, V = BYTES + 1 };

typedef struct corpus {
    args_list files; /* a document each */
    bool bytes;
    uint16_t *tokens; /* of all documents, each with its end id */
    uint64_t count;
    char data[80];
    uint32_t L, tokens_a_step, epochs, most; /* most: sequences of a validation */
    float held_out;
    uint32_t batch, epoch_steps, training, validation; /* sequences of a step, steps of an epoch, sequences of both parts of the data */
    training_order order;
} corpus;

/* ---- Data ---- */

static int append(corpus *c, const file_map *map)
{
    uint16_t *tokens = map->bytes < SIZE_MAX / sizeof *tokens - c->count - 1
                           ? realloc(c->tokens, (size_t)(c->count + map->bytes + 1) * sizeof *tokens) : NULL;
    if (tokens == NULL) return cli_fail_memory();
    c->tokens = tokens;
    for (uint64_t i = 0; i < map->bytes; i++) tokens[c->count++] = map->data[i];
    tokens[c->count++] = END_ID;
    return CLI_OK;
}

static int read_files(corpus *c)
{
    cli_session session = {.context = NULL};
    int result = CLI_OK;
    uint64_t sum = 0;
    if (base_report_init(&session.report, NULL) != DART_OK) return cli_fail_memory();
    for (uint32_t i = 0; i < c->files.count && result == CLI_OK; i++) {
        file_map map;
        const dart_status status = file_map_open(c->files.texts[i], &session.report, &map);
        result = status == DART_OK ? append(c, &map) : cli_fail_file(&session, status);
        file_map_close(&map);
    }
    base_report_destroy(&session.report);
    for (uint64_t i = 0; i < c->count; i++) sum = base_mix(sum ^ c->tokens[i]);
    snprintf(c->data, sizeof c->data, "(%" PRIu64 " tokens, checksum %016" PRIx64 ")", c->count, sum);
    return result;
}

/* A sequence of the data, in its order; the target of a token is the next one. */
static void cut(const corpus *c, uint32_t sequence, int32_t *ids, int32_t *targets)
{
    const uint16_t *from = c->tokens + (uint64_t)sequence * c->L;
    for (uint32_t t = 0; t < c->L; t++) {
        ids[t] = from[t];
        targets[t] = from[t + 1];
    }
}

static void fill_step(void *user, uint32_t step, int32_t *ids, int32_t *targets)
{
    corpus *c = user;
    const uint32_t *places = training_epoch(&c->order, step / c->epoch_steps) + (size_t)(step % c->epoch_steps) * c->batch;
    for (uint32_t b = 0; b < c->batch; b++) cut(c, places[b], ids + (size_t)b * c->L, targets + (size_t)b * c->L);
}

static void fill_validation(void *user, uint32_t index, int32_t *ids, int32_t *targets)
{
    const corpus *c = user;
    cut(c, c->training + index, ids, targets);
}

/* ---- The command ---- */

/* Sizes that follow from the options and the data. */
static int plan(corpus *c, const args_syntax *syntax, uint64_t seed)
{
    const uint64_t sequences = (c->count - 1) / c->L;
    c->batch = c->tokens_a_step / c->L;
    if (c->batch == 0) return args_mistake(syntax, "--batch-tokens %" PRIu32 " are less than --length %" PRIu32, c->tokens_a_step, c->L);
    if (sequences > INT32_MAX) return cli_fail("the data has more than 2^31 sequences");
    c->validation = (uint32_t)((double)sequences * (double)c->held_out);
    if (c->validation == 0) c->validation = 1;
    if (sequences < (uint64_t)c->batch + c->validation)
        return cli_fail("the data has %" PRIu64 " sequences of %" PRIu32 " tokens; a step takes %" PRIu32 ", and validation %" PRIu32, sequences,
                        c->L, c->batch, c->validation);
    c->training = (uint32_t)sequences - c->validation;
    if (c->validation > c->most) c->validation = c->most;
    c->epoch_steps = c->training / c->batch;
    if ((uint64_t)c->epoch_steps * c->epochs > INT32_MAX) return args_mistake(syntax, "more than 2^31 steps");
    c->order = (training_order){.seed = seed, .count = c->training, .places = malloc(c->training * sizeof *c->order.places)};
    return c->order.places != NULL ? CLI_OK : cli_fail_memory();
}

int cmd_train_lm(int argc, char **argv)
{
    corpus c = {.L = 256, .tokens_a_step = 1 << 14, .epochs = 1, .most = 1024, .held_out = 0.1f};
    dart_model_config config = TRAINING_CONFIG;
    training_options o = TRAINING_DEFAULTS;
    bool mamba2 = false;
    const args_option options[] = {
        {"data", 0, ARGS_LIST, "FILE", &c.files, "a document; several are given one by one", 0, 0, true},
        {"bytes", 0, ARGS_FLAG, NULL, &c.bytes, "tokens are bytes, and 256 behind each document", 0, 0, false},
        {"held-out", 0, ARGS_F32, "X", &c.held_out, "share of the data, at its end, for validation; by default 0.1", 0, 1, false},
        {"epochs", 0, ARGS_U32, "N", &c.epochs, "by default 1", 1, 1 << 20, false},
        {"batch-tokens", 0, ARGS_U32, "N", &c.tokens_a_step, "of a step, by default 16384", 1, 1 << 28, false},
        TRAINING_MODEL(c.L, config, mamba2),
        TRAINING_SETTINGS(o),
        TRAINING_RUNNING(o),
        {"sequences", 0, ARGS_U32, "N", &c.most, "of a validation at most, by default 1024", 1, 1 << 20, false},
    };
    const args_syntax syntax = {
        .command = "dartlm train lm",
        .operands = "OUT",
        .options = options,
        .options_count = COUNT_OF(options),
        .about =
            "Trains a language model on files, from initial values, and writes it to the folder OUT. Documents are joined and cut into\n"
            "sequences of L tokens; each epoch takes them in another order, and leaves out what does not fill a step.\n" TRAINING_ABOUT};
    args_operands operands;
    int status = args_parse(&syntax, argc, argv, &operands);
    if (status != ARGS_GO_ON) return status;
    if (!c.bytes) return args_mistake(&syntax, "--bytes is missing: there is no other way from text to tokens yet");
    config.sma = !mamba2;
    config.V = V;
    config.H = 2 * config.W / config.P;
    status = read_files(&c);
    if (status == CLI_OK) status = plan(&c, &syntax, o.seed);
    if (status == CLI_OK)
        status = training_run(&(training_task){.name = "lm", .syntax = &syntax, .folder = operands.texts[0], .config = &config, .data = c.data,
                                               .L = c.L, .batch = c.batch, .steps = c.epoch_steps * c.epochs, .validation = c.validation,
                                               .user = &c, .fill = fill_step, .fill_validation = fill_validation},
                              &o);
    free(c.tokens);
    free(c.order.places);
    return status;
}
