// Norms of rows and their backward passes, for widths that are multiples of 16; formulas: args.h. A team of threads takes a row, eight neighbours
// a thread, and reads it once, in words of 16 bytes; the words of its next row are under way while it adds up this one. Rows of at most 256
// elements have teams within a warp (lib/eight.cuh), rows `wide` of the table, at most 2,048, teams of whole warps. A block takes T0 rows,
// few of them in `wide_few`, for steps of decoding. In the backward passes a thread adds up its columns of every row that its team takes, then the
// teams are added up. What a tensor may share with another is read before it is written, by the same thread: out may be y, and grad_x or copy
// up_y.
#include "lib/eight.cuh"

// A team of threads of a block.
struct NormTeam {
    uint32_t size, row, rows, column; // `row`: which of the `rows` rows that the block takes at once
    bool inside;
    __device__ __forceinline__ NormTeam(uint32_t threads, uint32_t width) : size(threads), row(threadIdx.x / threads), rows(block_size / threads),
        column(threadIdx.x % threads * 8), inside(column < width && row < rows) {}
};

struct NarrowTeam : NormTeam {
    __device__ __forceinline__ NarrowTeam(uint32_t width) : NormTeam(team_of(width), width) {}
    // Each number becomes its sum over the team, the same in all of its threads.
    template <uint32_t count> __device__ __forceinline__ void sum(float (&v)[count])
    {
#pragma unroll
        for (uint32_t k = 0; k < count; k++) v[k] = team_sum(v[k], size);
    }
    // to[i] = the sum over the teams of what they hold of column i.
    __device__ __forceinline__ void columns(float (&v)[8], uint32_t width, float (&scratch)[warps][256], float *to) const
    {
        sum_columns<block_size>(v, size, width, scratch, to);
    }
};

struct WideTeam : NormTeam {
    uint32_t turn = 0;
    __device__ __forceinline__ WideTeam(uint32_t width) : NormTeam((width + 255) / 256 * 32, width) {}
    // A barrier a call is enough, as calls take turns with two places.
    template <uint32_t count> __device__ __forceinline__ void sum(float (&v)[count])
    {
        __shared__ float parts[2][count][warps];
#pragma unroll
        for (uint32_t k = 0; k < count; k++) {
            v[k] = warp_sum(v[k]);
            if (threadIdx.x % 32 == 0) parts[turn][k][threadIdx.x / 32] = v[k];
        }
        __syncthreads();
        const uint32_t first = row < rows ? row * (size / 32) : 0;
#pragma unroll
        for (uint32_t k = 0; k < count; k++) {
            v[k] = parts[turn][k][first];
            for (uint32_t w = 1; w < size / 32; w++) v[k] += parts[turn][k][first + w];
        }
        turn ^= 1;
    }
    __device__ __forceinline__ void columns(float (&v)[8], uint32_t width, float (&scratch)[warps][256], float *to) const
    {
        float4 *own = reinterpret_cast<float4 *>(&scratch[0][8 * threadIdx.x]);
        own[0] = make_float4(v[0], v[1], v[2], v[3]);
        own[1] = make_float4(v[4], v[5], v[6], v[7]);
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < width; i += block_size) {
            float sum = scratch[0][i];
            for (uint32_t k = 1; k < rows; k++) sum += scratch[0][8 * size * k + i];
            to[i] = sum;
        }
    }
};
__device__ __forceinline__ Words words_of(const View &view, size_t i, bool there) { return there ? fetch8(view, i) : no_words(); }
__device__ __forceinline__ void load_row8(const View &view, size_t i, bool there, float (&v)[8]) { unpack8(words_of(view, i, there), view.dtype, v); }
__device__ __forceinline__ float dot8(const float (&a)[8], const float (&b)[8])
{
    float sum = 0.0f;
#pragma unroll
    for (uint32_t k = 0; k < 8; k++) sum = fmaf(a[k], b[k], sum);
    return sum;
}

// A row that a thread takes part in: which row of the block's tensors, and of those that rows_t names.
struct NormRow { bool there; uint32_t row, source; };
__device__ __forceinline__ NormRow row_from(const NormTeam &team, uint32_t first, uint32_t end, uint32_t flags, const int32_t *rows)
{
    NormRow at = {team.inside && first + team.row < end, first + team.row, first + team.row};
    if (at.there && flags & HAS_ROWS) {
        at.source = uint32_t(rows[at.row]);
        at.there = int32_t(at.source) >= 0;
    }
    return at;
}

template <class Team, uint32_t T0> __device__ __forceinline__ void norm_of(const norm_args &args, const CudaBindings &bindings, uint32_t dtypes)
{
    const View x = VIEW(norm, x), weight = VIEW(norm, weight), y = VIEW(norm, y);
    const int32_t *rows = INTS(norm, rows) + args.rows_at;
    Team team(args.width);
    float w[8], v[8];
    load_row8(weight, args.weight_at + size_t(team.column), team.inside, w);
    FOR_TILES(tile) {
        const uint32_t end = min((tile + 1) * T0, args.rows);
        NormRow next = row_from(team, tile * T0, end, args.flags, rows);
        Words words = words_of(x, args.x_at + size_t(next.source) * args.x_row + team.column, next.there);
        for (uint32_t first = tile * T0; first < end; first += team.rows) {
            const NormRow now = next;
            unpack8(words, x.dtype, v);
            next = row_from(team, first + team.rows, end, args.flags, rows);
            words = words_of(x, args.x_at + size_t(next.source) * args.x_row + team.column, next.there);
            float squares[1] = {dot8(v, v)};
            team.sum(squares);
            const float factor = 1.0f / sqrtf(squares[0] / float(args.width) + args.eps);
#pragma unroll
            for (uint32_t k = 0; k < 8; k++) v[k] = v[k] * factor * w[k];
            if (now.there) store8(y, args.y_at + size_t(now.row) * args.y_row + team.column, v);
        }
    }
}
KERNEL_FUNCTION(norm, rows) { norm_of<NarrowTeam, TILE0_norm_rows>(args, bindings, dtypes); }
KERNEL_FUNCTION(norm, wide_few)
{
    predecessors_wait();
    successors_begin();
    norm_of<WideTeam, TILE0_norm_wide_few>(args, bindings, dtypes);
}
KERNEL_FUNCTION(norm, wide) { norm_of<WideTeam, TILE0_norm_wide>(args, bindings, dtypes); }

// What a thread reads of a row of gated_norm.
struct GatedWords { Words y, z, r; float gate; };
__device__ __forceinline__ GatedWords gated_words(const gated_norm_args &args, const View &y, const View &z, const View &r, const View &gate,
                                                  size_t row, uint32_t column, bool there)
{
    const bool sma = there && args.flags & HAS_SMA;
    return {words_of(y, args.y_at + row * args.y_row + column, there), words_of(z, args.z_at + row * args.z_row + column, there),
            words_of(r, args.r_at + row * args.r_row + column, sma), sma ? load(gate, args.gate_at + row * args.gate_row) : 0.0f};
}

// bf: y, z and out are bf16, so that the compiler drops the branches of other types. The others have no registers to read ahead.
template <class Team, uint32_t T0, bool bf>
__device__ __forceinline__ void gated_norm_of(const gated_norm_args &args, const CudaBindings &bindings, uint32_t dtypes)
{
    View y = VIEW(gated_norm, y), z = VIEW(gated_norm, z), out = VIEW(gated_norm, out);
    if (bf) y.dtype = z.dtype = out.dtype = DTYPE_BF16;
    const View r = VIEW(gated_norm, r), gate = VIEW(gated_norm, gate), weight = VIEW(gated_norm, weight);
    const bool sma = args.flags & HAS_SMA, half = out.dtype != DTYPE_F32;
    Team team(args.width);
    float w[8], v[8];
    load_row8(weight, args.weight_at + size_t(team.column), team.inside, w);
    FOR_TILES(tile) {
        const uint32_t end = min((tile + 1) * T0, args.rows);
        size_t row = tile * T0 + team.row;
        GatedWords words = gated_words(args, y, z, r, gate, row, team.column, team.inside && row < end && bf);
        for (uint32_t first = tile * T0; first < end; first += team.rows, row += team.rows) {
            if (!bf) words = gated_words(args, y, z, r, gate, row, team.column, team.inside && row < end);
            float other[8];
            unpack8(words.y, y.dtype, v);
            if (sma) {
                const float open = silu(words.gate);
                unpack8(words.r, r.dtype, other);
#pragma unroll
                for (uint32_t k = 0; k < 8; k++) v[k] = fmaf(open, other[k], v[k]);
            }
            unpack8(words.z, z.dtype, other);
            if (bf) words = gated_words(args, y, z, r, gate, row + team.rows, team.column, team.inside && row + team.rows < end);
            if (half) {
#pragma unroll
                for (uint32_t k = 0; k < 8; k++) v[k] *= silu_for(true, other[k]);
            } else {
#pragma unroll
                for (uint32_t k = 0; k < 8; k++) v[k] *= silu(other[k]);
            }
            float squares[1] = {dot8(v, v)};
            team.sum(squares);
            const float factor = 1.0f / sqrtf(squares[0] / float(args.width) + args.eps);
#pragma unroll
            for (uint32_t k = 0; k < 8; k++) v[k] = v[k] * factor * w[k];
            if (team.inside && row < end) store8(out, args.out_at + row * args.out_row + team.column, v);
        }
    }
}
template <class Team, uint32_t T0>
__device__ __forceinline__ void gated_norm_pick(const gated_norm_args &args, const CudaBindings &bindings, uint32_t dtypes)
{
    if (VIEW(gated_norm, y).dtype == DTYPE_BF16 && VIEW(gated_norm, z).dtype == DTYPE_BF16 && VIEW(gated_norm, out).dtype == DTYPE_BF16)
        gated_norm_of<Team, T0, true>(args, bindings, dtypes);
    else gated_norm_of<Team, T0, false>(args, bindings, dtypes);
}
KERNEL_FUNCTION(gated_norm, rows) { gated_norm_pick<NarrowTeam, TILE0_gated_norm_rows>(args, bindings, dtypes); }
KERNEL_FUNCTION(gated_norm, wide_few) { gated_norm_pick<WideTeam, TILE0_gated_norm_wide_few>(args, bindings, dtypes); }
KERNEL_FUNCTION(gated_norm, wide) { gated_norm_pick<WideTeam, TILE0_gated_norm_wide>(args, bindings, dtypes); }

// What a thread reads of a row of norm_backward. `before`: of grad_x, or of from.
struct NormBackwardWords { Words x, up, before; };
struct NormBackwardViews { View x, up_y, grad_x, from; const int32_t *from_rows; };
__device__ __forceinline__ NormBackwardWords norm_backward_words(const norm_backward_args &args, const NormBackwardViews &views, const NormRow &at,
                                                                 uint32_t column)
{
    NormBackwardWords words = {words_of(views.x, args.x_at + size_t(at.source) * args.x_row + column, at.there),
                               words_of(views.up_y, args.up_y_at + size_t(at.row) * args.up_y_row + column, at.there), no_words()};
    if (args.flags & HAS_FROM) {
        const int of = at.there ? views.from_rows[at.row] : -1;
        words.before = words_of(views.from, args.from_at + size_t(of) * args.from_row + column, of >= 0);
    } else {
        words.before = words_of(views.grad_x, args.grad_x_at + size_t(at.source) * args.grad_x_row + column, at.there && args.flags & IS_ADD);
    }
    return words;
}

template <class Team, uint32_t T0>
__device__ __forceinline__ void norm_backward_of(const norm_backward_args &args, const CudaBindings &bindings, uint32_t dtypes,
                                                 float (&scratch)[warps][256])
{
    const NormBackwardViews views = {VIEW(norm_backward, x), VIEW(norm_backward, up_y), VIEW(norm_backward, grad_x), VIEW(norm_backward, from),
                                     INTS(norm_backward, from_rows) + args.from_rows_at};
    const View weight = VIEW(norm_backward, weight), copy = VIEW(norm_backward, copy);
    const uint32_t before = (args.flags & HAS_FROM ? views.from : views.grad_x).dtype;
    const int32_t *rows = INTS(norm_backward, rows) + args.rows_at;
    Team team(args.width);
    float w[8];
    load_row8(weight, args.weight_at + size_t(team.column), team.inside, w);
    FOR_TILES(tile) {
        const uint32_t end = min((tile + 1) * T0, args.rows);
        float sums[8] = {};
        NormRow next = row_from(team, tile * T0, end, args.flags, rows);
        NormBackwardWords words = norm_backward_words(args, views, next, team.column);
        for (uint32_t first = tile * T0; first < end; first += team.rows) {
            const NormRow now = next;
            float v[8], up[8], u[8], grad[8];
            unpack8(words.x, views.x.dtype, v);
            unpack8(words.up, views.up_y.dtype, up);
            unpack8(words.before, before, grad);
            next = row_from(team, first + team.rows, end, args.flags, rows);
            words = norm_backward_words(args, views, next, team.column);
#pragma unroll
            for (uint32_t k = 0; k < 8; k++) u[k] = up[k] * w[k];
            float both[2] = {dot8(v, v), dot8(u, v)};
            team.sum(both);
            const float inverse = 1.0f / sqrtf(both[0] / float(args.width) + args.eps);
            const float slant = inverse * inverse * inverse * both[1] / float(args.width);
#pragma unroll
            for (uint32_t k = 0; k < 8; k++) {
                sums[k] += up[k] * v[k] * inverse;
                grad[k] += inverse * u[k] - slant * v[k];
            }
            if (!now.there) continue;
            store8(views.grad_x, args.grad_x_at + size_t(now.source) * args.grad_x_row + team.column, grad);
            if (args.flags & WRITES_COPY) store8(copy, args.copy_at + size_t(now.row) * args.copy_row + team.column, grad);
        }
        team.columns(sums, args.width, scratch, FLOATS(norm_backward, partial) + size_t(tile) * args.width);
        __syncthreads();
    }
}
KERNEL_FUNCTION(norm_backward, rows)
{
    __shared__ __align__(16) float scratch[warps][256];
    norm_backward_of<NarrowTeam, TILE0_norm_backward_rows>(args, bindings, dtypes, scratch);
}
KERNEL_FUNCTION(norm_backward, wide)
{
    __shared__ __align__(16) float scratch[warps][256];
    norm_backward_of<WideTeam, TILE0_norm_backward_wide>(args, bindings, dtypes, scratch);
}

// The tensors of gated_norm_backward that are read, and what a thread reads of a row.
struct GatedBackwardViews { View y, z, up_out, r, gate; };
struct GatedBackwardWords { Words y, z, up, r; float gate; };
__device__ __forceinline__ GatedBackwardWords gated_backward_words(const gated_norm_backward_args &args, const GatedBackwardViews &views, size_t t,
                                                                   uint32_t column, bool there, bool sma)
{
    return {words_of(views.y, args.y_at + t * args.y_row + column, there), words_of(views.z, args.z_at + t * args.z_row + column, there),
            words_of(views.up_out, args.up_out_at + t * args.up_out_row + column, there),
            words_of(views.r, args.r_at + t * args.r_row + column, there && sma),
            there && sma ? load(views.gate, args.gate_at + t * args.gate_row) : 0.0f};
}

// bf: y, z, up_out, grad_y and grad_z are bf16; sma: there are r and gate. The compiler drops the branches of other types, which have no registers
// to read ahead, and the registers of r.
template <class Team, uint32_t T0, bool bf, bool sma>
__device__ __forceinline__ void gated_norm_backward_of(const gated_norm_backward_args &args, const CudaBindings &bindings, uint32_t dtypes,
                                                       float (&scratch)[warps][256])
{
    GatedBackwardViews views = {VIEW(gated_norm_backward, y), VIEW(gated_norm_backward, z), VIEW(gated_norm_backward, up_out),
                                VIEW(gated_norm_backward, r), VIEW(gated_norm_backward, gate)};
    View grad_y = VIEW(gated_norm_backward, grad_y), grad_z = VIEW(gated_norm_backward, grad_z);
    if (bf) views.y.dtype = views.z.dtype = views.up_out.dtype = grad_y.dtype = grad_z.dtype = DTYPE_BF16;
    const View weight = VIEW(gated_norm_backward, weight), grad_r = VIEW(gated_norm_backward, grad_r);
    const View grad_gate = VIEW(gated_norm_backward, grad_gate);
    const bool half = grad_z.dtype != DTYPE_F32;
    Team team(args.width);
    float weights[8];
    load_row8(weight, args.weight_at + size_t(team.column), team.inside, weights);
    FOR_TILES(tile) {
        const uint32_t end = min((tile + 1) * T0, args.rows);
        float sums[8] = {};
        size_t t = tile * T0 + team.row;
        GatedBackwardWords words = gated_backward_words(args, views, t, team.column, team.inside && t < end && bf, sma);
        for (uint32_t first = tile * T0; first < end; first += team.rows, t += team.rows) {
            if (!bf) words = gated_backward_words(args, views, t, team.column, team.inside && t < end, sma);
            float w[8], up[8], read[8], open[8], tilt[8]; // tilt: w SiLU'(z)
            unpack8(words.y, views.y.dtype, w);
            unpack8(words.up, views.up_out.dtype, up);
            unpack8(words.z, views.z.dtype, open);
            Slope slope = {0.0f, 0.0f};
            if (sma) {
                unpack8(words.r, views.r.dtype, read);
                slope = silu_slope(words.gate);
            }
            if (bf) words = gated_backward_words(args, views, t + team.rows, team.column, team.inside && t + team.rows < end, sma);
            float totals[sma ? 4 : 2] = {}; // of v v, u v, SiLU(z) r u and SiLU(z) r v
#pragma unroll
            for (uint32_t k = 0; k < 8; k++) {
                const Slope gated = silu_slope_for(bf || half, open[k]);
                if (sma) w[k] = fmaf(slope.value, read[k], w[k]);
                tilt[k] = w[k] * gated.slope;
                open[k] = gated.value;
                w[k] *= gated.value; // v from here on
                const float u = up[k] * weights[k];
                totals[0] = fmaf(w[k], w[k], totals[0]);
                totals[1] = fmaf(u, w[k], totals[1]);
                if (sma) {
                    totals[sma ? 2 : 0] = fmaf(open[k] * read[k], u, totals[sma ? 2 : 0]);
                    totals[sma ? 3 : 0] = fmaf(open[k] * read[k], w[k], totals[sma ? 3 : 0]);
                }
            }
            team.sum(totals);
            const float inverse = 1.0f / sqrtf(totals[0] / float(args.width) + args.eps);
            const float slant = inverse * inverse * inverse * totals[1] / float(args.width);
#pragma unroll
            for (uint32_t k = 0; k < 8; k++) {
                const float grad = inverse * up[k] * weights[k] - slant * w[k]; // of v
                sums[k] += up[k] * w[k] * inverse;
                tilt[k] *= grad;
                open[k] *= grad;
                if (sma) read[k] = slope.value * open[k];
            }
            if (!team.inside || t >= end) continue;
            store8(grad_z, args.grad_z_at + t * args.grad_z_row + team.column, tilt);
            store8(grad_y, args.grad_y_at + t * args.grad_y_row + team.column, open);
            if (sma) {
                store8(grad_r, args.grad_r_at + t * args.grad_r_row + team.column, read);
                if (team.column == 0)
                    store(grad_gate, args.grad_gate_at + t * args.grad_gate_row,
                          slope.slope * (inverse * totals[sma ? 2 : 0] - slant * totals[sma ? 3 : 0]));
            }
        }
        team.columns(sums, args.width, scratch, FLOATS(gated_norm_backward, partial) + size_t(tile) * args.width);
        __syncthreads();
    }
}

template <class Team, uint32_t T0>
__device__ __forceinline__ void gated_norm_backward_pick(const gated_norm_backward_args &args, const CudaBindings &bindings, uint32_t dtypes)
{
    __shared__ __align__(16) float scratch[warps][256];
    const View grad_y = VIEW(gated_norm_backward, grad_y), grad_z = VIEW(gated_norm_backward, grad_z), z = VIEW(gated_norm_backward, z);
    const View y = VIEW(gated_norm_backward, y), up_out = VIEW(gated_norm_backward, up_out);
    const bool bf = y.dtype == DTYPE_BF16 && z.dtype == DTYPE_BF16 && up_out.dtype == DTYPE_BF16 && grad_y.dtype == DTYPE_BF16 &&
                    grad_z.dtype == DTYPE_BF16;
    const bool sma = args.flags & HAS_SMA;
    if (bf && sma) gated_norm_backward_of<Team, T0, true, true>(args, bindings, dtypes, scratch);
    else if (bf) gated_norm_backward_of<Team, T0, true, false>(args, bindings, dtypes, scratch);
    else if (sma) gated_norm_backward_of<Team, T0, false, true>(args, bindings, dtypes, scratch);
    else gated_norm_backward_of<Team, T0, false, false>(args, bindings, dtypes, scratch);
}
KERNEL_FUNCTION(gated_norm_backward, rows) { gated_norm_backward_pick<NarrowTeam, TILE0_gated_norm_backward_rows>(args, bindings, dtypes); }
KERNEL_FUNCTION(gated_norm_backward, wide) { gated_norm_backward_pick<WideTeam, TILE0_gated_norm_backward_wide>(args, bindings, dtypes); }
