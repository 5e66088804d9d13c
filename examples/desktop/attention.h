/* What a token attends to, computed on the device from the model's own buffers: with q and e of the token and the memories dh_m of its layer,
 *   logit_m = qn . (dh_m en) / sqrt(N),  lse = log sum_m exp(logit_m),  weight_m = exp(logit_m - lse)
 * for every head, where qn = q / rms(q), en = e / rms(e), and dh_m is normalised already, as dartlm keeps it. The map shows the mean over heads. */
#ifndef DESKTOP_ATTENTION_H
#define DESKTOP_ATTENTION_H

#include "host.h"

#include <dartlm/model.h>

enum { ATTENTION_MOST_RUNS = 32 };

typedef struct attention {
    host *host;
    buffer logits;    /* f32 H pitch, made with the first row */
    VkBuffer weights; /* the map: f32 rows pitch */
    VkDeviceSize weights_bytes;
    uint32_t pitch;
    VkDescriptorSetLayout set_layout;
    VkDescriptorPool pool;
    VkDescriptorSet sets[ATTENTION_MOST_RUNS]; /* one a run of memories */
    VkPipelineLayout layout;
    VkPipeline logits_pipeline, weights_pipeline;
    commands commands;
} attention;

/* weights: rows of `pitch` numbers. */
void attention_open(attention *a, host *h, const buffer *weights, uint32_t pitch);
void attention_close(attention *a);
/* No row has memories. */
void attention_clear(attention *a);
/* Row `row` of the map. Waits until it is there. */
void attention_add_row(attention *a, const dart_model_config *config, const dart_queries *queries, uint32_t row);

#endif
