// Matrix products of one block: acc += a b over a depth, 16 R x 16 R outputs, R x R in each of 16 x 16 threads.
//
// An operand is a struct that yields four elements at a time: `Fetched fetch(line, k)` issues the loads and `float4 value(Fetched)`
// converts them. With by_line the four elements lie along k (a matrix whose lines are contiguous in k), otherwise along the lines.
// fetch must return zeros outside the matrix. With by_line a thread passes the same line, staged_line, all through one product.
// Shared memory: 4 panels of depth x (16 R + 4) floats, 17 KiB.
#ifndef DART_PRODUCT_CUH
#define DART_PRODUCT_CUH

#include "dart.cuh"

template <int R> struct Panels {
    static constexpr uint32_t side = 16 * R;
    static constexpr uint32_t depth = 4 * block_size / side;
    alignas(16) float a[2][depth][side + 4];
    alignas(16) float b[2][depth][side + 4];
};

// The line of the tile that this thread copies to shared memory for an operand with by_line.
template <int R> __device__ __forceinline__ uint32_t staged_line() { return threadIdx.x / (Panels<R>::depth / 4); }

// The place in the tile of output i of a thread, along a (of = threadIdx.x / 16) or along b (of = threadIdx.x % 16).
__device__ __forceinline__ uint32_t output_line(uint32_t of, uint32_t i) { return i / 4 * 64 + of * 4 + i % 4; }

template <int R, class Operand> struct Stager {
    static constexpr uint32_t side = Panels<R>::side;
    static constexpr uint32_t depth = Panels<R>::depth;
    uint32_t line, k;
    __device__ __forceinline__ Stager()
    {
        if (Operand::by_line) {
            line = staged_line<R>();
            k = threadIdx.x % (depth / 4) * 4;
        } else {
            line = threadIdx.x % (side / 4) * 4;
            k = threadIdx.x / (side / 4);
        }
    }
    __device__ __forceinline__ void put(float (*panel)[side + 4], const float4 &v) const
    {
        if (Operand::by_line) {
            panel[k + 0][line] = v.x;
            panel[k + 1][line] = v.y;
            panel[k + 2][line] = v.z;
            panel[k + 3][line] = v.w;
        } else {
            *reinterpret_cast<float4 *>(&panel[k][line]) = v;
        }
    }
};

template <int R> __device__ __forceinline__ void product_clear(float (&acc)[R][R])
{
#pragma unroll
    for (int i = 0; i < R; i++) {
#pragma unroll
        for (int j = 0; j < R; j++) acc[i][j] = 0.0f;
    }
}

// acc += a b over K. Call with the whole block and the same K. fetch sees what the block wrote to shared memory before the call.
template <int R, class A, class B>
__device__ __forceinline__ void product(const A &a, const B &b, uint32_t K, Panels<R> &panels, float (&acc)[R][R])
{
    constexpr uint32_t depth = Panels<R>::depth;
    const Stager<R, A> of_a;
    const Stager<R, B> of_b;
    const uint32_t ty = threadIdx.x / 16, tx = threadIdx.x % 16;
    __syncthreads();
    if (K == 0) return;
    typename A::Fetched next_a = a.fetch(of_a.line, of_a.k);
    typename B::Fetched next_b = b.fetch(of_b.line, of_b.k);
    uint32_t half = 0;
    for (uint32_t k0 = 0; k0 < K; k0 += depth, half ^= 1) {
        of_a.put(panels.a[half], a.value(next_a));
        of_b.put(panels.b[half], b.value(next_b));
        // One barrier a step is enough: every read of the other half lies before this barrier, every write to it after.
        __syncthreads();
        if (k0 + depth < K) {
            next_a = a.fetch(of_a.line, k0 + depth + of_a.k);
            next_b = b.fetch(of_b.line, k0 + depth + of_b.k);
        }
#pragma unroll
        for (uint32_t k = 0; k < depth; k++) {
            float va[R], vb[R];
#pragma unroll
            for (int i = 0; i < R; i += 4) {
                const float4 quad_a = *reinterpret_cast<const float4 *>(&panels.a[half][k][output_line(ty, i)]);
                const float4 quad_b = *reinterpret_cast<const float4 *>(&panels.b[half][k][output_line(tx, i)]);
                va[i] = quad_a.x, va[i + 1] = quad_a.y, va[i + 2] = quad_a.z, va[i + 3] = quad_a.w;
                vb[i] = quad_b.x, vb[i + 1] = quad_b.y, vb[i + 2] = quad_b.z, vb[i + 3] = quad_b.w;
            }
#pragma unroll
            for (int i = 0; i < R; i++) {
#pragma unroll
                for (int j = 0; j < R; j++) acc[i][j] = fmaf(va[i], vb[j], acc[i][j]);
            }
        }
    }
}

// Lines contiguous in k: element (line, k) is view[at + line row + k].
struct Lines {
    static constexpr bool by_line = true;
    typedef uint4 Fetched;
    View view;
    size_t at;
    uint32_t row, lines, K;
    bool aligned; // at and row are multiples of 4
    __device__ __forceinline__ Fetched fetch(uint32_t line, uint32_t k) const
    {
        const uint32_t valid = line < lines && k < K ? K - k : 0;
        return fetch4(view, at + size_t(line) * row + k, valid, aligned);
    }
    __device__ __forceinline__ float4 value(const Fetched &raw) const { return unpack4(raw, view.dtype); }
};

// Lines side by side: element (line, k) is view[at + k row + line].
struct Columns {
    static constexpr bool by_line = false;
    typedef uint4 Fetched;
    View view;
    size_t at;
    uint32_t row, lines, K;
    bool aligned;
    __device__ __forceinline__ Fetched fetch(uint32_t line, uint32_t k) const
    {
        const uint32_t valid = line < lines && k < K ? lines - line : 0;
        return fetch4(view, at + size_t(k) * row + line, valid, aligned);
    }
    __device__ __forceinline__ float4 value(const Fetched &raw) const { return unpack4(raw, view.dtype); }
};

// Lines whose elements are multiplied by a factor that the staging thread holds.
struct ScaledLines {
    static constexpr bool by_line = true;
    typedef uint4 Fetched;
    Lines lines;
    float factor;
    __device__ __forceinline__ Fetched fetch(uint32_t line, uint32_t k) const { return lines.fetch(line, k); }
    __device__ __forceinline__ float4 value(const Fetched &raw) const
    {
        const float4 v = lines.value(raw);
        return make_float4(factor * v.x, factor * v.y, factor * v.z, factor * v.w);
    }
};

#endif
