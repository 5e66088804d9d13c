#include "oracle.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void demand(bool condition, const char *what)
{
    if (!condition) {
        fprintf(stderr, "oracle: %s\n", what);
        abort();
    }
}

static double *zeros(size_t count)
{
    double *v = calloc(count > 0 ? count : 1, sizeof *v);
    demand(v != NULL, "out of memory");
    return v;
}

static void copy(double *to, const double *from, size_t count)
{
    if (count > 0)
        memmove(to, from, count * sizeof *to);
}

static void fill(double *to, double value, size_t count)
{
    for (size_t i = 0; i < count; i++)
        to[i] = value;
}

static double silu(double v)
{
    return v / (1.0 + exp(-v));
}

static double softplus(double v)
{
    return v > 0.0 ? v + log1p(exp(-v)) : log1p(exp(v));
}

static double mean_square(const double *v, size_t count)
{
    double sum = 0.0;
    for (size_t i = 0; i < count; i++)
        sum += v[i] * v[i];
    return sum / (double)count;
}

static size_t sequence_start(const int32_t *pos, size_t b)
{
    demand(pos == NULL || pos[b] >= 0, "negative pos");
    return pos != NULL ? (size_t)pos[b] : 0;
}

static size_t sequence_count(const int32_t *count, size_t b, size_t L)
{
    demand(count == NULL || (count[b] >= 0 && (size_t)count[b] <= L), "count outside [0, L]");
    return count != NULL ? (size_t)count[b] : L;
}

size_t oracle_chunks(size_t L, size_t S, size_t pos)
{
    demand(S > 0, "S is 0");
    return L == 0 ? 0 : (pos % S + L + S - 1) / S;
}

void oracle_embed(double *out, const double *table, const int32_t *ids, size_t rows, size_t V, size_t W)
{
    for (size_t i = 0; i < rows; i++) {
        if (ids[i] >= 0 && (size_t)ids[i] < V)
            copy(out + i * W, table + (size_t)ids[i] * W, W);
        else
            fill(out + i * W, (double)NAN, W);
    }
}

void oracle_linear(double *y, const double *x, const double *w, const double *residual,
                   size_t rows, size_t in, size_t out)
{
    enum { TOGETHER = 8 }; /* sums that do not wait for each other; the last ones once more where out is no multiple */
    for (size_t first = 0; first < out; first += TOGETHER) {
        const double *row[TOGETHER];
        for (size_t o = 0; o < TOGETHER; o++)
            row[o] = w + (first + o < out ? first + o : out - 1) * in;
        for (size_t i = 0; i < rows; i++) {
            double sum[TOGETHER] = {0};
            for (size_t j = 0; j < in; j++)
                for (size_t o = 0; o < TOGETHER; o++)
                    sum[o] += x[i * in + j] * row[o][j];
            for (size_t o = first; o < out && o < first + TOGETHER; o++)
                y[i * out + o] = (residual != NULL ? residual[i * out + o] : 0.0) + sum[o - first];
        }
    }
}

void oracle_rms_norm(double *out, const double *x, const double *weight, size_t rows, size_t width, double eps)
{
    for (size_t i = 0; i < rows; i++) {
        double rms = sqrt(mean_square(x + i * width, width) + eps);
        for (size_t j = 0; j < width; j++)
            out[i * width + j] = x[i * width + j] / rms * (weight != NULL ? weight[j] : 1.0);
    }
}

void oracle_layer_norm(double *out, const double *x, const double *weight, const double *bias, size_t rows, size_t width, double eps)
{
    for (size_t i = 0; i < rows; i++) {
        const double *row = x + i * width;
        double mean = 0, variance = 0;
        for (size_t j = 0; j < width; j++)
            mean += row[j] / (double)width;
        for (size_t j = 0; j < width; j++)
            variance += (row[j] - mean) * (row[j] - mean) / (double)width;
        for (size_t j = 0; j < width; j++)
            out[i * width + j] = (row[j] - mean) / sqrt(variance + eps) * weight[j] + bias[j];
    }
}

void oracle_gelu(double *out, const double *x, size_t count, int by_tanh)
{
    for (size_t i = 0; i < count; i++) {
        const double v = x[i], cubic = sqrt(2 / acos(-1.0)) * (v + 0.044715 * v * v * v);
        out[i] = by_tanh ? 0.5 * v * (1 + tanh(cubic)) : 0.5 * v * erfc(-v / sqrt(2.0));
    }
}

void oracle_gated_norm(const oracle_gated_norm_args *a)
{
    double *v = zeros(a->I);
    for (size_t i = 0; i < a->rows; i++) {
        for (size_t j = 0; j < a->I; j++) {
            size_t at = i * a->I + j;
            v[j] = a->y[at];
            if (a->r != NULL)
                v[j] += (a->gate != NULL ? silu(a->gate[i]) : 1.0) * a->r[at];
            v[j] *= silu(a->z[at]);
        }
        oracle_rms_norm(a->out + i * a->I, v, a->weight, 1, a->I, a->eps);
    }
    free(v);
}

void oracle_conv(const oracle_conv_args *a)
{
    const size_t C = a->C, K = a->K;
    demand(K > 0, "K is 0");
    const size_t T = K - 1;
    double *all = zeros((T + a->L) * C); /* tail, then the piece */
    for (size_t b = 0; b < a->B; b++) {
        const size_t tokens = sequence_count(a->count, b, a->L);
        if (a->tail_in != NULL)
            copy(all, a->tail_in + b * T * C, T * C);
        else
            fill(all, 0.0, T * C);
        copy(all + T * C, a->x + b * a->L * C, tokens * C);
        for (size_t t = 0; t < tokens; t++) {
            for (size_t c = 0; c < C; c++) {
                double sum = a->bias != NULL ? a->bias[c] : 0.0;
                for (size_t k = 0; k < K; k++)
                    sum += a->weight[c * K + k] * all[(t + k) * C + c];
                a->out[(b * a->L + t) * C + c] = silu(sum);
            }
        }
        if (a->tail_out != NULL)
            copy(a->tail_out + b * T * C, all + tokens * C, T * C);
    }
    free(all);
}

static double effective_step(const oracle_ssd_args *a, size_t b, size_t t, size_t h)
{
    double dt = a->dt[(b * a->L + t) * a->H + h];
    if (a->dt_as_is)
        return dt;
    dt = softplus(dt + (a->dt_bias != NULL ? a->dt_bias[h] : 0.0));
    if (dt < a->dt_min)
        dt = a->dt_min;
    if (a->dt_max > 0.0 && dt > a->dt_max)
        dt = a->dt_max;
    return dt;
}

/* One head of one sequence, with four N x P work arrays; squares: of the terms of each element of state, added up. */
static void ssd_head(const oracle_ssd_args *a, size_t M, size_t b, size_t h,
                     double *state, double *squares, double *border, double *open)
{
    const size_t L = a->L, H = a->H, G = a->G, P = a->P, N = a->N, S = a->S;
    const size_t g = h / (H / G), bh = b * H + h;
    const size_t pos = sequence_start(a->pos, b), tokens = sequence_count(a->count, b, L);
    const double A = -exp(a->a_log[h]);
    double log_open = 0.0;

    demand(oracle_chunks(tokens, S, pos) <= M, "M is smaller than the chunks touched");
    fill(border, 0.0, N * P);
    fill(open, 0.0, N * P);
    if (a->h_in != NULL)
        copy(border, a->h_in + bh * N * P, N * P);
    if (pos % S != 0) {
        if (a->dh_open_in != NULL)
            copy(open, a->dh_open_in + bh * N * P, N * P);
        if (a->log_open_in != NULL)
            log_open = a->log_open_in[bh];
    }
    for (size_t i = 0; i < N * P; i++)
        state[i] = exp(log_open) * border[i] + open[i];
    for (size_t i = 0; i < N * P; i++)
        squares[i] = state[i] * state[i];

    for (size_t t = 0; t < tokens; t++) {
        const size_t j = (pos + t) / S - pos / S;
        const double *x = a->x + ((b * L + t) * H + h) * P;
        const double *bt = a->b + ((b * L + t) * G + g) * N;
        const double *ct = a->c + ((b * L + t) * G + g) * N;
        const double step = effective_step(a, b, t, h);
        const double decay = exp(step * A);

        if (a->hin != NULL && (t == 0 || (pos + t) % S == 0))
            copy(a->hin + ((b * M + j) * H + h) * N * P, border, N * P);

        log_open += step * A;
        for (size_t n = 0; n < N; n++) {
            for (size_t p = 0; p < P; p++) {
                state[n * P + p] = decay * state[n * P + p] + step * bt[n] * x[p];
                open[n * P + p] = decay * open[n * P + p] + step * bt[n] * x[p];
            }
        }
        if (a->y_terms != NULL) {
            double *terms = a->y_terms + ((b * L + t) * H + h) * P;
            for (size_t p = 0; p < P; p++)
                terms[p] = a->d != NULL ? a->d[h] * a->d[h] * x[p] * x[p] : 0.0;
            for (size_t n = 0; n < N; n++) {
                for (size_t p = 0; p < P; p++) {
                    squares[n * P + p] = decay * decay * squares[n * P + p] + step * step * bt[n] * bt[n] * x[p] * x[p];
                    terms[p] += ct[n] * ct[n] * squares[n * P + p];
                }
            }
            for (size_t p = 0; p < P; p++)
                terms[p] = sqrt(terms[p]);
        }
        if (a->y != NULL) {
            double *y = a->y + ((b * L + t) * H + h) * P;
            for (size_t p = 0; p < P; p++)
                y[p] = a->d != NULL ? a->d[h] * x[p] : 0.0;
            for (size_t n = 0; n < N; n++)
                for (size_t p = 0; p < P; p++)
                    y[p] += ct[n] * state[n * P + p];
        }
        if (a->step != NULL)
            a->step[bh * L + t] = step;
        if (a->cum != NULL)
            a->cum[bh * L + t] = log_open;

        const bool closes = (pos + t + 1) % S == 0;
        if (a->dh != NULL && (closes || t + 1 == tokens))
            copy(a->dh + ((b * M + j) * H + h) * N * P, open, N * P);
        if (closes) {
            copy(border, state, N * P);
            fill(open, 0.0, N * P);
            log_open = 0.0;
        }
    }

    if (a->h_out != NULL)
        copy(a->h_out + bh * N * P, state, N * P);
    if (a->h_border_out != NULL)
        copy(a->h_border_out + bh * N * P, border, N * P);
    if (a->dh_open_out != NULL)
        copy(a->dh_open_out + bh * N * P, open, N * P);
    if (a->log_open_out != NULL)
        a->log_open_out[bh] = log_open;
}

static void chunk_products(const oracle_ssd_args *a, size_t M, size_t b)
{
    const size_t L = a->L, G = a->G, N = a->N, S = a->S;
    const size_t Sc = S < L ? S : L;
    const size_t pos = sequence_start(a->pos, b), tokens = sequence_count(a->count, b, L);
    for (size_t s = 0; s < tokens; s++) {
        const size_t j = (pos + s) / S - pos / S;
        const size_t first = j == 0 ? 0 : j * S - pos % S; /* the piece's first token in this chunk */
        for (size_t g = 0; g < G; g++) {
            double *row = a->cb + (((b * M + j) * G + g) * Sc + (s - first)) * Sc;
            const double *cs = a->c + ((b * L + s) * G + g) * N;
            fill(row, 0.0, Sc);
            for (size_t t = first; t <= s; t++) {
                const double *bt = a->b + ((b * L + t) * G + g) * N;
                for (size_t n = 0; n < N; n++)
                    row[t - first] += cs[n] * bt[n];
            }
        }
    }
}

void oracle_ssd(const oracle_ssd_args *a)
{
    demand(a->S > 0 && a->G > 0 && a->H % a->G == 0, "S is 0, or G does not divide H");
    const size_t M = a->M > 0 ? a->M : oracle_chunks(a->L, a->S, 0);
    double *state = zeros(a->N * a->P), *squares = zeros(a->N * a->P), *border = zeros(a->N * a->P), *open = zeros(a->N * a->P);
    for (size_t b = 0; b < a->B; b++) {
        for (size_t h = 0; h < a->H; h++)
            ssd_head(a, M, b, h, state, squares, border, open);
        if (a->cb != NULL)
            chunk_products(a, M, b);
    }
    free(state);
    free(squares);
    free(border);
    free(open);
}

/* One token of one head over `past` memories dh (past,H,N,P), of which this head's m-th starts at dh[m H N P]. */
static void sma_token(const oracle_sma_args *a, size_t past, const double *dh, const double *rho,
                      const double *qn, const double *en, const double *c, double *logit, double *r, double *lse)
{
    const size_t H = a->H, P = a->P, N = a->N;
    double max = -HUGE_VAL;
    for (size_t m = 0; m < past; m++) {
        logit[m] = 0.0;
        for (size_t n = 0; n < N; n++) {
            double product = 0.0;
            for (size_t p = 0; p < P; p++)
                product += dh[(m * H * N + n) * P + p] * en[p];
            double k = rho[m * H * N + n] * product;
            logit[m] += qn[n] * k;
        }
        logit[m] /= sqrt((double)N);
        max = fmax(max, logit[m]);
    }
    fill(r, 0.0, P);
    *lse = -HUGE_VAL;
    if (past == 0)
        return;

    double sum = 0.0;
    for (size_t m = 0; m < past; m++)
        sum += exp(logit[m] - max);
    *lse = max + log(sum);
    for (size_t m = 0; m < past; m++) {
        double g = exp(logit[m] - max) / sum;
        for (size_t p = 0; p < P; p++) {
            double v = 0.0;
            for (size_t n = 0; n < N; n++)
                v += c[n] * dh[(m * H * N + n) * P + p];
            r[p] += g * v;
        }
    }
}

void oracle_sma(const oracle_sma_args *a)
{
    const size_t B = a->B, L = a->L, H = a->H, G = a->G, P = a->P, N = a->N, S = a->S, M = a->M;
    demand(S > 0 && G > 0 && H % G == 0, "S is 0, or G does not divide H");
    double *qn = zeros(N), *en = zeros(P), *rho = zeros(M * H * N), *logit = zeros(M), *r = zeros(P);

    for (size_t b = 0; b < B; b++) {
        const size_t pos = sequence_start(a->pos, b), tokens = sequence_count(a->count, b, L);
        for (size_t i = 0; i < M * H * N; i++)
            rho[i] = 1.0 / sqrt(mean_square(a->dh + (b * M * H * N + i) * P, P) + a->eps);
        if (a->rho != NULL)
            copy(a->rho + b * M * H * N, rho, M * H * N);

        for (size_t t = 0; t < tokens; t++) {
            const size_t past = (pos + t) / S;
            demand(past <= M, "M is smaller than the memories read");
            for (size_t h = 0; h < H; h++) {
                const size_t blg = (b * L + t) * G + h / (H / G), blh = (b * L + t) * H + h;
                double lse;
                oracle_rms_norm(qn, a->q + blg * N, NULL, 1, N, a->eps);
                oracle_rms_norm(en, a->e + blg * P, NULL, 1, P, a->eps);
                fill(logit, -HUGE_VAL, M);
                sma_token(a, past, a->dh + (b * M * H + h) * N * P, rho + h * N, qn, en, a->c + blg * N,
                          logit, r, &lse);
                if (a->r != NULL)
                    copy(a->r + blh * P, r, P);
                if (a->lse != NULL)
                    a->lse[blh] = lse;
                if (a->qn != NULL)
                    copy(a->qn + blg * N, qn, N);
                if (a->en != NULL)
                    copy(a->en + blg * P, en, P);
                if (a->logit != NULL)
                    copy(a->logit + blh * M, logit, M);
            }
        }
    }
    free(qn);
    free(en);
    free(rho);
    free(logit);
    free(r);
}

void oracle_attention(const oracle_attention_args *a)
{
    const size_t D = a->D;
    demand(a->G > 0 && a->H % a->G == 0, "G does not divide H");
    double *logit = zeros(a->C), largest = 0.0;
    for (size_t b = 0; b < a->B; b++) {
        const size_t pos = sequence_start(a->pos, b), tokens = sequence_count(a->count, b, a->L);
        for (size_t th = 0; th < tokens * a->H; th++) {
            const size_t t = th / a->H, h = th % a->H, g = h / (a->H / a->G), row = (b * a->L + t) * a->H + h;
            const size_t seen = pos + t + 1 < a->C ? pos + t + 1 : a->C;
            double max = -HUGE_VAL, sum = 0.0;
            for (size_t s = 0; s < seen; s++) {
                const double *k = a->k + ((b * a->C + s) * a->G + g) * D;
                logit[s] = 0.0;
                for (size_t d = 0; d < D; d++)
                    logit[s] += a->q[row * D + d] * k[d];
                logit[s] *= a->scale;
                max = fmax(max, logit[s]);
                largest = fmax(largest, fabs(logit[s]));
            }
            for (size_t s = 0; s < seen; s++)
                sum += exp(logit[s] - max);
            if (a->lse != NULL)
                a->lse[row] = max + log(sum);
            for (size_t d = 0; d < D && a->o != NULL; d++) {
                a->o[row * D + d] = 0.0;
                for (size_t s = 0; s < seen; s++)
                    a->o[row * D + d] += exp(logit[s] - max) / sum * a->v[((b * a->C + s) * a->G + g) * D + d];
            }
        }
    }
    if (a->largest != NULL)
        *a->largest = largest;
    free(logit);
}

size_t oracle_argmax(const double *logits, size_t V)
{
    size_t best = 0;
    for (size_t i = 1; i < V; i++) {
        if (logits[i] > logits[best] || (isnan(logits[best]) && !isnan(logits[i])))
            best = i;
    }
    return best;
}

typedef struct ranked {
    double logit, weight;
    size_t id;
} ranked;

static int by_rank(const void *left, const void *right)
{
    const ranked *a = left, *b = right;
    if (a->logit != b->logit)
        return a->logit > b->logit ? -1 : 1;
    return a->id < b->id ? -1 : a->id > b->id;
}

static int by_id(const void *left, const void *right)
{
    const ranked *a = left, *b = right;
    return a->id < b->id ? -1 : a->id > b->id;
}

size_t oracle_sample(const oracle_sample_args *a, double *lo, double *hi, double *slack)
{
    const size_t V = a->below == 0 || a->below > a->V ? a->V : a->below;
    ranked *kept = calloc(V, sizeof *kept);
    double *weighed = zeros(V);
    demand(kept != NULL, "out of memory");
    for (size_t i = 0; i < V; i++) {
        const bool was = a->seen != NULL && a->penalty > 0 && ((uint32_t)a->seen[i / 32] >> i % 32 & 1) != 0;
        weighed[i] = !was ? a->logits[i] : a->logits[i] < 0 ? a->logits[i] * a->penalty : a->logits[i] / a->penalty;
    }
    size_t chosen = oracle_argmax(weighed, V), count = 0;
    const double max = weighed[chosen];
    *lo = *slack = 0;
    *hi = 1;
    for (size_t i = 0; i < V && a->temperature > 0; i++)
        /* The maximum itself has weight 1, even where it is infinite. */
        if (!isnan(weighed[i]))
            kept[count++] = (ranked){weighed[i], weighed[i] < max ? exp((weighed[i] - max) / a->temperature) : 1, i};
    if (count > 0) {
        double all = 0, before = 0, total = 0, doubtful = 0;
        size_t left = 0;
        qsort(kept, count, sizeof *kept, by_rank);
        if (a->k != 0 && a->k < count)
            count = a->k;
        for (size_t i = 0; i < count; i++)
            all += kept[i].weight;
        for (size_t i = 0; i < count; i++) {
            const double share = before / all;
            const bool cuts = a->top_p > 0 && a->top_p < 1;
            if (i > 0 && cuts && fabs(share - a->top_p) < a->margin)
                doubtful += kept[i].weight;
            /* A weight's own error: an exponent of size x errs by x roundings, and so does what exp makes of it. */
            const double of_exp = 0x1p-24 * (8 + 4 * fabs((kept[i].logit - max) / a->temperature) + 4 * fabs(max / a->temperature));
            if (a->min_p > 0 && fabs(kept[i].weight / a->min_p - 1) < of_exp)
                doubtful += kept[i].weight;
            const bool in = (i == 0 || !cuts || share < a->top_p) && !(a->min_p > 0 && kept[i].weight < a->min_p);
            before += kept[i].weight;
            if (in)
                kept[left++] = kept[i];
        }
        qsort(kept, left, sizeof *kept, by_id);
        for (size_t i = 0; i < left; i++)
            total += kept[i].weight;
        *slack = doubtful / total;
        double walked = 0;
        for (size_t i = 0; i < left && *hi > a->u; i++) {
            if (!(kept[i].weight > 0))
                continue;
            chosen = kept[i].id;
            *lo = walked / total;
            walked += kept[i].weight;
            *hi = walked / total;
            if (*hi > a->u)
                break;
            *hi = 1; /* goes on */
        }
    }
    free(weighed);
    free(kept);
    return chosen;
}

void oracle_philox4x32_10(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        const uint64_t product0 = (uint64_t)0xD2511F53u * c0;
        const uint64_t product1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(product1 >> 32) ^ c1 ^ k0;
        c2 = (uint32_t)(product0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)(product1 & 0xFFFFFFFFu);
        c3 = (uint32_t)(product0 & 0xFFFFFFFFu);
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

bool oracle_philox_known_answers(void)
{
    static const uint32_t known[3][10] = { /* counter, key, answer */
        {0, 0, 0, 0, 0, 0, 0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u},
        {0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu, 0xffffffffu,
         0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu},
        {0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u, 0xa4093822u, 0x299f31d0u,
         0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u},
    };
    for (size_t i = 0; i < 3; i++) {
        uint32_t out[4];
        oracle_philox4x32_10(known[i], known[i] + 4, out);
        if (memcmp(out, known[i] + 6, sizeof out) != 0)
            return false;
    }
    return true;
}

/* Columns [first, first + width) of a (rows,stride) matrix, packed. The caller frees it. */
static double *columns(const double *from, size_t rows, size_t stride, size_t first, size_t width)
{
    double *out = zeros(rows * width);
    for (size_t i = 0; i < rows; i++)
        copy(out + i * width, from + i * stride + first, width);
    return out;
}

/* SMA of one layer: r (B,L,H,P) and gate (B,L), before its SiLU. */
static void model_sma(const oracle_model_args *a, const oracle_layer *layer, const double *u, const double *c,
                      const double *dh, size_t M, double *r, double *gate)
{
    const oracle_weights *w = a->weights;
    const size_t GN = w->G * w->N, GP = w->G * w->P, C = GN + GP + (w->independent_c ? GN : 0), rows = a->B * a->L;
    const size_t Q = (C + 1 + 7) / 8 * 8;
    demand(layer->sma_proj != NULL && layer->sma_conv_weight != NULL, "SMA asked of a layer without its weights");

    double *projected = zeros(rows * Q), *convolved = zeros(rows * C);
    oracle_linear(projected, u, layer->sma_proj, NULL, rows, w->W, Q);
    double *qe = columns(projected, rows, Q, 0, C);
    for (size_t i = 0; i < rows; i++)
        gate[i] = projected[i * Q + C];
    oracle_conv(&(oracle_conv_args){.B = a->B, .L = a->L, .C = C, .K = w->K, .x = qe,
                                    .weight = layer->sma_conv_weight, .bias = layer->sma_conv_bias,
                                    .out = convolved});
    double *q = columns(convolved, rows, C, 0, GN);
    double *e = columns(convolved, rows, C, GN, GP);
    double *own = w->independent_c ? columns(convolved, rows, C, GN + GP, GN) : NULL;
    oracle_sma(&(oracle_sma_args){.B = a->B, .L = a->L, .H = w->H, .G = w->G, .P = w->P, .N = w->N, .S = a->S,
                                  .M = M, .eps = w->sma_eps, .q = q, .e = e, .c = own != NULL ? own : c, .dh = dh, .r = r});
    free(own);
    free(projected);
    free(convolved);
    free(qe);
    free(q);
    free(e);
}

static void model_layer(const oracle_model_args *a, const oracle_layer *layer, double *stream)
{
    const oracle_weights *w = a->weights;
    const size_t W = w->W, H = w->H, I = w->H * w->P, GN = w->G * w->N, rows = a->B * a->L;
    const size_t C = I + 2 * GN, R = 2 * I + 2 * GN + H, M = oracle_chunks(a->L, a->S, 0);

    double *u = zeros(rows * W), *projected = zeros(rows * R), *convolved = zeros(rows * C);
    oracle_rms_norm(u, stream, layer->norm, rows, W, w->eps);
    oracle_linear(projected, u, layer->in_proj, NULL, rows, W, R);
    double *z = columns(projected, rows, R, 0, I);
    double *xbc = columns(projected, rows, R, I, C);
    double *dt = columns(projected, rows, R, I + C, H);
    oracle_conv(&(oracle_conv_args){.B = a->B, .L = a->L, .C = C, .K = w->K, .x = xbc,
                                    .weight = layer->conv_weight, .bias = layer->conv_bias, .out = convolved});
    double *x = columns(convolved, rows, C, 0, I);
    double *b = columns(convolved, rows, C, I, GN);
    double *c = columns(convolved, rows, C, I + GN, GN);

    double *y = zeros(rows * I), *dh = zeros(a->B * M * I * w->N), *r = zeros(rows * I), *gate = zeros(rows);
    oracle_ssd(&(oracle_ssd_args){.B = a->B, .L = a->L, .H = H, .G = w->G, .P = w->P, .N = w->N, .S = a->S,
                                  .x = x, .dt = dt, .a_log = layer->a_log, .b = b, .c = c,
                                  .dt_bias = layer->dt_bias, .d = layer->d,
                                  .dt_min = w->dt_min, .dt_max = w->dt_max, .y = y, .dh = dh});
    if (a->sma)
        model_sma(a, layer, u, c, dh, M, r, gate);
    oracle_gated_norm(&(oracle_gated_norm_args){.rows = rows, .I = I, .y = y, .r = a->sma ? r : NULL, .gate = gate,
                                                .z = z, .weight = layer->gated_norm, .eps = w->eps, .out = y});
    oracle_linear(stream, y, layer->out_proj, stream, rows, I, W);

    double *const owned[] = {u, projected, convolved, z, xbc, dt, x, b, c, y, dh, r, gate};
    for (size_t i = 0; i < sizeof owned / sizeof owned[0]; i++)
        free(owned[i]);
}

void oracle_model(const oracle_model_args *a)
{
    const oracle_weights *w = a->weights;
    const size_t W = w->W, rows = a->B * a->L;
    double *stream = zeros(rows * W), *last = zeros(W);

    oracle_embed(stream, w->embedding, a->ids, rows, w->V, W);
    for (size_t i = 0; i < w->layers; i++)
        model_layer(a, &w->layer[i], stream);
    if (a->stream != NULL)
        copy(a->stream, stream, rows * W);

    const size_t wanted = a->rows != NULL ? a->row_count : rows;
    for (size_t i = 0; i < wanted && a->logits != NULL; i++) {
        const size_t row = a->rows != NULL ? a->rows[i] : i;
        demand(row < rows, "a listed row lies outside the batch");
        oracle_rms_norm(last, stream + row * W, w->norm_f, 1, W, w->eps);
        oracle_linear(a->logits + i * w->V, last, w->lm_head != NULL ? w->lm_head : w->embedding, NULL, 1, W, w->V);
    }
    free(stream);
    free(last);
}
