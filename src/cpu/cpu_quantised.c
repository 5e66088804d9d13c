/* embed with quantised rows. */
#include "base/quantised.h"
#include "cpu_vector.h"

void cpu_embed_quantised_plain(const cpu_task *task)
{
    const struct EmbedQuantisedArgs *args = task->args;
    const cpu_tensor *weight = &task->bindings[BINDING_embed_quantised_weight], *y = &task->bindings[BINDING_embed_quantised_y];
    const dart_dtype dtype = weight->dtype == DART_F32 ? DART_Q8 : DART_Q4; /* two bits, 0 or 1 */
    int64_t row = task->tile;
    bool inside = true;
    if (args->flags & HAS_ROWS) {
        const int64_t id = ((const int32_t *)task->bindings[BINDING_embed_quantised_ids].data)[(size_t)args->ids_at + task->tile];
        const bool outside = id < 0 || id >= (int64_t)args->vocabulary;
        row = id - (int64_t)args->first;
        inside = !outside && row >= 0 && row < (int64_t)args->count;
        if (!inside && !(outside && args->first == 0)) return;
    }
    const uint8_t *rows = (const uint8_t *)weight->data + args->weight_at;
    for (size_t i = 0; i < args->width; i += CPU_SCRATCH) { /* a multiple of a block */
        const size_t count = cpu_min(args->width - (uint32_t)i, CPU_SCRATCH);
        if (inside) quantised_read(dtype, rows + (size_t)row * args->weight_row, args->width, i, count, task->scratch);
        else for (size_t k = 0; k < count; k++) task->scratch[k] = NAN;
        store_row(y, args->y_at + (size_t)task->tile * args->y_row + i, task->scratch, count);
    }
}
