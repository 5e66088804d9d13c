/* What host and device agree on beside args.h: how a kernel is launched. Read by C and CUDA. */
#ifndef DART_CUDA_LAUNCH_H
#define DART_CUDA_LAUNCH_H

#include <stdint.h>

#define CUDA_BLOCK 256    /* threads of a block, but for rows with a shape of their own */
#define CUDA_BINDINGS 12

/* Kernel parameters in order: the argument struct, this, and the dtypes word of args.h. */
struct CudaBindings { uint64_t address[CUDA_BINDINGS]; };

#endif
