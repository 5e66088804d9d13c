/* The backward pass of the convolution, see shaders/conv/args.h. silu_slopes is in loops_dense_backward.h. */

void CPU_NAME(conv_backward)(const cpu_task *task)
{
    const struct ConvBackwardArgs *args = task->args;
    const cpu_tensor *bindings = task->bindings;
    const uint32_t blocks = cpu_blocks(args->C, task->T0), token_blocks = cpu_blocks(args->L, task->T1), place = task->tile / blocks;
    const size_t channel = (size_t)(task->tile % blocks) * task->T0, count = cpu_min(task->T0, args->C - (uint32_t)channel), K = args->K;
    const uint32_t b = place / token_blocks;
    const cpu_sequence of = cpu_sequence_of(args->flags, &bindings[BINDING_conv_backward_seq], args->seq_at, b, args->L, args->T);
    const size_t begin = (size_t)(place % token_blocks) * task->T1, end = cpu_min((uint32_t)begin + task->T1, (uint32_t)of.span), row = of.row;
    const size_t live = of.piece.count, slot = cpu_slot(&of, token_blocks, task->T1) + place % token_blocks;
    if (begin >= end) return;
    /* Inputs from token begin - (K - 1) on, gradients of pre from begin on, both up to before token end + K - 1. */
    const size_t ups = end - begin + K - 1, inputs = ups + K - 1;
    float *taps = task->scratch, *in = taps + K * count, *up = in + inputs * count, *sums = up + ups * count, *bias = sums + K * count;
    float *pre = bias + count, *value = pre + count, *slope = value + count;
    load_row(pre, &bindings[BINDING_conv_backward_weight], args->weight_at + channel * K, K * count); /* reaches into value and slope, and on */
    for (size_t i = 0; i < count; i++)
        for (size_t k = 0; k < K; k++) taps[k * count + i] = pre[i * K + k];
    memset(bias, 0, count * sizeof(float));
    if (args->flags & HAS_BIAS) load_row(bias, &bindings[BINDING_conv_backward_bias], args->bias_at + channel, count);
    for (size_t i = 0; i < inputs; i++) {
        const size_t t = begin + i; /* of token t - (K - 1) */
        if (t < K - 1 || t - (K - 1) >= live) memset(in + i * count, 0, count * sizeof(float));
        else load_row(in + i * count, &bindings[BINDING_conv_backward_x], args->x_at + (row + t - (K - 1)) * args->x_row + channel, count);
    }
    for (size_t i = 0; i < ups; i++) {
        float *to = up + i * count;
        if (begin + i >= live) {
            memset(to, 0, count * sizeof(float));
            continue;
        }
        memcpy(pre, bias, count * sizeof(float));
        for (size_t k = 0; k < K; k++)
            for (size_t j = 0; j < count; j++) pre[j] += taps[k * count + j] * in[(i + k) * count + j];
        CPU_NAME(silu_slopes)(value, slope, pre, count);
        load_row(to, &bindings[BINDING_conv_backward_up_y], args->up_y_at + (row + begin + i) * args->up_y_row + channel, count);
        for (size_t j = 0; j < count; j++) to[j] *= slope[j];
    }
    for (size_t i = 0; i < end - begin; i++) {
        memset(pre, 0, count * sizeof(float));
        for (size_t k = 0; k < K; k++)
            for (size_t j = 0; j < count; j++) pre[j] += taps[k * count + j] * up[(i + K - 1 - k) * count + j];
        store_row(&bindings[BINDING_conv_backward_grad_x], args->grad_x_at + (row + begin + i) * args->grad_x_row + channel, pre, count);
    }
    memset(sums, 0, K * count * sizeof(float));
    memset(bias, 0, count * sizeof(float));
    for (size_t i = 0; i < end - begin; i++) {
        for (size_t k = 0; k < K; k++)
            for (size_t j = 0; j < count; j++) sums[k * count + j] += up[i * count + j] * in[(i + k) * count + j];
        axpy(bias, 1.0f, up + i * count, count);
    }
    float *of_weight = (float *)bindings[BINDING_conv_backward_of_weight].data + (slot * args->C + channel) * K;
    for (size_t j = 0; j < count; j++)
        for (size_t k = 0; k < K; k++) of_weight[j * K + k] = sums[k * count + j];
    if (args->flags & HAS_BIAS)
        memcpy((float *)bindings[BINDING_conv_backward_of_bias].data + slot * args->C + channel, bias, count * sizeof(float));
}
