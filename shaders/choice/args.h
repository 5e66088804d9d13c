/* Arguments and contracts of the kernels of choice; the contract of every kernel is in ../args.h. */
#ifndef DART_CHOICE_ARGS_H
#define DART_CHOICE_ARGS_H

#define SETTING_WORDS 4 /* words of the settings of a row */
#define END_IDS 4       /* end ids of a sequence; -1: none */
#define STOP_WORDS 5    /* end ids of a sequence, then the position at which it ends (0: none) */

/* part[2 tile] = an order-preserving integer of the largest of T0 consecutive logits of a row (0: all are NaN), part[2 tile + 1] =
 * the lowest index of that logit in the row. Tile: T0 logits, tile = block + blocks * row. */
struct ArgmaxPartArgs { U32 tiles, rows, width, logits_at, logits_row; };

/* ids[t] = the lowest index of the largest logit, from the parts of the row. NaN never wins; all NaN gives 0. Tile: one row. */
struct ArgmaxArgs { U32 tiles, rows, blocks, ids_at; };

/* Chooses a token by the settings of its row, see dart_sample. Tile: one row. settings[4 row ..] are the bits of the
 * temperature, top_k, and the seed's low and high word. A temperature that is not above 0 takes the lowest index of the largest
 * logit from the parts of argmax_part. Otherwise u = word 0 of Philox4x32-10({position + count, row, 0, 0}, seed) / 2^32. The kept
 * set: the top_k largest (0 or above width: all; ties: lower index first); weights exp((logit - max) / temperature) are summed in
 * index order; the id is the first kept index whose running sum exceeds u * total, else the last kept index. Logits of -inf are
 * kept last, with weight 0. NaN is never kept. Where nothing is kept the id is 0. KEEPS_ENDED: rows with a count of 0 keep
 * their id. */
struct SampleArgs { U32 tiles, flags, rows, width, blocks, logits_at, logits_row, seq_at, settings_at, ids_at; };

/* seq[2 b] += seq[2 b + 1]; with HAS_ROWS then log[b slots + seq[2 b] mod slots] = ids[b]. With HAS_STOPS a sequence then ends, which
 * sets seq[2 b + 1] = 0 and live[b] = -1, when ids[b] is one of stops[5 b] to stops[5 b + 3], or when stops[5 b + 4] is above 0 and
 * seq[2 b] has reached it. A sequence with a count of 0 stays as it is. Tile: T0 sequences. */
struct AdvanceArgs { U32 tiles, flags, B, slots, seq_at, ids_at, log_at, stops_at, live_at; };

#endif
