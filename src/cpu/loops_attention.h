/* Softmax attention over a cache of keys and values. lse and partial are f32. */

#define KEYS 64u           /* tokens of the cache in one block */
#define LOWEST (-3.4e38f)  /* below every score: the initial maximum, and the score of masked keys */

/* Scores have a row for each key and a column for each query, so that vectors run along the queries. */
typedef struct attention_tile {
    size_t tokens, wide; /* queries, and the same rounded up for whole vectors */
    float *queries;      /* D wide, scaled */
    float *scores;       /* KEYS wide: scores, replaced by their weights */
    float *acc;          /* tokens D */
    float *top, *den, *next; /* wide each */
} attention_tile;

/* Replaces scores by exp(score - largest score so far), and rescales the sums of earlier blocks to the new maximum. */
static void CPU_NAME(attention_weigh)(attention_tile *tile, size_t keys, size_t D)
{
    const size_t wide = tile->wide;
    float *top = tile->top, *next = tile->next;
    memcpy(next, top, wide * sizeof(float));
    for (size_t s = 0; s < keys; s++) {
        const float *row = tile->scores + s * wide;
        for (size_t i = 0; i < wide; i++) next[i] = row[i] > next[i] ? row[i] : next[i];
    }
    for (size_t i = 0; i < wide; i++) top[i] -= next[i];
    exp_row(top, wide);
    for (size_t i = 0; i < wide; i++) tile->den[i] *= top[i];
    for (size_t i = 0; i < tile->tokens; i++) {
        if (top[i] == 1.0f) continue;
        float *acc = tile->acc + i * D;
        for (size_t d = 0; d < D; d++) acc[d] *= top[i];
    }
    memcpy(top, next, wide * sizeof(float));
    for (size_t s = 0; s < keys; s++) {
        float *row = tile->scores + s * wide;
        for (size_t i = 0; i < wide; i++) row[i] -= top[i];
        exp_row(row, wide);
        for (size_t i = 0; i < wide; i++) tile->den[i] += row[i];
    }
}

void CPU_NAME(attention)(const cpu_task *task)
{
    const struct AttentionArgs *args = task->args;
    const uint32_t blocks = cpu_blocks(args->L, task->T0);
    const uint32_t begin = task->tile % blocks * task->T0, head = task->tile / blocks;
    const uint32_t h = head % args->H, b = head / args->H, g = h / (args->H / args->G);
    const cpu_sequence of = cpu_sequence_of(args->flags, &task->bindings[BINDING_attention_seq], args->seq_at, b, args->L, args->T);
    const cpu_piece piece = of.piece;
    const uint32_t end = cpu_min(cpu_min(begin + task->T0, args->L), piece.count);
    if (begin >= end) return;
    const size_t D = args->D, tokens = end - begin, wide = (tokens + 15) / 16 * 16, token = of.row + begin;
    attention_tile tile = {.tokens = tokens, .wide = wide, .queries = task->scratch};
    tile.scores = tile.queries + D * wide;
    tile.acc = tile.scores + KEYS * wide;
    tile.top = tile.acc + tokens * D;
    tile.den = tile.top + wide;
    tile.next = tile.den + wide;
    float *keys = tile.next + wide, *values = keys + KEYS * D;

    memset(tile.queries, 0, D * wide * sizeof(float));
    for (size_t i = 0; i < tokens; i++) {
        load_row(keys, &task->bindings[BINDING_attention_q], args->q_at + (token + i) * args->q_row + h * D, D);
        for (size_t d = 0; d < D; d++) tile.queries[d * wide + i] = keys[d] * args->scale;
    }
    memset(tile.acc, 0, tokens * D * sizeof(float));
    memset(tile.den, 0, wide * sizeof(float));
    for (size_t i = 0; i < wide; i++) tile.top[i] = LOWEST;

    const size_t first = (size_t)piece.position + begin; /* the position of query 0 */
    const size_t end_of_block = (size_t)args->first + args->C, seen = first + tokens < end_of_block ? first + tokens : end_of_block;
    for (size_t s = args->first; s < seen; s += KEYS) {
        const size_t count = seen - s < KEYS ? seen - s : KEYS, row = (of.packed ? of.row : (size_t)b * args->C) + s - args->first;
        const matrix k = matrix_of(keys, &task->bindings[BINDING_attention_k], args->k_at + row * args->k_row + g * D,
                                   args->k_row, count, D);
        const matrix v = matrix_of(values, &task->bindings[BINDING_attention_v], args->v_at + row * args->v_row + g * D,
                                   args->v_row, count, D);
        memset(tile.scores, 0, count * wide * sizeof(float));
        product(count, wide, D, k.at, k.row, 1, tile.queries, wide, tile.scores, wide);
        /* Query i sees the keys up to first + i, so the first s + j - first queries do not see key s + j. */
        const bool whole = s + count <= first + 1;
        for (size_t j = 0; j < count && !whole; j++)
            for (size_t i = 0; first + i < s + j && i < tokens; i++) tile.scores[j * wide + i] = LOWEST;
        CPU_NAME(attention_weigh)(&tile, count, D);
        if (whole) {
            product(tokens, D, count, tile.scores, 1, wide, v.at, v.row, tile.acc, D);
            continue;
        }
        for (size_t i = 0; i < tokens; i++) { /* masked values are left out, not multiplied by 0: they may be NaN */
            const size_t depth = first + i < s ? 0 : first + i - s + 1;
            product(1, D, depth < count ? depth : count, tile.scores + i, 1, wide, v.at, v.row, tile.acc + i * D, D);
        }
    }
    float *lse = (float *)task->bindings[BINDING_attention_lse].data + args->lse_at;
    for (size_t i = 0; i < tokens; i++) {
        float *acc = tile.acc + i * D;
        for (size_t d = 0; d < D; d++) acc[d] /= tile.den[i];
        store_row(&task->bindings[BINDING_attention_o], args->o_at + (token + i) * args->o_row + h * D, acc, D);
        lse[(token + i) * args->H + h] = tile.top[i] + logf(tile.den[i]);
    }
}

/* Arguments and bindings of the large ones are those of the others. */
void CPU_NAME(attention_large)(const cpu_task *task) { CPU_NAME(attention)(task); }

void CPU_NAME(attention_step)(const cpu_task *task)
{
    const struct AttentionStepArgs *args = task->args;
    const uint32_t split = task->tile % args->splits, head = task->tile / args->splits;
    const uint32_t h = head % args->H, b = head / args->H, g = h / (args->H / args->G);
    const cpu_piece piece = cpu_piece_of(args->flags, &task->bindings[BINDING_attention_step_seq], args->seq_at, b, 1);
    if (piece.count == 0) return;
    const size_t D = args->D, seen = piece.position < args->first ? 0 : cpu_min(piece.position - args->first, args->C - 1) + (size_t)1;
    const size_t part = STEP_TOKENS * (size_t)cpu_blocks((uint32_t)seen, args->splits * STEP_TOKENS);
    const size_t begin = split * part, end = begin + part < seen ? begin + part : seen;
    float *partial = (float *)task->bindings[BINDING_attention_step_partial].data + (size_t)task->tile * (D + 2);
    float *query = task->scratch, *scores = query + D, *rows = scores + KEYS, *acc = partial + 2;
    float top = LOWEST, den = 0.0f;
    memset(acc, 0, D * sizeof(float));
    load_row(query, &task->bindings[BINDING_attention_step_q], args->q_at + (size_t)b * args->q_row + h * D, D);
    for (size_t d = 0; d < D; d++) query[d] *= args->scale;
    for (size_t s = begin; s < end; s += KEYS) {
        const size_t count = end - s < KEYS ? end - s : KEYS, row = (size_t)b * args->C + s;
        const matrix k = matrix_of(rows, &task->bindings[BINDING_attention_step_k],
                                   args->k_at + row * args->k_row + g * D, args->k_row, count, D);
        float next = top;
        for (size_t j = 0; j < count; j++) {
            scores[j] = dot(query, k.at + j * k.row, D);
            next = scores[j] > next ? scores[j] : next;
        }
        const float keep = exp_one(top - next);
        den *= keep;
        for (size_t d = 0; d < D; d++) acc[d] *= keep;
        top = next;
        for (size_t j = 0; j < count; j++) scores[j] -= top;
        exp_row(scores, count);
        for (size_t j = 0; j < count; j++) den += scores[j];
        const matrix v = matrix_of(rows, &task->bindings[BINDING_attention_step_v],
                                   args->v_at + row * args->v_row + g * D, args->v_row, count, D);
        product(1, D, count, scores, count, 1, v.at, v.row, acc, D);
    }
    partial[0] = top;
    partial[1] = den;
}

void CPU_NAME(attention_step_large)(const cpu_task *task) { CPU_NAME(attention_step)(task); }

#undef LOWEST
#undef KEYS
