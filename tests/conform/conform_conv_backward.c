/* The gradient of the convolution, by the tape. */
#include "conform_backward.h"

#include <stdlib.h>

/* C = P, K = N; with a bias if PARAMS. */
void conform_conv_backward(conform_data *d)
{
    const conform_case *c = d->c;
    const uint32_t C = c->P, K = c->N;
    const dart_dtype act = conform_activation(c);
    const bool biased = conform_has(d, CASE_PARAMS);
    backward_rows rows;
    backward_rows_make(d, &rows);
    conform_tensor *x = conform_input(d, act, rows.rows, C, true, conform_unit), *up = conform_input(d, act, rows.rows, C, true, conform_unit);
    conform_tensor *weight = conform_input(d, c->dtype, C, K, false, conform_unit);
    conform_tensor *bias = biased ? conform_input(d, c->dtype, 1, C, false, conform_unit) : NULL;
    conform_tensor *seq = backward_seq(d, &rows);
    conform_tensor *grad_x = conform_output(d, act, rows.rows, C, true);
    conform_tensor *grad_weight = conform_input(d, DART_F32, C, K, false, conform_unit);
    conform_tensor *grad_bias = biased ? conform_input(d, DART_F32, 1, C, false, conform_unit) : NULL;
    tape *t = tape_create();
    const tape_vector vx = backward_input(t, x, &rows), vw = backward_whole(t, weight);
    const tape_vector vb = biased ? backward_whole(t, bias) : tape_input(t, NULL, C);
    const tape_vector y = definition_conv(t, vx, vw, vb, K, &rows.documents);
    double *ups = backward_gather(up, &rows);
    tape_push(t, y, ups);
    if (!d->plan) tape_reverse(t);
    free(ups);
    while (conform_next(d)) {
        dart_conv_backward(d->stream, &(dart_conv_backward_args){.B = c->B, .L = c->L, .T = rows.packing.T, .cu = rows.cu, .C = C, .K = K, .x = x->t,
                                                                 .weight = weight->t,
                                                                 .bias = conform_view(bias), .seq = conform_view(seq), .up_y = up->t,
                                                                 .grad_x = grad_x->t, .grad_weight = grad_weight->t,
                                                                 .grad_bias = conform_view(grad_bias)});
        if (!conform_execute(d)) continue;
        const conform_limits within = {.bound = conform_tolerance(BOUND_CONV, K)}, sums = {.bound = conform_tolerance(BOUND_CONV, K + rows.rows)};
        backward_compare_rows(d, "grad_x", grad_x, &rows, t, vx, NULL, within);
        backward_compare(d, "grad_weight", grad_weight, t, vw, grad_weight->values, sums);
        if (biased) backward_compare(d, "grad_bias", grad_bias, t, vb, grad_bias->values, sums);
    }
    tape_destroy(&t);
    backward_rows_free(&rows);
}
