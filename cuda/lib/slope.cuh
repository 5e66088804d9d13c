// SiLU(x) and its derivative, sigma(x) (1 + x (1 - sigma(x))).
#ifndef DART_SLOPE_CUH
#define DART_SLOPE_CUH

#include "dart.cuh"

struct Slope { float value, slope; };
__device__ __forceinline__ Slope silu_slope(float x)
{
    const float e = expf(-fabsf(x)), sigma = (x >= 0.0f ? 1.0f : e) / (1.0f + e);
    const float rest = (x >= 0.0f ? e : 1.0f) / (1.0f + e); // 1 - sigma, without cancellation
    return {x * sigma, sigma * (1.0f + x * rest)};
}

#endif
