/* What a model is: config.json, presets, the list of its parameters, and whether a checkpoint fits. A dart_model_config that a
 * function below returns has passed model_config_check. */
#ifndef DART_CONFIG_H
#define DART_CONFIG_H

#include "safetensors.h"

#include "dartlm/model.h"

/* path: a config.json or the folder that holds it. Keys that say nothing about the function computed are ignored.
 * DART_BAD_DATA: not JSON, a key is missing, out of range or contradicts another; DART_UNSUPPORTED: a model that is
 * none of Mamba-2, DART, Llama and GPT-NeoX, or has a feature that this library does not compute. */
dart_status model_config_load(const char *path, base_report *report, dart_model_config *config);
/* The text itself; name is for messages. */
dart_status model_config_parse(const char *text, size_t bytes, const char *name, base_report *report,
                               dart_model_config *config);
/* Ranges and consistency. fault is the status of a bad value: the caller knows where the values come from. */
dart_status model_config_check(const dart_model_config *config, dart_status fault, const char *name, base_report *report);

/* Writes config.json to a folder, from which model_config_load reads the same configuration. DART_IO; DART_UNSUPPORTED for GPT-NeoX. */
dart_status model_config_write(const dart_model_config *config, const char *folder, base_report *report);

/* "dart-130m", "dart-370m", "dart-780m", "mamba2-130m", ... and the names by parameter count ("dart-133m").
 * DART_INVALID_ARGUMENT for others. */
dart_status model_config_preset(const char *name, base_report *report, dart_model_config *config);
/* The names by size, for lists: NULL from the count on. */
const char *model_config_preset_name(size_t index);

typedef enum model_role {
    MODEL_EMBEDDING,
    MODEL_NORM,
    MODEL_IN_PROJ,
    MODEL_CONV_WEIGHT,
    MODEL_CONV_BIAS,
    MODEL_DT_BIAS,
    MODEL_A_LOG,
    MODEL_D,
    MODEL_MIXER_NORM,
    MODEL_OUT_PROJ,
    MODEL_SMA_PROJ,
    MODEL_SMA_CONV_WEIGHT,
    MODEL_SMA_CONV_BIAS,
    MODEL_FINAL_NORM,
    MODEL_HEAD,
    /* Of a Transformer, besides the embedding, the norm before the attention, the product behind it, the last norm and the head. */
    MODEL_Q_PROJ,
    MODEL_K_PROJ,
    MODEL_V_PROJ,
    MODEL_MLP_NORM,
    MODEL_GATE_PROJ,
    MODEL_UP_PROJ,
    MODEL_DOWN_PROJ,
    /* Of GPT-NeoX, besides those of a Transformer but for the gate. */
    MODEL_NORM_BIAS,
    MODEL_Q_BIAS,
    MODEL_K_BIAS,
    MODEL_V_BIAS,
    MODEL_OUT_BIAS,
    MODEL_MLP_NORM_BIAS,
    MODEL_UP_BIAS,
    MODEL_DOWN_BIAS,
    MODEL_FINAL_NORM_BIAS,
    MODEL_ROLE_COUNT
} model_role;

/* Whether the parameter is a matrix, stored in the dtype chosen for weights; the others are always f32. */
bool model_role_is_matrix(model_role role);

typedef struct model_parameter {
    char name[64]; /* as checkpoints call it */
    model_role role;
    uint32_t layer; /* 0 outside of layers */
    uint32_t rank;
    uint64_t shape[3]; /* ones beyond the rank */
    uint64_t elements;
    /* Where a tensor of the checkpoint holds `parts` parameters, taking turns every `run` elements (GPT-NeoX's q, k and v of a head): which of them
     * this one is. 1, 0 and all elements otherwise. */
    uint32_t parts, part;
    uint64_t run;
    uint64_t rest; /* rows at the end of a matrix that are not quantised: step sizes, and the gate of state-memory attention */
} model_parameter;

/* Inner width, columns of in_proj, channels of conv1d ([x|b|c]) and sma_conv1d ([q|e], with an independent c [q|e|c]), padded rows of
 * sma_proj. */
uint32_t model_config_inner(const dart_model_config *config);
uint32_t model_config_in_proj(const dart_model_config *config);
/* Elements from one row of in_proj's output to the next: its columns, rounded up so that rows of 16-bit numbers begin at 16 bytes. */
uint32_t model_config_in_proj_row(const dart_model_config *config);
uint32_t model_config_conv(const dart_model_config *config);
uint32_t model_config_sma_conv(const dart_model_config *config);
uint32_t model_config_sma_proj(const dart_model_config *config);
/* Rows of a convolution's tail: K - 1, 0 for a Transformer. */
uint32_t model_config_tail(const dart_model_config *config);
/* Columns of a Transformer's [q|k|v]: (H + 2 G) P. */
uint32_t model_config_qkv(const dart_model_config *config);
/* Columns of what its MLP computes first: [a|u], 2 F, or a, F, of GPT-NeoX. */
uint32_t model_config_mlp(const dart_model_config *config);
/* Elements of one memory, of h and of the open chunk: H N P. */
uint64_t model_config_memory(const dart_model_config *config);

/* Operations of a layer for a token, with chunks of S tokens, and with or without state-memory attention; *context: besides, for each token
 * before it. */
double model_config_work(const dart_model_config *config, uint32_t S, bool sma, double *context);

/* The index-th parameter: embedding, layers in order, final norm, head. false from the count on. */
bool model_config_parameter(const dart_model_config *config, uint32_t index, model_parameter *parameter);
/* Numbers in all parameters together. */
uint64_t model_config_count(const dart_model_config *config);

/* Of a parameter's element `first`: its place in the tensor of the checkpoint, and how many elements from there on are its own. */
uint64_t model_parameter_place(const model_parameter *parameter, uint64_t first, uint64_t *together);

/* The tensor of a parameter under any name in use, or NULL. */
const safetensors_tensor *model_weights_find(const safetensors *file, const model_parameter *parameter);

/* Where a checkpoint has the numbers of a parameter. A quantised matrix NAME is several tensors (the blocks are those of dart_quantise):
 *   NAME          rows x width I8 (q8), or rows x width / 2 U8 (q4)
 *   NAME.scale    rows x width / 32 BF16
 *   NAME.minimum  the same, of q4
 *   NAME.rest     rest x width F32, F16 or BF16: the last rows, where the parameter has some that are not quantised */
typedef struct model_source {
    const safetensors_tensor *tensor, *scales, *minima, *rest; /* absent ones NULL; tensor NULL: the parameter is missing */
    dart_dtype dtype;                                          /* DART_Q8 or DART_Q4, or that of all numbers */
    dart_dtype rest_dtype;                                     /* of the numbers that are not quantised; without a rest the scales' */
    uint64_t width, rows;                                      /* of the quantised rows */
} model_source;
model_source model_source_find(const safetensors *file, const model_parameter *parameter);
static inline bool model_source_is_quantised(const model_source *source) { return source->dtype == DART_Q8 || source->dtype == DART_Q4; }
/* Elements from `place` in the tensor on as f32; whole rows of a quantised one. */
void model_source_to_f32(const model_source *source, uint64_t place, size_t count, float *to);
/* `count` quantised rows from `row` on as dart_quantise has them. */
void model_source_rows(const model_source *source, uint64_t row, size_t count, uint8_t *to);
/* Whether the matrix can be quantised, and its type then: the embedding and the head keep eight bits. Other parameters: f32. */
dart_dtype model_quantised_dtype(const model_parameter *parameter, dart_dtype wanted);

typedef struct model_quantised_counts {
    uint32_t matrices;                  /* that were quantised */
    uint64_t bytes_before, bytes_after; /* of all tensors */
} model_quantised_counts;
/* Writes the tensors of a folder's checkpoint to a file, matrices quantised as loading with that storage does. dtype: DART_Q8 or DART_Q4. Needs
 * memory for all quantised tensors. progress, which may be NULL, is asked between rows and tensors, and counts bytes read and then tensors written;
 * where it says no nothing is written. DART_INVALID_ARGUMENT: quantised already; DART_UNSUPPORTED: no matrix can be. */
dart_status model_quantise(const char *folder, dart_dtype dtype, const char *path, base_progress *progress, base_report *report,
                           model_quantised_counts *counts);

/* Every parameter is there with its shape and dtype F32, F16 or BF16, or quantised, and with finite numbers unless skip_scan is set, which
 * then are progress. DART_BAD_DATA names the tensor. Tensors that are no parameter are logged as warnings. */
dart_status model_weights_check(const dart_model_config *config, const safetensors *file, bool skip_scan, base_progress *progress,
                                base_report *report);

#endif
