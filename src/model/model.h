/* dart_model: weights on a device. */
#ifndef DART_MODEL_H
#define DART_MODEL_H

#include "block.h"
#include "transformer.h"
#include "checkpoint/config.h"
#include "runtime/device.h"

struct dart_model {
    dart_device *device;
    base_report report;
    dart_model_config config;
    dart_dtype weights_dtype, activations, memories;
    bool quantised;        /* some weight is */
    dart_dtype rest_dtype; /* of what is not quantised beside quantised weights */
    dart_tensor *weights; /* [layer][role]; weights that belong to no layer lie at layer 0 */
    dart_tensor *rest;    /* as `weights`: the last rows of quantised matrices, where these rows are not quantised */
    dart_buffer **buffers;
    uint32_t buffers_count;
    uint64_t bytes;
    uint64_t fingerprint; /* of the values of all parameters, as their source has them or quantised: see dart_state_load */
};

static inline const dart_tensor *model_weight(const dart_model *model, uint32_t layer, model_role role)
{
    return &model->weights[(size_t)layer * MODEL_ROLE_COUNT + role];
}
model_block_weights model_layer_weights(const dart_model *model, uint32_t layer);
model_transformer_weights model_transformer_layer_weights(const dart_model *model, uint32_t layer);
/* The weights of lm_head: with config.tied those of the embedding. */
const dart_tensor *model_head(const dart_model *model);

#endif
