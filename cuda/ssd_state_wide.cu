// ssd_state for N = 128, P = 64 with memories and hin normalised in 16 bits of one type. A block has T0 rows of one
// (sequence, head), eight threads a row with eight columns each. Rows of sixteen chunks are on their way while four are
// walked at a time: the states first, then their sizes side by side.
#include "tensor.cuh"

namespace ssd_state_wide {

constexpr uint32_t N = 128, P = 64, step = 4, ahead = 4;

struct Batch {
    uint4 row[step];
    float scale[step], total[step];
};

__device__ __forceinline__ void load8(float (&to)[8], const float *from)
{
    const float4 low = reinterpret_cast<const float4 *>(from)[0], high = reinterpret_cast<const float4 *>(from)[1];
    to[0] = low.x, to[1] = low.y, to[2] = low.z, to[3] = low.w, to[4] = high.x, to[5] = high.y, to[6] = high.z, to[7] = high.w;
}
__device__ __forceinline__ void store8(float *to, const float (&from)[8])
{
    reinterpret_cast<float4 *>(to)[0] = make_float4(from[0], from[1], from[2], from[3]);
    reinterpret_cast<float4 *>(to)[1] = make_float4(from[4], from[5], from[6], from[7]);
}

template <bool bf, uint32_t T0> __device__ __forceinline__ void tiles(const ssd_state_args &args, const CudaBindings &bindings)
{
    const uint16_t *memory = reinterpret_cast<const uint16_t *>(bindings.address[BINDING_ssd_state_memory]) + args.memory_at;
    const float *scale = FLOATS(ssd_state, scale) + args.scale_at, *decay = FLOATS(ssd_state, decay), *tail = FLOATS(ssd_state, tail);
    float *h_out = FLOATS(ssd_state, h), *open_out = FLOATS(ssd_state, open), *open_decay = FLOATS(ssd_state, open_decay);
    uint16_t *hin = reinterpret_cast<uint16_t *>(bindings.address[BINDING_ssd_state_hin]) + args.hin_at;
    float *hin_scale = FLOATS(ssd_state, hin_scale) + args.hin_scale_at;
    const bool has_h = args.flags & HAS_H, has_open = args.flags & HAS_OPEN;
    constexpr uint32_t blocks = N / T0;
    const uint32_t column = threadIdx.x % 8 * 8;
    FOR_TILES(tile) {
        const uint32_t n = tile % blocks * T0 + threadIdx.x / 8, h = tile / blocks % args.H, b = tile / blocks / args.H;
        const Piece piece = piece_of(INTS(ssd_state, seq) + args.seq_at, args.flags, args.L, b);
        if (piece.count == 0) continue;
        const uint32_t chunks = uint32_t((uint64_t(piece.position % args.S) + piece.count + args.S - 1) / args.S);
        const bool stays_open = has_open && (uint64_t(piece.position) + piece.count) % args.S != 0;
        const uint32_t merged = stays_open ? chunks - 1 : chunks;
        const float *totals = decay + size_t(b) * (args.M + 1) * args.H + h;
        const size_t at = ((size_t(b) * args.H + h) * N + n) * P + column;
        const uint32_t stride = args.H * N; // rows from a chunk to the next
        const size_t matrix = args.flags & HAS_RUN ? size_t(b) * args.capacity + piece.position / args.S - args.first
                                                   : size_t(b) * args.M;
        const size_t from = (matrix * args.H + h) * N + n, to = (size_t(b) * args.M * args.H + h) * N + n;

        const uint16_t *rows = memory + from * P + column;
        const float *scales = scale + from;
        uint16_t *rows_to = hin + to * P + column;
        float *scales_to = hin_scale + to;

        // A memory that is not merged, or not there, leaves the state as it is.
        const auto fetch = [&](Batch &batch, uint32_t j0) {
#pragma unroll
            for (uint32_t i = 0; i < step; i++) {
                const uint32_t j = j0 + i;
                const bool there = j < merged;
                batch.row[i] = there ? *reinterpret_cast<const uint4 *>(rows + uint64_t(j) * (stride * P)) : make_uint4(0, 0, 0, 0);
                batch.scale[i] = there ? scales[uint64_t(j) * stride] : 0.0f;
                batch.total[i] = there ? totals[uint64_t(j + 1) * args.H] : 0.0f;
            }
        };
        Batch batches[ahead];
#pragma unroll
        for (uint32_t i = 0; i < ahead; i++) fetch(batches[i], i * step);
        float state[8] = {}, old[8] = {};
        if (has_h) load8(state, h_out + at);
        // The first chunk is entered with what is open, and decays by what has passed since the border as well.
        if (has_open) load8(old, open_out + at);
        const float before = totals[0], keep = exp_below(before);

        for (uint32_t j0 = 0; j0 < chunks; j0 += ahead * step) {
#pragma unroll
            for (uint32_t turn = 0; turn < ahead; turn++) {
                const uint32_t j1 = j0 + turn * step;
                float enter[step][8], squares[step];
#pragma unroll
                for (uint32_t i = 0; i < step; i++) {
                    const Batch &batch = batches[turn];
#pragma unroll
                    for (uint32_t k = 0; k < 8; k++) enter[i][k] = state[k];
                    float total = batch.total[i];
                    if (turn == 0 && i == 0 && j0 == 0) {
#pragma unroll
                        for (uint32_t k = 0; k < 8; k++) enter[i][k] = fmaf(keep, state[k], old[k]);
                        total = merged > 0 ? before + total : 0.0f;
                    }
                    const float kept = __expf(fminf(total, 0.0f)), factor = batch.scale[i];
                    const uint32_t pairs[4] = {batch.row[i].x, batch.row[i].y, batch.row[i].z, batch.row[i].w};
                    squares[i] = 0.0f;
#pragma unroll
                    for (uint32_t k = 0; k < 4; k++) {
                        const float2 v = unpack<bf>(pairs[k]);
                        state[2 * k] = fmaf(kept, state[2 * k], factor * v.x);
                        state[2 * k + 1] = fmaf(kept, state[2 * k + 1], factor * v.y);
                        squares[i] = fmaf(enter[i][2 * k], enter[i][2 * k], squares[i]);
                        squares[i] = fmaf(enter[i][2 * k + 1], enter[i][2 * k + 1], squares[i]);
                    }
                }
                fetch(batches[turn], j1 + ahead * step);
#pragma unroll
                for (uint32_t distance = 1; distance < 8; distance *= 2) {
#pragma unroll
                    for (uint32_t i = 0; i < step; i++) squares[i] += __shfl_xor_sync(0xffffffffu, squares[i], distance);
                }
#pragma unroll
                for (uint32_t i = 0; i < step; i++) {
                    const uint32_t j = j1 + i;
                    const float mean = fmaf(squares[i], 1.0f / P, args.eps), inverse = rsqrtf(mean);
                    if (j >= chunks) break;
                    uint32_t pairs[4];
#pragma unroll
                    for (uint32_t k = 0; k < 4; k++) pairs[k] = pack<bf>(enter[i][2 * k] * inverse, enter[i][2 * k + 1] * inverse);
                    *reinterpret_cast<uint4 *>(rows_to + uint64_t(j) * (stride * P)) = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
                    if (column == 0) scales_to[uint64_t(j) * stride] = mean * inverse;
                }
            }
        }
        if (has_h) store8(h_out + at, state);
        if (has_open) {
            float rest[8] = {};
            if (stays_open) load8(rest, tail + at);
            store8(open_out + at, rest);
            if (n == 0 && column == 0)
                open_decay[size_t(b) * args.H + h] = stays_open ? totals[uint64_t(chunks) * args.H] + (chunks == 1 ? before : 0.0f) : 0.0f;
        }
    }
}

} // namespace ssd_state_wide

KERNEL_FUNCTION_SHAPED(ssd_state, wide_f16, 1)
{
    static_assert(TILE0_ssd_state_wide_f16 * 8 == THREADS_ssd_state_wide_f16, "eight threads a row");
    ssd_state_wide::tiles<false, TILE0_ssd_state_wide_f16>(args, bindings);
}

KERNEL_FUNCTION_SHAPED(ssd_state, wide_bf16, 1)
{
    static_assert(TILE0_ssd_state_wide_bf16 * 8 == THREADS_ssd_state_wide_bf16, "eight threads a row");
    ssd_state_wide::tiles<true, TILE0_ssd_state_wide_bf16>(args, bindings);
}
