/* The gradient of softmax attention, by the tape. */
#include "conform_backward.h"

#include <math.h>
#include <stdlib.h>

/* D = P. o and lse as dart_attention leaves them, in the same recording. */
void conform_attention_backward(conform_data *d)
{
    const conform_case *c = d->c;
    const dart_dtype act = conform_activation(c);
    const uint64_t wide = (uint64_t)c->H * c->P, narrow = (uint64_t)c->G * c->P;
    const bool scaled = conform_has(d, CASE_PARAMS);
    const double scale = scaled ? (double)0.3f : 1 / sqrt((double)c->P);
    backward_rows rows;
    backward_rows_make(d, &rows);
    for (uint32_t b = 0; b < c->B; b++) rows.seq[2 * b] = 0; /* positions start at 0 */
    conform_tensor *q = conform_input(d, act, rows.rows, wide, true, conform_unit), *up = conform_input(d, act, rows.rows, wide, true, conform_unit);
    conform_tensor *k = conform_input(d, c->dtype, rows.rows, narrow, true, conform_unit);
    conform_tensor *v = conform_input(d, c->dtype, rows.rows, narrow, true, conform_unit);
    conform_tensor *seq = backward_seq(d, &rows);
    conform_tensor *o = conform_output(d, DART_F32, rows.rows, wide, true), *lse = conform_output(d, DART_F32, rows.rows, c->H, false);
    conform_tensor *grad_q = conform_output(d, act, rows.rows, wide, true), *grad_k = conform_output(d, act, rows.rows, narrow, true);
    conform_tensor *grad_v = conform_output(d, act, rows.rows, narrow, true);
    for (uint64_t i = 0; i < k->rows * k->width; i++) k->values[i] *= conform_has(d, CASE_FAR) ? 10 : 1;
    conform_set(d, k, k->values);
    tape *t = tape_create();
    definition_attention of = {.H = c->H, .G = c->G, .D = c->P, .documents = rows.documents, .scale = scale, .q = backward_input(t, q, &rows),
                               .k = backward_input(t, k, &rows), .v = backward_input(t, v, &rows)};
    definition_run_attention(t, &of);
    double largest = 0, *ups = backward_gather(up, &rows);
    for (size_t i = 0; i < tape_count(t, of.lse); i++) largest = fmax(largest, fabs(tape_values(t, of.lse)[i]));
    tape_push(t, of.o, ups);
    if (!d->plan) tape_reverse(t);
    free(ups);
    while (conform_next(d)) {
        dart_attention(d->stream, &(dart_attention_args){.B = c->B, .L = c->L, .T = rows.packing.T, .cu = rows.cu, .H = c->H, .G = c->G, .D = c->P,
                                                         .C = c->L, .plan = DART_PLAN_CHUNKED,
                                                         .scale = scaled ? 0.3f : 0, .q = q->t, .k = k->t, .v = v->t, .seq = conform_view(seq),
                                                         .o = o->t, .lse = lse->t});
        dart_attention_backward(d->stream, &(dart_attention_backward_args){
            .B = c->B, .L = c->L, .T = rows.packing.T, .cu = rows.cu, .H = c->H, .G = c->G, .D = c->P, .scale = scaled ? 0.3f : 0, .q = q->t,
            .k = k->t, .v = v->t, .o = o->t, .lse = lse->t, .seq = conform_view(seq), .up_o = up->t,
            .grad_q = grad_q->t, .grad_k = grad_k->t, .grad_v = grad_v->t});
        if (!conform_execute(d)) continue;
        /* An absolute error of a score is a relative one of its weight: the bound grows with the largest score. Where rows of tiles made o, they
         * rounded the weights to the type of the values; rows of tiles of the backward pass round w and u, the factors of its terms, once each. */
        const double made = conform_ran(d, "attention[matrix") || conform_ran(d, "attention[tensor") ? conform_rounding(c->dtype) : 0;
        const bool at_once = conform_ran(d, "attention_backward_whole[");
        const bool by_keys = at_once || conform_ran(d, "attention_backward_k[late") || conform_ran(d, "attention_backward_k[matrix") ||
                             conform_ran(d, "attention_backward_k[tensor");
        const bool by_queries = at_once || conform_ran(d, "attention_backward_q[late") || conform_ran(d, "attention_backward_q[matrix") ||
                                conform_ran(d, "attention_backward_q[tensor");
        const double bound = conform_tolerance(BOUND_SMA, 2 * (uint64_t)c->P + (uint64_t)c->L * (c->H / c->G)) * (1 + largest);
        const conform_limits of_queries = {.bound = bound, .operands = made + (by_queries ? conform_rounding(c->dtype) : 0)};
        const conform_limits of_keys = {.bound = bound, .operands = made + (by_keys ? conform_rounding(c->dtype) : 0)};
        backward_compare_rows(d, "grad_q", grad_q, &rows, t, of.q, NULL, of_queries);
        backward_compare_rows(d, "grad_k", grad_k, &rows, t, of.k, NULL, of_keys);
        backward_compare_rows(d, "grad_v", grad_v, &rows, t, of.v, NULL, of_keys);
    }
    tape_destroy(&t);
    backward_rows_free(&rows);
}
