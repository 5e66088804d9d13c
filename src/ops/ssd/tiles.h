/* Heads that a workgroup of the scan takes, from the workgroups that a device runs side by side. */
#ifndef DART_SSD_TILES_H
#define DART_SSD_TILES_H

#include "base/base.h"

typedef struct ssd_size {
    uint32_t B, L, H, G, S;
} ssd_size;

/* T1 of ssd_decay_memory and T0 of ssd_output where their rows say 0. Pieces of similar length share an answer: chunks are counted in
 * powers of two, so that few pipelines are compiled. */
uint32_t ssd_memory_heads(uint32_t multiprocessors, const ssd_size *size);
uint32_t ssd_output_heads(uint32_t multiprocessors, const ssd_size *size);
/* Clusters of `blocks` workgroups that run at once. */
uint32_t ssd_clusters(uint32_t multiprocessors, uint32_t blocks);

#endif
