/* dartlm grad and dartlm train: gradients and training of whole models. */
#include "cli.h"
#include "dartlm/train.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- What both share ---- */

typedef struct train_options {
    const char *folder;
    int activations; /* dart_storage */
    uint32_t rows, keep;
    bool no_sma;
} train_options;
#define TRAIN_DTYPES "f32|f16|bf16"
#define TRAIN_MODEL(c, t) \
    {"model", 0, ARGS_TEXT, "DIR", &(t).folder, "config.json and *.safetensors", 0, 0, true}, \
    {"rows", 0, ARGS_U32, "N", &(t).rows, "rows computed together, a divisor of the batch; by default all", 1, 0, false}, \
    {"keep", 0, ARGS_U32, "LEVEL", &(t).keep, "what is kept for the backward pass: 0 everything, by default,\nto 3 the residual stream", \
     0, 3, false}, \
    {"no-sma", 0, ARGS_FLAG, NULL, &(t).no_sma, "leave the state memories out", 0, 0, false}, \
    {"dtype", 0, ARGS_CHOICE, TRAIN_DTYPES, &(c).dtype, "storage of the matrices in the passes, f32 (default), f16 or bf16", 0, 0, false}, \
    {"activations", 0, ARGS_CHOICE, TRAIN_DTYPES, &(t).activations, "storage between ops, by default as --dtype", 0, 0, false}

/* Steps of batches: ids and target steps x B x L. */
typedef struct batches {
    uint32_t steps, B, L;
    uint32_t sequences; /* of a row; 0: the row itself */
    int32_t *ids, *targets;
    int32_t *cu; /* sequences + 1, of every row; or NULL */
    float *lr; /* steps; NULL unless asked for */
} batches;

static void batches_free(batches *b)
{
    free(b->ids);
    free(b->targets);
    free(b->cu);
    free(b->lr);
}

/* Where the documents of every row begin, if the file says so. */
static int load_borders(const char *path, const safetensors *file, batches *b)
{
    const safetensors_tensor *cu = safetensors_find(file, "cu");
    if (cu == NULL) return CLI_OK;
    if (cu->rank != 1 || cu->elements < 2 || cu->elements > UINT32_C(1) << 20)
        return cli_fail("%s: tensor cu must have the borders of the documents of a row, from 0 to %" PRIu32, path, b->L);
    const int result = cli_integers(cu, &b->cu);
    if (result != CLI_OK) return result;
    b->sequences = (uint32_t)cu->elements - 1;
    if (dart_cu_check(b->cu, b->sequences, b->L, b->L) != DART_OK || (uint32_t)b->cu[b->sequences] != b->L)
        return cli_fail("%s: tensor cu must go from 0 to %" PRIu32 " without falling", path, b->L);
    return CLI_OK;
}

/* The borders of `count` parts of `rows` rows, as trainers take them, or NULL where rows are sequences. */
static int make_borders(const batches *b, uint32_t rows, uint32_t count, int32_t **made)
{
    *made = NULL;
    if (b->sequences == 0) return CLI_OK;
    const size_t own = (size_t)rows * b->sequences + 1;
    int32_t *cu = calloc(count * own, sizeof *cu);
    if (cu == NULL) return cli_fail_memory();
    for (size_t i = 0; i < count; i++)
        for (size_t row = 0; row < rows; row++)
            for (size_t k = 1; k <= b->sequences; k++) cu[i * own + row * b->sequences + k] = (int32_t)(row * b->L) + b->cu[k];
    *made = cu;
    return CLI_OK;
}

static int load_shapes(const char *path, const safetensors *file, uint32_t rank, batches *b)
{
    char is[160];
    const safetensors_tensor *ids = safetensors_find(file, "ids"), *target = safetensors_find(file, "target");
    if (ids == NULL || target == NULL) return cli_fail("%s: tensor %s is missing", path, ids == NULL ? "ids" : "target");
    if (ids->rank != rank || ids->elements == 0 || ids->elements > INT32_MAX)
        return cli_fail("%s: tensor ids has shape %s, expected %sB x L", path, cli_shape(ids->shape, ids->rank, is), rank == 3 ? "steps x " : "");
    if (target->rank != rank || memcmp(target->shape, ids->shape, rank * sizeof *ids->shape) != 0)
        return cli_fail("%s: tensor target has shape %s, expected that of ids", path, cli_shape(target->shape, target->rank, is));
    b->steps = rank == 3 ? (uint32_t)ids->shape[0] : 1;
    b->B = (uint32_t)ids->shape[rank - 2];
    b->L = (uint32_t)ids->shape[rank - 1];
    int result = load_borders(path, file, b);
    if (result == CLI_OK) result = cli_integers(ids, &b->ids);
    return result == CLI_OK ? cli_integers(target, &b->targets) : result;
}

static int load_rates(const char *path, const safetensors *file, batches *b)
{
    char is[160];
    const safetensors_tensor *lr = safetensors_find(file, "lr");
    if (lr == NULL) return cli_fail("%s: tensor lr is missing", path);
    if (lr->rank != 1 || lr->elements != b->steps || (lr->dtype != SAFETENSORS_F32 && lr->dtype != SAFETENSORS_F16 && lr->dtype != SAFETENSORS_BF16))
        return cli_fail("%s: tensor lr has shape %s, expected [%" PRIu32 "] in floats", path, cli_shape(lr->shape, lr->rank, is), b->steps);
    b->lr = malloc(b->steps * sizeof *b->lr);
    if (b->lr == NULL) return cli_fail_memory();
    safetensors_to_f32(lr, 0, b->steps, b->lr);
    return CLI_OK;
}

static int load(cli_session *session, const char *path, uint32_t rank, batches *b)
{
    safetensors *file = NULL;
    const dart_status status = safetensors_open(path, &session->report, &file);
    if (status != DART_OK) return cli_fail_file(session, status);
    int result = load_shapes(path, file, rank, b);
    if (result == CLI_OK && rank == 3) result = load_rates(path, file, b);
    safetensors_close(&file);
    return result;
}

/* The trainer for such batches; *count is the number of its rows in a batch. */
static int open_trainer(cli_session *session, const cli_common *common, const train_options *with, const batches *b, dart_trainer_options options,
                        uint32_t *count, int32_t **cu, dart_trainer **trainer)
{
    options.B = with->rows > 0 ? with->rows : b->B;
    options.L = b->L;
    options.keep = with->keep;
    options.no_sma = with->no_sma;
    options.weights = (dart_storage)common->dtype;
    options.activations = (dart_storage)with->activations;
    if (b->B % options.B != 0) return cli_fail("--rows %" PRIu32 " does not divide the batch of %" PRIu32 " rows", options.B, b->B);
    *count = b->B / options.B;
    options.documents = options.B * b->sequences;
    const int made = make_borders(b, options.B, *count, cu);
    if (made != CLI_OK) return made;
    cli_progress("loading %s", with->folder);
    const dart_status status = dart_trainer_open(session->device, with->folder, &options, trainer);
    cli_progress_end();
    return status == DART_OK ? CLI_OK : cli_fail_device(session, status);
}

/* ---- dartlm grad ---- */

static int write_gradients(cli_session *session, dart_trainer *trainer, const dart_train_result *result, const char *path)
{
    dart_train_parameter parameter;
    uint32_t count = 0;
    int outcome = CLI_OK;
    const float loss = (float)result->loss, norm = (float)result->norm;
    while (dart_trainer_parameter(trainer, count, &parameter)) count++;
    safetensors_tensor *entries = calloc(count + 2, sizeof *entries);
    float **values = calloc(count + 1, sizeof *values);
    if (entries == NULL || values == NULL) outcome = cli_fail_memory();
    for (uint32_t i = 0; outcome == CLI_OK && dart_trainer_parameter(trainer, i, &parameter); i++) {
        values[i] = malloc((size_t)parameter.elements * sizeof *values[i]);
        if (values[i] == NULL) {
            outcome = cli_fail_memory();
            break;
        }
        const dart_status status = dart_trainer_read(trainer, DART_TRAIN_GRADIENT, i, values[i]);
        if (status != DART_OK) outcome = cli_fail_trainer(trainer, status);
        entries[i] = (safetensors_tensor){.name = parameter.name, .data = values[i], .dtype = SAFETENSORS_F32, .rank = parameter.rank};
        memcpy(entries[i].shape, parameter.shape, sizeof parameter.shape);
    }
    if (outcome == CLI_OK) {
        entries[count] = (safetensors_tensor){.name = "loss", .data = &loss, .dtype = SAFETENSORS_F32, .rank = 1, .shape = {1}};
        entries[count + 1] = (safetensors_tensor){.name = "norm", .data = &norm, .dtype = SAFETENSORS_F32, .rank = 1, .shape = {1}};
        const dart_status status = safetensors_write(path, entries, count + 2, &session->report);
        if (status != DART_OK) outcome = cli_fail_file(session, status);
    }
    for (uint32_t i = 0; values != NULL && i < count; i++) free(values[i]);
    free(values);
    free(entries);
    return outcome;
}

int cmd_grad(int argc, char **argv)
{
    cli_common common = {.device = NULL};
    train_options with = {.folder = NULL};
    const args_option options[] = {TRAIN_MODEL(common, with), CLI_DEVICE(common), CLI_OUTPUT(common)};
    const args_syntax syntax = {
        .command = "dartlm grad",
        .operands = "IN OUT",
        .options = options,
        .options_count = COUNT_OF(options),
        .about =
            "Reads ids and target (B x L, I32 or I64; a target of -1 is none) from the safetensors file IN. With cu, the borders\n"
            "0 ... L of documents, every row holds those documents, each a sequence of its own. Writes loss, the mean of\n"
            "-log softmax(logits)[target], norm, that of all gradients together, and the gradient of every parameter under its\n"
            "name in the checkpoint, F32, to OUT; - is standard output."};
    args_operands operands;
    cli_session session = {.context = NULL};
    dart_trainer *trainer = NULL;
    batches b = {.ids = NULL};
    dart_train_result result = {0};
    uint32_t count = 1;
    int32_t *cu = NULL;
    int status = args_parse(&syntax, argc, argv, &operands);
    if (status != ARGS_GO_ON) return status;
    if (common.json && strcmp(operands.texts[1], "-") == 0)
        return args_mistake(&syntax, "--json and the gradients would both go to standard output");
    status = cli_open_device(&session, &common);
    if (status == CLI_OK) status = load(&session, operands.texts[0], 2, &b);
    if (status == CLI_OK) status = open_trainer(&session, &common, &with, &b, (dart_trainer_options){0}, &count, &cu, &trainer);
    if (status == CLI_OK) {
        const dart_status done =
            dart_trainer_gradient(trainer, &(dart_train_batch){.count = count, .ids = b.ids, .targets = b.targets, .cu = cu}, &result);
        status = done == DART_OK ? write_gradients(&session, trainer, &result, operands.texts[1]) : cli_fail_trainer(trainer, done);
    }
    if (status == CLI_OK && common.json)
        status = cli_print_json(json_pack("{s:s, s:o, s:o, s:o, s:I, s:I}", "device", session.info.name, "file", cli_json_text(operands.texts[1]),
                                          "loss", cli_json_number(result.loss), "norm", cli_json_number(result.norm), "targets",
                                          (json_int_t)result.labels, "correct", (json_int_t)result.correct));
    free(cu);
    batches_free(&b);
    dart_trainer_destroy(&trainer);
    cli_close(&session);
    return status;
}

/* ---- dartlm train batches ---- */

typedef struct step_log {
    float *loss, *norm; /* one a step */
} step_log;

static int run_steps(dart_trainer *trainer, const batches *b, uint32_t count, const int32_t *cu, uint32_t steps, step_log *to)
{
    const size_t tokens = (size_t)b->B * b->L;
    for (uint32_t i = 0; i < steps; i++) {
        const dart_train_batch batch = {.count = count, .ids = b->ids + i * tokens, .targets = b->targets + i * tokens, .cu = cu};
        dart_train_result result;
        const dart_status status = dart_trainer_step(trainer, &batch, (double)b->lr[i], &result);
        if (status != DART_OK) return cli_fail_trainer(trainer, status);
        to->loss[i] = (float)result.loss;
        to->norm[i] = (float)result.norm;
        const int printed = cli_print_line(json_pack("{s:I, s:o, s:f, s:f, s:o, s:b, s:I}", "step", (json_int_t)i, "loss",
                                                     cli_json_number(result.loss), "accuracy", (double)result.correct / (double)result.labels,
                                                     "lr", (double)b->lr[i], "norm", cli_json_number(result.norm), "skipped", result.skipped,
                                                     "scale", (json_int_t)result.scale));
        if (printed != CLI_OK) return printed;
    }
    return CLI_OK;
}

static int write_losses(cli_session *session, const char *folder, uint32_t steps, const step_log *from)
{
    char *path = file_join(folder, "losses.safetensors");
    if (path == NULL) return cli_fail_memory();
    const safetensors_tensor entries[] = {
        {.name = "loss", .data = from->loss, .dtype = SAFETENSORS_F32, .rank = 1, .shape = {steps}},
        {.name = "norm", .data = from->norm, .dtype = SAFETENSORS_F32, .rank = 1, .shape = {steps}}};
    const dart_status status = safetensors_write(path, entries, COUNT_OF(entries), &session->report);
    free(path);
    return status == DART_OK ? CLI_OK : cli_fail_file(session, status);
}

static int train_batches(int argc, char **argv)
{
    cli_common common = {.device = NULL};
    train_options with = {.folder = NULL};
    const char *data = NULL;
    uint32_t steps = 0, count = 1;
    dart_trainer_options adam = {.beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f};
    const args_option options[] = {
        TRAIN_MODEL(common, with),
        {"data", 0, ARGS_TEXT, "FILE", &data, "ids and target (steps x B x L), lr (steps) and perhaps cu in a safetensors file", 0, 0, true},
        {"steps", 0, ARGS_U32, "N", &steps, "only the first N of them", 1, 0, false},
        {"beta1", 0, ARGS_F32, "X", &adam.beta1, "by default 0.9", 0, 1, false},
        {"beta2", 0, ARGS_F32, "X", &adam.beta2, "by default 0.999", 0, 1, false},
        {"eps", 0, ARGS_F32, "X", &adam.eps, "by default 1e-8", 1e-30, 1, false},
        {"weight-decay", 0, ARGS_F32, "X", &adam.weight_decay, "of projections, convolutions and an untied head; by default 0", 0, 1e6, false},
        {"clip", 0, ARGS_F32, "X", &adam.clip, "largest norm of the gradients; by default no limit", 0, 1e30, false},
        CLI_DEVICE(common),
        CLI_OUTPUT(common),
    };
    const args_syntax syntax = {
        .command = "dartlm train batches",
        .operands = "OUT",
        .options = options,
        .options_count = COUNT_OF(options),
        .about =
            "Takes a step of AdamW for each batch of a file and prints a line of JSON for each. Writes the model to the folder\n"
            "OUT, and the losses and norms of the steps to losses.safetensors there. For comparisons with other programs."};
    args_operands operands;
    cli_session session = {.context = NULL};
    dart_trainer *trainer = NULL;
    batches b = {.ids = NULL};
    step_log of_steps = {NULL, NULL};
    int32_t *cu = NULL;
    int status = args_parse(&syntax, argc, argv, &operands);
    if (status != ARGS_GO_ON) return status;
    status = cli_open_device(&session, &common);
    if (status == CLI_OK) status = load(&session, data, 3, &b);
    if (status == CLI_OK && steps > b.steps) status = cli_fail("--steps %" PRIu32 ", but %s has %" PRIu32, steps, data, b.steps);
    if (steps == 0) steps = b.steps;
    if (adam.beta1 == 0) adam.beta1 = DART_BETA_ZERO;
    if (adam.beta2 == 0) adam.beta2 = DART_BETA_ZERO;
    if (status == CLI_OK) {
        const dart_status made = file_make_folder(operands.texts[0], &session.report);
        if (made != DART_OK) status = cli_fail_file(&session, made);
    }
    if (status == CLI_OK) status = open_trainer(&session, &common, &with, &b, adam, &count, &cu, &trainer);
    if (status == CLI_OK) {
        of_steps = (step_log){malloc(steps * sizeof(float)), malloc(steps * sizeof(float))};
        status = of_steps.loss != NULL && of_steps.norm != NULL ? run_steps(trainer, &b, count, cu, steps, &of_steps) : cli_fail_memory();
    }
    if (status == CLI_OK) {
        const dart_status written = dart_trainer_export(trainer, operands.texts[0]);
        status = written == DART_OK ? write_losses(&session, operands.texts[0], steps, &of_steps) : cli_fail_trainer(trainer, written);
    }
    free(of_steps.loss);
    free(of_steps.norm);
    free(cu);
    batches_free(&b);
    dart_trainer_destroy(&trainer);
    cli_close(&session);
    return status;
}

/* ---- dartlm train ---- */

int cmd_train(int argc, char **argv)
{
    static const char help[] =
        "usage: dartlm train mqar [--resume] [options] OUT\n"
        "       dartlm train lm --bytes --data FILE [--resume] [options] OUT\n"
        "       dartlm train batches --model DIR --data FILE [options] OUT\n\n"
        "Tasks: mqar (multi-query associative recall), lm (language models), batches (of a file). dartlm train TASK --help tells\n"
        "more. Runs of mqar and lm are saved in OUT as they go: however one ended, the same command with --resume goes on with it.\n";
    if (argc >= 2 && strcmp(argv[1], "batches") == 0) return train_batches(argc - 1, argv + 1);
    if (argc >= 2 && strcmp(argv[1], "mqar") == 0) return cmd_train_mqar(argc - 1, argv + 1);
    if (argc >= 2 && strcmp(argv[1], "lm") == 0) return cmd_train_lm(argc - 1, argv + 1);
    return args_no_task("dartlm train", help, argc, argv);
}
