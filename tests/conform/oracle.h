/* The second judge: DART in fp64, sequential, token by token, written from the model's definition alone.
 *
 * Nothing here shares code with the library. It is slow and plain on purpose. What it computes is the definition;
 * a library that disagrees beyond its tolerance is wrong, or the definition is.
 *
 * Letters   B batch  L tokens  H heads  G groups (head h uses group h / (H/G))  P head dimension  N state size
 *           S chunk size  M chunks  K convolution width  W model width  V vocabulary  I = H P inner width
 *           C channels of a convolution, capacity of a cache   D head dimension of softmax attention
 *
 * Laws for every function
 *   - Arrays are packed, row-major, double unless said otherwise; shapes stand slowest dimension first.
 *   - Arguments structs: a zero field is the default; a NULL pointer is an input left out or an output not wanted.
 *   - A call that breaks a stated condition, or runs out of memory, ends the program with a line on stderr.
 *   - Outputs may alias an input only where said so.
 *   - `pos` (B) is the number of tokens of each sequence consumed before this call (NULL: 0). Chunk borders are
 *     counted from the start of the whole sequence, so token t of the piece is token pos + t of its sequence.
 *   - `count` (B) makes a ragged batch: tokens t >= count[b] do not exist, nothing is written for them, and carried
 *     state ends at the last token that exists (NULL: L for all).
 */
#ifndef DARTLM_TESTS_ORACLE_H
#define DARTLM_TESTS_ORACLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Chunks touched by L tokens that start after pos consumed ones: ceil((pos mod S + L) / S); 0 for L = 0. */
size_t oracle_chunks(size_t L, size_t S, size_t pos);

/* out[i,:] = table[ids[i],:].   table (V,W), ids (rows), out (rows,W). An id outside [0,V) gives a row of NaN. */
void oracle_embed(double *out, const double *table, const int32_t *ids, size_t rows, size_t V, size_t W);

/* y = x w^T (+ residual).   x (rows,in), w (out,in), residual and y (rows,out). residual may be NULL or y itself. */
void oracle_linear(double *y, const double *x, const double *w, const double *residual,
                   size_t rows, size_t in, size_t out);

/* out[i,:] = x[i,:] / sqrt(mean(x[i,:]^2) + eps) * weight.   x, out (rows,width), weight (width) or NULL for ones.
 * out may be x. */
void oracle_rms_norm(double *out, const double *x, const double *weight, size_t rows, size_t width, double eps);

/* out[i,:] = (x[i,:] - mean) / sqrt(mean((x[i,:] - mean)^2) + eps) * weight + bias, mean that of the row.   weight, bias (width). */
void oracle_layer_norm(double *out, const double *x, const double *weight, const double *bias, size_t rows, size_t width, double eps);

/* out[i] = x (1 + erf(x / sqrt(2))) / 2 or x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))) / 2 of x = x[i]. */
void oracle_gelu(double *out, const double *x, size_t count, int by_tanh);

/* out = RMSNorm((y + SiLU(gate) r) SiLU(z)) weight, with one mean over all of I per token.
 * y, r, z, out (rows,I); gate (rows), before its SiLU; weight (I). r without gate is added as it is; without r there
 * is no SMA term. out may be y. */
typedef struct {
    size_t rows, I;
    const double *y;
    const double *r;      /* optional */
    const double *gate;   /* optional */
    const double *z;
    const double *weight; /* optional: ones */
    double eps;
    double *out;
} oracle_gated_norm_args;
void oracle_gated_norm(const oracle_gated_norm_args *a);

/* Causal depthwise convolution, then SiLU:
 *   out[b,t,c] = SiLU(bias[c] + sum_k weight[c,k] x[b, t-(K-1)+k, c]).
 * x and out (B,L,C); weight (C,K), the last tap meets the current token; bias (C) optional. Tokens before the piece
 * come from tail_in (B,K-1,C), oldest first (NULL: zeros). tail_out (B,K-1,C): the last K-1 tokens after the piece, as
 * they were before the convolution; it may be tail_in. */
typedef struct {
    size_t B, L, C, K;
    const double *x;
    const double *weight;
    const double *bias;    /* optional */
    const double *tail_in; /* optional */
    const int32_t *count;  /* optional, (B) */
    double *out;
    double *tail_out;      /* optional */
} oracle_conv_args;
void oracle_conv(const oracle_conv_args *a);

/* The scan and its chunk state memories.
 *   step_t = softplus(dt_t + dt_bias) clamped to [dt_min, dt_max]; with dt_as_is, step_t = dt_t and neither
 *            dt_bias nor the limits are used
 *   A      = -exp(a_log)
 *   h_t    = exp(step_t A) h_{t-1} + step_t b_t^T x_t
 *   y_t    = c_t h_t (+ d x_t)
 *   dh_m   = sum over s in chunk m of exp(sum_{s<k<=end} step_k A) step_s b_s^T x_s
 * The memory is accumulated as the state is, one token after another, from zero at each chunk border.
 *
 * A piece with pos mod S > 0 starts inside a chunk: h_in is then the state at that chunk's start, dh_open_in the
 * chunk's memory so far and log_open_in its log-decay so far, so that the state before token 0 is
 * exp(log_open) h_in + dh_open. Where pos mod S is 0 no chunk is open, and the two count as zero whatever they hold.
 * Chunk j of the piece is the j-th chunk that it touches: chunk floor(pos/S) + j of the sequence. Only touched chunks
 * are written. A memory includes what was carried in; the last one may be of an incomplete chunk.
 * Each *_out state may be the *_in of the same name. */
typedef struct {
    size_t B, L, H, G, P, N, S;
    size_t M;                  /* chunks per sequence in dh, cb and hin; 0: ceil(L/S) */
    const double *x;           /* (B,L,H,P) */
    const double *dt;          /* (B,L,H) */
    const double *a_log;       /* (H) */
    const double *b;           /* (B,L,G,N) */
    const double *c;           /* (B,L,G,N) */
    const double *dt_bias;     /* (H) optional */
    const double *d;           /* (H) optional */
    bool dt_as_is;
    double dt_min;
    double dt_max;             /* 0: no upper limit; INFINITY does the same */
    const int32_t *pos;        /* (B) optional */
    const int32_t *count;      /* (B) optional */
    const double *h_in;        /* (B,H,N,P) optional: state at the last chunk border at or before pos */
    const double *dh_open_in;  /* (B,H,N,P) optional */
    const double *log_open_in; /* (B,H) optional, <= 0 */

    double *y;            /* (B,L,H,P) */
    double *y_terms;      /* (B,L,H,P), may be NULL: the root of the sum of the squares of the terms that y adds up */
    double *dh;           /* (B,M,H,N,P) */
    double *h_out;        /* (B,H,N,P): state after the last token */
    double *h_border_out; /* (B,H,N,P): state at the last chunk border, to be the next piece's h_in */
    double *dh_open_out;  /* (B,H,N,P): zeros if the piece ends on a border */
    double *log_open_out; /* (B,H): 0 if the piece ends on a border */

    double *step; /* (B,H,L): effective step */
    double *cum;  /* (B,H,L): sum of step A from the chunk's first token to this one, both included; in the first
                     chunk of a piece it starts from log_open_in */
    double *cb;   /* (B,M,G,Sc,Sc), Sc = min(S,L): c_s . b_t for t <= s, 0 for t > s. s and t count the piece's own
                     tokens in that chunk; rows of tokens that do not exist are not written */
    double *hin;  /* (B,M,H,N,P): state at the chunk's start; for j = 0 of a piece that is h_in */
} oracle_ssd_args;
void oracle_ssd(const oracle_ssd_args *a);

/* State-memory attention. For token t of chunk m(t) = floor((pos + t)/S), over all complete chunks m < m(t):
 *   qn    = q / sqrt(mean_n(q^2) + eps)            en = e / sqrt(mean_p(e^2) + eps)
 *   rho_n = (mean_p(dh_{m,n,p}^2) + eps)^(-1/2)
 *   k_n   = rho_n sum_p dh_{m,n,p} en_p            logit_m = sum_n qn_n k_n / sqrt(N)
 *   lse   = log sum_m exp(logit_m)                 g_m = exp(logit_m) / sum exp(logit)
 *   r_p   = sum_m g_m sum_n c_n dh_{m,n,p}
 * The softmax takes its maximum in a first pass and its sum in a second. No past memory: r = 0, lse = -INFINITY.
 * Memory m is the sequence's m-th chunk from its very start, pos or not; M is how many dh holds, at least as many as
 * the last token reads. What lies in dh beyond the memories read reaches no output but rho. */
typedef struct {
    size_t B, L, H, G, P, N, S, M;
    double eps;
    const double *q;      /* (B,L,G,N) */
    const double *e;      /* (B,L,G,P) */
    const double *c;      /* (B,L,G,N) */
    const double *dh;     /* (B,M,H,N,P), raw */
    const int32_t *pos;   /* (B) optional */
    const int32_t *count; /* (B) optional */

    double *r;     /* (B,L,H,P) */
    double *lse;   /* (B,L,H) */
    double *qn;    /* (B,L,G,N) */
    double *en;    /* (B,L,G,P) */
    double *rho;   /* (B,M,H,N), for every memory in dh, read or not */
    double *logit; /* (B,L,H,M), -INFINITY where the memory is not in the past */
} oracle_sma_args;
void oracle_sma(const oracle_sma_args *a);

/* Softmax attention over a cache. For token t, over the tokens s <= pos + t of the cache that lie below C:
 *   logit_s = scale q . k_s      lse = log sum_s exp(logit_s)      o = sum_s exp(logit_s - lse) v_s
 * Head h uses group h / (H/G). The softmax takes its maximum in a first pass and its sum in a second. What the cache holds
 * beyond the tokens seen is not read. */
typedef struct {
    size_t B, L, H, G, D, C;
    double scale;
    const double *q;      /* (B,L,H,D) */
    const double *k;      /* (B,C,G,D) */
    const double *v;      /* (B,C,G,D) */
    const int32_t *pos;   /* (B) optional */
    const int32_t *count; /* (B) optional */

    double *o;       /* (B,L,H,D) */
    double *lse;     /* (B,L,H) */
    double *largest; /* (1): the largest |logit| */
} oracle_attention_args;
void oracle_attention(const oracle_attention_args *a);

/* Index of the largest of V logits; ties go to the lowest index; a NaN never wins. 0 if all are NaN. */
size_t oracle_argmax(const double *logits, size_t V);

/* One token from V logits, by the uniform number u in [0,1), as dart_sample defines it. temperature <= 0 is argmax. All NaN: 0.
 * lo, hi receive the cumulative probability before and after the chosen token: where u lies within rounding of one of them, an
 * implementation in less precision may rightly choose the neighbour. slack: the share of tokens that stand within `margin` of a border of
 * top_p, or within rounding of min_p, by which lo and hi may be off. */
typedef struct oracle_sample_args {
    const double *logits;
    size_t V, k, below; /* k, below: 0 for all */
    double temperature, top_p, min_p, penalty, u, margin;
    const int32_t *seen; /* bits; NULL: none */
} oracle_sample_args;
size_t oracle_sample(const oracle_sample_args *args, double *lo, double *hi, double *slack);

/* Philox4x32 with 10 rounds (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2, 3; SC 2011).
 * out may be counter. Known answers (Random123, kat_vectors), counter / key -> out:
 *   00000000 00000000 00000000 00000000 / 00000000 00000000 -> 6627e8d5 e169c58d bc57ac4c 9b00dbd8
 *   ffffffff ffffffff ffffffff ffffffff / ffffffff ffffffff -> 408f276d 41c83b0e a20bc7c6 6d5451fd
 *   243f6a88 85a308d3 13198a2e 03707344 / a4093822 299f31d0 -> d16cfe09 94fdcceb 5001e420 24126ea1 */
void oracle_philox4x32_10(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* True if oracle_philox4x32_10 gives the three known answers above. */
bool oracle_philox_known_answers(void);

/* Weights of one layer. R = 2 I + 2 G N + H rows in in_proj, ordered [z | x | b | c | dt];
 * Q = G N + G P + 1 rounded up to a multiple of 8 rows in sma_proj, ordered [q | e | gate | padding]. With an independent c there are G N
 * more, [q | e | c | gate | padding], and as many more channels in sma_conv. */
typedef struct {
    const double *norm;          /* (W) before the mixer */
    const double *in_proj;       /* (R,W) */
    const double *conv_weight;   /* (I + 2 G N, K), over [x | b | c] */
    const double *conv_bias;     /* (I + 2 G N) optional */
    const double *dt_bias;       /* (H) */
    const double *a_log;         /* (H) */
    const double *d;             /* (H) */
    const double *gated_norm;    /* (I) */
    const double *out_proj;      /* (W,I) */
    const double *sma_proj;      /* (Q,W); the three of SMA are NULL in a Mamba-2 model */
    const double *sma_conv_weight; /* (G N + G P, K), over [q | e] */
    const double *sma_conv_bias; /* (G N + G P) optional */
} oracle_layer;

typedef struct {
    size_t V, W, H, G, P, N, K, layers;
    double eps;     /* block norms, the gated norm and norm_f */
    double sma_eps; /* SMA's norms */
    double dt_min, dt_max; /* as in oracle_ssd_args */
    bool independent_c;    /* SMA reads with a c of its own instead of the scan's */
    const double *embedding; /* (V,W) */
    const double *norm_f;    /* (W) */
    const double *lm_head;   /* (V,W); NULL: tied to embedding */
    const oracle_layer *layer; /* [layers] */
} oracle_weights;

/* The whole model from the start of the sequence, stream (B,L,W) carried in fp64:
 *   stream = embedding[ids];  for each layer: stream += mixer(RMSNorm(stream));  logits = lm_head(RMSNorm(stream))
 *   mixer(u): [z|x|b|c|dt] = in_proj u;  [x|b|c] = conv;  y, dh = scan;
 *             with SMA: [q|e|gate] = sma_proj u;  [q|e] = conv;  r = SMA(q, e, c, dh);  y += SiLU(gate) r
 *             out_proj(RMSNorm((y + d x) SiLU(z)))
 * ids (B,L). logits (row_count,V) for the listed tokens, each b L + t; rows NULL: all of them, (B,L,V). With sma every
 * layer must carry its SMA weights; without, they are not read. S matters to SMA alone. */
typedef struct {
    const oracle_weights *weights;
    size_t B, L, S;
    bool sma;
    const int32_t *ids;
    const size_t *rows; /* optional, [row_count] */
    size_t row_count;   /* read only with rows */
    double *logits;
    double *stream;     /* (B,L,W) optional: the residual stream before norm_f */
} oracle_model_args;
void oracle_model(const oracle_model_args *a);

#endif
