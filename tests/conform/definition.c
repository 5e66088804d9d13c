#include "definition.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static void *array(size_t count, size_t size)
{
    void *made = calloc(count > 0 ? count : 1, size);
    if (made == NULL) {
        fprintf(stderr, "definition: out of memory\n");
        abort();
    }
    return made;
}

/* The collected parts as one vector; frees their list. */
static tape_vector joined(tape *t, tape_vector *parts, size_t count)
{
    const tape_vector whole = tape_join(t, parts, count);
    free(parts);
    return whole;
}

static tape_vector row(tape *t, tape_vector v, size_t number, size_t width) { return tape_part(t, v, number * width, 1, width); }

static tape_vector dot(tape *t, tape_vector a, tape_vector b) { return tape_sum(t, tape_multiply(t, a, b)); }

/* 1 / sqrt(mean(v^2) + eps). */
static tape_vector inverse_rms(tape *t, tape_vector v, double eps)
{
    const tape_vector mean = tape_scale(t, dot(t, v, v), 1 / (double)tape_count(t, v), eps);
    return tape_apply(t, mean, tape_power, -0.5, 0);
}

static tape_vector normed(tape *t, tape_vector v, double eps) { return tape_multiply(t, v, inverse_rms(t, v, eps)); }

/* Weights softmax(scores), and log sum exp(scores) in lse. The largest score is a number that both do not depend on. */
static tape_vector softmax(tape *t, tape_vector scores, tape_vector *lse)
{
    double top = -HUGE_VAL;
    for (size_t i = 0; i < tape_count(t, scores); i++) top = fmax(top, tape_values(t, scores)[i]);
    const tape_vector sum = tape_sum(t, tape_apply(t, tape_scale(t, scores, 1, -top), tape_exp, 0, 0));
    *lse = tape_scale(t, tape_apply(t, sum, tape_log, 0, 0), 1, top);
    return tape_apply(t, tape_add(t, scores, tape_scale(t, *lse, -1, 0)), tape_exp, 0, 0);
}

static size_t tokens(const definition_documents *documents) { return documents->begin[documents->count]; }

size_t definition_chunks(const definition_documents *documents, size_t S)
{
    size_t chunks = 0;
    for (size_t i = 0; i < documents->count; i++) chunks += (documents->begin[i + 1] - documents->begin[i] + S - 1) / S;
    return chunks;
}

/* ---- The scan ---- */

static tape_vector steps(tape *t, const definition_ssd *of)
{
    if (of->dt_is_step) return of->dt;
    const size_t T = tokens(&of->documents);
    tape_vector *parts = array(T, sizeof *parts);
    for (size_t i = 0; i < T; i++) {
        const tape_vector raw = row(t, of->dt, i, of->H), biased = of->has_bias ? tape_add(t, raw, of->dt_bias) : raw;
        parts[i] = tape_apply(t, tape_apply(t, biased, tape_softplus, 0, 0), tape_clamp, of->dt_min, of->dt_max > 0 ? of->dt_max : HUGE_VAL);
    }
    return joined(t, parts, T);
}

void definition_run_ssd(tape *t, definition_ssd *of)
{
    const size_t H = of->H, G = of->G, P = of->P, N = of->N, S = of->S, T = tokens(&of->documents);
    tape_vector *y = array(T * H, sizeof *y), *last_h = array(of->documents.count * H, sizeof *last_h);
    tape_vector *dh = array(definition_chunks(&of->documents, S) * H, sizeof *dh);
    of->step = steps(t, of);
    for (size_t h = 0; h < H; h++) {
        const size_t g = h / (H / G);
        const tape_vector A = tape_scale(t, tape_apply(t, tape_part(t, of->a_log, h, 1, 1), tape_exp, 0, 0), -1, 0);
        for (size_t i = 0, chunk = 0; i < of->documents.count; i++) {
            const size_t begin = of->documents.begin[i], end = of->documents.begin[i + 1];
            tape_vector state = of->has_h ? row(t, of->h, i * H + h, N * P) : tape_input(t, NULL, N * P), open = state;
            for (size_t s = begin; s < end; s++) {
                const tape_vector step = tape_part(t, of->step, s * H + h, 1, 1), decay = tape_apply(t, tape_multiply(t, step, A), tape_exp, 0, 0);
                const tape_vector x = row(t, of->x, s * H + h, P), b = row(t, of->b, s * G + g, N), c = row(t, of->c, s * G + g, N);
                const tape_vector term = tape_outer(t, tape_multiply(t, b, step), x);
                state = tape_add(t, tape_multiply(t, state, decay), term);
                open = (s - begin) % S == 0 ? term : tape_add(t, tape_multiply(t, open, decay), term);
                y[s * H + h] = tape_columns(t, state, c);
                if (of->has_d) y[s * H + h] = tape_add(t, y[s * H + h], tape_multiply(t, x, tape_part(t, of->d, h, 1, 1)));
                if ((s - begin + 1) % S == 0 || s + 1 == end) dh[chunk++ * H + h] = open;
            }
            last_h[i * H + h] = state;
        }
    }
    of->y = joined(t, y, T * H);
    of->last_h = joined(t, last_h, of->documents.count * H);
    of->dh = joined(t, dh, definition_chunks(&of->documents, S) * H);
}

/* ---- State-memory attention ---- */

void definition_run_sma(tape *t, definition_sma *of)
{
    const size_t H = of->H, G = of->G, P = of->P, N = of->N, S = of->S, T = tokens(&of->documents), all = definition_chunks(&of->documents, S);
    tape_vector *memory = array(all * H, sizeof *memory), *rho = array(all * H, sizeof *rho), *r = array(T * H, sizeof *r),
                *lse = array(T * H, sizeof *lse);
    for (size_t m = 0; m < all * H; m++) {
        tape_vector *rows = array(N, sizeof *rows);
        memory[m] = row(t, of->dh, m, N * P);
        for (size_t n = 0; n < N; n++) rows[n] = inverse_rms(t, row(t, memory[m], n, P), of->eps);
        rho[m] = joined(t, rows, N);
    }
    for (size_t i = 0, first = 0; i < of->documents.count; i++) {
        const size_t begin = of->documents.begin[i], end = of->documents.begin[i + 1];
        for (size_t s = begin; s < end; s++) {
            const size_t past = (s - begin) / S;
            for (size_t h = 0; h < H; h++) {
                const size_t g = h / (H / G);
                if (past == 0) {
                    r[s * H + h] = tape_input(t, NULL, P);
                    lse[s * H + h] = tape_input(t, &(double){-HUGE_VAL}, 1);
                    continue;
                }
                const tape_vector qn = normed(t, row(t, of->q, s * G + g, N), of->eps), en = normed(t, row(t, of->e, s * G + g, P), of->eps);
                const tape_vector c = row(t, of->c, s * G + g, N);
                tape_vector *logits = array(past, sizeof *logits), *values = array(past, sizeof *values);
                for (size_t m = 0; m < past; m++) {
                    const size_t at = (first + m) * H + h;
                    const tape_vector key = tape_multiply(t, rho[at], tape_rows(t, memory[at], en, 1));
                    logits[m] = tape_scale(t, dot(t, qn, key), 1 / sqrt((double)N), 0);
                    values[m] = tape_columns(t, memory[at], c);
                }
                const tape_vector weights = softmax(t, joined(t, logits, past), &lse[s * H + h]);
                r[s * H + h] = tape_columns(t, joined(t, values, past), weights);
            }
        }
        first += (end - begin + S - 1) / S;
    }
    of->r = joined(t, r, T * H);
    of->lse = joined(t, lse, T * H);
    free(memory);
    free(rho);
}

/* ---- Softmax attention ---- */

void definition_run_attention(tape *t, definition_attention *of)
{
    const size_t H = of->H, G = of->G, D = of->D, T = tokens(&of->documents);
    tape_vector *o = array(T * H, sizeof *o), *lse = array(T * H, sizeof *lse);
    for (size_t i = 0; i < of->documents.count; i++) {
        const size_t begin = of->documents.begin[i], end = of->documents.begin[i + 1];
        for (size_t s = begin; s < end; s++) {
            for (size_t h = 0; h < H; h++) {
                const size_t g = h / (H / G), seen = s - begin + 1;
                const tape_vector q = row(t, of->q, s * H + h, D);
                tape_vector *scores = array(seen, sizeof *scores), *values = array(seen, sizeof *values);
                for (size_t k = 0; k < seen; k++) {
                    scores[k] = tape_scale(t, dot(t, q, row(t, of->k, (begin + k) * G + g, D)), of->scale, 0);
                    values[k] = row(t, of->v, (begin + k) * G + g, D);
                }
                const tape_vector weights = softmax(t, joined(t, scores, seen), &lse[s * H + h]);
                o[s * H + h] = tape_columns(t, joined(t, values, seen), weights);
            }
        }
    }
    of->o = joined(t, o, T * H);
    of->lse = joined(t, lse, T * H);
}

/* ---- Row by row ---- */

tape_vector definition_norm(tape *t, tape_vector x, tape_vector weight, double eps)
{
    const size_t W = tape_count(t, weight), T = tape_count(t, x) / W;
    tape_vector *rows = array(T, sizeof *rows);
    for (size_t i = 0; i < T; i++) rows[i] = tape_multiply(t, normed(t, row(t, x, i, W), eps), weight);
    return joined(t, rows, T);
}

tape_vector definition_gated(tape *t, tape_vector y, tape_vector r, tape_vector gate)
{
    const size_t T = tape_count(t, gate), I = tape_count(t, y) / T;
    tape_vector *rows = array(T, sizeof *rows);
    for (size_t i = 0; i < T; i++)
        rows[i] = tape_multiply(t, row(t, r, i, I), tape_apply(t, tape_part(t, gate, i, 1, 1), tape_silu, 0, 0));
    return tape_add(t, y, joined(t, rows, T));
}

tape_vector definition_linear(tape *t, tape_vector x, tape_vector weight, size_t IN, size_t OUT)
{
    const tape_vector part = tape_count(t, weight) == IN * OUT ? weight : tape_part(t, weight, 0, 1, IN * OUT);
    return tape_rows(t, part, x, tape_count(t, x) / IN);
}

tape_vector definition_conv(tape *t, tape_vector x, tape_vector weight, tape_vector bias, size_t K, const definition_documents *documents)
{
    const size_t C = tape_count(t, bias), T = tokens(documents);
    tape_vector *taps = array(K, sizeof *taps), *rows = array(T, sizeof *rows);
    for (size_t k = 0; k < K; k++) taps[k] = tape_part(t, weight, k, K, C);
    for (size_t i = 0; i < documents->count; i++) {
        for (size_t s = documents->begin[i]; s < documents->begin[i + 1]; s++) {
            tape_vector sum = bias;
            for (size_t k = 0; k < K; k++)
                if (s + k + 1 >= documents->begin[i] + K) sum = tape_add(t, sum, tape_multiply(t, taps[k], row(t, x, s + k + 1 - K, C)));
            rows[s] = tape_apply(t, sum, tape_silu, 0, 0);
        }
    }
    free(taps);
    return joined(t, rows, T);
}

tape_vector definition_embed(tape *t, tape_vector table, const int32_t *ids, size_t T, size_t W)
{
    tape_vector *rows = array(T, sizeof *rows);
    for (size_t i = 0; i < T; i++) rows[i] = row(t, table, (size_t)ids[i], W);
    return joined(t, rows, T);
}

tape_vector definition_rope(tape *t, tape_vector x, const double *positions, size_t T, size_t H, size_t D, size_t R, double base)
{
    const size_t half = R / 2, count = R < D ? 3 : 2;
    tape_vector *parts = array(T * H * count, sizeof *parts);
    double *sines = array(half, sizeof *sines), *cosines = array(half, sizeof *cosines);
    for (size_t s = 0; s < T; s++) {
        for (size_t i = 0; i < half; i++) {
            const double angle = positions[s] * pow(base, -2.0 * (double)i / (double)R);
            sines[i] = sin(angle);
            cosines[i] = cos(angle);
        }
        const tape_vector sine = tape_input(t, sines, half), cosine = tape_input(t, cosines, half);
        for (size_t h = 0; h < H; h++) {
            const size_t at = (s * H + h) * D;
            const tape_vector a = tape_part(t, x, at, 1, half), b = tape_part(t, x, at + half, 1, half);
            tape_vector *part = parts + (s * H + h) * count;
            part[0] = tape_add(t, tape_multiply(t, a, cosine), tape_scale(t, tape_multiply(t, b, sine), -1, 0));
            part[1] = tape_add(t, tape_multiply(t, b, cosine), tape_multiply(t, a, sine));
            if (count == 3) part[2] = tape_part(t, x, at + R, 1, D - R);
        }
    }
    free(sines);
    free(cosines);
    return joined(t, parts, T * H * count);
}

tape_vector definition_swiglu(tape *t, tape_vector a, tape_vector u) { return tape_multiply(t, tape_apply(t, a, tape_silu, 0, 0), u); }

tape_vector definition_loss(tape *t, tape_vector x, tape_vector weight, const int32_t *targets, size_t T, size_t W, size_t V)
{
    tape_vector *losses = array(T, sizeof *losses);
    size_t count = 0;
    for (size_t i = 0; i < T; i++) {
        if (targets[i] < 0) continue;
        const tape_vector logits = definition_linear(t, row(t, x, i, W), weight, W, V);
        tape_vector lse;
        softmax(t, logits, &lse);
        losses[count++] = tape_add(t, lse, tape_scale(t, tape_part(t, logits, (size_t)targets[i], 1, 1), -1, 0));
    }
    return tape_scale(t, tape_sum(t, joined(t, losses, count)), 1 / (double)count, 0);
}

/* ---- A block ---- */

/* Columns first .. first + width - 1 of T rows of `columns`. */
static tape_vector columns_of(tape *t, tape_vector rows, size_t T, size_t columns, size_t first, size_t width)
{
    tape_vector *parts = array(T, sizeof *parts);
    for (size_t i = 0; i < T; i++) parts[i] = tape_part(t, rows, i * columns + first, 1, width);
    return joined(t, parts, T);
}

tape_vector definition_run_block(tape *t, definition_block *of, tape_vector stream)
{
    const size_t T = tokens(&of->documents), H = of->H, P = of->P, I = H * P, GN = of->G * of->N, GP = of->G * P, C = I + 2 * GN,
                 R = 2 * I + 2 * GN + H;
    const tape_vector u = definition_norm(t, stream, of->norm, of->eps), in = definition_linear(t, u, of->in_proj, of->W, R);
    const tape_vector z = columns_of(t, in, T, R, 0, I);
    const tape_vector xbc = definition_conv(t, columns_of(t, in, T, R, I, C), of->conv_weight, of->conv_bias, of->K, &of->documents);
    const tape_vector c = columns_of(t, xbc, T, C, I + GN, GN);
    of->scan = (definition_ssd){.H = H, .G = of->G, .P = P, .N = of->N, .S = of->S, .documents = of->documents, .dt_min = of->dt_min,
                                .dt_max = of->dt_max, .has_bias = true, .has_d = true, .x = columns_of(t, xbc, T, C, 0, I),
                                .dt = columns_of(t, in, T, R, I + C, H), .b = columns_of(t, xbc, T, C, I, GN), .c = c, .a_log = of->a_log,
                                .dt_bias = of->dt_bias, .d = of->d};
    definition_run_ssd(t, &of->scan);
    of->y = of->scan.y;
    if (of->sma) {
        const size_t Q = GN + GP + (of->independent_c ? GN : 0);
        const tape_vector queries = definition_linear(t, u, of->sma_proj, of->W, Q + 1);
        const tape_vector qe =
            definition_conv(t, columns_of(t, queries, T, Q + 1, 0, Q), of->sma_conv_weight, of->sma_conv_bias, of->K, &of->documents);
        of->attention = (definition_sma){.H = H, .G = of->G, .P = P, .N = of->N, .S = of->S, .documents = of->documents, .eps = of->sma_eps,
                                         .q = columns_of(t, qe, T, Q, 0, GN), .e = columns_of(t, qe, T, Q, GN, GP),
                                         .c = of->independent_c ? columns_of(t, qe, T, Q, GN + GP, GN) : c, .dh = of->scan.dh};
        definition_run_sma(t, &of->attention);
        of->y = definition_gated(t, of->y, of->attention.r, tape_part(t, queries, Q, Q + 1, T));
    }
    const tape_vector v = tape_multiply(t, of->y, tape_apply(t, z, tape_silu, 0, 0));
    return tape_add(t, stream, definition_linear(t, definition_norm(t, v, of->mixer_norm, of->eps), of->out_proj, I, of->W));
}

tape_vector definition_run_transformer(tape *t, definition_transformer *of, tape_vector stream)
{
    const size_t T = tokens(&of->documents), W = of->W, H = of->H, G = of->G, P = of->P;
    double *positions = array(T, sizeof *positions);
    for (size_t i = 0; i < of->documents.count; i++)
        for (size_t s = of->documents.begin[i]; s < of->documents.begin[i + 1]; s++) positions[s] = (double)(s - of->documents.begin[i]);
    const tape_vector u = definition_norm(t, stream, of->norm, of->eps);
    definition_attention attention = {
        .H = H, .G = G, .D = P, .documents = of->documents, .scale = 1 / sqrt((double)P),
        .q = definition_rope(t, definition_linear(t, u, of->q_proj, W, H * P), positions, T, H, P, P, of->base),
        .k = definition_rope(t, definition_linear(t, u, of->k_proj, W, G * P), positions, T, G, P, P, of->base),
        .v = definition_linear(t, u, of->v_proj, W, G * P)};
    definition_run_attention(t, &attention);
    const tape_vector middle = tape_add(t, stream, definition_linear(t, attention.o, of->out_proj, H * P, W));
    const tape_vector m = definition_norm(t, middle, of->mlp_norm, of->eps);
    const tape_vector hidden = definition_swiglu(t, definition_linear(t, m, of->gate_proj, W, of->F), definition_linear(t, m, of->up_proj, W, of->F));
    free(positions);
    return tape_add(t, middle, definition_linear(t, hidden, of->down_proj, of->F, W));
}
