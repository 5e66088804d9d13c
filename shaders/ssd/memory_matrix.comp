#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_shuffle : require
// The matrix rows of ssd_memory: a workgroup makes T0 rows n of T1 heads, HEAD columns (HEAD / P heads) at a time.
// A subgroup owns T0 / ROW_GROUPS of the rows. The left factor, b^T, and the right one, x, each row times exp(cum_end - cum_t) step_t
// and rounded on the way, go through shared memory, SLAB tokens at a time; what the next columns need is read meanwhile. The sums pass
// through shared memory to the lanes that round them.
// f16: weights count relative to a power of two not below the head's largest, so that no x grows.
// Shared memory: 16 SLAB (T0 / 8 + 10) bytes, or where that is more 272 T0, and 4096 bytes.
#include "lib/dart.glsl"
#include "table/ssd_memory.glsl"
READS(x) READS(b) READS(cum) READS(decay) READS(seq) READS(open) WRITES(memory) WRITES(scale) WRITES(tail)
#include "lib/seq.glsl"
#define SSD_CUM
#define SSD_MEMORY
#include "ssd.glsl"
#include "lib/matrix.glsl"
#include "matrix.glsl"
READS_AS(uvec4, quads, x) READS_AS(uvec4, quads, b) WRITES_AS(uvec4, quads, memory)

const uint MAX_PARTS = HEAD / 16u;        // heads in HEAD columns
const uint WORDS = HEAD / 8u;             // 16-byte words of a row of x
const uint PITCH = WORDS + 1u;            // the odd word puts rows that are read together into different banks
const uint B_PITCH = T0 / 8u + 1u;
const uint SUM_PITCH = HEAD / 4u + 1u;
const uint ROW_GROUPS = T0 / MATRIX_M < SUBGROUPS ? T0 / MATRIX_M : SUBGROUPS;
const uint ROWS = T0 / ROW_GROUPS;        // of a subgroup
const uint COLUMNS = HEAD * ROW_GROUPS / SUBGROUPS;
const uint TM = ROWS / MATRIX_M;
const uint TN = COLUMNS / MATRIX_N;
const uint LINES = LANES / WORDS;         // rows of x that the lanes read at a time
const uint UNITS = MAX_CHUNK / LINES;
const uint TOKENS = (MAX_PARTS * MAX_CHUNK + LANES - 1u) / LANES;
const uint FACTOR_WORDS = SLAB * (PITCH + B_PITCH);
const uint STAGE_WORDS = FACTOR_WORDS > T0 * SUM_PITCH ? FACTOR_WORDS : T0 * SUM_PITCH;
shared uvec4 stage[STAGE_WORDS];
shared float weights[MAX_PARTS * MAX_CHUNK];

// What the lanes read ahead of one step.
struct Ahead {
    uvec4 x[UNITS];
    vec3 tokens[TOKENS]; // cum
    vec2 ends[TOKENS];
};

// What the weights of one of the heads are counted by.
float unit_of(uint own_part)
{
    float unit = 1.0;
#ifndef MATRIX_BF16
    for (uint part = 0u; part < HEAD / SIZE_P; part++) {
        float largest = 0.0;
        for (uint t = gl_SubgroupInvocationID; t < MAX_CHUNK; t += SUBGROUP_SIZE) largest = max(largest, weights[part * MAX_CHUNK + t]);
        largest = subgroupMax(largest);
        if (part == own_part) unit = power_above(largest);
    }
#endif
    return unit;
}

void main()
{
    uint n_blocks = (SIZE_N + T0 - 1u) / T0;
    uint heads = args.H / args.G;
    uint h_blocks = (heads + T1 - 1u) / T1;
    uint row_first = gl_SubgroupID % ROW_GROUPS * ROWS;
    uint column_first = gl_SubgroupID / ROW_GROUPS * COLUMNS;
    uint line = LANE / WORDS;
    uint column = LANE % WORDS * 8u;
    const uint PARTS = HEAD / SIZE_P;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint n_first = tile % n_blocks * T0;
        uint rest = tile / n_blocks;
        uint block_first = rest % h_blocks * T1;
        rest /= h_blocks;
        uint g = rest % args.G;
        rest /= args.G;
        uint j = rest % args.M;
        uint b = rest / args.M;
        uint h_first = g * heads + block_first;
        uint h_end = h_first + min(T1, heads - block_first);
        uint position = seq_position(b);
        Chunk chunk = chunk_of(position, seq_count(b, args.L), args.S, j);
        if (chunk.begin >= chunk.end) continue;
        uint size = chunk.end - chunk.begin;
        uint token = b * args.L + chunk.begin;
        uint m = position / args.S + j;
        bool kept = !has(args.flags, HAS_RUN) || (chunk.closes && m >= args.first && m - args.first < args.count);
        bool opens = has(args.flags, HAS_OPEN) && (j == 0u || !chunk.closes);

        Ahead ahead;
#define READ_AHEAD(head) \
        { \
            uint x_first = (args.x_at + token * args.x_row + (head) * SIZE_P + column) / 8u; \
            bool inside = (head) + column / SIZE_P < h_end; \
            [[unroll]] for (uint i = 0u; i < UNITS; i++) { \
                uint t = line + i * LINES; \
                ahead.x[i] = inside && t < size ? quads_x[x_first + t * (args.x_row / 8u)] : uvec4(0u); \
            } \
            [[unroll]] for (uint i = 0u; i < TOKENS; i++) { \
                uint t = (LANE + i * LANES) % MAX_CHUNK; \
                uint cum = (b * args.H + min((head) + (LANE + i * LANES) / MAX_CHUNK, h_end - 1u)) * args.L + chunk.begin; \
                ahead.tokens[i] = cum_at(cum + min(t, size - 1u)); \
                ahead.ends[i] = cum_at(cum + size - 1u).xy; \
            } \
        }
#define WEIGH \
        [[unroll]] for (uint i = 0u; i < TOKENS; i++) { \
            if (LANE + i * LANES < MAX_PARTS * MAX_CHUNK) \
                weights[LANE + i * LANES] = decay_exp(cum_between(ahead.tokens[i].xy, ahead.ends[i])) * ahead.tokens[i].z; \
        }
        READ_AHEAD(h_first)
        WEIGH
        for (uint head = h_first; head < h_end; head += PARTS) {
            MatrixSum sums[TM * TN];
            [[unroll]] for (uint i = 0u; i < TM * TN; i++) sums[i] = MatrixSum(0.0);
            barrier();
            float unit = unit_of(column / SIZE_P);
            // No loop in it may stay: some compilers unroll innermost loops only, and would index ahead.x in memory.
            [[unroll]] for (uint t_first = 0u; t_first < MAX_CHUNK; t_first += SLAB) {
                if (t_first > 0u) barrier();
                [[unroll]] for (uint i = 0u; i < SLAB / LINES; i++) {
                    uint t = line + i * LINES;
                    float weight = weights[column / SIZE_P * MAX_CHUNK + t_first + t] / unit;
                    stage[t * PITCH + LANE % WORDS] = scale_eight(ahead.x[t_first / LINES + i], weight);
                }
                [[unroll]] for (uint e = 0u; e < SLAB * (T0 / 8u); e += LANES) {
                    uint u = e + LANE;
                    if (u >= SLAB * (T0 / 8u)) break;
                    uint t = u / (T0 / 8u);
                    uint n = n_first + u % (T0 / 8u) * 8u;
                    uint at = args.b_at + (token + t_first + t) * args.b_row + g * SIZE_N + n;
                    stage[SLAB * PITCH + t * B_PITCH + u % (T0 / 8u)] = t_first + t < size && n < SIZE_N ? quads_b[at / 8u] : uvec4(0u);
                }
                barrier();
                if (t_first + SLAB == MAX_CHUNK && head + PARTS < h_end) READ_AHEAD(head + PARTS)
                [[unroll]] for (uint k = 0u; k < SLAB / MATRIX_K; k++) {
                    if (t_first + k * MATRIX_K < size) {
                        MatrixA b_rows[TM];
                        [[unroll]] for (uint i = 0u; i < TM; i++)
                            coopMatLoad(b_rows[i], stage, SLAB * PITCH + k * MATRIX_K * B_PITCH + (row_first + i * MATRIX_M) / 8u,
                                        B_PITCH, COLUMN_MAJOR);
                        [[unroll]] for (uint n = 0u; n < TN; n++) {
                            MatrixB columns;
                            coopMatLoad(columns, stage, k * MATRIX_K * PITCH + (column_first + n * MATRIX_N) / 8u, PITCH, ROW_MAJOR);
                            [[unroll]] for (uint i = 0u; i < TM; i++)
                                sums[i * TN + n] = coopMatMulAdd(b_rows[i], columns, sums[i * TN + n]);
                        }
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
            uint own_head = head + column / SIZE_P;
            uint p = column % SIZE_P;
            bool inside = own_head < h_end;
            [[unroll]] for (uint i = 0u; i < T0 / LINES; i++) {
                uint r = line + i * LINES;
                uint n = n_first + r;
                bool valid = inside && n < SIZE_N;
                vec4 low = uintBitsToFloat(stage[r * SUM_PITCH + column / 4u]) * unit;
                vec4 high = uintBitsToFloat(stage[r * SUM_PITCH + column / 4u + 1u]) * unit;
                if (opens && valid) {
                    uint e = ((b * args.H + own_head) * SIZE_N + n) * SIZE_P + p;
                    float keep = decay_exp(load_decay((b * (args.M + 1u) + 1u) * args.H + own_head));
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
                [[unroll]] for (uint lanes = 1u; lanes < WORDS; lanes *= 2u) {
                    if (lanes * 8u < SIZE_P) square += subgroupShuffleXor(square, lanes);
                }
                float mean = square / float(SIZE_P) + args.eps;
                float factor = inversesqrt(mean);
                if (kept && valid) {
                    uint row = memory_row(position, b, j, own_head) + n;
                    quads_memory[(args.memory_at + row * SIZE_P + p) / 8u] = pack_eight(low * factor, high * factor);
                    if (p == 0u) store_scale(args.scale_at + row, mean * factor);
                }
            }
            if (head + PARTS < h_end) WEIGH
        }
    }
}
