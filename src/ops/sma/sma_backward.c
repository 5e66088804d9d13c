/* The backward pass of state-memory attention over one run of memories. */
#include "ops/sma/sma.h"

#include "dartlm/ops_backward.h"

typedef struct plan {
    op_call call;
    const dart_sma_backward_args *a;
    op_layout layout;
    uint32_t flags, M;
    uint64_t rows; /* of token-major tensors */
    struct { op_operand q, e, c, seq, dh, scale, r, lse, up_r, grad_q, grad_e, grad_c, grad_dh; } o;
    op_operand qn, en, factor, g, slope, of_q, of_e, x; /* scratch; factor: rho, or the scales */
} plan;

static dart_status check(plan *p)
{
    op_call *call = &p->call;
    const dart_sma_backward_args *a = p->a;
    if (op_lay_out(call, &p->layout, a->B, a->L, a->T, &a->seq, &a->cu) != DART_OK) return op_status(call);
    OP_REQUIRE(call, a->H > 0 && a->G > 0 && a->S > 0, "H %u, G %u, S %u: all must be above 0", a->H, a->G, a->S);
    if (ops_check_sizes(call, a->H, a->G, a->N, a->P, a->S) != DART_OK) return op_status(call);
    OP_REQUIRE(call, a->eps > 0, "eps %g must be above 0", (double)a->eps);
    OP_REQUIRE(call, a->memories.first == 0 && a->memories.M > 0, "memories %u to %u: the run must begin with memory 0, and not be empty",
               a->memories.first, a->memories.M);
    p->M = a->memories.M;
    p->rows = p->layout.rows;
    const uint64_t q_width = (uint64_t)a->G * a->N, e_width = (uint64_t)a->G * a->P, r_width = (uint64_t)a->H * a->P;
    const ops_run run = sma_run_of(&p->layout, &a->memories, a->S, a->H, a->N, a->P);
    p->o.q = (op_operand){"q", a->q, OP_FLOAT | OP_VIEW, p->rows, q_width};
    p->o.e = (op_operand){"e", a->e, OP_FLOAT | OP_VIEW, p->rows, e_width};
    p->o.c = (op_operand){"c", a->c, OP_FLOAT | OP_VIEW, p->rows, q_width};
    p->o.seq = p->layout.seq;
    p->o.dh = run.dh;
    p->o.scale = run.scale;
    p->o.r = (op_operand){"r", a->r, OP_FLOAT | OP_VIEW, p->rows, r_width};
    p->o.lse = (op_operand){"lse", a->lse, OP_F32, p->rows, a->H};
    p->o.up_r = (op_operand){"up_r", a->up_r, OP_FLOAT | OP_VIEW, p->rows, r_width};
    p->o.grad_q = (op_operand){"grad_q", a->grad_q, OP_FLOAT | OP_VIEW, p->rows, q_width};
    p->o.grad_e = (op_operand){"grad_e", a->grad_e, OP_FLOAT | OP_VIEW, p->rows, e_width};
    p->o.grad_c = (op_operand){"grad_c", a->grad_c, OP_FLOAT | OP_VIEW, p->rows, q_width};
    p->o.grad_dh = (op_operand){"grad_dh", a->grad_dh, OP_F32, run.dh.rows, run.dh.width};
    OP_CHECK(call, p->o);
    p->flags = p->layout.flags | (op_has(&a->memories.scale) ? 0 : IS_RAW);
    return op_status(call);
}

/* Rows of q and e that a small team of lanes holds, in whole words. */
static uint32_t short_rows(const plan *p, bool fit)
{
    const dart_sma_backward_args *a = p->a;
    const bool words = fit && op_fits_rows(&p->o.q) && op_fits_rows(&p->o.e) && a->N % 8 == 0 && a->P % 8 == 0;
    if (a->N == 64 && a->P == 64) return FITS_N64_P64;
    return a->N <= 32 && a->P <= 64 ? FITS_N32_P64 | (words ? FITS_SMA_SHORT : 0) : 0;
}

static void prepare(plan *p)
{
    op_call *call = &p->call;
    const dart_sma_backward_args *a = p->a;
    const uint64_t q_width = (uint64_t)a->G * a->N, e_width = (uint64_t)a->G * a->P, pairs = (uint64_t)a->H * p->M;
    const op_operand none = {0};
    p->qn = op_scratch(call, DART_F32, p->rows, q_width);
    p->en = op_scratch(call, DART_F32, p->rows, e_width);
    p->g = op_scratch(call, DART_F32, p->rows, pairs);
    p->slope = op_scratch(call, DART_F32, p->rows, pairs);
    p->of_q = op_scratch(call, DART_F32, p->rows, q_width);
    p->of_e = op_scratch(call, DART_F32, p->rows, e_width);
    const bool packed = op_packed(&p->layout);
    struct SmaQueryArgs query = {.flags = p->flags & HAS_SEQ, .B = packed ? 1 : a->B, .L = packed ? a->T : a->L, .G = a->G, .N = a->N, .P = a->P,
                                 .c_row = op_row(&p->o.c),
                                 .eps = a->eps};
    op_kernel(call, KERNEL_sma_query, a->L, short_rows(p, true));
    OP_LAUNCH(call, &query, base_ceil_div(p->rows * a->G, call->T0), OP_ROWS(sma_query, q, &p->o.q, query), OP_ROWS(sma_query, e, &p->o.e, query),
              OP_AT(sma_query, seq, &p->o.seq, query), OP_WHOLE(sma_query, qn, &p->qn), OP_WHOLE(sma_query, en, &p->en),
              OP_WHOLE(sma_query, unit, &none), OP_AT(sma_query, c, &none, query), OP_WHOLE(sma_query, read, &none));
    p->factor = p->o.scale;
    if ((p->flags & IS_RAW) == 0) return;
    p->factor = op_scratch(call, DART_F32, p->o.scale.rows, p->o.scale.width);
    const uint64_t rows = p->o.scale.rows * p->o.scale.width;
    if (rows > UINT32_MAX) op_fail(call, DART_UNSUPPORTED, "%llu rows of memories", (unsigned long long)rows);
    struct SmaRhoArgs rho = {.rows = (uint32_t)rows, .P = a->P, .eps = a->eps};
    op_kernel(call, KERNEL_sma_rho, p->M, sma_rho_fits(&p->o.dh.of, a->P));
    OP_LAUNCH(call, &rho, base_ceil_div(rows, call->T0), OP_AT(sma_rho, dh, &p->o.dh, rho), OP_WHOLE(sma_rho, rho, &p->factor));
}

/* What rows for matrices and for few registers ask of the call. Those for matrices take normalised memories. */
static uint32_t traits_of(const plan *p)
{
    const dart_sma_backward_args *a = p->a;
    const uint32_t types = op_fits_16bit(&a->c, &a->memories.dh) & op_fits_16bit(&a->memories.dh, &a->up_r);
    const bool sizes = a->N % 16 == 0 && a->P % 16 == 0;
    const bool tiles = sizes && op_fits_rows(&p->o.c) && op_fits_rows(&p->o.dh) && op_fits_rows(&p->o.r) && op_fits_rows(&p->o.up_r) &&
                       op_fits_rows(&p->o.grad_dh);
    return p->layout.traits | types | (tiles ? FITS_TILES : 0) | ((p->flags & IS_RAW) == 0 ? FITS_SMA_NORMALISED : 0) |
           (a->P <= 64 ? FITS_P64 : 0) | (a->N <= 32 && a->P <= 64 ? FITS_N32_P64 : 0);
}

static void scores(plan *p)
{
    op_call *call = &p->call;
    const dart_sma_backward_args *a = p->a;
    struct SmaBackwardScoresArgs k = {.flags = p->flags, .B = a->B, .L = a->L, .T = a->T, .H = a->H, .G = a->G, .N = a->N, .P = a->P, .S = a->S,
                                      .M = p->M};
    op_kernel(call, KERNEL_sma_backward_scores, a->L, 0);
    OP_LAUNCH(call, &k, base_ceil_div(a->L, call->T0) * a->H * a->B, OP_WHOLE(sma_backward_scores, qn, &p->qn),
              OP_WHOLE(sma_backward_scores, en, &p->en), OP_ROWS(sma_backward_scores, c, &p->o.c, k), OP_AT(sma_backward_scores, dh, &p->o.dh, k),
              OP_AT(sma_backward_scores, factor, &p->factor, k), OP_AT(sma_backward_scores, seq, &p->o.seq, k),
              OP_ROWS(sma_backward_scores, r, &p->o.r, k), OP_AT(sma_backward_scores, lse, &p->o.lse, k),
              OP_ROWS(sma_backward_scores, up_r, &p->o.up_r, k), OP_WHOLE(sma_backward_scores, g, &p->g),
              OP_WHOLE(sma_backward_scores, slope, &p->slope));
}

static void sums(plan *p)
{
    op_call *call = &p->call;
    const dart_sma_backward_args *a = p->a;
    struct SmaBackwardSumsArgs k = {.flags = p->flags | (a->add_c ? IS_ADD : 0), .B = a->B, .L = a->L, .T = a->T, .H = a->H, .G = a->G, .N = a->N,
                                    .P = a->P,
                                    .S = a->S, .M = p->M};
    op_kernel(call, KERNEL_sma_backward_sums, a->L, 0);
    const uint64_t blocks = 2 * base_ceil_div(a->N, call->T1) + base_ceil_div(a->P, call->T1);
    OP_LAUNCH(call, &k, blocks * base_ceil_div(a->L, call->T0) * a->G * a->B, OP_WHOLE(sma_backward_sums, qn, &p->qn),
              OP_WHOLE(sma_backward_sums, en, &p->en), OP_WHOLE(sma_backward_sums, g, &p->g), OP_WHOLE(sma_backward_sums, slope, &p->slope),
              OP_AT(sma_backward_sums, dh, &p->o.dh, k), OP_AT(sma_backward_sums, factor, &p->factor, k),
              OP_AT(sma_backward_sums, seq, &p->o.seq, k), OP_ROWS(sma_backward_sums, up_r, &p->o.up_r, k),
              OP_WHOLE(sma_backward_sums, of_q, &p->of_q), OP_WHOLE(sma_backward_sums, of_e, &p->of_e),
              OP_ROWS(sma_backward_sums, grad_c, &p->o.grad_c, k));
}

/* What scores and sums do, by one kernel where the device has one for such sizes. */
static bool tokens(plan *p)
{
    op_call *call = &p->call;
    const dart_sma_backward_args *a = p->a;
    const uint32_t traits = traits_of(p);
    if (!op_prefers(call, KERNEL_sma_backward_tokens, KERNEL_sma_backward_sums, a->L, traits)) return false;
    struct SmaBackwardTokensArgs k = {.flags = p->flags | (a->add_c ? IS_ADD : 0), .B = a->B, .L = a->L, .T = a->T, .H = a->H, .G = a->G, .N = a->N,
                                      .P = a->P,
                                      .S = a->S, .M = p->M};
    op_kernel(call, KERNEL_sma_backward_tokens, a->L, traits);
    if (call->row->T1 == 0) call->T1 = a->N / 16; /* of a row for FITS_N32_P64 and FITS_TILES */
    OP_LAUNCH(call, &k, base_ceil_div(a->L, call->T0) * a->G * a->B, OP_WHOLE(sma_backward_tokens, qn, &p->qn),
              OP_WHOLE(sma_backward_tokens, en, &p->en), OP_ROWS(sma_backward_tokens, c, &p->o.c, k), OP_AT(sma_backward_tokens, dh, &p->o.dh, k),
              OP_AT(sma_backward_tokens, factor, &p->factor, k), OP_AT(sma_backward_tokens, seq, &p->o.seq, k),
              OP_ROWS(sma_backward_tokens, r, &p->o.r, k), OP_AT(sma_backward_tokens, lse, &p->o.lse, k),
              OP_ROWS(sma_backward_tokens, up_r, &p->o.up_r, k), OP_WHOLE(sma_backward_tokens, g, &p->g),
              OP_WHOLE(sma_backward_tokens, slope, &p->slope), OP_WHOLE(sma_backward_tokens, of_q, &p->of_q),
              OP_WHOLE(sma_backward_tokens, of_e, &p->of_e), OP_ROWS(sma_backward_tokens, grad_c, &p->o.grad_c, k));
    return true;
}

static void norm(plan *p)
{
    op_call *call = &p->call;
    const dart_sma_backward_args *a = p->a;
    const bool packed = op_packed(&p->layout);
    struct SmaBackwardNormArgs k = {.flags = p->flags, .B = a->B, .L = packed ? a->T : a->L, .G = a->G, .N = a->N, .P = a->P,
                                    .eps = a->eps};
    op_kernel(call, KERNEL_sma_backward_norm, a->L, short_rows(p, op_fits_rows(&p->o.grad_q) && op_fits_rows(&p->o.grad_e)));
    OP_LAUNCH(call, &k, base_ceil_div(p->rows * a->G, call->T0), OP_ROWS(sma_backward_norm, q, &p->o.q, k), OP_ROWS(sma_backward_norm, e, &p->o.e, k),
              OP_WHOLE(sma_backward_norm, of_q, &p->of_q), OP_WHOLE(sma_backward_norm, of_e, &p->of_e),
              OP_AT(sma_backward_norm, seq, &p->o.seq, k), OP_ROWS(sma_backward_norm, grad_q, &p->o.grad_q, k),
              OP_ROWS(sma_backward_norm, grad_e, &p->o.grad_e, k));
}

/* What of_memories does, by one kernel where the device has one for such sizes. */
static bool rows(plan *p)
{
    op_call *call = &p->call;
    const dart_sma_backward_args *a = p->a;
    const uint32_t traits = traits_of(p);
    if (!op_prefers(call, KERNEL_sma_backward_rows, KERNEL_sma_backward_memories, a->L, traits)) return false;
    struct SmaBackwardRowsArgs k = {.flags = p->flags, .B = a->B, .L = a->L, .T = a->T, .H = a->H, .G = a->G, .N = a->N, .P = a->P, .S = a->S,
                                    .M = p->M};
    op_kernel(call, KERNEL_sma_backward_rows, a->L, traits);
    OP_LAUNCH(call, &k, base_ceil_div((uint64_t)p->M * a->N, call->T0) * a->H * a->B, OP_WHOLE(sma_backward_rows, qn, &p->qn),
              OP_WHOLE(sma_backward_rows, en, &p->en), OP_ROWS(sma_backward_rows, c, &p->o.c, k), OP_AT(sma_backward_rows, dh, &p->o.dh, k),
              OP_AT(sma_backward_rows, factor, &p->factor, k), OP_WHOLE(sma_backward_rows, g, &p->g),
              OP_WHOLE(sma_backward_rows, slope, &p->slope), OP_AT(sma_backward_rows, seq, &p->o.seq, k),
              OP_ROWS(sma_backward_rows, up_r, &p->o.up_r, k), OP_AT(sma_backward_rows, grad_dh, &p->o.grad_dh, k));
    return true;
}

static void of_memories(plan *p)
{
    op_call *call = &p->call;
    const dart_sma_backward_args *a = p->a;
    struct SmaBackwardMemoriesArgs k = {.flags = p->flags, .B = a->B, .L = a->L, .T = a->T, .H = a->H, .G = a->G, .N = a->N, .P = a->P, .S = a->S,
                                        .M = p->M};
    const uint64_t heads = (uint64_t)a->H * p->M * a->B;
    p->x = op_scratch(call, DART_F32, p->o.dh.rows, p->o.dh.width);
    op_kernel(call, KERNEL_sma_backward_memories, a->L, traits_of(p));
    const uint64_t blocks = base_ceil_div((uint64_t)p->M * a->N, call->T0) * base_ceil_div(a->P, call->T1);
    OP_LAUNCH(call, &k, 2 * blocks * a->H * a->B, OP_WHOLE(sma_backward_memories, qn, &p->qn), OP_WHOLE(sma_backward_memories, en, &p->en),
              OP_ROWS(sma_backward_memories, c, &p->o.c, k), OP_WHOLE(sma_backward_memories, g, &p->g),
              OP_WHOLE(sma_backward_memories, slope, &p->slope), OP_AT(sma_backward_memories, seq, &p->o.seq, k),
              OP_ROWS(sma_backward_memories, up_r, &p->o.up_r, k), OP_WHOLE(sma_backward_memories, x, &p->x),
              OP_AT(sma_backward_memories, grad_dh, &p->o.grad_dh, k));
    struct SmaBackwardDhArgs n = {.flags = p->flags, .B = a->B, .L = a->L, .T = a->T, .H = a->H, .N = a->N, .P = a->P, .S = a->S, .M = p->M};
    op_kernel(call, KERNEL_sma_backward_dh, a->L, 0);
    OP_LAUNCH(call, &n, base_ceil_div(a->N, call->T0) * heads, OP_AT(sma_backward_dh, dh, &p->o.dh, n),
              OP_AT(sma_backward_dh, factor, &p->factor, n), OP_AT(sma_backward_dh, seq, &p->o.seq, n), OP_WHOLE(sma_backward_dh, x, &p->x),
              OP_AT(sma_backward_dh, grad_dh, &p->o.grad_dh, n));
}

/* Into how many parts sma_backward_token_side takes the heads of a group, so that few tokens keep a device busy: late tokens have most work, and the
 * last ones should not be all that is left of it. A part has two heads or more. Depends on shapes alone, as bits do. */
static uint32_t parts_of(const dart_sma_backward_args *a)
{
    enum { TOKENS = 16384 };
    const uint32_t heads = a->H / a->G;
    uint32_t parts = 1;
    for (uint32_t i = 2; 2 * i <= heads && (uint64_t)parts * a->B * a->L * a->G < TOKENS; i++)
        if (heads % i == 0) parts = i;
    return parts;
}

/* All of it by two kernels, where the device has them for such sizes. */
static bool sides(plan *p)
{
    op_call *call = &p->call;
    const dart_sma_backward_args *a = p->a;
    const uint32_t of_run = traits_of(p), types = of_run & op_fits_16bit(&a->q, &a->c) & op_fits_16bit(&a->e, &a->c) & (FITS_F16 | FITS_BF16);
    const bool tiles = op_fits_rows(&p->o.q) && op_fits_rows(&p->o.e) && op_fits_rows(&p->o.grad_q) && op_fits_rows(&p->o.grad_e) &&
                       op_fits_rows(&p->o.grad_c) && (of_run & FITS_TILES) != 0;
    const uint32_t traits = p->layout.traits | types | (of_run & FITS_SMA_NORMALISED) | (tiles ? FITS_TILES : 0) |
                            (a->N == 128 && a->P == 64 ? FITS_N128_P64 : 0) | (a->N == 64 && a->P == 64 ? FITS_N64_P64 : 0) |
                            sma_bulk_fits(&a->memories);
    if (!op_prefers(call, KERNEL_sma_backward_token_side, KERNEL_sma_backward_scores, a->L, traits)) return false;
    p->g = op_scratch(call, DART_F32, p->rows, (uint64_t)a->H * p->M);
    p->slope = op_scratch(call, DART_F32, p->rows, (uint64_t)a->H * p->M);
    const uint32_t parts = parts_of(a), add = a->add_c ? IS_ADD : 0;
    op_operand of_q = p->o.grad_q, of_e = p->o.grad_e, of_c = p->o.grad_c;
    if (parts > 1) {
        of_q = op_scratch(call, DART_F32, parts * p->rows, (uint64_t)a->G * a->N);
        of_e = op_scratch(call, DART_F32, parts * p->rows, (uint64_t)a->G * a->P);
        of_c = op_scratch(call, DART_F32, parts * p->rows, (uint64_t)a->G * a->N);
    }
    struct SmaBackwardTokenSideArgs k = {.flags = p->flags | (parts > 1 ? 0 : add), .B = a->B, .L = a->L, .T = a->T, .H = a->H, .G = a->G, .S = a->S,
                                         .M = p->M, .parts = parts, .eps = a->eps};
    op_kernel(call, KERNEL_sma_backward_token_side, a->L, traits);
    OP_LAUNCH(call, &k, base_ceil_div(a->L, call->T0) * a->G * a->B * parts, OP_ROWS(sma_backward_token_side, q, &p->o.q, k),
              OP_ROWS(sma_backward_token_side, e, &p->o.e, k), OP_ROWS(sma_backward_token_side, c, &p->o.c, k),
              OP_AT(sma_backward_token_side, dh, &p->o.dh, k), OP_AT(sma_backward_token_side, factor, &p->o.scale, k),
              OP_AT(sma_backward_token_side, seq, &p->o.seq, k), OP_ROWS(sma_backward_token_side, r, &p->o.r, k),
              OP_AT(sma_backward_token_side, lse, &p->o.lse, k), OP_ROWS(sma_backward_token_side, up_r, &p->o.up_r, k),
              OP_WHOLE(sma_backward_token_side, g, &p->g), OP_WHOLE(sma_backward_token_side, slope, &p->slope),
              OP_ROWS(sma_backward_token_side, grad_q, &of_q, k), OP_ROWS(sma_backward_token_side, grad_e, &of_e, k),
              OP_ROWS(sma_backward_token_side, grad_c, &of_c, k));
    if (parts > 1) {
        struct SmaBackwardPartsArgs s = {.flags = p->flags | add, .B = a->B, .L = a->L, .T = a->T, .G = a->G, .N = a->N, .P = a->P, .parts = parts,
                                         .eps = a->eps};
        op_kernel(call, KERNEL_sma_backward_parts, a->L, 0);
        OP_LAUNCH(call, &s, base_ceil_div((uint64_t)a->B * a->L * a->G, call->T0), OP_ROWS(sma_backward_parts, q, &p->o.q, s),
                  OP_ROWS(sma_backward_parts, e, &p->o.e, s), OP_WHOLE(sma_backward_parts, of_q, &of_q), OP_WHOLE(sma_backward_parts, of_e, &of_e),
                  OP_WHOLE(sma_backward_parts, of_c, &of_c), OP_AT(sma_backward_parts, seq, &p->o.seq, s),
                  OP_ROWS(sma_backward_parts, grad_q, &p->o.grad_q, s), OP_ROWS(sma_backward_parts, grad_e, &p->o.grad_e, s),
                  OP_ROWS(sma_backward_parts, grad_c, &p->o.grad_c, s));
    }
    struct SmaBackwardMemorySideArgs n = {.flags = p->flags, .B = a->B, .L = a->L, .T = a->T, .H = a->H, .G = a->G, .N = a->N, .P = a->P, .S = a->S,
                                          .M = p->M};
    /* One memory a workgroup: the early memories, which most tokens see, are then half as large a share of the device's work. 540 us in place of 640
     * of 8,192 tokens, 241 in place of 305 of 4,096, and 1.27 ms in place of 1.16 of 12,288 (H100 through Vulkan, November 2026). */
    op_kernel(call, KERNEL_sma_backward_memory_side, a->L, traits | (a->L < 10240 ? FITS_SMA_BRIEF : 0));
    OP_LAUNCH(call, &n, base_ceil_div((uint64_t)p->M * a->N, call->T0) * a->H * a->B, OP_ROWS(sma_backward_memory_side, q, &p->o.q, n),
              OP_ROWS(sma_backward_memory_side, e, &p->o.e, n), OP_ROWS(sma_backward_memory_side, c, &p->o.c, n),
              OP_AT(sma_backward_memory_side, dh, &p->o.dh, n), OP_AT(sma_backward_memory_side, factor, &p->o.scale, n),
              OP_AT(sma_backward_memory_side, seq, &p->o.seq, n), OP_ROWS(sma_backward_memory_side, up_r, &p->o.up_r, n),
              OP_WHOLE(sma_backward_memory_side, g, &p->g), OP_WHOLE(sma_backward_memory_side, slope, &p->slope),
              OP_AT(sma_backward_memory_side, grad_dh, &p->o.grad_dh, n));
    return true;
}

dart_status dart_sma_backward(dart_stream *stream, const dart_sma_backward_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    plan p = {.a = args};
    if (op_begin(&p.call, stream, "dart_sma_backward") != DART_OK || check(&p) != DART_OK) return op_status(&p.call);
    if (sides(&p)) return op_end(&p.call);
    prepare(&p);
    if (!tokens(&p)) {
        scores(&p);
        sums(&p);
    }
    norm(&p);
    if (!rows(&p)) of_memories(&p);
    return op_end(&p.call);
}
