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
    OP_REQUIRE(&call, !args->mark_ids || op_has(&args->seen), "mark_ids needs seen");
    const struct { op_operand logits, settings, seq, seen, ids; } o = {
        .logits = {"logits", args->logits, OP_FLOAT | OP_VIEW, T, V},
        .settings = {"settings", args->settings, OP_I32, T, SETTING_WORDS},
        .seq = {"seq", args->seq, OP_I32 | OP_OPTIONAL, T, 2},
        .seen = {"seen", args->seen, OP_I32 | OP_OPTIONAL, T, base_ceil_div(V, 32)},
        .ids = {"ids", args->ids, OP_I32, 1, T}};
    if (!OP_CHECK(&call, o)) return op_status(&call);
    struct SampleArgs k = {.flags = (op_has(&args->seq) ? HAS_SEQ : 0) | (args->keep_ended ? KEEPS_ENDED : 0) |
                                    (op_has(&args->seen) ? HAS_SEEN : 0) | (args->mark_ids ? MARKS_IDS : 0),
                           .rows = T, .width = V};
    const op_operand parts = argmax_parts(&call, T, V, &o.logits, &k.blocks);
    op_kernel(&call, KERNEL_sample, T, 0);
    OP_LAUNCH(&call, &k, T, OP_ROWS(sample, logits, &o.logits, k), OP_WHOLE(sample, part, &parts), OP_AT(sample, settings, &o.settings, k),
              OP_AT(sample, seq, &o.seq, k), OP_AT(sample, seen, &o.seen, k), OP_AT(sample, ids, &o.ids, k));
    return op_end(&call);
}

dart_status dart_mark_ids(dart_stream *stream, const dart_mark_ids_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    op_call call;
    op_layout layout;
    const dart_mark_ids_args *a = args;
    if (op_begin(&call, stream, "dart_mark_ids") != DART_OK) return op_status(&call);
    if (op_lay_out(&call, &layout, a->B, a->L, a->T, &a->seq, &a->cu) != DART_OK) return op_status(&call);
    OP_REQUIRE(&call, a->V > 0 && a->V <= INT32_MAX, "V %u must be above 0 and below 2^31", a->V);
    const uint64_t words = base_ceil_div(a->V, 32);
    const struct { op_operand ids, seq, seen; } o = {
        .ids = {"ids", a->ids, OP_I32, 1, layout.rows},
        .seq = layout.seq,
        .seen = {"seen", a->seen, OP_I32, a->B, words}};
    if (!OP_CHECK(&call, o)) return op_status(&call);
    struct MarkIdsArgs k = {.flags = layout.flags, .B = a->B, .L = a->L, .T = a->T, .V = a->V};
    op_kernel(&call, KERNEL_mark_ids, a->B, 0);
    OP_LAUNCH(&call, &k, a->B, OP_AT(mark_ids, ids, &o.ids, k), OP_AT(mark_ids, seq, &o.seq, k), OP_AT(mark_ids, seen, &o.seen, k));
    return op_end(&call);
}

dart_status dart_log_probs(dart_stream *stream, const dart_log_probs_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    op_call call;
    const uint32_t T = args->T, V = args->V, top = args->k;
    if (op_begin(&call, stream, "dart_log_probs") != DART_OK) return op_status(&call);
    OP_REQUIRE(&call, T > 0 && V > 0 && V <= INT32_MAX, "T %u, V %u: both must be above 0, V below 2^31", T, V);
    OP_REQUIRE(&call, top <= DART_MOST_TOP, "k %u must be at most %d", top, DART_MOST_TOP);
    const bool targets = op_has(&args->targets);
    OP_REQUIRE(&call, targets == op_has(&args->target), "targets and target come together");
    OP_REQUIRE(&call, (top > 0) == op_has(&args->top_ids) && (top > 0) == op_has(&args->top), "top_ids and top come with k above 0");
    const struct { op_operand logits, targets, log_z, target, top_ids, top; } o = {
        .logits = {"logits", args->logits, OP_FLOAT | OP_VIEW, T, V},
        .targets = {"targets", args->targets, OP_I32 | OP_OPTIONAL, 1, T},
        .log_z = {"log_z", args->log_z, OP_F32, 1, T},
        .target = {"target", args->target, OP_F32 | OP_OPTIONAL, 1, T},
        .top_ids = {"top_ids", args->top_ids, OP_I32 | OP_OPTIONAL, T, top > 0 ? top : 1},
        .top = {"top", args->top, OP_F32 | OP_OPTIONAL, T, top > 0 ? top : 1}};
    if (!OP_CHECK(&call, o)) return op_status(&call);
    struct LogProbsArgs k = {.flags = targets ? HAS_TARGETS : 0, .rows = T, .width = V, .k = top};
    op_kernel(&call, KERNEL_log_probs, T, 0);
    OP_LAUNCH(&call, &k, T, OP_ROWS(log_probs, logits, &o.logits, k), OP_AT(log_probs, targets, &o.targets, k),
              OP_AT(log_probs, log_z, &o.log_z, k), OP_AT(log_probs, target, &o.target, k), OP_AT(log_probs, top_ids, &o.top_ids, k),
              OP_AT(log_probs, top, &o.top, k));
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
