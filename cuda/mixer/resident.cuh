// What launches share whose blocks run side by side, wait for one another and copy ahead to shared memory: loads and stores that other blocks see,
// and rings of places that the copy engine fills.
#ifndef DART_MIXER_RESIDENT_CUH
#define DART_MIXER_RESIDENT_CUH

#include "lib/one_row.cuh"
#include "lib/sm90.cuh"

// ---- Memory that other blocks, or earlier and later loads, see ----

__device__ __forceinline__ uint64_t load_post(const uint64_t *word)
{
    uint64_t value;
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(word));
    return value;
}
__device__ __forceinline__ void store_post(uint64_t *word, uint64_t value)
{
    asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}
// The same with acquire and release: what a thread stored before, and others before a barrier with it, is there for those who load the post and meet.
__device__ __forceinline__ uint64_t acquire_post(const uint64_t *word)
{
    uint64_t value;
    asm volatile("ld.acquire.gpu.global.u64 %0, [%1];" : "=l"(value) : "l"(word) : "memory");
    return value;
}
__device__ __forceinline__ void release_post(uint64_t *word, uint64_t value)
{
    asm volatile("st.release.gpu.global.u64 [%0], %1;" ::"l"(word), "l"(value) : "memory");
}
// A count in shared memory, and with it what the thread that stores it has done before.
__device__ __forceinline__ uint32_t load_count(const uint32_t *count)
{
    uint32_t value;
    asm volatile("ld.acquire.cta.shared.u32 %0, [%1];" : "=r"(value) : "r"(attend::shared_address(count)) : "memory");
    return value;
}
__device__ __forceinline__ void store_count(uint32_t *count, uint32_t value)
{
    asm volatile("st.release.cta.shared.u32 [%0], %1;" ::"r"(attend::shared_address(count)), "r"(value) : "memory");
}
// Into the L2 cache.
__device__ __forceinline__ void announce(const void *line) { asm volatile("prefetch.global.L2 [%0];" ::"l"(line)); }
// Loads that stay where they stand: a compiler moves others to where their numbers are needed, and then the block waits for memory.
__device__ __forceinline__ float ask_float(const float *from)
{
    float value;
    asm volatile("ld.global.f32 %0, [%1];" : "=f"(value) : "l"(from));
    return value;
}
__device__ __forceinline__ uint64_t ask_place(const uint64_t *from)
{
    uint64_t value;
    asm volatile("ld.global.nc.u64 %0, [%1];" : "=l"(value) : "l"(from));
    return value;
}
// The bits of an element, for value_of.
__device__ __forceinline__ uint32_t ask_bits(const View &view, size_t i)
{
    if (view.dtype == DTYPE_F32) return __float_as_uint(ask_float(reinterpret_cast<const float *>(view.base) + i));
    uint16_t value;
    asm volatile("ld.global.u16 %0, [%1];" : "=h"(value) : "l"(view.base + 2 * i));
    return value;
}
// The same number, of which a compiler does not know that it is: what is made of it is made anew, not kept in memory from layer to layer.
__device__ __forceinline__ uint32_t anew(uint32_t number)
{
    asm volatile("" : "+r"(number));
    return number;
}
// Likewise a pointer, which a compiler otherwise works out again from arguments wherever it is used.
template <class T> __device__ __forceinline__ T *anew(T *pointer)
{
    asm volatile("" : "+l"(pointer));
    return pointer;
}
// ---- Rings in shared memory ----

// A place of a ring: a phase of `there` ends when it is filled, one of `empty` when it has been read.
struct RingPlace { uint64_t there, empty; };
// Where a ring stands: place `at`, and how often all places were passed.
struct RingTurn {
    uint32_t at = 0, round = 0;
    __device__ __forceinline__ void skip(uint32_t count, uint32_t room)
    {
        for (at += count; at >= room; at -= room) round++;
    }
    __device__ __forceinline__ void step(uint32_t room)
    {
        at = at + 1 == room ? 0 : at + 1;
        round += at == 0;
    }
};
// Has the place been read since it was filled last?
__device__ __forceinline__ bool is_empty(const RingPlace &place, const RingTurn &turn)
{
    return turn.round == 0 || attend::barrier_passed(attend::shared_address(&place.empty), (turn.round - 1) & 1);
}
__device__ __forceinline__ void wait_until_there(const RingPlace &place, const RingTurn &turn)
{
    attend::barrier_wait(attend::shared_address(&place.there), turn.round & 1);
}

#endif
