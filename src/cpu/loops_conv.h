/* The depthwise convolution with its SiLU. */

#define MAX_TAPS 8u

/* taps[k count + i] = tap k of channel i, for the `count` channels whose weights start at element weight_at; then a row of biases. */
static void CPU_NAME(conv_taps)(float *taps, float *scratch, const cpu_tensor *weight, size_t weight_at, uint32_t K,
                                const cpu_tensor *bias, size_t bias_at, size_t count)
{
    load_row(scratch, weight, weight_at, count * K);
    for (size_t k = 0; k < K; k++)
        for (size_t i = 0; i < count; i++) taps[k * count + i] = scratch[i * K + k];
    if (bias) load_row(taps + K * count, bias, bias_at, count);
    else memset(taps + K * count, 0, count * sizeof(float));
}

void CPU_NAME(conv)(const cpu_task *task)
{
    const struct ConvArgs *args = task->args;
    const cpu_tensor *x = &task->bindings[BINDING_conv_x], *tail = &task->bindings[BINDING_conv_tail];
    const uint32_t channel_blocks = cpu_blocks(args->C, task->T0), token_blocks = cpu_blocks(args->L, task->T1);
    const uint32_t channel = task->tile % channel_blocks * task->T0;
    const uint32_t begin = task->tile / channel_blocks % token_blocks * task->T1;
    const uint32_t b = task->tile / channel_blocks / token_blocks;
    const cpu_sequence of = cpu_sequence_of(args->flags, &task->bindings[BINDING_conv_seq], args->seq_at, b, args->L, args->T);
    const uint32_t end = cpu_min(cpu_min(begin + task->T1, args->L), of.piece.count);
    const size_t width = cpu_min(task->T0, args->C - channel), K = args->K;
    float *taps = task->scratch, *ring = taps + (MAX_TAPS + 1) * width, *sum = ring + MAX_TAPS * width;
    if (begin >= end) return;
    const cpu_tensor *bias = args->flags & HAS_BIAS ? &task->bindings[BINDING_conv_bias] : NULL;
    CPU_NAME(conv_taps)(taps, sum, &task->bindings[BINDING_conv_weight], args->weight_at + (size_t)channel * K, args->K,
                        bias, args->bias_at + (size_t)channel, width);
    /* Input s lies in row (s + K) % K of the ring; s counts from -(K - 1). */
    for (size_t s = begin; s < begin + K - 1; s++) {
        float *row = ring + (s + 1) % K * width; /* input s - (K - 1) */
        if (s >= K - 1)
            load_row(row, x, args->x_at + (of.row + s - (K - 1)) * args->x_row + channel, width);
        else if (args->flags & HAS_TAIL)
            load_row(row, tail, args->tail_at + ((size_t)b * (K - 1) + s) * args->C + channel, width);
        else memset(row, 0, width * sizeof(float));
    }
    for (size_t t = begin; t < end; t++) {
        load_row(ring + t % K * width, x, args->x_at + (of.row + t) * args->x_row + channel, width);
        memcpy(sum, taps + K * width, width * sizeof(float));
        for (size_t k = 0; k < K; k++) {
            const float *tap = taps + k * width, *in = ring + (t + k + 1) % K * width;
            for (size_t i = 0; i < width; i++) sum[i] += tap[i] * in[i];
        }
        silu_row(sum, width);
        store_row(&task->bindings[BINDING_conv_y], args->y_at + (of.row + t) * args->y_row + channel, sum, width);
    }
}

void CPU_NAME(conv_step)(const cpu_task *task)
{
    const struct ConvStepArgs *args = task->args;
    const cpu_tensor *tail = &task->bindings[BINDING_conv_step_tail];
    const uint32_t blocks = cpu_blocks(args->C, task->T0);
    const uint32_t channel = task->tile % blocks * task->T0, b = task->tile / blocks;
    const size_t width = cpu_min(task->T0, args->C - channel), K = args->K;
    float *taps = task->scratch, *rows = taps + (MAX_TAPS + 1) * width, *sum = rows + MAX_TAPS * width;
    if (cpu_piece_of(args->flags, &task->bindings[BINDING_conv_step_seq], args->seq_at, b, 1).count == 0) return;
    const cpu_tensor *bias = args->flags & HAS_BIAS ? &task->bindings[BINDING_conv_step_bias] : NULL;
    CPU_NAME(conv_taps)(taps, sum, &task->bindings[BINDING_conv_step_weight], args->weight_at + (size_t)channel * K,
                        args->K, bias, args->bias_at + (size_t)channel, width);
    for (size_t k = 0; k + 1 < K; k++)
        load_row(rows + k * width, tail, args->tail_at + ((size_t)b * (K - 1) + k) * args->C + channel, width);
    load_row(rows + (K - 1) * width, &task->bindings[BINDING_conv_step_x],
             args->x_at + (size_t)b * args->x_row + channel, width);
    memcpy(sum, taps + K * width, width * sizeof(float));
    for (size_t k = 0; k < K; k++)
        for (size_t i = 0; i < width; i++) sum[i] += taps[k * width + i] * rows[k * width + i];
    silu_row(sum, width);
    store_row(&task->bindings[BINDING_conv_step_y], args->y_at + (size_t)b * args->y_row + channel, sum, width);
    for (size_t k = 0; k + 1 < K; k++)
        store_row(tail, args->tail_at + ((size_t)b * (K - 1) + k) * args->C + channel, rows + (k + 1) * width, width);
}
#undef MAX_TAPS
