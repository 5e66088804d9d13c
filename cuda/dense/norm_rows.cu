// Norms of rows of at most 256 elements, a multiple of 16, and their backward passes; formulas: args.h. A team of threads takes a row
// (lib/eight.cuh) and reads it once, in words of 16 bytes. A block takes T0 rows. In the backward passes a thread adds up its columns of every
// row that its team takes, then the teams are added up. What a tensor may share with another is read before it is written, by the
// same thread: out may be y, grad_x may be up_y.
#include "lib/eight.cuh"

// A team of threads of a block.
struct NormTeam {
    uint32_t size, row, rows, column; // `row`: which of the `rows` rows that the block takes at once
    bool inside;
    __device__ __forceinline__ NormTeam(uint32_t width) : size(team_of(width)), row(threadIdx.x / size), rows(block_size / size),
        column(threadIdx.x % size * 8), inside(column < width) {}
};
__device__ __forceinline__ void load_row8(const View &view, size_t i, bool there, float (&v)[8])
{
    unpack8(there ? fetch8(view, i) : no_words(), view.dtype, v);
}
__device__ __forceinline__ float dot8(const float (&a)[8], const float (&b)[8])
{
    float sum = 0.0f;
#pragma unroll
    for (uint32_t k = 0; k < 8; k++) sum = fmaf(a[k], b[k], sum);
    return sum;
}

KERNEL_FUNCTION(norm, rows)
{
    constexpr uint32_t T0 = TILE0_norm_rows;
    const View x = VIEW(norm, x), weight = VIEW(norm, weight), y = VIEW(norm, y);
    const int32_t *rows = INTS(norm, rows) + args.rows_at;
    const NormTeam team(args.width);
    float w[8], v[8];
    load_row8(weight, args.weight_at + size_t(team.column), team.inside, w);
    FOR_TILES(tile) {
        const uint32_t end = min((tile + 1) * T0, args.rows);
        for (uint32_t first = tile * T0; first < end; first += team.rows) {
            const uint32_t row = first + team.row;
            bool there = team.inside && row < end;
            uint32_t source = row;
            if (there && args.flags & HAS_ROWS) {
                source = uint32_t(rows[row]);
                there = int32_t(source) >= 0;
            }
            load_row8(x, args.x_at + size_t(source) * args.x_row + team.column, there, v);
            const float factor = 1.0f / sqrtf(team_sum(dot8(v, v), team.size) / float(args.width) + args.eps);
#pragma unroll
            for (uint32_t k = 0; k < 8; k++) v[k] = v[k] * factor * w[k];
            if (there) store8(y, args.y_at + size_t(row) * args.y_row + team.column, v);
        }
    }
}

KERNEL_FUNCTION(gated_norm, rows)
{
    constexpr uint32_t T0 = TILE0_gated_norm_rows;
    const View y = VIEW(gated_norm, y), r = VIEW(gated_norm, r), gate = VIEW(gated_norm, gate), z = VIEW(gated_norm, z);
    const View weight = VIEW(gated_norm, weight), out = VIEW(gated_norm, out);
    const bool sma = args.flags & HAS_SMA, half = out.dtype != DTYPE_F32;
    const NormTeam team(args.width);
    float w[8], v[8];
    load_row8(weight, args.weight_at + size_t(team.column), team.inside, w);
    FOR_TILES(tile) {
        const uint32_t end = min((tile + 1) * T0, args.rows);
        for (uint32_t first = tile * T0; first < end; first += team.rows) {
            const size_t row = first + team.row;
            const bool there = team.inside && row < end;
            Words y_words = no_words(), z_words = no_words(), r_words = no_words();
            float open = 0.0f;
            if (there) {
                y_words = fetch8(y, args.y_at + row * args.y_row + team.column);
                z_words = fetch8(z, args.z_at + row * args.z_row + team.column);
                if (sma) {
                    r_words = fetch8(r, args.r_at + row * args.r_row + team.column);
                    open = silu(load(gate, args.gate_at + row * args.gate_row));
                }
            }
            float other[8];
            unpack8(y_words, y.dtype, v);
            if (sma) {
                unpack8(r_words, r.dtype, other);
#pragma unroll
                for (uint32_t k = 0; k < 8; k++) v[k] = fmaf(open, other[k], v[k]);
            }
            unpack8(z_words, z.dtype, other);
            if (half) {
#pragma unroll
                for (uint32_t k = 0; k < 8; k++) v[k] *= silu_for(true, other[k]);
            } else {
#pragma unroll
                for (uint32_t k = 0; k < 8; k++) v[k] *= silu(other[k]);
            }
            const float factor = 1.0f / sqrtf(team_sum(dot8(v, v), team.size) / float(args.width) + args.eps);
#pragma unroll
            for (uint32_t k = 0; k < 8; k++) v[k] = v[k] * factor * w[k];
            if (there) store8(out, args.out_at + row * args.out_row + team.column, v);
        }
    }
}

KERNEL_FUNCTION(norm_backward, rows)
{
    constexpr uint32_t T0 = TILE0_norm_backward_rows;
    __shared__ __align__(16) float scratch[warps][256];
    const View x = VIEW(norm_backward, x), weight = VIEW(norm_backward, weight), up_y = VIEW(norm_backward, up_y);
    const View grad_x = VIEW(norm_backward, grad_x);
    const int32_t *rows = INTS(norm_backward, rows) + args.rows_at;
    const NormTeam team(args.width);
    float w[8];
    load_row8(weight, args.weight_at + size_t(team.column), team.inside, w);
    FOR_TILES(tile) {
        const uint32_t end = min((tile + 1) * T0, args.rows);
        float sums[8] = {};
        for (uint32_t first = tile * T0; first < end; first += team.rows) {
            const uint32_t row = first + team.row;
            bool there = team.inside && row < end;
            uint32_t source = row;
            if (there && args.flags & HAS_ROWS) {
                source = uint32_t(rows[row]);
                there = int32_t(source) >= 0;
            }
            const size_t to = args.grad_x_at + size_t(source) * args.grad_x_row + team.column;
            Words x_words = no_words(), up_words = no_words(), before = no_words();
            if (there) {
                x_words = fetch8(x, args.x_at + size_t(source) * args.x_row + team.column);
                up_words = fetch8(up_y, args.up_y_at + size_t(row) * args.up_y_row + team.column);
                if (args.flags & IS_ADD) before = fetch8(grad_x, to);
            }
            float v[8], up[8], u[8], grad[8];
            unpack8(x_words, x.dtype, v);
            unpack8(up_words, up_y.dtype, up);
            unpack8(before, grad_x.dtype, grad);
#pragma unroll
            for (uint32_t k = 0; k < 8; k++) u[k] = up[k] * w[k];
            const float squares = team_sum(dot8(v, v), team.size), along = team_sum(dot8(u, v), team.size);
            const float inverse = 1.0f / sqrtf(squares / float(args.width) + args.eps);
            const float slant = inverse * inverse * inverse * along / float(args.width);
#pragma unroll
            for (uint32_t k = 0; k < 8; k++) {
                sums[k] += up[k] * v[k] * inverse;
                grad[k] += inverse * u[k] - slant * v[k];
            }
            if (there) store8(grad_x, to, grad);
        }
        sum_columns<block_size>(sums, team.size, args.width, scratch, FLOATS(norm_backward, partial) + size_t(tile) * args.width);
        __syncthreads();
    }
}

// bf: y, z, up_out, grad_y and grad_z are bf16, so that the compiler drops the branches of other types.
template <bool bf>
__device__ __forceinline__ void gated_norm_backward_rows_of(const gated_norm_backward_args &args, const CudaBindings &bindings, uint32_t dtypes,
                                                            float (&scratch)[warps][256])
{
    constexpr uint32_t T0 = TILE0_gated_norm_backward_rows;
    View y = VIEW(gated_norm_backward, y), z = VIEW(gated_norm_backward, z), up_out = VIEW(gated_norm_backward, up_out);
    View grad_y = VIEW(gated_norm_backward, grad_y), grad_z = VIEW(gated_norm_backward, grad_z);
    if (bf) y.dtype = z.dtype = up_out.dtype = grad_y.dtype = grad_z.dtype = DTYPE_BF16;
    const View r = VIEW(gated_norm_backward, r), gate = VIEW(gated_norm_backward, gate), weight = VIEW(gated_norm_backward, weight);
    const View grad_r = VIEW(gated_norm_backward, grad_r), grad_gate = VIEW(gated_norm_backward, grad_gate);
    const bool sma = args.flags & HAS_SMA, half = grad_z.dtype != DTYPE_F32;
    const NormTeam team(args.width);
    float weights[8];
    load_row8(weight, args.weight_at + size_t(team.column), team.inside, weights);
    FOR_TILES(tile) {
        const uint32_t end = min((tile + 1) * T0, args.rows);
        float sums[8] = {};
        for (uint32_t first = tile * T0; first < end; first += team.rows) {
            const size_t t = first + team.row;
            const bool there = team.inside && t < end;
            Words y_words = no_words(), z_words = no_words(), up_words = no_words(), r_words = no_words();
            Slope slope = {0.0f, 0.0f};
            if (there) {
                y_words = fetch8(y, args.y_at + t * args.y_row + team.column);
                z_words = fetch8(z, args.z_at + t * args.z_row + team.column);
                up_words = fetch8(up_out, args.up_out_at + t * args.up_out_row + team.column);
                if (sma) {
                    r_words = fetch8(r, args.r_at + t * args.r_row + team.column);
                    slope = silu_slope(load(gate, args.gate_at + t * args.gate_row));
                }
            }
            float w[8], up[8], read[8], open[8], tilt[8]; // tilt: w SiLU'(z)
            unpack8(y_words, y.dtype, w);
            unpack8(r_words, r.dtype, read);
            unpack8(up_words, up_out.dtype, up);
            unpack8(z_words, z.dtype, open);
            float squares = 0.0f, along = 0.0f, straight = 0.0f, across = 0.0f;
#pragma unroll
            for (uint32_t k = 0; k < 8; k++) {
                const Slope gated = silu_slope_for(bf || half, open[k]);
                w[k] = fmaf(slope.value, read[k], w[k]);
                tilt[k] = w[k] * gated.slope;
                open[k] = gated.value;
                w[k] *= gated.value; // v from here on
                const float u = up[k] * weights[k];
                squares = fmaf(w[k], w[k], squares);
                along = fmaf(u, w[k], along);
                straight = fmaf(open[k] * read[k], u, straight);
                across = fmaf(open[k] * read[k], w[k], across);
            }
            squares = team_sum(squares, team.size);
            along = team_sum(along, team.size);
            if (sma) {
                straight = team_sum(straight, team.size);
                across = team_sum(across, team.size);
            }
            const float inverse = 1.0f / sqrtf(squares / float(args.width) + args.eps);
            const float slant = inverse * inverse * inverse * along / float(args.width);
#pragma unroll
            for (uint32_t k = 0; k < 8; k++) {
                const float grad = inverse * up[k] * weights[k] - slant * w[k]; // of v
                sums[k] += up[k] * w[k] * inverse;
                tilt[k] *= grad;
                open[k] *= grad;
                read[k] = slope.value * open[k];
            }
            if (there) {
                store8(grad_z, args.grad_z_at + t * args.grad_z_row + team.column, tilt);
                store8(grad_y, args.grad_y_at + t * args.grad_y_row + team.column, open);
            }
            if (there && sma) {
                store8(grad_r, args.grad_r_at + t * args.grad_r_row + team.column, read);
                if (team.column == 0)
                    store(grad_gate, args.grad_gate_at + t * args.grad_gate_row, slope.slope * (inverse * straight - slant * across));
            }
        }
        sum_columns<block_size>(sums, team.size, args.width, scratch, FLOATS(gated_norm_backward, partial) + size_t(tile) * args.width);
        __syncthreads();
    }
}

KERNEL_FUNCTION(gated_norm_backward, rows)
{
    __shared__ __align__(16) float scratch[warps][256];
    const View grad_y = VIEW(gated_norm_backward, grad_y), grad_z = VIEW(gated_norm_backward, grad_z), z = VIEW(gated_norm_backward, z);
    const View y = VIEW(gated_norm_backward, y), up_out = VIEW(gated_norm_backward, up_out);
    if (y.dtype == DTYPE_BF16 && z.dtype == DTYPE_BF16 && up_out.dtype == DTYPE_BF16 && grad_y.dtype == DTYPE_BF16 && grad_z.dtype == DTYPE_BF16)
        gated_norm_backward_rows_of<true>(args, bindings, dtypes, scratch);
    else gated_norm_backward_rows_of<false>(args, bindings, dtypes, scratch);
}
