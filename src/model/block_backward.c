/* The backward pass of the block, op by op in the reverse order of model_block_train. */
#include "block.h"
#include "checkpoint/config.h"
#include "dartlm/ops_backward.h"
#include "runtime/stream.h"

typedef struct pass {
    dart_stream *stream;
    const model_block_args *a;
    const dart_model_config *c;
    const model_block_gradients *to;
    const model_block_slopes *slopes;
    uint32_t T, I, groups; /* B L; H P; G N */
    uint32_t rows;         /* from the gated norm on */
    bool attends, labelled;
} pass;

/* Columns of [z|x|b|c|dt], of [x|b|c], of [q|e|gate|padding] and of [q|e], of a tensor or of its gradient. */
static dart_tensor proj_columns(const pass *p, dart_tensor of, uint64_t first) { return model_columns(of, first, model_config_in_proj_row(p->c)); }
static dart_tensor conv_columns(const pass *p, dart_tensor of, uint64_t first) { return model_columns(of, first, model_config_conv(p->c)); }
static dart_tensor sma_columns(const pass *p, dart_tensor of, uint64_t first) { return model_columns(of, first, model_config_sma_proj(p->c)); }
static dart_tensor query_columns(const pass *p, dart_tensor of, uint64_t first) { return model_columns(of, first, model_config_sma_conv(p->c)); }

/* Rows for matrices take operands of one 16-bit type. `input` is free until the gradient of the input takes its place. */
static dart_tensor slope_of_out(const pass *p)
{
    const dart_tensor slope = p->labelled ? p->a->labelled.slope_out : p->slopes->x;
    if (p->slopes->input.dtype == DART_F32) return slope;
    if (p->slopes->copied && !p->labelled) return p->slopes->input;
    dart_convert(p->stream, &(dart_convert_args){.T = p->rows, .W = p->c->W, .x = slope, .y = p->slopes->input});
    return p->slopes->input;
}

static void put_out(const pass *p)
{
    dart_linear_backward(p->stream, &(dart_linear_backward_args){
        .T = p->rows, .IN = p->I, .OUT = p->c->W, .x = p->a->work.normed, .weight = p->a->weights.out_proj, .up_y = slope_of_out(p),
        .grad_x = p->slopes->normed, .grad_weight = p->to->out_proj});
}

/* args: of all tokens. Goes on to z's part of the gradient of the input. */
static void gate_labelled(const pass *p, const dart_gated_norm_backward_args *args)
{
    const model_block_labelled *from = &p->a->labelled;
    dart_gated_norm_backward_args few = *args;
    few.T = p->rows;
    few.y = from->y;
    few.z = from->z;
    few.grad_y = from->slope_y;
    few.grad_z = from->slope_z;
    if (p->attends) {
        few.r = from->r;
        few.gate = from->gate;
        few.grad_r = from->slope_r;
        few.grad_gate = from->slope_gate;
    }
    dart_gated_norm_backward(p->stream, &few);
    model_put_labelled(p->stream, &from->of, p->T, p->I, few.grad_y, args->grad_y);
    if (p->attends && from->S == 0) model_put_labelled(p->stream, &from->of, p->T, p->I, few.grad_r, args->grad_r);
    if (p->attends) model_put_labelled(p->stream, &from->of, p->T, 1, few.grad_gate, args->grad_gate);
    model_take_labelled(p->stream, &from->of, p->T, p->c->W, p->a->work.input, from->input);
    dart_linear_backward(p->stream, &(dart_linear_backward_args){
        .T = p->rows, .IN = p->c->W, .OUT = p->I, .x = from->input, .weight = p->a->weights.in_proj, .up_y = few.grad_z,
        .grad_x = from->slope_input, .grad_weight = p->to->in_proj});
    model_put_labelled(p->stream, &from->of, p->T, p->c->W, from->slope_input, p->slopes->input);
}

static void gate(const pass *p)
{
    const model_block_work *work = &p->a->work;
    const uint32_t gate_at = model_config_sma_conv(p->c), padding = model_config_sma_proj(p->c) - gate_at - 1;
    dart_gated_norm_backward_args args = {
        .T = p->T, .I = p->I, .eps = p->c->eps, .y = work->y, .z = proj_columns(p, work->proj, 0), .weight = p->a->weights.mixer_norm,
        .up_out = p->slopes->normed, .grad_y = p->slopes->y, .grad_z = proj_columns(p, p->slopes->proj, 0), .grad_weight = p->to->mixer_norm};
    if (p->attends) {
        args.r = work->r;
        args.gate = sma_columns(p, work->sma_proj, gate_at);
        args.grad_r = p->slopes->r;
        args.grad_gate = sma_columns(p, p->slopes->sma_proj, gate_at);
    }
    if (p->labelled) gate_labelled(p, &args);
    else dart_gated_norm_backward(p->stream, &args);
    if (p->attends && padding > 0)
        dart_fill(p->stream, &(dart_fill_args){.T = p->T, .W = padding, .y = sma_columns(p, p->slopes->sma_proj, gate_at + 1)});
}

/* As below, where the attention was computed for labelled tokens only. */
static void attend_labelled(const pass *p)
{
    const dart_model_config *c = p->c;
    const model_block_args *a = p->a;
    const model_block_labelled *of = &a->labelled;
    const uint64_t queries = p->groups, own_at = queries + (uint64_t)c->G * c->P;
    dart_sma_backward(p->stream, &(dart_sma_backward_args){
        .B = a->B, .L = of->L, .H = c->H, .G = c->G, .N = c->N, .P = c->P, .S = of->S, .eps = c->sma_eps, .seq = of->seq,
        .q = query_columns(p, of->queries, 0), .e = query_columns(p, of->queries, queries),
        .c = c->independent_c ? query_columns(p, of->queries, own_at) : of->c,
        .memories = {.M = (uint32_t)base_ceil_div(a->L, a->S), .dh = a->kept.dh, .scale = a->kept.dh_scale}, .r = of->r, .lse = a->kept.lse,
        .up_r = of->slope_r, .grad_q = query_columns(p, of->slope_queries, 0), .grad_e = query_columns(p, of->slope_queries, queries),
        .grad_c = c->independent_c ? query_columns(p, of->slope_queries, own_at) : of->slope_c, .grad_dh = p->slopes->dh});
    model_put_labelled(p->stream, &of->of, p->T, model_config_sma_conv(c), of->slope_queries, p->slopes->sma_conv);
    if (!c->independent_c)
        model_put_labelled(p->stream, &of->of, p->T, queries, of->slope_c, conv_columns(p, p->slopes->conv, p->I + queries));
}

/* Writes the gradients of c and of the memories, to which those of the scan are added (unless c is SMA's own) or which the scan reads. */
static void attend(const pass *p)
{
    const dart_model_config *c = p->c;
    const model_block_args *a = p->a;
    const uint64_t queries = p->groups, keys = (uint64_t)c->G * c->P, own_at = queries + keys, c_at = p->I + queries;
    if (!p->attends) return;
    if (a->labelled.S > 0) {
        attend_labelled(p);
        return;
    }
    dart_sma_backward(p->stream, &(dart_sma_backward_args){
        .B = a->B, .L = a->L, .T = a->T, .cu = a->cu, .H = c->H, .G = c->G, .N = c->N, .P = c->P, .S = a->S, .eps = c->sma_eps,
        .q = query_columns(p, a->work.sma_conv, 0), .e = query_columns(p, a->work.sma_conv, queries),
        .c = c->independent_c ? query_columns(p, a->work.sma_conv, own_at) : conv_columns(p, a->work.conv, c_at),
        .memories = {.M = (uint32_t)base_ceil_div(a->L, a->S), .dh = a->kept.dh, .scale = a->kept.dh_scale}, .r = a->work.r, .lse = a->kept.lse,
        .up_r = p->slopes->r, .grad_q = query_columns(p, p->slopes->sma_conv, 0),
        .grad_e = query_columns(p, p->slopes->sma_conv, queries),
        .grad_c = c->independent_c ? query_columns(p, p->slopes->sma_conv, own_at) : conv_columns(p, p->slopes->conv, c_at),
        .grad_dh = p->slopes->dh});
}

static void scan(const pass *p)
{
    const dart_model_config *c = p->c;
    const model_block_args *a = p->a;
    const uint64_t dt_at = (uint64_t)p->I + model_config_conv(c), b_at = p->I, c_at = b_at + p->groups;
    dart_ssd_backward_args args = {
        .B = a->B, .L = a->L, .T = a->T, .cu = a->cu, .H = c->H, .G = c->G, .N = c->N, .P = c->P, .S = a->S,
        .add_c = p->attends && !c->independent_c, .dt_min = c->dt_min, .dt_max = c->dt_max, .quiet = a->labelled.quiet,
        .x = conv_columns(p, a->work.conv, 0), .b = conv_columns(p, a->work.conv, b_at),
        .c = conv_columns(p, a->work.conv, c_at), .dt = proj_columns(p, a->work.proj, dt_at), .a_log = a->weights.a_log,
        .dt_bias = a->weights.dt_bias, .d = a->weights.d, .up_y = p->slopes->y, .grad_x = conv_columns(p, p->slopes->conv, 0),
        .grad_b = conv_columns(p, p->slopes->conv, b_at), .grad_c = conv_columns(p, p->slopes->conv, c_at),
        .grad_dt = proj_columns(p, p->slopes->proj, dt_at), .grad_a_log = p->to->a_log, .grad_dt_bias = p->to->dt_bias, .grad_d = p->to->d};
    if (p->attends) args.up_dh = p->slopes->dh;
    dart_ssd_backward(p->stream, &args);
}

static void convolve(const pass *p)
{
    const dart_model_config *c = p->c;
    const model_block_args *a = p->a;
    dart_conv_backward(p->stream, &(dart_conv_backward_args){
        .B = a->B, .L = a->L, .T = a->T, .cu = a->cu, .C = model_config_conv(c), .K = c->K, .x = proj_columns(p, a->work.proj, p->I),
        .weight = a->weights.conv_weight,
        .bias = a->weights.conv_bias, .up_y = p->slopes->conv, .grad_x = proj_columns(p, p->slopes->proj, p->I),
        .grad_weight = p->to->conv_weight, .grad_bias = p->to->conv_bias});
    if (!p->attends) return;
    dart_conv_backward(p->stream, &(dart_conv_backward_args){
        .B = a->B, .L = a->L, .T = a->T, .cu = a->cu, .C = model_config_sma_conv(c), .K = c->K, .x = sma_columns(p, a->work.sma_proj, 0),
        .weight = a->weights.sma_conv_weight, .bias = a->weights.sma_conv_bias, .up_y = p->slopes->sma_conv,
        .grad_x = sma_columns(p, p->slopes->sma_proj, 0), .grad_weight = p->to->sma_conv_weight, .grad_bias = p->to->sma_conv_bias});
}

static void project(const pass *p)
{
    const model_block_args *a = p->a;
    const uint32_t z = p->labelled ? p->I : 0; /* columns that are done */
    dart_tensor in_proj = a->weights.in_proj, grad_in_proj = p->to->in_proj;
    in_proj.offset += (uint64_t)z * p->c->W;
    grad_in_proj.offset += (uint64_t)z * p->c->W;
    dart_linear_backward(p->stream, &(dart_linear_backward_args){
        .T = p->T, .IN = p->c->W, .OUT = model_config_in_proj(p->c) - z, .add = p->labelled, .x = a->work.input, .weight = in_proj,
        .up_y = proj_columns(p, p->slopes->proj, z), .grad_x = p->slopes->input, .grad_weight = grad_in_proj});
    if (!p->attends) return;
    dart_linear_backward(p->stream, &(dart_linear_backward_args){
        .T = p->T, .IN = p->c->W, .OUT = model_config_sma_proj(p->c), .add = true, .x = a->work.input, .weight = a->weights.sma_proj,
        .up_y = p->slopes->sma_proj, .grad_x = p->slopes->input, .grad_weight = p->to->sma_proj});
}

static void normalise(const pass *p)
{
    const model_block_labelled *labelled = &p->a->labelled;
    dart_rms_norm_backward_args norm = {
        .T = p->T, .W = p->c->W, .eps = p->c->eps, .add = !p->labelled, .x = p->a->x, .weight = p->a->weights.norm, .up_y = p->slopes->input,
        .grad_x = p->slopes->x, .grad_weight = p->to->norm};
    if (p->labelled) {
        norm.F = labelled->of.rows;
        norm.from = labelled->slope_out;
        norm.from_rows = labelled->of.row_of;
    }
    if (p->slopes->copies && p->slopes->input.dtype != DART_F32) norm.copy = p->slopes->input;
    dart_rms_norm_backward(p->stream, &norm);
}

dart_status model_block_backward(dart_stream *stream, const model_block_args *args, const model_block_gradients *gradients,
                                 const model_block_slopes *slopes)
{
    const dart_model_config *c = args->config;
    const pass p = {.stream = stream, .a = args, .c = c, .to = gradients, .slopes = slopes, .T = model_block_rows(args),
                    .I = model_config_inner(c), .groups = c->G * c->N, .attends = model_block_attends(args),
                    .rows = args->labelled.of.rows > 0 ? args->labelled.of.rows : model_block_rows(args), .labelled = args->labelled.of.rows > 0};
    put_out(&p);
    gate(&p);
    attend(&p);
    scan(&p);
    convolve(&p);
    project(&p);
    normalise(&p);
    return stream->status;
}
