// sma for L = 1: a block looks at a run of memories of one (sequence, head) and writes {top, den, acc[P]}; the one of a
// head that is done last merges them. Shared memory: 7.7 KiB, 16bit 7.1 KiB.
#include "16bit.cuh"
#include "merge.cuh"

template <class Bindings>
__device__ __forceinline__ TokenInputs step_inputs(const sma_step_args &args, const Bindings &bindings, uint32_t dtypes)
{
    return {VIEW(sma_step, q), VIEW(sma_step, e), VIEW(sma_step, c), VIEW(sma_step, dh), args.e_row, FLOATS(sma_step, factor),
            INTS(sma_step, seq)};
}

template <uint32_t threads, class Bindings>
__device__ __forceinline__ void step_put(const sma_step_args &args, const Bindings &bindings, uint32_t dtypes, uint32_t P,
                                         uint32_t split, uint32_t head, float top, float den, float sum, MergeShared<threads> &merge)
{
    float *partial = FLOATS(sma_step, partial), *to = partial + (size_t(head) * args.splits + split) * (P + 2);
    if (threadIdx.x == 0) {
        to[0] = top;
        to[1] = den;
    }
    if (threadIdx.x < P) to[2 + threadIdx.x] = sum;
    uint32_t *tickets = reinterpret_cast<uint32_t *>(INTS(sma_step, tickets));
    merge_when_last(args, head, tickets, partial, VIEW(sma_step, r), FLOATS(sma_step, lse), merge);
}

KERNEL_FUNCTION_BLOCKS(sma_step, simt, 3)
{
    __shared__ TokenShared shared;
    __shared__ MergeShared<block_size> merge;
    const auto give = [&](uint32_t split, uint32_t head, float top, float den, float sum) {
        step_put(args, bindings, dtypes, args.P, split, head, top, den, sum, merge);
    };
    attend_token<4>(args, step_inputs(args, bindings, dtypes), shared, give);
}

// At 128 registers it spills 40 bytes with CudaBindings.
KERNEL_FUNCTION_FEW(sma_step, 16bit, 4)
{
    static_assert(THREADS_sma_step_16bit == threads_16bit, "a thread a row, a warp a memory");
    __shared__ Shared16bit shared;
    __shared__ MergeShared<threads_16bit> merge;
    const auto give = [&](uint32_t split, uint32_t head, float top, float den, float sum) {
        step_put(args, bindings, dtypes, half_p, split, head, top, den, sum, merge);
    };
    attend_16bit(args, step_inputs(args, bindings, dtypes), shared, give);
}
