/* States from the inside: what a batch of sequences keeps, and how its pieces and steps are recorded. */
#ifndef DART_STATE_H
#define DART_STATE_H

#include "model/model.h"

/* Memories first .. first + M - 1 of every sequence, one buffer a layer: B M H N P, then the scales B M H N. */
typedef struct memory_block {
    uint32_t first, M;
    uint32_t capacity; /* memories that the buffers have room for, at least M */
    uint64_t scale_at; /* element of the buffer as f32 */
    dart_buffer **buffers;
} memory_block;

/* Buffers that live from call to call, and those of one piece. */
typedef enum model_work {
    WORK_SEQ,      /* i32 B 2 */
    WORK_NEXT,     /* i32 B: tokens chosen last */
    WORK_SETTINGS, /* i32 B 4: how the next token of each sequence is chosen, as dart_sample reads it */
    WORK_STOPS,    /* i32 B 5: what ends each sequence, as dart_advance reads it */
    WORK_LIVE,     /* i32 B: the sequence's own number, -1 once it has ended */
    WORK_LOG,      /* i32 B MODEL_LOG: tokens chosen by the last steps, at position mod MODEL_LOG */
    WORK_LAST,     /* B W: norm_f of each sequence's newest token */
    WORK_IDS,      /* i32 rows */
    WORK_STREAM,   /* f32 rows W */
    WORK_INPUT,    /* rows W: u */
    WORK_PROJ,     /* rows x [z|x|b|c|dt] */
    WORK_CONV,     /* rows x [x|b|c] */
    WORK_SMA_PROJ, /* rows x [q|e|gate|padding] */
    WORK_SMA_CONV, /* rows x [q|e] */
    WORK_Y,        /* rows I */
    WORK_R,        /* f32 rows I */
    WORK_ENDS,     /* i32 B: rows where sequences end in this piece */
    WORK_ROWS,     /* i32 logits_rows: rows that logits are wanted of */
    WORK_PICKED,   /* logits_rows W: norm_f of them */
    WORK_LOGITS,   /* f32 logits_rows V */
    WORK_COUNT
} model_work;

/* Steps of one submission at most. */
#define MODEL_LOG 64u

/* What the recording of a piece depends on besides its shape. */
typedef struct model_span {
    uint32_t runs;                   /* blocks with memories that some token reads */
    uint32_t close_from, close_to;   /* blocks that a chunk may close into; none when equal */
} model_span;

struct dart_state {
    dart_model *model;
    base_report report;
    dart_status broken;
    uint64_t timeout_ns;
    uint64_t slice_ns;    /* of a submission, UINT64_MAX: no limit */
    double step_ns;       /* of one decoding step, 0: not known yet */
    double layer_token_ns; /* of one layer for one token of a piece, 0: not known yet */
    bool sma;
    bool fused;           /* single tokens go through dart_mixer_step */
    bool windowed;        /* otherwise: steps go through dart_window_... */
    bool in_windows;      /* the newest tokens are in the windows, not in h and open */
    uint32_t B, S;
    uint32_t rows, logits_rows; /* of the workspace */
    uint32_t step;              /* parts of the batch start at multiples of this */
    uint32_t block;             /* memories a block, 0: growing */
    uint64_t limit;             /* bytes of a binding */
    uint64_t chunks_bytes;      /* of the states of a piece's chunks, at most */
    int32_t *positions;         /* B */
    dart_buffer **layers;       /* per layer, at these bytes: */
    uint64_t h_at, open_at, decay_at, tail_at, sma_tail_at, layer_bytes;
    dart_buffer **windows;      /* per layer, made before the first step, at these bytes: */
    uint64_t rows_at, steps_at, hin_at, hin_scale_at, window_bytes;
    memory_block *blocks;       /* blocks_count that are in use, then those kept for later, blocks_held together */
    dart_memories *runs; /* room for twice as many: those read, those that a chunk closes into */
    uint32_t blocks_count, blocks_held;
    dart_buffer *work[WORK_COUNT];
    uint64_t work_bytes;
    dart_stream *prefill, *decode;
    dart_stream *ahead;         /* slices of a prefill take turns on it and `prefill`: one runs while the next is recorded */
    int32_t *host_ids;     /* rows */
    int32_t *host_log, *host_steps; /* B MODEL_LOG as WORK_LOG has them, MODEL_LOG B in order */
    int32_t *host_seq;     /* 2 B */
    int32_t *host_next;    /* B */
    int32_t *host_settings, *host_stops; /* as WORK_SETTINGS and WORK_STOPS have them, once settings_current is set */
    bool settings_current;
    bool stops;            /* some sequence has an end id or a last position */
    bool *ended;           /* B: by the settings, the token chosen last and the position; */
    bool judged;           /* once this is set */
    uint32_t *taken;       /* B: tokens that the last submission of decode consumed */
    int32_t *host_ends;    /* B */
    int32_t *host_rows;    /* logits_rows */
    uint64_t *host_places; /* logits_rows: where the logits of each go */
    bool seq_current;      /* the device's seq and live hold the positions and which sequences have ended */
    bool chosen;           /* WORK_NEXT holds a token for every sequence */
    bool recorded;         /* decode holds a step for these: */
    model_span recorded_span;
    uint32_t last_steps;   /* of the last submission of decode */
};

/* Keeps the text of another object's report beside status, which it returns. */
dart_status model_take(base_report *to, const base_report *from, dart_status status, const char *what);
/* The same for a stream's failure. */
dart_status model_take_stream(dart_state *state, const dart_stream *stream, dart_status status, const char *what);

/* DART_OK, or why the state cannot be used. */
dart_status model_state_usable(dart_state *state, const char *call);
/* Sizes, places and limits from the options and the model. */
dart_status model_state_plan(dart_state *state, const dart_state_options *options);
/* Blocks for memories [0, count) of every sequence. Nothing is lost on failure. */
dart_status model_memories_reserve(dart_state *state, uint64_t count, const char *call);
/* Memories of a sequence that the blocks have room for. */
uint64_t model_memories_room(const dart_state *state);
/* No sequence has memories any more. The blocks are kept, and their buffers serve other blocks. */
void model_memories_retire(dart_state *state);
void model_memories_destroy(dart_state *state);
/* 0 for what the state does without. */
uint64_t model_work_bytes(const dart_state *state, model_work work);
dart_tensor model_work_tensor(const dart_state *state, model_work work);
/* Copy 4-byte elements between host memory and a buffer of the workspace. */
dart_status model_state_write(dart_state *state, model_work work, uint64_t first, const int32_t *data, uint64_t count,
                              const char *call);
dart_status model_state_read(dart_state *state, model_work work, uint64_t first, void *data, uint64_t count,
                             const char *call);
/* Submits, that many runs, and waits; ns, where given: what the device took. */
dart_status model_state_run(dart_state *state, dart_stream *stream, uint32_t times, uint64_t *ns, const char *call);
/* Waits for what was submitted before, for at most the state's time-out; ns, optional: how long it took. */
dart_status model_state_wait(dart_state *state, dart_stream *stream, uint64_t *ns, const char *call);

/* Blocks that tokens of sequences b .. b + B - 1 read, and that their chunks close into, by the positions and counts in
 * seq (of the whole batch). When `steps` is set, every open chunk counts as one that closes. */
model_span model_span_of(const dart_state *state, uint32_t b, uint32_t B, const int32_t *seq, bool steps);
/* Elements of the window's rows of one sequence. */
uint64_t model_window_elements(const dart_model_config *config);
/* Memory for the windows, if steps go through them. */
dart_status model_windows_reserve(dart_state *state, const char *call);
/* Records zeros for the windows of sequences b .. b + B - 1. */
void model_windows_clear(const dart_state *state, dart_stream *stream, uint32_t b, uint32_t B);
/* Records zeros for rows b .. b + B - 1 of `width` elements, of a tensor that starts at byte bytes_at. */
void model_record_clear(dart_stream *stream, dart_buffer *buffer, uint64_t bytes_at, dart_dtype dtype, uint32_t b, uint32_t B,
                        uint64_t width);
/* The newest tokens of all sequences go into the windows' keeping, for steps, or back into h and open. */
dart_status model_windows_open(dart_state *state, const char *call);
dart_status model_windows_close(dart_state *state, const char *call);
/* In all layers, for recordings: see dart_window_fold. */
dart_status model_record_fold(dart_state *state, dart_stream *stream, dart_window_mode mode);

/* Tokens of the batch going through the model: L of sequences b .. b + B - 1. */
typedef struct model_pass {
    uint32_t b, B, L;
    bool windowed; /* one token of every sequence, through the windows */
    model_span span;
} model_pass;
/* The embedding of B L tokens whose ids lie in `ids`, into WORK_STREAM. */
dart_status model_record_embedding(dart_state *state, dart_stream *stream, const model_pass *pass, model_work ids);
/* Layers first .. end - 1, whose seq is on the device, from WORK_STREAM to WORK_STREAM. */
dart_status model_record_layers(dart_state *state, dart_stream *stream, const model_pass *pass, uint32_t first, uint32_t end);
/* norm_f of T rows of the stream, those that `rows` tells (NULL: the first T), to y. */
dart_status model_record_norm(dart_state *state, dart_stream *stream, uint32_t T, const dart_tensor *rows,
                              const dart_tensor *y);
/* WORK_LOGITS = lm_head of T rows of x. */
dart_status model_record_head(dart_state *state, dart_stream *stream, uint32_t T, const dart_tensor *x);
/* The same of the first B rows of the stream, norm_f included: beside model_record_norm, not behind it. */
dart_status model_record_norm_head(dart_state *state, dart_stream *stream);
/* WORK_NEXT from the first B rows of WORK_LOGITS, by WORK_SETTINGS. step: sequences that have ended keep theirs. */
dart_status model_record_choice(dart_state *state, dart_stream *stream, bool step);
/* The end of a step: positions move on, WORK_NEXT goes to WORK_LOG, sequences end as WORK_STOPS says. */
dart_status model_record_advance(dart_state *state, dart_stream *stream);

/* ---- Settings of the choice and ends, of each sequence ---- */

dart_status model_check_sampling(dart_state *state, const dart_sampling *sampling, uint32_t count, const char *call);
/* Brings WORK_SETTINGS and WORK_STOPS up to date with settings that were checked. */
dart_status model_use_sampling(dart_state *state, const dart_sampling *sampling, uint32_t count, const char *call);
/* Finds out which sequences have ended, by the tokens in WORK_NEXT. */
dart_status model_judge(dart_state *state, const char *call);
/* Writes seq, and live with it, as a step needs them. */
dart_status model_write_seq(dart_state *state, const char *call);

#endif
