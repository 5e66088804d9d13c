#include "cli.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

typedef struct tokens {
    uint32_t B, L, rank;
    int32_t *ids;
} tokens;

static int load(cli_session *session, const char *path, const char *name, tokens *t)
{
    safetensors *file = NULL;
    char shape[160];
    const dart_status status = safetensors_open(path, &session->report, &file);
    if (status != DART_OK) return cli_fail_file(session, status);
    int result = CLI_FAILED;
    const safetensors_tensor *ids = safetensors_find(file, name);
    if (ids == NULL) {
        cli_fail("%s: tensor %s is missing", path, name);
    } else if (ids->rank < 1 || ids->rank > 2 || ids->elements == 0 || ids->elements > INT32_MAX) {
        cli_fail("%s: tensor %s has shape %s, expected B x L or L", path, name,
                 cli_shape(ids->shape, ids->rank, shape));
    } else {
        t->rank = ids->rank;
        t->B = ids->rank == 2 ? (uint32_t)ids->shape[0] : 1;
        t->L = (uint32_t)ids->shape[ids->rank - 1];
        result = cli_integers(ids, &t->ids);
    }
    safetensors_close(&file);
    return result;
}

static int write(cli_session *session, const char *path, const tokens *t, uint32_t V, const float *logits)
{
    safetensors_tensor out = {.name = "logits", .data = logits, .dtype = SAFETENSORS_F32, .rank = t->rank + 1};
    if (t->rank == 2) out.shape[0] = t->B;
    out.shape[t->rank - 1] = t->L;
    out.shape[t->rank] = V;
    const dart_status status = safetensors_write(path, &out, 1, &session->report);
    return status == DART_OK ? CLI_OK : cli_fail_file(session, status);
}

static int run(cli_session *session, dart_model *model, const cli_model_options *with, const tokens *t,
               const char *path, bool json)
{
    dart_model_info info;
    dart_state *state = NULL;
    uint64_t count = 0;
    const dart_state_options options = {.B = t->B, .S = with->S, .no_sma = with->no_sma};
    dart_status status = dart_model_describe(model, &info);
    if (status != DART_OK) return cli_fail_model(model, status);
    const uint64_t factors[] = {t->B, t->L, info.config.V, sizeof(float)};
    if (!base_product(factors, COUNT_OF(factors), &count) || count > SIZE_MAX) return cli_fail_memory();
    float *logits = malloc((size_t)count);
    if (logits == NULL) return cli_fail("no memory on the host for %" PRIu64 " bytes of logits", count);
    int result = CLI_FAILED;
    status = dart_state_create(model, &options, &state);
    if (status != DART_OK) {
        cli_fail_model(model, status);
        goto done;
    }
    cli_progress("%" PRIu32 " x %" PRIu32 " tokens", t->B, t->L);
    const uint64_t start = base_now_ns();
    const dart_prefill_args args = {.ids = t->ids, .L = t->L, .want = DART_LOGITS_ALL, .logits = logits};
    status = dart_prefill(state, &args);
    const double seconds = (double)(base_now_ns() - start) / 1e9;
    cli_progress_end();
    if (status != DART_OK) {
        cli_fail_state(state, status);
        goto done;
    }
    result = write(session, path, t, info.config.V, logits);
    if (result == CLI_OK && json)
        result = cli_print_json(json_pack("{s:s, s:o, s:I, s:I, s:I, s:f}", "device", session->info.name, "file", cli_json_text(path),
                                          "sequences", (json_int_t)t->B, "tokens", (json_int_t)t->B * (json_int_t)t->L,
                                          "vocabulary", (json_int_t)info.config.V, "seconds", seconds));
done:
    dart_state_destroy(&state);
    free(logits);
    return result;
}

int cmd_logits(int argc, char **argv)
{
    cli_common common = {.device = NULL};
    cli_model_options with = {.folder = NULL};
    const char *name = "input_ids";
    const args_option options[] = {
        {"model", 0, ARGS_TEXT, "DIR", &with.folder, "config.json and *.safetensors", 0, 0, true},
        {"tensor", 0, ARGS_TEXT, "NAME", &name, "of the ids in IN, by default input_ids", 0, 0, false},
        CLI_STATE(with),
        CLI_WEIGHTS(common, with),
        CLI_DEVICE(common),
        CLI_OUTPUT(common),
    };
    const args_syntax syntax = {
        .command = "dartlm logits",
        .operands = "IN OUT",
        .options = options,
        .options_count = COUNT_OF(options),
        .about =
            "Reads input_ids (B x L or L, I32 or I64) from the safetensors file IN and writes the logits after every\n"
            "token (B x L x V or L x V, F32) to OUT; - is standard output."};
    args_operands operands;
    cli_session session = {.context = NULL};
    dart_model *model = NULL;
    tokens t = {.ids = NULL};
    int status = args_parse(&syntax, argc, argv, &operands);
    if (status != ARGS_GO_ON) return status;
    if (common.json && strcmp(operands.texts[1], "-") == 0)
        return args_mistake(&syntax, "--json and the logits would both go to standard output");
    status = cli_open_model(&session, &common, &with, &model);
    if (status == CLI_OK) status = load(&session, operands.texts[0], name, &t);
    if (status == CLI_OK) status = run(&session, model, &with, &t, operands.texts[1], common.json);
    free(t.ids);
    dart_model_destroy(&model);
    cli_close(&session);
    return status;
}
