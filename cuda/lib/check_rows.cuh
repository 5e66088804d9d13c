// At the end of every object: each row of its table has its function, with the parameters that the backend launches it with.
#ifndef DART_CHECK_ROWS_CUH
#define DART_CHECK_ROWS_CUH

#include "dart.cuh"

template <class Args> constexpr bool takes_map(void (*)(const Args, const CudaBindings, const uint32_t)) { return false; }
template <class Args> constexpr bool takes_map(void (*)(const Args, const CudaBindings, const uint32_t, const CudaMap))
{
    return true;
}
#define ROW(id, variant, T0, T1, threads, shared_bytes, maps) \
    static_assert(takes_map<id##_args>(id##_##variant) == bool(maps), "CUDA_MAP of " #id "[" #variant "]");
#include "rows.def"

#endif
