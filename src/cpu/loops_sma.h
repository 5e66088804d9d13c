/* State-memory attention over runs of memories. qn, en, factor, lse and partial are f32. */

#include <stdatomic.h>

#define NOTHING (-3.4e38f) /* below every logit: the maximum of none */

/* Where the online softmax of one token stands: the largest logit and the sum of exp(logit - top). */
typedef struct softmax {
    float top, den;
} softmax;

/* Takes one memory in: acc += exp(logit - top) v, scaled to a new top where there is one. */
static void CPU_NAME(softmax_add)(softmax *state, float *acc, float logit, const float *v, size_t count)
{
    if (logit > state->top) {
        const float scale = exp_one(state->top - logit);
        state->den *= scale;
        for (size_t i = 0; i < count; i++) acc[i] *= scale;
        state->top = logit;
    }
    const float weight = exp_one(logit - state->top);
    state->den += weight;
    axpy(acc, weight, v, count);
}

void CPU_NAME(sma)(const cpu_task *task)
{
    const struct SmaArgs *args = task->args;
    const cpu_tensor *r = &task->bindings[BINDING_sma_r];
    const uint32_t blocks = cpu_blocks(args->L, task->T0);
    const uint32_t begin = task->tile % blocks * task->T0, head = task->tile / blocks;
    const uint32_t h = head % args->H, b = head / args->H, g = h / (args->H / args->G);
    const cpu_piece piece = cpu_piece_of(args->flags, &task->bindings[BINDING_sma_seq], args->seq_at, b, args->L);
    const uint32_t end = cpu_min(cpu_min(begin + task->T0, args->L), piece.count);
    if (begin >= end) return;
    const size_t N = args->N, P = args->P, tokens = end - begin, first = (size_t)b * args->L + begin;
    const bool raw = (args->flags & IS_RAW) != 0;
    const float *qn = (const float *)task->bindings[BINDING_sma_qn].data + (first * args->G + g) * N;
    const float *en = (const float *)task->bindings[BINDING_sma_en].data + (first * args->G + g) * P;
    float *lse = (float *)task->bindings[BINDING_sma_lse].data + args->lse_at;
    float *reads = task->scratch, *weights = reads + tokens * N, *acc = weights + 2 * tokens * N;
    float *found = acc + tokens * P, *converted = found + 2 * tokens * P;
    softmax *states = (softmax *)(void *)(converted + N * P);

    for (size_t i = 0; i < tokens; i++) {
        const float before = args->flags & IS_MERGE ? lse[(first + i) * args->H + h] : NOTHING;
        load_row(reads + i * N, &task->bindings[BINDING_sma_c], args->c_at + (first + i) * args->c_row + g * N, N);
        if (before > NOTHING) {
            states[i] = (softmax){before, 1.0f};
            load_row(acc + i * P, r, args->r_at + (first + i) * args->r_row + h * P, P);
        } else {
            states[i] = (softmax){NOTHING, 0.0f};
            memset(acc + i * P, 0, P * sizeof(float));
        }
    }
    for (uint32_t m = 0; m < args->count; m++) {
        /* The first token that sees the memory. */
        const uint64_t from = ((uint64_t)args->first + m + 1) * args->S;
        if (from > (uint64_t)piece.position + end - 1) break;
        const size_t skip = from > (uint64_t)piece.position + begin ? (size_t)(from - piece.position - begin) : 0;
        const size_t rows = tokens - skip, slot = ((size_t)b * args->capacity + m) * args->H + h;
        const float *factor = (const float *)task->bindings[BINDING_sma_factor].data + args->factor_at + slot * N;
        const float *dh = row_of(converted, &task->bindings[BINDING_sma_dh], args->dh_at + slot * N * P, N * P);
        for (size_t i = 0; i < rows; i++) {
            const float *query = qn + (skip + i) * args->G * N, *read = reads + (skip + i) * N;
            float *key = weights + 2 * i * N, *value = key + N;
            if (raw) {
                for (size_t n = 0; n < N; n++) key[n] = query[n] * factor[n];
                memcpy(value, read, N * sizeof(float));
            } else {
                for (size_t n = 0; n < N; n++) value[n] = read[n] * factor[n];
                memcpy(key, query, N * sizeof(float));
            }
        }
        memset(found, 0, 2 * rows * P * sizeof(float));
        product(2 * rows, P, N, weights, N, 1, dh, P, found, P);
        for (size_t i = 0; i < rows; i++) {
            const float logit = dot(en + (skip + i) * args->G * P, found + 2 * i * P, P);
            CPU_NAME(softmax_add)(&states[skip + i], acc + (skip + i) * P, logit, found + (2 * i + 1) * P, P);
        }
    }
    for (size_t i = 0; i < tokens; i++) {
        const bool none = states[i].den == 0.0f;
        for (size_t p = 0; p < P; p++) acc[i * P + p] = none ? 0.0f : acc[i * P + p] / states[i].den;
        store_row(r, args->r_at + (first + i) * args->r_row + h * P, acc + i * P, P);
        lse[(first + i) * args->H + h] = none ? -INFINITY : states[i].top + logf(states[i].den);
    }
}

/* Whether this is the last of so many tiles that take a ticket here, each when its own results are written; the counter is
 * then 0 again. */
static bool is_last(void *tickets, uint32_t tiles)
{
    atomic_uint *counter = tickets;
    if (atomic_fetch_add(counter, 1) != tiles - 1) return false;
    atomic_store(counter, 0);
    return true;
}

void CPU_NAME(sma_step)(const cpu_task *task)
{
    const struct SmaStepArgs *args = task->args;
    const uint32_t split = task->tile % args->splits, head = task->tile / args->splits;
    const uint32_t h = head % args->H, b = head / args->H, g = h / (args->H / args->G);
    const cpu_piece piece = cpu_piece_of(args->flags, &task->bindings[BINDING_sma_step_seq], args->seq_at, b, 1);
    if (piece.count == 0) return;
    const size_t N = args->N, P = args->P;
    const uint64_t part = cpu_blocks(args->count, args->splits), begin = part * split;
    const uint32_t seen = piece.position / args->S;
    uint64_t end = begin + part < args->count ? begin + part : args->count;
    if (seen < args->first + end) end = seen > args->first ? seen - args->first : 0;
    const bool raw = (args->flags & IS_RAW) != 0;
    const float *partials = task->bindings[BINDING_sma_step_partial].data;
    float *partial = (float *)task->bindings[BINDING_sma_step_partial].data + (size_t)task->tile * (P + 2);
    float *q = task->scratch, *e = q + N, *read = e + P, *key = read + N, *value = key + N, *found = value + N;
    float *converted = found + 2 * P;
    softmax state = {NOTHING, 0.0f};
    memset(partial + 2, 0, P * sizeof(float));
    load_row(q, &task->bindings[BINDING_sma_step_q], args->q_at + (size_t)b * args->q_row + g * N, N);
    load_row(e, &task->bindings[BINDING_sma_step_e], args->e_at + (size_t)b * args->e_row + g * P, P);
    load_row(read, &task->bindings[BINDING_sma_step_c], args->c_at + (size_t)b * args->c_row + g * N, N);
    const float q_scale = 1.0f / (sqrtf(dot(q, q, N) / (float)N + args->eps) * sqrtf((float)N));
    const float e_scale = 1.0f / sqrtf(dot(e, e, P) / (float)P + args->eps);
    for (size_t n = 0; n < N; n++) q[n] *= q_scale;
    for (size_t p = 0; p < P; p++) e[p] *= e_scale;
    for (uint64_t m = begin; m < end; m++) {
        const size_t slot = ((size_t)b * args->capacity + (size_t)m) * args->H + h;
        const float *factor = (const float *)task->bindings[BINDING_sma_step_factor].data + args->factor_at + slot * N;
        for (size_t n = 0; n < N; n++) {
            key[n] = raw ? q[n] * factor[n] : q[n];
            value[n] = raw ? read[n] : read[n] * factor[n];
        }
        const size_t next = m + 1 < end ? args->H * N * P : 0;
        fold(found, key, value, &task->bindings[BINDING_sma_step_dh], args->dh_at + slot * N * P, next, N, P,
             converted);
        CPU_NAME(softmax_add)(&state, partial + 2, dot(e, found, P), found + P, P);
    }
    partial[0] = state.top;
    partial[1] = state.den;
    if (!is_last((uint32_t *)task->bindings[BINDING_sma_step_tickets].data + head, args->splits)) return;
    const cpu_parts parts = {.partial = partials + (size_t)head * args->splits * (P + 2), .splits = args->splits, .P = args->P,
                             .r = &task->bindings[BINDING_sma_step_r], .r_at = args->r_at + (size_t)b * args->r_row + h * P,
                             .lse = (float *)task->bindings[BINDING_sma_step_lse].data + args->lse_at + head,
                             .merge = (args->flags & IS_MERGE) != 0};
    cpu_merge_parts(&parts, task->scratch);
}

#undef NOTHING
