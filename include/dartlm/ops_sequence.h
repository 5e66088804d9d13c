/* dartlm: the ops along sequences: convolution, scan, state-memory attention, softmax attention, decoding steps. Part of dartlm.h, whose glossary
 * and laws hold here. */
#ifndef DARTLM_OPS_SEQUENCE_H
#define DARTLM_OPS_SEQUENCE_H

#include "ops.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Depthwise causal convolution, then SiLU: y_t = SiLU(bias + sum_k weight_k x_{t-K+1+k}).
 * x, y B L C; weight C K; bias C, optional; tail B K-1 C, optional: the inputs before the piece, oldest first,
 * replaced by the last K-1 inputs of the sequence so far. Without tail the inputs before the piece are zero. 2 <= K <= 8.
 * keep_tail: tail is only read. Call dart_conv_tail with the same arguments afterwards; its launch may then overlap others. */
typedef struct dart_conv_args {
    uint32_t B, L, C, K, T;
    bool keep_tail;
    dart_tensor x, weight, bias, tail, seq, cu, y;
} dart_conv_args;
DART_API dart_status dart_conv(dart_stream *stream, const dart_conv_args *args);
/* The update that dart_conv leaves out with keep_tail: tail becomes the last K-1 inputs of the sequence so far. x and tail are
 * required; weight, bias and y are ignored. */
DART_API dart_status dart_conv_tail(dart_stream *stream, const dart_conv_args *args);

/* Whether cu begins with 0, does not fall, has steps of at most L and ends with at most T; B + 1 numbers. DART_OK or
 * DART_INVALID_ARGUMENT. */
DART_API dart_status dart_cu_check(const int32_t *cu, uint32_t B, uint32_t L, uint32_t T);
/* T / S + B: slots of the chunks of B sequences in T rows; 0 where S is. */
DART_API uint64_t dart_packed_chunks(uint32_t T, uint32_t S, uint32_t B);

/* How dart_ssd, dart_sma and dart_attention are computed; results agree within rounding. DART_PLAN_AUTO takes the step plan
 * where it is allowed. */
typedef enum dart_plan { DART_PLAN_AUTO = 0, DART_PLAN_CHUNKED = 1, DART_PLAN_STEP = 2 /* L == 1 only */ } dart_plan;

/* A run of memories: memory first + i of sequence b, i < M, is dh[b, i]. Without scale the memories are raw. With scale they are
 * normalised: row n as stored is raw row n / scale_n, scale_n = sqrt(mean_p raw_np^2 + eps), so that the mean square of a stored
 * row is at most 1. */
typedef struct dart_memories {
    uint32_t first, M;
    dart_tensor dh;    /* B M H N P */
    dart_tensor scale; /* f32 B M H N, optional */
} dart_memories;

/* The scan of Mamba-2 with the memory of each chunk, computed chunk by chunk:
 *   dt_t = clamp(softplus(dt_t + dt_bias), dt_min, dt_max); with dt_is_step dt itself, which must not be negative;
 *   h_t = exp(dt_t A) h_{t-1} + dt_t b_t^T x_t, A = -exp(a_log);  y_t = c_t h_t + d x_t;
 *   dh_m = sum over the tokens s of chunk m of exp(sum_{s < k <= end} dt_k A) dt_s b_s^T x_s, the memory of chunk m: what its own
 *   tokens contribute to h at the end of the chunk. Chunks count from the start of the sequence.
 * x, y B L H P; dt B L H; b, c B L G N; a_log, dt_bias, d H (the last two optional).
 * h f32 B H N P, optional: in, the state before the piece (without h: zero); out, the state after its last token.
 * open f32 B H N P with open_decay f32 B H, optional, need h and seq: the open chunk, whose last token has not come yet.
 *   With them h is, in and out, the state at the last chunk border. open is the memory of the open chunk so far and open_decay
 *   its log-decay; the call replaces both. The state after the last token is exp(open_decay) h + open.
 * dh B M H N P with dh_scale f32 B M H N, optional: memory j is that of the j-th chunk that this piece touches, an unclosed
 *   one included; raw and f32 without dh_scale, else normalised (dart_memories) with eps under the root.
 *   M = dart_ssd_chunks(): ceil(L/S), or ceil((L+S-1)/S) when seq is given, since a piece may start inside a chunk.
 * memories, optional, instead of dh, need open: runs with scale that do not overlap. The memory of every chunk that closes
 *   within the piece is stored in the run that contains its number. The caller must provide that run; the op cannot check it.
 *   With a single run memories are computed in place; with several they are copied.
 * Intermediates, optional; where absent the stream's scratch memory holds them. f32, except hin:
 *   cum B H L 3: cumulative log-decay in the chunk as a rounded value and its remainder, then dt; with cu T H 3, that of sequence b
 *     from cu_b H 3 on, for each head as many as it has tokens;
 *   decay B M+1 H: open_decay as it came, then the log-decay of each chunk over this piece; with cu row cu_b / S + 2 b + 1 + j of
 *     dart_packed_chunks(T, S, B) + B rows;
 *   hin B M H N P with hin_scale f32 B M H N: the state entering each chunk of this piece that has tokens; raw without
 *   hin_scale, f32 or bf16, else normalised.
 * The op is causal: an infinity or NaN in b, c or dt of a token changes no earlier output. The same holds for x on the CPU. On a
 *   GPU an infinity or NaN in x may turn outputs of the same chunk up to 63 tokens earlier into NaN, and no others.
 * Rounding. With L > 1, h and y are computed from memories and hin as stored. Those that the caller does not provide are stored
 *   in f32. When x, b and c are all f16 or all bf16, they are stored in that dtype, which the fastest kernels read: memories
 *   normalised, hin normalised in f16 and raw in bf16.
 *   f16 calls accept any finite x as long as y and the weights (c_t . b_s) dt_s are within the range of f16. Other intermediates
 *   are rounded relative to the largest step or weight of their chunk.
 *   With DART_CAP_MATRIX2, N 128 and P 64, calls of 16 bits store c_t . b_s of 16 neighbouring tokens relative to the largest of
 *   the 16. Values below 2^-29 of the largest lose digits, also where they belong to earlier tokens.
 * DART_PLAN_STEP takes L = 1 without hin and without dh_scale.
 * quiet, a hint: y of the first so many tokens of each sequence need not be written, and what it then holds is undefined. At most L; without seq,
 *   cu and h.
 * Source: Dao and Gu 2024 (state space duality), DART (arXiv 2608.02032). */
typedef struct dart_ssd_args {
    uint32_t B, L, H, G, N, P, S, T; /* N, P <= 256; G divides H; 1 <= S <= 2^30 */
    dart_plan plan;
    bool dt_is_step;
    float dt_min, dt_max; /* dt_max 0: no limit */
    float eps;            /* 0: 1e-5 */
    uint32_t quiet;       /* 0: none */
    dart_tensor x, dt, b, c, a_log, dt_bias, d, seq, cu;
    dart_tensor h, open, open_decay;
    dart_tensor y, dh, dh_scale;
    const dart_memories *memories;
    uint32_t memories_count;
    dart_tensor cum, decay, hin, hin_scale;
} dart_ssd_args;
DART_API dart_status dart_ssd(dart_stream *stream, const dart_ssd_args *args);
/* Chunks that a piece of L tokens touches at most: M of dh and hin. 0 when L or S is 0. */
DART_API uint32_t dart_ssd_chunks(uint32_t L, uint32_t S, bool with_seq);

/* State-memory attention (SMA): for token t of chunk m(t) = (position + t) / S, over all memories m < m(t),
 *   qn = q / rms(q), en = e / rms(e), rms(v) = sqrt(mean(v^2) + eps), rho_n = (mean_p dh_np^2 + eps)^(-1/2),
 *   logit = qn . (rho (dh en)) / sqrt(N),  g = softmax_m(logit),  r = sum_m g_m (c dh_m).
 * With no past memory r = 0 and lse = -infinity.
 * q, c B L G N; e B L G P; r B L H P; lse f32 B L H, optional. N, P <= 256.
 * memories: runs in any order that do not overlap. A memory that lies in no run is left out of the softmax.
 * Intermediates, optional, f32: qn B L G N, divided by sqrt(N); en B L G P; with cu, what they hold in rows of
 *   no sequence is undefined. Source: DART (arXiv 2608.02032). */
typedef struct dart_sma_args {
    uint32_t B, L, H, G, N, P, S, T;
    dart_plan plan;
    float eps; /* > 0 */
    dart_tensor q, e, c, seq, cu;
    const dart_memories *memories;
    uint32_t memories_count;
    dart_tensor r, lse;
    dart_tensor qn, en;
} dart_sma_args;
DART_API dart_status dart_sma(dart_stream *stream, const dart_sma_args *args);

/* Stores the chunks that close within a piece as normalised memories: dh row n / sqrt(mean_p dh_np^2 + eps) goes
 * to to.dh, the root to to.scale, at memory (position / S + j) where that lies in the run.
 * dh B M H N P as dart_ssd wrote it for this piece and the same seq and L; M = dart_ssd_chunks(L, S, seq). */
typedef struct dart_sma_append_args {
    uint32_t B, L, H, N, P, S;
    float eps; /* > 0 */
    dart_tensor dh, seq;
    dart_memories to;
} dart_sma_append_args;
DART_API dart_status dart_sma_append(dart_stream *stream, const dart_sma_append_args *args);

/* A block of the cache of dart_attention: keys and values of C tokens of every sequence, B C G D each. */
typedef struct dart_key_block {
    uint32_t C;
    dart_tensor k, v;
} dart_key_block;

/* Softmax attention, causal, with a cache of keys and values: token t, at p = position + t of its sequence, sees the
 * cache's tokens s <= p (s < C where the cache ends earlier), tokens of its own piece included:
 *   w_s = softmax_s(scale q_t . k_s),  o_t = sum_s w_s v_s,  lse_t = log sum_s exp(scale q_t . k_s).
 * Head h uses the keys and values of group h / (H / G). The piece's own keys and values must be in the cache: call
 * dart_kv_append before, or, at position 0, pass them as the cache (C = L). Contents of the cache past p, NaN included, do not
 * reach o_t.
 * A cache may grow by blocks that are never moved: k and v hold tokens 0 .. C - 1, `more` the tokens behind them, block by block. Sums are taken
 * block by block and put together in f32, so that o_t depends within rounding on where blocks end. Of several tokens it does not depend on blocks
 * behind p; a step (L = 1) splits every block by the number and length of all, so that it depends on them within rounding.
 * q, o B L H D; k, v B C G D, both of one type: token s of sequence b is row b C + s. All four may be views. lse f32 B L H,
 * optional. Without seq C must be at least L, with all blocks counted; C of all is at most 2^30. Each tensor must fit a binding
 * (max_binding_bytes). o must not be q. No `more` with cu.
 * Source: Dao 2023 (FlashAttention-2) for the order of the computation. */
typedef struct dart_attention_args {
    uint32_t B, L, H, G, D, C, T; /* D <= 256; G divides H */
    dart_plan plan;            /* DART_PLAN_STEP splits the cache among workgroups and merges */
    float scale;               /* 0: 1 / sqrt(D) */
    dart_tensor q, k, v, seq, cu;
    const dart_key_block *more;
    uint32_t more_count;
    dart_tensor o, lse;
} dart_attention_args;
DART_API dart_status dart_attention(dart_stream *stream, const dart_attention_args *args);

/* Copies a piece's keys and values to their places in a block of the cache, which holds tokens first .. first + C - 1: row
 * b C + position + t - first of to_k and to_v becomes token t of sequence b, rounded to the cache's type. Tokens outside the block are dropped;
 * without seq L must be at most first + C. first + C is at most 2^30.
 * k, v B L G D; to_k, to_v B C G D. All four may be views. D <= 256. */
typedef struct dart_kv_append_args {
    uint32_t B, L, G, D, C, first;
    dart_tensor k, v, seq;
    dart_tensor to_k, to_v;
} dart_kv_append_args;
DART_API dart_status dart_kv_append(dart_stream *stream, const dart_kv_append_args *args);

/* One block for one token of every sequence: x += out_proj(mixer(RMSNorm(x))), in few launches. Meant for a few sequences: the
 * weights are read once for every four rows.
 * With R = 2 I + 2 G N + H and Q = G N + G P + 1 rounded up to a multiple of 8, C = I + 2 G N, D = G (N + P):
 * x B W, in and out; seq B 2; norm W; in_proj R W, rows [z|x|b|c|dt]; conv_weight C K, conv_bias C (optional), tail B K-1 C as
 * dart_conv keeps it; a_log, dt_bias, d H; h B H N P as dart_ssd keeps it; mixer_norm I; out_proj W I.
 * in_proj, sma_proj and out_proj may be quantised rows, with W and I multiples of 32, P of 8. in_proj_rest, optional: the last H rows of
 * in_proj, which then has R - H; sma_proj_rest, optional: those of sma_proj from the gate's on, which then has G (N + P).
 * With state-memory attention (otherwise all absent): sma_proj Q W, rows [q|e|gate|padding]; sma_conv_weight D K,
 * sma_conv_bias D (optional), sma_tail B K-1 D; open, open_decay as dart_ssd keeps them; memories: the runs to attend to,
 * normalised (with scale); closing: the runs that receive the memory of a chunk that closes with this token, as dart_sma_append
 * stores it. A run may be in both lists. seq is required with attention, optional without.
 * Intermediates, optional, f32: proj B R, with [x|b|c] after their convolution; queries B Q, with [q|e] after theirs;
 * y B I, the output of the scan. A sequence with a count of 0 stays as it is. */
typedef struct dart_mixer_step_args {
    uint32_t B, W, H, G, N, P, K, S; /* N, P <= 256; G divides H; 2 <= K <= 8 */
    float eps, sma_eps;              /* > 0 */
    float dt_min, dt_max;            /* dt_max 0: no limit */
    dart_tensor x, seq;
    dart_tensor norm, in_proj, in_proj_rest, conv_weight, conv_bias, dt_bias, a_log, d, mixer_norm, out_proj;
    dart_tensor sma_proj, sma_proj_rest, sma_conv_weight, sma_conv_bias;
    dart_tensor tail, sma_tail, h, open, open_decay;
    const dart_memories *memories;
    const dart_memories *closing;
    uint32_t memories_count, closing_count;
    dart_tensor proj, queries, y;
} dart_mixer_step_args;
DART_API dart_status dart_mixer_step(dart_stream *stream, const dart_mixer_step_args *args);

/* Decoding many sequences: one token of each through the convolution and the scan. A window keeps the newest tokens of a
 * sequence. A step then reads one N x P matrix per head and the window, where dart_ssd reads two matrices and writes one. When the
 * window is full or a chunk closes, the window is folded into h and open. Three ops with the same arguments make a step, in
 * this order:
 *   dart_window_append: conv = the convolution of [x|b|c] with its SiLU, and tail is updated; x, b and the step size of the token
 *     are stored in the window;
 *   dart_window_output: y = c h_t + d x;
 *   dart_window_fold: folds full windows and windows of chunks that close; stores the memories of chunks that close in the runs
 *     of `closing`, as dart_sma_append does.
 * Between steps the recurrent state is h, open and the window together. Before the first step after dart_ssd, call
 * dart_window_fold with DART_WINDOW_OPEN: it makes hin from h and open, and an empty window. Before the next dart_ssd, call it with
 * DART_WINDOW_CLOSE: h, open and open_decay are then those that dart_ssd would have left. Both modes read the positions of seq as
 * they are before the next token, and ignore the counts. DART_WINDOW_JOIN is DART_WINDOW_OPEN for the sequences whose count is not 0:
 * others go on with their windows.
 * x B C, the columns [x|b|c] with C = H P + 2 G N; dt B H; conv_weight C K; conv_bias (optional) C; tail B K-1 C; a_log, dt_bias
 * (optional), d (optional) H; seq B 2; conv B C; y B H P; h, open, open_decay as dart_ssd keeps them, the latter two both or
 * neither; closing may be empty where no chunk closes, which the op cannot check. The window: rows B dart_window_tokens() (H P + G N); steps f32 B
 * dart_window_tokens() H 2; hin B H N P, the state before the window, raw f32 or, with hin_scale f32 B H N, normalised
 * (dart_memories) in any float type, whose rounding y then shows. Before DART_WINDOW_OPEN the window may hold anything, but rows
 * must be finite.
 * N and P are multiples of 8. A sequence with a count of 0 stays as it is. */
typedef enum dart_window_mode { DART_WINDOW_STEP = 0, DART_WINDOW_OPEN, DART_WINDOW_CLOSE, DART_WINDOW_JOIN } dart_window_mode;
typedef struct dart_window_args {
    uint32_t B, H, G, N, P, K, S; /* N, P <= 256; G divides H; 2 <= K <= 8 */
    dart_window_mode mode;        /* dart_window_fold */
    float dt_min, dt_max;         /* dt_max 0: no limit */
    float eps;                    /* under the roots of memories and hin; > 0 */
    dart_tensor x, dt, conv_weight, conv_bias, tail, a_log, dt_bias, d, seq;
    dart_tensor conv, y, h, open, open_decay;
    dart_tensor rows, steps, hin, hin_scale;
    const dart_memories *closing;
    uint32_t closing_count;
} dart_window_args;
/* Tokens that a window has room for. */
DART_API uint32_t dart_window_tokens(void);
DART_API dart_status dart_window_append(dart_stream *stream, const dart_window_args *args);
DART_API dart_status dart_window_output(dart_stream *stream, const dart_window_args *args);
DART_API dart_status dart_window_fold(dart_stream *stream, const dart_window_args *args);

#ifdef __cplusplus
}
#endif
#endif
