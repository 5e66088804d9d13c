/* The scan: four stages for a piece, two for a token. */
#include "ops/arguments.h"
#include "ssd.h"
#include "tiles.h"

#include <float.h>

uint32_t dart_ssd_chunks(uint32_t L, uint32_t S, bool with_seq)
{
    return op_chunks(L, S, with_seq);
}

static const float DEFAULT_EPS = 1e-5f; /* that of the attention's norms */

/* Matrices of N x P, raw where there is no scale (see args.h). */
typedef struct matrices {
    op_operand values, scale;
    uint32_t first, capacity; /* with run: capacity of them a sequence, from memory `first` of the sequence on */
    bool run;
} matrices;

/* One call with everything that its stages share. */
typedef struct ssd_plan {
    op_call call;
    const dart_ssd_args *a;
    op_layout layout;
    uint32_t flags, M, C;
    float eps;
    uint64_t slots, state; /* of chunks; H N P */
    struct {
        op_operand x, dt, b, c, a_log, dt_bias, d, seq, h, open, open_decay, y, dh, dh_scale, cum, decay, hin, hin_scale;
    } o;
    op_operand tail;
    matrices memory, hin;
} ssd_plan;

static matrices run_of(const ssd_plan *p, const dart_memories *run)
{
    const dart_ssd_args *a = p->a;
    const ops_run of = ops_run_of(run, "memories.dh", "memories.scale", (uint64_t)a->B * run->M, a->H, a->N, a->P);
    return (matrices){.values = of.dh, .scale = of.scale, .first = run->first, .capacity = run->M, .run = true};
}

static dart_status check(ssd_plan *p)
{
    op_call *call = &p->call;
    const dart_ssd_args *a = p->a;
    if (op_lay_out(call, &p->layout, a->B, a->L, a->T, &a->seq, &a->cu) != DART_OK) return op_status(call);
    OP_REQUIRE(call, a->H > 0 && a->G > 0 && a->S > 0, "H %u, G %u, S %u: all must be above 0", a->H, a->G, a->S);
    if (ops_check_sizes(call, a->H, a->G, a->N, a->P, a->S) != DART_OK) return op_status(call);
    OP_REQUIRE(call, !op_packed(&p->layout) || a->plan != DART_PLAN_STEP, "packed sequences have no step plan");
    if (ops_check_steps(call, a->dt_min, a->dt_max) != DART_OK) return op_status(call);
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
    if (ssd_check_quiet(call, &p->layout, a->L, a->quiet, op_has(&a->h)) != DART_OK) return op_status(call);
    p->M = op_chunks(a->L, a->S, op_has(&a->seq));
    p->C = a->S < a->L ? a->S : a->L;
    p->state = (uint64_t)a->H * a->N * a->P;
    p->slots = op_slots(&p->layout, p->M, a->S);
    const uint64_t chunks = p->slots, rows = p->layout.rows, scales = (uint64_t)a->H * a->N;
    const uint64_t x_width = (uint64_t)a->H * a->P, b_width = (uint64_t)a->G * a->N;
    p->o.x = (op_operand){"x", a->x, OP_FLOAT | OP_VIEW, rows, x_width};
    p->o.dt = (op_operand){"dt", a->dt, OP_FLOAT | OP_VIEW, rows, a->H};
    p->o.b = (op_operand){"b", a->b, OP_FLOAT | OP_VIEW, rows, b_width};
    p->o.c = (op_operand){"c", a->c, OP_FLOAT | OP_VIEW, rows, b_width};
    p->o.a_log = (op_operand){"a_log", a->a_log, OP_FLOAT, 1, a->H};
    p->o.dt_bias = (op_operand){"dt_bias", a->dt_bias, OP_FLOAT | OP_OPTIONAL, 1, a->H};
    p->o.d = (op_operand){"d", a->d, OP_FLOAT | OP_OPTIONAL, 1, a->H};
    p->o.seq = p->layout.seq;
    p->o.h = (op_operand){"h", a->h, OP_F32 | OP_OPTIONAL | OP_ALIGNED, a->B, p->state};
    p->o.open = (op_operand){"open", a->open, OP_F32 | OP_OPTIONAL | OP_ALIGNED, a->B, p->state};
    p->o.open_decay = (op_operand){"open_decay", a->open_decay, OP_F32 | OP_OPTIONAL | OP_ALIGNED, a->B, a->H};
    p->o.y = (op_operand){"y", a->y, OP_FLOAT | OP_VIEW, rows, x_width};
    p->o.dh = (op_operand){"dh", a->dh, (op_has(&a->dh_scale) ? OP_FLOAT : OP_F32) | OP_OPTIONAL, chunks, p->state};
    p->o.dh_scale = (op_operand){"dh_scale", a->dh_scale, OP_F32 | OP_OPTIONAL, chunks, scales};
    p->o.cum = (op_operand){"cum", a->cum, OP_F32 | OP_OPTIONAL | OP_ALIGNED, rows * a->H, CUM_STRIDE};
    p->o.decay = (op_operand){"decay", a->decay, OP_F32 | OP_OPTIONAL | OP_ALIGNED, chunks + a->B, a->H};
    p->o.hin = (op_operand){"hin", a->hin, (op_has(&a->hin_scale) ? OP_FLOAT : OP_F32 | 1 << DART_BF16) | OP_OPTIONAL, chunks, p->state};
    p->o.hin_scale = (op_operand){"hin_scale", a->hin_scale, OP_F32 | OP_OPTIONAL, chunks, scales};
    OP_CHECK(call, p->o);
    for (uint32_t i = 0; i < a->memories_count; i++) {
        OP_REQUIRE(call, a->memories[i].M > 0, "a run of no memories");
        const matrices run = run_of(p, &a->memories[i]);
        op_check(call, &run.values, 1);
        op_check(call, &run.scale, 1);
    }
    p->eps = a->eps > 0 ? a->eps : DEFAULT_EPS;
    p->flags = p->layout.flags | (op_has(&a->dt_bias) ? HAS_BIAS : 0) | (op_has(&a->d) ? HAS_D : 0) |
               (op_has(&a->h) ? HAS_H : 0) | (op_has(&a->open) ? HAS_OPEN : 0) | (a->dt_is_step ? IS_STEP : 0);
    return op_status(call);
}

static void decay(ssd_plan *p)
{
    op_call *call = &p->call;
    const dart_ssd_args *a = p->a;
    struct SsdDecayArgs k = {.flags = p->flags, .B = a->B, .L = a->L, .T = a->T, .H = a->H, .S = a->S, .M = p->M, .dt_min = a->dt_min,
                             .dt_max = ops_most_step(a->dt_max)};
    op_kernel(call, KERNEL_ssd_decay, a->L, p->layout.traits);
    OP_LAUNCH(call, &k, base_ceil_div((uint64_t)a->B * p->M * a->H, call->T0), OP_ROWS(ssd_decay, dt, &p->o.dt, k),
              OP_AT(ssd_decay, a_log, &p->o.a_log, k), OP_AT(ssd_decay, dt_bias, &p->o.dt_bias, k), OP_AT(ssd_decay, seq, &p->o.seq, k),
              OP_WHOLE(ssd_decay, open_decay, &p->o.open_decay), OP_WHOLE(ssd_decay, cum, &p->o.cum),
              OP_WHOLE(ssd_decay, decay, &p->o.decay));
}

/* ---- Memories and entering states ---- */

/* Scratch for B M of them: in the dtype of x, b and c where those have one of 16 bits, normalised if asked for, else f32. */
static matrices scratch_matrices(ssd_plan *p, bool may_be_16bit, bool normalised)
{
    const dart_ssd_args *a = p->a;
    const uint64_t chunks = p->slots;
    const bool is_16bit = may_be_16bit && op_fits_16bit(&a->x, &a->b) != 0 && a->c.dtype == a->x.dtype;
    matrices made = {.values = op_scratch(&p->call, is_16bit ? a->x.dtype : DART_F32, chunks, p->state)};
    if (is_16bit && normalised) made.scale = op_scratch(&p->call, DART_F32, chunks, (uint64_t)a->H * a->N);
    return made;
}

/* What the caller wants of memories is computed in place, but for several runs: those are filled from f32 ones at the end.
 * Entering states in bf16, which has the range of f32, stay raw: a product takes them as they are, where normalised ones
 * would be multiplied by their scales and rounded a second time. */
static void place_matrices(ssd_plan *p)
{
    const dart_ssd_args *a = p->a;
    if (a->memories_count == 1) p->memory = run_of(p, &a->memories[0]);
    else if (op_has(&a->dh)) p->memory = (matrices){.values = p->o.dh, .scale = p->o.dh_scale};
    else p->memory = scratch_matrices(p, a->memories_count <= 1, true);
    if (op_has(&a->hin)) p->hin = (matrices){.values = p->o.hin, .scale = p->o.hin_scale};
    else p->hin = scratch_matrices(p, true, a->x.dtype != DART_BF16);
    p->flags |= (op_has(&p->memory.scale.of) ? HAS_SCALE : 0) | (op_has(&p->hin.scale.of) ? HAS_HIN_SCALE : 0) |
                (p->memory.run ? HAS_RUN : 0);
    if (op_has(&a->open)) p->tail = op_scratch(&p->call, DART_F32, a->B, p->state);
}

/* Traits of the sizes and about what every stage reads or writes; the stages add what else they touch. */
static uint32_t traits_of(const ssd_plan *p, const matrices *m, const op_operand *operand)
{
    const dart_ssd_args *a = p->a;
    const uint32_t type = op_fits_16bit(&m->values.of, &operand->of);
    const bool tiles = a->N % 16 == 0 && a->P % 16 == 0 && m->values.of.offset % 8 == 0 && m->scale.of.offset % 4 == 0 && op_fits_rows(operand);
    const bool scan = a->S <= 256 && a->N <= 128 && (a->P == 16 || a->P == 32 || a->P == 64);
    return p->layout.traits | type | (tiles ? FITS_TILES : 0) | (a->N == 128 && a->P == 64 ? FITS_N128_P64 : 0) | (a->P <= 64 ? FITS_P64 : 0) |
           (scan ? FITS_SSD_SCAN : 0);
}

/* ---- Stages ---- */

static struct SsdMemoryArgs memory_args(const ssd_plan *p)
{
    const dart_ssd_args *a = p->a;
    return (struct SsdMemoryArgs){.flags = p->flags, .B = a->B, .L = a->L, .T = a->T, .H = a->H, .G = a->G, .N = a->N, .P = a->P, .S = a->S,
                                  .M = p->M,
                                  .first = p->memory.first, .count = p->memory.capacity, .capacity = p->memory.capacity, .eps = p->eps,
                                  .dt_row = op_row(&p->o.dt), .dt_min = a->dt_min, .dt_max = ops_most_step(a->dt_max)};
}

static ssd_size size_of(const dart_ssd_args *a) { return (ssd_size){.B = a->B, .L = a->L, .H = a->H, .G = a->G, .S = a->S}; }

static uint64_t memory_tiles(const ssd_plan *p)
{
    const dart_ssd_args *a = p->a;
    return base_ceil_div(a->N, p->call.T0) * base_ceil_div(a->H / a->G, p->call.T1) * a->G * p->M * a->B;
}

static void memory(ssd_plan *p, uint32_t traits)
{
    op_call *call = &p->call;
    struct SsdMemoryArgs k = memory_args(p);
    op_kernel(call, KERNEL_ssd_memory, p->a->L, traits);
    OP_LAUNCH(call, &k, memory_tiles(p), OP_ROWS(ssd_memory, x, &p->o.x, k), OP_ROWS(ssd_memory, b, &p->o.b, k),
              OP_WHOLE(ssd_memory, cum, &p->o.cum), OP_WHOLE(ssd_memory, decay, &p->o.decay), OP_AT(ssd_memory, seq, &p->o.seq, k),
              OP_WHOLE(ssd_memory, open, &p->o.open), OP_AT(ssd_memory, memory, &p->memory.values, k),
              OP_AT(ssd_memory, scale, &p->memory.scale, k), OP_WHOLE(ssd_memory, tail, &p->tail));
}

/* Both stages in one launch. */
static void decay_memory(ssd_plan *p, uint32_t traits)
{
    op_call *call = &p->call;
    struct SsdMemoryArgs k = memory_args(p);
    const ssd_size size = size_of(p->a);
    op_kernel(call, KERNEL_ssd_decay_memory, p->a->L, traits);
    if (call->row->T1 == 0) call->T1 = ssd_memory_heads(op_multiprocessors(call), &size);
    OP_LAUNCH(call, &k, memory_tiles(p), OP_ROWS(ssd_decay_memory, x, &p->o.x, k), OP_ROWS(ssd_decay_memory, b, &p->o.b, k),
              OP_WHOLE(ssd_decay_memory, cum, &p->o.cum), OP_WHOLE(ssd_decay_memory, decay, &p->o.decay),
              OP_AT(ssd_decay_memory, seq, &p->o.seq, k), OP_WHOLE(ssd_decay_memory, open, &p->o.open),
              OP_AT(ssd_decay_memory, memory, &p->memory.values, k), OP_AT(ssd_decay_memory, scale, &p->memory.scale, k),
              OP_WHOLE(ssd_decay_memory, tail, &p->tail), OP_ROWS(ssd_decay_memory, dt, &p->o.dt, k),
              OP_AT(ssd_decay_memory, a_log, &p->o.a_log, k), OP_AT(ssd_decay_memory, dt_bias, &p->o.dt_bias, k),
              OP_WHOLE(ssd_decay_memory, open_decay, &p->o.open_decay));
}

static void decay_and_memory(ssd_plan *p)
{
    const uint32_t traits = traits_of(p, &p->memory, &p->o.x) & traits_of(p, &p->memory, &p->o.b);
    if (op_prefers(&p->call, KERNEL_ssd_decay_memory, KERNEL_ssd_memory, p->a->L, traits)) {
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
    struct SsdStateArgs k = {.flags = p->flags, .B = a->B, .L = a->L, .T = a->T, .H = a->H, .N = a->N, .P = a->P, .S = a->S, .M = p->M,
                             .first = p->memory.first, .count = p->memory.capacity, .capacity = p->memory.capacity, .eps = p->eps};
    op_kernel(call, KERNEL_ssd_state, a->L, traits_of(p, &p->hin, &p->memory.values));
    OP_LAUNCH(call, &k, base_ceil_div(a->N, call->T0) * a->H * a->B, OP_WHOLE(ssd_state, decay, &p->o.decay),
              OP_AT(ssd_state, memory, &p->memory.values, k), OP_AT(ssd_state, scale, &p->memory.scale, k), OP_AT(ssd_state, seq, &p->o.seq, k),
              OP_WHOLE(ssd_state, tail, &p->tail), OP_WHOLE(ssd_state, h, &p->o.h), OP_WHOLE(ssd_state, open, &p->o.open),
              OP_WHOLE(ssd_state, open_decay, &p->o.open_decay), OP_AT(ssd_state, hin, &p->hin.values, k),
              OP_AT(ssd_state, hin_scale, &p->hin.scale, k));
}

static void output(ssd_plan *p)
{
    op_call *call = &p->call;
    const dart_ssd_args *a = p->a;
    struct SsdOutputArgs k = {.flags = p->flags, .B = a->B, .L = a->L, .T = a->T, .H = a->H, .G = a->G, .N = a->N, .P = a->P, .S = a->S, .M = p->M,
                              .C = p->C};
    const uint32_t traits = traits_of(p, &p->hin, &p->o.x) & traits_of(p, &p->hin, &p->o.b) & traits_of(p, &p->hin, &p->o.c);
    op_kernel(call, KERNEL_ssd_output, a->L, op_fits_rows(&p->o.y) ? traits : traits & ~(uint32_t)FITS_TILES);
    const ssd_size size = size_of(a);
    if (call->row->T0 == 0) call->T0 = ssd_output_heads(op_multiprocessors(call), &size);
    const uint64_t blocks = base_ceil_div(p->C, call->T1) * base_ceil_div(a->H / a->G, call->T0);
    OP_LAUNCH(call, &k, blocks * a->G * p->M * a->B, OP_ROWS(ssd_output, x, &p->o.x, k), OP_ROWS(ssd_output, b, &p->o.b, k),
              OP_ROWS(ssd_output, c, &p->o.c, k), OP_WHOLE(ssd_output, cum, &p->o.cum), OP_AT(ssd_output, hin, &p->hin.values, k),
              OP_AT(ssd_output, hin_scale, &p->hin.scale, k), OP_AT(ssd_output, d, &p->o.d, k), OP_AT(ssd_output, seq, &p->o.seq, k),
              OP_ROWS(ssd_output, y, &p->o.y, k));
}

/* ---- All stages in one launch ---- */

static void launch_piece(ssd_plan *p, uint32_t traits, uint64_t tiles)
{
    op_call *call = &p->call;
    const dart_ssd_args *a = p->a;
    struct SsdPieceArgs k = {.flags = p->flags | (op_has(&a->dh) ? HAS_DH : 0), .B = a->B, .L = a->L, .H = a->H, .G = a->G, .N = a->N,
                             .P = a->P, .S = a->S, .M = p->M, .first = p->memory.first, .capacity = p->memory.capacity,
                             .quiet = ssd_quiet_chunks(a->L, a->S, a->quiet), .eps = p->eps, .dt_min = a->dt_min, .dt_max = ops_most_step(a->dt_max)};
    op_kernel(call, KERNEL_ssd_piece, a->L, traits);
    OP_LAUNCH(call, &k, tiles, OP_ROWS(ssd_piece, x, &p->o.x, k), OP_ROWS(ssd_piece, dt, &p->o.dt, k),
              OP_ROWS(ssd_piece, b, &p->o.b, k), OP_ROWS(ssd_piece, c, &p->o.c, k), OP_AT(ssd_piece, a_log, &p->o.a_log, k),
              OP_AT(ssd_piece, dt_bias, &p->o.dt_bias, k), OP_AT(ssd_piece, d, &p->o.d, k), OP_AT(ssd_piece, seq, &p->o.seq, k),
              OP_WHOLE(ssd_piece, h, &p->o.h), OP_WHOLE(ssd_piece, open, &p->o.open), OP_WHOLE(ssd_piece, open_decay, &p->o.open_decay),
              OP_AT(ssd_piece, memory, &p->memory.values, k), OP_AT(ssd_piece, scale, &p->memory.scale, k), OP_ROWS(ssd_piece, y, &p->o.y, k));
}

#define WALK_LEAST 64 /* groups of all sequences */
#define WALK_HEADS 4
#define WALK_SIDE 32 /* tokens of a chunk, rows n */
#define WALK64_TOKENS 16

uint32_t ssd_walk_traits(const op_layout *layout, uint32_t H, uint32_t G, uint32_t N, uint32_t P, uint32_t S)
{
    const bool alike = !op_packed(layout) || (uint64_t)layout->B * layout->L / 4 <= layout->T;
    if ((uint64_t)layout->B * G < WALK_LEAST || !alike || (layout->flags & HAS_SEQ) != 0) return 0;
    if (N == 64 && P == 64 && H / G <= WALK_HEADS && S <= WALK64_TOKENS) return FITS_SSD_WALK64 | FITS_P64;
    if (H / G > WALK_HEADS || S > WALK_SIDE || N > WALK_SIDE || P > 64) return 0;
    return FITS_SSD_WALK | FITS_N32_P64 | FITS_P64 | (S <= 16 && N <= 16 && H / G <= 2 ? FITS_SSD_WALK16 : 0);
}

dart_status ssd_check_quiet(op_call *call, const op_layout *layout, uint32_t L, uint32_t quiet, bool enters)
{
    OP_REQUIRE(call, quiet <= L, "quiet %u: must not be above L, %u", quiet, L);
    OP_REQUIRE(call, quiet == 0 || (layout->flags == 0 && !enters), "quiet excludes seq, cu and h");
    return op_status(call);
}

uint32_t ssd_quiet_chunks(uint32_t L, uint32_t S, uint32_t quiet)
{
    return quiet < L ? quiet / S : (uint32_t)base_ceil_div(L, S);
}

/* Where nobody asks for what passes between the stages and no state comes in or goes out. The scratch memory of the stages is not needed. */
static bool walk(ssd_plan *p)
{
    const dart_ssd_args *a = p->a;
    const uint32_t walks = ssd_walk_traits(&p->layout, a->H, a->G, a->N, a->P, p->C);
    if (walks == 0 || op_has(&a->cum) || op_has(&a->decay) || op_has(&a->hin) || op_has(&a->h) || a->memories_count > 0) return false;
    const bool tiles = a->N % 16 == 0 && a->P % 16 == 0 && a->dh.offset % 8 == 0 && op_fits_rows(&p->o.x) && op_fits_rows(&p->o.b) &&
                       op_fits_rows(&p->o.c) && op_fits_rows(&p->o.y);
    const uint32_t type = op_fits_16bit(&a->x, &a->b) & op_fits_16bit(&a->b, &a->c);
    const uint32_t traits = p->layout.traits | walks | type | (tiles ? FITS_TILES : 0) |
                            (ssd_quiet_chunks(a->L, a->S, a->quiet) > 0 ? FITS_SSD_QUIET : 0);
    if (!op_prefers(&p->call, KERNEL_ssd_piece, KERNEL_ssd_output, a->L, traits)) return false;
    p->memory = (matrices){.values = p->o.dh, .scale = p->o.dh_scale};
    p->flags |= op_has(&a->dh_scale) ? HAS_SCALE : 0;
    launch_piece(p, traits, (uint64_t)a->B * a->G);
    return true;
}

/* By clusters: where nobody asks for what passes between them, chunks are not more than the blocks of a cluster (with
 * seq there may be one more), and all clusters run at once. From three chunks on that is faster than the stages one by one
 * (docs/lab/2026-11-22-h200-scan.md). */
#define PIECE_CHUNKS 8
#define PIECE_LEAST 3

static bool piece(ssd_plan *p)
{
    op_call *call = &p->call;
    const dart_ssd_args *a = p->a;
    const uint64_t clusters = base_ceil_div(a->H / a->G, 2) * a->G * a->B;
    const uint32_t most = op_has(&a->seq) ? PIECE_CHUNKS + 1 : PIECE_CHUNKS;
    if (op_has(&a->cum) || op_has(&a->decay) || op_has(&a->hin) || a->memories_count > 1 || p->M < PIECE_LEAST || p->M > most ||
        clusters > ssd_clusters(op_multiprocessors(call), PIECE_CHUNKS) || !op_has(&p->memory.scale.of) || !op_fits_rows(&p->o.y))
        return false;
    const uint32_t traits = traits_of(p, &p->memory, &p->o.x) & traits_of(p, &p->memory, &p->o.b) & traits_of(p, &p->memory, &p->o.c);
    if (!op_prefers(call, KERNEL_ssd_piece, KERNEL_ssd_output, a->L, traits)) return false;
    launch_piece(p, traits, clusters * PIECE_CHUNKS);
    return true;
}

static void step(ssd_plan *p)
{
    op_call *call = &p->call;
    const dart_ssd_args *a = p->a;
    const op_operand dh = a->memories_count > 0 ? op_scratch(call, DART_F32, a->B, p->state) : p->o.dh;
    const uint32_t flags = (op_has(&dh.of) ? HAS_DH : 0) | (a->memories_count > 0 ? HAS_CLOSED : 0);
    struct SsdStepArgs k = {.flags = p->flags | flags, .B = a->B, .H = a->H, .G = a->G, .N = a->N, .P = a->P, .S = a->S};
    op_kernel(call, KERNEL_ssd_step, a->B, 0);
    OP_LAUNCH(call, &k, base_ceil_div(a->P, call->T0) * a->H * a->B, OP_ROWS(ssd_step, x, &p->o.x, k), OP_ROWS(ssd_step, b, &p->o.b, k),
              OP_ROWS(ssd_step, c, &p->o.c, k), OP_WHOLE(ssd_step, cum, &p->o.cum), OP_WHOLE(ssd_step, decay, &p->o.decay),
              OP_AT(ssd_step, d, &p->o.d, k), OP_AT(ssd_step, seq, &p->o.seq, k), OP_WHOLE(ssd_step, h, &p->o.h),
              OP_WHOLE(ssd_step, open, &p->o.open), OP_WHOLE(ssd_step, open_decay, &p->o.open_decay), OP_AT(ssd_step, dh, &dh, k),
              OP_ROWS(ssd_step, y, &p->o.y, k));
    p->memory = (matrices){.values = dh};
}

/* Raw memories to the runs; takes no scratch. */
static void append(const ssd_plan *p)
{
    const dart_ssd_args *a = p->a;
    for (uint32_t i = 0; i < a->memories_count; i++)
        dart_sma_append(p->call.stream, &(dart_sma_append_args){.B = a->B, .L = a->L, .H = a->H, .N = a->N, .P = a->P, .S = a->S, .eps = p->eps,
                                                                .dh = p->memory.values.of, .seq = a->seq, .to = a->memories[i]});
}

/* The walk over chunks replaces h. */
static void copy_state(ssd_plan *p)
{
    op_call *call = &p->call;
    const op_operand h = op_scratch(call, DART_F32, p->a->B, p->state);
    struct ConvertArgs k = {.rows = p->a->B, .width = (uint32_t)p->state};
    op_kernel(call, KERNEL_convert, k.rows, 0);
    OP_LAUNCH(call, &k, base_ceil_div(k.rows * p->state, call->T0), OP_ROWS(convert, x, &p->o.h, k), OP_ROWS(convert, y, &h, k));
    p->o.h = h;
}

dart_status ssd_enter(const op_call *call, const dart_ssd_args *args, bool may_be_16bit, ssd_entering *entering)
{
    ssd_plan p = {.call = *call, .a = args};
    if (check(&p) != DART_OK) return op_status(&p.call);
    p.o.cum = op_kept(&p.call, &p.o.cum);
    p.o.decay = op_kept(&p.call, &p.o.decay);
    p.memory = scratch_matrices(&p, may_be_16bit, true);
    p.hin = scratch_matrices(&p, may_be_16bit, args->x.dtype != DART_BF16);
    p.flags |= (op_has(&p.memory.scale.of) ? HAS_SCALE : 0) | (op_has(&p.hin.scale.of) ? HAS_HIN_SCALE : 0);
    if (op_has(&args->h)) copy_state(&p);
    decay_and_memory(&p);
    state(&p);
    *entering = (ssd_entering){.cum = p.o.cum, .decay = p.o.decay, .hin = p.hin.values, .hin_scale = p.hin.scale};
    return op_status(&p.call);
}

dart_status dart_ssd(dart_stream *stream, const dart_ssd_args *args)
{
    if (stream == NULL || args == NULL) return DART_INVALID_ARGUMENT;
    ssd_plan p = {.a = args};
    if (op_begin(&p.call, stream, "dart_ssd") != DART_OK || check(&p) != DART_OK) return op_status(&p.call);
    const bool one = args->L == 1 && !op_packed(&p.layout) && !op_has(&args->hin) && !op_has(&args->dh_scale);
    const bool by_token = args->plan == DART_PLAN_STEP || (args->plan == DART_PLAN_AUTO && one);
    if (!by_token && walk(&p)) return op_end(&p.call);
    p.o.cum = op_kept(&p.call, &p.o.cum);
    p.o.decay = op_kept(&p.call, &p.o.decay);
    if (by_token) {
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
