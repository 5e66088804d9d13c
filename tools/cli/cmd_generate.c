#include "cli.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* "1,2,3" as ids for free(); NULL for anything else, or without memory. */
static int32_t *parse_ids(const char *text, uint32_t *count)
{
    const size_t length = strlen(text);
    int32_t *ids = malloc((length / 2 + 1) * sizeof *ids);
    *count = 0;
    while (ids != NULL) {
        char digits[16];
        uint64_t id = 0;
        const size_t span = strcspn(text, ",");
        if (span >= sizeof digits) break;
        memcpy(digits, text, span);
        digits[span] = '\0';
        if (!args_whole(digits, &id) || id > INT32_MAX) break;
        ids[(*count)++] = (int32_t)id;
        if (text[span] == '\0') return ids;
        text += span + 1;
    }
    free(ids);
    return NULL;
}

/* Steps that are submitted together: printed at once, which nobody sees at a few milliseconds. */
enum { TOGETHER = 8 };

typedef struct output {
    bool shown; /* as they come */
    bool first;
    uint32_t count; /* ids so far */
} output;

static bool print_id(void *user, uint32_t step, const int32_t *ids)
{
    output *o = user;
    (void)step;
    o->count++;
    if (!o->shown) return true;
    printf("%s%" PRId32, o->first ? "" : " ", ids[0]);
    o->first = false;
    return fflush(stdout) == 0;
}

/* n: how many ids are wanted, then how many there are. */
static int run(dart_state *state, const int32_t *prompt, uint32_t prompt_count, uint32_t *n,
               const dart_sampling *sampling, int32_t *ids, bool shown, double *prefill_seconds, double *decode_seconds)
{
    output o = {.shown = shown, .first = true};
    const uint64_t start = base_now_ns();
    const dart_prefill_args args = {.ids = prompt, .L = prompt_count, .sampling = sampling, .next_ids = ids};
    dart_status status = dart_prefill(state, &args);
    if (status != DART_OK) return cli_fail_state(state, status);
    const uint64_t middle = base_now_ns();
    *prefill_seconds = (double)(middle - start) / 1e9;
    bool going = print_id(&o, 0, ids);
    if (going && *n > 1) {
        const dart_generate_args more = {
            .n = *n - 1, .together = TOGETHER, .sampling = sampling, .step = print_id, .user = &o, .ids = ids + 1};
        status = dart_generate(state, &more);
        if (status != DART_OK) {
            if (shown) putchar('\n');
            return cli_fail_state(state, status);
        }
    }
    *decode_seconds = (double)(base_now_ns() - middle) / 1e9;
    *n = o.count;
    if (shown) putchar('\n');
    return CLI_OK;
}

static json_t *list(const int32_t *ids, uint32_t count)
{
    json_t *array = json_array();
    for (uint32_t i = 0; i < count; i++) json_array_append_new(array, json_integer(ids[i]));
    return array;
}

static int generate(const cli_session *session, const cli_common *common, dart_model *model,
                    const cli_model_options *with, const int32_t *prompt, uint32_t prompt_count, uint32_t n,
                    const dart_sampling *sampling)
{
    dart_state *state = NULL;
    const dart_state_options options = {.S = with->S, .no_sma = with->no_sma};
    double prefill = 0, decode = 0;
    int32_t *ids = calloc(n, sizeof *ids);
    if (ids == NULL) return cli_fail_memory();
    const dart_status status = dart_state_create(model, &options, &state);
    if (status != DART_OK) {
        free(ids);
        return cli_fail_model(model, status);
    }
    int result = run(state, prompt, prompt_count, &n, sampling, ids, !common->json, &prefill, &decode);
    const double prefill_rate = prompt_count / (prefill > 0 ? prefill : 1e-9),
                 decode_rate = decode > 0 ? (n - 1) / decode : 0;
    char rate[2][CLI_NUMBER];
    if (result == CLI_OK && common->json)
        result = cli_print_json(json_pack("{s:s, s:o, s:o, s:f, s:f}", "device", session->info.name, "prompt",
                                          list(prompt, prompt_count), "ids", list(ids, n), "prefill_tokens_per_second",
                                          prefill_rate, "decode_tokens_per_second", decode_rate));
    else if (result == CLI_OK && common->verbosity > 0)
        fprintf(stderr, "prefill %s tokens/s, decode %s tokens/s\n", cli_rate(prefill_rate, rate[0]),
                cli_rate(decode_rate, rate[1]));
    dart_state_destroy(&state);
    free(ids);
    return result;
}

/* The texts of --end-id. */
static int parse_end_ids(const args_syntax *syntax, const args_list *texts, dart_sampling *sampling)
{
    for (uint32_t i = 0; i < texts->count; i++) {
        uint64_t id = 0;
        if (i == DART_END_IDS) return args_mistake(syntax, "--end-id: given more than %d times", DART_END_IDS);
        if (!args_whole(texts->texts[i], &id) || id > INT32_MAX)
            return args_mistake(syntax, "--end-id: expected a token id, not '%s'", texts->texts[i]);
        sampling->end_ids[sampling->end_ids_count++] = (int32_t)id;
    }
    return ARGS_GO_ON;
}

int cmd_generate(int argc, char **argv)
{
    cli_common common = {.device = NULL};
    cli_model_options with = {.folder = NULL};
    const char *text = NULL;
    uint32_t n = 0, prompt_count = 0;
    dart_sampling sampling = {.temperature = 0};
    args_list end_ids = {.count = 0};
    const args_option options[] = {
        {"model", 0, ARGS_TEXT, "DIR", &with.folder, "config.json and *.safetensors", 0, 0, true},
        {"ids", 0, ARGS_TEXT, "1,2,3", &text, "the tokens to continue", 0, 0, true},
        {"tokens", 'n', ARGS_U32, "N", &n, "how many to add", 1, 1 << 24, true},
        {"temperature", 0, ARGS_F32, "T", &sampling.temperature,
         "above 0: sample; by default the largest logit is taken", 0, 1000, false},
        {"top-k", 0, ARGS_U32, "K", &sampling.top_k, "sample from the K largest only", 0, 0, false},
        {"end-id", 0, ARGS_LIST, "ID", &end_ids, "a token to stop behind; up to four times", 0, 0, false},
        {"seed", 0, ARGS_U64, "X", &sampling.seed, "of the random numbers, by default 0", 0, 0, false},
        CLI_STATE(with),
        CLI_WEIGHTS(common, with),
        CLI_DEVICE(common),
        CLI_OUTPUT(common),
    };
    const args_syntax syntax = {
        .command = "dartlm generate",
        .operands = "",
        .options = options,
        .options_count = COUNT_OF(options),
        .about =
            "Continues a sequence of token ids and prints the new ids on one line; with --verbose the speed, too."};
    args_operands operands;
    cli_session session = {.context = NULL};
    dart_model *model = NULL;
    int status = args_parse(&syntax, argc, argv, &operands);
    if (status != ARGS_GO_ON) return status;
    if (sampling.temperature <= 0 && (sampling.top_k != 0 || sampling.seed != 0))
        return args_mistake(&syntax, "--top-k and --seed need a --temperature above 0");
    status = parse_end_ids(&syntax, &end_ids, &sampling);
    if (status != ARGS_GO_ON) return status;
    int32_t *prompt = parse_ids(text, &prompt_count);
    if (prompt == NULL)
        return args_mistake(&syntax, "--ids: expected whole numbers with commas between them, not '%s'", text);
    status = cli_open_model(&session, &common, &with, &model);
    if (status == CLI_OK) status = generate(&session, &common, model, &with, prompt, prompt_count, n, &sampling);
    free(prompt);
    dart_model_destroy(&model);
    cli_close(&session);
    return status;
}
