/* Submissions of a trainer: none occupies the device for longer than slice_ms says. */
#include "trainer.h"

#include "runtime/stream.h"

#include <math.h>
#include <stdlib.h>

enum { MOST_CUTS_AGAIN = 8, MOST_RANGES = 1 << 12 };

void trainer_forget_slices(dart_trainer *trainer)
{
    for (int i = 0; i < TRAINER_RECORDING_COUNT; i++) {
        free(trainer->slices[i].cuts);
        free(trainer->slices[i].ns);
    }
}

dart_status trainer_ask(dart_trainer *trainer, uint64_t done, uint64_t of, const char *call)
{
    const dart_trainer_options *o = &trainer->options;
    if (o->go_on == NULL || o->go_on(o->user, done, of)) return DART_OK;
    return base_fail(&trainer->report, DART_CANCELLED, "%s: ended by go_on", call);
}

/* ---- Cuts by measured times ---- */

static void add_cut(stream_cut *cuts, uint32_t *count, uint32_t at, uint32_t ranges)
{
    if (*count > 0 && cuts[*count - 1].launch >= at) cuts[*count - 1].ranges = cuts[*count - 1].ranges > ranges ? cuts[*count - 1].ranges : ranges;
    else if (at > 0 || ranges > 1) cuts[(*count)++] = (stream_cut){at, ranges};
}

/* Joins parts that are short together, and cuts those that are too long by the number of their launches, a launch by its tiles. `cuts` has room
 * for one more than all launches. */
static uint32_t plan_cuts(const dart_trainer *trainer, const dart_stream *stream, const trainer_slices *s, stream_cut *cuts)
{
    const double most = DEVICE_SLICE_SHARE * (double)trainer->slice_ns;
    const uint32_t *ends = stream->parts.ends;
    double joined = 0;
    uint32_t count = 0;
    for (uint32_t i = 0, last; i < stream->parts.count; i = last + 1) {
        const uint32_t begin = i > 0 ? ends[i - 1] : 0, launches = ends[i] - begin;
        double ns = (double)s->ns[i], longest = ns;
        for (last = i; last + 1 < stream->parts.count && ends[last + 1] == ends[i]; last++) { /* ranges of one launch */
            ns += (double)s->ns[last + 1];
            longest = fmax(longest, (double)s->ns[last + 1]);
        }
        if (joined + ns > most) {
            add_cut(cuts, &count, begin, 1);
            joined = 0;
        }
        joined += ns;
        if (ns <= (double)trainer->slice_ns) continue;
        if (launches == 1) { /* some tiles take longer than others: once that is known, by the longest range */
            const double all = longest > (double)trainer->slice_ns ? longest * (last - i + 1) : ns;
            add_cut(cuts, &count, begin, (uint32_t)fmin(ceil(all / most), MOST_RANGES));
            add_cut(cuts, &count, begin + 1, 1);
            continue;
        }
        const uint32_t pieces = ns / most < launches ? (uint32_t)(ns / most) + 1 : launches;
        for (uint32_t k = 1; k < pieces; k++) add_cut(cuts, &count, begin + (uint32_t)((uint64_t)launches * k / pieces), 1);
    }
    return count;
}

/* Runs of a recording have ended: are its cuts good? Else the next submission records it with others. */
static dart_status judge(dart_trainer *trainer, trainer_recording recording)
{
    trainer_slices *s = &trainer->slices[recording];
    dart_stream **stream = &trainer->streams[recording];
    const uint32_t least = recording == TRAINER_PASSES && trainer_halves(trainer) ? 2 : 1; /* parts without any other cut */
    const bool again = s->overlong || (!s->known && (*stream)->parts.count > least);
    s->known = true;
    s->overlong = false;
    if (trainer->slice_ns == UINT64_MAX || !again) return DART_OK;
    stream_cut *cuts = device_calloc(trainer->device, (size_t)(*stream)->launches + 1, sizeof *cuts);
    if (cuts == NULL) return DART_OUT_OF_MEMORY;
    s->count = plan_cuts(trainer, *stream, s, cuts);
    s->again++;
    free(s->cuts);
    s->cuts = cuts;
    trainer->recorded[recording] = false;
    dart_stream_destroy(stream); /* frees the parts */
    return DART_OK;
}

/* ---- Submitting and waiting ---- */

/* For the first part under way. */
static dart_status wait_part(dart_trainer *trainer, trainer_recording recording, uint64_t timeout_ns, const char *call)
{
    trainer_slices *s = &trainer->slices[recording];
    dart_stream *stream = trainer->streams[recording];
    uint64_t ns = 0;
    dart_status status;
    if (trainer->device->profile != NULL) { /* one part: reports its launches */
        status = dart_stream_wait(stream, timeout_ns);
        if (status == DART_OK) status = dart_stream_elapsed(stream, &ns);
    } else status = stream_wait_part(stream, timeout_ns, &ns);
    if (status == DART_TIMEOUT && timeout_ns == 0) return status;
    if (status != DART_OK) return trainer_take_stream(trainer, stream, status, call);
    if (s->done == stream->parts.count) s->done = 0; /* the first of the next run */
    const uint32_t *ends = stream->parts.ends, begin = s->done > 0 ? ends[s->done - 1] : 0;
    const bool can_be_cut = trainer->device->backend->ranges || ends[s->done] > begin + 1;
    if (ns > trainer->slice_ns && can_be_cut && s->again < MOST_CUTS_AGAIN) s->overlong = true;
    s->ns[s->done++] = ns;
    trainer->longest_ns = base_larger(trainer->longest_ns, ns);
    return DART_OK;
}

dart_status trainer_submit(dart_trainer *trainer, trainer_recording recording, bool asks, const char *call)
{
    dart_status status;
    trainer_slices *s = &trainer->slices[recording];
    const bool adds = trainer->adding && recording == TRAINER_PASSES;
    if (adds) TRY(trainer_wait_for(trainer, recording, call)); /* its parts say which gradients are complete */
    TRY(trainer_record(trainer, recording, call));
    dart_stream *stream = trainer->streams[recording];
    const uint32_t count = stream->parts.count, most = count < TRAINER_IN_FLIGHT ? count : TRAINER_IN_FLIGHT;
    if (count > s->room) {
        uint64_t *grown = realloc(s->ns, count * sizeof *grown);
        if (grown == NULL) return trainer_take(trainer, base_fail(&trainer->device->report, DART_OUT_OF_MEMORY, "no host memory"), call);
        s->ns = grown;
        s->room = count;
    }
    if (!stream->submitted) s->done = 0;
    trainer->under_way[recording] = true;
    for (uint32_t i = 0; i < count; i++) {
        while (stream->parts.in_flight >= most) TRY(wait_part(trainer, recording, trainer->options.timeout_ns, call));
        if (adds && trainer->group == NULL) TRY(trainer_add(trainer, s->done, call));
        if (asks && !(adds && trainer->added > 0)) TRY(trainer_ask(trainer, trainer->done + (uint64_t)trainer->T * i / count, trainer->of, call));
        TRY(trainer_take_stream(trainer, stream, stream_submit_part(stream, i), call));
        if (adds && trainer->group != NULL) TRY(trainer_add(trainer, i + 1, call));
    }
fail:
    return status;
}

bool trainer_is_settled(const dart_trainer *trainer, trainer_recording recording)
{
    return trainer->slices[recording].known && !trainer->slices[recording].overlong;
}

dart_status trainer_wait_for(dart_trainer *trainer, trainer_recording recording, const char *call)
{
    dart_status status = DART_OK;
    if (!trainer->under_way[recording]) return DART_OK;
    while (status == DART_OK && trainer->streams[recording]->submitted)
        status = wait_part(trainer, recording, trainer->options.timeout_ns, call);
    trainer->under_way[recording] = false;
    if (status == DART_OK && trainer->slices[recording].done == trainer->streams[recording]->parts.count)
        status = trainer_take(trainer, judge(trainer, recording), call);
    return status;
}

dart_status trainer_wait(dart_trainer *trainer, const char *call)
{
    dart_status status = DART_OK;
    for (int i = 0; i < TRAINER_RECORDING_COUNT && status == DART_OK; i++) status = trainer_wait_for(trainer, (trainer_recording)i, call);
    return status;
}

dart_status dart_trainer_poll(dart_trainer *trainer, bool *done)
{
    static const char call[] = "dart_trainer_poll";
    if (trainer == NULL) return DART_INVALID_ARGUMENT;
    REQUIRE(&trainer->report, done != NULL, "%s: no place for the answer", call);
    *done = true;
    if (trainer->broken != DART_OK) return trainer->broken;
    if (trainer->begun_count == 0 || trainer->begun[0].done) return DART_OK;
    while (trainer->under_way[TRAINER_UPDATE] && trainer->streams[TRAINER_UPDATE]->submitted) { /* the last of the oldest step */
        const dart_status status = wait_part(trainer, TRAINER_UPDATE, 0, call);
        if (status == DART_TIMEOUT) *done = false;
        if (status != DART_OK) return status == DART_TIMEOUT ? DART_OK : status;
    }
    return DART_OK;
}

uint64_t dart_trainer_longest(const dart_trainer *trainer) { return trainer != NULL ? trainer->longest_ns : 0; }
