/* Whole models: prefill and decoding, with the results compared before the times are believed. */
#include "bench_saved.h"
#include "bench_warm.h"
#include "cli/system.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct plan {
    const char *preset;
    cli_model_options with;
    uint32_t B, prefill, decode, repeat;
    bool csv, profile;
    bool staggered;    /* sequence b has prefill - b prefill / 2B tokens, so that windows and chunks end at different steps */
    float temperature; /* of decoding; 0: greedy */
    const char *state_file; /* NULL: no states are saved */
    bench_saved saved;
} plan;

typedef struct measure {
    uint64_t tokens; /* of all prompts */
    double ready; /* seconds until all code was compiled */
    double prefill, decode; /* tokens/s, medians */
    double prefill_low, prefill_high, decode_low, decode_high;
    uint64_t state[DART_STATE_KV_CACHE + 1];
    uint64_t device_bytes;
    double longest; /* seconds of a submission */
    double save, load;   /* seconds, medians; 0: not measured */
    double prepare, prepared; /* of finding room ahead, and of saving then */
    uint64_t file_bytes; /* of a saved state */
} measure;

typedef struct work {
    dart_state *state;
    int32_t *prompt, *first, *ids, *expected; /* B prefill; B; decode B; B + decode B */
    float *logits, *expected_logits; /* B V */
    double *times[2];
    uint32_t *counts;   /* B: tokens of each prompt */
    uint64_t tokens;    /* of all prompts */
} work;

static void release(work *w)
{
    dart_state_destroy(&w->state);
    free(w->prompt);
    free(w->first);
    free(w->ids);
    free(w->expected);
    free(w->logits);
    free(w->expected_logits);
    free(w->times[0]);
    free(w->times[1]);
    free(w->counts);
}

static bool allocate(work *w, const plan *p, uint32_t V)
{
    w->prompt = calloc((size_t)p->B * p->prefill, sizeof *w->prompt);
    w->first = calloc(p->B, sizeof *w->first);
    w->ids = calloc((size_t)p->B * p->decode + 1, sizeof *w->ids);
    w->expected = calloc((size_t)p->B * (p->decode + 1), sizeof *w->expected);
    w->logits = calloc((size_t)p->B * V, sizeof *w->logits);
    w->expected_logits = calloc((size_t)p->B * V, sizeof *w->expected_logits);
    w->times[0] = calloc(p->repeat, sizeof(double));
    w->times[1] = calloc(p->repeat, sizeof(double));
    w->counts = calloc(p->B, sizeof *w->counts);
    if (w->prompt == NULL || w->first == NULL || w->ids == NULL || w->expected == NULL || w->logits == NULL ||
        w->expected_logits == NULL || w->times[0] == NULL || w->times[1] == NULL || w->counts == NULL)
        return false;
    for (uint32_t b = 0; b < p->B; b++) {
        w->counts[b] = p->prefill - (p->staggered ? (uint32_t)((uint64_t)b * p->prefill / (2 * (uint64_t)p->B)) : 0);
        w->tokens += w->counts[b];
    }
    uint32_t random = 1;
    for (size_t i = 0; i < (size_t)p->B * p->prefill; i++) {
        random = random * 1664525u + 1013904223u;
        w->prompt[i] = (int32_t)((random >> 8) % V);
    }
    return true;
}

/* One prefill and the steps behind it, timed. */
static dart_status once(const work *w, const plan *p, cli_profile *profile, double *prefill, double *decode)
{
    const dart_sampling drawn = {.temperature = p->temperature, .seed = 1};
    const dart_prefill_args args = {.ids = w->prompt,
                                    .L = p->prefill,
                                    .counts = w->counts,
                                    .want = DART_LOGITS_LAST,
                                    .logits = w->logits,
                                    .sampling = &drawn,
                                    .next_ids = w->first};
    if (profile != NULL) profile->phase = NULL;
    dart_status status = dart_state_reset(w->state, -1);
    if (status != DART_OK) return status;
    if (profile != NULL) profile->phase = "prefill";
    const uint64_t start = base_now_ns();
    status = dart_prefill(w->state, &args);
    const uint64_t middle = base_now_ns();
    *prefill = (double)(middle - start) / 1e9;
    if (status != DART_OK || p->decode == 0) return status;
    const dart_generate_args more = {.n = p->decode, .sampling = &drawn, .ids = w->ids};
    if (profile != NULL) profile->phase = "decode";
    status = dart_generate(w->state, &more);
    *decode = (double)(base_now_ns() - middle) / 1e9;
    return status;
}

static bool all_finite(const float *values, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!isfinite(values[i])) return false;
    return true;
}

static bool same_results(const work *w, const plan *p, uint32_t V)
{
    return memcmp(w->logits, w->expected_logits, (size_t)p->B * V * sizeof *w->logits) == 0 &&
           memcmp(w->first, w->expected, p->B * sizeof *w->first) == 0 &&
           memcmp(w->ids, w->expected + p->B, (size_t)p->B * p->decode * sizeof *w->ids) == 0;
}

static void keep_results(const work *w, const plan *p, uint32_t V)
{
    memcpy(w->expected_logits, w->logits, (size_t)p->B * V * sizeof *w->logits);
    memcpy(w->expected, w->first, p->B * sizeof *w->first);
    memcpy(w->expected + p->B, w->ids, (size_t)p->B * p->decode * sizeof *w->ids);
}

static int make_ready(const work *w, measure *m)
{
    const uint64_t start = base_now_ns();
    const dart_status status = dart_state_warm(w->state);
    m->ready = (double)(base_now_ns() - start) / 1e9;
    return status == DART_OK ? CLI_OK : cli_fail_state(w->state, status);
}

static int run(const cli_session *session, work *w, const plan *p, cli_profile *profile, uint32_t V, measure *m)
{
    bench_warm warm = {0};
    bool cold = true;
    for (uint32_t timed = 0; timed < p->repeat;) {
        double prefill = 0, decode = 0;
        if (cold) cli_progress("warming up");
        else cli_progress("run %" PRIu32 " of %" PRIu32, timed + 1, p->repeat);
        const dart_status status = once(w, p, cold ? NULL : profile, &prefill, &decode);
        if (status != DART_OK) return cli_fail_state(w->state, status);
        if (!all_finite(w->logits, (size_t)p->B * V))
            return cli_fail("the logits are not finite: these times would mean nothing");
        if (!warm.begun) keep_results(w, p, V);
        else if (!same_results(w, p, V))
            return cli_fail("a run gave other results than the first: these times would mean nothing");
        if (cold) {
            cold = bench_is_cold(&warm, prefill + decode, base_now_ns());
            continue;
        }
        w->times[0][timed] = prefill > 0 ? (double)w->tokens / prefill : 0;
        w->times[1][timed] = decode > 0 ? (double)p->B * p->decode / decode : 0;
        timed++;
    }
    cli_progress_end();
    m->tokens = w->tokens;
    m->prefill = cli_median(w->times[0], p->repeat);
    m->decode = cli_median(w->times[1], p->repeat);
    m->prefill_low = w->times[0][0];
    m->prefill_high = w->times[0][p->repeat - 1];
    m->decode_low = w->times[1][0];
    m->decode_high = w->times[1][p->repeat - 1];
    for (int kind = 0; kind <= DART_STATE_KV_CACHE; kind++)
        m->state[kind] = dart_state_bytes(w->state, (dart_state_kind)kind);
    m->device_bytes = dart_device_bytes(session->device);
    m->longest = (double)dart_state_longest(w->state) / 1e9;
    return CLI_OK;
}

/* Saves and loads the state of the last run, and compares the logits of its newest tokens. */
static int run_state_file(const work *w, const plan *p, uint32_t V, measure *m)
{
    const size_t bytes = (size_t)p->B * V * sizeof *w->logits;
    const dart_prefill_args newest = {.want = DART_LOGITS_LAST, .logits = w->expected_logits};
    const dart_prefill_args again = {.want = DART_LOGITS_LAST, .logits = w->logits};
    if (p->state_file == NULL) return CLI_OK;
    dart_status status = dart_prefill(w->state, &newest);
    for (uint32_t i = 0; i <= p->repeat && status == DART_OK; i++) { /* the first time does not count */
        cli_progress("saving and loading, run %" PRIu32 " of %" PRIu32, i, p->repeat);
        const uint64_t start = base_now_ns();
        status = dart_state_save(w->state, -1, p->state_file);
        const uint64_t middle = base_now_ns();
        if (status == DART_OK) status = dart_state_load(w->state, -1, p->state_file);
        const uint64_t end = base_now_ns();
        if (i == 0) continue;
        w->times[0][i - 1] = (double)(middle - start) / 1e9;
        w->times[1][i - 1] = (double)(end - middle) / 1e9;
    }
    cli_progress_end();
    m->save = cli_median(w->times[0], p->repeat);
    m->load = cli_median(w->times[1], p->repeat);
    for (uint32_t i = 0; i <= p->repeat && status == DART_OK; i++) {
        const uint64_t start = base_now_ns();
        status = dart_state_prepare_save(w->state, -1, p->state_file, 0);
        const uint64_t middle = base_now_ns();
        if (status == DART_OK) status = dart_state_save(w->state, -1, p->state_file);
        const uint64_t end = base_now_ns();
        if (i == 0) continue;
        w->times[0][i - 1] = (double)(middle - start) / 1e9;
        w->times[1][i - 1] = (double)(end - middle) / 1e9;
    }
    m->prepare = cli_median(w->times[0], p->repeat);
    m->prepared = cli_median(w->times[1], p->repeat);
    if (status == DART_OK) status = dart_state_load(w->state, -1, p->state_file);
    if (status == DART_OK) status = dart_prefill(w->state, &again);
    if (status != DART_OK) return cli_fail_state(w->state, status);
    if (memcmp(w->logits, w->expected_logits, bytes) != 0) return cli_fail("a loaded state has other logits than the saved one");
    FILE *file = system_open(p->state_file, "rb");
    if (file != NULL && fseek(file, 0, SEEK_END) == 0) m->file_bytes = (uint64_t)ftell(file);
    if (file != NULL) fclose(file);
    return CLI_OK;
}

static const char *name_of(const plan *p) { return p->preset != NULL ? p->preset : p->with.folder; }

static uint64_t kept(const measure *m)
{
    return m->state[DART_STATE_CONVOLUTION] + m->state[DART_STATE_RECURRENT] + m->state[DART_STATE_MEMORIES_USED];
}

static double seconds_of(uint64_t tokens, double rate) { return rate > 0 ? (double)tokens / rate : 0; }

static json_t *timed(const cli_session *session, const char *name, const char *of, double seconds)
{
    char text[272];
    snprintf(text, sizeof text, "%s%s", name, of);
    return json_pack("{s:o, s:s, s:f}", "case", cli_json_text(text), "device", session->info.name, "seconds", seconds);
}

static json_t *to_json(const cli_session *session, const plan *p, const dart_model_info *info, const measure *m)
{
    const char *name = name_of(p);
    const uint32_t S = p->with.S != 0 ? p->with.S : info->config.S;
    char prefill[256], decode[256];
    snprintf(prefill, sizeof prefill, "%.160s %s prefill B=%" PRIu32 " L=%" PRIu32 " S=%" PRIu32, name,
             dart_dtype_name(info->weights), p->B, p->prefill, S);
    snprintf(decode, sizeof decode, "%.160s %s decode B=%" PRIu32 " N=%" PRIu32 " after %" PRIu32 " S=%" PRIu32, name,
             dart_dtype_name(info->weights), p->B, p->decode, p->prefill, S);
    json_t *times = json_array();
    json_array_append_new(times, timed(session, prefill, "", seconds_of(m->tokens, m->prefill)));
    if (p->decode > 0) json_array_append_new(times, timed(session, decode, "", seconds_of((uint64_t)p->B * p->decode, m->decode)));
    if (m->save > 0) {
        json_array_append_new(times, timed(session, decode, " save", m->save));
        json_array_append_new(times, timed(session, decode, " load", m->load));
    }
    json_t *result = json_pack(
        "{s:s, s:o, s:I, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:I, "
        "s:{s:f, s:f, s:f}, s:{s:f, s:f, s:f}, s:f, s:f, s:I, s:I, s:I, s:I, s:I, s:o}",
        "device", session->info.name, "model", cli_json_text(name), "parameters", (json_int_t)info->parameters, "weights",
        dart_dtype_name(info->weights), "activations", dart_dtype_name(info->activations), "memories",
        dart_dtype_name(info->memories), "batch", (json_int_t)p->B, "chunk_size", (json_int_t)S, "prefill",
        (json_int_t)p->prefill, "decode", (json_int_t)p->decode, "repeat", (json_int_t)p->repeat,
        "prefill_tokens_per_second", "median", m->prefill, "least", m->prefill_low, "most", m->prefill_high,
        "decode_tokens_per_second", "median", m->decode, "least", m->decode_low, "most", m->decode_high,
        "ready_seconds", m->ready, "longest_submission_seconds", m->longest, "state_bytes", (json_int_t)kept(m), "memories_bytes",
        (json_int_t)m->state[DART_STATE_MEMORIES], "memories_used_bytes", (json_int_t)m->state[DART_STATE_MEMORIES_USED], "kv_cache_bytes",
        (json_int_t)m->state[DART_STATE_KV_CACHE], "device_bytes", (json_int_t)m->device_bytes, "times", times);
    if (m->save > 0)
        json_object_update_new(result, json_pack("{s:f, s:f, s:f, s:f, s:I}", "state_save_seconds", m->save, "state_load_seconds", m->load,
                                                 "state_prepare_seconds", m->prepare, "state_save_prepared_seconds", m->prepared, "state_file_bytes",
                                                 (json_int_t)m->file_bytes));
    return result;
}

static int print(const cli_session *session, const plan *p, const dart_model_info *info, const measure *m, bool json)
{
    const char *name = name_of(p);
    const uint32_t S = p->with.S != 0 ? p->with.S : info->config.S;
    char number[8][CLI_NUMBER];
    json_t *result = json || p->saved.path != NULL ? to_json(session, p, info, m) : NULL;
    const int compared = result != NULL ? bench_compare(&p->saved, result) : CLI_OK;
    if (json) {
        const int status = cli_print_json(result);
        return status == CLI_OK ? compared : status;
    }
    json_decref(result);
    if (p->csv) {
        printf(
            "device,model,parameters,weights,activations,batch,chunk_size,prefill,decode,repeat,"
            "prefill_tokens_per_second,decode_tokens_per_second,state_bytes,kv_cache_bytes,device_bytes\n");
        printf("\"%s\",\"%s\",%" PRIu64 ",%s,%s,%" PRIu32 ",%" PRIu32 ",%" PRIu32 ",%" PRIu32 ",%" PRIu32
               ",%.1f,%.1f,%" PRIu64 ",%" PRIu64 ",%" PRIu64 "\n",
               session->info.name, name, info->parameters, dart_dtype_name(info->weights),
               dart_dtype_name(info->activations), p->B, S, p->prefill, p->decode, p->repeat, m->prefill, m->decode,
               kept(m), m->state[DART_STATE_KV_CACHE], m->device_bytes);
        return compared;
    }
    printf("model       %s, %s parameters, weights %s, activations %s, chunks of %" PRIu32 "\n", name,
           cli_count(info->parameters, number[0]), dart_dtype_name(info->weights), dart_dtype_name(info->activations),
           S);
    printf("device      %s, code ready in %s\n", session->info.name, cli_time(m->ready, number[7]));
    printf("prefill     %s tokens/s (%s to %s), batch %" PRIu32 " x %" PRIu32 "\n", cli_rate(m->prefill, number[1]),
           cli_rate(m->prefill_low, number[2]), cli_rate(m->prefill_high, number[3]), p->B, p->prefill);
    if (p->decode > 0)
        printf("decode      %s tokens/s (%s to %s), batch %" PRIu32 " x %" PRIu32 "\n", cli_rate(m->decode, number[1]),
               cli_rate(m->decode_low, number[2]), cli_rate(m->decode_high, number[3]), p->B, p->decode);
    printf("submission  %s, the longest, on the device\n", cli_time(m->longest, number[1]));
    printf("memory      %s on the device, %s of state; a KV cache: %s\n", cli_bytes(m->device_bytes, number[4]),
           cli_bytes(kept(m), number[5]), cli_bytes(m->state[DART_STATE_KV_CACHE], number[6]));
    if (m->state[DART_STATE_MEMORIES] > 0)
        printf("memories    %s allocated, %s in use\n", cli_bytes(m->state[DART_STATE_MEMORIES], number[4]),
               cli_bytes(m->state[DART_STATE_MEMORIES_USED], number[5]));
    if (m->save > 0)
        printf("state file  %s, saved in %s, loaded in %s; room found ahead in %s, then saved in %s\n", cli_bytes(m->file_bytes, number[4]),
               cli_time(m->save, number[5]), cli_time(m->load, number[6]), cli_time(m->prepare, number[2]), cli_time(m->prepared, number[3]));
    return compared;
}

static int make_model(cli_session *session, const cli_common *common, const plan *p, dart_model **model)
{
    dart_model_config config;
    if (p->preset == NULL) return cli_open_model(session, common, &p->with, model);
    if (dart_config_preset(p->preset, &config) != DART_OK) return CLI_FAILED; /* cmd_bench has looked */
    const int opened = cli_open_device(session, common);
    if (opened != CLI_OK) return opened;
    cli_progress("making random weights");
    const dart_model_options options = {.weights = (dart_storage)common->dtype,
                                        .activations = (dart_storage)p->with.activations,
                                        .memories = (dart_storage)p->with.memories};
    const dart_status status = dart_model_random(session->device, &config, 1, &options, model);
    return status == DART_OK ? CLI_OK : cli_fail_device(session, status);
}

static int bench(cli_session *session, const cli_common *common, const plan *p)
{
    dart_model *model = NULL;
    dart_model_info info;
    work w = {.state = NULL};
    measure m = {.prefill = 0};
    int result = make_model(session, common, p, &model);
    if (result != CLI_OK) goto done;
    cli_note_null(session);
    const dart_state_options options = {.B = p->B, .S = p->with.S, .no_sma = p->with.no_sma};
    dart_status status = dart_model_describe(model, &info);
    if (status == DART_OK) status = dart_state_create(model, &options, &w.state);
    if (status != DART_OK) result = cli_fail_model(model, status);
    else if (!allocate(&w, p, info.config.V)) result = cli_fail_memory();
    if (result == CLI_OK) result = make_ready(&w, &m);
    if (result == CLI_OK) result = run(session, &w, p, common->profile, info.config.V, &m);
    if (result == CLI_OK) result = run_state_file(&w, p, info.config.V, &m);
    if (result == CLI_OK) result = print(session, p, &info, &m, common->json);
    if (result == CLI_OK && common->profile != NULL) cli_profile_print(common->profile, p->repeat);
done:
    release(&w);
    dart_model_destroy(&model);
    return result;
}

int cmd_bench(int argc, char **argv)
{
    cli_common common = {.device = NULL};
    static cli_profile profile;
    plan p = {.B = 1, .prefill = 512, .decode = 128, .repeat = 5, .saved = {.tolerance = 0.1f}};
    const args_option options[] = {
        {"preset", 0, ARGS_TEXT, "NAME", &p.preset,
         "random weights: {dart,mamba2}-{130m,370m,780m};\nby default dart-130m", 0, 0, false},
        {"model", 0, ARGS_TEXT, "DIR", &p.with.folder, "a checkpoint instead", 0, 0, false},
        {"prefill", 0, ARGS_U32, "L", &p.prefill, "tokens, by default 512", 1, 1 << 24, false},
        {"decode", 0, ARGS_U32, "N", &p.decode, "steps after it, by default 128", 0, 1 << 24, false},
        {"batch", 0, ARGS_U32, "B", &p.B, "sequences, by default 1", 1, 65536, false},
        {"staggered", 0, ARGS_FLAG, NULL, &p.staggered,
         "prompts of different lengths, L to L / 2, as sequences of a server\nhave them", 0, 0, false},
        {"temperature", 0, ARGS_F32, "T", &p.temperature, "draw the tokens; by default the likeliest one is taken", 0, 1000, false},
        {"repeat", 0, ARGS_U32, "R", &p.repeat, "timed runs, once the device is warm; by default 5", 1, 1000,
         false},
        CLI_STATE(p.with),
        CLI_WEIGHTS(common, p.with),
        CLI_DEVICE(common),
        {"variant", 0, ARGS_TEXT, "NAME", &common.variant, "only kernels of this variant, where there is one", 0, 0, false},
        {"save-state", 0, ARGS_TEXT, "FILE", &p.state_file,
         "save the state of the last run there and load it again, timed;\nthe file stays", 0, 0, false},
        {"profile", 0, ARGS_FLAG, NULL, &p.profile, "time every launch and print where the time goes; slows the runs", 0, 0, false},
        {"csv", 0, ARGS_FLAG, NULL, &p.csv, "print comma-separated values", 0, 0, false},
        BENCH_SAVED(p.saved),
        CLI_OUTPUT(common),
    };
    const args_syntax syntax = {
        .command = "dartlm bench",
        .operands = "",
        .options = options,
        .options_count = COUNT_OF(options),
        .about =
            "Times a whole model: prefill, then greedy decoding token by token. Prints medians, and the\n"
            "slowest and fastest run. Fails when logits are not finite or runs differ.\n\n"
            "dartlm bench op CASE times a single op; see dartlm bench op --help."};
    args_operands operands;
    cli_session session = {.context = NULL};
    dart_model_config config;
    if (argc > 1 && strcmp(argv[1], "op") == 0) return cmd_bench_op(argc - 1, argv + 1);
    int status = args_parse(&syntax, argc, argv, &operands);
    if (status != ARGS_GO_ON) return status;
    if (p.preset != NULL && p.with.folder != NULL)
        return args_mistake(&syntax, "--preset and --model exclude one another");
    if (p.csv && common.json) return args_mistake(&syntax, "--csv and --json exclude one another");
    if (p.preset == NULL && p.with.folder == NULL) p.preset = "dart-130m";
    if (p.preset != NULL && dart_config_preset(p.preset, &config) != DART_OK)
        return args_mistake(&syntax, "no preset is called %s; there are {dart,mamba2}-{130m,370m,780m}", p.preset);
    if (p.profile) common.profile = &profile;
    common.null_too = true;
    status = cli_check_place(p.state_file);
    if (status == CLI_OK) status = bench_saved_load(&p.saved);
    if (status == CLI_OK) status = bench(&session, &common, &p);
    bench_saved_close(&p.saved);
    cli_close(&session);
    return status;
}
