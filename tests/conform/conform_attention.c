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

/* A cache in blocks: tokens first .. first + C - 1 of every sequence each. */
enum { MOST_BLOCKS = 3 };
typedef struct cache {
    uint32_t count;
    uint64_t first[MOST_BLOCKS], C[MOST_BLOCKS];
    conform_tensor *k[MOST_BLOCKS], *v[MOST_BLOCKS];
    double *want_k, *want_v; /* of all blocks, B C G D */
} cache;

/* What a block holds before the piece: values at the positions before it, and nothing from there on. Expected then: the piece's tokens added, as
 * the cache stores them. `all` receives what is expected at the block's place among `tokens`. */
static conform_tensor *make_block(conform_data *d, const conform_seq *seq, uint64_t first, uint64_t C, const conform_tensor *piece, uint64_t tokens,
                                  double *all)
{
    const conform_case *c = d->c;
    const uint64_t width = piece->width;
    conform_tensor *block = conform_output(d, c->dtype, c->B * C, width, true);
    double *held = blank(c->B * C * width);
    const double size = conform_has(d, CASE_HUGE) ? 100 : 1;
    for (uint64_t i = 0; i < c->B * C * width; i++)
        if (first + i / width % C < (uint64_t)seq->pos[i / width / C]) held[i] = conform_normal(d) * size;
    conform_set(d, block, held);
    for (uint64_t i = 0; i < c->B * C * width; i++) {
        const uint64_t b = i / width / C, s = first + i / width % C, t = s - (uint64_t)seq->pos[b];
        double *to = &all[(b * tokens + s) * width + i % width];
        if (s < (uint64_t)seq->pos[b]) {
            *to = block->values[i];
        } else if (t < (uint64_t)seq->count[b]) {
            uint32_t bits = 0;
            float value = (float)piece->values[(b * c->L + t) * width + i % width];
            dart_from_f32(c->dtype, &bits, &value, 1);
            dart_to_f32(c->dtype, &value, &bits, 1);
            *to = value;
        }
    }
    free(held);
    return block;
}

static void make_cache(conform_data *d, const conform_seq *seq, uint64_t C, const conform_tensor *k, const conform_tensor *v, cache *made)
{
    const bool several = conform_has(d, CASE_RUNS) && C >= MOST_BLOCKS;
    made->count = several ? MOST_BLOCKS : 1;
    made->want_k = blank(d->c->B * C * k->width);
    made->want_v = blank(d->c->B * C * v->width);
    for (uint32_t i = 0; i < made->count; i++) {
        const uint64_t end = i + 1 == made->count ? C : (i + 1) * C / 4 + 1;
        made->first[i] = i > 0 ? made->first[i - 1] + made->C[i - 1] : 0;
        made->C[i] = end - made->first[i];
        made->k[i] = make_block(d, seq, made->first[i], made->C[i], k, C, made->want_k);
        made->v[i] = make_block(d, seq, made->first[i], made->C[i], v, C, made->want_v);
    }
}

static void fill_cache(conform_data *d, const conform_tensor *k, const conform_tensor *v, const conform_tensor *seqs, const cache *to)
{
    const conform_case *c = d->c;
    for (uint32_t i = 0; i < to->count; i++)
        dart_kv_append(d->stream, &(dart_kv_append_args){.B = c->B, .L = c->L, .G = c->G, .D = c->P, .C = (uint32_t)to->C[i],
                                                         .first = (uint32_t)to->first[i], .k = k->t, .v = v->t, .seq = conform_view(seqs),
                                                         .to_k = to->k[i]->t, .to_v = to->v[i]->t});
}

static void compare_cache(conform_data *d, const cache *of, uint64_t C, uint64_t width)
{
    for (uint32_t i = 0; i < of->count; i++) {
        const uint64_t rows = of->C[i];
        double *want = blank(d->c->B * rows * width);
        for (int values = 0; values < 2; values++) {
            const double *all = values ? of->want_v : of->want_k;
            for (uint64_t n = 0; n < d->c->B * rows * width; n++)
                want[n] = all[(n / width / rows * C + of->first[i] + n / width % rows) * width + n % width];
            conform_compare(d, values ? "to_v" : "to_k", values ? of->v[i] : of->k[i], want, 0, conform_floor(d->c->dtype));
        }
        free(want);
    }
}

/* D = P. With CASE_STORED the piece goes into a cache with room for N tokens more (with CASE_LIMITS N fewer) than the
 * longest sequence needs, and with CASE_RUNS it lies in three blocks; without, it is the cache. */
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
    conform_tensor *seqs = conform_has(d, CASE_SEQ) ? conform_ints(d, c->B, 2, seq.pairs) : NULL;
    cache cached = {.count = 0};
    shape_keys(d, k);
    const bool stored = conform_has(d, CASE_STORED);
    if (stored) make_cache(d, &seq, C, k, v, &cached);
    dart_key_block more[MOST_BLOCKS];
    for (uint32_t i = 1; i < cached.count; i++) more[i - 1] = (dart_key_block){.C = (uint32_t)cached.C[i], .k = cached.k[i]->t, .v = cached.v[i]->t};
    conform_tensor *o = conform_output(d, act, rows, (uint64_t)c->H * c->P, true), *lse = conform_output(d, DART_F32, rows, c->H, false);
    double *want_o = blank(rows * c->H * c->P), *want_lse = blank(rows * c->H), largest = 0;
    if (!d->plan)
        oracle_attention(&(oracle_attention_args){.B = c->B, .L = c->L, .H = c->H, .G = c->G, .D = c->P, .C = C, .scale = scale, .q = q->values,
                                                  .k = stored ? cached.want_k : k->values, .v = stored ? cached.want_v : v->values,
                                                  .pos = seq.pos, .count = seq.count, .o = want_o, .lse = want_lse, .largest = &largest});
    while (conform_next(d)) {
        if (stored) fill_cache(d, k, v, seqs, &cached);
        dart_attention(d->stream, &(dart_attention_args){.B = c->B, .L = c->L, .H = c->H, .G = c->G, .D = c->P,
                                                         .C = stored ? (uint32_t)cached.C[0] : (uint32_t)C,
                                                         .plan = conform_has(d, CASE_STEP) ? DART_PLAN_STEP : DART_PLAN_CHUNKED,
                                                         .scale = conform_has(d, CASE_PARAMS) ? 0.3f : 0, .q = q->t,
                                                         .k = stored ? cached.k[0]->t : k->t, .v = stored ? cached.v[0]->t : v->t, .more = more,
                                                         .more_count = stored ? cached.count - 1 : 0,
                                                         .seq = conform_view(seqs), .o = o->t, .lse = lse->t});
        if (!conform_execute(d)) continue;
        if (stored) compare_cache(d, &cached, C, k->width);
        /* An absolute error of a score is a relative one of its weight: the bound grows with the largest score. Rows of tiles round
         * the weights to the type of the values before they multiply them. */
        const bool rounds = conform_ran(d, "attention[matrix") || conform_ran(d, "attention[tensor");
        const double bound = conform_tolerance(BOUND_SMA, c->P + C) * (1 + largest);
        conform_compare_lse(d, lse, want_lse, bound);
        conform_compare_within(d, "o", o, want_o,
                               &(conform_limits){.bound = bound, .operands = rounds ? conform_rounding(c->dtype) : 0, .floor = conform_floor(act)});
    }
    conform_seq_free(&seq);
    double *all[] = {cached.want_k, cached.want_v, want_o, want_lse};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}
