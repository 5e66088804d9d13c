/* One block of the model, x += out_proj(mixer(RMSNorm(x))), as a function of tensors that the caller gives. The block keeps
 * nothing from call to call. Sizes and letters as in dartlm.h: I = H P, [x|b|c] has I + 2 G N columns, [q|e] has G (N + P). */
#ifndef DART_MODEL_BLOCK_H
#define DART_MODEL_BLOCK_H

#include "dartlm/model.h"

/* The weights of one layer. Absent tensors: the biases of a model without them, the sma_ ones without state-memory attention. */
typedef struct model_block_weights {
    dart_tensor norm, in_proj, conv_weight, conv_bias, dt_bias, a_log, d, mixer_norm, out_proj;
    dart_tensor sma_proj, sma_conv_weight, sma_conv_bias;
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
    dart_tensor proj;     /* T [z|x|b|c|dt] */
    dart_tensor conv;     /* T [x|b|c] */
    dart_tensor sma_proj; /* T [q|e|gate|padding]; like sma_conv and r only with attention */
    dart_tensor sma_conv; /* T [q|e] */
    dart_tensor r;        /* room for f32 T I */
    dart_tensor y;        /* T I, in the dtype of activations */
} model_block_work;

typedef struct model_block_args {
    const dart_model_config *config; /* S and sma below replace those of config */
    uint32_t B, L, S;
    bool sma;        /* with state-memory attention */
    dart_tensor x;   /* f32 T W, in and out */
    dart_tensor seq; /* i32 B 2 */
    model_block_weights weights;
    model_block_carried carried;
    model_block_work work;
    model_block_window window; /* model_block_window_step and model_block_window_turn only */
    /* read: runs that hold memories which some token attends to. closing: runs that receive the memories of chunks that close.
     * model_block_piece stores a memory before its attention reads, so that later tokens of the same piece attend to it. */
    const dart_memories *read, *closing;
    uint32_t read_count, closing_count;
} model_block_args;

/* Each of these functions records the block of one layer and returns the stream's status.
 * L tokens of every sequence, or as many as the counts of seq say. */
dart_status model_block_piece(dart_stream *stream, const model_block_args *args);
/* One token of every sequence through dart_mixer_step: few launches that repeat work, for a few sequences. Does not use `work`. */
dart_status model_block_step(dart_stream *stream, const model_block_args *args);
/* One token of every sequence through `window`, for many sequences. */
dart_status model_block_window_step(dart_stream *stream, const model_block_args *args);
/* DART_WINDOW_OPEN before the first model_block_window_step, DART_WINDOW_CLOSE before the next model_block_piece. */
dart_status model_block_window_turn(dart_stream *stream, const model_block_args *args, dart_window_mode mode);

#endif
