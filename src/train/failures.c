/* What a failure makes of a trainer, and what it says. */
#include "trainer.h"

#include <stdio.h>

static dart_status take_text(dart_trainer *trainer, dart_status status, const char *text, const char *call)
{
    trainer->broken = trainer_failure(trainer->device, status);
    return base_fail(&trainer->report, trainer->broken, "%s: %s", call, text);
}

dart_status trainer_failure(const dart_device *device, dart_status status) { return atomic_load(&device->lost) ? DART_DEVICE_LOST : status; }

dart_status trainer_take(dart_trainer *trainer, dart_status status, const char *call)
{
    char text[400] = "";
    if (status == DART_OK) return status;
    dart_device_error(trainer->device, text, sizeof text);
    return take_text(trainer, status, text, call);
}

dart_status trainer_take_stream(dart_trainer *trainer, const dart_stream *stream, dart_status status, const char *call)
{
    char text[400] = "";
    if (status == DART_OK) return status;
    if (status == DART_TIMEOUT)
        snprintf(text, sizeof text, "not done in %llu ns", (unsigned long long)trainer->options.timeout_ns);
    else if (dart_stream_error(stream, text, sizeof text) == 0)
        dart_device_error(trainer->device, text, sizeof text);
    return take_text(trainer, status, text, call);
}

dart_status trainer_idle(dart_trainer *trainer, const char *call)
{
    if (trainer->broken != DART_OK) return trainer->broken;
    REQUIRE(&trainer->report, trainer->begun_count == 0, "%s: a step is under way, dart_trainer_finish comes first", call);
    return DART_OK;
}
