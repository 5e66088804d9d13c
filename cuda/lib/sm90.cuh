// Instructions of sm_90a: barriers in shared memory, the bulk copy engine, warpgroup products. Names follow the PTX manual.
#ifndef DART_SM90_CUH
#define DART_SM90_CUH

#include "attend.cuh"

namespace attend {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// ---- Barriers: a phase ends after `count` arrivals and all expected bytes; parity is the lowest bit of the number of the phase ----

__device__ __forceinline__ void barrier_init(uint32_t barrier, uint32_t count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
// After barrier_init; call __syncthreads next. Other threads and the copy engine then see the barriers.
__device__ __forceinline__ void barriers_visible()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void barrier_arrive(uint32_t barrier)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void barrier_arrive_bytes(uint32_t barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}" ::"r"(barrier), "r"(parity) : "memory");
}
// Has the phase of that parity ended?
__device__ __forceinline__ bool barrier_passed(uint32_t barrier, uint32_t parity)
{
    uint32_t passed;
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, done;\n"
                 "}" : "=r"(passed) : "r"(barrier), "r"(parity) : "memory");
    return passed != 0;
}

// ---- Copies into shared memory, counted by a barrier ----

// Copies rows of a CudaMap from `row` on; `to` is a multiple of 1024.
__device__ __forceinline__ void map_copy(uint32_t to, const CudaMap &map, uint32_t row, uint32_t barrier)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
                 ::"r"(to), "l"(&map), "r"(0), "r"(row), "r"(barrier) : "memory");
}

// Copies `bytes` from memory. Both addresses and the size are multiples of 16.
__device__ __forceinline__ void bulk_copy(uint32_t to, const void *from, uint32_t bytes, uint32_t barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
                 ::"r"(to), "l"(from), "r"(bytes), "r"(barrier) : "memory");
}

// Between what this thread knows to be written, to memory and to shared memory, and copies that it asks for next.
__device__ __forceinline__ void copies_see_memory() { asm volatile("fence.proxy.async;" ::: "memory"); }

// Asynchronous copy of 8 bytes. The same thread waits for it with copies_wait_but.
__device__ __forceinline__ void copy_8(uint32_t to, const void *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(from) : "memory");
}
// copies_commit closes a group of the copies so far. copies_wait_but waits until at most the last `pending` groups are unfinished.
__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int pending> __device__ __forceinline__ void copies_wait_but()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

// Makes this thread arrive at the barrier once its copies (copy_16) so far are done. Counts as one of the barrier's arrivals.
__device__ __forceinline__ void copies_arrive(uint32_t barrier)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

// ---- Registers of a warpgroup ----

template <uint32_t count> __device__ __forceinline__ void registers_take()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(count));
}
template <uint32_t count> __device__ __forceinline__ void registers_give()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(count));
}

// ---- Products of a warpgroup: d (64 x 64, f32) = or += a (64 x 16, registers) b (16 x 64, shared memory) ----

// Makes this thread's stores to shared memory visible to products. Call before the barrier that precedes the products.
__device__ __forceinline__ void shared_visible_to_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
// Call before the first product, and after writing registers that products use.
__device__ __forceinline__ void products_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most the last `pending` groups of products are unfinished.
template <int pending> __device__ __forceinline__ void products_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

// Keeps the compiler from moving accesses to d across this point. It does not know that products run until products_wait.
__device__ __forceinline__ void products_hold(float (&d)[32])
{
#pragma unroll
    for (int i = 0; i < 32; i++) asm volatile("" : "+f"(d[i])::"memory");
}

// Descriptor of b in shared memory: rows of 64 16-bit elements, 128 bytes apart, swizzled by 128 bytes. `start` is the address of a
// row whose number is a multiple of 8. Bits 0 to 13 hold the address, bits 32 to 45 the distance of groups of 8 rows, 1024 bytes, both
// in units of 16 bytes; bits 62 and 63 the swizzle.
__device__ __forceinline__ uint64_t product_rows(uint32_t start)
{
    return uint64_t((start & 0x3ffffu) >> 4) | uint64_t(1) << 16 | uint64_t(1024 >> 4) << 32 | uint64_t(1) << 62;
}

// The descriptor `rows` rows further on, a multiple of 8. The address lies in the low word and does not overflow it, so that a 32-bit
// addition is enough.
__device__ __forceinline__ uint64_t product_rows_after(uint64_t b, uint32_t rows)
{
    return (b & 0xffffffff00000000u) | (uint32_t(b) + rows * (128 >> 4));
}

#define PRODUCT_64(type) \
    asm volatile("{\n" \
                 ".reg .pred p;\n" \
                 "setp.ne.b32 p, %37, 0;\n" \
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " " \
                 "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, %23, " \
                 "%24, %25, %26, %27, %28, %29, %30, %31}, {%32, %33, %34, %35}, %36, p, 1, 1, 1;\n" \
                 "}" \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), \
                   "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), \
                   "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), \
                   "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]) \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(add)))

// b: a descriptor from product_rows, one row of b for each value of the contracted index.
template <uint32_t dtype>
__device__ __forceinline__ void product_64(float (&d)[32], const uint32_t *a, uint64_t b, bool add)
{
    if constexpr (dtype == DTYPE_BF16) PRODUCT_64("bf16");
    else PRODUCT_64("f16");
}

#endif

} // namespace attend

#endif
