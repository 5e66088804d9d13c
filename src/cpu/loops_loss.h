/* Cross entropy of a row of logits, see shaders/loss/args.h. */

#define LOSS_BLOCK 4096u

void CPU_NAME(cross_entropy)(const cpu_task *task)
{
    const struct CrossEntropyArgs *args = task->args;
    const uint32_t V = args->width;
    const cpu_tensor *slopes = &task->bindings[BINDING_cross_entropy_slopes];
    const float *logits = (const float *)task->bindings[BINDING_cross_entropy_logits].data + args->logits_at + (size_t)task->tile * args->logits_row;
    const size_t to = args->slopes_at + (size_t)task->tile * args->slopes_row;
    float *block = task->scratch;
    const int32_t target = ((const int32_t *)task->bindings[BINDING_cross_entropy_targets].data)[args->targets_at + task->tile];
    const float share = ((const float *)task->bindings[BINDING_cross_entropy_share].data)[args->share_at];
    float *parts = (float *)task->bindings[BINDING_cross_entropy_parts].data + args->parts_at + 2 * (size_t)task->tile;
    parts[0] = parts[1] = 0.0f;
    if (target < 0 || (uint32_t)target >= V) {
        if (args->flags & HAS_GRADIENT)
            memset((char *)slopes->data + to * dart_dtype_size(slopes->dtype), 0, V * dart_dtype_size(slopes->dtype));
        return;
    }
    const float own = logits[target];
    float top = own;
    bool first = true, finite = true;
    for (uint32_t i = 0; i < V; i++) {
        top = logits[i] > top ? logits[i] : top;
        finite = finite && isfinite(logits[i]);
        first = first && !(logits[i] > own || (logits[i] == own && i < (uint32_t)target));
    }
    double rest = 0; /* all but the target's */
    for (uint32_t i = 0; i < V; i += LOSS_BLOCK) {
        const uint32_t count = cpu_min(LOSS_BLOCK, V - i);
        for (uint32_t k = 0; k < count; k++) block[k] = logits[i + k] - top;
        exp_row(block, count);
        if ((uint32_t)target - i < count) block[(uint32_t)target - i] = 0;
        for (uint32_t k = 0; k < count; k++) rest += (double)block[k];
    }
    const double sum = rest + exp((double)own - (double)top);
    parts[0] = finite ? share * (float)((double)(top - own) + log(sum)) : NAN;
    parts[1] = finite && first ? 1.0f : 0.0f;
    if (!(args->flags & HAS_GRADIENT)) return;
    const float factor = finite ? (float)((double)share / sum) : NAN, of_target = (float)((double)-share * (rest / sum));
    for (uint32_t i = 0; i < V; i += LOSS_BLOCK) {
        const uint32_t count = cpu_min(LOSS_BLOCK, V - i);
        for (uint32_t k = 0; k < count; k++) block[k] = logits[i + k] - top;
        exp_row(block, count);
        for (uint32_t k = 0; k < count; k++) block[k] *= factor;
        if ((uint32_t)target - i < count) block[(uint32_t)target - i] = finite ? of_target : NAN;
        store_row(slopes, to + i, block, count);
    }
}

#undef LOSS_BLOCK
