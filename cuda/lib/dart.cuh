// Common parts of all kernels: parameters, elements of any dtype, sequences and chunks, sums over a block. rows.def is the generated
// table of the object that includes this file.
#ifndef DART_CUH
#define DART_CUH

#include "shaders/args.h"
#include "launch.h"

#include <cuda_fp16.h>

// Names made from the rows of this object (tools/build/cuda_objects.py). For kernel fill: fill_args, the type of its arguments, and
// BINDING_fill_y, the number of binding y. For row fill[simt]: the tile sizes TILE0_fill_simt and TILE1_fill_simt, the threads of a
// block THREADS_fill_simt, and the bytes of dynamic shared memory SHARED_fill_simt.
#define KERNEL(id, Args) typedef struct Args id##_args;
#include "rows.def"
enum {
#define KERNEL(id, Args) BINDING_##id##_base, BINDING_##id##_reset = -1,
#define BIND(id, name, access) BINDING_##id##_##name,
#include "rows.def"
    BINDING_end
};
enum : uint32_t {
#define ROW(id, variant, T0, T1, threads, shared_bytes, maps) \
    TILE0_##id##_##variant = (T0), TILE1_##id##_##variant = (T1),
#define PART ROW
#include "rows.def"
};
#define ROW(id, variant, T0, T1, threads, shared_bytes, maps) \
    constexpr uint32_t THREADS_##id##_##variant = (threads), SHARED_##id##_##variant = (shared_bytes);
#define PART ROW
#include "rows.def"

constexpr uint32_t block_size = CUDA_BLOCK;
constexpr uint32_t warps = block_size / 32;

// Declares the function of a row, for the number of threads in the row.
#define KERNEL_FUNCTION(id, variant) KERNEL_BOUNDED(id, variant, __launch_bounds__(THREADS_##id##_##variant))
// KERNEL_FUNCTION with registers limited so that `blocks` blocks fit a multiprocessor.
#define KERNEL_FUNCTION_BLOCKS(id, variant, blocks) \
    KERNEL_BOUNDED(id, variant, __launch_bounds__(THREADS_##id##_##variant, blocks))
#define KERNEL_BOUNDED(id, variant, bounds) KERNEL_TAKING(id, variant, CudaBindings, bounds)
// KERNEL_FUNCTION_BLOCKS of a kernel with at most 16 bindings, where the compiler makes more of a CudaFewBindings.
#define KERNEL_FUNCTION_FEW(id, variant, blocks) \
    KERNEL_TAKING(id, variant, CudaFewBindings, __launch_bounds__(THREADS_##id##_##variant, blocks))
#define KERNEL_TAKING(id, variant, Bindings, bounds) \
    extern "C" __global__ void bounds id##_##variant(const id##_args args, const Bindings bindings, const uint32_t dtypes)
// KERNEL_FUNCTION_BLOCKS for a row with a CUDA_MAP.
#define KERNEL_FUNCTION_MAPPED(id, variant, blocks) \
    extern "C" __global__ void __launch_bounds__(THREADS_##id##_##variant, blocks) id##_##variant( \
        const id##_args args, const CudaBindings bindings, const uint32_t dtypes, const __grid_constant__ CudaMap map)
#define FOR_TILES(tile) for (uint32_t tile = blockIdx.x; tile < args.tiles; tile += gridDim.x)

// The blocks that one launch has, in a function of several (CUDA_MERGED) a part of all.
struct Blocks {
    uint32_t first, count;
};
__device__ __forceinline__ Blocks all_blocks() { return {0, gridDim.x}; }
// The function of a CUDA_MERGED row, and its parameter: the launches of the first variant, absent ones with 0 blocks, and the one of the last.
template <class Args, class LastArgs> struct MergedParts {
    Args args[MERGED_MOST];
    LastArgs last_args;
    alignas(8) CudaBindings bindings[MERGED_MOST], last_bindings;
    uint64_t soon[MERGED_SOON]; // what launches after the next one will fetch
    uint32_t soon_bytes[MERGED_SOON], dtypes[MERGED_MOST], last_dtypes, blocks[MERGED_MOST], last_blocks;
};
#define MERGED_FUNCTION(id, variant, last_id, last_variant, blocks) \
    extern "C" __global__ void __launch_bounds__(block_size, blocks) id##_##variant##_##last_id##_##last_variant( \
        const __grid_constant__ MergedParts<id##_args, last_id##_args> parts)
// Brings a block's share of `soon` into the cache.
template <class Parts> __device__ __forceinline__ void merged_announce(const Parts &parts)
{
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x != block_size - 1) return;
#pragma unroll
    for (uint32_t k = 0; k < MERGED_SOON; k++) {
        const uint32_t bytes = parts.soon_bytes[k], share = (bytes / gridDim.x + 16) / 16 * 16, begin = blockIdx.x * share;
        if (begin >= bytes) continue;
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(parts.soon[k] + begin), "r"(min(share, bytes - begin)) : "memory");
    }
#endif
}
// The part that a block belongs to which is not of the last launch, and the first block of a part.
template <class Parts> __device__ __forceinline__ uint32_t merged_first(const Parts &parts, uint32_t part)
{
    uint32_t first = parts.last_blocks;
    for (uint32_t k = 0; k < part; k++) first += parts.blocks[k];
    return first;
}
template <class Parts> __device__ __forceinline__ uint32_t merged_part(const Parts &parts)
{
    uint32_t part = 0;
    while (part + 1 < MERGED_MOST && blockIdx.x >= merged_first(parts, part + 1)) part++;
    return part;
}
#define FOR_TILES_OF(tile, blocks) for (uint32_t tile = blockIdx.x - (blocks).first; tile < args.tiles; tile += (blocks).count)

// For launches that begin before the one before has ended (CUDA_OVERLAP, CUDA_EARLY): after predecessors_wait its results are visible.
// successors_begin lets the next launch begin, which calls predecessors_wait in turn.
__device__ __forceinline__ void predecessors_wait()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ __forceinline__ void successors_begin()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

constexpr float lowest = -3.4e38f; // stands for -infinity, so that differences of two of them are not NaN

enum : uint32_t { DTYPE_F32 = 0, DTYPE_F16 = 1, DTYPE_BF16 = 2, DTYPE_I32 = 3 };

// ---- Elements ----

struct View {
    char *base; // aligned to 256 bytes
    uint32_t dtype;
};
template <int binding> struct Typed {
    static_assert(binding < 16, "dtypes has two bits for each of the first 16 bindings, later ones are f32");
    enum { shift = 2 * binding };
};
#define VIEW(id, name) \
    (View{reinterpret_cast<char *>(bindings.address[BINDING_##id##_##name]), (dtypes >> Typed<BINDING_##id##_##name>::shift) & 3u})
#define FLOATS(id, name) (reinterpret_cast<float *>(bindings.address[BINDING_##id##_##name]))
#define INTS(id, name) (reinterpret_cast<int32_t *>(bindings.address[BINDING_##id##_##name]))

__device__ __forceinline__ float from_half(uint32_t bits)
{
    return __half2float(__ushort_as_half((unsigned short)bits));
}
__device__ __forceinline__ float from_bfloat(uint32_t bits) { return __uint_as_float(bits << 16); }
__device__ __forceinline__ uint32_t to_half(float value) { return __half_as_ushort(__float2half_rn(value)); }
__device__ __forceinline__ uint32_t to_bfloat(float value)
{
    const uint32_t bits = __float_as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (bits >> 16) | 0x40u;
    return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}

__device__ __forceinline__ float load(const View &view, size_t i)
{
    switch (view.dtype) {
    case DTYPE_F32: return reinterpret_cast<const float *>(view.base)[i];
    case DTYPE_F16: return from_half(reinterpret_cast<const uint16_t *>(view.base)[i]);
    case DTYPE_BF16: return from_bfloat(reinterpret_cast<const uint16_t *>(view.base)[i]);
    default: return float(reinterpret_cast<const int32_t *>(view.base)[i]);
    }
}
__device__ __forceinline__ void store(const View &view, size_t i, float value)
{
    switch (view.dtype) {
    case DTYPE_F32: reinterpret_cast<float *>(view.base)[i] = value; break;
    case DTYPE_F16: reinterpret_cast<uint16_t *>(view.base)[i] = uint16_t(to_half(value)); break;
    case DTYPE_BF16: reinterpret_cast<uint16_t *>(view.base)[i] = uint16_t(to_bfloat(value)); break;
    default: reinterpret_cast<int32_t *>(view.base)[i] = int32_t(value); break;
    }
}

// Loading an element and converting it are two functions, so that other work can stand between them.
__device__ __forceinline__ uint32_t fetch_bits(const View &view, size_t i)
{
    return view.dtype == DTYPE_F32 ? reinterpret_cast<const uint32_t *>(view.base)[i]
                                   : uint32_t(reinterpret_cast<const uint16_t *>(view.base)[i]);
}
__device__ __forceinline__ float value_of(uint32_t bits, uint32_t dtype)
{
    const float half = dtype == DTYPE_F16 ? from_half(bits & 0xffffu) : from_bfloat(bits);
    return dtype == DTYPE_F32 ? __uint_as_float(bits) : half;
}

// The same from the L2 cache, for what a launch reads before predecessors_wait and older launches wrote (CUDA_EARLY): only the wait is documented to
// make a multiprocessor's own cache forget what it held.
__device__ __forceinline__ uint32_t fetch_early(const View &view, size_t i)
{
    return view.dtype == DTYPE_F32 ? __ldcg(reinterpret_cast<const uint32_t *>(view.base) + i)
                                   : uint32_t(__ldcg(reinterpret_cast<const uint16_t *>(view.base) + i));
}
__device__ __forceinline__ float load_early(const View &view, size_t i)
{
    return value_of(fetch_early(view, i), view.dtype);
}

// Four consecutive elements as they lie in memory: f32 in x y z w, 16-bit elements in x and y. Elements from `valid` on are zero.
// unpack4 converts them later, so that other work can stand between. aligned: i is a multiple of 4. Not for i32.
__device__ __forceinline__ uint4 fetch4(const View &view, size_t i, uint32_t valid, bool aligned)
{
    uint4 raw = make_uint4(0, 0, 0, 0);
    if (view.dtype == DTYPE_F32) {
        const uint32_t *from = reinterpret_cast<const uint32_t *>(view.base) + i;
        if (aligned && valid >= 4) return *reinterpret_cast<const uint4 *>(from);
        if (valid > 0) raw.x = from[0];
        if (valid > 1) raw.y = from[1];
        if (valid > 2) raw.z = from[2];
        if (valid > 3) raw.w = from[3];
    } else {
        const uint16_t *from = reinterpret_cast<const uint16_t *>(view.base) + i;
        if (aligned && valid >= 4) {
            const uint2 pair = *reinterpret_cast<const uint2 *>(from);
            raw.x = pair.x;
            raw.y = pair.y;
            return raw;
        }
        if (valid > 0) raw.x = from[0];
        if (valid > 1) raw.x |= uint32_t(from[1]) << 16;
        if (valid > 2) raw.y = from[2];
        if (valid > 3) raw.y |= uint32_t(from[3]) << 16;
    }
    return raw;
}
// fetch4 of four elements that all exist, i a multiple of 4.
__device__ __forceinline__ uint4 fetch4_whole(const View &view, size_t i)
{
    if (view.dtype == DTYPE_F32) return reinterpret_cast<const uint4 *>(view.base)[i / 4];
    const uint2 pair = reinterpret_cast<const uint2 *>(view.base)[i / 4];
    return make_uint4(pair.x, pair.y, 0, 0);
}
__device__ __forceinline__ float4 unpack4(const uint4 &raw, uint32_t dtype)
{
    if (dtype == DTYPE_F32) {
        return make_float4(__uint_as_float(raw.x), __uint_as_float(raw.y), __uint_as_float(raw.z),
                           __uint_as_float(raw.w));
    }
    if (dtype == DTYPE_F16) {
        return make_float4(from_half(raw.x & 0xffffu), from_half(raw.x >> 16), from_half(raw.y & 0xffffu),
                           from_half(raw.y >> 16));
    }
    return make_float4(from_bfloat(raw.x & 0xffffu), from_bfloat(raw.x >> 16), from_bfloat(raw.y & 0xffffu),
                       from_bfloat(raw.y >> 16));
}
__device__ __forceinline__ bool multiples_of_4(uint32_t a, uint32_t b, uint32_t c = 0)
{
    return ((a | b | c) & 3u) == 0;
}

// ---- Arithmetic ----

__device__ __forceinline__ uint32_t ceil_div(uint32_t a, uint32_t b) { return a / b + (a % b != 0); }
// a / b, without a division where the result is 0 or a.
__device__ __forceinline__ uint32_t quotient(uint32_t a, uint32_t b)
{
    if (a < b) return 0;
    if (b == 1) return a;
    asm volatile(""); // keeps the division in a branch of its own
    return a / b;
}
__device__ __forceinline__ float exp_below(float x) { return expf(x > 0.0f ? 0.0f : x); } // NaN stays NaN
__device__ __forceinline__ float silu(float x)
{
    const float e = expf(-fabsf(x));
    return x * ((x >= 0.0f ? 1.0f : e) / (1.0f + e));
}

// ---- Sequences and chunks, see args.h ----

struct Piece { uint32_t position, count; };
__device__ __forceinline__ Piece piece_of(const int32_t *seq, uint32_t flags, uint32_t L, uint32_t b)
{
    if (!(flags & HAS_SEQ)) return {0, L};
    return {uint32_t(max(seq[2 * size_t(b)], 0)), min(uint32_t(max(seq[2 * size_t(b) + 1], 0)), L)};
}
// piece_of before predecessors_wait, see load_early.
__device__ __forceinline__ Piece piece_early(const int32_t *seq, uint32_t flags, uint32_t L, uint32_t b)
{
    if (!(flags & HAS_SEQ)) return {0, L};
    return {uint32_t(max(__ldcg(seq + 2 * size_t(b)), 0)), min(uint32_t(max(__ldcg(seq + 2 * size_t(b) + 1), 0)), L)};
}

// A sequence and where it lies, packed or not: its token t in row `row` + t; in what has a row of tokens for each of H heads, token t of head h at
// row H + h span + t.
struct Sequence : Piece {
    uint32_t b, row, span;
    bool packed;
    // The slot of its chunk 0 where there are M a sequence, of S tokens.
    __device__ __forceinline__ uint32_t slot(uint32_t M, uint32_t S) const { return packed ? row / S + b : b * M; }
};
__device__ __forceinline__ Sequence sequence_of(const int32_t *seq, uint32_t flags, uint32_t L, uint32_t T, uint32_t b)
{
    Sequence own;
    own.b = b;
    own.packed = (flags & HAS_CU) != 0;
    if (own.packed) {
        const uint32_t begin = min(uint32_t(max(seq[b], 0)), T), end = min(uint32_t(max(seq[b + 1], 0)), T);
        own.position = 0;
        own.row = begin;
        own.span = own.count = end > begin ? min(end - begin, L) : 0;
    } else {
        static_cast<Piece &>(own) = piece_of(seq, flags, L, b);
        own.row = b * L;
        own.span = L;
    }
    return own;
}
// The last of B packed sequences that begins at or before the row.
__device__ __forceinline__ uint32_t sequence_with(const int32_t *cu, uint32_t B, uint32_t row)
{
    uint32_t first = 0, end = B;
    while (end - first > 1) {
        const uint32_t middle = first + (end - first) / 2;
        if (int64_t(cu[middle]) <= int64_t(row)) first = middle;
        else end = middle;
    }
    return first;
}

struct Chunk {
    uint32_t begin, end; // begin >= end: empty
    bool closes;
    __device__ __forceinline__ uint32_t length() const { return begin < end ? end - begin : 0; }
};
__device__ __forceinline__ Chunk chunk_of(const Piece &piece, uint32_t S, uint32_t j)
{
    const uint64_t o = piece.position - quotient(piece.position, S) * S;
    const uint64_t border = (uint64_t(j) + 1) * S - o;
    Chunk chunk;
    chunk.begin = j ? uint32_t(uint64_t(j) * S - o) : 0;
    chunk.end = border < piece.count ? uint32_t(border) : piece.count;
    chunk.closes = border <= piece.count;
    return chunk;
}

// ---- Sums in a fixed order, the same in every thread ----

__device__ __forceinline__ float warp_sum(float value)
{
    for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
    return value;
}
// Call with the whole block.
template <uint32_t threads = block_size> __device__ __forceinline__ float block_sum(float value)
{
    __shared__ float parts[threads / 32];
    value = warp_sum(value);
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
    __syncthreads();
    float sum = 0.0f;
    for (uint32_t w = 0; w < threads / 32; w++) sum += parts[w];
    __syncthreads();
    return sum;
}

__device__ __forceinline__ float block_top(float value)
{
    __shared__ float parts[warps];
    for (int apart = 16; apart > 0; apart /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, apart));
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = value;
    __syncthreads();
    for (uint32_t w = 0; w < warps; w++) value = fmaxf(value, parts[w]);
    __syncthreads();
    return value;
}

#endif
