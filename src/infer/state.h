/* dart_state: what a batch of sequences keeps between calls, and how pieces and decoding steps are recorded. */
#ifndef DART_STATE_H
#define DART_STATE_H

#include "base/file.h"
#include "model/model.h"

/* Memories first .. first + M - 1 of every sequence. One buffer a layer: memories B M H N P, then their scales f32 B M H N. */
typedef struct memory_block {
    uint32_t first, M;
    uint32_t capacity; /* memories that the buffers have room for, at least M */
    uint64_t scale_at; /* index of the first scale, in f32 elements of the buffer */
    dart_buffer **buffers;
} memory_block;

/* Keys and values of tokens first .. first + C - 1 of every sequence. One buffer a layer: keys B C G P, then values. */
typedef struct cache_block {
    uint32_t first, C;
    dart_buffer **buffers;
} cache_block;

/* A tensor that every layer keeps for each sequence, among those of model_block_carried: rows of `width` elements, B of them, from byte `at`
 * of the layer's buffer on. */
typedef struct model_part {
    uint64_t at, width;
    dart_dtype dtype;
    bool tail; /* in the dtype of activations, else f32 */
} model_part;
enum { MODEL_PARTS = 5 };

/* One sequence as it was at a position, but for its memories: those of chunks closed by then are never written again. */
typedef struct model_mark {
    bool kept;
    uint64_t order;        /* of keeping, for the oldest to give way */
    int32_t position;
    dart_buffer **buffers; /* one a layer, NULL before the first use: its parts for one sequence; the first has the row of WORK_LAST behind */
    int32_t *seen;         /* the sequence's row of WORK_SEEN */
} model_mark;

/* Buffers of the workspace. WORK_SEQ to WORK_LAST keep their contents from call to call; the others belong to one piece. "rows"
 * are the tokens of a piece, at most dart_state.rows. */
typedef enum model_work {
    WORK_SEQ,      /* i32 B 2 */
    WORK_NEXT,     /* i32 B: tokens chosen last */
    WORK_SETTINGS, /* i32 B 8: how the next token of each sequence is chosen, as dart_sample reads it */
    WORK_STOPS,    /* i32 B 5: what ends each sequence, as dart_advance reads it */
    WORK_LIVE,     /* i32 B: b, or -1 once sequence b has ended */
    WORK_LOG,      /* i32 B MODEL_LOG: tokens chosen by the last steps, at position mod MODEL_LOG */
    WORK_SEEN,     /* i32 B ceil(V/32): which ids each sequence has consumed, as dart_sample reads it */
    WORK_LAST,     /* B W: each sequence's newest token after norm_f */
    WORK_IDS,      /* i32 rows */
    WORK_STREAM,   /* f32 rows W: the residual stream */
    WORK_INPUT,    /* rows W: the input of a block, RMSNorm of the residual stream */
    WORK_PROJ,     /* rows x [z|x|b|c|dt] */
    WORK_CONV,     /* rows x [x|b|c] */
    WORK_SMA_PROJ, /* rows x [q|e|gate|padding] */
    WORK_SMA_CONV, /* rows x [q|e] */
    WORK_Y,        /* rows I */
    WORK_R,        /* f32 rows I */
    WORK_MLP,      /* rows x [a|u]; like WORK_HIDDEN only of a Transformer, whose WORK_PROJ is rows x [q|k|v] and WORK_Y the attention's output */
    WORK_HIDDEN,   /* rows F */
    WORK_CU,       /* i32 B 2, of which B + 1 are used: where the sequences of a packed piece begin */
    WORK_PAIRS,    /* i32 B 2: sequences that are copied, from and to */
    WORK_ENDS,     /* i32 B: rows where sequences end in this piece */
    WORK_ROWS,     /* i32 logits_rows: rows whose logits the caller asked for */
    WORK_PICKED,   /* logits_rows W: those rows after norm_f */
    WORK_LOGITS,   /* f32 logits_rows V */
    WORK_TARGETS,  /* i32 logits_rows: what dart_log_probs reads, and from here on what it computes */
    WORK_LOG_Z,    /* f32 logits_rows */
    WORK_TARGET,   /* f32 logits_rows */
    WORK_TOP_IDS,  /* i32 logits_rows k, k at most DART_MOST_TOP */
    WORK_TOP,      /* f32 logits_rows k */
    WORK_COUNT
} model_work;

/* The most decoding steps in one submission. */
#define MODEL_LOG 64u

/* The blocks of memories, or of keys and values, that a piece touches. A recording depends on them and on the shape of the piece. */
typedef struct model_span {
    uint32_t runs;                   /* blocks 0 .. runs - 1 hold what some token attends to */
    uint64_t seen;                   /* of one sequence's steps: how many memories they look for; 0: as many as the blocks have room for */
    uint32_t close_from, close_to;   /* blocks close_from .. close_to - 1 may receive the memory of a chunk that closes, or keys of the piece */
} model_span;

struct dart_state {
    dart_model *model;
    base_report report;
    dart_status broken;   /* DART_OK, or the status of the call that broke the state */
    uint64_t timeout_ns;  /* of a submission; UINT64_MAX: no limit */
    uint64_t slice_ns;    /* longest time that a submission should take; UINT64_MAX: no limit */
    double most_work;     /* multiplications and additions of a submission that a slow device of its kind has time for; 0: no limit */
    double token_work, context_work; /* of a layer for a token; for each token before it besides */
    double weights_work;  /* of a layer for its weights, whatever the number of tokens */
    uint64_t longest_ns;  /* of a submission so far */
    double step_ns;       /* measured time of one decoding step, 0: not known yet */
    double step_work;     /* of the recorded step: ns that it takes on a device of assumed rates */
    double step_ratio;    /* measured time by that, as the recording is cut by; 0: not known yet */
    uint32_t steps_cut;   /* how many times a step was recorded again to be cut finer */
    double layer_work_ns; /* measured time of a layer of a piece by its work (model_piece_work), 0: not known yet */
    uint64_t layer_context; /* tokens before the last of that piece */
    bool sma;
    bool fused;           /* decoding steps use dart_mixer_step */
    bool windowed;        /* decoding steps use dart_window_append, _output and _fold; never together with fused */
    bool in_windows;      /* the windows hold tokens that h and open lack */
    uint32_t B, S; /* S: 1 for a Transformer, which has no chunks */
    uint32_t rows, logits_rows; /* of the workspace */
    uint32_t step;              /* parts of the batch start at multiples of this number of sequences, for OP_ALIGNED tensors */
    uint32_t block;             /* memories of a block; 0: blocks grow */
    uint64_t limit;             /* the most bytes of a tensor that a kernel can address */
    uint64_t chunks_bytes;      /* the most bytes for the f32 states of all chunks of a piece */
    int32_t *positions;         /* B */
    dart_buffer **layers;       /* one a layer: the tensors of model_block_carried, at these bytes */
    uint64_t h_at, open_at, decay_at, tail_at, sma_tail_at, layer_bytes;
    dart_buffer **windows;      /* one a layer, NULL before the first step: the tensors of model_block_window, at these bytes */
    uint64_t rows_at, steps_at, hin_at, hin_scale_at, window_bytes;
    dart_buffer *zeros;         /* zero_rows windows of no tokens, for sequences that join; NULL before the first of them */
    uint32_t zero_rows;
    model_mark *marks;          /* B marks_most; NULL before the first mark */
    uint32_t marks_most;        /* of a sequence */
    uint64_t marks_made;
    dart_buffer **backup;       /* as `layers`: before a piece that the caller may cancel; NULL before the first one */
    bool packs_any;             /* prefill packs wherever it can: for tests */
    dart_buffer *raw;           /* of packed pieces, f32: raw_slots H N P of memories, as much of entering states, then (raw_slots + B) H of
                                   decays; NULL before the first such piece */
    uint64_t raw_slots;
    cache_block *cache;         /* of a Transformer, cache_held of them in the order of their tokens: the first cache_count are in use */
    dart_key_block *key_blocks; /* room for cache_held: those that a launch reads */
    uint32_t cache_count, cache_held;
    memory_block *blocks;       /* blocks_held of them: the first blocks_count are in use, the others are kept for later */
    dart_memories *runs; /* room for 2 blocks_held: runs to read, then runs that receive the memories of chunks that close */
    uint32_t blocks_count, blocks_held;
    dart_buffer *work[WORK_COUNT];
    uint64_t work_bytes;
    dart_stream *prefill, *decode;
    dart_stream *ahead;         /* submissions of a prefill alternate between `prefill` and `ahead`: one runs while the other is recorded */
    int32_t *host_ids;     /* rows */
    int32_t *host_log, *host_steps; /* B MODEL_LOG as in WORK_LOG; MODEL_LOG B, step by step */
    int32_t *host_seq;     /* 2 B */
    int32_t *host_cu;      /* B + 1: WORK_CU on its way to the device */
    int32_t *host_next;    /* B */
    int32_t *host_settings, *host_stops; /* copies of WORK_SETTINGS and WORK_STOPS */
    bool settings_current; /* the device has the contents of host_settings and host_stops */
    bool stops;            /* some sequence has an end id or a last position, or is idle */
    bool *idle;            /* B: the sequence takes no part in steps */
    bool *ended;           /* B: whether the sequence has ended, by its settings, its newest token and its position */
    bool judged;           /* `ended` is up to date */
    uint32_t *taken;       /* B: tokens that the last submission of decode consumed */
    int32_t *host_ends;    /* B: WORK_ENDS or WORK_LIVE on its way to the device */
    int32_t *host_rows;    /* logits_rows: WORK_ROWS on its way to the device */
    uint64_t *host_places; /* logits_rows: the row of the caller's logits that each row of WORK_LOGITS goes to */
    bool seq_current;      /* WORK_SEQ and WORK_LIVE agree with positions and ended */
    bool chosen;           /* WORK_NEXT holds a token for every sequence */
    bool recorded;         /* `decode` holds a recorded step, for recorded_span */
    model_span recorded_span;
    uint32_t last_steps;   /* steps of the last submission of decode */
    file_writer *prepared; /* of a later file at prepared_path, with room for so many bytes; NULL: none was prepared */
    char *prepared_path;
    uint64_t prepared_bytes;
    file_leftover left_saved, left_loaded; /* by the last file that was saved, and by the last one that was loaded */
    bool keeps_queries;
    dart_buffer *queries;  /* of the last step, if they are kept: for each layer the rows of WORK_SMA_CONV, queries_bytes apart */
    uint64_t queries_bytes;
    int32_t *queries_at;   /* B: the position for which row b is kept, -1: none */
};

/* Copies the text of report `from` to `to`, after `what`, unless status is DART_OK. Returns status. */
dart_status model_take(base_report *to, const base_report *from, dart_status status, const char *what);
/* model_take from a stream's report to the state's. */
dart_status model_take_stream(dart_state *state, const dart_stream *stream, dart_status status, const char *what);

/* DART_OK, or the status that broke the state. */
dart_status model_state_usable(dart_state *state, const char *call);
/* Rows of a piece whose tokens see at most `context` tokens: a layer of it is to fit a submission on slow devices, too. At most state->rows. */
uint32_t model_piece_rows(const dart_state *state, uint64_t context);
/* Work of a layer of a piece: multiplications and additions, about, and the time that its weights take to be read, in as many as the device
 * computes meanwhile at assumed rates. */
double model_piece_work(const dart_state *state, uint64_t rows, uint64_t context);
/* Work, as of model_piece_work, of reading so many bytes. */
double model_bytes_work(const dart_state *state, double bytes);
/* Elements of dart_window_args.rows for one sequence. */
uint64_t model_window_elements(const dart_model_config *config);
/* Computes sizes, offsets and limits of the state from the options and the model. Allocates nothing. */
dart_status model_state_plan(dart_state *state, const dart_state_options *options);
/* Allocates blocks, or a larger first one, so that every sequence has room for memories 0 .. count - 1. Runs copies on the stream of prefills. A
 * failure loses no memories. */
dart_status model_memories_reserve(dart_state *state, uint64_t count, const char *call);
/* For a state without memories: the blocks that another state had, so that sums are cut alike. Does nothing where sequences have memories. */
dart_status model_memories_shape(dart_state *state, const uint32_t *M, uint32_t count, const char *call);
/* Memories of a first block that has grown: a sequence that needs more gets a second block. */
uint64_t model_memories_grown(const dart_state *state);
/* Gives back the buffers of blocks that no sequence needs. */
void model_memories_shrink(dart_state *state);
/* The most blocks that model_memories_reserve adds for so many memories of every sequence. */
uint64_t model_memories_most_blocks(const dart_state *state, uint64_t count);
/* Number of memories of one sequence that the blocks in use have room for. */
uint64_t model_memories_room(const dart_state *state);
/* Puts all blocks out of use, for sequences without memories. Their buffers are kept for later blocks. */
void model_memories_retire(dart_state *state);
/* Memories of sequence b on, of one block and layer. */
dart_memories model_memories_of(const dart_state *state, uint32_t layer, uint32_t b, uint32_t block);
void model_memories_destroy(dart_state *state);
/* Makes room for keys and values of that many tokens of every sequence, for a Transformer; does nothing for other models. A failure loses
 * none. */
dart_status model_cache_reserve(dart_state *state, uint64_t tokens, const char *call);
/* Tokens of a sequence that the blocks in use have room for. */
uint64_t model_cache_room(const dart_state *state);
/* The block in use that holds a token. */
uint32_t model_cache_block(const dart_state *state, uint64_t token);
/* Keys and values of a block and layer, from sequence b on. */
dart_key_block model_cache_part(const dart_state *state, uint32_t layer, uint32_t b, uint32_t block);
/* Bytes of all blocks that are held. */
uint64_t model_cache_bytes(const dart_state *state);
/* For sequences without tokens: the buffers are kept. */
void model_cache_retire(dart_state *state);
void model_cache_destroy(dart_state *state);
/* Bytes of a buffer of the workspace; 0 for a buffer that this state does not need. */
uint64_t model_work_bytes(const dart_state *state, model_work work);
dart_tensor model_work_tensor(const dart_state *state, model_work work);
/* Copy 4-byte elements between host memory and a buffer of the workspace. */
dart_status model_state_write(dart_state *state, model_work work, uint64_t first, const int32_t *data, uint64_t count,
                              const char *call);
dart_status model_state_read(dart_state *state, model_work work, uint64_t first, void *data, uint64_t count,
                             const char *call);
/* Submits the recording for `times` runs and waits; one that stream_pace has cut part by part, for one run. ns, optional: the time that the
 * device took. */
dart_status model_state_run(dart_state *state, dart_stream *stream, uint32_t times, uint64_t *ns, const char *call);
/* The same of what is cut. progress, optional, is asked before each submission, with those that were made as done. Sets *ran, optional, once
 * something was submitted, and *slowest, optional, to the longest time of a part. */
dart_status model_state_run_parts(dart_state *state, dart_stream *stream, base_progress *progress, bool *ran, uint64_t *ns, uint64_t *slowest,
                                  const char *call);
/* Begins a recording that stream_pace cuts into submissions of about the slice. Its work is in ns, times `ratio` those that the device takes. */
dart_status model_begin_paced(dart_state *state, dart_stream *stream, double ratio, const char *call);
/* The same for layers of a piece, whose work is that of model_piece_work: by the measured time of such work, or before that is known by an
 * assumed one. */
dart_status model_begin_layers(dart_state *state, dart_stream *stream, bool known, const char *call);
/* The launches that follow, about so many, read and write so many bytes. */
void model_pace_bytes(const dart_state *state, dart_stream *stream, uint64_t bytes, uint32_t launches);
/* ns of a layer of a decoding step, and of the head, on a device of assumed rates. */
double model_step_layer(const dart_state *state);
double model_step_head(const dart_state *state);
/* The most rows of `width` elements of `size` bytes that a launch copies within a submission's time; at least one. */
uint64_t model_copy_rows(const dart_state *state, uint64_t width, uint64_t size);
/* Waits for the last submission, at most for the state's time-out. ns, optional: the time that the device took. */
dart_status model_state_wait(dart_state *state, dart_stream *stream, uint64_t *ns, const char *call);

/* The blocks that tokens of sequences b .. b + B - 1 read, and the blocks that their chunks close into, or their keys go to. seq: positions
 * and counts of the whole batch, as in WORK_SEQ. steps: every open chunk whose memory has room counts as closing, so that the recording serves
 * all its tokens. */
model_span model_span_of(const dart_state *state, uint32_t b, uint32_t B, const int32_t *seq, bool steps);
/* Allocates the windows if decoding steps use them. */
dart_status model_windows_reserve(dart_state *state, const char *call);
/* Records zeros for the windows of sequences b .. b + B - 1. */
void model_windows_clear(const dart_state *state, dart_stream *stream, uint32_t b, uint32_t B);
/* Makes state->zeros, of at least that many rows. */
dart_status model_zeros_reserve(dart_state *state, uint32_t rows, const char *call);
/* Open: makes the windows from h and open, before decoding steps. Close: folds the windows into h and open, before pieces. Both do
 * nothing when the state is already so. */
dart_status model_windows_open(dart_state *state, const char *call);
dart_status model_windows_close(dart_state *state, const char *call);
/* Frees the windows and state->zeros. */
void model_windows_destroy(dart_state *state);
/* Records dart_window_fold of all layers. */
dart_status model_record_fold(dart_state *state, dart_stream *stream, dart_window_mode mode);

/* The tokens of one recording: L of each of the sequences b .. b + B - 1, or packed at most L. */
typedef struct model_pass {
    uint32_t b, B, L;
    uint32_t T;    /* packed: tokens of all, at host_cu; else 0 */
    bool windowed; /* L is 1, and the step uses the windows */
    bool step;     /* a decoding step of the whole batch */
    uint64_t context; /* of a piece: tokens up to the end of its longest sequence */
    model_span span;
} model_pass;
/* Where a step's convolved [q|e] go if they are kept. */
dart_tensor model_queries_of(const dart_state *state, uint32_t layer);
/* Makes room for them. */
dart_status model_queries_reserve(dart_state *state);
/* Makes room for the memories of a packed piece of T tokens of B sequences. */
dart_status model_raw_reserve(dart_state *state, uint32_t T, uint32_t B, const char *call);
/* Bytes of the f32 states of its chunks. */
uint64_t model_raw_bytes(const dart_state *state, uint32_t T, uint32_t B);
/* WORK_STREAM = the embedding of the B L tokens whose ids lie in `ids`. */
dart_status model_record_embedding(dart_state *state, dart_stream *stream, const model_pass *pass, model_work ids);
/* Layers first .. end - 1 of the model, in place on WORK_STREAM. */
dart_status model_record_layers(dart_state *state, dart_stream *stream, const model_pass *pass, uint32_t first, uint32_t end);
/* y = norm_f of T rows of WORK_STREAM: those that `rows` names, or with rows NULL the first T. */
dart_status model_record_norm(dart_state *state, dart_stream *stream, uint32_t T, const dart_tensor *rows,
                              const dart_tensor *y);
/* WORK_LOGITS = lm_head of T rows of x. */
dart_status model_record_head(dart_state *state, dart_stream *stream, uint32_t T, const dart_tensor *x);
/* WORK_LOGITS = lm_head(norm_f) of the first B rows of WORK_STREAM. Does not depend on model_record_norm, so that both may overlap. */
dart_status model_record_norm_head(dart_state *state, dart_stream *stream);
/* Does that take less time than norm and head one after the other? */
bool model_norm_head_pays(const dart_state *state);
/* WORK_NEXT = a token for each of the first B rows of WORK_LOGITS, by WORK_SETTINGS. step: sequences that have ended keep their
 * token. */
dart_status model_record_choice(dart_state *state, dart_stream *stream, bool step);
/* The tokens of a piece, which lie in WORK_IDS, go into WORK_SEEN. */
dart_status model_record_seen(dart_state *state, dart_stream *stream, const model_pass *pass);
/* The end of a step: positions move on, WORK_NEXT goes to WORK_LOG, sequences end as WORK_STOPS says. */
dart_status model_record_advance(dart_state *state, dart_stream *stream);

/* ---- Log-probabilities of rows of WORK_LOGITS ---- */

/* chooses: the call chooses a token for each row. */
dart_status model_check_scores(dart_state *state, const dart_scores *scores, bool chooses, const char *call);
/* Records them for the first T rows, with targets in `targets` where the caller wants them. */
dart_status model_record_scores(dart_state *state, dart_stream *stream, const dart_scores *scores, uint32_t T, model_work targets);
/* n rows from row `first` of the workspace to row `to` of the caller. */
dart_status model_read_scores(dart_state *state, const dart_scores *scores, uint64_t first, uint64_t to, uint64_t n, const char *call);
/* Computes those of the B rows after a step or a choice. */
dart_status model_run_scores(dart_state *state, const dart_scores *scores, const char *call);

/* ---- Sequences as values: copies, marks, files ---- */

/* The parts of a layer, in the order of the buffer; returns how many. None of a Transformer. */
uint32_t model_parts(const dart_state *state, model_part *parts);
/* The elements of sequence b on in a part of a layer. */
dart_tensor model_part_tensor(const model_part *part, dart_buffer *layer, uint32_t b);
/* Records a copy of T rows of W elements. */
void model_record_copy(dart_stream *stream, dart_tensor from, dart_tensor to, uint64_t T, uint64_t W);
/* Records zeros for rows b .. b + B - 1 of `width` elements, of a tensor that starts at byte bytes_at. */
void model_record_clear(dart_stream *stream, dart_buffer *buffer, uint64_t bytes_at, dart_dtype dtype, uint32_t b, uint32_t B,
                        uint64_t width);
/* The row of WORK_LAST of sequence b. */
dart_tensor model_last_row(const dart_state *state, uint32_t b);
/* Rows of WORK_SEEN, model_seen_words each, go through the host: dart_convert moves numbers, which bits need not be. Reads the rows of B sequences
 * from b on, writes that of one, makes room for B of them, which the caller frees. */
uint64_t model_seen_words(const dart_state *state);
dart_status model_seen_read(dart_state *state, uint32_t b, uint32_t B, int32_t *seen, const char *call);
dart_status model_seen_write(dart_state *state, uint32_t b, const int32_t *seen, const char *call);
dart_status model_seen_make(dart_state *state, uint32_t B, int32_t **seen, const char *call);
/* Submits what was recorded and waits. From the first submission on a failure breaks the state. */
dart_status model_run_recorded(dart_state *state, dart_stream *stream, const char *call);
/* Records zeros for what sequences b .. b + B - 1 keep, and runs them. Sets *ran once the device may have changed the state. */
dart_status model_clear_sequences(dart_state *state, uint32_t b, uint32_t B, bool *ran, const char *call);
/* The host's bookkeeping after sequence b was replaced by one at `position`; `chosen` is left alone. */
void model_sequence_replaced(dart_state *state, uint32_t b, int32_t position);
/* Marks of sequence b behind a position are no longer kept; position -1: none is. */
void model_marks_drop(dart_state *state, uint32_t b, int32_t position);
/* The last mark of sequence b up to a position; NULL when there is none. */
const model_mark *model_mark_before(const dart_state *state, uint32_t b, uint64_t position);
/* Records copies of what the layers carry of sequence b, and of its row of WORK_LAST, into the mark or back. */
void model_mark_record(const dart_state *state, uint32_t b, const model_mark *mark, bool back);
void model_marks_destroy(dart_state *state);
uint64_t model_marks_bytes(const dart_state *state);
/* What the layers carry, aside and back. Neither touches positions. */
dart_status model_backup_take(dart_state *state, const char *call);
dart_status model_backup_return(dart_state *state, const char *call);

/* Gives up what dart_state_prepare_save has found. */
void model_prepared_drop(dart_state *state);
/* dart_state_load from memory, for tests; `name` is for messages. */
dart_status model_state_load_memory(dart_state *state, int32_t b, const void *data, uint64_t bytes, const char *name);

/* ---- Settings of the choice and ends, of each sequence ---- */

dart_status model_check_sampling(dart_state *state, const dart_sampling *sampling, uint32_t count, const char *call);
/* Updates WORK_SETTINGS and WORK_STOPS to `sampling`, which model_check_sampling has accepted. */
dart_status model_use_sampling(dart_state *state, const dart_sampling *sampling, uint32_t count, const char *call);
/* Updates `ended` from the tokens in WORK_NEXT. */
dart_status model_judge(dart_state *state, const char *call);
/* Whether sequence b ends with this id, behind which it has that many tokens. */
bool model_ends(const dart_state *state, uint32_t b, int32_t id, int32_t position);
/* Writes WORK_SEQ and WORK_LIVE for a decoding step: count 1 for a sequence that goes on, 0 for one that has ended. */
dart_status model_write_seq(dart_state *state, const char *call);

#endif
