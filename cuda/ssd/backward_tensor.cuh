// What the kernels of the scan's backward pass on the warp products of sm_80 share. They take chunks of at most 256 tokens, N at most 128,
// P at most 64, multiples of 16, and bf16 operands; what a sum multiplies besides these (decays, c.b, gradients of states) is rounded to
// bf16 once, on its way into a product, and everything that is only added stays f32. Narrower matrices are padded with zeros.
#ifndef DART_SSD_BACKWARD_TENSOR_CUH
#define DART_SSD_BACKWARD_TENSOR_CUH

#include "backward.cuh"
#include "warp.cuh"

#define HALVES(id, name) (reinterpret_cast<uint16_t *>(bindings.address[BINDING_##id##_##name]))

namespace ssd_backward_tensor {

constexpr uint32_t threads = 256, tokens = 256, side = 64; // side: tokens of a tile where a block does not take a whole chunk

// {hi, lo} of a token of cum.
__device__ __forceinline__ float2 cum_at(const float *cum, uint32_t t)
{
    const float *at = cum + t * CUM_STRIDE;
    return make_float2(at[0], at[1]);
}

// Replaces the 8 columns of a row that the lane has, two of each 8 as in sums, by the sums of the 32 columns before each.
__device__ __forceinline__ void sum_columns_before(float (&z)[8])
{
    const uint32_t c = threadIdx.x % 4;
    float base = 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        float sum = z[2 * i] + z[2 * i + 1]; // of the lanes up to this one
        const float one = __shfl_up_sync(0xffffffffu, sum, 1);
        if (c >= 1) sum += one;
        const float two = __shfl_up_sync(0xffffffffu, sum, 2);
        if (c >= 2) sum += two;
        const float before = __shfl_up_sync(0xffffffffu, sum, 1);
        const float here = c > 0 ? base + before : base;
        z[2 * i + 1] = here + z[2 * i];
        z[2 * i] = here;
        base += __shfl_sync(0xffffffffu, sum, 3, 4);
    }
}

// Fragment k of a left operand whose rows lie in a tile from `at` on.
__device__ __forceinline__ void left_rows(uint32_t (&a)[4], uint32_t at, uint32_t row, uint32_t k)
{
    const uint32_t lane = threadIdx.x % 32;
    load_matrices(a, at + tile_at(row + lane % 16, 2 * k + lane / 16));
}
// Sums of 16 x 16 count += fragment x rows `row` to row + 16 count - 1 of a tile, which are the columns of the right operand; k: which 16
// elements of each.
template <uint32_t count>
__device__ __forceinline__ void multiply_right_lines(float *sums, const uint32_t (&a)[4], uint32_t at, uint32_t row, uint32_t k)
{
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (uint32_t i = 0; i < count; i++) {
        uint32_t b[4];
        load_matrices(b, at + tile_at(row + 16 * i + lane % 8 + lane / 16 * 8, 2 * k + lane / 8 % 2));
        multiply_16<true>(sums + 8 * i, a, b);
    }
}
// Sums of 16 x 64 += fragment x rows `row` to row + 15 of a tile, which are the depth.
__device__ __forceinline__ void multiply_right_depth(float *sums, const uint32_t (&a)[4], uint32_t at, uint32_t row)
{
    const uint32_t lane = threadIdx.x % 32, right = at + tile_at(row + lane % 16, 0);
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t b[4];
        load_matrices_turned(b, right ^ (2 * i + lane / 16) << 4);
        multiply_16<true>(sums + 8 * i, a, b);
    }
}

// The sum over the four lanes that share rows of sums.
__device__ __forceinline__ float row_sum(float value)
{
    value += __shfl_xor_sync(0xffffffffu, value, 1);
    return value + __shfl_xor_sync(0xffffffffu, value, 2);
}

// ---- Clusters: blocks that share the heads of a group ----

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define BACKWARD_CLUSTER(blocks) __cluster_dims__(blocks, 1, 1)
// All blocks of the cluster have come here, and what they wrote is there for all.
__device__ __forceinline__ void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// 16 bytes of shared memory of block `rank` of the cluster.
__device__ __forceinline__ float4 load_from(uint32_t at, uint32_t rank)
{
    uint32_t there;
    float4 v;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(there) : "memory");
    return v;
}
#else
#define BACKWARD_CLUSTER(blocks)
#endif

} // namespace ssd_backward_tensor

#endif
