/* One op of a given shape: device times, checked before they are believed. */
#include "bench_case.h"
#include "bench_saved.h"
#include "bench_warm.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Inputs ---- */

static int make_tensor(bench_case *p, const cli_session *session, size_t index)
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

static int make_tensors(bench_case *p, const cli_session *session)
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

static int start(bench_case *p, const cli_session *session, dart_stream **stream, void (*trace)(void *, const char *))
{
    const dart_stream_options options = {.trace = trace};
    double seconds = 0;
    if (make_tensors(p, session) != CLI_OK) return CLI_FAILED;
    dart_status status = dart_stream_create(session->device, &options, stream);
    if (status != DART_OK) return cli_fail_device(session, status);
    status = p->o.kind->record(&p->o, *stream);
    return status == DART_OK ? run(*stream, &seconds) : cli_fail_stream(*stream, status);
}

static int check_finite(const bench_case *p, const cli_session *session)
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

static int compare(const bench_case *p, const cli_session *session, const cli_common *common, double *worst)
{
    bench_case other = *p;
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
static int prepare(bench_case *p, const cli_session *session, dart_stream **stream)
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

static int time_runs(const bench_case *p, dart_stream *stream, cli_profile *profile, double *seconds)
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

static double gflops(const bench_case *p, double time)
{
    return p->o.kind->flops != NULL ? p->o.kind->flops(&p->o) / time / 1e9 : 0;
}

static json_t *to_json(const bench_case *p, const cli_session *session, const result *r)
{
    const double time = r->median > 0 ? r->median : 1e-12;
    return json_pack(
        "{s:s, s:s, s:s, s:s, s:I, s:I, s:f, s:f, s:f, s:I, s:f, s:f, s:o}", "case", p->name, "device",
        session->info.name, "backend", dart_backend_name(session->info.backend), "dtype", dart_dtype_name(p->dtype),
        "launches", (json_int_t)r->launches, "repeat", (json_int_t)p->repeat, "seconds", r->median, "least", r->least,
        "most", r->most, "tensor_bytes", (json_int_t)r->bytes, "gigabytes_per_second", (double)r->bytes / time / 1e9,
        "gigaflops", gflops(p, time), "difference", p->check != NULL ? cli_json_number(r->difference) : json_null());
}

static void print_csv(const bench_case *p, const cli_session *session, const result *r, bool first)
{
    const double time = r->median > 0 ? r->median : 1e-12;
    if (first)
        printf("case,device,backend,dtype,L,launches,repeat,seconds,least,most,tensor_bytes,gigabytes_per_second,gigaflops\n");
    printf("\"%s\",\"%s\",%s,%s,%" PRIu64 ",%" PRIu32 ",%" PRIu32 ",%.9f,%.9f,%.9f,%" PRIu64 ",%.3f,%.3f\n", p->name,
           session->info.name, dart_backend_name(session->info.backend), dart_dtype_name(p->dtype), p->o.dims[DIM_L],
           r->launches, p->repeat, r->median, r->least, r->most, r->bytes, (double)r->bytes / time / 1e9, gflops(p, time));
}

static void print(const bench_case *p, const cli_session *session, const result *r)
{
    const double time = r->median > 0 ? r->median : 1e-12;
    char number[4][CLI_NUMBER];
    printf("%s on %s: %s (%s to %s), %" PRIu32 " launches", p->name, session->info.name, cli_time(r->median, number[0]),
           cli_time(r->least, number[1]), cli_time(r->most, number[2]), r->launches);
    const bool computed = session->info.backend != DART_BACKEND_NULL;
    if (computed) printf(", %s GB/s", cli_rate((double)r->bytes / time / 1e9, number[3]));
    if (computed && p->o.kind->flops != NULL) printf(", %s GFLOP/s", cli_rate(gflops(p, time), number[3]));
    if (p->check != NULL) printf(", within %.1e of %s", r->difference, p->check);
    printf("\n");
    fflush(stdout);
}

static void print_launch(void *user, const char *line)
{
    (void)user;
    fprintf(stderr, "%s\n", line);
}

static int bench(bench_case *p, const cli_session *session, const cli_common *common, result *r)
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

static int bench_all(const bench_case *common_case, const args_syntax *syntax, const bench_cases *cases, const cli_common *common,
                     const output *out)
{
    cli_session session = {.context = NULL};
    json_t *results = json_array();
    int status = results != NULL ? cli_open_device(&session, common) : cli_fail_memory();
    if (status == CLI_OK) cli_note_null(&session);
    for (uint32_t i = 0; i < cases->count && status == CLI_OK; i++) {
        bench_case p = *common_case;
        result r = {.difference = 0};
        status = bench_case_parse(&p, syntax, cases->texts[i]);
        if (status != ARGS_GO_ON) break;
        if (common->dtype != DART_STORAGE_DEFAULT) p.dtype = (dart_dtype)(common->dtype - DART_STORAGE_F32);
        bench_case_complete(&p);
        bench_case_name(&p);
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
    bench_case p = {.o = {.settings = {.S = 256, .eps = 1e-5f, .base = 10000, .temperature = 1, .top_k = 40, .dt_is_step = true}},
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
    bench_cases cases = {.texts = NULL};
    int status = args_parse(&syntax, argc, argv, &operands);
    if (status == ARGS_GO_ON && out.csv && common.json) status = args_mistake(&syntax, "--csv and --json exclude one another");
    if (status == ARGS_GO_ON) status = bench_cases_list(&cases, &syntax, &operands);
    out.json = common.json;
    common.null_too = true;
    if (profiled) common.profile = &profile;
    if (status == ARGS_GO_ON && bench_saved_load(&out.saved) != CLI_OK) status = CLI_FAILED;
    if (status == ARGS_GO_ON) status = bench_all(&p, &syntax, &cases, &common, &out);
    bench_saved_close(&out.saved);
    free(cases.texts);
    return status;
}
