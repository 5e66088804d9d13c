/* One op with its tensors: shapes by letters, buffers on a device, the recorded call. Serves `op` and `bench op`.
 *
 * A new op is one row of operation_kinds: its tensors, the sizes that follow from others, and the call. Its backward pass is one row of
 * operation_backward_kinds, which records the forward call, too.
 */
#ifndef DARTLM_OPERATION_H
#define DARTLM_OPERATION_H

#include "cli.h"

/* The letters of the library's header. */
typedef enum operation_dim {
    DIM_B, DIM_L, DIM_H, DIM_G, DIM_N, DIM_P, DIM_S, DIM_M, DIM_W, DIM_V, DIM_K, DIM_C, DIM_D, DIM_T, DIM_I, DIM_IN, DIM_OUT,
    DIM_R,    /* documents of a packed row */
    DIM_PLAN, /* elements of a plan of dart_embed_plan */
    DIM_COUNT
} operation_dim;

enum {
    TENSOR_IN = 1 << 0,
    TENSOR_OUT = 1 << 1,      /* with IN: replaced by the op */
    TENSOR_OPTIONAL = 1 << 2, /* an input that may be missing, and with OUT is no output then; an output made when given */
    TENSOR_ZERO = 1 << 3,     /* an input that is zero when it is missing */
    TENSOR_STAGE = 1 << 4,    /* an intermediate, made when asked for; without OUT: made by operation_prepare */
    TENSOR_F32 = 1 << 5,      /* f32 whatever the dtype chosen */
    TENSOR_I32 = 1 << 6,
    TENSOR_RAW = 1 << 7,      /* f32 unless the tensor behind it, its scale, is given */
    TENSOR_SETTINGS = 1 << 8, /* dart_sample's: when missing, those of operation_settings in every row, without a penalty */
    TENSOR_POSITIVE = 1 << 9, /* no element is below 0 */
    OPERATION_MAX_TENSORS = 32
};

typedef struct operation_tensor {
    const char *name;
    /* Dimensions with blanks between: letters, letter+1, letter-1, numbers. T stands for any number of dimensions. */
    const char *shape;
    int flags;
} operation_tensor;

typedef struct operation operation;

typedef struct operation_kind {
    const char *name;
    operation_tensor tensors[OPERATION_MAX_TENSORS]; /* up to the first without a name */
    /* Sets sizes that follow from others; may be NULL. */
    void (*derive)(operation *o);
    dart_status (*record)(const operation *o, dart_stream *stream);
    double (*flops)(const operation *o); /* may be NULL */
} operation_kind;
extern const operation_kind operation_kinds[];
/* NULL when there is none. */
const operation_kind *operation_find(const char *name);
enum { OPERATION_NAMES = 256 };
/* "ssd, sma, ..." */
const char *operation_names(char text[OPERATION_NAMES]);

/* ---- Backward passes ----
 * A row has the inputs of the forward op under their names, up.y for the gradient of y that comes in, and as results out.y for what the
 * forward op computes and grad.x for the gradient of x, which is made if x is there. */
extern const operation_kind operation_backward_kinds[];
const operation_kind *operation_find_backward(const char *name);
const char *operation_backward_names(char text[OPERATION_NAMES]);
/* Whether `name` begins with out., up. or grad. as given, such as "grad."; then *of is what follows. */
bool operation_prefixed(const char *name, const char *prefix, const char **of);

typedef struct operation_settings {
    uint32_t S, first, top_k;
    int plan; /* dart_plan */
    bool dt_is_step;
    float dt_min, dt_max, eps, scale, base, clip /* 0: no limit */, temperature, top_p, min_p;
    uint64_t seed;
} operation_settings;

/* Documents that lie one after another in the one row of a file, cu as in the library's header. In the file chunks are counted document by
 * document, and a state is that after the last document; on the device chunks have the library's slots, and each document its state. */
typedef struct operation_packing {
    uint32_t R, longest; /* documents, 0: the file is not packed; tokens of the longest */
    uint64_t slots, chunks;
    uint32_t *slot_of; /* of each chunk */
} operation_packing;

struct operation {
    const operation_kind *kind;
    operation_settings settings;
    uint64_t dims[DIM_COUNT]; /* 0: unknown */
    uint64_t lead[SAFETENSORS_MAX_RANK]; /* the dimensions of T */
    uint32_t lead_rank;
    operation_packing packing;
    bool given[OPERATION_MAX_TENSORS]; /* inputs that are there */
    dart_tensor tensors[OPERATION_MAX_TENSORS];
    uint64_t elements[OPERATION_MAX_TENSORS]; /* of those with a buffer, there */
};

/* Learns sizes from a tensor of that shape. Tells stderr when it does not fit. */
int operation_learn(operation *o, size_t index, const uint64_t *shape, uint32_t rank, const char *where);
/* Makes the operation a packed one, after all sizes of the file were learnt; cu has DIM_R + 1 numbers. */
int operation_pack(operation *o, const int32_t *cu, const char *where);
/* The shape in a file by the sizes known; tells stderr which one is not. */
int operation_shape(const operation *o, size_t index, uint64_t shape[SAFETENSORS_MAX_RANK], uint32_t *rank);
/* The number of a size by its letters ("IN"); DIM_COUNT when there is none. */
operation_dim operation_dim_of(const char *text, size_t length);
bool operation_mentions(const operation_tensor *tensor, operation_dim dim);
/* Values of an input by the sizes known, the same for the same seed, as in a file, for free(). They are such as a trained model has: steps and
 * decays as Mamba-2 starts with, ids below V, the rest around 1. */
int operation_values(const operation *o, size_t index, uint64_t seed, void **values);
/* Writes a file that `op` takes: small sizes, what the op needs, nothing that may be left out. o has its kind; S and the seed are its settings'. */
int operation_example(operation *o, cli_session *session, const char *path);
/* A buffer for a tensor, filled with the values (as in a file; f32, or i32 for TENSOR_I32) or with zeros when values is NULL. */
int operation_place(operation *o, const cli_session *session, size_t index, dart_dtype dtype, const void *values);
/* Between the inputs and the call: makes tensors and checks values that depend on the values of others. */
int operation_prepare(operation *o, const cli_session *session);
/* Element i of a tensor that has TENSOR_SETTINGS. */
int32_t operation_setting(const operation_settings *settings, uint64_t i);
/* The tensor's values as in a file, f32, or i32 for TENSOR_I32, for free(). */
int operation_read(const operation *o, const cli_session *session, size_t index, void **values);
/* Index of the tensor of that name, OPERATION_MAX_TENSORS when there is none. */
size_t operation_index(const operation_kind *kind, const char *name);
/* Arguments of an op: sequences, tokens of one at most, and T, which is 0 unless the sequences are packed. */
static inline uint32_t operation_sequences(const operation *o) { return o->packing.R > 0 ? o->packing.R : (uint32_t)o->dims[DIM_B]; }
static inline uint32_t operation_longest(const operation *o) { return o->packing.R > 0 ? o->packing.longest : (uint32_t)o->dims[DIM_L]; }
static inline uint32_t operation_packed_rows(const operation *o) { return o->packing.R > 0 ? (uint32_t)o->dims[DIM_L] : 0; }
/* Memories of a sequence, at most. */
static inline uint32_t operation_memories(const operation *o)
{
    return o->packing.R > 0 ? dart_ssd_chunks(o->packing.longest, o->settings.S, false) : (uint32_t)o->dims[DIM_M];
}
/* Whether the op writes this tensor here. */
bool operation_is_output(const operation *o, size_t index);
/* Frees the buffers. */
void operation_release(operation *o);

#endif
