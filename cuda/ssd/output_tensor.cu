// ssd_output for N = 128, P = 64 and chunks of at most 256 tokens, 16-bit operands of one type, by warpgroup products.
//
// A block walks a run of neighbouring tiles (one head of one chunk each). Each of four warpgroups has 64 tokens of the chunk
// and keeps their fragments of c and the products c.b among them in registers; the products with earlier blocks of 64 lie in
// shared memory, so that all warpgroups run one program: four, with all products in registers, took 153 KiB of code, and
// waiting for instructions was what took longest. x and hin of a head are on their way to one of two stages of shared memory
// one turn ahead, and weighted there: hin where it is normalised, times its scales; b passes through a stage that holds nothing.
//
// The products are those of ssd_chunk.cuh. f16: steps and hin are divided by powers of two: above the largest step of the chunk (and
// 2^-16 d), so that no x grows, and below the largest scale of the head.
//
// Shared memory: two stages of x, weighted x and hin 144 KiB; products of c and b 48 KiB; vectors 18 KiB.
#include "chunk.cuh"
#include "segment.cuh"

namespace ssd_output_tensor {

using namespace ssd_chunk;

constexpr uint32_t threads = 512;
constexpr uint32_t rows_apart = threads / 8, x_parts = tokens / rows_apart, hin_parts = N / rows_apart;
struct Stage { // 72 KiB, of which b takes 64 where a chunk begins
    alignas(1024) char x[tokens * tile_row];
    char weighted[(tokens - 64) * tile_row];
    char hin[N * tile_row];
};
// One head of one chunk; head UINT32_MAX: none. left: heads of the group in this chunk from here on.
struct Turn {
    uint32_t head, left, b, group, begin, length;
    uint32_t token, row; // the first token among all rows of x, the first row of hin
};
struct Shared {
    alignas(1024) Stage stage[2];
    char cb[blocks * (blocks - 1) / 2][64 * tile_row]; // c.b of tokens of block i with block j < i at i (i - 1) / 2 + j
    Vectors vectors[3];
    float2 unit[2]; // of a stage: of steps, of hin
    Turn turns[8];
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// threadIdx.x through a volatile asm: addresses computed from it are recomputed each turn. Held in registers over a turn, they would push others
// to local memory, 250 cycles away behind all the copies.
__device__ __forceinline__ uint32_t thread_now()
{
    uint32_t thread = threadIdx.x;
    asm volatile("" : "+r"(thread));
    return thread;
}

#endif

template <bool bf>
__device__ __forceinline__ void tiles(const ssd_output_args &args, const CudaBindings &bindings, uint32_t dtypes)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    Shared &shared = *reinterpret_cast<Shared *>(tensor_memory);
    const uint16_t *x = reinterpret_cast<const uint16_t *>(bindings.address[BINDING_ssd_output_x]) + args.x_at;
    const uint16_t *b = reinterpret_cast<const uint16_t *>(bindings.address[BINDING_ssd_output_b]) + args.b_at;
    const uint16_t *lines = reinterpret_cast<const uint16_t *>(bindings.address[BINDING_ssd_output_c]) + args.c_at;
    const uint16_t *hin = reinterpret_cast<const uint16_t *>(bindings.address[BINDING_ssd_output_hin]) + args.hin_at;
    const float *scale = FLOATS(ssd_output, hin_scale) + args.hin_scale_at, *cum = FLOATS(ssd_output, cum);
    const View d = VIEW(ssd_output, d), y = VIEW(ssd_output, y);
    const bool normalised = !bf || args.flags & HAS_HIN_SCALE; // hin
    const uint32_t block = uniform(threadIdx.x / 128), warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    // The first warp lists the turns, three ahead.
    const Run run = run_of(args.tiles, args.H / args.G);
    uint32_t tile_listed = run.first;
    const auto list = [&](uint32_t turn) {
        const uint32_t heads = args.H / args.G, end = run.end;
        Turn listed = {};
        if (turn > 0) listed = shared.turns[(turn - 1) % 8];
        if (listed.left > 1) {
            listed.left--;
            listed.head++;
            listed.row += N;
        } else {
            listed.head = UINT32_MAX;
            listed.left = 0;
            while (tile_listed < end && listed.left == 0) {
                const uint32_t first = tile_listed % heads, left = min(heads - first, end - tile_listed);
                const uint32_t chunks = quotient(tile_listed / heads, args.G);
                listed.group = tile_listed / heads - chunks * args.G;
                listed.b = quotient(chunks, args.M);
                const uint32_t j = chunks - listed.b * args.M;
                const Piece pieces = piece_of(INTS(ssd_output, seq) + args.seq_at, args.flags, args.L, listed.b);
                const Chunk chunk = chunk_of(pieces, args.S, j);
                listed.begin = chunk.begin;
                listed.length = chunk.length();
                if (listed.length > 0) {
                    listed.left = left;
                    listed.head = first + listed.group * heads;
                    listed.token = listed.b * args.L + listed.begin;
                    listed.row = ((listed.b * args.M + j) * args.H + listed.head) * N;
                }
                tile_listed += left;
            }
        }
        __syncwarp();
        if (lane == 0) shared.turns[turn % 8] = listed;
        __syncwarp();
    };
    const auto there = [&](uint32_t turn) { return shared.turns[turn % 8].head != UINT32_MAX; };

    const auto fetch_x = [&](const Turn &turn, uint32_t number) {
        const uint16_t *from = x + uint64_t(turn.token) * args.x_row + turn.head * P;
        copy_tile<tokens, threads>(shared_address(shared.stage[number % 2].x), from, args.x_row, turn.length, thread_now());
        copies_commit();
    };
    float scales[hin_parts], largest = 0.0f;
    const auto fetch_hin = [&](const Turn &turn, uint32_t number) {
        const uint32_t me = thread_now();
        copy_tile<N, threads>(shared_address(shared.stage[number % 2].hin), hin + uint64_t(turn.row) * P, P, N, me);
        copies_commit();
#pragma unroll
        for (uint32_t i = 0; i < hin_parts; i++)
            if (normalised) scales[i] = (scale + turn.row)[me / 8 + i * rows_apart];
        if (!bf) {
            const float4 four = *reinterpret_cast<const float4 *>(scale + turn.row + 4 * (me % 32));
            largest = fmaxf(fmaxf(four.x, four.y), fmaxf(four.z, four.w));
        }
    };
    struct Cum {
        float2 mine, far; // of a token and of the last of the 64 that it is one of
        float step;
    };
    const auto fetch_cum = [&](const Turn &turn) {
        Cum to = {};
        const uint32_t me = thread_now();
        if (me == tokens && args.flags & HAS_D) to.step = load(d, args.d_at + size_t(turn.head));
        if (me >= tokens) return to;
        const float *first = cum + ((size_t(turn.b) * args.H + turn.head) * args.L + turn.begin) * CUM_STRIDE;
        const float *from = first + min(me, turn.length - 1) * CUM_STRIDE;
        const float *end_of = first + min(me | 63u, turn.length - 1) * CUM_STRIDE;
        to.mine = make_float2(from[0], from[1]);
        to.far = make_float2(end_of[0], end_of[1]);
        to.step = me < turn.length ? from[2] : 0.0f;
        return to;
    };
    // What the two first warpgroups have of cum, as vectors.
    const auto weigh = [&](const Cum &of, uint32_t number) {
        const uint32_t me = thread_now(), lane = me % 32;
        Vectors &v = shared.vectors[number % 3];
        if (me == tokens) v.skip = of.step;
        if (me >= tokens) return;
        const float2 near = make_float2(__shfl_sync(0xffffffffu, of.mine.x, lane | 15u),
                                        __shfl_sync(0xffffffffu, of.mine.y, lane | 15u));
        const float weight = of.step * decay_between(of.far, of.mine);
        v.cum[me] = of.mine;
        v.near[me] = of.step * decay_between(near, of.mine);
        v.far[me] = factors_of<bf>(weight, weight);
        v.step[me] = of.step;
    };
    const auto put = [&](uint32_t number) {
        const Vectors &v = shared.vectors[number % 3];
        Stage &to = shared.stage[number % 2];
        const uint32_t row = thread_now() / 8, piece = thread_now() % 8;
        float2 unit = make_float2(1.0f, 1.0f);
        if (!bf) {
            const float4 low = *reinterpret_cast<const float4 *>(v.step + 8 * lane);
            const float4 high = *reinterpret_cast<const float4 *>(v.step + 8 * lane + 4);
            const float lows = fmaxf(fmaxf(fabsf(low.x), fabsf(low.y)), fmaxf(fabsf(low.z), fabsf(low.w)));
            const float highs = fmaxf(fmaxf(fabsf(high.x), fabsf(high.y)), fmaxf(fabsf(high.z), fabsf(high.w)));
            const float top = warp_top(fmaxf(fmaxf(lows, highs), fabsf(v.skip) * 0x1p-16f)); // of what is a number
            unit = make_float2(2.0f * unit_below(top), unit_below(warp_top(largest)));
            if (threadIdx.x == 0) shared.unit[number % 2] = unit;
        }
        copies_landed<0>(); // a thread weighs what it has copied
#pragma unroll
        for (uint32_t i = 0; i + 1 < x_parts; i++) {
            const uint32_t r = row + i * rows_apart;
            uint2 by = v.far[r];
            if (!bf) by = factors_of<bf>(__uint_as_float(by.x) / unit.x, __uint_as_float(by.y) / unit.x);
            put16(to.weighted, r, piece, scale8<bf>(get16(to.x, r, piece), by));
        }
        if (normalised) {
#pragma unroll
            for (uint32_t i = 0; i < hin_parts; i++) {
                const uint32_t r = row + i * rows_apart;
                const float by = bf ? scales[i] : scales[i] / unit.y;
                put16(to.hin, r, piece, scale8<bf>(get16(to.hin, r, piece), factors_of<bf>(by, by)));
            }
        }
        stores_done();
    };

    // What all heads of a chunk share: this warpgroup's fragments of c and its products with b. b passes through a stage that
    // holds nothing yet.
    uint32_t c[N / 16][4], cb[4][4];
    const auto fetch_chunk = [&](const Turn &turn, char *free) {
        const uint16_t *from = b + uint64_t(turn.token) * args.b_row + turn.group * N;
        copy_tile<tokens, threads>(shared_address(free), from, args.b_row, turn.length, threadIdx.x);
        copy_tile<tokens, threads>(shared_address(free) + tokens * tile_row, from + 64, args.b_row, turn.length, threadIdx.x);
        copies_commit();
        const uint16_t *rows = lines + uint64_t(turn.token) * args.c_row + turn.group * N;
        fetch_c(c, rows, args.c_row, turn.length, block);
    };

    // Before turn i: x and hin are in their stage or on their way, the vectors of turn i are there, cum of turn i + 1 is in
    // registers. Every step stands here once where it can: what runs for the first time waits for its instructions.
    if (warp == 0) {
#pragma unroll 1
        for (uint32_t i = 0; i < 3; i++) list(i);
    }
    barrier(1, threads);
    if (!there(0)) {
        predecessors_wait(); // a launch ends after its predecessors
        return;
    }
    fetch_chunk(shared.turns[0], shared.stage[1].x);
    fetch_x(shared.turns[0], 0);
    predecessors_wait();
    fetch_hin(shared.turns[0], 0);
    Cum here = fetch_cum(shared.turns[0]), ahead = {};
    if (there(1)) ahead = fetch_cum(shared.turns[1]);
    weigh(here, 0);
    barrier(1, threads);

    uint32_t left = 0; // heads of the group from this turn on
    for (uint32_t turn = 0; there(turn); turn++, left--) {
        put(turn);
        if (there(turn + 1)) weigh(ahead, turn + 1);
        barrier(1, threads);
        if (left == 0) {
            char *free = shared.stage[(turn + 1) % 2].x;
            if (turn > 0) {
                fetch_chunk(shared.turns[turn % 8], free);
                copies_wait<0>();
            }
            turn_c(c, shared.cb[0] + warp * (16 * tile_row));
            barrier(1, threads);
            enter_chunk<bf>(cb, c, block, shared_address(free), shared.cb);
            left = shared.turns[turn % 8].left;
            barrier(1, threads);
        }
        Stage &stage = shared.stage[turn % 2];
        if (there(turn + 1)) {
            fetch_x(shared.turns[(turn + 1) % 8], turn + 1);
            fetch_hin(shared.turns[(turn + 1) % 8], turn + 1);
        }
        if (there(turn + 2)) ahead = fetch_cum(shared.turns[(turn + 2) % 8]);
        if (warp == 0) list(turn + 3);
        float sums[32];
        multiply_head<bf>(sums, block, c, cb, shared_address(shared.cb), shared_address(stage.hin), shared_address(stage.x),
                          shared_address(stage.weighted), shared.vectors[turn % 3],
                          bf ? make_float2(1.0f, 1.0f) : shared.unit[turn % 2]);
        const Turn &at = shared.turns[turn % 8];
        const uint32_t t0 = 64 * block + 16 * slab_of(block), valid = t0 < at.length ? at.length - t0 : 0;
        const size_t to = args.y_at + uint64_t(at.token + t0) * args.y_row + at.head * P;
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
#endif
}

} // namespace ssd_output_tensor

KERNEL_FUNCTION_BLOCKS(ssd_output, tensor_f16, 1)
{
    static_assert(sizeof(ssd_output_tensor::Shared) <= SHARED_ssd_output_tensor_f16, "shared memory");
    ssd_output_tensor::tiles<false>(args, bindings, dtypes);
}

KERNEL_FUNCTION_BLOCKS(ssd_output, tensor_bf16, 1)
{
    static_assert(sizeof(ssd_output_tensor::Shared) <= SHARED_ssd_output_tensor_bf16, "shared memory");
    ssd_output_tensor::tiles<true>(args, bindings, dtypes);
}
