/* Arguments and contracts of the kernels of choice; ../args.h has what all keep. */
#ifndef DART_CHOICE_ARGS_H
#define DART_CHOICE_ARGS_H

/* part[2 tile] = an order-preserving integer of the largest of T0 consecutive logits of a row (0: there is no number), part[2 tile + 1]
 * the lowest index of it in the row. tile = block + blocks * row. */
struct ArgmaxPartArgs { U32 tiles, rows, width, logits_at, logits_row; };

/* ids[t] = lowest index of the largest logit, NaN never, 0 when there is none, from the parts of the row. Tile: one row. */
struct ArgmaxArgs { U32 tiles, rows, blocks, ids_at; };

/* Top-k sampling, see dart_sample. Tile: one row. u = word 0 of Philox4x32-10({position + count, row, 0, 0},
 * {seed_low, seed_high}) / 2^32. The kept set: the top_k largest (ties: lower index first); weights
 * exp((logit - max) / temperature) are summed in index order; the id is the first kept index whose running sum exceeds
 * u * total, else the last kept index. -inf logits are kept last with weight 0; NaN never, and where nothing is
 * kept the id is 0. */
struct SampleArgs { U32 tiles, flags, rows, width, top_k, seed_low, seed_high, logits_at, logits_row, seq_at, ids_at; F32 temperature; };

/* seq[2 b] += seq[2 b + 1]; with HAS_ROWS then log[b slots + seq[2 b] mod slots] = ids[b]. Tile: T0 sequences. */
struct AdvanceArgs { U32 tiles, flags, B, slots, seq_at, ids_at, log_at; };

#endif
