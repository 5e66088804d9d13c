/* Arguments and contracts of the kernels of window; ../args.h has what all keep. */
#ifndef DART_WINDOW_ARGS_H
#define DART_WINDOW_ARGS_H

/* A window holds the tokens of a sequence since its matrices were last brought up to date ("folded"), so that a step reads
 * one matrix a head and these tokens instead of reading two matrices and writing one. It begins with the chunk or WINDOW
 * tokens after its last beginning: position p has slot (p mod S) mod WINDOW.
 *   rows[(b WINDOW + slot) (H P + G N)]: x and b of that token after the convolution;
 *   steps[((b WINDOW + slot) H + h) 2] = {log-decay, step}, f32, both 0 for tokens before the window was made;
 *   hin: the state of each head before the window, raw f32, or normalised with HAS_HIN_SCALE, as ssd's, row = (b H + h) N.
 * Of slots that no token has taken yet the rows must be finite and the steps 0. */

/* The first launch of a step, conv_step and the token's place in the window in one: y[b, ch] as of conv_step for the C channels
 * [x|b|c]; the first `kept` of them also to rows; steps from dt as ssd_decay has them. 2 <= K <= 8.
 * Tile: T0 consecutive of the C channels and H heads behind them, of one sequence, tile = block + blocks * b. */
struct WindowAppendArgs {
    U32 tiles, flags, B, H, C, K, S, kept, x_at, x_row, dt_at, dt_row, weight_at, bias_at, tail_at, seq_at, a_log_at, dt_bias_at, y_at, y_row,
        rows_at;
    F32 dt_min, dt_max;
};

/* The second: with n slots up to the token's own, keep_k = exp(sum of the log-decays of slots k + 1 .. n - 1) and keep_-1 that of all,
 *   y = sum_{k < n} (c . b_k) keep_k step_k x_k + keep_-1 c hin + d x_{n-1}.
 * N and P are multiples of 8, rows and hin start at multiples of 16 bytes.
 * Tile: T0 heads of one group, tile = block + blocks * (g + G b), blocks = ceil(H / G / T0). */
struct WindowOutputArgs { U32 tiles, flags, B, H, G, N, P, S, c_at, c_row, rows_at, hin_at, hin_scale_at, d_at, seq_at, y_at, y_row; };

/* The third, for sequences whose window is full or whose chunk closes, n slots up to the token's own; with IS_EVERY for all,
 * n = (position mod S) mod WINDOW, and nothing closes; with IS_FRESH n = 0. With keep as above:
 *   now = keep_-1 open + sum_{k < n} keep_k step_k b_k^T x_k, total = open_decay + the sum of all log-decays;
 *   closing: h = exp(total) h + now, to and scale of the memory's place = now normalised, open = 0, open_decay = 0;
 *   otherwise: open = now, open_decay = total;   without HAS_OPEN: h = now with h in place of open;
 *   hin = exp(open_decay) h + open as they are then; all steps of the window = 0.
 * Closing chunks must have first <= m = position / S < first + count; with IS_LATER others are left to another launch, without
 * it all that closes elsewhere must have one. Memory m is stored at ((b capacity + m - first) H + h) N rows. A count of 0 leaves its
 * sequence alone unless IS_EVERY. N, P and starts as of window_output. Tile: T0 heads of one sequence, tile = block + blocks * b. */
struct WindowFoldArgs { U32 tiles, flags, B, H, G, N, P, S, first, count, capacity, rows_at, seq_at, hin_at, hin_scale_at, to_at, scale_at; F32 eps; };

#endif
