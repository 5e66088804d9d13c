/* What a state keeps of a sequence, for whoever copies, marks or saves it. */
#include "state.h"

uint32_t model_parts(const dart_state *state, model_part *parts)
{
    const dart_model_config *c = &state->model->config;
    const dart_dtype dtype = state->model->activations;
    const uint64_t memory = model_config_memory(c), tail = model_config_tail(c);
    uint32_t count = 0;
    if (c->transformer) return 0; /* what it keeps lies in its cache */
    parts[count++] = (model_part){.at = state->h_at, .width = memory, .dtype = DART_F32};
    if (tail > 0) parts[count++] = (model_part){.at = state->tail_at, .width = tail * model_config_conv(c), .dtype = dtype, .tail = true};
    if (!state->sma) return count;
    parts[count++] = (model_part){.at = state->open_at, .width = memory, .dtype = DART_F32};
    parts[count++] = (model_part){.at = state->decay_at, .width = c->H, .dtype = DART_F32};
    if (tail > 0) parts[count++] = (model_part){.at = state->sma_tail_at, .width = tail * model_config_sma_conv(c), .dtype = dtype, .tail = true};
    return count;
}

dart_tensor model_part_tensor(const model_part *part, dart_buffer *layer, uint32_t b)
{
    return (dart_tensor){.buffer = layer, .dtype = part->dtype, .offset = part->at / dart_dtype_size(part->dtype) + b * part->width};
}

void model_record_copy(dart_stream *stream, dart_tensor from, dart_tensor to, uint64_t T, uint64_t W)
{
    dart_convert(stream, &(dart_convert_args){.T = (uint32_t)T, .W = (uint32_t)W, .x = from, .y = to});
}

void model_record_clear(dart_stream *stream, dart_buffer *buffer, uint64_t bytes_at, dart_dtype dtype, uint32_t b, uint32_t B,
                        uint64_t width)
{
    const dart_tensor y = {.buffer = buffer, .dtype = dtype, .offset = bytes_at / dart_dtype_size(dtype) + b * width};
    dart_fill(stream, &(dart_fill_args){.T = B, .W = (uint32_t)width, .y = y});
}

dart_tensor model_last_row(const dart_state *state, uint32_t b)
{
    dart_tensor row = model_work_tensor(state, WORK_LAST);
    row.offset = (uint64_t)b * state->model->config.W;
    return row;
}

uint64_t model_seen_words(const dart_state *state) { return base_ceil_div(state->model->config.V, 32); }

dart_status model_seen_read(dart_state *state, uint32_t b, uint32_t B, int32_t *seen, const char *call)
{
    return model_state_read(state, WORK_SEEN, b * model_seen_words(state), seen, B * model_seen_words(state), call);
}

dart_status model_seen_write(dart_state *state, uint32_t b, const int32_t *seen, const char *call)
{
    return model_state_write(state, WORK_SEEN, b * model_seen_words(state), seen, model_seen_words(state), call);
}

dart_status model_seen_make(dart_state *state, uint32_t B, int32_t **seen, const char *call)
{
    dart_device *device = state->model->device;
    *seen = device_calloc(device, (size_t)(B * model_seen_words(state)), sizeof **seen);
    if (*seen != NULL) return DART_OK;
    return model_take(&state->report, &device->report, atomic_load(&device->lost) ? DART_DEVICE_LOST : DART_OUT_OF_MEMORY, call);
}
