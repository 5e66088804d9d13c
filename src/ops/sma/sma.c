/* State-memory attention over runs of memories, and the store of new ones. */
#include "ops/dense/dense.h"
#include "ops/sma/sma.h"

/* A step is split over memories until that many workgroups a multiprocessor have work, but into splits of no fewer memories than these, where
 * the row leaves it to the op. */
enum { STEP_WORKGROUPS = 8, STEP_LEAST = 8 };
/* (token, group)s a multiprocessor up to which each has a workgroup of its own where a row allows that: all of them then run at once. */
enum { QUERY_WORKGROUPS = 16 };

typedef struct sma_plan {
    op_call call;
    const dart_sma_args *a;
    op_layout layout;
    uint32_t flags;
    uint64_t rows, memory; /* of token-major tensors; H N P */
    struct query {
        op_operand qn, en, unit, read;
        bool made;
    } queries[DART_BF16 + 1]; /* by dtype: 16 bits for rows that multiply in them */
    struct { op_operand q, e, c, seq, r, lse, qn, en; } o; /* r: where results go, which may be scratch */
    bool merge; /* r and lse hold something */
} sma_plan;

static ops_run run_of(const sma_plan *p, const dart_memories *run)
{
    const dart_sma_args *a = p->a;
    return sma_run_of(&p->layout, run, a->S, a->H, a->N, a->P);
}

static dart_status check(sma_plan *p)
{
    op_call *call = &p->call;
    const dart_sma_args *a = p->a;
    if (op_lay_out(call, &p->layout, a->B, a->L, a->T, &a->seq, &a->cu) != DART_OK) return op_status(call);
    OP_REQUIRE(call, a->H > 0 && a->G > 0 && a->S > 0, "H %u, G %u, S %u: all must be above 0", a->H, a->G, a->S);
    if (ops_check_sizes(call, a->H, a->G, a->N, a->P, a->S) != DART_OK) return op_status(call);
    OP_REQUIRE(call, a->eps > 0, "eps %g must be above 0", (double)a->eps);
    OP_REQUIRE(call, a->plan <= DART_PLAN_STEP && (a->plan != DART_PLAN_STEP || a->L == 1), "the step plan takes L = 1");
    OP_REQUIRE(call, a->memories_count == 0 || a->memories != NULL, "memories are missing");
    const bool packed = op_packed(&p->layout);
    OP_REQUIRE(call, !packed || a->plan != DART_PLAN_STEP, "packed sequences have no step plan");
    OP_REQUIRE(call, !packed || (a->memories_count == 1 && a->memories[0].first == 0), "packed sequences have one run, from memory 0 on");
    p->rows = p->layout.rows;
    p->memory = (uint64_t)a->H * a->N * a->P;
    const uint64_t q_width = (uint64_t)a->G * a->N, e_width = (uint64_t)a->G * a->P;
    p->o.q = (op_operand){"q", a->q, OP_FLOAT | OP_VIEW, p->rows, q_width};
    p->o.e = (op_operand){"e", a->e, OP_FLOAT | OP_VIEW, p->rows, e_width};
    p->o.c = (op_operand){"c", a->c, OP_FLOAT | OP_VIEW, p->rows, q_width};
    p->o.seq = p->layout.seq;
    p->o.r = (op_operand){"r", a->r, OP_FLOAT | OP_VIEW, p->rows, (uint64_t)a->H * a->P};
    p->o.lse = (op_operand){"lse", a->lse, OP_F32 | OP_OPTIONAL, p->rows, a->H};
    p->o.qn = (op_operand){"qn", a->qn, OP_F32 | OP_OPTIONAL | OP_ALIGNED, p->rows, q_width};
    p->o.en = (op_operand){"en", a->en, OP_F32 | OP_OPTIONAL | OP_ALIGNED, p->rows, e_width};
    OP_CHECK(call, p->o);
    for (uint32_t i = 0; i < a->memories_count; i++) {
        if (a->memories[i].M == 0) continue;
        const ops_run run = run_of(p, &a->memories[i]);
        OP_CHECK(call, run);
    }
    p->flags = p->layout.flags;
    return op_status(call);
}

/* The queries in the form for that dtype, made when first asked for. */
static const struct query *query(sma_plan *p, dart_dtype dtype)
{
    op_call *call = &p->call;
    const bool is_16bit = dtype != DART_F32;
    struct query *to = &p->queries[dtype];
    if (to->made) return to;
    to->made = true;
    const dart_sma_args *a = p->a;
    const uint64_t q_width = (uint64_t)a->G * a->N, e_width = (uint64_t)a->G * a->P;
    if (is_16bit) {
        to->qn = op_scratch(call, dtype, p->rows + SMA_PADDING, q_width);
        to->en = op_scratch(call, dtype, p->rows, e_width);
        to->read = op_scratch(call, dtype, p->rows + SMA_PADDING, q_width);
        to->unit = op_scratch(call, DART_F32, p->rows, 2 * (uint64_t)a->G);
    } else {
        to->qn = op_kept(call, &p->o.qn);
        to->en = op_kept(call, &p->o.en);
    }
    /* The padding is read, never written. */
    op_operand qn = to->qn, read = to->read, c = is_16bit ? p->o.c : (op_operand){0};
    qn.rows = read.rows = p->rows;
    /* Row by row: what packed sequences share is one sequence of T rows to it. */
    const bool packed = op_packed(&p->layout);
    struct SmaQueryArgs k = {.flags = (p->flags & HAS_SEQ) | (is_16bit ? HAS_UNIT : 0), .B = packed ? 1 : a->B, .L = packed ? a->T : a->L, .G = a->G,
                             .N = a->N, .P = a->P,
                             .c_row = op_row(&p->o.c), .eps = a->eps};
    const bool words = op_fits_rows(&p->o.q) && op_fits_rows(&p->o.e) && op_fits_rows(&p->o.c) && a->N % 8 == 0 && a->P % 8 == 0;
    const uint32_t type = op_fits_16bit(&a->q, &a->e) & op_fits_16bit(&a->q, &a->c);
    const uint32_t fits = type | (type != 0 ? FITS_16BIT : 0) | (words ? FITS_WORDS : 0) | (a->N == 128 && a->P == 64 ? FITS_N128_P64 : 0) |
                          (p->rows * a->G <= QUERY_WORKGROUPS * (uint64_t)op_multiprocessors(call) ? FITS_SMA_FEW_TOKENS : 0);
    const uint32_t small = (a->N <= 32 && a->P <= 64 ? FITS_N32_P64 : 0) | (a->N == 64 && a->P == 64 ? FITS_N64_P64 : 0);
    op_kernel(call, KERNEL_sma_query, a->L, (is_16bit ? fits : 0) | small);
    OP_LAUNCH(call, &k, base_ceil_div(p->rows * a->G, call->T0), OP_ROWS(sma_query, q, &p->o.q, k), OP_ROWS(sma_query, e, &p->o.e, k),
              OP_AT(sma_query, seq, &p->o.seq, k), OP_WHOLE(sma_query, qn, &qn), OP_WHOLE(sma_query, en, &to->en),
              OP_WHOLE(sma_query, unit, &to->unit), OP_AT(sma_query, c, &c, k), OP_WHOLE(sma_query, read, &read));
    return to;
}

/* rho of raw memories, into scratch. */
static op_operand rho(sma_plan *p, const ops_run *run)
{
    op_call *call = &p->call;
    const dart_sma_args *a = p->a;
    const uint64_t rows = run->scale.rows * run->scale.width;
    const op_operand out = op_scratch(call, DART_F32, run->scale.rows, run->scale.width);
    if (rows > UINT32_MAX) op_fail(call, DART_UNSUPPORTED, "%llu rows of memories in one run", (unsigned long long)rows);
    struct SmaRhoArgs k = {.rows = (uint32_t)rows, .P = a->P, .eps = a->eps};
    op_kernel(call, KERNEL_sma_rho, (uint32_t)(run->dh.rows / a->B), sma_rho_fits(&run->dh.of, a->P));
    OP_LAUNCH(call, &k, base_ceil_div(rows, call->T0), OP_AT(sma_rho, dh, &run->dh, k), OP_WHOLE(sma_rho, rho, &out));
    return out;
}

/* What holds for the tokens and one run. */
static uint32_t traits(const sma_plan *p, const dart_memories *run)
{
    const dart_sma_args *a = p->a;
    const uint32_t small = a->P > 64 ? 0 : FITS_P64 | (a->N <= 32 ? FITS_N32_P64 : 0) | (a->N == 64 && a->P == 64 ? FITS_N64_P64 : 0);
    const bool sizes = a->N % 16 == 0 && a->P % 16 == 0 && op_fits_rows(&p->o.r) && run->dh.offset % 8 == 0;
    if (!op_has(&run->scale)) return p->layout.traits | small | (sizes ? FITS_TILES : 0);
    const uint32_t one = op_fits_16bit(&a->q, &a->e) & op_fits_16bit(&a->c, &run->dh) & op_fits_16bit(&a->q, &run->dh);
    const bool is_16bit = a->q.dtype != DART_F32 && a->e.dtype != DART_F32 && a->c.dtype != DART_F32 && run->dh.dtype != DART_F32;
    const bool tiles = sizes && run->scale.offset % 4 == 0;
    return p->layout.traits | small | one | (is_16bit ? FITS_16BIT : 0) | (tiles ? FITS_TILES : 0) |
           (a->N == 128 && a->P == 64 ? FITS_N128_P64 : 0) | sma_bulk_fits(run);
}

/* One run, and the factors that its rows are weighed by: scales, or rho of raw memories. */
typedef struct attended {
    const dart_memories *run;
    op_operand dh, factor;
    uint32_t flags;
} attended;

/* The tokens of a piece against one run. */
static void attend(sma_plan *p, const attended *to)
{
    op_call *call = &p->call;
    const dart_sma_args *a = p->a;
    const dart_memories *run = to->run;
    struct SmaArgs k = {.flags = to->flags, .B = a->B, .L = a->L, .T = a->T, .H = a->H, .G = a->G, .N = a->N, .P = a->P, .S = a->S,
                        .first = run->first, .count = run->M, .capacity = run->M};
    const uint32_t fits = traits(p, run);
    op_kernel(call, KERNEL_sma, a->L, fits);
    const dart_dtype dtype = (call->row->fits & FITS_BF16) != 0 ? DART_BF16 : (call->row->fits & (FITS_F16 | FITS_16BIT)) != 0 ? DART_F16 : DART_F32;
    const bool is_16bit = dtype != DART_F32;
    const struct query *from = query(p, dtype); /* may launch */
    if (is_16bit) k.flags |= HAS_UNIT;
    op_kernel(call, KERNEL_sma, a->L, fits);
    if (call->row->T1 == 0) call->T1 = a->N / 16; /* of a row for FITS_N32_P64 and FITS_TILES */
    OP_LAUNCH(call, &k, base_ceil_div(a->L, call->T0) * a->H * a->B, OP_WHOLE(sma, qn, &from->qn), OP_WHOLE(sma, en, &from->en),
              OP_WHOLE(sma, unit, &from->unit), OP_ROWS(sma, c, is_16bit ? &from->read : &p->o.c, k), OP_AT(sma, dh, &to->dh, k),
              OP_AT(sma, factor, &to->factor, k), OP_AT(sma, seq, &p->o.seq, k), OP_ROWS(sma, r, &p->o.r, k),
              OP_AT(sma, lse, &p->o.lse, k));
}

/* Memories that one split of a step looks at. */
static uint64_t step_size(const op_call *call, uint64_t heads, uint32_t memories)
{
    if (call->T0 != 0) return call->T0;
    const uint64_t by_work = base_ceil_div(heads * memories, STEP_WORKGROUPS * op_wave(call));
    return by_work > STEP_LEAST ? by_work : STEP_LEAST;
}

/* One token a sequence against one run, in one launch: splits, the last of which to be done merges them. */
static void attend_step(sma_plan *p, const attended *to)
{
    op_call *call = &p->call;
    const dart_sma_args *a = p->a;
    const dart_memories *run = to->run;
    const uint64_t heads = (uint64_t)a->B * a->H;
    struct SmaStepArgs k = {.flags = to->flags, .B = a->B, .H = a->H, .G = a->G, .N = a->N, .P = a->P, .S = a->S, .first = run->first,
                            .count = run->M, .capacity = run->M, .eps = a->eps};
    /* The memories alone are multiplied as they are stored. */
    const bool is_16bit = run->dh.dtype != DART_F32 && run->dh.offset % 8 == 0 && to->factor.of.offset % 4 == 0;
    op_kernel(call, KERNEL_sma_step, a->B, (is_16bit ? FITS_16BIT : 0) | (a->N == 128 && a->P == 64 ? FITS_N128_P64 : 0));
    const uint64_t wanted = base_ceil_div(run->M, step_size(call, heads, run->M));
    k.splits = wanted < 1 ? 1 : wanted > MERGE_PARTS ? MERGE_PARTS : (uint32_t)wanted;
    const op_operand partial = op_scratch(call, DART_F32, heads * k.splits, (uint64_t)a->P + 2), tickets = op_tickets(call, heads);
    OP_LAUNCH(call, &k, heads * k.splits, OP_ROWS(sma_step, q, &p->o.q, k), OP_ROWS(sma_step, e, &p->o.e, k),
              OP_ROWS(sma_step, c, &p->o.c, k), OP_AT(sma_step, dh, &to->dh, k), OP_AT(sma_step, factor, &to->factor, k),
              OP_AT(sma_step, seq, &p->o.seq, k), OP_WHOLE(sma_step, partial, &partial), OP_WHOLE(sma_step, tickets, &tickets),
              OP_ROWS(sma_step, r, &p->o.r, k), OP_AT(sma_step, lse, &p->o.lse, k));
}

static void attend_run(sma_plan *p, const dart_memories *run)
{
    const bool raw = !op_has(&run->scale);
    const ops_run o = run_of(p, run);
    const uint32_t flags = p->flags | (raw ? IS_RAW : 0) | (p->merge ? IS_MERGE : 0);
    const attended to = {.run = run, .dh = o.dh, .factor = raw && run->M > 0 ? rho(p, &o) : o.scale, .flags = flags};
    if (p->a->plan == DART_PLAN_STEP || (p->a->plan == DART_PLAN_AUTO && p->a->L == 1 && !op_packed(&p->layout))) attend_step(p, &to);
    else attend(p, &to);
    p->merge = true;
}

/* A run of one sequence may exceed what a binding holds: it is taken in parts. With more sequences the parts would not
 * be contiguous, and op_launch says so. */
static void attend_parts(sma_plan *p, const dart_memories *run)
{
    const dart_sma_args *a = p->a;
    const uint64_t fit = op_binding_limit(&p->call) / (p->memory * dart_dtype_size(run->dh.dtype));
    const uint32_t step = a->B > 1 || op_packed(&p->layout) || fit >= run->M ? run->M : fit == 0 ? 1 : (uint32_t)fit;
    for (uint32_t m = 0; m < run->M && op_status(&p->call) == DART_OK; m += step) {
        dart_memories part = *run;
        part.first += m;
        part.M = run->M - m < step ? run->M - m : step;
        part.dh.offset += m * p->memory;
        if (op_has(&part.scale)) part.scale.offset += (uint64_t)m * a->H * a->N;
        attend_run(p, &part);
    }
}

dart_status dart_sma(dart_stream *stream, const dart_sma_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    sma_plan p = {.a = args};
    op_call *call = &p.call;
    if (op_begin(call, stream, "dart_sma") != DART_OK || check(&p) != DART_OK) return op_status(call);
    const op_operand r = p.o.r;
    p.o.lse = op_kept(call, &p.o.lse);
    /* Merging needs f32; 16-bit results of several runs are rounded once, at the end. */
    uint64_t total = 0;
    for (uint32_t i = 0; i < args->memories_count; i++) total += args->memories[i].M;
    const bool several = args->memories_count > 1 || total * p.memory * 4 > op_binding_limit(call);
    const bool round_last = several && args->r.dtype != DART_F32;
    if (round_last) p.o.r = op_scratch(call, DART_F32, r.rows, r.width);
    if (op_has(&args->qn) || op_has(&args->en)) query(&p, DART_F32);
    for (uint32_t i = 0; i < args->memories_count; i++)
        if (args->memories[i].M > 0) attend_parts(&p, &args->memories[i]);
    const dart_memories nothing = {0};
    if (!p.merge) attend_run(&p, &nothing);
    if (round_last) dense_convert(call, &p.o.r, &r, &p.o.seq, p.flags, args->L);
    return op_end(call);
}

dart_status dart_sma_append(dart_stream *stream, const dart_sma_append_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    op_call call;
    const dart_sma_append_args *a = args;
    if (op_begin(&call, stream, "dart_sma_append") != DART_OK) return op_status(&call);
    OP_REQUIRE(&call, a->B > 0 && a->L > 0 && a->H > 0 && a->S > 0 && a->to.M > 0, "B %u, L %u, H %u, S %u, M %u: all must be above 0",
               a->B, a->L, a->H, a->S, a->to.M);
    if (ops_check_sizes(&call, a->H, 1, a->N, a->P, a->S) != DART_OK) return op_status(&call);
    OP_REQUIRE(&call, a->L <= 1u << 30, "L %u must be at most 2^30", a->L);
    OP_REQUIRE(&call, a->eps > 0, "eps %g must be above 0", (double)a->eps);
    const uint32_t M = op_chunks(a->L, a->S, op_has(&a->seq));
    const uint64_t from = (uint64_t)a->B * M;
    const ops_run to = ops_run_of(&a->to, "to.dh", "to.scale", (uint64_t)a->B * a->to.M, a->H, a->N, a->P);
    const struct { op_operand dh, seq, to, scale; } o = {
        .dh = {"dh", a->dh, OP_FLOAT, from, to.dh.width},
        .seq = {"seq", a->seq, OP_I32 | OP_OPTIONAL, a->B, 2},
        .to = to.dh, .scale = to.scale};
    if (!OP_CHECK(&call, o)) return op_status(&call);
    struct SmaAppendArgs k = {.flags = op_has(&a->seq) ? HAS_SEQ : 0, .B = a->B, .L = a->L, .H = a->H, .N = a->N, .P = a->P, .S = a->S,
                              .M = M, .first = a->to.first, .count = a->to.M, .capacity = a->to.M, .eps = a->eps};
    op_kernel(&call, KERNEL_sma_append, a->L, 0);
    OP_LAUNCH(&call, &k, base_ceil_div(a->N, call.T0) * a->H * from, OP_AT(sma_append, dh, &o.dh, k), OP_AT(sma_append, seq, &o.seq, k),
              OP_AT(sma_append, to, &o.to, k), OP_AT(sma_append, scale, &o.scale, k));
    return op_end(&call);
}
