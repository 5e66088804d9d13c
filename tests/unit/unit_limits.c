/* Devices that bind little at a time: ops that can take a tensor in slices do and give the same, others say what is
 * wrong: unit_limits [DEVICE_SPEC]. */
#include "rig.h"

#include "dartlm/ops_backward.h"

enum { LIMIT = 8192 };
/* Sums in another order. */
#define TOLERANCE 2e-6

typedef float *(*runner)(rig *r, uint64_t *count, uint32_t *launches);

static void same_within_limits(const char *what, runner run)
{
    rig whole, narrow;
    uint64_t count = 0;
    uint32_t few = 0, many = 0;
    rig_open(&whole, rig_spec);
    rig_open_with(&narrow, &(dart_device_options){.spec = rig_spec, .poison = true, .max_binding_bytes = LIMIT});
    float *expected = run(&whole, &count, &few), *got = run(&narrow, &count, &many);
    rig_close_to(what, got, expected, count, TOLERANCE);
    if (many <= few) fail_msg("%s: %u launches within the limit, %u without", what, many, few);
    free(expected);
    free(got);
    rig_close(&narrow);
    rig_close(&whole);
}

static float *finish(rig *r, const dart_tensor *y, uint64_t elements, uint64_t *count, uint32_t *launches)
{
    *launches = dart_stream_launches(r->stream);
    rig_run(r);
    *count = elements;
    return rig_read(y, elements);
}

/* w after a step, or its 16-bit copy. */
static float *many_parameters(rig *r, uint64_t *count, uint32_t *launches, bool copies)
{
    enum { N = 5000 };
    const float scale[4] = {1, 0.5f, 1, 0}, hyper[8] = {1e-2f, 0.9f, 0.99f, 1e-8f, 0.1f, 0.01f, 0.1f, 0};
    const dart_tensor w = rig_random(r, DART_F32, N, -1, 1), m = rig_random(r, DART_F32, N, -1, 1), v = rig_random(r, DART_F32, N, 0, 1),
                      grad = rig_random(r, DART_F32, N, -1, 1), copy = rig_tensor(r, DART_BF16, N, NULL);
    dart_adamw_args args = {.elements = N, .decays = true, .w = w, .m = m, .v = v, .grad = grad, .scale = rig_tensor(r, DART_F32, 4, scale),
                            .hyper = rig_tensor(r, DART_F32, 8, hyper)};
    if (copies) args.copy = copy;
    MUST(r, dart_adamw(r->stream, &args));
    return finish(r, copies ? &copy : &w, N, count, launches);
}
static float *parameters_alone(rig *r, uint64_t *count, uint32_t *launches) { return many_parameters(r, count, launches, false); }
static float *parameters_and_copy(rig *r, uint64_t *count, uint32_t *launches) { return many_parameters(r, count, launches, true); }

static float *wide_linear(rig *r, uint64_t *count, uint32_t *launches)
{
    enum { T = 40, IN = 96, OUT = 100 };
    const dart_tensor x = rig_random(r, DART_F32, T * IN, -1, 1), weight = rig_random(r, DART_F16, IN * OUT, -1, 1),
                      y = rig_random(r, DART_F32, T * OUT, -1, 1);
    MUST(r, dart_linear(r->stream, &(dart_linear_args){.T = T, .IN = IN, .OUT = OUT, .add = true, .x = x, .weight = weight, .y = y}));
    return finish(r, &y, T * OUT, count, launches);
}

static float *wide_linear_from(rig *r, uint64_t *count, uint32_t *launches)
{
    enum { T = 40, IN = 96, OUT = 100 };
    const dart_tensor x = rig_random(r, DART_F32, T * IN, -1, 1), weight = rig_random(r, DART_F16, IN * OUT, -1, 1),
                      from = rig_random(r, DART_F32, T * OUT, -1, 1), y = rig_tensor(r, DART_F32, T * OUT, NULL);
    MUST(r, dart_linear(r->stream, &(dart_linear_args){.T = T, .IN = IN, .OUT = OUT, .x = x, .weight = weight, .y = y, .from = from}));
    return finish(r, &y, T * OUT, count, launches);
}

static float *wide_linear_backward(rig *r, uint64_t *count, uint32_t *launches, bool weight)
{
    enum { T = 18, IN = 96, OUT = 100 };
    const dart_tensor x = rig_random(r, DART_F32, T * IN, -1, 1), w = rig_random(r, DART_F16, IN * OUT, -1, 1),
                      up = rig_random(r, DART_F32, T * OUT, -1, 1), grad = rig_random(r, DART_F32, weight ? IN * OUT : T * IN, -1, 1);
    dart_linear_backward_args args = {.T = T, .IN = IN, .OUT = OUT, .add = true, .x = x, .weight = w, .up_y = up};
    *(weight ? &args.grad_weight : &args.grad_x) = grad;
    MUST(r, dart_linear_backward(r->stream, &args));
    return finish(r, &grad, weight ? IN * OUT : T * IN, count, launches);
}
static float *wide_linear_backward_x(rig *r, uint64_t *count, uint32_t *launches) { return wide_linear_backward(r, count, launches, false); }
static float *wide_linear_backward_weight(rig *r, uint64_t *count, uint32_t *launches) { return wide_linear_backward(r, count, launches, true); }

/* The logits fit, the weights do not. */
static float *large_head(rig *r, uint64_t *count, uint32_t *launches)
{
    enum { T = 4, V = 500, W = 33 };
    int32_t targets[T];
    for (int32_t i = 0; i < T; i++) targets[i] = (int32_t)rig_uniform(r, -100, V);
    const dart_tensor x = rig_random(r, DART_F32, T * W, -1, 1), weight = rig_random(r, DART_F32, V * W, -1, 1), places = rig_ints(r, T, targets),
                      share = rig_tensor(r, DART_F32, 1, (const float[]){0.1f}), loss = rig_tensor(r, DART_F32, 1, (const float[]){0}),
                      correct = rig_ints(r, 1, (const int32_t[]){0}), grad_x = rig_tensor(r, DART_F32, T * W, NULL),
                      grad_weight = rig_random(r, DART_F32, V * W, -1, 1);
    MUST(r, dart_cross_entropy(r->stream, &(dart_cross_entropy_args){.T = T, .V = V, .W = W, .x = x, .weight = weight, .targets = places,
                                                                     .share = share, .loss = loss, .correct = correct, .grad_x = grad_x,
                                                                     .grad_weight = grad_weight}));
    *launches = dart_stream_launches(r->stream);
    rig_run(r);
    *count = V * W + T * W + 1;
    float *all = rig_read(&grad_weight, V * W), *of_x = rig_read(&grad_x, T * W), *of_loss = rig_read(&loss, 1);
    all = realloc(all, *count * sizeof *all);
    assert_non_null(all);
    memcpy(all + V * W, of_x, T * W * sizeof *all);
    all[V * W + T * W] = *of_loss;
    free(of_x);
    free(of_loss);
    return all;
}

static float *large_table(rig *r, uint64_t *count, uint32_t *launches)
{
    enum { T = 30, V = 500, W = 33 };
    int32_t ids[T];
    for (int32_t i = 0; i < T; i++) ids[i] = i < 2 ? i * (V - 1) : (int32_t)rig_uniform(r, 0, V);
    const dart_tensor places = rig_ints(r, T, ids), weight = rig_random(r, DART_F32, V * W, -1, 1), y = rig_tensor(r, DART_F32, T * W, NULL);
    MUST(r, dart_embed(r->stream, &(dart_embed_args){.T = T, .V = V, .W = W, .ids = places, .weight = weight, .y = y}));
    return finish(r, &y, T * W, count, launches);
}

/* Quantised rows of random numbers. */
static dart_tensor quantised(rig *r, dart_dtype dtype, uint32_t rows, uint32_t width)
{
    const size_t row = dart_quantised_row(dtype, width);
    float *values = malloc((size_t)rows * width * sizeof *values);
    int32_t *words = calloc(rows, row);
    assert_true(values != NULL && words != NULL);
    for (size_t i = 0; i < (size_t)rows * width; i++) values[i] = (float)rig_uniform(r, -1, 1);
    assert_int_equal(dart_quantise(dtype, width, rows, values, words), DART_OK);
    dart_tensor made = rig_ints(r, rows * row / sizeof *words, words);
    made.offset *= sizeof *words;
    made.dtype = dtype;
    free(values);
    free(words);
    return made;
}

/* Many rows are multiplied by numbers that slices of the weights stand for, on GPUs, few rows by the weights as they are. */
static float *quantised_linear(rig *r, uint64_t *count, uint32_t *launches, dart_dtype dtype, uint32_t T)
{
    enum { IN = 96, OUT = 190 };
    const dart_tensor x = rig_random(r, DART_F32, (uint64_t)T * IN, -1, 1), weight = quantised(r, dtype, OUT, IN),
                      y = rig_random(r, DART_F32, (uint64_t)T * OUT, -1, 1);
    MUST(r, dart_linear(r->stream, &(dart_linear_args){.T = T, .IN = IN, .OUT = OUT, .add = true, .x = x, .weight = weight, .y = y}));
    return finish(r, &y, (uint64_t)T * OUT, count, launches);
}
static float *many_rows_of_q8(rig *r, uint64_t *count, uint32_t *launches) { return quantised_linear(r, count, launches, DART_Q8, 40); }
static float *few_rows_of_q4(rig *r, uint64_t *count, uint32_t *launches) { return quantised_linear(r, count, launches, DART_Q4, 3); }

static float *quantised_table(rig *r, uint64_t *count, uint32_t *launches)
{
    enum { T = 30, V = 190, W = 96 };
    int32_t ids[T];
    for (int32_t i = 0; i < T; i++) ids[i] = i < 2 ? i * (V - 1) : (int32_t)rig_uniform(r, 0, V);
    const dart_tensor places = rig_ints(r, T, ids), weight = quantised(r, DART_Q4, V, W), y = rig_tensor(r, DART_F16, T * W, NULL);
    MUST(r, dart_embed(r->stream, &(dart_embed_args){.T = T, .V = V, .W = W, .ids = places, .weight = weight, .y = y}));
    return finish(r, &y, T * W, count, launches);
}

static float *many_memories(rig *r, uint64_t *count, uint32_t *launches, uint32_t L, bool stored)
{
    enum { H = 2, N = 16, P = 24, M = 40, S = 2 };
    const dart_tensor q = rig_random(r, DART_F32, L * N, -1, 1), e = rig_random(r, DART_F32, L * P, -1, 1), c = rig_random(r, DART_F32, L * N, -1, 1),
                      dh = rig_random(r, DART_F32, M * H * N * P, -1, 1), scale = rig_random(r, DART_F32, M * H * N, 0.5f, 2),
                      seq = rig_ints(r, 2, (const int32_t[]){2 * M - 3, (int32_t)L}), y = rig_tensor(r, DART_F16, (uint64_t)L * H * P, NULL);
    dart_memories run = {.M = M, .dh = dh};
    if (stored) run.scale = scale;
    MUST(r, dart_sma(r->stream, &(dart_sma_args){.B = 1, .L = L, .H = H, .G = 1, .N = N, .P = P, .S = S, .eps = 1e-5f, .q = q, .e = e, .c = c,
                                                 .seq = seq, .memories = &run, .memories_count = 1, .r = y}));
    return finish(r, &y, (uint64_t)L * H * P, count, launches);
}
static float *memories_of_a_token(rig *r, uint64_t *count, uint32_t *launches) { return many_memories(r, count, launches, 1, true); }
static float *memories_of_a_piece(rig *r, uint64_t *count, uint32_t *launches) { return many_memories(r, count, launches, 7, false); }

static void slices(void **unused)
{
    (void)unused;
    same_within_limits("linear", wide_linear);
    same_within_limits("linear from", wide_linear_from);
    same_within_limits("linear_backward, x", wide_linear_backward_x);
    same_within_limits("linear_backward, weight", wide_linear_backward_weight);
    same_within_limits("cross_entropy", large_head);
    same_within_limits("embed", large_table);
    same_within_limits("adamw", parameters_alone);
    same_within_limits("adamw, copy", parameters_and_copy);
    same_within_limits("linear, many rows, q8", many_rows_of_q8);
    same_within_limits("embed, q4", quantised_table);
    same_within_limits("sma, step", memories_of_a_token);
    same_within_limits("sma, chunked", memories_of_a_piece);
}

static void slices_weights_of_few_rows(void **unused)
{
    (void)unused;
    rig r;
    rig_open(&r, rig_spec);
    const bool slow = strstr(r.info.name, "SwiftShader") != NULL;
    rig_close(&r);
    if (slow) {
        print_message("NOT RUN: few rows of q4, half a minute of SwiftShader's compiler; conformance runs the kernel there\n");
        skip();
    }
    same_within_limits("linear, few rows, q4", few_rows_of_q4);
}

static void expect_unsupported(rig *r, dart_status status, const char *op)
{
    char text[512];
    dart_stream_error(r->stream, text, sizeof text);
    if (status != DART_UNSUPPORTED) fail_msg("%s: %s: %s", op, dart_status_name(status), text);
    if (strncmp(text, op, strlen(op)) != 0 || strstr(text, "at most 8192") == NULL) fail_msg("'%s'", text);
    assert_int_equal(dart_stream_submit(r->stream), DART_UNSUPPORTED);
    rig_begin(r);
}

static void refuses_what_it_cannot_slice(void **unused)
{
    (void)unused;
    enum { T = 100, W = 64 };
    rig r;
    rig_open_with(&r, &(dart_device_options){.spec = rig_spec, .max_binding_bytes = LIMIT});
    const dart_tensor x = rig_random(&r, DART_F32, 65536, -1, 1), y = rig_tensor(&r, DART_F32, 65536, NULL), i = rig_ints(&r, T, NULL);
    expect_unsupported(&r, dart_fill(r.stream, &(dart_fill_args){.T = T, .W = W, .y = y}), "dart_fill");
    expect_unsupported(&r, dart_convert(r.stream, &(dart_convert_args){.T = T, .W = W, .x = x, .y = y}), "dart_convert");
    expect_unsupported(&r, dart_rms_norm(r.stream, &(dart_rms_norm_args){.T = T, .W = W, .eps = 1, .x = x, .weight = x, .y = y}), "dart_rms_norm");
    expect_unsupported(&r, dart_gated_norm(r.stream, &(dart_gated_norm_args){.T = T, .I = W, .eps = 1, .y = x, .z = x, .weight = x, .out = y}),
                       "dart_gated_norm");
    expect_unsupported(&r, dart_conv(r.stream, &(dart_conv_args){.B = 1, .L = T, .C = W, .K = 4, .x = x, .weight = x, .y = y}), "dart_conv");
    const dart_tensor settings = rig_ints(&r, 8 * T, NULL);
    expect_unsupported(&r, dart_argmax(r.stream, &(dart_argmax_args){.T = T, .V = W, .logits = x, .ids = i}), "dart_argmax");
    expect_unsupported(&r, dart_sample(r.stream, &(dart_sample_args){.T = T, .V = W, .logits = x, .settings = settings, .ids = i}), "dart_sample");
    expect_unsupported(&r, dart_log_probs(r.stream, &(dart_log_probs_args){.T = T, .V = W, .logits = x, .log_z = y}), "dart_log_probs");
    expect_unsupported(&r, dart_ssd(r.stream, &(dart_ssd_args){.B = 1, .L = T, .H = 1, .G = 1, .N = 16, .P = W, .S = 16, .x = x, .dt = x, .b = x,
                                                               .c = x, .a_log = x, .y = y}), "dart_ssd");
    /* Two sequences: their memories are not contiguous in parts. */
    const dart_memories run = {.M = 10, .dh = x};
    expect_unsupported(&r, dart_sma(r.stream, &(dart_sma_args){.B = 2, .L = 2, .H = 1, .G = 1, .N = 16, .P = W, .S = 1, .eps = 1, .q = x, .e = x,
                                                               .c = x, .memories = &run, .memories_count = 1, .r = y}), "dart_sma");
    rig_close(&r);
}

/* Ops of training slice the weights of linear and of the loss, the rows of the loss and the elements of AdamW, nothing else: a row of logits is too
 * long here. */
static void refuses_to_train_what_it_cannot_bind(void **unused)
{
    (void)unused;
    enum { T = 100, W = 64, K = 4 };
    rig r;
    rig_open_with(&r, &(dart_device_options){.spec = rig_spec, .max_binding_bytes = LIMIT});
    const dart_tensor x = rig_random(&r, DART_F32, 65536, -1, 1), y = rig_tensor(&r, DART_F32, 65536, NULL), i = rig_ints(&r, 4096, NULL);
    const dart_gradient gradient = {.elements = (uint64_t)T * W, .grad = x};
#define REFUSED(op, ...) expect_unsupported(&r, op(r.stream, &(op##_args){__VA_ARGS__}), #op)
    REFUSED(dart_embed_backward, .T = T, .V = W, .W = W, .plan = i, .up_y = x, .grad_weight = y);
    REFUSED(dart_rms_norm_backward, .T = T, .W = W, .eps = 1, .x = x, .weight = x, .up_y = x, .grad_x = y, .grad_weight = y);
    REFUSED(dart_gated_norm_backward, .T = T, .I = W, .eps = 1, .y = x, .z = x, .weight = x, .up_out = x, .grad_y = y, .grad_z = y, .grad_weight = y);
    REFUSED(dart_linear_backward, .T = T, .IN = W, .OUT = W, .x = x, .weight = x, .up_y = x, .grad_x = y, .grad_weight = y);
    REFUSED(dart_conv_backward, .B = 1, .L = T, .C = W, .K = K, .x = x, .weight = x, .up_y = x, .grad_x = y, .grad_weight = y);
    REFUSED(dart_ssd_backward, .B = 1, .L = T, .H = 1, .G = 1, .N = 16, .P = W, .S = 16, .x = x, .dt = x, .b = x, .c = x, .a_log = x, .up_y = x,
            .grad_x = y, .grad_dt = y, .grad_b = y, .grad_c = y, .grad_a_log = y);
    REFUSED(dart_sma_backward, .B = 1, .L = T, .H = 1, .G = 1, .N = 16, .P = W, .S = 16, .eps = 1, .q = x, .e = x, .c = x,
            .memories = {.M = 2, .dh = x}, .r = x, .lse = x, .up_r = x, .grad_q = y, .grad_e = y, .grad_c = y, .grad_dh = y);
    REFUSED(dart_attention_backward, .B = 1, .L = T, .H = 1, .G = 1, .D = W, .q = x, .k = x, .v = x, .o = x, .lse = x, .up_o = x, .grad_q = y,
            .grad_k = y, .grad_v = y);
    REFUSED(dart_cross_entropy, .T = T, .V = 4096, .W = 16, .x = x, .weight = x, .targets = i, .share = x, .loss = y, .correct = i);
    REFUSED(dart_grad_norm, .count = 1, .clip = 1, .gradients = &gradient, .scale = y);
    REFUSED(dart_rope, .B = 1, .L = T, .H = 1, .D = W, .base = 10, .x = x, .y = y);
    REFUSED(dart_gelu, .T = T, .I = W, .a = x, .h = y);
    REFUSED(dart_swiglu, .T = T, .I = W, .a = x, .u = x, .h = y);
    REFUSED(dart_swiglu_backward, .T = T, .I = W, .a = x, .u = x, .up_h = x, .grad_a = y, .grad_u = y);
    rig_close(&r);
}

/* Down to nothing: a status, never more than was allowed. */
static void survives_absurd_limits(void **unused)
{
    (void)unused;
    for (uint64_t limit = 1; limit <= 1024; limit += limit < 260 ? 37 : 250) {
        rig r;
        rig_open_with(&r, &(dart_device_options){.spec = rig_spec, .max_binding_bytes = limit});
        const dart_tensor x = rig_random(&r, DART_F32, 4096, -1, 1), y = rig_tensor(&r, DART_F32, 4096, NULL), i = rig_ints(&r, 64, NULL);
        const dart_memories run = {.M = 4, .dh = x};
        MUST(&r, dart_buffer_write(i.buffer, 0, (const int32_t[64]){0}, 256));
        dart_linear(r.stream, &(dart_linear_args){.T = 20, .IN = 30, .OUT = 40, .x = x, .weight = x, .y = y});
        if (dart_stream_submit(r.stream) == DART_OK) MUST(&r, dart_stream_wait(r.stream, UINT64_MAX));
        rig_begin(&r);
        dart_embed(r.stream, &(dart_embed_args){.T = 20, .V = 40, .W = 30, .ids = i, .weight = x, .y = y});
        if (dart_stream_submit(r.stream) == DART_OK) MUST(&r, dart_stream_wait(r.stream, UINT64_MAX));
        rig_begin(&r);
        dart_sma(r.stream, &(dart_sma_args){.B = 1, .L = 1, .H = 1, .G = 1, .N = 16, .P = 16, .S = 1, .eps = 1, .q = x, .e = x, .c = x,
                                            .memories = &run, .memories_count = 1, .r = y});
        if (dart_stream_submit(r.stream) == DART_OK) MUST(&r, dart_stream_wait(r.stream, UINT64_MAX));
        rig_close(&r);
    }
}

static const struct CMUnitTest tests[] = {
    cmocka_unit_test(slices), cmocka_unit_test(slices_weights_of_few_rows),
    cmocka_unit_test(refuses_what_it_cannot_slice),
    cmocka_unit_test(refuses_to_train_what_it_cannot_bind),
    cmocka_unit_test(survives_absurd_limits),
};
RIG_MAIN("unit_limits")
