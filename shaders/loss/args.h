/* Arguments and contracts of the kernels of loss; the contract of every kernel is in ../args.h.
 * A row has a label if 0 <= targets_t < vocabulary. */
#ifndef DART_LOSS_ARGS_H
#define DART_LOSS_ARGS_H

/* y_t = x_t where row t has a label, else 0: what the other rows hold, NaN included, reaches nothing. y is packed. Tile: T0 consecutive
 * rows. */
struct LabelledArgs { U32 tiles, rows, width, vocabulary, x_at, x_row, targets_at, y_at; };

/* Of a row of logits with a label: lse = log sum exp(logits_t); parts[2 t] = share (lse - logit of the target), parts[2 t + 1] = 1 if the target is
 * the lowest index of the largest logit, else 0. HAS_GRADIENT: slopes_t = share p_v for v != target and -share sum_{v != target} p_v for the
 * target, p_v = exp(logits_t - lse): the difference p - 1 of a target that is nearly certain keeps its digits when it is rounded. A row with a
 * logit that is not finite leaves NaN. Without a label: parts and slopes become 0. logits is f32; slopes is f32 or has 16 bits, and may be
 * logits. Both begin at a multiple of 64 elements, their rows lie a multiple of 64 apart and end in bindings, what lies between rows included: it
 * may be read, to no effect, and written. Tile: one row. */
struct CrossEntropyArgs { U32 tiles, flags, rows, width, logits_at, logits_row, targets_at, share_at, parts_at, slopes_at, slopes_row; };
#define HAS_GRADIENT 2u

/* The loss and its gradients with logits that stay in registers, in place of labelled, linear, cross_entropy and linear's gradients: the first pass
 * is an attention of the rows over the vocabulary, the second makes the logits again. width is a multiple of 16 and at most 128; x and weight
 * have one type of 16 bits. Logits, statistics and sums are f32; slopes are rounded to that type for their products, relative to themselves.
 *
 * cross_entropy_x, of a row with a label: logits z_v = x_t . weight_v; lse_t = log sum_v exp(z_v); parts as cross_entropy has them. HAS_GRADIENT:
 * grad_x_t = share (sum_{v != target} p_v weight_v - q weight_target), p_v = exp(z_v - lse_t), q = sum_{v != target} p_v: the difference p - 1 of a
 * target that is nearly certain keeps its digits. A row with a logit that is NaN or infinite above leaves NaN. Without a label: parts and grad_x
 * become 0, lse_t infinite. Without HAS_GRADIENT grad_x is not touched. Tile: T0 consecutive rows. */
struct CrossEntropyXArgs {
    U32 tiles, flags, rows, width, vocabulary, x_at, x_row, weight_at, targets_at, share_at, parts_at, lse_at, grad_x_at, grad_x_row;
};

/* partial[k][v] = share sum over the rows t of part k of (exp(z_tv - lse_t) - [v = target_t]) x_t, f32 and packed, k < ceil(rows / part). Rows
 * without a label add nothing, whatever they hold. Tile: T0 consecutive v of one part; parts change slowest. part is a multiple of 128. */
struct CrossEntropyWeightArgs { U32 tiles, rows, width, vocabulary, part, x_at, x_row, weight_at, targets_at, share_at, lse_at; };

/* loss += the sum of parts[2 t], correct += the sum of parts[2 t + 1], whole numbers. One tile: each of N lanes adds up every N-th row, in order
 * and compensated, then the lanes are added in pairs. More than T0 rows are first added up in parts by column_sum. */
struct LossSumArgs { U32 tiles, rows, loss_at, correct_at; };

#endif
