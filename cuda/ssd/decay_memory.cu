// ssd_decay and ssd_memory for N = 128, P = 64 and chunks of at most 256 tokens, 16-bit operands of one type, by warpgroup
// products.
//
// A block walks a run of neighbouring tiles (one head of one chunk each). Two teams of two warpgroups take every other head
// each, so that one multiplies while the other finishes; a warpgroup computes 64 rows n. Fragments of its columns of b,
// transposed, stay in registers for all heads of a group: from shared memory they would take as much of its width as x. A
// head's x is copied a turn ahead, multiplied by exp(cum_last - cum_t) step_t, rounded once and put into a stage while the products
// of the turn before run.
// Log-decays are ready a turn before x is: each thread of a team has one token; three turns ahead a warp scans its 32 in f64,
// two turns ahead the sums of the warps are added, so that hi and lo of cum are the sum rounded once and what that lost.
// f16: the factors are divided by a power of two above the largest, so that no x grows beyond its range or loses digits.
//
// Shared memory: x as it is of each team 64 KiB, two stages of x for each team 128 KiB, rows of results 16 KiB, factors 8 KiB.
#include "segment.cuh"

namespace ssd_decay_memory_tensor {

constexpr uint32_t teams = 2, threads = 256, tokens = 256, N = 128, P = 64, rows_apart = threads / 8;

// One head of a segment; head UINT32_MAX: none.
struct Turn {
    uint32_t head, b, j, begin, length;
};
struct Shared {
    alignas(1024) char raw[teams][tokens * tile_row];
    char x[teams][2][tokens * tile_row];
    char results[teams * threads / 32][8 * tile_row];
    uint2 weight[teams][2][tokens]; // factors_of a pair
    double sums[teams][2][threads / 32]; // log-decays of 32 tokens each
    float top[teams][4][threads / 32];   // f16: the largest factor of 32 tokens
    Turn turns[teams][8];
    Segment listed[teams]; // that of the last turn listed
    uint32_t b[teams]; // where columns 0 to 63 and 64 to 127 of b pass through: stages that hold nothing
};

template <bool bf>
__device__ __forceinline__ void tiles(const ssd_decay_memory_args &args, const CudaBindings &bindings, uint32_t dtypes)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    Shared &shared = *reinterpret_cast<Shared *>(tensor_memory);
    const uint16_t *x = reinterpret_cast<const uint16_t *>(bindings.address[BINDING_ssd_decay_memory_x]) + args.x_at;
    const uint16_t *b = reinterpret_cast<const uint16_t *>(bindings.address[BINDING_ssd_decay_memory_b]) + args.b_at;
    const View dt = VIEW(ssd_decay_memory, dt), a_log = VIEW(ssd_decay_memory, a_log), dt_bias = VIEW(ssd_decay_memory, dt_bias);
    const float *open = FLOATS(ssd_decay_memory, open), *open_decay = FLOATS(ssd_decay_memory, open_decay);
    float *cum = FLOATS(ssd_decay_memory, cum), *decay = FLOATS(ssd_decay_memory, decay);
    const int32_t *seq = INTS(ssd_decay_memory, seq) + args.seq_at;
    uint16_t *memory = reinterpret_cast<uint16_t *>(bindings.address[BINDING_ssd_decay_memory_memory]) + args.memory_at;
    float *scale = FLOATS(ssd_decay_memory, scale) + args.scale_at, *tail = FLOATS(ssd_decay_memory, tail);
    const uint32_t heads = args.H / args.G, team = uniform(threadIdx.x / threads), thread = threadIdx.x % threads;
    const uint32_t warp = thread / 32, lane = thread % 32, g = lane / 4, column = lane % 4 * 2;
    const Run run = run_of(args.tiles, heads);
    const uint32_t first = run.first, end = run.end;
    Turn *turns = shared.turns[team];

    // The first warp of a team lists its turns, five ahead.
    Segment at = find(args, seq, first, end);
    uint32_t tile_listed = at.first + team;
    if (thread == 0) shared.listed[team] = at;
    const auto list = [&](uint32_t turn) {
        __syncwarp();
        Segment of = shared.listed[team];
#pragma unroll 1
        while (of.first < end && tile_listed >= of.end) {
            of = find(args, seq, of.end, end);
            tile_listed = of.first + team;
        }
        const bool there = of.first < end;
        const uint32_t head = there ? of.head + tile_listed - of.first : UINT32_MAX;
        __syncwarp();
        if (lane == 0) {
            shared.listed[team] = of;
            turns[turn % 8] = {head, of.b, of.j, of.begin, of.length};
        }
        if (there) tile_listed += teams;
    };
    const auto put_decay = [&](uint32_t b, uint32_t j, uint32_t head, float total) {
        float *of_head = decay + size_t(b) * (args.M + 1) * args.H + head;
        of_head[(size_t(j) + 1) * args.H] = total;
        if (j == 0) of_head[0] = args.flags & HAS_OPEN ? open_decay[size_t(b) * args.H + head] : 0.0f;
    };
    const auto fetch = [&](const Turn &turn) {
        const uint16_t *from = x + (uint64_t(turn.b) * args.L + turn.begin) * args.x_row + turn.head * P;
        copy_tile<tokens, threads>(shared_address(shared.raw[team]), from, args.x_row, turn.length, thread);
        copies_commit();
    };
    const auto there = [&](uint32_t turn) { return turns[turn % 8].head != UINT32_MAX; };

    // Log-decays of a turn in three steps, with a barrier of the team between the second and the third, for this thread's token.
    const auto fetch_dt = [&](uint32_t turn) {
        const Turn &at = turns[turn % 8];
        if (!there(turn) || thread >= at.length) return 0u;
        return fetch_bits(dt, args.dt_at + (size_t(at.b) * args.L + at.begin + thread) * args.dt_row + at.head);
    };
    struct Scanned {
        double sum; // of the warp's tokens up to this one
        float step; // 0 beyond the chunk
    };
    const auto scan = [&](uint32_t raw, uint32_t turn) {
        const Turn &at = turns[turn % 8];
        Scanned to = {};
        if (!there(turn)) return to;
        const uint32_t rate = fetch_bits(a_log, args.a_log_at + size_t(at.head));
        if (thread < at.length) {
            to.step = value_of(raw, dt.dtype);
            if (!(args.flags & IS_STEP)) {
                float v = to.step;
                if (args.flags & HAS_BIAS) v += value_of(fetch_bits(dt_bias, args.dt_bias_at + size_t(at.head)), dt_bias.dtype);
                to.step = fmaxf(fmaxf(v, 0.0f) + log1pf(expf(-fabsf(v))), args.dt_min);
                if (args.dt_max > 0.0f) to.step = fminf(to.step, args.dt_max);
            }
        }
        to.sum = double(__fmul_rn(-expf(value_of(rate, a_log.dtype)), to.step));
#pragma unroll
        for (uint32_t distance = 1; distance < 32; distance *= 2) {
            const double other = __shfl_up_sync(0xffffffffu, to.sum, distance);
            if (lane >= distance) to.sum += other;
        }
        if (lane == 31) shared.sums[team][turn % 2][warp] = to.sum;
        return to;
    };
    const auto weigh = [&](const Scanned &of, uint32_t turn) {
        const Turn &at = turns[turn % 8];
        if (!there(turn)) return;
        double before = 0.0, total = 0.0;
#pragma unroll
        for (uint32_t i = 0; i < threads / 32; i++) {
            if (i == warp) before = total;
            total += shared.sums[team][turn % 2][i];
        }
        const double sum = before + of.sum;
        if (thread < at.length) {
            float *to = cum + ((size_t(at.b) * args.H + at.head) * args.L + at.begin + thread) * CUM_STRIDE;
            const float hi = float(sum);
            to[0] = hi;
            to[1] = float(sum - double(hi));
            to[2] = of.step;
        }
        if (thread == 0) put_decay(at.b, at.j, at.head, float(total));
        const float weight = of.step * decay_exp(float(total - sum));
        shared.weight[team][turn % 2][thread] = factors_of<bf>(weight, weight);
        if (!bf) {
            const float top = warp_top(fabsf(weight));
            if (lane == 0) shared.top[team][turn % 4][warp] = top;
        }
    };
    // f16: what the factors of a turn are divided by.
    const auto unit_of = [&](uint32_t turn) {
        if (bf) return 1.0f;
        const float4 *tops = reinterpret_cast<const float4 *>(shared.top[team][turn % 4]);
        const float4 low = tops[0], high = tops[1];
        return 2.0f * unit_below(fmaxf(fmaxf(fmaxf(low.x, low.y), fmaxf(low.z, low.w)),
                                        fmaxf(fmaxf(high.x, high.y), fmaxf(high.z, high.w))));
    };
    // To be called when this thread's copies of x are there: it weighs what it has copied.
    const auto stage = [&](uint32_t turn) {
        const uint2 *weight = shared.weight[team][turn % 2] + thread / 8;
        const float inverse_unit = 1.0f / unit_of(turn);
#pragma unroll
        for (uint32_t i = 0; i < tokens / rows_apart; i++) {
            const uint32_t r = thread / 8 + i * rows_apart;
            const uint4 raw = get16(shared.raw[team], r, thread % 8);
            uint2 by = weight[i * rows_apart];
            if (!bf) by.x = by.y = __float_as_uint(__uint_as_float(by.x) * inverse_unit);
            put16(shared.x[team][turn % 2], r, thread % 8, scale8<bf>(raw, by));
        }
        stores_done();
    };
    // Columns 64 team to 64 team + 63 of b, into a stage that holds nothing.
    const auto fetch_b = [&](const Segment &of, uint32_t turn) {
        const uint32_t free = shared_address(shared.x[team][(turn + 1) % 2]);
        const uint16_t *lines = b + (uint64_t(of.b) * args.L + of.begin) * args.b_row + of.group * N + 64 * team;
        copy_tile<tokens, threads>(free, lines, args.b_row, of.length, thread);
        copies_commit();
        if (thread == 0) shared.b[team] = free;
    };

    // Before turn i: its x is staged, the next x is on its way, the factors of turn i + 1 are there, turn i + 2 is scanned, dt of
    // turn i + 3 is in a register.
    successors_begin();
    if (at.first < end) fetch_b(at, 0);
    if (warp == 0) {
#pragma unroll 1
        for (uint32_t i = 0; i < 5; i++) list(i);
    }
    barrier(1 + team, threads);
    if (there(0)) fetch(turns[0]);
    const uint32_t raw[2] = {fetch_dt(0), fetch_dt(1)};
    if (args.flags & HAS_SEQ) {
#pragma unroll 1
        for (uint32_t tile = first + threadIdx.x; tile < end; tile += teams * threads) {
            const uint32_t j = tile / args.H % args.M, b = tile / args.H / args.M;
            if (chunk_of(piece_of(seq, args.flags, args.L, b), args.S, j).length() == 0) put_decay(b, j, tile % args.H, 0.0f);
        }
    }
    Scanned ahead = scan(raw[0], 0), next = scan(raw[1], 1);
    barrier(1 + team, threads);
    uint32_t raw_ahead = fetch_dt(2);
    weigh(ahead, 0);
    weigh(next, 1);

    bool begun = false;
    for (uint32_t turn = 0; at.first < end; at = find(args, seq, at.end, end)) {
        if (begun) {
            __syncthreads(); // no warp still multiplies with what is in the stages
            fetch_b(at, turn);
        }
        copies_landed<0>();
        __syncthreads();
        // Lane l points ldmatrix at row l % 8 of matrix l / 8: 8 tokens of 8 columns, the second 8 columns, then the next
        // tokens.
        uint32_t left[tokens / 16][4];
        const uint32_t from = shared.b[warp / 4] + tile_at(lane / 16 * 8 + lane % 8, warp % 4 * 2 + lane / 8 % 2);
#pragma unroll
        for (uint32_t k = 0; k < tokens / 16; k++) load_matrices_turned(left[k], from + 16 * k * tile_row);
        if (!begun) {
            ahead = scan(raw_ahead, 2);
            raw_ahead = fetch_dt(3);
            if (there(0)) stage(0);
            if (there(1)) fetch(turns[1]);
            begun = true;
        }
        __syncthreads();
        for (uint32_t tile = at.first + team; tile < at.end; tile += teams, turn++) {
            barrier(1 + team, threads);
            if (warp == 0) list(turn + 5);
            float sums[32];
            const uint64_t right = operand_at(shared_address(shared.x[team][turn % 2]));
            clear(sums);
            products_begin();
#pragma unroll
            for (uint32_t k = 0; k < tokens / 16; k++) multiply<bf>(sums, left[k], operand_on(right, 16 * k * tile_row));
            products_commit();
            copies_landed<0>();
            if (there(turn + 1)) stage(turn + 1);
            if (there(turn + 2)) fetch(turns[(turn + 2) % 8]); // early: it has to land within a turn
            weigh(ahead, turn + 2);
            ahead = scan(raw_ahead, turn + 3);
            raw_ahead = fetch_dt(turn + 4);
            products_wait(sums);
            if (!bf) {
                const float unit = unit_of(turn);
#pragma unroll
                for (int i = 0; i < 32; i++) sums[i] *= unit;
            }

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
                const size_t matrix =
                    args.flags & HAS_RUN ? size_t(at.b) * args.capacity + at.m - args.first : size_t(at.b) * args.M + at.j;
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
#endif
}

} // namespace ssd_decay_memory_tensor

KERNEL_FUNCTION_BLOCKS(ssd_decay_memory, tensor_f16, 1)
{
    static_assert(sizeof(ssd_decay_memory_tensor::Shared) <= SHARED_ssd_decay_memory_tensor_f16, "shared memory");
    ssd_decay_memory_tensor::tiles<false>(args, bindings, dtypes);
}

KERNEL_FUNCTION_BLOCKS(ssd_decay_memory, tensor_bf16, 1)
{
    static_assert(sizeof(ssd_decay_memory_tensor::Shared) <= SHARED_ssd_decay_memory_tensor_bf16, "shared memory");
    ssd_decay_memory_tensor::tiles<true>(args, bindings, dtypes);
}
