/* Log-probabilities of the rows whose logits the workspace holds. */
#include "state.h"

dart_status model_check_scores(dart_state *state, const dart_scores *scores, bool chooses, const char *call)
{
    base_report *report = &state->report;
    if (scores == NULL) return DART_OK;
    REQUIRE(report, scores->k <= DART_MOST_TOP, "%s: k %u of scores exceeds %d", call, scores->k, DART_MOST_TOP);
    REQUIRE(report, scores->k == 0 || (scores->top_ids != NULL && scores->top != NULL), "%s: no place for the %u likeliest ids", call, scores->k);
    REQUIRE(report, scores->target != NULL || scores->targets == NULL, "%s: no place for the log-probabilities of targets", call);
    REQUIRE(report, scores->target == NULL || scores->targets != NULL || chooses, "%s: target without targets, and no tokens are chosen", call);
    return DART_OK;
}

dart_status model_record_scores(dart_state *state, dart_stream *stream, const dart_scores *scores, uint32_t T, model_work targets)
{
    dart_log_probs_args args = {.T = T, .V = state->model->config.V, .k = scores->k, .logits = model_work_tensor(state, WORK_LOGITS),
                                .log_z = model_work_tensor(state, WORK_LOG_Z)};
    if (scores->target != NULL) {
        args.targets = model_work_tensor(state, targets);
        args.target = model_work_tensor(state, WORK_TARGET);
    }
    if (scores->k > 0) {
        args.top_ids = model_work_tensor(state, WORK_TOP_IDS);
        args.top = model_work_tensor(state, WORK_TOP);
    }
    return dart_log_probs(stream, &args);
}

dart_status model_read_scores(dart_state *state, const dart_scores *scores, uint64_t first, uint64_t to, uint64_t n, const char *call)
{
    const uint64_t k = scores->k;
    dart_status status = DART_OK;
    if (scores->log_z != NULL) TRY(model_state_read(state, WORK_LOG_Z, first, scores->log_z + to, n, call));
    if (scores->target != NULL) TRY(model_state_read(state, WORK_TARGET, first, scores->target + to, n, call));
    if (k == 0) return DART_OK;
    TRY(model_state_read(state, WORK_TOP_IDS, first * k, scores->top_ids + to * k, n * k, call));
    TRY(model_state_read(state, WORK_TOP, first * k, scores->top + to * k, n * k, call));
fail:
    return status;
}

dart_status model_run_scores(dart_state *state, const dart_scores *scores, const char *call)
{
    dart_stream *stream = state->prefill;
    dart_status status = DART_OK;
    if (scores->targets != NULL) TRY(model_state_write(state, WORK_TARGETS, 0, scores->targets, state->B, call));
    TRY(model_take_stream(state, stream, dart_stream_begin(stream), call));
    status = model_record_scores(state, stream, scores, state->B, scores->targets != NULL ? WORK_TARGETS : WORK_NEXT);
    TRY(model_take_stream(state, stream, status, call));
    TRY(model_state_run(state, stream, 1, NULL, call));
fail:
    return status;
}
