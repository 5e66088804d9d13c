/* The backward pass of softmax attention, see shaders/attention/args.h. lse and dot are f32. */

#define SIDE 64u          /* tokens of a block */
#define LOWEST (-3.4e38f) /* the exponent of masked pairs */

void CPU_NAME(attention_backward_dot)(const cpu_task *task)
{
    const struct AttentionBackwardDotArgs *args = task->args;
    const size_t rows = (size_t)args->B * args->L, first = (size_t)task->tile * task->T0;
    float *out = (float *)task->bindings[BINDING_attention_backward_dot_dot].data, *a = task->scratch, *b = a + args->D;
    for (size_t row = first; row < first + task->T0 && row < rows; row++) {
        const uint32_t sequence = (uint32_t)(row / args->L), t = (uint32_t)(row % args->L);
        if (t >= cpu_piece_of(args->flags, &task->bindings[BINDING_attention_backward_dot_seq], args->seq_at, sequence, args->L).count) continue;
        for (size_t h = 0; h < args->H; h++) {
            const size_t at = h * args->D;
            const float *o = row_of(a, &task->bindings[BINDING_attention_backward_dot_o], args->o_at + row * args->o_row + at, args->D);
            const float *up = row_of(b, &task->bindings[BINDING_attention_backward_dot_up_o], args->up_o_at + row * args->up_o_row + at, args->D);
            out[row * args->H + h] = dot(o, up, args->D);
        }
    }
}

/* to[d SIDE + i] = row i, element d; 0 for i from `rows` on. */
static void CPU_NAME(turn)(float *to, const matrix *from, size_t rows, size_t D)
{
    memset(to, 0, D * SIDE * sizeof(float));
    for (size_t i = 0; i < rows; i++)
        for (size_t d = 0; d < D; d++) to[d * SIDE + i] = from->at[i * from->row + d];
}

/* A row of a pair of blocks: SIDE products q . k become weights, SIDE products up_o . v become their gradients u. exponents: scale q . k - lse,
 * LOWEST where masked; dots: of each pair; live: 0 for the first token, whose weight is a constant. */
static void CPU_NAME(weigh_pairs)(float *exponents, float *products, const float *dots, const float *live)
{
    exp_row(exponents, SIDE);
    for (size_t i = 0; i < SIDE; i++) products[i] = exponents[i] * live[i] * (products[i] - dots[i]);
}

static void CPU_NAME(put_rows)(const cpu_tensor *to, size_t at, size_t row, float *sums, size_t rows, size_t D, float factor)
{
    for (size_t i = 0; i < rows; i++) {
        for (size_t d = 0; d < D; d++) sums[i * D + d] *= factor;
        store_row(to, at + i * row, sums + i * D, D);
    }
}

/* Rows of zeros: tokens past the count. */
static void CPU_NAME(put_zeros)(const cpu_tensor *to, size_t at, size_t row, float *zeros, size_t rows, size_t D)
{
    memset(zeros, 0, D * sizeof(float));
    for (size_t i = 0; i < rows; i++) store_row(to, at + i * row, zeros, D);
}

void CPU_NAME(attention_backward_k)(const cpu_task *task)
{
    const struct AttentionBackwardKArgs *args = task->args;
    const cpu_tensor *bindings = task->bindings, *of_q = &bindings[BINDING_attention_backward_k_q], *of_k = &bindings[BINDING_attention_backward_k_k];
    const cpu_tensor *of_v = &bindings[BINDING_attention_backward_k_v], *of_up = &bindings[BINDING_attention_backward_k_up_o];
    const cpu_tensor *to_k = &bindings[BINDING_attention_backward_k_grad_k], *to_v = &bindings[BINDING_attention_backward_k_grad_v];
    const float *lse = (const float *)bindings[BINDING_attention_backward_k_lse].data + args->lse_at;
    const float *dots = bindings[BINDING_attention_backward_k_dot].data;
    const uint32_t blocks = cpu_blocks(args->L, SIDE), s_first = task->tile % blocks * SIDE, head = task->tile / blocks;
    const uint32_t g = head % args->G, b = head / args->G, heads = args->H / args->G;
    const cpu_sequence of = cpu_sequence_of(args->flags, &bindings[BINDING_attention_backward_k_seq], args->seq_at, b, args->L, args->T);
    const cpu_piece piece = of.piece;
    if (s_first >= of.span) return;
    const size_t D = args->D, own = of.row + s_first, all = cpu_min(SIDE, (uint32_t)of.span - s_first);
    const size_t keys = s_first < piece.count ? cpu_min(SIDE, piece.count - s_first) : 0;
    float *keys_t = task->scratch, *values_t = keys_t + D * SIDE, *weights = values_t + D * SIDE, *slopes = weights + SIDE * SIDE;
    float *sum_k = slopes + SIDE * SIDE, *sum_v = sum_k + SIDE * D, *a = sum_v + SIDE * D, *c = a + SIDE * D;
    float same[SIDE], live[SIDE];
    const size_t k_at = args->grad_k_at + own * args->grad_k_row + g * D, v_at = args->grad_v_at + own * args->grad_v_row + g * D;
    CPU_NAME(put_zeros)(to_k, k_at + keys * args->grad_k_row, args->grad_k_row, a, all - keys, D);
    CPU_NAME(put_zeros)(to_v, v_at + keys * args->grad_v_row, args->grad_v_row, a, all - keys, D);
    if (keys == 0) return;
    const matrix k = matrix_of(a, of_k, args->k_at + own * args->k_row + g * D, args->k_row, keys, D);
    CPU_NAME(turn)(keys_t, &k, keys, D);
    const matrix v = matrix_of(a, of_v, args->v_at + own * args->v_row + g * D, args->v_row, keys, D);
    CPU_NAME(turn)(values_t, &v, keys, D);
    memset(sum_k, 0, 2 * SIDE * D * sizeof(float));
    for (uint32_t h = g * heads; h < (g + 1) * heads; h++) {
        for (uint32_t t_first = s_first; t_first < piece.count; t_first += SIDE) {
            const size_t tokens = cpu_min(SIDE, piece.count - t_first), row = of.row + t_first;
            const matrix q = matrix_of(a, of_q, args->q_at + row * args->q_row + h * D, args->q_row, tokens, D);
            const matrix up = matrix_of(c, of_up, args->up_o_at + row * args->up_o_row + h * D, args->up_o_row, tokens, D);
            memset(weights, 0, 2 * SIDE * SIDE * sizeof(float));
            product(tokens, SIDE, D, q.at, q.row, 1, keys_t, SIDE, weights, SIDE);
            product(tokens, SIDE, D, up.at, up.row, 1, values_t, SIDE, slopes, SIDE);
            for (size_t i = 0; i < tokens; i++) {
                const size_t t = t_first + i, at = (row + i) * args->H + h;
                float *exponents = weights + i * SIDE;
                for (size_t j = 0; j < SIDE; j++) {
                    exponents[j] = j < keys && s_first + j <= t ? args->scale * exponents[j] - lse[at] : LOWEST;
                    same[j] = dots[at];
                    live[j] = t > 0 ? 1.0f : 0.0f;
                }
                CPU_NAME(weigh_pairs)(exponents, slopes + i * SIDE, same, live);
            }
            product(keys, D, tokens, weights, 1, SIDE, up.at, up.row, sum_v, D);
            product(keys, D, tokens, slopes, 1, SIDE, q.at, q.row, sum_k, D);
        }
    }
    CPU_NAME(put_rows)(to_k, k_at, args->grad_k_row, sum_k, keys, D, args->scale);
    CPU_NAME(put_rows)(to_v, v_at, args->grad_v_row, sum_v, keys, D, 1.0f);
}

void CPU_NAME(attention_backward_q)(const cpu_task *task)
{
    const struct AttentionBackwardQArgs *args = task->args;
    const cpu_tensor *bindings = task->bindings, *of_q = &bindings[BINDING_attention_backward_q_q], *of_k = &bindings[BINDING_attention_backward_q_k];
    const cpu_tensor *of_v = &bindings[BINDING_attention_backward_q_v], *of_up = &bindings[BINDING_attention_backward_q_up_o];
    const cpu_tensor *to_q = &bindings[BINDING_attention_backward_q_grad_q];
    const float *lse = (const float *)bindings[BINDING_attention_backward_q_lse].data + args->lse_at;
    const float *dots = bindings[BINDING_attention_backward_q_dot].data;
    const uint32_t blocks = cpu_blocks(args->L, SIDE), t_first = task->tile % blocks * SIDE, head = task->tile / blocks;
    const uint32_t h = head % args->H, b = head / args->H, g = h / (args->H / args->G);
    const cpu_sequence of = cpu_sequence_of(args->flags, &bindings[BINDING_attention_backward_q_seq], args->seq_at, b, args->L, args->T);
    const cpu_piece piece = of.piece;
    if (t_first >= of.span) return;
    const size_t D = args->D, own = of.row + t_first, all = cpu_min(SIDE, (uint32_t)of.span - t_first);
    const size_t tokens = t_first < piece.count ? cpu_min(SIDE, piece.count - t_first) : 0;
    float *queries_t = task->scratch, *ups_t = queries_t + D * SIDE, *weights = ups_t + D * SIDE, *slopes = weights + SIDE * SIDE;
    float *sum = slopes + SIDE * SIDE, *a = sum + SIDE * D, *c = a + SIDE * D;
    float lses[SIDE] = {0}, same[SIDE] = {0}, live[SIDE] = {0};
    const size_t to = args->grad_q_at + own * args->grad_q_row + h * D;
    CPU_NAME(put_zeros)(to_q, to + tokens * args->grad_q_row, args->grad_q_row, a, all - tokens, D);
    if (tokens == 0) return;
    const matrix q = matrix_of(a, of_q, args->q_at + own * args->q_row + h * D, args->q_row, tokens, D);
    CPU_NAME(turn)(queries_t, &q, tokens, D);
    const matrix up = matrix_of(a, of_up, args->up_o_at + own * args->up_o_row + h * D, args->up_o_row, tokens, D);
    CPU_NAME(turn)(ups_t, &up, tokens, D);
    for (size_t i = 0; i < tokens; i++) {
        lses[i] = lse[(own + i) * args->H + h];
        same[i] = dots[(own + i) * args->H + h];
        live[i] = t_first + i > 0 ? 1.0f : 0.0f;
    }
    memset(sum, 0, SIDE * D * sizeof(float));
    for (uint32_t s_first = 0; s_first <= t_first; s_first += SIDE) {
        const size_t keys = cpu_min(SIDE, piece.count - s_first), row = of.row + s_first;
        const matrix k = matrix_of(a, of_k, args->k_at + row * args->k_row + g * D, args->k_row, keys, D);
        const matrix v = matrix_of(c, of_v, args->v_at + row * args->v_row + g * D, args->v_row, keys, D);
        memset(weights, 0, 2 * SIDE * SIDE * sizeof(float));
        product(keys, SIDE, D, k.at, k.row, 1, queries_t, SIDE, weights, SIDE);
        product(keys, SIDE, D, v.at, v.row, 1, ups_t, SIDE, slopes, SIDE);
        for (size_t j = 0; j < keys; j++) {
            float *exponents = weights + j * SIDE;
            for (size_t i = 0; i < SIDE; i++)
                exponents[i] = i < tokens && s_first + j <= t_first + i ? args->scale * exponents[i] - lses[i] : LOWEST;
            CPU_NAME(weigh_pairs)(exponents, slopes + j * SIDE, same, live);
        }
        product(tokens, D, keys, slopes, 1, SIDE, k.at, k.row, sum, D);
    }
    CPU_NAME(put_rows)(to_q, to, args->grad_q_row, sum, tokens, D, args->scale);
}

#undef LOWEST
#undef SIDE
