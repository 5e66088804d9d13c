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
 * Tile: T0 (row, group)s, numbered g + G row. */
struct SmaQueryArgs { U32 tiles, flags, B, L, G, N, P, q_at, q_row, e_at, e_row, c_at, c_row, seq_at; F32 eps; };

/* Memory i of this launch, i in [0, count), is number first + i of the sequence and stored at slot i of capacity:
 * dh[((b capacity + i) H + h) N P], factor[((b capacity + i) H + h) N]. Token t sees memories whose number is below
 * (position + t) / S.
 *   raw:  key weight qn_n factor_n, value weight c_n;  normalised: key weight qn_n, value weight c_n factor_n;
 *   logit = sum_p en_p sum_n key_n dh_np;  v = sum_n value_n dh_np;  online softmax over i.
 * Variants that name FITS_F16, FITS_BF16 or FITS_16BIT take normalised memories and the results of sma_query with HAS_UNIT; binding c
 * is then `read`. They multiply the logit by the first element of unit and r by the second. They may load up to SMA_PADDING rows of
 * qn and c past the last row, and ignore them.
 * g = softmax(logit), r = sum g v, lse = logsumexp(logit). With IS_MERGE the result is merged with the r and lse in memory, where
 * lse = -inf stands for no memories. lse f32 at (b L + t) H + h. Tile: T0 tokens of one (b, h), tile = token block + token blocks * (h + H b). */
struct SmaArgs { U32 tiles, flags, B, L, T, H, G, N, P, S, first, count, capacity, c_at, c_row, dh_at, factor_at, seq_at, r_at, r_row, lse_at; };

/* sma for L = 1, from q and e before their norms, split along the memories: tile = split + splits * (h + H b) reads memories
 * [split T, split T + T),
 * T = ceil(count / splits), and writes partial[tile (P + 2)] = {top, den, acc[P]}: top = max logit (-3.4e38 without memories),
 * den = sum exp(logit - top), acc = sum exp(logit - top) v. The tile of a (b, h) that finishes last merges the partials of (b, h) as
 * sma_merge does; one split alone may store r and lse and no partial. tickets[b H + h], u32, counts the tiles that have finished. It must be 0
 * before the launch and is 0 after it. */
struct SmaStepArgs {
    U32 tiles, flags, B, H, G, N, P, S, first, count, capacity, splits, q_at, q_row, e_at, e_row, c_at, c_row, dh_at, factor_at, seq_at,
        r_at, r_row, lse_at;
    F32 eps;
};

/* r and lse of each (b, h) from its `splits` partials, at most MERGE_PARTS; with IS_MERGE also from the r and lse in memory. sma_step or
 * attention_step has written them, `group` at a time, with group_size elements from one launch's to the next's: partial i lies at
 * i / group group_size + (tile group + i % group) (P + 2). Tile: one (b, h), tile = h + H b. */
struct SmaMergeArgs { U32 tiles, flags, B, H, P, splits, group, group_size, seq_at, r_at, r_row, lse_at; };

/* For each chunk j that closes with first <= m = position / S + j < first + count, row n of head h:
 * s = sqrt(mean_p dh^2 + eps), to[((b capacity + m - first) H + h) N P] = dh / s, scale[...] = s.
 * Tile: T0 consecutive rows of N of one (b, j, h), tile = row block + row blocks * (h + H (j + M b)). */
struct SmaAppendArgs { U32 tiles, flags, B, L, H, N, P, S, M, first, count, capacity, dh_at, seq_at, to_at, scale_at; F32 eps; };

/* ---- The backward pass ----
 * Memories are those of one run from memory 0 on: row n of memory m of head h as stored is w_n at ((b M + m) H + h) N P + n P, its factor at
 * ((b M + m) H + h) N + n. The normalised row is key_n w_n, the raw one value_n w_n: with IS_RAW key = factor (rho) and value = 1, else key = 1 and
 * value = factor (scale). Token t sees the memories m < (position + t) / S. qn and en as sma_query leaves them without HAS_UNIT; g, slope, of_q, of_e
 * and x are f32. */

/* logit = qn . (key w en), v = value c w;  g[((b L + t) H + h) M + m] = exp(logit - lse), slope[...] = g (v . up_r - r . up_r), 0 where t sees one
 * memory only. Elements of memories that t does not see are not written. Tile: T0 tokens of one (b, h): token tile + token tiles * (h + H b). */
struct SmaBackwardScoresArgs {
    U32 tiles, flags, B, L, T, H, G, N, P, S, M, c_at, c_row, dh_at, factor_at, seq_at, r_at, r_row, lse_at, up_r_at, up_r_row;
};

/* Sums over the heads of the group and the memories that a token sees:
 *   of_q[((b L + t) G + g) N + n] = sum slope key_n (w en)_n;  grad_c = sum g value_n (w up_r)_n, added to with IS_ADD;
 *   of_e[((b L + t) G + g) P + p] = sum slope sum_n qn_n key_n w_np. Rows past the count: grad_c becomes 0 without IS_ADD.
 * Tile: T0 tokens x T1 columns of one (b, g), tile = block + blocks * (token tile + token tiles * (g + G b)); the blocks are those of of_q,
 * grad_c and of_e, in this order. */
struct SmaBackwardSumsArgs {
    U32 tiles, flags, B, L, T, H, G, N, P, S, M, dh_at, factor_at, seq_at, up_r_at, up_r_row, grad_c_at, grad_c_row;
};

/* What sma_backward_scores and sma_backward_sums write, by one kernel. Tile: T0 tokens of one (b, g), tile = token tile + token tiles * (g + G b). */
struct SmaBackwardTokensArgs {
    U32 tiles, flags, B, L, T, H, G, N, P, S, M, c_at, c_row, dh_at, factor_at, seq_at, r_at, r_row, lse_at, up_r_at, up_r_row, grad_c_at, grad_c_row;
};

/* The norms of q and e: with i = 1 / rms(q), o = of_q / sqrt(N): grad_q = i o - q i^3 mean(o q); grad_e alike with o = of_e. Rows past the count
 * become 0. With HAS_CU L is T. Tile: T0 (row, group)s, numbered g + G row. */
struct SmaBackwardNormArgs {
    U32 tiles, flags, B, L, G, N, P, q_at, q_row, e_at, e_row, seq_at, grad_q_at, grad_q_row, grad_e_at, grad_e_row;
    F32 eps;
};

/* Sums over the tokens that see memory m: x[n, p] = sum slope qn_n en_p, grad_dh[n, p] = sum g c_n up_r_p; matrices lie as those of the memories.
 * Tile: T0 of the M N rows m N + n of one (b, h) x T1 columns p, tile = row block + row blocks * (p block + p blocks * (which + 2 (h + H b))),
 * which 0: x, 1: grad_dh. */
struct SmaBackwardMemoriesArgs {
    U32 tiles, flags, B, L, T, H, G, N, P, S, M, c_at, c_row, seq_at, up_r_at, up_r_row, grad_dh_at;
};

/* The norm of memories: with u = key w and rho = 1 / rms(raw row), grad_dh += rho (x - u mean_p(x u)); 0 where no token sees the memory.
 * Tile: T0 rows of N of one (b, m, h), tile = row block + row blocks * (h + H (m + M b)). */
struct SmaBackwardDhArgs { U32 tiles, flags, B, L, T, H, N, P, S, M, dh_at, factor_at, seq_at, grad_dh_at; };

/* What sma_backward_memories and sma_backward_dh leave in grad_dh, by one kernel. Tile: T0 of the M N rows m N + n of one (b, h),
 * tile = row block + row blocks * (h + H b). */
struct SmaBackwardRowsArgs {
    U32 tiles, flags, B, L, T, H, G, N, P, S, M, c_at, c_row, dh_at, factor_at, seq_at, up_r_at, up_r_row, grad_dh_at;
};

/* The gradients of tokens in one kernel from q and e themselves, for normalised memories: what sma_query, sma_backward_scores, sma_backward_sums
 * and sma_backward_norm write, but that slope is slope / (rms(q) rms(e) sqrt(N)), for q and e before their norms, that qn, en, of_q and of_e are
 * not kept, and that g and slope of memory m of head h lie at (h M + m) rows + row. For N 128 and P 64. With parts above 1 the heads of a group
 * are that many parts, and what a part adds up to, as it is before the norms, is left in place of gradients: f32, that of part i at row i rows + row.
 * Tile: T0 tokens of one (b, g, part), tile = part + parts (g + G (b + B (token tiles - 1 - token tile))). */
struct SmaBackwardTokenSideArgs {
    U32 tiles, flags, B, L, T, H, G, S, M, parts, q_at, q_row, e_at, e_row, c_at, c_row, dh_at, factor_at, seq_at, r_at, r_row, lse_at, up_r_at,
        up_r_row, grad_q_at, grad_q_row, grad_e_at, grad_e_row, grad_c_at, grad_c_row;
    F32 eps;
};

/* The gradients of tokens from the parts of sma_backward_token_side. With i_q = 1 / rms(q), i_e = 1 / rms(e), f = i_q i_e / sqrt(N) and s the sum
 * over parts: grad_q = f (s - q i_q^2 mean(s q)), grad_e alike, grad_c = s, added to with IS_ADD. Rows past the count become 0, but not those of
 * grad_c with IS_ADD. Tile: T0 (b, t, g), numbered g + G (t + L b). */
struct SmaBackwardPartsArgs {
    U32 tiles, flags, B, L, T, G, N, P, parts, q_at, q_row, e_at, e_row, seq_at, grad_q_at, grad_q_row, grad_e_at, grad_e_row, grad_c_at, grad_c_row;
    F32 eps;
};

/* What sma_backward_rows leaves in grad_dh, from q, e and the slope of sma_backward_token_side. Tile: T0 of the M N rows m N + n of one (b, h),
 * tile = h + H (b + B row block). */
struct SmaBackwardMemorySideArgs {
    U32 tiles, flags, B, L, T, H, G, N, P, S, M, q_at, q_row, e_at, e_row, c_at, c_row, dh_at, factor_at, seq_at, up_r_at, up_r_row, grad_dh_at;
};

#endif
