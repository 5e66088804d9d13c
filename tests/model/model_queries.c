/* What decoding steps ask of memories: model_queries DEVICE_SPEC DATA_DIR.
 *
 * The judge of q, e and memories is the attention itself: in fp64, weights by the formula of dart_queries and
 * r = sum over m of weight_m (c dh_m) must give the r that the step left in the workspace for the last layer. */
#include "model_cases.h"

enum { B = 3 };

typedef struct kind {
    const char *name;
    dart_model_options storage;
    bool windowed;
    uint32_t memory_block;
    double tolerance;
} kind;

/* 16 bits: a step rounds weights or c and e to 2^-11 each. */
static const kind kinds[] = {
    {.name = "f32", .tolerance = TOLERANCE},
    {.name = "f32, small blocks", .memory_block = 1, .tolerance = TOLERANCE},
    {.name = "f32, windows", .windowed = true, .memory_block = 2, .tolerance = TOLERANCE},
    {.name = "memories f16", .storage = {.memories = DART_STORAGE_F16}, .tolerance = 4e-3},
    {.name = "f16", .windowed = true, .storage = {.activations = DART_STORAGE_F16, .memories = DART_STORAGE_F16}, .tolerance = 4e-3},
};

static dart_model_config config_of(void)
{
    dart_model_config config = small;
    config.N = 16; /* for windows */
    config.layers = 2;
    return config;
}

static dart_state *state_of_kind(dart_model *model, const kind *k, uint32_t batch)
{
    dart_state *state = state_of(model, &(dart_state_options){.B = batch, .keep_queries = true, .memory_block = k->memory_block});
    assert_false(state->fused);
    state->windowed = k->windowed;
    return state;
}

/* n elements from element `first` of a tensor on. */
static float *read_tensor(dart_tensor tensor, uint64_t first, uint64_t n)
{
    const size_t size = dart_dtype_size(tensor.dtype);
    void *raw = malloc(n * size);
    float *values = malloc(n * sizeof *values);
    assert_true(raw != NULL && values != NULL);
    must(dart_buffer_read(tensor.buffer, (tensor.offset + first) * size, raw, n * size), "dart_buffer_read");
    dart_to_f32(tensor.dtype, values, raw, n);
    free(raw);
    return values;
}

/* Divides by the root of the mean square. */
static void normalise(const float *from, double *to, uint32_t n, double eps)
{
    double squares = 0;
    for (uint32_t i = 0; i < n; i++) squares += (double)from[i] * (double)from[i];
    for (uint32_t i = 0; i < n; i++) to[i] = (double)from[i] / sqrt(squares / n + eps);
}

/* Memory m of a sequence, head h: stored rows, then their scales. */
static void read_memory(const dart_queries *queries, uint32_t m, uint32_t h, const dart_model_config *c, float **dh, float **scale)
{
    for (uint32_t i = 0; i < queries->runs_count; i++) {
        const dart_memories *run = &queries->runs[i];
        if (m < run->first || m - run->first >= run->M) continue;
        const uint64_t at = (uint64_t)(m - run->first) * c->H + h;
        *dh = read_tensor(run->dh, at * c->N * c->P, (uint64_t)c->N * c->P);
        *scale = read_tensor(run->scale, at * c->N, c->N);
        return;
    }
    fail_msg("memory %u lies in no run", m);
}

/* r of head h of the last layer, P numbers, from what dart_state_queries gives and the c that the step left. */
static void readout(dart_state *state, uint32_t b, const dart_queries *queries, uint32_t h, float *r)
{
    const dart_model_config *config = &state->model->config;
    const uint32_t N = config->N, P = config->P, g = h / (config->H / config->G);
    double qn[16], en[16], logits[L], sums[L][16], largest = -INFINITY, total = 0;
    float *q = read_tensor(queries->q, g * N, N), *e = read_tensor(queries->e, g * P, P);
    const uint64_t c_at = b * (uint64_t)model_config_conv(config) + (uint64_t)config->H * P + (config->G + g) * (uint64_t)N;
    float *c = read_tensor(model_work_tensor(state, WORK_CONV), c_at, N);
    normalise(q, qn, N, config->sma_eps);
    normalise(e, en, P, config->sma_eps);
    for (uint32_t m = 0; m < queries->M; m++) {
        float *dh = NULL, *scale = NULL;
        read_memory(queries, m, h, config, &dh, &scale);
        logits[m] = 0;
        memset(sums[m], 0, sizeof sums[m]);
        for (uint32_t n = 0; n < N; n++)
            for (uint32_t p = 0; p < P; p++) {
                logits[m] += qn[n] * (double)dh[n * P + p] * en[p] / sqrt(N);
                sums[m][p] += (double)c[n] * (double)scale[n] * (double)dh[n * P + p];
            }
        if (logits[m] > largest) largest = logits[m];
        free(dh);
        free(scale);
    }
    double values[16] = {0};
    for (uint32_t m = 0; m < queries->M; m++) {
        total += exp(logits[m] - largest);
        for (uint32_t p = 0; p < P; p++) values[p] += exp(logits[m] - largest) * sums[m][p];
    }
    for (uint32_t p = 0; p < P; p++) r[p] = (float)(values[p] / total);
    free(q);
    free(e);
    free(c);
}

static void explain_the_readout(void **unused)
{
    (void)unused;
    const dart_model_config config = config_of();
    const uint32_t I = config.H * config.P;
    for (size_t i = 0; i < COUNT_OF(kinds); i++) {
        dart_model *model = model_of(&config, &kinds[i].storage);
        dart_state *state = state_of_kind(model, &kinds[i], B);
        int32_t *ids = ids_of(B, config.V);
        static const uint32_t counts[B] = {21, 3, 8};
        uint32_t attended = 0, at[B];
        must(dart_prefill(state, &(dart_prefill_args){.ids = ids, .ids_row = L, .L = 21, .counts = counts}), "dart_prefill");
        memcpy(at, counts, sizeof at);
        for (uint32_t t = 0; t < 12; t++) {
            int32_t now[B];
            for (uint32_t b = 0; b < B; b++) now[b] = ids[b * L + at[b]++];
            must(dart_decode(state, &(dart_decode_args){.ids = now}), "dart_decode");
            for (uint32_t b = 0; b < B; b++) {
                dart_queries queries;
                must(dart_state_queries(state, b, config.layers - 1, &queries), "dart_state_queries");
                assert_int_equal(queries.M, (at[b] - 1) / config.S);
                if (queries.M == 0) continue;
                float *expected = read_tensor(model_work_tensor(state, WORK_R), (uint64_t)b * I, I);
                float r[64];
                for (uint32_t h = 0; h < config.H; h++) readout(state, b, &queries, h, r + h * config.P);
                assert_close(kinds[i].name, distance(r, expected, I), kinds[i].tolerance);
                free(expected);
                attended += queries.M;
            }
        }
        assert_true(attended > 40);
        free(ids);
        dart_state_destroy(&state);
        dart_model_destroy(&model);
    }
}

/* q and e of the first layer follow from the last K tokens alone, whatever came before, and are not those of the last layer, which remember more. */
static void belong_to_their_layer(void **unused)
{
    (void)unused;
    const dart_model_config config = config_of();
    const uint32_t width = config.G * (config.N + config.P);
    dart_model *model = model_of(&config, NULL);
    float *rows[2][2]; /* layer, state */
    for (uint32_t s = 0; s < 2; s++) {
        dart_state *state = state_of_kind(model, &kinds[0], 2);
        int32_t *ids = ids_of(2, config.V);
        const int32_t last[] = {5, 17, 80, 3};
        float *logits = logits_of(2, config.V);
        feed(state, ids, s, 20, logits); /* the second state has a token less */
        free(logits);
        for (uint32_t t = 0; t < config.K; t++)
            must(dart_decode(state, &(dart_decode_args){.ids = (const int32_t[]){1, last[t]}}), "dart_decode");
        for (uint32_t l = 0; l < 2; l++) {
            dart_queries queries;
            must(dart_state_queries(state, 1, l, &queries), "dart_state_queries");
            assert_true(queries.e.buffer == queries.q.buffer && queries.e.offset == queries.q.offset + (uint64_t)config.G * config.N);
            rows[l][s] = read_tensor(queries.q, 0, width);
        }
        free(ids);
        dart_state_destroy(&state);
    }
    assert_close("first layer", distance(rows[0][1], rows[0][0], width), TOLERANCE);
    assert_true(distance(rows[1][1], rows[1][0], width) > 1e-3);
    assert_true(distance(rows[1][0], rows[0][0], width) > 1e-3);
    for (uint32_t l = 0; l < 2; l++)
        for (uint32_t s = 0; s < 2; s++) free(rows[l][s]);
    dart_model_destroy(&model);
}

static dart_status asked(dart_state *state, uint32_t b, uint32_t layer)
{
    dart_queries queries;
    return dart_state_queries(state, b, layer, &queries);
}

static void are_refused_where_there_are_none(void **unused)
{
    (void)unused;
    const dart_model_config config = config_of();
    dart_model *model = model_of(&config, NULL);
    dart_state *state = state_of_kind(model, &kinds[0], 2), *other = state_of(model, NULL);
    dart_state *without = state_of(model, &(dart_state_options){.no_sma = true, .keep_queries = true});
    const int32_t ids[] = {3, 4};
    const dart_decode_args both = {.ids = ids};
    assert_int_equal(asked(NULL, 0, 0), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_state_queries(state, 0, 0, NULL), DART_INVALID_ARGUMENT);
    assert_int_equal(asked(state, 0, 0), DART_INVALID_ARGUMENT); /* nothing was decoded */
    must(dart_decode(state, &both), "dart_decode");
    must(asked(state, 0, 0), "the first token");
    assert_int_equal(asked(state, 2, 0), DART_INVALID_ARGUMENT);
    assert_int_equal(asked(state, 0, config.layers), DART_INVALID_ARGUMENT);
    must(dart_decode(other, &both), "dart_decode");
    assert_int_equal(asked(other, 0, 0), DART_INVALID_ARGUMENT);
    must(dart_decode(without, &both), "dart_decode");
    assert_int_equal(asked(without, 0, 0), DART_INVALID_ARGUMENT);

    /* What replaces or feeds one sequence leaves the other's. */
    must(dart_prefill(state, &(dart_prefill_args){.ids = ids, .L = 1, .counts = (const uint32_t[]){1, 0}}), "dart_prefill");
    assert_int_equal(asked(state, 0, 0), DART_INVALID_ARGUMENT);
    must(asked(state, 1, 0), "the other sequence");
    must(dart_decode(state, &both), "dart_decode");
    must(asked(state, 0, 0), "after a step");
    must(dart_state_truncate(state, 0, 2, ids), "dart_state_truncate");
    assert_int_equal(asked(state, 0, 0), DART_INVALID_ARGUMENT);
    must(dart_decode(state, &both), "dart_decode");
    must(dart_state_copy(state, 0, state, 1), "dart_state_copy");
    assert_int_equal(asked(state, 0, 0), DART_INVALID_ARGUMENT);
    must(asked(state, 1, 0), "the sequence that was copied");
    must(dart_decode(state, &both), "dart_decode");
    must(dart_state_reset(state, 1), "dart_state_reset");
    assert_int_equal(asked(state, 1, 0), DART_INVALID_ARGUMENT);
    must(asked(state, 0, 0), "beside a reset");
    dart_state_destroy(&state);
    dart_state_destroy(&other);
    dart_state_destroy(&without);
    dart_model_destroy(&model);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(explain_the_readout),
        cmocka_unit_test(belong_to_their_layer),
        cmocka_unit_test(are_refused_where_there_are_none),
    };
    return run_on_device(argc, argv, tests, COUNT_OF(tests));
}
