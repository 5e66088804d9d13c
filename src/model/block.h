/* One block of the model, x += out_proj(mixer(RMSNorm(x))), as a function of tensors that the caller gives. The block keeps
 * nothing from call to call. Sizes and letters as in dartlm.h: I = H P, [x|b|c] has I + 2 G N columns, [q|e] has G (N + P); in a model with
 * an independent c that c follows, [q|e|c] with G (2 N + P) columns, wherever [q|e] stands below. */
#ifndef DART_MODEL_BLOCK_H
#define DART_MODEL_BLOCK_H

#include "dartlm/model.h"

/* The weights of one layer. Absent tensors: the biases of a model without them, the sma_ ones without state-memory attention. */
typedef struct model_block_weights {
    dart_tensor norm, in_proj, conv_weight, conv_bias, dt_bias, a_log, d, mixer_norm, out_proj;
    dart_tensor sma_proj, sma_conv_weight, sma_conv_bias;
    dart_tensor in_proj_rest, sma_proj_rest; /* the last rows of quantised matrices: of dt; of the gate and the padding */
} model_block_weights;

/* The tensors that a layer keeps for every sequence, in and out. open, open_decay and sma_tail exist only with state-memory
 * attention. */
typedef struct model_block_carried {
    dart_tensor h;          /* f32 B H N P */
    dart_tensor tail;       /* B K-1 [x|b|c]: the last K - 1 inputs of the convolution */
    dart_tensor open;       /* f32 B H N P: the memory of the open chunk so far */
    dart_tensor open_decay; /* f32 B H */
    dart_tensor sma_tail;   /* B K-1 [q|e] */
} model_block_carried;

/* The window of dart_window_args, with the newest tokens of every sequence. */
typedef struct model_block_window {
    dart_tensor rows, steps, hin, hin_scale;
} model_block_window;

/* Activations of T = B L rows, packed; layers may share them. */
typedef struct model_block_work {
    dart_tensor input;    /* T W: RMSNorm(x) */
    dart_tensor proj;     /* T [z|x|b|c|dt], rows model_config_in_proj_row apart */
    dart_tensor conv;     /* T [x|b|c] */
    dart_tensor sma_proj; /* T [q|e|gate|padding]; like sma_conv and r only with attention */
    dart_tensor sma_conv; /* T [q|e] */
    dart_tensor r;        /* room for f32 T I */
    dart_tensor y;        /* T I, in the dtype of activations */
    dart_tensor normed;   /* T I: the gated norm of y; absent: it replaces y */
} model_block_work;

/* What training and packed sequences give a block besides. Rows are whole sequences, and a block keeps the memories of all their chunks
 * itself. */
typedef struct model_block_kept {
    dart_tensor dh;    /* B M H N P with M = ceil(L / S), or packed: raw memories, f32; like hin, decay and lse only with attention */
    dart_tensor dh_scale; /* f32 B M H N; present: memories are normalised (dart_memories), in any float type; training only */
    dart_tensor hin;   /* f32, as dh: the state entering each chunk; like decay model_block_packed only */
    dart_tensor decay; /* f32 M + B rows of H */
    dart_tensor lse;   /* f32 T H: training only */
    dart_tensor out;   /* f32 T W: the stream after the block; training only */
} model_block_kept;

/* The tokens of a training's last layer with a target. Nothing else reads what the layer makes of a token once its state and its memories are
 * updated, so z and all from the gated norm on (in a Transformer all from the product behind the attention on) is computed for their rows only. */
typedef struct model_labelled {
    uint32_t rows;      /* 0: all tokens count */
    dart_tensor tokens; /* i32 rows: the token of each row, or -1 for none */
    dart_tensor row_of; /* i32 T: the row of each token, or -1 */
} model_labelled;

/* Copies of their rows, and gradients of these, in the dtype of activations unless said. */
typedef struct model_block_labelled {
    model_labelled of;
    dart_tensor y, z, gate; /* rows I, rows I, rows */
    dart_tensor input;      /* rows W: of work.input, for z alone, and again for the gradient of z's weights */
    dart_tensor r;          /* f32 rows I */
    dart_tensor slope_out;  /* f32 rows W: of kept.out, whose first rows these are */
    dart_tensor slope_y, slope_z, slope_r, slope_gate, slope_input;
    uint32_t quiet; /* so many tokens of each sequence come before any with a target: nothing reads what the scan makes of them */
    /* Rows in the order of chunks: each sequence has L of them, S for each of its chunks from chunk F on, and no token with a target lies before
     * chunk F. Row i of a sequence then attends to the memories below F + i / S, as token F S + i of a sequence with chunks of S tokens does: the
     * attention and its gradients are computed for these rows only. S 0: in any order, and it is computed for all tokens. */
    uint32_t L, S;
    dart_tensor seq;        /* i32 B 2: F S and L */
    dart_tensor queries, c; /* rows [q|e]; rows G N, unless c is the attention's own */
    dart_tensor slope_queries, slope_c;
} model_block_labelled;

typedef struct model_block_args {
    const dart_model_config *config; /* S and sma below replace those of config */
    uint32_t B, L, S;
    uint32_t T;      /* with cu: rows of all sequences */
    bool sma;        /* with state-memory attention */
    dart_tensor x;   /* f32 T W, in and out */
    dart_tensor seq; /* i32 B 2 */
    dart_tensor cu;  /* i32 B + 1, model_block_train, _packed and _backward only: packed sequences of at most L tokens */
    model_block_weights weights;
    model_block_carried carried;
    model_block_work work;
    model_block_window window; /* model_block_window_... only */
    model_block_kept kept;     /* model_block_train and model_block_packed only */
    model_block_labelled labelled; /* model_block_train and model_block_backward only */
    /* read: runs that hold memories which some token attends to. closing: runs that receive the memories of chunks that close.
     * model_block_piece stores a memory before its attention reads, so that later tokens of the same piece attend to it. */
    const dart_memories *read, *closing;
    uint32_t read_count, closing_count;
} model_block_args;

/* Rows of the activations. */
static inline uint32_t model_block_rows(const model_block_args *args) { return args->cu.buffer != NULL ? args->T : args->B * args->L; }

/* y = the rows of the tokens of x that are named, and back: x = their rows of y, and 0 elsewhere. T: rows of x. */
dart_status model_take_labelled(dart_stream *stream, const model_labelled *of, uint32_t T, uint64_t width, dart_tensor x, dart_tensor y);
dart_status model_put_labelled(dart_stream *stream, const model_labelled *of, uint32_t T, uint64_t width, dart_tensor y, dart_tensor x);

/* Columns of rows that are `row` elements apart, from column `first` on. */
static inline dart_tensor model_columns(dart_tensor tensor, uint64_t first, uint64_t row)
{
    tensor.offset += first;
    tensor.row = row;
    return tensor;
}

/* Whether some token of a training row reads a memory. Where none does, the block computes no state-memory attention. */
static inline bool model_block_attends(const model_block_args *args) { return args->sma && args->L > args->S; }

/* Each of these functions records the block of one layer and returns the stream's status.
 * L tokens of every sequence, or as many as the counts of seq say. */
dart_status model_block_piece(dart_stream *stream, const model_block_args *args);
/* Whole sequences from position 0 on, packed; what they carry holds zeros. `borders` is cu on the host. A sequence without tokens stays as it
 * is. `read` is not used. */
dart_status model_block_packed(dart_stream *stream, const model_block_args *args, const int32_t *borders);
/* The parts of a block, in their order. */
enum {
    MODEL_BLOCK_NORM = 1 << 0,     /* work.input */
    MODEL_BLOCK_PROJECT = 1 << 1,  /* work.proj and sma_proj */
    MODEL_BLOCK_CONVOLVE = 1 << 2, /* work.conv and sma_conv */
    MODEL_BLOCK_SCAN = 1 << 3,     /* work.y and kept.dh */
    MODEL_BLOCK_ATTEND = 1 << 4,   /* work.r and kept.lse */
    MODEL_BLOCK_GATE = 1 << 5,     /* work.normed */
    MODEL_BLOCK_OUT = 1 << 6,      /* kept.out */
    MODEL_BLOCK_ALL = (1 << 7) - 1
};
/* Those parts of the block that `parts` names, for B sequences of L tokens from position 0 on, without carried tensors, runs and seq: for
 * training, and again for the backward pass where a tensor was not kept. r is f32, and x stays as it is. */
dart_status model_block_train(dart_stream *stream, const model_block_args *args, unsigned parts);

/* Gradients of parameters, f32, in the places of the weights. */
typedef model_block_weights model_block_gradients;
/* Gradients of activations, in the shapes of model_block_work; layers may share them. */
typedef struct model_block_slopes {
    dart_tensor x;                                         /* f32 T W: in, of kept.out unless labelled; out, of x */
    dart_tensor input, proj, conv, sma_proj, sma_conv, normed, y, r; /* in the dtype of activations; r T I */
    dart_tensor dh;                                        /* f32 B M H N P */
    /* input has x in the dtype of activations as well: copied, of kept.out on the way in; copies, of x on the way out. */
    bool copied, copies;
} model_block_slopes;
/* The backward pass of model_block_train, whose tensors of work and kept must all be there (kept.out is not read). Adds to the gradients of
 * parameters. */
dart_status model_block_backward(dart_stream *stream, const model_block_args *args, const model_block_gradients *gradients,
                                 const model_block_slopes *slopes);
/* One token of every sequence by dart_mixer_step, with these arguments: few launches that repeat work, for a few sequences. Does not use `work`. */
dart_mixer_step_args model_block_step_args(const model_block_args *args);
/* One token of every sequence through `window`, for many sequences, in two parts, and behind them dart_window_fold, which may stand anywhere before
 * the begin of the layer's next step. */
dart_status model_block_window_begin(dart_stream *stream, const model_block_args *args);
dart_status model_block_window_end(dart_stream *stream, const model_block_args *args);
/* Arguments of dart_window_fold: DART_WINDOW_STEP behind a step, DART_WINDOW_OPEN before the first one, DART_WINDOW_JOIN for sequences that come
 * later, DART_WINDOW_CLOSE before the next model_block_piece. */
dart_window_args model_block_fold_args(const model_block_args *args, dart_window_mode mode);

#endif
