/* Softmax attention over a cache of keys and values, and the cache's filling. */
#include "ops/dense/dense.h"

#include <math.h>

/* Workgroups a multiprocessor that a step is split into where the cache is long enough. More splits of a block than MAX_SPLITS cost more in
 * merging than they gain. */
enum { STEP_TILES = 8, MAX_SPLITS = 64 };

typedef struct attention_plan {
    op_call call;
    const dart_attention_args *a;
    op_layout layout;
    uint32_t flags, traits;
    float scale;
    struct { op_operand q, seq, o, lse; } o; /* o: where results go, which may be scratch */
} attention_plan;

/* A block of the cache, of tokens first .. first + C - 1. */
typedef struct block_operands {
    uint32_t first, C;
    struct { op_operand k, v; } o;
} block_operands;

static block_operands block_of(const attention_plan *p, uint32_t index)
{
    const dart_attention_args *a = p->a;
    block_operands block = {.C = a->C};
    dart_tensor k = a->k, v = a->v;
    for (uint32_t i = 0; i < index; i++) {
        block.first += block.C;
        block.C = a->more[i].C;
        k = a->more[i].k;
        v = a->more[i].v;
    }
    const uint64_t rows = op_packed(&p->layout) ? p->layout.rows : (uint64_t)a->B * block.C, width = (uint64_t)a->G * a->D;
    block.o.k = (op_operand){"k", k, OP_FLOAT | OP_VIEW, rows, width};
    block.o.v = (op_operand){"v", v, OP_FLOAT | OP_VIEW, rows, width};
    return block;
}

static dart_status check_blocks(attention_plan *p)
{
    op_call *call = &p->call;
    const dart_attention_args *a = p->a;
    const bool packed = op_packed(&p->layout);
    uint64_t tokens = a->C;
    OP_REQUIRE(call, a->more_count == 0 || a->more != NULL, "blocks are missing");
    OP_REQUIRE(call, !packed || (a->C == a->L && a->plan != DART_PLAN_STEP && a->more_count == 0),
               "packed sequences attend to their own rows: C must be L, no step, and no blocks");
    for (uint32_t i = 0; i < a->more_count; i++) {
        OP_REQUIRE(call, a->more[i].C > 0, "block %u has no tokens", i);
        tokens += a->more[i].C;
    }
    OP_REQUIRE(call, tokens <= 1u << 30, "C %llu must be at most 2^30", (unsigned long long)tokens);
    OP_REQUIRE(call, op_has(&a->seq) || tokens >= a->L, "a cache of %llu tokens is too short for %u", (unsigned long long)tokens, a->L);
    for (uint32_t i = 0; i <= a->more_count; i++) {
        const block_operands block = block_of(p, i);
        if (!OP_CHECK(call, block.o)) return op_status(call);
        OP_REQUIRE(call, block.o.k.of.dtype == block.o.v.of.dtype, "keys are %s, values %s: both must be of one type",
                   dart_dtype_name(block.o.k.of.dtype), dart_dtype_name(block.o.v.of.dtype));
    }
    return op_status(call);
}

static dart_status check(attention_plan *p)
{
    op_call *call = &p->call;
    const dart_attention_args *a = p->a;
    if (op_lay_out(call, &p->layout, a->B, a->L, a->T, &a->seq, &a->cu) != DART_OK) return op_status(call);
    OP_REQUIRE(call, a->H > 0 && a->G > 0 && a->C > 0, "H %u, G %u, C %u: all must be above 0", a->H, a->G, a->C);
    OP_REQUIRE(call, a->H % a->G == 0, "H %u is not a multiple of G %u", a->H, a->G);
    OP_REQUIRE(call, a->D > 0 && a->D <= MAX_LARGE_HEAD, "D %u must be 1 to %d", a->D, MAX_LARGE_HEAD);
    OP_REQUIRE(call, isfinite(a->scale), "scale %g must be finite", (double)a->scale);
    OP_REQUIRE(call, a->plan <= DART_PLAN_STEP && (a->plan != DART_PLAN_STEP || a->L == 1), "the step plan takes L = 1");
    const uint64_t q_width = (uint64_t)a->H * a->D;
    p->o.q = (op_operand){"q", a->q, OP_FLOAT | OP_VIEW, p->layout.rows, q_width};
    p->o.seq = p->layout.seq;
    p->o.o = (op_operand){"o", a->o, OP_FLOAT | OP_VIEW, p->layout.rows, q_width};
    p->o.lse = (op_operand){"lse", a->lse, OP_F32 | OP_OPTIONAL, p->layout.rows, a->H};
    if (!OP_CHECK(call, p->o)) return op_status(call);
    p->flags = p->layout.flags;
    p->scale = a->scale != 0 ? a->scale : 1 / sqrtf((float)a->D);
    return check_blocks(p);
}

/* What holds for the tokens and one block. */
static uint32_t traits(const attention_plan *p, const block_operands *block)
{
    const dart_attention_args *a = p->a;
    const uint32_t fits = p->layout.traits | op_fits_16bit(&a->q, &block->o.k.of) | (a->D == 64 ? FITS_ATTENTION_WHOLE_D64 : 0) |
                          (a->D <= 64 ? FITS_ATTENTION_D64 : 0) | (a->D <= 32 ? FITS_ATTENTION_D32 : 0);
    const bool rows = op_fits_rows(&p->o.q) && op_fits_rows(&block->o.k) && op_fits_rows(&block->o.v) && op_fits_rows(&p->o.o);
    return fits | (a->D % 16 == 0 && rows ? FITS_TILES : 0);
}

/* The tokens of a piece over one block, several of its tokens at a time. */
static void attend(attention_plan *p, const block_operands *block, const op_operand *o, const op_operand *lse)
{
    op_call *call = &p->call;
    const dart_attention_args *a = p->a;
    struct AttentionArgs k = {.flags = p->flags, .B = a->B, .L = a->L, .T = a->T, .H = a->H, .G = a->G, .D = a->D, .C = block->C,
                              .first = block->first, .scale = p->scale};
    if (a->D <= MAX_HEAD) {
        op_kernel(call, KERNEL_attention, a->L, traits(p, block));
        OP_LAUNCH(call, &k, base_ceil_div(a->L, call->T0) * a->H * a->B, OP_ROWS(attention, q, &p->o.q, k), OP_ROWS(attention, k, &block->o.k, k),
                  OP_ROWS(attention, v, &block->o.v, k), OP_AT(attention, seq, &p->o.seq, k), OP_ROWS(attention, o, o, k),
                  OP_AT(attention, lse, lse, k));
    } else {
        op_kernel(call, KERNEL_attention_large, a->L, 0);
        OP_LAUNCH(call, &k, base_ceil_div(a->L, call->T0) * a->H * a->B, OP_ROWS(attention_large, q, &p->o.q, k),
                  OP_ROWS(attention_large, k, &block->o.k, k), OP_ROWS(attention_large, v, &block->o.v, k), OP_AT(attention_large, seq, &p->o.seq, k),
                  OP_ROWS(attention_large, o, o, k), OP_AT(attention_large, lse, lse, k));
    }
}

/* The tokens of a piece over all blocks: the first one into o and lse, f32, then each of the others into scratch, which is merged with them. */
static void attend_blocks(attention_plan *p)
{
    op_call *call = &p->call;
    const dart_attention_args *a = p->a;
    const block_operands one = block_of(p, 0);
    attend(p, &one, &p->o.o, &p->o.lse);
    if (a->more_count == 0) return;
    const op_operand x = op_scratch(call, DART_F32, p->o.o.rows, p->o.o.width), x_lse = op_scratch(call, DART_F32, p->o.lse.rows, p->o.lse.width);
    for (uint32_t i = 1; i <= a->more_count; i++) {
        const block_operands block = block_of(p, i);
        attend(p, &block, &x, &x_lse);
        struct AttentionMergeArgs k = {.flags = p->flags, .B = a->B, .L = a->L, .H = a->H, .D = a->D, .first = block.first};
        op_kernel(call, KERNEL_attention_merge, a->L, 0);
        OP_LAUNCH(call, &k, base_ceil_div(p->o.lse.rows * a->H, call->T0), OP_WHOLE(attention_merge, x, &x), OP_WHOLE(attention_merge, x_lse, &x_lse),
                  OP_AT(attention_merge, seq, &p->o.seq, k), OP_ROWS(attention_merge, o, &p->o.o, k), OP_AT(attention_merge, lse, &p->o.lse, k));
    }
}

/* One token a sequence: the splits of one block, to partials. */
static void attend_step(attention_plan *p, const block_operands *block, uint32_t splits, const op_operand *partial)
{
    op_call *call = &p->call;
    const dart_attention_args *a = p->a;
    const uint64_t tiles = (uint64_t)a->B * a->H * splits;
    struct AttentionStepArgs k = {.flags = p->flags, .B = a->B, .H = a->H, .G = a->G, .D = a->D, .C = block->C, .first = block->first,
                                  .splits = splits, .scale = p->scale};
    if (a->D <= MAX_HEAD) {
        op_kernel(call, KERNEL_attention_step, a->B, traits(p, block) | (op_fits_16bit(&block->o.k.of, &block->o.v.of) != 0 ? FITS_16BIT : 0));
        OP_LAUNCH(call, &k, tiles, OP_ROWS(attention_step, q, &p->o.q, k), OP_ROWS(attention_step, k, &block->o.k, k),
                  OP_ROWS(attention_step, v, &block->o.v, k), OP_AT(attention_step, seq, &p->o.seq, k), OP_WHOLE(attention_step, partial, partial));
    } else {
        op_kernel(call, KERNEL_attention_step_large, a->B, 0);
        OP_LAUNCH(call, &k, tiles, OP_ROWS(attention_step_large, q, &p->o.q, k), OP_ROWS(attention_step_large, k, &block->o.k, k),
                  OP_ROWS(attention_step_large, v, &block->o.v, k), OP_AT(attention_step_large, seq, &p->o.seq, k),
                  OP_WHOLE(attention_step_large, partial, partial));
    }
}

/* Splits of all blocks, launches that do not wait for one another, then their merge, of at most MERGE_PARTS of them at a time. Each block has as
 * many splits as the others. */
static void attend_step_blocks(attention_plan *p)
{
    op_call *call = &p->call;
    const dart_attention_args *a = p->a;
    const uint32_t blocks = a->more_count + 1;
    const uint64_t heads = (uint64_t)a->B * a->H, wanted = base_ceil_div(STEP_TILES * op_wave(call), heads);
    uint64_t longest = a->C;
    for (uint32_t i = 0; i < a->more_count; i++) longest = base_larger(longest, a->more[i].C);
    const uint64_t most = base_smaller(MAX_SPLITS, base_larger(1, MERGE_PARTS / blocks));
    const uint32_t splits = (uint32_t)base_smaller(base_smaller(wanted, base_ceil_div(longest, STEP_TOKENS)), most);
    const uint32_t together = MERGE_PARTS / splits; /* blocks of a merge */
    const uint64_t size = base_round_up(heads * splits * ((uint64_t)a->D + 2), BACKEND_ALIGN / 4);
    const op_operand partials = op_scratch(call, DART_F32, base_smaller(blocks, together), size);
    for (uint32_t first = 0; first < blocks; first += together) {
        const uint32_t count = (uint32_t)base_smaller(together, blocks - first);
        for (uint32_t i = 0; i < count; i++) {
            const block_operands block = block_of(p, first + i);
            op_operand partial = partials;
            partial.of.offset += i * size;
            partial.rows = heads * splits;
            partial.width = (uint64_t)a->D + 2;
            attend_step(p, &block, splits, &partial);
        }
        struct SmaMergeArgs m = {.flags = p->flags | (first > 0 ? IS_MERGE : 0), .B = a->B, .H = a->H, .P = a->D, .splits = count * splits,
                                 .group = splits, .group_size = (uint32_t)size};
        op_kernel(call, KERNEL_sma_merge, a->B, 0);
        OP_LAUNCH(call, &m, heads, OP_WHOLE(sma_merge, partial, &partials), OP_AT(sma_merge, seq, &p->o.seq, m),
                  OP_ROWS(sma_merge, r, &p->o.o, m), OP_AT(sma_merge, lse, &p->o.lse, m));
    }
}

dart_status dart_attention(dart_stream *stream, const dart_attention_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    attention_plan p = {.a = args};
    op_call *call = &p.call;
    if (op_begin(call, stream, "dart_attention") != DART_OK || check(&p) != DART_OK) return op_status(call);
    p.o.lse = op_kept(call, &p.o.lse);
    const bool step = args->plan == DART_PLAN_STEP || (args->plan == DART_PLAN_AUTO && args->L == 1 && !op_packed(&p.layout));
    /* Merging in place needs f32; 16-bit results are rounded once, at the end. */
    const bool in_place = step ? args->more_count + 1 > MERGE_PARTS : args->more_count > 0, round_last = in_place && args->o.dtype != DART_F32;
    const op_operand o = p.o.o;
    if (round_last) p.o.o = op_scratch(call, DART_F32, o.rows, o.width);
    if (step) attend_step_blocks(&p);
    else attend_blocks(&p);
    if (round_last) dense_convert(call, &p.o.o, &o, &p.o.seq, p.flags, args->L);
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
    const uint64_t end = (uint64_t)a->first + a->C;
    OP_REQUIRE(&call, end <= 1u << 30 && a->L <= 1u << 30, "first + C = %llu, L %u must be at most 2^30", (unsigned long long)end, a->L);
    OP_REQUIRE(&call, op_has(&a->seq) || end >= a->L, "a cache of %llu tokens is too short for %u", (unsigned long long)end, a->L);
    const uint64_t rows = (uint64_t)a->B * a->L, cached = (uint64_t)a->B * a->C, width = (uint64_t)a->G * a->D;
    OP_REQUIRE(&call, rows <= UINT32_MAX, "B L = %llu rows are too many for one piece", (unsigned long long)rows);
    const struct { op_operand k, v, seq, to_k, to_v; } o = {
        .k = {"k", a->k, OP_FLOAT | OP_VIEW, rows, width},
        .v = {"v", a->v, OP_FLOAT | OP_VIEW, rows, width},
        .seq = {"seq", a->seq, OP_I32 | OP_OPTIONAL, a->B, 2},
        .to_k = {"to_k", a->to_k, OP_FLOAT | OP_VIEW, cached, width},
        .to_v = {"to_v", a->to_v, OP_FLOAT | OP_VIEW, cached, width}};
    if (!OP_CHECK(&call, o)) return op_status(&call);
    struct KvAppendArgs k = {.flags = op_has(&a->seq) ? HAS_SEQ : 0, .B = a->B, .L = a->L, .G = a->G, .D = a->D, .C = a->C, .first = a->first};
    op_kernel(&call, KERNEL_kv_append, a->L, 0);
    OP_LAUNCH(&call, &k, base_ceil_div(rows * width, call.T0), OP_ROWS(kv_append, k, &o.k, k), OP_ROWS(kv_append, v, &o.v, k),
              OP_AT(kv_append, seq, &o.seq, k), OP_ROWS(kv_append, to_k, &o.to_k, k), OP_ROWS(kv_append, to_v, &o.to_v, k));
    return op_end(&call);
}
