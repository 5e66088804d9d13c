// linear of one row, operands of one 16-bit type, f32 sums: y[o] (+)= sum_i x[i] weight[o, i]. A warp makes four neighbouring outputs, with 768
// inputs in flight at once; the first weights are on their way before the launch before has ended. Needs (FITS_TILES) inputs in multiples of 16.
#include "lib/one_row.cuh"

namespace linear_row {

constexpr uint32_t outs = 4, words = 3, tile_outputs = outs * warps;

template <bool bf> __device__ __forceinline__ void run(const linear_args &args, const View &x, const View &weight, const View &y)
{
    const uint32_t lane = threadIdx.x % 32, row = args.inputs / 8;
    const uint4 *from = reinterpret_cast<const uint4 *>(x.base) + args.x_at / 8;
    bool waited = false;
    FOR_TILES(tile) {
        const uint32_t first = tile * tile_outputs + threadIdx.x / 32 * outs;
        float sums[outs] = {};
        for (uint32_t begin = 0; begin < row; begin += 32 * words) {
            uint4 own[outs][words], v[words];
            const uint4 *weights = reinterpret_cast<const uint4 *>(weight.base) + args.weight_at / 8 + begin + lane;
#pragma unroll
            for (uint32_t k = 0; k < outs; k++)
#pragma unroll
                for (uint32_t j = 0; j < words; j++)
                    own[k][j] = begin + lane + 32 * j < row ? stream_word(weights + size_t(min(first + k, args.outputs - 1)) * row + 32 * j)
                                                            : make_uint4(0, 0, 0, 0);
            if (!waited) {
                predecessors_wait();
                successors_begin();
            }
            waited = true;
#pragma unroll
            for (uint32_t j = 0; j < words; j++) v[j] = begin + lane + 32 * j < row ? from[begin + lane + 32 * j] : make_uint4(0, 0, 0, 0);
#pragma unroll
            for (uint32_t j = 0; j < words; j++) {
                float in[8];
                unpack8({v[j], make_uint4(0, 0, 0, 0)}, bf ? DTYPE_BF16 : DTYPE_F16, in);
#pragma unroll
                for (uint32_t k = 0; k < outs; k++) multiply_word<bf>(own[k][j], in, sums[k]);
            }
        }
#pragma unroll
        for (uint32_t k = 0; k < outs; k++) sums[k] = warp_sum(sums[k]);
        const float sum = lane == 0 ? sums[0] : lane == 1 ? sums[1] : lane == 2 ? sums[2] : sums[3];
        if (lane >= outs || first + lane >= args.outputs) continue;
        const size_t at = args.y_at + first + lane;
        store(y, at, args.flags & IS_ADD ? load(y, at) + sum : sum);
    }
    if (!waited) predecessors_wait();
}

} // namespace linear_row

static_assert(TILE0_linear_row_f16 == linear_row::tile_outputs && TILE0_linear_row_bf16 == linear_row::tile_outputs, "outputs of a block");
KERNEL_FUNCTION_BLOCKS(linear, row_f16, 2) { linear_row::run<false>(args, VIEW(linear, x), VIEW(linear, weight), VIEW(linear, y)); }
KERNEL_FUNCTION_BLOCKS(linear, row_bf16, 2) { linear_row::run<true>(args, VIEW(linear, x), VIEW(linear, weight), VIEW(linear, y)); }
