/* The loss and its gradients, by the tape; the norm of gradients and AdamW, in fp64. */
#include "conform_backward.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static void *array(uint64_t count, size_t size)
{
    void *made = calloc((size_t)(count > 0 ? count : 1), size);
    if (made == NULL) abort();
    return made;
}

static bool is(const conform_data *d, const char *op) { return strcmp(d->c->op, op) == 0; }

/* A tensor of one row with these values. */
static conform_tensor *given(conform_data *d, dart_dtype dtype, uint64_t width, const double *values)
{
    conform_tensor *tensor = conform_output(d, dtype, 1, width, false);
    conform_set(d, tensor, values);
    return tensor;
}

static double logit(const conform_tensor *x, const conform_tensor *weight, uint64_t t, uint64_t v)
{
    double sum = 0;
    for (uint64_t i = 0; i < x->width; i++) sum += x->values[t * x->width + i] * weight->values[v * x->width + i];
    return sum;
}

/* Whether the target of row t is the first of the largest logits; -1: too close to another to tell. Raises *largest to the logits' size. */
static int judge_choice(const conform_tensor *x, const conform_tensor *weight, uint64_t t, int32_t target, double *largest)
{
    const double own = logit(x, weight, t, (uint64_t)target);
    bool behind = false, close = false;
    for (uint64_t v = 0; v < weight->rows; v++) {
        const double z = logit(x, weight, t, v), apart = 1e-4 * (1 + fabs(z) + fabs(own));
        *largest = fmax(*largest, fabs(z));
        if (v == (uint64_t)target) continue;
        behind = behind || z > own + apart || (z == 0 && own == 0 && v < (uint64_t)target);
        close = close || (z > own - apart && !(z == 0 && own == 0));
    }
    return behind ? 0 : close ? -1 : 1;
}

/* Rows without a label hold NaN, and have targets below 0 and past the table. Two rows are zero, so that all logits are equal: the target of one
 * is the lowest index. */
void conform_loss(conform_data *d)
{
    const conform_case *c = d->c;
    const uint32_t T = c->L, W = c->N, V = c->P;
    const dart_dtype act = conform_activation(c);
    const bool gradients = conform_has(d, CASE_ADD), few = conform_has(d, CASE_ZERO);
    conform_tensor *x = conform_output(d, act, T, W, true), *weight = conform_input(d, c->dtype, V, W, false, conform_unit);
    double *values = array((uint64_t)T * W, sizeof *values), largest = 0;
    int32_t *targets = array(T, sizeof *targets), count = 0, correct = 0;
    for (uint32_t t = 0; t < T; t++) {
        const double draw = conform_uniform(d, 0, 1);
        const bool zero = T > 4 && t < 2;
        targets[t] = zero ? (int32_t)t : (int32_t)conform_uniform(d, 0, V);
        if (T > 4 && !zero && t + 1 < T && draw < (few ? 0.99 : 0.3)) targets[t] = t % 3 == 0 ? -1 : t % 3 == 1 ? (int32_t)V : -7;
        const bool has_label = targets[t] >= 0 && targets[t] < (int32_t)V;
        for (uint32_t i = 0; i < W; i++) values[(size_t)t * W + i] = !has_label ? NAN : zero ? 0 : conform_normal(d);
    }
    conform_set(d, x, values);
    for (uint32_t t = 0; t < T; t++) {
        if (targets[t] < 0 || targets[t] >= (int32_t)V) continue;
        count++;
        if (t % 2 == 0 && t > 1) { /* the target is the largest, unless that is hard to tell */
            double best = -INFINITY;
            for (uint32_t v = 0; v < V; v++) {
                const double z = logit(x, weight, t, v);
                if (!(z > best)) continue;
                best = z;
                targets[t] = (int32_t)v;
            }
        }
        int first = judge_choice(x, weight, t, targets[t], &largest);
        for (uint32_t tried = 1; first < 0 && tried < V; tried++) {
            targets[t] = (targets[t] + 1) % (int32_t)V;
            first = judge_choice(x, weight, t, targets[t], &largest);
        }
        if (first < 0) { /* a row of small numbers, all of whose logits are close: of zeros, the first target is the choice */
            memset(values + (size_t)t * W, 0, W * sizeof *values);
            conform_set(d, x, values);
            targets[t] = 0;
            first = 1;
        }
        correct += first;
    }
    /* Half of the labels of the step are elsewhere. */
    conform_tensor *share = given(d, DART_F32, 1, &(double){0.5 / count}), *loss = conform_input(d, DART_F32, 1, 1, false, conform_unit);
    conform_tensor *hits = conform_ints(d, 1, 1, &(int32_t){1000}), *labels = conform_ints(d, 1, T, targets);
    conform_tensor *grad_x = gradients ? conform_output(d, act, T, W, true) : NULL;
    conform_tensor *grad_weight = gradients ? conform_input(d, DART_F32, V, W, false, conform_unit) : NULL;

    tape *t = tape_create();
    double *labelled = array((uint64_t)count * W, sizeof *labelled);
    int32_t *known = array((uint64_t)count, sizeof *known);
    for (uint32_t i = 0, k = 0; i < T; i++) {
        if (targets[i] < 0 || targets[i] >= (int32_t)V) continue;
        memcpy(labelled + (size_t)k * W, x->values + (size_t)i * W, W * sizeof *labelled);
        known[k++] = targets[i];
    }
    const tape_vector vx = tape_input(t, labelled, (size_t)count * W), vw = backward_whole(t, weight);
    const tape_vector mean = definition_loss(t, vx, vw, known, (size_t)count, W, V);
    const double part = share->values[0] * count, want_loss = loss->values[0] + part * tape_values(t, mean)[0];
    tape_push(t, mean, &part);
    if (!d->plan) tape_reverse(t);
    while (conform_next(d)) {
        dart_cross_entropy(d->stream, &(dart_cross_entropy_args){.T = T, .V = V, .W = W, .x = x->t, .weight = weight->t, .targets = labels->t,
                                                                 .share = share->t, .loss = loss->t, .correct = hits->t,
                                                                 .grad_x = conform_view(grad_x), .grad_weight = conform_view(grad_weight)});
        if (!conform_execute(d)) continue;
        /* An absolute error of a logit is a relative one of its probability, so that the bound grows with the largest logit, and one of the loss. */
        const double bound = conform_tolerance(BOUND_SMA, (uint64_t)W + V) * (1 + largest);
        const double terms = fabs(loss->values[0]) + part * (1 + largest);
        const double loss_bound = conform_tolerance(BOUND_SMA, (uint64_t)W + V + T);
        conform_compare_within(d, "loss", loss, &want_loss, &(conform_limits){.bound = loss_bound, .terms = &terms});
        conform_compare_ints(d, "correct", hits, &(int32_t){1000 + correct});
        if (gradients) {
            /* Of the logits' gradient, once: blocks of logits write it as bf16 where x and weight are, and as f32 otherwise, which the products'
             * rows for matrices round; kernels without logits in memory as both are. */
            const double rounding = conform_rounding(c->dtype);
            const bool rounds = act == DART_BF16 && c->dtype == DART_BF16;
            const bool rounds_x = rounds || backward_rounds(d, "cross_entropy_x") || backward_rounds(d, "linear_backward_x");
            const bool rounds_weight = rounds || backward_rounds(d, "cross_entropy_weight") || backward_rounds(d, "linear_backward_weight");
            double *want = array((uint64_t)T * W, sizeof *want), *squares = array((uint64_t)T * W, sizeof *squares);
            for (uint32_t i = 0, k = 0; i < T; i++) {
                if (targets[i] < 0 || targets[i] >= (int32_t)V) continue;
                for (uint32_t j = 0; j < W; j++) {
                    want[(size_t)i * W + j] = tape_gradient(t, vx)[(size_t)k * W + j];
                    squares[(size_t)i * W + j] = sqrt(tape_squares(t, vx)[(size_t)k * W + j]);
                }
                k++;
            }
            conform_compare_within(d, "grad_x", grad_x, want,
                                   &(conform_limits){.bound = bound, .operands = rounds_x ? rounding : 0,
                                                     .floor = conform_floor(act), .terms = squares});
            backward_compare(d, "grad_weight", grad_weight, t, vw, grad_weight->values,
                             (conform_limits){.bound = conform_tolerance(BOUND_SMA, (uint64_t)W + V + T) * (1 + largest),
                                              .operands = rounds_weight ? rounding : 0});
            free(want);
            free(squares);
        }
    }
    tape_destroy(&t);
    free(values);
    free(targets);
    free(labelled);
    free(known);
}

/* B gradients of different sizes. */
static void grad_norm(conform_data *d)
{
    const conform_case *c = d->c;
    const float clip = 0.5f;
    const double by = conform_has(d, CASE_SCALED) ? 4 : 1;
    dart_gradient list[128];
    /* A norm of about 2 or 0.1, so that no part of the result is small beside another. */
    const double wide = (conform_has(d, CASE_ADD) ? 0.1 : 2) / by / sqrt((double)c->B * c->P);
    double squares = 0;
    uint64_t all = 0;
    conform_tensor *kept[16] = {NULL};
    for (uint32_t i = 0; i < c->B; i++) { /* many of them are parts of one tensor: a case has room for few */
        const uint64_t count = c->P + i;
        if (i % 16 == 0) kept[i / 16] = conform_input(d, DART_F32, 1, 16 * ((uint64_t)c->P + c->B), false, conform_unit);
        conform_tensor *tensor = kept[i / 16];
        const uint64_t first = i % 16 * ((uint64_t)c->P + c->B);
        for (uint64_t k = 0; k < count; k++) tensor->values[first + k] *= conform_has(d, CASE_ZERO) ? 0 : wide;
        if (conform_has(d, CASE_HUGE) && i == 1) tensor->values[first + count - 1] = c->L % 2 == 1 ? INFINITY : 1e30;
        conform_set(d, tensor, tensor->values);
        for (uint64_t k = 0; k < count; k++) squares += tensor->values[first + k] * tensor->values[first + k];
        all += count;
        list[i] = (dart_gradient){.elements = count, .grad = tensor->t};
        list[i].grad.offset += first;
    }
    conform_tensor *scale = conform_output(d, DART_F32, 1, 4, false);
    conform_tensor *factor = conform_has(d, CASE_SCALED) ? given(d, DART_F32, 1, &by) : NULL;
    const double norm = by * sqrt(squares);
    const double want[4] = {norm, by * fmin(1, (double)clip / (norm + 1e-6)), 1, 0}, none[4] = {INFINITY, 0, 0, 0};
    while (conform_next(d)) {
        dart_grad_norm(d->stream, &(dart_grad_norm_args){.count = c->B, .clip = clip, .gradients = list, .scale = scale->t,
                                                         .factor = conform_view(factor)});
        if (!conform_execute(d)) continue;
        conform_compare_within(d, "scale", scale, conform_has(d, CASE_HUGE) ? none : want,
                               &(conform_limits){.bound = conform_tolerance(BOUND_NORM, all < 16384 ? all : 16384), .terms = want});
    }
}

static double positive(conform_data *d, uint64_t i)
{
    (void)i;
    return conform_uniform(d, 0, 0.1);
}

static void adamw(conform_data *d)
{
    const conform_case *c = d->c;
    const uint64_t n = c->P;
    const bool decays = conform_has(d, CASE_ADD), stays = conform_has(d, CASE_HUGE);
    const double lr = 0.01, beta1 = 0.9, beta2 = 0.95;
    conform_tensor *w = conform_input(d, DART_F32, 1, n, false, conform_unit), *m = conform_input(d, DART_F32, 1, n, false, conform_unit);
    conform_tensor *v = conform_input(d, DART_F32, 1, n, false, positive), *grad = conform_input(d, DART_F32, 1, n, false, conform_unit);
    conform_tensor *copy = conform_has(d, CASE_BARE) ? NULL : conform_output(d, c->dtype, 1, n, false);
    conform_tensor *hyper = given(d, DART_F32, 8, (const double[]){lr, beta1, beta2, 1e-8, 1 - pow(beta1, 3), 1 - pow(beta2, 3), 0.1, 0});
    conform_tensor *scale = given(d, DART_F32, 4, (const double[]){stays ? 1e30 : 2.5, stays ? 0 : 0.4, stays ? 0 : 1, 0});
    double *want[4], *terms[3];
    for (int i = 0; i < 4; i++) want[i] = array(n, sizeof **want);
    for (int i = 0; i < 3; i++) terms[i] = array(n, sizeof **terms);
    const double *h = hyper->values;
    for (uint64_t i = 0; i < n; i++) {
        const double g = scale->values[1] * grad->values[i];
        want[1][i] = h[1] * m->values[i] + (1 - h[1]) * g;
        want[2][i] = h[2] * v->values[i] + (1 - h[2]) * g * g;
        const double move = want[1][i] / h[4] / (sqrt(want[2][i] / h[5]) + h[3]), fade = decays ? h[6] * w->values[i] : 0;
        want[0][i] = w->values[i] - h[0] * (move + fade);
        terms[1][i] = hypot(h[1] * m->values[i], (1 - h[1]) * g);
        terms[2][i] = want[2][i];
        terms[0][i] = hypot(w->values[i], h[0] * hypot(terms[1][i] / h[4] / (sqrt(want[2][i] / h[5]) + h[3]), fade));
        if (stays) {
            want[0][i] = w->values[i];
            want[1][i] = m->values[i];
            want[2][i] = v->values[i];
        }
        want[3][i] = stays ? NAN : want[0][i];
    }
    while (conform_next(d)) {
        dart_adamw(d->stream, &(dart_adamw_args){.elements = n, .decays = decays, .w = w->t, .m = m->t, .v = v->t, .grad = grad->t, .scale = scale->t,
                                                 .hyper = hyper->t, .copy = conform_view(copy)});
        if (!conform_execute(d)) continue;
        /* Few roundings, 1 - beta among them: what beta loses as f32 is known to the judge. */
        const double bound = stays ? 0 : conform_tolerance(BOUND_NORM, 1);
        conform_compare_within(d, "w", w, want[0], &(conform_limits){.bound = bound, .terms = terms[0]});
        conform_compare_within(d, "m", m, want[1], &(conform_limits){.bound = bound, .terms = terms[1]});
        conform_compare_within(d, "v", v, want[2], &(conform_limits){.bound = bound, .terms = terms[2]});
        conform_compare_within(d, "copy", copy, want[3], &(conform_limits){.bound = bound, .terms = terms[0], .floor = conform_floor(c->dtype)});
    }
    for (int i = 0; i < 4; i++) free(want[i]);
    for (int i = 0; i < 3; i++) free(terms[i]);
}

void conform_optim(conform_data *d)
{
    if (is(d, "grad_norm")) grad_norm(d);
    else adamw(d);
}
