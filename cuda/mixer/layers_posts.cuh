// How the blocks of layers.cu pass numbers to one another: words with tags, rows of them, and what a stage gathers of both products.
#ifndef DART_MIXER_LAYERS_POSTS_CUH
#define DART_MIXER_LAYERS_POSTS_CUH

#include "lib/one_row.cuh"

constexpr uint32_t layers_n = 128, layers_p = 64, layers_taps = 4;
constexpr uint32_t layers_queries = layers_n + layers_p;              // channels of [q|e], then the gate
constexpr uint32_t layers_pair = 2;                                   // memories that are looked at together
constexpr uint32_t layers_rows = layers_n * layers_p / 8 / block_size; // words of each of them in a thread
constexpr uint32_t layers_state_rows = layers_n * layers_p / 4 / block_size;
constexpr uint32_t layers_partial = layers_p + 2;
constexpr uint32_t layers_step = 2 * layers_p + 2 * layers_n; // of a scan in `taken`: where the step lies; the gate is next

// chunks: of a row of W inputs, of eight for each lane of a warp: W = 256 chunks, and H P is at most 2 W.
template <uint32_t chunks> struct LayersShared {
    static constexpr uint32_t most_x = 256 * chunks, most_y = 2 * most_x;
    float4 low[most_y / 8], high[most_y / 8]; // an input row: of each eight elements the first and the last four
    float4 sums4[warps];
    alignas(16) float found[warps * layers_p];
    float taken[2 * block_size], sums[warps], parts[MIXER_MOST_SPLITS * layers_partial];
    uint64_t table[2 * PLACES]; // of this layer and of the next
    uint2 runs[RUN_PAIRS];      // first and M
    uint32_t gave_up;
};

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
// As stream_word, a load that stays where it stands in front of a wait; of what this launch may write later.
__device__ __forceinline__ uint4 fetch_state_word(const uint4 *from)
{
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
    return v;
}
// Into the L2 cache.
__device__ __forceinline__ void announce_line(const void *line) { asm volatile("prefetch.global.L2 [%0];" ::"l"(line)); }

// ---- What all stages share ----

// Of a launch, and of the layer at hand.
template <uint32_t chunks> struct Layers {
    const mixer_layers_args &args;
    LayersShared<chunks> &shared;
    uint64_t *posts;
    float *x;
    const uint64_t *places;
    uint32_t weight_dtype, tail_dtype, dh_dtype;
    uint32_t W, H, I, channels, R, outputs; // I = H P; channels of the convolution of [x|b|c]; R rows of in_proj; outputs: with sma_proj and gate
    uint32_t lane, warp, first, step, position, tag;
    bool has_open;

    uint4 own[2 * layers_state_rows]; // of a state h and open; of memories layers_pair x layers_rows words
    float factors[layers_pair * layers_rows];
    float a_log, step_bias, skip, before; // of a scan's head

    __device__ __forceinline__ uint64_t place(uint32_t layer, uint32_t which) const { return shared.table[layer % 2 * PLACES + which]; }
    template <class T> __device__ __forceinline__ T *at(uint32_t layer, uint32_t which) const
    {
        return reinterpret_cast<T *>(place(layer, which));
    }

    // Where posts lie.
    static constexpr uint32_t x_posts = 8;
    __device__ __forceinline__ uint32_t project_posts() const { return x_posts + W; }
    __device__ __forceinline__ uint32_t y_posts() const { return project_posts() + R + layers_queries + 1; }
    __device__ __forceinline__ uint32_t partial_posts() const { return y_posts() + I; }

    __device__ __forceinline__ void post(uint32_t word, float value) const
    {
        store_post(posts + word, uint64_t(tag) << 32 | __float_as_uint(value));
    }
    // 0 where the word is there.
    __device__ __forceinline__ uint32_t is_missing(uint64_t word) const { return uint32_t(word >> 32) ^ tag; }
    static __device__ __forceinline__ float number(uint64_t word) { return __uint_as_float(uint32_t(word)); }
    // Of a word that never came the other threads learn at the next barrier.
    __device__ __forceinline__ void give_up() const { shared.gave_up = 1; }
    // The words at two places, which may be one.
    __device__ __forceinline__ float2 take(uint32_t one, uint32_t other) const
    {
        uint64_t word = 0, next = 0;
        uint32_t missing = 1;
#pragma unroll 1
        for (uint32_t tries = 0; missing != 0 && tries < MIXER_PATIENCE; tries++) {
            word = load_post(posts + one);
            next = load_post(posts + other);
            missing = is_missing(word) | is_missing(next);
        }
        if (missing != 0) give_up();
        return make_float2(number(word), number(next));
    }

    // ---- Rows of inputs ----

    __device__ __forceinline__ void put(uint32_t i, float value) const
    {
        reinterpret_cast<float *>(i % 8 < 4 ? shared.low : shared.high)[i / 8 * 4 + i % 4] = value;
    }
    // The sum of `value` over the block.
    __device__ __forceinline__ float sum_over_all(float value) const
    {
        value = warp_sum(value);
        if (lane == 0) shared.sums[warp] = value;
        __syncthreads();
        return warp_sum(lane < warps ? shared.sums[lane] : 0.0f);
    }
    // Four sums over the block. Threads may still read those of the call before.
    __device__ __forceinline__ float4 sum_of_four(float4 value) const
    {
        value = make_float4(warp_sum(value.x), warp_sum(value.y), warp_sum(value.z), warp_sum(value.w));
        __syncthreads();
        if (lane == 0) shared.sums4[warp] = value;
        __syncthreads();
        float4 sum = shared.sums4[lane % warps];
#pragma unroll
        for (uint32_t apart = warps / 2; apart > 0; apart /= 2) {
            sum.x += __shfl_xor_sync(0xffffffffu, sum.x, apart);
            sum.y += __shfl_xor_sync(0xffffffffu, sum.y, apart);
            sum.z += __shfl_xor_sync(0xffffffffu, sum.z, apart);
            sum.w += __shfl_xor_sync(0xffffffffu, sum.w, apart);
        }
        return sum;
    }
    // Waits for the row of `count` numbers, at most `takes` a thread, that is posted at `from`. low and high become the row times its norm; returns
    // the sum of its squares.
    template <uint32_t takes> __device__ __forceinline__ float take_row(uint32_t from, uint32_t count, const float *norm) const
    {
        float norms[takes], squares = 0.0f;
        uint64_t words[takes];
        uint32_t missing = 1;
#pragma unroll
        for (uint32_t k = 0; k < takes; k++) norms[k] = __ldg(norm + min(threadIdx.x + k * block_size, count - 1));
#pragma unroll 1
        for (uint32_t tries = 0; missing != 0 && tries < MIXER_PATIENCE; tries++) {
            missing = 0;
#pragma unroll
            for (uint32_t k = 0; k < takes; k++) words[k] = load_post(posts + from + min(threadIdx.x + k * block_size, count - 1));
#pragma unroll
            for (uint32_t k = 0; k < takes; k++) missing |= is_missing(words[k]);
        }
        if (missing != 0) give_up();
#pragma unroll
        for (uint32_t k = 0; k < takes; k++) {
            if (threadIdx.x + k * block_size >= count) continue;
            const float value = number(words[k]);
            put(threadIdx.x + k * block_size, value * norms[k]);
            squares = fmaf(value, value, squares);
        }
        return sum_over_all(squares);
    }
    __device__ __forceinline__ float take_x(uint32_t layer) const { return take_row<chunks>(x_posts, W, at<const float>(layer, PLACE_NORM)); }
    __device__ __forceinline__ float take_y(uint32_t layer) const
    {
        return take_row<2 * chunks>(y_posts(), I, at<const float>(layer, PLACE_MIXER_NORM));
    }

    // What the memories of a split and what the scan of a head read of the products. In `taken`, for memories: q, e, c; for a scan: z, x, b, c, the
    // step, the gate.
    __device__ __forceinline__ void gather(bool is_scan, uint32_t head) const
    {
        const uint32_t t = threadIdx.x, next = t + block_size;
        uint32_t one, other;
        if (is_scan) {
            one = t < layers_p ? head * layers_p + t : t < 2 * layers_p ? I + head * layers_p + t - layers_p : 2 * I + t - 2 * layers_p;
            other = next < layers_step ? 2 * I + next - 2 * layers_p : next == layers_step ? I + channels + head : one;
            if (next == layers_step + 1 && has_open) other = R + layers_queries;
        } else {
            one = t < layers_queries ? R + t : 2 * I + layers_n + t - layers_queries;
            other = next < layers_queries + layers_n ? 2 * I + layers_n + next - layers_queries : one;
        }
        __syncthreads(); // taken and found are free
        const float2 values = take(project_posts() + one, project_posts() + other);
        shared.taken[t] = values.x;
        shared.taken[next] = values.y;
        __syncthreads();
    }
};

#endif
