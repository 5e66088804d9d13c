/* The model in a thread of its own: it reads a sequence, goes on with it, and tells how far it is. Calls never wait for the device. */
#ifndef DESKTOP_MODEL_H
#define DESKTOP_MODEL_H

#include "host.h"

enum { MODEL_SMALLEST_CHUNK = 4, MODEL_LARGEST_CHUNK = 256 };

typedef struct model_options {
    const char *folder;     /* config.json and safetensors */
    const char *preset;     /* instead of a folder: random weights of this size (dart_config_preset), in bf16 */
    const char *state_path; /* of save and load; the tokens lie beside it, in a file of this name with .ids behind */
    uint64_t seed;          /* of the sequence */
    uint32_t tokens;        /* where it ends */
    uint32_t together;      /* tokens that one prefill reads, without rows in the map; the others are read one by one */
    uint32_t piece;         /* tokens that a prefill computes together, and after which it can be cancelled */
    uint32_t rate;          /* at most so many tokens a second; 0: as fast as they come */
    uint32_t slice_ms;      /* the longest submission; 0: 2, and on a processor, which draws with the same cores, dartlm's default */
    uint32_t S;             /* chunk size; 0: the model's */
    bool no_memories, run;  /* without memories; begins at once */
} model_options;

/* What there is to show. */
typedef struct model_view {
    char text[160];         /* what it is doing, or what failed */
    bool ready, failed;     /* the model is loaded; cannot go on */
    bool running, memories;
    uint32_t S, position;
    double tokens_per_second, longest_ms; /* of the state's submissions, on the device */
    uint64_t read;          /* tokens that prefills have read, of all sequences */
    uint64_t state_bytes, cache_bytes; /* of the state; of the KV cache of a Transformer with the same heads */
    uint32_t asked, recalled;          /* questions in the sequence so far, right answers */
} model_view;

typedef struct model model;

/* weights: the map of canvas.h, of `tokens` rows. */
model *model_start(host *h, const model_options *options, const buffer *weights);
uint32_t model_map_pitch(uint32_t tokens);
/* Ends what is under way at the next token or piece, and the thread. */
void model_stop(model **m);
model_view model_look(model *m);

typedef enum model_action {
    MODEL_RUN,
    MODEL_PAUSE,
    MODEL_CANCEL, /* a prefill ends after the piece under way; the sequence then pauses */
    MODEL_SAVE,
    MODEL_LOAD,
    MODEL_RESTART
} model_action;
void model_do(model *m, model_action action);
/* Chunk size (0: the model's) and memories on or off. A change begins a state of its own, which reads the tokens so far again. */
void model_set(model *m, uint32_t S, bool memories);

#endif
