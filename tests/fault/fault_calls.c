/* Every call of the backend and every allocation made for a device fails once, under every public entry point: the status
 * says so, nothing leaks, and the same call succeeds the next time. On the backends that can inject failures:
 * fault_calls [cpu | null] [DATA_DIR]. */
#define _DEFAULT_SOURCE /* mkdtemp */
#include "rig.h"

#include "runtime/device.h"

#include "dartlm/model.h"
#include "dartlm/ops_backward.h"
#include "dartlm/train.h"

#include <unistd.h>

enum { B = 2, L = 11, H = 2, G = 1, N = 4, P = 8, S = 4, I = H * P, V = 13, ROOM = 4096, PLAN_AT = 2048 };

static const dart_model_config config = {.sma = true, .V = V, .W = 8, .layers = 1, .H = H, .P = P, .G = G, .N = N, .K = 4, .S = S, .eps = 1e-5f,
                                         .sma_eps = 1e-5f};
static const char *data_folder;

/* All that the steps make, in the order in which it goes away. */
typedef struct world {
    dart_context *context;
    dart_device *device;
    dart_buffer *buffers[3]; /* f32, f16, i32 */
    dart_stream *stream;
    dart_model *model;
    dart_state *state;
    dart_trainer *trainer;
    float results[8];
} world;

static const int32_t ids[B * L] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9};

static dart_tensor f32(const world *w) { return (dart_tensor){.buffer = w->buffers[0], .dtype = DART_F32}; }
static dart_tensor at(const world *w, uint64_t offset) { return (dart_tensor){.buffer = w->buffers[0], .dtype = DART_F32, .offset = offset}; }
static dart_tensor i32(const world *w) { return (dart_tensor){.buffer = w->buffers[2], .dtype = DART_I32}; }

static dart_status make_buffers(world *w)
{
    static const uint64_t sizes[] = {ROOM * 4, ROOM * 2, ROOM * 4};
    for (int i = 0; i < 3; i++) {
        if (w->buffers[i] != NULL) continue;
        const dart_status status = dart_buffer_create(w->device, sizes[i], &w->buffers[i]);
        if (status != DART_OK) return status;
    }
    return DART_OK;
}

static dart_status write_buffers(world *w)
{
    static float values[ROOM];
    static const int32_t seq[2 * B] = {0, L, 3, L};
    int32_t plan[ROOM / 4];
    for (int i = 0; i < ROOM; i++) values[i] = (float)(i % 17) / 16 - 0.5f;
    assert_true(dart_embed_plan_elements(4, V) <= ROOM / 4);
    assert_int_equal(dart_embed_plan(ids, 4, V, plan), DART_OK);
    dart_status status = dart_buffer_write(w->buffers[0], 0, values, sizeof values);
    if (status == DART_OK) status = dart_buffer_write(w->buffers[2], 0, seq, sizeof seq);
    return status != DART_OK ? status : dart_buffer_write(w->buffers[2], PLAN_AT * sizeof *plan, plan, dart_embed_plan_elements(4, V) * sizeof *plan);
}

static dart_status make_stream(world *w) { return dart_stream_create(w->device, NULL, &w->stream); }

/* Begin, one op, submit, wait: every way out leaves a stream that can begin again. */
static dart_status finish(world *w, dart_status recorded)
{
    const uint32_t launches = dart_stream_launches(w->stream);
    dart_status status = dart_stream_submit(w->stream);
    if (recorded != DART_OK) assert_int_equal(status, recorded);
    if (recorded == DART_OK) assert_true(launches > 0);
    return status == DART_OK ? dart_stream_wait(w->stream, UINT64_MAX) : status;
}
#define OP_STEP(name, ...) \
    static dart_status name(world *w) \
    { \
        const dart_status status = dart_stream_begin(w->stream); \
        return status != DART_OK ? status : finish(w, __VA_ARGS__); \
    }
OP_STEP(do_fill, dart_fill(w->stream, &(dart_fill_args){.T = 2, .W = 8, .y = at(w, 2048)}))
OP_STEP(do_convert, dart_convert(w->stream, &(dart_convert_args){.T = 2, .W = 8, .x = f32(w), .y = {.buffer = w->buffers[1], .dtype = DART_F16}}))
OP_STEP(do_embed, dart_embed(w->stream, &(dart_embed_args){.T = 4, .V = V, .W = 8, .ids = i32(w), .weight = f32(w), .y = at(w, 2048)}))
OP_STEP(do_norm, dart_rms_norm(w->stream, &(dart_rms_norm_args){.T = 2, .W = 8, .eps = 1, .x = f32(w), .weight = f32(w), .y = at(w, 2048)}))
OP_STEP(do_gated_norm, dart_gated_norm(w->stream, &(dart_gated_norm_args){.T = 2, .I = 8, .eps = 1, .y = f32(w), .z = f32(w), .weight = f32(w),
                                                                          .out = at(w, 2048)}))
OP_STEP(do_layer_norm, dart_layer_norm(w->stream, &(dart_layer_norm_args){.T = 2, .W = 8, .eps = 1, .x = f32(w), .weight = f32(w), .bias = f32(w),
                                                                          .y = at(w, 2048)}))
OP_STEP(do_embed_quantised, dart_embed(w->stream, &(dart_embed_args){.T = 4, .V = V, .W = 32, .ids = i32(w), .y = at(w, 2048),
                                                                     .weight = {.buffer = w->buffers[0], .dtype = DART_Q8}}))
OP_STEP(do_linear_quantised, dart_linear(w->stream, &(dart_linear_args){.T = 9, .IN = 32, .OUT = 8, .x = at(w, 1024), .y = at(w, 2048),
                                                                        .weight = {.buffer = w->buffers[0], .dtype = DART_Q4}}))
OP_STEP(do_linear_bias, dart_linear(w->stream, &(dart_linear_args){.T = 2, .IN = 8, .OUT = 8, .x = f32(w), .weight = f32(w), .bias = f32(w),
                                                                   .y = at(w, 2048)}))
OP_STEP(do_linear, dart_linear(w->stream, &(dart_linear_args){.T = 2, .IN = 8, .OUT = 8, .x = f32(w), .weight = f32(w), .y = at(w, 2048)}))
OP_STEP(do_linear_from, dart_linear(w->stream, &(dart_linear_args){.T = 2, .IN = 8, .OUT = 8, .x = f32(w), .weight = f32(w), .from = at(w, 1024),
                                                                   .y = at(w, 2048)}))
OP_STEP(do_conv, dart_conv(w->stream, &(dart_conv_args){.B = B, .L = L, .C = 8, .K = 4, .x = f32(w), .weight = f32(w), .tail = at(w, 1024),
                                                        .seq = i32(w), .y = at(w, 2048)}))
OP_STEP(do_ssd, dart_ssd(w->stream, &(dart_ssd_args){.B = B, .L = L, .H = H, .G = G, .N = N, .P = P, .S = S, .x = f32(w), .dt = f32(w), .b = f32(w),
                                                     .c = f32(w), .a_log = f32(w), .seq = i32(w), .h = at(w, 1024), .y = at(w, 2048)}))
OP_STEP(do_ssd_step, dart_ssd(w->stream, &(dart_ssd_args){.B = B, .L = 1, .H = H, .G = G, .N = N, .P = P, .S = S, .x = f32(w), .dt = f32(w),
                                                          .b = f32(w), .c = f32(w), .a_log = f32(w), .seq = i32(w), .h = at(w, 1024),
                                                          .y = at(w, 2048)}))
OP_STEP(do_sma, dart_sma(w->stream, &(dart_sma_args){.B = B, .L = L, .H = H, .G = G, .N = N, .P = P, .S = S, .eps = 1, .q = f32(w), .e = f32(w),
                                                     .c = f32(w), .seq = i32(w), .memories = &(dart_memories){.M = 3, .dh = f32(w)},
                                                     .memories_count = 1, .r = at(w, 2048)}))
OP_STEP(do_sma_step, dart_sma(w->stream, &(dart_sma_args){.B = B, .L = 1, .H = H, .G = G, .N = N, .P = P, .S = S, .eps = 1, .q = f32(w), .e = f32(w),
                                                          .c = f32(w), .seq = i32(w), .memories = &(dart_memories){.M = 3, .dh = f32(w)},
                                                          .memories_count = 1, .r = at(w, 2048)}))
OP_STEP(do_append, dart_sma_append(w->stream, &(dart_sma_append_args){.B = B, .L = L, .H = H, .N = N, .P = P, .S = S, .eps = 1, .dh = f32(w),
                                                                      .seq = i32(w), .to = {.M = 3, .dh = at(w, 2048), .scale = at(w, 3072)}}))
OP_STEP(do_attention, dart_attention(w->stream, &(dart_attention_args){.B = B, .L = 2, .H = H, .G = G, .D = P, .C = 3, .q = f32(w), .k = f32(w),
                                                                       .v = f32(w), .seq = i32(w), .more = &(dart_key_block){3, f32(w), f32(w)},
                                                                       .more_count = 1, .o = {.buffer = w->buffers[1], .dtype = DART_F16}}))
OP_STEP(do_attention_step, dart_attention(w->stream, &(dart_attention_args){.B = B, .L = 1, .H = H, .G = G, .D = P, .C = 3, .q = f32(w), .k = f32(w),
                                                                            .v = f32(w), .seq = i32(w), .more = &(dart_key_block){3, f32(w), f32(w)},
                                                                            .more_count = 1, .o = at(w, 2048)}))
OP_STEP(do_argmax, dart_argmax(w->stream, &(dart_argmax_args){.T = 2, .V = V, .logits = f32(w),
                                                              .ids = {.buffer = w->buffers[2], .dtype = DART_I32, .offset = 100}}))
OP_STEP(do_sample, dart_sample(w->stream, &(dart_sample_args){.T = 2, .V = V, .logits = f32(w), .settings = i32(w),
                                                              .ids = {.buffer = w->buffers[2], .dtype = DART_I32, .offset = 100}}))
OP_STEP(do_log_probs, dart_log_probs(w->stream, &(dart_log_probs_args){.T = 2, .V = V, .logits = f32(w), .log_z = at(w, 2048)}))
OP_STEP(do_mark_ids, dart_mark_ids(w->stream, &(dart_mark_ids_args){.B = B, .L = L, .V = V, .ids = i32(w),
                                                                    .seen = {.buffer = w->buffers[2], .dtype = DART_I32, .offset = 100}}))
static dart_tensor ints(const world *w, uint64_t offset) { return (dart_tensor){.buffer = w->buffers[2], .dtype = DART_I32, .offset = offset}; }
OP_STEP(do_embed_backward, dart_embed_backward(w->stream, &(dart_embed_backward_args){.T = 4, .V = V, .W = 8, .plan = ints(w, PLAN_AT),
                                                                                      .up_y = f32(w), .grad_weight = at(w, 2048)}))
OP_STEP(do_norm_backward, dart_rms_norm_backward(w->stream, &(dart_rms_norm_backward_args){.T = 2, .W = 8, .eps = 1, .x = f32(w), .weight = f32(w),
                                                                                           .up_y = f32(w), .grad_x = at(w, 2048),
                                                                                           .grad_weight = at(w, 3072)}))
OP_STEP(do_gated_norm_backward,
        dart_gated_norm_backward(w->stream, &(dart_gated_norm_backward_args){.T = 2, .I = 8, .eps = 1, .y = f32(w), .z = f32(w), .weight = f32(w),
                                                                             .up_out = f32(w), .grad_y = at(w, 2048), .grad_z = at(w, 2560),
                                                                             .grad_weight = at(w, 3072)}))
/* So many rows that they are summed in two parts. */
OP_STEP(do_linear_backward, dart_linear_backward(w->stream, &(dart_linear_backward_args){.T = 300, .IN = 4, .OUT = 2, .x = f32(w), .weight = f32(w),
                                                                                         .up_y = f32(w), .grad_x = at(w, 2048),
                                                                                         .grad_weight = at(w, 3500)}))
OP_STEP(do_conv_backward, dart_conv_backward(w->stream, &(dart_conv_backward_args){.B = B, .L = L, .C = 8, .K = 4, .x = f32(w), .weight = f32(w),
                                                                                   .seq = i32(w), .up_y = f32(w), .grad_x = at(w, 2048),
                                                                                   .grad_weight = at(w, 3072)}))
OP_STEP(do_ssd_backward,
        dart_ssd_backward(w->stream, &(dart_ssd_backward_args){.B = B, .L = L, .H = H, .G = G, .N = N, .P = P, .S = S, .x = f32(w), .dt = f32(w),
                                                               .b = f32(w), .c = f32(w), .a_log = f32(w), .seq = i32(w), .up_y = f32(w),
                                                               .grad_x = at(w, 2048), .grad_dt = at(w, 2432), .grad_b = at(w, 2560),
                                                               .grad_c = at(w, 2688), .grad_a_log = at(w, 2816)}))
OP_STEP(do_sma_backward,
        dart_sma_backward(w->stream, &(dart_sma_backward_args){.B = B, .L = L, .H = H, .G = G, .N = N, .P = P, .S = S, .eps = 1, .q = f32(w),
                                                               .e = f32(w), .c = f32(w), .seq = i32(w), .memories = {.M = 1, .dh = f32(w)},
                                                               .r = f32(w), .lse = f32(w), .up_r = f32(w), .grad_q = at(w, 2048),
                                                               .grad_e = at(w, 2304), .grad_c = at(w, 2560), .grad_dh = at(w, 2816)}))
OP_STEP(do_attention_backward,
        dart_attention_backward(w->stream, &(dart_attention_backward_args){.B = B, .L = L, .H = H, .G = G, .D = P, .q = f32(w), .k = f32(w),
                                                                           .v = f32(w), .o = f32(w), .lse = f32(w), .seq = i32(w), .up_o = f32(w),
                                                                           .grad_q = at(w, 2048), .grad_k = at(w, 2560), .grad_v = at(w, 3072)}))
OP_STEP(do_cross_entropy,
        dart_cross_entropy(w->stream, &(dart_cross_entropy_args){.T = 4, .V = V, .W = 8, .x = f32(w), .weight = f32(w), .targets = i32(w),
                                                                 .share = f32(w), .loss = at(w, 2048), .correct = ints(w, 100),
                                                                 .grad_x = at(w, 2560), .grad_weight = at(w, 3072)}))
OP_STEP(do_grad_norm, dart_grad_norm(w->stream, &(dart_grad_norm_args){.count = 1, .clip = 1, .scale = at(w, 2048),
                                                                       .gradients = &(dart_gradient){.elements = 100, .grad = f32(w)}}))
OP_STEP(do_adamw, dart_adamw(w->stream, &(dart_adamw_args){.elements = 100, .w = at(w, 2048), .m = at(w, 2304), .v = at(w, 2560), .grad = f32(w),
                                                           .scale = f32(w), .hyper = f32(w)}))
OP_STEP(do_rope, dart_rope(w->stream, &(dart_rope_args){.B = B, .L = L, .H = H, .D = P, .base = 10000, .x = f32(w), .y = at(w, 2048)}))
OP_STEP(do_gelu, dart_gelu(w->stream, &(dart_gelu_args){.T = 2, .I = 8, .a = f32(w), .h = at(w, 2048)}))
OP_STEP(do_swiglu, dart_swiglu(w->stream, &(dart_swiglu_args){.T = 2, .I = 8, .a = f32(w), .u = f32(w), .h = at(w, 2048)}))
OP_STEP(do_swiglu_backward, dart_swiglu_backward(w->stream, &(dart_swiglu_backward_args){.T = 2, .I = 8, .a = f32(w), .u = f32(w), .up_h = f32(w),
                                                                                         .grad_a = at(w, 2048), .grad_u = at(w, 2560)}))
OP_STEP(do_kv_append, dart_kv_append(w->stream, &(dart_kv_append_args){.B = B, .L = L, .G = G, .D = P, .C = 16, .k = f32(w), .v = f32(w),
                                                                       .seq = i32(w), .to_k = at(w, 2048), .to_v = at(w, 2560)}))
OP_STEP(do_conv_tail, dart_conv_tail(w->stream, &(dart_conv_args){.B = B, .L = L, .C = 8, .K = 4, .keep_tail = true, .x = f32(w), .weight = f32(w),
                                                                  .tail = at(w, 1024), .seq = i32(w), .y = at(w, 2048)}))
OP_STEP(do_norm_linear, dart_norm_linear(w->stream, &(dart_norm_linear_args){.T = 2, .IN = 8, .OUT = 8, .eps = 1, .x = f32(w), .norm = f32(w),
                                                                             .weight = f32(w), .y = at(w, 2048)}))
OP_STEP(do_mixer_step, dart_mixer_step(w->stream, &(dart_mixer_step_args){
    .B = 1, .W = 8, .H = H, .G = G, .N = N, .P = P, .K = 4, .S = S, .eps = 1, .sma_eps = 1, .x = at(w, 2048), .seq = i32(w), .norm = f32(w),
    .in_proj = f32(w), .conv_weight = f32(w), .dt_bias = f32(w), .a_log = f32(w), .d = f32(w), .mixer_norm = f32(w), .out_proj = f32(w),
    .tail = at(w, 2560), .h = at(w, 3072)}))
/* One sequence, N 8. */
static dart_window_args window(const world *w)
{
    return (dart_window_args){.B = 1, .H = H, .G = G, .N = 8, .P = P, .K = 4, .S = S, .eps = 1, .x = f32(w), .dt = f32(w), .conv_weight = f32(w),
                              .tail = at(w, 1024), .a_log = f32(w), .seq = i32(w), .conv = at(w, 1536), .y = at(w, 1600), .h = at(w, 1664),
                              .rows = at(w, 2048), .steps = at(w, 3200), .hin = at(w, 3584)};
}
OP_STEP(do_window_append, dart_window_append(w->stream, &(dart_window_args[]){window(w)}[0]))
OP_STEP(do_window_output, dart_window_output(w->stream, &(dart_window_args[]){window(w)}[0]))
OP_STEP(do_window_fold, dart_window_fold(w->stream, &(dart_window_args[]){window(w)}[0]))
OP_STEP(do_advance, dart_advance(w->stream, &(dart_advance_args){.B = B, .seq = {.buffer = w->buffers[2], .dtype = DART_I32, .offset = 100}}))

static dart_status submit_again(world *w)
{
    uint64_t ns;
    dart_status status = dart_stream_submit(w->stream);
    if (status == DART_OK) status = dart_stream_wait(w->stream, UINT64_MAX);
    if (status == DART_OK) status = dart_stream_elapsed(w->stream, &ns);
    /* The injected failure sticks: as the manual says, only a new recording helps. */
    if (status != DART_OK) {
        assert_int_equal(dart_stream_submit(w->stream), status);
        assert_int_equal(do_advance(w), DART_OK);
    }
    return status;
}

static dart_status read_buffers(world *w) { return dart_buffer_read(w->buffers[0], 0, w->results, sizeof(float)); }

static dart_status make_model(world *w) { return dart_model_random(w->device, &config, 5, NULL, &w->model); }
static dart_status make_state(world *w) { return dart_state_create(w->model, &(dart_state_options){.B = B, .memory_block = 1}, &w->state); }
static dart_status make_asking_state(world *w)
{
    dart_state *state = NULL;
    const dart_status status = dart_state_create(w->model, &(dart_state_options){.keep_queries = true}, &state);
    dart_state_destroy(&state);
    return status;
}
/* A failure in the middle of the work breaks a state until it is reset. */
static dart_status feed(world *w)
{
    float logits[B * V];
    dart_status status = dart_prefill(w->state, &(dart_prefill_args){.ids = ids, .L = L, .want = DART_LOGITS_LAST, .logits = logits,
                                                                     .sampling = &(dart_sampling){0}});
    if (status == DART_OK) status = dart_decode(w->state, &(dart_decode_args){.logits = logits});
    if (status == DART_OK) status = dart_generate(w->state, &(dart_generate_args){.n = 6});
    if (status == DART_OK) memcpy(w->results + 1, logits, 4 * sizeof *logits);
    if (status != DART_OK) assert_int_equal(dart_state_reset(w->state, -1), DART_OK);
    return status;
}
static dart_status reset(world *w)
{
    const dart_status status = dart_state_reset(w->state, 0);
    return status != DART_OK && dart_state_reset(w->state, -1) != DART_OK ? DART_INTERNAL : status;
}
/* Copies, a way back, a file and what it needs. What fails half-way breaks the state or leaves it; the batch is made anew then. */
static dart_status values(world *w)
{
    static const uint32_t one = 1, zero = 0;
    char path[80]; /* of its own: ctest runs this program for several devices at once */
    snprintf(path, sizeof path, "fault_calls.%.60s.state", rig_spec);
    dart_queries queries;
    dart_status status = dart_state_reset(w->state, -1);
    if (status == DART_OK) status = dart_prefill(w->state, &(dart_prefill_args){.ids = ids, .L = L});
    if (status == DART_OK) status = dart_state_copy_several(w->state, &one, w->state, &zero, 1);
    if (status == DART_OK) status = dart_state_copy_while(w->state, &one, w->state, &zero, 1, NULL, NULL);
    if (status == DART_OK) status = dart_state_mark(w->state, 0);
    if (status == DART_OK) status = dart_state_truncate_while(w->state, 0, L, NULL, NULL, NULL);
    if (status == DART_OK) status = dart_state_prepare_save(w->state, -1, path, L);
    if (status == DART_OK) status = dart_state_prepare_save_while(w->state, -1, path, L, NULL, NULL);
    if (status == DART_OK) status = dart_state_save(w->state, -1, path);
    if (status == DART_OK) status = dart_state_load(w->state, -1, path);
    if (status == DART_OK) status = dart_state_warm_while(w->state, NULL, NULL);
    if (status == DART_OK) assert_int_equal(dart_state_queries(w->state, 0, 0, &queries), DART_INVALID_ARGUMENT); /* it keeps none */
    remove(path);
    if (status != DART_OK) assert_int_equal(dart_state_reset(w->state, -1), DART_OK);
    return status;
}
static const dart_trainer_options training = {.B = B, .L = L, .keep = 1, .weights = DART_STORAGE_BF16, .clip = 1, .seed = 3};
static const dart_train_batch batch = {.ids = ids, .targets = ids};
static dart_status make_trainer(world *w)
{
    return w->trainer != NULL ? DART_OK : dart_trainer_create(w->device, &config, &training, &w->trainer);
}
/* A failure on the way breaks a trainer, which stays so; one before the first work on the device leaves it as it was. Another one takes its
 * place. */
static dart_status train(world *w)
{
    dart_train_result result, none;
    dart_status status = make_trainer(w);
    if (status != DART_OK) return status;
    status = dart_trainer_step(w->trainer, &batch, 1e-2, &result);
    if (status == DART_OK) status = dart_trainer_evaluate(w->trainer, &batch, &result);
    if (status == DART_OK) {
        w->results[5] = (float)result.loss;
        return DART_OK;
    }
    const uint64_t taken = dart_trainer_steps(w->trainer);
    const dart_status after = dart_trainer_step(w->trainer, &batch, 1e-2, &none);
    if (after == DART_OK) {
        assert_int_equal(status, DART_OUT_OF_MEMORY);
        assert_int_equal(dart_trainer_steps(w->trainer), taken + !none.skipped);
    } else {
        assert_int_equal(after, status);
        assert_int_equal(dart_trainer_evaluate(w->trainer, &batch, &none), status);
        assert_int_equal(dart_trainer_read(w->trainer, DART_TRAIN_WEIGHT, 0, w->results), status);
        assert_int_equal(dart_trainer_export(w->trainer, "."), status);
    }
    dart_trainer_destroy(&w->trainer);
    return status;
}
static dart_status open_model(world *w)
{
    char path[4096];
    dart_model *model = NULL;
    if (data_folder == NULL) return DART_OK;
    snprintf(path, sizeof path, "%s/hf-mamba2", data_folder);
    const dart_status status = dart_model_open(w->device, path, NULL, &model);
    assert_true((status == DART_OK) == (model != NULL));
    dart_model_destroy(&model);
    return status;
}

static dart_device_options how;
static dart_status make_context(world *w)
{
    if (w->context != NULL) return DART_OK;
    return dart_context_create(&(dart_context_options){.with_null = true, .without_vulkan = true, .without_cuda = true}, &w->context);
}
static dart_status open_device(world *w) { return dart_device_open(w->context, &how, &w->device); }

static const struct { const char *name; dart_status (*run)(world *w); } steps[] = {
#define STEP(name) {#name, name}
    STEP(make_context), STEP(open_device), STEP(make_buffers), STEP(write_buffers), STEP(make_stream), STEP(do_fill), STEP(do_convert),
    STEP(do_embed), STEP(do_norm), STEP(do_gated_norm), STEP(do_linear), STEP(do_conv), STEP(do_ssd), STEP(do_ssd_step), STEP(do_sma),
    STEP(do_sma_step), STEP(do_append), STEP(do_attention), STEP(do_attention_step), STEP(do_argmax), STEP(do_sample),
    STEP(do_log_probs), STEP(do_mark_ids),
    STEP(do_embed_backward), STEP(do_norm_backward),
    STEP(do_gated_norm_backward), STEP(do_linear_backward), STEP(do_conv_backward), STEP(do_ssd_backward), STEP(do_sma_backward),
    STEP(do_attention_backward), STEP(do_cross_entropy), STEP(do_grad_norm), STEP(do_adamw), STEP(do_rope), STEP(do_gelu), STEP(do_layer_norm),
    STEP(do_linear_bias), STEP(do_linear_from), STEP(do_linear_quantised), STEP(do_embed_quantised), STEP(do_swiglu), STEP(do_swiglu_backward),
    STEP(do_kv_append), STEP(do_conv_tail), STEP(do_norm_linear), STEP(do_mixer_step),
    STEP(do_window_append), STEP(do_window_output), STEP(do_window_fold), STEP(do_advance),
    STEP(submit_again), STEP(read_buffers), STEP(make_model), STEP(make_state), STEP(make_asking_state), STEP(feed), STEP(values), STEP(reset),
    STEP(open_model), STEP(make_trainer), STEP(train),
};
enum { STEPS = sizeof steps / sizeof steps[0], STEP_OPEN = 1 };

static void end(world *w)
{
    dart_trainer_destroy(&w->trainer);
    dart_state_destroy(&w->state);
    dart_model_destroy(&w->model);
    dart_stream_destroy(&w->stream);
    for (int i = 0; i < 3; i++) dart_buffer_destroy(&w->buffers[i]);
    if (w->device != NULL) assert_int_equal(dart_device_bytes(w->device), 0);
    dart_device_destroy(&w->device);
    dart_context_destroy(&w->context);
}

/* The n-th call fails; true when there is none. */
static bool fails_at(uint32_t n, world *w, uint32_t *failed_step)
{
    bool failed = false;
    memset(w, 0, sizeof *w);
    how = (dart_device_options){.spec = rig_spec, .threads = 1, .fail_at = n};
    for (uint32_t i = 0; i < STEPS; i++) {
        char text[512] = "";
        const uint64_t bytes = dart_device_bytes(w->device);
        dart_status status = steps[i].run(w);
        if (status == DART_OK) continue;
        if (failed || status != DART_OUT_OF_MEMORY) {
            dart_device_error(w->device, text, sizeof text);
            fail_msg("call %u, %s: %s: %s", n, steps[i].name, dart_status_name(status), text);
        }
        failed = true;
        *failed_step = i;
        if (i == STEP_OPEN) dart_context_error(w->context, text, sizeof text);
        else dart_device_error(w->device, text, sizeof text);
        if (strlen(text) == 0) fail_msg("call %u, %s: no text", n, steps[i].name);
        if (i == STEP_OPEN) assert_null(w->device);
        how.fail_at = 0;
        status = steps[i].run(w);
        if (status != DART_OK) fail_msg("call %u, %s again: %s", n, steps[i].name, dart_status_name(status));
        assert_true(dart_device_bytes(w->device) >= bytes);
    }
    return !failed;
}

static void every_call_fails_once(void **unused)
{
    (void)unused;
    world expected, w;
    uint32_t counts[STEPS] = {0}, step = 0, n = 1;
    assert_true(fails_at(0, &expected, &step));
    end(&expected);
    for (;; n++) {
        const bool done = fails_at(n, &w, &step);
        assert_memory_equal(w.results, expected.results, sizeof w.results);
        end(&w);
        if (done) break;
        counts[step]++;
    }
    for (uint32_t i = STEP_OPEN; i < STEPS; i++)
        if (counts[i] == 0 && (data_folder != NULL || steps[i].run != open_model)) fail_msg("%s never failed", steps[i].name);
    print_message("  %u failures\n", n - 1);
}

/* Once lost, every call says so, and everything can still be destroyed. */
static void a_lost_device_stays_lost(void **unused)
{
    (void)unused;
    uint32_t lost = 0;
    bool done = false;
    for (uint32_t n = 1; !done; n++) {
        world w = {0};
        how = (dart_device_options){.spec = "null", .threads = 1, .fail_at = n, .lose = true};
        done = true;
        for (uint32_t i = 0; i < STEPS && done; i++) {
            dart_status status;
            if (steps[i].run == feed) {
                status = dart_prefill(w.state, &(dart_prefill_args){.ids = ids, .L = L});
                if (status == DART_OK) status = dart_decode(w.state, &(dart_decode_args){.ids = ids});
            } else if (steps[i].run == submit_again || steps[i].run == reset || steps[i].run == values) {
                continue;
            } else {
                status = steps[i].run(&w);
            }
            if (status == DART_OK) continue;
            done = false;
            lost++;
            if (status != DART_DEVICE_LOST) fail_msg("call %u, %s: %s", n, steps[i].name, dart_status_name(status));
            if (w.device == NULL) break;
            dart_buffer *buffer = NULL;
            dart_stream *stream = NULL;
            dart_model *model = NULL;
            dart_state *state = NULL;
            dart_trainer *trainer = NULL;
            char byte = 0;
            assert_int_equal(dart_buffer_create(w.device, 4, &buffer), DART_DEVICE_LOST);
            assert_int_equal(dart_stream_create(w.device, NULL, &stream), DART_DEVICE_LOST);
            assert_int_equal(dart_model_random(w.device, &config, 5, NULL, &model), DART_DEVICE_LOST);
            assert_int_equal(dart_trainer_create(w.device, &config, &training, &trainer), DART_DEVICE_LOST);
            assert_true(buffer == NULL && stream == NULL && model == NULL && trainer == NULL);
            if (w.buffers[0] != NULL) {
                assert_int_equal(dart_buffer_write(w.buffers[0], 0, &byte, 1), DART_DEVICE_LOST);
                assert_int_equal(dart_buffer_read(w.buffers[0], 0, &byte, 1), DART_DEVICE_LOST);
            }
            if (w.stream != NULL) {
                assert_int_equal(dart_stream_begin(w.stream), DART_DEVICE_LOST);
                assert_int_equal(dart_stream_submit(w.stream), DART_DEVICE_LOST);
            }
            if (w.model != NULL) assert_int_equal(dart_state_create(w.model, NULL, &state), DART_DEVICE_LOST);
            if (w.state != NULL) {
                assert_int_equal(dart_prefill(w.state, &(dart_prefill_args){.ids = ids, .L = 1}), DART_DEVICE_LOST);
                assert_int_equal(dart_decode(w.state, &(dart_decode_args){.ids = ids}), DART_DEVICE_LOST);
                assert_int_not_equal(dart_state_reset(w.state, -1), DART_OK);
            }
            /* Another device of the same context is not affected. */
            dart_device *other = NULL;
            assert_int_equal(dart_device_open(w.context, &(dart_device_options){.spec = "null"}, &other), DART_OK);
            assert_int_equal(dart_buffer_create(other, 4, &buffer), DART_OK);
            dart_buffer_destroy(&buffer);
            dart_device_destroy(&other);
        }
        end(&w);
    }
    assert_true(lost > 100);
    print_message("  lost %u times\n", lost);
}

/* ---- Failures that the backend reports itself ---- */

/* The device's backend but for one function; one device at a time. */
static struct faulty {
    const backend *real;
    backend fake;
    dart_status gives; /* DART_OK: the real function's */
} faulty;

static void make_faulty(dart_device *device)
{
    faulty = (struct faulty){.real = device->backend, .fake = *device->backend};
    device->backend = &faulty.fake;
}

static dart_status faulty_launch(void *device, void *stream, const backend_launch *launch)
{
    return faulty.gives != DART_OK ? faulty.gives : faulty.real->stream_launch(device, stream, launch);
}
static dart_status faulty_submit(void *device, void *stream, uint32_t times, const backend_order *order)
{
    return faulty.gives != DART_OK ? faulty.gives : faulty.real->stream_submit(device, stream, times, order);
}
static dart_status faulty_wait(void *device, void *stream, uint64_t timeout_ns)
{
    return faulty.gives != DART_OK ? faulty.gives : faulty.real->stream_wait(device, stream, timeout_ns);
}
static dart_status faulty_begin(void *device, void *stream)
{
    return faulty.gives != DART_OK ? faulty.gives : faulty.real->stream_begin(device, stream);
}
static dart_status faulty_create(void *device, uint64_t bytes, void **memory)
{
    return faulty.gives != DART_OK ? faulty.gives : faulty.real->memory_create(device, bytes, memory);
}
static dart_status faulty_write(void *device, void *memory, uint64_t offset, const void *data, uint64_t bytes)
{
    return faulty.gives != DART_OK ? faulty.gives : faulty.real->memory_write(device, memory, offset, data, bytes);
}
static dart_status faulty_read(void *device, void *memory, uint64_t offset, void *data, uint64_t bytes)
{
    return faulty.gives != DART_OK ? faulty.gives : faulty.real->memory_read(device, memory, offset, data, bytes);
}

static void open_world(world *w)
{
    how = (dart_device_options){.spec = rig_spec, .threads = 1};
    *w = (world){0};
    assert_int_equal(make_context(w), DART_OK);
    assert_int_equal(open_device(w), DART_OK);
    make_faulty(w->device);
}

/* A loss that the backend tells of once, in whichever call, is the device's from then on, though the backend tells of none any more. */
static void remembers_a_loss(void **unused)
{
    (void)unused;
    enum { LAUNCH, SUBMIT, WAIT, BEGIN, CREATE, WRITE, READ, CALLS };
    for (int call = 0; call < CALLS; call++) {
        world w;
        float value = 0;
        dart_buffer *buffer = NULL;
        open_world(&w);
        assert_int_equal(make_buffers(&w), DART_OK);
        assert_int_equal(make_stream(&w), DART_OK);
        if (call == LAUNCH) faulty.fake.stream_launch = faulty_launch;
        if (call == SUBMIT) faulty.fake.stream_submit = faulty_submit;
        if (call == WAIT) faulty.fake.stream_wait = faulty_wait;
        if (call == BEGIN) faulty.fake.stream_begin = faulty_begin;
        if (call == CREATE) faulty.fake.memory_create = faulty_create;
        if (call == WRITE) faulty.fake.memory_write = faulty_write;
        if (call == READ) faulty.fake.memory_read = faulty_read;
        faulty.gives = DART_DEVICE_LOST;
        dart_status status;
        if (call == CREATE) status = dart_buffer_create(w.device, 4, &buffer);
        else if (call == WRITE) status = dart_buffer_write(w.buffers[0], 0, &value, sizeof value);
        else if (call == READ) status = dart_buffer_read(w.buffers[0], 0, &value, sizeof value);
        else status = do_fill(&w);
        assert_int_equal(status, DART_DEVICE_LOST);
        faulty.gives = DART_OK;
        assert_int_equal(dart_buffer_create(w.device, 4, &buffer), DART_DEVICE_LOST);
        assert_int_equal(dart_buffer_write(w.buffers[0], 0, &value, sizeof value), DART_DEVICE_LOST);
        assert_int_equal(dart_stream_begin(w.stream), DART_DEVICE_LOST);
        end(&w);
    }
}

static uint32_t submissions_left; /* until the device is lost; 0: it is not */

static dart_status losing_submit(void *device, void *stream, uint32_t times, const backend_order *order)
{
    if (submissions_left > 0 && --submissions_left == 0) return DART_DEVICE_LOST;
    return faulty.real->stream_submit(device, stream, times, order);
}

/* Goes on with the run in the folder, or begins it, and saves it after each step. Whether it came to its end before the device was lost. */
static bool run_on(const char *folder, bool begun, uint32_t lost_at)
{
    enum { RUN_STEPS = 4 };
    world w;
    open_world(&w);
    faulty.fake.stream_submit = losing_submit;
    submissions_left = lost_at;
    dart_status status = begun ? dart_trainer_resume(w.device, folder, &training, &w.trainer) : make_trainer(&w);
    while (status == DART_OK && dart_trainer_steps(w.trainer) < RUN_STEPS) {
        status = dart_trainer_step(w.trainer, &batch, 1e-2, NULL);
        if (status == DART_OK) status = dart_trainer_save(w.trainer, folder, "a note");
    }
    submissions_left = 0;
    if (status != DART_OK) assert_int_equal(status, DART_DEVICE_LOST);
    end(&w);
    return status == DART_OK;
}

static void read_run(const char *folder, char *data, size_t room, size_t *bytes)
{
    char path[80];
    snprintf(path, sizeof path, "%s/training.safetensors", folder);
    FILE *file = fopen(path, "rb");
    *bytes = file != NULL ? fread(data, 1, room, file) : 0;
    assert_true(*bytes < room);
    if (file != NULL) fclose(file);
}

/* Whenever the device is lost, the run goes on on another one to the same bits. */
static void a_run_outlives_its_device(void **unused)
{
    (void)unused;
    enum { FILE_ROOM = 1 << 20, STRIDE = 2 };
    static char expected[FILE_ROOM], got[FILE_ROOM];
    size_t expected_bytes = 0, bytes = 0;
    uint32_t losses = 0;
    for (uint32_t lost_at = 0;; lost_at += STRIDE) {
        char folder[] = "fault_calls.XXXXXX", path[80];
        assert_non_null(mkdtemp(folder));
        const bool whole = run_on(folder, false, lost_at);
        read_run(folder, got, FILE_ROOM, &bytes);
        if (!whole) assert_true(run_on(folder, bytes > 0, 0));
        read_run(folder, got, FILE_ROOM, &bytes);
        if (lost_at == 0) {
            memcpy(expected, got, bytes);
            expected_bytes = bytes;
        }
        assert_int_equal(bytes, expected_bytes);
        assert_memory_equal(got, expected, bytes);
        for (const char *const *name = (const char *const[]){"config.json", "training.safetensors", NULL}; *name != NULL; name++) {
            snprintf(path, sizeof path, "%s/%s", folder, *name);
            assert_int_equal(remove(path), 0);
        }
        assert_int_equal(rmdir(folder), 0);
        losses += !whole;
        if (whole && lost_at > 0) break;
    }
    print_message("  lost %u times\n", losses);
    assert_true(losses > 10);
}

/* A reset of one sequence whose end is not seen leaves a state that only a reset of all makes whole. */
static void a_reset_that_times_out_breaks_the_state(void **unused)
{
    (void)unused;
    world w;
    const int32_t token[B] = {1, 2};
    open_world(&w);
    assert_int_equal(make_model(&w), DART_OK);
    assert_int_equal(make_state(&w), DART_OK);
    assert_int_equal(dart_prefill(w.state, &(dart_prefill_args){.ids = ids, .L = L}), DART_OK);
    faulty.fake.stream_wait = faulty_wait;
    faulty.gives = DART_TIMEOUT;
    assert_int_equal(dart_state_reset(w.state, 0), DART_TIMEOUT);
    faulty.gives = DART_OK;
    assert_int_equal(dart_decode(w.state, &(dart_decode_args){.ids = token}), DART_TIMEOUT);
    assert_int_equal(dart_prefill(w.state, &(dart_prefill_args){.ids = ids, .L = 1}), DART_TIMEOUT);
    assert_int_equal(dart_state_reset(w.state, 1), DART_TIMEOUT);
    assert_int_equal(dart_state_reset(w.state, -1), DART_OK);
    assert_int_equal(dart_state_position(w.state, 1), 0);
    assert_int_equal(dart_decode(w.state, &(dart_decode_args){.ids = token}), DART_OK);
    end(&w);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_call_fails_once),
        cmocka_unit_test(a_lost_device_stays_lost),
        cmocka_unit_test(remembers_a_loss),
        cmocka_unit_test(a_reset_that_times_out_breaks_the_state),
        cmocka_unit_test(a_run_outlives_its_device), /* not on the null device, whose gradients are not finite: it skips every step */
    };
    const size_t count = sizeof tests / sizeof tests[0] - (argc > 1 && strcmp(argv[1], "null") == 0);
    if (argc > 2) data_folder = argv[2];
    return rig_main(argc > 2 ? 2 : argc, argv, "fault_calls", tests, count);
}
