/* Choosing the next token, and moving on to it. */
#include "runtime/stream.h"

/* Launches argmax_part on all rows; returns its parts, *blocks of them a row. */
static dart_tensor argmax_parts(op_call *call, uint32_t T, uint32_t V, const dart_tensor *logits, uint32_t *blocks)
{
    struct ArgmaxPartArgs k = {.rows = T, .width = V, .logits_row = op_row(logits, V)};
    op_kernel(call, KERNEL_argmax_part, T, 0);
    const uint64_t count = base_ceil_div(V, call->row->T0);
    const dart_tensor parts = op_scratch(call, 2 * count * T);
    k.logits_at = op_bind_rows(call, BINDING_argmax_part_logits, logits, T, V);
    op_bind(call, BINDING_argmax_part_part, &parts, 2 * count * T);
    op_launch(call, &k, count * T);
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
    op_check(&call, "logits", &args->logits, OP_FLOAT | OP_VIEW, T, V);
    op_check(&call, "ids", &args->ids, OP_I32, 1, T);
    if (op_status(&call) != DART_OK) return op_status(&call);
    struct ArgmaxArgs k = {.rows = T};
    const dart_tensor parts = argmax_parts(&call, T, V, &args->logits, &k.blocks);
    op_kernel(&call, KERNEL_argmax, T, 0);
    op_bind(&call, BINDING_argmax_part, &parts, 2 * (uint64_t)k.blocks * T);
    k.ids_at = op_bind(&call, BINDING_argmax_ids, &args->ids, T);
    op_launch(&call, &k, T);
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
    op_check(&call, "logits", &args->logits, OP_FLOAT | OP_VIEW, T, V);
    op_check(&call, "settings", &args->settings, OP_I32, T, SETTING_WORDS);
    op_check(&call, "seq", &args->seq, OP_I32 | OP_OPTIONAL, T, 2);
    op_check(&call, "ids", &args->ids, OP_I32, 1, T);
    if (op_status(&call) != DART_OK) return op_status(&call);
    struct SampleArgs k = {.flags = (op_has(&args->seq) ? HAS_SEQ : 0) | (args->keep_ended ? KEEPS_ENDED : 0), .rows = T, .width = V,
                           .logits_row = op_row(&args->logits, V)};
    const dart_tensor parts = argmax_parts(&call, T, V, &args->logits, &k.blocks);
    op_kernel(&call, KERNEL_sample, T, 0);
    k.logits_at = op_bind_rows(&call, BINDING_sample_logits, &args->logits, T, V);
    op_bind(&call, BINDING_sample_part, &parts, 2 * (uint64_t)k.blocks * T);
    k.settings_at = op_bind(&call, BINDING_sample_settings, &args->settings, SETTING_WORDS * (uint64_t)T);
    k.seq_at = op_bind(&call, BINDING_sample_seq, &args->seq, 2 * (uint64_t)T);
    k.ids_at = op_bind(&call, BINDING_sample_ids, &args->ids, T);
    op_launch(&call, &k, T);
    return op_end(&call);
}

dart_status dart_advance(dart_stream *stream, const dart_advance_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    op_call call;
    if (op_begin(&call, stream, "dart_advance") != DART_OK) return op_status(&call);
    OP_REQUIRE(&call, args->B > 0, "B must be above 0");
    const bool logs = op_has(&args->log);
    OP_REQUIRE(&call, logs == op_has(&args->ids) && (!logs || args->slots > 0), "ids and log come together, with slots above 0");
    const bool stops = op_has(&args->stops);
    OP_REQUIRE(&call, stops == op_has(&args->live) && (logs || !stops), "stops and live come together, and with ids");
    op_check(&call, "seq", &args->seq, OP_I32, args->B, 2);
    op_check(&call, "ids", &args->ids, OP_I32 | OP_OPTIONAL, 1, args->B);
    op_check(&call, "log", &args->log, OP_I32 | OP_OPTIONAL, args->B, args->slots);
    op_check(&call, "stops", &args->stops, OP_I32 | OP_OPTIONAL, args->B, STOP_WORDS);
    op_check(&call, "live", &args->live, OP_I32 | OP_OPTIONAL, 1, args->B);
    if (op_status(&call) != DART_OK) return op_status(&call);
    struct AdvanceArgs k = {.flags = (logs ? HAS_ROWS : 0) | (stops ? HAS_STOPS : 0), .B = args->B, .slots = args->slots};
    op_kernel(&call, KERNEL_advance, args->B, 0);
    k.seq_at = op_bind(&call, BINDING_advance_seq, &args->seq, 2 * (uint64_t)args->B);
    k.ids_at = op_bind(&call, BINDING_advance_ids, &args->ids, args->B);
    k.log_at = op_bind(&call, BINDING_advance_log, &args->log, (uint64_t)args->B * args->slots);
    k.stops_at = op_bind(&call, BINDING_advance_stops, &args->stops, (uint64_t)args->B * STOP_WORDS);
    k.live_at = op_bind(&call, BINDING_advance_live, &args->live, args->B);
    op_launch(&call, &k, base_ceil_div(args->B, call.row->T0));
    return op_end(&call);
}
