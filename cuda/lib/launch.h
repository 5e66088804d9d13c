/* What host and device agree on beside args.h: how a kernel is launched. Read by C and CUDA. */
#ifndef DART_CUDA_LAUNCH_H
#define DART_CUDA_LAUNCH_H

#include "cuda_bindings.h" /* CUDA_BINDINGS, made from the table */

#include <stdint.h>

#define CUDA_BLOCK 256    /* threads of a block, but for rows with a shape of their own */
#define CUDA_MAP_WIDTH 64 /* 16-bit elements of a row of a CudaMap: 128 bytes, the widest swizzle */

/* Kernel parameters in order: the argument struct, this, the dtypes word of args.h, and where kernels.def has a
 * CUDA_MAP a CudaMap. */
struct CudaBindings { uint64_t address[CUDA_BINDINGS]; };

/* A tensor map of the driver (opaque): a binding as rows of CUDA_MAP_WIDTH 16-bit elements from its address on, swizzled
 * by 128 bytes in shared memory. Rows past the binding read as 0. */
#ifdef __CUDACC__
struct alignas(64) CudaMap { uint64_t words[16]; };
#else
struct CudaMap { uint64_t words[16]; };
#endif

#endif
