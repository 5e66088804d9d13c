// Rows for the step of one sequence, and the launches of a stage as one (CUDA_MERGED): blocks of the last launch come first. The products that
// begin a step are in step_project.cu: ptxas with --Ofast-compile counts the shared memory of a file for each of its kernels, at most 48 KiB.
#include "attend_few.cuh"
#include "output_words.cuh"
#include "sma/append.cuh"
#include "ssd/step_columns.cuh"

static_assert(2 * output_slice == STEP_OUTPUT_INPUTS && output_factors == STEP_PARTIALS, "what the op takes for granted");
static_assert(SHARED_mixer_output_words == sizeof(OutputShared<1>) && SHARED_mixer_output_wide == sizeof(OutputShared<2>),
              "tiles");
KERNEL_FUNCTION_BLOCKS(mixer_output, words, 3) { output_words_run<1>(args, bindings, dtypes, all_blocks()); }
KERNEL_FUNCTION_BLOCKS(mixer_output, wide, 2) { output_words_run<2>(args, bindings, dtypes, all_blocks()); }
KERNEL_FUNCTION_BLOCKS(mixer_attend, few, 3) { attend_few_run(args, bindings, dtypes, all_blocks()); }

MERGED_FUNCTION(mixer_attend, few, ssd_step, n128_p64, 3)
{
    const Blocks last = {0, parts.last_blocks};
    merged_announce(parts);
    if (blockIdx.x < last.count) return scan_step_run(parts.last_args, parts.last_bindings, parts.last_dtypes, last);
    const uint32_t k = merged_part(parts);
    attend_few_run(parts.args[k], parts.bindings[k], parts.dtypes[k], {merged_first(parts, k), parts.blocks[k]});
}
template <uint32_t slices, class Parts> __device__ __forceinline__ void output_part(const Parts &parts)
{
    const Blocks last = {0, parts.last_blocks};
    merged_announce(parts);
    if (blockIdx.x < last.count) return output_words_run<slices>(parts.last_args, parts.last_bindings, parts.last_dtypes, last);
    const uint32_t k = merged_part(parts);
    sma_append_run<false>(parts.args[k], parts.bindings[k], parts.dtypes[k], {merged_first(parts, k), parts.blocks[k]});
}
MERGED_FUNCTION(sma_append, simt, mixer_output, words, 3) { output_part<1>(parts); }
MERGED_FUNCTION(sma_append, simt, mixer_output, wide, 2) { output_part<2>(parts); }
