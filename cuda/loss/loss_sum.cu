// loss += the sum of parts[2 t], correct += the sum of parts[2 t + 1], which are whole numbers. One block: a thread adds up every block_size-th row
// in order, with what each addition lost, then the threads are added in pairs.
#include "lib/dart.cuh"
#include "lib/neumaier.cuh"

KERNEL_FUNCTION(loss_sum, simt)
{
    constexpr uint32_t ahead = 8; // rows of a thread on their way at once
    const float2 *rows = reinterpret_cast<const float2 *>(FLOATS(loss_sum, parts));
    FOR_TILES(tile) {
        Neumaier sum = {0.0f, 0.0f};
        int32_t count = 0;
        for (uint32_t t = threadIdx.x; t < args.rows; t += ahead * block_size) {
            float2 row[ahead];
#pragma unroll
            for (uint32_t i = 0; i < ahead; i++) row[i] = rows[min(t + i * block_size, args.rows - 1)];
#pragma unroll
            for (uint32_t i = 0; i < ahead; i++) {
                const bool there = t + i * block_size < args.rows;
                sum.add(there ? row[i].x : 0.0f);
                count += there ? int32_t(row[i].y) : 0;
            }
        }
        __shared__ int32_t hits[warps];
        for (int step = 16; step > 0; step /= 2) count += __shfl_xor_sync(0xffffffffu, count, step);
        if (threadIdx.x % 32 == 0) hits[threadIdx.x / 32] = count;
        const float total = block_sum(sum.total + sum.lost); // its barriers also make hits visible
        if (threadIdx.x == 0) {
            FLOATS(loss_sum, loss)[args.loss_at] += total;
            int32_t &correct = INTS(loss_sum, correct)[args.correct_at];
            for (uint32_t w = 0; w < warps; w++) correct += hits[w];
        }
        __syncthreads();
    }
}
