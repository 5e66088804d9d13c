/* One argument struct per kernel, read by C, CUDA and GLSL alike, and the contract of that kernel.
 *
 * What every kernel keeps:
 *   - Fields are 4-byte scalars, at most 128 bytes. `tiles` comes first: the number of independent pieces of work.
 *     Piece t is computed by one workgroup (thread block, CPU task); a grid smaller than `tiles` loops over them.
 *   - Bindings are listed in kernels.def, in order. X_at is the index of the first element of binding X, X_row the
 *     elements from one token (row) to the next. Rows of a batch are numbered b L + t.
 *   - dtypes: two bits a binding (0 f32, 1 f16, 2 bf16, 3 i32), lowest first. A binding whose flag is not set is a
 *     dummy and is never read.
 *   - T0 and T1 below are the tile sizes of the chosen row of kernels.def.
 *   - HAS_SEQ: seq[2 b] is the position, seq[2 b + 1] the count of sequence b; otherwise 0 and L. Tokens t >= count
 *     are neither read nor written. A count above L is taken as L, a negative position or count as 0.
 *   - Chunks of a piece: with o = position mod S, chunk j holds tokens begin(j) <= t < end(j),
 *     begin(j) = j ? j S - o : 0, end(j) = min(count, (j + 1) S - o). It closes when (j + 1) S - o <= count.
 *     Its number in the sequence is position / S + j.
 *   - Every sum is f32. Nothing is exponentiated that is above 0. No float atomics. Outputs are written exactly once.
 */
#ifndef DART_ARGS_H
#define DART_ARGS_H

#ifdef DART_GLSL
#define U32 uint
#define F32 float
#else
#include <stdint.h>
#define U32 uint32_t
#define F32 float
#endif

#define HAS_SEQ 1u        /* seq is bound */
#define HAS_BIAS 2u       /* conv: bias; ssd: dt_bias */
#define HAS_TAIL 4u       /* conv: tail */
#define HAS_ROWS 8u       /* norm: rows; advance: ids and log */
#define HAS_SMA 16u       /* gated_norm: r and gate */
#define HAS_D 32u         /* ssd: d */
#define HAS_H 64u         /* ssd: h */
#define HAS_OPEN 128u     /* ssd: open and open_decay */
#define HAS_DH 256u       /* ssd_step, ssd_piece: dh */
#define IS_STEP 512u      /* ssd_decay: dt is the step size itself: no bias, softplus or limits */
#define IS_ADD 1024u      /* linear: add to what y holds */
#define IS_RAW 2048u      /* sma: dh is raw and factor is rho; otherwise dh is normalised and factor is 1/rho */
#define IS_MERGE 4096u    /* sma, sma_merge: combine with what r and lse hold */
#define HAS_UNIT 8192u    /* sma_query, sma: qn, en and c have 16 bits, unit holds the rest of their factors */
#define HAS_SCALE 16384u  /* ssd: memories are normalised */
#define HAS_HIN_SCALE 32768u /* ssd: hin is normalised */
#define HAS_RUN 65536u    /* ssd: memories lie in a run */
#define HAS_CLOSED (1u << 20) /* ssd_step: dh is written where the chunk closes only */
#define HAS_STEPS (1u << 21)  /* mixer_project: outputs behind the channels are step sizes */

#define IS_EVERY (1u << 22)   /* window_fold: every window, with the tokens before `position` */
#define IS_FRESH (1u << 23)   /* window_fold: windows hold nothing yet */
#define IS_LATER (1u << 24)   /* window_fold: only chunks that close into this run */

#define MAX_STATE 256     /* largest N and P */
#define MAX_HEAD 128      /* largest D */
#define STEP_TOKENS 32    /* attention_step: the share of a split is a multiple of this many tokens */
#define MERGE_PARTS 128   /* sma_step, sma_merge: most partials of a head */
#define SMA_PADDING 256   /* most tokens of a tile of sma that reads qn and c in 16 bits */
#define WINDOW 32         /* tokens that a window has room for */
#define CUM_STRIDE 3      /* floats a token in cum: rounded cumulative log-decay, its remainder, dt */

/* y[i] = value for rows x width elements. Tile: T0 consecutive elements. */
struct FillArgs { U32 tiles, rows, width, y_at, y_row; F32 value; };

/* y = x in another dtype; with HAS_SEQ the rows are tokens, L of each sequence. Tile: T0 consecutive elements, counted
 * row by row. */
struct ConvertArgs { U32 tiles, flags, rows, L, width, x_at, x_row, y_at, y_row, seq_at; };

/* y_t = weight_{ids_t} for ids in [first, first + count), which is what the weight binding holds. Rows with an id
 * outside [0, vocabulary) become NaN in the launch with first == 0. Tile: one row. */
struct EmbedArgs { U32 tiles, rows, width, vocabulary, first, count, ids_at, weight_at, y_at, y_row; };

/* y_t = x_s / sqrt(mean(x_s^2) + eps) * weight, s = rows_t or t. Tile: one row. */
struct NormArgs { U32 tiles, flags, rows, width, x_at, x_row, weight_at, rows_at, y_at, y_row; F32 eps; };

/* out = RMSNorm((y + SiLU(gate) r) SiLU(z)) weight. gate is one number a row. Tile: one row. */
struct GatedNormArgs { U32 tiles, flags, rows, width, y_at, y_row, r_at, r_row, gate_at, gate_row, z_at, z_row, weight_at, out_at, out_row; F32 eps; };

/* y[t, o] (+)= sum_i x[t, i] weight[o, i]. weight is packed: outputs x inputs.
 * Tile: T0 outputs x T1 rows, tile = output block + (number of output blocks) * row block. */
struct LinearArgs { U32 tiles, flags, rows, inputs, outputs, x_at, x_row, weight_at, y_at, y_row; };

/* y[b,t,ch] = SiLU(bias[ch] + sum_k weight[ch,k] in[t-K+1+k]), where in[<0] comes from tail[b, K-1+t', ch] or is 0.
 * Tile: T0 channels x T1 tokens of one sequence, tile = channel block + channel blocks * (token block + token blocks * b). */
struct ConvArgs { U32 tiles, flags, B, L, C, K, x_at, x_row, weight_at, bias_at, tail_at, seq_at, y_at, y_row; };
/* tail = the last K-1 of (tail, in). Tile: T0 consecutive channels of one sequence, tile = channel block + blocks * b. */
struct ConvTailArgs { U32 tiles, flags, B, L, C, K, x_at, x_row, tail_at, seq_at; };
/* conv and conv_tail for L = 1 in one. Tile as conv_tail's. A count of 0 leaves tail and y alone. */
struct ConvStepArgs { U32 tiles, flags, B, C, K, x_at, x_row, weight_at, bias_at, tail_at, seq_at, y_at, y_row; };

/* step = IS_STEP ? dt : clamp(softplus(dt + dt_bias), dt_min, dt_max), no limit being FLT_MAX; log-decay of a token: -exp(a_log) step.
 * cum[(b H + h) L + t] = {hi, lo, step}: hi + lo is the log-decay summed from begin(j) to t inclusive, as a
 * two-float sum in an order of its own (hi the rounded sum, lo what rounding lost), so that differences keep their digits.
 * decay[(b (M+1) + 0) H + h] = open_decay[b H + h] or 0; decay[(b (M+1) + 1 + j) H + h] = the sum over chunk j (0 when
 * empty). Tile: T0 consecutive items (j fastest after h: item = h + H (j + M b)). */
struct SsdDecayArgs { U32 tiles, flags, B, L, H, S, M, dt_at, dt_row, a_log_at, dt_bias_at, seq_at; F32 dt_min, dt_max; };

/* The stages of a piece pass on two sets of N x P matrices, the memories of its chunks and the states that enter them
 * (hin), in one of two forms: raw f32, or normalised in any float dtype (HAS_SCALE for memories, HAS_HIN_SCALE for hin),
 *   scale_n = sqrt(mean_p raw[n, p]^2 + eps), row n as stored = raw row n / scale_n, scale f32 beside it.
 * Row n of matrix j is at matrix_at + (row + n) P, its scale at scale_at + row + n, with row = ((b M + j) H + h) N; memories
 * with HAS_RUN: row = ((b capacity + m - first) H + h) N, m = position / S + j the number of the chunk in the sequence, and
 * only chunks that close and have first <= m < first + count are stored (all that close do, by the caller's promise).
 * Matrices of empty chunks are neither written nor read. */

/* mem_j = sum_t exp(cum[last] - cum[t]) step_t b_t^T x_t over chunk j, and with HAS_OPEN for j = 0 plus exp(a_1) open,
 * a_1 = decay[(b (M + 1) + 1) H + h]. Stored in the form asked for; the last chunk, when it does not close and with HAS_OPEN,
 * also unrounded in tail, f32 B H N P.
 * Tile: T0 rows n of T1 heads of one group, all columns,
 * tile = n block + n blocks * (head block + head blocks * (g + G (j + M b))), head blocks = ceil(H / G / T1).
 * ssd_decay_memory does this and what ssd_decay does in one launch, where a tile has all rows of its heads: T0 >= N. */
struct SsdMemoryArgs {
    U32 tiles, flags, B, L, H, G, N, P, S, M, first, count, capacity, x_at, x_row, b_at, b_row, seq_at, memory_at, scale_at;
    F32 eps;
    U32 dt_at, dt_row, a_log_at, dt_bias_at; /* these and the limits: ssd_decay_memory only */
    F32 dt_min, dt_max;
};

/* Walks the chunks of a piece with the memories as stored; a_0 = decay[0], a_{j+1} = decay[j + 1]:
 *   hin_0 = exp(a_0) h + open, hin_j = h;  total_0 = a_0 + a_1, total_j = a_{j+1};
 *   closing: h = exp(total_j) h + mem_j, and nothing is open;
 *   not closing (the last one): with HAS_OPEN open = tail, open_decay = total_j, and mem_j is not read; else as closing.
 * h is 0 at first without HAS_H and is then not written. A piece of no tokens changes nothing.
 * Tile: T0 rows n of one (b, h), all columns, tile = row block + row blocks * (h + H b). */
struct SsdStateArgs { U32 tiles, flags, B, L, H, N, P, S, M, first, count, capacity, seq_at, memory_at, scale_at, hin_at, hin_scale_at; F32 eps; };

/* y_t = sum_{s <= t} (c_t . b_s) exp(cum_t - cum_s) step_s x_s + exp(cum_t) c_t hin[j] + d x_t, within chunk j; C = min(S, L).
 * Tile: T0 heads of one group x T1 tokens of one chunk, all columns,
 * tile = token block + token blocks * (head block + head blocks * (g + G (j + M b))), token blocks = ceil(C / T1),
 * head blocks = ceil(H / G / T0). */
struct SsdOutputArgs { U32 tiles, flags, B, L, H, G, N, P, S, M, C, x_at, x_row, b_at, b_row, c_at, c_row, hin_at, hin_scale_at, d_at, seq_at, y_at, y_row; };

/* What ssd_decay, ssd_memory, ssd_state and ssd_output do, in one launch, for bf16: memories are normalised and stored with HAS_DH or
 * HAS_RUN only, h, open and open_decay as of ssd_state.
 * Eight tiles for every two heads of a group, tile = r + 8 (pair + pairs * (g + G b)), pairs = ceil(H / G / 2). */
struct SsdPieceArgs {
    U32 tiles, flags, B, L, H, G, N, P, S, M, first, count, capacity, x_at, x_row, b_at, b_row, c_at, c_row, y_at, y_row, seq_at, memory_at,
        scale_at, dt_at, dt_row, a_log_at, dt_bias_at, d_at;
    F32 eps, dt_min, dt_max;
};

/* All of it for L = 1, after ssd_decay (which gives decay for M = 1 and cum): with a_0 = decay[0], a_1 = decay[1]:
 *   open' = exp(a_1) open + step b x, y = c (exp(a_0 + a_1) h + open') + d x; dh[0] = open' with HAS_DH
 *   (with HAS_CLOSED as well: only when closing, HAS_OPEN or not);
 *   closing ((position + 1) mod S == 0): h = exp(a_0 + a_1) h + open', open = 0, open_decay = 0;
 *   otherwise open = open', open_decay = a_0 + a_1. Without HAS_OPEN open counts as 0 and h is the state after the
 *   token; without HAS_H h counts as 0 too and is not written. A count of 0 changes nothing and writes nothing.
 * Tile: T0 columns p of one (b, h), tile = p block + p blocks * (h + H b). */
struct SsdStepArgs { U32 tiles, flags, B, H, G, N, P, S, x_at, x_row, b_at, b_row, c_at, c_row, d_at, seq_at, dh_at, y_at, y_row; };

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

/* The first third of a mixer's step: a normalised product whose outputs go on as they are needed. Row t is the one token
 * of sequence t: u = x_t / sqrt(mean(x_t^2) + eps) * norm, v_o = sum_i u_i weight[o, i], weight packed, and
 *   first <= o < first + C, a channel ch = o - first: conv_step with in_{K-1} = v_o: y[t, o] = SiLU(bias[ch] +
 *     sum_k taps[ch, k] in_k), (in_0 .. in_{K-2}) = tail[t, :, ch]; then tail[t, :, ch] = in_1 .. in_{K-1};
 *   the H outputs behind the channels with HAS_STEPS, h = o - first - C: y[t, o] = v_o, and what ssd_decay makes of it for
 *     L = M = 1 and dt_bias: cum[(t H + h) 3] = {log-decay, 0, step}, cum[decay_at + 2 t H + h] = open_decay[t H + h] (0 without HAS_OPEN),
 *     cum[decay_at + (2 t + 1) H + h] = log-decay;
 *   any other: y[t, o] = v_o.
 * A count of 0 leaves its row of everything alone. 1 <= K <= 8. Tile: T0 outputs x T1 rows,
 * tile = output block + (number of output blocks) * row block. */
struct MixerProjectArgs {
    U32 tiles, flags, rows, inputs, outputs, first, C, K, H, x_at, x_row, norm_at, weight_at, y_at, y_row, taps_at, bias_at, tail_at,
        seq_at, a_log_at, dt_bias_at, decay_at;
    F32 eps, dt_min, dt_max;
};

/* The second third, beside ssd_step: sma_query and sma_step in one, from q and e as the convolution left them and on normalised
 * memories: logit and v as sma has them. Rows of q and e lie q_row apart.
 * Tile: split + splits * (h + H b) looks at memories [split T, split T + T), T = ceil(count / splits), and writes
 * partial[partial_at + (split B H + b H + h) (P + 4)] = {acc[P], top, den}: top = max logit (-3.4e38 without memories), den =
 * sum exp(logit - top), acc = sum exp(logit - top) v. A count of 0 writes nothing. */
struct MixerAttendArgs {
    U32 tiles, flags, B, H, G, N, P, S, first, count, capacity, splits, q_at, e_at, q_row, c_at, c_row, dh_at, factor_at, seq_at, partial_at;
    F32 eps;
};

/* The last third: x_t += weight u_t, u = RMSNorm((y + SiLU(gate) r) SiLU(z)) norm over all inputs, weight packed, outputs x
 * inputs. With HAS_SMA r is the merge of the `splits` partials of (t, head i / P), 0 where none saw a memory:
 * r_i = sum_s exp(top_s - T) acc_s,i / sum_s exp(top_s - T) den_s, T = max top_s over den_s > 0. partial
 * [(s B H + t H + h) (P + 4)] as mixer_attend writes it, B = rows, H = inputs / P. A count of 0 leaves x_t alone.
 * Tile: T0 outputs x T1 rows, tile = output block + (number of output blocks) * row block. */
struct MixerOutputArgs {
    U32 tiles, flags, rows, inputs, outputs, P, splits, y_at, y_row, gate_at, gate_row, z_at, z_row, norm_at, weight_at, seq_at, x_at, x_row;
    F32 eps;
};

/* For each chunk j that closes with first <= m = position / S + j < first + count, row n of head h:
 * s = sqrt(mean_p dh^2 + eps), to[((b capacity + m - first) H + h) N P] = dh / s, scale[...] = s.
 * Tile: T0 consecutive rows of N of one (b, j, h), tile = row block + row blocks * (h + H (j + M b)). */
struct SmaAppendArgs { U32 tiles, flags, B, L, H, N, P, S, M, first, count, capacity, dh_at, seq_at, to_at, scale_at; F32 eps; };

/* A piece's keys and values into their caches: to_k[(b C + position + t) to_k_row + i] = k[(b L + t) k_row + i] for
 * i < G D, and v alike; tokens with position + t >= C are dropped. Tile: T0 consecutive elements of B L G D, counted row
 * by row. */
struct KvAppendArgs { U32 tiles, flags, B, L, G, D, C, k_at, k_row, v_at, v_row, seq_at, to_k_at, to_k_row, to_v_at, to_v_row; };

/* o_t = sum_s w_s v_s over s <= position + t, s < C: w = softmax(scale q_t . k_s), lse = logsumexp(scale q_t . k_s).
 * k and v are of one type. Head h takes group g = h / (H / G): q[(b L + t) q_row + h D], k[(b C + s) k_row + g D], v alike, o as q.
 * lse f32 (b L + t) H + h. Online softmax in f32 over blocks of s; what lies in k and v at s > position + t reaches no
 * bit of o_t, NaN included. Tile: T0 tokens of one (b, h), tile = token block + token blocks * (h + H b); a kernel may take the
 * blocks of a head in the opposite order. */
struct AttentionArgs { U32 tiles, flags, B, L, H, G, D, C, q_at, q_row, k_at, k_row, v_at, v_row, seq_at, o_at, o_row, lse_at; F32 scale; };
/* attention for L = 1, split: with seen = min(position + 1, C), tile = split + splits * (h + H b) looks at the tokens
 * [split T, split T + T) below seen, T = STEP_TOKENS ceil(seen / (splits STEP_TOKENS)), and writes
 * partial[tile (D + 2)] = {top, den, acc[D]} as sma_step does with P = D; sma_merge puts them together. */
struct AttentionStepArgs { U32 tiles, flags, B, H, G, D, C, splits, q_at, q_row, k_at, k_row, v_at, v_row, seq_at; F32 scale; };

/* part[2 tile] = an order-preserving integer of the largest of T0 consecutive logits of a row (0: there is no number), part[2 tile + 1]
 * the lowest index of it in the row. tile = block + blocks * row. */
struct ArgmaxPartArgs { U32 tiles, rows, width, logits_at, logits_row; };
/* ids[t] = lowest index of the largest logit, NaN never, 0 when there is none, from the parts of the row. Tile: one row. */
struct ArgmaxArgs { U32 tiles, rows, blocks, ids_at; };

/* Top-k sampling, see dart_sample. Tile: one row. u = word 0 of Philox4x32-10({position + count, row, 0, 0},
 * {seed_low, seed_high}) / 2^32. The kept set: the top_k largest (ties: lower index first); weights
 * exp((logit - max) / temperature) are summed in index order; the id is the first kept index whose running sum exceeds
 * u * total, else the last kept index. -inf logits are kept last with weight 0; NaN never, and where nothing is
 * kept the id is 0. */
struct SampleArgs { U32 tiles, flags, rows, width, top_k, seed_low, seed_high, logits_at, logits_row, seq_at, ids_at; F32 temperature; };

/* y = r 1^T + a b, see matrix_check.comp; the check of matrix hardware, not an op. One tile. */
struct MatrixCheckArgs { U32 tiles, side; };

/* seq[2 b] += seq[2 b + 1]; with HAS_ROWS then log[b slots + seq[2 b] mod slots] = ids[b]. Tile: T0 sequences. */
struct AdvanceArgs { U32 tiles, flags, B, slots, seq_at, ids_at, log_at; };

#endif
