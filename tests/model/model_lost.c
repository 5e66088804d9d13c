/* The loss of the host's device in the middle of a model's work: model_lost [vulkan]. */
#include "host.h"

#include "dartlm/model.h"

enum { PROMPT = 37, TOKENS = 24, BEFORE = 9 };

static dart_model *make_model(dart_device *device)
{
    static const dart_model_config config = {.sma = true, .V = 61, .W = 32, .layers = 2, .H = 4, .P = 16, .G = 1, .N = 16, .K = 4, .S = 8,
                                             .eps = 1e-5f, .sma_eps = 1e-5f};
    dart_model *model = NULL;
    assert_int_equal(dart_model_random(device, &config, 11, NULL, &model), DART_OK);
    return model;
}

static dart_state *read_prompt(dart_model *model)
{
    int32_t prompt[PROMPT];
    dart_state *state = NULL;
    for (int i = 0; i < PROMPT; i++) prompt[i] = (i * 17 + 5) % 61;
    assert_int_equal(dart_state_create(model, NULL, &state), DART_OK);
    assert_int_equal(dart_prefill(state, &(dart_prefill_args){.ids = prompt, .L = PROMPT, .sampling = &(dart_sampling){0}}), DART_OK);
    return state;
}

/* A device that is lost in the middle of generating: the state that was saved goes on on the processor, with the tokens of an undisturbed run. */
static void a_saved_state_survives_a_loss(void **unused)
{
    (void)unused;
    static const char path[] = "model_lost.state";
    int32_t expected[TOKENS], got[TOKENS];
    host h;
    host_open(&h, true);
    dart_device *device = host_adopt(&h, &(dart_device_options){.unchecked = true}), *processor = NULL;
    dart_model *model = make_model(device);
    dart_state *state = read_prompt(model);
    assert_int_equal(dart_generate(state, &(dart_generate_args){.n = TOKENS, .ids = expected}), DART_OK);
    uint32_t changes = 0;
    for (int i = 1; i < TOKENS; i++) changes += expected[i] != expected[i - 1];
    assert_true(changes > TOKENS / 2); /* a state that was lost would show */
    dart_state_destroy(&state);
    state = read_prompt(model);
    assert_int_equal(dart_generate(state, &(dart_generate_args){.n = BEFORE, .ids = got}), DART_OK);
    assert_int_equal(dart_state_save(state, -1, path), DART_OK);
    fault.in = 1;
    fault.gives = VK_ERROR_DEVICE_LOST;
    assert_int_equal(dart_generate(state, &(dart_generate_args){.n = TOKENS - BEFORE, .ids = got + BEFORE}), DART_DEVICE_LOST);
    assert_int_equal(h.losses, 1);
    assert_int_equal(dart_state_save(state, -1, path), DART_DEVICE_LOST); /* and leaves the file */
    dart_state_destroy(&state);
    dart_model_destroy(&model);
    dart_device_destroy(&device);

    assert_int_equal(dart_device_open(h.context, &(dart_device_options){.spec = "cpu"}, &processor), DART_OK);
    model = make_model(processor);
    assert_int_equal(dart_state_create(model, NULL, &state), DART_OK);
    assert_int_equal(dart_state_load(state, -1, path), DART_OK);
    assert_int_equal(dart_generate(state, &(dart_generate_args){.n = TOKENS - BEFORE, .ids = got + BEFORE}), DART_OK);
    for (int i = 0; i < TOKENS; i++)
        if (got[i] != expected[i]) fail_msg("token %d is %d, undisturbed %d", i, got[i], expected[i]);
    dart_state_destroy(&state);
    dart_model_destroy(&model);
    dart_device_destroy(&processor);
    remove(path);
    host_close(&h);
}

static const struct CMUnitTest tests[] = {cmocka_unit_test(a_saved_state_survives_a_loss)};
RIG_MAIN("model_lost")
