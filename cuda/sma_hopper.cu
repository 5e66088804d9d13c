// State-memory attention on the warpgroup products of sm_90a, for N 128, P 64 and normalised memories of 16 bits:
//   logit_t = unit_t sum_p en_tp (qn dh)_tp, v_t = c (factor dh), r_t = sum over memories of g_t v_t, online softmax.
// A block of three warpgroups stays on a multiprocessor and works on tiles of 128 tokens of one (sequence, head), longest
// first. Two warpgroups of 64 tokens compute. Their query, read and scaled-read operands stay in registers (3 x 32 a thread),
// so that all that the tensor cores read from shared memory is the memory's N x P tile, twice. The value
// product of a memory runs with the key product of the next one, and beside the softmax and the sums of the other warpgroup.
// Of the third warpgroup one warp starts the copies of memories, one prepares their factors, two copy the next tile's rows.
// Numbers: qn, en and dh are exact; c factor is rounded once (factor in two parts), relative to a power of two not below
// the largest factor of the memory, so that it stays in the range of f16.
// Shared memory: STAGES x (16 KiB memory, 512 bytes factors), rows of qn, c, en, 1.5 KiB of numbers a token, barriers.
#include "hopper.cuh"
#include "sma_tiles.cuh"

namespace attend {
namespace sma_hopper {

constexpr uint32_t N = 128, P = 64, STAGES = 8, MEMORY_BYTES = N * P * 2, FACTOR_BYTES = N * 4;
constexpr uint32_t LONG_PITCH = N * 2 + 16, SHORT_PITCH = P * 2 + 16; // bytes from row to row: no bank twice in 8 rows
constexpr uint32_t FACTORS_AT = STAGES * MEMORY_BYTES, QUERY_AT = FACTORS_AT + STAGES * FACTOR_BYTES,
                   READ_AT = QUERY_AT + TOKENS * LONG_PITCH, VERIFIER_AT = READ_AT + TOKENS * LONG_PITCH,
                   UNIT_AT = VERIFIER_AT + TOKENS * SHORT_PITCH, SEEN_AT = UNIT_AT + TOKENS * 8, TILE_AT = SEEN_AT + TOKENS * 4,
                   POWER_AT = TILE_AT + 32, BARRIERS_AT = POWER_AT + STAGES * 4, BYTES = BARRIERS_AT + (2 * STAGES + 2) * 8;
constexpr uint32_t COMPUTERS = 256, COPIERS = 64; // threads; a warp each for memories and for factors
constexpr uint32_t COMPUTER_REGISTERS = 240, OTHER_REGISTERS = 24; // 256 x 240 + 128 x 24 = 384 x 168, what a block gets

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// The i-th tile of this block; blocks take turns forwards and backwards through the tiles. False: no more.
__device__ __forceinline__ bool tile_of(const sma_args &args, const int32_t *seq, uint32_t i, Tile &tile)
{
    if (i * gridDim.x >= args.tiles) return false;
    tile = tile_at(args, seq, i * gridDim.x + (i & 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x));
    return true;
}

// Where things lie in shared memory, and the turns of the ring of stages.
struct Ring {
    uint32_t base, stage, parity; // of the phase that a consumer waits for next
    __device__ __forceinline__ explicit Ring(uint32_t at) : base(at), stage(0), parity(0) {}
    __device__ __forceinline__ void next()
    {
        if (++stage == STAGES) stage = 0, parity ^= 1;
    }
    __device__ __forceinline__ uint32_t memory() const { return base + stage * MEMORY_BYTES; }
    __device__ __forceinline__ uint32_t factors() const { return base + FACTORS_AT + stage * FACTOR_BYTES; }
    __device__ __forceinline__ uint32_t power() const { return base + POWER_AT + stage * 4; }
    __device__ __forceinline__ uint32_t full() const { return base + BARRIERS_AT + stage * 16; }
    __device__ __forceinline__ uint32_t empty() const { return full() + 8; }
};
__device__ __forceinline__ uint32_t rows_full(uint32_t base) { return base + BARRIERS_AT + STAGES * 16; }
__device__ __forceinline__ uint32_t rows_empty(uint32_t base) { return rows_full(base) + 8; }

// ---- The warps that fetch ----

__device__ __forceinline__ void fetch_memories(const sma_args &args, const int32_t *seq, const CudaMap &map, uint32_t base)
{
    Ring ring(base);
    Tile tile;
    for (uint32_t i = 0; tile_of(args, seq, i, tile); i++) {
        uint32_t row = args.dh_at / P + (tile.b * args.capacity * args.H + tile.h) * N;
#pragma unroll 1
        for (uint32_t m = 0; m < tile.memories; m++, row += args.H * N, ring.next()) {
            barrier_wait(ring.empty(), ring.parity ^ 1);
            barrier_arrive_bytes(ring.full(), MEMORY_BYTES);
            map_copy(ring.memory(), map, row, ring.full());
        }
    }
}

// factor / power as high and low parts in the order of the read operand: lane l makes those of rows 16 (l / 4) + 2 (l % 4)
// + {0, 1} and + {8, 9}.
template <uint32_t dtype>
__device__ __forceinline__ void fetch_factors(const sma_args &args, const int32_t *seq, const float *factors, uint32_t base)
{
    const uint32_t lane = threadIdx.x % 32;
    Ring ring(base);
    Tile tile;
    for (uint32_t i = 0; tile_of(args, seq, i, tile); i++) {
        const float *from = factors + (size_t(tile.b) * args.capacity * args.H + tile.h) * N + lane / 4 * 16 + lane % 4 * 2;
        const uint32_t step = args.H * N;
        float2 next[2] = {};
        const auto fetch = [&](uint32_t m) {
            if (m >= tile.memories) return;
            next[0] = *reinterpret_cast<const float2 *>(from);
            next[1] = *reinterpret_cast<const float2 *>(from + 8);
            from += step;
        };
        fetch(0);
#pragma unroll 1
        for (uint32_t m = 0; m < tile.memories; m++, ring.next()) {
            const float2 now[2] = {next[0], next[1]};
            fetch(m + 1);
            const float most = fmaxf(fmaxf(fabsf(now[0].x), fabsf(now[0].y)), fmaxf(fabsf(now[1].x), fabsf(now[1].y)));
            const float power = power_above(most), inverse = 1.0f / power;
            uint32_t parts[4];
#pragma unroll
            for (int k = 0; k < 2; k++) {
                const float x = now[k].x * inverse, y = now[k].y * inverse;
                parts[2 * k] = Pair<dtype>::round(x, y);
                const float2 high = Pair<dtype>::unpack(parts[2 * k]);
                parts[2 * k + 1] = Pair<dtype>::round(x - high.x, y - high.y);
            }
            barrier_wait(ring.empty(), ring.parity ^ 1);
            store_shared(ring.factors() + lane * 16, make_uint4(parts[0], parts[1], parts[2], parts[3]));
            if (lane == 0) store_shared(ring.power(), power);
            __syncwarp();
            if (lane == 0) barrier_arrive(ring.full());
        }
    }
}

__device__ __forceinline__ void copy_rows(const sma_args &args, const int32_t *seq, const uint16_t *qn, const uint16_t *en,
                                          const uint16_t *c, const float2 *units, uint32_t base)
{
    const uint32_t thread = threadIdx.x % COPIERS, lane = threadIdx.x % 32;
    Tile tile;
    for (uint32_t i = 0; tile_of(args, seq, i, tile); i++) {
        barrier_wait(rows_empty(base), i & 1 ^ 1);
        const uint32_t lines = tile.memories > 0 ? tile.lines : 0;
        const size_t row0 = size_t(tile.b) * args.L + tile.t0;
        const uint16_t *q_from = qn + (row0 * args.G + tile.g) * N, *e_from = en + (row0 * args.G + tile.g) * P,
                       *c_from = c + args.c_at + row0 * args.c_row + tile.g * N;
        const uint32_t q_row = args.G * N, e_row = args.G * P;
#pragma unroll 2
        for (uint32_t k = thread; k < lines * (N / 8); k += COPIERS)
            copy_16(base + QUERY_AT + k / 16 * LONG_PITCH + k % 16 * 16, q_from + size_t(k / 16) * q_row + k % 16 * 8);
#pragma unroll 2
        for (uint32_t k = thread; k < lines * (P / 8); k += COPIERS)
            copy_16(base + VERIFIER_AT + k / 8 * SHORT_PITCH + k % 8 * 16, e_from + size_t(k / 8) * e_row + k % 8 * 8);
#pragma unroll 2
        for (uint32_t k = thread; k < lines * (N / 8); k += COPIERS)
            copy_16(base + READ_AT + k / 16 * LONG_PITCH + k % 16 * 16, c_from + size_t(k / 16) * args.c_row + k % 16 * 8);
        for (uint32_t t = thread; t < TOKENS; t += COPIERS) {
            const bool there = t < lines;
            const float2 unit = there ? units[(row0 + t) * args.G + tile.g] : make_float2(0.0f, 0.0f);
            store_shared(base + UNIT_AT + t * 8, unit.x * log2e);
            store_shared(base + UNIT_AT + t * 8 + 4, unit.y);
            store_shared(base + SEEN_AT + t * 4, there ? memories_before(args, tile.first_position + t) : ~0u);
        }
        if (thread == 0) {
            store_shared(base + TILE_AT, make_uint4(tile.t0, tile.h, tile.b, tile.lines));
            store_shared(base + TILE_AT + 16, tile.memories);
        }
        copies_arrive(rows_full(base));
        __syncwarp();
        if (lane == 0) barrier_arrive(rows_full(base));
    }
}

// ---- The computing warpgroups ----

template <uint32_t dtype>
__device__ __forceinline__ void start_product(float (&d)[32], const uint32_t (&a)[32], uint32_t memory)
{
    const uint64_t b = product_rows(memory);
    products_hold(d);
    products_fence();
#pragma unroll
    for (int j = 0; j < 8; j++) product_64<dtype>(d, a + 4 * j, b + j * 128, j > 0);
    products_commit();
}

template <uint32_t dtype>
__device__ __forceinline__ void scale_read(uint32_t (&scaled)[32], const uint32_t (&read)[32], uint32_t factors)
{
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const uint4 factor = load_shared(factors + j * 64 + threadIdx.x % 4 * 16);
        scaled[4 * j] = Pair<dtype>::scale(read[4 * j], factor.x, factor.y);
        scaled[4 * j + 1] = Pair<dtype>::scale(read[4 * j + 1], factor.x, factor.y);
        scaled[4 * j + 2] = Pair<dtype>::scale(read[4 * j + 2], factor.z, factor.w);
        scaled[4 * j + 3] = Pair<dtype>::scale(read[4 * j + 3], factor.z, factor.w);
    }
}

template <uint32_t dtype>
__device__ __forceinline__ void compute(const sma_args &args, const View &r, float *lse, uint32_t base)
{
    const uint32_t lane = threadIdx.x % 32, line0 = threadIdx.x / 32 * 16; // of the tile
    Ring ring(base);
    for (uint32_t i = 0; i * gridDim.x < args.tiles; i++) {
        Tile tile;
        Rows rows = {};
        float result[32] = {};
        Softmax softmax;
        barrier_wait(rows_full(base), i & 1);
        const uint4 place = load_shared(base + TILE_AT);
        tile.t0 = place.x;
        tile.h = place.y;
        tile.b = place.z;
        tile.lines = place.w;
        tile.memories = load_shared_word(base + TILE_AT + 16);
        if (tile.memories > 0) {
            uint32_t query[32], read[32], scaled[32], verifier[16];
            float keyed[32], value[32];
            const uint32_t in_rows = (line0 + lane % 16) * LONG_PITCH + lane / 16 * 16;
#pragma unroll
            for (int j = 0; j < 8; j++) load_matrices(query + 4 * j, base + QUERY_AT + in_rows + j * 32);
            barrier_wait(ring.full(), ring.parity);
            start_product<dtype>(keyed, query, ring.memory());
#pragma unroll
            for (int j = 0; j < 8; j++) load_matrices(read + 4 * j, base + READ_AT + in_rows + j * 32);
#pragma unroll
            for (int j = 0; j < 4; j++)
                load_matrices(verifier + 4 * j, base + VERIFIER_AT + (line0 + j / 2 * 8 + lane % 8) * SHORT_PITCH +
                                                    j % 2 * 64 + lane / 8 * 16);
#pragma unroll
            for (int k = 0; k < 2; k++) {
                const uint32_t t = line0 + lane / 4 + 8 * k;
                rows.unit[k] = load_shared_float(base + UNIT_AT + t * 8);
                rows.result_unit[k] = load_shared_float(base + UNIT_AT + t * 8 + 4);
                rows.seen[k] = load_shared_word(base + SEEN_AT + t * 4);
            }
            rows.compare();
            __syncwarp();
            if (lane == 0) barrier_arrive(rows_empty(base));
            scale_read<dtype>(scaled, read, ring.factors());
            products_wait<0>();
            products_hold(keyed);
            float part[4] = {}, last[2];
            add_logits<dtype>(part, keyed, verifier);
            take_logits(part, rows, 0, load_shared_float(ring.power()), last, softmax, result);
            for (uint32_t m = 1; m < tile.memories; m++) {
                // The key product of memory m and the value product of the one before.
                const Ring before = ring;
                ring.next();
                barrier_wait(ring.full(), ring.parity);
                start_product<dtype>(keyed, query, ring.memory());
                start_product<dtype>(value, scaled, before.memory());
                products_wait<1>();
                products_hold(keyed);
                for (int k = 0; k < 4; k++) part[k] = 0.0f;
                add_logits<dtype>(part, keyed, verifier);
                take_logits(part, rows, m, load_shared_float(ring.power()), last, softmax, result);
                products_wait<0>();
                products_hold(value);
                if (lane == 0) barrier_arrive(before.empty());
                scale_read<dtype>(scaled, read, ring.factors());
                take_value(result, value, last, rows, m - 1);
            }
            start_product<dtype>(value, scaled, ring.memory());
            products_wait<0>();
            products_hold(value);
            if (lane == 0) barrier_arrive(ring.empty());
            ring.next();
            take_value(result, value, softmax.weight, rows, tile.memories - 1);
        } else {
            __syncwarp();
            if (lane == 0) barrier_arrive(rows_empty(base));
        }
        finish(args, tile, line0, rows, softmax, result, 0, P, r, lse);
    }
}

#endif

template <uint32_t dtype>
__device__ __forceinline__ void run(const sma_args &args, const CudaBindings &bindings, uint32_t dtypes, const CudaMap &map)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ __align__(1024) uint8_t shared[];
    const uint32_t base = shared_address(shared), warp = threadIdx.x / 32;
    if (threadIdx.x == 0) {
        for (Ring ring(base); ring.parity == 0; ring.next()) {
            barrier_init(ring.full(), 2);
            barrier_init(ring.empty(), COMPUTERS / 32);
        }
        barrier_init(rows_full(base), COPIERS + COPIERS / 32);
        barrier_init(rows_empty(base), COMPUTERS / 32);
        barriers_visible();
    }
    __syncthreads();
    const int32_t *seq = INTS(sma, seq) + args.seq_at;
    if (threadIdx.x < COMPUTERS) {
        registers_take<COMPUTER_REGISTERS>();
        compute<dtype>(args, VIEW(sma, r), FLOATS(sma, lse), base);
    } else {
        registers_give<OTHER_REGISTERS>();
        const auto halves = [&](uint32_t binding) { return reinterpret_cast<const uint16_t *>(bindings.address[binding]); };
        if (threadIdx.x == COMPUTERS) fetch_memories(args, seq, map, base);
        else if (warp == COMPUTERS / 32 + 1) fetch_factors<dtype>(args, seq, FLOATS(sma, factor) + args.factor_at, base);
        else if (warp > COMPUTERS / 32 + 1)
            copy_rows(args, seq, halves(BINDING_sma_qn), halves(BINDING_sma_en), halves(BINDING_sma_c),
                      reinterpret_cast<const float2 *>(FLOATS(sma, unit)), base);
    }
#endif
}

} // namespace sma_hopper
} // namespace attend

static_assert(attend::sma_hopper::BYTES <= SHARED_sma_hopper_bf16 && attend::sma_hopper::BYTES <= SHARED_sma_hopper_f16,
              "kernels.def");
static_assert(attend::TOKENS == TILE0_sma_hopper_bf16 && attend::TOKENS == TILE0_sma_hopper_f16, "kernels.def");
KERNEL_FUNCTION_MAPPED(sma, hopper_bf16, 1) { attend::sma_hopper::run<DTYPE_BF16>(args, bindings, dtypes, map); }
KERNEL_FUNCTION_MAPPED(sma, hopper_f16, 1) { attend::sma_hopper::run<DTYPE_F16>(args, bindings, dtypes, map); }
