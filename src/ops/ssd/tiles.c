#include "tiles.h"

/* A workgroup with fewer heads than this repeats more than it gains: b^T, or c b^T, is loaded or multiplied once for all its heads. */
enum { MEMORY_LEAST = 2, OUTPUT_LEAST = 3, OUTPUT_BLOCKS = 2 /* of tokens in a chunk */ };

/* Chunks of all sequences, the next power of two: chunks of a piece that starts within one count as if it did not. */
static uint64_t chunks_of(const ssd_size *size)
{
    const uint64_t chunks = size->B * base_ceil_div(size->L, size->S);
    uint64_t rounded = 1;
    while (rounded < chunks) rounded *= 2;
    return rounded;
}

/* The fewest of `heads` a workgroup with which `blocks` workgroups for each slice of the heads do not exceed `room`; all where even
 * one slice does. */
static uint32_t fewest(uint32_t heads, uint64_t blocks, uint64_t room)
{
    const uint64_t slices = room / blocks;
    return slices == 0 ? heads : (uint32_t)base_ceil_div(heads, slices);
}

uint32_t ssd_memory_heads(uint32_t multiprocessors, const ssd_size *size)
{
    const uint32_t heads = fewest(size->H / size->G, size->G * chunks_of(size), multiprocessors);
    return heads > MEMORY_LEAST ? heads : MEMORY_LEAST;
}

/* Workgroups run at once; where that would give one more than a quarter of the heads, in two turns. */
uint32_t ssd_output_heads(uint32_t multiprocessors, const ssd_size *size)
{
    const uint32_t all = size->H / size->G;
    const uint64_t blocks = OUTPUT_BLOCKS * size->G * chunks_of(size);
    uint32_t heads = fewest(all, blocks, multiprocessors);
    if (heads > all / 4) heads = fewest(all, blocks, 2 * (uint64_t)multiprocessors);
    return heads > OUTPUT_LEAST ? heads : OUTPUT_LEAST;
}

/* Clusters lie within groups of multiprocessors, whose numbers are no multiples of a cluster's: about one cluster is lost to that. An
 * H200 has 132 multiprocessors and room for 15 clusters of 8. */
uint32_t ssd_clusters(uint32_t multiprocessors, uint32_t blocks)
{
    const uint32_t clusters = multiprocessors / blocks;
    return clusters > 1 ? clusters - 1 : clusters;
}
