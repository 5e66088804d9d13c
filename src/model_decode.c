/* Decoding: one token of every sequence, recorded once and submitted again. */
#include "model.h"

static bool same_sampling(const dart_sampling *a, const dart_sampling *b)
{
    const bool greedy = !(a->temperature > 0);
    if (greedy || !(b->temperature > 0)) return greedy == !(b->temperature > 0);
    return !(a->temperature < b->temperature) && !(a->temperature > b->temperature) && a->top_k == b->top_k &&
           a->seed == b->seed;
}

static bool same_span(const model_span *a, const model_span *b)
{
    return a->runs == b->runs && a->close_from == b->close_from && a->close_to == b->close_to;
}

/* The step as the positions of now need it. It serves until one of them enters another block or its second chunk. */
static dart_status record(dart_state *state, const dart_sampling *sampling, const char *call)
{
    const model_span span = model_span_of(state, 0, state->B, state->host_seq, true);
    const bool same = same_span(&span, &state->recorded_span) && same_sampling(sampling, &state->recorded_sampling);
    if (state->recorded && same) return DART_OK;
    dart_stream *stream = state->decode;
    const dart_tensor last = model_work_tensor(state, WORK_LAST);
    state->recorded = false;
    dart_status status = dart_stream_begin(stream);
    if (status == DART_OK) status = model_record_layers(state, stream, 0, state->B, 1, WORK_NEXT, span);
    if (status == DART_OK) status = model_record_norm(state, stream, state->B, NULL, &last);
    if (status == DART_OK) status = model_record_head(state, stream, state->B, &last);
    if (status == DART_OK) status = model_record_choice(state, stream, sampling);
    if (status == DART_OK)
        status = dart_advance(stream, &(dart_advance_args){.B = state->B, .seq = model_work_tensor(state, WORK_SEQ)});
    if (status != DART_OK) return model_take_stream(state, stream, status, call);
    state->recorded = true;
    state->recorded_span = span;
    state->recorded_sampling = *sampling;
    return DART_OK;
}

static dart_status check(dart_state *state, const int32_t *ids, const dart_sampling *sampling, const char *call)
{
    const uint32_t V = state->model->config.V;
    for (uint32_t b = 0; b < state->B; b++) {
        REQUIRE(&state->report, state->positions[b] < INT32_MAX, "%s: sequence %u would grow beyond 2^31 - 1 tokens",
                call, b);
        REQUIRE(&state->report, ids == NULL || (ids[b] >= 0 && (uint32_t)ids[b] < V),
                "%s: id %d of sequence %u is not within 0 to %u", call, ids != NULL ? ids[b] : 0, b, V - 1);
    }
    REQUIRE(&state->report, ids != NULL || state->chosen, "%s: no ids, and no earlier call has chosen any", call);
    return model_check_sampling(state, sampling, call);
}

static dart_status decode(dart_state *state, const dart_decode_args *args, const char *call)
{
    const uint64_t V = state->model->config.V;
    uint64_t memories = 0;
    dart_status status = DART_OK;
    TRY(model_state_usable(state, call));
    TRY(check(state, args->ids, &args->sampling, call));
    for (uint32_t b = 0; b < state->B; b++) {
        const uint64_t open = (uint64_t)state->positions[b] / state->S + 1;
        if (open > memories) memories = open;
        state->host_seq[2 * b] = state->positions[b];
        state->host_seq[2 * b + 1] = 1;
    }
    if (state->sma) TRY(model_state_reserve(state, memories, call));
    TRY(record(state, &args->sampling, call));
    if (!state->seq_current) TRY(model_state_write(state, WORK_SEQ, 0, state->host_seq, 2 * (uint64_t)state->B, call));
    state->seq_current = true;
    if (args->ids != NULL) {
        state->chosen = false;
        TRY(model_state_write(state, WORK_NEXT, 0, args->ids, state->B, call));
    }
    state->broken = DART_INTERNAL;
    TRY(model_state_run(state, state->decode, call));
    for (uint32_t b = 0; b < state->B; b++) state->positions[b]++;
    state->chosen = true;
    if (args->logits != NULL) TRY(model_state_read(state, WORK_LOGITS, 0, args->logits, state->B * V, call));
    if (args->next_ids != NULL) TRY(model_state_read(state, WORK_NEXT, 0, args->next_ids, state->B, call));
    state->broken = DART_OK;
    return DART_OK;
fail:
    if (state->broken == DART_INTERNAL) state->broken = status;
    return status;
}

dart_status dart_decode(dart_state *state, const dart_decode_args *args)
{
    if (state == NULL) return DART_INVALID_ARGUMENT;
    REQUIRE(&state->report, args != NULL, "dart_decode: no arguments");
    return decode(state, args, "dart_decode");
}

dart_status dart_generate(dart_state *state, const dart_generate_args *args)
{
    if (state == NULL) return DART_INVALID_ARGUMENT;
    REQUIRE(&state->report, args != NULL, "dart_generate: no arguments");
    for (uint32_t i = 0; i < args->n; i++) {
        int32_t *ids = args->ids != NULL ? args->ids + (size_t)i * state->B : state->host_ids;
        const dart_decode_args step = {.sampling = args->sampling, .next_ids = ids};
        const dart_status status = decode(state, &step, "dart_generate");
        if (status != DART_OK) return status;
        if (args->step != NULL && !args->step(args->user, i, ids)) break;
    }
    return DART_OK;
}
