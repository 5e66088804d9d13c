/* The scan with its stages. */
#include "conform_data.h"
#include "conform_packed.h"
#include "conform_seq.h"

#include "shaders/args.h"
#include "oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static double any_dt(conform_data *d, uint64_t i)
{
    (void)i;
    if (conform_has(d, CASE_WIDE)) return exp(conform_uniform(d, log(1e-4), log(20)));
    return conform_has(d, CASE_DT) ? conform_uniform(d, 1e-3, 0.5) : conform_normal(d);
}

/* CASE_EXACT: without decay, all sums are whole numbers below 2^8, and none is a small rest of large ones. */
static double some(conform_data *d, uint64_t i)
{
    (void)i;
    return conform_uniform(d, 0, 1) < 0.25;
}
static double few(conform_data *d, uint64_t i)
{
    (void)i;
    return conform_uniform(d, 0, 1) < 1.0 / 32;
}
static double digit(conform_data *d, uint64_t i)
{
    (void)i;
    return ceil(conform_uniform(d, 0, 9));
}
static double one(conform_data *d, uint64_t i)
{
    (void)d, (void)i;
    return 1;
}
static double no_decay(conform_data *d, uint64_t i)
{
    (void)d, (void)i;
    return -80;
}

static double large(conform_data *d, uint64_t i)
{
    (void)i;
    return (conform_uniform(d, 0, 1) < 0.5 ? -1 : 1) * conform_uniform(d, 3e4, 6.5e4);
}
static double small(conform_data *d, uint64_t i)
{
    (void)i;
    return 0.06 * conform_normal(d);
}

/* hi + lo into hi, as the two-float sum stands for one number. */
static void join(conform_tensor *cum)
{
    float *values = (float *)cum->initial + cum->t.offset;
    for (uint64_t i = 0; i < cum->rows; i++)
        if (!isnan(values[CUM_STRIDE * i])) values[CUM_STRIDE * i] += values[CUM_STRIDE * i + 1];
}

typedef struct scan_case {
    conform_seq seq;
    uint32_t M, C, quiet;
    uint64_t rows, chunks, state;
    bool step;
    conform_runs runs;
    conform_tensor *x, *dt, *b, *c, *a_log, *bias, *skip, *seqs, *h, *open, *open_decay, *y, *cum, *decay;
    conform_tensor *dh, *dh_scale, *hin, *hin_scale;
} scan_case;

/* Memories as the caller asks for them: raw f32, or normalised in the dtype of the case. */
static void make_memories(conform_data *d, scan_case *k)
{
    const conform_case *c = d->c;
    const uint64_t scales = (uint64_t)c->H * c->N;
    const bool normalised = (c->dtype != DART_F32) != conform_has(d, CASE_FORM) && !k->step;
    if (conform_has(d, CASE_STORED)) {
        conform_runs_make(d, &k->seq, &k->runs);
    } else {
        k->dh = conform_output(d, normalised ? c->dtype : DART_F32, k->chunks, k->state, false);
        if (normalised) k->dh_scale = conform_output(d, DART_F32, k->chunks, scales, false);
    }
    if (k->step || conform_has(d, CASE_BARE)) return;
    const bool scaled = normalised && (c->dtype != DART_BF16 || conform_has(d, CASE_SCALED));
    k->hin = conform_output(d, normalised ? c->dtype : DART_F32, k->chunks, k->state, false);
    if (scaled) k->hin_scale = conform_output(d, DART_F32, k->chunks, scales, false);
}

static void make(conform_data *d, scan_case *k)
{
    const conform_case *c = d->c;
    const dart_dtype act = conform_activation(c);
    conform_seq_make(d, &k->seq);
    k->step = conform_has(d, CASE_STEP);
    k->M = dart_ssd_chunks(c->L, c->S, conform_has(d, CASE_SEQ));
    k->C = c->S < c->L ? c->S : c->L;
    k->rows = (uint64_t)c->B * c->L;
    k->chunks = (uint64_t)c->B * k->M;
    k->state = (uint64_t)c->H * c->N * c->P;
    const bool exact = conform_has(d, CASE_EXACT), is_large = conform_has(d, CASE_LARGE);
    const conform_generator any = exact ? some : is_large ? small : conform_unit;
    k->x = conform_input(d, act, k->rows, (uint64_t)c->H * c->P, true, exact ? few : is_large ? large : conform_unit);
    k->dt = conform_input(d, act, k->rows, c->H, true, exact ? one : any_dt);
    k->b = conform_input(d, act, k->rows, (uint64_t)c->G * c->N, true, any);
    k->c = conform_input(d, act, k->rows, (uint64_t)c->G * c->N, true, any);
    k->a_log = conform_input(d, c->dtype, 1, c->H, false, exact ? no_decay : conform_a_log);
    if (conform_has(d, CASE_PARAMS)) {
        k->bias = conform_input(d, c->dtype, 1, c->H, false, conform_bias);
        k->skip = conform_input(d, c->dtype, 1, c->H, false, exact ? digit : any);
    }
    if (conform_has(d, CASE_SEQ)) k->seqs = conform_ints(d, c->B, 2, k->seq.pairs);
    if (conform_has(d, CASE_H)) k->h = conform_input(d, DART_F32, c->B, k->state, false, exact ? some : conform_unit);
    if (conform_has(d, CASE_OPEN)) conform_open_make(d, &k->seq, &k->open, &k->open_decay);
    k->y = conform_output(d, act, k->rows, (uint64_t)c->H * c->P, true);
    make_memories(d, k);
    k->quiet = conform_quiet(d);
    if (conform_has(d, CASE_BARE)) return;
    k->cum = conform_output(d, DART_F32, k->rows * c->H, CUM_STRIDE, false);
    k->decay = conform_output(d, DART_F32, c->B, (uint64_t)(k->M + 1) * c->H, false);
}

/* What the stages hold, from the oracle's: cum and decay count from the piece's first token, hin[0] is the state there, chunks
 * that the piece does not reach are 0 in decay and not written in hin. */
static void adapt(const conform_data *d, const scan_case *k, double *cum, double *decay, double *hin)
{
    const conform_case *c = d->c;
    for (uint32_t b = 0; b < c->B; b++) {
        const uint32_t o = (uint32_t)k->seq.pos[b] % c->S, count = (uint32_t)k->seq.count[b];
        for (uint32_t h = 0; h < c->H; h++) {
            double *line = cum + ((uint64_t)b * c->H + h) * c->L;
            const double open = k->open_decay != NULL ? k->open_decay->values[b * c->H + h] : 0;
            decay[(uint64_t)b * (k->M + 1) * c->H + h] = open;
            for (uint32_t t = 0; t < count && t < c->S - o; t++) line[t] -= open;
            for (uint32_t j = 0; j < k->M; j++) {
                const uint32_t begin = j == 0 ? 0 : j * c->S - o;
                const uint32_t end = (j + 1) * c->S - o < count ? (j + 1) * c->S - o : count;
                decay[((uint64_t)b * (k->M + 1) + 1 + j) * c->H + h] = begin < end ? line[end - 1] : 0;
                double *enter = hin + (((uint64_t)b * k->M + j) * c->H + h) * c->N * c->P;
                for (uint64_t i = 0; i < (uint64_t)c->N * c->P; i++) {
                    const uint64_t at = ((uint64_t)b * c->H + h) * c->N * c->P + i;
                    if (begin >= end) enter[i] = NAN;
                    else if (j == 0) enter[i] = exp(open) * (k->h != NULL ? k->h->values[at] : 0) + (k->open != NULL ? k->open->values[at] : 0);
                }
            }
        }
    }
}

/* The dtype in which the call holds the memories that states are computed from. */
static dart_dtype stored_memories(const scan_case *k)
{
    if (k->step || k->runs.count == 2) return DART_F32;
    return k->runs.count == 1 ? k->runs.runs[0].dh.dtype : k->dh->t.dtype;
}

/* What rounding one factor of each product to the type adds to an element, relative to the tensor's largest.
 *
 * A factor: f16 is rounded to nearest. bf16 is cut after being raised by CUT = 1 + 2^-8 / (2 ln 2) (shaders/ssd/matrix.glsl),
 * which centres the error on average over all mantissas, not for each: a number that CUT raises to just below 1 + 2^-7 becomes
 * 1, CUT / (1 + 2^-7) of what it was, 1.27 * 2^-8 below it. No number is left more than 0.72 * 2^-8 too large, and larger mantissas
 * err by less.
 *
 * An element errs by at most that share of the sum of its terms' magnitudes; the tolerance takes the largest element for the largest
 * such sum, which is less where terms cancel. */
static double operand_error(dart_dtype stored)
{
    const double cut = 1.002818;
    return stored == DART_BF16 ? 1 - cut / (1 + 0x1p-7) : conform_rounding(stored);
}

/* What rounding the operands of its products to 16 bits costs a stage, where a row of tiles ran it. Each product is off by at
 * most one rounding of either factor; of f16 or bf16 factors only those that were scaled or multiplied before are rounded. */
static double operand_rounding(const conform_data *d, const char *stage)
{
    static const char *const families[] = {"matrix_", "streamed_", "tensor_"}, *const kernels[] = {"ssd", "ssd_decay"};
    bool rounds = conform_ran(d, "ssd_piece[cluster") || conform_ran(d, "ssd_piece[walk64");
    for (size_t k = 0; k < sizeof kernels / sizeof kernels[0]; k++) {
        for (size_t i = 0; i < sizeof families / sizeof families[0]; i++) {
            char row[40];
            snprintf(row, sizeof row, "%s_%s[%s", kernels[k], stage, families[i]);
            rounds = rounds || conform_ran(d, row);
        }
    }
    return rounds ? operand_error(d->c->dtype) : 0;
}

/* The walk over chunks splits the operands that it scaled: b for memories, and for y the state made of these. */
static double split_rounding(const conform_data *d)
{
    return conform_ran(d, "ssd_piece[matrix") ? conform_split_rounding(d->c->dtype) : 0;
}

void conform_ssd(conform_data *d)
{
    if (conform_has(d, CASE_PACKED)) {
        conform_packed_ssd(d);
        return;
    }
    const conform_case *c = d->c;
    scan_case k = {0};
    make(d, &k);
    const double dt_min = conform_has(d, CASE_LIMITS) ? 0.05f : 0, dt_max = conform_has(d, CASE_LIMITS) ? 0.4f : 0;
    double *y = conform_filled(k.rows * c->H * c->P, NAN), *dh = conform_filled(k.chunks * k.state, NAN),
           *h_full = conform_filled(c->B * k.state, NAN);
    double *h_border = conform_filled(c->B * k.state, NAN), *open = conform_filled(c->B * k.state, NAN),
           *open_decay = conform_filled((uint64_t)c->B * c->H, NAN);
    double *step = conform_filled(k.rows * c->H, NAN), *cum = conform_filled(k.rows * c->H, NAN),
           *decay = conform_filled((uint64_t)c->B * (k.M + 1) * c->H, 0);
    double *hin = conform_filled(k.chunks * k.state, 0), *y_terms = conform_filled(k.rows * c->H * c->P, 0);
    if (!d->plan)
        oracle_ssd(&(oracle_ssd_args){
            .B = c->B, .L = c->L, .H = c->H, .G = c->G, .P = c->P, .N = c->N, .S = c->S, .M = k.M, .x = k.x->values, .dt = k.dt->values,
            .a_log = k.a_log->values, .b = k.b->values, .c = k.c->values, .dt_bias = k.bias != NULL ? k.bias->values : NULL,
            .d = k.skip != NULL ? k.skip->values : NULL, .dt_as_is = conform_has(d, CASE_DT), .dt_min = dt_min, .dt_max = dt_max, .pos = k.seq.pos,
            .count = k.seq.count, .h_in = k.h != NULL ? k.h->values : NULL, .dh_open_in = k.open != NULL ? k.open->values : NULL,
            .log_open_in = k.open != NULL ? k.open_decay->values : NULL, .y = y, .y_terms = y_terms, .dh = dh, .h_out = h_full,
            .h_border_out = h_border, .dh_open_out = open, .log_open_out = open_decay, .step = step, .cum = cum, .hin = hin});
    adapt(d, &k, cum, decay, hin);
    for (uint64_t i = 0, row = (uint64_t)c->H * c->P; i < k.rows * row; i++)
        if (i / row % c->L < k.quiet) y[i] = NAN;
    while (conform_next(d)) {
        dart_ssd(d->stream, &(dart_ssd_args){.B = c->B, .L = c->L, .H = c->H, .G = c->G, .N = c->N, .P = c->P, .S = c->S,
                                             .plan = k.step ? DART_PLAN_STEP : DART_PLAN_CHUNKED, .dt_is_step = conform_has(d, CASE_DT),
                                             .dt_min = (float)dt_min, .dt_max = (float)dt_max, .quiet = k.quiet, .x = k.x->t,
                                             .dt = k.dt->t, .b = k.b->t, .c = k.c->t,
                                             .a_log = k.a_log->t, .dt_bias = conform_view(k.bias), .d = conform_view(k.skip),
                                             .seq = conform_view(k.seqs), .h = conform_view(k.h), .open = conform_view(k.open),
                                             .open_decay = conform_view(k.open_decay), .y = k.y->t, .dh = conform_view(k.dh),
                                             .dh_scale = conform_view(k.dh_scale), .memories = k.runs.runs, .memories_count = k.runs.count,
                                             .cum = conform_view(k.cum), .decay = conform_view(k.decay), .hin = conform_view(k.hin),
                                             .hin_scale = conform_view(k.hin_scale)});
        if (!conform_execute(d)) continue;
        const double decay_bound = conform_tolerance(BOUND_DECAY, 0);
        const conform_limits memories = {.bound = conform_tolerance(BOUND_SCAN, k.C), .operands = operand_rounding(d, "memory") + split_rounding(d)};
        /* States are sums of memories as stored, which are off by one rounding of their type. */
        conform_limits states = memories;
        states.operands += conform_rounding(stored_memories(&k));
        const dart_dtype act = conform_activation(c);
        if (k.cum != NULL) {
            join(k.cum);
            const conform_tensor sums = conform_column(k.cum, 0), steps = conform_column(k.cum, 2);
            conform_compare(d, "step", &steps, step, decay_bound, 0);
            conform_compare(d, "cum", &sums, cum, decay_bound, 0);
            conform_compare(d, "decay", k.decay, decay, decay_bound, 0);
        }
        conform_compare_matrices(d, "hin", k.hin, k.hin_scale, hin, states);
        conform_compare_matrices(d, "dh", k.dh, k.dh_scale, dh, memories);
        conform_compare_runs(d, &k.seq, &k.runs, k.M, dh, memories);
        conform_compare_within(d, "h", k.h, k.open != NULL ? h_border : h_full, &states);
        conform_compare_within(d, "open", k.open, open, &memories);
        conform_compare(d, "open_decay", k.open_decay, open_decay, decay_bound, 0);
        for (uint32_t b = 0; b < c->B; b++) conform_disregard(k.y, (uint64_t)b * c->L, k.quiet);
        /* So is y as far as it comes from earlier chunks: an element may show that rounding and its own. */
        const double of_states = k.hin != NULL ? conform_rounding(k.hin->t.dtype) : conform_has(d, CASE_BARE) ? conform_rounding(c->dtype) : 0;
        const conform_limits outputs = {.bound = conform_tolerance(BOUND_SCAN, k.C + c->N),
                                        .operands = operand_rounding(d, "output") + 2 * split_rounding(d) + of_states,
                                        .floor = conform_floor(act), .terms = y_terms};
        conform_compare_within(d, "y", k.y, y, conform_has(d, CASE_EXACT) ? &(conform_limits){0} : &outputs);
    }
    conform_seq_free(&k.seq);
    double *all[] = {y, dh, h_full, h_border, open, open_decay, step, cum, decay, hin, y_terms};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}
