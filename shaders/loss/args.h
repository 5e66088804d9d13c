/* Arguments and contracts of the kernels of loss; the contract of every kernel is in ../args.h.
 * A row has a label if 0 <= targets_t < vocabulary. */
#ifndef DART_LOSS_ARGS_H
#define DART_LOSS_ARGS_H

/* y_t = x_t where row t has a label, else 0: what the other rows hold, NaN included, reaches nothing. y is packed. Tile: T0 consecutive
 * rows. */
struct LabelledArgs { U32 tiles, rows, width, vocabulary, x_at, x_row, targets_at, y_at; };

/* Of a row of logits with a label: lse = log sum exp(logits_t); parts[2 t] = share (lse - logit of the target), parts[2 t + 1] = 1 if the target is
 * the lowest index of the largest logit, else 0. HAS_GRADIENT: logits_t = share (exp(logits_t - lse) - onehot). A row with a logit that is not
 * finite leaves NaN. Without a label: parts and, with HAS_GRADIENT, logits become 0. logits is packed, f32. Tile: one row. */
struct CrossEntropyArgs { U32 tiles, flags, rows, width, logits_at, targets_at, share_at, parts_at; };
#define HAS_GRADIENT 2u

/* loss += the sum of parts[2 t], correct += the sum of parts[2 t + 1]. One tile: SUM_LANES sums of every SUM_LANES-th row, in order and
 * compensated, then added in pairs. */
struct LossSumArgs { U32 tiles, rows, loss_at, correct_at; };
#define SUM_LANES 64

#endif
