// y_i = x_i cos - x_(i + R/2) sin, y_(i + R/2) = x_(i + R/2) cos + x_i sin of the angle position r^i, of each head (args.h). A block takes T0
// tokens; a thread takes pairs (token, i) and turns them in all heads, so that y may be x. The row `eight`, for whole heads (R = D, a multiple
// of 16), makes the rates of all pairs once a block; its threads take eight pairs of a token, in words of 16 bytes, two heads at a time.
#include "lib/eight.cuh"

// The product of two fractions of 64 bits.
__device__ __forceinline__ uint64_t fraction(uint64_t a, uint32_t b_high, uint32_t b_low)
{
    const uint64_t ah = a >> 32, al = uint32_t(a);
    return ah * b_high + (ah * b_low >> 32) + (al * b_high >> 32);
}

// Sine (x) and cosine (y) of a fraction of a turn, of 32 bits: the rest within an eighth of a turn of a quarter, by polynomials.
__device__ __forceinline__ float2 sine(uint32_t turns)
{
    const uint32_t quarter = (turns + (1u << 29)) >> 30;
    const float x = float(int32_t(turns - (quarter << 30))) * 1.4629180792671596e-9f, z = x * x; // 2 pi / 2^32
    const float odd = x + x * z * (-1.6666654611e-1f + z * (8.3321608736e-3f - z * 1.9515295891e-4f));
    const float even = 1.0f - 0.5f * z + z * z * (4.166664568298827e-2f + z * (-1.388731625493765e-3f + z * 2.443315711809948e-5f));
    const float s = quarter & 1 ? even : odd, c = quarter & 1 ? odd : even;
    return make_float2(quarter & 2 ? -s : s, (quarter + 1) & 2 ? -c : c);
}

// The part of a turn that pair i turns from one position to the next, in 2^-64.
__device__ __forceinline__ uint64_t rate_of(const rope_args &args, uint32_t i)
{
    uint64_t rate = uint64_t(TURN_HIGH) << 32 | TURN_LOW;
    if (i & 1) rate = fraction(rate, args.r0_high, args.r0_low);
    if (i & 2) rate = fraction(rate, args.r1_high, args.r1_low);
    if (i & 4) rate = fraction(rate, args.r2_high, args.r2_low);
    if (i & 8) rate = fraction(rate, args.r3_high, args.r3_low);
    if (i & 16) rate = fraction(rate, args.r4_high, args.r4_low);
    if (i & 32) rate = fraction(rate, args.r5_high, args.r5_low);
    if (i & 64) rate = fraction(rate, args.r6_high, args.r6_low);
    return rate;
}
__device__ __forceinline__ float2 turn_at(uint64_t rate, uint32_t position, bool inverse)
{
    const float2 by = sine(position * uint32_t(rate >> 32) + __umulhi(position, uint32_t(rate)));
    return inverse ? make_float2(-by.x, by.y) : by;
}

KERNEL_FUNCTION(rope, simt)
{
    constexpr uint32_t T0 = TILE0_rope_simt;
    const View x = VIEW(rope, x), y = VIEW(rope, y);
    const uint32_t half = args.R / 2, parts = half + args.D - args.R; // of a head: pairs, then elements that stay
    const uint32_t rows = args.flags & HAS_CU ? args.T : args.B * args.L;
    const int32_t *seq = INTS(rope, seq) + args.seq_at;
    FOR_TILES(tile) {
        for (uint32_t e = threadIdx.x; e < T0 * parts; e += block_size) {
            const uint32_t row = tile * T0 + e / parts, i = e % parts;
            if (row >= rows) continue;
            const uint32_t b = args.flags & HAS_CU ? sequence_with(seq, args.B, row) : row / args.L;
            const Sequence piece = sequence_of(seq, args.flags, args.L, args.T, b);
            const uint32_t t = row - piece.row;
            const bool counts = t < piece.count;
            if (!counts && (piece.packed || !(args.flags & IS_INVERSE))) continue;
            if (i >= half) {
                for (uint32_t h = 0; h < args.H; h++) {
                    const size_t at = size_t(h) * args.D + half + i;
                    store(y, args.y_at + size_t(row) * args.y_row + at, counts ? load(x, args.x_at + size_t(row) * args.x_row + at) : 0.0f);
                }
                continue;
            }
            const uint64_t rate = rate_of(args, i);
            const uint32_t position = piece.position + t;
            const float2 by = turn_at(rate, position, args.flags & IS_INVERSE);
            for (uint32_t h = 0; h < args.H; h++) {
                const size_t from = args.x_at + size_t(row) * args.x_row + h * args.D + i, to = args.y_at + size_t(row) * args.y_row + h * args.D + i;
                const float first = counts ? load(x, from) : 0.0f, second = counts ? load(x, from + half) : 0.0f;
                store(y, to, first * by.y - second * by.x);
                store(y, to + half, second * by.y + first * by.x);
            }
        }
    }
}

KERNEL_FUNCTION(rope, eight)
{
    constexpr uint32_t T0 = TILE0_rope_eight, most_pairs = 128;
    __shared__ uint64_t rates[most_pairs];
    const View x = VIEW(rope, x), y = VIEW(rope, y);
    const uint32_t half = args.D / 2, parts = half / 8, rows = args.flags & HAS_CU ? args.T : args.B * args.L;
    const int32_t *seq = INTS(rope, seq) + args.seq_at;
    for (uint32_t i = threadIdx.x; i < half; i += block_size) rates[i] = rate_of(args, i);
    __syncthreads();
    FOR_TILES(tile) {
        for (uint32_t e = threadIdx.x; e < T0 * parts; e += block_size) {
            const uint32_t row = tile * T0 + e / parts, i = e % parts * 8;
            if (row >= rows) continue;
            const uint32_t b = args.flags & HAS_CU ? sequence_with(seq, args.B, row) : row / args.L;
            const Sequence piece = sequence_of(seq, args.flags, args.L, args.T, b);
            const uint32_t t = row - piece.row;
            const bool counts = t < piece.count;
            if (!counts && (piece.packed || !(args.flags & IS_INVERSE))) continue;
            float2 by[8];
#pragma unroll
            for (uint32_t k = 0; k < 8; k++) by[k] = turn_at(rates[i + k], piece.position + t, args.flags & IS_INVERSE);
            for (uint32_t h = 0; h < args.H; h += 2) {
                const size_t from = args.x_at + size_t(row) * args.x_row + h * args.D + i, to = args.y_at + size_t(row) * args.y_row + h * args.D + i;
                Words first[2], second[2];
#pragma unroll
                for (uint32_t k = 0; k < 2; k++) {
                    const bool read = counts && h + k < args.H;
                    first[k] = read ? fetch8(x, from + k * args.D) : no_words();
                    second[k] = read ? fetch8(x, from + k * args.D + half) : no_words();
                }
#pragma unroll
                for (uint32_t k = 0; k < 2; k++) {
                    if (h + k >= args.H) continue;
                    float one[8], other[8];
                    unpack8(first[k], x.dtype, one);
                    unpack8(second[k], x.dtype, other);
#pragma unroll
                    for (uint32_t j = 0; j < 8; j++) {
                        const float before = one[j];
                        one[j] = before * by[j].y - other[j] * by[j].x;
                        other[j] = other[j] * by[j].y + before * by[j].x;
                    }
                    store8(y, to + k * args.D, one);
                    store8(y, to + k * args.D + half, other);
                }
            }
        }
    }
}
