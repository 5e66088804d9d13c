// linear_backward_x and linear_backward_weight on tensor cores: the product of up_y and of a right operand (weight; x for
// grad_weight) of one 16-bit type, with f32 sums. An up_y of f32 is rounded to bf16 as it goes into shared memory.
//
// A block of eight warps makes T1 lines x T0 columns of a part, a warp 32 x 32. Lines are rows of up_y (grad_x) or its columns
// (grad_weight), columns are inputs. The sum goes in slabs of 64 steps, which are outputs (grad_x) or rows (grad_weight); copies of two slabs are
// under way while a third one is multiplied. An up_y of f32 passes through registers instead, one slab ahead. Both operands lie in
// a slab as they do in memory; load_matrices_turned turns what has the depth of the product over its rows.
// Shared memory: 3 slabs of 16 KiB of up_y and 8 KiB of the right operand, as tiles (lib/tensor.cuh).
// Needs: inputs a multiple of 16; rows of both operands at 16-byte borders; parts that begin at multiples of 8.
// Guards: rows, outputs and inputs past the end count as 0 and are not read, as NaN may lie there; sums past the end are dropped.
#include "lib/tensor.cuh"

struct BackwardSlab {
    static constexpr uint32_t lines = 128, columns = 64, depth = 64, threads = 256, count = 3;
    static constexpr uint32_t right_at = lines * tile_row, bytes = right_at + depth * tile_row;
    static constexpr uint32_t up_words = lines * depth / 8 / threads, right_words = depth * columns / 8 / threads; // of a thread
};

// Where a tile lies in up_y and in the right operand. Slabs move along rows (sum_rows) or outputs.
struct BackwardTile {
    View up;
    const uint16_t *right;
    size_t up_at;
    uint32_t up_row, right_row, row, rows, output, outputs; // of up_y: first and end
    uint32_t input, inputs;
};

// The thread's word i of a slab of up_y: its row and column in the slab, and its place in shared memory. With sum_rows a slab is two
// tiles of 64 columns.
template <bool sum_rows> __device__ __forceinline__ uint32_t up_word(uint32_t i, uint32_t &row, uint32_t &column)
{
    const uint32_t word = threadIdx.x + i * BackwardSlab::threads, per_row = sum_rows ? 16 : 8;
    row = word / per_row;
    column = word % per_row * 8;
    return column / 64 * (64 * tile_row) + tile_at(row, word % 8);
}

// Starts the copies of slab s; those of up_y only where they need no rounding.
template <bool sum_rows, bool wide> __device__ __forceinline__ void copy_slab(const BackwardTile &tile, uint32_t s)
{
    typedef BackwardSlab Slab;
    const uint32_t to = shared_address(tensor_memory) + s % Slab::count * Slab::bytes;
    const uint32_t row0 = tile.row + (sum_rows ? s * Slab::depth : 0), output0 = tile.output + (sum_rows ? 0 : s * Slab::depth);
    if (!wide) {
        const uint16_t *up = reinterpret_cast<const uint16_t *>(tile.up.base) + tile.up_at;
#pragma unroll
        for (uint32_t i = 0; i < Slab::up_words; i++) {
            uint32_t row, output;
            const uint32_t place = up_word<sum_rows>(i, row, output);
            row += row0;
            output += output0;
            const bool inside = row < tile.rows && output < tile.outputs;
            copy_bytes(to + place, inside ? up + size_t(row) * tile.up_row + output : up, inside ? 2 * min(tile.outputs - output, 8u) : 0);
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < Slab::right_words; i++) {
        const uint32_t word = threadIdx.x + i * Slab::threads, line = (sum_rows ? row0 : output0) + word / 8, input = tile.input + word % 8 * 8;
        const bool inside = line < (sum_rows ? tile.rows : tile.outputs) && input < tile.inputs;
        copy16(to + Slab::right_at + tile_at(word / 8, word % 8), inside ? tile.right + size_t(line) * tile.right_row + input : tile.right, inside);
    }
}

// Eight f32 numbers of up_y, those from `left` on as 0.
struct WideWord { float4 low, high; };
__device__ __forceinline__ WideWord wide_word(const float *from, uint32_t left)
{
    WideWord w = {make_float4(0, 0, 0, 0), make_float4(0, 0, 0, 0)};
    if (left >= 8) {
        w.low = reinterpret_cast<const float4 *>(from)[0];
        w.high = reinterpret_cast<const float4 *>(from)[1];
        return w;
    }
    if (left > 0) w.low.x = from[0];
    if (left > 1) w.low.y = from[1];
    if (left > 2) w.low.z = from[2];
    if (left > 3) w.low.w = from[3];
    if (left > 4) w.high.x = from[4];
    if (left > 5) w.high.y = from[5];
    if (left > 6) w.high.z = from[6];
    return w;
}

template <bool sum_rows> __device__ __forceinline__ void fetch_wide(const BackwardTile &tile, uint32_t s, WideWord (&words)[BackwardSlab::up_words])
{
    const float *up = reinterpret_cast<const float *>(tile.up.base) + tile.up_at;
#pragma unroll
    for (uint32_t i = 0; i < BackwardSlab::up_words; i++) {
        uint32_t row, output;
        up_word<sum_rows>(i, row, output);
        row += tile.row + (sum_rows ? s * BackwardSlab::depth : 0);
        output += tile.output + (sum_rows ? 0 : s * BackwardSlab::depth);
        const bool inside = row < tile.rows && output < tile.outputs;
        words[i] = wide_word(inside ? up + size_t(row) * tile.up_row + output : up, inside ? tile.outputs - output : 0);
    }
}

template <bool sum_rows> __device__ __forceinline__ void put_wide(uint32_t s, const WideWord (&words)[BackwardSlab::up_words])
{
    char *to = tensor_memory + s % BackwardSlab::count * BackwardSlab::bytes;
#pragma unroll
    for (uint32_t i = 0; i < BackwardSlab::up_words; i++) {
        uint32_t row, output;
        const uint32_t place = up_word<sum_rows>(i, row, output);
        const WideWord &w = words[i];
        *reinterpret_cast<uint4 *>(to + place) = make_uint4(pack<true>(w.low.x, w.low.y), pack<true>(w.low.z, w.low.w),
                                                            pack<true>(w.high.x, w.high.y), pack<true>(w.high.z, w.high.w));
    }
}

// The warp's 32 lines x 32 columns += slab s: sums[i][j] are the lines 16 i .. and columns 16 j .. as in multiply_16.
template <bool bf, bool sum_rows> __device__ __forceinline__ void multiply_slab(float (&sums)[2][2][8], uint32_t s)
{
    typedef BackwardSlab Slab;
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const uint32_t up = shared_address(tensor_memory) + s % Slab::count * Slab::bytes, right = up + Slab::right_at;
    const uint32_t first_line = warp / 2 * 32, first_column = warp % 2 * 32;
#pragma unroll
    for (uint32_t depth = 0; depth < Slab::depth; depth += 16) {
        uint32_t a[2][4], b[2][4];
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            const uint32_t line = first_line + 16 * i;
            if (sum_rows)
                load_matrices_turned(a[i], up + line / 64 * (64 * tile_row) +
                                               tile_at(depth + lane % 8 + lane / 16 * 8, line % 64 / 8 + lane / 8 % 2));
            else
                load_matrices(a[i], up + tile_at(line + lane % 16, depth / 8 + lane / 16));
            load_matrices_turned(b[i], right + tile_at(depth + lane % 16, (first_column + 16 * i) / 8 + lane / 16));
        }
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
#pragma unroll
            for (uint32_t j = 0; j < 2; j++) multiply_16<bf>(sums[i][j], a[i], b[j]);
        }
    }
}

template <bool bf, bool sum_rows, bool wide> __device__ __forceinline__ void backward_tile(const BackwardTile &tile, float (&sums)[2][2][8])
{
    const uint32_t steps = sum_rows ? tile.rows - tile.row : tile.outputs - tile.output, slabs = ceil_div(steps, BackwardSlab::depth);
    WideWord words[BackwardSlab::up_words];
#pragma unroll
    for (uint32_t i = 0; i < 32; i++) sums[i / 16][i / 8 % 2][i % 8] = 0.0f;
    if (wide) fetch_wide<sum_rows>(tile, 0, words);
    __syncthreads(); // until the slabs of the tile before have been read
#pragma unroll
    for (uint32_t s = 0; s < BackwardSlab::count - 1; s++) {
        if (s < slabs) copy_slab<sum_rows, wide>(tile, s);
        copies_commit();
    }
    for (uint32_t s = 0; s < slabs; s++) {
        // The place of slab s was read for slab s - 3, before the barrier of slab s - 2; that of the copies that start here before this one.
        if (wide) put_wide<sum_rows>(s, words);
        copies_landed<BackwardSlab::count - 2>();
        __syncthreads();
        if (s + BackwardSlab::count - 1 < slabs) copy_slab<sum_rows, wide>(tile, s + BackwardSlab::count - 1);
        copies_commit();
        if (wide && s + 1 < slabs) fetch_wide<sum_rows>(tile, s + 1, words);
        multiply_slab<bf, sum_rows>(sums, s);
    }
}

// The tile's sums to rows of `to` that lie `row` apart, from element `at` on, where there are so many lines and columns.
__device__ __forceinline__ void store_backward(const View &to, size_t at, uint32_t row, uint32_t lines, uint32_t columns, bool add,
                                               const float (&sums)[2][2][8])
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const bool pairs = ((at | row) & 1) == 0;
#pragma unroll
    for (uint32_t k = 0; k < 16; k++) { // 16-line half i, half r of that, 8 columns of j
        const uint32_t i = k / 8, r = k / 4 % 2, j = k % 4;
        const uint32_t line = warp / 2 * 32 + i * 16 + r * 8 + lane / 4, column = warp % 2 * 32 + j * 8 + lane % 4 * 2;
        if (line >= lines || column >= columns) continue;
        float2 v = make_float2(sums[i][j / 2][j % 2 * 4 + r * 2], sums[i][j / 2][j % 2 * 4 + r * 2 + 1]);
        const size_t place = at + size_t(line) * row + column;
        if (!pairs) {
            store(to, place, add ? load(to, place) + v.x : v.x);
            store(to, place + 1, add ? load(to, place + 1) + v.y : v.y);
        } else if (to.dtype == DTYPE_F32) {
            float2 *pair = reinterpret_cast<float2 *>(to.base) + place / 2;
            *pair = add ? make_float2(pair->x + v.x, pair->y + v.y) : v;
        } else {
            uint32_t *pair = reinterpret_cast<uint32_t *>(to.base) + place / 2;
            const bool bf = to.dtype == DTYPE_BF16;
            if (add) {
                const float2 held = bf ? unpack<true>(*pair) : unpack<false>(*pair);
                v = make_float2(held.x + v.x, held.y + v.y);
            }
            *pair = bf ? pack<true>(v.x, v.y) : pack<false>(v.x, v.y);
        }
    }
}

template <bool bf>
__device__ __forceinline__ void tensor_backward_x(const linear_backward_x_args &args, const View &up_y, const View &weight, const View &grad_x)
{
    typedef BackwardSlab Slab;
    const uint32_t blocks = ceil_div(args.inputs, Slab::columns), t_blocks = ceil_div(args.rows, Slab::lines);
    FOR_TILES(tile) {
        const uint32_t i0 = tile % blocks * Slab::columns, t0 = tile / blocks % t_blocks * Slab::lines, part = tile / blocks / t_blocks;
        const uint32_t o0 = part * args.share;
        const BackwardTile of = {up_y, reinterpret_cast<const uint16_t *>(weight.base) + args.weight_at, args.up_y_at, args.up_y_row, args.inputs, t0,
                                 args.rows, o0, o0 + min(args.share, args.outputs - o0), i0, args.inputs};
        float sums[2][2][8];
        if (bf && up_y.dtype == DTYPE_F32) backward_tile<bf, false, true>(of, sums);
        else backward_tile<bf, false, false>(of, sums);
        store_backward(grad_x, args.grad_x_at + (size_t(part) * args.rows + t0) * args.grad_x_row + i0, args.grad_x_row, args.rows - t0,
                       args.inputs - i0, args.flags & IS_ADD, sums);
    }
}

template <bool bf>
__device__ __forceinline__ void tensor_backward_weight(const linear_backward_weight_args &args, const View &up_y, const View &x, const View &grad)
{
    typedef BackwardSlab Slab;
    const uint32_t i_blocks = ceil_div(args.inputs, Slab::columns), o_blocks = ceil_div(args.outputs, Slab::lines);
    FOR_TILES(tile) {
        const uint32_t i0 = tile % i_blocks * Slab::columns, o0 = tile / i_blocks % o_blocks * Slab::lines, part = tile / i_blocks / o_blocks;
        const uint32_t t0 = part * args.share;
        const BackwardTile of = {up_y, reinterpret_cast<const uint16_t *>(x.base) + args.x_at, args.up_y_at, args.up_y_row, args.x_row, t0,
                                 t0 + min(args.share, args.rows - t0), o0, args.outputs, i0, args.inputs};
        float sums[2][2][8];
        if (bf && up_y.dtype == DTYPE_F32) backward_tile<bf, true, true>(of, sums);
        else backward_tile<bf, true, false>(of, sums);
        store_backward(grad, args.grad_weight_at + (size_t(part) * args.outputs + o0) * args.inputs + i0, args.inputs, args.outputs - o0,
                       args.inputs - i0, args.flags & IS_ADD, sums);
    }
}

#define BACKWARD_FITS(row) \
    static_assert(TILE0_##row == BackwardSlab::columns && TILE1_##row == BackwardSlab::lines, "tile of the product"); \
    static_assert(THREADS_##row == BackwardSlab::threads && SHARED_##row == BackwardSlab::count * BackwardSlab::bytes, "its block");
#define BACKWARD_ROWS(type, bf) \
    BACKWARD_FITS(linear_backward_x_tensor_##type) \
    BACKWARD_FITS(linear_backward_weight_tensor_##type) \
    KERNEL_FUNCTION_BLOCKS(linear_backward_x, tensor_##type, 2) \
    { \
        tensor_backward_x<bf>(args, VIEW(linear_backward_x, up_y), VIEW(linear_backward_x, weight), VIEW(linear_backward_x, grad_x)); \
    } \
    KERNEL_FUNCTION_BLOCKS(linear_backward_weight, tensor_##type, 2) \
    { \
        tensor_backward_weight<bf>(args, VIEW(linear_backward_weight, up_y), VIEW(linear_backward_weight, x), \
                                   VIEW(linear_backward_weight, grad_weight)); \
    }
BACKWARD_ROWS(f16, false)
BACKWARD_ROWS(bf16, true)
