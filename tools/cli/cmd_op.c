/* One op on tensors of a file: for comparing devices, and other programs, with one another. */
#include "operation.h"

#include "base/file.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* F32, F16, BF16 and F64 as f32; I32 and I64 as i32. */
static int convert(const safetensors_tensor *tensor, bool whole, void **values)
{
    if (whole) {
        int32_t *made = NULL;
        const int status = cli_integers(tensor, &made);
        *values = made;
        return status;
    }
    if (tensor->dtype > SAFETENSORS_F64)
        return cli_fail("tensor %s has dtype %s, expected F32, F16, BF16 or F64", tensor->name,
                        safetensors_dtype_name(tensor->dtype));
    if (tensor->elements >= SIZE_MAX / sizeof(double)) return cli_fail_memory();
    const size_t count = (size_t)tensor->elements;
    float *made = malloc((count + 1) * sizeof *made);
    if (made == NULL) return cli_fail_memory();
    if (tensor->dtype != SAFETENSORS_F64) {
        safetensors_to_f32(tensor, 0, count, made);
    } else {
        for (size_t i = 0; i < count; i++) {
            double wide = 0;
            memcpy(&wide, (const uint8_t *)tensor->data + i * sizeof wide, sizeof wide);
            made[i] = (float)wide;
        }
    }
    *values = made;
    return CLI_OK;
}

static dart_dtype dtype_of(const safetensors_tensor *tensor, int chosen)
{
    dart_dtype dtype = DART_F32;
    if (chosen != DART_STORAGE_DEFAULT) return (dart_dtype)(chosen - DART_STORAGE_F32);
    if (tensor != NULL) safetensors_dtype_to_dart(tensor->dtype, &dtype);
    return dtype;
}

static int missing(const operation *o, const char *path, const operation_tensor *t)
{
    char inputs[512] = "";
    size_t used = 0;
    for (const operation_tensor *i = o->kind->tensors; i->name != NULL; i++)
        if ((i->flags & TENSOR_IN) != 0 && used < sizeof inputs - 64)
            used += (size_t)snprintf(inputs + used, sizeof inputs - used, "%s%s [%s]", used > 0 ? ", " : "", i->name,
                                     i->shape);
    return cli_fail("%s: tensor %s is missing; %s takes %s", path, t->name, o->kind->name, inputs);
}

static bool is_optional(const operation_tensor *t) { return (t->flags & (TENSOR_OPTIONAL | TENSOR_ZERO | TENSOR_SETTINGS)) != 0; }

static bool is_backward(const operation *o) { return operation_find(o->kind->name) != o->kind; }

/* ---- Settings: options, else the file's metadata, else the default ---- */

/* What no option has set. */
#define NOT_SET NAN

static int setting(const safetensors *file, const char *path, const char *key, float otherwise, float *value)
{
    const char *text = safetensors_metadata(file, key);
    char *end = NULL;
    if (!isnan(*value)) return CLI_OK;
    *value = otherwise;
    if (text == NULL) return CLI_OK;
    *value = strtof(text, &end);
    if (end == text || *end != '\0' || !(*value >= 0)) return cli_fail("%s: the metadata %s is no number from 0 on, but '%s'", path, key, text);
    return CLI_OK;
}

static int settle(operation_settings *s, const safetensors *file, const char *path)
{
    const char *chunk = safetensors_metadata(file, "S");
    uint64_t S = 256;
    if (s->S == 0 && chunk != NULL && (!args_whole(chunk, &S) || S == 0 || S > 1u << 30))
        return cli_fail("%s: the metadata S is no chunk size from 1 to 2^30, but '%s'", path, chunk);
    if (s->S == 0) s->S = (uint32_t)S;
    const struct { const char *key; float otherwise, *value; } numbers[] = {
        {"dt_min", 0, &s->dt_min}, {"dt_max", 0, &s->dt_max}, {"eps", 1e-5f, &s->eps}, {"scale", 0, &s->scale}, {"base", 10000, &s->base}};
    for (size_t i = 0; i < COUNT_OF(numbers); i++)
        if (setting(file, path, numbers[i].key, numbers[i].otherwise, numbers[i].value) != CLI_OK) return CLI_FAILED;
    if (isinf(s->dt_max)) s->dt_max = 0;
    return CLI_OK;
}

/* ---- Tensors ---- */

/* Tensors that the op does not take: those that would change its result fail. A backward pass may be given a file with results in it, to
 * compare its own with. */
static int check_names(const operation *o, const safetensors *file, const char *path)
{
    const bool backward = is_backward(o);
    for (size_t i = 0; i < safetensors_count(file); i++) {
        const char *name = safetensors_at(file, i)->name, *of = NULL;
        const size_t index = operation_index(o->kind, name);
        if (index < OPERATION_MAX_TENSORS && (o->kind->tensors[index].flags & TENSOR_IN) != 0) continue;
        if (strcmp(name, "cu") == 0) return cli_fail("%s: %s does not take several documents in a row (cu)", path, o->kind->name);
        if (backward && (operation_prefixed(name, "out.", &of) || operation_prefixed(name, "grad.", &of))) continue;
        if (backward && operation_prefixed(name, "up.", &of))
            return cli_fail("%s: no gradient of %s comes into the backward pass of %s", path, of, o->kind->name);
        const size_t ahead = operation_index(operation_find(o->kind->name), name);
        if (ahead < OPERATION_MAX_TENSORS && (operation_find(o->kind->name)->tensors[ahead].flags & TENSOR_IN) != 0)
            return cli_fail("%s: the backward pass of %s does not take %s", path, o->kind->name, name);
        fprintf(stderr, "dartlm: warning: %s does not use tensor %s\n", o->kind->name, name);
    }
    return CLI_OK;
}

static int pack(operation *o, const safetensors *file, const char *path)
{
    const size_t cu = operation_index(o->kind, "cu");
    void *values = NULL;
    if (cu == OPERATION_MAX_TENSORS || !o->given[cu]) return CLI_OK;
    int status = convert(safetensors_find(file, "cu"), true, &values);
    if (status == CLI_OK) status = operation_pack(o, values, path);
    free(values);
    return status;
}

/* Sizes that the file's tensors have. */
static int learn(operation *o, const safetensors *file, const char *path)
{
    for (size_t i = 0; o->kind->tensors[i].name != NULL; i++) {
        const operation_tensor *t = &o->kind->tensors[i];
        if ((t->flags & TENSOR_IN) == 0) continue;
        const safetensors_tensor *tensor = safetensors_find(file, t->name);
        if (tensor == NULL && !is_optional(t)) return missing(o, path, t);
        o->given[i] = tensor != NULL;
        if (tensor != NULL && operation_learn(o, i, tensor->shape, tensor->rank, path) != CLI_OK) return CLI_FAILED;
    }
    return CLI_OK;
}

static int load(operation *o, const cli_session *session, const safetensors *file, const char *path, int dtype)
{
    if (check_names(o, file, path) != CLI_OK || settle(&o->settings, file, path) != CLI_OK) return CLI_FAILED;
    if (learn(o, file, path) != CLI_OK || pack(o, file, path) != CLI_OK) return CLI_FAILED;
    if (o->kind->derive != NULL) o->kind->derive(o);
    /* Again: a tensor's sizes may be other than those derived. */
    if (learn(o, file, path) != CLI_OK) return CLI_FAILED;
    for (size_t i = 0; o->kind->tensors[i].name != NULL; i++) {
        const operation_tensor *t = &o->kind->tensors[i];
        if ((t->flags & TENSOR_IN) == 0 || (!o->given[i] && (t->flags & (TENSOR_ZERO | TENSOR_SETTINGS)) == 0)) continue;
        const safetensors_tensor *tensor = safetensors_find(file, t->name);
        void *values = NULL;
        int status = o->given[i] ? convert(tensor, (t->flags & TENSOR_I32) != 0, &values) : CLI_OK;
        if (status == CLI_OK) status = operation_place(o, session, i, dtype_of(tensor, dtype), values);
        free(values);
        if (status != CLI_OK) return status;
    }
    return operation_prepare(o, session);
}

/* Whether it is the gradient of an input that the file lacks. */
static bool is_gradient_of_none(const operation *o, const char *name)
{
    const char *of = NULL;
    return operation_prefixed(name, "grad.", &of) && !o->given[operation_index(o->kind, of)];
}

/* Outputs take the dtype of the first tensor, unless one was chosen. */
static int make_outputs(operation *o, const cli_session *session, int dtype, bool stages)
{
    const dart_dtype stored = dtype != DART_STORAGE_DEFAULT     ? (dart_dtype)(dtype - DART_STORAGE_F32)
                              : o->tensors[0].dtype == DART_I32 ? o->tensors[1].dtype
                                                                : o->tensors[0].dtype;
    for (size_t i = 0; o->kind->tensors[i].name != NULL; i++) {
        const operation_tensor *t = &o->kind->tensors[i];
        if ((t->flags & (TENSOR_IN | TENSOR_OPTIONAL)) != 0 || ((t->flags & TENSOR_STAGE) != 0 && !stages)) continue;
        /* The step plan has no such stage. */
        if (strcmp(t->name, "hin") == 0 && o->settings.plan == DART_PLAN_STEP) continue;
        if (is_backward(o) && is_gradient_of_none(o, t->name)) continue;
        if (operation_place(o, session, i, stored, NULL) != CLI_OK) return CLI_FAILED;
    }
    return CLI_OK;
}

static int describe(const operation *o, const cli_session *session, size_t index, safetensors_tensor *entry)
{
    void *values = NULL;
    const operation_tensor *t = &o->kind->tensors[index];
    *entry = (safetensors_tensor){.name = t->name,
                                  .dtype = (t->flags & TENSOR_I32) != 0 ? SAFETENSORS_I32 : SAFETENSORS_F32};
    if (operation_shape(o, index, entry->shape, &entry->rank) != CLI_OK ||
        operation_read(o, session, index, &values) != CLI_OK)
        return CLI_FAILED;
    entry->data = values;
    return CLI_OK;
}

static int write_outputs(const operation *o, cli_session *session, const char *path)
{
    safetensors_tensor entries[OPERATION_MAX_TENSORS];
    size_t count = 0;
    int result = CLI_OK;
    for (size_t i = 0; o->kind->tensors[i].name != NULL && result == CLI_OK; i++)
        if (operation_is_output(o, i) && (o->kind->tensors[i].flags & TENSOR_STAGE) == 0)
            result = describe(o, session, i, &entries[count++]);
    if (result == CLI_OK) {
        const dart_status status = safetensors_write(path, entries, count, &session->report);
        if (status != DART_OK) result = cli_fail_file(session, status);
    }
    for (size_t i = 0; i < count; i++) free((void *)(uintptr_t)entries[i].data);
    return result;
}

/* FOLDER/STAGE.safetensors for every stage. */
static int write_stages(const operation *o, cli_session *session, const char *folder)
{
    int result = CLI_OK;
    const dart_status made = file_make_folder(folder, &session->report);
    if (made != DART_OK) return cli_fail_file(session, made);
    for (size_t i = 0; o->kind->tensors[i].name != NULL && result == CLI_OK; i++) {
        if (!operation_is_output(o, i) || (o->kind->tensors[i].flags & TENSOR_STAGE) == 0) continue;
        char name[64];
        safetensors_tensor entry;
        snprintf(name, sizeof name, "%s.safetensors", o->kind->tensors[i].name);
        char *path = file_join(folder, name);
        if (path == NULL) return cli_fail_memory();
        result = describe(o, session, i, &entry);
        if (result == CLI_OK) {
            const dart_status status = safetensors_write(path, &entry, 1, &session->report);
            if (status != DART_OK) result = cli_fail_file(session, status);
        }
        free((void *)(uintptr_t)entry.data);
        free(path);
    }
    return result;
}

static void print_launch(void *user, const char *line)
{
    (void)user;
    fprintf(stderr, "%s\n", line);
}

static int execute(const operation *o, const cli_session *session, bool verbose, uint32_t *launches, uint64_t *ns)
{
    dart_stream *stream = NULL;
    const dart_stream_options options = {.trace = verbose ? print_launch : NULL};
    dart_status status = dart_stream_create(session->device, &options, &stream);
    if (status != DART_OK) return cli_fail_device(session, status);
    status = dart_stream_begin(stream);
    if (status == DART_OK) status = o->kind->record(o, stream);
    if (status == DART_OK) status = dart_stream_submit(stream);
    if (status == DART_OK) status = dart_stream_wait(stream, UINT64_MAX);
    if (status == DART_OK) status = dart_stream_elapsed(stream, ns);
    *launches = dart_stream_launches(stream);
    const int result = status == DART_OK ? CLI_OK : cli_fail_stream(stream, status);
    dart_stream_destroy(&stream);
    return result;
}

static int run(operation *o, cli_session *session, const cli_common *common, const char *in, const char *out,
               const char *stages)
{
    safetensors *file = NULL;
    uint32_t launches = 0;
    uint64_t ns = 0;
    char time[CLI_NUMBER];
    const dart_status status = safetensors_open(in, &session->report, &file);
    if (status != DART_OK) return cli_fail_file(session, status);
    int result = load(o, session, file, in, common->dtype);
    safetensors_close(&file);
    if (result == CLI_OK && stages != NULL && o->packing.R > 0) result = cli_fail("--dump-stages does not go with several documents in a row (cu)");
    if (result == CLI_OK) result = make_outputs(o, session, common->dtype, stages != NULL);
    if (result == CLI_OK) result = execute(o, session, common->verbosity > 0, &launches, &ns);
    if (result == CLI_OK) result = write_outputs(o, session, out);
    if (result == CLI_OK && stages != NULL) result = write_stages(o, session, stages);
    if (result == CLI_OK && common->json)
        result = cli_print_json(json_pack("{s:s, s:b, s:s, s:I, s:I}", "op", o->kind->name, "backward", is_backward(o), "device",
                                          session->info.name, "launches", (json_int_t)launches, "nanoseconds", (json_int_t)ns));
    else if (result == CLI_OK && common->verbosity > 0)
        fprintf(stderr, "%" PRIu32 " launches in %s on %s\n", launches, cli_time((double)ns / 1e9, time),
                session->info.name);
    return result;
}

/* Options that only some ops read. */
static const struct { const char *option, *ops; } options_of[] = {
    {"chunk-size", "ssd, sma"}, {"plan", "ssd, sma, attention"}, {"dt-is-step", "ssd"}, {"dt-min", "ssd"}, {"dt-max", "ssd"}, {"first", "sma"},
    {"eps", "sma, norm, layer_norm, gated_norm"}, {"scale", "attention"}, {"base", "rope"}, {"clip", "grad_norm"}, {"temperature", "sample"},
    {"top-k", "sample"}, {"top-p", "sample"}, {"min-p", "sample"}, {"seed", "sample"}};

/* Is the word one of a list with commas? */
static bool is_in(const char *list, const char *word)
{
    const size_t length = strlen(word);
    for (const char *at = list; at != NULL; at = strchr(at, ',')) {
        at += strspn(at, ", ");
        if (strncmp(at, word, length) == 0 && (at[length] == ',' || at[length] == '\0')) return true;
    }
    return false;
}

int cmd_op(int argc, char **argv)
{
    cli_common common = {.device = NULL};
    const char *stages = NULL, *example = NULL;
    bool backward = false;
    operation o = {.settings = {.dt_min = NOT_SET, .dt_max = NOT_SET, .eps = NOT_SET, .scale = NOT_SET, .base = NOT_SET, .temperature = 1}};
    operation_settings *s = &o.settings;
    const args_option options[] = {
        {"backward", 0, ARGS_FLAG, NULL, &backward, "the backward pass, too", 0, 0, false},
        {"chunk-size", 0, ARGS_U32, "S", &s->S, "ssd, sma: by default 256", 1, 1 << 30, false},
        {"plan", 0, ARGS_CHOICE, "chunked|step", &s->plan, "ssd, sma, attention: by default step for one token", 0, 0, false},
        {"dt-is-step", 0, ARGS_FLAG, NULL, &s->dt_is_step, "ssd: dt is the step size, without bias and softplus", 0, 0,
         false},
        {"dt-min", 0, ARGS_F32, "X", &s->dt_min, "ssd: least step size, by default 0", 0, 0, false},
        {"dt-max", 0, ARGS_F32, "X", &s->dt_max, "ssd: largest step size; 0, the default: no limit", 0, 0, false},
        {"first", 0, ARGS_U32, "M", &s->first, "sma: number of the first memory in dh, by default 0", 0, 0, false},
        {"eps", 0, ARGS_F32, "X", &s->eps, "sma and norms: by default 1e-5", 0, 0, false},
        {"scale", 0, ARGS_F32, "X", &s->scale, "attention: of scores; 0, the default: 1 / sqrt(D)", 0, 0, false},
        {"base", 0, ARGS_F32, "X", &s->base, "rope: by default 10000", 0, 0, false},
        {"clip", 0, ARGS_F32, "X", &s->clip, "grad_norm: largest norm; 0, the default: no limit", 0, 0, false},
        {"temperature", 0, ARGS_F32, "T", &s->temperature, "sample: by default 1", 0, 0, false},
        {"top-k", 0, ARGS_U32, "K", &s->top_k, "sample: from the K largest; by default all", 0, 0, false},
        {"top-p", 0, ARGS_F32, "P", &s->top_p, "sample: by default all", 0, 1, false},
        {"min-p", 0, ARGS_F32, "P", &s->min_p, "sample: by default all", 0, 1, false},
        {"seed", 0, ARGS_U64, "X", &s->seed, "sample, --example: by default 0", 0, 0, false},
        {"example", 0, ARGS_TEXT, "FILE", &example, "write an IN of small sizes with random values, and end", 0, 0, false},
        {"dump-stages", 0, ARGS_TEXT, "DIR", &stages, "write each intermediate to DIR/NAME.safetensors", 0, 0, false},
        {"dtype", 0, ARGS_CHOICE, CLI_DTYPES, &common.dtype,
         "storage on the device; by default the file's.\nVectors of parameters and states are f32.", 0, 0, false},
        CLI_DEVICE(common),
        CLI_OUTPUT(common),
    };
    char names[OPERATION_NAMES], backward_names[OPERATION_NAMES], about[1600];
    snprintf(about, sizeof about,
             "Runs an op on the tensors of the safetensors file IN and writes its results to OUT, in f32; - is standard\n"
             "output. Tensors have the names of the library's header; optional ones may be left out. The numbers\n"
             "S, dt_min, dt_max, eps, scale and base are taken from the file's metadata unless an option gives them.\n\n"
             "With --backward IN holds the gradients that come in, too, up.y for that of the result y. OUT then holds\n"
             "out.y, the result, and grad.x for each input x in IN that has a gradient. Those of parameters are f32.\n"
             "cross_entropy takes share instead.\n\n"
             "cu, i32 [R + 1], makes the one row of B, L packed: R documents, the first from token 0 to before token cu[1],\n"
             "and so on. Chunks and memories are counted document by document, from 0 in each; h is the last document's.\n\n"
             "Ops: %s.\nWith --backward: %s.",
             operation_names(names), operation_backward_names(backward_names));
    const args_syntax syntax = {.command = "dartlm op",
                                .operands = "NAME [IN] [OUT]",
                                .about = about,
                                .options = options,
                                .options_count = COUNT_OF(options)};
    args_operands operands;
    cli_session session = {.context = NULL};
    int status = args_parse(&syntax, argc, argv, &operands);
    if (status != ARGS_GO_ON) return status;
    const char *name = operands.texts[0];
    if (example != NULL && operands.count > 1) return args_mistake(&syntax, "--example takes neither IN nor OUT");
    if (example == NULL && operands.count < 3) return args_mistake(&syntax, "%s is missing", operands.count < 2 ? "IN" : "OUT");
    if (common.json && example == NULL && strcmp(operands.texts[2], "-") == 0)
        return args_mistake(&syntax, "--json and the results would both go to standard output");
    if (operation_find(name) == NULL) return args_mistake(&syntax, "unknown op '%s'; there are %s", name, names);
    if (backward && stages != NULL) return args_mistake(&syntax, "--dump-stages does not go with --backward");
    o.kind = backward ? operation_find_backward(name) : operation_find(name);
    if (o.kind == NULL) return args_mistake(&syntax, "%s has no backward pass; there are those of %s", name, backward_names);
    for (size_t i = 0; i < COUNT_OF(options_of); i++) {
        const char *option = options_of[i].option, *ops = options_of[i].ops;
        if (example != NULL && strcmp(option, "seed") == 0) continue;
        if (args_given(&syntax, &operands, option) && !is_in(ops, name))
            return args_mistake(&syntax, "--%s has no effect on %s, only on %s", option, name, ops);
    }
    if (example != NULL) return operation_example(&o, &session, example);
    status = cli_open_device(&session, &common);
    if (status == CLI_OK) status = run(&o, &session, &common, operands.texts[1], operands.texts[2], stages);
    operation_release(&o);
    cli_close(&session);
    return status;
}
