/* Choosing the next token, and moving on to it. */
#include "runtime/op.h"

/* Launches argmax_part on all rows; returns its parts, *blocks of them a row. */
static op_operand argmax_parts(op_call *call, uint32_t T, uint32_t V, const op_operand *logits, uint32_t *blocks)
{
    struct ArgmaxPartArgs k = {.rows = T, .width = V};
    op_kernel(call, KERNEL_argmax_part, T, 0);
    const uint64_t count = base_ceil_div(V, call->T0);
    const op_operand parts = op_scratch(call, DART_F32, T, 2 * count);
    OP_LAUNCH(call, &k, count * T, OP_ROWS(argmax_part, logits, logits, k), OP_WHOLE(argmax_part, part, &parts));
    *blocks = (uint32_t)count;
    return parts;
}

dart_status dart_argmax(dart_stream *stream, const dart_argmax_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    op_call call;
    const uint32_t T = args->T, V = args->V;
    if (op_begin(&call, stream, "dart_argmax") != DART_OK) return op_status(&call);
    OP_REQUIRE(&call, T > 0 && V > 0 && V <= INT32_MAX, "T %u, V %u: both must be above 0, V below 2^31", T, V);
    const struct { op_operand logits, ids; } o = {
        .logits = {"logits", args->logits, OP_FLOAT | OP_VIEW, T, V},
        .ids = {"ids", args->ids, OP_I32, 1, T}};
    if (!OP_CHECK(&call, o)) return op_status(&call);
    struct ArgmaxArgs k = {.rows = T};
    const op_operand parts = argmax_parts(&call, T, V, &o.logits, &k.blocks);
    op_kernel(&call, KERNEL_argmax, T, 0);
    OP_LAUNCH(&call, &k, T, OP_WHOLE(argmax, part, &parts), OP_AT(argmax, ids, &o.ids, k));
    return op_end(&call);
}

dart_status dart_sample(dart_stream *stream, const dart_sample_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    op_call call;
    const uint32_t T = args->T, V = args->V;
    if (op_begin(&call, stream, "dart_sample") != DART_OK) return op_status(&call);
    OP_REQUIRE(&call, T > 0 && V > 0 && V <= INT32_MAX, "T %u, V %u: both must be above 0, V below 2^31", T, V);
    OP_REQUIRE(&call, !args->keep_ended || op_has(&args->seq), "keep_ended needs seq");
    const struct { op_operand logits, settings, seq, ids; } o = {
        .logits = {"logits", args->logits, OP_FLOAT | OP_VIEW, T, V},
        .settings = {"settings", args->settings, OP_I32, T, SETTING_WORDS},
        .seq = {"seq", args->seq, OP_I32 | OP_OPTIONAL, T, 2},
        .ids = {"ids", args->ids, OP_I32, 1, T}};
    if (!OP_CHECK(&call, o)) return op_status(&call);
    struct SampleArgs k = {.flags = (op_has(&args->seq) ? HAS_SEQ : 0) | (args->keep_ended ? KEEPS_ENDED : 0), .rows = T, .width = V};
    const op_operand parts = argmax_parts(&call, T, V, &o.logits, &k.blocks);
    op_kernel(&call, KERNEL_sample, T, 0);
    OP_LAUNCH(&call, &k, T, OP_ROWS(sample, logits, &o.logits, k), OP_WHOLE(sample, part, &parts), OP_AT(sample, settings, &o.settings, k),
              OP_AT(sample, seq, &o.seq, k), OP_AT(sample, ids, &o.ids, k));
    return op_end(&call);
}

dart_status dart_advance(dart_stream *stream, const dart_advance_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    op_call call;
    if (op_begin(&call, stream, "dart_advance") != DART_OK) return op_status(&call);
    OP_REQUIRE(&call, args->B > 0, "B must be above 0");
    const bool logs = op_has(&args->log), stops = op_has(&args->stops);
    OP_REQUIRE(&call, logs == op_has(&args->ids) && (!logs || args->slots > 0), "ids and log come together, with slots above 0");
    OP_REQUIRE(&call, stops == op_has(&args->live) && (logs || !stops), "stops and live come together, and with ids");
    const struct { op_operand seq, ids, log, stops, live; } o = {
        .seq = {"seq", args->seq, OP_I32, args->B, 2},
        .ids = {"ids", args->ids, OP_I32 | OP_OPTIONAL, 1, args->B},
        .log = {"log", args->log, OP_I32 | OP_OPTIONAL, args->B, args->slots},
        .stops = {"stops", args->stops, OP_I32 | OP_OPTIONAL, args->B, STOP_WORDS},
        .live = {"live", args->live, OP_I32 | OP_OPTIONAL, 1, args->B}};
    if (!OP_CHECK(&call, o)) return op_status(&call);
    struct AdvanceArgs k = {.flags = (logs ? HAS_ROWS : 0) | (stops ? HAS_STOPS : 0), .B = args->B, .slots = args->slots};
    op_kernel(&call, KERNEL_advance, args->B, 0);
    OP_LAUNCH(&call, &k, base_ceil_div(args->B, call.T0), OP_AT(advance, seq, &o.seq, k), OP_AT(advance, ids, &o.ids, k),
              OP_AT(advance, log, &o.log, k), OP_AT(advance, stops, &o.stops, k), OP_AT(advance, live, &o.live, k));
    return op_end(&call);
}
