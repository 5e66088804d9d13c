#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_shuffle : require
// ssd_decay and ssd_memory in one launch, N = 128, P = 64, S at most 256, 16-bit operands (see decay.comp, memory_base.comp):
//   cum_t = sum over k <= t of -exp(a_log) step_k, two-float; memory[n, p] = sum_t exp(cum_end - cum_t) step_t b_t[n] x_t[p].
// One workgroup makes T1 heads of a chunk, BLOCK at a time. All lanes make a block's steps; a subgroup adds up those of a whole
// head, TOKENS neighbours a lane in order and the lanes by doubling, always in the same order, and leaves the head's weights in
// shared memory.
// The left factor, b^T, is the same for all heads and stays in registers, a subgroup owning ROWS of its rows. The right factor
// is x, each row times its weight and rounded on the way into shared memory, half of the tokens in each part of the stage: while
// one part is multiplied, the next head's tokens come into the other, which takes two barriers a head. The sums stay where they
// are: matrices are squared, reduced over rows, normalised, rounded and stored as they lie.
// f16: weights count relative to a power of two not below the head's largest, so that no x grows.
// T0 is N, BLOCK at most SUBGROUPS. Shared memory: 36864 + 1156 BLOCK + 8 N COLUMN_GROUPS bytes, f16 4 BLOCK more.
// Guards: exponents are clamped to <= 0 and come from two-float differences; the sums are precise; tokens past the chunk are
// never read, the last one stands in for them with a weight of 0 (an infinity of it becomes NaN); eps > 0.
#include "lib/dart.glsl"
#include "table/ssd_decay_memory.glsl"
READS(x) READS(b) WRITES(cum) WRITES(decay) READS(seq) READS(open) WRITES(memory) WRITES(scale) WRITES(tail) READS(dt)
READS(a_log) READS(dt_bias) READS(open_decay)
// volatile: what is read ahead would otherwise be read where it is used, as late as a compiler can (NVIDIA 580).
READS_AS(volatile uvec4, quads, x) READS_AS(uvec4, quads, b) WRITES_AS(vec4, quads, cum) WRITES_AS(uvec4, quads, memory)
#include "lib/seq.glsl"
#define SSD_MEMORY
#include "ssd.glsl"
#include "lib/matrix.glsl"
#include "matrix.glsl"

const uint TOKENS = MAX_CHUNK / SUBGROUP_SIZE; // of a lane, when a subgroup adds up a head; a multiple of 4
const uint WEIGHT_PITCH = MAX_CHUNK + SUBGROUP_SIZE;
const uint BLOCK = T1 < 8u ? T1 : 8u;          // heads whose weights lie in shared memory
const uint WORDS = SIZE_P / 8u;                // 16-byte words of a row of x
const uint PITCH = WORDS + 1u;                 // the odd word puts rows that are read together into different banks
const uint LINES = LANES / WORDS;              // rows that the lanes read at a time
const uint HALF = MAX_CHUNK / 2u;              // tokens of x that are multiplied between two barriers
const uint UNITS = HALF / LINES;
const uint B_SLAB = 64u;                       // tokens of b in one part of the stage
const uint B_WORDS = SIZE_N / 8u;
const uint B_PITCH = B_WORDS + 1u;
const uint B_UNITS = B_SLAB * B_WORDS / LANES;
const uint STEPS = (BLOCK * MAX_CHUNK + LANES - 1u) / LANES;
const uint ROW_GROUPS = SIZE_N / MATRIX_M < SUBGROUPS ? SIZE_N / MATRIX_M : SUBGROUPS;
const uint COLUMN_GROUPS = SUBGROUPS / ROW_GROUPS;
const uint ROWS = SIZE_N / ROW_GROUPS;         // of a subgroup
const uint COLUMNS = SIZE_P / COLUMN_GROUPS;
const uint TM = ROWS / MATRIX_M;
const uint TN = COLUMNS / MATRIX_N;
const uint TK = MAX_CHUNK / MATRIX_K;
const uint ELEMENTS = MATRIX_M * MATRIX_N / SUBGROUP_SIZE; // of a matrix, in a lane
// Two arrays, so that compilers know that what is written is not what is read.
shared uvec4 stage_0[HALF * PITCH];            // >= B_SLAB rows of b
shared uvec4 stage_1[HALF * PITCH];
shared float weights[BLOCK * WEIGHT_PITCH];    // steps at first
shared float totals[BLOCK];                    // cum at the chunk's end
shared float squares[COLUMN_GROUPS * SIZE_N];  // of a memory's row, added up over a subgroup's columns
shared float factors[COLUMN_GROUPS * SIZE_N];
#ifndef MATRIX_BF16
shared float units[BLOCK];
#endif

// Where the weight of a token lies: lanes that own neighbouring runs of tokens reach different banks.
uint spread(uint t) { return t + t / TOKENS; }
uint weight_at(uint head, uint t) { return head * WEIGHT_PITCH + spread(t); }
// scale_eight, whose halves of words NVIDIA (580) puts together with one instruction when told to insert bits.
uvec4 weigh(uvec4 words, float weight)
{
#ifdef MATRIX_BF16
    weight *= CUT;
    uvec4 low = floatBitsToUint(uintBitsToFloat(words << 16) * weight);
    uvec4 high = floatBitsToUint(uintBitsToFloat(words & 0xffff0000u) * weight);
    return bitfieldInsert(high, low >> 16, 0, 16);
#else
    return scale_eight(words, weight);
#endif
}
float sum_of(const in float a, const in float b) { return a + b; }

#include "decay_memory_steps.glsl"

// A tile, and what a lane holds of it.
uint tile_b, tile_j, tile_position, tile_h, tile_heads, tile_last;
bool tile_kept, tile_closes;
uint line, word, row_first, column_group, column_first;
uint x_first, x_row;
MatrixA b_rows[TM * TK];

// This lane's words of half of a head. Beyond the chunk the last token stands in: its weight there is 0.
#define FETCH(ahead, t_first, head) \
    { \
        uint x_head = x_first + min(head, tile_heads - 1u) * WORDS; \
        [[unroll]] for (uint i = 0u; i < UNITS; i++) \
            ahead[i] = quads_x[x_head + min(line + ((t_first) + i * LINES), tile_last) * x_row]; \
    }
#define PUT(stage, ahead, t_first, in_block) \
    { \
        uint weight_first = (in_block) * WEIGHT_PITCH; \
        [[unroll]] for (uint i = 0u; i < UNITS; i++) { \
            uint t = (t_first) + i * LINES; \
            float weight = weights[weight_first + (LINES % TOKENS == 0u ? spread(line) + spread(t) : spread(line + t))]; \
            stage[(line + i * LINES) * PITCH + word] = weigh(ahead[i], weight); \
        } \
    }
#define MULTIPLY(stage, k_first) \
    [[unroll]] for (uint k = 0u; k < TK / 2u; k++) { \
        [[unroll]] for (uint n = 0u; n < TN; n++) { \
            MatrixB columns; \
            coopMatLoad(columns, stage, k * MATRIX_K * PITCH + (column_first + n * MATRIX_N) / 8u, PITCH, ROW_MAJOR); \
            [[unroll]] for (uint i = 0u; i < TM; i++) \
                sums[i * TN + n] = coopMatMulAdd(b_rows[i * TK + (k_first) + k], columns, sums[i * TN + n]); \
        } \
    }

// Head `block + i` of the tile, whose x lies in the stage, while that of the next one comes there.
void make_head(uint block, uint i_head, uint in_block, const bool opens)
{
    uint h = tile_h + block + i_head;
    uint next = min(i_head + 1u, in_block - 1u); // the last one's is put again
    uvec4 ahead_0[UNITS];
    uvec4 ahead_1[UNITS];
    FETCH(ahead_0, 0u, block + next)
    FETCH(ahead_1, HALF, block + next)
    MatrixSum sums[TM * TN];
    [[unroll]] for (uint i = 0u; i < TM * TN; i++) sums[i] = MatrixSum(0.0);
    MULTIPLY(stage_0, 0u)
    barrier();
    MULTIPLY(stage_1, TK / 2u)
    PUT(stage_0, ahead_0, 0u, next)
#ifndef MATRIX_BF16
    float unit = units[i_head];
    [[unroll]] for (uint i = 0u; i < TM * TN; i++) sums[i] = sums[i] * unit;
#endif
    if (opens) {
        float keep = decay_exp(totals[i_head]);
        [[unroll]] for (uint i = 0u; i < TM; i++) {
            [[unroll]] for (uint n = 0u; n < TN; n++) {
                uint at = ((tile_b * args.H + h) * SIZE_N + row_first + i * MATRIX_M) * SIZE_P + column_first + n * MATRIX_N;
                if (tile_j == 0u) {
                    MatrixSum open;
                    coopMatLoad(open, words_open, at, SIZE_P, ROW_MAJOR);
                    sums[i * TN + n] += open * keep;
                }
                if (!tile_closes) coopMatStore(sums[i * TN + n], words_tail, at, SIZE_P, ROW_MAJOR);
            }
        }
    }
    [[unroll]] for (uint i = 0u; i < TM; i++) {
        MatrixSum square = sums[i * TN] * sums[i * TN];
        [[unroll]] for (uint n = 1u; n < TN; n++) square += sums[i * TN + n] * sums[i * TN + n];
        MatrixSum total;
        coopMatReduceNV(total, square, gl_CooperativeMatrixReduceRowNV, sum_of);
        coopMatStore(total, squares, column_group * SIZE_N + row_first + i * MATRIX_M, 0u, COLUMN_MAJOR);
    }
    barrier();
    uint row = tile_kept ? memory_row(tile_position, tile_b, tile_j, h) + row_first : 0u;
    for (uint n = gl_SubgroupInvocationID; n < ROWS; n += SUBGROUP_SIZE) {
        float mean = 0.0;
        [[unroll]] for (uint c = 0u; c < COLUMN_GROUPS; c++) mean += squares[c * SIZE_N + row_first + n];
        mean = mean / float(SIZE_P) + args.eps;
        float factor = inversesqrt(mean);
        factors[column_group * SIZE_N + row_first + n] = factor;
        if (tile_kept && column_group == 0u) store_scale(args.scale_at + row + n, mean * factor);
    }
    PUT(stage_1, ahead_1, HALF, next)
    if (!tile_kept) return;
    subgroup_sync();
    [[unroll]] for (uint i = 0u; i < TM; i++) {
        MatrixSum factor;
        coopMatLoad(factor, factors, column_group * SIZE_N + row_first + i * MATRIX_M, 0u, COLUMN_MAJOR);
        [[unroll]] for (uint n = 0u; n < TN; n++) {
            MatrixSum value = sums[i * TN + n] * factor;
#ifdef MATRIX_BF16
            [[unroll]] for (uint e = 0u; e < ELEMENTS; e++) value[e] = rounded_bf16(value[e]);
#endif
            coopMatStore(MatrixA(value), quads_memory,
                         (args.memory_at + (row + i * MATRIX_M) * SIZE_P + column_first + n * MATRIX_N) / 8u, WORDS, ROW_MAJOR);
        }
    }
}

void main()
{
    uint group_heads = args.H / args.G;
    uint h_blocks = (group_heads + T1 - 1u) / T1;
    row_first = gl_SubgroupID % ROW_GROUPS * ROWS;
    column_group = gl_SubgroupID / ROW_GROUPS;
    column_first = column_group * COLUMNS;
    line = LANE / WORDS;
    word = LANE % WORDS;
    x_row = args.x_row / 8u;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint h_tile = tile % h_blocks * T1;
        uint rest = tile / h_blocks;
        uint g = rest % args.G;
        rest /= args.G;
        uint j = rest % args.M;
        uint b = rest / args.M;
        uint h_first = g * group_heads + h_tile;
        uint heads = min(T1, group_heads - h_tile);
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
        uint last = size - 1u;
        uint m = position / args.S + j;
        bool opens = has(args.flags, HAS_OPEN) && (j == 0u || !chunk.closes);
        tile_b = b;
        tile_j = j;
        tile_position = position;
        tile_h = h_first;
        tile_heads = heads;
        tile_last = last;
        tile_kept = !has(args.flags, HAS_RUN) || (chunk.closes && m >= args.first && m - args.first < args.count);
        tile_closes = chunk.closes;
        x_first = (args.x_at + token * args.x_row + h_first * SIZE_P) / 8u + word;

        // b^T, 2 B_SLAB tokens at a time. (Macros: in a loop that the compiler leaves as it is, b_rows would not be in registers.)
        uvec4 words[2u * B_UNITS];
        uint b_first = (args.b_at + token * args.b_row + g * SIZE_N) / 8u + LANE % B_WORDS;
#define FETCH_B(t_first) \
        [[unroll]] for (uint i = 0u; i < 2u * B_UNITS; i++) { \
            uint t = (t_first) + i / B_UNITS * B_SLAB + (LANE + i % B_UNITS * LANES) / B_WORDS; \
            words[i] = t < size ? quads_b[b_first + t * (args.b_row / 8u)] : uvec4(0u); \
        }
#define PUT_B \
        [[unroll]] for (uint i = 0u; i < B_UNITS; i++) { \
            uint at = (LANE + i * LANES) / B_WORDS * B_PITCH + LANE % B_WORDS; \
            stage_0[at] = words[i]; \
            stage_1[at] = words[B_UNITS + i]; \
        }
#define LOAD_B(stage, t_first) \
        [[unroll]] for (uint k = 0u; k < B_SLAB / MATRIX_K; k++) { \
            [[unroll]] for (uint i = 0u; i < TM; i++) \
                coopMatLoad(b_rows[i * TK + (t_first) / MATRIX_K + k], stage, \
                            k * MATRIX_K * B_PITCH + (row_first + i * MATRIX_M) / 8u, B_PITCH, COLUMN_MAJOR); \
        }

        float rate;
        float steps[STEPS];
        FETCH_STEPS(0u)
        FETCH_B(0u)
        PUT_STEPS
        PUT_B
        FETCH_B(2u * B_SLAB)
        barrier();
        LOAD_B(stage_0, 0u)
        LOAD_B(stage_1, B_SLAB)
        barrier();
        PUT_B
        barrier();
        LOAD_B(stage_0, 2u * B_SLAB)
        LOAD_B(stage_1, 3u * B_SLAB)

        for (uint block = 0u; block < heads; block += BLOCK) {
            uint in_block = min(BLOCK, heads - block);
            uvec4 first_0[UNITS];
            uvec4 first_1[UNITS];
            FETCH(first_0, 0u, block)
            FETCH(first_1, HALF, block)
            if (gl_SubgroupID < in_block) add_up(gl_SubgroupID, h_first + block + gl_SubgroupID, rate, j, b, chunk.begin, size);
            barrier();
            PUT(stage_0, first_0, 0u, 0u)
            PUT(stage_1, first_1, HALF, 0u)
            barrier();
            if (opens) {
                for (uint i = 0u; i < in_block; i++) make_head(block, i, in_block, true);
            } else {
                for (uint i = 0u; i < in_block; i++) make_head(block, i, in_block, false);
            }
            barrier(); // the last head's weights have been read
            if (block + BLOCK < heads) {
                FETCH_STEPS(block + BLOCK)
                PUT_STEPS
                barrier();
            }
        }
    }
}
