/* What the runs of `dartlm train` have in common: their options, steps, reports and saves. */
#ifndef DARTLM_CLI_TRAINING_H
#define DARTLM_CLI_TRAINING_H

#include "cli.h"

/* Where the tokens come from. Both functions depend on nothing but their arguments and the settings, so that a run that is resumed goes on
 * with the same ones. They fill whole rows of L ids and targets. */
typedef struct training_task {
    const char *name; /* "mqar" */
    uint32_t L, batch, steps;   /* tokens of a sequence, sequences of a step, steps of a whole run */
    uint32_t sequences;         /* of a validation */
    void *user;
    void (*fill)(void *user, uint32_t step, int32_t *ids, int32_t *targets);
    void (*fill_validation)(void *user, uint32_t first, uint32_t count, int32_t *ids, int32_t *targets);
} training_task;

typedef struct training_options {
    cli_common common;
    dart_trainer_options adam; /* its B, L, seed and storage types are filled in by training_run */
    uint64_t seed;
    float lr, least; /* peak, and the share of it where the schedule ends */
    uint32_t warmup, rows, steps, every, validate, save;
    int schedule, activations;
    bool resume, profiled;
} training_options;
#define TRAINING_DEFAULTS \
    {.adam = {.beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .weight_decay = 0.1f, .clip = 1}, .seed = 1, .lr = 1e-3f, .warmup = 50, .every = 1, \
     .validate = 512, .save = 512}
#define TRAINING_OPTIONS(t) \
    {"lr", 0, ARGS_F32, "X", &(t).lr, "peak, by default 1e-3", 0, 1e6, false}, \
    {"schedule", 0, ARGS_CHOICE, "linear|cosine", &(t).schedule, "from the peak down, by default linear", 0, 0, false}, \
    {"min-lr", 0, ARGS_F32, "X", &(t).least, "share of the peak at the end, by default 0", 0, 1, false}, \
    {"warm-up", 0, ARGS_U32, "N", &(t).warmup, "steps, by default 50", 0, 0, false}, \
    {"beta1", 0, ARGS_F32, "X", &(t).adam.beta1, "by default 0.9", 0, 1, false}, \
    {"beta2", 0, ARGS_F32, "X", &(t).adam.beta2, "by default 0.999", 0, 1, false}, \
    {"eps", 0, ARGS_F32, "X", &(t).adam.eps, "by default 1e-8", 0, 1, false}, \
    {"weight-decay", 0, ARGS_F32, "X", &(t).adam.weight_decay, "by default 0.1", 0, 1e6, false}, \
    {"clip", 0, ARGS_F32, "X", &(t).adam.clip, "largest norm of the gradients, by default 1; 0: no limit", 0, 1e30, false}, \
    {"seed", 0, ARGS_U64, "N", &(t).seed, "of initial values and data, by default 1", 0, 0, false}, \
    {"rows", 0, ARGS_U32, "N", &(t).rows, "sequences computed together, a divisor of those of a step;\nby default all", 1, 1 << 20, false}, \
    {"keep", 0, ARGS_U32, "LEVEL", &(t).adam.keep, "what is kept for the backward pass, 0 (default) to 3", 0, 3, false}, \
    {"dtype", 0, ARGS_CHOICE, CLI_DTYPES, &(t).common.dtype, "of matrices in the passes, f32 (default) or bf16", 0, 0, false}, \
    {"activations", 0, ARGS_CHOICE, CLI_DTYPES, &(t).activations, "by default as --dtype", 0, 0, false}, \
    {"steps", 0, ARGS_U32, "N", &(t).steps, "stop after the first N, with the rates of all", 1, 0, false}, \
    {"resume", 0, ARGS_FLAG, NULL, &(t).resume, "go on with the run in OUT, with the settings that it has", 0, 0, false}, \
    {"save", 0, ARGS_U32, "N", &(t).save, "after every N steps, by default 512; also at SIGINT and SIGTERM", 1, 0, false}, \
    {"every", 0, ARGS_U32, "N", &(t).every, "report every Nth step", 1, 0, false}, \
    {"validate", 0, ARGS_U32, "N", &(t).validate, "after every N steps, by default 512", 1, 0, false}, \
    {"profile", 0, ARGS_FLAG, NULL, &(t).profiled, "time every launch and print where the time goes; slows the steps", 0, 0, false}, \
    CLI_DEVICE((t).common), CLI_OUTPUT((t).common)

/* Trains a model of the configuration into the folder and returns the exit status. settings, which the call takes over, is an object of what
 * the task's tokens depend on. A mistake in the options is one of the command with this syntax. After SIGINT or SIGTERM the run is saved and
 * the signal then takes its usual course. */
int training_run(const args_syntax *syntax, training_options *options, const training_task *task, const dart_model_config *config,
                 json_t *settings, const char *folder);
#endif
