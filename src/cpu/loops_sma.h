/* State-memory attention over runs of memories. qn, en, factor, lse and partial are f32. */

#include <stdatomic.h>

#define NOTHING (-3.4e38f) /* below every logit: the initial maximum */

/* The online softmax of one token: the largest logit so far and the sum of exp(logit - top). */
typedef struct softmax {
    float top, den;
} softmax;

/* Adds one memory: acc += exp(logit - top) v. Rescales acc and den if logit is a new maximum. */
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
    const cpu_sequence of = cpu_sequence_of(args->flags, &task->bindings[BINDING_sma_seq], args->seq_at, b, args->L, args->T);
    const cpu_piece piece = of.piece;
    const uint32_t end = cpu_min(cpu_min(begin + task->T0, args->L), piece.count);
    if (begin >= end) return;
    const size_t N = args->N, P = args->P, tokens = end - begin, first = of.row + begin;
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
        const size_t rows = tokens - skip, slot = (cpu_slot(&of, args->capacity, args->S) + m) * args->H + h;
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

/* Counts a tile whose results are written. Returns whether it is the last of `tiles`, and then sets the counter back to 0. */
static bool is_last(void *tickets, uint32_t tiles)
{
    atomic_uint *counter = tickets;
    if (atomic_fetch_add(counter, 1) != tiles - 1) return false;
    atomic_store(counter, 0);
    return true;
}

/* The common arguments of sma_step and mixer_attend: one token of each sequence; a tile reads one split of the memories. */
typedef struct token_args {
    const cpu_tensor *q, *e, *c, *dh, *factor, *seq;
    uint32_t flags, H, G, N, P, S, first, count, capacity, splits, q_at, q_row, e_at, e_row, c_at, c_row, dh_at, factor_at, seq_at;
    float eps;
} token_args;
#define TOKEN_ARGS(id, e_pitch) \
    {.q = &task->bindings[BINDING_##id##_q], .e = &task->bindings[BINDING_##id##_e], .c = &task->bindings[BINDING_##id##_c], \
     .dh = &task->bindings[BINDING_##id##_dh], .factor = &task->bindings[BINDING_##id##_factor], .seq = &task->bindings[BINDING_##id##_seq], \
     .flags = args->flags, .H = args->H, .G = args->G, .N = args->N, .P = args->P, .S = args->S, .first = args->first, \
     .count = args->count, .capacity = args->capacity, .splits = args->splits, .q_at = args->q_at, .q_row = args->q_row, \
     .e_at = args->e_at, .e_row = (e_pitch), .c_at = args->c_at, .c_row = args->c_row, .dh_at = args->dh_at, \
     .factor_at = args->factor_at, .seq_at = args->seq_at, .eps = args->eps}

/* The memories of the tile's split for one token: acc (P floats) and state as in SmaStepArgs. false if the sequence has no token. */
static bool CPU_NAME(attend_token)(const token_args *args, const cpu_task *task, float *acc, softmax *state)
{
    const uint32_t split = task->tile % args->splits, head = task->tile / args->splits;
    const uint32_t h = head % args->H, b = head / args->H, g = h / (args->H / args->G);
    const cpu_piece piece = cpu_piece_of(args->flags, args->seq, args->seq_at, b, 1);
    if (piece.count == 0) return false;
    const size_t N = args->N, P = args->P;
    const uint64_t part = cpu_blocks(args->count, args->splits), begin = part * split;
    const uint32_t seen = piece.position / args->S;
    uint64_t end = begin + part < args->count ? begin + part : args->count;
    if (seen < args->first + end) end = seen > args->first ? seen - args->first : 0;
    const bool raw = (args->flags & IS_RAW) != 0;
    float *q = task->scratch, *e = q + N, *read = e + P, *scaled = read + N, *found = scaled + N, *converted = found + 2 * P;
    *state = (softmax){NOTHING, 0.0f};
    memset(acc, 0, P * sizeof(float));
    load_row(q, args->q, args->q_at + (size_t)b * args->q_row + g * N, N);
    load_row(e, args->e, args->e_at + (size_t)b * args->e_row + g * P, P);
    load_row(read, args->c, args->c_at + (size_t)b * args->c_row + g * N, N);
    const float scale = 1.0f / (sqrtf(dot(q, q, N) / (float)N + args->eps) * sqrtf(dot(e, e, P) / (float)P + args->eps) *
                                sqrtf((float)N));
    for (size_t p = 0; p < P; p++) e[p] *= scale;
    for (uint64_t m = begin; m < end; m++) {
        const size_t slot = ((size_t)b * args->capacity + (size_t)m) * args->H + h;
        const float *factor = (const float *)args->factor->data + args->factor_at + slot * N;
        for (size_t n = 0; n < N; n++) scaled[n] = (raw ? q[n] : read[n]) * factor[n];
        const size_t next = m + 1 < end ? args->H * N * P : 0;
        fold(found, raw ? scaled : q, raw ? read : scaled, args->dh, args->dh_at + slot * N * P, next, N, P, converted);
        CPU_NAME(softmax_add)(state, acc, dot(e, found, P), found + P, P);
    }
    return true;
}

void CPU_NAME(sma_step)(const cpu_task *task)
{
    const struct SmaStepArgs *args = task->args;
    const token_args token = TOKEN_ARGS(sma_step, args->e_row);
    const uint32_t head = task->tile / args->splits, h = head % args->H, b = head / args->H;
    const size_t P = args->P;
    float *partials = (float *)task->bindings[BINDING_sma_step_partial].data, *partial = partials + (size_t)task->tile * (P + 2);
    softmax state;
    if (!CPU_NAME(attend_token)(&token, task, partial + 2, &state)) return;
    partial[0] = state.top;
    partial[1] = state.den;
    if (!is_last((uint32_t *)task->bindings[BINDING_sma_step_tickets].data + head, args->splits)) return;
    const cpu_parts parts = {.partial = partials + (size_t)head * args->splits * (P + 2), .splits = args->splits, .P = args->P,
                             .group = args->splits, .r = &task->bindings[BINDING_sma_step_r], .r_at = args->r_at + (size_t)b * args->r_row + h * P,
                             .lse = (float *)task->bindings[BINDING_sma_step_lse].data + args->lse_at + head,
                             .merge = (args->flags & IS_MERGE) != 0};
    cpu_merge_parts(&parts, task->scratch);
}

#undef NOTHING
