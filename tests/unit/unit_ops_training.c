/* Wrong calls of the ops of training: refused with a text that names the op, nothing recorded, until the stream begins anew. */
#include "rig.h"

#include "dartlm/ops_backward.h"

#include <math.h>

enum { B = 2, L = 8, H = 4, G = 2, N = 5, P = 6, S = 4, D = 8, K = 4, C = 16, T = B * L, V = 16, W = 32, ROOM = 1 << 14 };

static rig r;
static dart_tensor f32, f16, i32;
static dart_gradient gradients[2];

static int set_up(void **state)
{
    (void)state;
    rig_open(&r, "null");
    f32 = rig_tensor(&r, DART_F32, ROOM, NULL);
    f16 = rig_tensor(&r, DART_F16, ROOM, NULL);
    i32 = rig_tensor(&r, DART_I32, ROOM, NULL);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    rig_close(&r);
    return 0;
}

static void check(dart_status status, bool good, const char *op, const char *change)
{
    char text[512];
    const uint32_t launches = dart_stream_launches(r.stream);
    dart_stream_error(r.stream, text, sizeof text);
    if (good) {
        if (status != DART_OK) fail_msg("%s with %s: %s: %s", op, change, dart_status_name(status), text);
        assert_true(launches > 0);
        rig_run(&r);
        return;
    }
    if (status != DART_INVALID_ARGUMENT) fail_msg("%s with %s: %s", op, change, dart_status_name(status));
    if (strncmp(text, op, strlen(op)) != 0) fail_msg("%s with %s: '%s' does not name it", op, change, text);
    if (launches != 0) fail_msg("%s with %s: recorded launches", op, change);
    rig_begin(&r);
}

#define CALL(good, op, ...) \
    do { \
        dart_##op##_args a = good_##op(); \
        __VA_ARGS__; \
        check(dart_##op(r.stream, &a), good, "dart_" #op, #__VA_ARGS__); \
    } while (0)
#define GOOD(op, ...) CALL(true, op, __VA_ARGS__)
#define BAD(op, ...) CALL(false, op, __VA_ARGS__)
#define NO_NULLS(op) \
    do { \
        dart_##op##_args a = good_##op(); \
        assert_int_equal(dart_##op(NULL, &a), DART_INVALID_ARGUMENT); \
        assert_int_equal(dart_##op(r.stream, NULL), DART_INVALID_ARGUMENT); \
    } while (0)

static dart_cross_entropy_args good_cross_entropy(void)
{
    return (dart_cross_entropy_args){.T = T, .V = V, .W = W, .x = f16, .weight = f16, .targets = i32, .share = f32, .loss = f32, .correct = i32,
                                     .grad_x = f16, .grad_weight = f32};
}
static dart_grad_norm_args good_grad_norm(void)
{
    gradients[0] = (dart_gradient){.elements = 100, .grad = f32};
    gradients[1] = (dart_gradient){.elements = ROOM, .grad = f32};
    return (dart_grad_norm_args){.count = 2, .clip = 1, .gradients = gradients, .scale = f32};
}
static dart_adamw_args good_adamw(void)
{
    return (dart_adamw_args){.elements = ROOM, .decays = true, .w = f32, .m = f32, .v = f32, .grad = f32, .scale = f32, .hyper = f32, .copy = f16};
}
static dart_rope_args good_rope(void) { return (dart_rope_args){.B = B, .L = L, .H = H, .D = D, .base = 10000, .x = f32, .seq = i32, .y = f16}; }
static dart_gelu_args good_gelu(void) { return (dart_gelu_args){.T = T, .I = W, .a = f32, .h = f16}; }
static dart_swiglu_args good_swiglu(void) { return (dart_swiglu_args){.T = T, .I = W, .a = f32, .u = f16, .h = f32}; }
static dart_swiglu_backward_args good_swiglu_backward(void)
{
    return (dart_swiglu_backward_args){.T = T, .I = W, .a = f32, .u = f16, .up_h = f32, .grad_a = f32, .grad_u = f16};
}
static dart_attention_backward_args good_attention_backward(void)
{
    return (dart_attention_backward_args){.B = B, .L = L, .H = H, .G = G, .D = D, .q = f32, .k = f16, .v = f16, .o = f32, .lse = f32, .seq = i32,
                                          .up_o = f32, .grad_q = f32, .grad_k = f16, .grad_v = f16};
}
static dart_conv_backward_args good_conv_backward(void)
{
    return (dart_conv_backward_args){.B = B, .L = L, .C = C, .K = K, .x = f16, .weight = f16, .bias = f32, .seq = i32, .up_y = f16, .grad_x = f16,
                                     .grad_weight = f32, .grad_bias = f32};
}

static dart_embed_backward_args good_embed_backward(void)
{
    return (dart_embed_backward_args){.T = T, .V = V, .W = W, .plan = i32, .up_y = f16, .grad_weight = f32};
}
static dart_rms_norm_backward_args good_rms_norm_backward(void)
{
    return (dart_rms_norm_backward_args){.T = T, .W = W, .eps = 1, .x = f16, .weight = f32, .rows = i32, .up_y = f32, .grad_x = f16,
                                         .grad_weight = f32};
}
static dart_gated_norm_backward_args good_gated_norm_backward(void)
{
    return (dart_gated_norm_backward_args){.T = T, .I = W, .eps = 1, .y = f16, .r = f16, .gate = f32, .z = f32, .weight = f16, .up_out = f32,
                                           .grad_y = f16, .grad_r = f32, .grad_gate = f16, .grad_z = f32, .grad_weight = f32};
}
static dart_linear_backward_args good_linear_backward(void)
{
    return (dart_linear_backward_args){.T = T, .IN = W, .OUT = V, .add = true, .x = f16, .weight = f16, .up_y = f32, .grad_x = f32,
                                       .grad_weight = f32};
}
static dart_ssd_backward_args good_ssd_backward(void)
{
    return (dart_ssd_backward_args){.B = B, .L = L, .H = H, .G = G, .N = N, .P = P, .S = S, .x = f16, .dt = f32, .b = f16, .c = f16, .a_log = f32,
                                    .dt_bias = f32, .d = f16, .seq = i32, .h = f32, .up_y = f16, .up_dh = f32, .up_h = f32, .grad_x = f16,
                                    .grad_dt = f32, .grad_b = f16, .grad_c = f32, .grad_a_log = f32, .grad_dt_bias = f32, .grad_d = f32,
                                    .grad_h = f32};
}

static dart_sma_backward_args good_sma_backward(void)
{
    return (dart_sma_backward_args){.B = B, .L = L, .H = H, .G = G, .N = N, .P = P, .S = S, .eps = 1, .q = f16, .e = f16, .c = f16, .seq = i32,
                                    .memories = {.M = 2, .dh = f16, .scale = f32}, .r = f32, .lse = f32, .up_r = f16, .grad_q = f16, .grad_e = f32,
                                    .grad_c = f16, .grad_dh = f32};
}

static void loss(void **unused)
{
    (void)unused;
    NO_NULLS(cross_entropy);
    GOOD(cross_entropy, a.T = 1);
    GOOD(cross_entropy, a.grad_x.buffer = a.grad_weight.buffer = NULL);
    BAD(cross_entropy, a.grad_x.buffer = NULL);
    BAD(cross_entropy, a.grad_weight.buffer = NULL);
    BAD(cross_entropy, a.T = 0);
    BAD(cross_entropy, a.V = 0);
    BAD(cross_entropy, a.W = 0);
    BAD(cross_entropy, a.T = 1u << 31);
    BAD(cross_entropy, a.V = 1u << 31);
    BAD(cross_entropy, a.targets = f32);
    BAD(cross_entropy, a.share = f16);
    BAD(cross_entropy, a.loss = f16);
    BAD(cross_entropy, a.loss.offset = ROOM);
    BAD(cross_entropy, a.correct = f32);
    BAD(cross_entropy, a.grad_weight = f16);
    BAD(cross_entropy, a.weight.row = 2 * W);
    BAD(cross_entropy, a.x.buffer = NULL);
}

static void optimizer(void **unused)
{
    (void)unused;
    NO_NULLS(grad_norm);
    GOOD(grad_norm, a.clip = INFINITY);
    BAD(grad_norm, a.clip = 0);
    BAD(grad_norm, a.clip = NAN);
    BAD(grad_norm, a.count = 0);
    BAD(grad_norm, a.gradients = NULL);
    BAD(grad_norm, gradients[1].elements = 0);
    BAD(grad_norm, gradients[1].elements = ROOM + 1);
    BAD(grad_norm, gradients[0].grad = f16);
    BAD(grad_norm, a.scale.offset = ROOM - 3);
    GOOD(grad_norm, a.factor = f32);
    BAD(grad_norm, a.factor = f16);
    BAD(grad_norm, a.factor = f32, a.factor.offset = ROOM);
    NO_NULLS(adamw);
    GOOD(adamw, a.copy.buffer = NULL);
    BAD(adamw, a.elements = 0);
    BAD(adamw, a.elements = ROOM + 1);
    BAD(adamw, a.w = f16);
    BAD(adamw, a.m = f16);
    BAD(adamw, a.v.buffer = NULL);
    BAD(adamw, a.grad = f16);
    BAD(adamw, a.scale.offset = ROOM - 3);
    BAD(adamw, a.hyper.offset = ROOM - 7);
    BAD(adamw, a.copy = i32);
}

static void layers(void **unused)
{
    (void)unused;
    NO_NULLS(rope);
    GOOD(rope, a.y = f32);
    GOOD(rope, a.seq.buffer = NULL);
    BAD(rope, a.D = 7);
    BAD(rope, a.D = 0);
    BAD(rope, a.D = 258);
    BAD(rope, a.H = 0);
    BAD(rope, a.base = 1);
    BAD(rope, a.base = INFINITY);
    BAD(rope, a.base = NAN);
    BAD(rope, a.seq = f32);
    GOOD(rope, a.R = 2);
    BAD(rope, a.R = 1);
    BAD(rope, a.R = D + 2);
    NO_NULLS(gelu);
    GOOD(gelu, a.by_tanh = true);
    GOOD(gelu, a.a.row = 2 * W);
    BAD(gelu, a.T = 0);
    BAD(gelu, a.I = 0);
    BAD(gelu, a.h = i32);
    BAD(gelu, a.a.buffer = NULL);
    NO_NULLS(swiglu);
    GOOD(swiglu, a.a.row = 2 * W);
    BAD(swiglu, a.T = 0);
    BAD(swiglu, a.I = 0);
    BAD(swiglu, a.h = i32);
    NO_NULLS(swiglu_backward);
    GOOD(swiglu_backward, a.grad_a.row = 2 * W);
    BAD(swiglu_backward, a.T = 0);
    BAD(swiglu_backward, a.up_h.buffer = NULL);
}

static void attention_and_conv(void **unused)
{
    (void)unused;
    NO_NULLS(attention_backward);
    GOOD(attention_backward, a.seq.buffer = NULL);
    BAD(attention_backward, a.L = 0);
    BAD(attention_backward, a.G = 3);
    BAD(attention_backward, a.D = 129);
    BAD(attention_backward, a.scale = NAN);
    BAD(attention_backward, a.lse = f16);
    BAD(attention_backward, a.lse.buffer = NULL);
    BAD(attention_backward, a.grad_k.row = G * D - 1);
    NO_NULLS(conv_backward);
    GOOD(conv_backward, a.bias.buffer = a.grad_bias.buffer = NULL);
    BAD(conv_backward, a.bias.buffer = NULL);
    BAD(conv_backward, a.grad_bias.buffer = NULL);
    BAD(conv_backward, a.K = 1);
    BAD(conv_backward, a.K = 9);
    BAD(conv_backward, a.C = 0);
    BAD(conv_backward, a.grad_weight = f16);
}

static void rows(void **unused)
{
    (void)unused;
    NO_NULLS(embed_backward);
    GOOD(embed_backward, a.T = 1);
    BAD(embed_backward, a.T = 0);
    BAD(embed_backward, a.V = 0);
    BAD(embed_backward, a.W = 0);
    BAD(embed_backward, a.T = 1u << 31);
    BAD(embed_backward, a.V = 1u << 31);
    BAD(embed_backward, a.plan = f32);
    BAD(embed_backward, a.plan.offset = ROOM - (uint32_t)dart_embed_plan_elements(T, V) + 1);
    BAD(embed_backward, a.grad_weight = f16);
    BAD(embed_backward, a.up_y.buffer = NULL);
    NO_NULLS(rms_norm_backward);
    GOOD(rms_norm_backward, a.rows.buffer = NULL);
    GOOD(rms_norm_backward, a.add = true);
    BAD(rms_norm_backward, a.T = 0);
    BAD(rms_norm_backward, a.W = 0);
    BAD(rms_norm_backward, a.eps = 0);
    BAD(rms_norm_backward, a.eps = NAN);
    BAD(rms_norm_backward, a.rows = f32);
    GOOD(rms_norm_backward, a.rows.buffer = NULL, a.F = 3, a.from = f32, a.from_rows = i32, a.copy = f16);
    BAD(rms_norm_backward, a.F = 3, a.from = f32, a.from_rows = i32);
    BAD(rms_norm_backward, a.copy = f16);
    BAD(rms_norm_backward, a.rows.buffer = NULL, a.F = 3, a.from = f32);
    BAD(rms_norm_backward, a.rows.buffer = NULL, a.from = f32, a.from_rows = i32);
    BAD(rms_norm_backward, a.rows.buffer = NULL, a.F = 3);
    BAD(rms_norm_backward, a.rows.buffer = NULL, a.add = true, a.F = 3, a.from = f32, a.from_rows = i32);
    BAD(rms_norm_backward, a.grad_weight = f16);
    BAD(rms_norm_backward, a.weight.buffer = NULL);
    BAD(rms_norm_backward, a.up_y.row = W - 1);
    NO_NULLS(gated_norm_backward);
    GOOD(gated_norm_backward, a.r.buffer = a.gate.buffer = a.grad_r.buffer = a.grad_gate.buffer = NULL);
    BAD(gated_norm_backward, a.r.buffer = a.gate.buffer = NULL);
    BAD(gated_norm_backward, a.gate.buffer = NULL);
    BAD(gated_norm_backward, a.grad_r.buffer = NULL);
    BAD(gated_norm_backward, a.grad_gate.buffer = NULL);
    BAD(gated_norm_backward, a.T = 0);
    BAD(gated_norm_backward, a.I = 0);
    BAD(gated_norm_backward, a.eps = 0);
    BAD(gated_norm_backward, a.grad_weight = f16);
    BAD(gated_norm_backward, a.grad_z.buffer = NULL);
    NO_NULLS(linear_backward);
    BAD(linear_backward, a.weight.dtype = DART_Q8, a.weight.offset = 0);
    GOOD(linear_backward, a.grad_x.buffer = a.weight.buffer = NULL);
    GOOD(linear_backward, a.grad_weight.buffer = a.x.buffer = NULL);
    BAD(linear_backward, a.grad_x.buffer = a.grad_weight.buffer = NULL);
    BAD(linear_backward, a.x.buffer = NULL);
    BAD(linear_backward, a.weight.buffer = NULL);
    BAD(linear_backward, a.up_y.buffer = NULL);
    BAD(linear_backward, a.T = 0);
    BAD(linear_backward, a.IN = 0);
    BAD(linear_backward, a.OUT = 0);
    BAD(linear_backward, a.grad_weight = f16);
}

static void scan(void **unused)
{
    (void)unused;
    NO_NULLS(ssd_backward);
    GOOD(ssd_backward, a.seq.buffer = NULL);
    GOOD(ssd_backward, a.h.buffer = a.grad_h.buffer = a.up_h.buffer = a.up_dh.buffer = NULL);
    GOOD(ssd_backward, a.dt_bias.buffer = a.grad_dt_bias.buffer = a.d.buffer = a.grad_d.buffer = NULL);
    GOOD(ssd_backward, a.add_c = true);
    GOOD(ssd_backward, a.seq.buffer = a.h.buffer = NULL, a.quiet = L);
    BAD(ssd_backward, a.seq.buffer = a.h.buffer = NULL, a.quiet = L + 1);
    BAD(ssd_backward, a.seq.buffer = NULL, a.quiet = 1);
    BAD(ssd_backward, a.h.buffer = NULL, a.quiet = 1);
    BAD(ssd_backward, a.B = 0);
    BAD(ssd_backward, a.L = 0);
    BAD(ssd_backward, a.G = 3);
    BAD(ssd_backward, a.S = 0);
    BAD(ssd_backward, a.N = 257);
    BAD(ssd_backward, a.P = 257);
    GOOD(ssd_backward, a.dt_min = a.dt_max = 0.5f);
    GOOD(ssd_backward, a.dt_max = INFINITY);
    BAD(ssd_backward, a.dt_min = -1);
    BAD(ssd_backward, a.dt_min = NAN);
    BAD(ssd_backward, a.dt_max = NAN);
    BAD(ssd_backward, a.dt_min = 0.5f, a.dt_max = 0.25f);
    GOOD(ssd_backward, a.cum = a.decay = a.hin = f32);
    BAD(ssd_backward, a.cum = a.decay = a.hin = f32, a.dt_min = -1);
    BAD(ssd_backward, a.cum = a.decay = a.hin = f32, a.dt_max = NAN);
    BAD(ssd_backward, a.dt_bias.buffer = NULL);
    BAD(ssd_backward, a.grad_dt_bias.buffer = NULL);
    BAD(ssd_backward, a.d.buffer = NULL);
    BAD(ssd_backward, a.grad_d.buffer = NULL);
    BAD(ssd_backward, a.cum = f32);
    BAD(ssd_backward, a.hin_scale = f32);
    BAD(ssd_backward, a.up_dh = f16);
    BAD(ssd_backward, a.up_h = f16);
    BAD(ssd_backward, a.h = f16);
    BAD(ssd_backward, a.grad_h = f16);
    BAD(ssd_backward, a.grad_a_log = f16);
    BAD(ssd_backward, a.grad_a_log.buffer = NULL);
    BAD(ssd_backward, a.seq = f32);
    BAD(ssd_backward, a.grad_x.row = H * P - 1);
}

static void memories(void **unused)
{
    (void)unused;
    NO_NULLS(sma_backward);
    GOOD(sma_backward, a.seq.buffer = a.memories.scale.buffer = NULL);
    GOOD(sma_backward, a.add_c = true);
    GOOD(sma_backward, a.r = f16);
    BAD(sma_backward, a.B = 0);
    BAD(sma_backward, a.L = 0);
    BAD(sma_backward, a.G = 3);
    BAD(sma_backward, a.S = 0);
    BAD(sma_backward, a.N = 257);
    BAD(sma_backward, a.P = 257);
    BAD(sma_backward, a.eps = 0);
    BAD(sma_backward, a.eps = NAN);
    BAD(sma_backward, a.memories.M = 0);
    BAD(sma_backward, a.memories.first = 1);
    BAD(sma_backward, a.memories.dh.buffer = NULL);
    BAD(sma_backward, a.memories.scale = f16);
    BAD(sma_backward, a.lse = f16);
    BAD(sma_backward, a.lse.buffer = NULL);
    BAD(sma_backward, a.r.buffer = NULL);
    BAD(sma_backward, a.up_r.buffer = NULL);
    BAD(sma_backward, a.grad_q.buffer = NULL);
    BAD(sma_backward, a.grad_e.buffer = NULL);
    BAD(sma_backward, a.grad_c.buffer = NULL);
    BAD(sma_backward, a.grad_dh.buffer = NULL);
    BAD(sma_backward, a.grad_dh = f16);
    BAD(sma_backward, a.seq = f32);
    BAD(sma_backward, a.up_r.row = H * P - 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(loss), cmocka_unit_test(optimizer), cmocka_unit_test(layers), cmocka_unit_test(attention_and_conv), cmocka_unit_test(rows),
        cmocka_unit_test(scan), cmocka_unit_test(memories),
    };
    return cmocka_run_group_tests_name("unit_ops_training", tests, set_up, tear_down);
}
