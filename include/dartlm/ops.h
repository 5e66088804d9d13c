/* dartlm: what holds for every op, the ops on rows, and those that choose tokens. Part of dartlm.h, whose glossary and laws hold here. */
#ifndef DARTLM_OPS_H
#define DARTLM_OPS_H

#include "runtime.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Ops ------------------------------------------------------------------------------------------------------
 * Each op checks its arguments, takes scratch memory from the stream and records its launches in order; the library puts
 * barriers between launches that depend on one another. Inputs and outputs must not overlap unless stated. An op may allocate
 * device memory.
 *
 * Every op returns DART_INVALID_ARGUMENT for a size, tensor or option outside what its comment states, and DART_UNSUPPORTED
 * when a tensor exceeds max_binding_bytes and the op cannot split it. Scratch memory may fail with DART_OUT_OF_MEMORY.
 *
 * seq, where present, is an i32 tensor B 2: for each sequence its position (tokens consumed before this piece) and its count
 * (tokens of this piece, 0..L; a larger count is taken as L, a negative position or count as 0). Tokens past the count are not
 * read, and their outputs are not written. Without seq every sequence is at position 0 with L tokens. The device reads seq
 * when the recording runs. */

/* y_t = weight_{ids_t}: the rows of an embedding table.
 * ids i32 T; weight V W, or V quantised rows with W a multiple of 32; y T W. An id outside [0, V) gives a row of NaN. */
typedef struct dart_embed_args {
    uint32_t T, V, W;
    dart_tensor ids, weight, y;
} dart_embed_args;
DART_API dart_status dart_embed(dart_stream *stream, const dart_embed_args *args);

/* y = x / sqrt(mean(x^2) + eps) * weight, per row.
 * x T W (or any number of rows when rows is given); weight W; y T W.
 * rows, optional, i32 T: row t of y is computed from row rows_t of x (the caller's promise: within x); where rows_t is
 * negative, row t of y is left as it is. */
typedef struct dart_rms_norm_args {
    uint32_t T, W;
    float eps; /* > 0 */
    dart_tensor x, weight, rows, y;
} dart_rms_norm_args;
DART_API dart_status dart_rms_norm(dart_stream *stream, const dart_rms_norm_args *args);

/* y = (x - mean(x)) / sqrt(mean((x - mean(x))^2) + eps) * weight + bias, per row.
 * bias W; the others as of dart_rms_norm, rows included. */
typedef struct dart_layer_norm_args {
    uint32_t T, W;
    float eps; /* > 0 */
    dart_tensor x, weight, bias, rows, y;
} dart_layer_norm_args;
DART_API dart_status dart_layer_norm(dart_stream *stream, const dart_layer_norm_args *args);

/* out = RMSNorm((y + SiLU(gate) r) SiLU(z)) weight, per row over all of I: the gated norm that ends a mixer, with the gated
 * SMA readout added to y first.
 * y, z, out T I; r T I and gate T (raw, before SiLU) both or neither; weight I. out may be y. */
typedef struct dart_gated_norm_args {
    uint32_t T, I;
    float eps; /* > 0 */
    dart_tensor y, r, gate, z, weight, out;
} dart_gated_norm_args;
DART_API dart_status dart_gated_norm(dart_stream *stream, const dart_gated_norm_args *args);

/* y = x weight^T + bias, or y += x weight^T + bias when add is set, or y = from + x weight^T + bias.
 * x T IN; weight OUT IN; bias OUT, optional; y T OUT; from T OUT, optional, in place of add, apart from y. The bias is put into y first, rounded
 * to y's type, and the product added to it.
 * weight may be OUT quantised rows, with IN a multiple of 32. A processor may then round x to multiples of m / 32767, where m is the
 * largest magnitude of its block of 32 numbers. Where the device multiplies 16-bit matrices and x is of their type, the weights are rounded to it. */
typedef struct dart_linear_args {
    uint32_t T, IN, OUT;
    bool add;
    dart_tensor x, weight, bias, y, from;
} dart_linear_args;
DART_API dart_status dart_linear(dart_stream *stream, const dart_linear_args *args);

/* y = RMSNorm(x) weight^T, with the results of dart_rms_norm and dart_linear, in one launch.
 * x T IN; norm IN; weight OUT IN, or OUT quantised rows with IN a multiple of 32; y T OUT.
 * Meant for a few rows: the weights are read once for every four rows. For many rows it pays only where the device multiplies
 * bf16 matrices, weight and y are bf16, and x is f32. */
typedef struct dart_norm_linear_args {
    uint32_t T, IN, OUT;
    float eps; /* > 0 */
    dart_tensor x, norm, weight, y;
} dart_norm_linear_args;
DART_API dart_status dart_norm_linear(dart_stream *stream, const dart_norm_linear_args *args);

/* ids_t = the index of the largest logit, the lowest one among equals; NaN never wins, all NaN gives 0.
 * logits T V; ids i32 T. */
typedef struct dart_argmax_args {
    uint32_t T, V;
    dart_tensor logits, ids;
} dart_argmax_args;
DART_API dart_status dart_argmax(dart_stream *stream, const dart_argmax_args *args);

/* Chooses ids_t by the settings of row t. The device reads the settings when the recording runs, so that one recording serves
 * any settings. The order of the steps is that of the common libraries:
 *   1. Ids at or above ids_below_t do not take part (0 or >= V: all do), nor do NaN logits.
 *   2. Repetition penalty r_t above 0 and not 1, with `seen`: the logits of ids that seen_t has are divided by r_t, those below 0 multiplied
 *      by it. How often or how long ago an id came does not matter.
 *   3. temperature_t not above 0, or NaN: ids_t is the largest logit, the lowest index among equals; the steps below do not matter. Else the
 *      weight of an id is w = exp((logit - largest logit) / temperature_t).
 *   4. The top_k_t largest logits are kept (0 or >= V: all; ties: lower index first).
 *   5. top_p_t above 0 and below 1: of these, from the largest down (ties: lower index first), an id is kept if the weights before it add up to
 *      less than top_p_t times the sum of all weights that step 4 keeps. The largest logit is always kept.
 *   6. min_p_t above 0: of these, ids are kept whose w is not below min_p_t, that is, whose probability is not below min_p_t times the largest.
 *   7. ids_t ~ w of what is kept, walking it in index order with one uniform number: Philox4x32-10 of counter (position_t, t, 0, 0) and key
 *      seed_t; word 0 / 2^32. position_t is the sum of the two columns of seq (tokens so far), 0 without seq. With bit 31 of ids_below_t set,
 *      which is not part of that number, the counter is (position_t, 0, 0, 0): the choice does not depend on the place of the row.
 * Backends sum weights in different orders: within rounding of a border of steps 5 to 7 they may choose neighbours.
 * mark_ids: ids_t as it was before, if within 0 and V - 1, is put into seen_t first, and counts for step 2: in a decoding step it is the token
 * consumed. Rows whose id stays by keep_ended are not marked.
 * logits T V; settings i32 T 8: the 32 bits of the f32 temperature, top_k, the lower and the upper half of the seed, the bits of top_p, min_p
 * and the repetition penalty, ids_below; ids i32 T; seq T 2, optional; seen i32 T ceil(V/32), optional: id i is bit i mod 32 of word i / 32.
 * Source of Philox: Salmon et al. 2011. */
typedef struct dart_sample_args {
    uint32_t T, V;
    bool keep_ended; /* with seq: ids_t stays as it is where the count of row t is 0 */
    bool mark_ids;   /* with seen */
    dart_tensor logits, settings, seq, seen, ids;
} dart_sample_args;
DART_API dart_status dart_sample(dart_stream *stream, const dart_sample_args *args);

/* Puts the tokens of sequences into their sets: bit id mod 32 of word id / 32 of seen_b, for the tokens of sequence b. Ids outside 0 to V - 1
 * are passed over. seen keeps what it has; dart_fill makes it empty.
 * ids i32 B L, or T packed; seq or cu as in the laws above, optional; seen i32 B ceil(V/32). */
typedef struct dart_mark_ids_args {
    uint32_t B, L, T, V;
    dart_tensor ids, seq, cu, seen;
} dart_mark_ids_args;
DART_API dart_status dart_mark_ids(dart_stream *stream, const dart_mark_ids_args *args);

/* Log-probabilities of rows of logits, so that the logits need not leave the device:
 *   log_z_t = log sum_v exp(logits_t,v);  target_t = logits_t,targets_t - log_z_t;
 *   top_ids_t = the ids of the k largest logits, from the largest down, the lower index first among equals;  top_t = their logits - log_z_t.
 * A NaN logit counts as -infinity; +infinity must not occur. Results below -3.4e38, as of a logit of -infinity, are -3.4e38. Where there are
 * fewer than k numbers, top_ids is -1 and top -3.4e38. A target outside 0 to V - 1 gives 0. Sums are f32, as in cross entropy.
 * logits T V; log_z f32 T; targets i32 T and target f32 T, optional together; with k above 0 top_ids i32 T k and top f32 T k. */
enum { DART_MOST_TOP = 32 }; /* the largest k */
typedef struct dart_log_probs_args {
    uint32_t T, V, k;
    dart_tensor logits, targets, log_z, target, top_ids, top;
} dart_log_probs_args;
DART_API dart_status dart_log_probs(dart_stream *stream, const dart_log_probs_args *args);

/* Ends a decoding step on the device: position_b += count_b; then log[b, position_b mod slots] = ids_b, so that the host can read
 * the ids of several steps at once. A sequence then ends, which sets count_b = 0 and live_b = -1, when ids_b is one of its end
 * ids or when position_b has reached its last position. A sequence with a count of 0 stays as it is.
 * seq i32 B 2; ids i32 B and log i32 B slots, optional together; with them stops i32 B 5 and live i32 B, optional together:
 * stops_b are four end ids (-1: none) and the last position (0: none). live can be passed to dart_rms_norm as rows. */
typedef struct dart_advance_args {
    uint32_t B, slots;
    dart_tensor seq, ids, log, stops, live;
} dart_advance_args;
DART_API dart_status dart_advance(dart_stream *stream, const dart_advance_args *args);

/* y = x with another storage type: T rows of W elements. With pairs, i32 T 2, row to of y becomes row from of x for each pair {from, to};
 * x then has X rows and y has Y, every row of y is in one pair at most, and a pair with a negative number does nothing. With from, i32 T, in
 * place of pairs: row t of y becomes row from_t of x, which has X rows, or 0 where from_t is negative; rows of x may come several times. */
typedef struct dart_convert_args {
    uint32_t T, W;
    uint32_t X; /* with pairs or from only */
    uint32_t Y; /* with pairs only */
    dart_tensor x, y, pairs, from;
} dart_convert_args;
DART_API dart_status dart_convert(dart_stream *stream, const dart_convert_args *args);

/* y = value in every element (T rows of W). */
typedef struct dart_fill_args {
    uint32_t T, W;
    float value;
    dart_tensor y; /* f32, f16 or bf16; i32 takes the value converted */
} dart_fill_args;
DART_API dart_status dart_fill(dart_stream *stream, const dart_fill_args *args);

#ifdef __cplusplus
}
#endif
#endif
