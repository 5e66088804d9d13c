/* The step of a mixer: one token of every sequence, in three stages of launches that do not wait for one another. */
#include "mixer.h"
#include "ops/arguments.h"
#include "ops/dense/dense.h"

/* Attention is split over memories until this many workgroups a multiprocessor have work. Every workgroup of the last stage merges
 * all splits, hence a limit to them. */
enum { WORKGROUPS = 8, MAX_SPLITS = 16, FEW_TOGETHER = 2, MEMORIES_TOGETHER = 4 };

/* Kernels of quantised rows take the arguments and bindings of the others. */
static_assert((int)BINDING_mixer_project_quantised_cum == (int)BINDING_mixer_project_cum, "bindings of mixer_project_quantised");
static_assert((int)BINDING_mixer_output_quantised_x == (int)BINDING_mixer_output_x, "bindings of mixer_output_quantised");

typedef struct mixer_plan {
    op_call call;
    const dart_mixer_step_args *a;
    uint32_t flags;
    uint32_t I, R, Q, channels, sma_channels; /* widths: inner, in_proj, sma_proj, of both convolutions */
    uint64_t state;                           /* H N P */
    uint64_t decay_at;                        /* in cum */
    uint32_t splits;                          /* of all runs */
    bool sma;                                 /* queries are made and memories kept */
    struct {
        op_operand x, seq, norm, in_proj, in_proj_rest, conv_weight, conv_bias, dt_bias, a_log, d, mixer_norm, out_proj, tail, h, proj, y;
    } o;
    struct {
        op_operand sma_proj, sma_proj_rest, sma_conv_weight, sma_conv_bias, sma_tail, open, open_decay, queries;
    } sma_o; /* all absent without sma */
    op_operand cum, decay, dh, partial; /* scratch; decay is a part of cum */
} mixer_plan;

static ops_run run_of(const mixer_plan *p, const dart_memories *run)
{
    const dart_mixer_step_args *a = p->a;
    return ops_run_of(run, "memories", "scale", (uint64_t)a->B * run->M, a->H, a->N, a->P);
}

static dart_status check_memories(mixer_plan *p, const dart_memories *runs, uint32_t count)
{
    OP_REQUIRE(&p->call, count == 0 || (runs != NULL && p->sma), "memories need a list of them and sma_proj");
    for (uint32_t i = 0; i < count; i++) {
        OP_REQUIRE(&p->call, runs[i].M > 0, "run %u has no memories", i);
        const ops_run o = run_of(p, &runs[i]);
        OP_CHECK(&p->call, o);
    }
    return op_status(&p->call);
}

static op_operand mixer_weight(const char *name, const dart_tensor *weight, uint64_t rows, uint32_t width)
{
    op_operand operand = dense_weight(weight, rows, width);
    operand.name = name;
    return operand;
}

static dart_status check(mixer_plan *p)
{
    op_call *call = &p->call;
    const dart_mixer_step_args *a = p->a;
    OP_REQUIRE(call, a->B > 0 && a->W > 0 && a->H > 0 && a->G > 0 && a->S > 0,
               "B %u, W %u, H %u, G %u, S %u: all must be above 0", a->B, a->W, a->H, a->G, a->S);
    if (ops_check_sizes(call, a->H, a->G, a->N, a->P, a->S) != DART_OK) return op_status(call);
    if (ops_check_taps(call, a->K) != DART_OK) return op_status(call);
    OP_REQUIRE(call, (uint64_t)a->H * a->P <= UINT32_MAX / 8, "H %u x P %u is too wide", a->H, a->P);
    p->sma = op_has(&a->sma_proj);
    OP_REQUIRE(call, a->eps > 0 && (!p->sma || a->sma_eps > 0), "eps %g, sma_eps %g must be above 0", (double)a->eps, (double)a->sma_eps);
    if (ops_check_steps(call, a->dt_min, a->dt_max) != DART_OK) return op_status(call);
    OP_REQUIRE(call, op_has(&a->open) == p->sma && op_has(&a->open_decay) == p->sma && (op_has(&a->seq) || !p->sma),
               "sma_proj, open and open_decay come together, and with seq");
    p->I = a->H * a->P;
    p->channels = p->I + 2 * a->G * a->N;
    p->R = p->I + p->channels + a->H;
    p->sma_channels = a->G * (a->N + a->P);
    p->Q = (p->sma_channels + 8) / 8 * 8;
    p->state = (uint64_t)a->H * a->N * a->P;
    const uint64_t B = a->B, kept = B * (a->K - 1);
    p->o.x = (op_operand){"x", a->x, OP_FLOAT | OP_VIEW, B, a->W};
    p->o.seq = (op_operand){"seq", a->seq, OP_I32 | OP_OPTIONAL, B, 2};
    p->o.norm = (op_operand){"norm", a->norm, OP_FLOAT, 1, a->W};
    const bool in_rest = op_has(&a->in_proj_rest), sma_rest = op_has(&a->sma_proj_rest);
    p->o.in_proj = mixer_weight("in_proj", &a->in_proj, in_rest ? p->R - a->H : p->R, a->W);
    p->o.in_proj_rest = (op_operand){"in_proj_rest", a->in_proj_rest, OP_FLOAT | OP_OPTIONAL, a->H, a->W};
    p->o.conv_weight = (op_operand){"conv_weight", a->conv_weight, OP_FLOAT, p->channels, a->K};
    p->o.conv_bias = (op_operand){"conv_bias", a->conv_bias, OP_FLOAT | OP_OPTIONAL, 1, p->channels};
    p->o.dt_bias = (op_operand){"dt_bias", a->dt_bias, OP_FLOAT, 1, a->H};
    p->o.a_log = (op_operand){"a_log", a->a_log, OP_FLOAT, 1, a->H};
    p->o.d = (op_operand){"d", a->d, OP_FLOAT, 1, a->H};
    p->o.mixer_norm = (op_operand){"mixer_norm", a->mixer_norm, OP_FLOAT, 1, p->I};
    p->o.out_proj = mixer_weight("out_proj", &a->out_proj, a->W, p->I);
    p->o.tail = (op_operand){"tail", a->tail, OP_FLOAT, kept, p->channels};
    p->o.h = (op_operand){"h", a->h, OP_F32 | OP_ALIGNED, B, p->state};
    p->o.proj = (op_operand){"proj", a->proj, OP_F32 | OP_OPTIONAL, B, p->R};
    p->o.y = (op_operand){"y", a->y, OP_F32 | OP_OPTIONAL, B, p->I};
    OP_CHECK(call, p->o);
    dense_check_quantised(call, &a->in_proj, a->W);
    dense_check_quantised(call, &a->out_proj, p->I);
    OP_REQUIRE(call, !dense_is_quantised(&p->o.out_proj) || a->P % 8 == 0, "P %u is not a multiple of 8, as quantised out_proj needs", a->P);
    if (p->sma) {
        dense_check_quantised(call, &a->sma_proj, a->W);
        p->sma_o.sma_proj = mixer_weight("sma_proj", &a->sma_proj, sma_rest ? p->sma_channels : p->Q, a->W);
        p->sma_o.sma_proj_rest = (op_operand){"sma_proj_rest", a->sma_proj_rest, OP_FLOAT | OP_OPTIONAL, p->Q - p->sma_channels, a->W};
        p->sma_o.sma_conv_weight = (op_operand){"sma_conv_weight", a->sma_conv_weight, OP_FLOAT, p->sma_channels, a->K};
        p->sma_o.sma_conv_bias = (op_operand){"sma_conv_bias", a->sma_conv_bias, OP_FLOAT | OP_OPTIONAL, 1, p->sma_channels};
        p->sma_o.sma_tail = (op_operand){"sma_tail", a->sma_tail, OP_FLOAT, kept, p->sma_channels};
        p->sma_o.open = (op_operand){"open", a->open, OP_F32 | OP_ALIGNED, B, p->state};
        p->sma_o.open_decay = (op_operand){"open_decay", a->open_decay, OP_F32 | OP_ALIGNED, B, a->H};
        p->sma_o.queries = (op_operand){"queries", a->queries, OP_F32 | OP_OPTIONAL, B, p->Q};
        OP_CHECK(call, p->sma_o);
    }
    p->flags = op_has(&a->seq) ? HAS_SEQ : 0;
    if (check_memories(p, a->memories, a->memories_count) != DART_OK) return op_status(call);
    return check_memories(p, a->closing, a->closing_count);
}

static op_operand columns(const op_operand *rows, uint64_t first, uint64_t width)
{
    op_operand part = *rows;
    part.of.offset += first;
    part.of.row = op_row(rows);
    part.width = width;
    return part;
}

/* ---- Stage one: both products, and what their outputs alone decide ---- */

/* Of a product: the row in f32, weights of 16 bits, whole words of eight of them, at most `most`. */
static uint32_t product_traits(const mixer_plan *p, const op_operand *weight, const op_operand *norm, uint64_t most)
{
    const dart_dtype dtype = weight->of.dtype;
    const bool fits = p->a->x.dtype == DART_F32 && (dtype == DART_F16 || dtype == DART_BF16) && weight->width % 8 == 0 && weight->width <= most &&
                      p->a->x.offset % 8 == 0 && norm->of.offset % 8 == 0 && weight->of.offset % 8 == 0;
    return fits ? FITS_MIXER_STEP | FITS_MIXER_ROW16 | (weight->width <= most / 2 ? FITS_MIXER_HALF_STEP : 0) : 0;
}

static kernel_id project_kernel(const op_operand *weight)
{
    return dense_is_quantised(weight) ? KERNEL_mixer_project_quantised : KERNEL_mixer_project;
}

/* Outputs of a tile where the row leaves that to the call: `outputs`, of `launches` launches that are together, shared out evenly. */
static void share_out(op_call *call, uint64_t outputs, uint32_t launches)
{
    const uint32_t workgroups = op_multiprocessors(call);
    if (call->T0 == 0) call->T0 = (uint32_t)base_ceil_div(outputs, workgroups > 2 * launches ? workgroups - launches + 1 : 1);
}

typedef struct projection {
    const op_operand *weight, *rest, *taps, *bias, *tail, *y;
    uint32_t first;
    bool steps; /* its last H outputs are step sizes */
} projection;

static void project(mixer_plan *p, const projection *of);

/* The last outputs, whose weights lie apart from quantised ones: step sizes, or what has no convolution. */
static void project_rest(mixer_plan *p, const projection *of)
{
    const uint64_t before = of->weight->rows;
    const op_operand no_taps = {.rows = 0}, absent = {0}, y = columns(of->y, before, of->rest->rows);
    project(p, &(projection){.weight = of->rest, .rest = &absent, .taps = &no_taps, .bias = &absent, .tail = &absent, .y = &y,
                             .steps = of->steps});
}

static void project(mixer_plan *p, const projection *of)
{
    op_call *call = &p->call;
    const dart_mixer_step_args *a = p->a;
    const op_operand absent = {0};
    const bool apart = op_has(&of->rest->of), steps = of->steps && !apart;
    const op_operand y = columns(of->y, 0, of->weight->rows); /* no more, so that the launch of the rest does not wait for this one */
    const uint32_t outputs = (uint32_t)of->weight->rows, channels = (uint32_t)of->taps->rows;
    const uint32_t flags = (op_has(&of->bias->of) ? HAS_BIAS : 0) | (steps ? HAS_STEPS : 0) | (p->sma ? HAS_OPEN : 0);
    struct MixerProjectArgs k = {.flags = p->flags | flags, .rows = a->B, .inputs = a->W, .outputs = outputs, .first = of->first,
                                 .C = channels, .K = a->K, .H = a->H, .decay_at = (uint32_t)p->decay_at, .eps = a->eps,
                                 .dt_min = a->dt_min, .dt_max = ops_most_step(a->dt_max)};
    op_kernel(call, project_kernel(of->weight), a->B, product_traits(p, of->weight, &p->o.norm, STEP_PROJECT_INPUTS));
    share_out(call, (uint64_t)p->R + (p->sma ? p->Q : 0), 4);
    OP_LAUNCH(call, &k, base_ceil_div(outputs, call->T0) * base_ceil_div(a->B, call->T1), OP_ROWS(mixer_project, x, &p->o.x, k),
              OP_AT(mixer_project, norm, &p->o.norm, k), OP_AT(mixer_project, weight, of->weight, k),
              OP_ROWS(mixer_project, y, &y, k), OP_AT(mixer_project, taps, of->taps, k), OP_AT(mixer_project, bias, of->bias, k),
              OP_AT(mixer_project, tail, of->tail, k), OP_AT(mixer_project, seq, &p->o.seq, k),
              OP_AT(mixer_project, a_log, steps ? &p->o.a_log : &absent, k),
              OP_AT(mixer_project, dt_bias, steps ? &p->o.dt_bias : &absent, k),
              OP_WHOLE(mixer_project, open_decay, steps ? &p->sma_o.open_decay : &absent),
              OP_WHOLE(mixer_project, cum, steps ? &p->cum : &absent));
    if (apart) project_rest(p, of);
}

/* ---- Stage two: the scan, and the attention beside it ---- */

static void scan(mixer_plan *p)
{
    op_call *call = &p->call;
    const dart_mixer_step_args *a = p->a;
    const uint64_t width = (uint64_t)a->G * a->N, heads = (uint64_t)a->B * a->H;
    const op_operand x = columns(&p->o.proj, p->I, p->I), b = columns(&p->o.proj, 2 * (uint64_t)p->I, width),
                     c = columns(&p->o.proj, 2 * (uint64_t)p->I + width, width);
    op_operand cum = p->cum;
    cum.width = heads * CUM_STRIDE;
    const uint32_t flags = HAS_H | HAS_D | (p->sma ? HAS_OPEN | HAS_DH | HAS_CLOSED : 0);
    struct SsdStepArgs k = {.flags = p->flags | flags, .B = a->B, .H = a->H, .G = a->G, .N = a->N, .P = a->P, .S = a->S};
    op_kernel(call, KERNEL_ssd_step, a->B, FITS_SSD_STEP | (a->N == 128 && a->P == 64 ? FITS_N128_P64 : 0));
    OP_LAUNCH(call, &k, base_ceil_div(a->P, call->T0) * heads, OP_ROWS(ssd_step, x, &x, k), OP_ROWS(ssd_step, b, &b, k),
              OP_ROWS(ssd_step, c, &c, k), OP_WHOLE(ssd_step, cum, &cum), OP_WHOLE(ssd_step, decay, &p->decay),
              OP_AT(ssd_step, d, &p->o.d, k), OP_AT(ssd_step, seq, &p->o.seq, k), OP_WHOLE(ssd_step, h, &p->o.h),
              OP_WHOLE(ssd_step, open, &p->sma_o.open), OP_WHOLE(ssd_step, open_decay, &p->sma_o.open_decay),
              OP_AT(ssd_step, dh, &p->dh, k), OP_ROWS(ssd_step, y, &p->o.y, k));
}

/* What rows of mixer_attend ask of a run. */
static uint32_t attend_traits(const mixer_plan *p, const dart_memories *run, uint32_t splits)
{
    const dart_mixer_step_args *a = p->a;
    const uint64_t e_at = p->sma_o.queries.of.offset + (uint64_t)a->G * a->N;
    const bool words = run->dh.dtype != DART_F32 && run->dh.offset % 8 == 0;
    /* All memories of a split on their way together. */
    const bool four = words && (e_at | op_row(&p->sma_o.queries)) % 4 == 0 && run->M <= (uint64_t)MEMORIES_TOGETHER * splits;
    /* Two a split pay where all workgroups run at once: each split more is merged by every workgroup of the last stage. */
    const uint64_t workgroups = (uint64_t)a->H * base_ceil_div(run->M, FEW_TOGETHER);
    const bool two = four && run->M <= (uint64_t)FEW_TOGETHER * splits && workgroups <= op_multiprocessors(&p->call);
    /* A warp a memory pays where most warps of a workgroup have one. */
    const bool many = words && run->scale.offset % 4 == 0 && run->M >= 3 * splits;
    return (many ? FITS_16BIT | FITS_MIXER_AT_LEAST_3 : words ? FITS_MIXER_BELOW_3 : 0) | (four ? FITS_MIXER_AT_MOST_4 : 0) |
           (two ? FITS_MIXER_AT_MOST_2 : 0) |
           (a->N == 128 && a->P == 64 ? FITS_N128_P64 : 0);
}

/* Memories that one split looks at. */
static uint64_t split_size(mixer_plan *p)
{
    const dart_mixer_step_args *a = p->a;
    uint64_t all = 0;
    for (uint32_t i = 0; i < a->memories_count; i++) all += a->memories[i].M;
    const uint64_t by_work = base_ceil_div(all * a->B * a->H, WORKGROUPS * op_wave(&p->call)), by_merge = base_ceil_div(all, MAX_SPLITS);
    op_kernel(&p->call, KERNEL_mixer_attend, a->B, attend_traits(p, &a->memories[0], a->memories[0].M));
    const uint64_t together = a->B == 1 ? p->call.T0 : 0;
    return base_larger(together, base_larger(by_work, by_merge));
}

static void attend(mixer_plan *p, const dart_memories *run, uint32_t from, uint32_t splits)
{
    op_call *call = &p->call;
    const dart_mixer_step_args *a = p->a;
    const uint64_t queries = (uint64_t)a->G * a->N, values = (uint64_t)a->G * a->P, heads = (uint64_t)a->B * a->H;
    const uint64_t part = heads * (a->P + 4);
    const op_operand q = columns(&p->sma_o.queries, 0, queries), e = columns(&p->sma_o.queries, queries, values),
                     c = columns(&p->o.proj, 2 * (uint64_t)p->I + queries, queries);
    const ops_run o = run_of(p, run);
    op_operand partial = p->partial;
    /* Only its own part, so that runs do not wait for one another. */
    const uint64_t before = from * part % 64;
    partial.of.offset += from * part - before;
    partial.rows = 1;
    partial.width = before + splits * part;
    struct MixerAttendArgs k = {.flags = p->flags, .B = a->B, .H = a->H, .G = a->G, .N = a->N, .P = a->P, .S = a->S,
                                .first = run->first, .count = run->M, .capacity = run->M, .splits = splits,
                                .partial_at = (uint32_t)before, .eps = a->sma_eps};
    op_kernel(call, KERNEL_mixer_attend, a->B, attend_traits(p, run, splits));
    OP_LAUNCH(call, &k, heads * splits, OP_ROWS(mixer_attend, q, &q, k), OP_AT(mixer_attend, e, &e, k), OP_ROWS(mixer_attend, c, &c, k),
              OP_AT(mixer_attend, dh, &o.dh, k), OP_AT(mixer_attend, factor, &o.scale, k), OP_AT(mixer_attend, seq, &p->o.seq, k),
              OP_WHOLE(mixer_attend, partial, &partial));
}

/* ---- Stage three: the way back into the stream, and the store of what closed ---- */

static void append(mixer_plan *p, const dart_memories *to)
{
    op_call *call = &p->call;
    const dart_mixer_step_args *a = p->a;
    const ops_run o = run_of(p, to);
    struct SmaAppendArgs k = {.flags = p->flags, .B = a->B, .L = 1, .H = a->H, .N = a->N, .P = a->P, .S = a->S, .M = 1, .first = to->first,
                              .count = to->M, .capacity = to->M, .eps = a->sma_eps};
    op_kernel(call, KERNEL_sma_append, a->B, 0);
    OP_LAUNCH(call, &k, base_ceil_div(a->N, call->T0) * a->H * a->B, OP_AT(sma_append, dh, &p->dh, k),
              OP_AT(sma_append, seq, &p->o.seq, k), OP_AT(sma_append, to, &o.dh, k), OP_AT(sma_append, scale, &o.scale, k));
}

static void output(mixer_plan *p)
{
    op_call *call = &p->call;
    const dart_mixer_step_args *a = p->a;
    const op_operand absent = {0};
    const bool attends = p->splits > 0;
    const op_operand z = columns(&p->o.proj, 0, p->I), gate = columns(&p->sma_o.queries, p->sma_channels, 1);
    struct MixerOutputArgs k = {.flags = p->flags | (attends ? HAS_SMA : 0), .rows = a->B, .inputs = p->I, .outputs = a->W, .P = a->P,
                                .splits = p->splits, .eps = a->eps};
    const bool fits = a->P % 4 == 0 && (uint64_t)a->H * p->splits <= STEP_PARTIALS && p->o.proj.of.offset % 8 == 0 && p->o.y.of.offset % 8 == 0;
    uint32_t traits = fits ? product_traits(p, &p->o.out_proj, &p->o.mixer_norm, STEP_OUTPUT_INPUTS) : 0;
    if (a->P % 8 != 0) traits &= ~(uint32_t)FITS_MIXER_ROW16; /* eight inputs are of one head */
    op_kernel(call, dense_is_quantised(&p->o.out_proj) ? KERNEL_mixer_output_quantised : KERNEL_mixer_output, a->B, traits);
    share_out(call, a->W, 1);
    OP_LAUNCH(call, &k, base_ceil_div(a->W, call->T0) * base_ceil_div(a->B, call->T1), OP_ROWS(mixer_output, y, &p->o.y, k),
              OP_WHOLE(mixer_output, partial, attends ? &p->partial : &absent), OP_ROWS(mixer_output, gate, attends ? &gate : &absent, k),
              OP_ROWS(mixer_output, z, &z, k), OP_AT(mixer_output, norm, &p->o.mixer_norm, k),
              OP_AT(mixer_output, weight, &p->o.out_proj, k), OP_AT(mixer_output, seq, &p->o.seq, k), OP_ROWS(mixer_output, x, &p->o.x, k));
}

/* Rows that multiply matrices make no channels; up to four rows others are faster. */
static uint32_t norm_linear_traits(const dart_norm_linear_args *a, const op_operand *x, const op_operand *weight)
{
    const bool words = !dense_is_quantised(weight) && a->IN % 16 == 0 && a->x.dtype == DART_F32 && op_fits_rows(x) &&
                       op_fits_rows(weight) && a->norm.offset % 8 == 0;
    const bool is_16bit = weight->of.dtype == DART_F16 || weight->of.dtype == DART_BF16;
    if (a->T == 1) return words && is_16bit && (a->x.offset | weight->of.offset) % 8 == 0 ? FITS_MIXER_ROW16 : 0;
    return a->T > 4 && words && weight->of.dtype == DART_BF16 && a->y.dtype == DART_BF16 ? FITS_BF16 | FITS_TILES : 0;
}

typedef struct norm_linear_operands {
    op_operand x, norm, weight, y;
} norm_linear_operands;

static norm_linear_operands norm_linear_of(const dart_norm_linear_args *a)
{
    return (norm_linear_operands){.x = {"x", a->x, OP_FLOAT | OP_VIEW, a->T, a->IN},
                                  .norm = {"norm", a->norm, OP_FLOAT, 1, a->IN},
                                  .weight = dense_weight(&a->weight, a->OUT, a->IN),
                                  .y = {"y", a->y, OP_FLOAT | OP_VIEW, a->T, a->OUT}};
}

/* The row that the device chooses for the call; NULL: none. */
static const kernel_row *norm_linear_row(const dart_device *device, const dart_norm_linear_args *args)
{
    const norm_linear_operands o = norm_linear_of(args);
    return op_row_on(device, project_kernel(&o.weight), args->T, norm_linear_traits(args, &o.x, &o.weight));
}

bool mixer_norm_linear_has_matrices(const dart_device *device, const dart_norm_linear_args *args)
{
    const kernel_row *row = norm_linear_row(device, args);
    return row != NULL && ROW_HAS_MATRIX(row);
}

bool mixer_norm_linear_pays(const dart_device *device, const dart_norm_linear_args *args)
{
    const kernel_row *row = norm_linear_row(device, args);
    return row != NULL && !kernel_is_slower(row);
}

dart_status dart_norm_linear(dart_stream *stream, const dart_norm_linear_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    op_call call;
    const dart_norm_linear_args *a = args;
    if (op_begin(&call, stream, "dart_norm_linear") != DART_OK) return op_status(&call);
    OP_REQUIRE(&call, a->T > 0 && a->IN > 0 && a->OUT > 0, "T %u, IN %u, OUT %u: all must be above 0", a->T, a->IN, a->OUT);
    OP_REQUIRE(&call, a->eps > 0, "eps %g must be above 0", (double)a->eps);
    const norm_linear_operands o = norm_linear_of(a);
    if (!dense_check_quantised(&call, &a->weight, a->IN) || !OP_CHECK(&call, o)) return op_status(&call);
    /* A table above the binding limit is taken in slices. */
    const uint32_t slice = dense_rows_that_fit(&call, &o.weight);
    const kernel_id kernel = project_kernel(&o.weight);
    for (uint32_t first = 0; first < a->OUT && op_status(&call) == DART_OK; first += slice) {
        const uint32_t outputs = a->OUT - first < slice ? a->OUT - first : slice;
        const op_operand y = columns(&o.y, first, outputs);
        const op_operand weight = dense_slice(&o.weight, first, outputs);
        struct MixerProjectArgs k = {.rows = a->T, .inputs = a->IN, .outputs = outputs, .K = 1, .eps = a->eps};
        op_kernel(&call, kernel, a->T, norm_linear_traits(a, &o.x, &weight));
        OP_LAUNCH(&call, &k, base_ceil_div(outputs, call.T0) * base_ceil_div(a->T, call.T1), OP_ROWS(mixer_project, x, &o.x, k),
                  OP_AT(mixer_project, norm, &o.norm, k), OP_AT(mixer_project, weight, &weight, k), OP_ROWS(mixer_project, y, &y, k));
    }
    return op_end(&call);
}

dart_status mixer_check(dart_stream *stream, const dart_mixer_step_args *args)
{
    mixer_plan p = {.a = args};
    if (op_begin(&p.call, stream, "dart_mixer_step") != DART_OK) return op_status(&p.call);
    return check(&p);
}

dart_status dart_mixer_step(dart_stream *stream, const dart_mixer_step_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    mixer_plan p = {.a = args};
    op_call *call = &p.call;
    if (op_begin(call, stream, "dart_mixer_step") != DART_OK || check(&p) != DART_OK) return op_status(call);
    const dart_mixer_step_args *a = args;
    const uint64_t B = a->B, heads = B * a->H;
    p.decay_at = base_round_up(heads * CUM_STRIDE, 64);
    p.o.proj = op_kept(call, &p.o.proj);
    p.o.y = op_kept(call, &p.o.y);
    p.cum = op_scratch(call, DART_F32, 1, p.decay_at + 2 * heads);
    p.decay = columns(&p.cum, p.decay_at, 2 * heads);
    const projection inner = {.weight = &p.o.in_proj, .rest = &p.o.in_proj_rest, .taps = &p.o.conv_weight, .bias = &p.o.conv_bias,
                              .tail = &p.o.tail, .y = &p.o.proj, .first = p.I, .steps = true};
    if (p.sma) {
        p.sma_o.queries = op_kept(call, &p.sma_o.queries);
        p.dh = op_scratch(call, DART_F32, B, p.state);
        const uint64_t size = a->memories_count > 0 ? split_size(&p) : 1;
        for (uint32_t i = 0; i < a->memories_count; i++) p.splits += (uint32_t)base_ceil_div(a->memories[i].M, size);
        if (p.splits > 0) p.partial = op_scratch(call, DART_F32, p.splits * heads, (uint64_t)a->P + 4);
        project(&p, &inner); /* the larger one first: what follows starts while it runs */
        project(&p, &(projection){.weight = &p.sma_o.sma_proj, .rest = &p.sma_o.sma_proj_rest, .taps = &p.sma_o.sma_conv_weight,
                                  .bias = &p.sma_o.sma_conv_bias, .tail = &p.sma_o.sma_tail, .y = &p.sma_o.queries});
        for (uint32_t i = 0, from = 0; i < a->memories_count; i++) {
            const uint32_t splits = (uint32_t)base_ceil_div(a->memories[i].M, size);
            attend(&p, &a->memories[i], from, splits);
            from += splits;
        }
        scan(&p);
        for (uint32_t i = 0; i < a->closing_count; i++) append(&p, &a->closing[i]);
    } else {
        project(&p, &inner);
        scan(&p);
    }
    output(&p);
    return op_end(call);
}
