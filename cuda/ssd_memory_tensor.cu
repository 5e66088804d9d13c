// ssd_memory for N = 128, P = 64 and chunks of at most 256 tokens, 16-bit operands of one type, by warpgroup products.
//
// A block walks a run of neighbouring tiles (one head of one chunk each). Two teams of two warpgroups take every other head
// each, so that one multiplies while the other finishes; a warpgroup computes 64 rows n. Fragments of its columns of b,
// transposed, stay in registers for all heads of a group: from shared memory they would take as much of its width as x. A
// head's x is copied a turn ahead, multiplied by exp(cum_last - cum_t) step_t, rounded once and put into a stage while the products
// of the turn before run.
//
// Shared memory: x as it is of each team 64 KiB, two stages of x for each team 128 KiB, rows of results 16 KiB, factors 8 KiB.
#include "tensor.cuh"

namespace ssd_memory_tensor {

constexpr uint32_t teams = 2, threads = 256, tokens = 256, N = 128, P = 64, rows_apart = threads / 8;

// Tiles of one chunk and group: from first up to end.
struct Segment {
    uint32_t first, end, b, j, group, begin, length, m;
    bool closes;
};
// One head of a segment; head UINT32_MAX: none.
struct Turn {
    uint32_t head, b, begin, length;
};
struct Shared {
    alignas(1024) char raw[teams][tokens * tile_row];
    char x[teams][2][tokens * tile_row];
    char results[teams * threads / 32][8 * tile_row];
    uint2 weight[teams][2][tokens]; // factors_of a pair
    Turn turns[teams][8];
    uint32_t b[teams]; // where columns 0 to 63 and 64 to 127 of b pass through: stages that hold nothing
};

// The first segment with tokens from tile `first` on; first >= last when there is none.
__device__ __forceinline__ Segment find(const ssd_memory_args &args, const int32_t *seq, uint32_t first, uint32_t last)
{
    const uint32_t heads = args.H / args.G;
    Segment s;
    s.length = 0;
    for (s.first = first; s.first < last; s.first = s.end) {
        s.end = min((s.first / heads + 1) * heads, last);
        s.group = s.first / heads % args.G;
        s.j = s.first / args.H % args.M;
        s.b = s.first / args.H / args.M;
        const Piece piece = piece_of(seq, args.flags, args.L, s.b);
        const Chunk chunk = chunk_of(piece, args.S, s.j);
        s.begin = chunk.begin;
        s.length = chunk.length();
        s.m = piece.position / args.S + s.j;
        s.closes = chunk.closes;
        if (s.length > 0) break;
    }
    return s;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Four 8 x 8 matrices, transposed on the way.
__device__ __forceinline__ void load_transposed(uint32_t (&v)[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3]) : "r"(at) : "memory");
}

#endif

template <bool bf> __device__ __forceinline__ void tiles(const ssd_memory_args &args, const CudaBindings &bindings)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    Shared &shared = *reinterpret_cast<Shared *>(tensor_memory);
    const uint16_t *x = reinterpret_cast<const uint16_t *>(bindings.address[BINDING_ssd_memory_x]) + args.x_at;
    const uint16_t *b = reinterpret_cast<const uint16_t *>(bindings.address[BINDING_ssd_memory_b]) + args.b_at;
    const float *cum = FLOATS(ssd_memory, cum), *decay = FLOATS(ssd_memory, decay), *open = FLOATS(ssd_memory, open);
    const int32_t *seq = INTS(ssd_memory, seq) + args.seq_at;
    uint16_t *memory = reinterpret_cast<uint16_t *>(bindings.address[BINDING_ssd_memory_memory]) + args.memory_at;
    float *scale = FLOATS(ssd_memory, scale) + args.scale_at, *tail = FLOATS(ssd_memory, tail);
    const uint32_t heads = args.H / args.G, team = uniform(threadIdx.x / threads), thread = threadIdx.x % threads;
    const uint32_t warp = thread / 32, lane = thread % 32, g = lane / 4, column = lane % 4 * 2;
    const Run run = run_of(args.tiles, heads);
    const uint32_t first = run.first, end = run.end;
    Turn *turns = shared.turns[team];

    // The first warp of a team lists its turns, four ahead.
    Segment listed = find(args, seq, first, end);
    uint32_t tile_listed = listed.first + team;
    const auto list = [&](uint32_t turn) {
        while (listed.first < end && tile_listed >= listed.end) {
            listed = find(args, seq, listed.end, end);
            tile_listed = listed.first + team;
        }
        const bool there = listed.first < end;
        const uint32_t head = there ? tile_listed % heads + listed.group * heads : UINT32_MAX;
        if (lane == 0) turns[turn % 8] = {head, listed.b, listed.begin, listed.length};
        if (there) tile_listed += teams;
    };
    const auto fetch = [&](const Turn &turn) {
        const uint16_t *from = x + (uint64_t(turn.b) * args.L + turn.begin) * args.x_row + turn.head * P;
        copy_tile<tokens, threads>(shared_address(shared.raw[team]), from, args.x_row, turn.length, thread);
        copies_commit();
    };
    // This thread's token of cum with the chunk's last.
    struct Cum {
        float2 own, last;
        float step;
    };
    const auto fetch_cum = [&](const Turn &turn) {
        const float *from = cum + ((size_t(turn.b) * args.H + turn.head) * args.L + turn.begin) * CUM_STRIDE;
        const float *mine = from + min(thread, turn.length - 1) * CUM_STRIDE, *end_of = from + (turn.length - 1) * CUM_STRIDE;
        return Cum{make_float2(mine[0], mine[1]), make_float2(end_of[0], end_of[1]), thread < turn.length ? mine[2] : 0.0f};
    };
    const auto weigh = [&](const Cum &of, uint32_t turn) {
        const float weight = of.step * decay_between(of.last, of.own);
        shared.weight[team][turn % 2][thread] = factors_of<bf>(weight, weight);
    };
    // To be called when this thread's copies of x are there: it weighs what it has copied.
    const auto stage = [&](uint32_t turn) {
        const uint2 *weight = shared.weight[team][turn % 2] + thread / 8;
#pragma unroll
        for (uint32_t i = 0; i < tokens / rows_apart; i++) {
            const uint32_t r = thread / 8 + i * rows_apart;
            const uint4 raw = get16(shared.raw[team], r, thread % 8);
            put16(shared.x[team][turn % 2], r, thread % 8, scale8<bf>(raw, weight[i * rows_apart]));
        }
        stores_done();
    };
    const auto there = [&](uint32_t turn) { return turns[turn % 8].head != UINT32_MAX; };

    // Before turn i: its x is staged, the next x is on its way, the factors of turn i + 1 are there, cum of turn i + 2 is in
    // registers.
    successors_begin();
    if (warp == 0) {
        for (uint32_t i = 0; i < 4; i++) list(i);
    }
    barrier(1 + team, threads);
    if (there(0)) fetch(turns[0]);

    bool begun = false;
    Cum ahead = {};
    uint32_t turn = 0;
    for (Segment at = find(args, seq, first, end); at.first < end; at = find(args, seq, at.end, end)) {
        __syncthreads(); // no warp still multiplies with what is in the stages
        char *free = shared.x[team][(turn + 1) % 2];
        const uint16_t *lines = b + (uint64_t(at.b) * args.L + at.begin) * args.b_row + at.group * N + 64 * team;
        copy_tile<tokens, threads>(shared_address(free), lines, args.b_row, at.length, thread);
        copies_commit();
        if (thread == 0) shared.b[team] = shared_address(free);
        if (!begun) { // x and b are on their way before cum is there
            predecessors_wait();
            Cum here = {};
            if (there(0)) here = fetch_cum(turns[0]);
            if (there(1)) ahead = fetch_cum(turns[1]);
            weigh(here, 0);
            weigh(ahead, 1);
            if (there(2)) ahead = fetch_cum(turns[2]);
        }
        copies_landed<0>();
        __syncthreads();
        // Lane l points ldmatrix at row l % 8 of matrix l / 8: 8 tokens of 8 columns, the second 8 columns, then the next
        // tokens.
        uint32_t left[tokens / 16][4];
        const uint32_t from = shared.b[warp / 4] + tile_at(lane / 16 * 8 + lane % 8, warp % 4 * 2 + lane / 8 % 2);
#pragma unroll
        for (uint32_t k = 0; k < tokens / 16; k++) load_transposed(left[k], from + 16 * k * tile_row);
        if (!begun) {
            if (there(0)) stage(0);
            if (there(1)) fetch(turns[1]);
            begun = true;
        }
        __syncthreads();
        for (uint32_t tile = at.first + team; tile < at.end; tile += teams, turn++) {
            barrier(1 + team, threads);
            float sums[32];
            const uint64_t right = operand_at(shared_address(shared.x[team][turn % 2]));
            clear(sums);
            products_begin();
#pragma unroll
            for (uint32_t k = 0; k < tokens / 16; k++) multiply<bf>(sums, left[k], operand_on(right, 16 * k * tile_row));
            products_commit();
            weigh(ahead, turn + 2);
            if (there(turn + 3)) ahead = fetch_cum(turns[(turn + 3) % 8]);
            if (warp == 0) list(turn + 4);
            copies_landed<0>();
            if (there(turn + 1)) stage(turn + 1);
            if (there(turn + 2)) fetch(turns[(turn + 2) % 8]);
            products_wait(sums);

            const uint32_t n0 = 16 * warp, head = turns[turn % 8].head;
            const size_t old_row = (size_t(at.b) * args.H + head) * N + n0;
            if ((args.flags & HAS_OPEN) && at.j == 0) {
                const float keep = decay_exp(decay[(size_t(at.b) * (args.M + 1) + 1) * args.H + head]);
#pragma unroll
                for (uint32_t i = 0; i < 16; i++) {
                    const float2 old = *reinterpret_cast<const float2 *>(open + (old_row + g + i % 2 * 8) * P + i / 2 * 8 + column);
                    sums[2 * i] = fmaf(keep, old.x, sums[2 * i]);
                    sums[2 * i + 1] = fmaf(keep, old.y, sums[2 * i + 1]);
                }
            }
            if ((args.flags & HAS_OPEN) && !at.closes) {
#pragma unroll
                for (uint32_t i = 0; i < 16; i++)
                    *reinterpret_cast<float2 *>(tail + (old_row + g + i % 2 * 8) * P + i / 2 * 8 + column) =
                        make_float2(sums[2 * i], sums[2 * i + 1]);
            }
            const bool in_run = at.closes && at.m >= args.first && at.m - args.first < args.count;
            if (!(args.flags & HAS_RUN) || in_run) {
                const size_t matrix = args.flags & HAS_RUN ? size_t(at.b) * args.capacity + at.m - args.first : size_t(at.b) * args.M + at.j;
                const size_t row = (matrix * args.H + head) * N + n0;
                float squares[2] = {}, inverse[2];
#pragma unroll
                for (uint32_t i = 0; i < 32; i++) squares[i / 2 % 2] = fmaf(sums[i], sums[i], squares[i / 2 % 2]);
#pragma unroll
                for (uint32_t i = 0; i < 2; i++) {
                    squares[i] += __shfl_xor_sync(0xffffffffu, squares[i], 1);
                    squares[i] += __shfl_xor_sync(0xffffffffu, squares[i], 2);
                    const float mean = fmaf(squares[i], 1.0f / P, args.eps);
                    inverse[i] = inverse_root(mean);
                    if (lane % 4 == 0) scale[row + g + 8 * i] = mean * inverse[i];
                }
#pragma unroll
                for (uint32_t i = 0; i < 32; i++) sums[i] *= inverse[i / 2 % 2];
                store_rows<bf>(memory + row * P, P, 16, sums, shared.results[threadIdx.x / 32]);
            }
        }
    }
    if (!begun) predecessors_wait(); // a launch ends after its predecessors
#endif
}

} // namespace ssd_memory_tensor

KERNEL_FUNCTION_SHAPED(ssd_memory, tensor_f16, 1)
{
    static_assert(sizeof(ssd_memory_tensor::Shared) <= SHARED_ssd_memory_tensor_f16, "shared memory");
    ssd_memory_tensor::tiles<false>(args, bindings);
}

KERNEL_FUNCTION_SHAPED(ssd_memory, tensor_bf16, 1)
{
    static_assert(sizeof(ssd_memory_tensor::Shared) <= SHARED_ssd_memory_tensor_bf16, "shared memory");
    ssd_memory_tensor::tiles<true>(args, bindings);
}
