// ssd_backward_b and ssd_backward_c on warp products, a cluster of four blocks for 64 tokens of a (chunk, group), each with 16 of them as its tile;
// backward_tokens.cuh says how. Needs chunks of a multiple of 64 tokens, and at least four heads a group.
#include "backward_tokens.cuh"

#define TOKENS_CLUSTER_ROW(id, T0, T1) \
    static_assert(sizeof(ssd_backward_tensor::of_tokens::Shared) <= SHARED_ssd_backward_##id##_cluster_bf16, "shared memory"); \
    static_assert(TILE0_ssd_backward_##id##_cluster_bf16 == (T0) && TILE1_ssd_backward_##id##_cluster_bf16 == (T1), "four tiles of 16 tokens"); \
    KERNEL_BOUNDED(ssd_backward_##id, cluster_bf16, __launch_bounds__(THREADS_ssd_backward_##id##_cluster_bf16, 2) BACKWARD_CLUSTER) \
    { \
        ssd_backward_tensor::of_tokens::of_##id<4>(args, bindings); \
    }
TOKENS_CLUSTER_ROW(b, 128, 16)
TOKENS_CLUSTER_ROW(c, 16, 1)
