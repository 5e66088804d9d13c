/* The scan, chunk by chunk. cum, decay, cb, memory, hin, h and open are f32. */

#define DEPTH 256u /* tokens at a time in sums over a chunk */

static inline float CPU_NAME(cum_difference)(const float *later, const float *earlier)
{
    return (later[0] - earlier[0]) + (later[1] - earlier[1]);
}

void CPU_NAME(ssd_product)(const cpu_task *task)
{
    const struct SsdProductArgs *args = task->args;
    const size_t C = args->C, N = args->N;
    const uint32_t blocks = cpu_blocks(args->C, task->T0);
    uint32_t tile = task->tile;
    const uint32_t column = tile % blocks * task->T0;
    tile /= blocks;
    const uint32_t row = tile % blocks * task->T0;
    tile /= blocks;
    const uint32_t g = tile % args->G, j = tile / args->G % args->M, b = tile / args->G / args->M;
    const cpu_chunk chunk = cpu_chunk_of(
        cpu_piece_of(args->flags, &task->bindings[BINDING_ssd_product_seq], args->seq_at, b, args->L), args->S, j);
    const uint32_t length = chunk.end - chunk.begin;
    const size_t columns = cpu_min(task->T0, args->C - column), rows = cpu_min(task->T0, args->C - row);
    float *cb = (float *)task->bindings[BINDING_ssd_product_cb].data +
                ((((size_t)b * args->M + j) * args->G + g) * C + row) * C + column;
    for (size_t i = 0; i < rows; i++) memset(cb + i * C, 0, columns * sizeof(float));
    if (row >= length || column >= length || column >= row + rows) return;

    const size_t real_rows = cpu_min((uint32_t)rows, length - row),
                 real_columns = cpu_min((uint32_t)columns, length - column);
    float *keys = task->scratch, *packed = keys + 16 * N, *reads = packed + 16 * N, *sums = reads + rows * N;
    const size_t first = (size_t)b * args->L + chunk.begin;
    const matrix c = matrix_of(reads, &task->bindings[BINDING_ssd_product_c],
                               args->c_at + (first + row) * args->c_row + g * N, args->c_row, real_rows, N);
    for (size_t t = 0; t < real_columns; t += 16) {
        const size_t width = real_columns - t < 16 ? real_columns - t : 16;
        for (size_t i = 0; i < 16; i++) {
            if (i < width)
                load_row(keys + i * N, &task->bindings[BINDING_ssd_product_b],
                         args->b_at + (first + column + t + i) * args->b_row + g * N, N);
            else memset(keys + i * N, 0, N * sizeof(float));
        }
        pack16(packed, keys, N, N);
        memset(sums, 0, real_rows * 16 * sizeof(float));
        product(real_rows, 16, N, c.at, c.row, 1, packed, 16, sums, 16);
        for (size_t i = 0; i < real_rows; i++)
            for (size_t k = 0; k < width && column + t + k <= row + i; k++) cb[i * C + t + k] = sums[i * 16 + k];
    }
}

void CPU_NAME(ssd_memory)(const cpu_task *task)
{
    const struct SsdMemoryArgs *args = task->args;
    const uint32_t p_blocks = cpu_blocks(args->P, task->T1), n_blocks = cpu_blocks(args->N, task->T0);
    uint32_t tile = task->tile;
    const uint32_t p = tile % p_blocks * task->T1;
    tile /= p_blocks;
    const uint32_t n = tile % n_blocks * task->T0;
    tile /= n_blocks;
    const uint32_t h = tile % args->H, j = tile / args->H % args->M, b = tile / args->H / args->M;
    const uint32_t g = h / (args->H / args->G);
    const cpu_chunk chunk = cpu_chunk_of(
        cpu_piece_of(args->flags, &task->bindings[BINDING_ssd_memory_seq], args->seq_at, b, args->L), args->S, j);
    const size_t P = args->P, rows = cpu_min(task->T0, args->N - n), columns = cpu_min(task->T1, args->P - p);
    float *memory = (float *)task->bindings[BINDING_ssd_memory_memory].data +
                    ((((size_t)b * args->M + j) * args->H + h) * args->N + n) * P + p;
    for (size_t i = 0; i < rows; i++) memset(memory + i * P, 0, columns * sizeof(float));
    if (chunk.begin >= chunk.end) return;

    const float *cum = (const float *)task->bindings[BINDING_ssd_memory_cum].data +
                       ((size_t)b * args->H + h) * args->L * CUM_STRIDE;
    const float *last = cum + (size_t)(chunk.end - 1) * CUM_STRIDE;
    float *keys = task->scratch, *values = keys + DEPTH * rows, *decays = values + DEPTH * columns;
    for (size_t t = chunk.begin; t < chunk.end; t += DEPTH) {
        const size_t count = cpu_min(DEPTH, chunk.end - (uint32_t)t), token = (size_t)b * args->L + t;
        for (size_t i = 0; i < count; i++) decays[i] = CPU_NAME(cum_difference)(last, cum + (t + i) * CUM_STRIDE);
        exp_row(decays, count);
        for (size_t i = 0; i < count; i++) {
            const float weight = decays[i] * cum[(t + i) * CUM_STRIDE + 2];
            float *key = keys + i * rows;
            load_row(key, &task->bindings[BINDING_ssd_memory_b],
                     args->b_at + (token + i) * args->b_row + (size_t)g * args->N + n, rows);
            for (size_t k = 0; k < rows; k++) key[k] *= weight;
        }
        const matrix x = matrix_of(values, &task->bindings[BINDING_ssd_memory_x],
                                   args->x_at + token * args->x_row + h * P + p, args->x_row, count, columns);
        product(rows, columns, count, keys, 1, rows, x.at, x.row, memory, P);
    }
}

void CPU_NAME(ssd_state)(const cpu_task *task)
{
    const struct SsdStateArgs *args = task->args;
    const size_t NP = (size_t)args->N * args->P;
    const uint32_t blocks = cpu_blocks((uint32_t)NP, task->T0);
    const size_t at = (size_t)(task->tile % blocks) * task->T0, count = NP - at < task->T0 ? NP - at : task->T0;
    const uint32_t head = task->tile / blocks, h = head % args->H, b = head / args->H;
    const cpu_piece piece = cpu_piece_of(args->flags, &task->bindings[BINDING_ssd_state_seq], args->seq_at, b, args->L);
    if (piece.count == 0) return;
    const float *decay = (const float *)task->bindings[BINDING_ssd_state_decay].data +
                         (size_t)b * (args->M + 1) * args->H + h;
    const bool has_open = (args->flags & HAS_OPEN) != 0, has_h = (args->flags & HAS_H) != 0;
    float *state = task->scratch, *mem = state + count;
    float *h_here = has_h ? (float *)task->bindings[BINDING_ssd_state_h].data + head * NP + at : NULL;
    float *open = has_open ? (float *)task->bindings[BINDING_ssd_state_open].data + head * NP + at : NULL;
    if (has_h) memcpy(state, h_here, count * sizeof(float));
    else memset(state, 0, count * sizeof(float));
    float open_decay = 0;
    bool is_open = false;
    for (uint32_t j = 0; j < args->M; j++) {
        const cpu_chunk chunk = cpu_chunk_of(piece, args->S, j);
        if (chunk.begin >= chunk.end) break;
        float *memory = (float *)task->bindings[BINDING_ssd_state_memory].data +
                        (((size_t)b * args->M + j) * args->H + h) * NP + at;
        const float before = j == 0 ? decay[0] : 0.0f, during = decay[((size_t)j + 1) * args->H];
        const float enter = exp_one(before), kept = exp_one(during), total = exp_one(before + during);
        memcpy(mem, memory, count * sizeof(float));
        if (j == 0 && has_open) {
            for (size_t i = 0; i < count; i++) {
                mem[i] += kept * open[i];
                memory[i] = enter * state[i] + open[i];
            }
        } else {
            for (size_t i = 0; i < count; i++) memory[i] = enter * state[i];
        }
        if (args->flags & HAS_DH)
            store_row(&task->bindings[BINDING_ssd_state_dh],
                      args->dh_at + (((size_t)b * args->M + j) * args->H + h) * NP + at, mem, count);
        is_open = has_open && !chunk.closes;
        if (is_open) open_decay = before + during;
        else for (size_t i = 0; i < count; i++) state[i] = total * state[i] + mem[i];
    }
    if (has_h) memcpy(h_here, state, count * sizeof(float));
    if (has_open) {
        if (is_open) memcpy(open, mem, count * sizeof(float));
        else memset(open, 0, count * sizeof(float));
        if (at == 0) ((float *)task->bindings[BINDING_ssd_state_open_decay].data)[head] = open_decay;
    }
}

void CPU_NAME(ssd_output)(const cpu_task *task)
{
    const struct SsdOutputArgs *args = task->args;
    const uint32_t p_blocks = cpu_blocks(args->P, task->T0), token_blocks = cpu_blocks(args->C, task->T1);
    uint32_t tile = task->tile;
    const uint32_t p = tile % p_blocks * task->T0;
    tile /= p_blocks;
    const uint32_t row = tile % token_blocks * task->T1;
    tile /= token_blocks;
    const uint32_t h = tile % args->H, j = tile / args->H % args->M, b = tile / args->H / args->M;
    const uint32_t g = h / (args->H / args->G);
    const cpu_chunk chunk = cpu_chunk_of(
        cpu_piece_of(args->flags, &task->bindings[BINDING_ssd_output_seq], args->seq_at, b, args->L), args->S, j);
    if (row >= chunk.end - chunk.begin) return;
    const cpu_tensor *x_tensor = &task->bindings[BINDING_ssd_output_x];
    const size_t C = args->C, N = args->N, P = args->P;
    const size_t rows = cpu_min(task->T1, chunk.end - chunk.begin - row), columns = cpu_min(task->T0, args->P - p);
    const size_t first = (size_t)b * args->L + chunk.begin;
    const float *cum = (const float *)task->bindings[BINDING_ssd_output_cum].data +
                       (((size_t)b * args->H + h) * args->L + chunk.begin) * CUM_STRIDE;
    const float *cb = (const float *)task->bindings[BINDING_ssd_output_cb].data +
                      (((size_t)b * args->M + j) * args->G + g) * C * C;
    const float *hin = (const float *)task->bindings[BINDING_ssd_output_hin].data +
                       (((size_t)b * args->M + j) * args->H + h) * N * P + p;
    float *y = task->scratch, *reads = y + rows * columns, *weights = reads + rows * N;
    float *values = weights + rows * DEPTH, *high = values + DEPTH * columns, *low = high + DEPTH, *step = low + DEPTH;
    memset(y, 0, rows * columns * sizeof(float));

    for (size_t i = 0; i < rows; i++) {
        const float *at = cum + (row + i) * CUM_STRIDE;
        const float decay = exp_one(at[0] + at[1]);
        load_row(reads + i * N, &task->bindings[BINDING_ssd_output_c],
                 args->c_at + (first + row + i) * args->c_row + g * N, N);
        for (size_t n = 0; n < N; n++) reads[i * N + n] *= decay;
    }
    product(rows, columns, N, reads, N, 1, hin, P, y, columns);

    for (size_t s = 0; s < row + rows; s += DEPTH) {
        const size_t depth = row + rows - s < DEPTH ? row + rows - s : DEPTH;
        for (size_t k = 0; k < depth; k++) {
            high[k] = cum[(s + k) * CUM_STRIDE];
            low[k] = cum[(s + k) * CUM_STRIDE + 1];
            step[k] = cum[(s + k) * CUM_STRIDE + 2];
        }
        for (size_t i = 0; i < rows; i++) {
            const size_t t = row + i, seen = t < s ? 0 : t - s + 1 < depth ? t - s + 1 : depth;
            decay_row(weights + i * depth, cum[t * CUM_STRIDE], cum[t * CUM_STRIDE + 1], high, low, step,
                      cb + t * C + s, seen);
            memset(weights + i * depth + seen, 0, (depth - seen) * sizeof(float));
        }
        const matrix x = matrix_of(values, x_tensor, args->x_at + (first + s) * args->x_row + h * P + p, args->x_row,
                                   depth, columns);
        product(rows, columns, depth, weights, depth, 1, x.at, x.row, y, columns);
    }

    const float d = args->flags & HAS_D ? load_one(&task->bindings[BINDING_ssd_output_d], args->d_at + (size_t)h)
                                        : 0.0f;
    for (size_t i = 0; i < rows; i++) {
        const size_t token = first + row + i;
        if (args->flags & HAS_D)
            axpy(y + i * columns, d, row_of(values, x_tensor, args->x_at + token * args->x_row + h * P + p, columns),
                 columns);
        store_row(&task->bindings[BINDING_ssd_output_y], args->y_at + token * args->y_row + h * P + p, y + i * columns,
                  columns);
    }
}

/* One row n of a step: state and open are NULL where there are none; memory receives the row of the open chunk. */
static void CPU_NAME(ssd_step_row)(float *state, float *open, float *memory, const float *x, float *y, size_t count,
                                   float kept, float total, float key, float read, bool closes)
{
    for (size_t i = 0; i < count; i++) memory[i] = key * x[i];
    if (open) {
        for (size_t i = 0; i < count; i++) memory[i] += kept * open[i];
        if (closes) memset(open, 0, count * sizeof(float));
        else memcpy(open, memory, count * sizeof(float));
    }
    if (state && (closes || !open)) {
        for (size_t i = 0; i < count; i++) {
            state[i] = total * state[i] + memory[i];
            y[i] += read * state[i];
        }
    } else if (state) {
        for (size_t i = 0; i < count; i++) y[i] += read * (total * state[i] + memory[i]);
    } else {
        for (size_t i = 0; i < count; i++) y[i] += read * memory[i];
    }
}

void CPU_NAME(ssd_step)(const cpu_task *task)
{
    const struct SsdStepArgs *args = task->args;
    const uint32_t blocks = cpu_blocks(args->P, task->T0);
    const uint32_t p = task->tile % blocks * task->T0, head = task->tile / blocks;
    const uint32_t h = head % args->H, b = head / args->H, g = h / (args->H / args->G);
    const cpu_piece piece = cpu_piece_of(args->flags, &task->bindings[BINDING_ssd_step_seq], args->seq_at, b, 1);
    if (piece.count == 0) return;
    const bool has_h = (args->flags & HAS_H) != 0, has_open = (args->flags & HAS_OPEN) != 0;
    const bool closes = (piece.position % args->S) + 1 == args->S;
    const size_t N = args->N, P = args->P, columns = cpu_min(task->T0, args->P - p);
    const float *decay = (const float *)task->bindings[BINDING_ssd_step_decay].data + (size_t)b * 2 * args->H + h;
    const float before = decay[0], during = decay[args->H];
    const float kept = exp_one(during), total = exp_one(before + during);
    const float step = ((const float *)task->bindings[BINDING_ssd_step_cum].data)[(size_t)head * CUM_STRIDE + 2];
    float *x = task->scratch, *y = x + columns, *key = y + columns, *read = key + N, *memory = read + N;
    load_row(x, &task->bindings[BINDING_ssd_step_x], args->x_at + (size_t)b * args->x_row + h * P + p, columns);
    load_row(key, &task->bindings[BINDING_ssd_step_b], args->b_at + (size_t)b * args->b_row + g * N, N);
    load_row(read, &task->bindings[BINDING_ssd_step_c], args->c_at + (size_t)b * args->c_row + g * N, N);
    const float d = args->flags & HAS_D ? load_one(&task->bindings[BINDING_ssd_step_d], args->d_at + (size_t)h) : 0.0f;
    for (size_t i = 0; i < columns; i++) y[i] = d * x[i];
    for (size_t n = 0; n < N; n++) {
        const size_t at = ((size_t)head * N + n) * P + p;
        float *state = has_h ? (float *)task->bindings[BINDING_ssd_step_h].data + at : NULL;
        float *open = has_open ? (float *)task->bindings[BINDING_ssd_step_open].data + at : NULL;
        const float a = step * key[n], c = read[n];
        CPU_NAME(ssd_step_row)(state, open, memory, x, y, columns, kept, total, a, c, closes);
        if (args->flags & HAS_DH) store_row(&task->bindings[BINDING_ssd_step_dh], args->dh_at + at, memory, columns);
    }
    store_row(&task->bindings[BINDING_ssd_step_y], args->y_at + (size_t)b * args->y_row + h * P + p, y, columns);
    if (has_open && p == 0)
        ((float *)task->bindings[BINDING_ssd_step_open_decay].data)[head] = closes ? 0.0f : before + during;
}

#undef DEPTH
