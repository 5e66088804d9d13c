// State-memory attention of one token over the memories of one split, from q and e as the convolution left them:
// {acc[P], top, den}. Shared memory: 6.2 KiB, 16bit 5.1 KiB.
#include "sma/16bit.cuh"

__device__ __forceinline__ TokenInputs attend_inputs(const mixer_attend_args &args, const CudaBindings &bindings, uint32_t dtypes)
{
    return {VIEW(mixer_attend, q), VIEW(mixer_attend, e), VIEW(mixer_attend, c), VIEW(mixer_attend, dh), args.q_row,
            FLOATS(mixer_attend, factor), INTS(mixer_attend, seq)};
}

__device__ __forceinline__ void attend_put(const mixer_attend_args &args, float *partial, uint32_t P, uint32_t split, uint32_t head,
                                           float top, float den, float sum)
{
    float *to = partial + args.partial_at + (size_t(split) * args.B * args.H + head) * (P + 4);
    if (threadIdx.x < P) to[threadIdx.x] = sum;
    if (threadIdx.x == 0) {
        to[P] = top;
        to[P + 1] = den;
    }
    __syncthreads();
}

KERNEL_FUNCTION_BLOCKS(mixer_attend, simt, 2)
{
    __shared__ TokenShared shared;
    const auto give = [&](uint32_t split, uint32_t head, float top, float den, float sum) {
        attend_put(args, FLOATS(mixer_attend, partial), args.P, split, head, top, den, sum);
    };
    attend_token<8>(args, attend_inputs(args, bindings, dtypes), shared, give);
}

KERNEL_FUNCTION_BLOCKS(mixer_attend, 16bit, 4)
{
    static_assert(THREADS_mixer_attend_16bit == threads_16bit, "a thread a row, a warp a memory");
    __shared__ Shared16bit shared;
    const auto give = [&](uint32_t split, uint32_t head, float top, float den, float sum) {
        attend_put(args, FLOATS(mixer_attend, partial), half_p, split, head, top, den, sum);
    };
    attend_16bit(args, attend_inputs(args, bindings, dtypes), shared, give);
}
