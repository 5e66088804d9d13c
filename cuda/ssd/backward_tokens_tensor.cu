// ssd_backward_b and ssd_backward_c on warp products, a block for 64 tokens of a (chunk, group); backward_tokens.cuh says how.
#include "backward_tokens.cuh"

#define TOKENS_ROW(id, T0, T1) \
    static_assert(sizeof(ssd_backward_tensor::of_tokens::Shared) <= SHARED_ssd_backward_##id##_tensor_bf16, "shared memory"); \
    static_assert(TILE0_ssd_backward_##id##_tensor_bf16 == (T0) && TILE1_ssd_backward_##id##_tensor_bf16 == (T1), \
                  "a block has all columns of its tokens"); \
    KERNEL_FUNCTION_BLOCKS(ssd_backward_##id, tensor_bf16, 2) { ssd_backward_tensor::of_tokens::of_##id<1>(args, bindings); }
TOKENS_ROW(b, 128, 64)
TOKENS_ROW(c, 64, 1)
