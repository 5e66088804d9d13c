/* One block of the model, x += out_proj(mixer(RMSNorm(x))), as a function of tensors that the caller gives. Nothing is kept here
 * from call to call. Sizes and letters as in dartlm.h: I = H P, [x|b|c] has I + 2 G N columns, [q|e] has G (N + P). */
#ifndef DART_MODEL_BLOCK_H
#define DART_MODEL_BLOCK_H

#include "dartlm/model.h"

/* Absent: the biases of a model without them, and the last three without state-memory attention. */
typedef struct model_block_weights {
    dart_tensor norm, in_proj, conv_weight, conv_bias, dt_bias, a_log, d, mixer_norm, out_proj;
    dart_tensor sma_proj, sma_conv_weight, sma_conv_bias;
} model_block_weights;

/* The past of every sequence, in and out. The last three are there with state-memory attention. */
typedef struct model_block_carried {
    dart_tensor h;          /* f32 B H N P */
    dart_tensor tail;       /* B K-1 [x|b|c]: the newest inputs of the convolution */
    dart_tensor open;       /* f32 B H N P: what the open chunk wrote */
    dart_tensor open_decay; /* f32 B H */
    dart_tensor sma_tail;   /* B K-1 [q|e] */
} model_block_carried;

/* The newest tokens of sequences that take steps, see dart_window_append. */
typedef struct model_block_window {
    dart_tensor rows, steps, hin, hin_scale;
} model_block_window;

/* Activations of T = B L rows, packed; layers may share them. */
typedef struct model_block_work {
    dart_tensor input;    /* T W: RMSNorm(x) */
    dart_tensor proj;     /* T [z|x|b|c|dt] */
    dart_tensor conv;     /* T [x|b|c] */
    dart_tensor sma_proj; /* T [q|e|gate|padding], with attention as the next two */
    dart_tensor sma_conv; /* T [q|e] */
    dart_tensor r;        /* room for f32 T I */
    dart_tensor y;        /* T I, in the dtype of activations */
} model_block_work;

typedef struct model_block_args {
    const dart_model_config *config; /* its S and sma are not looked at: */
    uint32_t B, L, S;
    bool sma;        /* with state-memory attention */
    dart_tensor x;   /* f32 T W, in and out */
    dart_tensor seq; /* i32 B 2 */
    model_block_weights weights;
    model_block_carried carried;
    model_block_work work;
    model_block_window window; /* for steps through windows */
    /* Runs of memories that some token reads, and those that a chunk of the call may close into. Memories of chunks that close
     * are stored before the attention reads: they are among what later tokens of the call read. */
    const dart_memories *read, *closing;
    uint32_t read_count, closing_count;
} model_block_args;

/* Each records the block for one layer and returns the stream's status.
 * L tokens of every sequence, or fewer as seq says. */
dart_status model_block_piece(dart_stream *stream, const model_block_args *args);
/* One token of every sequence in few launches, which repeat work: for a handful of sequences. Needs no `work`. */
dart_status model_block_step(dart_stream *stream, const model_block_args *args);
/* One token of every sequence; the newest tokens are in `window`. */
dart_status model_block_window_step(dart_stream *stream, const model_block_args *args);
/* DART_WINDOW_OPEN turns from pieces to steps through windows, DART_WINDOW_CLOSE back. */
dart_status model_block_window_turn(dart_stream *stream, const model_block_args *args, dart_window_mode mode);

#endif
