/* The layer of a Transformer: which ops make it up, forward and backward. */
#include "transformer.h"
#include "dartlm/ops_backward.h"
#include "runtime/stream.h"

/* A layer while it is recorded, and its sizes. */
typedef struct layer {
    dart_stream *stream;
    const model_transformer_args *a;
    const dart_model_config *c;
    uint32_t T, I, groups; /* rows; H P; G P */
} layer;

static layer layer_of(dart_stream *stream, const model_transformer_args *a)
{
    const dart_model_config *c = a->config;
    return (layer){.stream = stream, .a = a, .c = c, .T = a->cu.buffer != NULL ? a->T : a->B * a->L, .I = c->H * c->P, .groups = c->G * c->P};
}

/* Parts of [q|k|v] and [a|u], of a tensor or of its gradient. */
static dart_tensor q_of(const layer *l, dart_tensor qkv) { return model_columns(qkv, 0, model_config_qkv(l->c)); }
static dart_tensor k_of(const layer *l, dart_tensor qkv) { return model_columns(qkv, l->I, model_config_qkv(l->c)); }
static dart_tensor v_of(const layer *l, dart_tensor qkv) { return model_columns(qkv, (uint64_t)l->I + l->groups, model_config_qkv(l->c)); }
static dart_tensor a_of(const layer *l, dart_tensor mlp) { return model_columns(mlp, 0, model_config_mlp(l->c)); }
static dart_tensor u_of(const layer *l, dart_tensor mlp) { return model_columns(mlp, l->c->F, 2 * (uint64_t)l->c->F); }

/* ---- Forward ---- */

/* RMSNorm, or LayerNorm where there is a bias. */
static void normalise(const layer *l, dart_tensor x, dart_tensor weight, dart_tensor bias, dart_tensor y)
{
    if (bias.buffer == NULL)
        dart_rms_norm(l->stream, &(dart_rms_norm_args){.T = l->T, .W = l->c->W, .eps = l->c->eps, .x = x, .weight = weight, .y = y});
    else
        dart_layer_norm(l->stream, &(dart_layer_norm_args){.T = l->T, .W = l->c->W, .eps = l->c->eps, .x = x, .weight = weight, .bias = bias,
                                                           .y = y});
}

typedef struct forward_product {
    uint32_t in, out;
    bool add; /* to y */
    dart_tensor x, weight, bias, y, from;
} forward_product;

static void multiply(const layer *l, const forward_product *p)
{
    dart_linear(l->stream, &(dart_linear_args){.T = l->T, .IN = p->in, .OUT = p->out, .add = p->add, .x = p->x, .weight = p->weight,
                                               .bias = p->bias, .y = p->y, .from = p->from});
}

/* In place. */
static void turn(const layer *l, uint32_t heads, bool inverse, dart_tensor x)
{
    const model_transformer_args *a = l->a;
    dart_rope(l->stream, &(dart_rope_args){.B = a->B, .L = a->L, .T = a->T, .H = heads, .D = l->c->P, .R = l->c->R, .inverse = inverse,
                                           .base = l->c->base, .x = x, .seq = a->seq, .cu = a->cu, .y = x});
}

/* Whether the rows of `second` lie behind `outputs` rows of `first`, so that one product reads both: a trainer places them so where nothing has to
 * be aligned in between. */
static bool follows(const layer *l, dart_tensor first, uint32_t outputs, dart_tensor second)
{
    return first.buffer == second.buffer && first.dtype == second.dtype && first.row == 0 && second.row == 0 &&
           second.offset == first.offset + (uint64_t)outputs * l->c->W;
}

static bool qkv_is_one(const layer *l, const model_transformer_weights *w)
{
    return w->q_bias.buffer == NULL && follows(l, w->q_proj, l->I, w->k_proj) && follows(l, w->k_proj, l->groups, w->v_proj);
}

static bool mlp_is_one(const layer *l, const model_transformer_weights *w)
{
    return !l->c->neox && follows(l, w->gate_proj, l->c->F, w->up_proj);
}

static void project(const layer *l)
{
    const model_transformer_args *a = l->a;
    const model_transformer_weights *w = &a->weights;
    const dart_tensor q = q_of(l, a->work.qkv), k = k_of(l, a->work.qkv), v = v_of(l, a->work.qkv);
    if (qkv_is_one(l, w)) {
        multiply(l, &(forward_product){.in = l->c->W, .out = l->I + 2 * l->groups, .x = a->work.input, .weight = w->q_proj, .y = q});
    } else {
        multiply(l, &(forward_product){.in = l->c->W, .out = l->I, .x = a->work.input, .weight = w->q_proj, .bias = w->q_bias, .y = q});
        multiply(l, &(forward_product){.in = l->c->W, .out = l->groups, .x = a->work.input, .weight = w->k_proj, .bias = w->k_bias, .y = k});
        multiply(l, &(forward_product){.in = l->c->W, .out = l->groups, .x = a->work.input, .weight = w->v_proj, .bias = w->v_bias, .y = v});
    }
    turn(l, l->c->H + l->c->G, false, q); /* keys stand behind the queries */
}

/* Over the keys and values of `count` blocks. */
static void attend(const layer *l, const dart_key_block *blocks, uint32_t count)
{
    const model_transformer_args *a = l->a;
    dart_attention(l->stream, &(dart_attention_args){
        .B = a->B, .L = a->L, .T = a->T, .H = l->c->H, .G = l->c->G, .D = l->c->P, .C = blocks->C, .q = q_of(l, a->work.qkv), .k = blocks->k,
        .v = blocks->v, .seq = a->seq, .cu = a->cu, .more = blocks + 1, .more_count = count - 1, .o = a->work.o, .lse = a->kept.lse});
}

/* Over the piece's own. */
static void attend_piece(const layer *l)
{
    const dart_key_block own = {.C = l->a->L, .k = k_of(l, l->a->work.qkv), .v = v_of(l, l->a->work.qkv)};
    attend(l, &own, 1);
}

/* The keys and values of L tokens of B sequences, which lie at these rows of qkv, from sequence `to` of the cache on. seq: their positions; without
 * it they are the first tokens. */
static void append(const layer *l, uint32_t to, uint32_t B, uint32_t L, uint64_t rows, dart_tensor seq)
{
    const model_transformer_args *a = l->a;
    const dart_tensor k = k_of(l, a->work.qkv), v = v_of(l, a->work.qkv);
    uint32_t first = 0;
    for (uint32_t i = 0; i < a->cache_count && (seq.buffer != NULL || first < L); first += a->cache[i++].C) {
        const dart_key_block *block = &a->cache[i];
        const uint64_t place = (uint64_t)to * block->C * l->groups, rows_behind = rows + (seq.buffer == NULL ? first : 0);
        const uint32_t rest = seq.buffer == NULL ? (uint32_t)base_smaller(L - first, block->C) : L;
        if (i < a->append_from) continue;
        dart_kv_append(l->stream, &(dart_kv_append_args){
            .B = B, .L = rest, .G = l->c->G, .D = l->c->P, .C = block->C, .first = seq.buffer != NULL ? first : 0, .seq = seq,
            .k = model_columns(k, rows_behind * k.row, k.row), .v = model_columns(v, rows_behind * v.row, v.row),
            .to_k = model_columns(block->k, place, 0), .to_v = model_columns(block->v, place, 0)});
    }
}

static void expand(const layer *l)
{
    const model_transformer_args *a = l->a;
    const model_transformer_weights *w = &a->weights;
    const forward_product up = {.in = l->c->W, .out = l->c->F, .x = a->work.mlp_input, .weight = w->up_proj, .bias = w->up_bias,
                                .y = l->c->neox ? a_of(l, a->work.mlp) : u_of(l, a->work.mlp)};
    if (mlp_is_one(l, w)) {
        multiply(l, &(forward_product){.in = l->c->W, .out = 2 * l->c->F, .x = a->work.mlp_input, .weight = w->gate_proj, .y = a_of(l, a->work.mlp)});
        return;
    }
    if (!l->c->neox)
        multiply(l, &(forward_product){.in = l->c->W, .out = l->c->F, .x = a->work.mlp_input, .weight = w->gate_proj, .y = a_of(l, a->work.mlp)});
    multiply(l, &up);
}

static void gate(const layer *l)
{
    const model_transformer_work *work = &l->a->work;
    const dart_tensor a = a_of(l, work->mlp);
    if (l->c->neox) dart_gelu(l->stream, &(dart_gelu_args){.T = l->T, .I = l->c->F, .by_tanh = l->c->gelu_tanh, .a = a, .h = work->hidden});
    else dart_swiglu(l->stream, &(dart_swiglu_args){.T = l->T, .I = l->c->F, .a = a, .u = u_of(l, work->mlp), .h = work->hidden});
}

/* What stands before the attention and behind it. */
static void enter(const layer *l)
{
    normalise(l, l->a->x, l->a->weights.norm, l->a->weights.norm_bias, l->a->work.input);
    project(l);
}

static dart_status leave(const layer *l)
{
    const model_transformer_args *a = l->a;
    const model_transformer_weights *w = &a->weights;
    const bool parallel = l->c->neox && !l->c->sequential; /* the MLP reads the stream before the attention is added */
    const forward_product attention = {.in = l->I, .out = l->c->W, .add = true, .x = a->work.o, .weight = w->out_proj, .bias = w->out_bias,
                                       .y = a->x};
    if (!parallel) multiply(l, &attention);
    normalise(l, a->x, w->mlp_norm, w->mlp_norm_bias, a->work.mlp_input);
    if (parallel) multiply(l, &attention);
    expand(l);
    gate(l);
    multiply(l, &(forward_product){.in = l->c->F, .out = l->c->W, .add = true, .x = a->work.hidden, .weight = w->down_proj, .bias = w->down_bias,
                                   .y = a->x});
    return l->stream->status;
}

dart_status model_transformer_piece(dart_stream *stream, const model_transformer_args *a)
{
    const layer l = layer_of(stream, a);
    enter(&l);
    append(&l, 0, a->B, a->L, 0, a->seq);
    attend(&l, a->cache, a->cache_count);
    return leave(&l);
}

dart_status model_transformer_packed(dart_stream *stream, const model_transformer_args *a, const int32_t *borders)
{
    const layer l = layer_of(stream, a);
    enter(&l);
    attend_piece(&l);
    for (uint32_t b = 0; b < a->B; b++)
        append(&l, b, 1, (uint32_t)(borders[b + 1] - borders[b]), (uint64_t)borders[b], (dart_tensor){0});
    return leave(&l);
}

/* to = from + x weight^T. */
static void add_product(const layer *l, uint32_t in, dart_tensor x, dart_tensor weight, dart_tensor from, dart_tensor to)
{
    multiply(l, &(forward_product){.in = in, .out = l->c->W, .x = x, .weight = weight, .y = to, .from = from});
}

/* The layer behind the attention: rows of labelled tokens, where only they count. */
static layer end_of(const layer *l)
{
    layer end = *l;
    if (l->a->labelled.of.rows > 0) end.T = l->a->labelled.of.rows;
    return end;
}

/* kept.middle = x + o out_proj^T. */
static void add_attention(const layer *l)
{
    const model_transformer_args *a = l->a;
    const layer end = end_of(l);
    if (a->labelled.of.rows == 0) {
        add_product(l, l->I, a->work.o, a->weights.out_proj, a->x, a->kept.middle);
        return;
    }
    model_take_labelled(l->stream, &a->labelled.of, l->T, l->I, a->work.o, a->labelled.o);
    model_take_labelled(l->stream, &a->labelled.of, l->T, l->c->W, a->x, a->kept.middle);
    multiply(&end, &(forward_product){.in = l->I, .out = l->c->W, .add = true, .x = a->labelled.o, .weight = a->weights.out_proj,
                                      .y = a->kept.middle});
}

dart_status model_transformer_train(dart_stream *stream, const model_transformer_args *a, unsigned parts)
{
    const layer l = layer_of(stream, a), end = end_of(&l);
    if ((parts & MODEL_TRANSFORMER_NORM) != 0) normalise(&l, a->x, a->weights.norm, a->weights.norm_bias, a->work.input);
    if ((parts & MODEL_TRANSFORMER_PROJECT) != 0) project(&l);
    if ((parts & MODEL_TRANSFORMER_ATTEND) != 0) attend_piece(&l);
    if ((parts & MODEL_TRANSFORMER_MIDDLE) != 0) add_attention(&l);
    if ((parts & MODEL_TRANSFORMER_MLP_NORM) != 0) normalise(&end, a->kept.middle, a->weights.mlp_norm, a->weights.mlp_norm_bias, a->work.mlp_input);
    if ((parts & MODEL_TRANSFORMER_MLP) != 0) expand(&end);
    if ((parts & MODEL_TRANSFORMER_GATE) != 0) gate(&end);
    if ((parts & MODEL_TRANSFORMER_OUT) != 0) add_product(&end, l.c->F, a->work.hidden, a->weights.down_proj, a->kept.middle, a->kept.out);
    return stream->status;
}

/* ---- Backward ---- */

typedef struct product {
    uint32_t in, out;
    bool add; /* to grad_x */
    dart_tensor x, weight, up_y, grad_x, grad_weight;
} product;

static void multiply_back(const layer *l, const product *p)
{
    dart_linear_backward(l->stream, &(dart_linear_backward_args){.T = l->T, .IN = p->in, .OUT = p->out, .add = p->add, .x = p->x,
                                                                 .weight = p->weight, .up_y = p->up_y, .grad_x = p->grad_x,
                                                                 .grad_weight = p->grad_weight});
}

/* Adds to the gradient of the stream. */
static void normalise_back(const layer *l, dart_tensor x, dart_tensor weight, dart_tensor up, dart_tensor grad_x, dart_tensor grad_weight)
{
    dart_rms_norm_backward(l->stream, &(dart_rms_norm_backward_args){.T = l->T, .W = l->c->W, .eps = l->c->eps, .add = true, .x = x,
                                                                     .weight = weight, .up_y = up, .grad_x = grad_x,
                                                                     .grad_weight = grad_weight});
}

/* slope: the gradient of the stream, in and out, of the rows that l has. */
static void mlp_back(const layer *l, const model_transformer_gradients *to, const model_transformer_slopes *s, dart_tensor slope)
{
    const model_transformer_args *a = l->a;
    const uint32_t W = l->c->W, F = l->c->F;
    const dart_tensor grad_a = a_of(l, s->mlp), grad_u = u_of(l, s->mlp);
    multiply_back(l, &(product){.in = F, .out = W, .x = a->work.hidden, .weight = a->weights.down_proj, .up_y = slope, .grad_x = s->hidden,
                                .grad_weight = to->down_proj});
    dart_swiglu_backward(l->stream, &(dart_swiglu_backward_args){.T = l->T, .I = F, .a = a_of(l, a->work.mlp), .u = u_of(l, a->work.mlp),
                                                                 .up_h = s->hidden, .grad_a = grad_a, .grad_u = grad_u});
    if (mlp_is_one(l, &a->weights) && mlp_is_one(l, to)) {
        multiply_back(l, &(product){.in = W, .out = 2 * F, .x = a->work.mlp_input, .weight = a->weights.gate_proj, .up_y = grad_a, .grad_x = s->input,
                                    .grad_weight = to->gate_proj});
    } else {
        multiply_back(l, &(product){.in = W, .out = F, .x = a->work.mlp_input, .weight = a->weights.gate_proj, .up_y = grad_a, .grad_x = s->input,
                                    .grad_weight = to->gate_proj});
        multiply_back(l, &(product){.in = W, .out = F, .add = true, .x = a->work.mlp_input, .weight = a->weights.up_proj, .up_y = grad_u,
                                    .grad_x = s->input, .grad_weight = to->up_proj});
    }
    normalise_back(l, a->kept.middle, a->weights.mlp_norm, s->input, slope, to->mlp_norm);
}

/* From the product behind the attention to the gradient of o. */
static void out_back(const layer *l, const model_transformer_gradients *to, const model_transformer_slopes *s)
{
    const model_transformer_args *a = l->a;
    const model_transformer_labelled *labelled = &a->labelled;
    const layer end = end_of(l);
    const bool few = labelled->of.rows > 0;
    multiply_back(&end, &(product){.in = l->I, .out = l->c->W, .x = few ? labelled->o : a->work.o, .weight = a->weights.out_proj,
                                   .up_y = few ? labelled->slope_out : s->x, .grad_x = few ? labelled->slope_o : s->o, .grad_weight = to->out_proj});
    if (!few) return;
    model_put_labelled(l->stream, &labelled->of, l->T, l->I, labelled->slope_o, s->o);
    model_put_labelled(l->stream, &labelled->of, l->T, l->c->W, labelled->slope_out, s->x);
}

static void attention_back(const layer *l, const model_transformer_gradients *to, const model_transformer_slopes *s)
{
    const model_transformer_args *a = l->a;
    const uint32_t W = l->c->W;
    const dart_tensor grad_q = q_of(l, s->qkv), grad_k = k_of(l, s->qkv), grad_v = v_of(l, s->qkv);
    dart_attention_backward(l->stream, &(dart_attention_backward_args){
        .B = a->B, .L = a->L, .T = a->T, .H = l->c->H, .G = l->c->G, .D = l->c->P, .q = q_of(l, a->work.qkv), .k = k_of(l, a->work.qkv),
        .v = v_of(l, a->work.qkv), .o = a->work.o, .lse = a->kept.lse, .cu = a->cu, .up_o = s->o, .grad_q = grad_q, .grad_k = grad_k,
        .grad_v = grad_v});
    turn(l, l->c->H + l->c->G, true, grad_q);
    const bool one = qkv_is_one(l, &a->weights) && qkv_is_one(l, to);
    const product products[] = {{.out = l->I + (one ? 2 * l->groups : 0), .weight = a->weights.q_proj, .up_y = grad_q, .grad_weight = to->q_proj},
                                {.out = l->groups, .add = true, .weight = a->weights.k_proj, .up_y = grad_k, .grad_weight = to->k_proj},
                                {.out = l->groups, .add = true, .weight = a->weights.v_proj, .up_y = grad_v, .grad_weight = to->v_proj}};
    for (size_t i = 0; i < (one ? 1 : sizeof products / sizeof products[0]); i++) {
        product p = products[i];
        p.in = W;
        p.x = a->work.input;
        p.grad_x = s->input;
        multiply_back(l, &p);
    }
    normalise_back(l, a->x, a->weights.norm, s->input, s->x, to->norm);
}

dart_status model_transformer_backward(dart_stream *stream, const model_transformer_args *args, const model_transformer_gradients *gradients,
                                       const model_transformer_slopes *slopes)
{
    const layer l = layer_of(stream, args), end = end_of(&l);
    mlp_back(&end, gradients, slopes, args->labelled.of.rows > 0 ? args->labelled.slope_out : slopes->x);
    out_back(&l, gradients, slopes);
    attention_back(&l, gradients, slopes);
    return stream->status;
}
