/* dartlm train lm: a language model. */
#include "corpus.h"
#include "training.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

typedef struct text {
    corpus data;
    uint32_t L, tokens_a_step, epochs, most; /* most: sequences of a validation */
    float held_out;
    uint32_t batch, epoch_steps, training, validation; /* sequences of a step, steps of an epoch, sequences of both parts of the data */
    bool separate;
    uint32_t documents; /* with separate: the most in a sequence */
    training_order order;
} text;

/* ---- Data ---- */

static void cut(const text *c, uint32_t sequence, int32_t *ids, int32_t *targets)
{
    corpus_cut(&c->data, (uint64_t)sequence * c->L, c->L, ids, targets);
    for (uint32_t t = 0; t < c->L && c->separate; t++)
        if (ids[t] == c->data.end) targets[t] = -1; /* what begins the next document cannot be foreseen */
}

static void fill_step(void *user, uint32_t step, int32_t *ids, int32_t *targets)
{
    text *c = user;
    const uint32_t *places = training_epoch(&c->order, step / c->epoch_steps) + (size_t)(step % c->epoch_steps) * c->batch;
    for (uint32_t b = 0; b < c->batch; b++) cut(c, places[b], ids + (size_t)b * c->L, targets + (size_t)b * c->L);
}

static void fill_validation(void *user, uint32_t index, int32_t *ids, int32_t *targets)
{
    const text *c = user;
    cut(c, c->training + index, ids, targets);
}

/* ---- The command ---- */

/* The most documents of any sequence. */
static int count_documents(text *c, const args_syntax *syntax, uint64_t sequences)
{
    if (c->data.end < 0) return args_mistake(syntax, "--separate: the files do not say what id ends a document");
    int32_t *ids = malloc(2 * (size_t)c->L * sizeof *ids);
    if (ids == NULL) return cli_fail_memory();
    for (uint64_t i = 0; i < sequences; i++) {
        cut(c, (uint32_t)i, ids, ids + c->L);
        const uint32_t documents = corpus_documents(ids, c->L, c->data.end);
        if (documents > c->documents) c->documents = documents;
    }
    free(ids);
    return CLI_OK;
}

/* Sizes that follow from the options and the data. */
static int plan(text *c, const args_syntax *syntax, uint64_t seed)
{
    const uint64_t sequences = (c->data.count - 1) / c->L;
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
    if (c->order.places == NULL) return cli_fail_memory();
    return c->separate ? count_documents(c, syntax, sequences) : CLI_OK;
}

int cmd_train_lm(int argc, char **argv)
{
    text c = {.L = 256, .tokens_a_step = 1 << 14, .epochs = 1, .most = 1024, .held_out = 0.1f};
    dart_model_config config = TRAINING_CONFIG;
    training_options o = TRAINING_DEFAULTS;
    bool mamba2 = false, bytes = false;
    const char *tokenizer = NULL;
    args_list files = {.count = 0};
    char data[80];
    const args_option options[] = {
        CORPUS_OPTIONS(files, bytes),
        {"held-out", 0, ARGS_F32, "X", &c.held_out, "share of the data, at its end, for validation; by default 0.1", 0, 1, false},
        {"epochs", 0, ARGS_U32, "N", &c.epochs, "by default 1", 1, 1 << 20, false},
        {"batch-tokens", 0, ARGS_U32, "N", &c.tokens_a_step, "of a step, by default 16384", 1, 1 << 28, false},
        {"separate", 0, ARGS_FLAG, NULL, &c.separate, "documents of a sequence see nothing of each other; the files must say what\nid ends one", 0, 0,
         false},
        TRAINING_MODEL(c.L, config, mamba2),
        TRAINING_SETTINGS(o),
        TRAINING_RUNNING(o),
        CORPUS_TOKENIZER(tokenizer),
        {"sequences", 0, ARGS_U32, "N", &c.most, "of a validation at most, by default 1024", 1, 1 << 20, false},
    };
    const args_syntax syntax = {
        .command = "dartlm train lm",
        .operands = "OUT",
        .options = options,
        .options_count = COUNT_OF(options),
        .about =
            "Trains a language model on files, from initial values, and writes it to the folder OUT. Files are joined and cut into\n"
            "sequences of L tokens; each epoch takes them in another order, and leaves out what does not fill a step.\n"
            "With --tokenizer, its files are copied into OUT; with --bytes, those of a tokenizer whose ids are bytes are written there.\n"
            TRAINING_ABOUT};
    args_operands operands;
    int status = args_parse(&syntax, argc, argv, &operands);
    if (status != ARGS_GO_ON) return status;
    status = corpus_open(&c.data, &files, bytes, tokenizer);
    snprintf(data, sizeof data, "(%" PRIu64 " tokens, checksum %016" PRIx64 ")", c.data.count, c.data.checksum);
    if (status == CLI_OK) status = training_model(&syntax, mamba2, c.data.V, &config);
    if (status == CLI_OK) status = plan(&c, &syntax, o.seed);
    if (status == CLI_OK)
        status = training_run(&(training_task){.name = "lm", .syntax = &syntax, .folder = operands.texts[0], .config = &config, .data = data,
                                               .L = c.L, .batch = c.batch, .steps = c.epoch_steps * c.epochs, .validation = c.validation,
                                               .documents = c.documents, .end = c.data.end, .user = &c, .fill = fill_step,
                                               .fill_validation = fill_validation},
                              &o);
    if (status == CLI_OK && tokenizer != NULL) status = cli_copy_tokenizer(tokenizer, operands.texts[0]);
    if (status == CLI_OK && bytes) status = cli_write_byte_tokenizer(operands.texts[0]);
    corpus_close(&c.data);
    free(c.order.places);
    return status;
}
