/* dartlm: training of whole models. Gradients of the loss with respect to every parameter, and steps of AdamW.
 *
 * A trainer has the parameters of one model in f32 (masters), their gradients and both moments of AdamW on a device. What the passes
 * multiply may be stored in 16 bits: then a copy of the masters is rounded after every step. Rows are whole sequences of L tokens, or
 * sequences of any length up to L, packed into B L tokens.
 *
 * f16 ends at 6e-8, and smaller gradients would be lost. With it the passes compute the gradients of the loss times the loss scale, a power of two,
 * which is divided out, to the bit, of all that a caller sees and of what AdamW takes. A step with a gradient that is not finite is skipped and
 * halves the loss scale; after scale_steps steps in a row that were not skipped it doubles. It stays within 1 and 2^32; without f16 it is 1.
 *
 * LAWS, besides those of dartlm.h.
 *   Blocking       Every call but dart_trainer_start, dart_trainer_finish and dart_trainer_poll returns when its work is done.
 *   Threads        A trainer is used by one thread at a time.
 *   Order          The same calls leave the same bits on every device that takes the same variants of kernels.
 *   Lifetime       Destroy trainers before their device.
 *   Failure        A call that fails before its first work on the device changes nothing. A later failure breaks the trainer: every call but
 *                  dart_trainer_destroy and the queries then returns that status.
 *   Errors         dart_trainer_error has the text for calls on a trainer, dart_device_error for dart_trainer_create and dart_trainer_open.
 */
#ifndef DARTLM_TRAIN_H
#define DARTLM_TRAIN_H

#include "dartlm/model.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct dart_trainer dart_trainer;

#define DART_BETA_ZERO (-1.0f)

/* One of several processes that train one model together, each with a device and a trainer of its own: data parallel. All ranks have the same
 * configuration, options and values to begin with; each brings a batch of its own. A step takes all these batches as one: the loss is the
 * mean over the targets of all ranks, gradients are added in the order of the ranks, and every rank takes the same step to the same bits.
 *   dart_trainer_gradient, dart_trainer_step and dart_trainer_start with dart_trainer_finish wait for the same call of all ranks, as do
 *   dart_trainer_create, dart_trainer_open and dart_trainer_resume; results are those of all ranks. Every other call concerns the rank alone.
 * Ranks that differ in configuration, in options that determine numbers, or in count: DART_INVALID_ARGUMENT of the call that creates; values are not
 * compared. A rank whose call fails before it meets the others leaves them waiting in gather, which the program has to end.
 * Gradients are added in buckets of layers, the last layers first, while the backward pass makes the next: where every rank has a CUDA device of its
 * own and NCCL (libnccl.so.2 from 2.14 on, opened at run time) is found, on the devices: a sum of two has the same bits, of more a fixed order of
 * NCCL's. Else they go through host memory and gather. Ranks with B rows each leave the bits of one trainer that takes these rows as the parts of a
 * batch, in the order of the ranks; not with more than one part a rank, nor of a tied model, whose embedding is added to twice a part, nor where
 * the device cannot bind the head's gradient in f32 at once. */
typedef struct dart_ranks {
    uint32_t rank, count;  /* rank < count <= 65536 */
    /* Brings `bytes` bytes of every rank to every rank: all has count times as many, in the order of the ranks, as MPI_Allgather leaves them. Called
     * by the thread of the call; it and user must work as long as the trainer is. A failure is that of the call, and breaks the trainer. */
    dart_status (*gather)(void *user, const void *own, size_t bytes, void *all);
    void *user;
    bool host_sums;        /* no NCCL */
    /* Each rank has a part of the moments only, 8 / count bytes a parameter instead of 8, updates the parameters they belong to, and gets the
     * others: the same bits. dart_trainer_save and dart_trainer_read of moments then wait for the same call of all ranks too; rank 0 writes the
     * files, the same that it writes without, so that any number of ranks goes on with them. All ranks have the same shard. */
    bool shard;
    uint64_t timeout_ns;   /* for what NCCL does together, its connection too, which a rank that died never ends; 0: 45 s. Then the call fails with
                              DART_TIMEOUT. */
} dart_ranks;

typedef struct dart_trainer_options {
    uint32_t B, L;            /* rows that are computed together, 0: 1; tokens of a row */
    uint32_t documents;       /* 0: a row is a sequence. Else B rows hold at most so many sequences (dart_train_batch.cu) */
    dart_storage weights;     /* of the matrices in the passes: f32 (default), f16 or bf16 */
    dart_storage activations; /* default: as the weights. The residual stream and gradients of parameters are always f32. */
    bool no_sma;              /* train as a Mamba-2: parameters of SMA keep their values */
    /* What is kept of each layer for the backward pass, 0 to 3; the rest is computed again. Bits do not depend on it.
     *   0  everything
     *   1  the residual stream, projections, memories, y, r and lse
     *   2  the residual stream, and of every third layer r and lse. SMA of the other two is computed again, which costs time where rows are long;
     *      level 1 computes none again
     *   3  the residual stream
     * Of a Transformer:
     *   0  everything
     *   1  the residual stream before and behind the attention, projections, gate and up, o and lse
     *   2  the residual stream before and behind the attention, o and lse
     *   3  the residual stream */
    uint32_t keep;
    /* AdamW */
    float beta1, beta2;       /* 0: 0.9 and 0.999; DART_BETA_ZERO: 0 */
    float eps;                /* 0: 1e-8 */
    float weight_decay;
    float clip;               /* largest norm of all gradients together; 0: no limit */
    float loss_scale;         /* f16 only: of the first step, a power of two from 1 to 2^32; 0: 65536 */
    uint32_t scale_steps;     /* f16 only; 0: 2000 */
    /* The ends of the names of parameters that weight decay applies to. NULL: matrices of projections, taps of convolutions and the head of
     * an untied model; not the embedding, norms, biases, A_log, D and dt_bias. */
    const char *const *decays;
    uint32_t decays_count;
    uint64_t seed;            /* of initial values */
    bool add_sma;             /* dart_trainer_open only */
    uint64_t timeout_ns;      /* for a wait: of the work of the submissions that are under way, at most five; 0: no limit */
    uint32_t slice_ms;        /* how long one submission may occupy the device; 0: 100 ms; UINT32_MAX: no limit. A step is cut between launches,
                                 and a launch that would take longer by itself into ranges of its workgroups, as for dart_state_options:
                                 by the measured times of earlier steps, the first step by assumed rates. Bits do not depend on it.
                                 dart_trainer_longest returns the longest submission so far */
    /* Optional: called between the submissions of dart_trainer_gradient, dart_trainer_step, dart_trainer_start and dart_trainer_evaluate with tokens
     * that have been passed and tokens of the batch, between parameters that dart_trainer_create, dart_trainer_open, dart_trainer_resume,
     * dart_trainer_save and dart_trainer_export read or write, from the thread of the call. false ends the call with DART_CANCELLED: parameters,
     * moments and loss scale stay as they were, gradients are those of no batch, a prepared batch stays prepared but for dart_trainer_step. Not asked
     * once the update is under way, nor once a sum over several ranks has begun. With several ranks, end the call on every rank or on none. */
    bool (*go_on)(void *user, uint64_t done, uint64_t of);
    void *user;
    const dart_ranks *ranks;  /* copied; NULL: this trainer alone */
} dart_trainer_options;

/* A trainer for a checkpoint's folder. Errors as dart_model_open's; DART_UNSUPPORTED for GPT-NeoX, which has no backward pass. With
 * options.add_sma a Mamba-2 becomes a DART: what it lacks gets initial values, and as the gate is closed, the logits stay as they are. */
DART_API dart_status dart_trainer_open(dart_device *device, const char *folder, const dart_trainer_options *options, dart_trainer **trainer);
/* A trainer for a new model. Initial values depend on the configuration and the seed alone, not on the device:
 *   embedding and head normal, of deviation 0.02; projections and convolutions with their biases uniform within 1 / sqrt(inputs of an output),
 *   out_proj divided by sqrt(layers) besides; norms and D 1; A uniform from 1 to 16; step sizes log-uniform from 0.001 to 0.1;
 *   the row of sma_proj that makes the gate, and rows of padding, 0. */
DART_API dart_status dart_trainer_create(dart_device *device, const dart_model_config *config, const dart_trainer_options *options,
                                         dart_trainer **trainer);
DART_API void dart_trainer_destroy(dart_trainer **trainer);
/* As dart_context_error. */
DART_API size_t dart_trainer_error(const dart_trainer *trainer, char *text, size_t size);

typedef struct dart_train_batch {
    uint32_t count;         /* times B rows; 0: 1. Their gradients are added. */
    const int32_t *ids;     /* count B L, 0 <= id < V */
    /* count B L: the token that the model should say at this one, or -1 for none. Where few tokens of a part have a target, at most half, what the
     * last layer makes of the others behind its scan and attention is not computed: nothing reads it. Gradients are the same but for the order of
     * their sums. */
    const int32_t *targets;
    /* With options.documents, else NULL: count (documents + 1), for each part where its sequences begin in its B L tokens, and its end: from 0
     * to B L, not falling, none longer than L. A sequence may be empty. It is trained as it would be in a row of its own: states, memories
     * and the convolutions' inputs begin with it. */
    const int32_t *cu;
} dart_train_batch;

typedef struct dart_train_result {
    double loss;      /* mean of -log softmax(logits)[target] over the targets */
    uint64_t labels;  /* targets */
    uint64_t correct; /* targets that are the lowest index of the largest logit */
    double norm;      /* of all gradients together, before clipping; infinity where one is not finite */
    bool skipped;     /* such a step changes no parameter and no moment, and is not counted */
    double scale;     /* the loss scale of this step */
} dart_train_result;

/* The gradients of the loss of a batch, for dart_trainer_read. Where one is not finite at the loss scale of the next step, but the loss is,
 * they are computed again with half of it, down to 1; the next step has its loss scale all the same. */
DART_API dart_status dart_trainer_gradient(dart_trainer *trainer, const dart_train_batch *batch, dart_train_result *result);
/* dart_trainer_gradient, then a step of AdamW with gradients scaled by min(1, clip / (norm + 1e-6)). result may be NULL. */
DART_API dart_status dart_trainer_step(dart_trainer *trainer, const dart_train_batch *batch, double lr, dart_train_result *result);
/* The same step in three calls, so that the host has the next batch ready when the device is done:
 *     dart_trainer_prepare(trainer, &first);
 *     for each step: dart_trainer_start(trainer, lr); dart_trainer_prepare(trainer, &following); dart_trainer_finish(trainer, &result);
 * A second step may be started before the first is finished, so that the device does not wait for the host between them; the bits are the same:
 *     dart_trainer_prepare(trainer, &first); dart_trainer_start(trainer, lr); dart_trainer_prepare(trainer, &second);
 *     for each step but the last: dart_trainer_start(trainer, lr of the next one);
 *         dart_trainer_prepare(trainer, &batch after the next one); dart_trainer_finish(trainer, &result);
 *     dart_trainer_finish(trainer, &result);
 * dart_trainer_prepare copies a batch, whose arrays may then change, and replaces one that was prepared before; while one step is under way also to
 * the device, where that need not wait for the step. dart_trainer_step leaves none prepared. dart_trainer_start takes the prepared batch; it returns
 * once all but the last two submissions of the last B rows have run. With several ranks it returns when their gradients are added.
 * With a step under way dart_trainer_start waits for the end of that step in some cases: with f16, as the loss scale depends on its result; with
 * several ranks; behind the first step, and one with a submission that took longer than slice_ms, as the next step is cut by its times; where its
 * update goes in more than two submissions; where the host cannot write to the device's memory beside its work. Otherwise it waits for the passes of
 * that step, and with a batch of several times B rows for its end, while the device goes on with the first of them.
 * dart_trainer_finish waits for the oldest step under way and gives its result. Then it submits the update of the other step, if there is one: AdamW
 * counts the steps that were not skipped. Call it before the passes of the other step have ended, and the device does not wait.
 * Until all steps are finished every other call on the trainer but dart_trainer_prepare, dart_trainer_poll, dart_trainer_destroy and the queries is
 * DART_INVALID_ARGUMENT; so is dart_trainer_start with two steps under way, and dart_trainer_finish with none. When go_on ends the start of a second
 * step, dart_trainer_finish still gives the first. */
DART_API dart_status dart_trainer_prepare(dart_trainer *trainer, const dart_train_batch *batch);
DART_API dart_status dart_trainer_start(dart_trainer *trainer, double lr);
DART_API dart_status dart_trainer_finish(dart_trainer *trainer, dart_train_result *result);
/* Whether dart_trainer_finish would return at once, the oldest step being done: true also where no step is under way. Does not wait. */
DART_API dart_status dart_trainer_poll(dart_trainer *trainer, bool *done);
/* Nanoseconds that the longest submission of a step of this trainer has occupied the device. slice_ms bounds it. */
DART_API uint64_t dart_trainer_longest(const dart_trainer *trainer);
/* The loss alone; norm is 0. */
DART_API dart_status dart_trainer_evaluate(dart_trainer *trainer, const dart_train_batch *batch, dart_train_result *result);
/* Steps that were finished and not skipped. */
DART_API uint64_t dart_trainer_steps(const dart_trainer *trainer);

typedef struct dart_train_parameter {
    const char *name;  /* as checkpoints call it */
    uint32_t rank;
    uint64_t shape[3]; /* ones beyond the rank */
    uint64_t elements;
    bool decays;
} dart_train_parameter;
typedef enum dart_train_values {
    DART_TRAIN_WEIGHT = 0,   /* masters */
    DART_TRAIN_GRADIENT = 1, /* of the last batch, before clipping */
    DART_TRAIN_MEAN = 2,     /* first moment of AdamW */
    DART_TRAIN_SQUARE = 3    /* second moment */
} dart_train_values;
/* false from the number of parameters on. The order is that of checkpoints: embedding, layers, final norm, head. */
DART_API bool dart_trainer_parameter(const dart_trainer *trainer, uint32_t index, dart_train_parameter *parameter);
/* elements numbers of a parameter, f32. */
DART_API dart_status dart_trainer_read(dart_trainer *trainer, dart_train_values values, uint32_t index, float *to);
/* Writes config.json and model.safetensors (f32) to a folder that exists; each file appears when it is complete. */
DART_API dart_status dart_trainer_export(dart_trainer *trainer, const char *folder);

/* ---- Runs that go on ----
 * A run is kept in one file, which replaces the last one when it is complete: whatever ends the program, the folder holds a whole run. */

/* Writes config.json and training.safetensors to a folder that exists: masters under their names, the moments as mean.NAME and square.NAME,
 * the number of steps, a note of the caller's (UTF-8, or NULL), and with f16 the loss scale and the steps that were not skipped since it changed,
 * with a checksum of all of them and of the configuration. */
DART_API dart_status dart_trainer_save(dart_trainer *trainer, const char *folder, const char *note);
/* A trainer as it was when it was saved: with the same options and batches it leaves the same bits as one that went on. DART_BAD_DATA where the
 * checksum does not hold. Options are the caller's, but the configuration, the values and the loss scale are the folder's: seed and add_sma have no
 * effect, loss_scale only on a run that was saved without f16. */
DART_API dart_status dart_trainer_resume(dart_device *device, const char *folder, const dart_trainer_options *options, dart_trainer **trainer);
/* The note of the run that a trainer was resumed from, "" without one; lives as long as the trainer. NULL for a trainer that was not resumed. */
DART_API const char *dart_trainer_note(const dart_trainer *trainer);

#ifdef __cplusplus
}
#endif
#endif
