/* Steps whose newest tokens wait in windows, see args.h. */
#include "cpu_vector.h"

/* log(1 + exp(x)) */
static float softplus(float x) { return x > 20.0f ? x : log1pf(expf(x)); }

static uint32_t slot_of(uint32_t position, uint32_t S) { return position % S % WINDOW; }

/* The log-decay and the step of slot k of a head. */
static float *step_of(const cpu_tensor *steps, size_t b, size_t k, size_t h, size_t H)
{
    return (float *)steps->data + 2 * ((b * WINDOW + k) * H + h);
}

/* keep_k step_k of slots 0 .. n - 1 of a head; returns the log-decay of all of them. */
static float weigh(float *keeps, const cpu_tensor *steps, size_t b, size_t h, size_t H, size_t n)
{
    float after = 0;
    for (size_t k = n; k-- > 0;) {
        const float *step = step_of(steps, b, k, h, H);
        keeps[k] = exp_one(after) * step[1];
        after += step[0];
    }
    return after;
}

static void append_channels(const cpu_task *task, size_t b, size_t slot, size_t first, size_t count)
{
    const struct WindowAppendArgs *args = task->args;
    const cpu_tensor *tail = &task->bindings[BINDING_window_append_tail];
    const size_t K = args->K, C = args->C;
    float *sum = task->scratch, *in = sum + count, *taps = in + K * count;
    load_row(taps, &task->bindings[BINDING_window_append_weight], args->weight_at + first * K, K * count);
    for (size_t k = 0; k + 1 < K; k++) load_row(in + k * count, tail, args->tail_at + (b * (K - 1) + k) * C + first, count);
    load_row(in + (K - 1) * count, &task->bindings[BINDING_window_append_x], args->x_at + b * args->x_row + first, count);
    memset(sum, 0, count * sizeof *sum);
    if (args->flags & HAS_BIAS) load_row(sum, &task->bindings[BINDING_window_append_bias], args->bias_at + first, count);
    for (size_t k = 0; k < K; k++)
        for (size_t i = 0; i < count; i++) sum[i] += taps[i * K + k] * in[k * count + i];
    silu_row(sum, count);
    for (size_t k = 0; k + 1 < K; k++)
        store_row(tail, args->tail_at + (b * (K - 1) + k) * C + first, in + (k + 1) * count, count);
    store_row(&task->bindings[BINDING_window_append_y], args->y_at + b * args->y_row + first, sum, count);
    if (first >= args->kept) return;
    store_row(&task->bindings[BINDING_window_append_rows], args->rows_at + (b * WINDOW + slot) * args->kept + first, sum,
              first + count > args->kept ? args->kept - first : count);
}

void cpu_window_append_plain(const cpu_task *task)
{
    const struct WindowAppendArgs *args = task->args;
    const uint32_t blocks = cpu_blocks(args->C + args->H, task->T0);
    const uint32_t b = task->tile / blocks, begin = task->tile % blocks * task->T0;
    const uint32_t end = cpu_min(begin + task->T0, args->C + args->H);
    const cpu_piece piece = cpu_piece_of(args->flags, &task->bindings[BINDING_window_append_seq], args->seq_at, b, 1);
    if (piece.count == 0) return;
    const uint32_t slot = slot_of(piece.position, args->S);
    if (begin < args->C) append_channels(task, b, slot, begin, cpu_min(end, args->C) - begin);
    for (uint32_t h = begin > args->C ? begin - args->C : 0; h + args->C < end; h++) {
        float step = load_one(&task->bindings[BINDING_window_append_dt], args->dt_at + (size_t)b * args->dt_row + h);
        if (args->flags & HAS_STEPS) step += load_one(&task->bindings[BINDING_window_append_dt_bias],
            args->dt_bias_at + (size_t)h);
        step = softplus(step);
        if (step < args->dt_min) step = args->dt_min;
        if (step > args->dt_max) step = args->dt_max;
        float *to = step_of(&task->bindings[BINDING_window_append_steps], b, slot, h, args->H);
        to[0] = -expf(load_one(&task->bindings[BINDING_window_append_a_log], args->a_log_at + (size_t)h)) * step;
        to[1] = step;
    }
}

void cpu_window_output_plain(const cpu_task *task)
{
    const struct WindowOutputArgs *args = task->args;
    const size_t N = args->N, P = args->P, H = args->H, b = task->tile / H, h = task->tile % H, g = h / (H / args->G);
    const size_t pitch = H * P + args->G * N, first = args->rows_at + b * WINDOW * pitch;
    const cpu_tensor *rows = &task->bindings[BINDING_window_output_rows], *hin = &task->bindings[BINDING_window_output_hin];
    const float *scale = (const float *)task->bindings[BINDING_window_output_hin_scale].data;
    const cpu_piece piece = cpu_piece_of(args->flags, &task->bindings[BINDING_window_output_seq], args->seq_at, (uint32_t)b, 1);
    if (piece.count == 0) return;
    const size_t n = slot_of(piece.position, args->S) + 1;
    float keeps[WINDOW], *y = task->scratch, *c = y + P, *key = c + N, *row = key + N;
    const float keep = exp_one(weigh(keeps, &task->bindings[BINDING_window_output_steps], b, h, H, n));
    load_row(c, &task->bindings[BINDING_window_output_c], args->c_at + b * args->c_row + g * N, N);
    memset(y, 0, P * sizeof *y);
    for (size_t i = 0; i < N; i++) {
        const size_t at = (size_t)task->tile * N + i;
        load_row(row, hin, args->hin_at + at * P, P);
        axpy(y, keep * c[i] * (args->flags & HAS_HIN_SCALE ? scale[args->hin_scale_at + at] : 1.0f), row, P);
    }
    for (size_t k = 0; k < n; k++) {
        load_row(key, rows, first + k * pitch + H * P + g * N, N);
        load_row(row, rows, first + k * pitch + h * P, P); /* the token's own last */
        axpy(y, keeps[k] * dot(c, key, N), row, P);
    }
    if (args->flags & HAS_D) axpy(y, load_one(&task->bindings[BINDING_window_output_d], args->d_at + h), row, P);
    store_row(&task->bindings[BINDING_window_output_y], args->y_at + b * args->y_row + h * P, y, P);
}

/* A row divided by its root mean square; the root beside it. */
static void store_normalised(const cpu_tensor *to, size_t at, float *scale, float *v, size_t P, float eps)
{
    *scale = sqrtf(dot(v, v, P) / (float)P + eps);
    for (size_t p = 0; p < P; p++) v[p] /= *scale;
    store_row(to, at, v, P);
}

void cpu_window_fold_plain(const cpu_task *task)
{
    const struct WindowFoldArgs *args = task->args;
    const size_t N = args->N, P = args->P, H = args->H, b = task->tile / H, h = task->tile % H, g = h / (H / args->G);
    const size_t pitch = H * P + args->G * N, rows_at = args->rows_at + b * WINDOW * pitch;
    const bool has_open = (args->flags & HAS_OPEN) != 0, every = (args->flags & IS_EVERY) != 0;
    const bool fresh = (args->flags & IS_FRESH) != 0, step = !every && !fresh;
    const cpu_tensor *rows = &task->bindings[BINDING_window_fold_rows], *steps = &task->bindings[BINDING_window_fold_steps];
    const cpu_piece piece = cpu_piece_of(args->flags, &task->bindings[BINDING_window_fold_seq], args->seq_at, (uint32_t)b, 1);
    const size_t n = fresh ? 0 : slot_of(piece.position, args->S) + step;
    const bool ends = step && (piece.position + 1) % args->S == 0, closes = ends && has_open;
    const uint32_t m = piece.position / args->S;
    const bool in_run = closes && m >= args->first && m - args->first < args->count;
    if ((!every && piece.count == 0) || (step && n < WINDOW && !ends)) return;
    if (closes ? !in_run : (args->flags & IS_LATER) != 0) return;

    float keeps[WINDOW], *decay = (float *)task->bindings[BINDING_window_fold_open_decay].data + task->tile;
    const float log_decay = weigh(keeps, steps, b, h, H, n), keep = exp_one(log_decay);
    const float total = has_open ? *decay + log_decay : 0.0f, keep_h = exp_one(total);
    for (size_t k = 0; k < WINDOW; k++) memset(step_of(steps, b, k, h, H), 0, 2 * sizeof(float));
    if (has_open) *decay = closes ? 0.0f : total;
    float *now = task->scratch, *state = now + P, *key = state + P, *x = key + WINDOW * N;
    for (size_t k = 0; k < n; k++) {
        load_row(key + k * N, rows, rows_at + k * pitch + H * P + g * N, N);
        load_row(x + k * P, rows, rows_at + k * pitch + h * P, P);
    }
    const size_t slot = ((b * args->capacity + m - args->first) * H + h) * N;
    for (size_t i = 0; i < N; i++) {
        const size_t own = (size_t)task->tile * N + i;
        float *h_row = (float *)task->bindings[BINDING_window_fold_h].data + own * P;
        float *open_row = has_open ? (float *)task->bindings[BINDING_window_fold_open].data + own * P : h_row;
        for (size_t p = 0; p < P; p++) now[p] = keep * open_row[p];
        for (size_t k = 0; k < n; k++) axpy(now, keeps[k] * key[k * N + i], x + k * P, P);
        for (size_t p = 0; p < P; p++) state[p] = has_open ? keep_h * h_row[p] + now[p] : now[p];
        if (closes || !has_open) memcpy(h_row, state, P * sizeof *state);
        if (has_open && closes) memset(open_row, 0, P * sizeof *open_row);
        if (has_open && !closes) memcpy(open_row, now, P * sizeof *now);
        if (closes)
            store_normalised(&task->bindings[BINDING_window_fold_to], args->to_at + (slot + i) * P,
                             (float *)task->bindings[BINDING_window_fold_scale].data + args->scale_at + slot + i, now, P,
                                 args->eps);
        const cpu_tensor *hin = &task->bindings[BINDING_window_fold_hin];
        if (args->flags & HAS_HIN_SCALE)
            store_normalised(hin, args->hin_at + own * P,
                             (float *)task->bindings[BINDING_window_fold_hin_scale].data + args->hin_scale_at + own, state, P,
                                 args->eps);
        else store_row(hin, args->hin_at + own * P, state, P);
    }
}
