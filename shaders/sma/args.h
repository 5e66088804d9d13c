/* Arguments and contracts of the kernels of sma; the contract of every kernel is in ../args.h. */
#ifndef DART_SMA_ARGS_H
#define DART_SMA_ARGS_H

/* rho[i] = (mean_p dh[i, p]^2 + eps)^(-1/2) for rows i of P elements. Tile: T0 consecutive rows. */
struct SmaRhoArgs { U32 tiles, rows, P, dh_at; F32 eps; };

/* qn[(b L + t) G N + g N + n] = q / rms(q) / sqrt(N), en[(b L + t) G P + g P + p] = e / rms(e), f32.
 * With HAS_UNIT, for variants of sma that multiply in 16 bits: qn = q 2^i, en = e 2^j, read = c 2^k (rows as those of qn), in the
 * dtype of the binding; a power of two rounds nothing, except numbers too small for f16. 2^i is the largest power of two not above
 * 1 / (rms(q) sqrt(N)), 2^j the largest not above 1 / rms(e), 2^k the largest not above 1 / max |c|.
 * unit[2 ((b L + t) G + g)] = 2^(-i - j) / (rms(q) sqrt(N) rms(e)), the factor that the logit still lacks; the next element is 2^-k.
 * Tile: one (row, group): tile = g + G row. */
struct SmaQueryArgs { U32 tiles, flags, B, L, G, N, P, q_at, q_row, e_at, e_row, c_at, c_row, seq_at; F32 eps; };

/* Memory i of this launch, i in [0, count), is number first + i of the sequence and stored at slot i of capacity:
 * dh[((b capacity + i) H + h) N P], factor[((b capacity + i) H + h) N]. Token t sees memories whose number is below
 * (position + t) / S.
 *   raw:  key weight qn_n factor_n, value weight c_n;  normalised: key weight qn_n, value weight c_n factor_n;
 *   logit = sum_p en_p sum_n key_n dh_np;  v = sum_n value_n dh_np;  online softmax over i.
 * Variants that name FITS_F16, FITS_BF16 or FITS_HALF take normalised memories and the results of sma_query with HAS_UNIT; binding c
 * is then `read`. They multiply the logit by the first element of unit and r by the second. They may load up to SMA_PADDING rows of
 * qn and c past the last row, and ignore them.
 * g = softmax(logit), r = sum g v, lse = logsumexp(logit). With IS_MERGE the result is merged with the r and lse in memory, where
 * lse = -inf stands for no memories. lse f32 at (b L + t) H + h. Tile: T0 tokens of one (b, h), tile = token block + token blocks * (h + H b). */
struct SmaArgs { U32 tiles, flags, B, L, H, G, N, P, S, first, count, capacity, c_at, c_row, dh_at, factor_at, seq_at, r_at, r_row, lse_at; };

/* sma for L = 1, from q and e before their norms, split along the memories: tile = split + splits * (h + H b) reads memories
 * [split T, split T + T),
 * T = ceil(count / splits), and writes partial[tile (P + 2)] = {top, den, acc[P]}: top = max logit (-3.4e38 without memories),
 * den = sum exp(logit - top), acc = sum exp(logit - top) v. The tile of a (b, h) that finishes last merges the partials of (b, h) as
 * sma_merge does. tickets[b H + h], u32, counts the tiles that have finished. It must be 0 before the launch and is 0 after it. */
struct SmaStepArgs {
    U32 tiles, flags, B, H, G, N, P, S, first, count, capacity, splits, q_at, q_row, e_at, e_row, c_at, c_row, dh_at, factor_at, seq_at,
        r_at, r_row, lse_at;
    F32 eps;
};

/* r and lse of each (b, h) from its partials, at most MERGE_PARTS; with IS_MERGE also from the r and lse in memory. partial as sma_step
 * writes it. Tile: one (b, h), tile = h + H b. */
struct SmaMergeArgs { U32 tiles, flags, B, H, P, splits, seq_at, r_at, r_row, lse_at; };

/* For each chunk j that closes with first <= m = position / S + j < first + count, row n of head h:
 * s = sqrt(mean_p dh^2 + eps), to[((b capacity + m - first) H + h) N P] = dh / s, scale[...] = s.
 * Tile: T0 consecutive rows of N of one (b, j, h), tile = row block + row blocks * (h + H (j + M b)). */
struct SmaAppendArgs { U32 tiles, flags, B, L, H, N, P, S, M, first, count, capacity, dh_at, seq_at, to_at, scale_at; F32 eps; };

#endif
