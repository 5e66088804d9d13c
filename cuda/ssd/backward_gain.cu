// ssd_backward_gain: the walk over chunks, backwards, for P of at most 64 and hin in bf16. Sixteen threads have a row of a (sequence, head), four
// columns each; what four chunks need is on its way at once.
#include "backward_tensor.cuh"

KERNEL_FUNCTION(ssd_backward_gain, tensor_bf16)
{
    constexpr uint32_t lanes = 16, step = 4, rows = TILE0_ssd_backward_gain_tensor_bf16;
    static_assert(rows * lanes == THREADS_ssd_backward_gain_tensor_bf16, "rows of a block");
    const float *decay = FLOATS(ssd_backward_gain, decay), *read = FLOATS(ssd_backward_gain, read);
    const float *up_h = FLOATS(ssd_backward_gain, up_h) + args.up_h_at, *up_dh = FLOATS(ssd_backward_gain, up_dh) + args.up_dh_at;
    const uint16_t *hin = HALVES(ssd_backward_gain, hin) + args.hin_at;
    uint16_t *gain = HALVES(ssd_backward_gain, gain);
    float *grad_h = FLOATS(ssd_backward_gain, grad_h) + args.grad_h_at, *carry = FLOATS(ssd_backward_gain, carry);
    const uint32_t blocks = ceil_div(args.N, rows), P = args.P, p = threadIdx.x % lanes * 4;
    FOR_TILES(tile) {
        const uint32_t n = tile % blocks * rows + threadIdx.x / lanes, h = tile / blocks % args.H, b = tile / blocks / args.H;
        const Sequence piece = sequence_of(INTS(ssd_backward_gain, seq) + args.seq_at, args.flags, args.L, args.T, b);
        const bool there = n < args.N && p < P;
        const size_t own = ((size_t(b) * args.H + h) * args.N + n) * P + p, slots = piece.slot(args.M, args.S);
        const size_t first = (slots * args.H + h) * args.N + n, apart = size_t(args.H) * args.N; // rows, and from a chunk to the next
        const float *totals = decay + (slots + b + 1) * args.H + h;
        const uint32_t chunks = piece.count == 0 ? 0 :
            uint32_t(min(uint64_t(args.M), (uint64_t(piece.position % args.S) + piece.count + args.S - 1) / args.S));
        float state[4] = {};
        if (there && (args.flags & HAS_UP_H)) {
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) state[i] = up_h[own + i];
        }
        for (uint32_t end = chunks; end > 0; end -= min(end, step)) {
            float4 reads[step], ups[step];
            uint2 enters[step];
            float keeps[step];
#pragma unroll
            for (uint32_t i = 0; i < step; i++) {
                const bool now = there && i < end;
                const size_t row = first + (i < end ? end - 1 - i : 0) * apart;
                reads[i] = ups[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
                enters[i] = make_uint2(0, 0);
                if (now) reads[i] = *reinterpret_cast<const float4 *>(read + row * P + p);
                if (now) enters[i] = *reinterpret_cast<const uint2 *>(hin + row * P + p);
                if (now && (args.flags & HAS_DH)) ups[i] = *reinterpret_cast<const float4 *>(up_dh + row * P + p);
                keeps[i] = i < end ? exp_below(totals[size_t(end - 1 - i) * args.H]) : 0.0f;
            }
#pragma unroll
            for (uint32_t i = 0; i < step; i++) {
                if (i >= end) break;
                const size_t row = first + (end - 1 - i) * apart;
                const float2 low = unpack<true>(enters[i].x), high = unpack<true>(enters[i].y);
                float along = fmaf(state[0], low.x, fmaf(state[1], low.y, fmaf(state[2], high.x, state[3] * high.y)));
                for (uint32_t by = lanes / 2; by > 0; by /= 2) along += __shfl_xor_sync(0xffffffffu, along, by);
                if (there && p == 0) carry[row] = keeps[i] * along;
                if (there)
                    *reinterpret_cast<uint2 *>(gain + row * P + p) =
                        make_uint2(pack<true>(state[0] + ups[i].x, state[1] + ups[i].y), pack<true>(state[2] + ups[i].z, state[3] + ups[i].w));
                state[0] = fmaf(keeps[i], state[0], reads[i].x);
                state[1] = fmaf(keeps[i], state[1], reads[i].y);
                state[2] = fmaf(keeps[i], state[2], reads[i].z);
                state[3] = fmaf(keeps[i], state[3], reads[i].w);
            }
        }
        if (there && (args.flags & HAS_H)) {
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) grad_h[own + i] = state[i];
        }
    }
}
