// cross_entropy_x and cross_entropy_weight (shaders/loss/args.h) on the warp products of sm_80.
// A block of threads keeps 128 rows of one tensor (left) in registers, 16 R a warp. The other one (right) passes through shared memory, 64 rows at
// a time, one block of them ahead, and serves twice: products = left right^T, then sums += f(products) right, where f(products) are rounded to
// 16 bits in the registers in which they come.
//   cross_entropy_x: left x, right weight, an attention of x_t over keys and values in one. Its own target has no part in the sums and is added in
//     f32 at the end. Terms are relative to a reference of the row, which changes only when some logit exceeds it by more than SLACK (powers of 2).
//     The reference leaves the target out, so that terms beside a target that is nearly certain keep their digits in f16.
//   cross_entropy_weight: left weight, right x of one part. Slopes are rounded times 2^SHIFT, so that f16 holds those below 2^-14 with all
//     digits; it falls away with share at the end.
// Columns from width up to 16 STEPS count as 0.
// Shared memory: 2 x 64 rows of 32 STEPS + 16 bytes; cross_entropy_weight: 3 x 64 x 8 bytes more.
#include "lib/attend.cuh"

namespace attend {
namespace head_tensor {

constexpr uint32_t BLOCK = 64, TILE = 128, ALL = 0xffffffffu;
constexpr uint32_t NO_LABEL = 0xffffffffu; // no number of a row of weight, nor near one
constexpr float SLACK = 8.0f, SHIFT = 12.0f, SHIFTED = 4096.0f;
constexpr uint32_t bytes_of(uint32_t steps, bool limits) { return 2 * BLOCK * (32 * steps + 16) + (limits ? 3 * BLOCK * 8 : 0); }

__device__ __forceinline__ float infinity() { return __uint_as_float(0x7f800000u); }
__device__ __forceinline__ uint32_t label_of(int32_t target, uint32_t vocabulary)
{
    return uint32_t(target) < vocabulary ? uint32_t(target) : NO_LABEL; // vocabulary is below 2^31
}
// Over the four threads that share a row.
__device__ __forceinline__ float row_top(float value)
{
    value = fmaxf(value, __shfl_xor_sync(ALL, value, 1));
    return fmaxf(value, __shfl_xor_sync(ALL, value, 2));
}
__device__ __forceinline__ float row_sum(float value)
{
    value += __shfl_xor_sync(ALL, value, 1);
    return value + __shfl_xor_sync(ALL, value, 2);
}
__device__ __forceinline__ void store_pair(const View &view, size_t at, float x, float y) // at is even
{
    if (view.dtype == DTYPE_F32) reinterpret_cast<float2 *>(view.base)[at / 2] = make_float2(x, y);
    else
        reinterpret_cast<uint32_t *>(view.base)[at / 2] =
            view.dtype == DTYPE_BF16 ? Pair<DTYPE_BF16>::round(x, y) : Pair<DTYPE_F16>::round(x, y);
}

// What a warp keeps. A thread's elements of products and sums: of tile r of 16 rows, rows k = 0, 1 (lane / 4 and 8 more), columns
// 8 j + 2 (lane % 4) + {0, 1} at [r][j][2 k + {0, 1}].
template <uint32_t dtype, uint32_t STEPS, uint32_t R> struct Warp {
    static constexpr uint32_t PITCH = 32 * STEPS + 16; // bytes from row to row: no bank twice in 8 rows
    static constexpr uint32_t THREADS = TILE / (16 * R) * 32;
    using Products = float[R][BLOCK / 8][4];
    uint32_t left[R][STEPS][4];
    float sums[R][2 * STEPS][4];

    static __device__ __forceinline__ uint32_t first_line() { return threadIdx.x / 32 * 16 * R; }
    static __device__ __forceinline__ uint32_t line_of(uint32_t r, uint32_t k)
    {
        return first_line() + 16 * r + 8 * k + threadIdx.x % 32 / 4;
    }
    static __device__ __forceinline__ uint32_t column_of(uint32_t j) { return 8 * j + threadIdx.x % 4 * 2; }

    __device__ __forceinline__ void begin(const uint16_t *from, size_t pitch, uint32_t lines, uint32_t width)
    {
#pragma unroll
        for (uint32_t r = 0; r < R; r++) {
            const Operand rows(from, pitch, first_line() + 16 * r, lines);
#pragma unroll
            for (uint32_t j = 0; j < STEPS; j++) {
                for (uint32_t i = 0; i < 4; i++) left[r][j][i] = 0;
                if (16 * j < width) rows.fragment(left[r][j], 16 * j);
            }
#pragma unroll
            for (uint32_t j = 0; j < 2 * STEPS; j++)
                for (uint32_t i = 0; i < 4; i++) sums[r][j][i] = 0.0f;
        }
    }

    // Copies the right tensor, block after block. A thread copies one column of 16 bytes of every STEP-th row.
    struct Copies {
        static constexpr uint32_t CHUNKS = 2 * STEPS, STEP = THREADS / CHUNKS;
        static_assert(THREADS % CHUNKS == 0 && BLOCK % STEP == 0, "whole passes");
        const uint16_t *from;
        size_t step; // elements
        uint32_t to;
        bool inside; // the column is one of the tensor's
        __device__ __forceinline__ Copies(const uint16_t *tensor, size_t pitch, uint32_t width, uint32_t base)
            : from(tensor + threadIdx.x / CHUNKS * pitch + threadIdx.x % CHUNKS * 8), step(STEP * pitch),
              to(base + threadIdx.x / CHUNKS * PITCH + threadIdx.x % CHUNKS * 16), inside(threadIdx.x % CHUNKS * 8 < width)
        {
        }
        // Starts the next block; there(i): is its row i read, or 0?
        template <typename There> __device__ __forceinline__ void start(uint32_t block, There there)
        {
            const uint32_t place = to + block % 2 * BLOCK * PITCH;
#pragma unroll
            for (uint32_t n = 0; n < BLOCK / STEP; n++, from += step)
                copy_16_or_0(place + n * STEP * PITCH, from, inside && there(threadIdx.x / CHUNKS + n * STEP));
        }
    };

    __device__ __forceinline__ void multiply_block(Products &products, uint32_t block) const
    {
        const uint32_t lane = threadIdx.x % 32;
#pragma unroll
        for (uint32_t r = 0; r < R; r++)
#pragma unroll
            for (uint32_t j = 0; j < BLOCK / 8; j++)
                for (uint32_t i = 0; i < 4; i++) products[r][j][i] = 0.0f;
#pragma unroll
        for (uint32_t j = 0; j < STEPS; j++) {
#pragma unroll
            for (uint32_t n = 0; n < BLOCK / 16; n++) {
                uint32_t b[4]; // the matrices of rows 0 to 7 at columns 0, 8, then of rows 8 to 15
                load_matrices(b, block + (n * 16 + lane / 16 * 8 + lane % 8) * PITCH + j * 32 + lane / 8 % 2 * 16);
#pragma unroll
                for (uint32_t r = 0; r < R; r++) {
                    multiply<dtype>(products[r][2 * n], left[r][j], b);
                    multiply<dtype>(products[r][2 * n + 1], left[r][j], b + 2);
                }
            }
        }
    }

    // sums += products, rounded, times the block. of(j) replaces the products of columns 8 j .. by what is multiplied, right before.
    template <typename Of> __device__ __forceinline__ void add_block(Products &products, uint32_t block, Of of)
    {
        const uint32_t lane = threadIdx.x % 32;
#pragma unroll
        for (uint32_t n = 0; n < BLOCK / 16; n++) {
            of(2 * n);
            of(2 * n + 1);
            uint32_t again[R][4];
#pragma unroll
            for (uint32_t r = 0; r < R; r++)
#pragma unroll
                for (uint32_t i = 0; i < 4; i++)
                    again[r][i] = Pair<dtype>::round(products[r][2 * n + i / 2][i % 2 * 2], products[r][2 * n + i / 2][i % 2 * 2 + 1]);
#pragma unroll
            for (uint32_t j = 0; j < STEPS; j++) {
                uint32_t b[4];
                load_matrices_turned(b, block + (n * 16 + lane % 16) * PITCH + j * 32 + lane / 16 * 16);
#pragma unroll
                for (uint32_t r = 0; r < R; r++) {
                    multiply<dtype>(sums[r][2 * j], again[r], b);
                    multiply<dtype>(sums[r][2 * j + 1], again[r], b + 2);
                }
            }
        }
    }
};

// ---- cross_entropy_x ----

// Of each row. top and target are the same in the four threads of a row; the others are of the thread's columns.
template <uint32_t dtype, uint32_t STEPS, uint32_t R> struct Rows : Warp<dtype, STEPS, R> {
    using Base = Warp<dtype, STEPS, R>;
    using typename Base::Products;
    uint32_t target[R][2];
    float top[R][2];    // the reference, times log2 e
    float den[R][2];    // sum of the terms but the target's
    float best[R][2];   // largest logit but the target's
    float before[R][2]; // ... of columns below the target
    float mine[R][2];   // the target's logit in the thread that has it, else 0

    // For a block of rows s .. of weight that holds targets of the warp's rows.
    __device__ __forceinline__ void take_targets(Products &logits, uint32_t s)
    {
#pragma unroll
        for (uint32_t r = 0; r < R; r++) {
#pragma unroll
            for (uint32_t k = 0; k < 2; k++) {
                const uint32_t own = target[r][k] - s;
                const bool here = own < BLOCK;
                if (!__any_sync(ALL, here)) continue;
                const int32_t at = here ? int32_t(own) - int32_t(Base::column_of(0)) : -8;
                float below = best[r][k];
#pragma unroll
                for (int32_t j = 0; j < int32_t(BLOCK / 8); j++) {
#pragma unroll
                    for (int32_t i = 0; i < 2; i++) {
                        float &logit = logits[r][j][2 * k + i];
                        if (8 * j + i < at) below = fmaxf(below, logit);
                        if (8 * j + i == at) {
                            mine[r][k] = logit;
                            logit = -infinity();
                        }
                    }
                }
                if (here) before[r][k] = below;
            }
        }
    }

    // New references where a logit exceeds the old one by more than SLACK, row by row: its neighbours change no bit of a row.
    __device__ __forceinline__ void raise()
    {
#pragma unroll
        for (uint32_t r = 0; r < R; r++) {
#pragma unroll
            for (uint32_t k = 0; k < 2; k++) {
                const float most = row_top(best[r][k]) * log2e, next = most > top[r][k] + SLACK ? most : top[r][k];
                const float keep = exp2_below(top[r][k] - next);
                top[r][k] = next;
                den[r][k] *= keep;
#pragma unroll
                for (uint32_t j = 0; j < 2 * STEPS; j++)
                    for (uint32_t i = 2 * k; i < 2 * k + 2; i++) this->sums[r][j][i] *= keep;
            }
        }
    }

    __device__ __forceinline__ void attend(uint32_t block, uint32_t s, uint32_t vocabulary)
    {
        Products logits;
        this->multiply_block(logits, block);
        bool near = false;
#pragma unroll
        for (uint32_t r = 0; r < R; r++)
            for (uint32_t k = 0; k < 2; k++) near |= target[r][k] - s < BLOCK;
        if (s + BLOCK > vocabulary) {
#pragma unroll
            for (uint32_t r = 0; r < R; r++)
#pragma unroll
                for (uint32_t j = 0; j < BLOCK / 8; j++)
                    for (uint32_t i = 0; i < 4; i++)
                        if (s + Base::column_of(j) + i % 2 >= vocabulary) logits[r][j][i] = -infinity();
        }
        if (__any_sync(ALL, near)) take_targets(logits, s);
        bool beyond = false; // NaN is neither best nor beyond
#pragma unroll
        for (uint32_t r = 0; r < R; r++) {
#pragma unroll
            for (uint32_t k = 0; k < 2; k++) {
#pragma unroll
                for (uint32_t j = 0; j < BLOCK / 8; j++)
                    for (uint32_t i = 2 * k; i < 2 * k + 2; i++) best[r][k] = fmaxf(best[r][k], logits[r][j][i]);
                beyond |= best[r][k] * log2e > top[r][k] + SLACK;
            }
        }
        if (__any_sync(ALL, beyond)) raise();
        this->add_block(logits, block, [&](uint32_t j) {
#pragma unroll
            for (uint32_t r = 0; r < R; r++)
#pragma unroll
                for (uint32_t i = 0; i < 4; i++) den[r][i / 2] += logits[r][j][i] = exp2_below(fmaf(logits[r][j][i], log2e, -top[r][i / 2]));
        });
    }
};

template <uint32_t dtype, uint32_t STEPS, uint32_t R>
__device__ __forceinline__ void run_x(const cross_entropy_x_args &args, const CudaBindings &bindings, uint32_t dtypes)
{
    using State = Rows<dtype, STEPS, R>;
    extern __shared__ __align__(16) uint8_t shared[];
    const uint32_t base = shared_address(shared), blocks = ceil_div(args.vocabulary, BLOCK);
    const uint16_t *x = reinterpret_cast<const uint16_t *>(bindings.address[BINDING_cross_entropy_x_x]) + args.x_at;
    const uint16_t *weight = reinterpret_cast<const uint16_t *>(bindings.address[BINDING_cross_entropy_x_weight]) + args.weight_at;
    const int32_t *targets = INTS(cross_entropy_x, targets) + args.targets_at;
    const float share = FLOATS(cross_entropy_x, share)[args.share_at];
    const View grad_x = VIEW(cross_entropy_x, grad_x);
    FOR_TILES(tile) {
        const uint32_t t0 = tile * TILE, lines = min(args.rows - t0, TILE);
        typename State::Copies copies(weight, args.width, args.width, base);
        const auto fetch = [&](uint32_t block) {
            const uint32_t left = args.vocabulary - block * BLOCK;
            copies.start(block, [&](uint32_t i) { return i < left; });
        };
        __syncthreads(); // all are done with the tile before
        fetch(0);
        State state;
        state.begin(x + size_t(t0) * args.x_row, args.x_row, lines, args.width);
#pragma unroll
        for (uint32_t r = 0; r < R; r++) {
            for (uint32_t k = 0; k < 2; k++) {
                const uint32_t line = State::line_of(r, k);
                state.target[r][k] = line < lines ? label_of(targets[t0 + line], args.vocabulary) : NO_LABEL;
                state.top[r][k] = lowest;
                state.best[r][k] = state.before[r][k] = -infinity();
                state.den[r][k] = state.mine[r][k] = 0.0f;
            }
        }
        for (uint32_t block = 0; block < blocks; block++) {
            copies_wait();
            __syncthreads(); // the block is here, and all are done with the one before it
            if (block + 1 < blocks) fetch(block + 1);
            state.attend(base + block % 2 * BLOCK * State::PITCH, block * BLOCK, args.vocabulary);
        }
#pragma unroll
        for (uint32_t r = 0; r < R; r++) {
#pragma unroll
            for (uint32_t k = 0; k < 2; k++) {
                const float largest = row_top(state.best[r][k]), earlier = row_top(state.before[r][k]);
                const float logit = row_sum(state.mine[r][k]), scaled = logit * log2e;
                const float highest = fmaxf(state.top[r][k], scaled), fall = exp2_below(state.top[r][k] - highest);
                const float others = row_sum(state.den[r][k]) * fall, total = others + exp2_below(scaled - highest); // at least 1
                if (State::line_of(r, k) >= lines) continue;
                const size_t t = t0 + State::line_of(r, k);
                const uint32_t target = state.target[r][k];
                const bool labelled = target != NO_LABEL, broken = (__float_as_uint(total) & 0x7f800000u) == 0x7f800000u;
                if (threadIdx.x % 4 == 0) {
                    const float above = broken ? __uint_as_float(0x7fc00000u) : logf(total);
                    float *parts = FLOATS(cross_entropy_x, parts) + args.parts_at + 2 * t;
                    parts[0] = labelled ? share * ((highest - scaled) * ln2 + above) : 0.0f;
                    // The lowest index of the largest logit: above those before it, not below those behind it.
                    parts[1] = labelled && logit > earlier && logit >= largest && !broken ? 1.0f : 0.0f;
                    FLOATS(cross_entropy_x, lse)[args.lse_at + t] = labelled ? highest * ln2 + above : infinity();
                }
                if (!(args.flags & HAS_GRADIENT)) continue;
                const float factor = share * fall / total, rest = share * others / total;
                const uint16_t *own = weight + (labelled ? size_t(target) * args.width : 0);
#pragma unroll
                for (uint32_t j = 0; j < 2 * STEPS; j++) {
                    if (8 * j >= args.width) continue;
                    const float2 w = Pair<dtype>::unpack(*reinterpret_cast<const uint32_t *>(own + State::column_of(j)));
                    const float first = state.sums[r][j][2 * k] * factor - rest * w.x, second = state.sums[r][j][2 * k + 1] * factor - rest * w.y;
                    store_pair(grad_x, args.grad_x_at + t * args.grad_x_row + State::column_of(j), labelled ? first : 0.0f,
                               labelled ? second : 0.0f);
                }
            }
        }
    }
}

// ---- cross_entropy_weight ----

// sums += slopes times 2^SHIFT times the block. slopes holds logits; of the block's rows of x, limits are log2 e lse - SHIFT and aims the targets.
// NEAR: some target is one of the warp's rows of weight, whose first is v.
template <bool NEAR, uint32_t dtype, uint32_t STEPS, uint32_t R>
__device__ __forceinline__ void add_slopes(Warp<dtype, STEPS, R> &warp, float (&slopes)[R][BLOCK / 8][4], uint32_t block, const float *limits,
                                           const uint32_t *aims, uint32_t v)
{
    warp.add_block(slopes, block, [&](uint32_t j) {
        const uint32_t column = warp.column_of(j);
        const float2 limit = *reinterpret_cast<const float2 *>(limits + column);
        uint2 aim = make_uint2(0, 0); // less the thread's first row
        if (NEAR) {
            aim = *reinterpret_cast<const uint2 *>(aims + column);
            aim.x -= v + threadIdx.x % 32 / 4;
            aim.y -= v + threadIdx.x % 32 / 4;
        }
#pragma unroll
        for (uint32_t r = 0; r < R; r++) {
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                float slope = exp2_below(fmaf(slopes[r][j][i], log2e, i % 2 ? -limit.y : -limit.x));
                if (NEAR && (i % 2 ? aim.y : aim.x) == 16 * r + i / 2 * 8) slope -= SHIFTED;
                slopes[r][j][i] = slope;
            }
        }
    });
}

template <uint32_t dtype, uint32_t STEPS, uint32_t R>
__device__ __forceinline__ void run_weight(const cross_entropy_weight_args &args, const CudaBindings &bindings)
{
    using State = Warp<dtype, STEPS, R>;
    extern __shared__ __align__(16) uint8_t shared[];
    float *limits = reinterpret_cast<float *>(shared + 2 * BLOCK * State::PITCH); // 3 blocks of them
    uint32_t *aims = reinterpret_cast<uint32_t *>(limits + 3 * BLOCK);
    const uint32_t base = shared_address(shared), v_blocks = ceil_div(args.vocabulary, TILE), lane = threadIdx.x % 32;
    const uint16_t *x = reinterpret_cast<const uint16_t *>(bindings.address[BINDING_cross_entropy_weight_x]) + args.x_at;
    const uint16_t *weight = reinterpret_cast<const uint16_t *>(bindings.address[BINDING_cross_entropy_weight_weight]) + args.weight_at;
    const int32_t *targets = INTS(cross_entropy_weight, targets) + args.targets_at;
    const float *lse = FLOATS(cross_entropy_weight, lse) + args.lse_at;
    const float share = FLOATS(cross_entropy_weight, share)[args.share_at] / SHIFTED;
    FOR_TILES(tile) {
        const uint32_t k_part = tile / v_blocks, v0 = tile % v_blocks * TILE, lines = min(args.vocabulary - v0, TILE);
        const uint32_t t_first = k_part * args.part, t_count = min(args.rows - t_first, args.part), blocks = ceil_div(t_count, BLOCK);
        // Of row threadIdx.x of a block, for the first BLOCK threads. Rows past the part have no label.
        float limit = infinity();
        uint32_t aim = NO_LABEL;
        const auto read = [&](uint32_t block) {
            const uint32_t t = block * BLOCK + threadIdx.x;
            if (threadIdx.x >= BLOCK) return;
            aim = t < t_count ? label_of(targets[size_t(t_first) + t], args.vocabulary) : NO_LABEL;
            limit = t < t_count ? lse[size_t(t_first) + t] : 0.0f;
        };
        const auto put = [&](uint32_t block) {
            if (threadIdx.x >= BLOCK) return;
            limits[block % 3 * BLOCK + threadIdx.x] = aim != NO_LABEL ? limit * log2e - SHIFT : infinity();
            aims[block % 3 * BLOCK + threadIdx.x] = aim;
        };
        typename State::Copies copies(x + size_t(t_first) * args.x_row, args.x_row, args.width, base);
        const auto fetch = [&](uint32_t block) { // after `put` of that block and a barrier
            const uint32_t *known = aims + block % 3 * BLOCK;
            copies.start(block, [&](uint32_t i) { return known[i] != NO_LABEL; });
        };
        __syncthreads(); // all are done with the tile before
        for (uint32_t block = 0; block < 2; block++) {
            read(block);
            put(block);
        }
        read(2);
        __syncthreads();
        fetch(0);
        State warp;
        warp.begin(weight + size_t(v0) * args.width, args.width, lines, args.width);
        const uint32_t v = v0 + State::first_line();
        for (uint32_t block = 0; block < blocks; block++) {
            copies_wait();
            __syncthreads(); // the block is here, and all are done with the one before it
            put(block + 2);
            read(block + 3);
            if (block + 1 < blocks) fetch(block + 1);
            const uint32_t at = base + block % 2 * BLOCK * State::PITCH;
            const float *own_limits = limits + block % 3 * BLOCK;
            const uint32_t *own_aims = aims + block % 3 * BLOCK;
            float slopes[R][BLOCK / 8][4];
            warp.multiply_block(slopes, at);
            const bool near = own_aims[lane] - v < 16 * R || own_aims[lane + 32] - v < 16 * R;
            if (__any_sync(ALL, near)) add_slopes<true>(warp, slopes, at, own_limits, own_aims, v);
            else add_slopes<false>(warp, slopes, at, own_limits, own_aims, v);
        }
        float *partial = FLOATS(cross_entropy_weight, partial) + (size_t(k_part) * args.vocabulary + v0) * args.width;
#pragma unroll
        for (uint32_t r = 0; r < R; r++) {
#pragma unroll
            for (uint32_t k = 0; k < 2; k++) {
                const uint32_t line = State::line_of(r, k);
                if (line >= lines) continue;
#pragma unroll
                for (uint32_t j = 0; j < 2 * STEPS; j++) {
                    if (8 * j >= args.width) continue;
                    *reinterpret_cast<float2 *>(partial + size_t(line) * args.width + State::column_of(j)) =
                        make_float2(warp.sums[r][j][2 * k] * share, warp.sums[r][j][2 * k + 1] * share);
                }
            }
        }
    }
}

} // namespace head_tensor
} // namespace attend

// Up to 64 columns a warp keeps 32 rows, so that each word read from shared memory serves two products; beyond, 16.
#define DART_HEAD(variant, dtype, STEPS, R, blocks) \
    static_assert(attend::head_tensor::bytes_of(STEPS, false) == SHARED_cross_entropy_x_##variant && \
                      attend::head_tensor::bytes_of(STEPS, true) == SHARED_cross_entropy_weight_##variant, \
                  "loss.def"); \
    static_assert(attend::head_tensor::TILE == TILE0_cross_entropy_x_##variant && \
                      attend::head_tensor::TILE == TILE0_cross_entropy_weight_##variant && \
                      THREADS_cross_entropy_x_##variant == 256 / (R) && THREADS_cross_entropy_weight_##variant == 256 / (R), \
                  "a warp for 16 R rows"); \
    KERNEL_FUNCTION_BLOCKS(cross_entropy_x, variant, blocks) { attend::head_tensor::run_x<dtype, STEPS, R>(args, bindings, dtypes); } \
    KERNEL_FUNCTION_BLOCKS(cross_entropy_weight, variant, blocks) { attend::head_tensor::run_weight<dtype, STEPS, R>(args, bindings); }
DART_HEAD(tensor_bf16_w64, DTYPE_BF16, 4, 2, 2)
DART_HEAD(tensor_f16_w64, DTYPE_F16, 4, 2, 2)
DART_HEAD(tensor_bf16, DTYPE_BF16, 8, 1, 1)
DART_HEAD(tensor_f16, DTYPE_F16, 8, 1, 1)
#undef DART_HEAD
