// linear and embed with quantised rows of weights (dart_quantise), in blocks of 32 numbers. The type of weight is 0 for q8 and 1 for q4.
#include "lib/eight.cuh"

// A block as it lies in memory, 4-bit numbers in `low`.
struct QuantisedBlock {
    uint4 low, high;
    float scale, minimum;
};

__device__ __forceinline__ float quantised_bf16(const char *at) { return from_bfloat(*reinterpret_cast<const uint16_t *>(at)); }

// QuantisedBlock b of the row of `width` numbers at `row`, which is aligned to 16 bytes.
template <bool four> __device__ __forceinline__ QuantisedBlock quantised_block(const char *row, uint32_t width, uint32_t b)
{
    const uint4 *quads = reinterpret_cast<const uint4 *>(row);
    const char *scales = row + (four ? width / 2 : width);
    QuantisedBlock block = {};
    block.low = quads[four ? b : 2 * b];
    if (!four) block.high = quads[2 * b + 1];
    block.scale = quantised_bf16(scales + 2 * b);
    if (four) block.minimum = quantised_bf16(scales + width / 16 + 2 * b);
    return block;
}

__device__ __forceinline__ void quantised_four(uint32_t word, float *to)
{
#pragma unroll
    for (uint32_t k = 0; k < 4; k++) to[k] = float(int32_t(word << (24 - 8 * k)) >> 24);
}

// The small numbers 8 j to 8 j + 7 of a block.
template <bool four> __device__ __forceinline__ void quantised_numbers(const QuantisedBlock &block, uint32_t j, float (&n)[8])
{
    if (four) {
        const uint32_t words[4] = {block.low.x, block.low.y, block.low.z, block.low.w};
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) {
            n[2 * k] = float(words[k] >> (4 * j) & 15u);
            n[2 * k + 1] = float(words[k] >> (16 + 4 * j) & 15u);
        }
        return;
    }
    const uint4 half_block = j < 2 ? block.low : block.high;
    quantised_four(j % 2 == 0 ? half_block.x : half_block.z, n);
    quantised_four(j % 2 == 0 ? half_block.y : half_block.w, n + 4);
}

// A warp computes one output for up to T1 tokens. Its lanes split the inputs in parts of eight, so that four lanes share a block.
template <bool four>
__device__ __forceinline__ void quantised_few(const linear_quantised_args &args, const View &x, const char *weights, const View &y)
{
    constexpr uint32_t T1 = TILE1_linear_quantised_simt_few;
    static_assert(TILE0_linear_quantised_simt_few == warps, "one warp per output");
    const uint32_t blocks = ceil_div(args.outputs, warps), lane = threadIdx.x % 32;
    const bool aligned = multiples_of_4(args.x_at, args.x_row);
    FOR_TILES(tile) {
        const uint32_t o = tile % blocks * warps + threadIdx.x / 32, t0 = tile / blocks * T1;
        if (o >= args.outputs) continue;
        const uint32_t rows = min(args.rows - t0, T1);
        const char *row = weights + args.weight_at + size_t(o) * args.weight_row;
        float sum[T1] = {};
#pragma unroll 4
        for (uint32_t i = lane * 8; i < args.inputs; i += 256) {
            const QuantisedBlock block = quantised_block<four>(row, args.inputs, i / 32);
            float n[8];
            quantised_numbers<four>(block, i / 8 % 4, n);
#pragma unroll
            for (uint32_t k = 0; k < 8; k++) n[k] = fmaf(block.scale, n[k], block.minimum);
#pragma unroll
            for (uint32_t t = 0; t < T1; t++) {
                if (t >= rows) break;
                const size_t at = args.x_at + size_t(t0 + t) * args.x_row + i;
                const float4 v = unpack4(fetch4(x, at, args.inputs - i, aligned), x.dtype);
                const float4 u = unpack4(fetch4(x, at + 4, args.inputs - i - 4, aligned), x.dtype);
                sum[t] = fmaf(n[0], v.x, fmaf(n[1], v.y, fmaf(n[2], v.z, fmaf(n[3], v.w, sum[t]))));
                sum[t] = fmaf(n[4], u.x, fmaf(n[5], u.y, fmaf(n[6], u.z, fmaf(n[7], u.w, sum[t]))));
            }
        }
#pragma unroll
        for (uint32_t t = 0; t < T1; t++) {
            if (t >= rows) break;
            const float total = warp_sum(sum[t]);
            const size_t at = args.y_at + size_t(t0 + t) * args.y_row + o;
            if (lane == 0) store(y, at, args.flags & IS_ADD ? load(y, at) + total : total);
        }
    }
}

KERNEL_FUNCTION(linear_quantised, simt_few)
{
    const View x = VIEW(linear_quantised, x), weight = VIEW(linear_quantised, weight), y = VIEW(linear_quantised, y);
    if (weight.dtype == 0) quantised_few<false>(args, x, weight.base, y);
    else quantised_few<true>(args, x, weight.base, y);
}

template <bool four>
__device__ __forceinline__ void embed_quantised_rows(const embed_quantised_args &args, const int32_t *ids, const char *weights, const View &y)
{
    const bool aligned = ((args.y_at | args.y_row) & 7u) == 0;
    FOR_TILES(tile) {
        uint32_t row = tile;
        bool inside = true;
        if (args.flags & HAS_ROWS) {
            const uint32_t id = uint32_t(ids[args.ids_at + size_t(tile)]); // a negative one is beyond any vocabulary
            row = id - args.first;
            inside = id < args.vocabulary;
            if (inside ? id < args.first || row >= args.count : args.first != 0) continue;
        }
        const char *from = weights + args.weight_at + size_t(row) * args.weight_row;
        for (uint32_t i = threadIdx.x * 8; i < args.width; i += block_size * 8) {
            const size_t to = args.y_at + size_t(tile) * args.y_row + i;
            float v[8];
#pragma unroll
            for (uint32_t k = 0; k < 8; k++) v[k] = __uint_as_float(0x7fc00000u);
            if (inside) {
                const QuantisedBlock block = quantised_block<four>(from, args.width, i / 32);
                quantised_numbers<four>(block, i / 8 % 4, v);
#pragma unroll
                for (uint32_t k = 0; k < 8; k++) v[k] = fmaf(block.scale, v[k], block.minimum);
            }
            if (aligned) store8(y, to, v);
            else
                for (uint32_t k = 0; k < 8; k++) store(y, to + k, v[k]);
        }
    }
}

// A block makes a row.
KERNEL_FUNCTION(embed_quantised, simt)
{
    const int32_t *ids = INTS(embed_quantised, ids);
    const View weight = VIEW(embed_quantised, weight), y = VIEW(embed_quantised, y);
    if (weight.dtype == 0) embed_quantised_rows<false>(args, ids, weight.base, y);
    else embed_quantised_rows<true>(args, ids, weight.base, y);
}
