// All of the scan in one launch, for N = 128, P = 64, chunks of at most 256 tokens, all in bf16 but for what may be of any type.
//
// A cluster of eight blocks has two heads of one group; block r has chunk r, then r + 8 and so on. x, b, c and the steps are read once,
// and what has to be known of other chunks goes from block to block: block r walks the chunks with rows 16 r to 16 r + 15 of their
// memories and gives every block these rows of the state that enters its chunk.
//
// 1. Two teams of two warpgroups, a head each: log-decays as in ssd_decay_memory, and the memory, a warp 16 rows n. There x is
//    weighted; here the fragments of b are, since x is needed as it is, too.
// 2. While memories travel: c.b among the tokens of the chunk, and x weighted as in ssd_output_tensor.
// 3. The states, sixteen threads a row as in ssd_state_wide, into shared memory of the block whose chunk they enter; what leaves
//    chunk 7 stays in registers for chunk 8.
// 4. The output of one head after the other, by all four warpgroups.
//
// Shared memory: x 64 KiB; b, then weighted x and the first head's states 64 KiB; products of c and b 48 KiB;
// memories, then the second head's states 32 KiB; vectors 18 KiB.
#include "chunk.cuh"

namespace ssd_piece_cluster {

using namespace ssd_chunk;

constexpr uint32_t ranks = 8, teams = 2, threads = 512;
constexpr uint32_t own = threads / teams, rows = N / ranks, columns = 4, lanes = P / columns;
static_assert(own == tokens && own / 32 == ranks && own == rows * lanes, "a token, and a piece of a row, a thread");

struct Shared {
    alignas(1024) char x[teams][tokens * tile_row];
    union {
        char b[2][tokens * tile_row]; // columns 0 to 63 and 64 to 127
        struct {                      // and when it is used up
            char weighted[teams][(tokens - 64) * tile_row];
            char first_hin[N * tile_row];
        };
    };
    char cb[blocks * (blocks - 1) / 2][64 * tile_row]; // c.b as in ssd_output_tensor; rows of memories before
    char memories[teams][ranks][rows * tile_row];      // the own rows of eight chunks, then the second head's states
    Vectors vectors[teams];
    alignas(16) uint2 weight[teams][tokens / 2]; // factors_of a pair of tokens
    double sums[teams][own / 32];                // log-decays of 32 tokens each
    float scales[teams][ranks][rows], totals[teams][ranks]; // of eight chunks
    uint64_t given, states[teams];               // boxes: of memories, of the states of a head
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// All blocks of the cluster have come to the first before any leaves the second; what they wrote is not waited for.
__device__ __forceinline__ void cluster_arrive() { asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory"); }
__device__ __forceinline__ void cluster_wait() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }
// The same, and what they wrote is there for all.
__device__ __forceinline__ void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
// An address of shared memory, in another block of the cluster.
__device__ __forceinline__ uint32_t address_of(const void *at, uint32_t rank)
{
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(at)), "r"(rank));
    return there;
}
// A box is a barrier in shared memory, full when as many bytes have come as it expects in a round. These write to shared memory of
// another block, whose box counts the bytes.
__device__ __forceinline__ void give(uint32_t at, float value, uint32_t box)
{
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.f32 [%0], %1, [%2];" ::"r"(at), "f"(value), "r"(box) : "memory");
}
__device__ __forceinline__ void give(uint32_t at, const uint4 &v, uint32_t box)
{
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];"
                 ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w), "r"(box) : "memory");
}
__device__ __forceinline__ void box_make(const uint64_t *box)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(box)) : "memory");
}
// By one thread, once a round before anybody gives.
__device__ __forceinline__ void box_expect(const uint64_t *box, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(box)), "r"(bytes) : "memory");
}
__device__ __forceinline__ void box_wait(const uint64_t *box, uint32_t round)
{
    asm volatile("{\n"
                 ".reg .pred full;\n"
                 "again: mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 full, [%0], %1;\n"
                 "@!full bra again;\n"
                 "}" ::"r"(shared_address(box)), "r"(round % 2) : "memory");
}

#endif

template <bool bf>
__device__ __forceinline__ void tiles(const ssd_piece_args &args, const CudaBindings &bindings, uint32_t dtypes)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    Shared &shared = *reinterpret_cast<Shared *>(tensor_memory);
    const uint16_t *x = reinterpret_cast<const uint16_t *>(bindings.address[BINDING_ssd_piece_x]) + args.x_at;
    const uint16_t *b_rows = reinterpret_cast<const uint16_t *>(bindings.address[BINDING_ssd_piece_b]) + args.b_at;
    const uint16_t *c_rows = reinterpret_cast<const uint16_t *>(bindings.address[BINDING_ssd_piece_c]) + args.c_at;
    const View dt = VIEW(ssd_piece, dt), a_log = VIEW(ssd_piece, a_log), dt_bias = VIEW(ssd_piece, dt_bias);
    const View d = VIEW(ssd_piece, d), y = VIEW(ssd_piece, y);
    float *open = FLOATS(ssd_piece, open), *open_decay = FLOATS(ssd_piece, open_decay), *h = FLOATS(ssd_piece, h);
    uint16_t *memory = reinterpret_cast<uint16_t *>(bindings.address[BINDING_ssd_piece_memory]) + args.memory_at;
    float *scale = FLOATS(ssd_piece, scale) + args.scale_at;
    const bool has_h = args.flags & HAS_H, has_open = args.flags & HAS_OPEN;

    const uint32_t heads = quotient(args.H, args.G), pairs = (heads + 1) / 2;
    const uint32_t of_group = quotient(blockIdx.x / ranks, pairs), pair = blockIdx.x / ranks - of_group * pairs;
    const uint32_t b = quotient(of_group, args.G), group = of_group - b * args.G;
    const uint32_t count = min(heads - 2 * pair, teams), first_head = group * heads + 2 * pair;
    const uint32_t team = uniform(threadIdx.x / own);
    // A team without a head computes with no tokens and stores nothing.
    const bool there = team < count;
    const Piece piece = piece_of(INTS(ssd_piece, seq) + args.seq_at, args.flags, args.L, b);
    if (piece.count == 0) return;
    float4 state = make_float4(0, 0, 0, 0), old = make_float4(0, 0, 0, 0);
    float before = 0.0f;

    // Of the places that a round reads and writes none is known before its copies have begun: the compiler would compute all
    // addresses before the first of them.
#pragma unroll 1
    for (uint32_t base = 0;; base += ranks) {
        uint32_t head = first_head + (there ? team : 0), rank = blockIdx.x % ranks, thread = threadIdx.x % own;
        const Chunk chunk = chunk_of(piece, args.S, base + rank);
        const uint32_t length = chunk.length(), valid = there ? length : 0;
        const uint64_t token = uint64_t(b) * args.L + chunk.begin;
        const uint32_t raw = thread < valid ? fetch_bits(dt, args.dt_at + (token + thread) * args.dt_row + head) : 0;
        const uint32_t rate = fetch_bits(a_log, args.a_log_at + size_t(head));
        const uint32_t bias = args.flags & HAS_BIAS ? fetch_bits(dt_bias, args.dt_bias_at + size_t(head)) : 0;
        const uint32_t skip = args.flags & HAS_D ? fetch_bits(d, args.d_at + size_t(head)) : 0;
        const uint16_t *lines = b_rows + token * args.b_row + group * N;
        copy_tile<tokens, threads>(shared_address(shared.b[0]), lines, args.b_row, length, threadIdx.x);
        copy_tile<tokens, threads>(shared_address(shared.b[1]), lines + 64, args.b_row, length, threadIdx.x);
        copies_commit();
        asm volatile("" : "+r"(head), "+r"(rank), "+r"(thread));

        const uint32_t warp = uniform(thread / 32), lane = thread % 32;
        const uint32_t block = uniform(threadIdx.x / 128), g = lane / 4, column = lane % 4 * 2;
        const uint32_t in_chunk = piece.position - quotient(piece.position, args.S) * args.S;
        const uint32_t chunks = quotient(in_chunk + piece.count - 1, args.S) + 1;
        const bool stays_open = has_open && in_chunk + piece.count != chunks * args.S;
        const uint32_t merged = stays_open ? chunks - 1 : chunks, j = base + rank;
        const bool last = base + ranks >= chunks;
        if (threadIdx.x == 0) {
            if (base == 0) {
                box_make(&shared.given);
                for (uint32_t i = 0; i < teams; i++) box_make(&shared.states[i]);
                asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
            }
            box_expect(&shared.given, teams * ranks * (rows * tile_row + (rows + 1) * uint32_t(sizeof(float))));
            for (uint32_t i = 0; i < count; i++) box_expect(&shared.states[i], N * tile_row);
        }
        __syncwarp();
        cluster_arrive(); // boxes expect something
        // This thread's piece of a row of the state.
        const uint32_t n = thread / lanes, p = thread % lanes * columns;
        const size_t state_at = ((size_t(b) * args.H + head) * N + rows * rank + n) * P + p;
        const uint32_t own_piece = tile_at(n, p / 8) + p % 8 * 2; // of eight rows and more that lie at a multiple of 8 rows

        // 1. The memory.
        Vectors &vectors = shared.vectors[team];
        float step = 0.0f, total;
        if (thread < valid) {
            step = value_of(raw, dt.dtype);
            if (!(args.flags & IS_STEP)) {
                const float v = args.flags & HAS_BIAS ? step + value_of(bias, dt_bias.dtype) : step;
                step = fmaxf(fmaxf(v, 0.0f) + log1pf(expf(-fabsf(v))), args.dt_min);
                if (args.dt_max > 0.0f) step = fminf(step, args.dt_max);
            }
        }
        {
            double sum = double(__fmul_rn(-expf(value_of(rate, a_log.dtype)), step)), far = 0.0, all = 0.0;
#pragma unroll
            for (uint32_t distance = 1; distance < 32; distance *= 2) {
                const double other = __shfl_up_sync(0xffffffffu, sum, distance);
                if (lane >= distance) sum += other;
            }
            if (lane == 31) shared.sums[team][warp] = sum;
            // Not before: a warp that copies waits for what it copied before.
            copy_tile<tokens, own>(shared_address(shared.x[team]), x + token * args.x_row + head * P, args.x_row, valid, thread);
            copies_commit();
            barrier(1 + team, own);
            double earlier = 0.0;
#pragma unroll
            for (uint32_t i = 0; i < own / 32; i++) {
                if (i == warp) earlier = all;
                all += shared.sums[team][i];
                if (i == (warp | 1)) far = all;
            }
            sum = earlier + sum;
            total = float(all);
            const float2 mine = make_float2(float(sum), float(sum - double(float(sum))));
            const float2 near = make_float2(__shfl_sync(0xffffffffu, mine.x, lane | 15u), __shfl_sync(0xffffffffu, mine.y, lane | 15u));
            const float by = step * decay_between(make_float2(float(far), float(far - double(float(far)))), mine);
            vectors.cum[thread] = mine;
            vectors.near[thread] = step * decay_between(near, mine);
            vectors.far[thread] = factors_of<bf>(by, by);
            vectors.step[thread] = step;
            const float weight = step * decay_exp(float(all - sum)), beside = __shfl_down_sync(0xffffffffu, weight, 1);
            // Pairs i and i + 4 of 16 tokens lie side by side.
            if (thread % 2 == 0) shared.weight[team][thread / 16 * 8 + thread / 2 % 4 * 2 + thread / 8 % 2] = factors_of<bf>(weight, beside);
            if (thread == 0) vectors.skip = value_of(skip, d.dtype);
        }
        cluster_wait();
        uint32_t c[N / 16][4], cb[4][4];
        fetch_c(c, c_rows + token * args.c_row + group * N, args.c_row, length, block);
        copies_wait<0>();
        __syncthreads();
        float sums[32];
        {
            // Lane l points ldmatrix at row l % 8 of matrix l / 8: 8 tokens of 8 columns, the second 8 columns, then the next
            // tokens. While four fragments are weighted, the products of the four before run.
            const uint32_t from = shared_address(shared.b[warp / 4]) + tile_at(lane / 16 * 8 + lane % 8, warp % 4 * 2 + lane / 8 % 2);
            const uint4 *weights = reinterpret_cast<const uint4 *>(shared.weight[team]) + lane % 4;
            const uint64_t right = operand_at(shared_address(shared.x[team]));
            uint32_t left[2][4][4];
            clear(sums);
#pragma unroll
            for (uint32_t k0 = 0; k0 < tokens / 16; k0 += 4) {
                uint32_t(&four)[4][4] = left[k0 / 4 % 2];
                if (k0 >= 8) products_leave<1>();
#pragma unroll
                for (uint32_t k = 0; k < 4; k++) {
                    load_matrices_turned(four[k], from + 16 * (k0 + k) * tile_row);
                    const uint4 by = weights[4 * (k0 + k)];
                    four[k][0] = multiply_pair<bf>(four[k][0], make_uint2(by.x, by.y));
                    four[k][1] = multiply_pair<bf>(four[k][1], make_uint2(by.x, by.y));
                    four[k][2] = multiply_pair<bf>(four[k][2], make_uint2(by.z, by.w));
                    four[k][3] = multiply_pair<bf>(four[k][3], make_uint2(by.z, by.w));
                }
                products_begin();
#pragma unroll
                for (uint32_t k = 0; k < 4; k++) multiply<bf>(sums, four[k], operand_on(right, 16 * (k0 + k) * tile_row));
                products_commit();
            }
            products_wait(sums);
        }
        if (base == 0) {
            if (has_h) state = *reinterpret_cast<const float4 *>(h + state_at);
            if (has_open) old = *reinterpret_cast<const float4 *>(open + state_at);
            if (has_open) before = open_decay[size_t(b) * args.H + head];
        }
        const uint32_t m = quotient(piece.position, args.S) + j;
        const bool stored = valid > 0 && (args.flags & HAS_RUN ? chunk.closes && m >= args.first && m - args.first < args.capacity
                                                               : (args.flags & HAS_DH) != 0);
        float roots[2];
        char *const stage = shared.cb[0] + threadIdx.x / 32 * (16 * tile_row);
        {
            const size_t old_row = (size_t(b) * args.H + head) * N + 16 * warp;
            if (has_open && j == 0) {
                const float keep = decay_exp(total);
#pragma unroll
                for (uint32_t i = 0; i < 16; i++) {
                    const float2 of = *reinterpret_cast<const float2 *>(open + (old_row + g + i % 2 * 8) * P + i / 2 * 8 + column);
                    sums[2 * i] = fmaf(keep, of.x, sums[2 * i]);
                    sums[2 * i + 1] = fmaf(keep, of.y, sums[2 * i + 1]);
                }
            }
            if (stays_open && last) {
                cluster_sync(); // all have read what is open
                if (there && j + 1 == chunks) {
#pragma unroll
                    for (uint32_t i = 0; i < 16; i++)
                        *reinterpret_cast<float2 *>(open + (old_row + g + i % 2 * 8) * P + i / 2 * 8 + column) =
                            make_float2(sums[2 * i], sums[2 * i + 1]);
                }
            }
            if (thread < ranks) give(address_of(&shared.totals[team][rank], thread), total, address_of(&shared.given, thread));
            const uint32_t to = address_of(shared.memories[team][rank], warp), box = address_of(&shared.given, warp);
            float squares[2] = {}, inverse[2];
#pragma unroll
            for (uint32_t i = 0; i < 32; i++) squares[i / 2 % 2] = fmaf(sums[i], sums[i], squares[i / 2 % 2]);
#pragma unroll
            for (uint32_t i = 0; i < 2; i++) {
                squares[i] += __shfl_xor_sync(0xffffffffu, squares[i], 1);
                squares[i] += __shfl_xor_sync(0xffffffffu, squares[i], 2);
                const float mean = fmaf(squares[i], 1.0f / P, args.eps);
                inverse[i] = inverse_root(mean);
                roots[i] = mean * inverse[i];
                if (lane % 4 == 0) give(address_of(&shared.scales[team][rank][g + 8 * i], warp), roots[i], box);
            }
#pragma unroll
            for (uint32_t i = 0; i < 32; i++) sums[i] *= inverse[i / 2 % 2];
            put_rows<bf>(sums, stage);
            __syncwarp();
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                give(to + tile_at(4 * i + lane / 8, lane % 8), get16(stage, 4 * i + lane / 8, lane % 8), box);
        }
        if (stored) {
            const size_t matrix = args.flags & HAS_RUN ? size_t(b) * args.capacity + m - args.first : size_t(b) * args.M + j;
            const size_t row = (matrix * args.H + head) * N + 16 * warp;
            uint16_t *to = memory + (row + lane / 8) * P + lane % 8 * 8;
#pragma unroll
            for (uint32_t i = 0; i < 4; i++)
                *reinterpret_cast<uint4 *>(to + 4 * i * P) = get16(stage, 4 * i + lane / 8, lane % 8);
            if (lane % 4 == 0) {
                scale[row + g] = roots[0];
                scale[row + g + 8] = roots[1];
            }
        }

        // 2. What needs no other chunk.
        turn_c(c, shared.cb[0] + threadIdx.x / 32 * (16 * tile_row));
        __syncthreads();
        enter_chunk<bf>(cb, c, block, shared_address(shared.b), shared.cb);
        __syncthreads();
        cluster_arrive(); // b is used up
#pragma unroll
        for (uint32_t i = 0; i < (tokens - 64) / (own / 8); i++) {
            const uint32_t r = thread / 8 + i * (own / 8);
            put16(shared.weighted[team], r, thread % 8, scale8<bf>(get16(shared.x[team], r, thread % 8), vectors.far[r]));
        }
        stores_done();

        // 3. The states.
        cluster_wait();
        box_wait(&shared.given, base / ranks);
        uint2 memories[ranks];
        float keeps[ranks], factors[ranks];
        float4 enter = state;
        if (base == 0) {
            const float keep = exp_below(before);
            enter = make_float4(fmaf(keep, state.x, old.x), fmaf(keep, state.y, old.y), fmaf(keep, state.z, old.z), fmaf(keep, state.w, old.w));
        }
#pragma unroll
        for (uint32_t i = 0; i < ranks; i++) {
            // A memory that is not merged, or not there, leaves the state as it is.
            const bool merges = base + i < merged;
            const float through = merges ? shared.totals[team][i] : 0.0f;
            memories[i] = *reinterpret_cast<const uint2 *>(shared.memories[team][i] + own_piece);
            if (!merges) memories[i] = make_uint2(0, 0);
            factors[i] = merges ? shared.scales[team][i][n] : 0.0f;
            keeps[i] = decay_exp(merges && base + i == 0 ? before + through : through);
        }
#pragma unroll
        for (uint32_t i = 0; i < ranks; i++) {
            if (i > 0) enter = state;
            const float2 low = unpack<bf>(memories[i].x), high = unpack<bf>(memories[i].y);
            state = make_float4(fmaf(keeps[i], state.x, factors[i] * low.x), fmaf(keeps[i], state.y, factors[i] * low.y),
                                fmaf(keeps[i], state.z, factors[i] * high.x), fmaf(keeps[i], state.w, factors[i] * high.y));
            memories[i] = make_uint2(pack<bf>(enter.x, enter.y), pack<bf>(enter.z, enter.w));
        }
        __syncwarp();
        // The arrival is relaxed: it orders no reads, so that what was read has to be here.
#pragma unroll
        for (uint32_t i = 0; i < ranks; i++) asm volatile("" : "+r"(memories[i].x), "+r"(memories[i].y));
        cluster_arrive(); // memories are used up
        // Of two neighbours, one gets 16 bytes of the even chunks, the other of the odd ones.
        const uint32_t odd = lane % 2;
        uint4 pieces[ranks / 2];
#pragma unroll
        for (uint32_t i = 0; i < ranks / 2; i++) {
            const uint2 mine = odd ? memories[2 * i + 1] : memories[2 * i], other = odd ? memories[2 * i] : memories[2 * i + 1];
            const uint2 got = make_uint2(__shfl_xor_sync(0xffffffffu, other.x, 1), __shfl_xor_sync(0xffffffffu, other.y, 1));
            pieces[i] = odd ? make_uint4(got.x, got.y, mine.x, mine.y) : make_uint4(mine.x, mine.y, got.x, got.y);
        }
        // The first head's states go where b was; the second's follow, to where the memories were.
        if (team == 1) {
            barrier(7, threads);
            cluster_wait();
        }
        const char *const hin = team == 0 ? shared.first_hin : shared.memories[0][0];
        const uint32_t from_here = rank * (rows * tile_row) + (own_piece & ~15u);
#pragma unroll
        for (uint32_t i = 0; i < ranks / 2; i++)
            if (there) give(address_of(hin + from_here, 2 * i + odd), pieces[i], address_of(&shared.states[team], 2 * i + odd));
        if (team == 0) {
            asm volatile("bar.arrive 7, %0;" ::"n"(threads) : "memory");
            cluster_wait();
        }
        if (last && there) {
            if (has_h) *reinterpret_cast<float4 *>(h + state_at) = state;
            if (has_open && !stays_open) *reinterpret_cast<float4 *>(open + state_at) = make_float4(0, 0, 0, 0);
        }
        __syncthreads();

        // 4. The output.
#pragma unroll 1
        for (uint32_t i = 0; i < count; i++) {
            box_wait(&shared.states[i], base / ranks);
            stores_done();
            multiply_head<bf>(sums, block, c, cb, shared_address(shared.cb),
                              shared_address(i == 0 ? shared.first_hin : shared.memories[0][0]), shared_address(shared.x[i]),
                              shared_address(shared.weighted[i]), shared.vectors[i], make_float2(1.0f, 1.0f));
            const uint32_t t0 = 64 * block + 16 * slab_of(block), left = t0 < length ? length - t0 : 0;
            const size_t to = args.y_at + (token + t0) * args.y_row + (first_head + i) * P;
            if (y.dtype == (bf ? DTYPE_BF16 : DTYPE_F16)) {
                barrier(3 + block, 128); // rows of results take the place of the block's x
                store_rows<bf>(reinterpret_cast<uint16_t *>(y.base) + to, args.y_row, left, sums, shared.x[i] + t0 * tile_row);
            } else {
#pragma unroll
                for (uint32_t k = 0; k < 32; k++) {
                    const uint32_t r = lane / 4 + k / 2 % 2 * 8;
                    if (r < left) store(y, to + size_t(r) * args.y_row + k / 4 * 8 + lane % 4 * 2 + k % 2, sums[k]);
                }
            }
        }
        if (last) {
            // All have read it: their states are here.
            if (has_open && there && rank == 0 && thread == 0)
                open_decay[size_t(b) * args.H + head] =
                    stays_open ? shared.totals[team][(chunks - 1) % ranks] + (chunks == 1 ? before : 0.0f) : 0.0f;
            break;
        }
        cluster_sync(); // all have used what they were given
    }
#endif
}

} // namespace ssd_piece_cluster

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define CLUSTER __cluster_dims__(8, 1, 1)
#else
#define CLUSTER
#endif
KERNEL_BOUNDED(ssd_piece, cluster_bf16, __launch_bounds__(THREADS_ssd_piece_cluster_bf16, 1) CLUSTER)
{
    static_assert(sizeof(ssd_piece_cluster::Shared) <= SHARED_ssd_piece_cluster_bf16, "shared memory");
    ssd_piece_cluster::tiles<true>(args, bindings, dtypes);
}
