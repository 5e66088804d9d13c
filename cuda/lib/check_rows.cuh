// Included at the end of every object: checks that each row of its table has a function, with the parameters that the backend passes.
#ifndef DART_CHECK_ROWS_CUH
#define DART_CHECK_ROWS_CUH

#include "dart.cuh"

template <class Args> constexpr bool takes_map(void (*)(const Args, const CudaBindings, const uint32_t)) { return false; }
template <class Args> constexpr bool takes_map(void (*)(const Args, const CudaFewBindings, const uint32_t)) { return false; }
template <class Args> constexpr bool takes_map(void (*)(const Args, const CudaBindings, const uint32_t, const CudaMap))
{
    return true;
}
#define ROW(id, variant, T0, T1, threads, shared_bytes, maps) \
    static_assert(takes_map<id##_args>(id##_##variant) == bool(maps), "CUDA_MAP of " #id "[" #variant "]");
#include "rows.def"

#endif
