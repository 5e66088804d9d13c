/* The thread that computes: a queue in front of a batch. First come, first served, but that a prompt which needs no slot does not wait for one. */
#ifndef DARTLM_SERVE_ENGINE_H
#define DARTLM_SERVE_ENGINE_H

#include "serve/batch.h"

typedef enum engine_state {
    ENGINE_LOADING,
    ENGINE_READY,
    ENGINE_STOPPING, /* what runs is finished, nothing new is taken */
    ENGINE_LOST      /* the device is gone */
} engine_state;

typedef struct engine engine;

/* Without a model yet: engine_submit refuses. queue: sequences that may wait. NULL without memory. */
engine *engine_create(uint32_t queue, metrics *counts);
/* Starts the thread. The model and the tokenizer must outlive the engine. On failure error has the text. */
dart_status engine_start(engine *e, dart_model *model, dart_tokenizer *tokenizer, const batch_options *options, char *error, size_t error_size);
engine_state engine_state_of(engine *e);
/* Queues a job and keeps it until it is over. false with the error: 429 where the queue is full, 503 in other states than ENGINE_READY. */
bool engine_submit(engine *e, job *j, api_error *error);
/* Takes nothing new, and returns when all jobs are over; with `at_once` they fail. */
void engine_stop(engine *e, bool at_once);
void engine_destroy(engine **e);

#endif
