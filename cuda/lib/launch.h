/* The parameters of a kernel besides shaders/args.h, for C and CUDA. */
#ifndef DART_CUDA_LAUNCH_H
#define DART_CUDA_LAUNCH_H

#include "cuda_bindings.h" /* CUDA_BINDINGS, made from the table */

#include <stdint.h>

#define CUDA_BLOCK 256    /* threads of a block, except for CUDA_SHAPED_ROW */
#define MERGED_MOST 3     /* launches of the first variant of a CUDA_MERGED row */
#define MERGED_SOON 8     /* bindings of later launches that its function brings into the cache */
#define CUDA_MAP_WIDTH 64 /* 16-bit elements of a row of a CudaMap: 128 bytes, the widest swizzle */

/* Kernel parameters in order: the argument struct, CudaBindings, the dtypes word of args.h, and for a row with CUDA_MAP a CudaMap.
 * address: the device address of each binding. */
struct CudaBindings { uint64_t address[CUDA_BINDINGS]; };
/* What a function of a kernel with at most 16 bindings can take instead; a launch copies as many bytes as the function declares. nvcc keeps a
 * parameter of up to 128 bytes in registers or leaves it where it is as it likes, and reads a larger one where it is used. */
struct CudaFewBindings { uint64_t address[CUDA_BINDINGS < 16 ? CUDA_BINDINGS : 16]; };

/* A tensor map of the driver (opaque): describes a binding as rows of CUDA_MAP_WIDTH 16-bit elements from its address on. Copies are
 * swizzled by 128 bytes in shared memory. Rows past the binding read as 0. */
#ifdef __CUDACC__
struct alignas(64) CudaMap { uint64_t words[16]; };
#else
struct CudaMap { uint64_t words[16]; };
#endif

#endif
