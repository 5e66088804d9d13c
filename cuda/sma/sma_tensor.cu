// State-memory attention on the warp products of sm_80, for N and P multiples of 16 and normalised memories of 16 bits:
//   logit_t = unit_t sum_p en_tp (qn dh)_tp, v_t = (c factor) dh, r_t = sum over memories of g_t v_t, online softmax.
// A block works on 128 tokens of one (sequence, head), a warp on 16, whose query and read operands stay in registers (up to
// N 128; further n come from memory each time). Memories pass through shared memory 64 columns at a time, one panel ahead,
// and a panel's fragments serve both products. A P above 64 takes further sweeps, each with the logits anew.
// Numbers: qn, en and dh are exact, c factor is rounded once, relative to a power of two not below the largest factor of
// the memory, so that it stays in the range of f16.
// Shared memory: 2 x (N rows of 144 bytes, N factors).
#include "tiles.cuh"

namespace attend {
namespace sma_tensor {

constexpr uint32_t PITCH = 144, HELD = 8; // bytes from row to row: no bank twice in 8 rows; steps of 16 n in registers
constexpr uint32_t FACTORS_AT = MAX_STATE * PITCH, PANEL_BYTES = FACTORS_AT + MAX_STATE * 4, BYTES = 2 * PANEL_BYTES;

template <uint32_t dtype>
__device__ __forceinline__ void scale_fragment(uint32_t (&a)[4], const float *factors, float inverse)
{
    for (uint32_t k = 0; k < 4; k++) {
        const float2 factor = *reinterpret_cast<const float2 *>(factors + threadIdx.x % 4 * 2 + k / 2 * 8);
        const float2 c = Pair<dtype>::unpack(a[k]);
        a[k] = Pair<dtype>::round(c.x * (factor.x * inverse), c.y * (factor.y * inverse));
    }
}

// The products of 16 rows n of a panel with a key and a value operand.
template <uint32_t dtype>
__device__ __forceinline__ void multiply_step(float (&keyed)[32], float (&value)[32], const uint32_t (&query)[4],
                                              const uint32_t (&scaled)[4], uint32_t rows, uint32_t columns, bool with_value)
{
#pragma unroll
    for (uint32_t pair = 0; pair < 4; pair++) {
        if (pair * 16 >= columns) continue;
        uint32_t b[4];
        load_matrices_turned(b, rows + pair * 32);
        multiply<dtype>(keyed + 8 * pair, query, b);
        multiply<dtype>(keyed + 8 * pair + 4, query, b + 2);
        if (with_value) {
            multiply<dtype>(value + 8 * pair, scaled, b);
            multiply<dtype>(value + 8 * pair + 4, scaled, b + 2);
        }
    }
}

template <uint32_t dtype>
__device__ __forceinline__ void attend(const sma_args &args, const Tile &tile, uint32_t p0, const CudaBindings &bindings,
                                       const View &r, uint8_t *shared)
{
    const uint32_t lane = threadIdx.x % 32, line0 = threadIdx.x / 32 * 16, steps = args.N / 16;
    const uint32_t panels = ceil_div(args.P, 64u), turns = tile.memories * panels;
    const uint32_t wide = min(args.P - p0, 64u);
    const auto halves = [&](uint32_t binding) { return reinterpret_cast<const uint16_t *>(bindings.address[binding]); };
    const size_t row0 = size_t(tile.b) * args.L + tile.t0, group = row0 * args.G + tile.g;
    const Operand queries(halves(BINDING_sma_qn) + group * args.N, size_t(args.G) * args.N, line0, tile.lines),
        verifiers(halves(BINDING_sma_en) + group * args.P, size_t(args.G) * args.P, line0, tile.lines),
        reads(halves(BINDING_sma_c) + args.c_at + row0 * args.c_row + tile.g * args.N, args.c_row, line0, tile.lines);
    const uint32_t base = shared_address(shared);
    const auto fetch = [&](uint32_t turn) {
        const size_t memory = ((size_t(tile.b) * args.capacity + turn / panels) * args.H + tile.h) * args.N;
        const uint32_t q0 = turn % panels * 64, chunks = min(args.P - q0, 64u) / 8, to = base + turn % 2 * PANEL_BYTES;
        const uint16_t *from = halves(BINDING_sma_dh) + args.dh_at + memory * args.P + q0;
        for (uint32_t i = threadIdx.x; i < args.N * 8; i += block_size)
            if (i % 8 < chunks) copy_16(to + i / 8 * PITCH + i % 8 * 16, from + size_t(i / 8) * args.P + i % 8 * 8);
        const float *factors = FLOATS(sma, factor) + args.factor_at + memory;
        if (threadIdx.x < args.N / 4) copy_16(to + FACTORS_AT + threadIdx.x * 16, factors + threadIdx.x * 4);
    };

    Rows rows;
    for (int k = 0; k < 2; k++) {
        const uint32_t t = line0 + lane / 4 + 8 * k;
        rows.seen[k] = t < tile.lines ? memories_before(args, tile.first_position + t) : ~0u;
        const float *unit = FLOATS(sma, unit) + 2 * (group + size_t(t) * args.G);
        rows.unit[k] = t < tile.lines ? unit[0] * log2e : 0.0f;
        rows.result_unit[k] = t < tile.lines ? unit[1] : 0.0f;
    }
    rows.compare();
    uint32_t query[HELD][4], read[HELD][4], verifier[16];
#pragma unroll
    for (uint32_t j = 0; j < HELD; j++) {
        if (j >= steps) continue;
        queries.fragment(query[j], j * 16);
        reads.fragment(read[j], j * 16);
    }
    float result[32] = {}, keyed[32], value[32], part[4];
    Softmax softmax;
    fetch(0);
    for (uint32_t turn = 0; turn < turns; turn++) {
        const uint32_t m = turn / panels, q0 = turn % panels * 64, columns = min(args.P - q0, 64u);
        const uint32_t panel = base + turn % 2 * PANEL_BYTES;
        const float *factors = reinterpret_cast<const float *>(shared + turn % 2 * PANEL_BYTES + FACTORS_AT);
        copies_wait();
        __syncthreads(); // the panel is here, and all are done with the one before it
        if (turn + 1 < turns) fetch(turn + 1);
        if (panels > 1 || turn == 0) {
#pragma unroll
            for (uint32_t j = 0; j < 16; j++) verifier[j] = j % 8 * 8 < columns ? verifiers.pair(j / 8, q0 + j % 8 * 8) : 0u;
        }
        const bool with_value = q0 == p0;
        float most = 0.0f;
        for (uint32_t n = lane; n < args.N; n += 32) most = fmaxf(most, fabsf(factors[n]));
        const float power = power_above(most), inverse = 1.0f / power;
#pragma unroll
        for (int j = 0; j < 32; j++) keyed[j] = 0.0f;
        if (with_value) {
#pragma unroll
            for (int j = 0; j < 32; j++) value[j] = 0.0f;
        }
        const uint32_t in_panel = panel + lane % 16 * PITCH + lane / 16 * 16;
        const auto step = [&](uint32_t j, const uint32_t (&query_j)[4], const uint32_t (&read_j)[4]) {
            uint32_t scaled[4] = {read_j[0], read_j[1], read_j[2], read_j[3]};
            if (with_value) scale_fragment<dtype>(scaled, factors + j * 16, inverse);
            multiply_step<dtype>(keyed, value, query_j, scaled, in_panel + j * 16 * PITCH, columns, with_value);
        };
#pragma unroll
        for (uint32_t j = 0; j < HELD; j++)
            if (j < steps) step(j, query[j], read[j]);
        for (uint32_t j = HELD; j < steps; j++) {
            uint32_t query_j[4], read_j[4];
            queries.fragment(query_j, j * 16);
            reads.fragment(read_j, j * 16);
            step(j, query_j, read_j);
        }
        if (q0 == 0)
            for (int k = 0; k < 4; k++) part[k] = 0.0f;
        add_logits<dtype>(part, keyed, verifier);
        if (q0 + 64 < args.P) continue;
        float logit[2], last[2]; // that one taken in already
        sum_logits(logit, part, rows, m, m >= rows.all);
        take_logits(softmax, logit, power, last, result);
        take_value(result, value, softmax.weight, rows, m, m >= rows.all);
    }
    finish(args, tile, line0, rows, softmax, result, p0, wide, r, FLOATS(sma, lse));
    __syncthreads();
}

template <uint32_t dtype>
__device__ __forceinline__ void run(const sma_args &args, const CudaBindings &bindings, uint32_t dtypes)
{
    extern __shared__ __align__(16) uint8_t shared[];
    FOR_TILES(number) {
        const Tile tile = tile_at(args, INTS(sma, seq) + args.seq_at, number);
        if (tile.lines == 0) continue;
        for (uint32_t p0 = 0; p0 < args.P; p0 += 64) attend<dtype>(args, tile, p0, bindings, VIEW(sma, r), shared);
    }
}

} // namespace sma_tensor
} // namespace attend

static_assert(attend::sma_tensor::BYTES == SHARED_sma_tensor_bf16 && attend::sma_tensor::BYTES == SHARED_sma_tensor_f16, "kernels.def");
static_assert(attend::TOKENS == TILE0_sma_tensor_bf16 && attend::TOKENS == TILE0_sma_tensor_f16, "kernels.def");
static_assert(THREADS_sma_tensor_bf16 == block_size && THREADS_sma_tensor_f16 == block_size && block_size == attend::TOKENS * 2,
              "a warp for 16 tokens");
KERNEL_FUNCTION_BLOCKS(sma, tensor_bf16, 1) { attend::sma_tensor::run<DTYPE_BF16>(args, bindings, dtypes); }
KERNEL_FUNCTION_BLOCKS(sma, tensor_f16, 1) { attend::sma_tensor::run<DTYPE_F16>(args, bindings, dtypes); }
