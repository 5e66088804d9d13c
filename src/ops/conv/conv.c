/* Causal convolution with SiLU and a carried tail. */
#include "ops/arguments.h"

typedef struct conv_plan {
    op_call call;
    const dart_conv_args *a;
    uint32_t flags;
    op_layout layout;
    struct { op_operand x, tail, seq; } o;
    struct { op_operand weight, bias, y; } taps; /* of dart_conv only */
} conv_plan;

static void step(conv_plan *p)
{
    const dart_conv_args *a = p->a;
    struct ConvStepArgs k = {.flags = p->flags, .B = a->B, .C = a->C, .K = a->K};
    op_kernel(&p->call, KERNEL_conv_step, a->B, 0);
    OP_LAUNCH(&p->call, &k, base_ceil_div(a->C, p->call.T0) * a->B, OP_ROWS(conv_step, x, &p->o.x, k),
              OP_AT(conv_step, weight, &p->taps.weight, k), OP_AT(conv_step, bias, &p->taps.bias, k), OP_AT(conv_step, tail, &p->o.tail, k),
              OP_AT(conv_step, seq, &p->o.seq, k), OP_ROWS(conv_step, y, &p->taps.y, k));
}

/* Tokens of a tile, of which a lane walks a half or less. Where there are enough tiles they are long, as a walk reads three tokens more than it
 * has; else short, for more lanes, each of which then waits for its tokens once: few long tiles take longer than row `four`
 * (docs/lab/2026-11-25-before-and-after.md). */
enum { LONG_TILE = 64, SHORT_TILE = 8 };
static uint32_t tile_tokens(const op_call *call, const dart_conv_args *a)
{
    return base_ceil_div(a->L, LONG_TILE) * a->B >= 2 * (uint64_t)op_wave(call) ? LONG_TILE : SHORT_TILE;
}

static void piece(conv_plan *p)
{
    const dart_conv_args *a = p->a;
    struct ConvArgs k = {.flags = p->flags, .B = a->B, .L = a->L, .T = a->T, .C = a->C, .K = a->K};
    const bool eights = a->C % 16 == 0 && op_fits_rows(&p->o.x) && op_fits_rows(&p->taps.y) && a->weight.offset % 8 == 0 &&
                        a->bias.offset % 8 == 0 && a->tail.offset % 8 == 0;
    op_kernel(&p->call, KERNEL_conv, a->L,
              p->layout.traits | (eights ? FITS_TILES : 0) | (a->K == 4 ? FITS_CONV_K4 : 0) | (a->C <= 256 ? FITS_CONV_C256 : 0));
    if (p->call.row->T1 == 0) p->call.T1 = tile_tokens(&p->call, a);
    OP_LAUNCH(&p->call, &k, base_ceil_div(a->C, p->call.T0) * base_ceil_div(a->L, p->call.T1) * a->B, OP_ROWS(conv, x, &p->o.x, k),
              OP_AT(conv, weight, &p->taps.weight, k), OP_AT(conv, bias, &p->taps.bias, k), OP_AT(conv, tail, &p->o.tail, k),
              OP_AT(conv, seq, &p->o.seq, k), OP_ROWS(conv, y, &p->taps.y, k));
}

static void replace_tail(conv_plan *p)
{
    const dart_conv_args *a = p->a;
    struct ConvTailArgs k = {.flags = p->flags, .B = a->B, .L = a->L, .C = a->C, .K = a->K};
    op_kernel(&p->call, KERNEL_conv_tail, a->L, 0);
    OP_LAUNCH(&p->call, &k, base_ceil_div(a->C, p->call.T0) * a->B, OP_ROWS(conv_tail, x, &p->o.x, k),
              OP_AT(conv_tail, tail, &p->o.tail, k), OP_AT(conv_tail, seq, &p->o.seq, k));
}

/* What both ops need. */
static dart_status begin(conv_plan *p, dart_stream *stream, const dart_conv_args *a, const char *op, int tail_kinds)
{
    op_call *call = &p->call;
    *p = (conv_plan){.a = a};
    if (op_begin(call, stream, op) != DART_OK) return op_status(call);
    OP_REQUIRE(call, a->C > 0, "C %u must be above 0", a->C);
    if (ops_check_taps(call, a->K) != DART_OK) return op_status(call);
    if (op_lay_out(call, &p->layout, a->B, a->L, a->T, &a->seq, &a->cu) != DART_OK) return op_status(call);
    OP_REQUIRE(call, !op_packed(&p->layout) || !op_has(&a->tail), "packed sequences have no tail");
    p->o.x = (op_operand){"x", a->x, OP_FLOAT | OP_VIEW, p->layout.rows, a->C};
    p->o.tail = (op_operand){"tail", a->tail, OP_FLOAT | tail_kinds, (uint64_t)a->B * (a->K - 1), a->C};
    p->o.seq = p->layout.seq;
    p->flags = p->layout.flags | (op_has(&a->bias) ? HAS_BIAS : 0) | (op_has(&a->tail) ? HAS_TAIL : 0);
    OP_CHECK(call, p->o);
    return op_status(call);
}

dart_status dart_conv_tail(dart_stream *stream, const dart_conv_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    conv_plan p;
    if (begin(&p, stream, args, "dart_conv_tail", 0) != DART_OK) return op_status(&p.call);
    replace_tail(&p);
    return op_end(&p.call);
}

dart_status dart_conv(dart_stream *stream, const dart_conv_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    conv_plan p;
    const dart_conv_args *a = args;
    if (begin(&p, stream, args, "dart_conv", OP_OPTIONAL) != DART_OK) return op_status(&p.call);
    p.taps.weight = (op_operand){"weight", a->weight, OP_FLOAT, a->C, a->K};
    p.taps.bias = (op_operand){"bias", a->bias, OP_FLOAT | OP_OPTIONAL, 1, a->C};
    p.taps.y = (op_operand){"y", a->y, OP_FLOAT | OP_VIEW, p.layout.rows, a->C};
    if (!OP_CHECK(&p.call, p.taps)) return op_status(&p.call);
    if (a->L == 1 && op_has(&a->tail) && !a->keep_tail) {
        step(&p);
    } else {
        piece(&p);
        if (op_has(&a->tail) && !a->keep_tail) replace_tail(&p);
    }
    return op_end(&p.call);
}
