// A sum and what its additions lost (Neumaier 1974).
#ifndef DART_NEUMAIER_CUH
#define DART_NEUMAIER_CUH

struct Neumaier {
    float total, lost;
    __device__ __forceinline__ void add(float term)
    {
        const float next = __fadd_rn(total, term);
        const bool larger = fabsf(total) >= fabsf(term);
        lost += __fadd_rn(__fsub_rn(larger ? total : term, next), larger ? term : total);
        total = next;
    }
};

#endif
