// What the kernels of sma's backward pass and those for small N add to lib/tensor.cuh.
#ifndef DART_SMA_PRODUCTS_CUH
#define DART_SMA_PRODUCTS_CUH

#include "lib/tensor.cuh"

// Asynchronous copy of 4 bytes; zeros without a read unless there is set.
__device__ __forceinline__ void copy4(uint32_t to, const void *from, bool there)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(there ? 4 : 0) : "memory");
}

// Sums of 16 x 8 += fragment x right operand of 16 x 8, of which lane 4 g + c passes rows 2 c, 2 c + 1 (b0) and 2 c + 8, 2 c + 9 (b1) of
// column g.
template <bool bf> __device__ __forceinline__ void multiply_8(float *sum, const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
#define DART_MMA(type) \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, " \
                 "{%0, %1, %2, %3};" \
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]) \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1))
    if (bf) DART_MMA("bf16");
    else DART_MMA("f16");
#undef DART_MMA
}

// The sum over the four lanes that share lines.
__device__ __forceinline__ float lines_sum(float v)
{
    v += __shfl_xor_sync(0xffffffffu, v, 1);
    return v + __shfl_xor_sync(0xffffffffu, v, 2);
}

#endif
