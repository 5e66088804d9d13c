/* One layer of a Transformer, x += out_proj(attention(RMSNorm(x))), then x += down(SiLU(gate(u)) up(u)) with u = RMSNorm(x), as functions of
 * tensors that the caller gives. Of GPT-NeoX: norms are LayerNorms, products have biases, x += down(GELU(up(u))), and unless the configuration says
 * sequential, u is of the x before the attention is added. Letters as in dartlm/model.h: I = H P, [q|k|v] has (H + 2 G) P
 * columns, [a|u] has 2 F (GPT-NeoX: a, F). */
#ifndef DART_MODEL_TRANSFORMER_H
#define DART_MODEL_TRANSFORMER_H

#include "block.h"
#include "checkpoint/config.h"
#include "dartlm/ops.h"

/* The weights of one layer. */
typedef struct model_transformer_weights {
    dart_tensor norm, q_proj, k_proj, v_proj, out_proj, mlp_norm, gate_proj, up_proj, down_proj;
    dart_tensor norm_bias, q_bias, k_bias, v_bias, out_bias, mlp_norm_bias, up_bias, down_bias; /* GPT-NeoX only */
} model_transformer_weights;

/* From a layer's tensors by role. */
static inline model_transformer_weights model_transformer_places(const dart_tensor roles[MODEL_ROLE_COUNT])
{
    return (model_transformer_weights){
        .norm = roles[MODEL_NORM], .q_proj = roles[MODEL_Q_PROJ], .k_proj = roles[MODEL_K_PROJ], .v_proj = roles[MODEL_V_PROJ],
        .out_proj = roles[MODEL_OUT_PROJ], .mlp_norm = roles[MODEL_MLP_NORM], .gate_proj = roles[MODEL_GATE_PROJ],
        .up_proj = roles[MODEL_UP_PROJ], .down_proj = roles[MODEL_DOWN_PROJ],
        .norm_bias = roles[MODEL_NORM_BIAS], .q_bias = roles[MODEL_Q_BIAS], .k_bias = roles[MODEL_K_BIAS], .v_bias = roles[MODEL_V_BIAS],
        .out_bias = roles[MODEL_OUT_BIAS], .mlp_norm_bias = roles[MODEL_MLP_NORM_BIAS], .up_bias = roles[MODEL_UP_BIAS],
        .down_bias = roles[MODEL_DOWN_BIAS]};
}

/* Activations of T rows, packed; layers may share them. */
typedef struct model_transformer_work {
    dart_tensor input;     /* T W: RMSNorm(x) */
    dart_tensor qkv;       /* T [q|k|v], q and k turned by their positions */
    dart_tensor o;         /* T I */
    dart_tensor mlp_input; /* T W: RMSNorm of the stream behind the attention; may be `input` in model_transformer_piece */
    dart_tensor mlp;       /* T [a|u]: gate and up */
    dart_tensor hidden;    /* T F: SiLU(a) u, or GELU(a) */
} model_transformer_work;

/* What training keeps besides. */
typedef struct model_transformer_kept {
    dart_tensor lse;    /* f32 T H */
    dart_tensor middle; /* f32 T W: the stream behind the attention */
    dart_tensor out;    /* f32 T W: the stream behind the layer */
} model_transformer_kept;

/* The labelled tokens of a training's last layer: kept.middle, kept.out and what stands between have their rows only. */
typedef struct model_transformer_labelled {
    model_labelled of;
    dart_tensor o, slope_o; /* rows I: of work.o; in the dtype of activations */
    dart_tensor slope_out;  /* f32 rows W: of kept.out */
} model_transformer_labelled;

typedef struct model_transformer_args {
    const dart_model_config *config;
    uint32_t B, L;
    uint32_t T;         /* with cu: rows of all sequences */
    dart_tensor x;      /* f32 T W; in and out but for training */
    dart_tensor seq;    /* i32 B 2: model_transformer_piece only */
    dart_tensor cu;     /* i32 B + 1, not in model_transformer_piece: packed sequences of at most L tokens */
    model_transformer_weights weights;
    model_transformer_work work;
    /* Not for training: the blocks of keys and values from token 0 on that the piece's tokens see. Their own go to those from append_from on. */
    const dart_key_block *cache;
    uint32_t cache_count, append_from;
    model_transformer_kept kept; /* training only */
    model_transformer_labelled labelled; /* training only */
} model_transformer_args;

/* Each of these functions records one layer and returns the stream's status.
 * L tokens of every sequence, or as many as the counts of seq say; their keys and values go to the cache. */
dart_status model_transformer_piece(dart_stream *stream, const model_transformer_args *args);
/* Whole sequences from position 0 on, packed. `borders` is cu on the host. */
dart_status model_transformer_packed(dart_stream *stream, const model_transformer_args *args, const int32_t *borders);

/* The parts of a layer, in their order. */
enum {
    MODEL_TRANSFORMER_NORM = 1 << 0,     /* work.input */
    MODEL_TRANSFORMER_PROJECT = 1 << 1,  /* work.qkv */
    MODEL_TRANSFORMER_ATTEND = 1 << 2,   /* work.o and kept.lse */
    MODEL_TRANSFORMER_MIDDLE = 1 << 3,   /* kept.middle */
    MODEL_TRANSFORMER_MLP_NORM = 1 << 4, /* work.mlp_input */
    MODEL_TRANSFORMER_MLP = 1 << 5,      /* work.mlp */
    MODEL_TRANSFORMER_GATE = 1 << 6,     /* work.hidden */
    MODEL_TRANSFORMER_OUT = 1 << 7,      /* kept.out */
    MODEL_TRANSFORMER_ALL = (1 << 8) - 1
};
/* Those parts that `parts` names, of sequences from position 0 on; x stays as it is. */
dart_status model_transformer_train(dart_stream *stream, const model_transformer_args *args, unsigned parts);

/* Gradients of parameters, f32, in the places of the weights. */
typedef model_transformer_weights model_transformer_gradients;
/* Gradients of activations, in the dtype of activations unless said; layers may share them. */
typedef struct model_transformer_slopes {
    dart_tensor x;      /* f32 T W: in, of kept.out unless labelled; out, of x */
    dart_tensor input;  /* T W: of work.input and of work.mlp_input */
    dart_tensor qkv, o, mlp, hidden;
} model_transformer_slopes;
/* The backward pass of model_transformer_train, whose tensors of work and kept must all be there (kept.out is not read). Adds to the
 * gradients of parameters. */
dart_status model_transformer_backward(dart_stream *stream, const model_transformer_args *args, const model_transformer_gradients *gradients,
                                       const model_transformer_slopes *slopes);

#endif
