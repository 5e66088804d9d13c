/* One op of a given shape: device times, checked before they are believed. */
#include "bench_saved.h"
#include "bench_warm.h"
#include "cli/operation.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct plan {
    operation o;
    dart_dtype dtype;
    uint32_t repeat;
    uint64_t seed;
    const char *check;
    uint32_t times; /* the op in one submission, so that it runs long enough for the clock */
    char name[512];
} plan;

/* All cases of a call, after sizes such as L=2048..8192 became one case each. */
typedef struct case_list {
    char (*texts)[256];
    uint32_t count;
} case_list;

/* ---- Cases: "ssd L=2048 H=24 P=64 N=128 S=256 bf16 seq", the "=" may be left out ---- */

static const struct dim_default {
    operation_dim dim;
    uint32_t size;
} dim_defaults[] = {{DIM_B, 1},    {DIM_L, 2048},   {DIM_H, 24},   {DIM_G, 1},     {DIM_N, 128},
                    {DIM_P, 64},   {DIM_T, 2048},   {DIM_W, 768},  {DIM_V, 50288}, {DIM_I, 1536},
                    {DIM_IN, 768}, {DIM_OUT, 3352}, {DIM_C, 1792}, {DIM_K, 4}, {DIM_D, 64}};

/* Chunks have a size where there are memories of them. */
static bool has_size(const operation_kind *kind, operation_dim dim)
{
    for (size_t i = 0; i < OPERATION_MAX_TENSORS && kind->tensors[i].name != NULL; i++)
        if (operation_mentions(&kind->tensors[i], dim == DIM_S ? DIM_M : dim)) return true;
    return false;
}

static bool parse_size(plan *p, const char *word, size_t length)
{
    size_t letters = 0;
    uint64_t size = 0;
    char digits[16];
    while (letters < length && isupper((unsigned char)word[letters])) letters++;
    const operation_dim dim = operation_dim_of(word, letters);
    const size_t from = letters + (letters < length && word[letters] == '=');
    if (dim == DIM_COUNT || !has_size(p->o.kind, dim) || length - from >= sizeof digits) return false;
    memcpy(digits, word + from, length - from);
    digits[length - from] = '\0';
    if (!args_whole(digits, &size) || size == 0 || size > 1u << 30) return false;
    p->o.dims[dim] = size;
    if (dim == DIM_S) p->o.settings.S = (uint32_t)size;
    return true;
}

static bool parse_word(plan *p, const char *word, size_t length)
{
    char name[32];
    if (length >= sizeof name) return false;
    memcpy(name, word, length);
    name[length] = '\0';
    for (dart_dtype dtype = DART_F32; dtype <= DART_BF16; dtype++)
        if (strcmp(name, dart_dtype_name(dtype)) == 0) {
            p->dtype = dtype;
            return true;
        }
    const size_t index = operation_index(p->o.kind, name);
    if (index < OPERATION_MAX_TENSORS && (p->o.kind->tensors[index].flags & TENSOR_OPTIONAL) != 0) {
        p->o.given[index] = true;
        return true;
    }
    return parse_size(p, word, length);
}

/* "L=2048..131072" stands for the powers of two between, a case each. */
static int add_cases(case_list *list, const args_syntax *syntax, const char *text)
{
    const char *range = strstr(text, "..");
    if (range == NULL) {
        void *grown = realloc(list->texts, (list->count + 1) * sizeof *list->texts);
        if (grown == NULL) return cli_fail_memory();
        list->texts = grown;
        snprintf(list->texts[list->count++], sizeof *list->texts, "%s", text);
        return ARGS_GO_ON;
    }
    const char *from = range;
    char low[16] = "", high[16] = "", one[256];
    uint64_t first = 0, last = 0;
    while (from > text && isdigit((unsigned char)from[-1])) from--;
    const size_t digits = strspn(range + 2, "0123456789");
    if ((size_t)(range - from) < sizeof low && digits < sizeof high) {
        memcpy(low, from, (size_t)(range - from));
        memcpy(high, range + 2, digits);
    }
    if (!args_whole(low, &first) || !args_whole(high, &last) || first == 0 || last > 1u << 30 || first > last)
        return args_mistake(syntax, "'%s': a range of sizes is LOW..HIGH, from 1 to %u", text, 1u << 30);
    for (uint64_t size = first; size <= last; size *= 2) {
        snprintf(one, sizeof one, "%.*s%" PRIu64 "%s", (int)(from - text), text, size, range + 2 + digits);
        const int status = add_cases(list, syntax, one);
        if (status != ARGS_GO_ON) return status;
    }
    return ARGS_GO_ON;
}

/* A word that names an op begins a case. */
static int list_cases(case_list *list, const args_syntax *syntax, const args_operands *operands)
{
    char text[256] = "", name[32];
    for (uint32_t i = 0; i < operands->count; i++) {
        const char *word = operands->texts[i];
        const size_t length = strcspn(word, " ");
        snprintf(name, sizeof name, "%.*s", (int)length, word);
        if (operation_find(name) != NULL && text[0] != '\0') {
            const int status = add_cases(list, syntax, text);
            if (status != ARGS_GO_ON) return status;
            text[0] = '\0';
        }
        if (strlen(text) + strlen(word) + 2 > sizeof text) return args_mistake(syntax, "the case is too long: %s", word);
        if (text[0] != '\0') strcat(text, " ");
        strcat(text, word);
    }
    return add_cases(list, syntax, text);
}

static int parse_case(plan *p, const args_syntax *syntax, const char *text)
{
    char names[OPERATION_NAMES];
    while (*text != '\0') {
        const size_t length = strcspn(text, " ");
        if (length > 0 && p->o.kind == NULL) {
            char name[32];
            snprintf(name, sizeof name, "%.*s", (int)length, text);
            p->o.kind = operation_find(name);
            if (p->o.kind == NULL)
                return args_mistake(syntax, "unknown op '%s'; there are %s", name, operation_names(names));
            if (strncmp(text + length, " backward", 9) == 0 && (text[length + 9] == ' ' || text[length + 9] == '\0')) {
                p->o.kind = operation_find_backward(name);
                if (p->o.kind == NULL)
                    return args_mistake(syntax, "%s has no backward pass; there are those of %s", name, operation_backward_names(names));
                text += 9;
            }
        } else if (length > 0 && !parse_word(p, text, length)) {
            return args_mistake(syntax, "'%.*s' is no size, dtype or optional tensor of %s", (int)length, text,
                                p->o.kind->name);
        }
        text += length + (text[length] == ' ');
    }
    if (p->o.kind == NULL) return args_mistake(syntax, "the case is empty");
    return ARGS_GO_ON;
}

static void complete(plan *p)
{
    operation *o = &p->o;
    for (size_t i = 0; i < COUNT_OF(dim_defaults); i++)
        if (o->dims[dim_defaults[i].dim] == 0) o->dims[dim_defaults[i].dim] = dim_defaults[i].size;
    if (o->dims[DIM_M] == 0) o->dims[DIM_M] = base_ceil_div(o->dims[DIM_L], o->settings.S);
    o->dims[DIM_S] = o->settings.S;
    const size_t seq = operation_index(o->kind, "seq"), open = operation_index(o->kind, "open"),
                 decay = operation_index(o->kind, "open_decay");
    if (open < OPERATION_MAX_TENSORS && (o->given[open] || o->given[decay]))
        o->given[seq] = o->given[open] = o->given[decay] = true;
    if (o->kind->derive != NULL) o->kind->derive(o);
}

/* The case with nothing left out. */
static void name_case(plan *p)
{
    static const struct {
        operation_dim dim;
        const char *name;
    } named[] = {{DIM_B, "B"},   {DIM_L, "L"},     {DIM_H, "H"}, {DIM_G, "G"}, {DIM_N, "N"}, {DIM_P, "P"},
                 {DIM_S, "S"},   {DIM_M, "M"},     {DIM_T, "T"}, {DIM_W, "W"}, {DIM_V, "V"}, {DIM_I, "I"},
                 {DIM_IN, "IN"}, {DIM_OUT, "OUT"}, {DIM_C, "C"}, {DIM_K, "K"},     {DIM_D, "D"}};
    const operation *o = &p->o;
    const char *backward = operation_find(o->kind->name) != o->kind ? " backward" : "";
    size_t used = (size_t)snprintf(p->name, sizeof p->name, "%s%s", o->kind->name, backward);
    for (size_t i = 0; i < COUNT_OF(named); i++) {
        bool is_used = named[i].dim == DIM_S && operation_index(o->kind, "dh") < OPERATION_MAX_TENSORS;
        for (const operation_tensor *t = o->kind->tensors; t->name != NULL; t++)
            if ((t->flags & TENSOR_IN) != 0 && operation_mentions(t, named[i].dim)) is_used = true;
        if (is_used)
            used += (size_t)snprintf(p->name + used, sizeof p->name - used, " %s=%" PRIu64, named[i].name,
                                     o->dims[named[i].dim]);
    }
    used += (size_t)snprintf(p->name + used, sizeof p->name - used, " %s", dart_dtype_name(p->dtype));
    for (size_t i = 0; o->kind->tensors[i].name != NULL; i++)
        if (o->given[i] && (o->kind->tensors[i].flags & TENSOR_OPTIONAL) != 0)
            used += (size_t)snprintf(p->name + used, sizeof p->name - used, " %s", o->kind->tensors[i].name);
}

/* ---- Inputs ---- */

static int make_tensor(plan *p, const cli_session *session, size_t index)
{
    const operation_tensor *t = &p->o.kind->tensors[index];
    if ((t->flags & TENSOR_IN) == 0 || (!p->o.given[index] && (t->flags & TENSOR_ZERO) != 0))
        return operation_place(&p->o, session, index, p->dtype, NULL);
    void *values = NULL;
    int status = operation_values(&p->o, index, p->seed, &values);
    if (status == CLI_OK) status = operation_place(&p->o, session, index, p->dtype, values);
    free(values);
    return status;
}

static int make_tensors(plan *p, const cli_session *session)
{
    for (size_t i = 0; p->o.kind->tensors[i].name != NULL; i++) {
        const int flags = p->o.kind->tensors[i].flags;
        if ((flags & TENSOR_STAGE) != 0) continue;
        if ((flags & TENSOR_OPTIONAL) != 0 && !p->o.given[i]) continue;
        if ((flags & TENSOR_IN) != 0) p->o.given[i] = (flags & TENSOR_ZERO) == 0;
        if (make_tensor(p, session, i) != CLI_OK) return CLI_FAILED;
    }
    return CLI_OK;
}

/* ---- Running ---- */

static int run(dart_stream *stream, double *seconds)
{
    uint64_t ns = 0;
    dart_status status = dart_stream_submit(stream);
    if (status == DART_OK) status = dart_stream_wait(stream, UINT64_MAX);
    if (status == DART_OK) status = dart_stream_elapsed(stream, &ns);
    *seconds = (double)ns / 1e9;
    return status == DART_OK ? CLI_OK : cli_fail_stream(stream, status);
}

static int start(plan *p, const cli_session *session, dart_stream **stream, void (*trace)(void *, const char *))
{
    const dart_stream_options options = {.trace = trace};
    double seconds = 0;
    if (make_tensors(p, session) != CLI_OK) return CLI_FAILED;
    dart_status status = dart_stream_create(session->device, &options, stream);
    if (status != DART_OK) return cli_fail_device(session, status);
    status = p->o.kind->record(&p->o, *stream);
    return status == DART_OK ? run(*stream, &seconds) : cli_fail_stream(*stream, status);
}

static int check_finite(const plan *p, const cli_session *session)
{
    for (size_t i = 0; p->o.kind->tensors[i].name != NULL; i++) {
        /* lse is -inf where there is no memory. */
        const char *name = p->o.kind->tensors[i].name;
        (void)operation_prefixed(name, "out.", &name);
        if (!operation_is_output(&p->o, i) || (p->o.kind->tensors[i].flags & TENSOR_I32) != 0) continue;
        void *values = NULL;
        if (operation_read(&p->o, session, i, &values) != CLI_OK) return CLI_FAILED;
        const float *numbers = values;
        uint64_t bad = p->o.elements[i];
        for (uint64_t k = 0; k < p->o.elements[i] && bad == p->o.elements[i]; k++)
            if (!isfinite(numbers[k]) && !(strcmp(name, "lse") == 0 && numbers[k] < 0)) bad = k;
        free(values);
        if (bad < p->o.elements[i])
            return cli_fail("%s: %s holds a number that is not finite, at element %" PRIu64, p->name, name, bad);
    }
    return CLI_OK;
}

/* Relative L2 distance of an output on two devices; integers: the share that differs. */
static double distance(const operation *o, size_t index, const void *a, const void *b)
{
    double difference = 0, norm = 0;
    const bool whole = (o->kind->tensors[index].flags & TENSOR_I32) != 0;
    for (uint64_t i = 0; i < o->elements[index]; i++) {
        if (whole) {
            difference += ((const int32_t *)a)[i] != ((const int32_t *)b)[i];
            norm += 1;
            continue;
        }
        const double x = (double)((const float *)a)[i], y = (double)((const float *)b)[i];
        if (isinf(x) || isinf(y)) {
            if (isinf(x) != isinf(y)) return INFINITY;
            continue;
        }
        difference += (x - y) * (x - y);
        norm += y * y;
    }
    return norm > 0 ? sqrt(difference / norm) : sqrt(difference);
}

/* Sums of a few thousand terms in f32, and one rounding to storage. */
static double tolerance(dart_dtype dtype) { return dtype == DART_F32 ? 1e-5 : dtype == DART_F16 ? 2e-3 : 1.5e-2; }

static int compare(const plan *p, const cli_session *session, const cli_common *common, double *worst)
{
    plan other = *p;
    cli_session second = {.context = NULL};
    cli_common elsewhere = *common;
    dart_stream *stream = NULL;
    memset(other.o.tensors, 0, sizeof other.o.tensors);
    elsewhere.device = p->check;
    elsewhere.variant = NULL;
    int result = cli_open_device(&second, &elsewhere);
    if (result == CLI_OK) result = start(&other, &second, &stream, NULL);
    for (size_t i = 0; result == CLI_OK && p->o.kind->tensors[i].name != NULL; i++) {
        void *ours = NULL, *theirs = NULL;
        if (!operation_is_output(&p->o, i)) continue;
        result = operation_read(&p->o, session, i, &ours);
        if (result == CLI_OK) result = operation_read(&other.o, &second, i, &theirs);
        if (result == CLI_OK) {
            const double d = distance(&p->o, i, ours, theirs);
            if (d > *worst) *worst = d;
            if (!(d <= tolerance(p->dtype)))
                result = cli_fail("%s: %s differs by %.2e from %s, allowed is %.0e", p->name,
                                  p->o.kind->tensors[i].name, d, second.info.name, tolerance(p->dtype));
        }
        free(ours);
        free(theirs);
    }
    dart_stream_destroy(&stream);
    operation_release(&other.o);
    cli_close(&second);
    return result;
}

/* A submission takes its own time, so that what it holds should run for this long. */
#define LEAST_SECONDS 0.002
enum { MOST_TIMES = 256 };

/* Warms up and records the op as often as one submission should hold it. */
static int prepare(plan *p, const cli_session *session, dart_stream **stream)
{
    bench_warm warm = {0};
    double seconds = 0;
    do {
        if (run(*stream, &seconds) != CLI_OK) return CLI_FAILED;
    } while (bench_is_cold(&warm, seconds, base_now_ns()));
    p->times = 1;
    while (p->times < MOST_TIMES && seconds * p->times < LEAST_SECONDS) p->times *= 2;
    if (p->times == 1) return CLI_OK;
    /* Without a trace: the launches were told of already. */
    dart_stream_destroy(stream);
    dart_status status = dart_stream_create(session->device, NULL, stream);
    if (status != DART_OK) return cli_fail_device(session, status);
    for (uint32_t i = 0; i < p->times && status == DART_OK; i++) status = p->o.kind->record(&p->o, *stream);
    return status == DART_OK ? run(*stream, &seconds) : cli_fail_stream(*stream, status);
}

static int time_runs(const plan *p, dart_stream *stream, cli_profile *profile, double *seconds)
{
    if (profile != NULL) profile->phase = p->name;
    for (uint32_t i = 0; i < p->repeat; i++) {
        if (run(stream, &seconds[i]) != CLI_OK) return CLI_FAILED;
        seconds[i] /= p->times;
        cli_progress("run %" PRIu32 " of %" PRIu32, i + 1, p->repeat);
    }
    cli_progress_end();
    if (profile != NULL) {
        cli_profile_print(profile, p->repeat * p->times);
        *profile = (cli_profile){.phase = NULL};
    }
    return CLI_OK;
}

/* ---- Results ---- */

typedef struct result {
    double median, least, most, difference;
    uint64_t bytes;
    uint32_t launches;
} result;

static double gflops(const plan *p, double time)
{
    return p->o.kind->flops != NULL ? p->o.kind->flops(&p->o) / time / 1e9 : 0;
}

static json_t *to_json(const plan *p, const cli_session *session, const result *r)
{
    const double time = r->median > 0 ? r->median : 1e-12;
    return json_pack(
        "{s:s, s:s, s:s, s:s, s:I, s:I, s:f, s:f, s:f, s:I, s:f, s:f, s:o}", "case", p->name, "device",
        session->info.name, "backend", dart_backend_name(session->info.backend), "dtype", dart_dtype_name(p->dtype),
        "launches", (json_int_t)r->launches, "repeat", (json_int_t)p->repeat, "seconds", r->median, "least", r->least,
        "most", r->most, "tensor_bytes", (json_int_t)r->bytes, "gigabytes_per_second", (double)r->bytes / time / 1e9,
        "gigaflops", gflops(p, time), "difference", p->check != NULL ? json_real(r->difference) : json_null());
}

static void print_csv(const plan *p, const cli_session *session, const result *r, bool first)
{
    const double time = r->median > 0 ? r->median : 1e-12;
    if (first)
        printf("case,device,backend,dtype,L,launches,repeat,seconds,least,most,tensor_bytes,gigabytes_per_second,gigaflops\n");
    printf("\"%s\",\"%s\",%s,%s,%" PRIu64 ",%" PRIu32 ",%" PRIu32 ",%.9f,%.9f,%.9f,%" PRIu64 ",%.3f,%.3f\n", p->name,
           session->info.name, dart_backend_name(session->info.backend), dart_dtype_name(p->dtype), p->o.dims[DIM_L],
           r->launches, p->repeat, r->median, r->least, r->most, r->bytes, (double)r->bytes / time / 1e9, gflops(p, time));
}

static void print(const plan *p, const cli_session *session, const result *r)
{
    const double time = r->median > 0 ? r->median : 1e-12;
    char number[4][CLI_NUMBER];
    printf("%s on %s: %s (%s to %s), %" PRIu32 " launches", p->name, session->info.name, cli_time(r->median, number[0]),
           cli_time(r->least, number[1]), cli_time(r->most, number[2]), r->launches);
    printf(", %s GB/s", cli_rate((double)r->bytes / time / 1e9, number[3]));
    if (p->o.kind->flops != NULL) printf(", %s GFLOP/s", cli_rate(gflops(p, time), number[3]));
    if (p->check != NULL) printf(", within %.1e of %s", r->difference, p->check);
    printf("\n");
    fflush(stdout);
}

static void print_launch(void *user, const char *line)
{
    (void)user;
    fprintf(stderr, "%s\n", line);
}

static int bench(plan *p, const cli_session *session, const cli_common *common, result *r)
{
    dart_stream *stream = NULL;
    double *seconds = calloc(p->repeat, sizeof *seconds);
    int status = seconds != NULL ? CLI_OK : cli_fail_memory();
    if (status == CLI_OK) status = start(p, session, &stream, common->verbosity > 0 ? print_launch : NULL);
    if (status == CLI_OK) status = check_finite(p, session);
    if (status == CLI_OK && p->check != NULL) status = compare(p, session, common, &r->difference);
    if (status == CLI_OK) r->launches = dart_stream_launches(stream);
    if (status == CLI_OK) status = prepare(p, session, &stream);
    if (status == CLI_OK) status = time_runs(p, stream, common->profile, seconds);
    if (status == CLI_OK) {
        r->median = cli_median(seconds, p->repeat);
        r->least = seconds[0];
        r->most = seconds[p->repeat - 1];
        for (size_t i = 0; i < OPERATION_MAX_TENSORS; i++) r->bytes += dart_buffer_bytes(p->o.tensors[i].buffer);
    }
    dart_stream_destroy(&stream);
    free(seconds);
    return status;
}

typedef struct output {
    bool csv, json;
    bench_saved saved;
} output;

static int bench_all(const plan *common_plan, const args_syntax *syntax, const case_list *cases, const cli_common *common,
                     const output *out)
{
    cli_session session = {.context = NULL};
    json_t *results = json_array();
    int status = results != NULL ? cli_open_device(&session, common) : cli_fail_memory();
    for (uint32_t i = 0; i < cases->count && status == CLI_OK; i++) {
        plan p = *common_plan;
        result r = {.difference = 0};
        status = parse_case(&p, syntax, cases->texts[i]);
        if (status != ARGS_GO_ON) break;
        if (common->dtype != DART_STORAGE_DEFAULT) p.dtype = (dart_dtype)(common->dtype - DART_STORAGE_F32);
        complete(&p);
        name_case(&p);
        status = bench(&p, &session, common, &r);
        if (status == CLI_OK && json_array_append_new(results, to_json(&p, &session, &r)) != 0) status = cli_fail_memory();
        if (status == CLI_OK && out->csv) print_csv(&p, &session, &r, i == 0);
        else if (status == CLI_OK && !out->json) print(&p, &session, &r);
        operation_release(&p.o);
    }
    if (status == CLI_OK && out->json)
        status = cli_print_json(json_incref(cases->count == 1 ? json_array_get(results, 0) : results));
    if (status == CLI_OK) status = bench_compare(&out->saved, results);
    json_decref(results);
    cli_close(&session);
    return status;
}

int cmd_bench_op(int argc, char **argv)
{
    static cli_profile profile;
    cli_common common = {.device = NULL};
    bool profiled = false;
    output out = {.saved = {.tolerance = 0.1f}};
    plan p = {.o = {.settings = {.S = 256, .eps = 1e-5f, .base = 10000, .temperature = 1, .top_k = 40, .dt_is_step = true}},
              .dtype = DART_F32,
              .repeat = 20,
              .seed = 1};
    const args_option options[] = {
        {"repeat", 0, ARGS_U32, "R", &p.repeat, "timed runs, once the device is warm; by default 20", 1, 100000,
         false},
        {"check", 0, ARGS_TEXT, "SPEC", &p.check, "compare the results with this device's first", 0, 0, false},
        {"dtype", 0, ARGS_CHOICE, CLI_DTYPES, &common.dtype, "storage, by default f32", 0, 0, false},
        {"variant", 0, ARGS_TEXT, "NAME", &common.variant, "only kernels of this variant, where there is one", 0, 0,
         false},
        {"profile", 0, ARGS_FLAG, NULL, &profiled, "time every launch and print where the time goes; slows the runs", 0, 0,
         false},
        {"seed", 0, ARGS_U64, "X", &p.seed, "of the random inputs, by default 1", 0, 0, false},
        CLI_DEVICE(common),
        {"csv", 0, ARGS_FLAG, NULL, &out.csv, "print comma-separated values", 0, 0, false},
        BENCH_SAVED(out.saved),
        CLI_OUTPUT(common),
    };
    const args_syntax syntax = {
        .command = "dartlm bench op",
        .operands = "CASE...",
        .options = options,
        .options_count = COUNT_OF(options),
        .about =
            "Times ops on random inputs by the device's clock and prints the median, the fastest and the\n"
            "slowest run of each case. A case names the op and sizes by their letters, a dtype, and optional\n"
            "tensors to include; a range of sizes stands for its powers of two:\n"
            "  ssd L=2048 H=24 P=64 N=128 S=256\n"
            "  ssd L=2048..131072 bf16      (seven cases)\n"
            "  ssd bf16 dh_scale            (memories normalised, in bf16)\n"
            "  ssd B=8 L=1 open bf16        (a decoding step)\n"
            "  sma L=2048 S=256             (causal)\n"
            "  sma L=1 M=32 seq             (a decoding step against 32 memories)\n"
            "  attention L=2048 G=24 D=64   (causal softmax attention, 24 key heads)\n"
            "  attention L=1 C=2048 D=64 seq (a decoding step with a full cache)\n"
            "  sma backward L=8192 scale    (forward and backward pass)\n"
            "  linear T=512 IN=768 OUT=3352\n"
            "  conv L=2048 C=1792 K=4\n"
            "Sizes that are left out are those of dart-130m at 2048 tokens."};
    args_operands operands;
    case_list cases = {.texts = NULL};
    int status = args_parse(&syntax, argc, argv, &operands);
    if (status == ARGS_GO_ON && out.csv && common.json) status = args_mistake(&syntax, "--csv and --json exclude one another");
    if (status == ARGS_GO_ON) status = list_cases(&cases, &syntax, &operands);
    out.json = common.json;
    common.null_too = true;
    if (profiled) common.profile = &profile;
    if (status == ARGS_GO_ON && bench_saved_load(&out.saved) != CLI_OK) status = CLI_FAILED;
    if (status == ARGS_GO_ON) status = bench_all(&p, &syntax, &cases, &common, &out);
    bench_saved_close(&out.saved);
    free(cases.texts);
    return status;
}
