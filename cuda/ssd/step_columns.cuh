// ssd_step for f32 operands, N 128 and P 64: a block takes 16 columns of a head, a thread four columns of two rows, whose h and open are on their way
// before the launch before has ended. Shared memory: 0.5 KiB.
#ifndef DART_SSD_STEP_COLUMNS_CUH
#define DART_SSD_STEP_COLUMNS_CUH

#include "lib/dart.cuh"

constexpr uint32_t scan_n = 128, scan_p = 64, scan_columns = 16, scan_rows = 2, scan_apart = scan_n / scan_rows;

__device__ __forceinline__ void scan_step_run(const ssd_step_args &args, const CudaBindings &bindings, uint32_t dtypes, Blocks blocks)
{
    __shared__ float parts[warps][scan_columns];
    float *h_all = FLOATS(ssd_step, h), *open_all = FLOATS(ssd_step, open), *open_decay = FLOATS(ssd_step, open_decay);
    const float *cum = FLOATS(ssd_step, cum), *decay = FLOATS(ssd_step, decay);
    const bool has_h = args.flags & HAS_H, has_open = args.flags & HAS_OPEN, has_dh = args.flags & HAS_DH, closed_only = args.flags & HAS_CLOSED;
    const uint32_t column = threadIdx.x % 4 * 4, row = threadIdx.x / 4, lane = threadIdx.x % 32, tiles_a_head = scan_p / scan_columns;
    const float4 none = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    FOR_TILES_OF(tile, blocks) {
        const uint32_t p = tile % tiles_a_head * scan_columns + column, h = tile / tiles_a_head % args.H, b = tile / tiles_a_head / args.H;
        const uint32_t g = h / (args.H / args.G);
        const size_t head = size_t(b) * args.H + h, at = (head * scan_n + row) * scan_p + p;
        float4 old_h[scan_rows], old_open[scan_rows];
#pragma unroll
        for (uint32_t k = 0; k < scan_rows; k++) {
            const size_t i = (at + size_t(k) * scan_apart * scan_p) / 4;
            old_h[k] = has_h ? __ldcg(reinterpret_cast<const float4 *>(h_all) + i) : none;
            old_open[k] = has_open ? __ldcg(reinterpret_cast<const float4 *>(open_all) + i) : none;
        }
        const Piece piece = piece_early(INTS(ssd_step, seq) + args.seq_at, args.flags, 1, b);
        const bool closes = (piece.position + 1) % args.S == 0, merges = !has_open || closes, keeps_dh = has_dh && (!closed_only || closes);
        const float skip = args.flags & HAS_D ? load_early(VIEW(ssd_step, d), args.d_at + size_t(h)) : 0.0f;
        predecessors_wait();
        successors_begin();
        if (piece.count == 0) continue;
        const float *from_x = FLOATS(ssd_step, x) + args.x_at + size_t(b) * args.x_row + h * scan_p + p;
        const float *from_b = FLOATS(ssd_step, b) + args.b_at + size_t(b) * args.b_row + g * scan_n + row;
        const float *from_c = FLOATS(ssd_step, c) + args.c_at + size_t(b) * args.c_row + g * scan_n + row;
        const float a0 = decay[2 * size_t(b) * args.H + h], a1 = decay[(2 * size_t(b) + 1) * args.H + h], step = cum[head * CUM_STRIDE + 2];
        const float v[4] = {from_x[0], from_x[1], from_x[2], from_x[3]};
        float key[scan_rows], read[scan_rows], sum[4] = {};
#pragma unroll
        for (uint32_t k = 0; k < scan_rows; k++) key[k] = from_b[k * scan_apart], read[k] = from_c[k * scan_apart];
        const float keep_open = exp_below(a1), keep_h = exp_below(a0 + a1);
#pragma unroll
        for (uint32_t k = 0; k < scan_rows; k++) {
            const float was_h[4] = {old_h[k].x, old_h[k].y, old_h[k].z, old_h[k].w};
            const float was_open[4] = {old_open[k].x, old_open[k].y, old_open[k].z, old_open[k].w};
            float open[4], now[4];
#pragma unroll
            for (uint32_t i = 0; i < 4; i++) {
                open[i] = keep_open * was_open[i] + step * key[k] * v[i];
                now[i] = keep_h * was_h[i] + open[i];
                sum[i] = fmaf(read[k], now[i], sum[i]);
            }
            const size_t i = at + size_t(k) * scan_apart * scan_p;
            const float4 kept = make_float4(open[0], open[1], open[2], open[3]);
            if (keeps_dh) *reinterpret_cast<float4 *>(FLOATS(ssd_step, dh) + args.dh_at + i) = kept;
            if (has_open) reinterpret_cast<float4 *>(open_all)[i / 4] = merges ? none : kept;
            if (has_h && merges) reinterpret_cast<float4 *>(h_all)[i / 4] = make_float4(now[0], now[1], now[2], now[3]);
        }
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            for (uint32_t apart = 4; apart < 32; apart *= 2) sum[i] += __shfl_xor_sync(0xffffffffu, sum[i], apart);
            if (lane < 4) parts[threadIdx.x / 32][column + i] = sum[i];
        }
        __syncthreads();
        if (threadIdx.x < scan_columns) {
            const uint32_t own = tile % tiles_a_head * scan_columns + threadIdx.x;
            float total = 0.0f;
            for (uint32_t w = 0; w < warps; w++) total += parts[w][threadIdx.x];
            if (args.flags & HAS_D) total = fmaf(skip, (from_x - p)[own], total);
            (FLOATS(ssd_step, y) + args.y_at + size_t(b) * args.y_row + h * scan_p)[own] = total;
        }
        if (has_open && threadIdx.x == 0 && tile % tiles_a_head == 0) open_decay[head] = merges ? 0.0f : a0 + a1;
        __syncthreads();
    }
}

#endif
