// All kernels as one translation unit, and a check that every row of the table has its function.
#include "choice/advance.cu"
#include "choice/argmax.cu"
#include "choice/argmax_part.cu"
#include "attention/attention_simt.cu"
#include "attention/step.cu"
#include "attention/attention_tensor.cu"
#include "conv/conv.cu"
#include "conv/step.cu"
#include "conv/tail.cu"
#include "dense/convert.cu"
#include "dense/embed.cu"
#include "dense/fill.cu"
#include "dense/gated_norm.cu"
#include "attention/kv_append.cu"
#include "dense/linear_simt.cu"
#include "mixer/attend.cu"
#include "mixer/output.cu"
#include "mixer/project.cu"
#include "dense/norm.cu"
#include "choice/sample.cu"
#include "sma/sma_simt.cu"
#include "sma/append.cu"
#include "sma/sma_hopper.cu"
#include "sma/merge.cu"
#include "sma/query.cu"
#include "sma/rho.cu"
#include "sma/step.cu"
#include "sma/sma_tensor.cu"
#include "ssd/decay.cu"
#include "ssd/decay_memory.cu"
#include "ssd/memory_simt.cu"
#include "ssd/memory_tensor_warp.cu"
#include "ssd/output_simt.cu"
#include "ssd/output_tensor.cu"
#include "ssd/output_tensor_warp.cu"
#include "ssd/piece.cu"
#include "ssd/state_simt.cu"
#include "ssd/state_wide.cu"
#include "ssd/step.cu"
#include "window/append.cu"
#include "window/fold.cu"
#include "window/output.cu"

template <class Args> constexpr bool is_row(void (*)(const Args, const CudaBindings, const uint32_t)) { return true; }
template <class Args> constexpr bool is_row(void (*)(const Args, const CudaBindings, const uint32_t, const CudaMap))
{
    return true;
}
#define CUDA_BLAS_ROW(id, variant, needs, fits, T0, T1, max_rows) // the library's
#define CUDA_ROW(id, variant, needs, fits, T0, T1, max_rows) \
    static_assert(is_row<id##_args>(id##_##variant), #id "_" #variant);
#include "src/kernels.def"
