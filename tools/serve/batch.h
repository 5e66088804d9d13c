/* The sequences that are computed now, in two states of one model: prompts are prefilled in one, and those that go on are then copied to a slot of
 * the other, which decodes. So prompts of any length are computed side by side without rows of padding between the slots, and a step takes all
 * slots. Of one thread; sockets and queues are others' business. */
#ifndef DARTLM_SERVE_BATCH_H
#define DARTLM_SERVE_BATCH_H

#include "dartlm/model.h"
#include "serve/job.h"

typedef struct batch_options {
    uint32_t slots;   /* sequences that are decoded at once */
    uint32_t context; /* the most tokens of a sequence, so that memories are bounded */
    uint32_t budget;  /* tokens of prompts between two steps, 0: as many as take about 20 ms; four times as many where nothing is decoded */
    uint32_t S;       /* as dart_state_options has them */
    bool no_sma;
} batch_options;

/* As many as dart_log_probs takes. */
enum { BATCH_FILL = 32, BATCH_STEPS = 8 };
#define BATCH_NONE UINT32_MAX

/* A round of prompts: tokens of each, and rows whose log-probabilities are wanted. */
typedef struct batch_round {
    uint32_t L;           /* of the longest */
    size_t rows;
    uint32_t k, choice_k; /* likeliest tokens of rows; of the tokens that are chosen */
    bool chooses, scored; /* some prompt ends and wants a token; with its log-probability */
    dart_scores of_rows, of_choice;
} batch_round;

typedef struct batch {
    dart_tokenizer *tokenizer;
    batch_options options;
    metrics *counts;
    uint32_t ids_below; /* 0: all of the model's ids are the tokenizer's, too */
    int32_t eos;
    dart_state *fill, *run;
    uint32_t fill_size;      /* of `fill` */
    job_sequence **filling;  /* fill_size; NULL: free */
    job_sequence **running;  /* slots */
    uint32_t filling_count, running_count;
    uint32_t *leader; /* fill_size: the place of the prompt that is computed for this one as well, or BATCH_NONE */
    uint32_t *shared; /* fill_size: with a leader, so many of the first tokens, after which its state is copied */
    batch_round round;
    uint32_t reserved; /* of those that are prefilled, how many go on to a slot */
    bool given;        /* the next step needs ids: sequences have been put in place since the last one */
    bool joined;         /* the last round put sequences into slots */
    double step_ns;    /* of the last steps; 0: not known */
    uint32_t budget;   /* that of the options, or as measured */
    uint64_t join_ns, joined_at_ns; /* what the last round took that put sequences into slots; when that was */
    char failure[600]; /* of the call that failed last */
    /* Room for calls. */
    dart_sampling *sampling, *fill_sampling; /* slots; fill_size */
    int32_t *next, *last;    /* fill_size: first tokens; the newest token of each slot */
    int32_t *steps;          /* BATCH_STEPS slots */
    uint32_t *lengths;       /* fill_size: tokens of this round */
    int32_t *ids;            /* fill_size times the tokens of the longest */
    size_t ids_room;
    uint64_t *rows;
    int32_t *targets;
    size_t rows_room;
    api_scores scores, row_scores, choice_scores; /* what calls give, row by row: steps, prompts, first tokens */
    uint32_t *from, *to;
} batch;

/* The states, empty. On failure the batch is to be destroyed, and b->failure has the text. */
dart_status batch_create(dart_model *model, dart_tokenizer *tokenizer, const batch_options *options, metrics *counts, batch *b);
void batch_destroy(batch *b);
/* Whether a sequence can be taken in now. */
bool batch_room(const batch *b, const job_sequence *s);
/* Takes one in, for which there is room. A failure is told to its job. */
void batch_add(batch *b, job_sequence *s);
/* Lets go those whose job has failed, as it does when the client leaves. */
void batch_drop_cancelled(batch *b);
/* One round of prompts, if there are some; one submission of steps, if there are some. A failure is told to the jobs that it hits; false: the
 * device is lost, and the batch is empty. */
bool batch_prefill(batch *b);
bool batch_decode(batch *b);
/* Fails all of them. */
void batch_fail(batch *b, int status, const char *message);

#endif
