/* The backward pass of state-memory attention, see shaders/sma/args.h. Scratch tensors are f32. */

/* The factors of a memory's rows: keys and values, NULL for ones. */
typedef struct factors {
    const float *key, *value;
} factors;
static factors CPU_NAME(factors_of)(uint32_t flags, const cpu_tensor *factor, size_t at)
{
    const float *own = (const float *)factor->data + at;
    return (flags & IS_RAW) != 0 ? (factors){own, NULL} : (factors){NULL, own};
}
static inline void CPU_NAME(scale_by)(float *row, const float *by, size_t count)
{
    for (size_t i = 0; by != NULL && i < count; i++) row[i] *= by[i];
}

void CPU_NAME(sma_backward_scores)(const cpu_task *task)
{
    const struct SmaBackwardScoresArgs *args = task->args;
    const uint32_t tiles = cpu_blocks(args->L, task->T0), h = task->tile / tiles % args->H, b = task->tile / tiles / args->H;
    const uint32_t g = h / (args->H / args->G), first = task->tile % tiles * task->T0;
    const cpu_sequence of = cpu_sequence_of(args->flags, &task->bindings[BINDING_sma_backward_scores_seq], args->seq_at, b, args->L, args->T);
    const cpu_piece piece = of.piece;
    if (first >= piece.count) return;
    const size_t N = args->N, P = args->P, rows = cpu_min(task->T0, piece.count - first), row = of.row + first;
    const size_t seen = cpu_min((uint32_t)(((size_t)piece.position + first + rows - 1) / args->S), args->M);
    const float *qn = (const float *)task->bindings[BINDING_sma_backward_scores_qn].data + (row * args->G + g) * N;
    const float *en = (const float *)task->bindings[BINDING_sma_backward_scores_en].data + (row * args->G + g) * P;
    const float *lse = (const float *)task->bindings[BINDING_sma_backward_scores_lse].data + args->lse_at;
    float *weights = (float *)task->bindings[BINDING_sma_backward_scores_g].data;
    float *slopes = (float *)task->bindings[BINDING_sma_backward_scores_slope].data;
    float *c = task->scratch, *up = c + rows * N, *dots = up + rows * P, *keys = dots + rows, *sums = keys + 2 * rows * N;
    float *memory = sums + 2 * rows * P;
    for (size_t i = 0; i < rows && seen > 0; i++) {
        load_row(c + i * N, &task->bindings[BINDING_sma_backward_scores_c], args->c_at + (row + i) * args->c_row + g * N, N);
        load_row(up + i * P, &task->bindings[BINDING_sma_backward_scores_up_r], args->up_r_at + (row + i) * args->up_r_row + h * P, P);
        load_row(memory, &task->bindings[BINDING_sma_backward_scores_r], args->r_at + (row + i) * args->r_row + h * P, P);
        dots[i] = dot(up + i * P, memory, P);
    }
    for (size_t m = 0; m < seen; m++) {
        const size_t matrix_row = ((cpu_slot(&of, args->M, args->S) + m) * args->H + h) * N;
        const factors by = CPU_NAME(factors_of)(args->flags, &task->bindings[BINDING_sma_backward_scores_factor], args->factor_at + matrix_row);
        const matrix w = matrix_of(memory, &task->bindings[BINDING_sma_backward_scores_dh], args->dh_at + matrix_row * P, P, N, P);
        for (size_t i = 0; i < rows; i++) {
            memcpy(keys + i * N, qn + i * args->G * N, N * sizeof(float));
            memcpy(keys + (rows + i) * N, c + i * N, N * sizeof(float));
            CPU_NAME(scale_by)(keys + i * N, by.key, N);
            CPU_NAME(scale_by)(keys + (rows + i) * N, by.value, N);
        }
        memset(sums, 0, 2 * rows * P * sizeof(float));
        product(2 * rows, P, N, keys, N, 1, w.at, w.row, sums, P);
        for (size_t i = 0; i < rows; i++) {
            const size_t own = ((size_t)piece.position + first + i) / args->S, at = ((row + i) * args->H + h) * args->M + m;
            if (m >= own) continue;
            const float weight = exp_one(dot(sums + i * P, en + i * args->G * P, P) - lse[(row + i) * args->H + h]);
            weights[at] = weight;
            slopes[at] = own == 1 || args->M == 1 ? 0.0f : weight * (dot(sums + (rows + i) * P, up + i * P, P) - dots[i]);
        }
    }
}

void CPU_NAME(sma_backward_sums)(const cpu_task *task)
{
    enum { OF_Q, OF_C, OF_E };
    const struct SmaBackwardSumsArgs *args = task->args;
    const uint32_t n_blocks = cpu_blocks(args->N, task->T1), blocks = 2 * n_blocks + cpu_blocks(args->P, task->T1);
    const uint32_t tiles = cpu_blocks(args->L, task->T0), block = task->tile % blocks, rest = task->tile / blocks;
    const uint32_t first = rest % tiles * task->T0, g = rest / tiles % args->G, b = rest / tiles / args->G;
    const int which = block < n_blocks ? OF_Q : block < 2 * n_blocks ? OF_C : OF_E;
    const cpu_sequence of = cpu_sequence_of(args->flags, &task->bindings[BINDING_sma_backward_sums_seq], args->seq_at, b, args->L, args->T);
    const cpu_piece piece = of.piece;
    const cpu_tensor *to_c = &task->bindings[BINDING_sma_backward_sums_grad_c];
    const size_t N = args->N, P = args->P, H = args->H, M = args->M, heads = H / args->G, row = of.row + first;
    if (first >= of.span) return;
    const size_t rows = cpu_min(task->T0, (uint32_t)of.span - first), live = first < piece.count ? cpu_min((uint32_t)rows, piece.count - first) : 0;
    const size_t seen = live > 0 ? cpu_min((uint32_t)(((size_t)piece.position + first + live - 1) / args->S), args->M) : 0;
    const size_t columns = which == OF_E ? P : N, depth = which == OF_E ? N : P; /* T1 holds all columns */
    const float *weights = (const float *)task->bindings[which == OF_C ? BINDING_sma_backward_sums_g : BINDING_sma_backward_sums_slope].data;
    const float *qn = (const float *)task->bindings[BINDING_sma_backward_sums_qn].data + (row * args->G + g) * N;
    const float *en = (const float *)task->bindings[BINDING_sma_backward_sums_en].data + (row * args->G + g) * P;
    float *sums = task->scratch, *keys = sums + rows * columns, *memory = keys + rows * depth, *turned_memory = memory + N * P;
    memset(sums, 0, rows * columns * sizeof(float));
    for (size_t h = g * heads; h < (g + 1) * heads; h++)
        for (size_t m = 0; m < seen; m++) {
            const size_t matrix_row = ((cpu_slot(&of, args->M, args->S) + m) * H + h) * N;
            const factors by = CPU_NAME(factors_of)(args->flags, &task->bindings[BINDING_sma_backward_sums_factor], args->factor_at + matrix_row);
            const float *factor = which == OF_C ? by.value : by.key;
            const matrix w = matrix_of(memory, &task->bindings[BINDING_sma_backward_sums_dh], args->dh_at + matrix_row * P, P, N, P);
            for (size_t i = 0; i < live; i++) {
                float *key = keys + i * depth;
                const bool sees = m < ((size_t)piece.position + first + i) / args->S;
                const float weight = sees ? weights[((row + i) * H + h) * M + m] : 0.0f;
                if (which == OF_C)
                    load_row(key, &task->bindings[BINDING_sma_backward_sums_up_r], args->up_r_at + (row + i) * args->up_r_row + h * P, P);
                else
                    memcpy(key, which == OF_Q ? en + i * args->G * P : qn + i * args->G * N, depth * sizeof(float));
                if (which == OF_E) CPU_NAME(scale_by)(key, factor, N);
                for (size_t k = 0; k < depth; k++) key[k] = sees ? key[k] * weight : 0.0f;
            }
            if (which == OF_E) {
                product(live, P, N, keys, N, 1, w.at, w.row, sums, P);
                continue;
            }
            for (size_t n = 0; n < N; n++)
                for (size_t p = 0; p < P; p++) turned_memory[p * N + n] = w.at[n * w.row + p] * (factor != NULL ? factor[n] : 1.0f);
            product(live, N, P, keys, P, 1, turned_memory, N, sums, N);
        }
    for (size_t i = 0; i < rows; i++) {
        if (which != OF_C) {
            float *to = (float *)task->bindings[which == OF_Q ? BINDING_sma_backward_sums_of_q : BINDING_sma_backward_sums_of_e].data;
            memcpy(to + ((row + i) * args->G + g) * columns, sums + i * columns, columns * sizeof(float));
            continue;
        }
        const size_t at = args->grad_c_at + (row + i) * args->grad_c_row + g * N;
        if ((args->flags & IS_ADD) != 0) {
            if (i >= live) break;
            load_row(keys, to_c, at, N);
            axpy(sums + i * N, 1.0f, keys, N);
        }
        store_row(to_c, at, sums + i * N, N);
    }
}

/* Rows n of memory m of a head, columns p, of x or of grad_dh. */
typedef struct memory_block {
    uint32_t b, h, m;
    size_t n, rows, p, columns;
    bool of_values;
} memory_block;

static void CPU_NAME(memory_sums)(const cpu_task *task, const memory_block *of)
{
    const struct SmaBackwardMemoriesArgs *args = task->args;
    const uint32_t g = of->h / (args->H / args->G);
    const cpu_sequence sequence =
        cpu_sequence_of(args->flags, &task->bindings[BINDING_sma_backward_memories_seq], args->seq_at, of->b, args->L, args->T);
    const cpu_piece piece = sequence.piece;
    if (sequence.packed && (size_t)of->m * args->S >= piece.count) return; /* no chunk: the slot belongs to another sequence */
    const size_t N = args->N, P = args->P, border = ((size_t)of->m + 1) * args->S, begin = border > piece.position ? border - piece.position : 0;
    const size_t rows = of->rows, columns = of->columns, n = of->n, p = of->p, steps = 256, stride = args->H * args->M;
    const float *weights = (const float *)task->bindings[of->of_values ? BINDING_sma_backward_memories_g : BINDING_sma_backward_memories_slope].data;
    const float *qn = (const float *)task->bindings[BINDING_sma_backward_memories_qn].data + g * N + n;
    const float *en = (const float *)task->bindings[BINDING_sma_backward_memories_en].data + g * P + p;
    float *sums = task->scratch, *keys = sums + rows * columns, *values = keys + steps * rows;
    memset(sums, 0, rows * columns * sizeof(float));
    for (size_t t = begin; t < piece.count; t += steps) {
        const size_t depth = piece.count - t < steps ? piece.count - t : steps, row = sequence.row + t;
        for (size_t k = 0; k < depth; k++) {
            const float weight = weights[(row + k) * stride + of->h * args->M + of->m];
            if (of->of_values)
                load_row(keys + k * rows, &task->bindings[BINDING_sma_backward_memories_c], args->c_at + (row + k) * args->c_row + g * N + n, rows);
            else
                memcpy(keys + k * rows, qn + (row + k) * args->G * N, rows * sizeof(float));
            for (size_t i = 0; i < rows; i++) keys[k * rows + i] *= weight;
        }
        matrix right = {en + row * args->G * P, args->G * P};
        if (of->of_values)
            right = matrix_of(values, &task->bindings[BINDING_sma_backward_memories_up_r], args->up_r_at + row * args->up_r_row + of->h * P + p,
                              args->up_r_row, depth, columns);
        product(rows, columns, depth, keys, 1, rows, right.at, right.row, sums, columns);
    }
    const size_t at = (((cpu_slot(&sequence, args->M, args->S) + of->m) * args->H + of->h) * N + n) * P + p;
    float *to = of->of_values ? (float *)task->bindings[BINDING_sma_backward_memories_grad_dh].data + args->grad_dh_at
                              : (float *)task->bindings[BINDING_sma_backward_memories_x].data;
    for (size_t i = 0; i < rows; i++) memcpy(to + at + i * P, sums + i * columns, columns * sizeof(float));
}

void CPU_NAME(sma_backward_memories)(const cpu_task *task)
{
    const struct SmaBackwardMemoriesArgs *args = task->args;
    const uint32_t blocks = cpu_blocks(args->M * args->N, task->T0), p_blocks = cpu_blocks(args->P, task->T1), rest = task->tile / blocks / p_blocks;
    const uint32_t first = task->tile % blocks * task->T0, end = first + cpu_min(task->T0, args->M * args->N - first);
    memory_block of = {.b = rest / 2 / args->H, .h = rest / 2 % args->H, .p = task->tile / blocks % p_blocks * task->T1, .of_values = rest % 2 == 1};
    of.columns = cpu_min(task->T1, args->P - (uint32_t)of.p);
    for (uint32_t row = first; row < end; row += (uint32_t)of.rows) { /* memory by memory */
        of.m = row / args->N;
        of.n = row % args->N;
        of.rows = cpu_min(args->N - (uint32_t)of.n, end - row);
        CPU_NAME(memory_sums)(task, &of);
    }
}
