/* dartlm train mqar: a model learns recall from nothing. */
#include "mqar.h"
#include "training.h"

#include <inttypes.h>
#include <stdlib.h>

enum { STAGES = 4 }; /* of the curriculum: 1/16, 2/16, 3/16 and 4/16 of the length are pairs */

typedef struct recall {
    uint32_t L, V, pairs, examples, epochs, tokens, sequences; /* pairs 0: the curriculum; tokens: of a step */
    uint64_t seed;
    uint32_t batch, stages, epoch_steps, stage_steps; /* batch: sequences of a step */
    training_order order;
    uint8_t *used;
} recall;

static uint32_t pairs_of(const recall *r, uint32_t stage) { return r->pairs > 0 ? r->pairs : r->L * (stage + 1) / 16; }

static void fill_step(void *user, uint32_t step, int32_t *ids, int32_t *targets)
{
    recall *r = user;
    const uint32_t stage = step / r->stage_steps, epoch = step / r->epoch_steps, first = step % r->epoch_steps * r->batch;
    /* Examples of a stage are its own. */
    const mqar_task task = {.L = r->L, .R = pairs_of(r, stage), .V = r->V, .seed = r->seed + stage};
    const uint32_t *places = training_epoch(&r->order, epoch);
    for (uint32_t b = 0; b < r->batch; b++)
        mqar_example(&task, places[first + b], ids + (size_t)b * task.L, targets + (size_t)b * task.L, r->used);
}

/* Sequences that no stage has, all of the last stage's kind. */
static void fill_validation(void *user, uint32_t index, int32_t *ids, int32_t *targets)
{
    const recall *r = user;
    mqar_example(&(mqar_task){.L = r->L, .R = pairs_of(r, r->stages - 1), .V = r->V, .seed = ~r->seed}, index, ids, targets, r->used);
}

/* Sizes that follow from the options. */
static int plan(recall *r, const args_syntax *syntax)
{
    r->stages = r->pairs > 0 ? 1 : STAGES;
    for (uint32_t stage = 0; stage < r->stages; stage++) {
        const char *complaint = mqar_complaint(&(mqar_task){.L = r->L, .R = pairs_of(r, stage), .V = r->V});
        if (complaint != NULL) return args_mistake(syntax, "%s", complaint);
    }
    r->batch = r->tokens / r->L;
    if (r->batch == 0 || r->examples % r->batch != 0)
        return args_mistake(syntax, "--examples %" PRIu32 " are no multiple of the %" PRIu32 " sequences of a step", r->examples, r->batch);
    r->epoch_steps = r->examples / r->batch;
    if ((uint64_t)r->epoch_steps * r->epochs * r->stages > INT32_MAX) return args_mistake(syntax, "more than 2^31 steps");
    r->stage_steps = r->epoch_steps * r->epochs;
    r->order = (training_order){.seed = r->seed, .count = r->examples, .places = malloc(r->examples * sizeof *r->order.places)};
    r->used = calloc(r->V, 1);
    return r->order.places != NULL && r->used != NULL ? CLI_OK : cli_fail_memory();
}

int cmd_train_mqar(int argc, char **argv)
{
    recall r = {.L = 256, .V = 8192, .examples = 1 << 21, .epochs = 1, .tokens = 1 << 18, .sequences = 1024};
    dart_model_config config = TRAINING_CONFIG;
    training_options o = TRAINING_DEFAULTS;
    bool mamba2 = false;
    const args_option options[] = {
        TRAINING_MODEL(r.L, config, mamba2),
        {"vocabulary", 0, ARGS_U32, "V", &r.V, "by default 8192", 4, 1 << 24, false},
        {"pairs", 0, ARGS_U32, "R", &r.pairs, "in all examples; by default four stages with 1/16, 2/16, 3/16\nand 4/16 of the length",
         1, MQAR_PAIRS, false},
        {"examples", 0, ARGS_U32, "N", &r.examples, "of a stage, by default 2097152", 1, 1 << 28, false},
        {"epochs", 0, ARGS_U32, "N", &r.epochs, "of a stage, by default 1: no example is seen twice", 1, 1 << 20, false},
        {"batch-tokens", 0, ARGS_U32, "N", &r.tokens, "of a step, by default 262144", 1, 1 << 28, false},
        TRAINING_SETTINGS(o),
        TRAINING_RUNNING(o),
        {"sequences", 0, ARGS_U32, "N", &r.sequences, "of a validation, by default 1024", 1, 1 << 20, false},
    };
    const args_syntax syntax = {
        .command = "dartlm train mqar",
        .operands = "OUT",
        .options = options,
        .options_count = COUNT_OF(options),
        .about =
            "Trains a model on multi-query associative recall, from initial values, and writes it to the folder OUT. Examples are those\n"
            "of dartlm data mqar. Validation is on sequences that no stage has, with as many pairs as the last stage's.\n" TRAINING_ABOUT};
    args_operands operands;
    int status = args_parse(&syntax, argc, argv, &operands);
    if (status != ARGS_GO_ON) return status;
    r.seed = o.seed;
    status = training_model(&syntax, mamba2, r.V, &config);
    if (status == CLI_OK) status = plan(&r, &syntax);
    if (status == CLI_OK)
        status = training_run(&(training_task){.name = "mqar", .syntax = &syntax, .folder = operands.texts[0], .config = &config, .L = r.L,
                                               .batch = r.batch, .steps = r.stage_steps * r.stages, .validation = r.sequences, .user = &r,
                                               .fill = fill_step, .fill_validation = fill_validation},
                              &o);
    free(r.order.places);
    free(r.used);
    return status;
}
