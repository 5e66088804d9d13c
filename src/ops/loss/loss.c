/* Cross entropy of the head: loss and gradients, with logits in registers or block by block of rows. Formulas and tiles: shaders/loss/args.h. */
#include "dartlm/ops_backward.h"
#include "ops/dense/dense.h"

/* Logits of a block of rows: an eighth of them all within these limits, 64 MiB and 512 MiB of f32. The gradient of the rows has too few tiles for
 * a large device if a block has few rows, and each block reads and writes the whole gradient of the weights. */
#define LEAST_LOGITS (UINT64_C(1) << 24)
#define MOST_LOGITS (UINT64_C(1) << 27)
#define LINE 64 /* rows of logits lie a multiple of this apart, so that words of 16 bytes and matrices fit them whatever V is */

/* Rows of a block: depends on shapes, as the order of the sums does, and on what the device can bind. */
static uint32_t block_rows(const op_call *call, uint32_t T, uint64_t line)
{
    const uint64_t eighth = T * line / 8, bound = op_binding_limit(call) / sizeof(float);
    uint64_t logits = eighth < LEAST_LOGITS ? LEAST_LOGITS : eighth > MOST_LOGITS ? MOST_LOGITS : eighth;
    if (logits > bound) logits = bound;
    uint64_t rows = logits / line;
    rows = rows >= 64 ? rows / 64 * 64 : rows == 0 ? 1 : rows;
    return rows < T ? (uint32_t)rows : T;
}

/* Elements of a vector from `first` on. */
static op_operand elements(const op_operand *operand, uint64_t first, uint64_t count)
{
    op_operand some = *operand;
    some.of.offset += first;
    some.width = count;
    return some;
}

typedef struct operands {
    op_operand x, weight, targets, share, loss, correct, grad_x, grad_weight;
} operands;

#define HEAD_WIDTH 128     /* rows of cross_entropy_x and cross_entropy_weight keep a whole x_t, and sums of as many */
#define HEAD_PARTS 1024    /* tiles of cross_entropy_weight, if the parts of the sum have at least ... */
#define HEAD_PART_LEAST 1024

static bool fits_binding(const op_call *call, const op_operand *operand)
{
    return dense_rows_that_fit(call, operand) >= operand->rows;
}

/* Both kernels that keep logits in registers, with gradients and enough rows that a quarter of the device has a tile; false: nothing was launched. */
static bool head(op_call *call, const dart_cross_entropy_args *args, const operands *o, const op_operand *parts)
{
    const uint32_t T = args->T, V = args->V, W = args->W;
    if (!op_has(&args->grad_x) || V < 2 || W % 16 != 0 || W > HEAD_WIDTH || !op_fits_rows(&o->x) || !op_fits_rows(&o->weight) ||
        !op_fits_rows(&o->grad_x) || T < 32 * (uint64_t)op_wave(call))
        return false;
    if (!fits_binding(call, &o->x) || !fits_binding(call, &o->weight) || !fits_binding(call, &o->grad_x)) return false;
    const uint64_t cuts = base_ceil_div(HEAD_PARTS, base_ceil_div(V, 128)), even = base_round_up(base_ceil_div(T, cuts), 128);
    const uint32_t part = even < HEAD_PART_LEAST ? HEAD_PART_LEAST : (uint32_t)even;
    const uint64_t count = base_ceil_div(T, part), size = (uint64_t)V * W;
    if (count * size * sizeof(float) > op_binding_limit(call) || size > UINT32_MAX / count) return false;
    const uint32_t traits = op_fits_16bit(&o->x.of, &o->weight.of) | FITS_TILES | (W <= 64 ? FITS_LOSS_W64 : 0);
    if (!op_prefers(call, KERNEL_cross_entropy_x, KERNEL_cross_entropy, T, traits)) return false;
    const op_operand lse = op_scratch(call, DART_F32, 1, T), partial = op_scratch(call, DART_F32, count, size);
    struct CrossEntropyXArgs x = {.flags = HAS_GRADIENT, .rows = T, .width = W, .vocabulary = V};
    op_kernel(call, KERNEL_cross_entropy_x, T, traits);
    OP_LAUNCH(call, &x, base_ceil_div(T, call->T0), OP_ROWS(cross_entropy_x, x, &o->x, x), OP_AT(cross_entropy_x, weight, &o->weight, x),
              OP_AT(cross_entropy_x, targets, &o->targets, x), OP_AT(cross_entropy_x, share, &o->share, x), OP_AT(cross_entropy_x, parts, parts, x),
              OP_AT(cross_entropy_x, lse, &lse, x), OP_ROWS(cross_entropy_x, grad_x, &o->grad_x, x));
    struct CrossEntropyWeightArgs w = {.rows = T, .width = W, .vocabulary = V, .part = part};
    op_kernel(call, KERNEL_cross_entropy_weight, T, traits);
    OP_LAUNCH(call, &w, count * base_ceil_div(V, call->T0), OP_ROWS(cross_entropy_weight, x, &o->x, w),
              OP_AT(cross_entropy_weight, weight, &o->weight, w), OP_AT(cross_entropy_weight, targets, &o->targets, w),
              OP_AT(cross_entropy_weight, share, &o->share, w), OP_AT(cross_entropy_weight, lse, &lse, w),
              OP_WHOLE(cross_entropy_weight, partial, &partial));
    dense_sum(call, &partial, &o->grad_weight, true);
    return true;
}

/* Where the gradient of weight is summed over blocks before it is added: scratch memory, so that two calls add two sums, as two ranks do. Absent
 * where one block adds it all, and where a device cannot bind so much at once. */
static op_operand sum_of_blocks(op_call *call, const op_operand *grad_weight, uint32_t T, uint32_t step)
{
    const uint64_t size = (uint64_t)grad_weight->rows * grad_weight->width;
    if (step >= T || size > UINT32_MAX || size * sizeof(float) > op_binding_limit(call)) return (op_operand){0};
    const op_operand sum = op_scratch(call, DART_F32, grad_weight->rows, grad_weight->width);
    dense_clear(call, &sum);
    return sum;
}

/* Block by block of rows: their logits go through memory. Slopes, the gradients of logits, have the type of x and weight where both are bf16, so that
 * their products run on matrices: each is rounded once, relative to itself. f16 would lose small ones, as nothing bounds share from below; they
 * are then f32 and take the place of the logits. */
static void blocks(op_call *call, const dart_cross_entropy_args *args, const operands *o, const op_operand *parts)
{
    const uint32_t T = args->T, V = args->V, W = args->W;
    const uint64_t line = base_round_up(V, LINE);
    const uint32_t step = block_rows(call, T, line);
    const bool gradient = op_has(&args->grad_x), rounded = op_fits_16bit(&args->x, &args->weight) == FITS_BF16;
    const op_operand logits = op_scratch(call, DART_F32, step, line);
    op_operand labelled = {0}, slopes = {0}, sum = {0};
    if (gradient) {
        labelled = op_scratch(call, args->x.dtype, step, W);
        slopes = rounded ? op_scratch(call, DART_BF16, step, line) : logits;
        sum = sum_of_blocks(call, &o->grad_weight, T, step);
    }
    for (uint32_t t = 0; t < T && op_status(call) == DART_OK; t += step) {
        const uint32_t rows = T - t < step ? T - t : step;
        const op_operand targets = elements(&o->targets, t, rows), part = elements(parts, 2 * (uint64_t)t, 2 * (uint64_t)rows);
        const op_operand lines = dense_slice(&logits, 0, rows), slope_lines = dense_slice(&slopes, 0, rows); /* with what lies between rows */
        const op_operand z = dense_columns(&logits, 0, rows, 0, V);
        op_operand x = dense_slice(&o->x, t, rows);
        if (gradient) {
            const op_operand kept = dense_slice(&labelled, 0, rows);
            struct LabelledArgs k = {.rows = rows, .width = W, .vocabulary = V};
            op_kernel(call, KERNEL_labelled, rows, W % 16 == 0 && op_fits_rows(&x) ? FITS_TILES : 0);
            OP_LAUNCH(call, &k, base_ceil_div(rows, call->T0), OP_ROWS(labelled, x, &x, k), OP_AT(labelled, targets, &targets, k),
                      OP_AT(labelled, y, &kept, k));
            x = kept;
        }
        dense_linear(call, &x, &o->weight, &z, false);
        struct CrossEntropyArgs k = {.flags = gradient ? HAS_GRADIENT : 0, .rows = rows, .width = V};
        op_kernel(call, KERNEL_cross_entropy, rows, V <= 8192 ? FITS_LOSS_V8192 : 0);
        OP_LAUNCH(call, &k, rows, OP_ROWS(cross_entropy, logits, &lines, k), OP_AT(cross_entropy, targets, &targets, k),
                  OP_AT(cross_entropy, share, &o->share, k), OP_AT(cross_entropy, parts, &part, k),
                  OP_ROWS(cross_entropy, slopes, &slope_lines, k));
        if (!gradient) continue;
        const op_operand grad_x = dense_slice(&o->grad_x, t, rows), up = dense_columns(&slopes, 0, rows, 0, V);
        dense_linear_backward_x(call, &up, &o->weight, &grad_x, false);
        dense_linear_backward_weight(call, &up, &x, op_has(&sum.of) ? &sum : &o->grad_weight);
    }
    if (!op_has(&sum.of)) return;
    op_operand all = sum, to = o->grad_weight;
    all.width = to.width = sum.rows * sum.width;
    all.rows = to.rows = 1;
    dense_sum(call, &all, &to, true);
}

dart_status dart_cross_entropy(dart_stream *stream, const dart_cross_entropy_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    op_call call;
    const uint32_t T = args->T, V = args->V, W = args->W;
    if (op_begin(&call, stream, "dart_cross_entropy") != DART_OK) return op_status(&call);
    OP_REQUIRE(&call, T > 0 && V > 0 && W > 0 && T <= INT32_MAX && V <= INT32_MAX,
               "T %u, V %u, W %u: all must be above 0, T and V below 2^31", T, V, W);
    OP_REQUIRE(&call, op_has(&args->grad_weight) == op_has(&args->grad_x), "grad_x and grad_weight come together");
    const operands o = {
        .x = {"x", args->x, OP_FLOAT | OP_VIEW, T, W},
        .weight = {"weight", args->weight, OP_FLOAT, V, W},
        .targets = {"targets", args->targets, OP_I32, 1, T},
        .share = {"share", args->share, OP_F32, 1, 1},
        .loss = {"loss", args->loss, OP_F32, 1, 1},
        .correct = {"correct", args->correct, OP_I32, 1, 1},
        .grad_x = {"grad_x", args->grad_x, OP_FLOAT | OP_VIEW | OP_OPTIONAL, T, W},
        .grad_weight = {"grad_weight", args->grad_weight, OP_F32 | OP_OPTIONAL, V, W}};
    if (!OP_CHECK(&call, o)) return op_status(&call);
    const op_operand parts = op_scratch(&call, DART_F32, 1, 2 * (uint64_t)T);
    if (!head(&call, args, &o, &parts)) blocks(&call, args, &o, &parts);
    op_operand pairs = parts;
    pairs.rows = T;
    pairs.width = 2;
    op_kernel(&call, KERNEL_loss_sum, T, 0);
    if (T > call.T0) {
        pairs = dense_sum_parts(&call, &pairs);
        op_kernel(&call, KERNEL_loss_sum, T, 0);
    }
    struct LossSumArgs k = {.rows = (uint32_t)pairs.rows};
    OP_LAUNCH(&call, &k, 1, OP_WHOLE(loss_sum, parts, &pairs), OP_AT(loss_sum, loss, &o.loss, k), OP_AT(loss_sum, correct, &o.correct, k));
    return op_end(&call);
}
