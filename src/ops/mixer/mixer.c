/* The step of a mixer: one token of every sequence, in three stages of launches that do not wait for one another. */
#include "runtime/stream.h"

#include <float.h>

/* Attention is split over memories until this many workgroups have work: eight times the multiprocessors of a large
 * GPU. Every workgroup of the last stage merges all splits, hence a limit to them. */
enum { WORKGROUPS = 1024, MAX_SPLITS = 16, MAX_TAPS = 8 };

typedef struct mixer_plan {
    op_call call;
    const dart_mixer_step_args *a;
    uint32_t flags;
    uint32_t I, R, Q, channels, sma_channels; /* widths: inner, in_proj, sma_proj, of both convolutions */
    uint64_t state;                           /* H N P */
    uint64_t decay_at;                        /* in cum */
    uint32_t splits;                          /* of all runs */
    bool sma;                                 /* queries are made and memories kept */
    dart_tensor proj, queries, y, cum, dh, partial;
} mixer_plan;

static dart_status check_memories(mixer_plan *p, const dart_memories *runs, uint32_t count)
{
    const dart_mixer_step_args *a = p->a;
    OP_REQUIRE(&p->call, count == 0 || (runs != NULL && p->sma), "memories need a list of them and sma_proj");
    for (uint32_t i = 0; i < count; i++) {
        OP_REQUIRE(&p->call, runs[i].M > 0, "run %u has no memories", i);
        op_check(&p->call, "memories", &runs[i].dh, OP_FLOAT, (uint64_t)a->B * runs[i].M, p->state);
        op_check(&p->call, "scale", &runs[i].scale, OP_F32, (uint64_t)a->B * runs[i].M, (uint64_t)a->H * a->N);
    }
    return op_status(&p->call);
}

static dart_status check(mixer_plan *p)
{
    op_call *call = &p->call;
    const dart_mixer_step_args *a = p->a;
    OP_REQUIRE(call, a->B > 0 && a->W > 0 && a->H > 0 && a->G > 0 && a->S > 0,
               "B %u, W %u, H %u, G %u, S %u: all must be above 0", a->B, a->W, a->H, a->G, a->S);
    OP_REQUIRE(call, a->H % a->G == 0, "H %u is not a multiple of G %u", a->H, a->G);
    OP_REQUIRE(call, a->N > 0 && a->N <= MAX_STATE && a->P > 0 && a->P <= MAX_STATE, "N %u, P %u must be 1 to %d", a->N, a->P, MAX_STATE);
    OP_REQUIRE(call, a->K >= 2 && a->K <= MAX_TAPS, "K %u must be 2 to %d", a->K, MAX_TAPS);
    OP_REQUIRE(call, a->S <= 1u << 30, "S %u must be at most 2^30", a->S);
    OP_REQUIRE(call, (uint64_t)a->H * a->P <= UINT32_MAX / 8, "H %u x P %u is too wide", a->H, a->P);
    p->sma = op_has(&a->sma_proj);
    OP_REQUIRE(call, a->eps > 0 && (!p->sma || a->sma_eps > 0), "eps %g, sma_eps %g must be above 0", (double)a->eps, (double)a->sma_eps);
    OP_REQUIRE(call, a->dt_min >= 0 && a->dt_max >= 0 && (a->dt_max == 0 || a->dt_max >= a->dt_min), "step limits %g to %g",
               (double)a->dt_min, (double)a->dt_max);
    OP_REQUIRE(call, op_has(&a->open) == p->sma && op_has(&a->open_decay) == p->sma && (op_has(&a->seq) || !p->sma),
               "sma_proj, open and open_decay come together, and with seq");
    p->I = a->H * a->P;
    p->channels = p->I + 2 * a->G * a->N;
    p->R = p->I + p->channels + a->H;
    p->sma_channels = a->G * (a->N + a->P);
    p->Q = (p->sma_channels + 8) / 8 * 8;
    p->state = (uint64_t)a->H * a->N * a->P;
    const uint64_t B = a->B, kept = B * (a->K - 1);
    op_check(call, "x", &a->x, OP_FLOAT | OP_VIEW, B, a->W);
    op_check(call, "seq", &a->seq, OP_I32 | OP_OPTIONAL, B, 2);
    op_check(call, "norm", &a->norm, OP_FLOAT, 1, a->W);
    op_check(call, "in_proj", &a->in_proj, OP_FLOAT, p->R, a->W);
    op_check(call, "conv_weight", &a->conv_weight, OP_FLOAT, p->channels, a->K);
    op_check(call, "conv_bias", &a->conv_bias, OP_FLOAT | OP_OPTIONAL, 1, p->channels);
    op_check(call, "dt_bias", &a->dt_bias, OP_FLOAT, 1, a->H);
    op_check(call, "a_log", &a->a_log, OP_FLOAT, 1, a->H);
    op_check(call, "d", &a->d, OP_FLOAT, 1, a->H);
    op_check(call, "mixer_norm", &a->mixer_norm, OP_FLOAT, 1, p->I);
    op_check(call, "out_proj", &a->out_proj, OP_FLOAT, a->W, p->I);
    op_check(call, "tail", &a->tail, OP_FLOAT, kept, p->channels);
    op_check(call, "h", &a->h, OP_F32 | OP_ALIGNED, B, p->state);
    op_check(call, "proj", &a->proj, OP_F32 | OP_OPTIONAL, B, p->R);
    op_check(call, "y", &a->y, OP_F32 | OP_OPTIONAL, B, p->I);
    if (p->sma) {
        op_check(call, "sma_proj", &a->sma_proj, OP_FLOAT, p->Q, a->W);
        op_check(call, "sma_conv_weight", &a->sma_conv_weight, OP_FLOAT, p->sma_channels, a->K);
        op_check(call, "sma_conv_bias", &a->sma_conv_bias, OP_FLOAT | OP_OPTIONAL, 1, p->sma_channels);
        op_check(call, "sma_tail", &a->sma_tail, OP_FLOAT, kept, p->sma_channels);
        op_check(call, "open", &a->open, OP_F32 | OP_ALIGNED, B, p->state);
        op_check(call, "open_decay", &a->open_decay, OP_F32 | OP_ALIGNED, B, a->H);
        op_check(call, "queries", &a->queries, OP_F32 | OP_OPTIONAL, B, p->Q);
    }
    p->flags = op_has(&a->seq) ? HAS_SEQ : 0;
    if (check_memories(p, a->memories, a->memories_count) != DART_OK) return op_status(call);
    return check_memories(p, a->closing, a->closing_count);
}

/* ---- Stage one: both products, and what their outputs alone decide ---- */

typedef struct projection {
    const dart_tensor *weight, *taps, *bias, *tail, *y;
    uint32_t outputs, first, channels;
    bool steps;
} projection;

static void project(mixer_plan *p, const projection *of)
{
    op_call *call = &p->call;
    const dart_mixer_step_args *a = p->a;
    const uint64_t heads = (uint64_t)a->B * a->H;
    const uint32_t flags = (op_has(of->bias) ? HAS_BIAS : 0) | (of->steps ? HAS_STEPS : 0) | (p->sma ? HAS_OPEN : 0);
    struct MixerProjectArgs k = {.flags = p->flags | flags, .rows = a->B, .inputs = a->W, .outputs = of->outputs, .first = of->first,
                                 .C = of->channels, .K = a->K, .H = a->H, .x_row = op_row(&a->x, a->W), .y_row = op_row(of->y, of->outputs),
                                 .decay_at = (uint32_t)p->decay_at, .eps = a->eps, .dt_min = a->dt_min,
                                 .dt_max = a->dt_max == 0 || a->dt_max > FLT_MAX ? FLT_MAX : a->dt_max};
    op_kernel(call, KERNEL_mixer_project, a->B, 0);
    k.x_at = op_bind_rows(call, BINDING_mixer_project_x, &a->x, a->B, a->W);
    k.norm_at = op_bind(call, BINDING_mixer_project_norm, &a->norm, a->W);
    k.weight_at = op_bind(call, BINDING_mixer_project_weight, of->weight, (uint64_t)of->outputs * a->W);
    k.y_at = op_bind(call, BINDING_mixer_project_y, of->y, (uint64_t)a->B * of->outputs);
    k.taps_at = op_bind(call, BINDING_mixer_project_taps, of->taps, (uint64_t)of->channels * a->K);
    k.bias_at = op_bind(call, BINDING_mixer_project_bias, of->bias, of->channels);
    k.tail_at = op_bind(call, BINDING_mixer_project_tail, of->tail, (uint64_t)a->B * (a->K - 1) * of->channels);
    k.seq_at = op_bind(call, BINDING_mixer_project_seq, &a->seq, 2 * (uint64_t)a->B);
    if (of->steps) {
        k.a_log_at = op_bind(call, BINDING_mixer_project_a_log, &a->a_log, a->H);
        k.dt_bias_at = op_bind(call, BINDING_mixer_project_dt_bias, &a->dt_bias, a->H);
        op_bind(call, BINDING_mixer_project_open_decay, &a->open_decay, heads);
        op_bind(call, BINDING_mixer_project_cum, &p->cum, p->decay_at + 2 * heads);
    }
    op_launch(call, &k, base_ceil_div(of->outputs, call->row->T0) * base_ceil_div(a->B, call->row->T1));
}

/* ---- Stage two: the scan, and the attention beside it ---- */

static dart_tensor columns(const dart_tensor *rows, uint64_t first, uint64_t width)
{
    dart_tensor part = *rows;
    part.offset += first;
    part.row = op_row(rows, width);
    return part;
}

static void scan(mixer_plan *p)
{
    op_call *call = &p->call;
    const dart_mixer_step_args *a = p->a;
    const uint64_t width = (uint64_t)a->G * a->N, heads = (uint64_t)a->B * a->H;
    const dart_tensor x = columns(&p->proj, p->I, p->R), b = columns(&p->proj, 2 * (uint64_t)p->I, p->R),
                      c = columns(&p->proj, 2 * (uint64_t)p->I + width, p->R);
    dart_tensor decay = p->cum;
    decay.offset += p->decay_at;
    const uint32_t flags = HAS_H | HAS_D | (p->sma ? HAS_OPEN | HAS_DH | HAS_CLOSED : 0);
    struct SsdStepArgs k = {.flags = p->flags | flags, .B = a->B, .H = a->H, .G = a->G, .N = a->N, .P = a->P, .S = a->S,
                            .x_row = op_row(&x, p->I), .b_row = op_row(&b, width),
                            .c_row = op_row(&c, width), .y_row = op_row(&p->y, p->I)};
    op_kernel(call, KERNEL_ssd_step, a->B, 0);
    k.x_at = op_bind_rows(call, BINDING_ssd_step_x, &x, a->B, p->I);
    k.b_at = op_bind_rows(call, BINDING_ssd_step_b, &b, a->B, width);
    k.c_at = op_bind_rows(call, BINDING_ssd_step_c, &c, a->B, width);
    op_bind(call, BINDING_ssd_step_cum, &p->cum, heads * CUM_STRIDE);
    op_bind(call, BINDING_ssd_step_decay, &decay, 2 * heads);
    k.d_at = op_bind(call, BINDING_ssd_step_d, &a->d, a->H);
    k.seq_at = op_bind(call, BINDING_ssd_step_seq, &a->seq, 2 * (uint64_t)a->B);
    op_bind(call, BINDING_ssd_step_h, &a->h, a->B * p->state);
    op_bind(call, BINDING_ssd_step_open, &a->open, a->B * p->state);
    op_bind(call, BINDING_ssd_step_open_decay, &a->open_decay, heads);
    k.dh_at = op_bind(call, BINDING_ssd_step_dh, &p->dh, a->B * p->state);
    k.y_at = op_bind(call, BINDING_ssd_step_y, &p->y, (uint64_t)a->B * p->I);
    op_launch(call, &k, base_ceil_div(a->P, call->row->T0) * heads);
}

/* Memories that one split looks at. */
static uint64_t split_size(const mixer_plan *p)
{
    const dart_mixer_step_args *a = p->a;
    uint64_t all = 0;
    for (uint32_t i = 0; i < a->memories_count; i++) all += a->memories[i].M;
    const uint64_t by_work = base_ceil_div(all * a->B * a->H, WORKGROUPS), by_merge = base_ceil_div(all, MAX_SPLITS);
    return by_work > by_merge ? by_work : by_merge;
}

static void attend(mixer_plan *p, const dart_memories *run, uint32_t from, uint32_t splits)
{
    op_call *call = &p->call;
    const dart_mixer_step_args *a = p->a;
    const uint64_t queries = (uint64_t)a->G * a->N, values = (uint64_t)a->G * a->P, heads = (uint64_t)a->B * a->H;
    const uint64_t memories = (uint64_t)a->B * run->M, part = heads * (a->P + 4);
    const dart_tensor q = columns(&p->queries, 0, p->Q), e = columns(&p->queries, queries, p->Q),
                      c = columns(&p->proj, 2 * (uint64_t)p->I + queries, p->R);
    dart_tensor partial = p->partial;
    /* Only its own part, so that runs do not wait for one another. */
    const uint64_t before = from * part % 64;
    partial.offset += from * part - before;
    struct MixerAttendArgs k = {.flags = p->flags, .B = a->B, .H = a->H, .G = a->G, .N = a->N, .P = a->P, .S = a->S,
                                .first = run->first, .count = run->M, .capacity = run->M, .splits = splits, .q_row = op_row(&q, queries),
                                .c_row = op_row(&c, queries), .partial_at = (uint32_t)before, .eps = a->sma_eps};
    /* A warp a memory pays where most warps of a workgroup have one. */
    const bool half = run->dh.dtype != DART_F32 && run->dh.offset % 8 == 0 && run->scale.offset % 4 == 0 &&
                      run->M >= 3 * splits;
    op_kernel(call, KERNEL_mixer_attend, a->B, (half ? FITS_HALF : 0) | (a->N == 128 && a->P == 64 ? FITS_N128_P64 : 0));
    k.q_at = op_bind_rows(call, BINDING_mixer_attend_q, &q, a->B, queries);
    k.e_at = op_bind_rows(call, BINDING_mixer_attend_e, &e, a->B, values);
    k.c_at = op_bind_rows(call, BINDING_mixer_attend_c, &c, a->B, queries);
    k.dh_at = op_bind(call, BINDING_mixer_attend_dh, &run->dh, memories * p->state);
    k.factor_at = op_bind(call, BINDING_mixer_attend_factor, &run->scale, memories * a->H * a->N);
    k.seq_at = op_bind(call, BINDING_mixer_attend_seq, &a->seq, 2 * (uint64_t)a->B);
    op_bind(call, BINDING_mixer_attend_partial, &partial, before + splits * part);
    op_launch(call, &k, heads * splits);
}

/* ---- Stage three: the way back into the stream, and the store of what closed ---- */

static void append(mixer_plan *p, const dart_memories *to)
{
    op_call *call = &p->call;
    const dart_mixer_step_args *a = p->a;
    const uint64_t memories = (uint64_t)a->B * to->M;
    struct SmaAppendArgs k = {.flags = p->flags, .B = a->B, .L = 1, .H = a->H, .N = a->N, .P = a->P, .S = a->S, .M = 1, .first = to->first,
                              .count = to->M, .capacity = to->M, .eps = a->sma_eps};
    op_kernel(call, KERNEL_sma_append, a->B, 0);
    k.dh_at = op_bind(call, BINDING_sma_append_dh, &p->dh, a->B * p->state);
    k.seq_at = op_bind(call, BINDING_sma_append_seq, &a->seq, 2 * (uint64_t)a->B);
    k.to_at = op_bind(call, BINDING_sma_append_to, &to->dh, memories * p->state);
    k.scale_at = op_bind(call, BINDING_sma_append_scale, &to->scale, memories * a->H * a->N);
    op_launch(call, &k, base_ceil_div(a->N, call->row->T0) * a->H * a->B);
}

static void output(mixer_plan *p)
{
    op_call *call = &p->call;
    const dart_mixer_step_args *a = p->a;
    const bool attends = p->splits > 0;
    const dart_tensor z = columns(&p->proj, 0, p->R), gate = columns(&p->queries, p->sma_channels, p->Q);
    struct MixerOutputArgs k = {.flags = p->flags | (attends ? HAS_SMA : 0), .rows = a->B, .inputs = p->I, .outputs = a->W, .P = a->P,
                                .splits = p->splits, .y_row = op_row(&p->y, p->I), .gate_row = op_row(&gate, 1), .z_row = op_row(&z, p->I),
                                .x_row = op_row(&a->x, a->W), .eps = a->eps};
    op_kernel(call, KERNEL_mixer_output, a->B, 0);
    k.y_at = op_bind(call, BINDING_mixer_output_y, &p->y, (uint64_t)a->B * p->I);
    if (attends) {
        op_bind(call, BINDING_mixer_output_partial, &p->partial, (uint64_t)p->splits * a->B * a->H * (a->P + 4));
        k.gate_at = op_bind_rows(call, BINDING_mixer_output_gate, &gate, a->B, 1);
    }
    k.z_at = op_bind_rows(call, BINDING_mixer_output_z, &z, a->B, p->I);
    k.norm_at = op_bind(call, BINDING_mixer_output_norm, &a->mixer_norm, p->I);
    k.weight_at = op_bind(call, BINDING_mixer_output_weight, &a->out_proj, (uint64_t)a->W * p->I);
    k.seq_at = op_bind(call, BINDING_mixer_output_seq, &a->seq, 2 * (uint64_t)a->B);
    k.x_at = op_bind_rows(call, BINDING_mixer_output_x, &a->x, a->B, a->W);
    op_launch(call, &k, base_ceil_div(a->W, call->row->T0) * base_ceil_div(a->B, call->row->T1));
}

/* Rows that multiply matrices make no channels; up to four rows others are faster. */
static uint32_t norm_linear_facts(const dart_norm_linear_args *a, const dart_tensor *weight)
{
    const bool words = a->IN % 16 == 0 && a->x.dtype == DART_F32 && op_fits_rows(&a->x, a->IN) && op_fits_rows(weight, a->IN) &&
                       a->norm.offset % 8 == 0;
    return a->T > 4 && words && weight->dtype == DART_BF16 && a->y.dtype == DART_BF16 ? FITS_BF16 | FITS_TILES : 0;
}

bool op_norm_linear_has_matrices(const dart_device *device, const dart_norm_linear_args *args)
{
    const uint32_t traits = norm_linear_facts(args, &args->weight);
    const kernel_row *row = kernel_pick(device->backend->rows, KERNEL_mixer_project, device->info.capabilities, traits, args->T, NULL);
    return row != NULL && ROW_HAS_MATRIX(row);
}

dart_status dart_norm_linear(dart_stream *stream, const dart_norm_linear_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    op_call call;
    const dart_norm_linear_args *a = args;
    if (op_begin(&call, stream, "dart_norm_linear") != DART_OK) return op_status(&call);
    OP_REQUIRE(&call, a->T > 0 && a->IN > 0 && a->OUT > 0, "T %u, IN %u, OUT %u: all must be above 0", a->T, a->IN, a->OUT);
    OP_REQUIRE(&call, a->eps > 0, "eps %g must be above 0", (double)a->eps);
    op_check(&call, "x", &a->x, OP_FLOAT | OP_VIEW, a->T, a->IN);
    op_check(&call, "norm", &a->norm, OP_FLOAT, 1, a->IN);
    op_check(&call, "weight", &a->weight, OP_FLOAT, a->OUT, a->IN);
    op_check(&call, "y", &a->y, OP_FLOAT | OP_VIEW, a->T, a->OUT);
    if (op_status(&call) != DART_OK) return op_status(&call);
    /* A table above the binding limit is taken in slices. */
    const uint64_t fit = op_binding_limit(&call) / ((uint64_t)a->IN * dart_dtype_size(a->weight.dtype));
    const uint32_t slice = fit == 0 ? 1 : fit < a->OUT ? (uint32_t)fit : a->OUT;
    for (uint32_t o = 0; o < a->OUT && op_status(&call) == DART_OK; o += slice) {
        const uint32_t outputs = a->OUT - o < slice ? a->OUT - o : slice;
        dart_tensor weight = a->weight, y = a->y;
        weight.offset += (uint64_t)o * a->IN;
        y.offset += o;
        y.row = op_row(&a->y, a->OUT);
        struct MixerProjectArgs k = {.rows = a->T, .inputs = a->IN, .outputs = outputs, .K = 1, .x_row = op_row(&a->x, a->IN),
                                     .y_row = (uint32_t)y.row, .eps = a->eps};
        op_kernel(&call, KERNEL_mixer_project, a->T, norm_linear_facts(a, &weight));
        k.x_at = op_bind_rows(&call, BINDING_mixer_project_x, &a->x, a->T, a->IN);
        k.norm_at = op_bind(&call, BINDING_mixer_project_norm, &a->norm, a->IN);
        k.weight_at = op_bind(&call, BINDING_mixer_project_weight, &weight, (uint64_t)outputs * a->IN);
        k.y_at = op_bind_rows(&call, BINDING_mixer_project_y, &y, a->T, outputs);
        op_launch(&call, &k, base_ceil_div(outputs, call.row->T0) * base_ceil_div(a->T, call.row->T1));
    }
    return op_end(&call);
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
    p.proj = op_kept(call, &a->proj, B * p.R);
    p.y = op_kept(call, &a->y, B * p.I);
    p.cum = op_scratch(call, p.decay_at + 2 * heads);
    if (p.sma) {
        p.queries = op_kept(call, &a->queries, B * p.Q);
        p.dh = op_scratch(call, B * p.state);
        const uint64_t size = a->memories_count > 0 ? split_size(&p) : 1;
        for (uint32_t i = 0; i < a->memories_count; i++) p.splits += (uint32_t)base_ceil_div(a->memories[i].M, size);
        if (p.splits > 0) p.partial = op_scratch(call, p.splits * heads * (a->P + 4));
        project(&p, &(projection){.weight = &a->sma_proj, .taps = &a->sma_conv_weight, .bias = &a->sma_conv_bias, .tail = &a->sma_tail,
                                  .y = &p.queries, .outputs = p.Q, .channels = p.sma_channels});
        project(&p, &(projection){.weight = &a->in_proj, .taps = &a->conv_weight, .bias = &a->conv_bias, .tail = &a->tail, .y = &p.proj,
                                  .outputs = p.R, .first = p.I, .channels = p.channels, .steps = true});
        for (uint32_t i = 0, from = 0; i < a->memories_count; i++) {
            const uint32_t splits = (uint32_t)base_ceil_div(a->memories[i].M, size);
            attend(&p, &a->memories[i], from, splits);
            from += splits;
        }
        scan(&p);
        for (uint32_t i = 0; i < a->closing_count; i++) append(&p, &a->closing[i]);
    } else {
        project(&p, &(projection){.weight = &a->in_proj, .taps = &a->conv_weight, .bias = &a->conv_bias, .tail = &a->tail, .y = &p.proj,
                                  .outputs = p.R, .first = p.I, .channels = p.channels, .steps = true});
        scan(&p);
    }
    output(&p);
    return op_end(call);
}
