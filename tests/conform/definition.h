/* DART on a tape: the model's definition, token by token, of which tape_reverse takes the derivatives. Letters, shapes and laws are
 * those of oracle.h; all tokens of a call stand one behind the other, T of them.
 *
 * Documents are runs of tokens that do not see one another: the sequences of a batch, or documents packed into a row. Chunks are
 * counted from the first token of each document; memories are listed document by document, that of an incomplete last chunk
 * included. */
#ifndef DARTLM_TESTS_DEFINITION_H
#define DARTLM_TESTS_DEFINITION_H

#include "tape.h"

#include <stdbool.h>

/* Document i has the tokens from begin[i] to before begin[i + 1]; begin[0] is 0, and begin[count] is T. */
typedef struct definition_documents {
    size_t count;
    const size_t *begin;
} definition_documents;
/* Chunks of all of them. */
size_t definition_chunks(const definition_documents *documents, size_t S);

/* step = clamp(softplus(dt + dt_bias), dt_min, dt_max);  a = exp(-exp(a_log) step);  h_t = a h_(t-1) + step b_t x_t;
 * y_t = c_t h_t + d x_t;  dh: the same sum from the chunk's first token on, from zero. */
typedef struct definition_ssd {
    size_t H, G, P, N, S;
    definition_documents documents;
    double dt_min, dt_max;
    bool dt_is_step, has_bias, has_d, has_h;
    tape_vector x, dt, b, c;         /* T H P, T H, T G N, T G N */
    tape_vector a_log, dt_bias, d;   /* H */
    tape_vector h;                   /* documents H N P; zeros without has_h */
    tape_vector step, y, dh, last_h; /* results: T H, T H P, chunks H N P, documents H N P */
} definition_ssd;
void definition_run_ssd(tape *tape, definition_ssd *of);

/* qn = q / rms(q), en = e / rms(e), rho = 1 / rms(dh) row by row, all with eps;  over the earlier chunks of the token's document
 * key = rho dh en, logit = qn . key / sqrt(N), value = c dh;  r = softmax(logit) value, lse = log sum exp(logit). Without earlier
 * chunks r is 0 and lse -infinity. */
typedef struct definition_sma {
    size_t H, G, P, N, S;
    definition_documents documents;
    double eps;
    tape_vector q, e, c, dh; /* T G N, T G P, T G N, chunks H N P */
    tape_vector r, lse;      /* results: T H P, T H */
} definition_sma;
void definition_run_sma(tape *tape, definition_sma *of);

/* Causal softmax attention within each document: o_t = sum_s softmax_s(scale q_t . k_s) v_s, s <= t. */
typedef struct definition_attention {
    size_t H, G, D;
    definition_documents documents;
    double scale;
    tape_vector q, k, v; /* T H D, T G D, T G D */
    tape_vector o, lse;  /* results: T H D, T H */
} definition_attention;
void definition_run_attention(tape *tape, definition_attention *of);

/* x / sqrt(mean(x^2) + eps) weight, rows of as many elements as weight has. */
tape_vector definition_norm(tape *tape, tape_vector x, tape_vector weight, double eps);
/* y + silu(gate) r: T rows, a gate for each. */
tape_vector definition_gated(tape *tape, tape_vector y, tape_vector r, tape_vector gate);
/* x weight^T: T rows of IN, weight OUT IN. */
tape_vector definition_linear(tape *tape, tape_vector x, tape_vector weight, size_t IN, size_t OUT);
/* silu(bias_c + sum_k weight[c, k] x[t - K + 1 + k, c]), tokens before a document count as 0. x T C, weight C K, bias C. */
tape_vector definition_conv(tape *tape, tape_vector x, tape_vector weight, tape_vector bias, size_t K, const definition_documents *documents);
/* Rows ids of a table of rows of W. */
tape_vector definition_embed(tape *tape, tape_vector table, const int32_t *ids, size_t T, size_t W);
/* Pairs (i, i + D/2) of each of H heads turned by position base^(-2 i / D) radians; positions of the T tokens. */
tape_vector definition_rope(tape *tape, tape_vector x, const double *positions, size_t T, size_t H, size_t D, size_t R, double base);
/* silu(a) u. */
tape_vector definition_swiglu(tape *tape, tape_vector a, tape_vector u);
/* Mean over the rows with a target >= 0 of lse(logits) - logits[target], logits = x weight^T; weight V W. */
tape_vector definition_loss(tape *tape, tape_vector x, tape_vector weight, const int32_t *targets, size_t T, size_t W, size_t V);

/* A block: stream + mixer(norm(stream)). */
typedef struct definition_block {
    size_t W, H, G, P, N, K, S;
    definition_documents documents;
    double eps, sma_eps, dt_min, dt_max;
    bool sma, independent_c; /* independent_c: sma_proj has [q|e|c|gate], and SMA reads with that c */
    tape_vector norm, in_proj, conv_weight, conv_bias, dt_bias, a_log, d, mixer_norm, out_proj, sma_proj, sma_conv_weight, sma_conv_bias;
    /* What lies inside, for finding a stage that is wrong: results. */
    definition_ssd scan;
    definition_sma attention;
    tape_vector y; /* of the scan, with the gated readout */
} definition_block;
tape_vector definition_run_block(tape *tape, definition_block *of, tape_vector stream);

/* A layer of a Transformer: stream + out_proj attention(norm(stream)), then + down_proj (silu(gate_proj u) (up_proj u)), u = mlp_norm of it. */
typedef struct definition_transformer {
    size_t W, H, G, P, F;
    definition_documents documents;
    double eps, base;
    tape_vector norm, q_proj, k_proj, v_proj, out_proj, mlp_norm, gate_proj, up_proj, down_proj;
} definition_transformer;
tape_vector definition_run_transformer(tape *tape, definition_transformer *of, tape_vector stream);

#endif
