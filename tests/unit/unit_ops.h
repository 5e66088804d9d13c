/* What the files of unit_ops share: right calls of every op, and macros that change one thing of them. */
#ifndef DARTLM_TESTS_UNIT_OPS_H
#define DARTLM_TESTS_UNIT_OPS_H

#include "rig.h"

enum { B = 2, L = 8, H = 4, G = 2, N = 4, P = 8, S = 4, I = H * P, M = 2, T = B * L, V = 16, K = 4, ROOM = 1 << 16 };

extern rig r, other;
extern dart_tensor f32, f16, i32, foreign; /* foreign: of `other` */
extern dart_memories run;

/* `status` is what the op said of the change. */
static inline void check_refusal(dart_status status, const char *op, const char *change)
{
    char text[512], again[512];
    const uint32_t launches = dart_stream_launches(r.stream);
    if (status != DART_INVALID_ARGUMENT) fail_msg("%s with %s: %s", op, change, dart_status_name(status));
    dart_stream_error(r.stream, text, sizeof text);
    if (strncmp(text, op, strlen(op)) != 0) fail_msg("%s with %s: '%s' does not name it", op, change, text);
    if (launches != 0 || r.lines_count != 0) fail_msg("%s with %s: recorded %s", op, change, r.lines[0]);
    assert_int_equal(dart_fill(r.stream, &(dart_fill_args){.T = 1, .W = 1, .y = f32}), DART_INVALID_ARGUMENT);
    assert_int_equal(dart_stream_launches(r.stream), 0);
    assert_int_equal(dart_stream_submit(r.stream), DART_INVALID_ARGUMENT);
    dart_stream_error(r.stream, again, sizeof again);
    assert_string_equal(again, text);
    rig_begin(&r);
}

static inline void check_good(dart_status status, const char *op)
{
    char text[512];
    dart_stream_error(r.stream, text, sizeof text);
    if (status != DART_OK) fail_msg("%s: %s: %s", op, dart_status_name(status), text);
    assert_true(dart_stream_launches(r.stream) > 0);
    rig_run(&r);
}

#define GOOD(op, ...) \
    do { \
        dart_##op##_args a = good_##op(); \
        __VA_ARGS__; \
        check_good(dart_##op(r.stream, &a), "dart_" #op " with " #__VA_ARGS__); \
    } while (0)
#define BAD(op, ...) \
    do { \
        dart_##op##_args a = good_##op(); \
        __VA_ARGS__; \
        check_refusal(dart_##op(r.stream, &a), "dart_" #op, #__VA_ARGS__); \
    } while (0)
/* What no tensor of any op may be. */
#define BAD_TENSOR(op, name) \
    do { \
        BAD(op, a.name = foreign); \
        BAD(op, a.name.dtype = (dart_dtype)6); \
        BAD(op, a.name.dtype = (dart_dtype)-1); \
        BAD(op, a.name.offset = UINT64_MAX); \
        BAD(op, a.name.offset = UINT64_MAX / 4); \
        BAD(op, a.name.offset = ROOM); \
        BAD(op, a.name.row = 1u << 31 | 1); \
        BAD(op, a.name.row = UINT64_MAX); \
    } while (0)
#define BAD_FLOATS(op, name) \
    do { \
        BAD(op, a.name = i32); \
        BAD(op, a.name.dtype = DART_Q8, a.name.offset = 8); \
        BAD_TENSOR(op, name); \
    } while (0)
#define BAD_INTS(op, name) \
    do { \
        BAD(op, a.name = f32); \
        BAD(op, a.name.row = 3); \
        BAD_TENSOR(op, name); \
    } while (0)
#define BAD_F32(op, name) \
    do { \
        BAD(op, a.name = f16); \
        BAD(op, a.name.offset = 63); \
        BAD_FLOATS(op, name); \
    } while (0)
#define PACKED(op, name) BAD(op, a.name.row = 4096)
#define NEEDED(op, name) BAD(op, a.name.buffer = NULL)

static inline dart_fill_args good_fill(void) { return (dart_fill_args){.T = T, .W = I, .y = f32}; }
static inline dart_convert_args good_convert(void) { return (dart_convert_args){.T = T, .W = I, .x = f32, .y = f16}; }
static inline dart_embed_args good_embed(void) { return (dart_embed_args){.T = T, .V = V, .W = I, .ids = i32, .weight = f32, .y = f32}; }
static inline dart_rms_norm_args good_rms_norm(void) { return (dart_rms_norm_args){.T = T, .W = I, .eps = 1e-5f, .x = f32, .weight = f32, .y = f32}; }
static inline dart_layer_norm_args good_layer_norm(void)
{
    return (dart_layer_norm_args){.T = T, .W = I, .eps = 1e-5f, .x = f32, .weight = f32, .bias = f32, .y = f32};
}
static inline dart_gated_norm_args good_gated_norm(void)
{
    return (dart_gated_norm_args){.T = T, .I = I, .eps = 1e-5f, .y = f32, .r = f32, .gate = f32, .z = f32, .weight = f32, .out = f32};
}
static inline dart_linear_args good_linear(void) { return (dart_linear_args){.T = T, .IN = I, .OUT = V, .x = f32, .weight = f16, .y = f32}; }
static inline dart_conv_args good_conv(void)
{
    return (dart_conv_args){.B = B, .L = L, .C = I, .K = K, .x = f32, .weight = f32, .bias = f32, .tail = f32, .seq = i32, .y = f32};
}
typedef dart_conv_args dart_conv_tail_args;
static inline dart_conv_tail_args good_conv_tail(void) { return good_conv(); }
static inline dart_ssd_args good_ssd(void)
{
    run = (dart_memories){.M = M, .dh = f16, .scale = f32};
    return (dart_ssd_args){.B = B, .L = L, .H = H, .G = G, .N = N, .P = P, .S = S, .x = f32, .dt = f32, .b = f32, .c = f32, .a_log = f32,
                           .dt_bias = f32, .d = f32, .seq = i32, .h = f32, .open = f32, .open_decay = f32, .y = f32, .dh = f16,
                           .dh_scale = f32, .cum = f32, .decay = f32, .hin = f16, .hin_scale = f32};
}
static inline dart_sma_args good_sma(void)
{
    run = (dart_memories){.M = M, .dh = f32, .scale = f32};
    return (dart_sma_args){.B = B, .L = L, .H = H, .G = G, .N = N, .P = P, .S = S, .eps = 1e-5f, .q = f32, .e = f32, .c = f32, .seq = i32,
                           .memories = &run, .memories_count = 1, .r = f32, .lse = f32, .qn = f32, .en = f32};
}
static inline dart_sma_append_args good_sma_append(void)
{
    return (dart_sma_append_args){.B = B, .L = L, .H = H, .N = N, .P = P, .S = S, .eps = 1e-5f, .dh = f32, .seq = i32,
                                  .to = {.M = M, .dh = f16, .scale = f32}};
}
static inline dart_attention_args good_attention(void)
{
    return (dart_attention_args){.B = B, .L = L, .H = H, .G = G, .D = P, .C = 2 * L, .q = f32, .k = f16, .v = f16, .seq = i32, .o = f32, .lse = f32};
}
static inline dart_kv_append_args good_kv_append(void)
{
    return (dart_kv_append_args){.B = B, .L = L, .G = G, .D = P, .C = 2 * L, .k = f32, .v = f32, .seq = i32, .to_k = f16, .to_v = f16};
}
static inline dart_argmax_args good_argmax(void) { return (dart_argmax_args){.T = T, .V = V, .logits = f32, .ids = i32}; }
static inline dart_sample_args good_sample(void)
{
    return (dart_sample_args){.T = T, .V = V, .logits = f32, .settings = i32, .seq = i32, .seen = i32, .ids = i32};
}
static inline dart_mark_ids_args good_mark_ids(void)
{
    return (dart_mark_ids_args){.B = B, .L = L, .V = 100, .ids = i32, .seq = i32, .seen = i32};
}
static inline dart_log_probs_args good_log_probs(void)
{
    return (dart_log_probs_args){.T = T, .V = V, .k = 4, .logits = f32, .targets = i32, .log_z = f32, .target = f32, .top_ids = i32, .top = f32};
}
static inline dart_advance_args good_advance(void)
{
    return (dart_advance_args){.B = B, .slots = 4, .seq = i32, .ids = i32, .log = i32, .stops = i32, .live = i32};
}
static inline dart_norm_linear_args good_norm_linear(void)
{
    return (dart_norm_linear_args){.T = T, .IN = I, .OUT = V, .eps = 1e-5f, .x = f32, .norm = f32, .weight = f16, .y = f32};
}
static inline dart_mixer_step_args good_mixer_step(void)
{
    run = (dart_memories){.M = M, .dh = f16, .scale = f32};
    return (dart_mixer_step_args){.B = B, .W = 16, .H = H, .G = G, .N = N, .P = P, .K = K, .S = S, .eps = 1e-5f, .sma_eps = 1e-5f, .x = f32,
                                  .seq = i32, .norm = f32, .in_proj = f16, .conv_weight = f32, .conv_bias = f32, .dt_bias = f32, .a_log = f32,
                                  .d = f32, .mixer_norm = f32, .out_proj = f16, .sma_proj = f16, .sma_conv_weight = f32, .sma_conv_bias = f32,
                                  .tail = f16, .sma_tail = f16, .h = f32, .open = f32, .open_decay = f32, .memories = &run, .closing = &run,
                                  .memories_count = 1, .closing_count = 1, .proj = f32, .queries = f32, .y = f32};
}
typedef dart_window_args dart_window_append_args, dart_window_output_args, dart_window_fold_args;
static inline dart_window_args good_window_fold(void)
{
    run = (dart_memories){.M = M, .dh = f16, .scale = f32};
    return (dart_window_args){.B = B, .H = H, .G = G, .N = 8, .P = P, .K = K, .S = S, .eps = 1e-5f, .x = f32, .dt = f32, .conv_weight = f32,
                              .conv_bias = f32, .tail = f16, .a_log = f32, .dt_bias = f32, .d = f32, .seq = i32, .conv = f32, .y = f32, .h = f32,
                              .open = f32, .open_decay = f32, .rows = f16, .steps = f32, .hin = f16, .hin_scale = f32, .closing = &run,
                              .closing_count = 1};
}
static inline dart_window_args good_window_append(void) { return good_window_fold(); }
static inline dart_window_args good_window_output(void) { return good_window_fold(); }

/* The tests of unit_ops_sequences.c. */
void mixer(void **unused);
void window(void **unused);
void ssd(void **unused);
void sma(void **unused);
void attention(void **unused);

#endif
