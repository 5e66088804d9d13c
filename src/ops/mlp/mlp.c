/* What a Transformer's layers need besides attention: rotary positions, GELU and SwiGLU. Formulas and tiles: shaders/mlp/args.h. */
#include "dartlm/ops_backward.h"
#include "runtime/op.h"

#include <math.h>

enum { MAX_TURNED = 256 }; /* largest D and R: seven powers make up every i below 128 */

dart_status dart_rope(dart_stream *stream, const dart_rope_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    op_call call;
    const dart_rope_args *a = args;
    if (op_begin(&call, stream, "dart_rope") != DART_OK) return op_status(&call);
    op_layout layout;
    if (op_lay_out(&call, &layout, a->B, a->L, a->T, &a->seq, &a->cu) != DART_OK) return op_status(&call);
    OP_REQUIRE(&call, a->H > 0, "H %u must be above 0", a->H);
    OP_REQUIRE(&call, a->D > 0 && a->D % 2 == 0 && a->D <= MAX_TURNED, "D %u must be even, 2 to %d", a->D, MAX_TURNED);
    const uint32_t R = a->R != 0 ? a->R : a->D;
    OP_REQUIRE(&call, R % 2 == 0 && R <= a->D, "R %u must be even, at most D %u", R, a->D);
    OP_REQUIRE(&call, a->base > 1 && isfinite(a->base), "base %g must be above 1", (double)a->base);
    const uint64_t rows = layout.rows, width = (uint64_t)a->H * a->D;
    const struct { op_operand x, seq, y; } o = {
        .x = {"x", a->x, OP_FLOAT | OP_VIEW, rows, width},
        .seq = layout.seq,
        .y = {"y", a->y, OP_FLOAT | OP_VIEW, rows, width}};
    if (!OP_CHECK(&call, o)) return op_status(&call);
    uint64_t powers[7];
    for (int k = 0; k < 7; k++) powers[k] = (uint64_t)ldexp(pow((double)a->base, -(double)(2u << k) / R), 64);
#define HIGH(k) (uint32_t)(powers[k] >> 32)
#define LOW(k) (uint32_t)powers[k]
    struct RopeArgs k = {.flags = layout.flags | (a->inverse ? IS_INVERSE : 0), .B = a->B, .L = a->L, .T = a->T, .H = a->H, .D = a->D, .R = R,
                         .r0_high = HIGH(0), .r0_low = LOW(0), .r1_high = HIGH(1), .r1_low = LOW(1), .r2_high = HIGH(2), .r2_low = LOW(2),
                         .r3_high = HIGH(3), .r3_low = LOW(3), .r4_high = HIGH(4), .r4_low = LOW(4), .r5_high = HIGH(5), .r5_low = LOW(5),
                         .r6_high = HIGH(6), .r6_low = LOW(6)};
#undef HIGH
#undef LOW
    op_kernel(&call, KERNEL_rope, (uint32_t)rows,
              (R == a->D ? FITS_MLP_WHOLE_HEADS : 0) | (R % 16 == 0 && op_fits_rows(&o.x) && op_fits_rows(&o.y) ? FITS_TILES : 0));
    OP_LAUNCH(&call, &k, base_ceil_div(rows, call.T0), OP_ROWS(rope, x, &o.x, k), OP_AT(rope, seq, &o.seq, k), OP_ROWS(rope, y, &o.y, k));
    return op_end(&call);
}

dart_status dart_gelu(dart_stream *stream, const dart_gelu_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    op_call call;
    const uint32_t T = args->T, I = args->I;
    if (op_begin(&call, stream, "dart_gelu") != DART_OK) return op_status(&call);
    OP_REQUIRE(&call, T > 0 && I > 0, "T %u, I %u: both must be above 0", T, I);
    const struct { op_operand a, h; } o = {
        .a = {"a", args->a, OP_FLOAT | OP_VIEW, T, I},
        .h = {"h", args->h, OP_FLOAT | OP_VIEW, T, I}};
    if (!OP_CHECK(&call, o)) return op_status(&call);
    struct GeluArgs k = {.flags = args->by_tanh ? IS_TANH : 0, .rows = T, .width = I};
    op_kernel(&call, KERNEL_gelu, T, 0);
    OP_LAUNCH(&call, &k, base_ceil_div((uint64_t)T * I, call.T0), OP_ROWS(gelu, a, &o.a, k), OP_ROWS(gelu, h, &o.h, k));
    return op_end(&call);
}

dart_status dart_swiglu(dart_stream *stream, const dart_swiglu_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    op_call call;
    const uint32_t T = args->T, I = args->I;
    if (op_begin(&call, stream, "dart_swiglu") != DART_OK) return op_status(&call);
    OP_REQUIRE(&call, T > 0 && I > 0, "T %u, I %u: both must be above 0", T, I);
    const struct { op_operand a, u, h; } o = {
        .a = {"a", args->a, OP_FLOAT | OP_VIEW, T, I},
        .u = {"u", args->u, OP_FLOAT | OP_VIEW, T, I},
        .h = {"h", args->h, OP_FLOAT | OP_VIEW, T, I}};
    if (!OP_CHECK(&call, o)) return op_status(&call);
    struct SwigluArgs k = {.rows = T, .width = I};
    op_kernel(&call, KERNEL_swiglu, T, I % 16 == 0 && op_fits_rows(&o.a) && op_fits_rows(&o.u) && op_fits_rows(&o.h) ? FITS_TILES : 0);
    OP_LAUNCH(&call, &k, base_ceil_div((uint64_t)T * I, call.T0), OP_ROWS(swiglu, a, &o.a, k), OP_ROWS(swiglu, u, &o.u, k),
              OP_ROWS(swiglu, h, &o.h, k));
    return op_end(&call);
}

dart_status dart_swiglu_backward(dart_stream *stream, const dart_swiglu_backward_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    op_call call;
    const uint32_t T = args->T, I = args->I;
    if (op_begin(&call, stream, "dart_swiglu_backward") != DART_OK) return op_status(&call);
    OP_REQUIRE(&call, T > 0 && I > 0, "T %u, I %u: both must be above 0", T, I);
    const struct { op_operand a, u, up_h, grad_a, grad_u; } o = {
        .a = {"a", args->a, OP_FLOAT | OP_VIEW, T, I},
        .u = {"u", args->u, OP_FLOAT | OP_VIEW, T, I},
        .up_h = {"up_h", args->up_h, OP_FLOAT | OP_VIEW, T, I},
        .grad_a = {"grad_a", args->grad_a, OP_FLOAT | OP_VIEW, T, I},
        .grad_u = {"grad_u", args->grad_u, OP_FLOAT | OP_VIEW, T, I}};
    if (!OP_CHECK(&call, o)) return op_status(&call);
    struct SwigluBackwardArgs k = {.rows = T, .width = I};
    const bool eights = I % 16 == 0 && op_fits_rows(&o.a) && op_fits_rows(&o.u) && op_fits_rows(&o.up_h) && op_fits_rows(&o.grad_a) &&
                        op_fits_rows(&o.grad_u);
    op_kernel(&call, KERNEL_swiglu_backward, T, eights ? FITS_TILES : 0);
    OP_LAUNCH(&call, &k, base_ceil_div((uint64_t)T * I, call.T0), OP_ROWS(swiglu_backward, a, &o.a, k), OP_ROWS(swiglu_backward, u, &o.u, k),
              OP_ROWS(swiglu_backward, up_h, &o.up_h, k), OP_ROWS(swiglu_backward, grad_a, &o.grad_a, k),
              OP_ROWS(swiglu_backward, grad_u, &o.grad_u, k));
    return op_end(&call);
}
