/* Causal convolution with SiLU and a carried tail. */
#include "runtime/stream.h"

static void step(op_call *call, const dart_conv_args *a, uint32_t flags)
{
    struct ConvStepArgs k = {.flags = flags, .B = a->B, .C = a->C, .K = a->K, .x_row = op_row(&a->x, a->C), .y_row = op_row(&a->y, a->C)};
    op_kernel(call, KERNEL_conv_step, a->B, 0);
    k.x_at = op_bind_rows(call, BINDING_conv_step_x, &a->x, a->B, a->C);
    k.weight_at = op_bind(call, BINDING_conv_step_weight, &a->weight, (uint64_t)a->C * a->K);
    k.bias_at = op_bind(call, BINDING_conv_step_bias, &a->bias, a->C);
    k.tail_at = op_bind(call, BINDING_conv_step_tail, &a->tail, (uint64_t)a->B * (a->K - 1) * a->C);
    k.seq_at = op_bind(call, BINDING_conv_step_seq, &a->seq, 2 * (uint64_t)a->B);
    k.y_at = op_bind_rows(call, BINDING_conv_step_y, &a->y, a->B, a->C);
    op_launch(call, &k, base_ceil_div(a->C, call->row->T0) * a->B);
}

static void piece(op_call *call, const dart_conv_args *a, uint32_t flags)
{
    const uint64_t rows = (uint64_t)a->B * a->L;
    struct ConvArgs k = {.flags = flags, .B = a->B, .L = a->L, .C = a->C, .K = a->K, .x_row = op_row(&a->x, a->C), .y_row = op_row(&a->y, a->C)};
    const bool eights = a->K == 4 && a->C % 16 == 0 && op_fits_rows(&a->x, a->C) && op_fits_rows(&a->y, a->C) &&
                        a->weight.offset % 8 == 0 && a->bias.offset % 8 == 0 && a->tail.offset % 8 == 0;
    op_kernel(call, KERNEL_conv, a->L, eights ? FITS_TILES : 0);
    k.x_at = op_bind_rows(call, BINDING_conv_x, &a->x, rows, a->C);
    k.weight_at = op_bind(call, BINDING_conv_weight, &a->weight, (uint64_t)a->C * a->K);
    k.bias_at = op_bind(call, BINDING_conv_bias, &a->bias, a->C);
    k.tail_at = op_bind(call, BINDING_conv_tail, &a->tail, (uint64_t)a->B * (a->K - 1) * a->C);
    k.seq_at = op_bind(call, BINDING_conv_seq, &a->seq, 2 * (uint64_t)a->B);
    k.y_at = op_bind_rows(call, BINDING_conv_y, &a->y, rows, a->C);
    op_launch(call, &k, base_ceil_div(a->C, call->row->T0) * base_ceil_div(a->L, call->row->T1) * a->B);
}

static void replace_tail(op_call *call, const dart_conv_args *a, uint32_t flags)
{
    const uint64_t rows = (uint64_t)a->B * a->L;
    struct ConvTailArgs t = {.flags = flags, .B = a->B, .L = a->L, .C = a->C, .K = a->K, .x_row = op_row(&a->x, a->C)};
    op_kernel(call, KERNEL_conv_tail, a->L, 0);
    t.x_at = op_bind_rows(call, BINDING_conv_tail_x, &a->x, rows, a->C);
    t.tail_at = op_bind(call, BINDING_conv_tail_tail, &a->tail, (uint64_t)a->B * (a->K - 1) * a->C);
    t.seq_at = op_bind(call, BINDING_conv_tail_seq, &a->seq, 2 * (uint64_t)a->B);
    op_launch(call, &t, base_ceil_div(a->C, call->row->T0) * a->B);
}

/* What both ops need. */
static dart_status check(op_call *call, const dart_conv_args *a, int tail_kinds)
{
    OP_REQUIRE(call, a->B > 0 && a->L > 0 && a->C > 0, "B %u, L %u, C %u: all must be above 0", a->B, a->L, a->C);
    OP_REQUIRE(call, a->K >= 2 && a->K <= 8, "K %u must be 2 to 8", a->K);
    const uint64_t rows = (uint64_t)a->B * a->L;
    OP_REQUIRE(call, rows <= UINT32_MAX, "B L = %llu rows are too many for one piece", (unsigned long long)rows);
    op_check(call, "x", &a->x, OP_FLOAT | OP_VIEW, rows, a->C);
    op_check(call, "tail", &a->tail, OP_FLOAT | tail_kinds, (uint64_t)a->B * (a->K - 1), a->C);
    op_check(call, "seq", &a->seq, OP_I32 | OP_OPTIONAL, a->B, 2);
    return op_status(call);
}

static uint32_t flags_of(const dart_conv_args *a)
{
    return (op_has(&a->seq) ? HAS_SEQ : 0) | (op_has(&a->bias) ? HAS_BIAS : 0) | (op_has(&a->tail) ? HAS_TAIL : 0);
}

dart_status dart_conv_tail(dart_stream *stream, const dart_conv_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    op_call call;
    if (op_begin(&call, stream, "dart_conv_tail") != DART_OK) return op_status(&call);
    if (check(&call, args, 0) != DART_OK) return op_status(&call);
    replace_tail(&call, args, flags_of(args));
    return op_end(&call);
}

dart_status dart_conv(dart_stream *stream, const dart_conv_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    op_call call;
    const dart_conv_args *a = args;
    if (op_begin(&call, stream, "dart_conv") != DART_OK) return op_status(&call);
    if (check(&call, a, OP_OPTIONAL) != DART_OK) return op_status(&call);
    op_check(&call, "weight", &a->weight, OP_FLOAT, a->C, a->K);
    op_check(&call, "bias", &a->bias, OP_FLOAT | OP_OPTIONAL, 1, a->C);
    op_check(&call, "y", &a->y, OP_FLOAT | OP_VIEW, (uint64_t)a->B * a->L, a->C);
    if (op_status(&call) != DART_OK) return op_status(&call);
    if (a->L == 1 && op_has(&a->tail) && !a->keep_tail) {
        step(&call, a, flags_of(a));
    } else {
        piece(&call, a, flags_of(a));
        if (op_has(&a->tail) && !a->keep_tail) replace_tail(&call, a, flags_of(a));
    }
    return op_end(&call);
}
