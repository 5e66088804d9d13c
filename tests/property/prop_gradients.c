/* The judge of backward passes: derivatives that the tape takes of the definition, against differences of values and against the
 * gradient fixtures (automatic differentiation of the same definition by another program, in fp64, rounded to f32).
 * prop_gradients DATA_FOLDER. */
#include "checkpoint/safetensors.h"
#include "conform/definition.h"
#include "rig.h"

#include <math.h>

/* Values of a fixture were rounded to f32 once: at most 2^-24 of each. */
#define ROUNDED 6e-8

static const char *folder = DART_TEST_DATA;

/* ---- The tape ---- */

static double uniform(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(*state >> 11) * 0x1p-53 * 2 - 1;
}

enum { ROWS = 3, COLUMNS = 4, CELLS = ROWS * COLUMNS, NUMBERS = CELLS + COLUMNS + ROWS + 1 };

/* Something of every operation, each result in use twice. */
static tape_vector everything(tape *t, const double *x, tape_vector *inputs)
{
    inputs[0] = tape_input(t, x, CELLS);
    inputs[1] = tape_input(t, x + CELLS, COLUMNS);
    inputs[2] = tape_input(t, x + CELLS + COLUMNS, ROWS);
    inputs[3] = tape_input(t, x + CELLS + COLUMNS + ROWS, 1);
    const tape_vector two = tape_join(t, (const tape_vector[]){inputs[1], tape_scale(t, inputs[1], -0.7, 0.2)}, 2);
    const tape_vector both = tape_rows(t, inputs[0], two, 2), second = tape_part(t, both, ROWS, 1, ROWS);
    const tape_vector rows = tape_add(t, tape_part(t, both, 0, 1, ROWS), tape_multiply(t, second, inputs[3]));
    const tape_vector columns = tape_columns(t, inputs[0], inputs[2]);
    const tape_vector outer = tape_multiply(t, tape_outer(t, rows, columns), inputs[0]);
    const tape_vector parts[] = {tape_part(t, outer, 1, 3, 4), tape_multiply(t, rows, inputs[3]), tape_add(t, columns, inputs[3]), columns};
    const tape_vector all = tape_join(t, parts, 4);
    const tape_vector positive = tape_add(t, tape_multiply(t, all, all), tape_scale(t, tape_apply(t, inputs[3], tape_exp, 0, 0), 1, 0.3));
    const tape_vector curves[] = {tape_apply(t, positive, tape_log, 0, 0),        tape_apply(t, positive, tape_power, -0.5, 0),
                                  tape_apply(t, all, tape_silu, 0, 0),            tape_apply(t, all, tape_softplus, 0, 0),
                                  tape_apply(t, outer, tape_clamp, -0.1, 0.2),    tape_scale(t, outer, -1.7, 0.4)};
    const tape_vector joined = tape_join(t, curves, 6);
    return tape_add(t, tape_sum(t, tape_multiply(t, joined, joined)), tape_sum(t, tape_part(t, joined, 2, 5, 9)));
}

static double value_at(const double *x)
{
    tape *t = tape_create();
    tape_vector inputs[4];
    const double value = tape_values(t, everything(t, x, inputs))[0];
    tape_destroy(&t);
    return value;
}

/* Along a direction, the gradient says what the value changes by. Differences over 2 h err by h^2 and by 1e-16 / h; none of these
 * inputs lies so close to a corner of the clamp that a step crosses it. */
static void tape_follows_differences(void **unused)
{
    (void)unused;
    uint64_t state = 7;
    for (int trial = 0; trial < 50; trial++) {
        const double h = 1e-5;
        double x[NUMBERS], way[NUMBERS], before[NUMBERS], after[NUMBERS], along = 0, size = 0;
        for (int i = 0; i < NUMBERS; i++) {
            x[i] = uniform(&state);
            way[i] = uniform(&state);
            before[i] = x[i] - h * way[i];
            after[i] = x[i] + h * way[i];
        }
        tape *t = tape_create();
        tape_vector inputs[4];
        const tape_vector value = everything(t, x, inputs);
        tape_push(t, value, &(double){1});
        tape_reverse(t);
        for (int k = 0, i = 0; k < 4; k++) {
            for (size_t e = 0; e < tape_count(t, inputs[k]); e++, i++) {
                along += tape_gradient(t, inputs[k])[e] * way[i];
                size += fabs(tape_gradient(t, inputs[k])[e] * way[i]);
            }
        }
        tape_destroy(&t);
        const double difference = (value_at(after) - value_at(before)) / (2 * h);
        if (fabs(difference - along) > 1e-7 * size)
            print_message("trial %d: %.12g along the gradient, %.12g by differences\n", trial, along, difference);
        assert_true(fabs(difference - along) <= 1e-7 * size);
    }
}

/* ---- Fixtures ---- */

typedef struct fixture {
    safetensors *file;
    tape *tape;
    double worst;
    char worst_name[80];
} fixture;

static fixture open_fixture(const char *name)
{
    fixture f = {.tape = tape_create()};
    base_report report = {0};
    char path[1024];
    snprintf(path, sizeof path, "%s/%s.safetensors", folder, name);
    if (safetensors_open(path, &report, &f.file) != DART_OK) fail_msg("%s: %s", path, report.text);
    return f;
}

static void close_fixture(fixture *f)
{
    print_message("  largest error %.1e, of %s\n", f->worst, f->worst_name);
    safetensors_close(&f->file);
    tape_destroy(&f->tape);
}

static const safetensors_tensor *find(const fixture *f, const char *name)
{
    const safetensors_tensor *tensor = safetensors_find(f->file, name);
    if (tensor == NULL) fail_msg("the fixture has no %s", name);
    return tensor;
}

static size_t size_of(const fixture *f, const char *name, uint32_t axis) { return (size_t)find(f, name)->shape[axis]; }

static double number_of(const fixture *f, const char *key)
{
    const char *text = safetensors_metadata(f->file, key);
    if (text == NULL) fail_msg("the fixture's metadata has no %s", key);
    return strtod(text, NULL);
}

/* To be freed. */
static double *values_of(const fixture *f, const char *name)
{
    const safetensors_tensor *tensor = find(f, name);
    double *values = malloc((size_t)tensor->elements * sizeof *values);
    assert_non_null(values);
    for (uint64_t i = 0; i < tensor->elements; i++) {
        float value;
        safetensors_to_f32(tensor, i, 1, &value);
        values[i] = value;
    }
    return values;
}

static int32_t *ints_of(const fixture *f, const char *name)
{
    const safetensors_tensor *tensor = find(f, name);
    int32_t *values = malloc((size_t)tensor->bytes);
    assert_non_null(values);
    memcpy(values, tensor->data, (size_t)tensor->bytes);
    return values;
}

static tape_vector input(fixture *f, const char *name)
{
    double *values = values_of(f, name);
    const tape_vector made = tape_input(f->tape, values, (size_t)find(f, name)->elements);
    free(values);
    return made;
}

static void push(fixture *f, tape_vector v, const char *name)
{
    double *up = values_of(f, name);
    assert_int_equal(find(f, name)->elements, tape_count(f->tape, v));
    tape_push(f->tape, v, up);
    free(up);
}

/* Relative L2; infinities must agree. */
static void compare(fixture *f, const char *name, const double *got, size_t count)
{
    double *want = values_of(f, name), error2 = 0, size2 = 0;
    assert_int_equal(find(f, name)->elements, count);
    for (size_t i = 0; i < count; i++) {
        if (isinf(want[i])) {
            assert_true(got[i] == want[i]);
            continue;
        }
        error2 += (got[i] - want[i]) * (got[i] - want[i]);
        size2 += want[i] * want[i];
    }
    free(want);
    const double error = sqrt(error2) / fmax(sqrt(size2), 1e-300);
    if (!(error <= ROUNDED)) fail_msg("%s is off by %.2e", name, error);
    if (error < f->worst) return;
    f->worst = error;
    snprintf(f->worst_name, sizeof f->worst_name, "%s", name);
}

static void compare_values(fixture *f, const char *name, tape_vector v) { compare(f, name, tape_values(f->tape, v), tape_count(f->tape, v)); }
static void compare_gradient(fixture *f, const char *name, tape_vector v) { compare(f, name, tape_gradient(f->tape, v), tape_count(f->tape, v)); }

enum { MAX_DOCUMENTS = 16 };

/* The rows of a batch, or those that cu cuts each of them into. */
static definition_documents documents_of(const fixture *f, size_t B, size_t L, size_t begin[MAX_DOCUMENTS + 1])
{
    const safetensors_tensor *cu = safetensors_find(f->file, "cu");
    const size_t parts = cu != NULL ? (size_t)cu->elements - 1 : 1;
    int32_t *borders = cu != NULL ? ints_of(f, "cu") : NULL;
    assert_true(B * parts <= MAX_DOCUMENTS);
    for (size_t b = 0; b < B; b++)
        for (size_t i = 0; i < parts; i++) begin[b * parts + i] = b * L + (borders != NULL ? (size_t)borders[i] : 0);
    begin[B * parts] = B * L;
    free(borders);
    return (definition_documents){.count = B * parts, .begin = begin};
}

static void check_ssd(const char *name)
{
    fixture f = open_fixture(name);
    tape *t = f.tape;
    size_t begin[MAX_DOCUMENTS + 1];
    const bool has_h = safetensors_find(f.file, "h") != NULL;
    definition_ssd of = {.H = size_of(&f, "x", 2), .P = size_of(&f, "x", 3), .G = size_of(&f, "b", 2), .N = size_of(&f, "b", 3),
                         .S = (size_t)number_of(&f, "S"), .documents = documents_of(&f, size_of(&f, "x", 0), size_of(&f, "x", 1), begin),
                         .dt_min = number_of(&f, "dt_min"), .dt_max = number_of(&f, "dt_max"), .has_bias = true, .has_d = true, .has_h = has_h,
                         .x = input(&f, "x"), .dt = input(&f, "dt"), .b = input(&f, "b"), .c = input(&f, "c"), .a_log = input(&f, "a_log"),
                         .dt_bias = input(&f, "dt_bias"), .d = input(&f, "d")};
    if (has_h) of.h = input(&f, "h");
    definition_run_ssd(t, &of);
    /* Of packed documents the last one's state. */
    const size_t states = (size_t)find(&f, "out.h")->elements;
    const tape_vector h = tape_part(t, of.last_h, tape_count(t, of.last_h) - states, 1, states);
    compare_values(&f, "out.step", of.step);
    compare_values(&f, "out.y", of.y);
    compare_values(&f, "out.dh", of.dh);
    compare_values(&f, "out.h", h);
    push(&f, of.y, "up.y");
    push(&f, of.dh, "up.dh");
    push(&f, h, "up.h");
    tape_reverse(t);
    compare_gradient(&f, "grad.x", of.x);
    compare_gradient(&f, "grad.dt", of.dt);
    compare_gradient(&f, "grad.step", of.step);
    compare_gradient(&f, "grad.dt_bias", of.dt_bias);
    compare_gradient(&f, "grad.a_log", of.a_log);
    compare_gradient(&f, "grad.b", of.b);
    compare_gradient(&f, "grad.c", of.c);
    compare_gradient(&f, "grad.d", of.d);
    if (has_h) compare_gradient(&f, "grad.h", of.h);
    close_fixture(&f);
}

static void scans(void **unused)
{
    (void)unused;
    check_ssd("grad-ssd/odd");
    check_ssd("grad-ssd/even");
    check_ssd("grad-ssd/one");
    check_ssd("grad-ssd/packed");
}

static void check_sma(const char *name)
{
    fixture f = open_fixture(name);
    size_t begin[MAX_DOCUMENTS + 1];
    definition_sma of = {.H = size_of(&f, "dh", 2), .P = size_of(&f, "dh", 4), .G = size_of(&f, "q", 2), .N = size_of(&f, "q", 3),
                         .S = (size_t)number_of(&f, "S"), .documents = documents_of(&f, size_of(&f, "q", 0), size_of(&f, "q", 1), begin),
                         .eps = number_of(&f, "eps"), .q = input(&f, "q"), .e = input(&f, "e"), .c = input(&f, "c"), .dh = input(&f, "dh")};
    definition_run_sma(f.tape, &of);
    compare_values(&f, "out.r", of.r);
    compare_values(&f, "out.lse", of.lse);
    push(&f, of.r, "up.r");
    tape_reverse(f.tape);
    compare_gradient(&f, "grad.q", of.q);
    compare_gradient(&f, "grad.e", of.e);
    compare_gradient(&f, "grad.c", of.c);
    compare_gradient(&f, "grad.dh", of.dh);
    close_fixture(&f);
}

static void state_memory_attention(void **unused)
{
    (void)unused;
    check_sma("grad-sma/odd");
    check_sma("grad-sma/even");
    check_sma("grad-sma/packed");
}

static void check_attention(const char *name)
{
    fixture f = open_fixture(name);
    size_t begin[MAX_DOCUMENTS + 1];
    definition_attention of = {.H = size_of(&f, "q", 2), .D = size_of(&f, "q", 3), .G = size_of(&f, "k", 2), .scale = number_of(&f, "scale"),
                               .documents = documents_of(&f, size_of(&f, "q", 0), size_of(&f, "q", 1), begin), .q = input(&f, "q"),
                               .k = input(&f, "k"), .v = input(&f, "v")};
    definition_run_attention(f.tape, &of);
    compare_values(&f, "out.o", of.o);
    compare_values(&f, "out.lse", of.lse);
    push(&f, of.o, "up.o");
    tape_reverse(f.tape);
    compare_gradient(&f, "grad.q", of.q);
    compare_gradient(&f, "grad.k", of.k);
    compare_gradient(&f, "grad.v", of.v);
    close_fixture(&f);
}

static void softmax_attention(void **unused)
{
    (void)unused;
    check_attention("grad-attention/odd");
    check_attention("grad-attention/even");
    check_attention("grad-attention/packed");
}

/* Names of a block's parameters behind its prefix, and where the definition has them. */
static const struct { const char *name; size_t at; } parameters[] = {
    {"norm.weight", offsetof(definition_block, norm)},
    {"mixer.in_proj.weight", offsetof(definition_block, in_proj)},
    {"mixer.conv1d.weight", offsetof(definition_block, conv_weight)},
    {"mixer.conv1d.bias", offsetof(definition_block, conv_bias)},
    {"mixer.dt_bias", offsetof(definition_block, dt_bias)},
    {"mixer.A_log", offsetof(definition_block, a_log)},
    {"mixer.D", offsetof(definition_block, d)},
    {"mixer.norm.weight", offsetof(definition_block, mixer_norm)},
    {"mixer.out_proj.weight", offsetof(definition_block, out_proj)},
    {"mixer.sma_proj.weight", offsetof(definition_block, sma_proj)},
    {"mixer.sma_conv1d.weight", offsetof(definition_block, sma_conv_weight)},
    {"mixer.sma_conv1d.bias", offsetof(definition_block, sma_conv_bias)},
};
enum { PARAMETERS = sizeof parameters / sizeof parameters[0] };

static tape_vector *parameter(definition_block *of, size_t i) { return (tape_vector *)(void *)((char *)of + parameters[i].at); }

static void read_parameters(fixture *f, definition_block *of, const char *prefix)
{
    for (size_t i = 0; i < PARAMETERS; i++) {
        char name[80];
        snprintf(name, sizeof name, "%s%s", prefix, parameters[i].name);
        *parameter(of, i) = input(f, name);
    }
}

static void compare_parameters(fixture *f, definition_block *of, const char *prefix)
{
    for (size_t i = 0; i < PARAMETERS; i++) {
        char name[96];
        snprintf(name, sizeof name, "grad.%s%s", prefix, parameters[i].name);
        compare_gradient(f, name, *parameter(of, i));
    }
}

static void block(void **unused)
{
    (void)unused;
    fixture f = open_fixture("grad-block/block"), inside = open_fixture("grad-block/inside");
    tape *t = f.tape;
    size_t begin[MAX_DOCUMENTS + 1];
    const tape_vector stream = input(&f, "stream");
    definition_block of = {.W = size_of(&f, "stream", 2), .H = (size_t)number_of(&f, "H"), .G = (size_t)number_of(&f, "G"),
                           .P = (size_t)number_of(&f, "P"), .N = (size_t)number_of(&f, "N"), .K = size_of(&f, "mixer.conv1d.weight", 2),
                           .S = (size_t)number_of(&f, "S"), .sma = true,
                           .documents = documents_of(&f, size_of(&f, "stream", 0), size_of(&f, "stream", 1), begin),
                           .eps = number_of(&f, "eps"), .sma_eps = number_of(&f, "sma_eps")};
    read_parameters(&f, &of, "");
    const tape_vector out = definition_run_block(t, &of, stream);
    compare_values(&f, "out.out", out);
    push(&f, out, "up.out");
    tape_reverse(t);
    compare_gradient(&f, "grad.stream", stream);
    compare_parameters(&f, &of, "");
    const struct { const char *value, *gradient; tape_vector v; } stages[] = {
        {"out.x", "grad.x", of.scan.x},      {"out.b", "grad.b", of.scan.b},      {"out.c", "grad.c", of.scan.c},
        {"out.dt", "grad.dt", of.scan.step}, {"out.y", "grad.y", of.y},           {"out.q", "grad.q", of.attention.q},
        {"out.e", "grad.e", of.attention.e}, {"out.r", "grad.r", of.attention.r}, {"out.dh", "grad.dh", of.scan.dh},
        {"out.lse", NULL, of.attention.lse},
    };
    for (size_t i = 0; i < sizeof stages / sizeof stages[0]; i++) {
        compare(&inside, stages[i].value, tape_values(t, stages[i].v), tape_count(t, stages[i].v));
        if (stages[i].gradient != NULL) compare(&inside, stages[i].gradient, tape_gradient(t, stages[i].v), tape_count(t, stages[i].v));
    }
    close_fixture(&inside);
    close_fixture(&f);
}

/* Loss and gradients of a language model of two layers. */
static void check_model(const char *name)
{
    enum { LAYERS = 2 };
    fixture model = open_fixture("grad-model/model"), f = open_fixture(name);
    tape *t = model.tape;
    size_t begin[MAX_DOCUMENTS + 1];
    const size_t V = size_of(&model, "lm_head.weight", 0), W = size_of(&model, "lm_head.weight", 1), T = (size_t)find(&f, "ids")->elements;
    const definition_documents documents = documents_of(&f, size_of(&f, "ids", 0), size_of(&f, "ids", 1), begin);
    int32_t *ids = ints_of(&f, "ids"), *targets = ints_of(&f, "target");
    const tape_vector table = input(&model, "backbone.embeddings.weight"), norm_f = input(&model, "backbone.norm_f.weight"),
                      head = input(&model, "lm_head.weight");
    definition_block blocks[LAYERS];
    tape_vector stream = definition_embed(t, table, ids, T, W);
    char prefix[64];
    for (int l = 0; l < LAYERS; l++) {
        blocks[l] = (definition_block){
            .W = W, .H = 4, .G = 1, .P = 8, .N = 8, .K = 4, .S = 8, .sma = true, .documents = documents, .eps = 1e-5, .sma_eps = 1e-5};
        snprintf(prefix, sizeof prefix, "backbone.layers.%d.", l);
        read_parameters(&model, &blocks[l], prefix);
        stream = definition_run_block(t, &blocks[l], stream);
    }
    const tape_vector loss = definition_loss(t, definition_norm(t, stream, norm_f, 1e-5), head, targets, T, W, V);
    compare(&f, "loss", tape_values(t, loss), 1);
    tape_push(t, loss, &(double){1});
    tape_reverse(t);
    compare(&f, "grad.backbone.embeddings.weight", tape_gradient(t, table), V * W);
    compare(&f, "grad.backbone.norm_f.weight", tape_gradient(t, norm_f), W);
    compare(&f, "grad.lm_head.weight", tape_gradient(t, head), V * W);
    for (int l = 0; l < LAYERS; l++) {
        for (size_t i = 0; i < PARAMETERS; i++) {
            char parameter_name[96];
            snprintf(parameter_name, sizeof parameter_name, "grad.backbone.layers.%d.%s", l, parameters[i].name);
            compare(&f, parameter_name, tape_gradient(t, *parameter(&blocks[l], i)), tape_count(t, *parameter(&blocks[l], i)));
        }
    }
    free(ids);
    free(targets);
    close_fixture(&f);
    safetensors_close(&model.file);
    tape_destroy(&model.tape);
}

static void models(void **unused)
{
    (void)unused;
    check_model("grad-model/whole");
    check_model("grad-model/packed");
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tape_follows_differences),
        cmocka_unit_test(scans),
        cmocka_unit_test(state_memory_attention),
        cmocka_unit_test(softmax_attention),
        cmocka_unit_test(block),
        cmocka_unit_test(models),
    };
    if (argc > 1) folder = argv[1];
    return cmocka_run_group_tests(tests, NULL, NULL);
}
