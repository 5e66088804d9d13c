/* Arguments and contracts of the kernels of choice; the contract of every kernel is in ../args.h. */
#ifndef DART_CHOICE_ARGS_H
#define DART_CHOICE_ARGS_H

#define SETTING_WORDS 8 /* words of the settings of a row */
#define ROW_ZERO 0x80000000u /* bit of the last setting */
#define END_IDS 4       /* end ids of a sequence; -1: none */
#define STOP_WORDS 5    /* end ids of a sequence, then the position at which it ends (0: none) */

/* part[2 tile] = an order-preserving integer of the largest of T0 consecutive logits of a row (0: all are NaN), part[2 tile + 1] =
 * the lowest index of that logit in the row. Tile: T0 logits, tile = block + blocks * row. */
struct ArgmaxPartArgs { U32 tiles, rows, width, logits_at, logits_row; };

/* ids[t] = the lowest index of the largest logit, from the parts of the row. NaN never wins; all NaN gives 0. Tile: one row. */
struct ArgmaxArgs { U32 tiles, rows, blocks, ids_at; };

/* Chooses a token by the settings of its row, see dart_sample. Tile: one row. settings[8 row ..] are the bits of the temperature, top_k,
 * the seed's low and high word, the bits of top_p, min_p and the repetition penalty, and ids_below with ROW_ZERO. Only ids below ids_below (0 or
 * above width: width) take part. ROW_ZERO: `row` below is 0, so that the number does not depend on the place of the row.
 * With HAS_SEEN and a penalty above 0 that is not 1, the logits of ids in `seen`, bit id mod 32 of word
 * seen[row ceil(width / 32) + id / 32], are multiplied by it where they are below 0, else divided. With MARKS_IDS ids[row] as it was before,
 * if below width, counts as seen, and its bit is set.
 * A temperature that is not above 0 takes the lowest index of the largest logit; the parts of argmax_part have it unless there is a penalty
 * or its index is left out. Otherwise u = word 0 of Philox4x32-10({position + count, row, 0, 0}, seed) / 2^32. The kept set: the top_k
 * largest (0 or above width: all; ties: lower index first); with 0 < top_p < 1 of these, in falling order (ties: lower index first), those
 * before which the weights add up to less than top_p of the weight of all of these; of them those of a weight not below min_p. Weights are
 * exp((logit - max) / temperature). They are summed in index order; the id is the first kept index whose running sum exceeds u * total,
 * else the last kept index. Logits of -inf are kept last, with weight 0. NaN is never kept. Where nothing is kept the id is 0.
 * KEEPS_ENDED: rows with a count of 0 keep their id, and mark nothing. */
struct SampleArgs { U32 tiles, flags, rows, width, blocks, logits_at, logits_row, seq_at, settings_at, seen_at, ids_at; };

/* seen[b ceil(V / 32) + id / 32] |= 1 << id mod 32, for the ids of the tokens of sequence b that are within 0 and V - 1. Tile: a sequence. */
struct MarkIdsArgs { U32 tiles, flags, B, L, T, V, ids_at, seq_at, seen_at; };

/* log_z[row] = log of the sum of exp(logit), which is LOWEST where no logit is above -inf; NaN counts as -inf. With HAS_TARGETS target[row] =
 * logit of targets[row] - log_z, 0 where the target is not within 0 and width - 1. top_ids and top [k row ..]: the ids of the k largest logits,
 * in falling order, ties by lower index, and logit - log_z; -1 and LOWEST past the last number. A difference below LOWEST is LOWEST.
 * Tile: one row. */
struct LogProbsArgs { U32 tiles, flags, rows, width, k, logits_at, logits_row, targets_at, log_z_at, target_at, top_ids_at, top_at; };

/* seq[2 b] += seq[2 b + 1]; with HAS_ROWS then log[b slots + seq[2 b] mod slots] = ids[b]. With HAS_STOPS a sequence then ends, which
 * sets seq[2 b + 1] = 0 and live[b] = -1, when ids[b] is one of stops[5 b] to stops[5 b + 3], or when stops[5 b + 4] is above 0 and
 * seq[2 b] has reached it. A sequence with a count of 0 stays as it is. Tile: T0 sequences. */
struct AdvanceArgs { U32 tiles, flags, B, slots, seq_at, ids_at, log_at, stops_at, live_at; };

#endif
