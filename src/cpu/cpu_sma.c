/* What happens to memories and queries around the attention itself. */
#include "cpu_vector.h"

static float root_mean_square(const float *v, size_t count, float eps)
{
    return sqrtf(dot(v, v, count) / (float)count + eps);
}

void cpu_sma_rho_plain(const cpu_task *task)
{
    const struct SmaRhoArgs *args = task->args;
    const size_t begin = (size_t)task->tile * task->T0, P = args->P;
    float *rho = (float *)task->bindings[BINDING_sma_rho_rho].data;
    for (size_t i = begin; i < begin + task->T0 && i < args->rows; i++) {
        const float *row = row_of(task->scratch, &task->bindings[BINDING_sma_rho_dh], args->dh_at + i * P, P);
        rho[i] = 1.0f / root_mean_square(row, P, args->eps);
    }
}

/* The largest power of two that is not above x. */
static float power_below(float x) { return base_float_of(base_bits_of(fmaxf(x, 0x1p-126f)) & 0x7f800000u); }

void cpu_sma_query_plain(const cpu_task *task)
{
    const struct SmaQueryArgs *args = task->args;
    const size_t N = args->N, P = args->P, g = task->tile % args->G, row = task->tile / args->G;
    const uint32_t b = (uint32_t)(row / args->L), t = (uint32_t)(row % args->L);
    if (t >= cpu_piece_of(args->flags, &task->bindings[BINDING_sma_query_seq], args->seq_at, b, args->L).count) return;
    float *qn = task->scratch, *en = qn + N;
    load_row(qn, &task->bindings[BINDING_sma_query_q], args->q_at + row * args->q_row + g * N, N);
    load_row(en, &task->bindings[BINDING_sma_query_e], args->e_at + row * args->e_row + g * P, P);
    float q_scale = 1.0f / (root_mean_square(qn, N, args->eps) * sqrtf((float)N));
    float e_scale = 1.0f / root_mean_square(en, P, args->eps);
    if (args->flags & HAS_UNIT) {
        const float q_power = power_below(q_scale), e_power = power_below(e_scale);
        float *unit = (float *)task->bindings[BINDING_sma_query_unit].data + 2 * (size_t)task->tile;
        float *read = en + P, top = 0x1p-126f;
        load_row(read, &task->bindings[BINDING_sma_query_c], args->c_at + row * args->c_row + g * N, N);
        for (size_t n = 0; n < N; n++) top = fmaxf(top, fabsf(read[n]));
        const float c_power = power_below(1.0f / top);
        for (size_t n = 0; n < N; n++) read[n] *= c_power;
        store_row(&task->bindings[BINDING_sma_query_read], (size_t)task->tile * N, read, N);
        unit[0] = q_scale / q_power * (e_scale / e_power);
        unit[1] = 1.0f / c_power;
        q_scale = q_power;
        e_scale = e_power;
    }
    for (size_t n = 0; n < N; n++) qn[n] *= q_scale;
    for (size_t p = 0; p < P; p++) en[p] *= e_scale;
    store_row(&task->bindings[BINDING_sma_query_qn], (size_t)task->tile * N, qn, N);
    store_row(&task->bindings[BINDING_sma_query_en], (size_t)task->tile * P, en, P);
}

static const float *cpu_partial(const cpu_parts *parts, size_t i)
{
    return parts->partial + i / parts->group * parts->group_size + i % parts->group * (parts->P + 2);
}

void cpu_merge_parts(const cpu_parts *parts, float *scratch)
{
    const size_t P = parts->P;
    float top = parts->merge ? *parts->lse : -INFINITY, den = 0;
    const float before = top;
    for (size_t i = 0; i < parts->splits; i++) {
        const float *part = cpu_partial(parts, i);
        if (part[1] != 0.0f && !(part[0] <= top)) top = part[0];
    }
    memset(scratch, 0, P * sizeof(float));
    if (before > -3.4e38f) {
        den = exp_one(before - top);
        load_row(scratch, parts->r, parts->r_at, P);
        for (size_t p = 0; p < P; p++) scratch[p] *= den;
    }
    for (size_t i = 0; i < parts->splits; i++) {
        const float *part = cpu_partial(parts, i);
        if (part[1] == 0.0f) continue;
        const float scale = exp_one(part[0] - top);
        den += scale * part[1];
        axpy(scratch, scale, part + 2, P);
    }
    for (size_t p = 0; p < P; p++) scratch[p] = den == 0.0f ? 0.0f : scratch[p] / den;
    store_row(parts->r, parts->r_at, scratch, P);
    *parts->lse = den == 0.0f ? -INFINITY : top + logf(den);
}

void cpu_sma_merge_plain(const cpu_task *task)
{
    const struct SmaMergeArgs *args = task->args;
    const size_t h = task->tile % args->H, b = task->tile / args->H;
    if (cpu_piece_of(args->flags, &task->bindings[BINDING_sma_merge_seq], args->seq_at, (uint32_t)b, 1).count == 0) return;
    const float *partial = task->bindings[BINDING_sma_merge_partial].data;
    const cpu_parts parts = {.partial = partial + (size_t)task->tile * args->group * (args->P + 2), .splits = args->splits, .P = args->P,
                             .group = args->group, .group_size = args->group_size,
                             .r = &task->bindings[BINDING_sma_merge_r], .r_at = args->r_at + b * args->r_row + h * args->P,
                             .lse = (float *)task->bindings[BINDING_sma_merge_lse].data + args->lse_at + task->tile,
                             .merge = (args->flags & IS_MERGE) != 0};
    cpu_merge_parts(&parts, task->scratch);
}

void cpu_sma_append_plain(const cpu_task *task)
{
    const struct SmaAppendArgs *args = task->args;
    const size_t N = args->N, P = args->P;
    const uint32_t blocks = cpu_blocks(args->N, task->T0);
    const size_t row = (size_t)(task->tile % blocks) * task->T0, rows = N - row < task->T0 ? N - row : task->T0;
    const uint32_t rest = task->tile / blocks, h = rest % args->H, j = rest / args->H % args->M,
                   b = rest / args->H / args->M;
    const cpu_piece piece = cpu_piece_of(args->flags, &task->bindings[BINDING_sma_append_seq], args->seq_at, b,
                                         args->L);
    const cpu_chunk chunk = cpu_chunk_of(piece, args->S, j);
    const uint64_t m = (uint64_t)piece.position / args->S + j;
    if (!chunk.closes || m < args->first || m >= (uint64_t)args->first + args->count) return;
    const size_t from = args->dh_at + (((size_t)b * args->M + j) * args->H + h) * N * P;
    const size_t slot = ((size_t)b * args->capacity + (size_t)(m - args->first)) * args->H + h;
    float *scale = (float *)task->bindings[BINDING_sma_append_scale].data + args->scale_at + slot * N;
    float *v = task->scratch;
    for (size_t n = row; n < row + rows; n++) {
        load_row(v, &task->bindings[BINDING_sma_append_dh], from + n * P, P);
        const float root = root_mean_square(v, P, args->eps);
        for (size_t p = 0; p < P; p++) v[p] /= root;
        store_row(&task->bindings[BINDING_sma_append_to], args->to_at + slot * N * P + n * P, v, P);
        scale[n] = root;
    }
}
