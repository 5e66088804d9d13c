/* Softmax attention over a cache of keys and values, and the cache's filling. */
#include "runtime/op.h"

#include <math.h>

/* Workgroups a multiprocessor that a step is split into where the cache is long enough. More splits than MAX_SPLITS cost more in
 * merging than they gain. */
enum { STEP_TILES = 8, MAX_SPLITS = 64 };

typedef struct attention_plan {
    op_call call;
    const dart_attention_args *a;
    op_layout layout;
    uint32_t flags, traits;
    float scale;
    struct { op_operand q, k, v, seq, o, lse; } o;
} attention_plan;

static dart_status check(attention_plan *p)
{
    op_call *call = &p->call;
    const dart_attention_args *a = p->a;
    if (op_lay_out(call, &p->layout, a->B, a->L, a->T, &a->seq, &a->cu) != DART_OK) return op_status(call);
    const bool packed = op_packed(&p->layout);
    OP_REQUIRE(call, a->H > 0 && a->G > 0 && a->C > 0, "H %u, G %u, C %u: all must be above 0", a->H, a->G, a->C);
    OP_REQUIRE(call, a->H % a->G == 0, "H %u is not a multiple of G %u", a->H, a->G);
    OP_REQUIRE(call, a->D > 0 && a->D <= MAX_LARGE_HEAD, "D %u must be 1 to %d", a->D, MAX_LARGE_HEAD);
    OP_REQUIRE(call, a->C <= 1u << 30, "C %u must be at most 2^30", a->C);
    OP_REQUIRE(call, !packed || (a->C == a->L && a->plan != DART_PLAN_STEP), "packed sequences attend to their own rows: C must be L, and no step");
    OP_REQUIRE(call, op_has(&a->seq) || a->C >= a->L, "a cache of %u tokens is too short for %u", a->C, a->L);
    OP_REQUIRE(call, isfinite(a->scale), "scale %g must be finite", (double)a->scale);
    OP_REQUIRE(call, a->plan <= DART_PLAN_STEP && (a->plan != DART_PLAN_STEP || a->L == 1), "the step plan takes L = 1");
    const uint64_t rows = p->layout.rows, cached = packed ? rows : (uint64_t)a->B * a->C;
    const uint64_t q_width = (uint64_t)a->H * a->D, k_width = (uint64_t)a->G * a->D;
    p->o.q = (op_operand){"q", a->q, OP_FLOAT | OP_VIEW, rows, q_width};
    p->o.k = (op_operand){"k", a->k, OP_FLOAT | OP_VIEW, cached, k_width};
    p->o.v = (op_operand){"v", a->v, OP_FLOAT | OP_VIEW, cached, k_width};
    p->o.seq = p->layout.seq;
    p->o.o = (op_operand){"o", a->o, OP_FLOAT | OP_VIEW, rows, q_width};
    p->o.lse = (op_operand){"lse", a->lse, OP_F32 | OP_OPTIONAL, rows, a->H};
    if (!OP_CHECK(call, p->o)) return op_status(call);
    OP_REQUIRE(call, a->k.dtype == a->v.dtype, "keys are %s, values %s: both must be of one type", dart_dtype_name(a->k.dtype),
               dart_dtype_name(a->v.dtype));
    p->flags = p->layout.flags;
    p->traits = p->layout.traits | op_fits_half(&a->q, &a->k) | (a->D == 64 ? FITS_D64 : 0) | (a->D <= 64 ? FITS_P64 : 0) |
                (a->D <= 32 ? FITS_P32 : 0);
    if (a->D % 16 == 0 && op_fits_rows(&p->o.q) && op_fits_rows(&p->o.k) && op_fits_rows(&p->o.v) && op_fits_rows(&p->o.o))
        p->traits |= FITS_TILES;
    p->scale = a->scale != 0 ? a->scale : 1 / sqrtf((float)a->D);
    return op_status(call);
}

/* The tokens of a piece, blocks of them at a time. */
static void attend(attention_plan *p)
{
    op_call *call = &p->call;
    const dart_attention_args *a = p->a;
    struct AttentionArgs k = {.flags = p->flags, .B = a->B, .L = a->L, .T = a->T, .H = a->H, .G = a->G, .D = a->D, .C = a->C, .scale = p->scale};
    if (a->D <= MAX_HEAD) {
        op_kernel(call, KERNEL_attention, a->L, p->traits);
        OP_LAUNCH(call, &k, base_ceil_div(a->L, call->T0) * a->H * a->B, OP_ROWS(attention, q, &p->o.q, k), OP_ROWS(attention, k, &p->o.k, k),
                  OP_ROWS(attention, v, &p->o.v, k), OP_AT(attention, seq, &p->o.seq, k), OP_ROWS(attention, o, &p->o.o, k),
                  OP_AT(attention, lse, &p->o.lse, k));
    } else {
        op_kernel(call, KERNEL_attention_large, a->L, 0);
        OP_LAUNCH(call, &k, base_ceil_div(a->L, call->T0) * a->H * a->B, OP_ROWS(attention_large, q, &p->o.q, k),
                  OP_ROWS(attention_large, k, &p->o.k, k), OP_ROWS(attention_large, v, &p->o.v, k), OP_AT(attention_large, seq, &p->o.seq, k),
                  OP_ROWS(attention_large, o, &p->o.o, k), OP_AT(attention_large, lse, &p->o.lse, k));
    }
}

/* One token a sequence: splits of the cache, then their merge. */
static void attend_step(attention_plan *p)
{
    op_call *call = &p->call;
    const dart_attention_args *a = p->a;
    const uint64_t heads = (uint64_t)a->B * a->H, most = base_ceil_div(a->C, STEP_TOKENS), wanted = base_ceil_div(STEP_TILES * op_wave(call), heads);
    uint64_t splits = wanted < most ? wanted : most;
    if (splits > MAX_SPLITS) splits = MAX_SPLITS;
    const op_operand partial = op_scratch(call, DART_F32, heads * splits, (uint64_t)a->D + 2);
    struct AttentionStepArgs k = {.flags = p->flags, .B = a->B, .H = a->H, .G = a->G, .D = a->D, .C = a->C, .splits = (uint32_t)splits,
                                  .scale = p->scale};
    if (a->D <= MAX_HEAD) {
        op_kernel(call, KERNEL_attention_step, a->B, p->traits | (op_fits_half(&a->k, &a->v) != 0 ? FITS_HALF : 0));
        OP_LAUNCH(call, &k, heads * splits, OP_ROWS(attention_step, q, &p->o.q, k), OP_ROWS(attention_step, k, &p->o.k, k),
                  OP_ROWS(attention_step, v, &p->o.v, k), OP_AT(attention_step, seq, &p->o.seq, k), OP_WHOLE(attention_step, partial, &partial));
    } else {
        op_kernel(call, KERNEL_attention_step_large, a->B, 0);
        OP_LAUNCH(call, &k, heads * splits, OP_ROWS(attention_step_large, q, &p->o.q, k), OP_ROWS(attention_step_large, k, &p->o.k, k),
                  OP_ROWS(attention_step_large, v, &p->o.v, k), OP_AT(attention_step_large, seq, &p->o.seq, k),
                  OP_WHOLE(attention_step_large, partial, &partial));
    }
    struct SmaMergeArgs m = {.flags = p->flags, .B = a->B, .H = a->H, .P = a->D, .splits = (uint32_t)splits};
    op_kernel(call, KERNEL_sma_merge, a->B, 0);
    OP_LAUNCH(call, &m, heads, OP_WHOLE(sma_merge, partial, &partial), OP_AT(sma_merge, seq, &p->o.seq, m),
              OP_ROWS(sma_merge, r, &p->o.o, m), OP_AT(sma_merge, lse, &p->o.lse, m));
}

dart_status dart_attention(dart_stream *stream, const dart_attention_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    attention_plan p = {.a = args};
    op_call *call = &p.call;
    if (op_begin(call, stream, "dart_attention") != DART_OK || check(&p) != DART_OK) return op_status(call);
    p.o.lse = op_kept(call, &p.o.lse);
    if (args->plan == DART_PLAN_STEP || (args->plan == DART_PLAN_AUTO && args->L == 1 && !op_packed(&p.layout))) attend_step(&p);
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
    OP_REQUIRE(&call, a->D <= MAX_LARGE_HEAD, "D %u must be 1 to %d", a->D, MAX_LARGE_HEAD);
    OP_REQUIRE(&call, a->C <= 1u << 30 && a->L <= 1u << 30, "C %u, L %u must be at most 2^30", a->C, a->L);
    OP_REQUIRE(&call, op_has(&a->seq) || a->C >= a->L, "a cache of %u tokens is too short for %u", a->C, a->L);
    const uint64_t rows = (uint64_t)a->B * a->L, cached = (uint64_t)a->B * a->C, width = (uint64_t)a->G * a->D;
    OP_REQUIRE(&call, rows <= UINT32_MAX, "B L = %llu rows are too many for one piece", (unsigned long long)rows);
    const struct { op_operand k, v, seq, to_k, to_v; } o = {
        .k = {"k", a->k, OP_FLOAT | OP_VIEW, rows, width},
        .v = {"v", a->v, OP_FLOAT | OP_VIEW, rows, width},
        .seq = {"seq", a->seq, OP_I32 | OP_OPTIONAL, a->B, 2},
        .to_k = {"to_k", a->to_k, OP_FLOAT | OP_VIEW, cached, width},
        .to_v = {"to_v", a->to_v, OP_FLOAT | OP_VIEW, cached, width}};
    if (!OP_CHECK(&call, o)) return op_status(&call);
    struct KvAppendArgs k = {.flags = op_has(&a->seq) ? HAS_SEQ : 0, .B = a->B, .L = a->L, .G = a->G, .D = a->D, .C = a->C};
    op_kernel(&call, KERNEL_kv_append, a->L, 0);
    OP_LAUNCH(&call, &k, base_ceil_div(rows * width, call.T0), OP_ROWS(kv_append, k, &o.k, k), OP_ROWS(kv_append, v, &o.v, k),
              OP_AT(kv_append, seq, &o.seq, k), OP_ROWS(kv_append, to_k, &o.to_k, k), OP_ROWS(kv_append, to_v, &o.to_v, k));
    return op_end(&call);
}
