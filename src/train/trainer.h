/* dart_trainer: parameters with their gradients and moments, activations of all layers, and the recordings of a step. */
#ifndef DART_TRAINER_H
#define DART_TRAINER_H

#include "dartlm/train.h"
#include "model/block.h"
#include "model/transformer.h"
#include "checkpoint/config.h"
#include "checkpoint/safetensors.h"
#include "runtime/stream.h"

/* Parameters that AdamW treats alike lie one after another in one set of buffers, so that one call updates them all. What lies between
 * them is 0 and stays so. */
typedef struct trainer_segment {
    bool decays, copied; /* copied: the passes read `copy`, in the dtype of weights; else w itself */
    uint64_t elements;
    /* Moments may be shared out: rank r has those of the `share` elements from r share on, as far as there are so many. This rank has those of `own`
     * elements from `first` on, which it updates. m and v begin with them. Alone 0 and all. */
    uint64_t share, first, own;
    dart_buffer *w, *m, *v, *grad, *copy;
} trainer_segment;

typedef struct trainer_parameter {
    model_parameter is;
    bool decays;
    uint32_t segment;
    uint64_t at; /* first element in the segment */
} trainer_parameter;

/* Activations of a layer. A layer that keeps an activation (options.keep) has its own buffer for it; all other layers share one. */
typedef enum trainer_work {
    TRAINER_X, /* f32 T W: the residual stream before the layer; the stream behind the last layer comes after them */
    TRAINER_INPUT,
    TRAINER_PROJ,
    TRAINER_CONV,
    TRAINER_SMA_PROJ,
    TRAINER_SMA_CONV,
    TRAINER_R,
    TRAINER_Y,
    TRAINER_NORMED,
    TRAINER_DH,       /* memories: in f32 raw, in 16 bits normalised */
    TRAINER_DH_SCALE, /* in 16 bits only */
    TRAINER_LSE,
    /* Of a Transformer, besides X, INPUT, PROJ ([q|k|v]), Y (o), NORMED (the input of the MLP) and LSE. */
    TRAINER_MIDDLE, /* f32 T W: the stream behind the attention */
    TRAINER_MLP,
    TRAINER_HIDDEN,
    TRAINER_WORK_COUNT
} trainer_work;

/* Gradients of activations, shared by all layers, and what a batch brings. */
typedef enum trainer_shared {
    TRAINER_SLOPE_X,
    TRAINER_SLOPE_INPUT,
    TRAINER_SLOPE_PROJ,
    TRAINER_SLOPE_CONV,
    TRAINER_SLOPE_SMA_PROJ,
    TRAINER_SLOPE_SMA_CONV,
    TRAINER_SLOPE_NORMED,
    TRAINER_SLOPE_Y,
    TRAINER_SLOPE_R,
    TRAINER_SLOPE_DH,
    TRAINER_SLOPE_MLP,
    TRAINER_SLOPE_HIDDEN,
    TRAINER_PART,   /* a part of a batch, as trainer_part says */
    TRAINER_AHEAD,  /* the same of the next one, written while the passes run, where the host can do that */
    TRAINER_SUMS,   /* of the passes since TRAINER_BEGIN, as trainer_sum says */
    TRAINER_RESULT, /* a copy of the sums behind the update, which the host reads while the passes of the next step make new sums */
    TRAINER_HYPER,  /* f32 8, as dart_adamw reads it */
    TRAINER_SHARED_COUNT
} trainer_shared;

/* What the passes read of a part of a batch, one after another in one tensor. */
typedef enum trainer_part {
    TRAINER_IDS,
    TRAINER_PLAN,
    TRAINER_CU,      /* documents + 1 */
    TRAINER_PLACES,  /* T: for each row its token, one with a target, or -1 */
    TRAINER_ROW_OF,  /* T: for each token its row, or -1 */
    TRAINER_TARGETS, /* T: for each row its target, or -1 */
    TRAINER_SEQ,     /* 2 B: for each sequence what model_block_labelled says */
    TRAINER_SHARE,   /* f32 2: S / targets of the batch, 1 / S */
    TRAINER_PART_END
} trainer_part;

/* What passes and the norm of the gradients add up to, TRAINER_SUM elements each in one tensor. */
typedef enum trainer_sum {
    TRAINER_LOSS,    /* f32 */
    TRAINER_CORRECT, /* i32 */
    TRAINER_SCALE,   /* f32 4, as dart_grad_norm leaves it */
    TRAINER_SUM_COUNT
} trainer_sum;
#define TRAINER_SUM 64u

/* What is recorded once and submitted again. */
typedef enum trainer_recording {
    TRAINER_TAKE,     /* TRAINER_AHEAD becomes TRAINER_PART */
    TRAINER_BEGIN,    /* the same where there is a TRAINER_AHEAD, and gradients and sums become 0 */
    TRAINER_PASSES,   /* forward and backward of B rows, in a submission each or more */
    TRAINER_NORM,
    TRAINER_UPDATE,   /* the norm, AdamW, and the sums become TRAINER_RESULT */
    TRAINER_EVALUATE, /* forward of B rows */
    TRAINER_RECORDING_COUNT
} trainer_recording;

/* Where a recording is cut into submissions: at these launches. Found by the times of the first run, and again when one was too long. */
typedef struct trainer_slices {
    stream_cut *cuts;
    uint32_t count;
    uint64_t *ns; /* of the parts in the run under way */
    uint32_t room, done;
    bool known;     /* the cuts are by measured times */
    bool overlong;  /* since then a submission that can be cut took too long */
    uint32_t again; /* times that cuts were found anew */
} trainer_slices;

/* The rows that the loss, the last norm and, where trainer_is_labelled, the end of the last layer are computed for: so many that they hold the
 * tokens with a target of any part of the batch. */
typedef struct trainer_rows {
    uint32_t count;
    /* Above 0: rows lie in the order of chunks, as model_block_labelled says: so many for each chunk from that one on. */
    uint32_t of_chunk, first_chunk;
    uint32_t quiet; /* where trainer_is_labelled: the tokens of whole chunks of a sequence before any with a target */
} trainer_rows;

/* Where the tokens with a target lie in the parts of a batch, which decides on its rows. */
typedef struct trainer_spread {
    uint32_t part, chunk; /* the most of a part and of a chunk */
    uint32_t first;       /* the first token that has one, in any sequence */
} trainer_spread;

/* A batch as the passes take it: `count` parts of T tokens. */
typedef struct trainer_batch {
    uint32_t count, room; /* 0: nothing is prepared; parts that there is memory for */
    uint64_t labels;      /* targets */
    trainer_spread spread;
    trainer_rows rows;    /* of each part */
    int32_t *parts;       /* each trainer_part_at(TRAINER_PART_END) elements */
    uint32_t ahead;       /* 1 + the part that lies in TRAINER_AHEAD; 0: none */
} trainer_batch;

/* A step that dart_trainer_start began and dart_trainer_finish has not given yet. */
typedef struct trainer_step {
    uint64_t labels;  /* targets of all ranks */
    double lr, scale; /* scale: S */
    bool updates;     /* its update has been submitted, which the step before decides: AdamW counts the steps that were not skipped */
    bool done;        /* `result` is here */
    dart_train_result result;
} trainer_step;
enum { TRAINER_STEPS = 2, TRAINER_IN_FLIGHT = 2 }; /* steps; parts of a recording that are on the queue */

/* Gradients that are added over the ranks together, while the passes go on: of parameters first .. end - 1. They are complete behind that part of
 * the passes. */
typedef struct trainer_bucket {
    uint32_t first, end, part;
} trainer_bucket;

struct dart_trainer {
    dart_device *device;
    base_report report;
    dart_status broken;
    dart_model_config config;
    dart_trainer_options options; /* with the defaults filled in; decays is not kept */
    dart_dtype weights_dtype, activations;
    uint32_t T; /* B L */
    bool sma;   /* some token reads a memory */
    uint64_t steps; /* that are done and were not skipped */
    /* Gradients on the device are those of S times the loss, S a power of two; 1 unless something is stored in f16. */
    bool scales;
    double scale, scaled; /* S of the next step; of the gradients that are there */
    uint32_t good;        /* steps in a row at this S that were not skipped */
    trainer_parameter *parameters;
    uint32_t parameters_count;
    trainer_segment *segments;
    uint32_t segments_count;
    dart_tensor *weights, *gradients; /* [layer][role] */
    dart_buffer **work[TRAINER_WORK_COUNT];
    uint32_t work_count[TRAINER_WORK_COUNT];
    dart_buffer *shared[TRAINER_SHARED_COUNT]; /* no TRAINER_AHEAD where the host would wait for the passes */
    dart_stream *streams[TRAINER_RECORDING_COUNT];
    bool recorded[TRAINER_RECORDING_COUNT], under_way[TRAINER_RECORDING_COUNT];
    trainer_slices slices[TRAINER_RECORDING_COUNT];
    uint64_t slice_ns, longest_ns; /* that a submission should take, UINT64_MAX: no limit; that one has taken */
    double most_work;              /* operations of a submission before anything is measured; 0: no limit */
    uint64_t done, of;             /* tokens of the step under way whose passes have run; of all its rows */
    trainer_rows rows; /* of the passes as they are recorded */
    trainer_batch next, aside; /* of the step to come; of a call between steps */
    trainer_step begun[TRAINER_STEPS]; /* the oldest first. It updates or is done; the second updates once the first is done */
    uint32_t begun_count;
    char *note;    /* of the run that it goes on with, or NULL */
    dart_ranks ranks; /* count 0: this trainer alone */
    void *group;      /* the backend's, of all ranks; NULL: sums go through host memory */
    trainer_bucket *buckets; /* in the order in which they are complete */
    uint32_t buckets_count, added; /* added: buckets whose sums have begun */
    bool adding;      /* the passes under way complete the gradients of a batch */
};

/* Of a call that visits each parameter so many times. */
base_progress trainer_progress(const dart_model_config *config, const dart_trainer_options *options, uint32_t times);
/* A trainer of a checked configuration, with the values of a checked file where that has them, else initial ones; file may be NULL. progress
 * advances by one a parameter. */
dart_status trainer_make(dart_device *device, const dart_model_config *config, const safetensors *file, const dart_trainer_options *options,
                         base_progress *progress, const char *call, dart_trainer **trainer);

/* Gives every parameter its place, and makes the buffers. */
dart_status trainer_place(dart_trainer *trainer);
void trainer_unplace(dart_trainer *trainer);
/* The tensor of a parameter, of layer 0 where it belongs to none. */
const dart_tensor *trainer_weight(const dart_trainer *trainer, uint32_t layer, model_role role);
const dart_tensor *trainer_gradient(const dart_trainer *trainer, uint32_t layer, model_role role);
/* Writes a parameter's masters, and their copies. */
dart_status trainer_write(dart_trainer *trainer, uint32_t index, const float *values);
/* Writes a moment, DART_TRAIN_MEAN or DART_TRAIN_SQUARE, as far as it is this rank's. */
dart_status trainer_write_moment(dart_trainer *trainer, dart_train_values values, uint32_t index, const float *from);

/* Initial values of a parameter. */
void trainer_initial(const dart_trainer *trainer, uint32_t index, float *values);

/* Buffers of activations. */
dart_status trainer_allocate(dart_trainer *trainer);
bool trainer_layer_keeps(const dart_trainer *trainer, trainer_work work, uint32_t layer);
dart_tensor trainer_work_tensor(const dart_trainer *trainer, trainer_work work, uint32_t layer);
dart_tensor trainer_shared_tensor(const dart_trainer *trainer, trainer_shared shared);

/* Whether tokens with a target are so few that copies of their rows pay. Then two times these rows are no more than all rows, so that one tensor of
 * the last layer has room for two copies. */
static inline bool trainer_few_rows(const dart_trainer *trainer, const trainer_rows *rows) { return 2 * (uint64_t)rows->count <= trainer->T; }
static inline bool trainer_is_labelled(const dart_trainer *trainer) { return trainer_few_rows(trainer, &trainer->rows); }

/* The first element of a member of a part; of TRAINER_PART_END how many there are. A multiple of 64. */
uint64_t trainer_part_at(const dart_trainer *trainer, trainer_part member);
dart_tensor trainer_part_tensor(const dart_trainer *trainer, trainer_part member);
dart_tensor trainer_sum_tensor(const dart_trainer *trainer, trainer_sum sum);
/* Checks a batch and copies it; with `planned` sorts its ids for the gradient of the embedding. A failure leaves `to` unprepared. */
dart_status trainer_prepare(dart_trainer *trainer, trainer_batch *to, const dart_train_batch *batch, bool planned, const char *call);
/* Gives a batch the rows that one of all ranks would have: the same sums, to the bit. */
dart_status trainer_share_rows(dart_trainer *trainer, trainer_batch *batch, const trainer_spread *of_all, const char *call);
static inline bool trainer_same_rows(const trainer_rows *a, const trainer_rows *b)
{
    return a->count == b->count && a->of_chunk == b->of_chunk && a->first_chunk == b->first_chunk && a->quiet == b->quiet;
}
void trainer_batch_free(trainer_batch *batch);
/* The S of a run, a power of two from 1 to 2^32: the square of a gradient of 1e5 is still far from the end of f32. Whether a trainer may have it. */
#define TRAINER_LARGEST_SCALE 4294967296.0
bool trainer_is_scale(double scale);

/* Whether the passes are cut between forward and backward, so that the next passes can be submitted before these have ended. Launches that are
 * profiled are timed in one submission. */
static inline bool trainer_halves(const dart_trainer *trainer)
{
    return trainer->shared[TRAINER_AHEAD] != NULL && trainer->device->profile == NULL;
}
/* Records what is not recorded yet. */
dart_status trainer_record(dart_trainer *trainer, trainer_recording recording, const char *call);

/* ---- Submissions ---- */

/* How long they may be, by the options and the device. */
void trainer_limit(dart_trainer *trainer);
void trainer_forget_slices(dart_trainer *trainer);
/* Says where a stream that is about to record is cut. */
void trainer_cut(const dart_trainer *trainer, trainer_recording recording);
/* Submits a recording, part by part, and waits for earlier ones, of its last run too, so that at most two are in flight; of a recording that is one
 * part, one. With `asks` go_on is asked before each part. */
dart_status trainer_submit(dart_trainer *trainer, trainer_recording recording, bool asks, const char *call);
/* Whether nobody has to wait for a recording to cut it anew. */
bool trainer_is_settled(const dart_trainer *trainer, trainer_recording recording);
/* For the submissions of a recording; for all. */
dart_status trainer_wait_for(dart_trainer *trainer, trainer_recording recording, const char *call);
dart_status trainer_wait(dart_trainer *trainer, const char *call);
/* What go_on says, of so many things done of so many. DART_CANCELLED does not break the trainer. */
dart_status trainer_ask(dart_trainer *trainer, uint64_t done, uint64_t of, const char *call);
/* What the launches that are recorded next do, for the first cuts: a layer, its gradients, the loss, or launches that together move so many
 * bytes. */
void trainer_pace_layer(const dart_trainer *trainer, dart_stream *stream, bool backward);
void trainer_pace_head(const dart_trainer *trainer, dart_stream *stream);
void trainer_pace_bytes(const dart_trainer *trainer, dart_stream *stream, uint64_t bytes, uint32_t launches);

/* ---- Several ranks. All of these wait for the other ranks; of a trainer alone they do nothing but copy. ---- */

/* Compares the ranks' models and options, and makes the group that adds on the devices, where there can be one. Errors go to the device's report. */
dart_status trainer_join(dart_trainer *trainer, const char *call);
void trainer_leave(dart_trainer *trainer);
static inline uint32_t trainer_ranks(const dart_trainer *trainer) { return trainer->ranks.count > 0 ? trainer->ranks.count : 1; }
/* Bytes of all ranks, in their order; a failure breaks the trainer. */
dart_status trainer_gather(dart_trainer *trainer, const void *own, size_t bytes, void *all, const char *call);
/* What is recorded next follows the gradients of a stage: 0 is the embedding's, layer l's 1 + l, the last norm's and the head's the next. */
void trainer_end_stage(const dart_trainer *trainer, dart_stream *stream, uint32_t stage);
/* Begins to replace the gradients by their sums over the ranks, in their order: those that are complete behind the first `parts` parts of the
 * passes, which have been submitted, or have run where sums go through host memory. */
dart_status trainer_add(dart_trainer *trainer, uint32_t parts, const char *call);
/* The rest of them, and until all are added. The passes have run. */
dart_status trainer_end_sums(dart_trainer *trainer, const char *call);
/* Whether each rank has a part of the moments only. */
static inline bool trainer_is_sharded(const dart_trainer *trainer) { return trainer->ranks.shard && trainer->ranks.count > 1; }
/* Behind an update of the own elements: begins to bring all ranks those of the others, where that goes on the device; until all are here. */
dart_status trainer_share(dart_trainer *trainer, const char *call);
dart_status trainer_end_share(dart_trainer *trainer, const char *call);
/* A moment of all elements of a segment, of which every rank has a part. */
dart_status trainer_gather_moment(dart_trainer *trainer, dart_train_values values, const trainer_segment *segment, float *to, const char *call);

/* What a failure is on that device: a lost one gives no host memory either. */
dart_status trainer_failure(const dart_device *device, dart_status status);
/* Copies the text of a failure on the device or a stream to the trainer's report, and breaks the trainer. A stream without a text has not seen
 * the failure: then the device has the text. */
dart_status trainer_take(dart_trainer *trainer, dart_status status, const char *call);
dart_status trainer_take_stream(dart_trainer *trainer, const dart_stream *stream, dart_status status, const char *call);
/* DART_OK unless the trainer is broken or a step has begun and is not finished. */
dart_status trainer_idle(dart_trainer *trainer, const char *call);
#endif
