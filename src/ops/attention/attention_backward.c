/* The backward pass of softmax attention. Formulas and tiles: shaders/attention/args.h. */
#include "dartlm/ops_backward.h"
#include "runtime/op.h"

#include <math.h>

/* Heads of a group that one workgroup takes in turn. */
enum { MOST_HEADS = 4 };

typedef struct operands {
    op_operand q, k, v, o, lse, seq, up_o, grad_q, grad_k, grad_v;
} operands;

/* All gradients of a sequence by one workgroup, where a row does that. */
static bool whole(op_call *call, const dart_attention_backward_args *a, const operands *o, uint32_t flags, uint32_t traits, float scale)
{
    if (a->H > MOST_HEADS * a->G) return false;
    if (!op_fits_rows(&o->o)) traits &= ~(uint32_t)FITS_TILES;
    if (!op_prefers(call, KERNEL_attention_backward_whole, KERNEL_attention_backward_k, a->L, traits)) return false;
    struct AttentionBackwardWholeArgs k = {.flags = flags, .B = a->B, .L = a->L, .T = a->T, .H = a->H, .G = a->G, .D = a->D, .scale = scale};
    op_kernel(call, KERNEL_attention_backward_whole, a->L, traits);
    OP_LAUNCH(call, &k, (uint64_t)a->B * a->G, OP_ROWS(attention_backward_whole, q, &o->q, k), OP_ROWS(attention_backward_whole, k, &o->k, k),
              OP_ROWS(attention_backward_whole, v, &o->v, k), OP_ROWS(attention_backward_whole, o, &o->o, k),
              OP_ROWS(attention_backward_whole, up_o, &o->up_o, k), OP_AT(attention_backward_whole, lse, &o->lse, k),
              OP_AT(attention_backward_whole, seq, &o->seq, k), OP_ROWS(attention_backward_whole, grad_q, &o->grad_q, k),
              OP_ROWS(attention_backward_whole, grad_k, &o->grad_k, k), OP_ROWS(attention_backward_whole, grad_v, &o->grad_v, k));
    return true;
}

dart_status dart_attention_backward(dart_stream *stream, const dart_attention_backward_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    op_call call;
    const dart_attention_backward_args *a = args;
    const uint32_t B = a->B, L = a->L, T = a->T, H = a->H, G = a->G, D = a->D;
    if (op_begin(&call, stream, "dart_attention_backward") != DART_OK) return op_status(&call);
    op_layout layout;
    if (op_lay_out(&call, &layout, B, L, T, &a->seq, &a->cu) != DART_OK) return op_status(&call);
    const bool packed = op_packed(&layout);
    OP_REQUIRE(&call, H > 0 && G > 0, "H %u, G %u: both must be above 0", H, G);
    OP_REQUIRE(&call, H % G == 0, "H %u is not a multiple of G %u", H, G);
    OP_REQUIRE(&call, D > 0 && D <= MAX_HEAD, "D %u must be 1 to %d", D, MAX_HEAD);
    OP_REQUIRE(&call, isfinite(a->scale), "scale %g must be finite", (double)a->scale);
    const uint64_t rows = layout.rows, wide = (uint64_t)H * D, narrow = (uint64_t)G * D;
    const operands o = {
        .q = {"q", a->q, OP_FLOAT | OP_VIEW, rows, wide},
        .k = {"k", a->k, OP_FLOAT | OP_VIEW, rows, narrow},
        .v = {"v", a->v, OP_FLOAT | OP_VIEW, rows, narrow},
        .o = {"o", a->o, OP_FLOAT | OP_VIEW, rows, wide},
        .lse = {"lse", a->lse, OP_F32, rows, H},
        .seq = layout.seq,
        .up_o = {"up_o", a->up_o, OP_FLOAT | OP_VIEW, rows, wide},
        .grad_q = {"grad_q", a->grad_q, OP_FLOAT | OP_VIEW, rows, wide},
        .grad_k = {"grad_k", a->grad_k, OP_FLOAT | OP_VIEW, rows, narrow},
        .grad_v = {"grad_v", a->grad_v, OP_FLOAT | OP_VIEW, rows, narrow}};
    if (!OP_CHECK(&call, o)) return op_status(&call);
    const uint32_t flags = layout.flags;
    const float scale = a->scale != 0 ? a->scale : 1 / sqrtf((float)D);
    uint32_t traits = layout.traits | (op_fits_16bit(&a->q, &a->k) & op_fits_16bit(&a->v, &a->up_o)) | (D <= 64 ? FITS_ATTENTION_D64 : 0) |
                      (D <= 32 ? FITS_ATTENTION_D32 : 0);
    if (D % 16 == 0 && op_fits_rows(&o.q) && op_fits_rows(&o.k) && op_fits_rows(&o.v) && op_fits_rows(&o.up_o) && op_fits_rows(&o.grad_q) &&
        op_fits_rows(&o.grad_k) && op_fits_rows(&o.grad_v))
        traits |= FITS_TILES;
    if (whole(&call, a, &o, flags, traits, scale)) return op_end(&call);
    const op_operand dot = op_scratch(&call, DART_F32, rows, H);

    /* Row by row: to it packed sequences are one of T rows. */
    struct AttentionBackwardDotArgs first = {.flags = flags & HAS_SEQ, .B = packed ? 1 : B, .L = packed ? T : L, .H = H, .D = D};
    op_kernel(&call, KERNEL_attention_backward_dot, L, D % 16 == 0 && op_fits_rows(&o.o) && op_fits_rows(&o.up_o) ? FITS_TILES : 0);
    OP_LAUNCH(&call, &first, base_ceil_div(rows, call.T0), OP_ROWS(attention_backward_dot, o, &o.o, first),
              OP_ROWS(attention_backward_dot, up_o, &o.up_o, first), OP_AT(attention_backward_dot, seq, &o.seq, first),
              OP_WHOLE(attention_backward_dot, dot, &dot));

    struct AttentionBackwardKArgs k = {.flags = flags, .B = B, .L = L, .T = T, .H = H, .G = G, .D = D, .scale = scale};
    op_kernel(&call, KERNEL_attention_backward_k, L, traits);
    OP_LAUNCH(&call, &k, base_ceil_div(L, call.T0) * base_ceil_div(D, call.T1) * G * B, OP_ROWS(attention_backward_k, q, &o.q, k),
              OP_ROWS(attention_backward_k, k, &o.k, k), OP_ROWS(attention_backward_k, v, &o.v, k),
              OP_ROWS(attention_backward_k, up_o, &o.up_o, k), OP_AT(attention_backward_k, lse, &o.lse, k),
              OP_WHOLE(attention_backward_k, dot, &dot), OP_AT(attention_backward_k, seq, &o.seq, k),
              OP_ROWS(attention_backward_k, grad_k, &o.grad_k, k), OP_ROWS(attention_backward_k, grad_v, &o.grad_v, k));

    struct AttentionBackwardQArgs q = {.flags = flags, .B = B, .L = L, .T = T, .H = H, .G = G, .D = D, .scale = scale};
    op_kernel(&call, KERNEL_attention_backward_q, L, traits);
    OP_LAUNCH(&call, &q, base_ceil_div(L, call.T0) * base_ceil_div(D, call.T1) * H * B, OP_ROWS(attention_backward_q, q, &o.q, q),
              OP_ROWS(attention_backward_q, k, &o.k, q), OP_ROWS(attention_backward_q, v, &o.v, q),
              OP_ROWS(attention_backward_q, up_o, &o.up_o, q), OP_AT(attention_backward_q, lse, &o.lse, q),
              OP_WHOLE(attention_backward_q, dot, &dot), OP_AT(attention_backward_q, seq, &o.seq, q),
              OP_ROWS(attention_backward_q, grad_q, &o.grad_q, q));
    return op_end(&call);
}
