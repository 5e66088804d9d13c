/* The backward pass of the scan. Stages and their scratch: shaders/ssd/args.h. */
#include "dartlm/ops_backward.h"
#include "ops/arguments.h"
#include "ops/dense/dense.h"
#include "ssd.h"

/* One call with everything that its stages share. */
typedef struct plan {
    op_call call;
    const dart_ssd_backward_args *a;
    op_layout layout;
    uint32_t flags, M, C;
    uint64_t slots; /* of chunks */
    struct {
        op_operand x, dt, b, c, a_log, dt_bias, d, seq, h, cum, decay, hin, hin_scale, up_y, up_dh, up_h, grad_x, grad_dt, grad_b, grad_c, grad_a_log,
            grad_dt_bias, grad_d, grad_h;
    } o;
    uint32_t sizes;  /* traits of the sizes */
    uint32_t traits; /* of the rows that multiply 16-bit operands, 0 where they are not taken */
    uint32_t squares, parts; /* of the heads of a group: in scores; in b and c */
    ssd_entering entering;
    op_operand gain, gain_scale; /* with traits; in place of lambda and up_dh; f16 with units */
    op_operand of_b, of_c;       /* with parts: their sums, in f32 */
    op_operand cb, grad_cb, lambda, carry, sums, token, of_a_log, of_bias, of_d; /* scratch; the last three with a row for each share of a sum */
} plan;

static dart_status check(plan *p)
{
    op_call *call = &p->call;
    const dart_ssd_backward_args *a = p->a;
    if (op_lay_out(call, &p->layout, a->B, a->L, a->T, &a->seq, &a->cu) != DART_OK) return op_status(call);
    OP_REQUIRE(call, a->H > 0 && a->G > 0 && a->S > 0, "H %u, G %u, S %u: all must be above 0", a->H, a->G, a->S);
    if (ops_check_sizes(call, a->H, a->G, a->N, a->P, a->S) != DART_OK) return op_status(call);
    if (ops_check_steps(call, a->dt_min, a->dt_max) != DART_OK) return op_status(call);
    OP_REQUIRE(call, op_has(&a->dt_bias) == op_has(&a->grad_dt_bias), "dt_bias and grad_dt_bias come together");
    OP_REQUIRE(call, op_has(&a->d) == op_has(&a->grad_d), "d and grad_d come together");
    OP_REQUIRE(call, op_has(&a->cum) == op_has(&a->decay) && op_has(&a->cum) == op_has(&a->hin), "cum, decay and hin come together");
    OP_REQUIRE(call, op_has(&a->hin) || !op_has(&a->hin_scale), "hin_scale needs hin");
    if (ssd_check_quiet(call, &p->layout, a->L, a->quiet, op_has(&a->h)) != DART_OK) return op_status(call);
    const uint64_t rows = p->layout.rows, state = (uint64_t)a->H * a->N * a->P;
    p->M = op_chunks(a->L, a->S, op_has(&a->seq));
    p->C = a->S < a->L ? a->S : a->L;
    p->slots = op_slots(&p->layout, p->M, a->S);
    const uint64_t chunks = p->slots, x_width = (uint64_t)a->H * a->P, b_width = (uint64_t)a->G * a->N;
    p->o.x = (op_operand){"x", a->x, OP_FLOAT | OP_VIEW, rows, x_width};
    p->o.dt = (op_operand){"dt", a->dt, OP_FLOAT | OP_VIEW, rows, a->H};
    p->o.b = (op_operand){"b", a->b, OP_FLOAT | OP_VIEW, rows, b_width};
    p->o.c = (op_operand){"c", a->c, OP_FLOAT | OP_VIEW, rows, b_width};
    p->o.a_log = (op_operand){"a_log", a->a_log, OP_FLOAT, 1, a->H};
    p->o.dt_bias = (op_operand){"dt_bias", a->dt_bias, OP_FLOAT | OP_OPTIONAL, 1, a->H};
    p->o.d = (op_operand){"d", a->d, OP_FLOAT | OP_OPTIONAL, 1, a->H};
    p->o.seq = p->layout.seq;
    p->o.h = (op_operand){"h", a->h, OP_F32 | OP_OPTIONAL | OP_ALIGNED, a->B, state};
    p->o.cum = (op_operand){"cum", a->cum, OP_F32 | OP_OPTIONAL | OP_ALIGNED, rows * a->H, CUM_STRIDE};
    p->o.decay = (op_operand){"decay", a->decay, OP_F32 | OP_OPTIONAL | OP_ALIGNED, chunks + a->B, a->H};
    p->o.hin = (op_operand){"hin", a->hin, (op_has(&a->hin_scale) ? OP_FLOAT : OP_F32 | 1 << DART_BF16) | OP_OPTIONAL, chunks, state};
    p->o.hin_scale = (op_operand){"hin_scale", a->hin_scale, OP_F32 | OP_OPTIONAL, chunks, (uint64_t)a->H * a->N};
    p->o.up_y = (op_operand){"up_y", a->up_y, OP_FLOAT | OP_VIEW, rows, x_width};
    p->o.up_dh = (op_operand){"up_dh", a->up_dh, OP_F32 | OP_OPTIONAL, chunks, state};
    p->o.up_h = (op_operand){"up_h", a->up_h, OP_F32 | OP_OPTIONAL, a->B, state};
    p->o.grad_x = (op_operand){"grad_x", a->grad_x, OP_FLOAT | OP_VIEW, rows, x_width};
    p->o.grad_dt = (op_operand){"grad_dt", a->grad_dt, OP_FLOAT | OP_VIEW, rows, a->H};
    p->o.grad_b = (op_operand){"grad_b", a->grad_b, OP_FLOAT | OP_VIEW, rows, b_width};
    p->o.grad_c = (op_operand){"grad_c", a->grad_c, OP_FLOAT | OP_VIEW, rows, b_width};
    p->o.grad_a_log = (op_operand){"grad_a_log", a->grad_a_log, OP_F32, 1, a->H};
    p->o.grad_dt_bias = (op_operand){"grad_dt_bias", a->grad_dt_bias, OP_F32 | OP_OPTIONAL, 1, a->H};
    p->o.grad_d = (op_operand){"grad_d", a->grad_d, OP_F32 | OP_OPTIONAL, 1, a->H};
    p->o.grad_h = (op_operand){"grad_h", a->grad_h, OP_F32 | OP_OPTIONAL, a->B, state};
    OP_CHECK(call, p->o);
    p->flags = p->layout.flags | (op_has(&a->dt_bias) ? HAS_BIAS : 0) | (op_has(&a->d) ? HAS_D : 0) |
               (op_has(&a->up_dh) ? HAS_DH : 0) | (op_has(&a->up_h) ? HAS_UP_H : 0) | (op_has(&a->grad_h) ? HAS_H : 0) |
               (op_has(&a->hin_scale) ? HAS_HIN_SCALE : 0) | (a->dt_is_step ? IS_STEP : 0);
    return op_status(call);
}

/* FITS_SSD_CLUSTER: of so many tiles of 64 tokens of a group at most; FITS_SSD_PAIR: of four times as many. */
#define FEW_TILES 32

/* The rows that multiply 16-bit operands are taken by all stages or by none, since gains and entering states have 16 bits, too. */
static void choose_rows(plan *p)
{
    const dart_ssd_backward_args *a = p->a;
    const dart_tensor *const alike[] = {&a->b, &a->c, &a->up_y, &a->grad_x, &a->grad_b, &a->grad_c, &a->hin};
    const op_operand *const rows[] = {&p->o.x, &p->o.b, &p->o.c, &p->o.up_y, &p->o.grad_x, &p->o.grad_b, &p->o.grad_c};
    uint32_t traits = FITS_F16 | FITS_BF16;
    for (size_t i = 0; i < COUNT_OF(alike); i++)
        if (op_has(alike[i])) traits &= op_fits_16bit(&a->x, alike[i]);
    bool tiles = a->N % 16 == 0 && a->P % 16 == 0 && a->up_dh.offset % 4 == 0 && a->hin.offset % 8 == 0;
    for (size_t i = 0; i < COUNT_OF(rows); i++) tiles = tiles && op_fits_rows(rows[i]);
    const bool scan = a->S <= 256 && a->N <= 128 && (a->P == 16 || a->P == 32 || a->P == 64);
    const uint64_t of_groups = p->C / 64 * p->slots * a->G;
    const bool whole = p->C % 64 == 0 && a->H / a->G >= 4;
    p->sizes = (scan ? FITS_SSD_SCAN : 0) | (whole && of_groups <= FEW_TILES ? FITS_SSD_CLUSTER : 0) |
               (whole && of_groups <= 4 * FEW_TILES ? FITS_SSD_PAIR : 0);
    traits |= p->layout.traits | (tiles ? FITS_TILES : 0) | (op_has(&a->hin_scale) ? 0 : FITS_SSD_RAW_HIN) | p->sizes;
    /* Without FITS_SSD_LONG: a row with it is no reason not to take these rows where it is forced by name. */
    if (op_prefers(&p->call, KERNEL_ssd_backward_gain, KERNEL_ssd_backward_x, a->L, traits))
        p->traits = traits | (p->C == 256 && a->N == 128 && a->P == 64 ? FITS_SSD_LONG : 0);
}

static void enter(plan *p)
{
    const dart_ssd_backward_args *a = p->a;
    if (op_has(&a->cum)) {
        p->entering = (ssd_entering){.cum = p->o.cum, .decay = p->o.decay, .hin = p->o.hin, .hin_scale = p->o.hin_scale};
        return;
    }
    const dart_ssd_args forward = {
        .B = a->B, .L = a->L, .H = a->H, .G = a->G, .N = a->N, .P = a->P, .S = a->S, .dt_is_step = a->dt_is_step, .dt_min = a->dt_min,
        .dt_max = a->dt_max, .x = a->x, .dt = a->dt, .b = a->b, .c = a->c, .a_log = a->a_log, .dt_bias = a->dt_bias, .d = a->d,
        .T = a->T, .cu = a->cu, .seq = a->seq, .h = a->h, .y = a->up_y};
    ssd_enter(&p->call, &forward, p->traits != 0, &p->entering);
    if (op_has(&p->entering.hin_scale.of)) p->flags |= HAS_HIN_SCALE;
}

static uint64_t pairs_of(const plan *p, uint32_t side)
{
    const uint64_t tiles = base_ceil_div(p->C, side);
    return tiles * (tiles + 1) / 2 * p->a->G * p->M * p->a->B;
}

/* Into how many parts that many tiles, each of which walks over the heads of a group, take these heads, so that few tokens keep a device busy: as
 * many as make at most `most` tiles, with four heads or more. */
static uint32_t parts_of(uint64_t tiles, uint32_t heads, uint32_t most)
{
    uint32_t parts = 1;
    for (uint32_t i = 2; 4 * i <= heads && i * tiles <= most; i++)
        if (heads % i == 0) parts = i;
    return parts;
}

/* The parts depend on shapes, as bits do, and on the rows: those for matrices through Vulkan know of parts. An H100 holds two workgroups of scores a
 * multiprocessor. Of 2,048 tokens and 24 heads three parts of scores and four of the others take 280 us in place of 364, a forward pass
 * included; with one part of scores it is 321, with two of the others 297. */
static void choose_parts(plan *p)
{
    enum { SCORES = 264, TOKENS = 128 };
    static const kernel_id stages[] = {KERNEL_ssd_backward_scores, KERNEL_ssd_backward_b, KERNEL_ssd_backward_c};
    const dart_ssd_backward_args *a = p->a;
    p->squares = p->parts = 1;
    if (p->traits == 0 || op_has(&a->seq) || op_packed(&p->layout)) return;
    for (size_t i = 0; i < COUNT_OF(stages); i++) {
        op_kernel(&p->call, stages[i], a->L, p->traits);
        if (!ROW_HAS_MATRIX(p->call.row)) return;
    }
    p->squares = parts_of(pairs_of(p, 64), a->H / a->G, SCORES);
    p->parts = parts_of(base_ceil_div(p->C, 64) * p->slots * a->G, a->H / a->G, TOKENS);
}

static void place_scratch(plan *p)
{
    const dart_ssd_backward_args *a = p->a;
    op_call *call = &p->call;
    const uint64_t chunks = p->slots, square = (uint64_t)p->C * p->C, side = base_ceil_div(p->C, SCORE_SIDE);
    p->cb = op_scratch(call, DART_F32, chunks * a->G, square);
    p->grad_cb = op_scratch(call, DART_F32, chunks * a->G * p->squares, square);
    p->lambda = op_scratch(call, DART_F32, chunks * a->H, (uint64_t)a->N * a->P);
    if (p->traits != 0) p->gain = op_scratch(call, a->x.dtype, chunks * a->H, (uint64_t)a->N * a->P);
    if (p->traits != 0 && a->x.dtype == DART_F16) p->gain_scale = op_scratch(call, DART_F32, chunks * a->H, a->N);
    p->carry = op_scratch(call, DART_F32, chunks * a->H, a->N);
    p->sums = op_scratch(call, DART_F32, chunks * a->H, side * (side + 1) / 2 * 64);
    p->token = op_scratch(call, DART_F32, p->layout.rows * a->H, 4);
    p->of_a_log = op_scratch(call, DART_F32, chunks, a->H);
    p->of_bias = op_scratch(call, DART_F32, chunks, a->H);
    p->of_d = op_scratch(call, DART_F32, chunks, a->H);
}

/* ---- Stages ---- */

static void products(plan *p)
{
    op_call *call = &p->call;
    const dart_ssd_backward_args *a = p->a;
    struct SsdBackwardProductsArgs k = {.flags = p->flags, .B = a->B, .L = a->L, .T = a->T, .G = a->G, .N = a->N, .S = a->S, .M = p->M, .C = p->C};
    op_kernel(call, KERNEL_ssd_backward_products, a->L, p->traits);
    OP_LAUNCH(call, &k, pairs_of(p, call->T0), OP_ROWS(ssd_backward_products, b, &p->o.b, k), OP_ROWS(ssd_backward_products, c, &p->o.c, k),
              OP_AT(ssd_backward_products, seq, &p->o.seq, k), OP_WHOLE(ssd_backward_products, cb, &p->cb));
}

static void read(plan *p)
{
    op_call *call = &p->call;
    const dart_ssd_backward_args *a = p->a;
    struct SsdBackwardReadArgs k = {.flags = p->flags, .B = a->B, .L = a->L, .T = a->T, .H = a->H, .G = a->G, .N = a->N, .P = a->P, .S = a->S,
                                    .M = p->M};
    op_kernel(call, KERNEL_ssd_backward_read, a->L, p->traits);
    OP_LAUNCH(call, &k, base_ceil_div(a->N, call->T0) * base_ceil_div(a->P, call->T1) * a->H * p->M * a->B,
              OP_ROWS(ssd_backward_read, c, &p->o.c, k), OP_ROWS(ssd_backward_read, up_y, &p->o.up_y, k),
              OP_WHOLE(ssd_backward_read, cum, &p->entering.cum), OP_AT(ssd_backward_read, seq, &p->o.seq, k),
              OP_WHOLE(ssd_backward_read, read, &p->lambda));
}

static void state(plan *p)
{
    op_call *call = &p->call;
    const dart_ssd_backward_args *a = p->a;
    struct SsdBackwardStateArgs k = {.flags = p->flags, .B = a->B, .L = a->L, .T = a->T, .H = a->H, .N = a->N, .P = a->P, .S = a->S, .M = p->M};
    op_kernel(call, KERNEL_ssd_backward_state, a->L, a->P <= 64 ? FITS_P64 : 0);
    OP_LAUNCH(call, &k, base_ceil_div(a->N, call->T0) * a->H * a->B, OP_WHOLE(ssd_backward_state, decay, &p->entering.decay),
              OP_WHOLE(ssd_backward_state, read, &p->lambda), OP_AT(ssd_backward_state, hin, &p->entering.hin, k),
              OP_AT(ssd_backward_state, hin_scale, &p->entering.hin_scale, k), OP_AT(ssd_backward_state, up_h, &p->o.up_h, k),
              OP_AT(ssd_backward_state, seq, &p->o.seq, k), OP_AT(ssd_backward_state, grad_h, &p->o.grad_h, k),
              OP_WHOLE(ssd_backward_state, carry, &p->carry));
}

static void gain(plan *p)
{
    op_call *call = &p->call;
    const dart_ssd_backward_args *a = p->a;
    struct SsdBackwardGainArgs k = {.flags = p->flags, .B = a->B, .L = a->L, .T = a->T, .H = a->H, .N = a->N, .P = a->P, .S = a->S, .M = p->M};
    op_kernel(call, KERNEL_ssd_backward_gain, a->L, p->traits);
    OP_LAUNCH(call, &k, base_ceil_div(a->N, call->T0) * a->H * a->B, OP_WHOLE(ssd_backward_gain, decay, &p->entering.decay),
              OP_WHOLE(ssd_backward_gain, read, &p->lambda), OP_AT(ssd_backward_gain, hin, &p->entering.hin, k),
              OP_AT(ssd_backward_gain, hin_scale, &p->entering.hin_scale, k),
              OP_AT(ssd_backward_gain, up_dh, &p->o.up_dh, k), OP_AT(ssd_backward_gain, up_h, &p->o.up_h, k),
              OP_AT(ssd_backward_gain, seq, &p->o.seq, k), OP_WHOLE(ssd_backward_gain, gain, &p->gain),
              OP_WHOLE(ssd_backward_gain, gain_scale, &p->gain_scale),
              OP_AT(ssd_backward_gain, grad_h, &p->o.grad_h, k), OP_WHOLE(ssd_backward_gain, carry, &p->carry));
}

/* Of what ssd_backward_x and ssd_backward_b take: gains hold up_dh already. */
static const op_operand *lambda_of(const plan *p) { return p->traits != 0 ? &p->gain : &p->lambda; }
static uint32_t lambda_flags(const plan *p) { return p->traits != 0 ? p->flags & ~(uint32_t)HAS_DH : p->flags; }

static void scores(plan *p)
{
    op_call *call = &p->call;
    const dart_ssd_backward_args *a = p->a;
    struct SsdBackwardScoresArgs k = {.flags = p->flags, .B = a->B, .L = a->L, .T = a->T, .H = a->H, .G = a->G, .P = a->P, .S = a->S, .M = p->M,
                                      .C = p->C, .parts = p->squares};
    op_kernel(call, KERNEL_ssd_backward_scores, a->L, p->traits);
    OP_LAUNCH(call, &k, pairs_of(p, call->T0) * (call->T0 / call->T1) * p->squares, OP_ROWS(ssd_backward_scores, x, &p->o.x, k),
              OP_ROWS(ssd_backward_scores, up_y, &p->o.up_y, k),
              OP_WHOLE(ssd_backward_scores, cum, &p->entering.cum), OP_WHOLE(ssd_backward_scores, cb, &p->cb),
              OP_AT(ssd_backward_scores, seq, &p->o.seq, k), OP_WHOLE(ssd_backward_scores, grad_cb, &p->grad_cb),
              OP_WHOLE(ssd_backward_scores, sums, &p->sums));
}

static void of_x(plan *p)
{
    op_call *call = &p->call;
    const dart_ssd_backward_args *a = p->a;
    struct SsdBackwardXArgs k = {.flags = lambda_flags(p), .B = a->B, .L = a->L, .T = a->T, .H = a->H, .G = a->G, .N = a->N, .P = a->P, .S = a->S,
                                 .M = p->M, .C = p->C};
    op_kernel(call, KERNEL_ssd_backward_x, a->L, p->traits);
    OP_LAUNCH(call, &k, base_ceil_div(p->C, call->T0) * a->H * p->M * a->B, OP_ROWS(ssd_backward_x, x, &p->o.x, k),
              OP_ROWS(ssd_backward_x, b, &p->o.b, k), OP_ROWS(ssd_backward_x, up_y, &p->o.up_y, k),
              OP_WHOLE(ssd_backward_x, cum, &p->entering.cum), OP_WHOLE(ssd_backward_x, cb, &p->cb),
              OP_WHOLE(ssd_backward_x, lambda, lambda_of(p)), OP_WHOLE(ssd_backward_x, gain_scale, &p->gain_scale),
              OP_AT(ssd_backward_x, up_dh, &p->o.up_dh, k), OP_AT(ssd_backward_x, d, &p->o.d, k),
              OP_AT(ssd_backward_x, seq, &p->o.seq, k), OP_ROWS(ssd_backward_x, grad_x, &p->o.grad_x, k),
              OP_WHOLE(ssd_backward_x, token, &p->token));
}

/* Where a stage leaves the sums of its parts of heads: in `y` itself where there is one. */
static op_operand of_parts(plan *p, const op_operand *y)
{
    return p->parts == 1 ? *y : op_scratch(&p->call, DART_F32, p->parts * y->rows, y->width);
}
static void add_parts(plan *p, const op_operand *sums, const op_operand *y, bool add)
{
    if (p->parts == 1) return;
    const op_operand parts = {.name = sums->name, .of = sums->of, .rows = p->parts, .width = y->rows * y->width};
    dense_sum(&p->call, &parts, y, add);
}

static void of_b(plan *p)
{
    op_call *call = &p->call;
    const dart_ssd_backward_args *a = p->a;
    struct SsdBackwardBArgs k = {.flags = lambda_flags(p), .B = a->B, .L = a->L, .T = a->T, .H = a->H, .G = a->G, .N = a->N, .P = a->P, .S = a->S,
                                 .M = p->M, .C = p->C, .squares = p->squares, .parts = p->parts};
    const op_operand result = of_parts(p, &p->o.grad_b);
    op_kernel(call, KERNEL_ssd_backward_b, a->L, p->traits);
    OP_LAUNCH(call, &k, base_ceil_div(a->N, call->T0) * base_ceil_div(p->C, call->T1) * a->G * p->M * a->B * p->parts,
              OP_ROWS(ssd_backward_b, x, &p->o.x, k), OP_ROWS(ssd_backward_b, c, &p->o.c, k), OP_WHOLE(ssd_backward_b, cum, &p->entering.cum),
              OP_WHOLE(ssd_backward_b, grad_cb, &p->grad_cb), OP_WHOLE(ssd_backward_b, lambda, lambda_of(p)),
              OP_WHOLE(ssd_backward_b, gain_scale, &p->gain_scale),
              OP_AT(ssd_backward_b, up_dh, &p->o.up_dh, k), OP_AT(ssd_backward_b, seq, &p->o.seq, k),
              OP_ROWS(ssd_backward_b, grad_b, &result, k));
    p->of_b = result;
}

static void of_c(plan *p)
{
    op_call *call = &p->call;
    const dart_ssd_backward_args *a = p->a;
    struct SsdBackwardCArgs k = {.flags = p->flags | (a->add_c && p->parts == 1 ? IS_ADD : 0), .B = a->B, .L = a->L, .T = a->T, .H = a->H,
                                 .G = a->G, .N = a->N, .P = a->P, .S = a->S, .M = p->M, .C = p->C, .squares = p->squares,
                                 .parts = p->parts};
    const op_operand result = of_parts(p, &p->o.grad_c);
    op_kernel(call, KERNEL_ssd_backward_c, a->L, p->traits);
    OP_LAUNCH(call, &k, base_ceil_div(p->C, call->T0) * a->G * p->M * a->B * p->parts, OP_ROWS(ssd_backward_c, b, &p->o.b, k),
              OP_ROWS(ssd_backward_c, c, &p->o.c, k), OP_ROWS(ssd_backward_c, up_y, &p->o.up_y, k),
              OP_WHOLE(ssd_backward_c, cum, &p->entering.cum), OP_WHOLE(ssd_backward_c, grad_cb, &p->grad_cb),
              OP_AT(ssd_backward_c, hin, &p->entering.hin, k), OP_AT(ssd_backward_c, hin_scale, &p->entering.hin_scale, k),
              OP_AT(ssd_backward_c, seq, &p->o.seq, k), OP_ROWS(ssd_backward_c, grad_c, &result, k),
              OP_WHOLE(ssd_backward_c, token, &p->token));
    p->of_c = result;
}

static void of_decay(plan *p)
{
    op_call *call = &p->call;
    const dart_ssd_backward_args *a = p->a;
    struct SsdBackwardDecayArgs k = {.flags = p->flags, .B = a->B, .L = a->L, .T = a->T, .H = a->H, .N = a->N, .S = a->S, .M = p->M, .C = p->C,
                                     .dt_min = a->dt_min, .dt_max = ops_most_step(a->dt_max)};
    op_kernel(call, KERNEL_ssd_backward_decay, a->L, p->sizes);
    OP_LAUNCH(call, &k, (uint64_t)a->H * p->M * a->B, OP_ROWS(ssd_backward_decay, dt, &p->o.dt, k),
              OP_AT(ssd_backward_decay, a_log, &p->o.a_log, k), OP_AT(ssd_backward_decay, dt_bias, &p->o.dt_bias, k),
              OP_WHOLE(ssd_backward_decay, cum, &p->entering.cum), OP_WHOLE(ssd_backward_decay, sums, &p->sums),
              OP_WHOLE(ssd_backward_decay, token, &p->token), OP_WHOLE(ssd_backward_decay, carry, &p->carry),
              OP_AT(ssd_backward_decay, seq, &p->o.seq, k), OP_ROWS(ssd_backward_decay, grad_dt, &p->o.grad_dt, k),
              OP_WHOLE(ssd_backward_decay, of_a_log, &p->of_a_log), OP_WHOLE(ssd_backward_decay, of_bias, &p->of_bias),
              OP_WHOLE(ssd_backward_decay, of_d, &p->of_d));
}

/* ---- One launch for all of them ---- */

static bool walk(plan *p)
{
    op_call *call = &p->call;
    const dart_ssd_backward_args *a = p->a;
    const uint32_t walks = ssd_walk_traits(&p->layout, a->H, a->G, a->N, a->P, p->C);
    if (walks == 0 || op_has(&a->h) || op_has(&a->cum) || op_has(&a->up_h) || op_has(&a->grad_h)) return false;
    const bool tiles = a->N % 16 == 0 && a->P % 16 == 0 && op_fits_rows(&p->o.x) && op_fits_rows(&p->o.b) && op_fits_rows(&p->o.c) &&
                       op_fits_rows(&p->o.up_y) && op_fits_rows(&p->o.grad_x) && op_fits_rows(&p->o.grad_b) && op_fits_rows(&p->o.grad_c) &&
                       a->up_dh.offset % 4 == 0;
    const uint32_t type = op_fits_16bit(&a->x, &a->b) & op_fits_16bit(&a->b, &a->c) & op_fits_16bit(&a->c, &a->up_y);
    const uint32_t traits = p->layout.traits | walks | type | (tiles ? FITS_TILES : 0) |
                            (ssd_quiet_chunks(a->L, a->S, a->quiet) > 0 ? FITS_SSD_QUIET : 0);
    if (!op_prefers(call, KERNEL_ssd_backward_walk, KERNEL_ssd_backward_x, a->L, traits)) return false;
    struct SsdBackwardWalkArgs k = {.flags = p->flags | (a->add_c ? IS_ADD : 0), .B = a->B, .L = a->L, .T = a->T, .H = a->H, .G = a->G, .N = a->N,
                                    .P = a->P, .S = a->S, .M = p->M, .quiet = ssd_quiet_chunks(a->L, a->S, a->quiet), .dt_min = a->dt_min,
                                    .dt_max = ops_most_step(a->dt_max)};
    const op_operand hin = op_scratch(call, DART_F32, p->slots, (uint64_t)a->H * a->N * a->P);
    p->of_a_log = op_scratch(call, DART_F32, a->B, a->H);
    p->of_bias = op_scratch(call, DART_F32, a->B, a->H);
    p->of_d = op_scratch(call, DART_F32, a->B, a->H);
    op_kernel(call, KERNEL_ssd_backward_walk, a->L, traits);
    OP_LAUNCH(call, &k, (uint64_t)a->B * a->G, OP_ROWS(ssd_backward_walk, x, &p->o.x, k), OP_ROWS(ssd_backward_walk, dt, &p->o.dt, k),
              OP_ROWS(ssd_backward_walk, b, &p->o.b, k), OP_ROWS(ssd_backward_walk, c, &p->o.c, k), OP_AT(ssd_backward_walk, a_log, &p->o.a_log, k),
              OP_AT(ssd_backward_walk, dt_bias, &p->o.dt_bias, k), OP_AT(ssd_backward_walk, d, &p->o.d, k),
              OP_ROWS(ssd_backward_walk, up_y, &p->o.up_y, k), OP_AT(ssd_backward_walk, up_dh, &p->o.up_dh, k),
              OP_AT(ssd_backward_walk, seq, &p->o.seq, k), OP_WHOLE(ssd_backward_walk, hin, &hin),
              OP_ROWS(ssd_backward_walk, grad_x, &p->o.grad_x, k),
              OP_ROWS(ssd_backward_walk, grad_dt, &p->o.grad_dt, k), OP_ROWS(ssd_backward_walk, grad_b, &p->o.grad_b, k),
              OP_ROWS(ssd_backward_walk, grad_c, &p->o.grad_c, k), OP_WHOLE(ssd_backward_walk, of_a_log, &p->of_a_log),
              OP_WHOLE(ssd_backward_walk, of_bias, &p->of_bias), OP_WHOLE(ssd_backward_walk, of_d, &p->of_d));
    return true;
}

static void stages(plan *p)
{
    const dart_ssd_backward_args *a = p->a;
    choose_rows(p);
    enter(p);
    choose_parts(p);
    place_scratch(p);
    if (op_has(&a->seq)) { /* rows past the counts */
        dense_clear(&p->call, &p->o.grad_x);
        dense_clear(&p->call, &p->o.grad_dt);
        dense_clear(&p->call, &p->o.grad_b);
        if (!a->add_c) dense_clear(&p->call, &p->o.grad_c);
    }
    if (op_packed(&p->layout)) { /* slots of no chunk, which the sums read */
        dense_clear(&p->call, &p->of_a_log);
        dense_clear(&p->call, &p->of_bias);
        dense_clear(&p->call, &p->of_d);
    }
    products(p);
    read(p);
    if (p->traits != 0) gain(p);
    else state(p);
    scores(p);
    of_x(p);
    of_b(p);
    of_c(p);
    of_decay(p);
    add_parts(p, &p->of_b, &p->o.grad_b, false);
    add_parts(p, &p->of_c, &p->o.grad_c, a->add_c);
}

dart_status dart_ssd_backward(dart_stream *stream, const dart_ssd_backward_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    plan p = {.a = args};
    if (op_begin(&p.call, stream, "dart_ssd_backward") != DART_OK || check(&p) != DART_OK) return op_status(&p.call);
    if (!walk(&p)) stages(&p);
    dense_sum(&p.call, &p.of_a_log, &p.o.grad_a_log, true);
    if (op_has(&args->dt_bias)) dense_sum(&p.call, &p.of_bias, &p.o.grad_dt_bias, true);
    if (op_has(&args->d)) dense_sum(&p.call, &p.of_d, &p.o.grad_d, true);
    return op_end(&p.call);
}
