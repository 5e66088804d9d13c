/* Wrong calls of ops: refused with a text that names the op, nothing recorded, until the stream begins anew. */
#include "rig.h"

#include <math.h>

enum { B = 2, L = 8, H = 4, G = 2, N = 4, P = 8, S = 4, I = H * P, M = 2, T = B * L, V = 16, K = 4, ROOM = 1 << 16 };
#define HUGE UINT32_MAX

static rig r, other;
static dart_tensor f32, f16, i32, foreign;

static int set_up(void **state)
{
    (void)state;
    rig_open(&r, "null");
    rig_open(&other, "null");
    f32 = rig_tensor(&r, DART_F32, ROOM, NULL);
    f16 = rig_tensor(&r, DART_F16, ROOM, NULL);
    i32 = rig_tensor(&r, DART_I32, ROOM, NULL);
    foreign = rig_tensor(&other, DART_F32, ROOM, NULL);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    rig_close(&other);
    rig_close(&r);
    return 0;
}

/* `status` is what the op said of the change. */
static void check_refusal(dart_status status, const char *op, const char *change)
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

static void check_good(dart_status status, const char *op)
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
        BAD(op, a.name.dtype = (dart_dtype)4); \
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

static dart_fill_args good_fill(void) { return (dart_fill_args){.T = T, .W = I, .y = f32}; }
static dart_convert_args good_convert(void) { return (dart_convert_args){.T = T, .W = I, .x = f32, .y = f16}; }
static dart_embed_args good_embed(void) { return (dart_embed_args){.T = T, .V = V, .W = I, .ids = i32, .weight = f32, .y = f32}; }
static dart_rms_norm_args good_rms_norm(void) { return (dart_rms_norm_args){.T = T, .W = I, .eps = 1e-5f, .x = f32, .weight = f32, .y = f32}; }
static dart_gated_norm_args good_gated_norm(void)
{
    return (dart_gated_norm_args){.T = T, .I = I, .eps = 1e-5f, .y = f32, .r = f32, .gate = f32, .z = f32, .weight = f32, .out = f32};
}
static dart_linear_args good_linear(void) { return (dart_linear_args){.T = T, .IN = I, .OUT = V, .x = f32, .weight = f16, .y = f32}; }
static dart_conv_args good_conv(void)
{
    return (dart_conv_args){.B = B, .L = L, .C = I, .K = K, .x = f32, .weight = f32, .bias = f32, .tail = f32, .seq = i32, .y = f32};
}
typedef dart_conv_args dart_conv_tail_args;
static dart_conv_tail_args good_conv_tail(void) { return good_conv(); }
static dart_memories run;
static dart_ssd_args good_ssd(void)
{
    run = (dart_memories){.M = M, .dh = f16, .scale = f32};
    return (dart_ssd_args){.B = B, .L = L, .H = H, .G = G, .N = N, .P = P, .S = S, .x = f32, .dt = f32, .b = f32, .c = f32, .a_log = f32,
                           .dt_bias = f32, .d = f32, .seq = i32, .h = f32, .open = f32, .open_decay = f32, .y = f32, .dh = f16,
                           .dh_scale = f32, .cum = f32, .decay = f32, .hin = f16, .hin_scale = f32};
}
static dart_sma_args good_sma(void)
{
    run = (dart_memories){.M = M, .dh = f32, .scale = f32};
    return (dart_sma_args){.B = B, .L = L, .H = H, .G = G, .N = N, .P = P, .S = S, .eps = 1e-5f, .q = f32, .e = f32, .c = f32, .seq = i32,
                           .memories = &run, .memories_count = 1, .r = f32, .lse = f32, .qn = f32, .en = f32};
}
static dart_sma_append_args good_sma_append(void)
{
    return (dart_sma_append_args){.B = B, .L = L, .H = H, .N = N, .P = P, .S = S, .eps = 1e-5f, .dh = f32, .seq = i32,
                                  .to = {.M = M, .dh = f16, .scale = f32}};
}
static dart_attention_args good_attention(void)
{
    return (dart_attention_args){.B = B, .L = L, .H = H, .G = G, .D = P, .C = 2 * L, .q = f32, .k = f16, .v = f16, .seq = i32, .o = f32, .lse = f32};
}
static dart_kv_append_args good_kv_append(void)
{
    return (dart_kv_append_args){.B = B, .L = L, .G = G, .D = P, .C = 2 * L, .k = f32, .v = f32, .seq = i32, .to_k = f16, .to_v = f16};
}
static dart_argmax_args good_argmax(void) { return (dart_argmax_args){.T = T, .V = V, .logits = f32, .ids = i32}; }
static dart_sample_args good_sample(void)
{
    return (dart_sample_args){.T = T, .V = V, .logits = f32, .settings = i32, .seq = i32, .seen = i32, .ids = i32};
}
static dart_mark_ids_args good_mark_ids(void) { return (dart_mark_ids_args){.B = B, .L = L, .V = 100, .ids = i32, .seq = i32, .seen = i32}; }
static dart_log_probs_args good_log_probs(void)
{
    return (dart_log_probs_args){.T = T, .V = V, .k = 4, .logits = f32, .targets = i32, .log_z = f32, .target = f32, .top_ids = i32, .top = f32};
}
static dart_advance_args good_advance(void)
{
    return (dart_advance_args){.B = B, .slots = 4, .seq = i32, .ids = i32, .log = i32, .stops = i32, .live = i32};
}
static dart_norm_linear_args good_norm_linear(void)
{
    return (dart_norm_linear_args){.T = T, .IN = I, .OUT = V, .eps = 1e-5f, .x = f32, .norm = f32, .weight = f16, .y = f32};
}
static dart_mixer_step_args good_mixer_step(void)
{
    run = (dart_memories){.M = M, .dh = f16, .scale = f32};
    return (dart_mixer_step_args){.B = B, .W = 16, .H = H, .G = G, .N = N, .P = P, .K = K, .S = S, .eps = 1e-5f, .sma_eps = 1e-5f, .x = f32,
                                  .seq = i32, .norm = f32, .in_proj = f16, .conv_weight = f32, .conv_bias = f32, .dt_bias = f32, .a_log = f32,
                                  .d = f32, .mixer_norm = f32, .out_proj = f16, .sma_proj = f16, .sma_conv_weight = f32, .sma_conv_bias = f32,
                                  .tail = f16, .sma_tail = f16, .h = f32, .open = f32, .open_decay = f32, .memories = &run, .closing = &run,
                                  .memories_count = 1, .closing_count = 1, .proj = f32, .queries = f32, .y = f32};
}
typedef dart_window_args dart_window_append_args, dart_window_output_args, dart_window_fold_args;
static dart_window_args good_window_fold(void)
{
    run = (dart_memories){.M = M, .dh = f16, .scale = f32};
    return (dart_window_args){.B = B, .H = H, .G = G, .N = 8, .P = P, .K = K, .S = S, .eps = 1e-5f, .x = f32, .dt = f32, .conv_weight = f32,
                              .conv_bias = f32, .tail = f16, .a_log = f32, .dt_bias = f32, .d = f32, .seq = i32, .conv = f32, .y = f32, .h = f32,
                              .open = f32, .open_decay = f32, .rows = f16, .steps = f32, .hin = f16, .hin_scale = f32, .closing = &run,
                              .closing_count = 1};
}
static dart_window_args good_window_append(void) { return good_window_fold(); }
static dart_window_args good_window_output(void) { return good_window_fold(); }

static void rows(void **unused)
{
    (void)unused;
    GOOD(fill, a.T = T);
    GOOD(fill, a.y = i32);
    BAD(fill, a.T = 0);
    BAD(fill, a.W = 0);
    BAD(fill, a.W = ROOM + 1);
    BAD(fill, a.T = HUGE, a.W = HUGE);
    BAD(fill, a.y.row = I - 1);
    NEEDED(fill, y);
    BAD_TENSOR(fill, y);
    GOOD(convert, a.x.row = 2 * I);
    BAD(convert, a.T = 0);
    BAD(convert, a.W = 0);
    BAD(convert, a.T = HUGE, a.W = HUGE);
    BAD(convert, a.x.row = I - 1);
    NEEDED(convert, x);
    NEEDED(convert, y);
    BAD_FLOATS(convert, x);
    BAD_FLOATS(convert, y);
    GOOD(embed, a.weight = f16);
    BAD(embed, a.T = 0);
    BAD(embed, a.V = 0);
    BAD(embed, a.V = 1u << 31, a.W = 1);
    BAD(embed, a.W = 0);
    BAD(embed, a.V = ROOM / I + 1);
    BAD(embed, a.ids.offset = ROOM - T + 1);
    PACKED(embed, weight);
    NEEDED(embed, ids);
    NEEDED(embed, weight);
    NEEDED(embed, y);
    BAD_INTS(embed, ids);
    BAD_FLOATS(embed, weight);
    BAD_FLOATS(embed, y);
}

static void norms(void **unused)
{
    (void)unused;
    GOOD(rms_norm, a.rows = i32);
    GOOD(rms_norm, a.x.row = 2 * I);
    BAD(rms_norm, a.T = 0);
    BAD(rms_norm, a.W = 0);
    BAD(rms_norm, a.eps = 0);
    BAD(rms_norm, a.eps = -1);
    BAD(rms_norm, a.eps = NAN);
    PACKED(rms_norm, weight);
    NEEDED(rms_norm, x);
    NEEDED(rms_norm, weight);
    NEEDED(rms_norm, y);
    BAD_FLOATS(rms_norm, x);
    BAD_FLOATS(rms_norm, weight);
    BAD_FLOATS(rms_norm, y);
    BAD(rms_norm, a.rows = f32);
    BAD(rms_norm, a.rows = i32, a.rows.offset = ROOM - T + 1);
    BAD(rms_norm, a.rows = i32, a.rows.row = T + 1);
    GOOD(gated_norm, a.gate.row = 7);
    GOOD(gated_norm, a.r.buffer = NULL, a.gate.buffer = NULL);
    BAD(gated_norm, a.T = 0);
    BAD(gated_norm, a.I = 0);
    BAD(gated_norm, a.eps = 0);
    BAD(gated_norm, a.eps = NAN);
    BAD(gated_norm, a.r.buffer = NULL);
    BAD(gated_norm, a.gate.buffer = NULL);
    PACKED(gated_norm, weight);
    NEEDED(gated_norm, y);
    NEEDED(gated_norm, z);
    NEEDED(gated_norm, weight);
    NEEDED(gated_norm, out);
    BAD_FLOATS(gated_norm, y);
    BAD_FLOATS(gated_norm, r);
    BAD_FLOATS(gated_norm, gate);
    BAD_FLOATS(gated_norm, z);
    BAD_FLOATS(gated_norm, weight);
    BAD_FLOATS(gated_norm, out);
}

static void linear_and_conv(void **unused)
{
    (void)unused;
    GOOD(linear, a.add = true);
    BAD(linear, a.T = 0);
    BAD(linear, a.IN = 0);
    BAD(linear, a.OUT = 0);
    BAD(linear, a.T = HUGE, a.IN = HUGE, a.OUT = HUGE);
    BAD(linear, a.x.row = I - 1);
    BAD(linear, a.y.row = V - 1);
    PACKED(linear, weight);
    NEEDED(linear, x);
    NEEDED(linear, weight);
    NEEDED(linear, y);
    BAD_FLOATS(linear, x);
    BAD_FLOATS(linear, weight);
    BAD_FLOATS(linear, y);
    GOOD(conv, a.L = 1);
    GOOD(conv, a.seq.buffer = NULL, a.tail.buffer = NULL, a.bias.buffer = NULL);
    BAD(conv, a.B = 0);
    BAD(conv, a.L = 0);
    BAD(conv, a.C = 0);
    BAD(conv, a.K = 1);
    BAD(conv, a.K = 9);
    BAD(conv, a.B = HUGE, a.L = HUGE);
    BAD(conv, a.x.row = I - 1);
    BAD(conv, a.seq.offset = ROOM - 2 * B + 1);
    PACKED(conv, weight);
    PACKED(conv, tail);
    NEEDED(conv, x);
    NEEDED(conv, weight);
    NEEDED(conv, y);
    BAD_FLOATS(conv, x);
    BAD_FLOATS(conv, weight);
    BAD_FLOATS(conv, bias);
    BAD_FLOATS(conv, tail);
    BAD_FLOATS(conv, y);
    BAD_INTS(conv, seq);
    GOOD(conv_tail, a.seq.buffer = NULL, a.weight.buffer = NULL, a.y.buffer = NULL);
    BAD(conv_tail, a.L = 0);
    BAD(conv_tail, a.K = 9);
    PACKED(conv_tail, tail);
    NEEDED(conv_tail, x);
    NEEDED(conv_tail, tail);
    BAD_FLOATS(conv_tail, x);
    BAD_FLOATS(conv_tail, tail);
    BAD_INTS(conv_tail, seq);
}

static void mixer(void **unused)
{
    (void)unused;
    GOOD(norm_linear, a.x.row = 2 * I);
    BAD(norm_linear, a.T = 0);
    BAD(norm_linear, a.IN = 0);
    BAD(norm_linear, a.OUT = 0);
    BAD(norm_linear, a.eps = 0);
    BAD(norm_linear, a.eps = NAN);
    PACKED(norm_linear, norm);
    PACKED(norm_linear, weight);
    NEEDED(norm_linear, x);
    NEEDED(norm_linear, norm);
    NEEDED(norm_linear, weight);
    NEEDED(norm_linear, y);
    BAD_FLOATS(norm_linear, x);
    BAD_FLOATS(norm_linear, norm);
    BAD_FLOATS(norm_linear, weight);
    BAD_FLOATS(norm_linear, y);
    GOOD(mixer_step, a.B = 5);
    GOOD(mixer_step, a.proj.buffer = a.queries.buffer = a.y.buffer = NULL);
    GOOD(mixer_step, a.conv_bias.buffer = a.sma_conv_bias.buffer = NULL);
    GOOD(mixer_step, a.memories_count = a.closing_count = 0);
    /* Without attention all of it is absent, and seq may be. */
    GOOD(mixer_step, a.sma_proj.buffer = a.open.buffer = a.open_decay.buffer = a.seq.buffer = NULL, a.memories_count = a.closing_count = 0);
    BAD(mixer_step, a.sma_proj.buffer = NULL);
    BAD(mixer_step, a.open.buffer = NULL);
    BAD(mixer_step, a.open_decay.buffer = NULL);
    BAD(mixer_step, a.seq.buffer = NULL);
    BAD(mixer_step, a.sma_proj.buffer = a.open.buffer = a.open_decay.buffer = NULL);
    BAD(mixer_step, a.memories = NULL);
    BAD(mixer_step, a.closing = NULL);
    BAD(mixer_step, run.M = 0);
    BAD(mixer_step, run.scale.buffer = NULL);
    BAD(mixer_step, run.dh.offset = ROOM);
    BAD(mixer_step, a.B = 0);
    BAD(mixer_step, a.W = 0);
    BAD(mixer_step, a.H = 0);
    BAD(mixer_step, a.G = 3);
    BAD(mixer_step, a.N = 257);
    BAD(mixer_step, a.P = 257);
    BAD(mixer_step, a.K = 1);
    BAD(mixer_step, a.K = 9);
    BAD(mixer_step, a.S = 0);
    BAD(mixer_step, a.S = HUGE);
    BAD(mixer_step, a.eps = 0);
    BAD(mixer_step, a.sma_eps = NAN);
    BAD(mixer_step, a.dt_min = -1);
    BAD(mixer_step, a.dt_min = 2, a.dt_max = 1);
    BAD(mixer_step, a.B = HUGE);
    BAD(mixer_step, a.H = 1u << 30);
    PACKED(mixer_step, in_proj);
    PACKED(mixer_step, tail);
    PACKED(mixer_step, proj);
    NEEDED(mixer_step, x);
    NEEDED(mixer_step, norm);
    NEEDED(mixer_step, in_proj);
    NEEDED(mixer_step, conv_weight);
    NEEDED(mixer_step, dt_bias);
    NEEDED(mixer_step, a_log);
    NEEDED(mixer_step, d);
    NEEDED(mixer_step, mixer_norm);
    NEEDED(mixer_step, out_proj);
    NEEDED(mixer_step, sma_conv_weight);
    NEEDED(mixer_step, tail);
    NEEDED(mixer_step, sma_tail);
    NEEDED(mixer_step, h);
    BAD_FLOATS(mixer_step, x);
    BAD_FLOATS(mixer_step, in_proj);
    BAD_FLOATS(mixer_step, conv_weight);
    BAD_FLOATS(mixer_step, dt_bias);
    BAD_FLOATS(mixer_step, out_proj);
    BAD_FLOATS(mixer_step, sma_proj);
    BAD_FLOATS(mixer_step, tail);
    BAD_FLOATS(mixer_step, sma_tail);
    BAD_F32(mixer_step, h);
    BAD_F32(mixer_step, open);
    BAD_F32(mixer_step, open_decay);
    BAD(mixer_step, a.proj = f16);
    BAD(mixer_step, a.queries = f16);
    BAD(mixer_step, a.y = f16);
    BAD_INTS(mixer_step, seq);
}

static void window(void **unused)
{
    (void)unused;
    GOOD(window_append, a.conv_bias.buffer = a.dt_bias.buffer = NULL);
    GOOD(window_append, a.x.row = 500, a.dt.row = 9, a.conv.row = 77);
    GOOD(window_output, a.d.buffer = NULL);
    GOOD(window_output, a.hin = f32, a.hin_scale.buffer = NULL);
    GOOD(window_fold, a.mode = DART_WINDOW_OPEN, a.closing_count = 0);
    GOOD(window_fold, a.mode = DART_WINDOW_CLOSE);
    GOOD(window_fold, a.open.buffer = a.open_decay.buffer = NULL, a.closing_count = 0);
    BAD(window_fold, a.closing_count = 0); /* nowhere for what closes */
    BAD(window_fold, a.mode = (dart_window_mode)3);
    BAD(window_fold, a.open.buffer = NULL);
    BAD(window_fold, a.open_decay.buffer = NULL);
    BAD(window_fold, a.open.buffer = a.open_decay.buffer = NULL);
    BAD(window_fold, a.closing = NULL);
    BAD(window_fold, run.M = 0);
    BAD(window_fold, run.dh.offset = 4);
    BAD(window_fold, run.scale.buffer = NULL);
    BAD(window_output, a.hin_scale.buffer = NULL); /* raw states are f32 */
    BAD(window_append, a.B = 0);
    BAD(window_append, a.H = 0);
    BAD(window_append, a.G = 3);
    BAD(window_append, a.N = 12);
    BAD(window_append, a.N = 264);
    BAD(window_append, a.P = 4);
    BAD(window_append, a.K = 1);
    BAD(window_append, a.K = 9);
    BAD(window_append, a.S = 0);
    BAD(window_append, a.S = HUGE);
    BAD(window_append, a.eps = 0);
    BAD(window_append, a.dt_min = NAN);
    BAD(window_append, a.dt_min = 2, a.dt_max = 1);
    BAD(window_append, a.B = HUGE);
    BAD(window_append, a.H = 1u << 30);
    PACKED(window_append, conv_weight);
    PACKED(window_append, tail);
    PACKED(window_append, rows);
    NEEDED(window_append, x);
    NEEDED(window_append, dt);
    NEEDED(window_append, conv_weight);
    NEEDED(window_append, tail);
    NEEDED(window_append, a_log);
    NEEDED(window_append, seq);
    NEEDED(window_append, conv);
    NEEDED(window_append, rows);
    NEEDED(window_append, steps);
    NEEDED(window_output, hin);
    NEEDED(window_output, y);
    NEEDED(window_fold, h);
    BAD_FLOATS(window_append, x);
    BAD_FLOATS(window_append, dt);
    BAD_FLOATS(window_append, conv_weight);
    BAD_FLOATS(window_append, tail);
    BAD_FLOATS(window_append, conv);
    BAD_FLOATS(window_append, rows);
    BAD_FLOATS(window_output, y);
    BAD_FLOATS(window_output, hin);
    BAD_F32(window_append, steps);
    BAD_F32(window_fold, h);
    BAD_F32(window_fold, open);
    BAD_F32(window_fold, open_decay);
    BAD_INTS(window_append, seq);
}

static void ssd(void **unused)
{
    (void)unused;
    GOOD(ssd, a.dt_max = 0);
    GOOD(ssd, a.cum.buffer = a.decay.buffer = a.hin.buffer = a.hin_scale.buffer = NULL);
    GOOD(ssd, a.dh = a.hin = f32, a.dh_scale.buffer = a.hin_scale.buffer = NULL);
    GOOD(ssd, a.dh.buffer = a.dh_scale.buffer = NULL, a.memories = &run, a.memories_count = 1);
    GOOD(ssd, a.L = 1, a.plan = DART_PLAN_STEP, a.dh = f32, a.dh_scale.buffer = a.hin.buffer = a.hin_scale.buffer = NULL);
    GOOD(ssd, a.h.buffer = a.open.buffer = a.open_decay.buffer = a.seq.buffer = NULL);
    GOOD(ssd, a.x.row = 3 * I + 1, a.b.offset = 5, a.y.row = I + 1);
    BAD(ssd, a.B = 0);
    BAD(ssd, a.L = 0);
    BAD(ssd, a.H = 0);
    BAD(ssd, a.G = 0);
    BAD(ssd, a.G = 3);
    BAD(ssd, a.N = 0);
    BAD(ssd, a.N = 257);
    BAD(ssd, a.P = 0);
    BAD(ssd, a.P = 257);
    BAD(ssd, a.S = 0);
    BAD(ssd, a.S = (1u << 30) + 1);
    BAD(ssd, a.L = (1u << 30) + 1);
    BAD(ssd, a.B = HUGE, a.L = 1u << 30);
    BAD(ssd, a.dt_min = -1);
    BAD(ssd, a.dt_min = NAN);
    BAD(ssd, a.dt_max = -1);
    BAD(ssd, a.dt_max = NAN);
    BAD(ssd, a.dt_min = 2, a.dt_max = 1);
    BAD(ssd, a.plan = (dart_plan)3);
    BAD(ssd, a.plan = DART_PLAN_STEP);
    BAD(ssd, a.L = 1, a.plan = DART_PLAN_STEP, a.dh = f32, a.dh_scale.buffer = NULL);
    BAD(ssd, a.L = 1, a.plan = DART_PLAN_STEP, a.hin.buffer = a.hin_scale.buffer = NULL);
    BAD(ssd, a.eps = -1);
    BAD(ssd, a.eps = NAN);
    BAD(ssd, a.dh.buffer = NULL);
    BAD(ssd, a.hin.buffer = NULL);
    BAD(ssd, a.dh_scale.buffer = NULL); /* raw memories are f32 */
    BAD(ssd, a.hin_scale.buffer = NULL);
    BAD(ssd, a.memories = &run, a.memories_count = 1);
#define RUN(...) a.dh.buffer = a.dh_scale.buffer = NULL, a.memories = &run, a.memories_count = 1, __VA_ARGS__
    BAD(ssd, RUN(a.memories = NULL));
    BAD(ssd, RUN(a.open.buffer = a.open_decay.buffer = NULL));
    BAD(ssd, RUN(run.M = 0));
    BAD(ssd, RUN(run.M = ROOM));
    BAD(ssd, RUN(run.dh = i32));
    BAD(ssd, RUN(run.dh = foreign));
    BAD(ssd, RUN(run.scale = f16));
    BAD(ssd, RUN(run.scale.buffer = NULL));
    BAD(ssd, a.open.buffer = NULL);
    BAD(ssd, a.open_decay.buffer = NULL);
    BAD(ssd, a.h.buffer = NULL);
    BAD(ssd, a.seq.buffer = NULL);
    BAD(ssd, a.x.row = I - 1);
    PACKED(ssd, a_log);
    PACKED(ssd, h);
    PACKED(ssd, dh);
    PACKED(ssd, hin);
    NEEDED(ssd, x);
    NEEDED(ssd, dt);
    NEEDED(ssd, b);
    NEEDED(ssd, c);
    NEEDED(ssd, a_log);
    NEEDED(ssd, y);
    BAD_FLOATS(ssd, x);
    BAD_FLOATS(ssd, dt);
    BAD_FLOATS(ssd, b);
    BAD_FLOATS(ssd, c);
    BAD_FLOATS(ssd, a_log);
    BAD_FLOATS(ssd, dt_bias);
    BAD_FLOATS(ssd, d);
    BAD_FLOATS(ssd, y);
    BAD_FLOATS(ssd, dh);
    BAD_INTS(ssd, seq);
    BAD_F32(ssd, h);
    BAD_F32(ssd, open);
    BAD_F32(ssd, open_decay);
    BAD_F32(ssd, cum);
    BAD_F32(ssd, decay);
    BAD_FLOATS(ssd, hin);
    BAD(ssd, a.dh_scale = f16);
    BAD(ssd, a.hin_scale = f16);
    BAD_FLOATS(ssd, dh_scale);
    BAD_FLOATS(ssd, hin_scale);
    assert_int_equal(dart_ssd_chunks(0, 4, true), 0);
    assert_int_equal(dart_ssd_chunks(4, 0, true), 0);
    assert_int_equal(dart_ssd_chunks(8, 4, false), 2);
    assert_int_equal(dart_ssd_chunks(9, 4, false), 3);
    assert_int_equal(dart_ssd_chunks(8, 4, true), 3);
    assert_int_equal(dart_ssd_chunks(1, 4, true), 1);
    assert_int_equal(dart_ssd_chunks(2, 4, true), 2);
    assert_int_equal(dart_ssd_chunks(UINT32_MAX, UINT32_MAX, true), 2);
}

static void sma(void **unused)
{
    (void)unused;
    GOOD(sma, run.scale.buffer = NULL);
    GOOD(sma, a.lse.buffer = a.qn.buffer = a.en.buffer = a.seq.buffer = NULL);
    GOOD(sma, a.memories_count = 0);
    GOOD(sma, a.memories = NULL, a.memories_count = 0);
    GOOD(sma, run.M = 0);
    GOOD(sma, a.L = 1, a.plan = DART_PLAN_STEP);
    BAD(sma, a.B = 0);
    BAD(sma, a.L = 0);
    BAD(sma, a.H = 0);
    BAD(sma, a.G = 0);
    BAD(sma, a.G = 3);
    BAD(sma, a.N = 0);
    BAD(sma, a.N = 257);
    BAD(sma, a.P = 0);
    BAD(sma, a.P = 257);
    BAD(sma, a.S = 0);
    BAD(sma, a.S = (1u << 30) + 1);
    BAD(sma, a.eps = 0);
    BAD(sma, a.eps = NAN);
    BAD(sma, a.plan = (dart_plan)3);
    BAD(sma, a.plan = DART_PLAN_STEP);
    BAD(sma, a.memories = NULL);
    BAD(sma, run.M = HUGE);
    BAD(sma, run.dh.buffer = NULL);
    BAD(sma, run.dh = i32);
    BAD(sma, run.dh = foreign);
    BAD(sma, run.dh.row = 4096);
    BAD(sma, run.scale = f16);
    BAD(sma, run.scale = foreign);
    BAD(sma, run.scale.offset = ROOM);
    BAD(sma, a.lse = f16);
    PACKED(sma, lse);
    PACKED(sma, qn);
    NEEDED(sma, q);
    NEEDED(sma, e);
    NEEDED(sma, c);
    NEEDED(sma, r);
    BAD_FLOATS(sma, q);
    BAD_FLOATS(sma, e);
    BAD_FLOATS(sma, c);
    BAD_FLOATS(sma, r);
    BAD_INTS(sma, seq);
    BAD_F32(sma, qn);
    BAD_F32(sma, en);
    GOOD(sma_append, a.to.first = 1000);
    BAD(sma_append, a.B = 0);
    BAD(sma_append, a.L = 0);
    BAD(sma_append, a.H = 0);
    BAD(sma_append, a.N = 0);
    BAD(sma_append, a.P = 257);
    BAD(sma_append, a.S = 0);
    BAD(sma_append, a.eps = 0);
    BAD(sma_append, a.eps = NAN);
    BAD(sma_append, a.to.M = 0);
    BAD(sma_append, a.to.M = HUGE);
    BAD(sma_append, a.to.scale = f16);
    PACKED(sma_append, dh);
    NEEDED(sma_append, dh);
    NEEDED(sma_append, to.dh);
    NEEDED(sma_append, to.scale);
    BAD_FLOATS(sma_append, dh);
    BAD_FLOATS(sma_append, to.dh);
    BAD_FLOATS(sma_append, to.scale);
    BAD_INTS(sma_append, seq);
}

static void attention(void **unused)
{
    (void)unused;
    GOOD(attention, a.lse.buffer = NULL, a.seq.buffer = NULL);
    GOOD(attention, a.seq.buffer = NULL, a.C = L);
    GOOD(attention, a.C = 1);
    GOOD(attention, a.scale = -2);
    GOOD(attention, a.D = 128);
    GOOD(attention, a.k.row = a.v.row = 3 * G * P);
    GOOD(attention, a.L = 1, a.plan = DART_PLAN_STEP);
    BAD(attention, a.B = 0);
    BAD(attention, a.L = 0);
    BAD(attention, a.H = 0);
    BAD(attention, a.G = 0);
    BAD(attention, a.G = 3);
    BAD(attention, a.D = 0);
    BAD(attention, a.D = 129);
    BAD(attention, a.C = 0);
    BAD(attention, a.C = (1u << 30) + 1);
    BAD(attention, a.C = ROOM);
    BAD(attention, a.seq.buffer = NULL, a.C = L - 1);
    BAD(attention, a.scale = NAN);
    BAD(attention, a.scale = INFINITY);
    BAD(attention, a.plan = (dart_plan)3);
    BAD(attention, a.plan = DART_PLAN_STEP);
    BAD(attention, a.k = f32);
    BAD(attention, a.k.row = G * P - 1);
    BAD(attention, a.lse = f16);
    PACKED(attention, lse);
    NEEDED(attention, q);
    NEEDED(attention, k);
    NEEDED(attention, v);
    NEEDED(attention, o);
    BAD_FLOATS(attention, q);
    BAD_FLOATS(attention, k);
    BAD_FLOATS(attention, v);
    BAD_FLOATS(attention, o);
    BAD_INTS(attention, seq);
    GOOD(kv_append, a.seq.buffer = NULL);
    GOOD(kv_append, a.to_k = f32);
    BAD(kv_append, a.B = 0);
    BAD(kv_append, a.L = 0);
    BAD(kv_append, a.G = 0);
    BAD(kv_append, a.D = 0);
    BAD(kv_append, a.D = 129);
    BAD(kv_append, a.C = 0);
    BAD(kv_append, a.C = ROOM);
    BAD(kv_append, a.seq.buffer = NULL, a.C = L - 1);
    BAD(kv_append, a.to_v.row = G * P - 1);
    NEEDED(kv_append, k);
    NEEDED(kv_append, v);
    NEEDED(kv_append, to_k);
    NEEDED(kv_append, to_v);
    BAD_FLOATS(kv_append, k);
    BAD_FLOATS(kv_append, v);
    BAD_FLOATS(kv_append, to_k);
    BAD_FLOATS(kv_append, to_v);
    BAD_INTS(kv_append, seq);
}

static void choices(void **unused)
{
    (void)unused;
    GOOD(argmax, a.logits.row = 2 * V);
    BAD(argmax, a.T = 0);
    BAD(argmax, a.V = 0);
    BAD(argmax, a.V = 1u << 31);
    BAD(argmax, a.logits.row = V - 1);
    NEEDED(argmax, logits);
    NEEDED(argmax, ids);
    BAD_FLOATS(argmax, logits);
    BAD_INTS(argmax, ids);
    GOOD(sample, a.keep_ended = true);
    GOOD(sample, a.seq.buffer = NULL);
    BAD(sample, a.T = 0);
    BAD(sample, a.V = 0);
    BAD(sample, a.V = 1u << 31);
    BAD(sample, a.keep_ended = true, a.seq.buffer = NULL);
    GOOD(sample, a.seen.buffer = NULL);
    GOOD(sample, a.mark_ids = true);
    BAD(sample, a.mark_ids = true, a.seen.buffer = NULL);
    BAD_INTS(sample, seen);
    BAD(sample, a.T = ROOM / 8 + 1, a.V = 1, a.seq.buffer = NULL); /* settings end before the last row */
    NEEDED(sample, logits);
    NEEDED(sample, settings);
    NEEDED(sample, ids);
    BAD_FLOATS(sample, logits);
    BAD_INTS(sample, ids);
    BAD_INTS(sample, settings);
    BAD_INTS(sample, seq);
    GOOD(mark_ids, a.seq.buffer = NULL);
    GOOD(mark_ids, a.T = L, a.cu = i32, a.seq.buffer = NULL);
    BAD(mark_ids, a.B = 0);
    BAD(mark_ids, a.L = 0);
    BAD(mark_ids, a.V = 0);
    BAD(mark_ids, a.V = 1u << 31);
    BAD(mark_ids, a.V = 32 * (ROOM / B + 1)); /* sets end before the last sequence */
    NEEDED(mark_ids, ids);
    NEEDED(mark_ids, seen);
    BAD_INTS(mark_ids, ids);
    BAD_INTS(mark_ids, seq);
    BAD_INTS(mark_ids, seen);
    GOOD(log_probs, a.logits.row = 2 * V);
    GOOD(log_probs, a.k = 0, a.top_ids.buffer = a.top.buffer = NULL);
    GOOD(log_probs, a.targets.buffer = a.target.buffer = NULL);
    GOOD(log_probs, a.k = DART_MOST_TOP);
    BAD(log_probs, a.k = DART_MOST_TOP + 1);
    BAD(log_probs, a.k = 0);
    BAD(log_probs, a.T = 0);
    BAD(log_probs, a.V = 0);
    BAD(log_probs, a.V = 1u << 31);
    NEEDED(log_probs, logits);
    NEEDED(log_probs, log_z);
    NEEDED(log_probs, targets);
    NEEDED(log_probs, target);
    NEEDED(log_probs, top_ids);
    NEEDED(log_probs, top);
    BAD_FLOATS(log_probs, logits);
    BAD_INTS(log_probs, targets);
    BAD_INTS(log_probs, top_ids);
    BAD(log_probs, a.log_z = f16);
    BAD_FLOATS(log_probs, log_z);
    BAD(log_probs, a.target = f16);
    BAD_FLOATS(log_probs, target);
    BAD(log_probs, a.top = f16);
    BAD_FLOATS(log_probs, top);
    GOOD(advance, a.B = ROOM / 2, a.ids.buffer = a.log.buffer = a.stops.buffer = a.live.buffer = NULL);
    GOOD(advance, a.stops.buffer = a.live.buffer = NULL);
    BAD(advance, a.ids.buffer = a.log.buffer = NULL);
    BAD(advance, a.B = ROOM / 5 + 1, a.slots = 1); /* stops end before the last sequence */
    NEEDED(advance, stops);
    NEEDED(advance, live);
    BAD_INTS(advance, stops);
    BAD_INTS(advance, live);
    GOOD(advance, a.slots = ROOM / B);
    BAD(advance, a.slots = 0);
    BAD(advance, a.slots = ROOM / B + 1);
    NEEDED(advance, ids);
    NEEDED(advance, log);
    BAD(advance, a.ids = f32);
    BAD(advance, a.log = f32);
    BAD(advance, a.B = 0);
    BAD(advance, a.B = ROOM / 2 + 1);
    NEEDED(advance, seq);
    BAD_INTS(advance, seq);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows), cmocka_unit_test(norms), cmocka_unit_test(linear_and_conv),
        cmocka_unit_test(mixer), cmocka_unit_test(window),
        cmocka_unit_test(ssd), cmocka_unit_test(sma), cmocka_unit_test(attention), cmocka_unit_test(choices),
    };
    return cmocka_run_group_tests_name("unit_ops", tests, set_up, tear_down);
}
