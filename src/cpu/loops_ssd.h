/* The scan, chunk by chunk. cum, decay, h, open, tail and the scales are f32. */

#define DEPTH 256u /* tokens of a block in sums over a chunk */
#define KEPT 1024u         /* source tokens whose products c . b are kept, since the heads of a group share them */
#define KEPT_ROW (KEPT + 16u) /* floats from one token's products to the next; no power of two, to avoid cache conflicts */

static inline float CPU_NAME(cum_difference)(const float *later, const float *earlier)
{
    return (later[0] - earlier[0]) + (later[1] - earlier[1]);
}

/* The index of the memory of chunk j in its binding, counted in sets of H matrices, see shaders/ssd/args.h. */
static inline size_t CPU_NAME(memory_slot)(uint32_t flags, const cpu_sequence *of, uint32_t S, uint32_t M, uint32_t first,
                                           uint32_t capacity, uint32_t j)
{
    if (!(flags & HAS_RUN)) return cpu_slot(of, M, S) + j;
    return (size_t)of->b * capacity + (size_t)((uint64_t)of->piece.position / S + j - first);
}

/* Stores `count` rows of P elements from row `row` of the tensor on; normalised, with their scales, unless scale is NULL. Overwrites v. */
static void CPU_NAME(store_matrix)(const cpu_tensor *to, size_t to_at, float *scale, size_t row, float *v, size_t count,
                                   size_t P, float eps)
{
    for (size_t n = 0; n < count && scale != NULL; n++) {
        float *line = v + n * P;
        const float root = sqrtf(dot(line, line, P) / (float)P + eps);
        for (size_t p = 0; p < P; p++) line[p] /= root;
        scale[row + n] = root;
    }
    store_row(to, to_at + row * P, v, count * P);
}

void CPU_NAME(ssd_memory)(const cpu_task *task)
{
    const struct SsdMemoryArgs *args = task->args;
    const uint32_t n_blocks = cpu_blocks(args->N, task->T0);
    uint32_t tile = task->tile;
    const uint32_t n = tile % n_blocks * task->T0;
    tile /= n_blocks;
    const uint32_t h = tile % args->H, j = tile / args->H % args->M, b = tile / args->H / args->M; /* T1 is 1 */
    const uint32_t g = h / (args->H / args->G);
    const cpu_sequence of = cpu_sequence_of(args->flags, &task->bindings[BINDING_ssd_memory_seq], args->seq_at, b, args->L, args->T);
    const cpu_chunk chunk = cpu_chunk_of(of.piece, args->S, j);
    if (chunk.begin >= chunk.end) return;
    const size_t P = args->P, rows = cpu_min(task->T0, args->N - n), head = (size_t)b * args->H + h;
    const float *cum = (const float *)task->bindings[BINDING_ssd_memory_cum].data + (of.row * args->H + h * of.span) * CUM_STRIDE;
    const float *last = cum + (size_t)(chunk.end - 1) * CUM_STRIDE;
    float *sums = task->scratch, *keys = sums + rows * P, *values = keys + DEPTH * rows, *decays = values + DEPTH * P;
    memset(sums, 0, rows * P * sizeof(float));
    for (size_t t = chunk.begin; t < chunk.end; t += DEPTH) {
        const size_t count = cpu_min(DEPTH, chunk.end - (uint32_t)t), token = of.row + t;
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
                                   args->x_at + token * args->x_row + h * P, args->x_row, count, P);
        product(rows, P, count, keys, 1, rows, x.at, x.row, sums, P);
    }
    const size_t own = (head * args->N + n) * P;
    if (args->flags & HAS_OPEN) {
        const float *decay = (const float *)task->bindings[BINDING_ssd_memory_decay].data;
        if (j == 0)
            axpy(sums, exp_one(decay[(cpu_slot(&of, args->M, args->S) + b + 1) * args->H + h]),
                 (const float *)task->bindings[BINDING_ssd_memory_open].data + own, rows * P);
        if (!chunk.closes)
            memcpy((float *)task->bindings[BINDING_ssd_memory_tail].data + own, sums, rows * P * sizeof(float));
    }
    const uint64_t m = (uint64_t)of.piece.position / args->S + j;
    if ((args->flags & HAS_RUN) && (!chunk.closes || m < args->first || m >= (uint64_t)args->first + args->count)) return;
    const size_t slot = CPU_NAME(memory_slot)(args->flags, &of, args->S, args->M, args->first, args->capacity, j);
    float *scale = (float *)task->bindings[BINDING_ssd_memory_scale].data;
    CPU_NAME(store_matrix)(&task->bindings[BINDING_ssd_memory_memory], args->memory_at,
                           args->flags & HAS_SCALE ? scale + args->scale_at : NULL,
                           (slot * args->H + h) * args->N + n, sums, rows, P, args->eps);
}

void CPU_NAME(ssd_state)(const cpu_task *task)
{
    const struct SsdStateArgs *args = task->args;
    const uint32_t blocks = cpu_blocks(args->N, task->T0), n = task->tile % blocks * task->T0;
    const uint32_t head = task->tile / blocks, h = head % args->H, b = head / args->H;
    const size_t P = args->P, rows = cpu_min(task->T0, args->N - n), count = rows * P;
    const size_t own = ((size_t)head * args->N + n) * P;
    const cpu_sequence of = cpu_sequence_of(args->flags, &task->bindings[BINDING_ssd_state_seq], args->seq_at, b, args->L, args->T);
    if (of.piece.count == 0) return;
    const size_t slots = cpu_slot(&of, args->M, args->S);
    const float *decay = (const float *)task->bindings[BINDING_ssd_state_decay].data + (slots + b) * args->H + h;
    const bool has_open = (args->flags & HAS_OPEN) != 0, has_h = (args->flags & HAS_H) != 0;
    const float *scale = (const float *)task->bindings[BINDING_ssd_state_scale].data;
    float *hin_scale = (float *)task->bindings[BINDING_ssd_state_hin_scale].data;
    float *state = task->scratch, *mem = state + count;
    float *h_here = has_h ? (float *)task->bindings[BINDING_ssd_state_h].data + own : NULL;
    float *open = has_open ? (float *)task->bindings[BINDING_ssd_state_open].data + own : NULL;
    if (has_h) memcpy(state, h_here, count * sizeof(float));
    else memset(state, 0, count * sizeof(float));
    float open_decay = 0;
    bool is_open = false;
    for (uint32_t j = 0; j < args->M; j++) {
        const cpu_chunk chunk = cpu_chunk_of(of.piece, args->S, j);
        if (chunk.begin >= chunk.end) break;
        const float before = j == 0 ? decay[0] : 0.0f, total = before + decay[((size_t)j + 1) * args->H];
        memcpy(mem, state, count * sizeof(float));
        if (j == 0 && has_open)
            for (size_t i = 0; i < count; i++) mem[i] = exp_one(before) * state[i] + open[i];
        CPU_NAME(store_matrix)(&task->bindings[BINDING_ssd_state_hin], args->hin_at,
                               args->flags & HAS_HIN_SCALE ? hin_scale + args->hin_scale_at : NULL,
                               ((slots + j) * args->H + h) * args->N + n, mem, rows, P, args->eps);
        is_open = has_open && !chunk.closes;
        if (is_open) {
            open_decay = total;
            break;
        }
        const size_t slot = CPU_NAME(memory_slot)(args->flags, &of, args->S, args->M, args->first, args->capacity, j);
        const size_t row = (slot * args->H + h) * args->N + n;
        const float kept = exp_one(total);
        load_row(mem, &task->bindings[BINDING_ssd_state_memory], args->memory_at + row * P, count);
        for (size_t i = 0; i < rows; i++) {
            const float size = args->flags & HAS_SCALE ? scale[args->scale_at + row + i] : 1.0f;
            for (size_t p = 0; p < P; p++) state[i * P + p] = kept * state[i * P + p] + size * mem[i * P + p];
        }
    }
    if (has_h) memcpy(h_here, state, count * sizeof(float));
    if (has_open) {
        if (is_open) memcpy(open, (const float *)task->bindings[BINDING_ssd_state_tail].data + own, count * sizeof(float));
        else memset(open, 0, count * sizeof(float));
        if (n == 0) ((float *)task->bindings[BINDING_ssd_state_open_decay].data)[head] = open_decay;
    }
}

/* products[i, k] = row i of reads . b_k, for `count` tokens k from element b_at on. work: 32 N + 16 rows floats. */
static void CPU_NAME(ssd_products)(float *products, const float *reads, size_t rows, const cpu_tensor *b, size_t b_at, size_t b_row,
                                   size_t count, size_t N, float *work)
{
    float *keys = work, *packed = keys + 16 * N, *sums = packed + 16 * N;
    for (size_t s = 0; s < count; s += 16) {
        const size_t width = count - s < 16 ? count - s : 16;
        for (size_t i = 0; i < width; i++) load_row(keys + i * N, b, b_at + (s + i) * b_row, N);
        memset(keys + width * N, 0, (16 - width) * N * sizeof(float));
        pack16(packed, keys, N, N);
        memset(sums, 0, rows * 16 * sizeof(float));
        product(rows, 16, N, reads, N, 1, packed, 16, sums, 16);
        for (size_t i = 0; i < rows; i++) memcpy(products + i * KEPT_ROW + s, sums + i * 16, width * sizeof(float));
    }
}

/* The tokens of a tile, and scratch memory for one head. */
typedef struct CPU_NAME(output_tile) {
    size_t row, rows; /* the first token of the tile within the chunk, and their number */
    const float *cum; /* cum of the first token of the chunk */
    float *weights, *high, *low, *step;
} CPU_NAME(output_tile);

/* weights[i, k] = products[i, k] exp(cum_t - cum_s) step_s for t = row + i, s = from + k, k < depth and s <= t. Not written for s > t. */
static void CPU_NAME(ssd_weights)(const CPU_NAME(output_tile) *tile, const float *products, size_t from, size_t depth)
{
    for (size_t k = 0; k < depth; k++) {
        tile->high[k] = tile->cum[(from + k) * CUM_STRIDE];
        tile->low[k] = tile->cum[(from + k) * CUM_STRIDE + 1];
        tile->step[k] = tile->cum[(from + k) * CUM_STRIDE + 2];
    }
    for (size_t i = 0; i < tile->rows; i++) {
        const size_t t = tile->row + i, seen = t - from + 1 < depth ? t - from + 1 : depth;
        decay_row(tile->weights + i * depth, tile->cum[t * CUM_STRIDE], tile->cum[t * CUM_STRIDE + 1], tile->high, tile->low,
                  tile->step, products + i * KEPT_ROW, seen);
    }
}

void CPU_NAME(ssd_output)(const cpu_task *task)
{
    enum { CORNER = 6 }; /* rows that product() takes at once */
    const struct SsdOutputArgs *args = task->args;
    const uint32_t in_group = args->H / args->G, head_blocks = cpu_blocks(in_group, task->T0), token_blocks = cpu_blocks(args->C, task->T1);
    uint32_t rest = task->tile;
    const size_t row = (size_t)(rest % token_blocks) * task->T1;
    rest /= token_blocks;
    const uint32_t block = rest % head_blocks;
    rest /= head_blocks;
    const uint32_t g = rest % args->G, j = rest / args->G % args->M, b = rest / args->G / args->M;
    const uint32_t h_first = g * in_group + block * task->T0, h_end = g * in_group + cpu_min((block + 1) * task->T0, in_group);
    const cpu_sequence of = cpu_sequence_of(args->flags, &task->bindings[BINDING_ssd_output_seq], args->seq_at, b, args->L, args->T);
    const cpu_chunk chunk = cpu_chunk_of(of.piece, args->S, j);
    if (row >= chunk.end - chunk.begin) return;
    const cpu_tensor *x_tensor = &task->bindings[BINDING_ssd_output_x], *b_tensor = &task->bindings[BINDING_ssd_output_b];
    const size_t N = args->N, P = args->P, first = of.row + chunk.begin;
    const size_t rows = cpu_min(task->T1, chunk.end - chunk.begin - (uint32_t)row), wide = N > DEPTH ? N : DEPTH;
    const size_t most = task->T1; /* divides KEPT, so that the tile's own tokens lie in one block of KEPT */
    float *y = task->scratch, *reads = y + most * P, *scaled = reads + most * N, *products = scaled + most * N;
    float *weights = products + most * KEPT_ROW, *values = weights + most * DEPTH, *high = values + wide * P;
    CPU_NAME(output_tile) tile = {row, rows, NULL, weights, high, high + DEPTH, high + 2 * DEPTH};
    for (size_t i = 0; i < rows; i++)
        load_row(reads + i * N, &task->bindings[BINDING_ssd_output_c], args->c_at + (first + row + i) * args->c_row + g * N, N);

    size_t held = SIZE_MAX; /* the first source token in products; SIZE_MAX: none yet */
    for (uint32_t h = h_first; h < h_end; h++) {
        const size_t x_at = args->x_at + first * args->x_row + h * P;
        tile.cum = (const float *)task->bindings[BINDING_ssd_output_cum].data +
                   (of.row * args->H + h * of.span + chunk.begin) * CUM_STRIDE;
        memset(y, 0, rows * P * sizeof(float));

        const size_t matrix_row = ((cpu_slot(&of, args->M, args->S) + j) * args->H + h) * N;
        const float *scale = (const float *)task->bindings[BINDING_ssd_output_hin_scale].data;
        for (size_t i = 0; i < rows; i++) {
            const float *at = tile.cum + (row + i) * CUM_STRIDE, decay = exp_one(at[0] + at[1]);
            for (size_t n = 0; n < N; n++) scaled[i * N + n] = decay * reads[i * N + n];
            if (args->flags & HAS_HIN_SCALE)
                for (size_t n = 0; n < N; n++) scaled[i * N + n] *= scale[args->hin_scale_at + matrix_row + n];
        }
        const matrix hin = matrix_of(values, &task->bindings[BINDING_ssd_output_hin], args->hin_at + matrix_row * P, P, N, P);
        product(rows, P, N, scaled, N, 1, hin.at, hin.row, y, P);

        for (size_t s = 0, depth; s < row + rows; s += depth) {
            const size_t begin = s - s % KEPT, end = begin + KEPT < row + rows ? begin + KEPT : row + rows;
            /* First the source tokens before the tile, then its own. Weights above the diagonal are left out of the sums, not set to 0:
             * 0 * infinity is NaN. */
            const bool own = s >= row;
            depth = (own ? end : end < row ? end : row) - s;
            if (depth > DEPTH) depth = DEPTH;
            if (held != begin)
                CPU_NAME(ssd_products)(products, reads, rows, b_tensor, args->b_at + (first + begin) * args->b_row + g * N,
                                       args->b_row, end - begin, N, weights);
            held = begin;
            CPU_NAME(ssd_weights)(&tile, products + (s - begin), s, depth);
            const matrix x = matrix_of(values, x_tensor, x_at + s * args->x_row, args->x_row, depth, P);
            if (!own) product(rows, P, depth, weights, depth, 1, x.at, x.row, y, P);
            for (size_t i = 0; own && i < rows; i += CORNER) {
                const size_t height = rows - i < CORNER ? rows - i : CORNER;
                product(height, P, i, weights + i * depth, depth, 1, x.at, x.row, y + i * P, P);
                for (size_t r = i; r < i + height; r++)
                    for (size_t k = i; k <= r; k++) axpy(y + r * P, weights[r * depth + k], x.at + k * x.row, P);
            }
        }

        const float d = args->flags & HAS_D ? load_one(&task->bindings[BINDING_ssd_output_d], args->d_at + (size_t)h) : 0.0f;
        for (size_t i = 0; i < rows; i++) {
            if (args->flags & HAS_D)
                axpy(y + i * P, d, row_of(values, x_tensor, x_at + (row + i) * args->x_row, P), P);
            store_row(&task->bindings[BINDING_ssd_output_y], args->y_at + (first + row + i) * args->y_row + h * P, y + i * P, P);
        }
    }
}

/* One row n of a step. state is NULL without HAS_H, open without HAS_OPEN. memory receives the row of open' (SsdStepArgs). */
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
    const bool keeps_dh = (args->flags & HAS_DH) && (closes || !(args->flags & HAS_CLOSED));
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
        if (keeps_dh) store_row(&task->bindings[BINDING_ssd_step_dh], args->dh_at + at, memory, columns);
    }
    store_row(&task->bindings[BINDING_ssd_step_y], args->y_at + (size_t)b * args->y_row + h * P + p, y, columns);
    if (has_open && p == 0)
        ((float *)task->bindings[BINDING_ssd_step_open_decay].data)[head] = closes ? 0.0f : before + during;
}

#undef DEPTH
#undef KEPT
#undef KEPT_ROW
