#include "operation.h"

#include "dartlm/ops_backward.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static dart_tensor at(const operation *o, const char *name)
{
    const size_t index = operation_index(o->kind, name);
    assert(index < OPERATION_MAX_TENSORS);
    return o->tensors[index];
}

static bool has(const operation *o, const char *name) { return at(o, name).buffer != NULL; }

static uint32_t dim(const operation *o, operation_dim which) { return (uint32_t)o->dims[which]; }

static dart_status forward(const operation *o, dart_stream *stream) { return operation_find(o->kind->name)->record(o, stream); }

static void forward_sizes(operation *o) { operation_find(o->kind->name)->derive(o); }

static dart_status copy(dart_stream *stream, uint64_t rows, uint64_t width, dart_tensor from, dart_tensor to)
{
    const dart_convert_args args = {.T = (uint32_t)rows, .W = (uint32_t)width, .x = from, .y = to};
    return dart_convert(stream, &args);
}

/* The forward op replaces the state that it is given: here a copy, out.h. */
static dart_status ssd(const operation *o, dart_stream *stream)
{
    const operation_settings *s = &o->settings;
    dart_status status = DART_OK;
    if (has(o, "h")) status = copy(stream, o->dims[DIM_B] * o->dims[DIM_H], o->dims[DIM_N] * o->dims[DIM_P], at(o, "h"), at(o, "out.h"));
    if (status == DART_OK) status = forward(o, stream);
    if (status != DART_OK) return status;
    const dart_ssd_backward_args args = {.B = operation_sequences(o),
                                         .L = operation_longest(o),
                                         .T = operation_packed_rows(o),
                                         .H = dim(o, DIM_H),
                                         .G = dim(o, DIM_G),
                                         .N = dim(o, DIM_N),
                                         .P = dim(o, DIM_P),
                                         .S = s->S,
                                         .dt_is_step = s->dt_is_step,
                                         .dt_min = s->dt_min,
                                         .dt_max = s->dt_max,
                                         .x = at(o, "x"),
                                         .dt = at(o, "dt"),
                                         .b = at(o, "b"),
                                         .c = at(o, "c"),
                                         .a_log = at(o, "a_log"),
                                         .dt_bias = at(o, "dt_bias"),
                                         .d = at(o, "d"),
                                         .seq = at(o, "seq"),
                                         .cu = at(o, "cu"),
                                         .h = at(o, "h"),
                                         .up_y = at(o, "up.y"),
                                         .up_dh = at(o, "up.dh"),
                                         .up_h = at(o, "up.h"),
                                         .grad_x = at(o, "grad.x"),
                                         .grad_dt = at(o, "grad.dt"),
                                         .grad_b = at(o, "grad.b"),
                                         .grad_c = at(o, "grad.c"),
                                         .grad_a_log = at(o, "grad.a_log"),
                                         .grad_dt_bias = at(o, "grad.dt_bias"),
                                         .grad_d = at(o, "grad.d"),
                                         .grad_h = at(o, "grad.h")};
    return dart_ssd_backward(stream, &args);
}

static dart_status sma(const operation *o, dart_stream *stream)
{
    const dart_status status = forward(o, stream);
    if (status != DART_OK) return status;
    const dart_sma_backward_args args = {.B = operation_sequences(o),
                                         .L = operation_longest(o),
                                         .T = operation_packed_rows(o),
                                         .H = dim(o, DIM_H),
                                         .G = dim(o, DIM_G),
                                         .N = dim(o, DIM_N),
                                         .P = dim(o, DIM_P),
                                         .S = o->settings.S,
                                         .eps = o->settings.eps,
                                         .q = at(o, "q"),
                                         .e = at(o, "e"),
                                         .c = at(o, "c"),
                                         .seq = at(o, "seq"),
                                         .cu = at(o, "cu"),
                                         .memories = {.first = o->settings.first,
                                                      .M = operation_memories(o),
                                                      .dh = at(o, "dh"),
                                                      .scale = at(o, "scale")},
                                         .r = at(o, "out.r"),
                                         .lse = at(o, "out.lse"),
                                         .up_r = at(o, "up.r"),
                                         .grad_q = at(o, "grad.q"),
                                         .grad_e = at(o, "grad.e"),
                                         .grad_c = at(o, "grad.c"),
                                         .grad_dh = at(o, "grad.dh")};
    return dart_sma_backward(stream, &args);
}

static dart_status attention(const operation *o, dart_stream *stream)
{
    const dart_status status = forward(o, stream);
    if (status != DART_OK) return status;
    const dart_attention_backward_args args = {.B = operation_sequences(o),
                                               .L = operation_longest(o),
                                               .T = operation_packed_rows(o),
                                               .H = dim(o, DIM_H),
                                               .G = dim(o, DIM_G),
                                               .D = dim(o, DIM_D),
                                               .scale = o->settings.scale,
                                               .q = at(o, "q"),
                                               .k = at(o, "k"),
                                               .v = at(o, "v"),
                                               .o = at(o, "out.o"),
                                               .lse = at(o, "out.lse"),
                                               .seq = at(o, "seq"),
                                               .cu = at(o, "cu"),
                                               .up_o = at(o, "up.o"),
                                               .grad_q = at(o, "grad.q"),
                                               .grad_k = at(o, "grad.k"),
                                               .grad_v = at(o, "grad.v")};
    return dart_attention_backward(stream, &args);
}

static dart_status embed(const operation *o, dart_stream *stream)
{
    const dart_status status = forward(o, stream);
    if (status != DART_OK) return status;
    const dart_embed_backward_args args = {.T = dim(o, DIM_T),
                                           .V = dim(o, DIM_V),
                                           .W = dim(o, DIM_W),
                                           .plan = at(o, "plan"),
                                           .up_y = at(o, "up.y"),
                                           .grad_weight = at(o, "grad.weight")};
    return dart_embed_backward(stream, &args);
}

static dart_status norm(const operation *o, dart_stream *stream)
{
    const dart_status status = forward(o, stream);
    if (status != DART_OK) return status;
    const dart_rms_norm_backward_args args = {.T = dim(o, DIM_T),
                                              .W = dim(o, DIM_W),
                                              .eps = o->settings.eps,
                                              .x = at(o, "x"),
                                              .weight = at(o, "weight"),
                                              .up_y = at(o, "up.y"),
                                              .grad_x = at(o, "grad.x"),
                                              .grad_weight = at(o, "grad.weight")};
    return dart_rms_norm_backward(stream, &args);
}

static dart_status gated_norm(const operation *o, dart_stream *stream)
{
    const dart_status status = forward(o, stream);
    if (status != DART_OK) return status;
    const dart_gated_norm_backward_args args = {.T = dim(o, DIM_T),
                                                .I = dim(o, DIM_I),
                                                .eps = o->settings.eps,
                                                .y = at(o, "y"),
                                                .r = at(o, "r"),
                                                .gate = at(o, "gate"),
                                                .z = at(o, "z"),
                                                .weight = at(o, "weight"),
                                                .up_out = at(o, "up.out"),
                                                .grad_y = at(o, "grad.y"),
                                                .grad_r = at(o, "grad.r"),
                                                .grad_gate = at(o, "grad.gate"),
                                                .grad_z = at(o, "grad.z"),
                                                .grad_weight = at(o, "grad.weight")};
    return dart_gated_norm_backward(stream, &args);
}

/* A residual is added: its gradient is the one that comes in. */
static dart_status linear(const operation *o, dart_stream *stream)
{
    dart_status status = forward(o, stream);
    if (status == DART_OK && has(o, "residual")) status = copy(stream, o->dims[DIM_T], o->dims[DIM_OUT], at(o, "up.y"), at(o, "grad.residual"));
    if (status != DART_OK) return status;
    const dart_linear_backward_args args = {.T = dim(o, DIM_T),
                                            .IN = dim(o, DIM_IN),
                                            .OUT = dim(o, DIM_OUT),
                                            .x = at(o, "x"),
                                            .weight = at(o, "weight"),
                                            .up_y = at(o, "up.y"),
                                            .grad_x = at(o, "grad.x"),
                                            .grad_weight = at(o, "grad.weight")};
    return dart_linear_backward(stream, &args);
}

static dart_status conv(const operation *o, dart_stream *stream)
{
    const dart_status status = forward(o, stream);
    if (status != DART_OK) return status;
    const dart_conv_backward_args args = {.B = operation_sequences(o),
                                          .L = operation_longest(o),
                                          .T = operation_packed_rows(o),
                                          .C = dim(o, DIM_C),
                                          .K = dim(o, DIM_K),
                                          .x = at(o, "x"),
                                          .weight = at(o, "weight"),
                                          .bias = at(o, "bias"),
                                          .seq = at(o, "seq"),
                                          .cu = at(o, "cu"),
                                          .up_y = at(o, "up.y"),
                                          .grad_x = at(o, "grad.x"),
                                          .grad_weight = at(o, "grad.weight"),
                                          .grad_bias = at(o, "grad.bias")};
    return dart_conv_backward(stream, &args);
}

static dart_status rope(const operation *o, dart_stream *stream)
{
    const dart_status status = forward(o, stream);
    if (status != DART_OK) return status;
    const dart_rope_args args = {.B = operation_sequences(o),
                                 .L = operation_longest(o),
                                 .T = operation_packed_rows(o),
                                 .H = dim(o, DIM_H),
                                 .D = dim(o, DIM_D),
                                 .inverse = true,
                                 .base = o->settings.base,
                                 .x = at(o, "up.y"),
                                 .seq = at(o, "seq"),
                                 .cu = at(o, "cu"),
                                 .y = at(o, "grad.x")};
    return dart_rope(stream, &args);
}

static dart_status swiglu(const operation *o, dart_stream *stream)
{
    const dart_status status = forward(o, stream);
    if (status != DART_OK) return status;
    const dart_swiglu_backward_args args = {.T = dim(o, DIM_T),
                                            .I = dim(o, DIM_I),
                                            .a = at(o, "a"),
                                            .u = at(o, "u"),
                                            .up_h = at(o, "up.h"),
                                            .grad_a = at(o, "grad.a"),
                                            .grad_u = at(o, "grad.u")};
    return dart_swiglu_backward(stream, &args);
}

/* One call computes both. */
static dart_status cross_entropy(const operation *o, dart_stream *stream)
{
    const dart_cross_entropy_args args = {.T = dim(o, DIM_T),
                                          .V = dim(o, DIM_V),
                                          .W = dim(o, DIM_W),
                                          .x = at(o, "x"),
                                          .weight = at(o, "weight"),
                                          .targets = at(o, "targets"),
                                          .share = at(o, "share"),
                                          .loss = at(o, "out.loss"),
                                          .correct = at(o, "out.correct"),
                                          .grad_x = at(o, "grad.x"),
                                          .grad_weight = at(o, "grad.weight")};
    return dart_cross_entropy(stream, &args);
}

enum {
    IN = TENSOR_IN,
    OUT = TENSOR_OUT,
    MAY = TENSOR_IN | TENSOR_OPTIONAL,
    F32 = TENSOR_F32,
    I32 = TENSOR_I32
};

const operation_kind operation_backward_kinds[] = {
    {"ssd",
     {{"x", "B L H P", IN},
      {"dt", "B L H", IN},
      {"b", "B L G N", IN},
      {"c", "B L G N", IN},
      {"a_log", "H", IN | F32},
      {"dt_bias", "H", MAY | F32},
      {"d", "H", MAY | F32},
      {"seq", "B 2", MAY | I32},
      {"cu", "R+1", MAY | I32},
      {"h", "B H N P", MAY | F32},
      {"up.y", "B L H P", IN},
      {"up.dh", "B M H N P", MAY | F32},
      {"up.h", "B H N P", MAY | F32},
      {"out.y", "B L H P", OUT},
      {"out.dh", "B M H N P", OUT | F32},
      {"out.h", "B H N P", OUT | F32},
      {"grad.x", "B L H P", OUT},
      {"grad.dt", "B L H", OUT},
      {"grad.b", "B L G N", OUT},
      {"grad.c", "B L G N", OUT},
      {"grad.a_log", "H", OUT | F32},
      {"grad.dt_bias", "H", OUT | F32},
      {"grad.d", "H", OUT | F32},
      {"grad.h", "B H N P", OUT | F32}},
     forward_sizes,
     ssd,
     NULL},
    {"sma",
     {{"q", "B L G N", IN},
      {"e", "B L G P", IN},
      {"c", "B L G N", IN},
      {"dh", "B M H N P", IN},
      {"scale", "B M H N", MAY | F32 | TENSOR_POSITIVE},
      {"seq", "B 2", MAY | I32},
      {"cu", "R+1", MAY | I32},
      {"up.r", "B L H P", IN},
      {"out.r", "B L H P", OUT | F32},
      {"out.lse", "B L H", OUT | F32},
      {"grad.q", "B L G N", OUT},
      {"grad.e", "B L G P", OUT},
      {"grad.c", "B L G N", OUT},
      {"grad.dh", "B M H N P", OUT | F32}},
     NULL,
     sma,
     NULL},
    {"attention",
     {{"q", "B L H D", IN},
      {"k", "B L G D", IN},
      {"v", "B L G D", IN},
      {"seq", "B 2", MAY | I32},
      {"cu", "R+1", MAY | I32},
      {"up.o", "B L H D", IN},
      {"out.o", "B L H D", OUT},
      {"out.lse", "B L H", OUT | F32},
      {"grad.q", "B L H D", OUT},
      {"grad.k", "B L G D", OUT},
      {"grad.v", "B L G D", OUT}},
     forward_sizes,
     attention,
     NULL},
    {"embed",
     {{"ids", "T", IN | I32},
      {"weight", "V W", IN},
      {"up.y", "T W", IN},
      {"plan", "PLAN", TENSOR_STAGE | I32},
      {"out.y", "T W", OUT},
      {"grad.weight", "V W", OUT | F32}},
     NULL,
     embed,
     NULL},
    {"norm",
     {{"x", "T W", IN},
      {"weight", "W", IN | F32},
      {"up.y", "T W", IN},
      {"out.y", "T W", OUT},
      {"grad.x", "T W", OUT},
      {"grad.weight", "W", OUT | F32}},
     NULL,
     norm,
     NULL},
    {"gated_norm",
     {{"y", "T I", IN},
      {"z", "T I", IN},
      {"weight", "I", IN | F32},
      {"r", "T I", MAY},
      {"gate", "T", MAY},
      {"up.out", "T I", IN},
      {"out.out", "T I", OUT},
      {"grad.y", "T I", OUT},
      {"grad.z", "T I", OUT},
      {"grad.weight", "I", OUT | F32},
      {"grad.r", "T I", OUT},
      {"grad.gate", "T", OUT}},
     NULL,
     gated_norm,
     NULL},
    {"linear",
     {{"x", "T IN", IN},
      {"weight", "OUT IN", IN},
      {"residual", "T OUT", MAY},
      {"up.y", "T OUT", IN},
      {"out.y", "T OUT", OUT},
      {"grad.x", "T IN", OUT},
      {"grad.weight", "OUT IN", OUT | F32},
      {"grad.residual", "T OUT", OUT}},
     NULL,
     linear,
     NULL},
    {"conv",
     {{"x", "B L C", IN},
      {"weight", "C K", IN | F32},
      {"bias", "C", MAY | F32},
      {"seq", "B 2", MAY | I32},
      {"cu", "R+1", MAY | I32},
      {"up.y", "B L C", IN},
      {"out.y", "B L C", OUT},
      {"grad.x", "B L C", OUT},
      {"grad.weight", "C K", OUT | F32},
      {"grad.bias", "C", OUT | F32}},
     NULL,
     conv,
     NULL},
    {"rope",
     {{"x", "B L H D", IN},
      {"seq", "B 2", MAY | I32},
      {"cu", "R+1", MAY | I32},
      {"up.y", "B L H D", IN},
      {"out.y", "B L H D", OUT},
      {"grad.x", "B L H D", OUT}},
     NULL,
     rope,
     NULL},
    {"swiglu",
     {{"a", "T I", IN},
      {"u", "T I", IN},
      {"up.h", "T I", IN},
      {"out.h", "T I", OUT},
      {"grad.a", "T I", OUT},
      {"grad.u", "T I", OUT}},
     NULL,
     swiglu,
     NULL},
    {"cross_entropy",
     {{"x", "T W", IN},
      {"weight", "V W", IN},
      {"targets", "T", IN | I32},
      {"share", "1", IN | F32},
      {"out.loss", "1", OUT | F32},
      {"out.correct", "1", OUT | I32},
      {"grad.x", "T W", OUT},
      {"grad.weight", "V W", OUT | F32}},
     NULL,
     cross_entropy,
     NULL},
};

const operation_kind *operation_find_backward(const char *name)
{
    for (size_t i = 0; i < COUNT_OF(operation_backward_kinds); i++)
        if (strcmp(operation_backward_kinds[i].name, name) == 0) return &operation_backward_kinds[i];
    return NULL;
}

const char *operation_backward_names(char text[OPERATION_NAMES])
{
    size_t used = 0;
    for (size_t i = 0; i < COUNT_OF(operation_backward_kinds); i++)
        used += (size_t)snprintf(text + used, OPERATION_NAMES - used, "%s%s", i > 0 ? ", " : "", operation_backward_kinds[i].name);
    return text;
}

bool operation_prefixed(const char *name, const char *prefix, const char **of)
{
    const size_t length = strlen(prefix);
    if (strncmp(name, prefix, length) != 0) return false;
    *of = name + length;
    return true;
}

/* ---- What depends on values ---- */

static int make_plan(operation *o, const cli_session *session, size_t ids, size_t plan)
{
    const uint32_t T = dim(o, DIM_T), V = dim(o, DIM_V);
    void *values = NULL;
    if (o->dims[DIM_T] >= 1u << 31 || o->dims[DIM_V] >= 1u << 31) return cli_fail("embed: T and V must be below 2^31");
    o->dims[DIM_PLAN] = dart_embed_plan_elements(T, V);
    if (operation_read(o, session, ids, &values) != CLI_OK) return CLI_FAILED;
    int32_t *made = calloc((size_t)o->dims[DIM_PLAN], sizeof *made);
    int result = made != NULL ? CLI_OK : cli_fail_memory();
    if (result == CLI_OK && dart_embed_plan(values, T, V, made) != DART_OK) result = cli_fail_memory();
    if (result == CLI_OK) result = operation_place(o, session, plan, DART_I32, made);
    free(made);
    free(values);
    return result;
}

static int check_positions(const operation *o, const cli_session *session, size_t seq)
{
    void *values = NULL;
    int result = CLI_OK;
    if (operation_read(o, session, seq, &values) != CLI_OK) return CLI_FAILED;
    for (uint64_t b = 0; b < o->dims[DIM_B] && result == CLI_OK; b++)
        if (((const int32_t *)values)[2 * b] > 0)
            result = cli_fail("%s: sequence %" PRIu64 " is at position %" PRId32 "; its backward pass takes pieces at position 0", o->kind->name, b,
                              ((const int32_t *)values)[2 * b]);
    free(values);
    return result;
}

int operation_prepare(operation *o, const cli_session *session)
{
    if (operation_find(o->kind->name) == o->kind) return CLI_OK;
    const size_t plan = operation_index(o->kind, "plan"), seq = operation_index(o->kind, "seq");
    if (plan < OPERATION_MAX_TENSORS) return make_plan(o, session, operation_index(o->kind, "ids"), plan);
    if (strcmp(o->kind->name, "attention") == 0 && o->given[seq]) return check_positions(o, session, seq);
    return CLI_OK;
}
