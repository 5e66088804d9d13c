/* dartlm: backward passes of the ops, loss and optimiser, for training; and dart_rope, dart_gelu and dart_swiglu, which a Transformer's inference
 * uses, too. Tier 1, beside dartlm.h, whose glossary and laws hold here as well.
 *
 * LAWS
 *   Names       For a tensor x of the forward op, up_x is the gradient of the loss with respect to it that comes in, grad_x the one
 *               that goes out. Both have the shape of x. Arguments without these prefixes are those of the forward call.
 *   Parameters  Gradients of weights and other parameters are f32 and are added to what is there: fill them with 0 before the first
 *               row of a step.
 *   Activations Gradients of activations are written, or added where `add` says so, in any storage type.
 *   Order       No atomics on floats: each element is summed by one owner in an order that depends on the shapes alone. The same call
 *               leaves the same bits, run after run, and on every device that takes the same variants.
 *   Overlap     up_ and grad_ tensors must not overlap unless stated.
 */
#ifndef DARTLM_OPS_BACKWARD_H
#define DARTLM_OPS_BACKWARD_H

#include "dartlm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* grad_weight_v += the sum of up_y_t over the tokens t with id v, in order. Ids outside [0, V) have no gradient.
 * plan i32 dart_embed_plan_elements(T, V), made of the ids by dart_embed_plan; up_y T W; grad_weight f32 V W. */
typedef struct dart_embed_backward_args {
    uint32_t T, V, W; /* T and V below 2^31 */
    dart_tensor plan, up_y, grad_weight;
} dart_embed_backward_args;
DART_API dart_status dart_embed_backward(dart_stream *stream, const dart_embed_backward_args *args);
/* Elements of a plan for T ids of a table of V rows. */
DART_API uint64_t dart_embed_plan_elements(uint32_t T, uint32_t V);
/* Sorts the ids on the host; the caller then writes the plan to the device: a recording may be submitted again with another plan.
 * plan: two counts (pieces, runs); T places: the tokens sorted by id; for each piece of at most 64 tokens of one id its id, first and
 * last place + 1, and its slot or -1; for each id of more than 64 tokens its id, first slot and number of slots. */
DART_API dart_status dart_embed_plan(const int32_t *ids, uint32_t T, uint32_t V, int32_t *plan);

/* With n = x / sqrt(mean(x^2) + eps), v = up_y weight:
 *   grad_x = (v - n mean(v n)) / sqrt(mean(x^2) + eps), or added when add is set;  grad_weight += the sum over rows of up_y n.
 * x and grad_x T W, or with rows (i32 T) any number of rows: row t of up_y belongs to row rows_t of x and of grad_x. No two rows_t may
 * be equal, unless negative: such a row takes no part. Rows of grad_x that no rows_t names stay as they are. up_y T W; weight W;
 * grad_weight f32 W. grad_x may be up_y without rows. Without rows also, optional: from F W with from_rows i32 T, in place of add: row t is added to
 * row from_rows_t of from, or to 0 where that is negative; copy T W: grad_x in another type, may be up_y. */
typedef struct dart_rms_norm_backward_args {
    uint32_t T, W;
    uint32_t F; /* with from only */
    float eps; /* > 0 */
    bool add;
    dart_tensor x, weight, rows, up_y, from, from_rows;
    dart_tensor grad_x, copy, grad_weight;
} dart_rms_norm_backward_args;
DART_API dart_status dart_rms_norm_backward(dart_stream *stream, const dart_rms_norm_backward_args *args);

/* With w = y + SiLU(gate) r, v = w SiLU(z), n = v / sqrt(mean(v^2) + eps), u = up_out weight:
 *   grad_v = (u - n mean(u n)) / sqrt(mean(v^2) + eps);  grad_y = grad_v SiLU(z);  grad_z = grad_v w SiLU'(z);
 *   grad_r = SiLU(gate) grad_y;  grad_gate = SiLU'(gate) sum grad_y r;  grad_weight += the sum over rows of up_out n.
 * Shapes as in dart_gated_norm; grad_weight f32 I. y is the forward op's input: keep it where out was y. */
typedef struct dart_gated_norm_backward_args {
    uint32_t T, I;
    float eps; /* > 0 */
    dart_tensor y, r, gate, z, weight, up_out;
    dart_tensor grad_y, grad_r, grad_gate, grad_z, grad_weight;
} dart_gated_norm_backward_args;
DART_API dart_status dart_gated_norm_backward(dart_stream *stream, const dart_gated_norm_backward_args *args);

/* grad_x = up_y weight, or += with add;  grad_weight += up_y^T x.
 * x, grad_x T IN; weight OUT IN; up_y T OUT; grad_weight f32 OUT IN. Either of grad_x and grad_weight may be absent; grad_x needs weight,
 * grad_weight needs x. An up_y of f32 may be rounded to bf16 where the other operand of a product is bf16. */
typedef struct dart_linear_backward_args {
    uint32_t T, IN, OUT;
    bool add;
    dart_tensor x, weight, up_y;
    dart_tensor grad_x, grad_weight;
} dart_linear_backward_args;
DART_API dart_status dart_linear_backward(dart_stream *stream, const dart_linear_backward_args *args);

/* The gradient of dart_ssd, chunk by chunk, with gradients of y, of the memories and of the last state coming in.
 * x, dt, b, c, a_log, dt_bias, d, seq, dt_is_step and the step limits are those of the forward call; h is the state before the piece, f32
 * B H N P, absent for zeros (the forward call replaces its h: keep a copy). There is no open chunk: chunks of a piece that starts inside a chunk
 * end where the piece does.
 * up_y B L H P; up_dh f32 B M H N P, optional: of the raw memories, M = dart_ssd_chunks(), 0 where no token reads one; up_h f32 B H N P,
 * optional: of the state after the last token.
 * grad_x, grad_dt, grad_b, grad_c have the shapes of x, dt, b and c, and are written; with seq, rows past the count become 0. With add_c
 * grad_c is added to (c is read by dart_sma as well). grad_a_log, grad_dt_bias, grad_d f32 H, added to; the last two come with dt_bias and d.
 * grad_h f32 B H N P, optional, written: of the state before the piece.
 * The gradient of a step passes where dt_min <= softplus(dt + dt_bias) <= dt_max, both ends included, and is 0 elsewhere.
 * quiet, a hint: up_y of the first so many tokens of each sequence is 0. At most L; without seq, cu and h. Gradients are the same; where up_y is
 * not 0 there, they are undefined.
 * cum, decay, hin with hin_scale: as the forward call left them, all or none; where absent they are computed again, in f32.
 * Scratch memory: about 8 B M G min(S, L)^2 + 8 B M H N P + 16 B L H bytes. Source: Dao and Gu 2024, DART. */
typedef struct dart_ssd_backward_args {
    uint32_t B, L, H, G, N, P, S, T;
    bool dt_is_step, add_c;
    float dt_min, dt_max; /* dt_max 0: no limit */
    uint32_t quiet;       /* 0: none */
    dart_tensor x, dt, b, c, a_log, dt_bias, d, seq, cu, h;
    dart_tensor cum, decay, hin, hin_scale;
    dart_tensor up_y, up_dh, up_h;
    dart_tensor grad_x, grad_dt, grad_b, grad_c, grad_a_log, grad_dt_bias, grad_d, grad_h;
} dart_ssd_backward_args;
DART_API dart_status dart_ssd_backward(dart_stream *stream, const dart_ssd_backward_args *args);

/* The loss of the head, and its gradients in the same call, without logits of all rows: with logits_t = x_t weight^T,
 *   loss += the sum of share (lse_t - logit of targets_t) over the rows with a label;  correct += the number of such rows whose target is the
 *   lowest index of the largest logit;  grad_x_t = share (softmax(logits_t) - onehot) weight, 0 without a label;
 *   grad_weight += the sum of share (softmax(logits_t) - onehot) x_t,
 *   which is summed in scratch memory and added once, if the device can bind 4 V W bytes.
 * A row has a label if 0 <= targets_t < V; what x holds in other rows, NaN included, reaches nothing. A row whose logits are not all finite
 * makes the loss NaN, and its gradients. The gradient of the logits is rounded to bf16 where x and weight are bf16, once and relative to itself;
 * where x and weight are f16 it may be rounded to f16 in units of share.
 * x, grad_x T W; weight V W; targets i32 T; share f32 1: 1 / the number of labels of the whole step; loss f32 1; correct i32 1; grad_weight
 * f32 V W. grad_x and grad_weight come together; without them the loss alone is computed.
 * Logits are formed some rows at a time. Scratch memory: these logits in f32, an eighth of all, but not less than 64 MiB (or all) nor more than
 * 512 MiB (or one row); half as much for their gradient in bf16; the same rows of x; less than that again for sums; and 4 V W bytes, unless
 * one time is enough for all rows. */
typedef struct dart_cross_entropy_args {
    uint32_t T, V, W; /* T and V below 2^31 */
    dart_tensor x, weight, targets, share;
    dart_tensor loss, correct;
    dart_tensor grad_x, grad_weight;
} dart_cross_entropy_args;
DART_API dart_status dart_cross_entropy(dart_stream *stream, const dart_cross_entropy_args *args);

/* norm = factor times the root of the sum of the squares of all elements of all gradients. scale f32 4 = {norm, factor min(1, clip / (norm +
 * 1e-6)), 1, 0}, or {infinity, 0, 0, 0} where the sum of the squares is not finite in f32. gradients: f32, packed; the array is read during the
 * call only. clip > 0, INFINITY for no limit. factor f32 1, optional, finite and above 0: 1 / s where the gradients are those of s times the loss;
 * without it 1. */
typedef struct dart_gradient {
    uint64_t elements;
    dart_tensor grad;
} dart_gradient;
typedef struct dart_grad_norm_args {
    uint32_t count;
    float clip;
    const dart_gradient *gradients;
    dart_tensor scale, factor;
} dart_grad_norm_args;
DART_API dart_status dart_grad_norm(dart_stream *stream, const dart_grad_norm_args *args);

/* One step of AdamW on packed elements, in f32:
 *   m = beta1 m + (1 - beta1) k grad;  v = beta2 v + (1 - beta2) (k grad)^2;
 *   w -= lr (m / c1 / (sqrt(v / c2) + eps) + decay w), the last term where `decays`;  copy = w, rounded to its type.
 * w, m, v, grad f32; copy of any storage type, optional, may be what the model computes with. scale f32 4 as dart_grad_norm leaves it: k is
 * its second element; where the third is 0 nothing changes. hyper f32 8 = {lr, beta1, beta2, eps, c1, c2, decay, 0} with
 * c1 = 1 - beta1^n and c2 = 1 - beta2^n in step n, from 1. What changes from step to step lies on the device, so that a recording can be
 * submitted again. Source: Loshchilov and Hutter 2019. */
typedef struct dart_adamw_args {
    uint64_t elements;
    bool decays;
    dart_tensor w, m, v, grad, scale, hyper, copy;
} dart_adamw_args;
DART_API dart_status dart_adamw(dart_stream *stream, const dart_adamw_args *args);

/* Rotary positions: in each head the pair (x_i, x_(i + R/2)) is turned by the angle position base^(-2 i / R), i < R/2, or by its opposite with
 * `inverse`, which is the gradient: y = x for up_y. Token t has the position seq[2 b] + t, without seq t. Angles are exact to 2e-9 at
 * every position. Rows past the count stay as they are, or become 0 with `inverse`. The last D - R elements of a
 * head are copied.
 * x, y B L H D, y may be x. Source: Su et al. 2021, with the halves paired as in Llama. */
typedef struct dart_rope_args {
    uint32_t B, L, H, D, T; /* D even, at most 256 */
    uint32_t R;             /* even, at most D; 0: D */
    bool inverse;
    float base; /* > 1 */
    dart_tensor x, seq, cu, y;
} dart_rope_args;
DART_API dart_status dart_rope(dart_stream *stream, const dart_rope_args *args);

/* h = a (1 + erf(a / sqrt(2))) / 2, or h = a (1 + tanh(sqrt(2 / pi) (a + 0.044715 a^3))) / 2. a, h T I; h may be a.
 * Source: Hendrycks and Gimpel 2016. */
typedef struct dart_gelu_args {
    uint32_t T, I;
    bool by_tanh; /* the second form */
    dart_tensor a, h;
} dart_gelu_args;
DART_API dart_status dart_gelu(dart_stream *stream, const dart_gelu_args *args);

/* h = SiLU(a) u. a, u, h T I. */
typedef struct dart_swiglu_args {
    uint32_t T, I;
    dart_tensor a, u, h;
} dart_swiglu_args;
DART_API dart_status dart_swiglu(dart_stream *stream, const dart_swiglu_args *args);

/* grad_a = up_h u SiLU'(a), grad_u = up_h SiLU(a). */
typedef struct dart_swiglu_backward_args {
    uint32_t T, I;
    dart_tensor a, u, up_h, grad_a, grad_u;
} dart_swiglu_backward_args;
DART_API dart_status dart_swiglu_backward(dart_stream *stream, const dart_swiglu_backward_args *args);

/* The gradient of dart_attention on a piece's own tokens, from position 0 on (C = L). With w_ts the weight of token s for token t:
 *   u_ts = w_ts (up_o_t . v_s - up_o_t . o_t);  grad_v_s = sum_t w_ts up_o_t;  grad_k_s = scale sum_t u_ts q_t;  grad_q_t = scale sum_s u_ts k_s,
 * grad_k and grad_v summed over the heads of the group as well.
 * q, o, up_o, grad_q B L H D; k, v, grad_k, grad_v B L G D; lse f32 B L H; o and lse as dart_attention left them. Gradients are written. Of seq
 * the counts are used; rows past them become 0. */
typedef struct dart_attention_backward_args {
    uint32_t B, L, H, G, D, T; /* D <= 128; G divides H */
    float scale;            /* 0: 1 / sqrt(D) */
    dart_tensor q, k, v, o, lse, seq, cu, up_o;
    dart_tensor grad_q, grad_k, grad_v;
} dart_attention_backward_args;
DART_API dart_status dart_attention_backward(dart_stream *stream, const dart_attention_backward_args *args);

/* The gradient of dart_sma over one run of memories that begins with memory 0. With key_m = qn (rho dh_m), value_m = c dh_m, g = softmax(logit) and
 *   delta_m = g_m (value_m . up_r - r . up_r), exactly 0 for a token that sees one memory,
 *   grad of en = sum delta key / sqrt(N), grad of qn = sum delta en (rho dh)^T / sqrt(N), each taken through its norm to grad_e and grad_q;
 *   grad_c = sum g up_r dh^T;  grad_dh = sum_t g c^T up_r + rho (X - u mean_p(X u)), u = rho dh, X = sum_t delta qn^T en / sqrt(N).
 * Shapes of dart_sma; memories.first is 0, and they are raw or normalised. r and lse as dart_sma left them; r may be of any storage type, but
 * delta is a difference of numbers of its size: take f32. grad_q, grad_e, grad_c have the shapes of q, e and c, grad_dh f32 B M H N P is the
 * gradient of the raw memory: 0 where no token reads one. All are written; rows past the count become 0. With add_c grad_c is added to (the
 * scan reads c as well).
 * Scratch memory: 8 B L H M + 4 B L G (N + P) + 4 B M H N P bytes, and as much as dart_sma takes for qn, en and rho. Source: DART. */
typedef struct dart_sma_backward_args {
    uint32_t B, L, H, G, N, P, S, T;
    bool add_c;
    float eps; /* > 0 */
    dart_tensor q, e, c, seq, cu;
    dart_memories memories;
    dart_tensor r, lse, up_r;
    dart_tensor grad_q, grad_e, grad_c, grad_dh;
} dart_sma_backward_args;
DART_API dart_status dart_sma_backward(dart_stream *stream, const dart_sma_backward_args *args);

/* The gradient of dart_conv without tail: with pre = bias + the convolution, up_pre = up_y SiLU'(pre),
 *   grad_x_s = sum_k weight_k up_pre_(s+K-1-k);  grad_weight_k += sum_t up_pre_t x_(t-K+1+k);  grad_bias += sum_t up_pre_t.
 * x, up_y, grad_x B L C; weight C K; bias C with grad_bias f32 C, or both absent; grad_weight f32 C K. grad_x is written. Of seq the counts
 * are used; rows past them become 0. */
typedef struct dart_conv_backward_args {
    uint32_t B, L, C, K, T;
    dart_tensor x, weight, bias, seq, cu, up_y;
    dart_tensor grad_x, grad_weight, grad_bias;
} dart_conv_backward_args;
DART_API dart_status dart_conv_backward(dart_stream *stream, const dart_conv_backward_args *args);

#ifdef __cplusplus
}
#endif
#endif
