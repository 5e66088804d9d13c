/* Wrong calls of ops: refused with a text that names the op, nothing recorded, until the stream begins anew. */
#include "unit_ops.h"

#include <math.h>

#define HUGE UINT32_MAX

rig r, other;
dart_tensor f32, f16, i32, foreign;
dart_memories run;

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
    BAD(convert, a.X = 1);
    BAD(convert, a.pairs = i32);
    BAD(convert, a.pairs = f32, a.X = a.T, a.Y = a.T);
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
    GOOD(layer_norm, a.rows = i32);
    GOOD(layer_norm, a.bias = f16);
    BAD(layer_norm, a.T = 0);
    BAD(layer_norm, a.W = 0);
    BAD(layer_norm, a.eps = 0);
    BAD(layer_norm, a.eps = NAN);
    PACKED(layer_norm, weight);
    PACKED(layer_norm, bias);
    NEEDED(layer_norm, x);
    NEEDED(layer_norm, weight);
    NEEDED(layer_norm, bias);
    NEEDED(layer_norm, y);
    BAD_FLOATS(layer_norm, x);
    BAD_FLOATS(layer_norm, bias);
    BAD(layer_norm, a.rows = f32);
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
    GOOD(linear, a.from = f32);
    GOOD(linear, a.from = f16, a.bias = f32);
    BAD(linear, a.from = f32, a.add = true);
    BAD(linear, a.from = i32);
    GOOD(linear, a.bias = f32);
    for (dart_dtype dtype = DART_Q8; dtype <= DART_Q4; dtype = (dart_dtype)(dtype + 1)) {
        const dart_tensor rows = {.buffer = f32.buffer, .dtype = dtype};
        GOOD(linear, a.weight = rows);
        GOOD(linear, a.weight = rows, a.weight.offset = 16, a.bias = f32);
        BAD(linear, a.weight = rows, a.weight.offset = 8);
        BAD(linear, a.weight = rows, a.IN = I - 1);
        BAD(linear, a.weight = rows, a.IN = 2 * I + 16);
        BAD(linear, a.weight = rows, a.OUT = 1u << 20);
        BAD(linear, a.x = rows);
        BAD(linear, a.y = rows);
        BAD(linear, a.bias = rows);
        GOOD(embed, a.weight = rows);
        BAD(embed, a.weight = rows, a.W = I - 8);
        BAD(embed, a.y = rows);
        GOOD(norm_linear, a.weight = rows);
        BAD(norm_linear, a.weight = rows, a.weight.offset = 8);
        BAD(norm_linear, a.weight = rows, a.IN = I - 1);
        GOOD(mixer_step, a.W = 32, a.in_proj = rows, a.in_proj_rest = f32, a.sma_proj = rows, a.sma_proj_rest = f16, a.out_proj = rows);
        GOOD(mixer_step, a.W = 32, a.in_proj = rows, a.out_proj = rows);
        BAD(mixer_step, a.in_proj = rows); /* W 16 */
        BAD(mixer_step, a.sma_proj = rows);
        BAD(mixer_step, a.out_proj = rows, a.P = 4, a.H = 8);
        BAD(mixer_step, a.out_proj = rows, a.P = 9, a.H = 4);
        BAD(mixer_step, a.W = 32, a.in_proj = rows, a.in_proj_rest = rows);
        BAD(mixer_step, a.W = 32, a.sma_proj = rows, a.sma_proj_rest = i32);
        BAD(rms_norm, a.weight = rows);
    }
    BAD(linear, a.bias = i32);
    BAD(linear, a.bias = f32, a.bias.row = 4096);
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
