/* dartlm, tier 2: whole models. Load a checkpoint, feed tokens, take logits or sampled tokens.
 *
 * A model is the weights on a device; it does not change once it is made. A state is a batch of B sequences, each
 * with its own position, and everything that has to be kept of their past. Any number of states may share a model.
 *
 * LAWS, besides those of dartlm.h.
 *   One function   Prefill in one piece, in pieces of any lengths, and decoding token by token give the same logits
 *                  within rounding. Sequences of a batch do not see one another.
 *   Blocking       Every call returns when its work is done, unless stated otherwise.
 *   Threads        A model may be used from several threads at once. A state is used by one thread at a time, several
 *                  states of one model concurrently.
 *   Lifetime       States go before their model, models before their device.
 *   Failure        A call that fails before its first work on the device leaves the state as it was: invalid
 *                  arguments, and memory that could not be had before the first piece. A failure after that breaks the
 *                  state: every later call but dart_state_reset, the queries and dart_state_destroy returns that same
 *                  status, and resetting all sequences mends it (a lost device stays lost).
 *   Errors         The text lies in dart_state_error for calls on a state, in dart_model_error for states that could
 *                  not be created, and in dart_device_error for models that could not.
 */
#ifndef DARTLM_MODEL_H
#define DARTLM_MODEL_H

#include "dartlm/dartlm.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Configurations ------------------------------------------------------------------------------------------ */

/* The numbers of config.json, under the letters of the glossary. */
typedef struct dart_model_config {
    bool sma;             /* model_type: dart, or mamba2 */
    bool tied;            /* tie_word_embeddings: lm_head is the embedding */
    bool no_conv_bias;    /* not use_conv_bias */
    uint32_t V;           /* vocab_size */
    uint32_t W;           /* hidden_size */
    uint32_t layers;      /* num_hidden_layers */
    uint32_t H;           /* num_heads */
    uint32_t P;           /* head_dim; H P is a multiple of W */
    uint32_t G;           /* n_groups */
    uint32_t N;           /* state_size */
    uint32_t K;           /* conv_kernel */
    uint32_t S;           /* chunk_size */
    float eps;            /* layer_norm_epsilon */
    float sma_eps;        /* sma_norm_epsilon */
    float dt_min, dt_max; /* time_step_limit; dt_max 0: no limit */
} dart_model_config;

/* Reads folder/config.json. DART_IO, DART_BAD_DATA (the text names key, value and range), or DART_UNSUPPORTED for
 * settings that no kernel of this library computes. error, optional, receives the text, cut to error_size bytes. */
DART_API dart_status dart_config_load(const char *folder, dart_model_config *config, char *error, size_t error_size);
/* The sizes of the DART and Mamba-2 papers: mamba2-130m, mamba2-370m, mamba2-780m, dart-130m, dart-370m, dart-780m.
 * DART_INVALID_ARGUMENT for other names. */
DART_API dart_status dart_config_preset(const char *name, dart_model_config *config);
/* Number of parameters: elements of all tensors of a checkpoint. 0 for a configuration that is out of range. */
DART_API uint64_t dart_config_parameters(const dart_model_config *config);

/* ---- Models -------------------------------------------------------------------------------------------------- */

typedef struct dart_model dart_model;

/* A storage type of the caller's choice, or the library's. */
typedef enum dart_storage {
    DART_STORAGE_DEFAULT = 0,
    DART_STORAGE_F32 = 1,
    DART_STORAGE_F16 = 2,
    DART_STORAGE_BF16 = 3
} dart_storage;

typedef struct dart_model_options {
    dart_storage weights;     /* of the matrices; default: as in the file. Vectors and convolutions are f32. */
    dart_storage activations; /* between ops of a layer; default: that of the weights on a GPU with matrix hardware for
                                 it, else f32. The residual stream is f32. */
    dart_storage memories;    /* of closed chunks; default: that of the weights */
    bool skip_nan_check;      /* load without looking for NaN and infinite weights */
} dart_model_options;

typedef struct dart_model_info {
    dart_model_config config;
    dart_dtype weights, activations, memories;
    uint64_t parameters;
    uint64_t bytes; /* of device memory */
} dart_model_info;

/* Loads config.json and the safetensors of a folder. The file is mapped and its tensors go to the device one after
 * another: apart from the device's memory this needs a few MiB and pages of the file, which the system may drop.
 * options may be NULL. DART_IO, DART_BAD_DATA (missing, misshapen or NaN tensors, by name). */
DART_API dart_status dart_model_open(dart_device *device, const char *folder, const dart_model_options *options,
                                     dart_model **model);
/* Random weights, the same for the same seed on every device: scaled so that activations keep their size, with the step
 * sizes and decays of Mamba-2's initialisation. The default storage of weights is f32. For benchmarks and tests. */
DART_API dart_status dart_model_random(dart_device *device, const dart_model_config *config, uint64_t seed,
                                       const dart_model_options *options, dart_model **model);
DART_API void dart_model_destroy(dart_model **model);
DART_API dart_status dart_model_describe(const dart_model *model, dart_model_info *info);
/* As dart_context_error. */
DART_API size_t dart_model_error(const dart_model *model, char *text, size_t size);

/* ---- States -------------------------------------------------------------------------------------------------- */

typedef struct dart_state dart_state;

typedef struct dart_state_options {
    uint32_t B;            /* sequences; 0: 1 */
    uint32_t S;            /* chunk size; 0: the configuration's. Need not be the one of training. */
    bool no_sma;           /* leave the memories out (the paper's ablation); a mamba2 model has none anyway */
    uint32_t max_piece;    /* tokens of all sequences that are computed together; 0: 4096 on a discrete GPU, else 1024 */
    uint32_t memory_block; /* memories of a sequence that are allocated together; 0: 1024 tokens' worth, then half of
                              what there is */
    uint64_t timeout_ns;   /* for the work of one submission, the clearing in dart_state_create and dart_state_reset included;
                              0: no limit. DART_TIMEOUT breaks the state. */
    uint32_t slice_ms;     /* how long one submission may keep the device, as far as whole layers of a piece and whole steps
                              allow, by the measured time of earlier ones; 0: 100 ms, so that desktops and watchdogs do not
                              notice; UINT32_MAX: no limit, for servers. Results do not depend on it. */
} dart_state_options;

/* Empty sequences at position 0. options may be NULL. DART_UNSUPPORTED when B sequences exceed what one kernel of the
 * device can see: the text names the largest B. */
DART_API dart_status dart_state_create(dart_model *model, const dart_state_options *options, dart_state **state);
DART_API void dart_state_destroy(dart_state **state);
/* Makes ready all code that prefill and decoding of this state will need, on several threads; without it the first calls
 * compile what they meet. What was compiled can be kept with dart_device_cache. Blocking; changes no sequence. */
DART_API dart_status dart_state_warm(dart_state *state);
/* Sequence b, or all with b < 0, becomes empty at position 0, as new, and tokens that an earlier call chose are forgotten.
 * Resetting all mends a broken state; results afterwards are bit-equal to those of a new state that is used alike. A sequence
 * that is reset alone gives results equal to a new one's within rounding, as its memories lie in blocks with those of the
 * others, and sums are cut where blocks end. Memory stays allocated for what comes next; a later call that needs a block of
 * memories larger than those kept frees them first. */
DART_API dart_status dart_state_reset(dart_state *state, int32_t b);
/* Tokens consumed by sequence b; 0 for b >= B. */
DART_API uint64_t dart_state_position(const dart_state *state, uint32_t b);
/* Has sequence b ended, by the settings of the last call that chose tokens? See dart_sampling. false for b >= B. */
DART_API bool dart_state_ended(const dart_state *state, uint32_t b);
DART_API size_t dart_state_error(const dart_state *state, char *text, size_t size);

typedef enum dart_state_kind {
    DART_STATE_CONVOLUTION = 0, /* the last K-1 inputs of both convolutions */
    DART_STATE_RECURRENT = 1,   /* h, with SMA the open chunk, and windows of newest tokens once steps go through them */
    DART_STATE_MEMORIES = 2,    /* allocated for memories of closed chunks, with their scales */
    DART_STATE_MEMORIES_USED = 3, /* of it holding memories now */
    DART_STATE_WORKSPACE = 4,   /* activations of a piece, logits, ids; without the ops' own scratch memory */
    DART_STATE_KV_CACHE = 5     /* for comparison: what keys and values of all heads would take for the same tokens,
                                   2 H P elements a token and layer of the memories' dtype */
} dart_state_kind;
/* Bytes on the device, of all layers and sequences. */
DART_API uint64_t dart_state_bytes(const dart_state *state, dart_state_kind kind);

/* ---- Feeding tokens ------------------------------------------------------------------------------------------ */

enum { DART_END_IDS = 4 }; /* most end ids of a sequence */

/* How the next token is chosen, and when a sequence ends; zero: the largest logit, never. See dart_sample. The random number is
 * that of (seed, tokens so far, b), so a sequence goes on alike whether it was prefilled or decoded.
 *
 * Calls take one dart_sampling for all sequences or B, one a sequence: `sampling` with `sampling_count` 0 or 1, or B. The settings lie
 * on the device beside what is recorded, so another choice of them costs a small copy.
 *
 * A sequence has ended when the token chosen last is one of its end ids, or when it has consumed last_position tokens; both by the
 * settings of the call, so other settings may let it go on. dart_decode without ids and dart_generate leave a sequence that has
 * ended as it is, its position, memories and last token, while others go on. Tokens that the caller feeds go to ended
 * sequences, too. */
typedef struct dart_sampling {
    float temperature; /* 0: the largest logit */
    uint32_t top_k;    /* 0: all */
    uint64_t seed;
    uint64_t last_position;         /* dart_state_position at which the sequence ends; 0: none */
    uint32_t end_ids_count;
    int32_t end_ids[DART_END_IDS];  /* the first end_ids_count of them count; 0 <= id < V */
} dart_sampling;

typedef enum dart_logits_of {
    DART_LOGITS_NONE = 0,
    DART_LOGITS_LAST = 1, /* B V: after the newest token of each sequence, were it fed by this call or an earlier one;
                             zeros for a sequence without tokens */
    DART_LOGITS_ALL = 2,  /* B L V: after every token; rows past a sequence's count are left alone */
    DART_LOGITS_ROWS = 3  /* rows_count V: after the tokens rows_i = b L + t, in any order */
} dart_logits_of;

typedef struct dart_prefill_args {
    const int32_t *ids;     /* B L, 0 <= id < V; those past a sequence's count are not looked at */
    uint64_t ids_row;       /* elements from one sequence to the next; 0: L */
    uint32_t L;             /* tokens of the longest sequence of this call */
    const uint32_t *counts; /* B: tokens of each sequence, 0..L; a sequence with 0 stays as it is. NULL: L each */
    dart_logits_of want;
    const uint64_t *rows;   /* DART_LOGITS_ROWS */
    size_t rows_count;
    float *logits;          /* as `want` says */
    const dart_sampling *sampling; /* optional: choose every sequence's next token, for dart_decode to take */
    uint32_t sampling_count;
    int32_t *next_ids;      /* B, optional: the tokens chosen */
    bool (*go_on)(void *user); /* optional: asked between submissions; false: DART_CANCELLED, which breaks the state */
    void *user;
} dart_prefill_args;
/* Consumes up to L tokens of every sequence. A long input is computed in pieces of at most max_piece tokens, a piece in
 * submissions of at most slice_ms; ids, rows and memory for all of it are seen to before the first. */
DART_API dart_status dart_prefill(dart_state *state, const dart_prefill_args *args);

typedef struct dart_decode_args {
    const int32_t *ids;     /* B, or NULL: those that the last call with sampling left on the device */
    const dart_sampling *sampling; /* NULL: the largest logit */
    uint32_t sampling_count;
    float *logits;          /* B V, optional; without ids, rows of sequences that had ended are left alone */
    int32_t *next_ids;      /* B, optional: the tokens chosen; without ids, -1 for a sequence that had ended */
} dart_decode_args;
/* Consumes one token of every sequence, without ids of those that have not ended, and chooses the next ones. The work is recorded
 * once and submitted again from then on; a new memory block records it anew. */
DART_API dart_status dart_decode(dart_state *state, const dart_decode_args *args);

typedef struct dart_generate_args {
    uint32_t n;             /* steps */
    uint32_t together;      /* steps that are submitted together, at most 64 and what slice_ms allows; 0: 1 with a callback,
                               else 64. The host is then idle between them, and nothing is read until the last of them. */
    const dart_sampling *sampling; /* NULL: the largest logit */
    uint32_t sampling_count;
    /* Called for each step, in order, with the B tokens chosen, -1 for a sequence that had ended before; false ends the generation. Steps submitted together are
     * reported one after the other once all are done: those behind the one that ended it have been taken, too, as
     * dart_state_position tells, and their tokens lie in ids. Optional. */
    bool (*step)(void *user, uint32_t step, const int32_t *ids);
    void *user;
    int32_t *ids;           /* n B, optional: the tokens chosen, step by step; -1 from where a sequence has ended */
} dart_generate_args;
/* n times dart_decode with the tokens that the last call left on the device, so a prefill or decode with sampling
 * comes first; the tokens that one chose are consumed by the first step and not reported again. Returns earlier once all
 * sequences have ended. */
DART_API dart_status dart_generate(dart_state *state, const dart_generate_args *args);

#ifdef __cplusplus
}
#endif
#endif
