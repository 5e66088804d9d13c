/* Runs of `dartlm train`: their options, steps, reports, files and signals. A task says what model learns what.
 *
 * A run lives in a folder. training.safetensors there is the whole run after some step, and is replaced every so many steps; model.safetensors
 * appears when the last step is done. A run that ended early, however it ended, goes on with --resume, and leaves the same bits as one
 * that never stopped: rates and batches depend on the step alone, and what else determines numbers is kept as settings and compared. */
#ifndef DARTLM_TRAINING_H
#define DARTLM_TRAINING_H

#include "cli.h"

typedef struct training_options {
    cli_common common;
    dart_trainer_options adam; /* B, L, seed and storages are the module's business */
    float lr, min_lr;          /* min_lr: share of lr */
    uint32_t warmup, rows;     /* rows 0: all of a step */
    uint32_t schedule_steps;   /* 0: all */
    int schedule, activations; /* schedule: 1 linear, 2 cosine; activations: a dart_storage */
    uint64_t seed;
    bool resume, profiled, ranked, sharded;
    const char *rendezvous;
    uint32_t patience; /* s */
    uint32_t steps, every, validate, save; /* steps 0: all */
} training_options;

#define TRAINING_DEFAULTS \
    { \
        .adam = {.beta1 = 0.9f, .beta2 = 0.999f, .eps = 1e-8f, .weight_decay = 0.1f, .clip = 1, .loss_scale = 65536, .scale_steps = 2000}, \
        .lr = 1e-3f, .warmup = 50, .schedule = 1, .seed = 1, .every = 1, .validate = 512, .save = 512, .patience = 45 \
    }

/* Every task trains a new model. */
#define TRAINING_MODEL(L, config, mamba2) \
    {"length", 0, ARGS_U32, "L", &(L), "tokens of a sequence, by default 256", 16, 65536, false}, \
    {"width", 0, ARGS_U32, "W", &(config).W, "of the residual stream, by default 64", 1, 65536, false}, \
    {"layers", 0, ARGS_U32, "N", &(config).layers, "by default 2", 1, 1024, false}, \
    {"state", 0, ARGS_U32, "N", &(config).N, "by default 16", 1, 256, false}, \
    {"head-dim", 0, ARGS_U32, "P", &(config).P, "by default 64; of a Transformer at most half the width", 1, 256, false}, \
    {"chunk-size", 0, ARGS_U32, "S", &(config).S, "by default 16", 1, 65536, false}, \
    {"mamba2", 0, ARGS_FLAG, NULL, &(mamba2), "a Mamba-2: no state memories", 0, 0, false}, \
    {"independent-c", 0, ARGS_FLAG, NULL, &(config).independent_c, "memories are read with a c of their own", 0, 0, false}, \
    {"transformer", 0, ARGS_FLAG, NULL, &(config).transformer, "a Transformer with rotary positions and SwiGLU: no states at all", 0, 0, false}, \
    {"mlp", 0, ARGS_U32, "F", &(config).F, "with --transformer: width of the MLP, by default 8/3 W, rounded up\nto a multiple of 8", 1, 1 << 18, \
     false}
/* P 0: not given. */
#define TRAINING_CONFIG {.layers = 2, .W = 64, .N = 16, .G = 1, .K = 4, .S = 16, .eps = 1e-5f, .sma_eps = 1e-5f}
/* The configuration that the options of TRAINING_MODEL ask for, with V ids. A mistake in them is told as args_mistake does. */
int training_model(const args_syntax *syntax, bool mamba2, uint32_t V, dart_model_config *config);

/* Options of a task that determine the numbers come first in its table, then these, then --resume with all that may change when a run goes on. */
#define TRAINING_SETTINGS(o) \
    {"lr", 0, ARGS_F32, "X", &(o).lr, "peak, by default 1e-3", 0, 1e6, false}, \
    {"schedule", 0, ARGS_CHOICE, "linear|cosine", &(o).schedule, "down from the peak, by default linear", 0, 0, false}, \
    {"min-lr", 0, ARGS_F32, "X", &(o).min_lr, "share of the peak where the schedule ends, by default 0", 0, 1, false}, \
    {"schedule-steps", 0, ARGS_U32, "N", &(o).schedule_steps, "of the schedule, behind which the rate stays; by default all", 1, 0, false}, \
    {"warm-up", 0, ARGS_U32, "N", &(o).warmup, "steps, by default 50", 0, 0, false}, \
    {"beta1", 0, ARGS_F32, "X", &(o).adam.beta1, "by default 0.9", 0, 1, false}, \
    {"beta2", 0, ARGS_F32, "X", &(o).adam.beta2, "by default 0.999", 0, 1, false}, \
    {"eps", 0, ARGS_F32, "X", &(o).adam.eps, "by default 1e-8", 1e-30, 1, false}, \
    {"weight-decay", 0, ARGS_F32, "X", &(o).adam.weight_decay, "by default 0.1", 0, 1e6, false}, \
    {"clip", 0, ARGS_F32, "X", &(o).adam.clip, "largest norm of the gradients, by default 1; 0: no limit", 0, 1e30, false}, \
    {"rows", 0, ARGS_U32, "N", &(o).rows, \
     "sequences computed together, a divisor of those of a step;\nby default all, of several ranks all that a rank has", 1, 1 << 20, false}, \
    {"dtype", 0, ARGS_CHOICE, CLI_DTYPES, &(o).common.dtype, "of matrices in the passes, f32 (default), f16 or bf16", 0, 0, false}, \
    {"activations", 0, ARGS_CHOICE, CLI_DTYPES, &(o).activations, "by default as --dtype", 0, 0, false}, \
    {"loss-scale", 0, ARGS_F32, "S", &(o).adam.loss_scale, \
     "with f16: the loss scale of the first step, a power of two, by\ndefault 65536; halved by a step that is skipped", 1, 4294967296, false}, \
    {"scale-steps", 0, ARGS_U32, "N", &(o).adam.scale_steps, "with f16: steps without a skipped one that double it, by default\n2000", 1, 0, \
     false}, \
    {"seed", 0, ARGS_U64, "N", &(o).seed, "of initial values and data, by default 1", 0, 0, false}
#define TRAINING_RUNNING(o) \
    {"resume", 0, ARGS_FLAG, NULL, &(o).resume, "go on with the run in OUT, with the settings that it has;\nthis option and those below may change", \
     0, 0, false}, \
    {"save", 0, ARGS_U32, "N", &(o).save, "the run after every N steps, by default 512", 1, 0, false}, \
    {"steps", 0, ARGS_U32, "N", &(o).steps, "only the first N, with the rates of all", 1, 0, false}, \
    {"keep", 0, ARGS_U32, "LEVEL", &(o).adam.keep, \
     "what is kept for the backward pass, the rest is computed again:\n0 everything, by default; 1 without norms and convolutions; 2 the\n" \
     "residual stream and a third of SMA's results; 3 the residual\nstream", 0, 3, false}, \
    {"slice-ms", 0, ARGS_U32, "N", &(o).adam.slice_ms, \
     "how long one submission may occupy a GPU, by default 100;\n4294967295: no limit", 0, 0, false}, \
    {"every", 0, ARGS_U32, "N", &(o).every, "report every Nth step", 1, 0, false}, \
    {"validate", 0, ARGS_U32, "N", &(o).validate, "after every N steps, by default 512", 1, 0, false}, \
    {"ranks", 0, ARGS_FLAG, NULL, &(o).ranked, \
     "one of several processes that torchrun, mpirun or srun started,\neach with a device: the sequences of a step are shared out", 0, 0, false}, \
    {"rendezvous", 0, ARGS_TEXT, "HOST:PORT", &(o).rendezvous, \
     "where rank 0 listens; by default MASTER_ADDR and MASTER_PORT of\nthe environment, else 127.0.0.1:29400", 0, 0, false}, \
    {"rank-timeout", 0, ARGS_U32, "S", &(o).patience, \
     "with --ranks: seconds after which a silent rank is given up, by\ndefault 45", 2, 86400, false}, \
    {"shard", 0, ARGS_FLAG, NULL, &(o).sharded, "with --ranks: each keeps a part of AdamW's moments only", 0, 0, false}, \
    {"profile", 0, ARGS_FLAG, NULL, &(o).profiled, "time every launch and print where the time goes; slows the steps", 0, 0, false}, \
    CLI_DEVICE((o).common), \
    CLI_OUTPUT((o).common)
#define TRAINING_ABOUT \
    "The run is saved at the start, every so many steps, at the end, and at SIGINT or SIGTERM after the step under way;\n" \
    "--resume goes on with it exactly, however it ended."

typedef struct training_task {
    const char *name; /* "mqar" */
    const args_syntax *syntax;
    const char *folder;
    const dart_model_config *config;
    const char *data;    /* what the files of a list among the settings hold; NULL for a task without one */
    uint32_t L, batch;   /* tokens of a sequence, sequences of a step */
    uint32_t steps;      /* of the whole schedule */
    uint32_t validation; /* sequences */
    /* documents > 0: a sequence holds up to so many documents, each trained as a sequence of its own; a new one begins behind each id `end`. */
    uint32_t documents;
    int64_t end;
    void *user;
    /* ids and targets of a step, batch x L: the same whatever steps were asked for before. */
    void (*fill)(void *user, uint32_t step, int32_t *ids, int32_t *targets);
    /* Sequence `index` of the validation, L each. */
    void (*fill_validation)(void *user, uint32_t index, int32_t *ids, int32_t *targets);
} training_task;

/* The order of examples in an epoch: depends on the seed, the count and the epoch alone. */
typedef struct training_order {
    uint64_t seed;
    uint32_t count;
    uint32_t *places; /* count, the caller's; those of the epoch asked for last */
    uint32_t epoch;   /* 1 + that epoch */
} training_order;
const uint32_t *training_epoch(training_order *order, uint32_t epoch);

/* Runs the task and returns the program's status, after telling stderr of a failure. Does not return after SIGINT or SIGTERM. */
int training_run(const training_task *task, training_options *options);

#endif
