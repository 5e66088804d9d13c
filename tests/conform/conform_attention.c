/* Softmax attention, on the piece's own keys and values or over a cache that they are appended to. */
#include "conform_data.h"
#include "conform_packed.h"
#include "conform_seq.h"

#include "oracle.h"

#include <math.h>
#include <stdlib.h>

static double *blank(uint64_t count)
{
    double *values = malloc((size_t)count * sizeof *values);
    if (values == NULL) abort();
    for (uint64_t i = 0; i < count; i++) values[i] = NAN;
    return values;
}

/* Keys of a case: unit normal; so large that one token takes all and f16 cannot hold the product; all alike. */
static void shape_keys(conform_data *d, conform_tensor *k)
{
    const double size = conform_has(d, CASE_HUGE) ? 100 : conform_has(d, CASE_FAR) ? 10 : conform_has(d, CASE_ZERO) ? 0 : 1;
    for (uint64_t i = 0; i < k->rows * k->width; i++) k->values[i] *= size;
    conform_set(d, k, k->values);
}

/* What a cache holds before the piece: values at the positions before it, and nothing from there on. Expected then: the
 * piece's tokens added, as the cache stores them. */
static conform_tensor *make_cache(conform_data *d, const conform_seq *seq, uint64_t C, const conform_tensor *piece, double **expected)
{
    const conform_case *c = d->c;
    const uint64_t width = piece->width;
    conform_tensor *cache = conform_output(d, c->dtype, c->B * C, width, true);
    double *held = blank(c->B * C * width);
    const double size = conform_has(d, CASE_HUGE) ? 100 : 1;
    for (uint64_t i = 0; i < c->B * C * width; i++)
        if (i / width % C < (uint64_t)seq->pos[i / width / C]) held[i] = conform_normal(d) * size;
    conform_set(d, cache, held);
    for (uint64_t i = 0; i < c->B * C * width; i++) {
        const uint64_t b = i / width / C, s = i / width % C, t = s - (uint64_t)seq->pos[b];
        if (s < (uint64_t)seq->pos[b]) {
            held[i] = cache->values[i];
        } else if (t < (uint64_t)seq->count[b]) {
            uint32_t bits = 0;
            float value = (float)piece->values[(b * c->L + t) * width + i % width];
            dart_from_f32(c->dtype, &bits, &value, 1);
            dart_to_f32(c->dtype, &value, &bits, 1);
            held[i] = value;
        }
    }
    *expected = held;
    return cache;
}

/* D = P. With CASE_STORED the piece goes into a cache with room for N tokens more (with CASE_LIMITS N fewer) than the
 * longest sequence needs; without, it is the cache. */
void conform_attention(conform_data *d)
{
    if (conform_has(d, CASE_PACKED)) {
        conform_packed_attention(d);
        return;
    }
    const conform_case *c = d->c;
    const dart_dtype act = conform_activation(c);
    const uint64_t rows = (uint64_t)c->B * c->L;
    const double scale = conform_has(d, CASE_PARAMS) ? 0.3 : 1 / sqrt((double)c->P);
    conform_seq seq;
    conform_seq_make(d, &seq);
    uint64_t C = c->L;
    for (uint32_t b = 0; b < c->B; b++)
        if (C < (uint64_t)seq.pos[b] + (uint64_t)seq.count[b]) C = (uint64_t)seq.pos[b] + (uint64_t)seq.count[b];
    if (conform_has(d, CASE_STORED)) C = conform_has(d, CASE_LIMITS) ? C - c->N : C + c->N;
    conform_tensor *q = conform_input(d, act, rows, (uint64_t)c->H * c->P, true, conform_unit);
    conform_tensor *k = conform_input(d, act, rows, (uint64_t)c->G * c->P, true, conform_unit);
    conform_tensor *v = conform_input(d, act, rows, (uint64_t)c->G * c->P, true, conform_unit);
    conform_tensor *seqs = conform_has(d, CASE_SEQ) ? conform_ints(d, c->B, 2, seq.pairs) : NULL, *to_k = k, *to_v = v;
    shape_keys(d, k);
    double *want_k = NULL, *want_v = NULL;
    if (conform_has(d, CASE_STORED)) {
        to_k = make_cache(d, &seq, C, k, &want_k);
        to_v = make_cache(d, &seq, C, v, &want_v);
        dart_kv_append(d->stream, &(dart_kv_append_args){.B = c->B, .L = c->L, .G = c->G, .D = c->P, .C = (uint32_t)C, .k = k->t, .v = v->t,
                                                         .seq = conform_view(seqs), .to_k = to_k->t, .to_v = to_v->t});
    }
    conform_tensor *o = conform_output(d, act, rows, (uint64_t)c->H * c->P, true), *lse = conform_output(d, DART_F32, rows, c->H, false);
    double *want_o = blank(rows * c->H * c->P), *want_lse = blank(rows * c->H), largest = 0;
    oracle_attention(&(oracle_attention_args){.B = c->B, .L = c->L, .H = c->H, .G = c->G, .D = c->P, .C = C, .scale = scale, .q = q->values,
                                              .k = want_k != NULL ? want_k : k->values, .v = want_v != NULL ? want_v : v->values,
                                              .pos = seq.pos, .count = seq.count, .o = want_o, .lse = want_lse, .largest = &largest});
    dart_attention(d->stream, &(dart_attention_args){.B = c->B, .L = c->L, .H = c->H, .G = c->G, .D = c->P, .C = (uint32_t)C,
                                                     .plan = conform_has(d, CASE_STEP) ? DART_PLAN_STEP : DART_PLAN_CHUNKED,
                                                     .scale = conform_has(d, CASE_PARAMS) ? 0.3f : 0, .q = q->t, .k = to_k->t, .v = to_v->t,
                                                     .seq = conform_view(seqs), .o = o->t, .lse = lse->t});
    conform_execute(d);
    if (conform_has(d, CASE_STORED)) {
        conform_compare(d, "to_k", to_k, want_k, 0, conform_floor(c->dtype));
        conform_compare(d, "to_v", to_v, want_v, 0, conform_floor(c->dtype));
    }
    /* An absolute error of a score is a relative one of its weight: the bound grows with the largest score. Rows of tiles round
     * the weights to the type of the values before they multiply them. */
    const bool rounds = conform_ran(d, "attention[matrix") || conform_ran(d, "attention[tensor");
    const double bound = conform_tolerance(BOUND_SMA, c->P + C) * (1 + largest);
    conform_compare(d, "lse", lse, want_lse, bound, 0);
    conform_compare_within(d, "o", o, want_o,
                           &(conform_limits){.bound = bound, .operands = rounds ? conform_rounding(c->dtype) : 0, .floor = conform_floor(act)});
    conform_seq_free(&seq);
    double *all[] = {want_k, want_v, want_o, want_lse};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}
