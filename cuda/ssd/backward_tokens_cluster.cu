// ssd_backward_b and ssd_backward_c on warp products, a cluster of four or two blocks for 64 tokens of a (chunk, group), each with a share of them as
// its tile; backward_tokens.cuh says how. Needs chunks of a multiple of 64 tokens, and at least four heads a group.
#include "backward_tokens.cuh"

#define TOKENS_CLUSTER_ROW(id, variant, blocks, T0, T1) \
    static_assert(sizeof(ssd_backward_tensor::of_tokens::Shared) <= SHARED_ssd_backward_##id##_##variant, "shared memory"); \
    static_assert(TILE0_ssd_backward_##id##_##variant == (T0) && TILE1_ssd_backward_##id##_##variant == (T1), "tiles of 64 / blocks tokens"); \
    KERNEL_BOUNDED(ssd_backward_##id, variant, __launch_bounds__(THREADS_ssd_backward_##id##_##variant, 2) BACKWARD_CLUSTER(blocks)) \
    { \
        ssd_backward_tensor::of_tokens::of_##id<blocks>(args, bindings); \
    }
TOKENS_CLUSTER_ROW(b, cluster_bf16, 4, 128, 16)
TOKENS_CLUSTER_ROW(c, cluster_bf16, 4, 16, 1)
TOKENS_CLUSTER_ROW(b, pair_bf16, 2, 128, 32)
TOKENS_CLUSTER_ROW(c, pair_bf16, 2, 32, 1)
