/* Arguments and contracts of the kernels of window; the contract of every kernel is in ../args.h. */
#ifndef DART_WINDOW_ARGS_H
#define DART_WINDOW_ARGS_H

/* A window holds the newest tokens of a sequence, those since they were last added to h and open ("folded"). A step then reads one
 * N x P matrix a head and these tokens, where ssd_step reads two matrices and writes one. A new window begins with every chunk and
 * every WINDOW tokens within a chunk: position p has slot (p mod S) mod WINDOW.
 *   rows[(b WINDOW + slot) (H P + G N)]: x and b of that token after the convolution;
 *   steps[((b WINDOW + slot) H + h) 2] = {log-decay, step}, f32, both 0 for tokens before the window was made;
 *   hin: the state of each head before the window, raw f32, or normalised with HAS_HIN_SCALE as in ../ssd/args.h, row = (b H + h) N.
 * In slots that hold no token yet, rows must be finite and steps 0. */

/* The first launch of a step: the convolution, and storing the token in the window. y[b, ch] as conv_step computes it for the C
 * channels [x|b|c]; the first `kept` channels are also stored in rows; steps are computed from dt as in SsdDecayArgs, dt_bias with
 * HAS_STEPS. 2 <= K <= 8.
 * Tile: T0 consecutive items of the C channels followed by the H heads, of one sequence, tile = block + blocks * b. */
struct WindowAppendArgs {
    U32 tiles, flags, B, H, C, K, S, kept, x_at, x_row, dt_at, dt_row, weight_at, bias_at, tail_at, seq_at, a_log_at, dt_bias_at, y_at, y_row,
        rows_at;
    F32 dt_min, dt_max;
};

/* In place of the first launch and of the product before it, for K = 4: v = RMSNorm(x) norm . weight^T, x norm rounded to the type of weight, and of
 * its outputs o,
 *   first <= o < first + C, a channel ch = o - first: y[b, ch] of window_append, from v in place of x; the first `kept` channels are stored in rows
 *     only, the others as conv[b, ch];
 *   the H outputs after those: steps of window_append, from v in place of dt;
 *   any other o: y[b, o] = v.
 * A count of 0 leaves everything of its sequence as it is. first, C, kept, H and outputs are multiples of 4.
 * Tile: T0 outputs x T1 sequences, tile = output block + (number of output blocks) * sequence block. */
struct WindowProjectArgs {
    U32 tiles, flags, rows, inputs, outputs, first, C, H, S, kept, x_at, x_row, norm_at, weight_at, y_at, y_row, conv_at, conv_row, taps_at, bias_at,
        tail_at, seq_at, a_log_at, dt_bias_at, rows_at;
    F32 eps, dt_min, dt_max;
};

/* The second launch: with n the number of slots up to the token's own, keep_k = exp(sum of the log-decays of slots k + 1 .. n - 1), and
 * keep_-1 = exp(sum of the log-decays of slots 0 .. n - 1),
 *   y = sum_{k < n} (c . b_k) keep_k step_k x_k + keep_-1 c hin + d x_{n-1}.
 * N and P are multiples of 8, rows and hin start at multiples of 16 bytes.
 * Tile: T0 heads of one group, tile = block + blocks * (g + G b), blocks = ceil(H / G / T0). */
struct WindowOutputArgs { U32 tiles, flags, B, H, G, N, P, S, c_at, c_row, rows_at, hin_at, hin_scale_at, d_at, seq_at, y_at, y_row; };

/* The second launch with the gate of the block behind it: y = what window_output computes, times SiLU(z). */
struct WindowGatedArgs { U32 tiles, flags, B, H, G, N, P, S, c_at, c_row, rows_at, hin_at, hin_scale_at, d_at, seq_at, z_at, z_row, y_at, y_row; };

/* The way back into the stream: y_b += RMSNorm(x_b) norm . weight^T, where a count is above 0. Rows of y and outputs are multiples of 4.
 * Tile: as window_project. */
struct WindowBackArgs { U32 tiles, rows, inputs, outputs, x_at, x_row, norm_at, weight_at, y_at, y_row, seq_at; F32 eps; };

/* The third launch folds windows that are full or whose chunk closes, with n the number of slots up to the token's own. With IS_EVERY
 * it folds all windows, n = (position mod S) mod WINDOW, and no chunk closes. With IS_FRESH n = 0 and no chunk closes; without IS_EVERY
 * it then folds the windows of all sequences with a count. With keep as above:
 *   now = keep_-1 open + sum_{k < n} keep_k step_k b_k^T x_k, total = open_decay + the sum of all log-decays;
 *   the chunk closes: h = exp(total) h + now, the memory in to and scale = now normalised, open = 0, open_decay = 0;
 *   otherwise: open = now, open_decay = total;
 *   then hin = exp(open_decay) h + open;
 *   without HAS_OPEN instead: h = now, computed with h in place of open, and hin = h;
 *   in any case all steps of the window = 0.
 * The memory of a chunk that closes has number m = position / S and is stored at row ((b capacity + m - first) H + h) N if first <= m
 * < first + count. Otherwise the launch does not store it: another launch, for the run that contains m and with IS_LATER, must fold
 * that window. With IS_LATER only windows whose chunk closes with such an m are folded. A count of 0 leaves its sequence
 * unchanged unless IS_EVERY. N, P and starts as of window_output. Tile: T0 heads of one sequence, tile = block + blocks * b; workgroups may
 * share out the heads in any other way. */
struct WindowFoldArgs {
    U32 tiles, flags, B, H, G, N, P, S, first, count, capacity, rows_at, seq_at, hin_at, hin_scale_at, to_at, scale_at;
    F32 eps;
};

/* The same for `layers` layers with the same sequences, found by their addresses: N = 128, P = 64; rows, hin and memories of one 16-bit type, with
 * HAS_HIN_SCALE's scales. places: first and count of each of `closing` runs; then place p of layer l, a 64-bit number, in words
 * 2 (FOLD_RUNS + l FOLD_PLACES + p) and the next. A chunk that closes goes to the first run that has room for its memory, of capacity count; without
 * one its window is not folded. Workgroups share out the heads. */
#define FOLD_ROWS 0u
#define FOLD_STEPS 1u
#define FOLD_H 2u
#define FOLD_OPEN 3u
#define FOLD_OPEN_DECAY 4u
#define FOLD_HIN 5u
#define FOLD_HIN_SCALE 6u
#define FOLD_CLOSING 7u /* memories and scales of each run */
#define FOLD_PLACES 11u
#define FOLD_RUNS 2u
struct WindowFoldsArgs {
    U32 tiles, flags, layers, B, H, G, S, closing, seq_at;
    F32 eps;
};

#endif
