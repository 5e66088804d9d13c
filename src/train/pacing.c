/* Where a recording of a trainer is cut into submissions: by assumed rates of the device until its own times are known. */
#include "trainer.h"

#include "runtime/stream.h"

enum { DEFAULT_SLICE_MS = 100 };
/* Launches, about: of a layer, of its gradients, of the loss. They say where a unit that is too much work is cut, before times are known. */
enum { LAYER_LAUNCHES = 12, BACKWARD_LAUNCHES = 30, HEAD_LAUNCHES = 6 };

void trainer_limit(dart_trainer *trainer)
{
    const dart_device_info *info = &trainer->device->info;
    const uint32_t wanted = trainer->options.slice_ms;
    trainer->slice_ns = UINT64_MAX;
    /* Launches that are profiled are timed in one submission. */
    if (wanted == UINT32_MAX || trainer->device->profile != NULL) return;
    trainer->slice_ns = (uint64_t)(wanted != 0 ? wanted : DEFAULT_SLICE_MS) * 1000000;
    trainer->most_work = DEVICE_SLICE_SHARE * (double)trainer->slice_ns * 1e-9 * device_assumed_rate(info);
}

static double layer_work(const dart_trainer *trainer)
{
    double context;
    const double token = model_config_work(&trainer->config, trainer->config.S, trainer->sma, &context);
    return trainer->T * (token + context * trainer->options.L / 2);
}

void trainer_pace_layer(const dart_trainer *trainer, dart_stream *stream, bool backward)
{
    const double work = layer_work(trainer);
    if (!backward) stream_pace(stream, work, LAYER_LAUNCHES);
    else stream_pace(stream, (trainer->options.keep > 0 ? 3 : 2) * work, BACKWARD_LAUNCHES);
}

void trainer_pace_bytes(const dart_trainer *trainer, dart_stream *stream, uint64_t bytes, uint32_t launches)
{
    const dart_device_info *info = &trainer->device->info;
    /* As many operations as take the time. */
    stream_pace(stream, (double)bytes * device_assumed_rate(info) / device_assumed_bytes(info), launches);
}

void trainer_pace_head(const dart_trainer *trainer, dart_stream *stream)
{
    stream_pace(stream, 6.0 * trainer->rows.count * trainer->config.W * trainer->config.V, HEAD_LAUNCHES);
}

void trainer_cut(const dart_trainer *trainer, trainer_recording recording)
{
    const trainer_slices *s = &trainer->slices[recording];
    stream_parts *parts = &trainer->streams[recording]->parts;
    parts->cuts = s->cuts;
    parts->cuts_count = s->count;
    parts->most_work = s->known ? 0 : trainer->most_work;
}
