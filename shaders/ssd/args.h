/* Arguments and contracts of the kernels of ssd; the contract of every kernel is in ../args.h. */
#ifndef DART_SSD_ARGS_H
#define DART_SSD_ARGS_H

/* step = IS_STEP ? dt : clamp(softplus(dt + dt_bias), dt_min, dt_max), where FLT_MAX means no limit. The log-decay of a token is
 * -exp(a_log) step.
 * cum[((b H + h) L + t) 3] = {hi, lo, step}: hi + lo is the sum of the log-decays from begin(j) to t inclusive, hi the rounded sum and
 * lo what rounding lost, so that differences of two sums stay accurate. The order of summation is the variant's.
 * decay[(b (M+1) + 0) H + h] = open_decay[b H + h] or 0; decay[(b (M+1) + 1 + j) H + h] = the sum over chunk j (0 when
 * empty). Tile: T0 consecutive items (j fastest after h: item = h + H (j + M b)). */
struct SsdDecayArgs { U32 tiles, flags, B, L, T, H, S, M, dt_at, dt_row, a_log_at, dt_bias_at, seq_at; F32 dt_min, dt_max; };

/* The kernels below pass on two sets of N x P matrices: the memories of the chunks of a piece, and the states that enter these
 * chunks (hin). Each set has one of two forms: raw (memories f32; hin f32 or bf16), or normalised in any float dtype (HAS_SCALE
 * for memories, HAS_HIN_SCALE for hin),
 *   scale_n = sqrt(mean_p raw[n, p]^2 + eps), row n as stored = raw row n / scale_n, scale f32 beside it.
 * Row n of matrix j is at matrix_at + (row + n) P, its scale at scale_at + row + n, with row = ((b M + j) H + h) N; memories
 * with HAS_RUN: row = ((b capacity + m - first) H + h) N, m = position / S + j the number of the chunk in the sequence. Only chunks
 * that close and have first <= m < first + count are stored. The caller guarantees that range for every chunk that closes.
 * Matrices of empty chunks are neither written nor read. */

/* mem_j = sum_t exp(cum[last] - cum[t]) step_t b_t^T x_t over chunk j, and with HAS_OPEN for j = 0 plus exp(a_1) open,
 * a_1 = decay[(b (M + 1) + 1) H + h]. Stored in the form above. With HAS_OPEN the last chunk, when it does not close, is also stored
 * unrounded in tail, f32 B H N P.
 * Tile: T0 rows n of T1 heads of one group, all columns,
 * tile = n block + n blocks * (head block + head blocks * (g + G (j + M b))), head blocks = ceil(H / G / T1).
 * ssd_decay_memory computes this and ssd_decay in one launch; its tiles have all rows of their heads: T0 >= N. */
struct SsdMemoryArgs {
    U32 tiles, flags, B, L, T, H, G, N, P, S, M, first, count, capacity, x_at, x_row, b_at, b_row, seq_at, memory_at, scale_at;
    F32 eps;
    U32 dt_at, dt_row, a_log_at, dt_bias_at; /* these and dt_min, dt_max: ssd_decay_memory only */
    F32 dt_min, dt_max;
};

/* Takes the state from chunk to chunk of a piece, with the memories as stored; a_0 = decay[0], a_{j+1} = decay[j + 1] of (b, h):
 *   hin_0 = exp(a_0) h + open, hin_j = h;  total_0 = a_0 + a_1, total_j = a_{j+1};
 *   chunk j closes: h = exp(total_j) h + mem_j, open = 0, open_decay = 0;
 *   chunk j does not close (only the last one may not): with HAS_OPEN open = tail, open_decay = total_j, and mem_j is not read;
 *   without HAS_OPEN as if it closed.
 * Without HAS_H h starts as 0 and is not written. A sequence with a count of 0 stays as it is.
 * Tile: T0 rows n of one (b, h), all columns, tile = row block + row blocks * (h + H b). */
struct SsdStateArgs { U32 tiles, flags, B, L, T, H, N, P, S, M, first, count, capacity, seq_at, memory_at, scale_at, hin_at, hin_scale_at; F32 eps; };

/* y_t = sum_{s <= t} (c_t . b_s) exp(cum_t - cum_s) step_s x_s + exp(cum_t) c_t hin[j] + d x_t, within chunk j; C = min(S, L).
 * Tile: T0 heads of one group x T1 tokens of one chunk, all columns,
 * tile = token block + token blocks * (head block + head blocks * (g + G (j + M b))), token blocks = ceil(C / T1),
 * head blocks = ceil(H / G / T0). */
struct SsdOutputArgs { U32 tiles, flags, B, L, T, H, G, N, P, S, M, C, x_at, x_row, b_at, b_row, c_at, c_row, hin_at, hin_scale_at, d_at, seq_at,
    y_at, y_row; };

/* ssd_decay, ssd_memory, ssd_state and ssd_output in one launch, for bf16. Memories are normalised, and stored only with HAS_DH or
 * HAS_RUN. h, open and open_decay as in SsdStateArgs.
 * Eight tiles for every two heads of a group, tile = r + 8 (pair + pairs * (g + G b)), pairs = ceil(H / G / 2).
 * Rows with FITS_SSD_WALK: for any dtypes, without HAS_H, HAS_OPEN, HAS_RUN and HAS_SEQ; memories are normalised with HAS_SCALE, else f32 and raw. A
 * tile walks over all chunks of one (b, g): tile = g + G b. Nobody reads y of the first `quiet` chunks of a sequence: it may stay as it is. A run has
 * `capacity` memories. */
struct SsdPieceArgs {
    U32 tiles, flags, B, L, H, G, N, P, S, M, first, capacity, quiet, x_at, x_row, b_at, b_row, c_at, c_row, y_at, y_row, seq_at, memory_at,
        scale_at, dt_at, dt_row, a_log_at, dt_bias_at, d_at;
    F32 eps, dt_min, dt_max;
};

/* The whole scan for L = 1, after ssd_decay with M = 1, which writes decay and cum; a_0 = decay[0], a_1 = decay[1]:
 *   open' = exp(a_1) open + step b x, y = c (exp(a_0 + a_1) h + open') + d x; dh[0] = open' with HAS_DH
 *   (with HAS_CLOSED only when the chunk closes);
 *   the chunk closes, (position + 1) mod S == 0: h = exp(a_0 + a_1) h + open', open = 0, open_decay = 0;
 *   otherwise open = open', open_decay = a_0 + a_1. Without HAS_OPEN open counts as 0 and h is the state after the
 *   token; without HAS_H h counts as 0 too and is not written. A count of 0 changes nothing and writes nothing.
 * Tile: T0 columns p of one (b, h), tile = p block + p blocks * (h + H b). */
struct SsdStepArgs { U32 tiles, flags, B, H, G, N, P, S, x_at, x_row, b_at, b_row, c_at, c_row, d_at, seq_at, dh_at, y_at, y_row; };

/* ---- The backward pass of the chunked scan ----
 * Per (b, h) with group g, inside chunk j; hin is the state that enters it. Gradients of the loss: up_y with respect to y, up_dh to the chunk's
 * memory (0 without HAS_DH), up_h to the state after the last token (0 without HAS_H). cum, step: see ssd_decay; tot is cum at the chunk's end,
 *   E_ts = exp(cum_t - cum_s) for s <= t, else 0;  keep_s = exp(tot - cum_s);  A = -exp(a_log).
 * Tokens of a chunk are cut into tiles. Matrices of N x P are f32 (but see ssd_backward_gain) and lie as the memories do without HAS_RUN; scratch of
 * C x C, C = min(S, L), is at ((b M + j) G + g) C C. What belongs to empty chunks is neither written nor read. */

/* cb[t C + s] = c_t . b_s for s <= t, and what lies in the tiles on the diagonal above it.
 * Tile: T0 x T0 of a (b, j, g), row tile i, column tile k <= i: pair = i (i + 1) / 2 + k, tile = pair + pairs * (g + G (j + M b)),
 * pairs = n (n + 1) / 2, n = ceil(C / T0). */
struct SsdBackwardProductsArgs { U32 tiles, flags, B, L, T, G, N, S, M, C, b_at, b_row, c_at, c_row, seq_at; };

/* read[n, p] = sum_t exp(cum_t) c_t[n] up_y_t[p], the gradient of hin by the chunk's own outputs.
 * Tile: T0 rows n x T1 columns p, tile = n block + n blocks * (p block + p blocks * (h + H (j + M b))). */
struct SsdBackwardReadArgs { U32 tiles, flags, B, L, T, H, G, N, P, S, M, c_at, c_row, up_y_at, up_y_row, seq_at; };

/* Takes the gradient of the state from chunk to chunk, backwards. lambda_j is that of the state at the end of chunk j:
 *   lambda of the last chunk = up_h;  lambda_(j-1) = exp(tot_j) lambda_j + read_j;  grad_h = exp(tot_0) lambda_0 + read_0 (HAS_H: written).
 * lambda_j replaces read_j. carry[((b M + j) H + h) N + n] = exp(tot_j) sum_p lambda_j[n, p] hin_j[n, p]. A count of 0: grad_h = up_h.
 * Tile: T0 rows n of one (b, h), all columns, tile = row block + row blocks * (h + H b). */
struct SsdBackwardStateArgs { U32 tiles, flags, B, L, T, H, N, P, S, M, hin_at, hin_scale_at, seq_at, up_h_at, grad_h_at; };

/* The same, but lambda is not kept: gain_j = lambda_j + up_dh_j, rounded to the type of x, which ssd_backward_x and ssd_backward_b then take as
 * lambda without HAS_DH. hin is of that type: bf16 raw, f16 with HAS_HIN_SCALE. Rows of
 * f16 gains are divided by gain_scale, which lies as carry does. */
struct SsdBackwardGainArgs { U32 tiles, flags, B, L, T, H, N, P, S, M, hin_at, hin_scale_at, up_dh_at, seq_at, up_h_at, grad_h_at; };

/* u_ts = E_ts step_s (up_y_t . x_s) of a head, grad_cb[t C + s] = the sum of u_ts over the heads of the group; z_ts = u_ts cb_ts.
 * A shift of the log-decay at token k changes the loss by the sum of z_us over u >= k > s. sums holds the shares of a pair of tiles i, k (below) in
 * it, 64 for each of pairs: ((((b M + j) H + h) pairs + pair) 64; i > k: element r is the sum of z over the rows r and later of tile i,
 * element 32 + c that over the columns before c of tile k; i = k: element r is the sum over rows >= r and columns < r.
 * The tiles of sums have SCORE_SIDE x SCORE_SIDE tokens, 32. Tile: T1 rows of T0 x T0 tokens, T0 a multiple of that, tile = row block + row blocks *
 * the tile of T0 x T0 as in ssd_backward_products. With parts above 1, which not every row takes, the heads of a group are that many parts: part i
 * of grad_cb lies i B M G C C elements on; tile = row block + row blocks * (the pair of T0 x T0 + pairs * (i + parts (g + G (j + M b)))). */
struct SsdBackwardScoresArgs { U32 tiles, flags, B, L, T, H, G, P, S, M, C, parts, x_at, x_row, up_y_at, up_y_row, seq_at; };

/* v_s = sum_t cb_ts E_ts up_y_t + keep_s b_s (lambda + up_dh);  grad_x_s = step_s v_s + d up_y_s.
 * token[((b L + s) H + h) 4] = {x_s . v_s, step_s x_s . keep_s b_s (lambda + up_dh), up_y_s . x_s}; the fourth is ssd_backward_c's.
 * Tile: T0 tokens of one (b, j, h), all columns, tile = token tile + token tiles * (h + H (j + M b)). */
struct SsdBackwardXArgs {
    U32 tiles, flags, B, L, T, H, G, N, P, S, M, C, x_at, x_row, b_at, b_row, up_y_at, up_y_row, up_dh_at, d_at, seq_at, grad_x_at, grad_x_row;
};

/* grad_b_s = sum_(t >= s) grad_cb_ts c_t + the sum over the heads of the group of keep_s step_s (lambda + up_dh) x_s.
 * Tile: T0 columns n x T1 tokens of one (b, j, g), tile = n block + n blocks * (token tile + token tiles * (g + G (j + M b))). grad_cb is
 * the sum of `squares` parts (above). With parts above 1, part i of the heads and of the blocks of grad_cb adds up to rows i B L + row of grad_b, in
 * f32; tile = n block + n blocks * (token tile + token tiles * (i + parts (g + G (j + M b)))). */
struct SsdBackwardBArgs {
    U32 tiles, flags, B, L, T, H, G, N, P, S, M, C, squares, parts, x_at, x_row, c_at, c_row, up_dh_at, seq_at, grad_b_at, grad_b_row;
};

/* grad_c_t (+)= sum_(s <= t) grad_cb_ts b_s + the sum over the heads of the group of exp(cum_t) hin up_y_t (IS_ADD: added);
 * token[((b L + t) H + h) 4 + 3] = exp(cum_t) c_t . hin up_y_t.
 * Tile: T0 tokens of one (b, j, g), all columns, tile = token tile + token tiles * (g + G (j + M b)), with parts as of ssd_backward_b. */
struct SsdBackwardCArgs {
    U32 tiles, flags, B, L, T, H, G, N, P, S, M, C, squares, parts, b_at, b_row, c_at, c_row, up_y_at, up_y_row, hin_at, hin_scale_at, seq_at,
        grad_c_at, grad_c_row;
};

/* grad_a_k = the sum of z_us over u >= k > s + the sum over u >= k of token[3] + the sum over s < k of token[1] + the sum of carry over n;
 * grad_step_k = token[0] + A grad_a_k;  grad_dt = grad_step (IS_STEP), or grad_step sigma(dt + dt_bias) where dt_min <= softplus(dt + dt_bias) <=
 * dt_max, else 0. Sums over the tokens of the chunk, 0 for an empty one, each at (b M + j) H + h: of A step grad_a in of_a_log, of grad_dt in
 * of_bias, of token[2] in of_d. Overwrites token[1]. Tile: one (b, j, h), tile = h + H (j + M b). */
struct SsdBackwardDecayArgs {
    U32 tiles, flags, B, L, T, H, N, S, M, C, dt_at, dt_row, a_log_at, dt_bias_at, seq_at, grad_dt_at, grad_dt_row;
    F32 dt_min, dt_max;
};

/* All of the backward pass for a call without states before or after it: the formulas are those of the kernels above, grad_c is added to with
 * IS_ADD. hin is scratch, f32, raw: the states that enter the chunks, as the memories lie without HAS_RUN, written and read by one tile. The sums
 * for a_log, dt_bias and d go over all tokens of a sequence, 0 where it has none, each at b H + h. A tile walks over all chunks of one (b, g),
 * forwards and then backwards: tile = g + G b. up_y of the first `quiet` chunks of a sequence is 0 and need not be read. The bindings after the 16th
 * are f32. */
struct SsdBackwardWalkArgs {
    U32 tiles, flags, B, L, T, H, G, N, P, S, M, quiet, x_at, x_row, dt_at, dt_row, b_at, b_row, c_at, c_row, a_log_at, dt_bias_at, d_at, up_y_at,
        up_y_row, up_dh_at, seq_at, grad_x_at, grad_x_row, grad_dt_at, grad_dt_row, grad_b_at, grad_b_row, grad_c_at, grad_c_row;
    F32 dt_min, dt_max;
};

#endif
