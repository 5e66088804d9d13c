// sma_backward_token_side on the warpgroup products of sm_90a, for N 128, P 64, bf16 and normalised memories w. Of q and e before their norms, with
// f the product of the factors that the norms give them and scale that of row n of the memory:
//   key = q w (tokens x P), U = up_r w^T (tokens x N);  logit = f sum_p e key;  v . up_r = sum_n c scale U;
//   to_e += delta key;  grad_c += g scale U;  to_q += (delta e) w^T;  then both norms.
// A block takes 64 tokens of a (b, group, part), head after head and memory after memory: turns. Two warpgroups have all tokens; one has half of the
// columns p of key and to_e and half of the n of all others. Each turn starts the products of the next memory, and to_q of the one before, and adds
// up what the turn before has multiplied; two warps that share 16 tokens exchange their halves of logit and v . up_r while the products begin.
// Memories come by the copy engine, STAGES - 2 turns ahead, rows of the next head two turns ahead.
// Numbers: delta e is rounded to bf16 once; other operands are inputs as they are, sums are f32.
// A lane holds of the tokens lane / 4 (k = 0) and lane / 4 + 8 (k = 1) the columns 8 i + 2 (lane % 4) + {0, 1} as elements 4 i + 2 k + {0, 1}; a
// fragment of the left operand has the same columns of both tokens in its four words.
#include "lib/sm90.cuh"
#include "sma/backward_token_side.cuh"

namespace sma_token_side {
namespace ahead {

constexpr uint32_t N = 128, P = 64, TOKENS = 64, THREADS = 256, STAGES = 6, HEADS = 4; // heads whose lse and r . up_r are held
constexpr uint32_t MEMORY_BYTES = N * tile_row, TILE_BYTES = TOKENS * tile_row, FACTOR_BYTES = N * 4, R_PITCH = P * 4 + 16;
constexpr uint32_t UP_AT = STAGES * MEMORY_BYTES, Q_AT = UP_AT + 2 * TILE_BYTES, C_AT = Q_AT + 2 * TILE_BYTES, R_AT = C_AT + 2 * TILE_BYTES,
                   FACTORS_AT = R_AT + TOKENS * R_PITCH, HEADS_AT = FACTORS_AT + STAGES * FACTOR_BYTES, PARTS_AT = HEADS_AT + HEADS * TOKENS * 8,
                   NORMS_AT = PARTS_AT + 2 * 8 * 128, BARRIERS_AT = NORMS_AT + TOKENS * 8, BYTES = BARRIERS_AT + STAGES * 8;

#ifdef __CUDA_ARCH_FEAT_SM90_ALL

// Sums over the four lanes that share a token and both warps of a pair, for two numbers of a token: each warp posts its own, and takes the sums.
struct Exchange {
    uint32_t at, turn; // in shared memory, of this pair
    __device__ __forceinline__ Exchange(uint32_t pair) : at(PARTS_AT + pair * 256), turn(0) {}
    __device__ __forceinline__ float *parts(uint32_t half) const
    {
        return reinterpret_cast<float *>(tensor_memory + at + turn % 2 * 1024 + half * 128);
    }
    __device__ __forceinline__ void post(uint32_t half, const float (&x)[2], const float (&y)[2])
    {
        const bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
        const float of_x = (odd ? x[1] : x[0]) + __shfl_xor_sync(0xffffffffu, odd ? x[0] : x[1], 1);
        const float of_y = (odd ? y[1] : y[0]) + __shfl_xor_sync(0xffffffffu, odd ? y[0] : y[1], 1);
        parts(half)[threadIdx.x % 32] = (high ? of_y : of_x) + __shfl_xor_sync(0xffffffffu, high ? of_x : of_y, 2);
    }
    // x of both tokens, y of both.
    __device__ __forceinline__ float4 take(uint32_t pair)
    {
        barrier(1 + pair, 64);
        const float4 one = reinterpret_cast<const float4 *>(parts(0))[threadIdx.x % 32 / 4],
                     other = reinterpret_cast<const float4 *>(parts(1))[threadIdx.x % 32 / 4];
        turn++;
        return make_float4(one.x + other.x, one.y + other.y, one.z + other.z, one.w + other.w);
    }
};

// Keeps accesses to sums behind the wait before.
template <uint32_t size> __device__ __forceinline__ void hold(float (&sums)[size])
{
#pragma unroll
    for (uint32_t i = 0; i < size; i++) asm volatile("" : "+f"(sums[i])::"memory");
}

// Starts key = q w for 32 of the p and u = up w^T for 64 of the n. memory: the operand of its row 0, own: that of the first of this half's rows n.
__device__ __forceinline__ void start(float (&key)[16], float (&u)[32], uint64_t q, uint64_t up, uint64_t memory, uint64_t own, uint32_t half)
{
    const uint64_t columns = operand_on(memory, 64 * half);
    multiply_narrow<true, true>(key, q, columns);
#pragma unroll
    for (uint32_t s = 1; s < 8; s++)
        multiply_narrow<true, false>(key, operand_on(q, s / 4 * TILE_BYTES + s % 4 * 32), operand_on(columns, 16 * tile_row * s));
    multiply_first<true>(u, up, own);
#pragma unroll
    for (uint32_t s = 1; s < 4; s++) multiply<true, false, true>(u, operand_on(up, 32 * s), operand_on(own, 32 * s));
}

// Starts to_q += weighed w^T for 64 of the n, the p in the order of weighed.
__device__ __forceinline__ void start_back(float (&sum_q)[32], const uint32_t (&weighed)[4][4], uint64_t own, uint32_t half)
{
#pragma unroll
    for (uint32_t s = 0; s < 4; s++) multiply<true, true>(sum_q, weighed[s], operand_on(own, (s + 2 * half) % 4 * 32));
}

__device__ __forceinline__ void run(const sma_backward_token_side_args &args, const CudaBindings &bindings, uint32_t dtypes, const CudaMap &map)
{
    const View r = VIEW(sma_backward_token_side, r), grad_q = VIEW(sma_backward_token_side, grad_q), grad_e = VIEW(sma_backward_token_side, grad_e),
               grad_c = VIEW(sma_backward_token_side, grad_c);
    const auto halves = [&](uint32_t binding) { return reinterpret_cast<const uint16_t *>(bindings.address[binding]); };
    const uint16_t *up_r = halves(BINDING_sma_backward_token_side_up_r) + args.up_r_at;
    const float *factor = FLOATS(sma_backward_token_side, factor) + args.factor_at, *lse = FLOATS(sma_backward_token_side, lse) + args.lse_at;
    const uint32_t H = args.H, tiles = ceil_div(args.L, TOKENS), in_part = H / args.G / args.parts;
    const uint32_t lane = threadIdx.x % 32, quad = lane % 4, line = lane / 4, warp = threadIdx.x / 32;
    const uint32_t pair = warp % 4, half = uniform(warp / 4), line0 = 16 * pair; // of the rows, of the tokens
    const size_t rows = args.flags & HAS_CU ? args.T : args.B * args.L;
    const uint32_t base = shared_address(tensor_memory), r_size = r.dtype == DTYPE_F32 ? 4 : 2, r_pieces = P * r_size / 16;
    if (threadIdx.x == 0) {
        for (uint32_t i = 0; i < STAGES; i++) attend::barrier_init(base + BARRIERS_AT + 8 * i, 1);
        attend::barriers_visible();
    }
    const auto memory_at = [&](uint32_t stage) { return operand_on(operand_at(base), stage * MEMORY_BYTES); };
    const auto own_at = [&](uint32_t stage) { return operand_on(operand_at(base), stage * MEMORY_BYTES + half * TILE_BYTES); };
    const auto up_at = [&](uint32_t h) { return operand_on(operand_at(base + UP_AT), h % 2 * TILE_BYTES); };
    const uint64_t q_at = operand_at(base + Q_AT);
    Exchange exchange(pair);
    uint32_t next = 0, parity = 0; // the stage of the memory that is multiplied next, and its phase
    FOR_TILES(tile) {
        const uint32_t of_tile = args.G * args.B, part = tile % args.parts, item = tile / args.parts, of = item % of_tile;
        const uint32_t first = (tiles - 1 - item / of_tile) * TOKENS, group = of % args.G, b = of / args.G;
        const Sequence piece = sequence_of(INTS(sma_backward_token_side, seq) + args.seq_at, args.flags, args.L, args.T, b);
        if (first >= piece.span) continue;
        const uint32_t live = first < piece.count ? min(piece.count - first, TOKENS) : 0;
        const uint32_t seen = live > 0 ? seen_by(args, piece.position, first + live - 1) : 0;
        const uint32_t row = piece.row + first, h_first = (group * args.parts + part) * in_part, h_end = h_first + in_part, total = seen * in_part;
        // Memories by the first thread, factors with them, each in the next stage.
        uint32_t to = next, fetch_m = 0, memory_row = (piece.slot(args.M, args.S) * H + h_first) * N, left_to_fetch = total;
        const auto fetch_memory = [&] {
            if (left_to_fetch == 0) return;
            const uint32_t full = base + BARRIERS_AT + 8 * to;
            attend::barrier_arrive_bytes(full, MEMORY_BYTES + FACTOR_BYTES);
            attend::map_copy(base + to * MEMORY_BYTES, map, args.dh_at / P + memory_row, full);
            attend::bulk_copy(base + FACTORS_AT + to * FACTOR_BYTES, factor + memory_row, FACTOR_BYTES, full);
            to = to + 1 == STAGES ? 0 : to + 1, left_to_fetch--, memory_row += H * N;
            if (++fetch_m == seen) fetch_m = 0, memory_row += N - seen * H * N;
        };
        const auto fetch_head = [&](uint32_t h) {
            uint32_t thread = threadIdx.x;
            asm volatile("" : "+r"(thread)); // addresses are made anew each time, for want of registers
            copy_tile<TOKENS, THREADS>(base + UP_AT + h % 2 * TILE_BYTES, up_r + size_t(row) * args.up_r_row + h * P, args.up_r_row, live, thread);
            if (thread < TOKENS) copy4(base + HEADS_AT + 8 * (h % HEADS * TOKENS + thread), lse + size_t(row + thread) * H + h, thread < live);
            // A single memory has the weight 1, whatever r is; else all are done with r of the head before.
            for (uint32_t i = thread; i < TOKENS * r_pieces && seen > 1; i += THREADS) {
                const uint32_t t = i / r_pieces, at = i % r_pieces * 16;
                copy16(base + R_AT + t * R_PITCH + at, r.base + (args.r_at + size_t(row + t) * args.r_row + h * P) * r_size + at, t < live);
            }
            copies_commit();
        };
        const auto add_dots = [&](uint32_t h) { // r . up_r, four lanes a token
            const uint32_t t = line0 + 8 * half + line;
            const View row_r = {tensor_memory + R_AT + t * R_PITCH, r.dtype};
            float along = 0.0f;
#pragma unroll 1
            for (uint32_t i = 0; i < 2; i++) {
                const uint4 of_up = get16(tensor_memory + UP_AT + h % 2 * TILE_BYTES, t, 2 * quad + i);
                along = add_eight<true>(of_up, row_r, 16 * quad + 8 * i, along);
            }
            along = lines_sum(along);
            if (quad == 0) *reinterpret_cast<float *>(tensor_memory + HEADS_AT + 8 * (h % HEADS * TOKENS + t) + 4) = along;
        };
        __syncthreads(); // all are done with the tile before
        const uint16_t *q_rows = halves(BINDING_sma_backward_token_side_q) + args.q_at + size_t(row) * args.q_row + group * N,
                       *e_rows = halves(BINDING_sma_backward_token_side_e) + args.e_at + size_t(row) * args.e_row + group * P,
                       *c_rows = halves(BINDING_sma_backward_token_side_c) + args.c_at + size_t(row) * args.c_row + group * N;
#pragma unroll
        for (uint32_t i = 0; i < 2; i++) {
            copy_tile<TOKENS, THREADS>(base + Q_AT + i * TILE_BYTES, q_rows + 64 * i, args.q_row, live, threadIdx.x);
            copy_tile<TOKENS, THREADS>(base + C_AT + i * TILE_BYTES, c_rows + 64 * i, args.c_row, live, threadIdx.x);
        }
        if (threadIdx.x == 0)
            for (uint32_t i = 0; i < STAGES - 2; i++) fetch_memory();
        if (total > 0) fetch_head(h_first);
        if (seen == 1 && in_part > 1) fetch_head(h_first + 1);
        copies_commit();

        uint32_t e[4][4]; // columns of this half first
        load_fragments(e, e_rows, args.e_row, line0, live, 2 * half);
        float by[2];     // f
        uint32_t own[2]; // memories that the tokens see
        float2 *norms = reinterpret_cast<float2 *>(tensor_memory + NORMS_AT) + line0 + line; // of each token 1 / rms(q) and 1 / rms(e)
        {
            uint32_t q[4][4];
            load_fragments(q, q_rows + 64 * half, args.q_row, line0, live);
            float of_q[2] = {}, of_e[2] = {};
#pragma unroll
            for (uint32_t i = 0; i < 16; i++) {
                const float2 x = unpack<true>(q[i / 4][i % 4]), y = unpack<true>(e[i / 4][i % 4]);
                of_q[i % 2] = fmaf(x.x, x.x, fmaf(x.y, x.y, of_q[i % 2]));
                if (i < 8) of_e[i % 2] = fmaf(y.x, y.x, fmaf(y.y, y.y, of_e[i % 2]));
            }
            exchange.post(half, of_q, of_e);
            const float4 squares = exchange.take(pair);
#pragma unroll
            for (uint32_t k = 0; k < 2; k++) {
                const float2 norm = make_float2(1.0f / sqrtf((k == 0 ? squares.x : squares.y) / float(N) + args.eps),
                                                1.0f / sqrtf((k == 0 ? squares.z : squares.w) / float(P) + args.eps));
                by[k] = norm.x * (1.0f / sqrtf(float(N))) * norm.y;
                if (half == 0 && quad == 0) norms[8 * k] = norm;
                const uint32_t t = line0 + line + 8 * k;
                own[k] = t < live ? seen_by(args, piece.position, first + t) : 0;
            }
        }
        float sum_q[32] = {}, sum_c[32] = {}, sum_e[16] = {}, key[2][16], u[2][32];
        uint32_t weighed[4][4] = {};
        uint32_t h = h_first, m = 0, now = next, last = next;
        // A lane for each token; one half has g, the other slope, which is that of q and e before their norms.
        float *to_weights = (half == 0 ? FLOATS(sma_backward_token_side, g) : FLOATS(sma_backward_token_side, slope)) +
                            size_t(h_first) * args.M * rows + row + line0 + line + 8 * (quad % 2);
        uint32_t c_at = base + C_AT + half * TILE_BYTES + tile_at(line0 + lane % 16, lane / 16);
        asm volatile("" : "+r"(c_at)); // not to be computed again
        const auto wait_for_memory = [&] {
            attend::barrier_wait(base + BARRIERS_AT + 8 * next, parity);
        };
        const auto pass_stage = [&] {
            last = now, now = next;
            if (++next == STAGES) next = 0, parity ^= 1;
        };
        if (total > 0) {
            copies_wait<0>();
            __syncthreads(); // the rows are here
            if (seen > 1) add_dots(h_first);
            wait_for_memory();
            products_begin();
            start(key[0], u[0], q_at, up_at(h), memory_at(next), own_at(next), half);
            products_commit();
            products_leave<0>();
            hold(key[0]);
            hold(u[0]);
            pass_stage();
            last = now;
        }
        const auto step = [&](float (&key_now)[16], float (&u_now)[32], float (&key_next)[16], float (&u_next)[32], bool more) {
            const bool begins = m + 1 == seen; // a head, with the next turn
            if (begins) copies_wait<0>();
            __syncthreads(); // all are done with the memory before the last one; rows of the next turn are here
            if (threadIdx.x == 0) fetch_memory();
            const uint32_t coming = seen == 1 ? h + 2 : h + 1;
            if ((m + 2 == seen || seen == 1) && coming < h_end) fetch_head(coming);
            if (begins && more && seen > 1) add_dots(h + 1);
            float logit[2] = {}, along[2] = {}; // shares of logit and v . up_r
#pragma unroll
            for (uint32_t i = 0; i < 8; i++)
                logit[i % 2] = add_pair<true>(e[i / 4][i % 4], key_now[2 * i], key_now[2 * i + 1], logit[i % 2]);
            const float *scales = reinterpret_cast<const float *>(tensor_memory + FACTORS_AT + now * FACTOR_BYTES) + 64 * half + 2 * quad;
#pragma unroll
            for (uint32_t s = 0; s < 4; s++) {
                uint32_t reads[4];
                load_matrices(reads, c_at ^ 32 * s);
#pragma unroll
                for (uint32_t i = 0; i < 2; i++) {
                    const float2 scale = *reinterpret_cast<const float2 *>(scales + 16 * s + 8 * i);
#pragma unroll
                    for (uint32_t k = 0; k < 2; k++) {
                        const uint32_t j = 8 * s + 4 * i + 2 * k;
                        u_now[j] *= scale.x, u_now[j + 1] *= scale.y;
                        along[k] = add_pair<true>(reads[2 * i + k], u_now[j], u_now[j + 1], along[k]);
                    }
                }
            }
            exchange.post(half, logit, along);
            // What the sums over lanes and warps wait for, the products begin in.
            if (more) wait_for_memory(); // else the products are of what lies there, and not used
            products_begin();
            start_back(sum_q, weighed, own_at(last), half);
            products_commit();
            start(key_next, u_next, q_at, up_at(begins ? h + 1 : h), memory_at(next), own_at(next), half);
            products_commit();
            const float4 sums = exchange.take(pair);
            float own_g[2], delta[2];
#pragma unroll
            for (uint32_t k = 0; k < 2; k++) {
                const float2 of_head = reinterpret_cast<const float2 *>(tensor_memory + HEADS_AT)[h % HEADS * TOKENS + line0 + line + 8 * k];
                const bool sees = m < own[k];
                own_g[k] = sees ? decay_exp((k == 0 ? sums.x : sums.y) * by[k] - of_head.x) : 0.0f;
                delta[k] = sees && own[k] > 1 ? own_g[k] * ((k == 0 ? sums.z : sums.w) - of_head.y) : 0.0f;
            }
            {
                const float value = half == 0 ? (quad == 0 ? own_g[0] : own_g[1]) : (quad == 0 ? delta[0] * by[0] : delta[1] * by[1]);
                if (quad < 2 && m < (quad == 0 ? own[0] : own[1])) *to_weights = value;
            }
#pragma unroll
            for (uint32_t j = 0; j < 32; j++) sum_c[j] = fmaf(own_g[j / 2 % 2], u_now[j], sum_c[j]);
#pragma unroll
            for (uint32_t j = 0; j < 16; j++) sum_e[j] = fmaf(delta[j / 2 % 2], key_now[j], sum_e[j]);
            products_leave<1>(); // that which reads weighed
            hold(sum_q);
            const uint2 weights[2] = {factors_of<true>(delta[0], delta[0]), factors_of<true>(delta[1], delta[1])};
#pragma unroll
            for (uint32_t i = 0; i < 16; i++) weighed[i / 4][i % 4] = multiply_pair<true>(e[i / 4][i % 4], weights[i % 2]);
            products_leave<0>();
            hold(key_next);
            hold(u_next);
            to_weights += rows;
            if (begins) to_weights += (args.M - seen) * rows, m = 0, h++;
            else m++;
            pass_stage();
        };
#pragma unroll 1
        for (uint32_t turn = 0; turn < total; turn += 2) {
            step(key[0], u[0], key[1], u[1], turn + 1 < total);
            if (turn + 1 < total) step(key[1], u[1], key[0], u[0], turn + 2 < total);
        }
        if (total > 0) {
            products_begin();
            start_back(sum_q, weighed, own_at(last), half);
            products_commit();
            products_leave<0>();
            hold(sum_q);
            next = now, parity ^= now == STAGES - 1 ? 1 : 0; // no memory came to the last stage
        }
        copies_landed<0>();

        uint32_t q[4][4];
        load_fragments(q, q_rows + 64 * half, args.q_row, line0, live);
        float along_q[2] = {}, along_e[2] = {}; // to_q . q and to_e . e
#pragma unroll
        for (uint32_t i = 0; i < 16; i++) along_q[i % 2] = add_pair<true>(q[i / 4][i % 4], sum_q[2 * i], sum_q[2 * i + 1], along_q[i % 2]);
#pragma unroll
        for (uint32_t i = 0; i < 8; i++) along_e[i % 2] = add_pair<true>(e[i / 4][i % 4], sum_e[2 * i], sum_e[2 * i + 1], along_e[i % 2]);
        exchange.post(half, along_q, along_e);
        const float4 along = exchange.take(pair);
        const bool adds = args.flags & IS_ADD, whole = args.parts == 1;
        const size_t part_row = row + part * rows; // where gradients go
#pragma unroll
        for (uint32_t k = 0; k < 2; k++) {
            const float2 norm = norms[8 * k];
            const float back_q = whole ? norm.x * norm.x * (k == 0 ? along.x : along.y) / float(N) : 0.0f;
            const float back_e = whole ? norm.y * norm.y * (k == 0 ? along.z : along.w) / float(P) : 0.0f;
            const float of_both = whole ? by[k] : 1.0f;
            const uint32_t t = line0 + line + 8 * k;
            const bool is = first + t < piece.span;
            float2 to_q[8], to_c[8], to_e[4];
#pragma unroll
            for (uint32_t i = 0; i < 8; i++) {
                const uint32_t j = 4 * i + 2 * k;
                const float2 x = unpack<true>(q[i / 2][i % 2 * 2 + k]);
                to_q[i] = make_float2(of_both * (sum_q[j] - back_q * x.x), of_both * (sum_q[j + 1] - back_q * x.y));
                to_c[i] = make_float2(sum_c[j], sum_c[j + 1]);
                if (i >= 4) continue;
                const float2 y = unpack<true>(e[i / 2][i % 2 * 2 + k]);
                to_e[i] = make_float2(of_both * (sum_e[j] - back_e * y.x), of_both * (sum_e[j + 1] - back_e * y.y));
            }
            const size_t token = part_row + t, n0 = group * N + 64 * half + 2 * quad;
            if (is) put_row(grad_q, args.grad_q_at + token * args.grad_q_row + n0, to_q, false);
            if (is) put_row(grad_e, args.grad_e_at + token * args.grad_e_row + group * P + 32 * half + 2 * quad, to_e, false);
            if (adds ? t < live : is) put_row(grad_c, args.grad_c_at + token * args.grad_c_row + n0, to_c, adds);
        }
    }
}

#endif

} // namespace ahead
} // namespace sma_token_side

static_assert(sma_token_side::ahead::BYTES == SHARED_sma_backward_token_side_ahead_bf16 &&
                  sma_token_side::ahead::TOKENS == TILE0_sma_backward_token_side_ahead_bf16 &&
                  sma_token_side::ahead::THREADS == THREADS_sma_backward_token_side_ahead_bf16,
              "the shape of the row");
KERNEL_FUNCTION_MAPPED(sma_backward_token_side, ahead_bf16, 1)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    sma_token_side::ahead::run(args, bindings, dtypes, map);
#endif
}
