// The store of memories whose chunks close, see append.cuh.
#include "append.cuh"

KERNEL_FUNCTION(sma_append, simt) { sma_append_run<true>(args, bindings, dtypes, all_blocks()); }
