// Operands of tensor cores for attention (sm_80): pairs of 16-bit elements, shared memory by address, fragments.
#ifndef DART_ATTEND_CUH
#define DART_ATTEND_CUH

#include "dart.cuh"

#include <cuda_bf16.h>

namespace attend {

constexpr uint32_t TOKENS = 128; // tokens of a tile
constexpr float log2e = 1.4426950408889634f, ln2 = 0.69314718055994531f;

// 2^x for x <= 0; 0 where the result is subnormal. NaN stays NaN.
__device__ __forceinline__ float exp2_below(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// ---- Pairs of 16-bit elements, the first one in the low half ----

template <uint32_t dtype> struct Pair;
template <> struct Pair<DTYPE_BF16> {
    static __device__ __forceinline__ uint32_t round(float x, float y)
    {
        const __nv_bfloat162 pair = __floats2bfloat162_rn(x, y);
        return reinterpret_cast<const uint32_t &>(pair);
    }
    static __device__ __forceinline__ float2 unpack(uint32_t pair)
    {
        return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
    }
    static __device__ __forceinline__ uint32_t multiply(uint32_t x, uint32_t y)
    {
        const __nv_bfloat162 made = __hmul2(reinterpret_cast<const __nv_bfloat162 &>(x),
                                            reinterpret_cast<const __nv_bfloat162 &>(y));
        return reinterpret_cast<const uint32_t &>(made);
    }
};
template <> struct Pair<DTYPE_F16> {
    static __device__ __forceinline__ uint32_t round(float x, float y)
    {
        const __half2 pair = __floats2half2_rn(x, y);
        return reinterpret_cast<const uint32_t &>(pair);
    }
    static __device__ __forceinline__ float2 unpack(uint32_t pair)
    {
        return __half22float2(reinterpret_cast<const __half2 &>(pair));
    }
    static __device__ __forceinline__ uint32_t multiply(uint32_t x, uint32_t y)
    {
        const __half2 made = __hmul2(reinterpret_cast<const __half2 &>(x), reinterpret_cast<const __half2 &>(y));
        return reinterpret_cast<const uint32_t &>(made);
    }
};

// ---- Shared memory ----

__device__ __forceinline__ uint32_t shared_address(const void *pointer)
{
    return uint32_t(__cvta_generic_to_shared(pointer));
}
__device__ __forceinline__ uint4 load_shared(uint32_t address)
{
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(address) : "memory");
    return v;
}
__device__ __forceinline__ uint32_t load_shared_word(uint32_t address)
{
    uint32_t v;
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
    return v;
}
__device__ __forceinline__ float load_shared_float(uint32_t address) { return __uint_as_float(load_shared_word(address)); }
__device__ __forceinline__ void store_shared(uint32_t address, const uint4 &v)
{
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t address, uint32_t v)
{
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(address), "r"(v) : "memory");
}
__device__ __forceinline__ void store_shared(uint32_t address, float v) { store_shared(address, __float_as_uint(v)); }

// Asynchronous copy of 16 bytes from global to shared memory; copies_wait waits for it.
__device__ __forceinline__ void copy_16(uint32_t to, const void *from)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

// copy_16 if there is set, else 16 bytes of zeros without a read.
__device__ __forceinline__ void copy_16_or_0(uint32_t to, const void *from, bool there)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}
// Waits for all copies that this thread started.
__device__ __forceinline__ void copies_wait() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// Loads four 8 x 8 matrices of 16-bit elements. Lane l passes the address of row l % 8 of matrix l / 8 and receives elements
// 2 (l % 4) + {0, 1} of row l / 4 of each matrix.
__device__ __forceinline__ void load_matrices(uint32_t *to, uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(address) : "memory");
}
// load_matrices, transposed: lane l receives elements of rows 2 (l % 4) + {0, 1} of column l / 4.
__device__ __forceinline__ void load_matrices_turned(uint32_t *to, uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(address) : "memory");
}

// ---- Fragments ----

// d (16 x 8) += a (16 x 16) b (16 x 8)
template <uint32_t dtype>
__device__ __forceinline__ void multiply(float *d, const uint32_t (&a)[4], const uint32_t *b)
{
    if constexpr (dtype == DTYPE_BF16)
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                     "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    else
        asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                     "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

// The left operand of a product in global memory: of the warp's 16 rows, pointers to the two of this thread, NULL past the tile.
struct Operand {
    const uint16_t *row[2];
    __device__ __forceinline__ Operand(const uint16_t *from, size_t pitch, uint32_t line0, uint32_t lines)
    {
        for (uint32_t k = 0; k < 2; k++) {
            const uint32_t t = line0 + threadIdx.x % 32 / 4 + 8 * k;
            row[k] = t < lines ? from + t * pitch + threadIdx.x % 4 * 2 : nullptr;
        }
    }
    __device__ __forceinline__ uint32_t pair(uint32_t k, uint32_t column) const
    {
        return row[k] ? *reinterpret_cast<const uint32_t *>(row[k] + column) : 0u;
    }
    // Columns n to n + 15 as the fragment a of multiply.
    __device__ __forceinline__ void fragment(uint32_t (&a)[4], uint32_t n) const
    {
        for (uint32_t k = 0; k < 4; k++) a[k] = pair(k % 2, n + k / 2 * 8);
    }
};

} // namespace attend

#endif
