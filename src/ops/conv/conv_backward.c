/* The backward pass of the convolution. Formulas and tiles: shaders/conv/args.h. */
#include "dartlm/ops_backward.h"
#include "ops/arguments.h"
#include "ops/dense/dense.h"

dart_status dart_conv_backward(dart_stream *stream, const dart_conv_backward_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    op_call call;
    const dart_conv_backward_args *a = args;
    if (op_begin(&call, stream, "dart_conv_backward") != DART_OK) return op_status(&call);
    op_layout layout;
    OP_REQUIRE(&call, a->C > 0, "C %u must be above 0", a->C);
    if (ops_check_taps(&call, a->K) != DART_OK) return op_status(&call);
    if (op_lay_out(&call, &layout, a->B, a->L, a->T, &a->seq, &a->cu) != DART_OK) return op_status(&call);
    const uint64_t rows = layout.rows;
    const bool biased = op_has(&a->bias);
    OP_REQUIRE(&call, op_has(&a->grad_bias) == biased, "bias and grad_bias come together");
    const struct { op_operand x, weight, bias, seq, up_y, grad_x, grad_weight, grad_bias; } o = {
        .x = {"x", a->x, OP_FLOAT | OP_VIEW, rows, a->C},
        .weight = {"weight", a->weight, OP_FLOAT, a->C, a->K},
        .bias = {"bias", a->bias, OP_FLOAT | OP_OPTIONAL, 1, a->C},
        .seq = layout.seq,
        .up_y = {"up_y", a->up_y, OP_FLOAT | OP_VIEW, rows, a->C},
        .grad_x = {"grad_x", a->grad_x, OP_FLOAT | OP_VIEW, rows, a->C},
        .grad_weight = {"grad_weight", a->grad_weight, OP_F32, a->C, a->K},
        .grad_bias = {"grad_bias", a->grad_bias, OP_F32 | OP_OPTIONAL, 1, a->C}};
    if (!OP_CHECK(&call, o)) return op_status(&call);
    struct ConvBackwardArgs k = {.flags = layout.flags | (biased ? HAS_BIAS : 0), .B = a->B, .L = a->L, .T = a->T, .C = a->C, .K = a->K};
    const bool eights = a->C % 16 == 0 && op_fits_rows(&o.x) && op_fits_rows(&o.up_y) && op_fits_rows(&o.grad_x) &&
                        a->weight.offset % 8 == 0 && a->bias.offset % 8 == 0;
    const uint32_t traits = layout.traits | (eights ? FITS_TILES : 0) | (a->K == 4 ? FITS_CONV_K4 : 0);
    op_kernel(&call, KERNEL_conv_backward, a->L, traits);
    const uint64_t blocks = base_ceil_div(a->C, call.T0) * base_ceil_div(a->L, call.T1) * a->B;
    const uint64_t slots = op_slots(&layout, base_ceil_div(a->L, call.T1), call.T1);
    const op_operand of_weight = op_scratch(&call, DART_F32, slots, (uint64_t)a->C * a->K);
    op_operand of_bias = {0};
    if (biased) of_bias = op_scratch(&call, DART_F32, slots, a->C);
    if (op_packed(&layout)) {
        dense_clear(&call, &of_weight);
        if (biased) dense_clear(&call, &of_bias);
        op_kernel(&call, KERNEL_conv_backward, a->L, traits);
    }
    OP_LAUNCH(&call, &k, blocks, OP_ROWS(conv_backward, x, &o.x, k), OP_AT(conv_backward, weight, &o.weight, k),
              OP_AT(conv_backward, bias, &o.bias, k), OP_AT(conv_backward, seq, &o.seq, k), OP_ROWS(conv_backward, up_y, &o.up_y, k),
              OP_ROWS(conv_backward, grad_x, &o.grad_x, k), OP_WHOLE(conv_backward, of_weight, &of_weight),
              OP_WHOLE(conv_backward, of_bias, &of_bias));
    dense_sum(&call, &of_weight, &o.grad_weight, true);
    if (biased) dense_sum(&call, &of_bias, &o.grad_bias, true);
    return op_end(&call);
}
