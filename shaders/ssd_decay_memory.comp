#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_shuffle : require
// ssd_decay and ssd_memory in one launch, N = 128, P = 64, S at most 256, 16-bit operands (see ssd_decay.comp, ssd_memory.comp):
//   cum_t = sum over k <= t of -exp(a_log) step_k, two-float; memory[n, p] = sum_t exp(cum_end - cum_t) step_t b_t[n] x_t[p].
// One workgroup makes T1 heads of a chunk. All lanes make the steps; a subgroup adds up those of a whole head, TOKENS
// neighbours a lane in order and the lanes by doubling, always in the same order, and leaves the head's weights in shared memory.
// The left factor, b^T, is the same for all heads and stays in registers, a subgroup owning ROWS of its rows. The right factor
// is x, each row times its weight and rounded on the way into shared memory; what the next head needs is read meanwhile. The
// sums pass through shared memory to the lanes that round them.
// f16: weights count relative to a power of two not below the head's largest, so that no x grows.
// T0 is N. Shared memory: 36864 + 1156 T1 bytes, f16 4 T1 more.
// Guards: exponents are clamped to <= 0 and come from two-float differences; the sums are precise; tokens past the chunk are
// never read; eps > 0.
#include "lib/dart.glsl"
PUSH(SsdMemoryArgs)
READS(0, x)
READS(1, b)
WRITES(2, cum)
WRITES(3, decay)
READS(4, seq)
READS(5, open)
WRITES(6, memory)
WRITES(7, scale)
WRITES(8, tail)
READS(9, dt)
READS(10, a_log)
READS(11, dt_bias)
READS(12, open_decay)
layout(std430, binding = 0) readonly buffer Quads_x { uvec4 quads_x[]; };
layout(std430, binding = 1) readonly buffer Quads_b { uvec4 quads_b[]; };
layout(std430, binding = 2) writeonly buffer Quads_cum { vec4 quads_cum[]; };
layout(std430, binding = 6) writeonly buffer Quads_memory { uvec4 quads_memory[]; };
#include "lib/seq.glsl"
#define SSD_MEMORY
#include "lib/ssd.glsl"
#include "lib/matrix.glsl"
#include "lib/ssd_matrix.glsl"

const uint TOKENS = MAX_CHUNK / SUBGROUP_SIZE; // of a lane, when a subgroup adds up a head; a multiple of 4
const uint WEIGHT_PITCH = MAX_CHUNK + SUBGROUP_SIZE;
const uint WORDS = SIZE_P / 8u;                // 16-byte words of a row of x
const uint PITCH = WORDS + 1u;                 // the odd word puts rows that are read together into different banks
const uint SUM_PITCH = SIZE_P / 4u + 1u;
const uint LINES = LANES / WORDS;              // rows that the lanes read at a time
const uint UNITS = MAX_CHUNK / LINES;
const uint B_SLAB = 128u;                      // tokens of b that are turned into matrices at a time
const uint B_PITCH = SIZE_N / 8u + 1u;
const uint B_UNITS = B_SLAB * (SIZE_N / 8u) / LANES;
const uint ROW_GROUPS = SIZE_N / MATRIX_M < SUBGROUPS ? SIZE_N / MATRIX_M : SUBGROUPS;
const uint COLUMN_GROUPS = SUBGROUPS / ROW_GROUPS;
const uint ROWS = SIZE_N / ROW_GROUPS;         // of a subgroup
const uint COLUMNS = SIZE_P / COLUMN_GROUPS;
const uint TM = ROWS / MATRIX_M;
const uint TN = COLUMNS / MATRIX_N;
const uint TK = MAX_CHUNK / MATRIX_K;
shared uvec4 stage[MAX_CHUNK * PITCH];         // >= B_SLAB rows of b, >= N rows of sums
shared float weights[T1 * WEIGHT_PITCH];       // steps at first
shared float totals[T1];                       // cum at the chunk's end
#ifndef MATRIX_BF16
shared float units[T1];
#endif

// Where the weight of a token lies: lanes that own neighbouring runs of tokens reach different banks.
uint weight_at(uint head, uint t) { return head * WEIGHT_PITCH + t + t / TOKENS; }

// One head of a chunk by one subgroup: cum and decay from the steps, which become weights.
void add_up(uint head, uint h, uint j, uint b, uint first, uint size)
{
    uint lane = gl_SubgroupInvocationID;
    float a_log = load_a_log(args.a_log_at + h);
    float a = a_log > 0.0 ? -1.0 / exp_neg(-a_log) : -exp_neg(a_log);
    float steps[TOKENS];
    vec2 sums[TOKENS];
    vec2 sum = vec2(0.0);
    [[unroll]] for (uint k = 0u; k < TOKENS; k++) {
        steps[k] = weights[weight_at(head, lane * TOKENS + k)];
        sum = add_pairs(sum, vec2(a * steps[k], 0.0));
        sums[k] = sum;
    }
    [[unroll]] for (uint lanes = 1u; lanes < SUBGROUP_SIZE; lanes *= 2u) {
        vec2 other = subgroupShuffle(sum, max(lane, lanes) - lanes);
        if (lane >= lanes) sum = add_pairs(other, sum);
    }
    vec2 before = subgroupShuffle(sum, max(lane, 1u) - 1u);
    if (lane == 0u) before = vec2(0.0);
    [[unroll]] for (uint k = 0u; k < TOKENS; k++) sums[k] = add_pairs(before, sums[k]);
    vec2 end = subgroupShuffle(sums[TOKENS - 1u], SUBGROUP_SIZE - 1u);

    uint at = (b * args.H + h) * args.L + first;
    [[unroll]] for (uint q = 0u; q < TOKENS / 4u; q++) {
        uint t = lane * TOKENS + q * 4u;
        if (at % 4u == 0u && t + 4u <= size) {
            uint quad = (at + t) / 4u * CUM_STRIDE;
            quads_cum[quad] = vec4(sums[q * 4u], steps[q * 4u], sums[q * 4u + 1u].x);
            quads_cum[quad + 1u] = vec4(sums[q * 4u + 1u].y, steps[q * 4u + 1u], sums[q * 4u + 2u]);
            quads_cum[quad + 2u] = vec4(steps[q * 4u + 2u], sums[q * 4u + 3u], steps[q * 4u + 3u]);
        } else {
            [[unroll]] for (uint i = 0u; i < 4u; i++) {
                if (t + i < size) {
                    uint one = (at + t + i) * CUM_STRIDE;
                    store_cum(one, sums[q * 4u + i].x);
                    store_cum(one + 1u, sums[q * 4u + i].y);
                    store_cum(one + 2u, steps[q * 4u + i]);
                }
            }
        }
    }
    if (lane == 0u) {
        totals[head] = end.x;
        store_decay((b * (args.M + 1u) + 1u + j) * args.H + h, end.x);
    }

    float shrink = 1.0;
    [[unroll]] for (uint k = 0u; k < TOKENS; k++) steps[k] *= decay_exp(cum_between(sums[k], end));
#ifndef MATRIX_BF16
    float largest = 0.0;
    [[unroll]] for (uint k = 0u; k < TOKENS; k++) largest = max(largest, steps[k]);
    float unit = power_above(subgroupMax(largest));
    shrink = 1.0 / unit;
    if (lane == 0u) units[head] = unit;
#endif
    [[unroll]] for (uint k = 0u; k < TOKENS; k++) weights[weight_at(head, lane * TOKENS + k)] = steps[k] * shrink;
}

void main()
{
    uint group_heads = args.H / args.G;
    uint h_blocks = (group_heads + T1 - 1u) / T1;
    uint row_first = gl_SubgroupID % ROW_GROUPS * ROWS;
    uint column_first = gl_SubgroupID / ROW_GROUPS * COLUMNS;
    uint line = LANE / WORDS;
    uint word = LANE % WORDS;
    for (uint tile = gl_WorkGroupID.x; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint block_first = tile % h_blocks * T1;
        uint rest = tile / h_blocks;
        uint g = rest % args.G;
        rest /= args.G;
        uint j = rest % args.M;
        uint b = rest / args.M;
        uint h_first = g * group_heads + block_first;
        uint heads = min(T1, group_heads - block_first);
        uint position = seq_position(b);
        Chunk chunk = chunk_of(position, seq_count(b, args.L), args.S, j);
        uint size = chunk.begin < chunk.end ? chunk.end - chunk.begin : 0u;
        if (j == 0u && LANE < heads) {
            float open = has(args.flags, HAS_OPEN) ? load_open_decay(b * args.H + h_first + LANE) : 0.0;
            store_decay(b * (args.M + 1u) * args.H + h_first + LANE, open);
        }
        if (size == 0u) {
            // store_decay(..., 0.0) would make a constant of 16 bits, which takes a capability more.
            if (LANE < heads) words_decay[(b * (args.M + 1u) + 1u + j) * args.H + h_first + LANE] = 0u;
            continue;
        }
        uint token = b * args.L + chunk.begin;
        uint m = position / args.S + j;
        bool kept = !has(args.flags, HAS_RUN) || (chunk.closes && m >= args.first && m - args.first < args.count);
        bool opens = has(args.flags, HAS_OPEN) && (j == 0u || !chunk.closes);

        // This lane's words of the next head.
        uvec4 ahead[UNITS];
#define READ(head) \
        [[unroll]] for (uint i = 0u; i < UNITS; i++) { \
            uint t = line + i * LINES; \
            uint at = args.x_at + (token + t) * args.x_row + (h_first + (head)) * SIZE_P; \
            ahead[i] = (head) < heads && t < size ? quads_x[at / 8u + word] : uvec4(0u); \
        }
        READ(0u)

        // b^T, B_SLAB tokens at a time. (Macros: in a loop that the compiler leaves as it is, b_rows would not be in registers.)
        MatrixA b_rows[TM * TK];
        uvec4 words[B_UNITS];
#define READ_B(t_first) \
        [[unroll]] for (uint i = 0u; i < B_UNITS; i++) { \
            uint t = (t_first) + (LANE + i * LANES) / (SIZE_N / 8u); \
            uint at = args.b_at + (token + t) * args.b_row + g * SIZE_N + (LANE + i * LANES) % (SIZE_N / 8u) * 8u; \
            words[i] = t < size ? quads_b[at / 8u] : uvec4(0u); \
        }
#define STAGE_B \
        [[unroll]] for (uint i = 0u; i < B_UNITS; i++) \
            stage[(LANE + i * LANES) / (SIZE_N / 8u) * B_PITCH + (LANE + i * LANES) % (SIZE_N / 8u)] = words[i];
#define LOAD_B(t_first) \
        [[unroll]] for (uint k = 0u; k < B_SLAB / MATRIX_K; k++) { \
            [[unroll]] for (uint i = 0u; i < TM; i++) \
                coopMatLoad(b_rows[i * TK + (t_first) / MATRIX_K + k], stage, \
                            k * MATRIX_K * B_PITCH + (row_first + i * MATRIX_M) / 8u, B_PITCH, COLUMN_MAJOR); \
        }
        READ_B(0u)
        // The steps; neighbours are heads, as in dt.
        for (uint i = LANE; i < T1 * MAX_CHUNK; i += LANES) {
            uint head = i % T1;
            uint t = i / T1;
            float value = 0.0;
            if (head < heads && t < size) {
                value = load_dt(args.dt_at + (token + t) * args.dt_row + h_first + head);
                float bias = has(args.flags, HAS_BIAS) ? load_dt_bias(args.dt_bias_at + h_first + head) : 0.0;
                if (!has(args.flags, IS_STEP)) value = min(max(softplus(value + bias), args.dt_min), args.dt_max);
            }
            weights[weight_at(head, t)] = value;
        }
        STAGE_B
        READ_B(B_SLAB)
        barrier();
        for (uint head = gl_SubgroupID; head < heads; head += SUBGROUPS) add_up(head, h_first + head, j, b, chunk.begin, size);
        LOAD_B(0u)
        barrier();
        STAGE_B
        barrier();
        LOAD_B(B_SLAB)

        for (uint head = 0u; head < heads; head++) {
            barrier();
            [[unroll]] for (uint i = 0u; i < UNITS; i++) {
                uint t = line + i * LINES;
                stage[t * PITCH + word] = scale_eight(ahead[i], weights[weight_at(head, t)]);
            }
            barrier();
            READ(head + 1u)
            MatrixSum sums[TM * TN];
            [[unroll]] for (uint i = 0u; i < TM * TN; i++) sums[i] = MatrixSum(0.0);
            [[unroll]] for (uint k = 0u; k < TK; k++) {
                if (k * MATRIX_K < size) {
                    [[unroll]] for (uint n = 0u; n < TN; n++) {
                        MatrixB columns;
                        coopMatLoad(columns, stage, k * MATRIX_K * PITCH + (column_first + n * MATRIX_N) / 8u, PITCH, ROW_MAJOR);
                        [[unroll]] for (uint i = 0u; i < TM; i++)
                            sums[i * TN + n] = coopMatMulAdd(b_rows[i * TK + k], columns, sums[i * TN + n]);
                    }
                }
            }

            barrier();
            [[unroll]] for (uint i = 0u; i < TM; i++) {
                [[unroll]] for (uint n = 0u; n < TN; n++)
                    coopMatStore(sums[i * TN + n], stage, (row_first + i * MATRIX_M) * SUM_PITCH + (column_first + n * MATRIX_N) / 4u,
                                 SUM_PITCH, ROW_MAJOR);
            }
            barrier();
            uint h = h_first + head;
            uint row = kept ? memory_row(position, b, j, h) : 0u;
            float keep = decay_exp(totals[head]);
#ifdef MATRIX_BF16
            const float unit = 1.0;
#else
            float unit = units[head];
#endif
            [[unroll]] for (uint i = 0u; i < SIZE_N / LINES; i++) {
                uint n = line + i * LINES;
                vec4 low = uintBitsToFloat(stage[n * SUM_PITCH + word * 2u]) * unit;
                vec4 high = uintBitsToFloat(stage[n * SUM_PITCH + word * 2u + 1u]) * unit;
                if (opens) {
                    uint e = ((b * args.H + h) * SIZE_N + n) * SIZE_P + word * 8u;
                    [[unroll]] for (uint q = 0u; q < 4u; q++) {
                        if (j == 0u) {
                            low[q] += keep * load_open(e + q);
                            high[q] += keep * load_open(e + 4u + q);
                        }
                        if (!chunk.closes) {
                            store_tail(e + q, low[q]);
                            store_tail(e + 4u + q, high[q]);
                        }
                    }
                }
                float square = dot(low, low) + dot(high, high);
                [[unroll]] for (uint lanes = 1u; lanes < WORDS; lanes *= 2u) square += subgroupShuffleXor(square, lanes);
                float mean = square / float(SIZE_P) + args.eps;
                float factor = inversesqrt(mean);
                if (kept) {
                    quads_memory[(args.memory_at + (row + n) * SIZE_P) / 8u + word] = pack_eight(low * factor, high * factor);
                    if (word == 0u) store_scale(args.scale_at + row + n, mean * factor);
                }
            }
        }
        barrier(); // the last sums have been read
    }
}
