// The products that begin a step of one sequence, and all of them, up to four, as one launch (CUDA_MERGED): blocks of the last launch come first.
#include "project_words.cuh"

static_assert(ProjectShared<6>::most == STEP_PROJECT_INPUTS, "what the op takes for granted");
static_assert(SHARED_mixer_project_words == sizeof(ProjectShared<3>) && SHARED_mixer_project_wide == sizeof(ProjectShared<6>) &&
                  THREADS_mixer_project_words == block_size && THREADS_mixer_project_wide == block_size,
              "blocks");
KERNEL_FUNCTION_BLOCKS(mixer_project, words, 3) { project_words_run<3>(args, bindings, dtypes, all_blocks()); }
KERNEL_FUNCTION_BLOCKS(mixer_project, wide, 2) { project_words_run<6>(args, bindings, dtypes, all_blocks()); }

template <uint32_t words, class Parts> __device__ __forceinline__ void project_part(const Parts &parts)
{
    merged_announce(parts);
    const bool last = blockIdx.x < parts.last_blocks;
    const uint32_t k = last ? 0 : merged_part(parts);
    const Blocks blocks = {last ? 0 : merged_first(parts, k), last ? parts.last_blocks : parts.blocks[k]};
    project_words_run<words>(last ? parts.last_args : parts.args[k], last ? parts.last_bindings : parts.bindings[k],
                             last ? parts.last_dtypes : parts.dtypes[k], blocks);
}
MERGED_FUNCTION(mixer_project, words, mixer_project, words, 3) { project_part<3>(parts); }
MERGED_FUNCTION(mixer_project, wide, mixer_project, wide, 2) { project_part<6>(parts); }
