/* Steps of all slots. */
#include "serve/batch_parts.h"

/* How many steps to submit together: for about 16 ms, so that streams flow and others can join. */
static uint32_t steps_together(const batch *b)
{
    const double most = b->step_ns > 0 ? 16e6 / b->step_ns : 1;
    return most < 1 ? 1 : most > BATCH_STEPS ? BATCH_STEPS : (uint32_t)most;
}

bool batch_decode(batch *b)
{
    const uint32_t B = b->options.slots;
    uint32_t k = 0, steps = 1;
    bool scored = false;
    dart_scores scores = {.k = 0};
    if (b->running_count == 0) return true;
    for (uint32_t i = 0; i < B; i++) {
        const job_sequence *s = b->running[i];
        b->sampling[i] = (dart_sampling){.idle = true};
        if (s == NULL) {
            b->last[i] = 0;
            continue;
        }
        b->sampling[i] = batch_sampling_of(b, s);
        scored = scored || batch_settings_of(s)->logprobs >= 0;
        if (batch_settings_of(s)->logprobs >= 0 && s->scores.k > k) k = s->scores.k;
    }
    dart_status status = DART_OUT_OF_MEMORY;
    const uint64_t begin = base_now_ns();
    if (scored && !batch_prepare_scores(&b->scores, &scores, B, k)) goto fail;
    if (scored || b->given) {
        const dart_decode_args args = {.ids = b->given ? b->last : NULL, .sampling = b->sampling, .sampling_count = B, .next_ids = b->steps,
                                       .scores = scored ? &scores : NULL};
        status = dart_decode(b->run, &args);
    } else {
        steps = steps_together(b);
        const dart_generate_args args = {.n = steps, .together = steps, .sampling = b->sampling, .sampling_count = B, .ids = b->steps};
        status = dart_generate(b->run, &args);
    }
    if (status != DART_OK) goto fail;
    atomic_fetch_add(&b->counts->decode_ns, base_now_ns() - begin);
    atomic_fetch_add(&b->counts->steps, steps);
    b->step_ns = (double)(base_now_ns() - begin) / steps;
    b->given = false;
    for (uint32_t i = 0; i < B; i++)
        for (uint32_t n = 0; n < steps && b->running[i] != NULL; n++) {
            const int32_t id = b->steps[(size_t)n * B + i];
            if (id < 0) break;
            b->last[i] = id;
            if (batch_accept(b, b->running[i], id, &scores, i)) batch_leave_slot(b, i);
        }
    batch_wake_streams(b->running, B);
    /* Empty slots give their memories back, and the next answer is computed as in a new state. */
    if (b->running_count > 0) return true;
    b->given = true;
    status = dart_state_reset(b->run, -1);
    if (status == DART_OK) return true;
fail:
    return batch_recover(b, b->run, b->run, status);
}
