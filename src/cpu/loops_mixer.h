/* mixer_project, mixer_attend and mixer_output: products fused with the operations before and after them. Uses what loops_sma.h and
 * loops_quantised.h have. */

#define MIXER_DEPTH 4096u
#define MIXER_TAPS 8u

/* Rows of weights, quantised or not; what stands before the first one. */
typedef struct CPU_NAME(mixer_weights) {
    const cpu_tensor *weight;
    size_t at, inputs;
    bool quantised;
} CPU_NAME(mixer_weights);

/* sums[r outputs + o] += v_r . weight_(first + o) over `depth` inputs from `from` on; v rows x depth. */
static void CPU_NAME(mixer_product)(float *sums, const CPU_NAME(mixer_weights) *w, size_t first, size_t from, size_t outputs,
                                    const float *v, size_t rows, size_t depth, float *converted)
{
    const dart_dtype dtype = CPU_NAME(quantised_dtype)(w->weight);
    const size_t bytes = w->quantised ? dart_quantised_row(dtype, (uint32_t)w->inputs) : 0;
    for (size_t o = first; o < first + outputs; o++) {
        float found[4];
        if (w->quantised) {
            unpack_row(converted, dtype, (const uint8_t *)w->weight->data + w->at + o * bytes, w->inputs, from, depth);
            for (size_t r = 0; r < rows; r++) found[r] = dot(converted, v + r * depth, depth);
        } else {
            dots(found, w->weight, w->at + o * w->inputs + from, v, depth, rows, depth, converted);
        }
        for (size_t r = 0; r < rows; r++) sums[r * outputs + o - first] += found[r];
    }
}

/* Convolution and SiLU of `count` channels of row t, in place in value; updates their tail. */
static void CPU_NAME(mixer_channels)(const cpu_task *task, size_t t, size_t channel, float *value, size_t count)
{
    const struct MixerProjectArgs *args = task->args;
    const cpu_tensor *tail = &task->bindings[BINDING_mixer_project_tail];
    const size_t K = args->K;
    float taps[MIXER_TAPS], in[MIXER_TAPS];
    for (size_t i = 0; i < count; i++) {
        const size_t ch = channel + i;
        load_row(taps, &task->bindings[BINDING_mixer_project_taps], args->taps_at + ch * K, K);
        float sum = args->flags & HAS_BIAS ? load_one(&task->bindings[BINDING_mixer_project_bias], args->bias_at + ch) : 0;
        for (size_t k = 0; k + 1 < K; k++) in[k] = load_one(tail, args->tail_at + (t * (K - 1) + k) * args->C + ch);
        in[K - 1] = value[i];
        for (size_t k = 0; k < K; k++) sum += taps[k] * in[k];
        for (size_t k = 0; k + 1 < K; k++) store_row(tail, args->tail_at + (t * (K - 1) + k) * args->C + ch, &in[k + 1], 1);
        value[i] = silu_one(sum);
    }
}

static void CPU_NAME(mixer_steps)(const cpu_task *task, size_t t, size_t h, const float *value, size_t count)
{
    const struct MixerProjectArgs *args = task->args;
    float *cum = (float *)task->bindings[BINDING_mixer_project_cum].data, *decay = cum + args->decay_at;
    const float *open = (const float *)task->bindings[BINDING_mixer_project_open_decay].data;
    for (size_t i = 0; i < count; i++, h++) {
        const float raw = value[i] + load_one(&task->bindings[BINDING_mixer_project_dt_bias], args->dt_bias_at + h);
        float step = raw > 20.0f ? raw : log1pf(expf(raw));
        if (step < args->dt_min) step = args->dt_min;
        if (step > args->dt_max) step = args->dt_max;
        const float log_decay = -expf(load_one(&task->bindings[BINDING_mixer_project_a_log], args->a_log_at + h)) * step;
        float *to = cum + (t * args->H + h) * CUM_STRIDE;
        to[0] = log_decay;
        to[1] = 0;
        to[2] = step;
        decay[2 * t * args->H + h] = args->flags & HAS_OPEN ? open[t * args->H + h] : 0;
        decay[(2 * t + 1) * args->H + h] = log_decay;
    }
}

/* The part of [begin, begin + count) that lies within [first, first + length). */
static size_t CPU_NAME(mixer_part)(size_t begin, size_t count, size_t first, size_t length, size_t *from)
{
    const size_t low = begin > first ? begin : first;
    const size_t high = begin + count < first + length ? begin + count : first + length;
    *from = low;
    return low < high ? high - low : 0;
}

static void CPU_NAME(mixer_project_rows)(const cpu_task *task, bool quantised)
{
    const struct MixerProjectArgs *args = task->args;
    const cpu_tensor *x = &task->bindings[BINDING_mixer_project_x], *norm = &task->bindings[BINDING_mixer_project_norm];
    const uint32_t blocks = cpu_blocks(args->outputs, task->T0);
    const uint32_t output = task->tile % blocks * task->T0, row = task->tile / blocks * task->T1;
    const size_t outputs = cpu_min(task->T0, args->outputs - output), rows = cpu_min(task->T1, args->rows - row);
    float *converted = task->scratch, *scale = converted + MIXER_DEPTH, *v = scale + MIXER_DEPTH, *sums = v + rows * MIXER_DEPTH;
    double squares[4] = {0};
    memset(sums, 0, rows * outputs * sizeof(float));
    for (size_t k = 0; k < args->inputs; k += MIXER_DEPTH) {
        const size_t depth = cpu_min(MIXER_DEPTH, args->inputs - (uint32_t)k);
        const float *w = row_of(scale, norm, args->norm_at + k, depth);
        for (size_t r = 0; r < rows; r++) {
            float *u = v + r * depth;
            load_row(u, x, args->x_at + (row + r) * args->x_row + k, depth);
            squares[r] += (double)dot(u, u, depth);
            for (size_t i = 0; i < depth; i++) u[i] *= w[i];
        }
        const CPU_NAME(mixer_weights) of = {&task->bindings[BINDING_mixer_project_weight], args->weight_at, args->inputs, quantised};
        CPU_NAME(mixer_product)(sums, &of, output, k, outputs, v, rows, depth, converted);
    }
    for (size_t r = 0; r < rows; r++) {
        const size_t t = row + r;
        float *value = sums + r * outputs;
        if (cpu_piece_of(args->flags, &task->bindings[BINDING_mixer_project_seq], args->seq_at, (uint32_t)t, 1).count == 0)
            continue;
        const float factor = 1.0f / sqrtf((float)(squares[r] / args->inputs) + args->eps);
        for (size_t o = 0; o < outputs; o++) value[o] *= factor;
        size_t from, count = CPU_NAME(mixer_part)(output, outputs, args->first, args->C, &from);
        if (count > 0) CPU_NAME(mixer_channels)(task, t, from - args->first, value + (from - output), count);
        count = CPU_NAME(mixer_part)(output, outputs, (size_t)args->first + args->C, args->flags & HAS_STEPS ? args->H : 0, &from);
        if (count > 0) CPU_NAME(mixer_steps)(task, t, from - args->first - args->C, value + (from - output), count);
        store_row(&task->bindings[BINDING_mixer_project_y], args->y_at + t * args->y_row + output, value, outputs);
    }
}

/* r of one (row, head) merged from its partials, P elements. */
static void CPU_NAME(mixer_merge)(const cpu_task *task, size_t head, float *r)
{
    const struct MixerOutputArgs *args = task->args;
    const size_t P = args->P, pitch = (size_t)args->rows * (args->inputs / args->P) * (P + 4);
    const float *partial = (const float *)task->bindings[BINDING_mixer_output_partial].data + head * (P + 4);
    float top = -INFINITY, den = 0;
    memset(r, 0, P * sizeof(float));
    for (size_t s = 0; s < args->splits; s++) {
        const float *part = partial + s * pitch;
        if (part[P + 1] != 0.0f && !(part[P] <= top)) top = part[P];
    }
    for (size_t s = 0; s < args->splits; s++) {
        const float *part = partial + s * pitch;
        if (part[P + 1] == 0.0f) continue;
        const float scale = exp_one(part[P] - top);
        den += scale * part[P + 1];
        axpy(r, scale, part, P);
    }
    for (size_t p = 0; p < P && den != 0.0f; p++) r[p] /= den;
}

/* Elements [begin, begin + count) of row t of v = (y + silu(gate) r) silu(z), whole heads. */
static void CPU_NAME(mixer_gated)(const cpu_task *task, size_t t, size_t begin, size_t count, float *v, float *z, float *r)
{
    const struct MixerOutputArgs *args = task->args;
    const size_t P = args->P, heads = args->inputs / P;
    load_row(v, &task->bindings[BINDING_mixer_output_y], args->y_at + t * args->y_row + begin, count);
    if (args->flags & HAS_SMA) {
        const float gate = silu_one(load_one(&task->bindings[BINDING_mixer_output_gate], args->gate_at + t * args->gate_row));
        for (size_t i = 0; i < count; i += P) {
            CPU_NAME(mixer_merge)(task, t * heads + (begin + i) / P, r);
            axpy(v + i, gate, r, P);
        }
    }
    load_row(z, &task->bindings[BINDING_mixer_output_z], args->z_at + t * args->z_row + begin, count);
    silu_row(z, count);
    for (size_t i = 0; i < count; i++) v[i] *= z[i];
}

static void CPU_NAME(mixer_output_rows)(const cpu_task *task, bool quantised)
{
    const struct MixerOutputArgs *args = task->args;
    const cpu_tensor *x = &task->bindings[BINDING_mixer_output_x], *norm = &task->bindings[BINDING_mixer_output_norm];
    const uint32_t blocks = cpu_blocks(args->outputs, task->T0);
    const uint32_t output = task->tile % blocks * task->T0, row = task->tile / blocks * task->T1;
    const size_t outputs = cpu_min(task->T0, args->outputs - output), rows = cpu_min(task->T1, args->rows - row);
    /* Whole heads and, of quantised rows, whole blocks: P is a multiple of 8 then, so that four heads have some. */
    const size_t step = quantised ? 4 * args->P : args->P, slab = MIXER_DEPTH - MIXER_DEPTH % step;
    float *converted = task->scratch, *other = converted + MIXER_DEPTH, *r_now = other + MIXER_DEPTH;
    float *v = r_now + MAX_STATE, *sums = v + rows * MIXER_DEPTH;
    double squares[4] = {0};
    memset(sums, 0, rows * outputs * sizeof(float));
    for (size_t k = 0; k < args->inputs; k += slab) {
        const size_t depth = args->inputs - k < slab ? args->inputs - k : slab;
        for (size_t r = 0; r < rows; r++) {
            float *u = v + r * depth;
            CPU_NAME(mixer_gated)(task, row + r, k, depth, u, other, r_now);
            squares[r] += (double)dot(u, u, depth);
        }
        const float *w = row_of(other, norm, args->norm_at + k, depth);
        for (size_t r = 0; r < rows; r++)
            for (size_t i = 0; i < depth; i++) v[r * depth + i] *= w[i];
        const CPU_NAME(mixer_weights) of = {&task->bindings[BINDING_mixer_output_weight], args->weight_at, args->inputs, quantised};
        CPU_NAME(mixer_product)(sums, &of, output, k, outputs, v, rows, depth, converted);
    }
    for (size_t r = 0; r < rows; r++) {
        const size_t t = row + r, at = args->x_at + t * args->x_row + output;
        if (cpu_piece_of(args->flags, &task->bindings[BINDING_mixer_output_seq], args->seq_at, (uint32_t)t, 1).count == 0)
            continue;
        const float factor = 1.0f / sqrtf((float)(squares[r] / args->inputs) + args->eps);
        float *before = converted;
        for (size_t i = 0; i < outputs; i += MIXER_DEPTH) {
            const size_t count = outputs - i < MIXER_DEPTH ? outputs - i : MIXER_DEPTH;
            load_row(before, x, at + i, count);
            axpy(before, factor, sums + r * outputs + i, count);
            store_row(x, at + i, before, count);
        }
    }
}

/* The bindings of both kinds are in the same places. */
void CPU_NAME(mixer_project)(const cpu_task *task) { CPU_NAME(mixer_project_rows)(task, false); }
void CPU_NAME(mixer_project_quantised)(const cpu_task *task) { CPU_NAME(mixer_project_rows)(task, true); }
void CPU_NAME(mixer_output)(const cpu_task *task) { CPU_NAME(mixer_output_rows)(task, false); }
void CPU_NAME(mixer_output_quantised)(const cpu_task *task) { CPU_NAME(mixer_output_rows)(task, true); }

void CPU_NAME(mixer_attend)(const cpu_task *task)
{
    const struct MixerAttendArgs *args = task->args;
    const token_args token = TOKEN_ARGS(mixer_attend, args->q_row);
    const uint32_t split = task->tile % args->splits, head = task->tile / args->splits;
    const size_t P = args->P;
    float *partial = (float *)task->bindings[BINDING_mixer_attend_partial].data + args->partial_at +
                     ((size_t)split * args->B * args->H + head) * (P + 4);
    softmax state;
    if (!CPU_NAME(attend_token)(&token, task, partial, &state)) return;
    partial[P] = state.top;
    partial[P + 1] = state.den;
}

#undef MIXER_DEPTH
#undef MIXER_TAPS
#undef TOKEN_ARGS
