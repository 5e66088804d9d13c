// All kernels as one translation unit, and a check that every row of the table has its function.
#include "advance.cu"
#include "argmax.cu"
#include "argmax_part.cu"
#include "attention.cu"
#include "attention_step.cu"
#include "attention_tensor.cu"
#include "conv.cu"
#include "conv_step.cu"
#include "conv_tail.cu"
#include "convert.cu"
#include "embed.cu"
#include "fill.cu"
#include "gated_norm.cu"
#include "kv_append.cu"
#include "linear.cu"
#include "mixer_attend.cu"
#include "mixer_output.cu"
#include "mixer_project.cu"
#include "norm.cu"
#include "sample.cu"
#include "sma.cu"
#include "sma_append.cu"
#include "sma_hopper.cu"
#include "sma_merge.cu"
#include "sma_query.cu"
#include "sma_rho.cu"
#include "sma_step.cu"
#include "sma_tensor.cu"
#include "ssd_decay.cu"
#include "ssd_decay_memory.cu"
#include "ssd_memory.cu"
#include "ssd_memory_warp.cu"
#include "ssd_output.cu"
#include "ssd_output_tensor.cu"
#include "ssd_output_warp.cu"
#include "ssd_piece.cu"
#include "ssd_state.cu"
#include "ssd_state_wide.cu"
#include "ssd_step.cu"
#include "window_append.cu"
#include "window_fold.cu"
#include "window_output.cu"

template <class Args> constexpr bool is_row(void (*)(const Args, const CudaBindings, const uint32_t)) { return true; }
template <class Args> constexpr bool is_row(void (*)(const Args, const CudaBindings, const uint32_t, const CudaMap))
{
    return true;
}
#define CUDA_BLAS_ROW(id, variant, capabilities, T0, T1, max_rows) // the library's
#define CUDA_ROW(id, variant, capabilities, T0, T1, max_rows) \
    static_assert(is_row<id##_args>(id##_##variant), #id "_" #variant);
#include "../src/kernels.def"
