/* The scan: four stages for a piece, two for a token. */
#include "runtime/stream.h"

#include <float.h>

uint32_t dart_ssd_chunks(uint32_t L, uint32_t S, bool with_seq)
{
    if (L == 0 || S == 0) return 0;
    return (uint32_t)base_ceil_div((uint64_t)L + (with_seq ? S - 1 : 0), S);
}

static const float DEFAULT_EPS = 1e-5f; /* that of the attention's norms */

/* Matrices of N x P, raw where there is no scale (see args.h). */
typedef struct matrices {
    dart_tensor of, scale;
    uint32_t first, capacity; /* with run: capacity of them a sequence, from memory `first` of the sequence on */
    bool run;
} matrices;

/* One call with everything that its stages share. */
typedef struct ssd_plan {
    op_call call;
    const dart_ssd_args *a;
    uint32_t flags, M, C;
    float eps;
    uint64_t rows, state; /* B L, H N P */
    dart_tensor cum, decay, tail;
    matrices memory, hin;
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
    OP_REQUIRE(call, a->plan != DART_PLAN_STEP || (a->L == 1 && !op_has(&a->hin) && !op_has(&a->dh_scale)),
               "the step plan takes L = 1, has no hin and normalises no dh");
    OP_REQUIRE(call, a->eps >= 0 && a->eps <= FLT_MAX, "eps %g must not be below 0", (double)a->eps);
    OP_REQUIRE(call, op_has(&a->dh) || !op_has(&a->dh_scale), "dh_scale needs dh");
    OP_REQUIRE(call, op_has(&a->hin) || !op_has(&a->hin_scale), "hin_scale needs hin");
    OP_REQUIRE(call, a->memories_count == 0 || a->memories != NULL, "memories are missing");
    OP_REQUIRE(call, a->memories_count == 0 || (op_has(&a->open) && !op_has(&a->dh)), "memories need open and exclude dh");
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
    op_check(call, "dh", &a->dh, (op_has(&a->dh_scale) ? OP_FLOAT : OP_F32) | OP_OPTIONAL, chunks, p->state);
    op_check(call, "dh_scale", &a->dh_scale, OP_F32 | OP_OPTIONAL, chunks, (uint64_t)a->H * a->N);
    for (uint32_t i = 0; i < a->memories_count; i++) {
        const dart_memories *run = &a->memories[i];
        OP_REQUIRE(call, run->M > 0, "a run of no memories");
        op_check(call, "memories.dh", &run->dh, OP_FLOAT, (uint64_t)a->B * run->M, p->state);
        op_check(call, "memories.scale", &run->scale, OP_F32, (uint64_t)a->B * run->M, (uint64_t)a->H * a->N);
    }
    op_check(call, "cum", &a->cum, OP_F32 | OP_OPTIONAL | OP_ALIGNED, p->rows * a->H, CUM_STRIDE);
    op_check(call, "decay", &a->decay, OP_F32 | OP_OPTIONAL | OP_ALIGNED, a->B, (uint64_t)(p->M + 1) * a->H);
    op_check(call, "hin", &a->hin, (op_has(&a->hin_scale) ? OP_FLOAT : OP_F32 | 1 << DART_BF16) | OP_OPTIONAL, chunks, p->state);
    op_check(call, "hin_scale", &a->hin_scale, OP_F32 | OP_OPTIONAL, chunks, (uint64_t)a->H * a->N);
    p->eps = a->eps > 0 ? a->eps : DEFAULT_EPS;
    p->flags = (op_has(&a->seq) ? HAS_SEQ : 0) | (op_has(&a->dt_bias) ? HAS_BIAS : 0) | (op_has(&a->d) ? HAS_D : 0) |
               (op_has(&a->h) ? HAS_H : 0) | (op_has(&a->open) ? HAS_OPEN : 0) | (a->dt_is_step ? IS_STEP : 0);
    return op_status(call);
}

static float most_step(const dart_ssd_args *a) { return a->dt_max == 0 || a->dt_max > FLT_MAX ? FLT_MAX : a->dt_max; }

static void decay(ssd_plan *p)
{
    op_call *call = &p->call;
    const dart_ssd_args *a = p->a;
    struct SsdDecayArgs k = {.flags = p->flags, .B = a->B, .L = a->L, .H = a->H, .S = a->S, .M = p->M, .dt_row = op_row(&a->dt, a->H),
                             .dt_min = a->dt_min, .dt_max = most_step(a)};
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

/* ---- Memories and entering states ---- */

/* Scratch for B M of them: in the dtype of x, b and c where those have one of 16 bits, normalised if asked for, else f32. */
static matrices scratch_matrices(ssd_plan *p, bool half, bool normalised)
{
    const dart_ssd_args *a = p->a;
    const uint64_t chunks = (uint64_t)a->B * p->M;
    half = half && op_fits_half(&a->x, &a->b) != 0 && a->c.dtype == a->x.dtype;
    matrices made = {.of = op_scratch(&p->call, half ? base_ceil_div(chunks * p->state, 2) : chunks * p->state)};
    if (half) {
        made.of.dtype = a->x.dtype;
        made.of.offset *= 2;
        if (normalised) made.scale = op_scratch(&p->call, chunks * a->H * a->N);
    }
    return made;
}

/* What the caller wants of memories is computed in place, but for several runs: those are filled from f32 ones at the end.
 * Entering states in bf16, which has the range of f32, stay raw: a product takes them as they are, where normalised ones
 * would be multiplied by their scales and rounded a second time. */
static void place_matrices(ssd_plan *p)
{
    const dart_ssd_args *a = p->a;
    if (a->memories_count == 1) {
        const dart_memories *run = &a->memories[0];
        p->memory = (matrices){.of = run->dh, .scale = run->scale, .first = run->first, .capacity = run->M, .run = true};
    } else {
        p->memory = op_has(&a->dh) ? (matrices){.of = a->dh, .scale = a->dh_scale} : scratch_matrices(p, a->memories_count <= 1, true);
    }
    p->hin = op_has(&a->hin) ? (matrices){.of = a->hin, .scale = a->hin_scale} : scratch_matrices(p, true, a->x.dtype != DART_BF16);
    p->flags |= (op_has(&p->memory.scale) ? HAS_SCALE : 0) | (op_has(&p->hin.scale) ? HAS_HIN_SCALE : 0) | (p->memory.run ? HAS_RUN : 0);
    if (op_has(&a->open)) p->tail = op_scratch(&p->call, a->B * p->state);
}

/* Matrices of a sequence. */
static uint32_t matrices_count(const ssd_plan *p, const matrices *m) { return m->run ? m->capacity : p->M; }

static uint32_t bind_matrices(ssd_plan *p, uint32_t slot, const matrices *m)
{
    return op_bind(&p->call, slot, &m->of, (uint64_t)p->a->B * matrices_count(p, m) * p->state);
}

static uint32_t bind_scale(ssd_plan *p, uint32_t slot, const matrices *m)
{
    return op_bind(&p->call, slot, &m->scale, (uint64_t)p->a->B * matrices_count(p, m) * p->a->H * p->a->N);
}

/* Traits of the sizes and about what every stage reads or writes; the stages add what else they touch. */
static uint32_t traits_of(const ssd_plan *p, const matrices *m, const dart_tensor *operand, uint64_t width)
{
    const dart_ssd_args *a = p->a;
    const uint32_t half = op_fits_half(&m->of, operand);
    const bool tiles = a->N % 16 == 0 && a->P % 16 == 0 && m->of.offset % 8 == 0 && m->scale.offset % 4 == 0 && op_fits_rows(operand, width);
    const bool scan = a->S <= 256 && a->N <= 128 && (a->P == 16 || a->P == 32 || a->P == 64);
    return half | (tiles ? FITS_TILES : 0) | (a->N == 128 && a->P == 64 ? FITS_N128_P64 : 0) | (a->P <= 64 ? FITS_P64 : 0) | (scan ? FITS_SCAN : 0);
}

/* ---- Stages ---- */

static struct SsdMemoryArgs memory_args(const ssd_plan *p)
{
    const dart_ssd_args *a = p->a;
    return (struct SsdMemoryArgs){.flags = p->flags, .B = a->B, .L = a->L, .H = a->H, .G = a->G, .N = a->N, .P = a->P, .S = a->S, .M = p->M,
                                  .first = p->memory.first, .count = p->memory.capacity, .capacity = p->memory.capacity,
                                  .x_row = op_row(&a->x, (uint64_t)a->H * a->P), .b_row = op_row(&a->b, (uint64_t)a->G * a->N), .eps = p->eps,
                                  .dt_row = op_row(&a->dt, a->H), .dt_min = a->dt_min, .dt_max = most_step(a)};
}

static uint64_t memory_tiles(const ssd_plan *p)
{
    const dart_ssd_args *a = p->a;
    const kernel_row *row = p->call.row;
    return base_ceil_div(a->N, row->T0) * base_ceil_div(a->H / a->G, row->T1) * a->G * p->M * a->B;
}

static void memory(ssd_plan *p, uint32_t traits)
{
    op_call *call = &p->call;
    const dart_ssd_args *a = p->a;
    struct SsdMemoryArgs k = memory_args(p);
    op_kernel(call, KERNEL_ssd_memory, a->L, traits);
    k.x_at = op_bind_rows(call, BINDING_ssd_memory_x, &a->x, p->rows, (uint64_t)a->H * a->P);
    k.b_at = op_bind_rows(call, BINDING_ssd_memory_b, &a->b, p->rows, (uint64_t)a->G * a->N);
    op_bind(call, BINDING_ssd_memory_cum, &p->cum, p->rows * a->H * CUM_STRIDE);
    op_bind(call, BINDING_ssd_memory_decay, &p->decay, (uint64_t)a->B * (p->M + 1) * a->H);
    k.seq_at = op_bind(call, BINDING_ssd_memory_seq, &a->seq, 2 * (uint64_t)a->B);
    op_bind(call, BINDING_ssd_memory_open, &a->open, a->B * p->state);
    k.memory_at = bind_matrices(p, BINDING_ssd_memory_memory, &p->memory);
    k.scale_at = bind_scale(p, BINDING_ssd_memory_scale, &p->memory);
    op_bind(call, BINDING_ssd_memory_tail, &p->tail, a->B * p->state);
    op_launch(call, &k, memory_tiles(p));
}

/* Both stages in one launch. */
static void decay_memory(ssd_plan *p, uint32_t traits)
{
    op_call *call = &p->call;
    const dart_ssd_args *a = p->a;
    struct SsdMemoryArgs k = memory_args(p);
    op_kernel(call, KERNEL_ssd_decay_memory, a->L, traits);
    k.x_at = op_bind_rows(call, BINDING_ssd_decay_memory_x, &a->x, p->rows, (uint64_t)a->H * a->P);
    k.b_at = op_bind_rows(call, BINDING_ssd_decay_memory_b, &a->b, p->rows, (uint64_t)a->G * a->N);
    op_bind(call, BINDING_ssd_decay_memory_cum, &p->cum, p->rows * a->H * CUM_STRIDE);
    op_bind(call, BINDING_ssd_decay_memory_decay, &p->decay, (uint64_t)a->B * (p->M + 1) * a->H);
    k.seq_at = op_bind(call, BINDING_ssd_decay_memory_seq, &a->seq, 2 * (uint64_t)a->B);
    op_bind(call, BINDING_ssd_decay_memory_open, &a->open, a->B * p->state);
    k.memory_at = bind_matrices(p, BINDING_ssd_decay_memory_memory, &p->memory);
    k.scale_at = bind_scale(p, BINDING_ssd_decay_memory_scale, &p->memory);
    op_bind(call, BINDING_ssd_decay_memory_tail, &p->tail, a->B * p->state);
    k.dt_at = op_bind_rows(call, BINDING_ssd_decay_memory_dt, &a->dt, p->rows, a->H);
    k.a_log_at = op_bind(call, BINDING_ssd_decay_memory_a_log, &a->a_log, a->H);
    k.dt_bias_at = op_bind(call, BINDING_ssd_decay_memory_dt_bias, &a->dt_bias, a->H);
    op_bind(call, BINDING_ssd_decay_memory_open_decay, &a->open_decay, (uint64_t)a->B * a->H);
    op_launch(call, &k, memory_tiles(p));
}

static void decay_and_memory(ssd_plan *p)
{
    const dart_ssd_args *a = p->a;
    const uint32_t traits = traits_of(p, &p->memory, &a->x, (uint64_t)a->H * a->P) & traits_of(p, &p->memory, &a->b, (uint64_t)a->G * a->N);
    if (op_prefers(&p->call, KERNEL_ssd_decay_memory, KERNEL_ssd_memory, a->L, traits)) {
        decay_memory(p, traits);
    } else {
        decay(p);
        memory(p, traits);
    }
}

static void state(ssd_plan *p)
{
    op_call *call = &p->call;
    const dart_ssd_args *a = p->a;
    struct SsdStateArgs k = {.flags = p->flags, .B = a->B, .L = a->L, .H = a->H, .N = a->N, .P = a->P, .S = a->S, .M = p->M,
                             .first = p->memory.first, .count = p->memory.capacity, .capacity = p->memory.capacity, .eps = p->eps};
    const uint64_t width = (uint64_t)a->N * a->P;
    op_kernel(call, KERNEL_ssd_state, a->L, traits_of(p, &p->hin, &p->memory.of, width));
    op_bind(call, BINDING_ssd_state_decay, &p->decay, (uint64_t)a->B * (p->M + 1) * a->H);
    k.memory_at = bind_matrices(p, BINDING_ssd_state_memory, &p->memory);
    k.scale_at = bind_scale(p, BINDING_ssd_state_scale, &p->memory);
    k.seq_at = op_bind(call, BINDING_ssd_state_seq, &a->seq, 2 * (uint64_t)a->B);
    op_bind(call, BINDING_ssd_state_tail, &p->tail, a->B * p->state);
    op_bind(call, BINDING_ssd_state_h, &a->h, a->B * p->state);
    op_bind(call, BINDING_ssd_state_open, &a->open, a->B * p->state);
    op_bind(call, BINDING_ssd_state_open_decay, &a->open_decay, (uint64_t)a->B * a->H);
    k.hin_at = bind_matrices(p, BINDING_ssd_state_hin, &p->hin);
    k.hin_scale_at = bind_scale(p, BINDING_ssd_state_hin_scale, &p->hin);
    op_launch(call, &k, base_ceil_div(a->N, call->row->T0) * a->H * a->B);
}

static void output(ssd_plan *p)
{
    op_call *call = &p->call;
    const dart_ssd_args *a = p->a;
    const uint64_t x_width = (uint64_t)a->H * a->P, b_width = (uint64_t)a->G * a->N;
    struct SsdOutputArgs k = {.flags = p->flags, .B = a->B, .L = a->L, .H = a->H, .G = a->G, .N = a->N, .P = a->P, .S = a->S, .M = p->M,
                              .C = p->C, .x_row = op_row(&a->x, x_width), .b_row = op_row(&a->b, b_width), .c_row = op_row(&a->c, b_width),
                              .y_row = op_row(&a->y, x_width)};
    const uint32_t traits = traits_of(p, &p->hin, &a->x, x_width) & traits_of(p, &p->hin, &a->b, b_width) & traits_of(p, &p->hin, &a->c, b_width);
    op_kernel(call, KERNEL_ssd_output, a->L, op_fits_rows(&a->y, x_width) ? traits : traits & ~(uint32_t)FITS_TILES);
    k.x_at = op_bind_rows(call, BINDING_ssd_output_x, &a->x, p->rows, x_width);
    k.b_at = op_bind_rows(call, BINDING_ssd_output_b, &a->b, p->rows, b_width);
    k.c_at = op_bind_rows(call, BINDING_ssd_output_c, &a->c, p->rows, b_width);
    op_bind(call, BINDING_ssd_output_cum, &p->cum, p->rows * a->H * CUM_STRIDE);
    k.hin_at = bind_matrices(p, BINDING_ssd_output_hin, &p->hin);
    k.hin_scale_at = bind_scale(p, BINDING_ssd_output_hin_scale, &p->hin);
    k.d_at = op_bind(call, BINDING_ssd_output_d, &a->d, a->H);
    k.seq_at = op_bind(call, BINDING_ssd_output_seq, &a->seq, 2 * (uint64_t)a->B);
    k.y_at = op_bind_rows(call, BINDING_ssd_output_y, &a->y, p->rows, x_width);
    const uint64_t blocks = base_ceil_div(p->C, call->row->T1) * base_ceil_div(a->H / a->G, call->row->T0);
    op_launch(call, &k, blocks * a->G * p->M * a->B);
}

/* All stages in one launch: where nobody asks for what passes between them, chunks are not more than the blocks of a cluster (with
 * seq there may be one more), and all clusters run at once: an H200 has room for 15. 24 heads of 2,048 tokens take 18.7 us where
 * the stages one by one take 24.5; of 256 tokens 17.7 and 16.3, of 512 18 either way (November 2026). */
#define PIECE_CHUNKS 8
#define PIECE_LEAST 3
#define PIECE_CLUSTERS 15

static bool piece(ssd_plan *p)
{
    op_call *call = &p->call;
    const dart_ssd_args *a = p->a;
    const uint64_t x_width = (uint64_t)a->H * a->P, b_width = (uint64_t)a->G * a->N;
    const uint64_t clusters = base_ceil_div(a->H / a->G, 2) * a->G * a->B;
    const uint32_t most = op_has(&a->seq) ? PIECE_CHUNKS + 1 : PIECE_CHUNKS;
    if (op_has(&a->cum) || op_has(&a->decay) || op_has(&a->hin) || a->memories_count > 1 || p->M < PIECE_LEAST || p->M > most ||
        clusters > PIECE_CLUSTERS || !op_has(&p->memory.scale) || !op_fits_rows(&a->y, x_width))
        return false;
    const uint32_t traits = traits_of(p, &p->memory, &a->x, x_width) & traits_of(p, &p->memory, &a->b, b_width) & traits_of(p, &p->memory, &a->c, b_width);
    if (!op_prefers(call, KERNEL_ssd_piece, KERNEL_ssd_output, a->L, traits)) return false;
    struct SsdPieceArgs k = {.flags = p->flags | (op_has(&a->dh) ? HAS_DH : 0), .B = a->B, .L = a->L, .H = a->H, .G = a->G, .N = a->N,
                             .P = a->P, .S = a->S, .M = p->M, .first = p->memory.first, .count = p->memory.capacity, .capacity = p->memory.capacity,
                             .x_row = op_row(&a->x, x_width), .b_row = op_row(&a->b, b_width), .c_row = op_row(&a->c, b_width),
                             .y_row = op_row(&a->y, x_width), .eps = p->eps, .dt_row = op_row(&a->dt, a->H), .dt_min = a->dt_min,
                             .dt_max = most_step(a)};
    op_kernel(call, KERNEL_ssd_piece, a->L, traits);
    k.x_at = op_bind_rows(call, BINDING_ssd_piece_x, &a->x, p->rows, x_width);
    k.dt_at = op_bind_rows(call, BINDING_ssd_piece_dt, &a->dt, p->rows, a->H);
    k.b_at = op_bind_rows(call, BINDING_ssd_piece_b, &a->b, p->rows, b_width);
    k.c_at = op_bind_rows(call, BINDING_ssd_piece_c, &a->c, p->rows, b_width);
    k.a_log_at = op_bind(call, BINDING_ssd_piece_a_log, &a->a_log, a->H);
    k.dt_bias_at = op_bind(call, BINDING_ssd_piece_dt_bias, &a->dt_bias, a->H);
    k.d_at = op_bind(call, BINDING_ssd_piece_d, &a->d, a->H);
    k.seq_at = op_bind(call, BINDING_ssd_piece_seq, &a->seq, 2 * (uint64_t)a->B);
    op_bind(call, BINDING_ssd_piece_h, &a->h, a->B * p->state);
    op_bind(call, BINDING_ssd_piece_open, &a->open, a->B * p->state);
    op_bind(call, BINDING_ssd_piece_open_decay, &a->open_decay, (uint64_t)a->B * a->H);
    k.memory_at = bind_matrices(p, BINDING_ssd_piece_memory, &p->memory);
    k.scale_at = bind_scale(p, BINDING_ssd_piece_scale, &p->memory);
    k.y_at = op_bind_rows(call, BINDING_ssd_piece_y, &a->y, p->rows, x_width);
    op_launch(call, &k, clusters * PIECE_CHUNKS);
    return true;
}

static void step(ssd_plan *p)
{
    op_call *call = &p->call;
    const dart_ssd_args *a = p->a;
    const uint64_t x_width = (uint64_t)a->H * a->P, b_width = (uint64_t)a->G * a->N;
    const dart_tensor dh = a->memories_count > 0 ? op_scratch(call, a->B * p->state) : a->dh;
    struct SsdStepArgs k = {.flags = p->flags | (op_has(&dh) ? HAS_DH : 0) | (a->memories_count > 0 ? HAS_CLOSED : 0), .B = a->B, .H = a->H, .G = a->G, .N = a->N, .P = a->P, .S = a->S,
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
    k.dh_at = op_bind(call, BINDING_ssd_step_dh, &dh, a->B * p->state);
    k.y_at = op_bind_rows(call, BINDING_ssd_step_y, &a->y, a->B, x_width);
    op_launch(call, &k, base_ceil_div(a->P, call->row->T0) * a->H * a->B);
    p->memory = (matrices){.of = dh};
}

/* Raw memories to the runs; takes no scratch. */
static void append(const ssd_plan *p)
{
    const dart_ssd_args *a = p->a;
    for (uint32_t i = 0; i < a->memories_count; i++)
        dart_sma_append(p->call.stream, &(dart_sma_append_args){.B = a->B, .L = a->L, .H = a->H, .N = a->N, .P = a->P, .S = a->S, .eps = p->eps,
                                                                .dh = p->memory.of, .seq = a->seq, .to = a->memories[i]});
}

dart_status dart_ssd(dart_stream *stream, const dart_ssd_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    ssd_plan p = {.a = args};
    if (op_begin(&p.call, stream, "dart_ssd") != DART_OK || check(&p) != DART_OK) return op_status(&p.call);
    p.cum = op_kept(&p.call, &args->cum, p.rows * args->H * CUM_STRIDE);
    p.decay = op_kept(&p.call, &args->decay, (uint64_t)args->B * (p.M + 1) * args->H);
    const bool one = args->L == 1 && !op_has(&args->hin) && !op_has(&args->dh_scale);
    if (args->plan == DART_PLAN_STEP || (args->plan == DART_PLAN_AUTO && one)) {
        decay(&p);
        step(&p);
        append(&p);
        return op_end(&p.call);
    }
    place_matrices(&p);
    if (!piece(&p)) {
        decay_and_memory(&p);
        state(&p);
        output(&p);
    }
    if (args->memories_count > 1) append(&p);
    return op_end(&p.call);
}
