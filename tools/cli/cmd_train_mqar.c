/* dartlm train mqar: a model learns recall from nothing. */
#include "cli.h"
#include "mqar.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { STAGES = 4 }; /* of the curriculum: 1/16, 2/16, 3/16 and 4/16 of the length are pairs */

typedef struct mqar_options {
    uint32_t L, V, pairs, examples, epochs, tokens, rows; /* pairs 0: the curriculum; tokens: of a step */
    uint64_t seed;
    float lr;
    uint32_t warmup, schedule; /* steps; 0 and 1 linear, 2 cosine */
    uint32_t steps;            /* 0: all */
    uint32_t every, validate, sequences;
} mqar_options;

typedef struct run {
    const mqar_options *o;
    dart_trainer *trainer;
    uint32_t batch, count;          /* sequences of a step, and into how many parts of the trainer's rows they are cut */
    uint32_t stages, epoch_steps, stage_steps, steps;
    uint32_t end;                   /* steps to take: all, or the first of them */
    uint32_t *order;                /* examples: those of an epoch in their order */
    uint32_t ordered;               /* 1 + the epoch that `order` is of */
    int32_t *ids, *targets;         /* batch or validation */
    uint8_t *used;
    uint64_t start;
} run;

static double rate(const run *r, uint32_t step)
{
    const mqar_options *o = r->o;
    if (step < o->warmup) return (double)o->lr * (step + 1) / o->warmup;
    const double done = r->steps > o->warmup ? (double)(step - o->warmup) / (r->steps - o->warmup) : 0;
    return (double)o->lr * (o->schedule == 2 ? 0.5 * (1 + cos(3.141592653589793 * done)) : 1 - done);
}

static uint32_t pairs_of(const run *r, uint32_t stage) { return r->o->pairs > 0 ? r->o->pairs : r->o->L * (stage + 1) / 16; }

/* The order of an epoch depends on the seed and the epoch alone. Source: Fisher and Yates 1938. */
static void shuffle(run *r, uint32_t epoch)
{
    const uint64_t key = base_mix(r->o->seed ^ base_mix(UINT64_C(0x65706F6368) + epoch));
    for (uint32_t i = 0; i < r->o->examples; i++) {
        const uint32_t k = (uint32_t)((base_mix(key + i) >> 32) * (i + 1) >> 32);
        r->order[i] = r->order[k];
        r->order[k] = i;
    }
    r->ordered = epoch + 1;
}

static void fill_step(run *r, uint32_t step)
{
    const uint32_t stage = step / r->stage_steps, epoch = step / r->epoch_steps, first = step % r->epoch_steps * r->batch;
    /* Examples of a stage are its own. */
    const mqar_task task = {.L = r->o->L, .R = pairs_of(r, stage), .V = r->o->V, .seed = r->o->seed + stage};
    if (r->ordered != epoch + 1) shuffle(r, epoch);
    for (uint32_t b = 0; b < r->batch; b++)
        mqar_example(&task, r->order[first + b], r->ids + (size_t)b * task.L, r->targets + (size_t)b * task.L, r->used);
}

/* Sequences that no stage has, all of the last stage's kind. */
static int validate(run *r, uint32_t step, bool json)
{
    const mqar_task task = {.L = r->o->L, .R = pairs_of(r, r->stages - 1), .V = r->o->V, .seed = ~r->o->seed};
    const uint32_t rows = r->batch / r->count;
    uint64_t right = 0, labels = 0;
    double loss = 0;
    for (uint32_t first = 0; first < r->o->sequences; first += rows) {
        dart_train_result result;
        for (uint32_t b = 0; b < rows; b++)
            mqar_example(&task, first + b, r->ids + (size_t)b * task.L, r->targets + (size_t)b * task.L, r->used);
        const dart_status status = dart_trainer_evaluate(r->trainer, &(dart_train_batch){.ids = r->ids, .targets = r->targets}, &result);
        if (status != DART_OK) return cli_fail_trainer(r->trainer, status);
        right += result.correct;
        labels += result.labels;
        loss += result.loss * (double)result.labels;
    }
    const double accuracy = (double)right / (double)labels, seconds = (double)(base_now_ns() - r->start) / 1e9;
    cli_progress_end();
    if (json)
        return cli_print_line(json_pack("{s:I, s:f, s:f, s:I, s:f}", "step", (json_int_t)step, "validation_loss", loss / (double)labels,
                                        "validation_accuracy", accuracy, "targets", (json_int_t)labels, "seconds", seconds));
    printf("after step %6" PRIu32 "  validation: loss %8.4f  accuracy %6.2f %%\n", step, loss / (double)labels, 100 * accuracy);
    return CLI_OK;
}

static int report_step(const run *r, uint32_t step, const dart_train_result *result, double tokens_a_second, bool json)
{
    const double accuracy = (double)result->correct / (double)result->labels, left = (double)(r->end - step - 1) * r->batch * r->o->L;
    char rate_text[CLI_NUMBER], time[CLI_NUMBER];
    const bool shown = step % r->o->every == 0 || step + 1 == r->end;
    if (json && shown)
        return cli_print_line(json_pack("{s:I, s:f, s:f, s:f, s:f, s:f, s:b}", "step", (json_int_t)step, "loss", result->loss, "accuracy", accuracy,
                                        "lr", rate(r, step), "norm", isfinite(result->norm) ? result->norm : -1.0, "tokens_per_second",
                                        tokens_a_second, "skipped", result->skipped));
    if (!json && shown) {
        cli_progress_end();
        printf("step %6" PRIu32 " of %" PRIu32 "  loss %8.4f  accuracy %6.2f %%  lr %.2e  norm %8.3f  %s tokens/s%s\n", step, r->steps,
               result->loss, 100 * accuracy, rate(r, step), result->norm, cli_rate(tokens_a_second, rate_text),
               result->skipped ? "  skipped" : "");
        fflush(stdout);
    }
    cli_progress("step %" PRIu32 " of %" PRIu32 ", %s left", step + 1, r->end, cli_time(left / tokens_a_second, time));
    return CLI_OK;
}

static int learn(run *r, bool json)
{
    const uint64_t tokens = (uint64_t)r->batch * r->o->L;
    double speed = 0; /* tokens a second, of late */
    r->start = base_now_ns();
    for (uint32_t step = 0; step < r->end; step++) {
        dart_train_result result;
        const uint64_t begin = base_now_ns();
        fill_step(r, step);
        const dart_train_batch batch = {.count = r->count, .ids = r->ids, .targets = r->targets};
        const dart_status status = dart_trainer_step(r->trainer, &batch, rate(r, step), &result);
        if (status != DART_OK) return cli_fail_trainer(r->trainer, status);
        const double now = (double)tokens / ((double)(base_now_ns() - begin) / 1e9);
        speed = step < 2 ? now : 0.9 * speed + 0.1 * now;
        int outcome = report_step(r, step, &result, speed, json);
        if (outcome == CLI_OK && ((step + 1) % r->o->validate == 0 || step + 1 == r->end)) outcome = validate(r, step + 1, json);
        if (outcome != CLI_OK) return outcome;
    }
    return CLI_OK;
}

static int prepare(run *r)
{
    const mqar_options *o = r->o;
    const size_t tokens = (size_t)r->batch * o->L;
    r->order = malloc(o->examples * sizeof *r->order);
    r->ids = malloc(tokens * sizeof *r->ids);
    r->targets = malloc(tokens * sizeof *r->targets);
    r->used = calloc(o->V, 1);
    return r->order != NULL && r->ids != NULL && r->targets != NULL && r->used != NULL ? CLI_OK : cli_fail_memory();
}

int cmd_train_mqar(int argc, char **argv)
{
    cli_common common = {.device = NULL};
    mqar_options o = {.L = 256, .V = 8192, .examples = 1 << 18, .epochs = 8, .tokens = 1 << 18, .seed = 1, .lr = 1e-3f, .warmup = 50,
                      .every = 1, .validate = 512, .sequences = 1024};
    dart_model_config config = {.sma = true, .layers = 2, .W = 64, .N = 16, .P = 64, .G = 1, .K = 4, .S = 16, .eps = 1e-5f, .sma_eps = 1e-5f};
    dart_trainer_options adam = {.beta1 = 0.9f, .beta2 = 0.999f, .weight_decay = 0.1f, .clip = 1};
    static cli_profile profile;
    bool mamba2 = false, profiled = false;
    int schedule = 0, activations = 0;
    const args_option options[] = {
        {"length", 0, ARGS_U32, "L", &o.L, "tokens of a sequence, by default 256", 16, 65536, false},
        {"vocabulary", 0, ARGS_U32, "V", &o.V, "by default 8192", 4, 1 << 24, false},
        {"pairs", 0, ARGS_U32, "R", &o.pairs, "in all examples; by default four stages with 1/16, 2/16, 3/16\nand 4/16 of the length", 1, MQAR_PAIRS, false},
        {"examples", 0, ARGS_U32, "N", &o.examples, "of a stage, by default 262144", 1, 1 << 28, false},
        {"epochs", 0, ARGS_U32, "N", &o.epochs, "of a stage, by default 8", 1, 1 << 20, false},
        {"batch-tokens", 0, ARGS_U32, "N", &o.tokens, "of a step, by default 262144", 1, 1 << 28, false},
        {"rows", 0, ARGS_U32, "N", &o.rows, "sequences computed together, a divisor of those of a step;\nby default all", 1, 1 << 20, false},
        {"steps", 0, ARGS_U32, "N", &o.steps, "only the first N, with the rates of all", 1, 0, false},
        {"width", 0, ARGS_U32, "W", &config.W, "of the residual stream, by default 64", 1, 65536, false},
        {"layers", 0, ARGS_U32, "N", &config.layers, "by default 2", 1, 1024, false},
        {"state", 0, ARGS_U32, "N", &config.N, "by default 16", 1, 256, false},
        {"head-dim", 0, ARGS_U32, "P", &config.P, "by default 64", 1, 256, false},
        {"chunk-size", 0, ARGS_U32, "S", &config.S, "by default 16", 1, 65536, false},
        {"mamba2", 0, ARGS_FLAG, NULL, &mamba2, "a Mamba-2: no state memories", 0, 0, false},
        {"lr", 0, ARGS_F32, "X", &o.lr, "peak, by default 1e-3", 0, 1e6, false},
        {"schedule", 0, ARGS_CHOICE, "linear|cosine", &schedule, "down to 0, by default linear", 0, 0, false},
        {"warm-up", 0, ARGS_U32, "N", &o.warmup, "steps, by default 50", 0, 0, false},
        {"beta1", 0, ARGS_F32, "X", &adam.beta1, "by default 0.9", 0, 1, false},
        {"beta2", 0, ARGS_F32, "X", &adam.beta2, "by default 0.999", 0, 1, false},
        {"eps", 0, ARGS_F32, "X", &adam.eps, "by default 1e-8", 0, 1, false},
        {"weight-decay", 0, ARGS_F32, "X", &adam.weight_decay, "by default 0.1", 0, 1e6, false},
        {"clip", 0, ARGS_F32, "X", &adam.clip, "largest norm of the gradients, by default 1; 0: no limit", 0, 1e30, false},
        {"keep", 0, ARGS_U32, "LEVEL", &adam.keep, "what is kept for the backward pass, 0 (default) to 3", 0, 3, false},
        {"dtype", 0, ARGS_CHOICE, CLI_DTYPES, &common.dtype, "of matrices in the passes, f32 (default) or bf16", 0, 0, false},
        {"activations", 0, ARGS_CHOICE, CLI_DTYPES, &activations, "by default as --dtype", 0, 0, false},
        {"seed", 0, ARGS_U64, "N", &o.seed, "of initial values and data, by default 1", 0, 0, false},
        {"every", 0, ARGS_U32, "N", &o.every, "report every Nth step", 1, 0, false},
        {"validate", 0, ARGS_U32, "N", &o.validate, "after every N steps, by default 512", 1, 0, false},
        {"sequences", 0, ARGS_U32, "N", &o.sequences, "of a validation, by default 1024", 1, 1 << 20, false},
        {"profile", 0, ARGS_FLAG, NULL, &profiled, "time every launch and print where the time goes; slows the steps", 0, 0, false},
        CLI_DEVICE(common),
        CLI_OUTPUT(common),
    };
    const args_syntax syntax = {
        .command = "dartlm train mqar",
        .operands = "OUT",
        .options = options,
        .options_count = COUNT_OF(options),
        .about =
            "Trains a model on multi-query associative recall, from initial values, and writes it to the folder OUT. Examples are those\n"
            "of dartlm data mqar. Validation is on sequences that no stage has, with as many pairs as the last stage's."};
    args_operands operands;
    cli_session session = {.context = NULL};
    run r = {.o = &o};
    int status = args_parse(&syntax, argc, argv, &operands);
    if (status != ARGS_GO_ON) return status;
    o.schedule = (uint32_t)schedule;
    r.stages = o.pairs > 0 ? 1 : STAGES;
    for (uint32_t stage = 0; stage < r.stages; stage++) {
        const char *complaint = mqar_complaint(&(mqar_task){.L = o.L, .R = pairs_of(&r, stage), .V = o.V});
        if (complaint != NULL) return args_mistake(&syntax, "%s", complaint);
    }
    r.batch = o.tokens / o.L;
    if (r.batch == 0 || o.examples % r.batch != 0)
        return args_mistake(&syntax, "--examples %" PRIu32 " are no multiple of the %" PRIu32 " sequences of a step", o.examples, r.batch);
    if (o.rows == 0) o.rows = r.batch;
    if (r.batch % o.rows != 0) return args_mistake(&syntax, "--rows %" PRIu32 " does not divide the %" PRIu32 " sequences of a step", o.rows, r.batch);
    r.count = r.batch / o.rows;
    r.epoch_steps = o.examples / r.batch;
    if ((uint64_t)r.epoch_steps * o.epochs * r.stages > INT32_MAX) return args_mistake(&syntax, "more than 2^31 steps");
    r.stage_steps = r.epoch_steps * o.epochs;
    r.steps = r.stage_steps * r.stages;
    r.end = o.steps > 0 && o.steps < r.steps ? o.steps : r.steps;
    config.sma = !mamba2;
    config.V = o.V;
    config.H = 2 * config.W / config.P;
    adam.B = o.rows;
    adam.L = o.L;
    adam.seed = o.seed;
    adam.weights = (dart_storage)common.dtype;
    adam.activations = (dart_storage)activations;
    if (profiled) common.profile = &profile;
    profile.phase = "steps";
    status = cli_open_device(&session, &common);
    if (status == CLI_OK) {
        const dart_status folder = file_make_folder(operands.texts[0], &session.report);
        if (folder != DART_OK) status = cli_fail_file(&session, folder);
    }
    if (status == CLI_OK) {
        const dart_status made = dart_trainer_create(session.device, &config, &adam, &r.trainer);
        if (made != DART_OK) status = cli_fail_device(&session, made);
    }
    if (status == CLI_OK) status = prepare(&r);
    if (status == CLI_OK) status = learn(&r, common.json);
    if (status == CLI_OK) {
        const dart_status written = dart_trainer_export(r.trainer, operands.texts[0]);
        if (written != DART_OK) status = cli_fail_trainer(r.trainer, written);
    }
    if (status == CLI_OK && profiled) cli_profile_print(&profile, r.end);
    free(r.order);
    free(r.ids);
    free(r.targets);
    free(r.used);
    dart_trainer_destroy(&r.trainer);
    cli_close(&session);
    return status;
}
