/* The norm of all gradients, and AdamW. Formulas and tiles: shaders/optim/args.h. */
#include "dartlm/ops_backward.h"
#include "runtime/op.h"

/* AdamW's elements have nothing to do with each other: a launch may begin at any whose place every device can bind, which is a multiple of 256 bytes
 * of 16-bit copies. */
enum { ADAMW_UNIT = 128 };

/* Elements of a launch: as many as fit a binding, whole units, and few enough to be counted in 32 bits. */
static uint64_t most_elements(const op_call *call, uint32_t unit)
{
    const uint64_t fit = op_binding_limit(call) / sizeof(float), most = UINT64_C(1) << 30;
    const uint64_t count = (fit < most ? fit : most) / unit * unit;
    return count > 0 ? count : unit;
}

/* `count` elements from `first` on. */
static op_operand elements(const op_operand *operand, uint64_t first, uint64_t count)
{
    op_operand some = *operand;
    some.of.offset += first;
    some.width = count;
    return some;
}

dart_status dart_grad_norm(dart_stream *stream, const dart_grad_norm_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    op_call call;
    if (op_begin(&call, stream, "dart_grad_norm") != DART_OK) return op_status(&call);
    OP_REQUIRE(&call, args->count > 0 && args->gradients != NULL, "there must be a gradient");
    OP_REQUIRE(&call, args->clip > 0, "clip %g must be above 0", (double)args->clip);
    const struct { op_operand factor, scale; } o = {
        .factor = {"factor", args->factor, OP_F32 | OP_OPTIONAL, 1, 1},
        .scale = {"scale", args->scale, OP_F32, 1, 4}};
    if (!OP_CHECK(&call, o)) return op_status(&call);
    op_kernel(&call, KERNEL_square_sum, 0, 0);
    uint64_t sums = 0;
    for (uint32_t i = 0; i < args->count; i++) {
        const op_operand grad = {"grad", args->gradients[i].grad, OP_F32, 1, args->gradients[i].elements};
        OP_REQUIRE(&call, grad.width > 0, "gradient %u has no elements", i);
        if (!op_check(&call, &grad, 1)) return op_status(&call);
        sums += base_ceil_div(grad.width, call.T0);
    }
    OP_REQUIRE(&call, sums <= INT32_MAX, "%llu blocks of gradients are too many", (unsigned long long)sums);
    const op_operand partial = op_scratch(&call, DART_F32, 1, sums);
    const uint64_t most = most_elements(&call, call.T0); /* A sum a tile. */
    uint64_t slot = 0;
    for (uint32_t i = 0; i < args->count; i++) {
        const op_operand grad = {"grad", args->gradients[i].grad, OP_F32, 1, args->gradients[i].elements};
        for (uint64_t first = 0; first < grad.width && op_status(&call) == DART_OK; first += most) {
            const uint64_t count = grad.width - first < most ? grad.width - first : most, tiles = base_ceil_div(count, call.T0);
            const op_operand x = elements(&grad, first, count), to = elements(&partial, slot, tiles);
            struct SquareSumArgs k = {.count = (uint32_t)count};
            OP_LAUNCH(&call, &k, tiles, OP_AT(square_sum, x, &x, k), OP_AT(square_sum, partial, &to, k));
            slot += tiles;
        }
    }
    struct GradScaleArgs k = {.flags = op_has(&args->factor) ? HAS_FACTOR : 0, .count = (uint32_t)sums, .clip = args->clip};
    op_kernel(&call, KERNEL_grad_scale, 0, 0);
    OP_LAUNCH(&call, &k, 1, OP_WHOLE(grad_scale, partial, &partial), OP_AT(grad_scale, factor, &o.factor, k),
              OP_AT(grad_scale, scale, &o.scale, k));
    return op_end(&call);
}

dart_status dart_adamw(dart_stream *stream, const dart_adamw_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    op_call call;
    if (op_begin(&call, stream, "dart_adamw") != DART_OK) return op_status(&call);
    OP_REQUIRE(&call, args->elements > 0, "there must be an element");
    const uint64_t n = args->elements;
    const struct { op_operand w, m, v, grad, scale, hyper, copy; } o = {
        .w = {"w", args->w, OP_F32, 1, n},
        .m = {"m", args->m, OP_F32, 1, n},
        .v = {"v", args->v, OP_F32, 1, n},
        .grad = {"grad", args->grad, OP_F32, 1, n},
        .scale = {"scale", args->scale, OP_F32, 1, 4},
        .hyper = {"hyper", args->hyper, OP_F32, 1, 8},
        .copy = {"copy", args->copy, OP_FLOAT | OP_OPTIONAL, 1, n}};
    if (!OP_CHECK(&call, o)) return op_status(&call);
    op_kernel(&call, KERNEL_adamw, 0, 0);
    const uint64_t most = most_elements(&call, ADAMW_UNIT);
    for (uint64_t first = 0; first < n && op_status(&call) == DART_OK; first += most) {
        const uint64_t count = n - first < most ? n - first : most;
        const op_operand w = elements(&o.w, first, count), m = elements(&o.m, first, count), v = elements(&o.v, first, count),
                         grad = elements(&o.grad, first, count);
        op_operand copy = o.copy;
        if (op_has(&args->copy)) copy = elements(&o.copy, first, count);
        struct AdamwArgs k = {.flags = (args->decays ? DECAYS : 0) | (op_has(&args->copy) ? HAS_COPY : 0), .count = (uint32_t)count};
        OP_LAUNCH(&call, &k, base_ceil_div(count, call.T0), OP_AT(adamw, w, &w, k), OP_AT(adamw, m, &m, k), OP_AT(adamw, v, &v, k),
                  OP_AT(adamw, grad, &grad, k), OP_AT(adamw, scale, &o.scale, k), OP_AT(adamw, hyper, &o.hyper, k),
                  OP_AT(adamw, copy, &copy, k));
    }
    return op_end(&call);
}
