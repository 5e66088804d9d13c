/* Arguments and contracts of the kernels of attention; the contract of every kernel is in ../args.h. */
#ifndef DART_ATTENTION_ARGS_H
#define DART_ATTENTION_ARGS_H

/* A piece's keys and values into a block of C tokens from token `first` on: to_k[(b C + s) to_k_row + i] = k[(b L + t) k_row + i] for
 * s = position + t - first, i < G D, and v alike; tokens with s < 0 or s >= C are dropped. Tile: T0 consecutive elements of B L G D,
 * counted row by row. */
struct KvAppendArgs { U32 tiles, flags, B, L, G, D, C, first, k_at, k_row, v_at, v_row, seq_at, to_k_at, to_k_row, to_v_at, to_v_row; };

/* o_t = sum_s w_s v_s over first <= s <= position + t, s < first + C: w = softmax(scale q_t . k_s), lse = logsumexp(scale q_t . k_s). Where there
 * is no such s, o and lse are anything. k and v are of one type. Head h takes group g = h / (H / G): q[(b L + t) q_row + h D], k[(b C + s - first)
 * k_row + g D], v alike, o as q. With HAS_CU first is 0. lse f32 at (b L + t) H + h. Online softmax in f32 over blocks of s. Values of k and v at s
 * > position + t, NaN included, do not affect o_t. Tile: T0 tokens of one (b, h), tile = token block + token blocks * (h + H b); a kernel may
 * compute the blocks of a head in reverse order. */
struct AttentionArgs { U32 tiles, flags, B, L, T, H, G, D, C, first, q_at, q_row, k_at, k_row, v_at, v_row, seq_at, o_at, o_row, lse_at; F32 scale; };

/* attention_large and attention_step_large have the arguments of attention and of attention_step, and D up to MAX_LARGE_HEAD. */

/* attention for L = 1, split along the block: with seen = min(position + 1 - first, C), or 0 where that is below 0,
 * tile = split + splits * (h + H b) reads the rows [split T, split T + T) below seen, T = STEP_TOKENS ceil(seen / (splits STEP_TOKENS)),
 * and writes partial[tile (D + 2)] = {top, den, acc[D]} as sma_step does with P = D. sma_merge then merges the partials. */
struct AttentionStepArgs { U32 tiles, flags, B, H, G, D, C, first, splits, q_at, q_row, k_at, k_row, v_at, v_row, seq_at; F32 scale; };

/* In place, for tokens at position + t >= first, with o and lse of the keys before `first` and x and x_lse of those from there on:
 * m = max(lse, x_lse), o = (exp(lse - m) o + exp(x_lse - m) x) / (exp(lse - m) + exp(x_lse - m)), lse = m + log of the denominator.
 * x B L H D and x_lse B L H, f32; o as in attention. Tile: T0 consecutive (b L + t) H + h. */
struct AttentionMergeArgs { U32 tiles, flags, B, L, H, D, first, seq_at, o_at, o_row, lse_at; };

/* ---- The backward pass, of a piece of its own tokens from position 0 on (C = L); seq gives counts only. With
 *   w_ts = exp(scale q_t . k_s - lse_t) for s <= t, else 0;  u_ts = w_ts (up_o_t . v_s - dot_t), 0 for t = 0:
 *   grad_v_s = sum_t w_ts up_o_t;  grad_k_s = scale sum_t u_ts q_t;  grad_q_t = scale sum_s u_ts k_s,
 * the first two summed over the heads of the group, one head after the other. Rows past the count become 0. ---- */

/* dot[(b L + t) H + h] = o_t . up_o_t over the head's columns. Tile: T0 rows b L + t, all heads. */
struct AttentionBackwardDotArgs { U32 tiles, flags, B, L, H, D, o_at, o_row, up_o_at, up_o_row, seq_at; };

/* grad_k and grad_v. Tile: T0 tokens s x T1 columns of one (b, g), tile = token block + token blocks * (column block + column blocks *
 * (g + G b)). */
struct AttentionBackwardKArgs {
    U32 tiles, flags, B, L, T, H, G, D, q_at, q_row, k_at, k_row, v_at, v_row, up_o_at, up_o_row, lse_at, seq_at, grad_k_at, grad_k_row, grad_v_at,
        grad_v_row;
    F32 scale;
};

/* grad_q. Tile: T0 tokens t x T1 columns of one (b, h), tile = token block + token blocks * (column block + column blocks * (h + H b)). */
struct AttentionBackwardQArgs {
    U32 tiles, flags, B, L, T, H, G, D, q_at, q_row, k_at, k_row, v_at, v_row, up_o_at, up_o_row, lse_at, seq_at, grad_q_at, grad_q_row;
    F32 scale;
};

/* All three of a sequence of at most T0 tokens, and dot. At most 4 heads a group. Tile: a (b, g), tile = g + G b. */
struct AttentionBackwardWholeArgs {
    U32 tiles, flags, B, L, T, H, G, D, q_at, q_row, k_at, k_row, v_at, v_row, o_at, o_row, up_o_at, up_o_row, lse_at, seq_at, grad_q_at, grad_q_row,
        grad_k_at, grad_k_row, grad_v_at, grad_v_row;
    F32 scale;
};

#endif
