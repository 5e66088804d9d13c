/* State-memory attention over runs of memories, and the store of new ones. */
#include "runtime/stream.h"

typedef struct sma_plan {
    op_call call;
    const dart_sma_args *a;
    uint32_t flags;
    uint64_t rows, memory; /* B L, H N P */
    struct query {
        dart_tensor qn, en, unit, read;
        bool made;
    } queries[DART_BF16 + 1]; /* by dtype: 16 bits for rows that multiply in them */
    dart_tensor r, lse;
    bool merge; /* r and lse hold something */
} sma_plan;

static dart_status check(sma_plan *p)
{
    op_call *call = &p->call;
    const dart_sma_args *a = p->a;
    OP_REQUIRE(call, a->B > 0 && a->L > 0 && a->H > 0 && a->G > 0 && a->S > 0, "B %u, L %u, H %u, G %u, S %u: all must be above 0",
               a->B, a->L, a->H, a->G, a->S);
    OP_REQUIRE(call, a->H % a->G == 0, "H %u is not a multiple of G %u", a->H, a->G);
    OP_REQUIRE(call, a->N > 0 && a->N <= MAX_STATE && a->P > 0 && a->P <= MAX_STATE, "N %u, P %u must be 1 to %d", a->N, a->P, MAX_STATE);
    OP_REQUIRE(call, a->S <= 1u << 30 && a->L <= 1u << 30, "S %u, L %u must be at most 2^30", a->S, a->L);
    OP_REQUIRE(call, a->eps > 0, "eps %g must be above 0", (double)a->eps);
    OP_REQUIRE(call, a->plan <= DART_PLAN_STEP && (a->plan != DART_PLAN_STEP || a->L == 1), "the step plan takes L = 1");
    OP_REQUIRE(call, a->memories_count == 0 || a->memories != NULL, "memories are missing");
    p->rows = (uint64_t)a->B * a->L;
    OP_REQUIRE(call, p->rows <= UINT32_MAX, "B L = %llu rows are too many for one piece", (unsigned long long)p->rows);
    p->memory = (uint64_t)a->H * a->N * a->P;
    op_check(call, "q", &a->q, OP_FLOAT | OP_VIEW, p->rows, (uint64_t)a->G * a->N);
    op_check(call, "e", &a->e, OP_FLOAT | OP_VIEW, p->rows, (uint64_t)a->G * a->P);
    op_check(call, "c", &a->c, OP_FLOAT | OP_VIEW, p->rows, (uint64_t)a->G * a->N);
    op_check(call, "seq", &a->seq, OP_I32 | OP_OPTIONAL, a->B, 2);
    op_check(call, "r", &a->r, OP_FLOAT | OP_VIEW, p->rows, (uint64_t)a->H * a->P);
    op_check(call, "lse", &a->lse, OP_F32 | OP_OPTIONAL, p->rows, a->H);
    op_check(call, "qn", &a->qn, OP_F32 | OP_OPTIONAL | OP_ALIGNED, p->rows, (uint64_t)a->G * a->N);
    op_check(call, "en", &a->en, OP_F32 | OP_OPTIONAL | OP_ALIGNED, p->rows, (uint64_t)a->G * a->P);
    for (uint32_t i = 0; i < a->memories_count; i++) {
        const dart_memories *run = &a->memories[i];
        if (run->M == 0) continue;
        op_check(call, "dh", &run->dh, OP_FLOAT, (uint64_t)a->B * run->M, p->memory);
        op_check(call, "scale", &run->scale, OP_F32 | OP_OPTIONAL, (uint64_t)a->B * run->M, (uint64_t)a->H * a->N);
    }
    p->flags = op_has(&a->seq) ? HAS_SEQ : 0;
    return op_status(call);
}

/* Scratch for that many 16-bit elements. */
static dart_tensor scratch_of(op_call *call, dart_dtype dtype, uint64_t elements)
{
    dart_tensor tensor = op_scratch(call, base_ceil_div(elements, 2));
    tensor.offset *= 2;
    tensor.dtype = dtype;
    return tensor;
}

/* The queries in the form for that dtype, made when first asked for. */
static const struct query *query(sma_plan *p, dart_dtype dtype)
{
    op_call *call = &p->call;
    const bool half = dtype != DART_F32;
    struct query *to = &p->queries[dtype];
    if (to->made) return to;
    to->made = true;
    const dart_sma_args *a = p->a;
    const uint64_t q_width = (uint64_t)a->G * a->N, e_width = (uint64_t)a->G * a->P;
    if (half) {
        to->qn = scratch_of(call, dtype, (p->rows + SMA_PADDING) * q_width);
        to->en = scratch_of(call, dtype, p->rows * e_width);
        to->read = scratch_of(call, dtype, (p->rows + SMA_PADDING) * q_width);
        to->unit = op_scratch(call, 2 * p->rows * a->G);
    } else {
        to->qn = op_kept(call, &a->qn, p->rows * q_width);
        to->en = op_kept(call, &a->en, p->rows * e_width);
    }
    struct SmaQueryArgs k = {.flags = p->flags | (half ? HAS_UNIT : 0), .B = a->B, .L = a->L, .G = a->G, .N = a->N, .P = a->P,
                             .q_row = op_row(&a->q, q_width), .e_row = op_row(&a->e, e_width), .c_row = op_row(&a->c, q_width), .eps = a->eps};
    const bool words = op_fits_rows(&a->q, q_width) && op_fits_rows(&a->e, e_width) && op_fits_rows(&a->c, q_width) &&
                       a->N % 8 == 0 && a->P % 8 == 0;
    const uint32_t type = op_fits_half(&a->q, &a->e) & op_fits_half(&a->q, &a->c);
    const uint32_t fits = type | (type != 0 ? FITS_HALF : 0) | (words ? FITS_TILES : 0) | (a->N == 128 && a->P == 64 ? FITS_N128_P64 : 0);
    op_kernel(call, KERNEL_sma_query, a->L, half ? fits : 0);
    k.q_at = op_bind_rows(call, BINDING_sma_query_q, &a->q, p->rows, q_width);
    k.e_at = op_bind_rows(call, BINDING_sma_query_e, &a->e, p->rows, e_width);
    k.seq_at = op_bind(call, BINDING_sma_query_seq, &a->seq, 2 * (uint64_t)a->B);
    op_bind(call, BINDING_sma_query_qn, &to->qn, p->rows * q_width);
    op_bind(call, BINDING_sma_query_en, &to->en, p->rows * e_width);
    op_bind(call, BINDING_sma_query_unit, &to->unit, 2 * p->rows * a->G);
    if (half) k.c_at = op_bind_rows(call, BINDING_sma_query_c, &a->c, p->rows, q_width);
    op_bind(call, BINDING_sma_query_read, &to->read, p->rows * q_width);
    op_launch(call, &k, p->rows * a->G);
    return to;
}

/* rho of raw memories, into scratch. */
static dart_tensor rho(sma_plan *p, const dart_memories *run)
{
    op_call *call = &p->call;
    const dart_sma_args *a = p->a;
    const uint64_t rows = (uint64_t)a->B * run->M * a->H * a->N;
    const dart_tensor out = op_scratch(call, rows);
    if (rows > UINT32_MAX) op_fail(call, DART_UNSUPPORTED, "%llu rows of memories in one run", (unsigned long long)rows);
    struct SmaRhoArgs k = {.rows = (uint32_t)rows, .P = a->P, .eps = a->eps};
    op_kernel(call, KERNEL_sma_rho, run->M, 0);
    k.dh_at = op_bind(call, BINDING_sma_rho_dh, &run->dh, rows * a->P);
    op_bind(call, BINDING_sma_rho_rho, &out, rows);
    op_launch(call, &k, base_ceil_div(rows, call->row->T0));
    return out;
}

/* What holds for the tokens and one run; see kernel.h. */
static uint32_t traits(const sma_plan *p, const dart_memories *run)
{
    const dart_sma_args *a = p->a;
    const uint32_t small = a->P <= 64 ? FITS_P64 : 0;
    const bool sizes = a->N % 16 == 0 && a->P % 16 == 0 && op_fits_rows(&p->r, (uint64_t)a->H * a->P) && run->dh.offset % 8 == 0;
    if (!op_has(&run->scale)) return small | (sizes ? FITS_TILES : 0);
    const uint32_t one = op_fits_half(&a->q, &a->e) & op_fits_half(&a->c, &run->dh) & op_fits_half(&a->q, &run->dh);
    const bool half = a->q.dtype != DART_F32 && a->e.dtype != DART_F32 && a->c.dtype != DART_F32 && run->dh.dtype != DART_F32;
    const bool tiles = sizes && run->scale.offset % 4 == 0;
    /* The CUDA row for this shape copies memories as rows of 64 elements from the binding's start on (CUDA_MAP). */
    const bool rows_of_64 = a->N == 128 && a->P == 64 && run->dh.offset % 64 == 0;
    return small | one | (half ? FITS_HALF : 0) | (tiles ? FITS_TILES : 0) | (rows_of_64 ? FITS_N128_P64 : 0);
}

/* The tokens of a piece against one run. */
static void attend(sma_plan *p, const dart_memories *run, const dart_tensor *factor, uint32_t flags)
{
    op_call *call = &p->call;
    const dart_sma_args *a = p->a;
    const uint64_t width = (uint64_t)a->G * a->N, memories = (uint64_t)a->B * run->M;
    struct SmaArgs k = {.flags = flags, .B = a->B, .L = a->L, .H = a->H, .G = a->G, .N = a->N, .P = a->P, .S = a->S, .first = run->first,
                        .count = run->M, .capacity = run->M, .r_row = op_row(&p->r, (uint64_t)a->H * a->P)};
    const uint32_t fits = traits(p, run);
    op_kernel(call, KERNEL_sma, a->L, fits);
    const dart_dtype dtype = (call->row->fits & FITS_BF16) != 0 ? DART_BF16 : (call->row->fits & (FITS_F16 | FITS_HALF)) != 0 ? DART_F16 : DART_F32;
    const bool half = dtype != DART_F32;
    const struct query *from = query(p, dtype);
    if (half) k.flags |= HAS_UNIT;
    op_kernel(call, KERNEL_sma, a->L, fits);
    const uint64_t padded = p->rows + (half ? SMA_PADDING : 0);
    op_bind(call, BINDING_sma_qn, &from->qn, padded * width);
    op_bind(call, BINDING_sma_en, &from->en, p->rows * a->G * a->P);
    op_bind(call, BINDING_sma_unit, &from->unit, 2 * p->rows * a->G);
    k.c_row = op_row(half ? &from->read : &a->c, width);
    k.c_at = op_bind_rows(call, BINDING_sma_c, half ? &from->read : &a->c, half ? padded : p->rows, width);
    k.dh_at = op_bind(call, BINDING_sma_dh, &run->dh, memories * p->memory);
    k.factor_at = op_bind(call, BINDING_sma_factor, factor, memories * a->H * a->N);
    k.seq_at = op_bind(call, BINDING_sma_seq, &a->seq, 2 * (uint64_t)a->B);
    k.r_at = op_bind_rows(call, BINDING_sma_r, &p->r, p->rows, (uint64_t)a->H * a->P);
    k.lse_at = op_bind(call, BINDING_sma_lse, &p->lse, p->rows * a->H);
    op_launch(call, &k, base_ceil_div(a->L, call->row->T0) * a->H * a->B);
}

/* One token a sequence against one run, in one launch: splits, the last of which to be done merges them. */
static void attend_step(sma_plan *p, const dart_memories *run, const dart_tensor *factor, uint32_t flags)
{
    op_call *call = &p->call;
    const dart_sma_args *a = p->a;
    const uint64_t q_width = (uint64_t)a->G * a->N, e_width = (uint64_t)a->G * a->P, width = (uint64_t)a->H * a->P;
    const uint64_t memories = (uint64_t)a->B * run->M, heads = (uint64_t)a->B * a->H;
    struct SmaStepArgs k = {.flags = flags, .B = a->B, .H = a->H, .G = a->G, .N = a->N, .P = a->P, .S = a->S, .first = run->first,
                            .count = run->M, .capacity = run->M, .q_row = op_row(&a->q, q_width), .e_row = op_row(&a->e, e_width),
                            .c_row = op_row(&a->c, q_width), .r_row = op_row(&p->r, width), .eps = a->eps};
    /* The memories alone are multiplied as they are stored. */
    const bool half = run->dh.dtype != DART_F32 && run->dh.offset % 8 == 0 && factor->offset % 4 == 0;
    op_kernel(call, KERNEL_sma_step, a->B, (half ? FITS_HALF : 0) | (a->N == 128 && a->P == 64 ? FITS_N128_P64 : 0));
    const uint64_t wanted = base_ceil_div(run->M, call->row->T0);
    k.splits = wanted < 1 ? 1 : wanted > MERGE_PARTS ? MERGE_PARTS : (uint32_t)wanted;
    const uint64_t parts = heads * k.splits * (a->P + 2);
    const dart_tensor partial = op_scratch(call, parts), tickets = op_tickets(call, heads);
    k.q_at = op_bind_rows(call, BINDING_sma_step_q, &a->q, a->B, q_width);
    k.e_at = op_bind_rows(call, BINDING_sma_step_e, &a->e, a->B, e_width);
    k.c_at = op_bind_rows(call, BINDING_sma_step_c, &a->c, a->B, q_width);
    k.dh_at = op_bind(call, BINDING_sma_step_dh, &run->dh, memories * p->memory);
    k.factor_at = op_bind(call, BINDING_sma_step_factor, factor, memories * a->H * a->N);
    k.seq_at = op_bind(call, BINDING_sma_step_seq, &a->seq, 2 * (uint64_t)a->B);
    op_bind(call, BINDING_sma_step_partial, &partial, parts);
    op_bind(call, BINDING_sma_step_tickets, &tickets, heads);
    k.r_at = op_bind_rows(call, BINDING_sma_step_r, &p->r, a->B, width);
    k.lse_at = op_bind(call, BINDING_sma_step_lse, &p->lse, heads);
    op_launch(call, &k, heads * k.splits);
}

static void attend_run(sma_plan *p, const dart_memories *run)
{
    const bool raw = !op_has(&run->scale);
    const dart_tensor factor = raw && run->M > 0 ? rho(p, run) : run->scale;
    const uint32_t flags = p->flags | (raw ? IS_RAW : 0) | (p->merge ? IS_MERGE : 0);
    if (p->a->plan == DART_PLAN_STEP || (p->a->plan == DART_PLAN_AUTO && p->a->L == 1)) attend_step(p, run, &factor, flags);
    else attend(p, run, &factor, flags);
    p->merge = true;
}

/* A run of one sequence may exceed what a binding holds: it is taken in parts. With more sequences the parts would not
 * be contiguous, and op_bind says so. */
static void attend_parts(sma_plan *p, const dart_memories *run)
{
    const dart_sma_args *a = p->a;
    const uint64_t fit = op_binding_limit(&p->call) / (p->memory * dart_dtype_size(run->dh.dtype));
    const uint32_t step = a->B > 1 || fit >= run->M ? run->M : fit == 0 ? 1 : (uint32_t)fit;
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
    const uint64_t width = (uint64_t)args->H * args->P;
    p.lse = op_kept(call, &args->lse, p.rows * args->H);
    /* Merging needs f32; 16-bit results of several runs are rounded once, at the end. */
    uint64_t total = 0;
    for (uint32_t i = 0; i < args->memories_count; i++) total += args->memories[i].M;
    const bool several = args->memories_count > 1 || total * p.memory * 4 > op_binding_limit(call);
    const bool round_last = several && args->r.dtype != DART_F32;
    p.r = round_last ? op_scratch(call, p.rows * width) : args->r;
    if (op_has(&args->qn) || op_has(&args->en)) query(&p, DART_F32);
    for (uint32_t i = 0; i < args->memories_count; i++)
        if (args->memories[i].M > 0) attend_parts(&p, &args->memories[i]);
    const dart_memories nothing = {0};
    if (!p.merge) attend_run(&p, &nothing);
    if (round_last) {
        struct ConvertArgs k = {.flags = p.flags, .rows = (uint32_t)p.rows, .L = args->L, .width = (uint32_t)width, .x_row = (uint32_t)width, .y_row = op_row(&args->r, width)};
        op_kernel(call, KERNEL_convert, args->L, 0);
        k.x_at = op_bind(call, BINDING_convert_x, &p.r, p.rows * width);
        k.y_at = op_bind_rows(call, BINDING_convert_y, &args->r, p.rows, width);
        k.seq_at = op_bind(call, BINDING_convert_seq, &args->seq, 2 * (uint64_t)args->B);
        op_launch(call, &k, base_ceil_div(p.rows * width, call->row->T0));
    }
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
    OP_REQUIRE(&call, a->N > 0 && a->N <= MAX_STATE && a->P > 0 && a->P <= MAX_STATE, "N %u, P %u must be 1 to %d", a->N, a->P, MAX_STATE);
    OP_REQUIRE(&call, a->S <= 1u << 30 && a->L <= 1u << 30, "S %u, L %u must be at most 2^30", a->S, a->L);
    OP_REQUIRE(&call, a->eps > 0, "eps %g must be above 0", (double)a->eps);
    const uint32_t M = dart_ssd_chunks(a->L, a->S, op_has(&a->seq));
    const uint64_t memory = (uint64_t)a->H * a->N * a->P, from = (uint64_t)a->B * M, to = (uint64_t)a->B * a->to.M;
    op_check(&call, "dh", &a->dh, OP_FLOAT, from, memory);
    op_check(&call, "seq", &a->seq, OP_I32 | OP_OPTIONAL, a->B, 2);
    op_check(&call, "to.dh", &a->to.dh, OP_FLOAT, to, memory);
    op_check(&call, "to.scale", &a->to.scale, OP_F32, to, (uint64_t)a->H * a->N);
    if (op_status(&call) != DART_OK) return op_status(&call);
    struct SmaAppendArgs k = {.flags = op_has(&a->seq) ? HAS_SEQ : 0, .B = a->B, .L = a->L, .H = a->H, .N = a->N, .P = a->P, .S = a->S,
                              .M = M, .first = a->to.first, .count = a->to.M, .capacity = a->to.M, .eps = a->eps};
    op_kernel(&call, KERNEL_sma_append, a->L, 0);
    k.dh_at = op_bind(&call, BINDING_sma_append_dh, &a->dh, from * memory);
    k.seq_at = op_bind(&call, BINDING_sma_append_seq, &a->seq, 2 * (uint64_t)a->B);
    k.to_at = op_bind(&call, BINDING_sma_append_to, &a->to.dh, to * memory);
    k.scale_at = op_bind(&call, BINDING_sma_append_scale, &a->to.scale, to * a->H * a->N);
    op_launch(&call, &k, base_ceil_div(a->N, call.row->T0) * a->H * from);
    return op_end(&call);
}
