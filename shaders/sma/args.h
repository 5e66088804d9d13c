/* Arguments and contracts of the kernels of sma; ../args.h has what all keep. */
#ifndef DART_SMA_ARGS_H
#define DART_SMA_ARGS_H

/* rho[i] = (mean_p dh[i, p]^2 + eps)^(-1/2) for rows i of P elements. Tile: T0 consecutive rows. */
struct SmaRhoArgs { U32 tiles, rows, P, dh_at; F32 eps; };

/* qn[(b L + t) G N + g N + n] = q / rms(q) / sqrt(N), en[.. G P ..] = e / rms(e), f32. With HAS_UNIT, for rows of sma
 * that multiply in 16 bits: qn = q 2^i, en = e 2^j, read = c 2^k (rows as those of qn) in the dtype of q, e and c, without
 * rounding: 2^i and 2^j are the largest powers of two not above the factors of the first form, 2^k the largest not above
 * 1 / max |c|; unit[2 ((b L + t) G + g)] = the rest of the first two factors, then 2^-k.
 * Tile: one (row, group): tile = g + G row. */
struct SmaQueryArgs { U32 tiles, flags, B, L, G, N, P, q_at, q_row, e_at, e_row, c_at, c_row, seq_at; F32 eps; };

/* Memories i of this launch are number first + i of the sequence, i in [0, count), stored at slot i of capacity:
 * dh[((b capacity + i) H + h) N P], factor[((b capacity + i) H + h) N]. Token t sees those below (position + t) / S.
 *   raw:  key weight qn_n factor_n, value weight c_n;  normalised: key weight qn_n, value weight c_n factor_n;
 *   logit = sum_p en_p sum_n key_n dh_np;  v = sum_n value_n dh_np;  online softmax over i.
 * Rows that name FITS_F16 or FITS_BF16 take normalised memories and what sma_query makes with HAS_UNIT, c being read:
 * the logit is multiplied by the first unit, r by the second. Rows of qn and c after the last may be read, not used:
 * SMA_PADDING tokens of them.
 * r = sum g v, lse = logsumexp, merged with the r and lse there when IS_MERGE (r = 0, lse = -inf count as nothing).
 * lse f32 (b L + t) H + h. Tile: T0 tokens of one (b, h), tile = token block + token blocks * (h + H b). */
struct SmaArgs { U32 tiles, flags, B, L, H, G, N, P, S, first, count, capacity, c_at, c_row, dh_at, factor_at, seq_at, r_at, r_row, lse_at; };

/* sma for L = 1, from q and e before their norms, split: tile = split + splits * (h + H b) looks at memories [split T, split T + T),
 * T = ceil(count / splits), and writes partial[tile (P + 2)] = {top, den, acc[P]}: top = max logit (-3.4e38 without memories),
 * den = sum exp(logit - top), acc = sum exp(logit - top) v. The tile of a (b, h) that is done last does what sma_merge does for
 * it. tickets[b H + h], u32, counts the tiles that are done: 0 before the launch, and after it again. */
struct SmaStepArgs {
    U32 tiles, flags, B, H, G, N, P, S, first, count, capacity, splits, q_at, q_row, e_at, e_row, c_at, c_row, dh_at, factor_at, seq_at,
        r_at, r_row, lse_at;
    F32 eps;
};

/* r and lse from the at most MERGE_PARTS partials of each (b, h), and from what they hold when IS_MERGE. Tile: one (b, h), h + H b. */
struct SmaMergeArgs { U32 tiles, flags, B, H, P, splits, seq_at, r_at, r_row, lse_at; };

/* For each chunk j that closes with first <= m = position / S + j < first + count, row n of head h:
 * s = sqrt(mean_p dh^2 + eps), to[((b capacity + m - first) H + h) N P] = dh / s, scale[...] = s.
 * Tile: T0 consecutive rows of N of one (b, j, h), tile = row block + row blocks * (h + H (j + M b)). */
struct SmaAppendArgs { U32 tiles, flags, B, L, H, N, P, S, M, first, count, capacity, dh_at, seq_at, to_at, scale_at; F32 eps; };

#endif
