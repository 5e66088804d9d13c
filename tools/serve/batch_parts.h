/* What the rounds of a batch share: how sequences leave, and what becomes of a token. */
#ifndef DARTLM_SERVE_BATCH_PARTS_H
#define DARTLM_SERVE_BATCH_PARTS_H

#include "base/base.h"
#include "serve/batch.h"

enum { BATCH_LEAST_BUDGET = 512 }; /* of budgets that are measured */

const api_settings *batch_settings_of(const job_sequence *s);
dart_sampling batch_sampling_of(const batch *b, const job_sequence *s);
/* From its place among the prompts; to_slot: it goes on in a slot. */
void batch_leave_filling(batch *b, uint32_t at, bool to_slot);
void batch_leave_slot(batch *b, uint32_t at);
/* A call on a state has failed: those that it computes end, and the state is made new. false: it cannot be. teller has the text. */
bool batch_recover(batch *b, dart_state *state, const dart_state *teller, dart_status status);
/* Appends row `row` of a call's scores, without one a place that has no meaning. With the job's lock held. false without memory. */
bool batch_add_score(job_sequence *s, const dart_scores *scores, size_t row);
/* With the job's lock held. */
void batch_finish(batch *b, job_sequence *s, const char *reason);
/* The next token of a sequence. true: it was the last one. */
bool batch_accept(batch *b, job_sequence *s, int32_t id, const dart_scores *scores, size_t row);
/* Tells the readers of streams that there is news. */
void batch_wake_streams(job_sequence **sequences, uint32_t count);
/* Room for the scores of that many rows of a call, k each. */
bool batch_prepare_scores(api_scores *room, dart_scores *scores, size_t rows, uint32_t k);

#endif
