// sma_backward_token_side on the warp products of sm_80 or the warpgroup products of sm_90a (rows sm90; bf16 of N 128 in
// backward_token_side_ahead.cu), for N 128 or, of warpgroups, 64, P 64 and normalised memories w of the 16-bit type of q, e, c and up_r. Of q and e
// before their norms, with f the product of the factors that the norms give them and scale that of row n of the memory:
//   Z = e w^T, U = up_r w^T (tokens x N), key = q w (tokens x P);  logit = f sum_n q Z;  v . up_r = sum_n c scale U;
//   to_q += delta Z;  grad_c += g scale U;  to_e += delta key;  then both norms.
// A block takes 64 tokens of a (b, group, part), head after head, the memories one by one through shared memory, and the tiles that see most memories
// come first; for N 64, where memories are small and many, those of a sequence follow one another and find its memories in the L2 cache. A warp has
// 16 tokens and 64 of the n: of N 128, two warps share 16 tokens, and of every memory they exchange the halves of logit and v . up_r. In a warpgroup
// all have the same n, and key is multiplied beside the sums of logit.
// Numbers: all operands of products are inputs as they are, everything else is f32.
// A lane holds of the tokens lane / 4 (k = 0) and lane / 4 + 8 (k = 1) the columns 8 i + 2 (lane % 4) + {0, 1} as elements 4 i + 2 k + {0, 1}; a
// fragment of the left operand has the same columns of both tokens in its four words.
// Shared memory: 2 x (16 KiB memory, 8 KiB up_r, 768 bytes), 16 KiB c, 8 KiB e, 17 KiB r, 2,816 bytes: 95,488 bytes. For N 64: 68,352 bytes.
#include "sma/backward_token_side.cuh"

namespace sma_token_side {

constexpr uint32_t P = 64, TOKENS = 64, PAIRS = 4, STAGES = 2;
constexpr uint32_t TILE_BYTES = TOKENS * tile_row, R_PITCH = P * 4 + 16;
// What depends on N: halves of 64 n, threads, and where things lie in shared memory.
template <uint32_t N> struct Shape {
    static constexpr uint32_t HALVES = N / 64, THREADS = 128 * HALVES, MEMORY_BYTES = N * tile_row;
    static constexpr uint32_t UP_AT = STAGES * MEMORY_BYTES, C_AT = UP_AT + STAGES * TILE_BYTES, E_AT = C_AT + HALVES * TILE_BYTES,
                              R_AT = E_AT + TILE_BYTES, FACTORS_AT = R_AT + TOKENS * R_PITCH, LSE_AT = FACTORS_AT + STAGES * N * 4,
                              PARTS_AT = LSE_AT + 2 * TOKENS * 4, DOTS_AT = PARTS_AT + (HALVES - 1) * 2 * TOKENS * 2 * 8,
                              NORMS_AT = DOTS_AT + TOKENS * 4, BYTES = NORMS_AT + TOKENS * 8;
};

__device__ __forceinline__ float *floats_at(uint32_t at) { return reinterpret_cast<float *>(tensor_memory + at); }

// What the two warps of a pair, where there are pairs, tell each other: two numbers a token, of which both then have the sum over the four lanes
// that share a token and both warps.
template <uint32_t N> struct Exchange {
    uint32_t pair, half, turn;
    __device__ __forceinline__ void sum(float2 (&v)[2])
    {
        const uint32_t lane = threadIdx.x % 32;
        float2 *at = reinterpret_cast<float2 *>(tensor_memory + Shape<N>::PARTS_AT) + ((turn % 2 * PAIRS + pair) * 2) * 16 + lane / 4;
#pragma unroll
        for (uint32_t k = 0; k < 2; k++) {
            v[k].x = lines_sum(v[k].x), v[k].y = lines_sum(v[k].y);
            if (Shape<N>::HALVES > 1 && lane % 4 == 0) at[half * 16 + 8 * k] = v[k];
        }
        if constexpr (Shape<N>::HALVES == 1) {
            __syncwarp(); // what the warp wrote before is visible to it, as after the barrier
            return;
        }
        barrier(1 + pair, 64);
#pragma unroll
        for (uint32_t k = 0; k < 2; k++) {
            const float2 other = at[(half ^ 1) * 16 + 8 * k];
            v[k].x += other.x, v[k].y += other.y;
        }
        turn++;
    }
};

// to_e += delta key of the 64 rows of a memory at `rows`. Warps multiply in add, 16 p at a time, warpgroups from begin on.
template <bool bf, bool sm90> struct Key {
    __device__ __forceinline__ void begin(const uint32_t (&)[4][4], uint32_t) {}
    __device__ __forceinline__ void add(float (&sum)[32], const float (&delta)[2], const uint32_t (&q)[4][4], uint32_t rows) const
    {
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            float key[8] = {};
#pragma unroll
            for (uint32_t s = 0; s < 4; s++) {
                uint32_t right[4];
                load_matrices_turned(right, rows + tile_at(16 * s + threadIdx.x % 16, 2 * i + threadIdx.x % 32 / 16));
                multiply_16<bf>(key, q[s], right);
            }
#pragma unroll
            for (uint32_t j = 0; j < 8; j++) sum[8 * i + j] = fmaf(delta[j / 2 % 2], key[j], sum[8 * i + j]);
        }
    }
};
// Begins z = rows w^T of a warpgroup: those of its 64 tokens at `of_tokens`, of e or up_r, by 64 rows of a memory.
template <bool bf> __device__ __forceinline__ void multiply_rows(float (&z)[32], uint32_t of_tokens, uint32_t line0, uint32_t rows);
// Waits until at most the last `count` groups of products are unfinished, in which z is not.
template <int count> __device__ __forceinline__ void products_left(float (&z)[32])
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    products_leave<count>();
#pragma unroll
    for (uint32_t i = 0; i < 32; i++) asm volatile("" : "+f"(z[i])::"memory");
#endif
}
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
template <bool bf> struct Key<bf, true> {
    float key[32];
    __device__ __forceinline__ void begin(const uint32_t (&q)[4][4], uint32_t rows)
    {
        products_begin();
        multiply_first<bf>(key, q[0], operand_at(rows));
#pragma unroll
        for (uint32_t s = 1; s < 4; s++) multiply<bf>(key, q[s], operand_on(operand_at(rows), 2048 * s));
        products_commit();
    }
    __device__ __forceinline__ void add(float (&sum)[32], const float (&delta)[2], const uint32_t (&)[4][4], uint32_t)
    {
        products_left<0>(key);
#pragma unroll
        for (uint32_t j = 0; j < 32; j++) sum[j] = fmaf(delta[j / 2 % 2], key[j], sum[j]);
    }
};

template <bool bf> __device__ __forceinline__ void multiply_rows(float (&z)[32], uint32_t of_tokens, uint32_t line0, uint32_t rows)
{
    uint32_t left[4][4];
#pragma unroll
    for (uint32_t s = 0; s < 4; s++) load_matrices(left[s], of_tokens + tile_at(line0 + threadIdx.x % 16, 2 * s + threadIdx.x % 32 / 16));
    products_begin();
    multiply_first<bf, true>(z, left[0], operand_at(rows));
#pragma unroll
    for (uint32_t s = 1; s < 4; s++) multiply<bf, true>(z, left[s], operand_on(operand_at(rows), 32 * s));
    products_commit();
}
#endif

// sm90: products of warpgroups (sm_90a), else of warps.
template <bool bf, bool sm90, uint32_t N = 128>
__device__ __forceinline__ void run(const sma_backward_token_side_args &args, const CudaBindings &bindings, uint32_t dtypes)
{
    using At = Shape<N>;
    constexpr uint32_t HALVES = At::HALVES, THREADS = At::THREADS, MEMORY_BYTES = At::MEMORY_BYTES, UP_AT = At::UP_AT, C_AT = At::C_AT,
                       E_AT = At::E_AT, R_AT = At::R_AT, FACTORS_AT = At::FACTORS_AT, LSE_AT = At::LSE_AT, DOTS_AT = At::DOTS_AT;
    const View r = VIEW(sma_backward_token_side, r), grad_q = VIEW(sma_backward_token_side, grad_q), grad_e = VIEW(sma_backward_token_side, grad_e),
               grad_c = VIEW(sma_backward_token_side, grad_c);
    const auto halves = [&](uint32_t binding) { return reinterpret_cast<const uint16_t *>(bindings.address[binding]); };
    const uint16_t *dh = halves(BINDING_sma_backward_token_side_dh) + args.dh_at, *up_r = halves(BINDING_sma_backward_token_side_up_r) + args.up_r_at;
    const float *factor = FLOATS(sma_backward_token_side, factor) + args.factor_at, *lse = FLOATS(sma_backward_token_side, lse) + args.lse_at;
    const uint32_t H = args.H, tiles = ceil_div(args.L, TOKENS), in_part = H / args.G / args.parts;
    const uint32_t lane = threadIdx.x % 32, quad = lane % 4, line = lane / 4, warp = threadIdx.x / 32;
    const uint32_t pair = sm90 ? warp % 4 : warp / HALVES, half = sm90 ? warp / 4 : warp % HALVES, line0 = 16 * pair;
    const size_t rows = args.flags & HAS_CU ? args.T : args.B * args.L;
    const uint32_t base = shared_address(tensor_memory), r_size = r.dtype == DTYPE_F32 ? 4 : 2, r_pieces = P * r_size / 16;
    Exchange<N> exchange = {pair, half, 0};
    FOR_TILES(tile) {
        const uint32_t of_tile = args.G * args.B, part = tile % args.parts, item = tile / args.parts;
        const uint32_t late = N == 64 ? item % tiles : item / of_tile, of = N == 64 ? item / tiles : item % of_tile;
        const uint32_t first = (tiles - 1 - late) * TOKENS, group = of % args.G, b = of / args.G;
        const Sequence piece = sequence_of(INTS(sma_backward_token_side, seq) + args.seq_at, args.flags, args.L, args.T, b);
        if (first >= piece.span) continue;
        const uint32_t live = first < piece.count ? min(piece.count - first, TOKENS) : 0;
        const uint32_t seen = live > 0 ? seen_by(args, piece.position, first + live - 1) : 0;
        const uint32_t pair_seen = sm90 ? seen : live > line0 ? seen_by(args, piece.position, first + min(live, line0 + 16) - 1) : 0;
        const uint32_t row = piece.row + first, slots = piece.slot(args.M, args.S);
        const uint32_t total = seen * in_part, h_first = (group * args.parts + part) * in_part;
        uint32_t next_h = h_first, next_m = 0; // of the next fetch
        const auto fetch = [&](uint32_t turn) {
            if (turn < total) {
                uint32_t thread = threadIdx.x;
                asm volatile("" : "+r"(thread)); // addresses are made anew each time, for want of registers
                const uint32_t to = turn % STAGES, of_head = next_h % 2;
                const size_t memory = (size_t(slots + next_m) * H + next_h) * N, token = size_t(row);
                copy_tile<N, THREADS>(base + to * MEMORY_BYTES, dh + memory * P, P, N, thread);
                if (thread < N) copy4(base + FACTORS_AT + 4 * (to * N + thread), factor + memory + thread, true);
                if (next_m == 0) { // another head, while the last memory of the one before is multiplied
                    copy_tile<TOKENS, THREADS>(base + UP_AT + of_head * TILE_BYTES, up_r + token * args.up_r_row + next_h * P, args.up_r_row, live,
                                               thread);
                    if (thread < TOKENS) {
                        const float *from = lse + (token + thread) * H + next_h;
                        copy4(base + LSE_AT + 4 * (of_head * TOKENS + thread), from, thread < live);
                    }
                    // A single memory has the weight 1, whatever r is; else all are done with r of the head before.
                    for (uint32_t i = thread; i < TOKENS * r_pieces && seen > 1; i += THREADS) {
                        const uint32_t t = i / r_pieces, at = i % r_pieces * 16;
                        const char *from = r.base + (args.r_at + (token + t) * args.r_row + next_h * P) * r_size + at;
                        copy16(base + R_AT + t * R_PITCH + at, from, t < live);
                    }
                }
                if (++next_m == seen) next_m = 0, next_h++;
            }
            copies_commit();
        };
        __syncthreads(); // all are done with the tile before
        const size_t token = row;
        const uint16_t *q_rows = halves(BINDING_sma_backward_token_side_q) + args.q_at + token * args.q_row + group * N + 64 * half,
                       *e_rows = halves(BINDING_sma_backward_token_side_e) + args.e_at + token * args.e_row + group * P,
                       *c_rows = halves(BINDING_sma_backward_token_side_c) + args.c_at + token * args.c_row + group * N;
#pragma unroll
        for (uint32_t i = 0; i < HALVES; i++)
            copy_tile<TOKENS, THREADS>(base + C_AT + i * TILE_BYTES, c_rows + 64 * i, args.c_row, live, threadIdx.x);
        copy_tile<TOKENS, THREADS>(base + E_AT, e_rows, args.e_row, live, threadIdx.x);
        fetch(0);

        uint32_t q[4][4]; // this warp's half of the n
        load_fragments(q, q_rows, args.q_row, line0, live);
        const float root = 1.0f / sqrtf(float(N));
        float2 *norms = reinterpret_cast<float2 *>(tensor_memory + At::NORMS_AT) + line0 + line; // of each token 1 / rms(q) and 1 / rms(e)
        float by[2];     // f
        uint32_t own[2]; // memories that the tokens see
        {
            uint32_t e[4][4];
            load_fragments(e, e_rows, args.e_row, line0, live);
            float2 squares[2] = {};
#pragma unroll
            for (uint32_t k = 0; k < 2; k++) {
#pragma unroll
                for (uint32_t s = 0; s < 4; s++) {
#pragma unroll
                    for (uint32_t i = 0; i < 2; i++) {
                        const float2 x = unpack<bf>(q[s][2 * i + k]), y = unpack<bf>(e[s][2 * i + k]);
                        squares[k].x = fmaf(x.x, x.x, fmaf(x.y, x.y, squares[k].x));
                        squares[k].y = fmaf(y.x, y.x, fmaf(y.y, y.y, squares[k].y));
                    }
                }
            }
            exchange.sum(squares); // all halves have all of e
#pragma unroll
            for (uint32_t k = 0; k < 2; k++) {
                const uint32_t t = line0 + line + 8 * k;
                const float of_q = sqrtf(squares[k].x / float(N) + args.eps), of_e = sqrtf(1.0f / HALVES * squares[k].y / float(P) + args.eps);
                const float2 norm = make_float2(1.0f / of_q, 1.0f / of_e);
                by[k] = norm.x * root * norm.y;
                if (half == 0 && quad == 0) norms[8 * k] = norm;
                own[k] = t < live ? seen_by(args, piece.position, first + t) : 0;
            }
        }
        float sum_q[32] = {}, sum_c[32] = {}, sum_e[32] = {};
        uint32_t h = h_first, m = 0;
#pragma unroll 1
        for (uint32_t turn = 0; turn < total; turn++) {
            copies_wait<0>();
            __syncthreads(); // the memory of this turn is here, and all are done with that of the turn before
            fetch(turn + 1);
            const uint32_t stage = turn % STAGES, memory = base + stage * MEMORY_BYTES;
            if (m == 0 && seen > 1) { // r . up_r, four lanes a token
#pragma unroll 1
                for (uint32_t eight = half; eight < 2; eight += HALVES) {
                    const uint32_t t = line0 + 8 * eight + line;
                    const View row_r = {tensor_memory + R_AT + t * R_PITCH, r.dtype};
                    float along = 0.0f;
#pragma unroll
                    for (uint32_t i = 0; i < 2; i++) {
                        const uint4 of_up = get16(tensor_memory + UP_AT + h % 2 * TILE_BYTES, t, 2 * quad + i);
                        along = add_eight<bf>(of_up, row_r, 16 * quad + 8 * i, along);
                    }
                    along = lines_sum(along);
                    if (quad == 0) floats_at(DOTS_AT)[t] = along;
                }
            }
            if (m < pair_seen) {
                float z[32], u[32];
                Key<bf, sm90> key;
                if constexpr (sm90) {
                    multiply_rows<bf>(z, base + E_AT, line0, memory + half * TILE_BYTES);
                    multiply_rows<bf>(u, base + UP_AT + h % 2 * TILE_BYTES, line0, memory + half * TILE_BYTES);
                    products_left<1>(z);
                    key.begin(q, memory + half * TILE_BYTES);
                } else {
                    clear(z);
                    clear(u);
#pragma unroll
                    for (uint32_t s = 0; s < 4; s++) { // 16 p of depth at a time
                        uint32_t e[4], up[4];
                        load_matrices(e, base + E_AT + tile_at(line0 + lane % 16, 2 * s + lane / 16));
                        load_matrices(up, base + UP_AT + h % 2 * TILE_BYTES + tile_at(line0 + lane % 16, 2 * s + lane / 16));
#pragma unroll
                        for (uint32_t i = 0; i < 4; i++) { // 16 n
                            uint32_t right[4];
                            load_matrices(right, memory + tile_at(64 * half + 16 * i + lane % 8 + lane / 16 * 8, 2 * s + lane / 8 % 2));
                            multiply_16<bf>(z + 8 * i, e, right);
                            multiply_16<bf>(u + 8 * i, up, right);
                        }
                    }
                }
                float2 part[2] = {}; // logit, v . up_r
#pragma unroll
                for (uint32_t j = 0; j < 32; j += 2)
                    part[j / 2 % 2].x = add_pair<bf>(q[j / 8][j / 4 % 2 * 2 + j / 2 % 2], z[j], z[j + 1], part[j / 2 % 2].x);
                if constexpr (sm90) products_left<1>(u);
#pragma unroll
                for (uint32_t s = 0; s < 4; s++) {
                    uint32_t reads[4];
                    load_matrices(reads, base + C_AT + half * TILE_BYTES + tile_at(line0 + lane % 16, 2 * s + lane / 16));
#pragma unroll
                    for (uint32_t i = 0; i < 2; i++) {
                        const float *scales = floats_at(FACTORS_AT) + stage * N + 64 * half + 16 * s + 8 * i;
                        const float2 scale = *reinterpret_cast<const float2 *>(scales + 2 * quad);
#pragma unroll
                        for (uint32_t k = 0; k < 2; k++) {
                            const uint32_t j = 8 * s + 4 * i + 2 * k;
                            u[j] *= scale.x, u[j + 1] *= scale.y;
                            part[k].y = add_pair<bf>(reads[2 * i + k], u[j], u[j + 1], part[k].y);
                        }
                    }
                }
                exchange.sum(part);
                float own_g[2], delta[2];
#pragma unroll
                for (uint32_t k = 0; k < 2; k++) {
                    const uint32_t t = line0 + line + 8 * k;
                    const bool sees = m < own[k];
                    own_g[k] = sees ? exp_below(part[k].x * by[k] - floats_at(LSE_AT)[h % 2 * TOKENS + t]) : 0.0f;
                    delta[k] = sees && own[k] > 1 ? own_g[k] * (part[k].y - floats_at(DOTS_AT)[t]) : 0.0f;
                }
                { // a lane for each token, and each of g and slope unless the other half has slope, which is that of q and e before their norms
                    const uint32_t which = HALVES > 1 ? half : quad / 2, k = HALVES > 1 ? quad : quad % 2, t = line0 + line + 8 * k;
                    const float value = which == 0 ? (k == 0 ? own_g[0] : own_g[1]) : (k == 0 ? delta[0] * by[0] : delta[1] * by[1]);
                    float *to = which == 0 ? FLOATS(sma_backward_token_side, g) : FLOATS(sma_backward_token_side, slope);
                    if (k < 2 && m < (k == 0 ? own[0] : own[1])) to[(h * args.M + m) * rows + row + t] = value;
                }
#pragma unroll
                for (uint32_t i = 0; i < 8; i++) {
#pragma unroll
                    for (uint32_t k = 0; k < 2; k++) {
                        const uint32_t j = 4 * i + 2 * k;
                        sum_q[j] = fmaf(delta[k], z[j], sum_q[j]);
                        sum_q[j + 1] = fmaf(delta[k], z[j + 1], sum_q[j + 1]);
                        sum_c[j] = fmaf(own_g[k], u[j], sum_c[j]);
                        sum_c[j + 1] = fmaf(own_g[k], u[j + 1], sum_c[j + 1]);
                    }
                }
                key.add(sum_e, delta, q, memory + half * TILE_BYTES);
            }
            if (++m == seen) m = 0, h++;
        }
        copies_landed<0>();

        // Of two halves, the other warp's of the sum over n goes through what held r.
        float4 *share = reinterpret_cast<float4 *>(tensor_memory + R_AT) + pair * 8 * 32 + lane;
        if (half == 1) {
#pragma unroll
            for (uint32_t i = 0; i < 8; i++) share[i * 32] = make_float4(sum_e[4 * i], sum_e[4 * i + 1], sum_e[4 * i + 2], sum_e[4 * i + 3]);
        }
        uint32_t e[4][4];
        load_fragments(e, e_rows, args.e_row, line0, live);
        float2 along[2] = {}; // to_q . q, then to_e . e
#pragma unroll
        for (uint32_t i = 0; i < 16; i++)
            along[i % 2].x = add_pair<bf>(q[i / 4][i / 2 % 2 * 2 + i % 2], sum_q[2 * i], sum_q[2 * i + 1], along[i % 2].x);
        exchange.sum(along);
        if (half == 0) {
#pragma unroll
            for (uint32_t i = 0; i < 8 && HALVES > 1; i++) {
                const float4 other = share[i * 32];
                sum_e[4 * i] += other.x, sum_e[4 * i + 1] += other.y, sum_e[4 * i + 2] += other.z, sum_e[4 * i + 3] += other.w;
            }
#pragma unroll
            for (uint32_t i = 0; i < 16; i++)
                along[i % 2].y = add_pair<bf>(e[i / 4][i / 2 % 2 * 2 + i % 2], sum_e[2 * i], sum_e[2 * i + 1], along[i % 2].y);
#pragma unroll
            for (uint32_t k = 0; k < 2; k++) along[k].y = lines_sum(along[k].y);
        }
        const bool adds = args.flags & IS_ADD, whole = args.parts == 1;
        const size_t part_row = row + part * rows; // where gradients go
#pragma unroll
        for (uint32_t k = 0; k < 2; k++) {
            const float2 norm = norms[8 * k];
            const float back_q = whole ? norm.x * norm.x * along[k].x / float(N) : 0.0f;
            const float back_e = whole ? norm.y * norm.y * along[k].y / float(P) : 0.0f;
            const float factor = whole ? by[k] : 1.0f;
            const uint32_t t = line0 + line + 8 * k;
            const bool is = first + t < piece.span;
            float2 to_q[8], to_e[8], to_c[8];
#pragma unroll
            for (uint32_t i = 0; i < 8; i++) {
                const uint32_t j = 4 * i + 2 * k;
                const float2 x = unpack<bf>(q[i / 2][i % 2 * 2 + k]), y = unpack<bf>(e[i / 2][i % 2 * 2 + k]);
                to_q[i] = make_float2(factor * (sum_q[j] - back_q * x.x), factor * (sum_q[j + 1] - back_q * x.y));
                to_e[i] = make_float2(factor * (sum_e[j] - back_e * y.x), factor * (sum_e[j + 1] - back_e * y.y));
                to_c[i] = make_float2(sum_c[j], sum_c[j + 1]);
            }
            const size_t token = part_row + t, n0 = group * N + 64 * half + 2 * quad;
            if (is) put_row(grad_q, args.grad_q_at + token * args.grad_q_row + n0, to_q, false);
            if (is && half == 0) put_row(grad_e, args.grad_e_at + token * args.grad_e_row + group * P + 2 * quad, to_e, false);
            if (adds ? t < live : is) put_row(grad_c, args.grad_c_at + token * args.grad_c_row + n0, to_c, adds);
        }
    }
}

} // namespace sma_token_side

#define DART_CHECK(variant, N) \
    static_assert(sma_token_side::Shape<N>::BYTES == SHARED_sma_backward_token_side_##variant && \
                      sma_token_side::TOKENS == TILE0_sma_backward_token_side_##variant && \
                      sma_token_side::Shape<N>::THREADS == THREADS_sma_backward_token_side_##variant, \
                  "the shape of the row")
DART_CHECK(tensor_bf16, 128);
DART_CHECK(tensor_f16, 128);
DART_CHECK(sm90_f16, 128);
DART_CHECK(sm90_n64_bf16, 64);
DART_CHECK(sm90_n64_f16, 64);
#undef DART_CHECK
KERNEL_FUNCTION_BLOCKS(sma_backward_token_side, tensor_bf16, 1) { sma_token_side::run<true, false>(args, bindings, dtypes); }
KERNEL_FUNCTION_BLOCKS(sma_backward_token_side, tensor_f16, 1) { sma_token_side::run<false, false>(args, bindings, dtypes); }
KERNEL_FUNCTION_BLOCKS(sma_backward_token_side, sm90_f16, 1)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    sma_token_side::run<false, true>(args, bindings, dtypes);
#endif
}
KERNEL_FUNCTION_BLOCKS(sma_backward_token_side, sm90_n64_bf16, 2)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    sma_token_side::run<true, true, 64>(args, bindings, dtypes);
#endif
}
KERNEL_FUNCTION_BLOCKS(sma_backward_token_side, sm90_n64_f16, 2)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    sma_token_side::run<false, true, 64>(args, bindings, dtypes);
#endif
}
