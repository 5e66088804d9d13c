// The products that begin a step of one sequence, and all of them, up to four, as one launch (CUDA_MERGED): blocks of the last launch come first.
#include "project_words.cuh"

static_assert(project_most == STEP_PROJECT_INPUTS, "what the op takes for granted");
static_assert(TILE0_mixer_project_words == project_tile && TILE1_mixer_project_words == 1, "tiles");
KERNEL_FUNCTION_BLOCKS(mixer_project, words, 3) { project_words_run(args, bindings, dtypes, all_blocks()); }

MERGED_FUNCTION(mixer_project, words, mixer_project, words, 3)
{
    const Blocks last = {0, parts.last_blocks};
    merged_announce(parts);
    if (blockIdx.x < last.count) return project_words_run(parts.last_args, parts.last_bindings, parts.last_dtypes, last);
    const uint32_t k = merged_part(parts);
    project_words_run(parts.args[k], parts.bindings[k], parts.dtypes[k], {merged_first(parts, k), parts.blocks[k]});
}
