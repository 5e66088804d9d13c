/* No submission is longer than slice_ms says: model_polite. On the null backend, with the clock of a slow GPU: 100 GFLOP/s in products,
 * attention and the scan, 100 GB/s for whatever the launches of a submission read or write, in that order. */
#include "model_cases.h"

#include "runtime/device.h"
#include "train/trainer.h"

#include "dartlm/train.h"

enum { TOKENS = 2000, SLICE_MS = 100 };
#define OPERATION_NS (1 / 100.0)
#define BYTE_NS (1 / 100.0)

static struct slow_device {
    const backend *real;
    backend fake;
    struct { void *stream; double recorded, took; uint32_t launches; } streams[1 << 14];
    uint32_t last; /* place that was asked for */
    double speed; /* times as fast */
    double longest, all; /* ns of submissions */
    double longest_launch;
    double queued, most_queued; /* ns that the device still has to do */
    uint32_t submissions;
} slow;

static uint32_t place_of(void *stream)
{
    if (slow.streams[slow.last].stream == stream) return slow.last;
    for (uint32_t i = 0; i < COUNT_OF(slow.streams); i++)
        if (slow.streams[i].stream == stream) return slow.last = i;
    for (uint32_t i = 0; i < COUNT_OF(slow.streams); i++)
        if (slow.streams[i].stream == NULL) {
            slow.streams[i].stream = stream;
            return slow.last = i;
        }
    fail_msg("too many streams");
    return 0;
}

static dart_status begin(void *handle, void *stream)
{
    slow.streams[place_of(stream)].recorded = 0;
    slow.streams[place_of(stream)].launches = 0;
    return slow.real->stream_begin(handle, stream);
}

static void destroy(void *handle, void *stream)
{
    for (uint32_t i = 0; i < COUNT_OF(slow.streams); i++)
        if (slow.streams[i].stream == stream) slow.streams[i].stream = NULL;
    slow.real->stream_destroy(handle, stream);
}

/* Multiplications and additions of products, attention, state-memory attention and the scan; 0 for what only reads and writes. The scan's scores
 * are counted for every head. */
static double operations_of(kernel_id id, const void *args)
{
#define OPERATIONS_OF(kernel, type, count)              \
    case KERNEL_##kernel: {                             \
        struct type a;                                  \
        memcpy(&a, args, sizeof a);                     \
        return count;                                   \
    }
#define MATRICES ((double)a.B * a.H * a.N * a.P)
#define TOKENS_OF ((a.T > 0 ? (double)a.T : (double)a.B * a.L) * a.H)
    const double window = dart_window_tokens();
    switch (id) {
        OPERATIONS_OF(linear, LinearArgs, 2.0 * a.rows * a.inputs * a.outputs)
        OPERATIONS_OF(linear_backward_x, LinearBackwardXArgs, 2.0 * a.rows * a.inputs * a.outputs)
        OPERATIONS_OF(linear_backward_weight, LinearBackwardWeightArgs, 2.0 * a.rows * a.inputs * a.outputs)
        OPERATIONS_OF(attention, AttentionArgs, 4.0 * a.B * a.L * a.H * a.D * a.C)
        OPERATIONS_OF(sma, SmaArgs, 4.0 * a.L * a.count * MATRICES)
        OPERATIONS_OF(sma_step, SmaStepArgs, 4.0 * a.count * MATRICES)
        OPERATIONS_OF(ssd_memory, SsdMemoryArgs, 2.0 * TOKENS_OF * a.N * a.P)
        OPERATIONS_OF(ssd_decay_memory, SsdMemoryArgs, 2.0 * TOKENS_OF * a.N * a.P)
        OPERATIONS_OF(ssd_state, SsdStateArgs, 2.0 * a.M * MATRICES)
        OPERATIONS_OF(ssd_output, SsdOutputArgs, TOKENS_OF * (2.0 * a.N * a.P + (double)a.C * (a.N + a.P)))
        OPERATIONS_OF(ssd_piece, SsdPieceArgs, (double)a.B * a.L * a.H * (4.0 * a.N * a.P + (double)(a.L < a.S ? a.L : a.S) * (a.N + a.P)))
        OPERATIONS_OF(ssd_step, SsdStepArgs, 6.0 * MATRICES)
        OPERATIONS_OF(mixer_project, MixerProjectArgs, 2.0 * a.rows * a.inputs * a.outputs)
        OPERATIONS_OF(mixer_output, MixerOutputArgs, 2.0 * a.rows * a.inputs * a.outputs)
        OPERATIONS_OF(mixer_attend, MixerAttendArgs, 4.0 * a.count * MATRICES)
        OPERATIONS_OF(window_output, WindowOutputArgs, 2.0 * MATRICES + 2.0 * window * a.B * a.H * (a.N + a.P))
        OPERATIONS_OF(window_fold, WindowFoldArgs, 2.0 * (window + 2) * MATRICES)
    default: return 0;
    }
#undef OPERATIONS_OF
#undef MATRICES
#undef TOKENS_OF
}

static dart_status launch(void *handle, void *stream, const backend_launch *l)
{
    double bytes = 0;
    for (uint32_t i = 0; i < kernel_table[l->row->id].bindings_count; i++) bytes += l->bindings[i].memory != NULL ? (double)l->bindings[i].bytes : 0;
    if (l->row->id == KERNEL_embed) bytes -= (double)l->bindings[BINDING_embed_weight].bytes; /* of which it reads a few rows */
    const double operations = operations_of(l->row->id, l->args);
    const double ns = (operations * OPERATION_NS + bytes * BYTE_NS) / slow.speed * (l->end - l->first) / l->tiles;
    slow.streams[place_of(stream)].recorded += ns;
    slow.streams[place_of(stream)].launches++;
    slow.longest_launch = fmax(slow.longest_launch, ns);
    return slow.real->stream_launch(handle, stream, l);
}

static dart_status submit(void *handle, void *stream, uint32_t times, const backend_order *order)
{
    const uint32_t at = place_of(stream);
    slow.streams[at].took = slow.streams[at].recorded * times;
    slow.longest = fmax(slow.longest, slow.streams[at].took);
    slow.all += slow.streams[at].took;
    slow.submissions++;
    slow.queued += slow.streams[at].took;
    slow.most_queued = fmax(slow.most_queued, slow.queued);
    return slow.real->stream_submit(handle, stream, times, order);
}

static dart_status wait(void *handle, void *stream, uint64_t timeout_ns)
{
    slow.queued -= slow.streams[place_of(stream)].took;
    return slow.real->stream_wait(handle, stream, timeout_ns);
}

static dart_status elapsed(void *handle, void *stream, uint64_t *ns)
{
    (void)handle;
    *ns = (uint64_t)slow.streams[place_of(stream)].took;
    return DART_OK;
}

static void slow_down(void)
{
    slow = (struct slow_device){.real = device->backend, .fake = *device->backend, .speed = 1};
    slow.fake.stream_begin = begin;
    slow.fake.stream_launch = launch;
    slow.fake.stream_submit = submit;
    slow.fake.stream_elapsed = elapsed;
    slow.fake.stream_destroy = destroy;
    slow.fake.stream_wait = wait;
    device->backend = &slow.fake;
}

/* As if the sequence had `position` tokens: the null backend reads none of them. */
static void go_to(dart_state *state, uint64_t position)
{
    must(model_memories_reserve(state, state->sma ? (position + TOKENS) / state->S : 0, "go_to"), "model_memories_reserve");
    must(model_cache_reserve(state, position + TOKENS, "go_to"), "model_cache_reserve");
    state->positions[0] = (int32_t)position;
}

/* The first prefill of a state, then others, each behind a context that the state has not measured. */
static void check_model(const char *name, const dart_model_config *config, const uint64_t *positions, size_t count, dart_storage storage)
{
    static int32_t ids[TOKENS];
    memset(slow.streams, 0, sizeof slow.streams); /* those of an earlier state are gone */
    dart_model *model = model_of(config, &(dart_model_options){.weights = storage});
    dart_state *state = state_of(model, NULL);
    for (size_t i = 0; i < count; i++) {
        go_to(state, positions[i]);
        slow.longest = slow.all = 0;
        slow.submissions = 0;
        must(dart_prefill(state, &(dart_prefill_args){.ids = ids, .L = TOKENS, .want = DART_LOGITS_LAST, .sampling = &(dart_sampling){0},
                                                      .logits = (float[64]){0}}), "dart_prefill");
        const double most = SLICE_MS * 1e6;
        print_message("  %s after %llu tokens: %u submissions, %.1f ms on average, %.1f the longest\n", name, (unsigned long long)positions[i],
                      slow.submissions, slow.all / slow.submissions / 1e6, slow.longest / 1e6);
        assert_true(slow.longest <= most);
        assert_true(slow.all / slow.submissions > most / 20); /* and not for nothing */
    }
    assert_true((double)dart_state_longest(state) <= SLICE_MS * 1e6);
    dart_state_destroy(&state);
    dart_model_destroy(&model);
}

/* The layers of a preset: two of them will do, and a small vocabulary. */
static dart_model_config layers_of(const char *preset)
{
    dart_model_config config;
    must(dart_config_preset(preset, &config), "dart_config_preset");
    config.layers = 2;
    config.V = 64;
    return config;
}

static void submissions_are_short(void **unused)
{
    (void)unused;
    static const uint64_t far[] = {0, 8192, 131072, 1 << 20}, near[] = {0, 8192, 65536}, bound[] = {0, 8192, 30000};
    slow_down();
    dart_model_config config = layers_of("dart-130m");
    check_model("dart-130m", &config, far, COUNT_OF(far), DART_STORAGE_BF16);
    config = layers_of("dart-780m");
    check_model("dart-780m", &config, near, COUNT_OF(near), DART_STORAGE_BF16);
    config = layers_of("mamba2-780m");
    check_model("mamba2-780m", &config, far, COUNT_OF(far), DART_STORAGE_BF16);
    config = (dart_model_config){.transformer = true, .V = 64, .W = 1536, .layers = 2, .H = 24, .P = 64, .G = 24, .F = 4096, .base = 10000,
                                 .eps = 1e-5f};
    check_model("a transformer", &config, bound, COUNT_OF(bound), DART_STORAGE_BF16); /* as far as its cache is bound at once */
    device->backend = slow.real;
}

/* Steps of a batch whose layers take long, and copies of long sequences: cut by assumptions, and then by the times of what ran. */
static void steps_are_short(void **unused)
{
    (void)unused;
    enum { MOST_BATCH = 80, AGAIN = 4 };
    static const struct { const char *preset; uint32_t B, layers; uint64_t position; bool whole; double least; } cases[] = {
        {"dart-130m", 1, 24, 0, .whole = true},     {"dart-130m", 1, 24, 8192, .whole = true},
        {"dart-130m", 2, 2, 1 << 19, .least = 20},  {"dart-130m", 2, 2, 1 << 20, .least = 1}, /* a layer is longer than a submission: ranges */
        {"mamba2-780m", MOST_BATCH, 4, 0, .least = 20}, {"dart-780m", 64, 4, 600, .least = 20},
    };
    static int32_t ids[MOST_BATCH];
    slow_down();
    for (size_t k = 0; k < COUNT_OF(cases); k++) {
        memset(slow.streams, 0, sizeof slow.streams);
        dart_model_config config = layers_of(cases[k].preset);
        config.layers = cases[k].layers;
        dart_model *model = model_of(&config, &(dart_model_options){.weights = DART_STORAGE_BF16});
        slow.longest = 0;
        dart_state *state = state_of(model, &(dart_state_options){.B = cases[k].B});
        assert_true(slow.longest <= SLICE_MS * 1e6); /* what clears it */
        go_to(state, cases[k].position);
        for (uint32_t b = 1; b < cases[k].B; b++) state->positions[b] = state->positions[0];
        for (uint32_t i = 0; i < AGAIN; i++) {
            slow.longest = slow.all = slow.longest_launch = slow.queued = slow.most_queued = 0;
            slow.submissions = 0;
            must(dart_decode(state, &(dart_decode_args){.ids = ids}), "dart_decode");
            print_message("  %s, %u sequences of %llu tokens, step %u: %u submissions, %.1f ms on average, %.1f the longest\n", cases[k].preset,
                          cases[k].B, (unsigned long long)cases[k].position, i, slow.submissions, slow.all / slow.submissions / 1e6,
                          slow.longest / 1e6);
            assert_true(slow.longest <= SLICE_MS * 1e6);
            assert_true(slow.most_queued <= 2 * SLICE_MS * 1e6);
        }
        if (cases[k].whole) assert_int_equal(slow.submissions, 1);
        else assert_true(slow.submissions > 1 && slow.all / slow.submissions > cases[k].least * 1e6); /* cut, and not for nothing */
        assert_true((double)dart_state_longest(state) <= SLICE_MS * 1e6);
        dart_state_destroy(&state);
        dart_model_destroy(&model);
    }
    device->backend = slow.real;
}

static void copies_are_short(void **unused)
{
    (void)unused;
    const uint64_t position = 1 << 20;
    slow_down();
    memset(slow.streams, 0, sizeof slow.streams);
    dart_model_config config = layers_of("dart-780m");
    dart_model *model = model_of(&config, &(dart_model_options){.weights = DART_STORAGE_BF16});
    dart_state *state = state_of(model, &(dart_state_options){.B = 2});
    go_to(state, position);
    asker a = {.most = UINT32_MAX};
    slow.longest = slow.all = 0;
    slow.submissions = 0;
    must(dart_state_copy_while(state, (const uint32_t[]){1}, state, (const uint32_t[]){0}, 1, ask, &a), "dart_state_copy_while");
    print_message("  a copy: %u submissions, %.1f ms in all, %.1f the longest\n", slow.submissions, slow.all / 1e6, slow.longest / 1e6);
    assert_true(slow.all > SLICE_MS * 1e6 && slow.longest <= SLICE_MS * 1e6);
    assert_int_equal(a.calls, slow.submissions);
    assert_int_equal(dart_state_position(state, 1), position);
    /* Ended between: the sequence is empty, and the other as it was. Ended before: nothing has changed. */
    quiet = true;
    a = (asker){.most = 3};
    assert_int_equal(dart_state_copy_while(state, (const uint32_t[]){1}, state, (const uint32_t[]){0}, 1, ask, &a), DART_CANCELLED);
    assert_int_equal(dart_state_position(state, 1), 0);
    a = (asker){.most = 0};
    assert_int_equal(dart_state_copy_while(state, (const uint32_t[]){0}, state, (const uint32_t[]){1}, 1, ask, &a), DART_CANCELLED);
    quiet = false;
    assert_int_equal(dart_state_position(state, 0), position);
    dart_state_destroy(&state);
    dart_model_destroy(&model);
    device->backend = slow.real;
}

/* A device on which single launches take seconds, and which says that it is a processor: lavapipe, or less. Launches are cut, those of the first
 * call of a process too. */
static void launches_are_cut(void **unused)
{
    (void)unused;
    enum { B = 2, ROWS_TOGETHER = 256 };
    static int32_t ids[B * ROWS_TOGETHER];
    static const uint32_t lengths[] = {ROWS_TOGETHER, 1, 64};
    const dart_device_type type = device->info.type;
    slow_down();
    slow.speed = 1.0 / 200; /* 0.5 GFLOP/s, 0.5 GB/s */
    device->info.type = DART_DEVICE_CPU;
    for (int transformer = 0; transformer < 2; transformer++) {
        memset(slow.streams, 0, sizeof slow.streams);
        dart_model_config config = layers_of("dart-130m");
        if (transformer)
            config = (dart_model_config){.transformer = true, .W = 768, .layers = 2, .H = 12, .P = 64, .G = 12, .F = 2048, .base = 10000,
                                         .eps = 1e-5f};
        config.V = 50280;
        dart_model *model = model_of(&config, &(dart_model_options){.weights = DART_STORAGE_BF16});
        slow.longest = slow.longest_launch = 0;
        dart_state *state = state_of(model, &(dart_state_options){.B = B});
        for (size_t i = 0; i < COUNT_OF(lengths); i++) {
            slow.submissions = 0;
            slow.all = 0;
            must(dart_prefill(state, &(dart_prefill_args){.ids = ids, .L = lengths[i], .sampling = &(dart_sampling){0}}),
                 "dart_prefill");
            print_message("  %u tokens each: %.1f s, %u submissions, %.1f ms the longest\n", lengths[i], slow.all / 1e9, slow.submissions,
                          slow.longest / 1e6);
            assert_true(slow.longest <= SLICE_MS * 1e6);
        }
        go_to(state, 8192);
        state->positions[1] = 8192;
        for (int step = 0; step < 3; step++) must(dart_decode(state, &(dart_decode_args){.ids = ids}), "dart_decode");
        must(dart_state_copy(state, 1, state, 0), "dart_state_copy");
        must(dart_state_reset(state, 1), "dart_state_reset");
        print_message("  with steps, a copy, a reset: %.1f ms the longest\n", slow.longest / 1e6);
        assert_true(slow.longest <= SLICE_MS * 1e6);
        dart_state_destroy(&state);
        dart_model_destroy(&model);
    }
    device->info.type = type;
    device->backend = slow.real;
}

/* ---- Training ---- */

enum { ROWS = 2, ROW = 512, VOCABULARY = 4096 };

/* With two steps under way no more is queued than a frame waits for. */
static void two_are_short(dart_trainer *trainer, const dart_train_batch *batch, asker *a)
{
    enum { STEPS = 4 };
    slow.longest = slow.queued = slow.most_queued = 0;
    for (uint32_t begun = 0, done = 0; done < STEPS; done++) {
        for (; begun < STEPS && begun < done + 2; begun++) {
            must(dart_trainer_prepare(trainer, batch), "dart_trainer_prepare");
            a->calls = 0;
            must(dart_trainer_start(trainer, 1e-3), "dart_trainer_start");
        }
        assert_true(begun == STEPS || !trainer->begun[0].done);
        must(dart_trainer_finish(trainer, NULL), "dart_trainer_finish");
    }
    print_message("  two under way: %.1f ms the longest, at most %.1f queued\n", slow.longest / 1e6, slow.most_queued / 1e6);
    assert_true(slow.longest <= SLICE_MS * 1e6);
    assert_true(slow.most_queued <= 2 * SLICE_MS * 1e6);
}

/* The first step of a trainer is cut by assumptions, those that follow by the times of it. */
static void training_is_short(void **unused)
{
    (void)unused;
    static int32_t ids[2 * ROWS * ROW];
    static const struct { const char *preset; bool transformer; uint32_t keep; } models[] = {{"dart-130m", false, 0}, {"dart-130m", false, 3},
                                                                                              {"mamba2-370m", false, 1}, {"", true, 0}};
    const dart_train_batch batch = {.count = 2, .ids = ids, .targets = ids};
    slow_down();
    for (size_t k = 0; k < COUNT_OF(models); k++) {
        memset(slow.streams, 0, sizeof slow.streams);
        dart_model_config config = {.transformer = true, .W = 768, .H = 12, .P = 64, .G = 12, .F = 2048, .base = 10000, .eps = 1e-5f};
        if (!models[k].transformer) must(dart_config_preset(models[k].preset, &config), "dart_config_preset");
        config.layers = 6;
        config.V = VOCABULARY;
        asker a = {.most = UINT32_MAX};
        const dart_trainer_options options = {.B = ROWS, .L = ROW, .weights = DART_STORAGE_BF16, .keep = models[k].keep, .go_on = ask, .user = &a};
        dart_trainer *trainer = NULL;
        must(dart_trainer_create(device, &config, &options, &trainer), "dart_trainer_create");
        assert_true(a.calls > config.layers && a.done == a.of);
        uint32_t first = 0, submissions = 0;
        for (int step = 0; step < 4; step++) {
            slow.longest = slow.all = slow.longest_launch = 0;
            slow.queued = slow.most_queued = 0;
            slow.submissions = 0;
            a.calls = 0;
            must(dart_trainer_step(trainer, &batch, 1e-3, NULL), "dart_trainer_step");
            submissions = slow.submissions;
            if (step == 0) first = submissions;
            print_message("  step %d: %u submissions, %.1f ms on average, %.1f the longest, %.1f the longest launch\n", step, submissions,
                          slow.all / submissions / 1e6, slow.longest / 1e6, slow.longest_launch / 1e6);
            assert_true(slow.longest <= SLICE_MS * 1e6);
            assert_int_equal(a.of, 2 * ROWS * ROW);
            assert_true(a.calls > 4 && a.calls < submissions);
            assert_true(slow.most_queued <= 2 * SLICE_MS * 1e6); /* what a frame waits for */
        }
        assert_true(submissions < first);
        assert_true(slow.all / submissions > SLICE_MS * 1e6 / 4); /* and not for nothing */
        two_are_short(trainer, &batch, &a);
        assert_true((double)dart_trainer_longest(trainer) <= SLICE_MS * 1e6);
        dart_trainer_destroy(&trainer);
    }
    device->backend = slow.real;
}

/* Single launches take seconds: those are cut, too, at first by assumed rates and then by measured ones. */
static void slow_training_is_short(void **unused)
{
    (void)unused;
    static int32_t ids[128];
    const dart_train_batch batch = {.count = 1, .ids = ids, .targets = ids};
    const dart_device_type type = device->info.type;
    dart_model_config config;
    must(dart_config_preset("dart-130m", &config), "dart_config_preset");
    config.layers = 2;
    config.V = 3 * VOCABULARY; /* the norm of all gradients takes longer than a slice, too */
    slow_down();
    slow.speed = 1.0 / 200;
    device->info.type = DART_DEVICE_CPU;
    memset(slow.streams, 0, sizeof slow.streams);
    dart_trainer *trainer = NULL;
    const dart_trainer_options options = {.B = 1, .L = COUNT_OF(ids), .weights = DART_STORAGE_BF16};
    must(dart_trainer_create(device, &config, &options, &trainer), "dart_trainer_create");
    for (int step = 0; step < 4; step++) {
        slow.longest = slow.all = 0;
        slow.submissions = 0;
        must(dart_trainer_step(trainer, &batch, 1e-3, NULL), "dart_trainer_step");
        print_message("  step %d: %.0f s, %u submissions, %.1f ms the longest\n", step, slow.all / 1e9, slow.submissions, slow.longest / 1e6);
        assert_true(slow.longest <= SLICE_MS * 1e6);
    }
    dart_trainer_destroy(&trainer);
    device->info.type = type;
    device->backend = slow.real;
}

/* What GPUs decode with, a layer in few launches, takes a layer's matrices whole: where a binding is too small for them, other launches do. */
static void steps_fit_small_bindings(void **unused)
{
    (void)unused;
    dart_device *narrow = NULL;
    must(dart_device_open(context, &(dart_device_options){.spec = "null", .max_binding_bytes = 16384}, &narrow), "dart_device_open");
    dart_model *model = NULL;
    must(dart_model_random(narrow, &small, 7, NULL, &model), "dart_model_random");
    assert_true((uint64_t)model_config_in_proj(&small) * small.W * sizeof(float) > 16384);
    dart_state *state = state_of(model, NULL);
    const int32_t id = 1;
    must(dart_decode(state, &(dart_decode_args){.ids = &id}), "dart_decode");
    dart_state_destroy(&state);
    dart_model_destroy(&model);
    dart_device_destroy(&narrow);
}

/* On a device that is faster than assumed a recording becomes one part again once that is known. */
static void fast_training_is_whole(void **unused)
{
    (void)unused;
    static int32_t ids[2 * ROWS * ROW];
    const dart_train_batch batch = {.count = 2, .ids = ids, .targets = ids};
    dart_model_config config;
    must(dart_config_preset("dart-130m", &config), "dart_config_preset");
    config.layers = 6;
    config.V = VOCABULARY;
    slow_down();
    slow.speed = 1000;
    memset(slow.streams, 0, sizeof slow.streams);
    dart_trainer *trainer = NULL;
    const dart_trainer_options options = {.B = ROWS, .L = ROW, .weights = DART_STORAGE_BF16};
    must(dart_trainer_create(device, &config, &options, &trainer), "dart_trainer_create");
    uint32_t submissions[4];
    for (int step = 0; step < 4; step++) {
        slow.submissions = 0;
        must(dart_trainer_step(trainer, &batch, 1e-3, NULL), "dart_trainer_step");
        submissions[step] = slow.submissions;
        print_message("  step %d: %u submissions\n", step, submissions[step]);
    }
    assert_true(submissions[0] > submissions[3]);
    /* What begins, forward and backward of two parts of the batch, the second one's taking from where it was written ahead, the update. */
    assert_int_equal(submissions[3], 7);
    dart_trainer_destroy(&trainer);
    device->backend = slow.real;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(submissions_are_short), cmocka_unit_test(steps_are_short),
                                       cmocka_unit_test(copies_are_short), cmocka_unit_test(launches_are_cut),
                                       cmocka_unit_test(slow_training_is_short), cmocka_unit_test(training_is_short),
                                       cmocka_unit_test(fast_training_is_whole), cmocka_unit_test(steps_fit_small_bindings)};
    const dart_context_options options = {.without_vulkan = true, .without_cuda = true, .with_null = true};
    if (dart_context_create(&options, &context) != DART_OK || dart_device_open(context, &(dart_device_options){.spec = "null"}, &device) != DART_OK)
        return 1;
    const int failed = cmocka_run_group_tests_name("model_polite", tests, NULL, NULL);
    dart_device_destroy(&device);
    dart_context_destroy(&context);
    return failed;
}
