/* The batches of a training, made by a thread of their own: the next one while the trainer learns from the one before. */
#ifndef DARTLM_BATCHES_H
#define DARTLM_BATCHES_H

#include "training.h"

typedef struct batches batches;

/* Batches of steps first .. end - 1. From here on the thread calls task->fill, one call at a time. Tells stderr of a failure. */
int batches_open(const training_task *task, uint32_t first, uint32_t end, batches **made);
/* Waits for the next batch, and has the one after it made. ids and targets: task->batch x task->L, until the next call. */
void batches_next(batches *made, const int32_t **ids, const int32_t **targets);
/* Waits until the thread has nothing to do, which holds until the next batches_next: others may use what task->fill uses. */
void batches_rest(batches *made);
void batches_close(batches **made);

#endif
