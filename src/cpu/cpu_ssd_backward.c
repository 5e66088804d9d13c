/* The gradients of the log-decays; loops_ssd_backward.h has the other stages of the scan's backward pass. */
#include "cpu_vector.h"

static float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

/* The shares of all pairs of tiles in the sum of z over u >= k > s. */
static float crossing(const float *sums, size_t k, size_t tiles)
{
    const size_t tile = k / SCORE_SIDE, r = k % SCORE_SIDE;
    float sum = sums[(tile * (tile + 1) / 2 + tile) * 64 + r];
    for (size_t c = 0; c < tile; c++) sum += sums[(tile * (tile + 1) / 2 + c) * 64 + r];
    for (size_t i = tile + 1; i < tiles; i++) {
        sum += sums[(i * (i + 1) / 2 + tile) * 64 + SCORE_SIDE + r];
        for (size_t c = 0; c < tile; c++) sum += sums[(i * (i + 1) / 2 + c) * 64];
    }
    return sum;
}

void cpu_ssd_backward_decay_plain(const cpu_task *task)
{
    const struct SsdBackwardDecayArgs *args = task->args;
    const size_t h = task->tile % args->H, j = task->tile / args->H % args->M, b = task->tile / args->H / args->M;
    const cpu_sequence sequence =
        cpu_sequence_of(args->flags, &task->bindings[BINDING_ssd_backward_decay_seq], args->seq_at, (uint32_t)b, args->L, args->T);
    const cpu_chunk chunk = cpu_chunk_of(sequence.piece, args->S, (uint32_t)j);
    const size_t size = chunk.begin < chunk.end ? chunk.end - chunk.begin : 0, token = sequence.row + chunk.begin;
    if (sequence.packed && size == 0) return;
    const size_t slot = (cpu_slot(&sequence, args->M, args->S) + j) * args->H + h;
    const size_t side = cpu_blocks(args->C, SCORE_SIDE), pairs = side * (side + 1) / 2, tiles = cpu_blocks((uint32_t)size, SCORE_SIDE);
    const float rate = -expf(load_one(&task->bindings[BINDING_ssd_backward_decay_a_log], args->a_log_at + h));
    const float bias = args->flags & HAS_BIAS ? load_one(&task->bindings[BINDING_ssd_backward_decay_dt_bias], args->dt_bias_at + h) : 0.0f;
    const float *cum = (const float *)task->bindings[BINDING_ssd_backward_decay_cum].data +
                       (sequence.row * args->H + h * sequence.span + chunk.begin) * CUM_STRIDE;
    const float *sums = (const float *)task->bindings[BINDING_ssd_backward_decay_sums].data + slot * pairs * 64;
    const float *carry = (const float *)task->bindings[BINDING_ssd_backward_decay_carry].data + slot * args->N;
    float *tokens = (float *)task->bindings[BINDING_ssd_backward_decay_token].data, carried = 0, before = 0, later = 0;
    float of_a_log = 0, of_bias = 0, of_d = 0;
    for (size_t n = 0; n < args->N && size > 0; n++) carried += carry[n];
    for (size_t k = 0; k < size; k++) { /* what was written before k */
        float *of = tokens + ((token + k) * args->H + h) * 4;
        const float written = of[1];
        of[1] = before;
        before += written;
    }
    for (size_t k = size; k-- > 0;) {
        const float *of = tokens + ((token + k) * args->H + h) * 4;
        later += of[3];
        const float grad_a = crossing(sums, k, tiles) + later + of[1] + carried;
        float grad = of[0] + rate * grad_a;
        if (!(args->flags & IS_STEP)) {
            const float raw = load_one(&task->bindings[BINDING_ssd_backward_decay_dt], args->dt_at + (token + k) * args->dt_row + h) + bias;
            const float soft = softplus(raw), e = expf(raw > 0.0f ? -raw : raw);
            grad = soft >= args->dt_min && soft <= args->dt_max ? grad * ((raw > 0.0f ? 1.0f : e) / (1.0f + e)) : 0.0f;
        }
        store_row(&task->bindings[BINDING_ssd_backward_decay_grad_dt], args->grad_dt_at + (token + k) * args->grad_dt_row + h, &grad, 1);
        of_a_log += rate * cum[k * CUM_STRIDE + 2] * grad_a;
        of_bias += grad;
        of_d += of[2];
    }
    ((float *)task->bindings[BINDING_ssd_backward_decay_of_a_log].data)[slot] = of_a_log;
    ((float *)task->bindings[BINDING_ssd_backward_decay_of_bias].data)[slot] = of_bias;
    ((float *)task->bindings[BINDING_ssd_backward_decay_of_d].data)[slot] = of_d;
}
