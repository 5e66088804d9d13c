/* GPT-NeoX: logits against the definition in fp64, for both residuals, both forms of GELU and heads up to 256; pieces and steps; what is
 * refused. model_neox DEVICE_SPEC DATA_DIR. */
#include "model_cases.h"

#include "dartlm/train.h"

static const dart_model_config neox = {.transformer = true, .neox = true, .V = 53, .W = 24, .layers = 2, .H = 4, .P = 6, .G = 4, .F = 36, .R = 2,
                                       .base = 500, .eps = 1e-5f};

/* ---- The definition ---- */

static double *weight(const dart_model *model, uint32_t layer, model_role role, size_t count)
{
    const dart_tensor *tensor = model_weight(model, layer, role);
    float *values = malloc(count * sizeof *values);
    double *exact = malloc(count * sizeof *exact);
    assert_true(values != NULL && exact != NULL && tensor->dtype == DART_F32);
    must(dart_buffer_read(tensor->buffer, tensor->offset * sizeof *values, values, count * sizeof *values), "dart_buffer_read");
    for (size_t i = 0; i < count; i++) exact[i] = (double)values[i];
    free(values);
    return exact;
}

static double *numbers(size_t count)
{
    double *made = calloc(count, sizeof *made);
    assert_non_null(made);
    return made;
}

/* y += x weight^T + bias, for rows of x. */
static void add_product(const dart_model *model, uint32_t layer, const model_role roles[2], size_t rows, size_t in, size_t out,
                        const double *x, double *y)
{
    double *w = weight(model, layer, roles[0], in * out), *bias = weight(model, layer, roles[1], out);
    for (size_t t = 0; t < rows; t++) {
        for (size_t o = 0; o < out; o++) {
            double sum = bias[o];
            for (size_t i = 0; i < in; i++) sum += x[t * in + i] * w[o * in + i];
            y[t * out + o] += sum;
        }
    }
    free(w);
    free(bias);
}

static double *normalised(const dart_model *model, uint32_t layer, const model_role roles[2], const double *x)
{
    const size_t W = model->config.W;
    double *w = weight(model, layer, roles[0], W), *bias = weight(model, layer, roles[1], W), *y = numbers(L * W);
    for (size_t t = 0; t < L; t++) {
        double mean = 0, variance = 0;
        for (size_t i = 0; i < W; i++) mean += x[t * W + i] / (double)W;
        for (size_t i = 0; i < W; i++) variance += (x[t * W + i] - mean) * (x[t * W + i] - mean) / (double)W;
        for (size_t i = 0; i < W; i++) y[t * W + i] = (x[t * W + i] - mean) / sqrt(variance + (double)model->config.eps) * w[i] + bias[i];
    }
    free(w);
    free(bias);
    return y;
}

static void turn(const dart_model_config *c, double *x)
{
    const size_t half = c->R / 2;
    for (size_t t = 0; t < L; t++) {
        for (size_t h = 0; h < c->H; h++) {
            double *head = x + (t * c->H + h) * c->P;
            for (size_t i = 0; i < half; i++) {
                const double angle = (double)t * pow((double)c->base, -2.0 * (double)i / c->R), a = head[i], b = head[i + half];
                head[i] = a * cos(angle) - b * sin(angle);
                head[i + half] = b * cos(angle) + a * sin(angle);
            }
        }
    }
}

/* o of causal attention, L H P. */
static double *attended(const dart_model_config *c, const double *q, const double *k, const double *v)
{
    const size_t P = c->P, I = c->H * P;
    double *o = numbers(L * I);
    for (size_t t = 0; t < L; t++) {
        for (size_t h = 0; h < c->H; h++) {
            double weights[L], sum = 0;
            for (size_t s = 0; s <= t; s++) {
                double score = 0;
                for (size_t i = 0; i < P; i++) score += q[t * I + h * P + i] * k[s * I + h * P + i];
                weights[s] = exp(score / sqrt((double)P));
                sum += weights[s];
            }
            for (size_t s = 0; s <= t; s++)
                for (size_t i = 0; i < P; i++) o[t * I + h * P + i] += weights[s] / sum * v[s * I + h * P + i];
        }
    }
    return o;
}

static void add_attention(const dart_model *model, uint32_t layer, const double *u, double *x)
{
    static const model_role roles[3][2] = {{MODEL_Q_PROJ, MODEL_Q_BIAS}, {MODEL_K_PROJ, MODEL_K_BIAS}, {MODEL_V_PROJ, MODEL_V_BIAS}};
    const dart_model_config *c = &model->config;
    const size_t I = c->H * c->P;
    double *qkv[3];
    for (int i = 0; i < 3; i++) {
        qkv[i] = numbers(L * I);
        add_product(model, layer, roles[i], L, c->W, I, u, qkv[i]);
        if (i < 2) turn(c, qkv[i]);
    }
    double *o = attended(c, qkv[0], qkv[1], qkv[2]);
    add_product(model, layer, (const model_role[]){MODEL_OUT_PROJ, MODEL_OUT_BIAS}, L, I, c->W, o, x);
    for (int i = 0; i < 3; i++) free(qkv[i]);
    free(o);
}

static void add_mlp(const dart_model *model, uint32_t layer, const double *u, double *x)
{
    const dart_model_config *c = &model->config;
    double *a = numbers(L * c->F);
    add_product(model, layer, (const model_role[]){MODEL_UP_PROJ, MODEL_UP_BIAS}, L, c->W, c->F, u, a);
    for (size_t i = 0; i < L * c->F; i++) {
        const double v = a[i], cubic = sqrt(2 / acos(-1.0)) * (v + 0.044715 * v * v * v);
        a[i] = 0.5 * v * (1 + (c->gelu_tanh ? tanh(cubic) : erf(v / sqrt(2.0))));
    }
    add_product(model, layer, (const model_role[]){MODEL_DOWN_PROJ, MODEL_DOWN_BIAS}, L, c->F, c->W, a, x);
    free(a);
}

/* Logits of B sequences of L tokens, for free(). */
static float *defined(const dart_model *model, uint32_t B, const int32_t *ids)
{
    const dart_model_config *c = &model->config;
    const size_t W = c->W;
    double *table = weight(model, 0, MODEL_EMBEDDING, c->V * W), *head = c->tied ? table : weight(model, 0, MODEL_HEAD, c->V * W);
    float *logits = logits_of(B, c->V);
    for (uint32_t b = 0; b < B; b++) {
        double *x = numbers(L * W);
        for (size_t t = 0; t < L; t++) memcpy(x + t * W, table + (size_t)ids[b * L + t] * W, W * sizeof *x);
        for (uint32_t layer = 0; layer < c->layers; layer++) {
            double *u = normalised(model, layer, (const model_role[]){MODEL_NORM, MODEL_NORM_BIAS}, x);
            double *before = normalised(model, layer, (const model_role[]){MODEL_MLP_NORM, MODEL_MLP_NORM_BIAS}, x);
            add_attention(model, layer, u, x);
            double *behind = normalised(model, layer, (const model_role[]){MODEL_MLP_NORM, MODEL_MLP_NORM_BIAS}, x);
            add_mlp(model, layer, c->sequential ? behind : before, x);
            free(u);
            free(before);
            free(behind);
        }
        double *last = normalised(model, 0, (const model_role[]){MODEL_FINAL_NORM, MODEL_FINAL_NORM_BIAS}, x);
        for (size_t t = 0; t < L; t++) {
            for (size_t v = 0; v < c->V; v++) {
                double sum = 0;
                for (size_t i = 0; i < W; i++) sum += last[t * W + i] * head[v * W + i];
                logits[((size_t)b * L + t) * c->V + v] = (float)sum;
            }
        }
        free(last);
        free(x);
    }
    if (!c->tied) free(head);
    free(table);
    return logits;
}

/* ---- Tests ---- */

/* Whole, in pieces and in steps, with rooms that grow. */
static void follows(const char *what, const dart_model_config *config)
{
    enum { B = 2 };
    dart_model *model = model_of(config, NULL);
    const size_t count = (size_t)B * L * config->V;
    int32_t *ids = ids_of(B, config->V);
    float *expected = defined(model, B, ids), *got = prefilled(model, &(dart_state_options){.B = B}, ids), *pieces = logits_of(B, config->V);
    print_message("  %s: off by %.1e\n", what, distance(got, expected, count));
    assert_close("prefill", distance(got, expected, count), TOLERANCE);
    dart_state *state = state_of(model, &(dart_state_options){.B = B, .memory_block = 4, .max_piece = 16});
    must(dart_state_warm(state), "dart_state_warm");
    for (uint32_t cut = 1; cut < L; cut += 13) {
        feed_around_steps(state, ids, cut, pieces);
        assert_close("prefill, decode, prefill", distance(pieces, expected, count), TOLERANCE);
    }
    dart_state_destroy(&state);
    free(pieces);
    free(got);
    free(expected);
    free(ids);
    dart_model_destroy(&model);
}

static void follows_the_definition(void **unused)
{
    (void)unused;
    follows("parallel, erf", &neox);
    dart_model_config c = neox;
    c.sequential = true;
    follows("sequential, erf", &c);
    c.gelu_tanh = true;
    follows("sequential, tanh", &c);
    c = neox;
    c.tied = true;
    c.R = c.P;
    follows("all elements turned, tied", &c);
}

/* Pythia's, but for the number of heads: 64, and 256 as of Pythia 1B. */
static void takes_large_heads(void **unused)
{
    (void)unused;
    dart_model_config c = neox;
    c.H = c.G = 2;
    c.P = 64;
    c.R = 16;
    c.W = 128;
    follows("heads of 64", &c);
    c.P = 256;
    c.R = 64;
    c.W = 512;
    c.gelu_tanh = true;
    c.layers = 1;
    follows("heads of 256", &c);
}

static void refuses(void **unused)
{
    (void)unused;
    dart_model *model = NULL;
    dart_trainer *trainer = NULL;
#define WRONG(change) \
    do { \
        dart_model_config c = neox; \
        change; \
        if (dart_model_random(device, &c, 1, NULL, &model) != DART_INVALID_ARGUMENT) fail_msg("%s is taken", #change); \
    } while (0)
    WRONG(c.R = 0);
    WRONG(c.R = 3);
    WRONG(c.R = 8);
    WRONG(c.G = 2);
    WRONG(c.P = 258);
    WRONG(c.neox = false);
    WRONG(c.transformer = false);
    WRONG(c.sma = true);
#undef WRONG
    assert_int_equal(dart_trainer_create(device, &neox, &(dart_trainer_options){.B = 1, .L = 8}, &trainer), DART_UNSUPPORTED);
    assert_null(trainer);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(follows_the_definition),
        cmocka_unit_test(takes_large_heads),
        cmocka_unit_test(refuses),
    };
    return run_on_device(argc, argv, tests, COUNT_OF(tests));
}
