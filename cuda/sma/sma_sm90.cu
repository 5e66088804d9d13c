// State-memory attention on the warpgroup products of sm_90a, for N 128, P 64 and normalised memories of 16 bits:
//   logit_t = unit_t sum_p en_tp (qn dh)_tp, v_t = c (factor dh), r_t = sum over memories of g_t v_t, online softmax.
// A block of three warpgroups stays on a multiprocessor and works on units, longest first: 128 tokens of one sequence with a
// few heads of one group, which share the rows of qn, en and c. Two warpgroups of 64 tokens compute. Their query, read
// and scaled-read operands stay in registers (3 x 32 a thread), so that all that the tensor cores read from shared memory is
// the memory's N x P tile, twice. The value product of a memory runs with the key product of the next one, also from head to
// head, and beside the softmax and the sums of the other warpgroup.
// Of the third warpgroup one warp starts the copies of memories, one prepares their factors, two copy the next unit's rows.
// What a computing thread does between its products is what the time goes to (H200, cycles a memory: 1024 for the products of
// both warpgroups alone, 1166 in all, 1450 with 60 instructions more): hence one 16-bit product for c factor, en kept as f32.
// Numbers: qn, en and dh are exact; factor and then c factor are rounded to 16 bits, relative to a power of two not below
// the largest factor of the memory, so that they stay in the range of f16. The error is 1.7 times that of one rounding of r.
// Shared memory: STAGES x (16 KiB memory, 320 bytes factors), rows of qn, c, en, their numbers, barriers, factors on their way.
#include "lib/sm90.cuh"
#include "tiles.cuh"

namespace attend {
namespace sma_sm90 {

constexpr uint32_t N = 128, P = 64, STAGES = 8, MEMORY_BYTES = N * P * 2;
constexpr uint32_t LONG_PITCH = N * 2 + 16, SHORT_PITCH = P * 2 + 16; // bytes from row to row: no bank twice in 8 rows
constexpr uint32_t FACTOR_PITCH = N / 2 + 16, FACTOR_BYTES = 4 * FACTOR_PITCH; // the same for the four lanes of a row
constexpr uint32_t AHEAD = 8, RAW_BYTES = N * 4; // memories whose factors are on their way
constexpr uint32_t SEEN_AT = TOKENS * 8, NUMBERS_BYTES = SEEN_AT + TOKENS * 4; // within the numbers of a unit's rows
constexpr uint32_t FACTORS_AT = STAGES * MEMORY_BYTES, QUERY_AT = FACTORS_AT + STAGES * FACTOR_BYTES,
                   READ_AT = QUERY_AT + TOKENS * LONG_PITCH, VERIFIER_AT = READ_AT + TOKENS * LONG_PITCH,
                   NUMBERS_AT = VERIFIER_AT + TOKENS * SHORT_PITCH, PLACE_AT = NUMBERS_AT + 2 * NUMBERS_BYTES,
                   POWER_AT = PLACE_AT + 32, BARRIERS_AT = POWER_AT + STAGES * 4,
                   RAW_AT = BARRIERS_AT + (2 * STAGES + 4) * 8, BYTES = RAW_AT + AHEAD * RAW_BYTES;
constexpr uint32_t COMPUTERS = 256, COPIERS = 64; // threads; a warp each for memories and for factors
constexpr uint32_t COMPUTER_REGISTERS = 240, OTHER_REGISTERS = 24; // 256 x 240 + 128 x 24 = 384 x 168, what a block gets
constexpr uint32_t MOST_HEADS = 4, FEWEST_UNITS = 5; // of a unit; of a block, unless a unit has one head

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

struct Unit {
    Tile tile; // of the first head
    uint32_t heads;
};

// The units of this block.
class Units {
    uint32_t heads, of_group, of_row; // of a unit; units of a group, and of all heads and sequences, on one tile of tokens
public:
    uint32_t count; // of all blocks
    __device__ __forceinline__ explicit Units(const sma_args &args)
    {
        const uint32_t in_group = args.H / args.G;
        heads = max(min(min(args.tiles / (gridDim.x * FEWEST_UNITS), MOST_HEADS), in_group), 1u);
        of_group = ceil_div(in_group, heads);
        of_row = of_group * args.G * args.B;
        count = args.tiles / (args.H * args.B) * of_row;
    }
    // The i-th one; blocks take turns forwards and backwards from long to short. False: no more. Empty past the last.
    __device__ __forceinline__ bool take(const sma_args &args, const int32_t *seq, uint32_t i, Unit &unit) const
    {
        if (i * gridDim.x >= count) return false;
        const uint32_t number = i * gridDim.x + (i & 1 ? gridDim.x - 1 - blockIdx.x : blockIdx.x), in_row = number % of_row;
        const uint32_t in_group = args.H / args.G, group = in_row / of_group, first = in_row % of_group * heads;
        const uint32_t t0 = number < count ? (count / of_row - 1 - number / of_row) * TOKENS : args.L;
        unit.tile = tile_of(args, seq, t0, group % args.G * in_group + first, group / args.G);
        unit.heads = min(heads, in_group - first);
        return true;
    }
};

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
// Of the rows of the i-th unit: each its two factors, then each how many memories it sees. Valid until the unit is done.
__device__ __forceinline__ uint32_t numbers_of(uint32_t base, uint32_t i) { return base + NUMBERS_AT + i % 2 * NUMBERS_BYTES; }
__device__ __forceinline__ uint32_t rows_full(uint32_t base) { return base + BARRIERS_AT + STAGES * 16; }
__device__ __forceinline__ uint32_t rows_empty(uint32_t base) { return rows_full(base) + 8; }
__device__ __forceinline__ uint32_t first_began(uint32_t base) { return rows_full(base) + 16; }

// ---- The warps that fetch ----

__device__ __forceinline__ void fetch_memories(const sma_args &args, const int32_t *seq, const CudaMap &map, uint32_t base)
{
    const Units units(args);
    Ring ring(base);
    Unit unit;
    for (uint32_t i = 0; units.take(args, seq, i, unit); i++) {
        for (uint32_t h = unit.tile.h; h < unit.tile.h + unit.heads; h++) {
            uint32_t row = args.dh_at / P + (unit.tile.b * args.capacity * args.H + h) * N;
#pragma unroll 1
            for (uint32_t m = 0; m < unit.tile.memories; m++, row += args.H * N, ring.next()) {
                barrier_wait(ring.empty(), ring.parity ^ 1);
                barrier_arrive_bytes(ring.full(), MEMORY_BYTES);
                map_copy(ring.memory(), map, row, ring.full());
            }
        }
    }
}

// factor / power in the order of the read operand: lane l rounds those of rows 16 (l / 4) + 2 (l % 4) + {0, 1} and + {8, 9},
// which it copied itself.
template <uint32_t dtype>
__device__ __forceinline__ void fetch_factors(const sma_args &args, const int32_t *seq, const float *factors, uint32_t base)
{
    const uint32_t lane = threadIdx.x % 32, raw = base + RAW_AT + lane * 16;
    const Units units(args);
    Ring ring(base);
    Unit unit;
    for (uint32_t i = 0; units.take(args, seq, i, unit); i++) {
        const Tile &tile = unit.tile;
        const float *from = factors + (size_t(tile.b) * args.capacity * args.H + tile.h) * N + lane / 4 * 16 + lane % 4 * 2;
        const uint32_t all = tile.memories * unit.heads, step = args.H * N;
        uint32_t in_head = 0;
        const auto fetch = [&](uint32_t m) {
            if (m < all) {
                copy_8(raw + m % AHEAD * RAW_BYTES, from);
                copy_8(raw + m % AHEAD * RAW_BYTES + 8, from + 8);
                from += step;
                if (++in_head == tile.memories) {
                    from += N - size_t(step) * tile.memories;
                    in_head = 0;
                }
            }
            copies_commit();
        };
#pragma unroll 1
        for (uint32_t m = 0; m < AHEAD - 1; m++) fetch(m);
#pragma unroll 1
        for (uint32_t m = 0; m < all; m++, ring.next()) {
            fetch(m + AHEAD - 1);
            copies_wait_but<AHEAD - 1>();
            const uint4 bits = load_shared(raw + m % AHEAD * RAW_BYTES);
            const float v[4] = {__uint_as_float(bits.x), __uint_as_float(bits.y), __uint_as_float(bits.z),
                                __uint_as_float(bits.w)};
            const float most = fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3])));
            const float power = power_above(most), inverse = 1.0f / power;
            barrier_wait(ring.empty(), ring.parity ^ 1);
            const uint32_t to = ring.factors() + lane % 4 * FACTOR_PITCH + lane / 4 * 8;
            store_shared(to, Pair<dtype>::round(v[0] * inverse, v[1] * inverse));
            store_shared(to + 4, Pair<dtype>::round(v[2] * inverse, v[3] * inverse));
            if (lane == 0) store_shared(ring.power(), power);
            __syncwarp();
            if (lane == 0) barrier_arrive(ring.full());
        }
    }
}

__device__ __forceinline__ void copy_rows(const sma_args &args, const int32_t *seq, const uint16_t *qn, const uint16_t *en,
                                          const uint16_t *c, const float2 *factors, uint32_t base)
{
    const uint32_t thread = threadIdx.x % COPIERS, lane = threadIdx.x % 32;
    const Units units(args);
    Unit unit;
    for (uint32_t i = 0; units.take(args, seq, i, unit); i++) {
        const Tile &tile = unit.tile;
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
            const float2 factor = there ? factors[(row0 + t) * args.G + tile.g] : make_float2(0.0f, 0.0f);
            const uint32_t numbers = numbers_of(base, i);
            store_shared(numbers + t * 8, factor.x * log2e);
            store_shared(numbers + t * 8 + 4, factor.y);
            store_shared(numbers + SEEN_AT + t * 4, there ? memories_before(args, tile.first_position + t) : ~0u);
        }
        if (thread == 0) {
            store_shared(base + PLACE_AT, make_uint4(tile.t0, tile.h, tile.b, tile.lines));
            store_shared(base + PLACE_AT + 16, tile.memories);
            store_shared(base + PLACE_AT + 20, unit.heads);
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
    for (int j = 0; j < 8; j++) product_64<dtype>(d, a + 4 * j, product_rows_after(b, j * 16), j > 0);
    products_commit();
}

// What stays in the registers of a thread, all through a unit or from memory to memory. With the products' and the result, 224
// of 240: after a change see that nothing is spilled between the products (no LDL, no R2UR beside HGMMA).
template <uint32_t dtype> struct Held {
    uint32_t query[32], read[32], scaled[32];
    float verifier[32]; // its elements of the first row, then of the second, as f32: 32 instructions a memory less
    uint32_t factors_at;

    __device__ __forceinline__ Held()
    {
        factors_at = threadIdx.x % 4 * FACTOR_PITCH;
        asm volatile("" : "+r"(factors_at)); // not to be computed again
    }
    __device__ __forceinline__ void load_query(uint32_t base, uint32_t line0)
    {
#pragma unroll
        for (int j = 0; j < 8; j++) load_matrices(query + 4 * j, base + QUERY_AT + in_rows(line0) + j * 32);
    }
    __device__ __forceinline__ void load_others(uint32_t base, uint32_t line0)
    {
#pragma unroll
        for (int j = 0; j < 8; j++) load_matrices(read + 4 * j, base + READ_AT + in_rows(line0) + j * 32);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t pairs[4];
            load_matrices(pairs, base + VERIFIER_AT + (line0 + j / 2 * 8 + threadIdx.x % 8) * SHORT_PITCH + j % 2 * 64 +
                                     threadIdx.x % 32 / 8 * 16);
#pragma unroll
            for (int k = 0; k < 4; k++) {
                const float2 e = Pair<dtype>::unpack(pairs[k]);
                verifier[8 * j + 2 * k] = e.x;
                verifier[8 * j + 2 * k + 1] = e.y;
            }
        }
#pragma unroll
        for (int j = 0; j < 32; j++) asm volatile("" : "+f"(verifier[j])); // not to be unpacked again
    }
    static __device__ __forceinline__ uint32_t in_rows(uint32_t line0)
    {
        return (line0 + threadIdx.x % 16) * LONG_PITCH + threadIdx.x % 32 / 16 * 16;
    }
    __device__ __forceinline__ void add_logits(float (&part)[4], const float (&keyed)[32]) const
    {
#pragma unroll
        for (int k = 0; k < 4; k++) part[k] = 0.0f;
#pragma unroll
        for (int j = 0; j < 32; j++) part[j % 4] = fmaf(verifier[j % 4 / 2 * 16 + j / 4 * 2 + j % 2], keyed[j], part[j % 4]);
    }
    __device__ __forceinline__ void load_factors(uint4 (&factors)[4], const Ring &ring) const
    {
#pragma unroll
        for (int j = 0; j < 4; j++) factors[j] = load_shared(ring.factors() + factors_at + j * 16);
    }
    __device__ __forceinline__ void scale(const uint4 (&factors)[4])
    {
#pragma unroll
        for (int j = 0; j < 32; j++) {
            const uint4 &four = factors[j / 8];
            scaled[j] = Pair<dtype>::multiply(read[j], j % 8 < 2 ? four.x : j % 8 < 4 ? four.y : j % 8 < 6 ? four.z : four.w);
        }
    }
};

// Four words of each of four neighbouring lanes, turned: lane l of them gets word l of all.
__device__ __forceinline__ void turn(uint32_t *word)
{
    const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
#pragma unroll
    for (int j = 0; j < 4; j += 2) {
        const uint32_t other = __shfl_xor_sync(0xffffffffu, odd ? word[j] : word[j + 1], 1);
        word[j] = odd ? other : word[j];
        word[j + 1] = odd ? word[j + 1] : other;
    }
#pragma unroll
    for (int j = 0; j < 2; j++) {
        const uint32_t other = __shfl_xor_sync(0xffffffffu, high ? word[j] : word[j + 2], 2);
        word[j] = high ? other : word[j];
        word[j + 2] = high ? word[j + 2] : other;
    }
}

// As finish, where nothing is to be merged and r has the type of the operands: 16 bytes a store.
template <uint32_t dtype>
__device__ __forceinline__ void finish_pairs(const sma_args &args, const Tile &tile, uint32_t line0, const Rows &rows,
                                             const Softmax &softmax, const float (&result)[32], const View &r, float *lse)
{
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const uint32_t t = line0 + lane / 4 + 8 * k;
        const size_t row = size_t(tile.b) * args.L + tile.t0 + t;
        const bool any = softmax.den[k] != 0.0f;
        const float share = any ? __fdividef(rows.result_unit[k], softmax.den[k]) : 0.0f;
        uint32_t word[8];
#pragma unroll
        for (int j = 0; j < 8; j++)
            word[j] = Pair<dtype>::round(result[4 * j + 2 * k] * share, result[4 * j + 2 * k + 1] * share);
        turn(word);
        turn(word + 4);
        if (t >= tile.lines) continue;
        if (lane % 4 == 0)
            lse[args.lse_at + row * args.H + tile.h] =
                any ? (softmax.top[k] + __log2f(softmax.den[k])) * ln2 : __uint_as_float(0xff800000u);
        uint16_t *to = reinterpret_cast<uint16_t *>(r.base) + args.r_at + row * args.r_row + tile.h * P;
        reinterpret_cast<uint4 *>(to)[lane % 4] = make_uint4(word[0], word[1], word[2], word[3]);
        reinterpret_cast<uint4 *>(to)[lane % 4 + 4] = make_uint4(word[4], word[5], word[6], word[7]);
    }
}

template <uint32_t dtype>
__device__ __forceinline__ void compute(const sma_args &args, const View &r, float *lse, uint32_t base)
{
    const uint32_t lane = threadIdx.x % 32, line0 = threadIdx.x / 32 * 16; // of the tile
    const uint32_t units = Units(args).count;
    const bool is_first = threadIdx.x < COMPUTERS / 2; // warpgroup
    const bool plain = !(args.flags & IS_MERGE) && r.dtype == dtype;
    Held<dtype> held;
    Ring ring(base);
    for (uint32_t i = 0; i * gridDim.x < units; i++) {
        Tile tile;
        Rows rows = {};
        Softmax softmax;
        float result[32] = {};
        barrier_wait(rows_full(base), i & 1);
        const uint4 place = load_shared(base + PLACE_AT);
        tile.t0 = place.x;
        tile.h = place.y;
        tile.b = place.z;
        tile.lines = place.w;
        tile.memories = load_shared_word(base + PLACE_AT + 16);
        uint32_t heads = load_shared_word(base + PLACE_AT + 20);
        if (tile.memories == 0) {
            __syncwarp();
            if (is_first && lane == 0) barrier_arrive(first_began(base));
            if (lane == 0) barrier_arrive(rows_empty(base));
            for (; heads > 0; heads--, tile.h++) finish(args, tile, line0, rows, softmax, result, 0, P, r, lse);
            continue;
        }
        float keyed[32], value[32], part[4], logit[2], last[2];
        uint4 factors[4];
        held.load_query(base, line0);
        // The second warpgroup begins later than the first, so that one multiplies while the other writes a head's results.
        barrier_wait(first_began(base), i % 2 ^ is_first);
        barrier_wait(ring.full(), ring.parity);
        start_product<dtype>(keyed, held.query, ring.memory());
        held.load_others(base, line0);
        // What is seldom used is read where it is used.
        const uint32_t numbers = numbers_of(base, i) + (line0 + lane / 4) * 8,
                       seen = numbers_of(base, i) + SEEN_AT + (line0 + lane / 4) * 4;
        const auto load_seen = [&] {
            for (int k = 0; k < 2; k++) rows.seen[k] = load_shared_word(seen + 32 * k);
        };
        for (int k = 0; k < 2; k++) rows.unit[k] = load_shared_float(numbers + 64 * k);
        load_seen();
        rows.compare();
        __syncwarp();
        if (lane == 0) barrier_arrive(rows_empty(base));
        held.load_factors(factors, ring);
        held.scale(factors);
        products_wait<0>();
        products_hold(keyed);
        if (is_first && lane == 0) barrier_arrive(first_began(base));
        held.add_logits(part, keyed);
        sum_logits(logit, part, rows, 0, true);
        softmax = softmax_of(logit, load_shared_float(ring.power()));
        // The key product of the next memory with the value product of the one before; its logits while the latter runs.
        const auto go_on = [&](const Ring &before) {
            barrier_wait(ring.full(), ring.parity);
            start_product<dtype>(keyed, held.query, ring.memory());
            start_product<dtype>(value, held.scaled, before.memory());
            products_wait<1>();
            products_hold(keyed);
            held.add_logits(part, keyed);
            held.load_factors(factors, ring);
        };
        for (; heads > 0; heads--, tile.h++) {
            uint32_t m = 1;
#pragma unroll
            for (int masked = 0; masked < 2; masked++) {
                const uint32_t end = masked ? tile.memories : min(rows.all, tile.memories);
                if (masked) load_seen();
#pragma unroll 1
                for (; m < end; m++) {
                    const Ring before = ring;
                    ring.next();
                    go_on(before);
                    sum_logits(logit, part, rows, m, masked);
                    take_logits(softmax, logit, load_shared_float(ring.power()), last, result);
                    products_wait<0>();
                    products_hold(value);
                    if (lane == 0) barrier_arrive(before.empty());
                    held.scale(factors);
                    take_value(result, value, last, rows, m - 1, masked);
                }
            }
            const Ring before = ring;
            const Softmax full = softmax;
            ring.next();
            if (heads > 1) { // the first memory of the next head
                go_on(before);
                load_seen();
                sum_logits(logit, part, rows, 0, true);
                softmax = softmax_of(logit, load_shared_float(ring.power()));
                products_wait<0>();
                products_hold(value);
                held.scale(factors);
            } else {
                start_product<dtype>(value, held.scaled, before.memory());
                products_wait<0>();
                products_hold(value);
            }
            if (lane == 0) barrier_arrive(before.empty());
            load_seen();
            take_value(result, value, full.weight, rows, tile.memories - 1, true);
            for (int k = 0; k < 2; k++) rows.result_unit[k] = load_shared_float(numbers + 64 * k + 4);
            if (plain) finish_pairs<dtype>(args, tile, line0, rows, full, result, r, lse);
            else finish(args, tile, line0, rows, full, result, 0, P, r, lse);
#pragma unroll
            for (int j = 0; j < 32; j++) result[j] = 0.0f;
        }
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
        barrier_init(first_began(base), COMPUTERS / 64);
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

} // namespace sma_sm90
} // namespace attend

static_assert(attend::sma_sm90::BYTES <= SHARED_sma_sm90_bf16 && attend::sma_sm90::BYTES <= SHARED_sma_sm90_f16,
              "kernels.def");
static_assert(attend::TOKENS == TILE0_sma_sm90_bf16 && attend::TOKENS == TILE0_sma_sm90_f16, "kernels.def");
KERNEL_FUNCTION_MAPPED(sma, sm90_bf16, 1) { attend::sma_sm90::run<DTYPE_BF16>(args, bindings, dtypes, map); }
KERNEL_FUNCTION_MAPPED(sma, sm90_f16, 1) { attend::sma_sm90::run<DTYPE_F16>(args, bindings, dtypes, map); }
