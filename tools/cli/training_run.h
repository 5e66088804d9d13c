/* A run of `dartlm train`, for the files of training.h only: its steps are in training.c, what it keeps in training_files.c. */
#ifndef DARTLM_TRAINING_RUN_H
#define DARTLM_TRAINING_RUN_H

#include "batches.h"

#include "ranks.h"

typedef struct run {
    const training_task *task;
    const training_options *o;
    cli_ranks ranks; /* of a single process: rank 0 of 1 */
    cli_session session;
    dart_trainer *trainer;
    json_t *settings;
    file_lock *lock;        /* of the folder */
    uint32_t rows;          /* computed together */
    uint32_t parts;         /* times rows: sequences of a step that are this rank's */
    uint32_t step, end;     /* steps taken, steps to take */
    uint32_t begun;         /* steps taken or under way: at most two more than those taken */
    bool prepared;          /* the batch of step `begun` */
    batches *batches;       /* of the steps from here on */
    int32_t *ids, *targets; /* of rows of the validation */
    int32_t *cu;            /* documents of a step, or of these rows, as dart_train_batch takes them, or NULL */
    uint64_t start;
    uint32_t taken;      /* steps of this program */
    uint64_t timed_from; /* when step timed_step began, with none under way */
    uint32_t timed_step;
    uint64_t preparing_ns, step_ns; /* of the last step that went by itself: preparing the next batch, beside it; all of it */
    double speed;        /* tokens a second since then */
} run;

/* Rank 0 keeps the run's files, validates and prints. */
static inline bool training_is_first(const run *r) { return r->ranks.is.rank == 0; }

/* The library scales the loss. */
static inline bool training_in_f16(const training_options *o)
{
    return o->common.dtype == DART_STORAGE_F16 || o->activations == DART_STORAGE_F16;
}

/* Of the functions below each tells stderr of a failure, and gives the program's status. */

/* run.settings: all options ahead of --resume, but for those that only f16 has. */
int training_collect_settings(run *r);
/* Before any work: a new run overwrites no file of value, and --resume finds one. */
int training_check_folder(const run *r);
/* From here on no other program trains into the folder. */
int training_lock_folder(run *r);
int training_begin(run *r, const dart_trainer_options *options);
/* The settings must be those that the run has. */
int training_resume(run *r, const dart_trainer_options *options);
/* With --shard all ranks bring their moments to the first. */
int training_save(run *r);

#endif
