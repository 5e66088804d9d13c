/* Softmax attention over a cache of keys and values, and the cache's filling. */
#include "runtime/stream.h"

#include <math.h>

/* Workgroups that a step is split into where the cache is long enough: a few for each of the 100 to 150 multiprocessors
 * of a large GPU. More splits than MAX_SPLITS cost more in merging than they gain. */
enum { STEP_TILES = 1024, MAX_SPLITS = 64 };

typedef struct attention_plan {
    op_call call;
    const dart_attention_args *a;
    uint32_t flags, traits;
    uint64_t rows, cached, q_width, k_width; /* B L, B C, H D, G D */
    float scale;
    dart_tensor lse;
} attention_plan;

static dart_status check(attention_plan *p)
{
    op_call *call = &p->call;
    const dart_attention_args *a = p->a;
    OP_REQUIRE(call, a->B > 0 && a->L > 0 && a->H > 0 && a->G > 0 && a->C > 0, "B %u, L %u, H %u, G %u, C %u: all must be above 0",
               a->B, a->L, a->H, a->G, a->C);
    OP_REQUIRE(call, a->H % a->G == 0, "H %u is not a multiple of G %u", a->H, a->G);
    OP_REQUIRE(call, a->D > 0 && a->D <= MAX_HEAD, "D %u must be 1 to %d", a->D, MAX_HEAD);
    OP_REQUIRE(call, a->C <= 1u << 30 && a->L <= 1u << 30, "C %u, L %u must be at most 2^30", a->C, a->L);
    OP_REQUIRE(call, op_has(&a->seq) || a->C >= a->L, "a cache of %u tokens is too short for %u", a->C, a->L);
    OP_REQUIRE(call, isfinite(a->scale), "scale %g must be finite", (double)a->scale);
    OP_REQUIRE(call, a->plan <= DART_PLAN_STEP && (a->plan != DART_PLAN_STEP || a->L == 1), "the step plan takes L = 1");
    p->rows = (uint64_t)a->B * a->L;
    p->cached = (uint64_t)a->B * a->C;
    OP_REQUIRE(call, p->rows <= UINT32_MAX, "B L = %llu rows are too many for one piece", (unsigned long long)p->rows);
    p->q_width = (uint64_t)a->H * a->D;
    p->k_width = (uint64_t)a->G * a->D;
    op_check(call, "q", &a->q, OP_FLOAT | OP_VIEW, p->rows, p->q_width);
    op_check(call, "k", &a->k, OP_FLOAT | OP_VIEW, p->cached, p->k_width);
    op_check(call, "v", &a->v, OP_FLOAT | OP_VIEW, p->cached, p->k_width);
    OP_REQUIRE(call, a->k.dtype == a->v.dtype, "keys are %s, values %s: both must be of one type", dart_dtype_name(a->k.dtype),
               dart_dtype_name(a->v.dtype));
    op_check(call, "seq", &a->seq, OP_I32 | OP_OPTIONAL, a->B, 2);
    op_check(call, "o", &a->o, OP_FLOAT | OP_VIEW, p->rows, p->q_width);
    op_check(call, "lse", &a->lse, OP_F32 | OP_OPTIONAL, p->rows, a->H);
    p->flags = op_has(&a->seq) ? HAS_SEQ : 0;
    p->traits = op_fits_half(&a->q, &a->k) | (a->D == 64 ? FITS_D64 : 0) | (a->D <= 64 ? FITS_P64 : 0);
    if (a->D % 16 == 0 && op_fits_rows(&a->q, p->q_width) && op_fits_rows(&a->k, p->k_width) && op_fits_rows(&a->v, p->k_width) &&
        op_fits_rows(&a->o, p->q_width))
        p->traits |= FITS_TILES;
    p->scale = a->scale != 0 ? a->scale : 1 / sqrtf((float)a->D);
    return op_status(call);
}

/* The tokens of a piece, blocks of them at a time. */
static void attend(attention_plan *p)
{
    op_call *call = &p->call;
    const dart_attention_args *a = p->a;
    struct AttentionArgs k = {.flags = p->flags, .B = a->B, .L = a->L, .H = a->H, .G = a->G, .D = a->D, .C = a->C,
                              .q_row = op_row(&a->q, p->q_width), .k_row = op_row(&a->k, p->k_width), .v_row = op_row(&a->v, p->k_width),
                              .o_row = op_row(&a->o, p->q_width), .scale = p->scale};
    op_kernel(call, KERNEL_attention, a->L, p->traits);
    k.q_at = op_bind_rows(call, BINDING_attention_q, &a->q, p->rows, p->q_width);
    k.k_at = op_bind_rows(call, BINDING_attention_k, &a->k, p->cached, p->k_width);
    k.v_at = op_bind_rows(call, BINDING_attention_v, &a->v, p->cached, p->k_width);
    k.seq_at = op_bind(call, BINDING_attention_seq, &a->seq, 2 * (uint64_t)a->B);
    k.o_at = op_bind_rows(call, BINDING_attention_o, &a->o, p->rows, p->q_width);
    k.lse_at = op_bind(call, BINDING_attention_lse, &p->lse, p->rows * a->H);
    op_launch(call, &k, base_ceil_div(a->L, call->row->T0) * a->H * a->B);
}

/* One token a sequence: splits of the cache, then their merge. */
static void attend_step(attention_plan *p)
{
    op_call *call = &p->call;
    const dart_attention_args *a = p->a;
    const uint64_t heads = (uint64_t)a->B * a->H, most = base_ceil_div(a->C, STEP_TOKENS), wanted = base_ceil_div(STEP_TILES, heads);
    uint64_t splits = wanted < most ? wanted : most;
    if (splits > MAX_SPLITS) splits = MAX_SPLITS;
    const dart_tensor partial = op_scratch(call, heads * splits * (a->D + 2));
    struct AttentionStepArgs k = {.flags = p->flags, .B = a->B, .H = a->H, .G = a->G, .D = a->D, .C = a->C, .splits = (uint32_t)splits,
                                  .q_row = op_row(&a->q, p->q_width), .k_row = op_row(&a->k, p->k_width),
                                  .v_row = op_row(&a->v, p->k_width), .scale = p->scale};
    op_kernel(call, KERNEL_attention_step, a->B, p->traits | (op_fits_half(&a->k, &a->v) != 0 ? FITS_HALF : 0));
    k.q_at = op_bind_rows(call, BINDING_attention_step_q, &a->q, a->B, p->q_width);
    k.k_at = op_bind_rows(call, BINDING_attention_step_k, &a->k, p->cached, p->k_width);
    k.v_at = op_bind_rows(call, BINDING_attention_step_v, &a->v, p->cached, p->k_width);
    k.seq_at = op_bind(call, BINDING_attention_step_seq, &a->seq, 2 * (uint64_t)a->B);
    op_bind(call, BINDING_attention_step_partial, &partial, heads * splits * (a->D + 2));
    op_launch(call, &k, heads * splits);
    struct SmaMergeArgs m = {.flags = p->flags, .B = a->B, .H = a->H, .P = a->D, .splits = (uint32_t)splits, .r_row = op_row(&a->o, p->q_width)};
    op_kernel(call, KERNEL_sma_merge, a->B, 0);
    op_bind(call, BINDING_sma_merge_partial, &partial, heads * splits * (a->D + 2));
    m.seq_at = op_bind(call, BINDING_sma_merge_seq, &a->seq, 2 * (uint64_t)a->B);
    m.r_at = op_bind_rows(call, BINDING_sma_merge_r, &a->o, a->B, p->q_width);
    m.lse_at = op_bind(call, BINDING_sma_merge_lse, &p->lse, heads);
    op_launch(call, &m, heads);
}

dart_status dart_attention(dart_stream *stream, const dart_attention_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    attention_plan p = {.a = args};
    op_call *call = &p.call;
    if (op_begin(call, stream, "dart_attention") != DART_OK || check(&p) != DART_OK) return op_status(call);
    p.lse = op_kept(call, &args->lse, p.rows * args->H);
    if (args->plan == DART_PLAN_STEP || (args->plan == DART_PLAN_AUTO && args->L == 1)) attend_step(&p);
    else attend(&p);
    return op_end(call);
}

dart_status dart_kv_append(dart_stream *stream, const dart_kv_append_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    op_call call;
    const dart_kv_append_args *a = args;
    if (op_begin(&call, stream, "dart_kv_append") != DART_OK) return op_status(&call);
    OP_REQUIRE(&call, a->B > 0 && a->L > 0 && a->G > 0 && a->D > 0 && a->C > 0, "B %u, L %u, G %u, D %u, C %u: all must be above 0",
               a->B, a->L, a->G, a->D, a->C);
    OP_REQUIRE(&call, a->D <= MAX_HEAD, "D %u must be 1 to %d", a->D, MAX_HEAD);
    OP_REQUIRE(&call, a->C <= 1u << 30 && a->L <= 1u << 30, "C %u, L %u must be at most 2^30", a->C, a->L);
    OP_REQUIRE(&call, op_has(&a->seq) || a->C >= a->L, "a cache of %u tokens is too short for %u", a->C, a->L);
    const uint64_t rows = (uint64_t)a->B * a->L, cached = (uint64_t)a->B * a->C, width = (uint64_t)a->G * a->D;
    OP_REQUIRE(&call, rows <= UINT32_MAX, "B L = %llu rows are too many for one piece", (unsigned long long)rows);
    op_check(&call, "k", &a->k, OP_FLOAT | OP_VIEW, rows, width);
    op_check(&call, "v", &a->v, OP_FLOAT | OP_VIEW, rows, width);
    op_check(&call, "seq", &a->seq, OP_I32 | OP_OPTIONAL, a->B, 2);
    op_check(&call, "to_k", &a->to_k, OP_FLOAT | OP_VIEW, cached, width);
    op_check(&call, "to_v", &a->to_v, OP_FLOAT | OP_VIEW, cached, width);
    if (op_status(&call) != DART_OK) return op_status(&call);
    struct KvAppendArgs k = {.flags = op_has(&a->seq) ? HAS_SEQ : 0, .B = a->B, .L = a->L, .G = a->G, .D = a->D, .C = a->C,
                             .k_row = op_row(&a->k, width), .v_row = op_row(&a->v, width), .to_k_row = op_row(&a->to_k, width),
                             .to_v_row = op_row(&a->to_v, width)};
    op_kernel(&call, KERNEL_kv_append, a->L, 0);
    k.k_at = op_bind_rows(&call, BINDING_kv_append_k, &a->k, rows, width);
    k.v_at = op_bind_rows(&call, BINDING_kv_append_v, &a->v, rows, width);
    k.seq_at = op_bind(&call, BINDING_kv_append_seq, &a->seq, 2 * (uint64_t)a->B);
    k.to_k_at = op_bind_rows(&call, BINDING_kv_append_to_k, &a->to_k, cached, width);
    k.to_v_at = op_bind_rows(&call, BINDING_kv_append_to_v, &a->to_v, cached, width);
    op_launch(&call, &k, base_ceil_div(rows * width, call.row->T0));
    return op_end(&call);
}
