// ssd_state for N = 128, P = 64 with normalised memories and hin, in bf16 also raw, in 16 bits of one type. A block has T0 rows
// of one (sequence, head), sixteen threads a row with four columns each. Eight chunks are walked at a time, the states first, while
// the next eight are on their way; what there is one of a chunk is two threads' to load and to compute and one's to store.
#include "lib/tensor.cuh"

namespace ssd_state_wide {

constexpr uint32_t N = 128, P = 64, step = 8, columns = 4, lanes = P / columns;

struct Batch {
    uint2 row[step];
    float scale, total; // of this thread's chunk of the eight
};

__device__ __forceinline__ void load4(float (&to)[columns], const float *from)
{
    const float4 four = *reinterpret_cast<const float4 *>(from);
    to[0] = four.x, to[1] = four.y, to[2] = four.z, to[3] = four.w;
}
__device__ __forceinline__ void store4(float *to, const float (&from)[columns])
{
    *reinterpret_cast<float4 *>(to) = make_float4(from[0], from[1], from[2], from[3]);
}

template <bool bf, uint32_t T0> __device__ __forceinline__ void tiles(const ssd_state_args &args, const CudaBindings &bindings)
{
    const uint16_t *memory = reinterpret_cast<const uint16_t *>(bindings.address[BINDING_ssd_state_memory]) + args.memory_at;
    const float *scale = FLOATS(ssd_state, scale) + args.scale_at, *decay = FLOATS(ssd_state, decay), *tail = FLOATS(ssd_state, tail);
    float *h_out = FLOATS(ssd_state, h), *open_out = FLOATS(ssd_state, open), *open_decay = FLOATS(ssd_state, open_decay);
    uint16_t *hin = reinterpret_cast<uint16_t *>(bindings.address[BINDING_ssd_state_hin]) + args.hin_at;
    float *hin_scale = FLOATS(ssd_state, hin_scale) + args.hin_scale_at;
    const bool has_h = args.flags & HAS_H, has_open = args.flags & HAS_OPEN, normalised = !bf || args.flags & HAS_HIN_SCALE;
    constexpr uint32_t blocks = N / T0;
    const uint32_t column = threadIdx.x % lanes * columns, own = threadIdx.x % lanes / 2;
    successors_begin();
    predecessors_wait();
    FOR_TILES(tile) {
        const uint32_t n = tile % blocks * T0 + threadIdx.x / lanes, h = tile / blocks % args.H, b = tile / blocks / args.H;
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
            const uint16_t *next = rows + uint64_t(j0) * (stride * P);
#pragma unroll
            for (uint32_t i = 0; i < step; i++, next += stride * P)
                batch.row[i] = j0 + i < merged ? *reinterpret_cast<const uint2 *>(next) : make_uint2(0, 0);
            batch.scale = j0 + own < merged ? scales[uint64_t(j0 + own) * stride] : 0.0f;
            batch.total = j0 + own < merged ? totals[uint64_t(j0 + own + 1) * args.H] : 0.0f;
        };
        Batch batches[2];
        fetch(batches[0], 0);
        fetch(batches[1], step);
        float state[columns] = {}, old[columns] = {};
        if (has_h) load4(state, h_out + at);
        // The first chunk is entered with what is open, and decays by what has passed since the border as well.
        if (has_open) load4(old, open_out + at);
        const float before = totals[0], keep = exp_below(before);

        for (uint32_t j0 = 0; j0 < chunks; j0 += 2 * step) {
#pragma unroll
            for (uint32_t turn = 0; turn < 2; turn++) {
                Batch &batch = batches[turn];
                const uint32_t j1 = j0 + turn * step;
                if (j1 >= chunks) break;
                const bool first = turn == 0 && j0 == 0;
                const float kept = decay_exp(first && own == 0 && merged > 0 ? before + batch.total : batch.total);
                float enter[step][columns], inverse = 1.0f;
#pragma unroll
                for (uint32_t i = 0; i < step; i++) {
#pragma unroll
                    for (uint32_t k = 0; k < columns; k++)
                        enter[i][k] = turn == 0 && i == 0 && first ? fmaf(keep, state[k], old[k]) : state[k];
                    const float keeps = __shfl_sync(0xffffffffu, kept, 2 * i, lanes);
                    const float factor = __shfl_sync(0xffffffffu, batch.scale, 2 * i, lanes);
                    const uint32_t pairs[columns / 2] = {batch.row[i].x, batch.row[i].y};
#pragma unroll
                    for (uint32_t k = 0; k < columns / 2; k++) {
                        const float2 v = unpack<bf>(pairs[k]);
                        state[2 * k] = fmaf(keeps, state[2 * k], factor * v.x);
                        state[2 * k + 1] = fmaf(keeps, state[2 * k + 1], factor * v.y);
                    }
                }
                fetch(batch, j1 + 2 * step);
                if (normalised) {
                    float squares[step] = {};
#pragma unroll
                    for (uint32_t i = 0; i < step; i++) {
#pragma unroll
                        for (uint32_t k = 0; k < columns; k++) squares[i] = fmaf(enter[i][k], enter[i][k], squares[i]);
                    }
                    // Of eight sums over sixteen threads to one of each two's own.
                    add_halves<4>(squares, 8);
                    add_halves<2>(squares, 4);
                    add_halves<1>(squares, 2);
                    squares[0] += __shfl_xor_sync(0xffffffffu, squares[0], 1);
                    const float mean = fmaf(squares[0], 1.0f / P, args.eps);
                    inverse = inverse_root(mean);
                    if (threadIdx.x % 2 == 0 && j1 + own < chunks) scales_to[uint64_t(j1 + own) * stride] = mean * inverse;
                }
                uint16_t *to = rows_to + uint64_t(j1) * (stride * P);
#pragma unroll
                for (uint32_t i = 0; i < step; i++, to += stride * P) {
                    const float by = __shfl_sync(0xffffffffu, inverse, 2 * i, lanes);
                    const uint32_t low = pack<bf>(enter[i][0] * by, enter[i][1] * by);
                    const uint32_t high = pack<bf>(enter[i][2] * by, enter[i][3] * by);
                    if (j1 + i < chunks) *reinterpret_cast<uint2 *>(to) = make_uint2(low, high);
                }
            }
        }
        if (has_h) store4(h_out + at, state);
        if (has_open) {
            float rest[columns] = {};
            if (stays_open) load4(rest, tail + at);
            store4(open_out + at, rest);
            if (n == 0 && column == 0)
                open_decay[size_t(b) * args.H + h] = stays_open ? totals[uint64_t(chunks) * args.H] + (chunks == 1 ? before : 0.0f) : 0.0f;
        }
    }
}

} // namespace ssd_state_wide

KERNEL_FUNCTION_BLOCKS(ssd_state, wide_f16, 1)
{
    static_assert(TILE0_ssd_state_wide_f16 * ssd_state_wide::lanes == THREADS_ssd_state_wide_f16, "sixteen threads a row");
    ssd_state_wide::tiles<false, TILE0_ssd_state_wide_f16>(args, bindings);
}

KERNEL_FUNCTION_BLOCKS(ssd_state, wide_bf16, 1)
{
    static_assert(TILE0_ssd_state_wide_bf16 * ssd_state_wide::lanes == THREADS_ssd_state_wide_bf16, "sixteen threads a row");
    ssd_state_wide::tiles<true, TILE0_ssd_state_wide_bf16>(args, bindings);
}
