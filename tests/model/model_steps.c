/* How work is cut for the device: steps in few launches, several steps a submission, prefill in slices: model_steps
 * DEVICE_SPEC DATA_DIR. */
#include "runtime/op.h" /* before model_cases.h, whose L its functions have as a parameter */

#include "model_cases.h"

#include "runtime/stream.h"

/* ---- A step in few launches ---- */

/* Devices that gain nothing from it are made to, and the others to do without. */
static void steps_alike(const dart_model_config *config, const dart_model_options *options, uint32_t B, bool no_sma, double tolerance)
{
    dart_model *model = model_of(config, options);
    const size_t count = (size_t)B * L * config->V;
    int32_t *ids = ids_of(B, config->V);
    float *whole = prefilled(model, &(dart_state_options){.B = B, .no_sma = no_sma}, ids), *got = logits_of(B, config->V);
    dart_state *state = state_of(model, &(dart_state_options){.B = B, .memory_block = 2, .no_sma = no_sma});
    for (int fused = 0; fused <= 1; fused++) {
        char what[64];
        snprintf(what, sizeof what, "B %u, fused %d", B, fused);
        state->fused = fused != 0;
        must(dart_state_reset(state, -1), "dart_state_reset");
        for (uint32_t t = 0; t < L; t++) step(state, ids, t, got);
        assert_close(what, distance(got, whole, count), tolerance);
        for (uint32_t cut = 5; cut < L; cut += 7) {
            feed_around_steps(state, ids, cut, got);
            assert_close(what, distance(got, whole, count), tolerance);
        }
    }
    dart_state_destroy(&state);
    free(got);
    free(whole);
    free(ids);
    dart_model_destroy(&model);
}

static void steps_in_few_launches(void **unused)
{
    (void)unused;
    dart_model_config mamba2 = small, plain = small;
    mamba2.sma = false;
    plain.no_conv_bias = true;
    plain.G = 1;
    plain.K = 2;
    steps_alike(&small, NULL, 1, false, TOLERANCE);
    steps_alike(&small, NULL, 6, false, TOLERANCE); /* rows of more than one tile */
    steps_alike(&small, NULL, 2, true, TOLERANCE);
    steps_alike(&mamba2, NULL, 2, false, TOLERANCE);
    steps_alike(&plain, NULL, 2, false, TOLERANCE);
    /* Stored in 16 bits, activations and memories round at different places: a few units of 2^-9. */
    steps_alike(&small, &(dart_model_options){.weights = DART_STORAGE_F16, .activations = DART_STORAGE_F16}, 2, false, 8 * 0x1p-9);
}

/* Models of the sizes that the launch is made for, with chunks that close. Devices that choose it take all layers in one launch. */
static void steps_in_one_launch(void **unused)
{
    (void)unused;
    const dart_model_config wide = {.sma = true, .V = 97, .W = 256, .layers = 3, .H = 8, .P = 64, .G = 1, .N = 128, .K = 4, .S = 8,
                                    .eps = 1e-5f, .sma_eps = 1e-5f};
    dart_model_config mamba2 = wide, plain = wide;
    mamba2.sma = false;
    plain.no_conv_bias = true;
    plain.W = 256;
    plain.H = 4;
    plain.S = 3;
    const dart_model_options options[] = {{.weights = DART_STORAGE_BF16, .activations = DART_STORAGE_F32, .memories = DART_STORAGE_BF16},
                                          {.weights = DART_STORAGE_F16, .activations = DART_STORAGE_F16, .memories = DART_STORAGE_F16}};
    for (size_t i = 0; i < COUNT_OF(options); i++) {
        steps_alike(&wide, &options[i], 1, false, 8 * 0x1p-9);
        steps_alike(&wide, &options[i], 1, true, 8 * 0x1p-9);
        steps_alike(&mamba2, &options[i], 1, false, 8 * 0x1p-9);
        steps_alike(&plain, &options[i], 1, false, 8 * 0x1p-9);
    }
    dart_device_info info;
    dart_device_describe(device, &info);
    const uint32_t needs = DART_CAP_RESIDENT | (info.backend == DART_BACKEND_VULKAN ? DART_CAP_ADDRESSES : DART_CAP_SM90);
    dart_model *model = model_of(&wide, &options[0]);
    dart_state *state = state_of(model, &(dart_state_options){.B = 1});
    int32_t *ids = ids_of(1, wide.V);
    float *got = logits_of(1, wide.V);
    state->fused = true;
    step(state, ids, 0, got);
    const bool one = (info.backend == DART_BACKEND_VULKAN || info.backend == DART_BACKEND_CUDA) && (info.capabilities & needs) == needs;
    if (state->decode->waits != one) fail_msg("a step has %u launches", dart_stream_launches(state->decode));
    if (!one) print_message("NOT RUN: the device takes a step in several launches\n");
    free(got);
    free(ids);
    dart_state_destroy(&state);
    dart_model_destroy(&model);
}

/* ---- Steps through windows ---- */

/* Sequences at places of their own, one of which starts again half-way; with prefills between steps. */
static void windows_alike(const dart_model_config *config, const dart_model_options *options, uint32_t S, bool no_sma, double tolerance)
{
    enum { B = 6 };
    dart_model *model = model_of(config, options);
    const uint32_t V = config->V;
    int32_t *ids = ids_of(B, V);
    float *whole = prefilled(model, &(dart_state_options){.B = B, .S = S, .no_sma = no_sma}, ids), *got = logits_of(B, V);
    dart_state *state = state_of(model, &(dart_state_options){.B = B, .S = S, .memory_block = 2, .no_sma = no_sma});
    state->fused = false;
    state->windowed = true; /* also where nothing is gained */
    must(dart_state_warm(state), "dart_state_warm");
    for (uint32_t cut = 0; cut < 12; cut += 5) {
        uint32_t at[B], counts[B];
        int32_t now[B];
        must(dart_state_reset(state, -1), "dart_state_reset");
        for (uint32_t b = 0; b < B; b++) at[b] = counts[b] = cut > 0 ? (cut + 3 * b) % 11 + 1 : 0;
        if (cut > 0) must(dart_prefill(state, &(dart_prefill_args){.ids = ids, .ids_row = L, .L = 11, .counts = counts}), "dart_prefill");
        for (uint32_t t = 0; t < 58; t++) {
            const bool piece = t == 20 || t == 21 || t == 40;
            if (t == 33) { /* not on a border, and long before the others are done */
                must(dart_state_reset(state, 2), "dart_state_reset");
                at[2] = 0;
            }
            for (uint32_t b = 0; b < B; b++) {
                counts[b] = piece && (b + t) % 3 == 0 ? 0 : 1;
                if (at[b] == L) {
                    must(dart_state_reset(state, (int32_t)b), "dart_state_reset");
                    at[b] = 0;
                }
                now[b] = ids[b * L + at[b]];
            }
            if (piece)
                must(dart_prefill(state, &(dart_prefill_args){.ids = now, .L = 1, .counts = counts, .want = DART_LOGITS_LAST, .logits = got}),
                     "dart_prefill");
            else must(dart_decode(state, &(dart_decode_args){.ids = now, .logits = got}), "dart_decode");
            for (uint32_t b = 0; b < B; b++) {
                char what[64];
                snprintf(what, sizeof what, "S %u, cut %u, step %u, sequence %u at %u", S, cut, t, b, at[b]);
                if (counts[b] > 0) assert_close(what, distance(&got[b * V], &whole[((size_t)b * L + at[b]) * V], V), tolerance);
                at[b] += counts[b];
            }
        }
    }
    dart_state_destroy(&state);
    free(got);
    free(whole);
    free(ids);
    dart_model_destroy(&model);
}

/* A sequence whose state has overflowed is whole again when it was reset, without a prefill. */
static void windows_recover(const dart_model_config *config, dart_storage storage)
{
    enum { B = 6 };
    dart_model *model = model_of(config, &(dart_model_options){.weights = storage, .activations = storage});
    const uint32_t V = config->V;
    int32_t *ids = ids_of(B, V), now[B];
    float *got = logits_of(B, V), *fresh = logits_of(B, V);
    dart_state *state = state_of(model, &(dart_state_options){.B = B});
    state->fused = false;
    state->windowed = true;
    for (uint32_t b = 0; b < B; b++) now[b] = ids[b * L];
    const dart_decode_args step = {.ids = now, .logits = got};
    must(dart_decode(state, &(dart_decode_args){.ids = now, .logits = fresh}), "dart_decode");
    must(dart_state_reset(state, -1), "dart_state_reset");
    const float infinity = INFINITY;
    const uint64_t at = state->h_at + 2 * (uint64_t)config->H * config->N * config->P * sizeof infinity;
    must(dart_buffer_write(state->layers[0], at, &infinity, sizeof infinity), "dart_buffer_write");
    for (int t = 0; t < 3; t++) must(dart_decode(state, &step), "dart_decode");
    assert_false(isfinite(got[2 * V]) != 0);
    must(dart_state_reset(state, 2), "dart_state_reset");
    must(dart_decode(state, &step), "dart_decode");
    assert_memory_equal(&got[2 * V], &fresh[2 * V], V * sizeof *got);
    dart_state_destroy(&state);
    free(fresh);
    free(got);
    free(ids);
    dart_model_destroy(&model);
}

static void steps_through_windows(void **unused)
{
    (void)unused;
    dart_model_config even = small, mamba2, plain, independent;
    even.N = 16;
    mamba2 = plain = independent = even;
    mamba2.sma = false;
    independent.independent_c = true;
    plain.no_conv_bias = true;
    plain.K = 2;
    plain.P = 24;
    plain.dt_max = 0.5f;
    windows_alike(&even, NULL, 0, false, TOLERANCE);
    windows_alike(&even, NULL, 37, false, TOLERANCE); /* a full window before the chunk closes */
    windows_alike(&plain, NULL, 5, false, TOLERANCE);
    windows_alike(&even, NULL, 0, true, TOLERANCE);
    windows_alike(&mamba2, NULL, 0, false, TOLERANCE);
    windows_alike(&independent, NULL, 0, false, TOLERANCE);
    windows_alike(&even, &(dart_model_options){.weights = DART_STORAGE_F16, .activations = DART_STORAGE_F16}, 0, false, 8 * 0x1p-9);
    /* Where matrices take bf16, products normalise what they read. */
    windows_alike(&even, &(dart_model_options){.weights = DART_STORAGE_BF16, .activations = DART_STORAGE_BF16}, 0, false, 8 * 0x1p-6);
    windows_recover(&even, DART_STORAGE_F16);
    windows_recover(&even, DART_STORAGE_F32);
}

/* Models of the sizes that the launch for windows is made for. Devices that choose it take all layers in one launch. */
static void windows_in_one_launch(void **unused)
{
    (void)unused;
    enum { B = 6 };
    const dart_model_config wide = {.sma = true, .V = 97, .W = 256, .layers = 3, .H = 8, .P = 64, .G = 1, .N = 128, .K = 4, .S = 8,
                                    .eps = 1e-5f, .sma_eps = 1e-5f};
    dart_model_config mamba2 = wide;
    mamba2.sma = false;
    mamba2.no_conv_bias = true;
    const dart_model_options options = {.weights = DART_STORAGE_BF16, .activations = DART_STORAGE_BF16, .memories = DART_STORAGE_BF16};
    windows_alike(&wide, &options, 0, false, 8 * 0x1p-6);
    windows_alike(&wide, &options, 37, false, 8 * 0x1p-6); /* a full window before the chunk closes */
    windows_alike(&wide, &options, 0, true, 8 * 0x1p-6);
    windows_alike(&mamba2, &options, 0, false, 8 * 0x1p-6);
    dart_model *model = model_of(&wide, &options);
    dart_state *state = state_of(model, &(dart_state_options){.B = B});
    int32_t *ids = ids_of(B, wide.V), now[B];
    state->fused = false;
    state->windowed = true;
    for (uint32_t b = 0; b < B; b++) now[b] = ids[b * L];
    must(dart_decode(state, &(dart_decode_args){.ids = now}), "dart_decode");
    const bool one = op_row_on(device, KERNEL_mixer_windows, 1, FITS_MIXER_WINDOWS) != NULL ||
                     op_row_on(device, KERNEL_mixer_window_layers, 1, FITS_MIXER_WINDOWS) != NULL;
    if (state->decode->waits != one) fail_msg("a step has %u launches", dart_stream_launches(state->decode));
    if (!one) print_message("NOT RUN: the device takes a step in several launches\n");
    free(ids);
    dart_state_destroy(&state);
    dart_model_destroy(&model);
}

/* Sequences that take a token and sequences that do not, a token at a time. */
static void leaves_others_alone(void **unused)
{
    (void)unused;
    enum { B = 3 };
    dart_model *model = model_of(&small, NULL);
    const uint32_t V = small.V;
    int32_t *ids = ids_of(B, V);
    float last[B * 97], alone[97];
    dart_state *state = state_of(model, &(dart_state_options){.B = B});
    state->fused = true;
    uint32_t at[B] = {0};
    for (uint32_t t = 0; t < 60; t++) {
        uint32_t counts[B];
        int32_t now[B];
        for (uint32_t b = 0; b < B; b++) {
            counts[b] = (t + b) % (b + 1) == 0 && at[b] < L;
            now[b] = counts[b] > 0 ? ids[b * L + at[b]] : -1;
            at[b] += counts[b];
        }
        must(dart_prefill(state, &(dart_prefill_args){.ids = now, .L = 1, .counts = counts, .want = DART_LOGITS_LAST, .logits = last}),
             "dart_prefill");
    }
    for (uint32_t b = 0; b < B; b++) {
        dart_state *single = state_of(model, NULL);
        must(dart_prefill(single, &(dart_prefill_args){.ids = ids + b * L, .L = at[b], .want = DART_LOGITS_LAST, .logits = alone}),
             "dart_prefill");
        assert_close("alone", distance(&last[b * V], alone, V), TOLERANCE);
        dart_state_destroy(&single);
    }
    dart_state_destroy(&state);
    free(ids);
    dart_model_destroy(&model);
}

/* ---- Several steps a submission ---- */

typedef struct listener {
    uint32_t B, heard, stop_at;
    int32_t ids[300][4];
} listener;

static bool hear(void *user, uint32_t at, const int32_t *ids)
{
    listener *l = user;
    assert_int_equal(at, l->heard);
    memcpy(l->ids[l->heard++], ids, l->B * sizeof *ids);
    return at != l->stop_at;
}

static void prompt(dart_state *state, const int32_t *ids, const dart_sampling *sampling)
{
    must(dart_state_reset(state, -1), "dart_state_reset");
    must(dart_prefill(state, &(dart_prefill_args){.ids = ids, .ids_row = L, .L = 13, .sampling = sampling}), "dart_prefill");
}

static void generates_together(void **unused)
{
    (void)unused;
    enum { B = 2, N = 150 };
    static const uint32_t together[] = {1, 2, 7, 64, 1000};
    static const dart_sampling sampling = {.temperature = 1.5f, .top_k = 20, .seed = 5};
    dart_model *model = model_of(&small, NULL);
    int32_t *ids = ids_of(B, small.V), one[N][B], got[N][B], next[B];
    for (int unlimited = 0; unlimited <= 1; unlimited++) {
        dart_state *state = state_of(model, &(dart_state_options){.B = B, .memory_block = 3, .slice_ms = unlimited ? UINT32_MAX : 0});
        prompt(state, ids, &sampling);
        for (uint32_t i = 0; i < N; i++) must(dart_decode(state, &(dart_decode_args){.sampling = &sampling, .next_ids = one[i]}), "dart_decode");
        for (size_t k = 0; k < COUNT_OF(together); k++) {
            listener l = {.B = B, .stop_at = UINT32_MAX};
            prompt(state, ids, &sampling);
            must(dart_generate(state, &(dart_generate_args){.n = N, .together = together[k], .sampling = &sampling, .step = hear, .user = &l,
                                                            .ids = got[0]}), "dart_generate");
            assert_int_equal(l.heard, N);
            assert_memory_equal(got, one, sizeof one);
            for (uint32_t i = 0; i < N; i++) assert_memory_equal(l.ids[i], one[i], sizeof one[i]);
            assert_int_equal(dart_state_position(state, 1), 13 + N);
        }
        /* What was taken behind the end is there. */
        listener l = {.B = B, .stop_at = 9};
        prompt(state, ids, &sampling);
        memset(got, 0xff, sizeof got);
        must(dart_generate(state, &(dart_generate_args){.n = N, .together = 8, .sampling = &sampling, .step = hear, .user = &l, .ids = got[0]}),
             "dart_generate");
        assert_int_equal(l.heard, 10);
        const uint64_t taken = dart_state_position(state, 0) - 13;
        assert_true(taken >= 10 && taken < 10 + 8);
        if (unlimited) assert_true(taken > 10);
        assert_memory_equal(got, one, taken * sizeof one[0]);
        must(dart_decode(state, &(dart_decode_args){.sampling = &sampling, .next_ids = next}), "dart_decode");
        assert_memory_equal(next, one[taken], sizeof next);
        dart_state_destroy(&state);
    }
    free(ids);
    dart_model_destroy(&model);
}

/* One submission serves as many steps as asked for, but for those that need another recording. */
static void submits_together(void **unused)
{
    (void)unused;
    dart_model *model = model_of(&small, NULL);
    int32_t *ids = ids_of(1, small.V);
    static const dart_sampling greedy = {0};
    dart_state *state = state_of(model, &(dart_state_options){.memory_block = 100, .slice_ms = UINT32_MAX});
    prompt(state, ids, &greedy);
    must(dart_generate(state, &(dart_generate_args){.n = 20, .sampling = &greedy}), "dart_generate");
    assert_int_equal(state->last_steps, 20); /* position 13 has seen memories already */
    must(dart_generate(state, &(dart_generate_args){.n = 100, .sampling = &greedy}), "dart_generate");
    assert_int_equal(state->last_steps, 100 - MODEL_LOG);
    dart_state_destroy(&state);
    state = state_of(model, NULL);
    prompt(state, ids, &greedy);
    must(dart_generate(state, &(dart_generate_args){.n = 2, .sampling = &greedy}), "dart_generate");
    state->step_ns = 60e6; /* as if a step took that long: one fits in 100 ms */
    must(dart_generate(state, &(dart_generate_args){.n = 1, .sampling = &greedy}), "dart_generate");
    assert_int_equal(state->last_steps, 1);
    dart_state_destroy(&state);
    free(ids);
    dart_model_destroy(&model);
}

/* Steps of one submission end where the blocks of memories end, whose next chunk has no place yet. Of a state that never had more
 * blocks: in others the place holds the memory of an earlier run. */
static void stops_where_the_blocks_end(void **unused)
{
    (void)unused;
    enum { N = 60 };
    static const dart_sampling greedy = {0};
    dart_model *model = model_of(&small, NULL);
    int32_t *ids = ids_of(1, small.V), one[N], got[N];
    float expected[97], logits[97];
    const dart_state_options options = {.memory_block = 3, .slice_ms = UINT32_MAX};
    dart_state *state = state_of(model, &options);
    prompt(state, ids, &greedy);
    for (uint32_t i = 0; i < N; i++)
        must(dart_decode(state, &(dart_decode_args){.sampling = &greedy, .next_ids = &one[i], .logits = expected}), "dart_decode");
    dart_state_destroy(&state);
    state = state_of(model, &options);
    prompt(state, ids, &greedy);
    must(dart_generate(state, &(dart_generate_args){.n = N - 1, .sampling = &greedy, .ids = got}), "dart_generate");
    must(dart_decode(state, &(dart_decode_args){.sampling = &greedy, .next_ids = &got[N - 1], .logits = logits}), "dart_decode");
    assert_memory_equal(got, one, sizeof one);
    assert_memory_equal(logits, expected, sizeof logits);
    dart_state_destroy(&state);
    free(ids);
    dart_model_destroy(&model);
}

/* ---- Prefill in slices ---- */

static void prefills_in_slices(void **unused)
{
    (void)unused;
    enum { B = 2 };
    dart_model *model = model_of(&small, NULL);
    const size_t count = (size_t)B * L * small.V;
    int32_t *ids = ids_of(B, small.V);
    float *got = logits_of(B, small.V);
    float *whole = prefilled(model, &(dart_state_options){.B = B, .max_piece = 30, .slice_ms = UINT32_MAX}, ids);
    dart_state *state = state_of(model, &(dart_state_options){.B = B, .max_piece = 30, .slice_ms = 1});
    patience p = {.most = UINT32_MAX};
    dart_prefill_args args = {.ids = ids, .L = L, .want = DART_LOGITS_ALL, .logits = got, .go_on = go_on, .user = &p};
    /* A launch a submission, or a few of its tiles, whatever the clock says: bit for bit the same. */
    state->slice_ns = 1;
    must(dart_prefill(state, &args), "dart_prefill");
    assert_memory_equal(got, whole, count * sizeof *got);
    const uint32_t pieces = 3; /* 15 tokens of both sequences at a time, less what would cut a chunk of 8 */
    const uint32_t asked = p.asked; /* between submissions */
    assert_true(asked >= pieces * small.layers - 1);
    /* Without a limit: in as many submissions as keep the device busy. */
    p.asked = 0;
    state->slice_ns = UINT64_MAX;
    must(dart_state_reset(state, -1), "dart_state_reset");
    must(dart_prefill(state, &args), "dart_prefill");
    assert_memory_equal(got, whole, count * sizeof *got);
    assert_true(p.asked <= asked);
    /* Ended after any number of submissions: behind a whole piece, from where the sequences go on (more in model_values.c). */
    state->slice_ns = 1;
    quiet = true;
    for (uint32_t most = 0; most < asked; most += 1 + asked / 16) {
        p = (patience){.most = most};
        must(dart_state_reset(state, -1), "dart_state_reset");
        assert_int_equal(dart_prefill(state, &args), DART_CANCELLED);
        assert_int_equal(p.asked, most + 1);
        const uint64_t at = dart_state_position(state, 0);
        assert_true(at < L && dart_state_position(state, 1) == at);
        feed(state, ids, (uint32_t)at, L, got);
        assert_close("gone on", distance(got + (L - 1) * small.V, whole + (L - 1) * small.V, small.V), TOLERANCE);
    }
    quiet = false;
    p.most = UINT32_MAX;
    must(dart_state_reset(state, -1), "dart_state_reset");
    must(dart_prefill(state, &args), "dart_prefill");
    assert_memory_equal(got, whole, count * sizeof *got);
    dart_state_destroy(&state);
    free(got);
    free(whole);
    free(ids);
    dart_model_destroy(&model);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_in_few_launches),
        cmocka_unit_test(steps_in_one_launch),
        cmocka_unit_test(steps_through_windows),
        cmocka_unit_test(windows_in_one_launch),
        cmocka_unit_test(leaves_others_alone),
        cmocka_unit_test(generates_together),
        cmocka_unit_test(submits_together),
        cmocka_unit_test(stops_where_the_blocks_end),
        cmocka_unit_test(prefills_in_slices),
    };
    return run_on_device(argc, argv, tests, COUNT_OF(tests));
}
