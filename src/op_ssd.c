/* The scan: five stages for a piece, two for a token. */
#include "stream.h"

#include <float.h>

uint32_t dart_ssd_chunks(uint32_t L, uint32_t S, bool with_seq)
{
    if (L == 0 || S == 0) return 0;
    return (uint32_t)base_ceil_div((uint64_t)L + (with_seq ? S - 1 : 0), S);
}

/* One call with everything that its stages share. */
typedef struct ssd_plan {
    op_call call;
    const dart_ssd_args *a;
    uint32_t flags, M, C;
    uint64_t rows, state; /* B L, H N P */
    dart_tensor cum, decay, cb, hin;
} ssd_plan;

static dart_status check(ssd_plan *p)
{
    op_call *call = &p->call;
    const dart_ssd_args *a = p->a;
    OP_REQUIRE(call, a->B > 0 && a->L > 0 && a->H > 0 && a->G > 0 && a->S > 0, "B %u, L %u, H %u, G %u, S %u: all must be above 0",
               a->B, a->L, a->H, a->G, a->S);
    OP_REQUIRE(call, a->H % a->G == 0, "H %u is not a multiple of G %u", a->H, a->G);
    OP_REQUIRE(call, a->N > 0 && a->N <= MAX_STATE && a->P > 0 && a->P <= MAX_STATE, "N %u, P %u must be 1 to %d", a->N, a->P, MAX_STATE);
    OP_REQUIRE(call, a->S <= 1u << 30 && a->L <= 1u << 30, "S %u, L %u must be at most 2^30", a->S, a->L);
    OP_REQUIRE(call, a->dt_min >= 0 && a->dt_max >= 0 && (a->dt_max == 0 || a->dt_max >= a->dt_min),
               "step limits %g to %g", (double)a->dt_min, (double)a->dt_max);
    OP_REQUIRE(call, op_has(&a->open) == op_has(&a->open_decay), "open and open_decay come together");
    OP_REQUIRE(call, !op_has(&a->open) || (op_has(&a->h) && op_has(&a->seq)), "open needs h and seq");
    OP_REQUIRE(call, a->plan <= DART_PLAN_STEP, "plan %d is unknown", (int)a->plan);
    OP_REQUIRE(call, a->plan != DART_PLAN_STEP || (a->L == 1 && !op_has(&a->cb) && !op_has(&a->hin)),
               "the step plan takes L = 1 and keeps neither cb nor hin");
    p->rows = (uint64_t)a->B * a->L;
    OP_REQUIRE(call, p->rows <= UINT32_MAX, "B L = %llu rows are too many for one piece", (unsigned long long)p->rows);
    p->M = dart_ssd_chunks(a->L, a->S, op_has(&a->seq));
    p->C = a->S < a->L ? a->S : a->L;
    p->state = (uint64_t)a->H * a->N * a->P;
    const uint64_t chunks = (uint64_t)a->B * p->M;
    op_check(call, "x", &a->x, OP_FLOAT | OP_VIEW, p->rows, (uint64_t)a->H * a->P);
    op_check(call, "dt", &a->dt, OP_FLOAT | OP_VIEW, p->rows, a->H);
    op_check(call, "b", &a->b, OP_FLOAT | OP_VIEW, p->rows, (uint64_t)a->G * a->N);
    op_check(call, "c", &a->c, OP_FLOAT | OP_VIEW, p->rows, (uint64_t)a->G * a->N);
    op_check(call, "a_log", &a->a_log, OP_FLOAT, 1, a->H);
    op_check(call, "dt_bias", &a->dt_bias, OP_FLOAT | OP_OPTIONAL, 1, a->H);
    op_check(call, "d", &a->d, OP_FLOAT | OP_OPTIONAL, 1, a->H);
    op_check(call, "seq", &a->seq, OP_I32 | OP_OPTIONAL, a->B, 2);
    op_check(call, "h", &a->h, OP_F32 | OP_OPTIONAL | OP_ALIGNED, a->B, p->state);
    op_check(call, "open", &a->open, OP_F32 | OP_OPTIONAL | OP_ALIGNED, a->B, p->state);
    op_check(call, "open_decay", &a->open_decay, OP_F32 | OP_OPTIONAL | OP_ALIGNED, a->B, a->H);
    op_check(call, "y", &a->y, OP_FLOAT | OP_VIEW, p->rows, (uint64_t)a->H * a->P);
    op_check(call, "dh", &a->dh, OP_FLOAT | OP_OPTIONAL, chunks, p->state);
    op_check(call, "cum", &a->cum, OP_F32 | OP_OPTIONAL | OP_ALIGNED, p->rows * a->H, CUM_STRIDE);
    op_check(call, "decay", &a->decay, OP_F32 | OP_OPTIONAL | OP_ALIGNED, a->B, (uint64_t)(p->M + 1) * a->H);
    op_check(call, "cb", &a->cb, OP_F32 | OP_OPTIONAL | OP_ALIGNED, chunks * a->G, (uint64_t)p->C * p->C);
    op_check(call, "hin", &a->hin, OP_F32 | OP_OPTIONAL | OP_ALIGNED, chunks, p->state);
    p->flags = (op_has(&a->seq) ? HAS_SEQ : 0) | (op_has(&a->dt_bias) ? HAS_BIAS : 0) | (op_has(&a->d) ? HAS_D : 0) |
               (op_has(&a->h) ? HAS_H : 0) | (op_has(&a->open) ? HAS_OPEN : 0) | (op_has(&a->dh) ? HAS_DH : 0) |
               (a->dt_is_step ? IS_STEP : 0);
    return op_status(call);
}

static void decay(ssd_plan *p)
{
    op_call *call = &p->call;
    const dart_ssd_args *a = p->a;
    struct SsdDecayArgs k = {.flags = p->flags, .B = a->B, .L = a->L, .H = a->H, .S = a->S, .M = p->M, .dt_row = op_row(&a->dt, a->H),
                             .dt_min = a->dt_min, .dt_max = a->dt_max == 0 || a->dt_max > FLT_MAX ? FLT_MAX : a->dt_max};
    op_kernel(call, KERNEL_ssd_decay, a->L, 0);
    k.dt_at = op_bind_rows(call, BINDING_ssd_decay_dt, &a->dt, p->rows, a->H);
    k.a_log_at = op_bind(call, BINDING_ssd_decay_a_log, &a->a_log, a->H);
    k.dt_bias_at = op_bind(call, BINDING_ssd_decay_dt_bias, &a->dt_bias, a->H);
    k.seq_at = op_bind(call, BINDING_ssd_decay_seq, &a->seq, 2 * (uint64_t)a->B);
    op_bind(call, BINDING_ssd_decay_open_decay, &a->open_decay, (uint64_t)a->B * a->H);
    op_bind(call, BINDING_ssd_decay_cum, &p->cum, p->rows * a->H * CUM_STRIDE);
    op_bind(call, BINDING_ssd_decay_decay, &p->decay, (uint64_t)a->B * (p->M + 1) * a->H);
    op_launch(call, &k, base_ceil_div((uint64_t)a->B * p->M * a->H, call->row->T0));
}

static void product(ssd_plan *p)
{
    op_call *call = &p->call;
    const dart_ssd_args *a = p->a;
    const uint64_t width = (uint64_t)a->G * a->N;
    struct SsdProductArgs k = {.flags = p->flags, .B = a->B, .L = a->L, .G = a->G, .N = a->N, .S = a->S, .M = p->M, .C = p->C,
                               .b_row = op_row(&a->b, width), .c_row = op_row(&a->c, width)};
    op_kernel(call, KERNEL_ssd_product, a->L, 0);
    k.b_at = op_bind_rows(call, BINDING_ssd_product_b, &a->b, p->rows, width);
    k.c_at = op_bind_rows(call, BINDING_ssd_product_c, &a->c, p->rows, width);
    k.seq_at = op_bind(call, BINDING_ssd_product_seq, &a->seq, 2 * (uint64_t)a->B);
    op_bind(call, BINDING_ssd_product_cb, &p->cb, (uint64_t)a->B * p->M * a->G * p->C * p->C);
    const uint64_t blocks = base_ceil_div(p->C, call->row->T0);
    op_launch(call, &k, blocks * blocks * a->G * p->M * a->B);
}

static void memory(ssd_plan *p)
{
    op_call *call = &p->call;
    const dart_ssd_args *a = p->a;
    const uint64_t x_width = (uint64_t)a->H * a->P, b_width = (uint64_t)a->G * a->N;
    struct SsdMemoryArgs k = {.flags = p->flags, .B = a->B, .L = a->L, .H = a->H, .G = a->G, .N = a->N, .P = a->P, .S = a->S, .M = p->M,
                              .x_row = op_row(&a->x, x_width), .b_row = op_row(&a->b, b_width)};
    op_kernel(call, KERNEL_ssd_memory, a->L, 0);
    k.x_at = op_bind_rows(call, BINDING_ssd_memory_x, &a->x, p->rows, x_width);
    k.b_at = op_bind_rows(call, BINDING_ssd_memory_b, &a->b, p->rows, b_width);
    op_bind(call, BINDING_ssd_memory_cum, &p->cum, p->rows * a->H * CUM_STRIDE);
    k.seq_at = op_bind(call, BINDING_ssd_memory_seq, &a->seq, 2 * (uint64_t)a->B);
    op_bind(call, BINDING_ssd_memory_memory, &p->hin, (uint64_t)a->B * p->M * p->state);
    op_launch(call, &k, base_ceil_div(a->P, call->row->T1) * base_ceil_div(a->N, call->row->T0) * a->H * p->M * a->B);
}

static void state(ssd_plan *p)
{
    op_call *call = &p->call;
    const dart_ssd_args *a = p->a;
    struct SsdStateArgs k = {.flags = p->flags, .B = a->B, .L = a->L, .H = a->H, .N = a->N, .P = a->P, .S = a->S, .M = p->M};
    op_kernel(call, KERNEL_ssd_state, a->L, 0);
    op_bind(call, BINDING_ssd_state_decay, &p->decay, (uint64_t)a->B * (p->M + 1) * a->H);
    op_bind(call, BINDING_ssd_state_memory, &p->hin, (uint64_t)a->B * p->M * p->state);
    op_bind(call, BINDING_ssd_state_h, &a->h, a->B * p->state);
    op_bind(call, BINDING_ssd_state_open, &a->open, a->B * p->state);
    op_bind(call, BINDING_ssd_state_open_decay, &a->open_decay, (uint64_t)a->B * a->H);
    k.seq_at = op_bind(call, BINDING_ssd_state_seq, &a->seq, 2 * (uint64_t)a->B);
    k.dh_at = op_bind(call, BINDING_ssd_state_dh, &a->dh, (uint64_t)a->B * p->M * p->state);
    op_launch(call, &k, base_ceil_div((uint64_t)a->N * a->P, call->row->T0) * a->H * a->B);
}

static void output(ssd_plan *p)
{
    op_call *call = &p->call;
    const dart_ssd_args *a = p->a;
    const uint64_t x_width = (uint64_t)a->H * a->P, c_width = (uint64_t)a->G * a->N;
    struct SsdOutputArgs k = {.flags = p->flags, .B = a->B, .L = a->L, .H = a->H, .G = a->G, .N = a->N, .P = a->P, .S = a->S, .M = p->M,
                              .C = p->C, .x_row = op_row(&a->x, x_width), .c_row = op_row(&a->c, c_width), .y_row = op_row(&a->y, x_width)};
    op_kernel(call, KERNEL_ssd_output, a->L, 0);
    k.x_at = op_bind_rows(call, BINDING_ssd_output_x, &a->x, p->rows, x_width);
    k.c_at = op_bind_rows(call, BINDING_ssd_output_c, &a->c, p->rows, c_width);
    op_bind(call, BINDING_ssd_output_cb, &p->cb, (uint64_t)a->B * p->M * a->G * p->C * p->C);
    op_bind(call, BINDING_ssd_output_cum, &p->cum, p->rows * a->H * CUM_STRIDE);
    op_bind(call, BINDING_ssd_output_hin, &p->hin, (uint64_t)a->B * p->M * p->state);
    k.d_at = op_bind(call, BINDING_ssd_output_d, &a->d, a->H);
    k.seq_at = op_bind(call, BINDING_ssd_output_seq, &a->seq, 2 * (uint64_t)a->B);
    k.y_at = op_bind_rows(call, BINDING_ssd_output_y, &a->y, p->rows, x_width);
    op_launch(call, &k, base_ceil_div(a->P, call->row->T0) * base_ceil_div(p->C, call->row->T1) * a->H * p->M * a->B);
}

static void step(ssd_plan *p)
{
    op_call *call = &p->call;
    const dart_ssd_args *a = p->a;
    const uint64_t x_width = (uint64_t)a->H * a->P, b_width = (uint64_t)a->G * a->N;
    struct SsdStepArgs k = {.flags = p->flags, .B = a->B, .H = a->H, .G = a->G, .N = a->N, .P = a->P, .S = a->S,
                            .x_row = op_row(&a->x, x_width), .b_row = op_row(&a->b, b_width), .c_row = op_row(&a->c, b_width),
                            .y_row = op_row(&a->y, x_width)};
    op_kernel(call, KERNEL_ssd_step, a->B, 0);
    k.x_at = op_bind_rows(call, BINDING_ssd_step_x, &a->x, a->B, x_width);
    k.b_at = op_bind_rows(call, BINDING_ssd_step_b, &a->b, a->B, b_width);
    k.c_at = op_bind_rows(call, BINDING_ssd_step_c, &a->c, a->B, b_width);
    op_bind(call, BINDING_ssd_step_cum, &p->cum, (uint64_t)a->B * a->H * CUM_STRIDE);
    op_bind(call, BINDING_ssd_step_decay, &p->decay, (uint64_t)a->B * 2 * a->H);
    k.d_at = op_bind(call, BINDING_ssd_step_d, &a->d, a->H);
    k.seq_at = op_bind(call, BINDING_ssd_step_seq, &a->seq, 2 * (uint64_t)a->B);
    op_bind(call, BINDING_ssd_step_h, &a->h, a->B * p->state);
    op_bind(call, BINDING_ssd_step_open, &a->open, a->B * p->state);
    op_bind(call, BINDING_ssd_step_open_decay, &a->open_decay, (uint64_t)a->B * a->H);
    k.dh_at = op_bind(call, BINDING_ssd_step_dh, &a->dh, a->B * p->state);
    k.y_at = op_bind_rows(call, BINDING_ssd_step_y, &a->y, a->B, x_width);
    op_launch(call, &k, base_ceil_div(a->P, call->row->T0) * a->H * a->B);
}

dart_status dart_ssd(dart_stream *stream, const dart_ssd_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    ssd_plan p = {.a = args};
    if (op_begin(&p.call, stream, "dart_ssd") != DART_OK || check(&p) != DART_OK) return op_status(&p.call);
    p.cum = op_kept(&p.call, &args->cum, p.rows * args->H * CUM_STRIDE);
    p.decay = op_kept(&p.call, &args->decay, (uint64_t)args->B * (p.M + 1) * args->H);
    decay(&p);
    const bool one = args->L == 1 && !op_has(&args->cb) && !op_has(&args->hin);
    if (args->plan == DART_PLAN_STEP || (args->plan == DART_PLAN_AUTO && one)) {
        step(&p);
        return op_end(&p.call);
    }
    p.cb = op_kept(&p.call, &args->cb, (uint64_t)args->B * p.M * args->G * p.C * p.C);
    p.hin = op_kept(&p.call, &args->hin, (uint64_t)args->B * p.M * p.state);
    product(&p);
    memory(&p);
    state(&p);
    output(&p);
    return op_end(&p.call);
}
