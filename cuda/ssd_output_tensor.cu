// ssd_output for N = 128, P = 64 and chunks of at most 256 tokens, 16-bit operands of one type, by warpgroup products.
//
// A block walks a run of neighbouring tiles (one head of one chunk each). Each of four warpgroups has 64 tokens of the chunk
// and keeps the products c.b of those with all earlier ones, computed once for all heads of a group, in registers; the later
// ones have more to keep and get registers from the earlier ones. c stays in shared memory. x and hin of a head are on
// their way to one of two stages of shared memory one turn ahead, and weighted there.
//
// With e_j the last token of block j of 64, tokens t of block i take from block j < i
//   exp(cum_t - cum_e(i-1)) exp(cum_e(i-1) - cum_e(i-2)) ... exp(cum_e(j+1) - cum_e(j)) sum_s cb_ts (exp(cum_e(j) - cum_s) step_s x_s)
// and from hin the same with exp(cum_e(0)) (c_t hin): what is in brackets is rounded once to 16 bits as it is put into
// shared memory, all other factors go into the f32 sums from block to block, and no exponent is above 0. Within the own block
// the fragments of c.b are multiplied: by factors that split at every 16 tokens before the own 16 in the same way, there by the
// exponential itself. d is added where s = t.
//
// f16: c.b is held 2^-4 as large, so that products above 65504 do not overflow; steps and hin are divided by the power of two
// below the largest step of the chunk and the largest scale of the head.
//
// Shared memory: b, then c 64 KiB; two stages of x, weighted x and hin 144 KiB; vectors 15 KiB.
#include "tensor.cuh"

namespace ssd_output_tensor {

constexpr uint32_t threads = 512, tokens = 256, N = 128, P = 64, rows_apart = threads / 8, x_parts = tokens / rows_apart,
                   hin_parts = N / rows_apart;
struct Vectors { // of one head
    float2 cum[tokens]; // {hi, lo}; those of the last token beyond the chunk
    float near[tokens]; // exp(cum_e - cum_s) step_s with e the last of the 16 tokens that s is one of; 0 beyond the chunk
    float far[tokens];  // the same of 64
    float step[tokens]; // 0 beyond the chunk
};
struct Stage {
    alignas(1024) char x[tokens * tile_row];
    char weighted[(tokens - 64) * tile_row];
    char hin[N * tile_row];
};
// One head of one chunk; head UINT32_MAX: none. left: heads of the group in this chunk from here on.
struct Turn {
    uint32_t head, left, b, j, group, begin, length;
};
struct Shared {
    alignas(1024) char c[2][tokens * tile_row]; // columns 0 to 63, 64 to 127; b at first
    Stage stage[2];
    Vectors vectors[3];
    float2 unit[2]; // of a stage: of steps, of hin
    Turn turns[8];
};

template <bool bf> __device__ constexpr float shrink() { return bf ? 1.0f : 0.0625f; }
// The power of two below the largest of non-negative numbers of a warp.
__device__ __forceinline__ float unit_of(float largest)
{
    const uint32_t bits = __reduce_max_sync(0xffffffffu, __float_as_uint(largest)) & 0x7f800000u;
    return bits < 0x7f800000u ? fmaxf(__uint_as_float(bits), 0x1p-40f) : 1.0f;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Columns 16 k to 16 k + 15 of c, of the 16 tokens of a warp in a block of 64.
__device__ __forceinline__ void load_c(uint32_t (&c)[4], const uint16_t *rows, size_t row, uint32_t length, uint32_t block, uint32_t k)
{
    const uint32_t lane = threadIdx.x % 32, near = 64 * block + threadIdx.x % 128 / 32 * 16 + lane / 4, far = near + 8;
    const uint16_t *near_at = rows + near * row + lane % 4 * 2 + 16 * k, *far_at = near_at + 8 * row;
    c[0] = near < length ? *reinterpret_cast<const uint32_t *>(near_at) : 0;
    c[1] = far < length ? *reinterpret_cast<const uint32_t *>(far_at) : 0;
    c[2] = near < length ? *reinterpret_cast<const uint32_t *>(near_at + 8) : 0;
    c[3] = far < length ? *reinterpret_cast<const uint32_t *>(far_at + 8) : 0;
}

template <bool bf, uint32_t block>
__device__ __forceinline__ void multiply_chunk(uint32_t (&cb)[4 * (block + 1)][4], const uint16_t *rows, size_t row, uint32_t length,
                                               uint32_t b_tiles)
{
    uint32_t c[N / 16][4];
#pragma unroll
    for (uint32_t k = 0; k < N / 16; k++) load_c(c[k], rows, row, length, block, k);
#pragma unroll
    for (uint32_t s = 0; s <= block; s++) {
        float sums[32];
        clear(sums);
#pragma unroll
        for (uint32_t k = 0; k < N / 16; k++)
            multiply_lines<bf>(sums, c[k], b_tiles + k / 4 * (tokens * tile_row) + 64 * s * tile_row + k % 4 * 32);
#pragma unroll
        for (uint32_t k = 0; k < 4; k++) {
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                cb[4 * s + k][i] = pack<bf>(sums[8 * k + 2 * i] * shrink<bf>(), sums[8 * k + 2 * i + 1] * shrink<bf>());
        }
    }
}

// The 16 tokens x 64 columns of a warp of one head.
template <bool bf, uint32_t block>
__device__ __forceinline__ void multiply_head(float (&sums)[32], const uint32_t (&cb)[4 * (block + 1)][4], uint32_t c_tile,
                                              const Stage &stage, const Vectors &v, float2 unit, float skip)
{
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, column = lane % 4 * 2, warp = uniform(threadIdx.x % 128 / 32);
    const uint32_t t0 = 64 * block + 16 * warp;
    const uint64_t c = operand_at(c_tile + 64 * block * tile_row), hin = operand_at(shared_address(stage.hin));
    const uint64_t weighted = operand_at(shared_address(stage.weighted)), x = operand_at(shared_address(stage.x) + 64 * block * tile_row);
    clear(sums);
    products_begin();
#pragma unroll
    for (uint32_t k = 0; k < N / 16; k++)
        multiply<bf, false>(sums, operand_on(c, k / 4 * (tokens * tile_row) + k % 4 * 32), operand_on(hin, 16 * k * tile_row));

    // The own block: whole fragments before the 16 tokens, the triangle within them, nothing after. Without branches, which
    // wgmma does not suffer.
    const float2 first = v.cum[t0], cum[2] = {v.cum[t0 + g], v.cum[t0 + g + 8]};
    const float own[2] = {decay_between(cum[0], first), decay_between(cum[1], first)};
    uint32_t last[4][4];
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t s = column + i / 2 * 8, t = g + i % 2 * 8;
        uint32_t pair = cb[4 * block][i];
#pragma unroll
        for (uint32_t k = 1; k < 4; k++) pair = k == warp ? cb[4 * block + k][i] : pair;
        const float4 earlier = *reinterpret_cast<const float4 *>(&v.cum[t0 + s]);
        const float2 products = unpack<bf>(pair), steps = *reinterpret_cast<const float2 *>(v.step + t0 + s);
        const float left = products.x * (decay_between(cum[i % 2], make_float2(earlier.x, earlier.y)) * steps.x);
        const float right = products.y * (decay_between(cum[i % 2], make_float2(earlier.z, earlier.w)) * steps.y);
        last[3][i] = pack<bf>(s < t ? left : s == t ? left + skip * shrink<bf>() : 0.0f,
                              s + 1 < t ? right : s + 1 == t ? right + skip * shrink<bf>() : 0.0f);
    }
#pragma unroll
    for (uint32_t k = 0; k < 3; k++) {
        const uint32_t q = 4 * block + k;
        const float between = decay_between(first, v.cum[16 * q + 15]);
        const float factors[2] = {own[0] * between, own[1] * between};
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const float2 keys = *reinterpret_cast<const float2 *>(v.near + 16 * q + column + i / 2 * 8), all = unpack<bf>(cb[q][i]);
            const uint32_t whole = pack<bf>(all.x * (keys.x * factors[i % 2]), all.y * (keys.y * factors[i % 2]));
            last[k][i] = k < warp ? whole : k == warp ? last[3][i] : 0;
        }
    }
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) last[3][i] = warp == 3 ? last[3][i] : 0;

    // From block to block; the sums are in units of what is multiplied next.
    float2 before = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int j = 0; j < int(block); j++) {
        const float2 here = v.cum[64 * j + 63];
        const float factor = decay_between(here, before) * (j == 0 ? unit.y * shrink<bf>() / unit.x : 1.0f);
        before = here;
        products_wait(sums);
#pragma unroll
        for (int i = 0; i < 32; i++) sums[i] *= factor;
        products_begin();
#pragma unroll
        for (int k = 0; k < 4; k++) multiply<bf>(sums, cb[4 * j + k], operand_on(weighted, (64 * j + 16 * k) * tile_row));
    }
    const float to_own = block == 0 ? unit.y * shrink<bf>() : unit.x;
    const float factors[2] = {decay_between(cum[0], before) * to_own, decay_between(cum[1], before) * to_own};
    products_wait(sums);
#pragma unroll
    for (int i = 0; i < 32; i++) sums[i] *= factors[i / 2 % 2];
    products_begin();
#pragma unroll
    for (uint32_t k = 0; k < 4; k++) multiply<bf>(sums, last[k], operand_on(x, 16 * k * tile_row));
    products_wait(sums);
    if (!bf) {
#pragma unroll
        for (int i = 0; i < 32; i++) sums[i] *= 1.0f / shrink<bf>();
    }
}

// The walk over the tiles by a warpgroup.
template <bool bf, uint32_t block>
__device__ __forceinline__ void walk(const ssd_output_args &args, const CudaBindings &bindings, uint32_t dtypes, Shared &shared)
{
    const uint16_t *x = reinterpret_cast<const uint16_t *>(bindings.address[BINDING_ssd_output_x]) + args.x_at;
    const uint16_t *b = reinterpret_cast<const uint16_t *>(bindings.address[BINDING_ssd_output_b]) + args.b_at;
    const uint16_t *c = reinterpret_cast<const uint16_t *>(bindings.address[BINDING_ssd_output_c]) + args.c_at;
    const uint16_t *hin = reinterpret_cast<const uint16_t *>(bindings.address[BINDING_ssd_output_hin]) + args.hin_at;
    const float *scale = FLOATS(ssd_output, hin_scale) + args.hin_scale_at, *cum = FLOATS(ssd_output, cum);
    const View d = VIEW(ssd_output, d), y = VIEW(ssd_output, y);
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, row = threadIdx.x / 8, piece = threadIdx.x % 8;

    // The first warp lists the turns, four ahead.
    uint32_t tile_listed = uint32_t(uint64_t(args.tiles) * blockIdx.x / gridDim.x);
    Turn listed = {};
    const auto list = [&](uint32_t turn) {
        const uint32_t heads = args.H / args.G, end = uint32_t(uint64_t(args.tiles) * (blockIdx.x + 1) / gridDim.x);
        if (listed.left > 1) {
            listed.left--;
            listed.head++;
        } else {
            listed.head = UINT32_MAX;
            for (; tile_listed < end; tile_listed += listed.left) {
                listed.left = min(heads - tile_listed % heads, end - tile_listed);
                listed.group = tile_listed / heads % args.G;
                listed.j = tile_listed / args.H % args.M;
                listed.b = tile_listed / args.H / args.M;
                const Chunk chunk = chunk_of(piece_of(INTS(ssd_output, seq) + args.seq_at, args.flags, args.L, listed.b), args.S, listed.j);
                listed.begin = chunk.begin;
                listed.length = chunk.length();
                if (listed.length > 0) {
                    listed.head = tile_listed % heads + listed.group * heads;
                    tile_listed += listed.left;
                    break;
                }
            }
        }
        if (lane == 0) shared.turns[turn % 8] = listed;
    };
    const auto there = [&](uint32_t turn) { return shared.turns[turn % 8].head != UINT32_MAX; };

    float scales[hin_parts], largest = 0.0f, skip = 0.0f;
    const auto fetch = [&](const Turn &turn, uint32_t number) {
        const size_t first = ((size_t(turn.b) * args.M + turn.j) * args.H + turn.head) * N;
        Stage &to = shared.stage[number % 2];
        copy_tile<tokens, threads>(shared_address(to.x), x + (size_t(turn.b) * args.L + turn.begin) * args.x_row + turn.head * P, args.x_row,
                                   turn.length, threadIdx.x);
        copy_tile<N, threads>(shared_address(to.hin), hin + first * P, P, N, threadIdx.x);
        copies_commit();
#pragma unroll
        for (uint32_t i = 0; i < hin_parts; i++) scales[i] = scale[first + row + i * rows_apart];
        if (!bf) {
            const float4 four = *reinterpret_cast<const float4 *>(scale + first + 4 * lane);
            largest = fmaxf(fmaxf(four.x, four.y), fmaxf(four.z, four.w));
        }
        if (args.flags & HAS_D) skip = load(d, args.d_at + size_t(turn.head));
    };
    float hi = 0.0f, lo = 0.0f, step = 0.0f;
    const auto fetch_cum = [&](const Turn &turn) {
        if (block >= tokens / 128) return;
        const float *from = cum + ((size_t(turn.b) * args.H + turn.head) * args.L + turn.begin + min(threadIdx.x, turn.length - 1)) * CUM_STRIDE;
        hi = from[0], lo = from[1], step = threadIdx.x < turn.length ? from[2] : 0.0f;
    };
    // What the two first warpgroups have of cum, as vectors; the last of 64 tokens may be another warp's: it is read again.
    const auto weigh = [&](const Turn &turn, uint32_t number) {
        if (block >= tokens / 128) return;
        Vectors &v = shared.vectors[number % 3];
        const float2 mine = make_float2(hi, lo);
        const float2 near = make_float2(__shfl_sync(0xffffffffu, hi, lane | 15u), __shfl_sync(0xffffffffu, lo, lane | 15u));
        const float *end_of = cum + ((size_t(turn.b) * args.H + turn.head) * args.L + turn.begin + min(threadIdx.x | 63u, turn.length - 1)) * CUM_STRIDE;
        v.cum[threadIdx.x] = mine;
        v.near[threadIdx.x] = step * decay_between(near, mine);
        v.far[threadIdx.x] = step * decay_between(make_float2(end_of[0], end_of[1]), mine);
        v.step[threadIdx.x] = step;
    };
    const auto put = [&](uint32_t number) {
        const Vectors &v = shared.vectors[number % 3];
        Stage &to = shared.stage[number % 2];
        float2 unit = make_float2(1.0f, 1.0f);
        if (!bf) {
            const float4 low = *reinterpret_cast<const float4 *>(v.step + 8 * lane), high = *reinterpret_cast<const float4 *>(v.step + 8 * lane + 4);
            unit = make_float2(unit_of(fmaxf(fmaxf(fmaxf(low.x, low.y), fmaxf(low.z, low.w)), fmaxf(fmaxf(high.x, high.y), fmaxf(high.z, high.w)))),
                               unit_of(largest));
            if (threadIdx.x == 0) shared.unit[number % 2] = unit;
        }
        copies_wait<0>(); // a thread weighs what it has copied
#pragma unroll
        for (uint32_t i = 0; i + 1 < x_parts; i++) {
            const uint32_t r = row + i * rows_apart;
            put16(to.weighted, r, piece, scale8<bf>(get16(to.x, r, piece), bf ? v.far[r] : v.far[r] / unit.x));
        }
#pragma unroll
        for (uint32_t i = 0; i < hin_parts; i++) {
            const uint32_t r = row + i * rows_apart;
            put16(to.hin, r, piece, scale8<bf>(get16(to.hin, r, piece), bf ? scales[i] : scales[i] / unit.y));
        }
        stores_done();
    };

    // Before turn i: x and hin are in their stage, the vectors of turns i and i + 1 are there, cum of turn i + 2 is in registers.
    if (block == 0 && warp == 0) {
        for (uint32_t i = 0; i < 4; i++) list(i);
    }
    barrier(1, threads);
    if (there(0)) {
        fetch(shared.turns[0], 0);
        fetch_cum(shared.turns[0]);
        weigh(shared.turns[0], 0);
    }
    if (there(1)) {
        fetch_cum(shared.turns[1]);
        weigh(shared.turns[1], 1);
    }
    barrier(1, threads);
    if (there(0)) put(0);
    if (there(2)) fetch_cum(shared.turns[2]);

    uint32_t cb[4 * (block + 1)][4];
    uint32_t left = 0; // heads of the group from this turn on
    for (uint32_t turn = 0; there(turn); turn++, left--) {
        if (left == 0) {
            const Turn &at = shared.turns[turn % 8];
            left = at.left;
            const size_t token = size_t(at.b) * args.L + at.begin;
            const uint32_t tiles = shared_address(shared.c), length = at.length;
            const uint16_t *from = b + token * args.b_row + at.group * N, *lines = c + token * args.c_row + at.group * N;
            barrier(1, threads); // no warp still multiplies with the last chunk's c
            copy_tile<tokens, threads>(tiles, from, args.b_row, length, threadIdx.x);
            copy_tile<tokens, threads>(tiles + tokens * tile_row, from + 64, args.b_row, length, threadIdx.x);
            copies_commit();
            copies_wait<0>();
            barrier(1, threads);
            multiply_chunk<bf, block>(cb, lines, args.c_row, length, tiles);
            barrier(1, threads); // c takes the place of b
            copy_tile<tokens, threads>(tiles, lines, args.c_row, length, threadIdx.x);
            copy_tile<tokens, threads>(tiles + tokens * tile_row, lines + 64, args.c_row, length, threadIdx.x);
            copies_commit();
            copies_wait<0>();
        }
        const float skip_now = skip;
        barrier(1, threads);
        if (there(turn + 1)) fetch(shared.turns[(turn + 1) % 8], turn + 1);
        if (there(turn + 2)) weigh(shared.turns[(turn + 2) % 8], turn + 2);
        if (there(turn + 3)) fetch_cum(shared.turns[(turn + 3) % 8]);
        if (block == 0 && warp == 0) list(turn + 4);

        Stage &stage = shared.stage[turn % 2];
        const uint32_t t0 = 64 * block + warp % 4 * 16, length = shared.turns[turn % 8].length;
        if (64 * block < length) {
            float sums[32];
            multiply_head<bf, block>(sums, cb, shared_address(shared.c), stage, shared.vectors[turn % 3],
                                     bf ? make_float2(1.0f, 1.0f) : shared.unit[turn % 2], skip_now);
            const Turn &at = shared.turns[turn % 8];
            const uint32_t valid = t0 < length ? length - t0 : 0;
            const size_t to = args.y_at + (size_t(at.b) * args.L + at.begin + t0) * args.y_row + at.head * P;
            if (y.dtype == (bf ? DTYPE_BF16 : DTYPE_F16)) {
                barrier(2 + block, 128); // rows of results take the place of the block's x
                store_rows<bf>(reinterpret_cast<uint16_t *>(y.base) + to, args.y_row, valid, sums, stage.x + t0 * tile_row);
            } else {
#pragma unroll
                for (uint32_t i = 0; i < 32; i++) {
                    const uint32_t r = lane / 4 + i / 2 % 2 * 8;
                    if (r < valid) store(y, to + size_t(r) * args.y_row + i / 4 * 8 + lane % 4 * 2 + i % 2, sums[i]);
                }
            }
        }
        if (there(turn + 1)) put(turn + 1);
    }
}
#endif

template <bool bf> __device__ __forceinline__ void tiles(const ssd_output_args &args, const CudaBindings &bindings, uint32_t dtypes)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    Shared &shared = *reinterpret_cast<Shared *>(tensor_memory);
    const uint32_t block = uniform(threadIdx.x / 128);
    if (block == 0) {
        give_registers<104>();
        walk<bf, 0>(args, bindings, dtypes, shared);
    } else if (block == 1) {
        give_registers<112>();
        walk<bf, 1>(args, bindings, dtypes, shared);
    } else if (block == 2) {
        take_registers<136>();
        walk<bf, 2>(args, bindings, dtypes, shared);
    } else {
        take_registers<160>();
        walk<bf, 3>(args, bindings, dtypes, shared);
    }
#endif
}

} // namespace ssd_output_tensor

KERNEL_FUNCTION_SHAPED(ssd_output, tensor_f16, 1)
{
    static_assert(sizeof(ssd_output_tensor::Shared) <= SHARED_ssd_output_tensor_f16, "shared memory");
    ssd_output_tensor::tiles<false>(args, bindings, dtypes);
}

KERNEL_FUNCTION_SHAPED(ssd_output, tensor_bf16, 1)
{
    static_assert(sizeof(ssd_output_tensor::Shared) <= SHARED_ssd_output_tensor_bf16, "shared memory");
    ssd_output_tensor::tiles<true>(args, bindings, dtypes);
}
