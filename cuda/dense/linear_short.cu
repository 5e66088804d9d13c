// linear of short rows on tensor cores: y[t, o] (+)= sum_i x[t, i] weight[o, i] with at most 192 inputs, operands of one 16-bit type, f32 sums.
// What such a product costs is x read and y written. A block keeps all weights in shared memory and walks over tiles of T1 rows; a
// warp has 16 rows of x as fragments in registers, so that the copies of the next tile begin before the products of this one.
// Shared memory: six tiles of 64 outputs x 64 inputs (lib/tensor.cuh) and three of T1 rows x 64 inputs.
// Needs (FITS_DENSE_SHORT_ROWS): ceil(inputs / 64) ceil(outputs / 64) at most 6. FITS_TILES: inputs a multiple of 16, rows of x at 16-byte borders.
#include "lib/tensor.cuh"

namespace linear_short {

constexpr uint32_t rows = 128, threads = 256, most_steps = 12; // of 16 inputs
constexpr uint32_t weight_tiles = 6, weight_bytes = 64 * tile_row, x_bytes = rows * tile_row, x_at = weight_tiles * weight_bytes;

// Lane c of four holds word c of eight columns each of w[0] to w[3]; then all four words of the eight columns of w[c].
__device__ __forceinline__ uint4 gather_eight(const uint32_t (&w)[4])
{
    const bool odd = threadIdx.x & 1, upper = threadIdx.x & 2;
    const uint32_t a = __shfl_xor_sync(0xffffffffu, odd ? w[0] : w[1], 1), b = __shfl_xor_sync(0xffffffffu, odd ? w[2] : w[3], 1);
    const uint2 low = odd ? make_uint2(a, w[1]) : make_uint2(w[0], a), high = odd ? make_uint2(b, w[3]) : make_uint2(w[2], b);
    const uint2 give = upper ? low : high;
    const uint2 got = make_uint2(__shfl_xor_sync(0xffffffffu, give.x, 2), __shfl_xor_sync(0xffffffffu, give.y, 2));
    return upper ? make_uint4(got.x, got.y, high.x, high.y) : make_uint4(low.x, low.y, got.x, got.y);
}

// The elements at a pair of neighbouring columns of y, the second one only where it is there.
__device__ __forceinline__ float2 held_pair(const View &y, size_t at, bool both, bool aligned)
{
    if (!both || !aligned) return make_float2(load(y, at), both ? load(y, at + 1) : 0.0f);
    if (y.dtype == DTYPE_F32) return reinterpret_cast<const float2 *>(y.base)[at / 2];
    const uint32_t pair = reinterpret_cast<const uint32_t *>(y.base)[at / 2];
    return y.dtype == DTYPE_BF16 ? unpack<true>(pair) : unpack<false>(pair);
}
__device__ __forceinline__ void put_pair(const View &y, size_t at, bool both, bool aligned, float2 v)
{
    if (!both || !aligned) {
        store(y, at, v.x);
        if (both) store(y, at + 1, v.y);
    } else if (y.dtype == DTYPE_F32) {
        reinterpret_cast<float2 *>(y.base)[at / 2] = v;
    } else {
        reinterpret_cast<uint32_t *>(y.base)[at / 2] = y.dtype == DTYPE_BF16 ? pack<true>(v.x, v.y) : pack<false>(v.x, v.y);
    }
}

// The warp's 16 rows x 32 sums, a half of 64 columns, to y from element `at` on; of so many rows and columns. held: what lies there, with add.
struct Place {
    size_t at;
    uint32_t row, lines, columns;
    bool pairs;
    // Whether the thread's pair of columns k % 4 of row k / 4 is there, and its element and column.
    __device__ __forceinline__ bool has(uint32_t k) const { return threadIdx.x % 32 / 4 + k / 4 * 8 < lines && column(k) < columns; }
    __device__ __forceinline__ uint32_t column(uint32_t k) const { return k % 4 * 8 + threadIdx.x % 4 * 2; }
    __device__ __forceinline__ size_t element(uint32_t k) const { return at + size_t(threadIdx.x % 32 / 4 + k / 4 * 8) * row + column(k); }
};
__device__ __forceinline__ void fetch_held(float2 (&held)[8], const View &y, const Place &place)
{
#pragma unroll
    for (uint32_t k = 0; k < 8; k++)
        held[k] = place.has(k) ? held_pair(y, place.element(k), place.column(k) + 1 < place.columns, place.pairs) : make_float2(0.0f, 0.0f);
}
template <bool bf>
__device__ __forceinline__ void put(const View &y, const Place &place, bool eights, const float2 (&held)[8], const float (&sums)[16])
{
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        if (eights && place.columns >= 32) {
            uint32_t w[4];
#pragma unroll
            for (uint32_t j = 0; j < 4; j++) w[j] = pack<bf>(sums[4 * j + 2 * half], sums[4 * j + 2 * half + 1]);
            const uint4 eight = gather_eight(w);
            const uint32_t line = lane / 4 + 8 * half;
            uint16_t *const to = reinterpret_cast<uint16_t *>(y.base) + place.at + size_t(line) * place.row + 8 * (lane % 4);
            if (line < place.lines) *reinterpret_cast<uint4 *>(to) = eight;
            continue;
        }
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            const uint32_t k = 4 * half + j;
            const float2 v = make_float2(held[k].x + sums[4 * j + 2 * half], held[k].y + sums[4 * j + 2 * half + 1]);
            if (place.has(k)) put_pair(y, place.element(k), place.column(k) + 1 < place.columns, place.pairs, v);
        }
    }
}

template <bool bf> __device__ __forceinline__ void run(const linear_args &args, const View &x, const View &weight, const View &y)
{
    const uint32_t lane = threadIdx.x % 32, line0 = threadIdx.x / 32 * 16;
    const bool add = args.flags & IS_ADD, eights = ((args.y_at | args.y_row) & 7) == 0 && !add && y.dtype == (bf ? DTYPE_BF16 : DTYPE_F16);
    const uint32_t depths = ceil_div(args.inputs, 64), steps = args.inputs / 16, base = shared_address(tensor_memory), x_place = base + x_at;
    const auto pieces = [&](uint32_t depth) { return min(args.inputs / 8 - 8 * depth, 8u); };
    const auto fetch = [&](uint32_t tile) {
        const uint16_t *from = reinterpret_cast<const uint16_t *>(x.base) + args.x_at + size_t(tile) * rows * args.x_row;
        for (uint32_t d = 0; d < depths; d++)
            copy_tile<rows, threads>(x_place + d * x_bytes, from + 64 * d, args.x_row, args.rows - tile * rows, threadIdx.x, pieces(d));
    };
    for (uint32_t o = 0; o < args.outputs; o += 64) {
        const uint16_t *from = reinterpret_cast<const uint16_t *>(weight.base) + args.weight_at + size_t(o) * args.inputs;
        for (uint32_t d = 0; d < depths; d++)
            copy_tile<64, threads>(base + (o / 64 * depths + d) * weight_bytes, from + 64 * d, args.inputs, args.outputs - o, threadIdx.x, pieces(d));
    }
    if (blockIdx.x < args.tiles) fetch(blockIdx.x);
    copies_commit();
    FOR_TILES(tile) {
        copies_landed<0>();
        __syncthreads();
        uint32_t a[most_steps][4];
#pragma unroll
        for (uint32_t k = 0; k < most_steps; k++)
            if (k < steps) load_matrices(a[k], x_place + k / 4 * x_bytes + tile_at(line0 + lane % 16, k % 4 * 2 + lane / 16));
        __syncthreads(); // all have read the rows
        if (tile + gridDim.x < args.tiles) fetch(tile + gridDim.x);
        copies_commit();
        const uint32_t t = tile * rows + line0;
        if (t >= args.rows) continue;
        for (uint32_t o = 0; o < args.outputs; o += 32) {
            const size_t at = args.y_at + size_t(t) * args.y_row + o;
            const Place place = {at, args.y_row, args.rows - t, args.outputs - o, ((at | args.y_row) & 1) == 0};
            float2 held[8] = {};
            if (add) fetch_held(held, y, place);
            float sums[16] = {};
#pragma unroll
            for (uint32_t k = 0; k < most_steps; k++) {
                if (k >= steps) continue;
                const uint32_t right = base + (o / 64 * depths + k / 4) * weight_bytes;
#pragma unroll
                for (uint32_t i = 0; i < 2; i++) {
                    uint32_t b[4];
                    load_matrices(b, right + tile_at(o % 64 + 16 * i + lane % 8 + lane / 16 * 8, k % 4 * 2 + lane / 8 % 2));
                    multiply_16<bf>(sums + 8 * i, a[k], b);
                }
            }
            put<bf>(y, place, eights, held, sums);
        }
    }
}

} // namespace linear_short

#define SHORT_ROW(type, bf) \
    static_assert(TILE0_linear_short_##type == 64 * linear_short::weight_tiles && TILE1_linear_short_##type == linear_short::rows, "tile"); \
    static_assert(THREADS_linear_short_##type == linear_short::threads && \
                      SHARED_linear_short_##type == linear_short::x_at + linear_short::most_steps / 4 * linear_short::x_bytes, "its block"); \
    KERNEL_FUNCTION_BLOCKS(linear, short_##type, 2) \
    { \
        linear_short::run<bf>(args, VIEW(linear, x), VIEW(linear, weight), VIEW(linear, y)); \
    }
SHORT_ROW(f16, false)
SHORT_ROW(bf16, true)
