#include "operation.h"

#include "dartlm/ops_backward.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* The tensor of that name. In a row with a backward pass results of the forward op have the prefix out., and what only the forward op takes
 * is absent. */
static dart_tensor at(const operation *o, const char *name)
{
    size_t index = operation_index(o->kind, name);
    if (operation_find(o->kind->name) != o->kind) {
        char result[32];
        snprintf(result, sizeof result, "out.%s", name);
        const size_t out = operation_index(o->kind, result);
        if (out < OPERATION_MAX_TENSORS) index = out;
        if (index == OPERATION_MAX_TENSORS) return (dart_tensor){.buffer = NULL};
    }
    assert(index < OPERATION_MAX_TENSORS);
    return o->tensors[index];
}

static bool has(const operation *o, const char *name) { return o->given[operation_index(o->kind, name)]; }

static uint32_t dim(const operation *o, operation_dim which) { return (uint32_t)o->dims[which]; }

static dart_status ssd(const operation *o, dart_stream *stream)
{
    const operation_settings *s = &o->settings;
    const dart_ssd_args args = {.B = operation_sequences(o),
                                .L = operation_longest(o),
                                .T = operation_packed_rows(o),
                                .H = dim(o, DIM_H),
                                .G = dim(o, DIM_G),
                                .N = dim(o, DIM_N),
                                .P = dim(o, DIM_P),
                                .S = s->S,
                                .plan = (dart_plan)s->plan,
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
                                .open = at(o, "open"),
                                .open_decay = at(o, "open_decay"),
                                .y = at(o, "y"),
                                .dh = at(o, "dh"),
                                .dh_scale = at(o, "dh_scale"),
                                .cum = at(o, "cum"),
                                .decay = at(o, "decay"),
                                .hin = at(o, "hin")};
    return dart_ssd(stream, &args);
}

static void ssd_sizes(operation *o)
{
    const uint32_t S = o->settings.S;
    o->dims[DIM_S] = S;
    if (o->packing.R == 0) o->dims[DIM_M] = dart_ssd_chunks(dim(o, DIM_L), S, has(o, "seq"));
    o->dims[DIM_C] = S < o->dims[DIM_L] ? S : o->dims[DIM_L];
}

/* c b within chunks, their product with x, memories, and c h: halves of squares counted in full. */
static double ssd_flops(const operation *o)
{
    const double tokens = (double)o->dims[DIM_B] * (double)o->dims[DIM_L], C = (double)o->dims[DIM_C],
                 N = (double)o->dims[DIM_N], P = (double)o->dims[DIM_P];
    return tokens * (2 * C * N * (double)o->dims[DIM_G] + (double)o->dims[DIM_H] * P * (2 * C + 4 * N));
}

static dart_status sma(const operation *o, dart_stream *stream)
{
    const dart_memories memories = {
        .first = o->settings.first, .M = operation_memories(o), .dh = at(o, "dh"), .scale = at(o, "scale")};
    const dart_sma_args args = {.B = operation_sequences(o),
                                .L = operation_longest(o),
                                .T = operation_packed_rows(o),
                                .H = dim(o, DIM_H),
                                .G = dim(o, DIM_G),
                                .N = dim(o, DIM_N),
                                .P = dim(o, DIM_P),
                                .S = o->settings.S,
                                .plan = (dart_plan)o->settings.plan,
                                .eps = o->settings.eps,
                                .q = at(o, "q"),
                                .e = at(o, "e"),
                                .c = at(o, "c"),
                                .seq = at(o, "seq"),
                                .cu = at(o, "cu"),
                                .memories = &memories,
                                .memories_count = 1,
                                .r = at(o, "r"),
                                .lse = at(o, "lse"),
                                .qn = at(o, "qn"),
                                .en = at(o, "en")};
    return dart_sma(stream, &args);
}

/* 4 N P for every token, head and past memory; a piece with seq is taken to see all of them. */
static double sma_flops(const operation *o)
{
    double seen = 0;
    for (uint64_t t = 0; t < o->dims[DIM_L]; t++) {
        const uint64_t past = has(o, "seq") ? o->dims[DIM_M] : t / o->settings.S;
        seen += (double)(past < o->dims[DIM_M] ? past : o->dims[DIM_M]);
    }
    return 4 * seen * (double)o->dims[DIM_B] * (double)o->dims[DIM_H] * (double)o->dims[DIM_N] * (double)o->dims[DIM_P];
}

static dart_status attention(const operation *o, dart_stream *stream)
{
    const dart_attention_args args = {.B = operation_sequences(o),
                                      .L = operation_longest(o),
                                      .T = operation_packed_rows(o),
                                      .H = dim(o, DIM_H),
                                      .G = dim(o, DIM_G),
                                      .D = dim(o, DIM_D),
                                      .C = o->dims[DIM_C] == o->dims[DIM_L] ? operation_longest(o) : dim(o, DIM_C),
                                      .plan = (dart_plan)o->settings.plan,
                                      .scale = o->settings.scale,
                                      .q = at(o, "q"),
                                      .k = at(o, "k"),
                                      .v = at(o, "v"),
                                      .seq = at(o, "seq"),
                                      .cu = at(o, "cu"),
                                      .o = at(o, "o"),
                                      .lse = at(o, "lse")};
    return dart_attention(stream, &args);
}

/* A cache holds the piece at least. */
static void attention_sizes(operation *o)
{
    if (o->dims[DIM_C] < o->dims[DIM_L]) o->dims[DIM_C] = o->dims[DIM_L];
}

/* 4 D for every token, head and token seen; a piece with seq is taken to end where the cache does. */
static double attention_flops(const operation *o)
{
    const double L = (double)o->dims[DIM_L], before = has(o, "seq") ? (double)o->dims[DIM_C] - L : 0;
    return 4 * (double)o->dims[DIM_D] * (double)o->dims[DIM_B] * (double)o->dims[DIM_H] * L * (before + (L + 1) / 2);
}

static dart_status embed(const operation *o, dart_stream *stream)
{
    const dart_embed_args args = {.T = dim(o, DIM_T),
                                  .V = dim(o, DIM_V),
                                  .W = dim(o, DIM_W),
                                  .ids = at(o, "ids"),
                                  .weight = at(o, "weight"),
                                  .y = at(o, "y")};
    return dart_embed(stream, &args);
}

static dart_status norm(const operation *o, dart_stream *stream)
{
    const dart_rms_norm_args args = {.T = dim(o, DIM_T),
                                     .W = dim(o, DIM_W),
                                     .eps = o->settings.eps,
                                     .x = at(o, "x"),
                                     .weight = at(o, "weight"),
                                     .y = at(o, "y")};
    return dart_rms_norm(stream, &args);
}

static dart_status layer_norm(const operation *o, dart_stream *stream)
{
    const dart_layer_norm_args args = {.T = dim(o, DIM_T),
                                       .W = dim(o, DIM_W),
                                       .eps = o->settings.eps,
                                       .x = at(o, "x"),
                                       .weight = at(o, "weight"),
                                       .bias = at(o, "bias"),
                                       .y = at(o, "y")};
    return dart_layer_norm(stream, &args);
}

static dart_status gated_norm(const operation *o, dart_stream *stream)
{
    const dart_gated_norm_args args = {.T = dim(o, DIM_T),
                                       .I = dim(o, DIM_I),
                                       .eps = o->settings.eps,
                                       .y = at(o, "y"),
                                       .r = at(o, "r"),
                                       .gate = at(o, "gate"),
                                       .z = at(o, "z"),
                                       .weight = at(o, "weight"),
                                       .out = at(o, "out")};
    return dart_gated_norm(stream, &args);
}

static dart_status linear(const operation *o, dart_stream *stream)
{
    dart_linear_args args = {.T = dim(o, DIM_T),
                             .IN = dim(o, DIM_IN),
                             .OUT = dim(o, DIM_OUT),
                             .x = at(o, "x"),
                             .weight = at(o, "weight"),
                             .bias = at(o, "bias"),
                             .y = at(o, "y")};
    if (has(o, "residual")) args.from = at(o, "residual");
    return dart_linear(stream, &args);
}

static double linear_flops(const operation *o)
{
    return 2 * (double)o->dims[DIM_T] * (double)o->dims[DIM_IN] * (double)o->dims[DIM_OUT];
}

static dart_status conv(const operation *o, dart_stream *stream)
{
    const dart_conv_args args = {.B = operation_sequences(o),
                                 .L = operation_longest(o),
                                 .T = operation_packed_rows(o),
                                 .C = dim(o, DIM_C),
                                 .K = dim(o, DIM_K),
                                 .x = at(o, "x"),
                                 .weight = at(o, "weight"),
                                 .bias = at(o, "bias"),
                                 .tail = at(o, "tail"),
                                 .seq = at(o, "seq"),
                                 .cu = at(o, "cu"),
                                 .y = at(o, "y")};
    return dart_conv(stream, &args);
}

static dart_status argmax(const operation *o, dart_stream *stream)
{
    const dart_argmax_args args = {
        .T = dim(o, DIM_T), .V = dim(o, DIM_V), .logits = at(o, "logits"), .ids = at(o, "ids")};
    return dart_argmax(stream, &args);
}

static dart_status sample(const operation *o, dart_stream *stream)
{
    const dart_sample_args args = {.T = dim(o, DIM_T),
                                   .V = dim(o, DIM_V),
                                   .logits = at(o, "logits"),
                                   .settings = at(o, "settings"),
                                   .seq = at(o, "seq"),
                                   .ids = at(o, "ids")};
    return dart_sample(stream, &args);
}

static dart_status rope(const operation *o, dart_stream *stream)
{
    const dart_rope_args args = {.B = operation_sequences(o),
                                 .L = operation_longest(o),
                                 .T = operation_packed_rows(o),
                                 .H = dim(o, DIM_H),
                                 .D = dim(o, DIM_D),
                                 .base = o->settings.base,
                                 .x = at(o, "x"),
                                 .seq = at(o, "seq"),
                                 .cu = at(o, "cu"),
                                 .y = at(o, "y")};
    return dart_rope(stream, &args);
}

static dart_status gelu(const operation *o, dart_stream *stream)
{
    return dart_gelu(stream, &(dart_gelu_args){.T = dim(o, DIM_T), .I = dim(o, DIM_I), .a = at(o, "a"), .h = at(o, "h")});
}

static dart_status swiglu(const operation *o, dart_stream *stream)
{
    const dart_swiglu_args args = {.T = dim(o, DIM_T), .I = dim(o, DIM_I), .a = at(o, "a"), .u = at(o, "u"), .h = at(o, "h")};
    return dart_swiglu(stream, &args);
}

static dart_status cross_entropy(const operation *o, dart_stream *stream)
{
    const dart_cross_entropy_args args = {.T = dim(o, DIM_T),
                                          .V = dim(o, DIM_V),
                                          .W = dim(o, DIM_W),
                                          .x = at(o, "x"),
                                          .weight = at(o, "weight"),
                                          .targets = at(o, "targets"),
                                          .share = at(o, "share"),
                                          .loss = at(o, "loss"),
                                          .correct = at(o, "correct")};
    return dart_cross_entropy(stream, &args);
}

static double cross_entropy_flops(const operation *o)
{
    return 2 * (double)o->dims[DIM_T] * (double)o->dims[DIM_W] * (double)o->dims[DIM_V];
}

static dart_status grad_norm(const operation *o, dart_stream *stream)
{
    const dart_gradient gradient = {.elements = o->dims[DIM_T], .grad = at(o, "grad")};
    const dart_grad_norm_args args = {.count = 1,
                                      .clip = o->settings.clip > 0 ? o->settings.clip : INFINITY,
                                      .gradients = &gradient,
                                      .scale = at(o, "scale"),
                                      .factor = at(o, "factor")};
    return dart_grad_norm(stream, &args);
}

/* A decay of 0 in hyper is none. */
static dart_status adamw(const operation *o, dart_stream *stream)
{
    const dart_adamw_args args = {.elements = o->dims[DIM_T],
                                  .decays = true,
                                  .w = at(o, "w"),
                                  .m = at(o, "m"),
                                  .v = at(o, "v"),
                                  .grad = at(o, "grad"),
                                  .scale = at(o, "scale"),
                                  .hyper = at(o, "hyper"),
                                  .copy = at(o, "copy")};
    return dart_adamw(stream, &args);
}

enum {
    IN = TENSOR_IN,
    OUT = TENSOR_OUT,
    MAY = TENSOR_IN | TENSOR_OPTIONAL,
    STAGE = TENSOR_OUT | TENSOR_STAGE | TENSOR_F32,
    F32 = TENSOR_F32,
    I32 = TENSOR_I32,
    POSITIVE = TENSOR_POSITIVE
};

const operation_kind operation_kinds[] = {
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
      {"h", "B H N P", IN | OUT | TENSOR_ZERO | F32},
      {"open", "B H N P", MAY | OUT | F32},
      {"open_decay", "B H", MAY | OUT | F32},
      {"y", "B L H P", OUT},
      {"dh", "B M H N P", OUT | TENSOR_RAW},
      {"dh_scale", "B M H N", OUT | TENSOR_OPTIONAL | F32},
      {"cum", "B H L 3", STAGE},
      {"decay", "B M+1 H", STAGE},
      {"hin", "B M H N P", STAGE}},
     ssd_sizes,
     ssd,
     ssd_flops},
    {"sma",
     {{"q", "B L G N", IN},
      {"e", "B L G P", IN},
      {"c", "B L G N", IN},
      {"dh", "B M H N P", IN},
      {"scale", "B M H N", MAY | F32 | POSITIVE}, /* as dart_sma_append leaves it */
      {"seq", "B 2", MAY | I32},
      {"cu", "R+1", MAY | I32},
      {"r", "B L H P", OUT},
      {"lse", "B L H", OUT | F32},
      {"qn", "B L G N", STAGE},
      {"en", "B L G P", STAGE}},
     NULL,
     sma,
     sma_flops},
    {"attention",
     {{"q", "B L H D", IN},
      {"k", "B C G D", IN},
      {"v", "B C G D", IN},
      {"seq", "B 2", MAY | I32},
      {"cu", "R+1", MAY | I32},
      {"o", "B L H D", OUT},
      {"lse", "B L H", OUT | F32}},
     attention_sizes,
     attention,
     attention_flops},
    {"embed", {{"ids", "T", IN | I32}, {"weight", "V W", IN}, {"y", "T W", OUT}}, NULL, embed, NULL},
    {"norm", {{"x", "T W", IN}, {"weight", "W", IN | F32}, {"y", "T W", OUT}}, NULL, norm, NULL},
    {"layer_norm", {{"x", "T W", IN}, {"weight", "W", IN | F32}, {"bias", "W", IN | F32}, {"y", "T W", OUT}}, NULL, layer_norm, NULL},
    {"gated_norm",
     {{"y", "T I", IN},
      {"z", "T I", IN},
      {"weight", "I", IN | F32},
      {"r", "T I", MAY},
      {"gate", "T", MAY},
      {"out", "T I", OUT}},
     NULL,
     gated_norm,
     NULL},
    {"linear",
     {{"x", "T IN", IN}, {"weight", "OUT IN", IN}, {"bias", "OUT", MAY | F32}, {"residual", "T OUT", MAY}, {"y", "T OUT", OUT}},
     NULL,
     linear,
     linear_flops},
    {"conv",
     {{"x", "B L C", IN},
      {"weight", "C K", IN | F32},
      {"bias", "C", MAY | F32},
      {"tail", "B K-1 C", MAY | OUT},
      {"seq", "B 2", MAY | I32},
      {"cu", "R+1", MAY | I32},
      {"y", "B L C", OUT}},
     NULL,
     conv,
     NULL},
    {"argmax", {{"logits", "T V", IN}, {"ids", "T", OUT | I32}}, NULL, argmax, NULL},
    {"sample",
     {{"logits", "T V", IN}, {"settings", "T 8", IN | I32 | TENSOR_SETTINGS}, {"seq", "T 2", MAY | I32}, {"ids", "T", OUT | I32}},
     NULL,
     sample,
     NULL},
    {"rope", {{"x", "B L H D", IN}, {"seq", "B 2", MAY | I32}, {"cu", "R+1", MAY | I32}, {"y", "B L H D", OUT}}, NULL, rope, NULL},
    {"gelu", {{"a", "T I", IN}, {"h", "T I", OUT}}, NULL, gelu, NULL},
    {"swiglu", {{"a", "T I", IN}, {"u", "T I", IN}, {"h", "T I", OUT}}, NULL, swiglu, NULL},
    {"cross_entropy",
     {{"x", "T W", IN},
      {"weight", "V W", IN},
      {"targets", "T", IN | I32},
      {"share", "1", IN | F32 | POSITIVE},
      {"loss", "1", OUT | F32},
      {"correct", "1", OUT | I32}},
     NULL,
     cross_entropy,
     cross_entropy_flops},
    {"grad_norm",
     {{"grad", "T", IN | F32}, {"factor", "1", IN | F32 | POSITIVE | TENSOR_OPTIONAL}, {"scale", "4", OUT | F32}},
     NULL,
     grad_norm,
     NULL},
    {"adamw",
     {{"w", "T", IN | OUT | F32},
      {"m", "T", IN | OUT | F32},
      {"v", "T", IN | OUT | F32 | POSITIVE},
      {"grad", "T", IN | F32},
      {"scale", "4", IN | F32 | POSITIVE},
      {"hyper", "8", IN | F32 | POSITIVE},
      {"copy", "T", OUT | TENSOR_OPTIONAL}},
     NULL,
     adamw,
     NULL},
};

const operation_kind *operation_find(const char *name)
{
    for (size_t i = 0; i < COUNT_OF(operation_kinds); i++)
        if (strcmp(operation_kinds[i].name, name) == 0) return &operation_kinds[i];
    return NULL;
}

const char *operation_names(char text[OPERATION_NAMES])
{
    size_t used = 0;
    for (size_t i = 0; i < COUNT_OF(operation_kinds); i++)
        used += (size_t)snprintf(text + used, OPERATION_NAMES - used, "%s%s", i > 0 ? ", " : "", operation_kinds[i].name);
    return text;
}
