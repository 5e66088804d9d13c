/* The backward pass of the scan, see shaders/ssd/args.h. Scratch tensors are f32. */

#define DEPTH 256u /* steps of a product at a time */
#define SIDE 64u   /* tokens of a tile, at most */

/* Chunk j of sequence b. */
typedef struct place {
    cpu_sequence of;
    uint32_t j;
    size_t slot, token, size; /* of its matrices; its first row; its tokens, 0 if it is empty */
    size_t begin;             /* its first token in the piece */
} place;

static place CPU_NAME(place_of)(uint32_t flags, const cpu_tensor *seq, uint32_t seq_at, uint32_t L, uint32_t T, uint32_t S, uint32_t M,
                                uint32_t index)
{
    place at = {.of = cpu_sequence_of(flags, seq, seq_at, index / M, L, T), .j = index % M};
    const cpu_chunk chunk = cpu_chunk_of(at.of.piece, S, at.j);
    at.size = chunk.begin < chunk.end ? chunk.end - chunk.begin : 0;
    at.begin = chunk.begin;
    at.token = at.of.row + chunk.begin;
    at.slot = cpu_slot(&at.of, M, S) + at.j;
    return at;
}

static inline const float *CPU_NAME(cum_of)(const cpu_tensor *cum, const place *at, uint32_t H, uint32_t h)
{
    return (const float *)cum->data + (at->of.row * H + h * at->of.span + at->begin) * CUM_STRIDE;
}

/* to[k columns + i] = from[i, k]: `columns` rows of a tensor turned, `scratch` takes one. */
static void CPU_NAME(turned)(float *to, const cpu_tensor *from, size_t index, size_t row, size_t columns, size_t depth, float *scratch)
{
    for (size_t i = 0; i < columns; i++) {
        const float *line = row_of(scratch, from, index + i * row, depth);
        for (size_t k = 0; k < depth; k++) to[k * columns + i] = line[k];
    }
}

/* Row and column tile of a pair. */
static void CPU_NAME(pair_of)(uint32_t pair, size_t *row, size_t *column)
{
    size_t i = 0;
    while ((i + 1) * (i + 2) / 2 <= pair) i++;
    *row = i;
    *column = pair - i * (i + 1) / 2;
}

void CPU_NAME(ssd_backward_products)(const cpu_task *task)
{
    const struct SsdBackwardProductsArgs *args = task->args;
    const uint32_t side = cpu_blocks(args->C, task->T0), pairs = side * (side + 1) / 2, g = task->tile / pairs % args->G;
    const place at = CPU_NAME(place_of)(args->flags, &task->bindings[BINDING_ssd_backward_products_seq], args->seq_at, args->L, args->T, args->S,
                              args->M,
                                        task->tile / pairs / args->G);
    size_t t, s;
    CPU_NAME(pair_of)(task->tile % pairs, &t, &s);
    t *= task->T0;
    s *= task->T0;
    if (t >= at.size) return;
    const size_t N = args->N, rows = cpu_min(task->T0, (uint32_t)(at.size - t)), columns = cpu_min(task->T0, (uint32_t)(at.size - s));
    float *c = task->scratch, *b = c + rows * N, *sums = b + N * columns, *line = sums + rows * columns;
    const matrix left = matrix_of(c, &task->bindings[BINDING_ssd_backward_products_c], args->c_at + (at.token + t) * args->c_row + g * N, args->c_row,
                                  rows, N);
    CPU_NAME(turned)(b, &task->bindings[BINDING_ssd_backward_products_b], args->b_at + (at.token + s) * args->b_row + g * N, args->b_row, columns, N,
                     line);
    memset(sums, 0, rows * columns * sizeof(float));
    product(rows, columns, N, left.at, left.row, 1, b, columns, sums, columns);
    float *cb = (float *)task->bindings[BINDING_ssd_backward_products_cb].data + (at.slot * args->G + g) * args->C * args->C;
    for (size_t i = 0; i < rows; i++) memcpy(cb + (t + i) * args->C + s, sums + i * columns, columns * sizeof(float));
}

void CPU_NAME(ssd_backward_read)(const cpu_task *task)
{
    const struct SsdBackwardReadArgs *args = task->args;
    const uint32_t n_blocks = cpu_blocks(args->N, task->T0), p_blocks = cpu_blocks(args->P, task->T1);
    const uint32_t n = task->tile % n_blocks * task->T0, p = task->tile / n_blocks % p_blocks * task->T1, rest = task->tile / n_blocks / p_blocks;
    const uint32_t h = rest % args->H, g = h / (args->H / args->G);
    const place at = CPU_NAME(place_of)(args->flags, &task->bindings[BINDING_ssd_backward_read_seq], args->seq_at, args->L, args->T, args->S, args->M,
                                        rest / args->H);
    if (at.size == 0) return;
    const size_t rows = cpu_min(task->T0, args->N - n), columns = cpu_min(task->T1, args->P - p);
    const float *cum = CPU_NAME(cum_of)(&task->bindings[BINDING_ssd_backward_read_cum], &at, args->H, h);
    float *sums = task->scratch, *keys = sums + rows * columns, *values = keys + DEPTH * rows;
    memset(sums, 0, rows * columns * sizeof(float));
    for (size_t t = 0; t < at.size; t += DEPTH) {
        const size_t depth = at.size - t < DEPTH ? at.size - t : DEPTH;
        for (size_t k = 0; k < depth; k++) {
            const float decay = exp_one(cum[(t + k) * CUM_STRIDE]);
            load_row(keys + k * rows, &task->bindings[BINDING_ssd_backward_read_c],
                     args->c_at + (at.token + t + k) * args->c_row + (size_t)g * args->N + n, rows);
            for (size_t i = 0; i < rows; i++) keys[k * rows + i] *= decay;
        }
        const matrix up = matrix_of(values, &task->bindings[BINDING_ssd_backward_read_up_y],
                                    args->up_y_at + (at.token + t) * args->up_y_row + (size_t)h * args->P + p, args->up_y_row, depth, columns);
        product(rows, columns, depth, keys, 1, rows, up.at, up.row, sums, columns);
    }
    float *read = (float *)task->bindings[BINDING_ssd_backward_read_read].data + ((at.slot * args->H + h) * args->N + n) * args->P + p;
    for (size_t i = 0; i < rows; i++) memcpy(read + i * args->P, sums + i * columns, columns * sizeof(float));
}

void CPU_NAME(ssd_backward_state)(const cpu_task *task)
{
    const struct SsdBackwardStateArgs *args = task->args;
    const uint32_t blocks = cpu_blocks(args->N, task->T0), n = task->tile % blocks * task->T0, head = task->tile / blocks;
    const uint32_t h = head % args->H, b = head / args->H;
    const size_t P = args->P, rows = cpu_min(task->T0, args->N - n), own = ((size_t)head * args->N + n) * P;
    const cpu_sequence of = cpu_sequence_of(args->flags, &task->bindings[BINDING_ssd_backward_state_seq], args->seq_at, b, args->L, args->T);
    const size_t slots = cpu_slot(&of, args->M, args->S);
    const float *decay = (const float *)task->bindings[BINDING_ssd_backward_state_decay].data + (slots + b) * args->H + h;
    float *state = task->scratch, *entering = state + rows * P;
    memset(state, 0, rows * P * sizeof(float));
    if (args->flags & HAS_UP_H)
        memcpy(state, (const float *)task->bindings[BINDING_ssd_backward_state_up_h].data + args->up_h_at + own, rows * P * sizeof(float));
    for (uint32_t j = args->M; j-- > 0;) {
        const cpu_chunk chunk = cpu_chunk_of(of.piece, args->S, j);
        if (chunk.begin >= chunk.end) continue;
        const size_t row = ((slots + j) * args->H + h) * args->N + n;
        const float keep = exp_one(decay[((size_t)j + 1) * args->H]);
        float *read = (float *)task->bindings[BINDING_ssd_backward_state_read].data + row * P;
        float *carry = (float *)task->bindings[BINDING_ssd_backward_state_carry].data + row;
        load_row(entering, &task->bindings[BINDING_ssd_backward_state_hin], args->hin_at + row * P, rows * P);
        for (size_t i = 0; i < rows; i++) {
            carry[i] = keep * dot(state + i * P, entering + i * P, P);
            if (args->flags & HAS_HIN_SCALE)
                carry[i] *= ((const float *)task->bindings[BINDING_ssd_backward_state_hin_scale].data)[args->hin_scale_at + row + i];
        }
        for (size_t i = 0; i < rows * P; i++) {
            const float gained = read[i];
            read[i] = state[i];
            state[i] = keep * state[i] + gained;
        }
    }
    if (args->flags & HAS_H)
        memcpy((float *)task->bindings[BINDING_ssd_backward_state_grad_h].data + args->grad_h_at + own, state, rows * P * sizeof(float));
}

/* The shares of one pair of tiles in the sums over z, SCORE_SIDE x SCORE_SIDE (SsdBackwardScoresArgs). */
static void CPU_NAME(put_shares)(float *to, const float *z, bool diagonal)
{
    memset(to, 0, 64 * sizeof(float));
    if (diagonal) {
        for (size_t u = 0; u < SCORE_SIDE; u++) {
            float before = 0;
            for (size_t k = 0; k <= u; k++) {
                to[k] += before;
                before += z[u * SCORE_SIDE + k];
            }
        }
        return;
    }
    float rows[SCORE_SIDE] = {0}, columns[SCORE_SIDE] = {0};
    for (size_t u = 0; u < SCORE_SIDE; u++)
        for (size_t s = 0; s < SCORE_SIDE; s++) {
            rows[u] += z[u * SCORE_SIDE + s];
            columns[s] += z[u * SCORE_SIDE + s];
        }
    for (size_t r = SCORE_SIDE; r-- > 0;) to[r] = rows[r] + (r + 1 < SCORE_SIDE ? to[r + 1] : 0.0f);
    for (size_t c = 1; c < SCORE_SIDE; c++) to[SCORE_SIDE + c] = to[SCORE_SIDE + c - 1] + columns[c - 1];
}

void CPU_NAME(ssd_backward_scores)(const cpu_task *task)
{
    const struct SsdBackwardScoresArgs *args = task->args;
    const uint32_t side = cpu_blocks(args->C, SCORE_SIDE), pairs = side * (side + 1) / 2, g = task->tile / pairs % args->G;
    const place at = CPU_NAME(place_of)(args->flags, &task->bindings[BINDING_ssd_backward_scores_seq], args->seq_at, args->L, args->T, args->S,
                              args->M,
                                        task->tile / pairs / args->G);
    size_t first_t, first_s;
    CPU_NAME(pair_of)(task->tile % pairs, &first_t, &first_s);
    const bool diagonal = first_t == first_s;
    first_t *= SCORE_SIDE;
    first_s *= SCORE_SIDE;
    if (first_t >= at.size) return;
    const size_t P = args->P, C = args->C, rows = cpu_min(SCORE_SIDE, (uint32_t)(at.size - first_t));
    const size_t columns = cpu_min(SCORE_SIDE, (uint32_t)(at.size - first_s));
    const float *cb = (const float *)task->bindings[BINDING_ssd_backward_scores_cb].data + (at.slot * args->G + g) * C * C;
    float *grad_cb = (float *)task->bindings[BINDING_ssd_backward_scores_grad_cb].data + (at.slot * args->G + g) * C * C;
    float *sums = (float *)task->bindings[BINDING_ssd_backward_scores_sums].data;
    float *grads = task->scratch, *z = grads + SCORE_SIDE * SCORE_SIDE, *scores = z + SCORE_SIDE * SCORE_SIDE;
    float *decays = scores + SCORE_SIDE * SCORE_SIDE, *up = decays + SCORE_SIDE, *x = up + SCORE_SIDE * P, *line = x + SCORE_SIDE * P;
    memset(grads, 0, SCORE_SIDE * SCORE_SIDE * sizeof(float));
    for (uint32_t h = g * (args->H / args->G); h < (g + 1) * (args->H / args->G); h++) {
        const float *cum = CPU_NAME(cum_of)(&task->bindings[BINDING_ssd_backward_scores_cum], &at, args->H, h);
        const matrix left = matrix_of(up, &task->bindings[BINDING_ssd_backward_scores_up_y],
                                      args->up_y_at + (at.token + first_t) * args->up_y_row + h * P, args->up_y_row, rows, P);
        CPU_NAME(turned)(x, &task->bindings[BINDING_ssd_backward_scores_x], args->x_at + (at.token + first_s) * args->x_row + h * P, args->x_row,
                         columns, P, line);
        memset(scores, 0, SCORE_SIDE * SCORE_SIDE * sizeof(float));
        memset(z, 0, SCORE_SIDE * SCORE_SIDE * sizeof(float));
        product(rows, columns, P, left.at, left.row, 1, x, columns, scores, SCORE_SIDE);
        for (size_t i = 0; i < rows; i++) {
            const size_t t = first_t + i, seen = t < first_s ? 0 : t - first_s + 1 < columns ? t - first_s + 1 : columns;
            for (size_t k = 0; k < seen; k++) decays[k] = CPU_NAME(cum_difference)(cum + t * CUM_STRIDE, cum + (first_s + k) * CUM_STRIDE);
            exp_row(decays, seen);
            for (size_t k = 0; k < seen; k++) {
                const float u = decays[k] * cum[(first_s + k) * CUM_STRIDE + 2] * scores[i * SCORE_SIDE + k];
                grads[i * SCORE_SIDE + k] += u;
                z[i * SCORE_SIDE + k] = u * cb[t * C + first_s + k];
            }
        }
        CPU_NAME(put_shares)(sums + ((at.slot * args->H + h) * pairs + task->tile % pairs) * 64, z, diagonal);
    }
    for (size_t i = 0; i < rows; i++) memcpy(grad_cb + (first_t + i) * C + first_s, grads + i * SCORE_SIDE, columns * sizeof(float));
}

/* depth rows of lambda + up_dh of a head from row n on, as N x P. */
static void CPU_NAME(load_gains)(float *to, const cpu_task *task, uint32_t lambda, uint32_t up_dh, bool has_dh, size_t up_dh_at, size_t row,
                                 size_t rows, size_t P)
{
    memcpy(to, (const float *)task->bindings[lambda].data + row * P, rows * P * sizeof(float));
    if (has_dh) axpy(to, 1.0f, (const float *)task->bindings[up_dh].data + up_dh_at + row * P, rows * P);
}

void CPU_NAME(ssd_backward_x)(const cpu_task *task)
{
    const struct SsdBackwardXArgs *args = task->args;
    const uint32_t tiles = cpu_blocks(args->C, task->T0), h = task->tile / tiles % args->H, g = h / (args->H / args->G);
    const size_t first = (size_t)(task->tile % tiles) * task->T0, N = args->N, P = args->P, C = args->C;
    const place at = CPU_NAME(place_of)(args->flags, &task->bindings[BINDING_ssd_backward_x_seq], args->seq_at, args->L, args->T, args->S, args->M,
                                        task->tile / tiles / args->H);
    if (first >= at.size) return;
    const size_t rows = cpu_min(task->T0, (uint32_t)(at.size - first));
    const float *cum = CPU_NAME(cum_of)(&task->bindings[BINDING_ssd_backward_x_cum], &at, args->H, h);
    const float *end = cum + (at.size - 1) * CUM_STRIDE;
    const float *cb = (const float *)task->bindings[BINDING_ssd_backward_x_cb].data + (at.slot * args->G + g) * C * C;
    const cpu_tensor *x_tensor = &task->bindings[BINDING_ssd_backward_x_x], *up_tensor = &task->bindings[BINDING_ssd_backward_x_up_y];
    const float skip = args->flags & HAS_D ? load_one(&task->bindings[BINDING_ssd_backward_x_d], args->d_at + (size_t)h) : 0.0f;
    float *token = (float *)task->bindings[BINDING_ssd_backward_x_token].data;
    float *sums = task->scratch, *gains = sums + rows * P, *keys = gains + N * P, *values = keys + SIDE * (DEPTH > N ? DEPTH : N),
          *x = values + DEPTH * P, *up = x + P;
    CPU_NAME(load_gains)(gains, task, BINDING_ssd_backward_x_lambda, BINDING_ssd_backward_x_up_dh, (args->flags & HAS_DH) != 0, args->up_dh_at,
                         (at.slot * args->H + h) * N, N, P);
    for (size_t i = 0; i < rows; i++) {
        const float keep = exp_one(CPU_NAME(cum_difference)(end, cum + (first + i) * CUM_STRIDE));
        load_row(keys + i * N, &task->bindings[BINDING_ssd_backward_x_b], args->b_at + (at.token + first + i) * args->b_row + g * N, N);
        for (size_t n = 0; n < N; n++) keys[i * N + n] *= keep;
    }
    memset(sums, 0, rows * P * sizeof(float));
    product(rows, P, N, keys, N, 1, gains, P, sums, P);
    for (size_t i = 0; i < rows; i++) {
        const size_t row = at.token + first + i;
        load_row(x, x_tensor, args->x_at + row * args->x_row + h * P, P);
        token[(row * args->H + h) * 4 + 1] = cum[(first + i) * CUM_STRIDE + 2] * dot(sums + i * P, x, P);
    }
    for (size_t t = first; t < at.size; t += DEPTH) {
        const size_t depth = at.size - t < DEPTH ? at.size - t : DEPTH;
        memset(keys, 0, rows * depth * sizeof(float));
        for (size_t k = 0; k < depth; k++) {
            const size_t seen = t + k - first + 1 < rows ? t + k - first + 1 : rows;
            for (size_t i = 0; i < seen; i++)
                keys[k * rows + i] = CPU_NAME(cum_difference)(cum + (t + k) * CUM_STRIDE, cum + (first + i) * CUM_STRIDE);
            exp_row(keys + k * rows, seen);
            for (size_t i = 0; i < seen; i++) keys[k * rows + i] *= cb[(t + k) * C + first + i];
        }
        const matrix ups = matrix_of(values, up_tensor, args->up_y_at + (at.token + t) * args->up_y_row + h * P, args->up_y_row, depth, P);
        product(rows, P, depth, keys, 1, rows, ups.at, ups.row, sums, P);
    }
    for (size_t i = 0; i < rows; i++) {
        const size_t row = at.token + first + i;
        const float step = cum[(first + i) * CUM_STRIDE + 2];
        float *sum = sums + i * P, *to = token + (row * args->H + h) * 4;
        load_row(x, x_tensor, args->x_at + row * args->x_row + h * P, P);
        load_row(up, up_tensor, args->up_y_at + row * args->up_y_row + h * P, P);
        to[0] = dot(sum, x, P);
        to[2] = dot(up, x, P);
        for (size_t p = 0; p < P; p++) sum[p] = step * sum[p] + skip * up[p];
        store_row(&task->bindings[BINDING_ssd_backward_x_grad_x], args->grad_x_at + row * args->grad_x_row + h * P, sum, P);
    }
}

void CPU_NAME(ssd_backward_b)(const cpu_task *task)
{
    const struct SsdBackwardBArgs *args = task->args;
    const uint32_t n_blocks = cpu_blocks(args->N, task->T0), tiles = cpu_blocks(args->C, task->T1);
    const uint32_t rest = task->tile / n_blocks / tiles, g = rest % args->G;
    const size_t n = (size_t)(task->tile % n_blocks) * task->T0, first = (size_t)(task->tile / n_blocks % tiles) * task->T1;
    const size_t N = args->N, P = args->P, C = args->C;
    const place at =
        CPU_NAME(place_of)(args->flags, &task->bindings[BINDING_ssd_backward_b_seq], args->seq_at, args->L, args->T, args->S, args->M,
                 rest / args->G);
    if (first >= at.size) return;
    const size_t rows = cpu_min(task->T1, (uint32_t)(at.size - first)), columns = cpu_min(task->T0, (uint32_t)(N - n));
    const float *grad_cb = (const float *)task->bindings[BINDING_ssd_backward_b_grad_cb].data + (at.slot * args->G + g) * C * C;
    float *sums = task->scratch, *keys = sums + rows * columns, *values = keys + rows * DEPTH, *gains = values + DEPTH * columns,
          *turned = gains + columns * P;
    memset(sums, 0, rows * columns * sizeof(float));
    for (size_t t = first; t < at.size; t += DEPTH) {
        const size_t depth = at.size - t < DEPTH ? at.size - t : DEPTH;
        for (size_t k = 0; k < depth; k++)
            for (size_t i = 0; i < rows; i++) keys[k * rows + i] = first + i <= t + k ? grad_cb[(t + k) * C + first + i] : 0.0f;
        const matrix c = matrix_of(values, &task->bindings[BINDING_ssd_backward_b_c], args->c_at + (at.token + t) * args->c_row + g * N + n,
                                   args->c_row, depth, columns);
        product(rows, columns, depth, keys, 1, rows, c.at, c.row, sums, columns);
    }
    for (uint32_t h = g * (args->H / args->G); h < (g + 1) * (args->H / args->G); h++) {
        const float *cum = CPU_NAME(cum_of)(&task->bindings[BINDING_ssd_backward_b_cum], &at, args->H, h);
        const float *end = cum + (at.size - 1) * CUM_STRIDE;
        CPU_NAME(load_gains)(gains, task, BINDING_ssd_backward_b_lambda, BINDING_ssd_backward_b_up_dh, (args->flags & HAS_DH) != 0, args->up_dh_at,
                             (at.slot * args->H + h) * N + n, columns, P);
        for (size_t i = 0; i < columns; i++)
            for (size_t p = 0; p < P; p++) turned[p * columns + i] = gains[i * P + p];
        for (size_t i = 0; i < rows; i++) {
            const float *source = cum + (first + i) * CUM_STRIDE, weight = exp_one(CPU_NAME(cum_difference)(end, source)) * source[2];
            load_row(keys + i * P, &task->bindings[BINDING_ssd_backward_b_x], args->x_at + (at.token + first + i) * args->x_row + h * P, P);
            for (size_t p = 0; p < P; p++) keys[i * P + p] *= weight;
        }
        product(rows, columns, P, keys, P, 1, turned, columns, sums, columns);
    }
    for (size_t i = 0; i < rows; i++)
        store_row(&task->bindings[BINDING_ssd_backward_b_grad_b], args->grad_b_at + (at.token + first + i) * args->grad_b_row + g * N + n,
                  sums + i * columns, columns);
}

void CPU_NAME(ssd_backward_c)(const cpu_task *task)
{
    const struct SsdBackwardCArgs *args = task->args;
    const uint32_t tiles = cpu_blocks(args->C, task->T0), g = task->tile / tiles % args->G;
    const size_t first = (size_t)(task->tile % tiles) * task->T0, N = args->N, P = args->P, C = args->C;
    const place at = CPU_NAME(place_of)(args->flags, &task->bindings[BINDING_ssd_backward_c_seq], args->seq_at, args->L, args->T, args->S, args->M,
                                        task->tile / tiles / args->G);
    if (first >= at.size) return;
    const size_t rows = cpu_min(task->T0, (uint32_t)(at.size - first));
    const float *grad_cb = (const float *)task->bindings[BINDING_ssd_backward_c_grad_cb].data + (at.slot * args->G + g) * C * C;
    float *token = (float *)task->bindings[BINDING_ssd_backward_c_token].data;
    float *total = task->scratch, *sums = total + rows * N, *keys = sums + rows * N, *values = keys + rows * (DEPTH > P ? DEPTH : P),
          *line = values + N * (DEPTH > P ? DEPTH : P);
    memset(total, 0, rows * N * sizeof(float));
    for (size_t s = 0; s < first + rows; s += DEPTH) {
        const size_t depth = first + rows - s < DEPTH ? first + rows - s : DEPTH;
        for (size_t i = 0; i < rows; i++)
            for (size_t k = 0; k < depth; k++) keys[i * depth + k] = s + k <= first + i ? grad_cb[(first + i) * C + s + k] : 0.0f;
        const matrix b = matrix_of(values, &task->bindings[BINDING_ssd_backward_c_b], args->b_at + (at.token + s) * args->b_row + g * N, args->b_row,
                                   depth, N);
        product(rows, N, depth, keys, depth, 1, b.at, b.row, total, N);
    }
    for (uint32_t h = g * (args->H / args->G); h < (g + 1) * (args->H / args->G); h++) {
        const size_t row = (at.slot * args->H + h) * N;
        const float *cum = CPU_NAME(cum_of)(&task->bindings[BINDING_ssd_backward_c_cum], &at, args->H, h);
        const matrix up = matrix_of(keys, &task->bindings[BINDING_ssd_backward_c_up_y], args->up_y_at + (at.token + first) * args->up_y_row + h * P,
                                    args->up_y_row, rows, P);
        CPU_NAME(turned)(values, &task->bindings[BINDING_ssd_backward_c_hin], args->hin_at + row * P, P, N, P, line);
        memset(sums, 0, rows * N * sizeof(float));
        product(rows, N, P, up.at, up.row, 1, values, N, sums, N);
        if (args->flags & HAS_HIN_SCALE) {
            const float *scale = (const float *)task->bindings[BINDING_ssd_backward_c_hin_scale].data + args->hin_scale_at + row;
            for (size_t i = 0; i < rows; i++)
                for (size_t n = 0; n < N; n++) sums[i * N + n] *= scale[n];
        }
        for (size_t i = 0; i < rows; i++) {
            const float factor = exp_one(cum[(first + i) * CUM_STRIDE]);
            for (size_t n = 0; n < N; n++) sums[i * N + n] *= factor;
            const float *c = row_of(line, &task->bindings[BINDING_ssd_backward_c_c], args->c_at + (at.token + first + i) * args->c_row + g * N, N);
            token[((at.token + first + i) * args->H + h) * 4 + 3] = dot(c, sums + i * N, N);
        }
        axpy(total, 1.0f, sums, rows * N);
    }
    for (size_t i = 0; i < rows; i++) {
        const cpu_tensor *grad_c = &task->bindings[BINDING_ssd_backward_c_grad_c];
        const size_t to = args->grad_c_at + (at.token + first + i) * args->grad_c_row + g * N;
        if (args->flags & IS_ADD) axpy(total + i * N, 1.0f, row_of(line, grad_c, to, N), N);
        store_row(grad_c, to, total + i * N, N);
    }
}

#undef DEPTH
#undef SIDE
