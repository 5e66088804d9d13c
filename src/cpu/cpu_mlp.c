/* Rotary positions and GELU, see shaders/mlp/args.h; loops_mlp.h has SwiGLU. */
#include "cpu_vector.h"

#include <math.h>

/* The product of two fractions of 64 bits. */
static uint64_t fraction(uint64_t a, uint64_t b)
{
    const uint64_t ah = a >> 32, al = (uint32_t)a, bh = b >> 32, bl = (uint32_t)b;
    return ah * bh + (ah * bl >> 32) + (al * bh >> 32);
}

/* Sine and cosine of a fraction of a turn, of 32 bits: the rest within an eighth of a turn of a quarter, by polynomials. */
static void sine(uint32_t turns, float *s, float *c)
{
    const uint32_t quarter = (turns + (1u << 29)) >> 30;
    const float x = (float)(int32_t)(turns - (quarter << 30)) * 1.4629180792671596e-9f, z = x * x; /* 2 pi / 2^32 */
    const float odd = x + x * z * (-1.6666654611e-1f + z * (8.3321608736e-3f - z * 1.9515295891e-4f));
    const float even = 1.0f - 0.5f * z + z * z * (4.166664568298827e-2f + z * (-1.388731625493765e-3f + z * 2.443315711809948e-5f));
    const float a = quarter & 1 ? even : odd, b = quarter & 1 ? odd : even;
    *s = quarter & 2 ? -a : a;
    *c = (quarter + 1) & 2 ? -b : b;
}

void cpu_rope_plain(const cpu_task *task)
{
    const struct RopeArgs *args = task->args;
    const cpu_tensor *x = &task->bindings[BINDING_rope_x], *y = &task->bindings[BINDING_rope_y];
    const uint64_t powers[] = {(uint64_t)args->r0_high << 32 | args->r0_low, (uint64_t)args->r1_high << 32 | args->r1_low,
                               (uint64_t)args->r2_high << 32 | args->r2_low, (uint64_t)args->r3_high << 32 | args->r3_low,
                               (uint64_t)args->r4_high << 32 | args->r4_low, (uint64_t)args->r5_high << 32 | args->r5_low,
                               (uint64_t)args->r6_high << 32 | args->r6_low};
    const size_t half = args->R / 2, first = (size_t)task->tile * task->T0, rows = args->flags & HAS_CU ? args->T : (size_t)args->B * args->L;
    float *s = task->scratch, *c = s + half, *from = c + half, *to = from + args->D;
    uint64_t rates[128];
    for (size_t i = 0; i < half; i++) {
        rates[i] = (uint64_t)TURN_HIGH << 32 | TURN_LOW;
        for (size_t k = 0; k < 7; k++)
            if (i >> k & 1) rates[i] = fraction(rates[i], powers[k]);
    }
    for (size_t row = first; row < first + task->T0 && row < rows; row++) {
        const cpu_tensor *seq = &task->bindings[BINDING_rope_seq];
        const bool packed = (args->flags & HAS_CU) != 0;
        const uint32_t b = packed ? cpu_sequence_with(seq, args->seq_at, args->B, row) : (uint32_t)(row / args->L);
        const cpu_sequence of = cpu_sequence_of(args->flags, seq, args->seq_at, b, args->L, args->T);
        const cpu_piece piece = of.piece;
        const size_t t = row - of.row;
        if (row < of.row || t >= piece.count) {
            if (packed) continue;
            memset(to, 0, args->D * sizeof(float));
            for (size_t h = 0; (args->flags & IS_INVERSE) && h < args->H; h++)
                store_row(y, args->y_at + row * args->y_row + h * args->D, to, args->D);
            continue;
        }
        for (size_t i = 0; i < half; i++) {
            const uint64_t rate = rates[i], position = piece.position + t;
            sine((uint32_t)(position * (rate >> 32)) + (uint32_t)(position * (uint32_t)rate >> 32), &s[i], &c[i]);
            if (args->flags & IS_INVERSE) s[i] = -s[i];
        }
        for (size_t h = 0; h < args->H; h++) {
            load_row(from, x, args->x_at + row * args->x_row + h * args->D, args->D);
            memcpy(to + args->R, from + args->R, (args->D - args->R) * sizeof(float));
            for (size_t i = 0; i < half; i++) {
                to[i] = from[i] * c[i] - from[half + i] * s[i];
                to[half + i] = from[half + i] * c[i] + from[i] * s[i];
            }
            store_row(y, args->y_at + row * args->y_row + h * args->D, to, args->D);
        }
    }
}

static float gelu(float a, bool by_tanh)
{
    if (!by_tanh) return 0.5f * a * erfcf(a * -0.70710678f);
    const float e = expf(-1.5957691f * fabsf(a) * (1.0f + 0.044715f * a * a)); /* 2 sqrt(2 / pi) = 1.5957691 */
    return a * ((a >= 0.0f ? 1.0f : e) / (1.0f + e));
}

void cpu_gelu_plain(const cpu_task *task)
{
    const struct GeluArgs *args = task->args;
    const size_t all = (size_t)args->rows * args->width, begin = (size_t)task->tile * task->T0;
    const size_t end = all - begin < task->T0 ? all : begin + task->T0;
    for (size_t i = begin, count; i < end; i += count) {
        const size_t t = i / args->width, column = i % args->width;
        count = args->width - column < end - i ? args->width - column : end - i;
        load_row(task->scratch, &task->bindings[BINDING_gelu_a], args->a_at + t * args->a_row + column, count);
        for (size_t k = 0; k < count; k++) task->scratch[k] = gelu(task->scratch[k], (args->flags & IS_TANH) != 0);
        store_row(&task->bindings[BINDING_gelu_h], args->h_at + t * args->h_row + column, task->scratch, count);
    }
}
