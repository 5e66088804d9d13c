/* Arguments and contracts of the kernels of conv; the contract of every kernel is in ../args.h. */
#ifndef DART_CONV_ARGS_H
#define DART_CONV_ARGS_H

/* y[b,t,ch] = SiLU(bias[ch] + sum_k weight[ch,k] in[t-K+1+k]), in[t] = x[b,t,ch] for t >= 0,
 * in[t] = tail[b,K-1+t,ch] for t < 0, or 0 without HAS_TAIL.
 * Tile: T0 channels x T1 tokens of one sequence, tile = channel block + channel blocks * (token block + token blocks * b). */
struct ConvArgs { U32 tiles, flags, B, L, T, C, K, x_at, x_row, weight_at, bias_at, tail_at, seq_at, y_at, y_row; };

/* tail = the last K-1 of (tail, in). Tile: T0 consecutive channels of one sequence, tile = channel block + blocks * b. */
struct ConvTailArgs { U32 tiles, flags, B, L, C, K, x_at, x_row, tail_at, seq_at; };

/* conv and conv_tail for L = 1 in one launch. Tile as in conv_tail. A count of 0 leaves tail and y unchanged. */
struct ConvStepArgs { U32 tiles, flags, B, C, K, x_at, x_row, weight_at, bias_at, tail_at, seq_at, y_at, y_row; };

/* Without a tail: pre_t = bias + sum_k weight_k x_(t-K+1+k), up_pre_t = up_y_t SiLU'(pre_t) for t < count;
 *   grad_x_s = sum_k weight_k up_pre_(s+K-1-k), 0 past the count; over the tokens t of the tile, in an order that
 *   the row of the table fixes,
 *   of_weight[slot C K + ch K + k] = sum_t up_pre_t x_(t-K+1+k);  of_bias[slot C + ch] = sum_t up_pre_t (HAS_BIAS);  slot = token block + token
 * blocks * b; with
 * HAS_CU cu[b] / T1 + b + token block, of T / T1 + B slots, and those without tokens are left as they are.
 * Tile: T0 channels x T1 tokens of one sequence, tile = channel block + channel blocks * (token block + token blocks * b). */
struct ConvBackwardArgs { U32 tiles, flags, B, L, T, C, K, x_at, x_row, weight_at, bias_at, seq_at, up_y_at, up_y_row, grad_x_at, grad_x_row; };

#endif
