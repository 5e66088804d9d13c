/* The norms in the backward pass of state-memory attention; loops_sma_backward.h has its products. */
#include "cpu_vector.h"

/* grad = i o - v i^3 mean(o v), i = 1 / rms(v), o = scale of. Replaces of. */
static void through_norm(float *of, const float *v, size_t count, float scale, float eps)
{
    for (size_t i = 0; i < count; i++) of[i] *= scale;
    const float inverse = 1.0f / sqrtf(dot(v, v, count) / (float)count + eps);
    const float along = dot(of, v, count) / (float)count * inverse * inverse * inverse;
    for (size_t i = 0; i < count; i++) of[i] = inverse * of[i] - along * v[i];
}

void cpu_sma_backward_norm_plain(const cpu_task *task)
{
    const struct SmaBackwardNormArgs *args = task->args;
    const size_t g = task->tile % args->G, row = task->tile / args->G, N = args->N, P = args->P;
    const uint32_t b = (uint32_t)(row / args->L), t = (uint32_t)(row % args->L);
    const cpu_tensor *seq = &task->bindings[BINDING_sma_backward_norm_seq];
    if ((args->flags & HAS_CU) && (int64_t)row >= ((const int32_t *)seq->data)[args->seq_at + args->B]) return;
    const bool live = t < cpu_piece_of(args->flags, seq, args->seq_at, b, args->L).count;
    float *q = task->scratch, *e = q + N, *of_q = e + P, *of_e = of_q + N;
    memset(of_q, 0, (N + P) * sizeof(float));
    if (live) {
        load_row(q, &task->bindings[BINDING_sma_backward_norm_q], args->q_at + row * args->q_row + g * N, N);
        load_row(e, &task->bindings[BINDING_sma_backward_norm_e], args->e_at + row * args->e_row + g * P, P);
        memcpy(of_q, (const float *)task->bindings[BINDING_sma_backward_norm_of_q].data + task->tile * N, N * sizeof(float));
        memcpy(of_e, (const float *)task->bindings[BINDING_sma_backward_norm_of_e].data + task->tile * P, P * sizeof(float));
        through_norm(of_q, q, N, 1.0f / sqrtf((float)N), args->eps);
        through_norm(of_e, e, P, 1.0f, args->eps);
    }
    store_row(&task->bindings[BINDING_sma_backward_norm_grad_q], args->grad_q_at + row * args->grad_q_row + g * N, of_q, N);
    store_row(&task->bindings[BINDING_sma_backward_norm_grad_e], args->grad_e_at + row * args->grad_e_row + g * P, of_e, P);
}

void cpu_sma_backward_dh_plain(const cpu_task *task)
{
    const struct SmaBackwardDhArgs *args = task->args;
    const uint32_t blocks = cpu_blocks(args->N, task->T0), first = task->tile % blocks * task->T0, head = task->tile / blocks;
    const uint32_t m = head / args->H % args->M, b = head / args->H / args->M;
    const cpu_sequence of = cpu_sequence_of(args->flags, &task->bindings[BINDING_sma_backward_dh_seq], args->seq_at, b, args->L, args->T);
    const cpu_piece piece = of.piece;
    if (of.packed && (size_t)m * args->S >= piece.count) return; /* no chunk: the slot belongs to another sequence */
    const size_t P = args->P, matrices = (cpu_slot(&of, args->M, args->S) + m) * args->H + head % args->H;
    const bool read = ((size_t)m + 1) * args->S < (size_t)piece.position + piece.count;
    for (size_t n = first; n < args->N && n < first + task->T0; n++) {
        const size_t row = matrices * args->N + n;
        const float *x = (const float *)task->bindings[BINDING_sma_backward_dh_x].data + row * P;
        float *grad = (float *)task->bindings[BINDING_sma_backward_dh_grad_dh].data + args->grad_dh_at + row * P;
        if (!read) {
            memset(grad, 0, P * sizeof(float));
            continue;
        }
        const float factor = ((const float *)task->bindings[BINDING_sma_backward_dh_factor].data)[args->factor_at + row];
        const bool raw = (args->flags & IS_RAW) != 0;
        const float *w = row_of(task->scratch, &task->bindings[BINDING_sma_backward_dh_dh], args->dh_at + row * P, P);
        const float rho = raw ? factor : 1.0f / factor, key = raw ? factor : 1.0f;
        const float along = key * key * dot(x, w, P) / (float)P;
        for (size_t p = 0; p < P; p++) grad[p] += rho * (x[p] - along * w[p]);
    }
}
