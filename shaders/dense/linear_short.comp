#version 460
#extension GL_GOOGLE_include_directive : require
// linear of at most 64 inputs on cooperative matrices (linear_base.comp has the formula): x and weight of one 16-bit type, sums in f32, y of any
// type. What such a product costs is x read and y written. A workgroup takes T1 rows, ROWS a subgroup, which stay in matrices, and up to T0
// outputs. Weights pass through one of two places in shared memory, OUTPUTS at a time: the next ones travel from memory to registers while those
// before are multiplied, and one barrier is enough. Sums pass through a place of the subgroup's own, so that y is written in words of 16 bytes.
// Shared memory: 16 PITCH (2 OUTPUTS + SUBGROUPS MATRIX_M) bytes. The odd word of padding puts rows that are read together into different banks.
// Needs: inputs a multiple of 8, x and weight rows at 16-byte borders; T1 a multiple of SUBGROUPS MATRIX_M.
// Guards: rows past the end read the last one and are dropped; outputs and inputs past the end count as 0 and are not read.
#include "lib/dart.glsl"
#include "linear.glsl"
#include "lib/matrix.glsl"
#ifdef FROM
READS_AS(uvec4, quads, from) WRITES_AS(uvec4, quads, y)
#define quads_before quads_from
#else
READS_WRITES_AS(uvec4, quads, y)
#define quads_before quads_y
#endif

const uint WORDS = 8u; // of 16 bytes, of a row of x and weight
const uint PITCH = WORDS + 1u;
const uint OUTPUTS = 4u * WORDS; // of a block, whose sums are then as wide as a row of x
const uint STEPS = 8u * WORDS / MATRIX_K;
const uint TILES = OUTPUTS / MATRIX_N;
const uint ROWS = T1 / SUBGROUPS;
const uint R = ROWS / MATRIX_M;
const uint PLACE = OUTPUTS * PITCH;
const uint OWN = MATRIX_M * PITCH; // rows of x, or sums of as many rows
const uint OWN_WORDS = (MATRIX_M * WORDS + SUBGROUP_SIZE - 1u) / SUBGROUP_SIZE; // of a lane
const uint FETCH = (OUTPUTS * WORDS + LANES - 1u) / LANES;

shared uvec4 weights[2u * PLACE];
shared uvec4 own_words[SUBGROUPS * OWN];

uvec4 next[FETCH];
void fetch(uint first, uint end)
{
    [[unroll]] for (uint n = 0u; n < FETCH; n++) {
        uint output_row = first + (LANE + n * LANES) / WORDS;
        uint word = LANE % WORDS;
        next[n] = output_row < end && word < args.inputs / 8u ? quads_weight[(args.weight_at + output_row * args.inputs) / 8u + word] : uvec4(0u);
    }
}
void put_down(uint place)
{
    [[unroll]] for (uint n = 0u; n < FETCH; n++) {
        uint i = LANE + n * LANES;
        if (i < OUTPUTS * WORDS) weights[place + i / WORDS * PITCH + i % WORDS] = next[n];
    }
}

uint pair_16bit(float low, float high)
{
#ifdef MATRIX_BF16
    if (DTYPE_OF(y) == TYPE_BF16) return pack_elements(low, high);
#else
    if (DTYPE_OF(y) == TYPE_F16) return pack_elements(low, high);
#endif
    return bits_16bit(DTYPE_OF(y), low) | bits_16bit(DTYPE_OF(y), high) << 16;
}

// Sums of MATRIX_M rows from `own` on to y, from its row and column on; columns from `end` on are not there.
void put_sums(uint own, uint row, uint column, uint end, bool aligned)
{
    bool adds = has(args.flags, IS_ADD);
    bool is_narrow = is_16bit(DTYPE_OF(y));
    uint words = OUTPUTS / (is_narrow ? 8u : 4u); // of a row of y
    uvec4 before[OWN_WORDS]; // what y holds: all of it under way at once
    [[unroll]] for (uint n = 0u; n < OWN_WORDS; n++) {
        uint i = gl_SubgroupInvocationID + n * SUBGROUP_SIZE;
        uint line = i / words;
        uint first = i % words * (OUTPUTS / words);
        bool whole = adds && aligned && line < MATRIX_M && row + line < args.rows && column + first + OUTPUTS / words <= end;
        before[n] = whole ? quads_before[BEFORE_AT(row + line, column + first) / (OUTPUTS / words)] : uvec4(0u);
    }
    [[unroll]] for (uint n = 0u; n < OWN_WORDS; n++) {
        uint i = gl_SubgroupInvocationID + n * SUBGROUP_SIZE;
        uint line = i / words;
        uint first = i % words * (OUTPUTS / words);
        if (line >= MATRIX_M || row + line >= args.rows || column + first >= end) continue;
        uint from = own + line * PITCH + first / 4u;
        uint to = args.y_at + (row + line) * args.y_row + column + first;
        vec4 low = uintBitsToFloat(own_words[from]);
        vec4 high = is_narrow ? uintBitsToFloat(own_words[from + 1u]) : vec4(0.0);
        if (!aligned || column + first + OUTPUTS / words > end) {
            for (uint k = 0u; k < min(OUTPUTS / words, end - column - first); k++)
                put(row + line, column + first + k, k < 4u ? low[k] : high[k - 4u]);
        } else if (is_narrow) {
            if (adds) {
                low += four_16bit(DTYPE_OF(y), before[n].xy);
                high += four_16bit(DTYPE_OF(y), before[n].zw);
            }
            quads_y[to / 8u] = uvec4(pair_16bit(low.x, low.y), pair_16bit(low.z, low.w), pair_16bit(high.x, high.y), pair_16bit(high.z, high.w));
        } else {
            if (adds) low += uintBitsToFloat(before[n]);
            quads_y[to / 4u] = floatBitsToUint(low);
        }
    }
}

void main()
{
    uint blocks = (args.outputs + T0 - 1u) / T0;
    uint own = gl_SubgroupID * OWN;
    bool aligned = (args.y_at | args.y_row | BEFORE_AT(0u, 0u) | BEFORE_AT(1u, 0u)) % (is_16bit(DTYPE_OF(y)) ? 8u : 4u) == 0u;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint first_output = tile % blocks * T0;
        uint end = min(first_output + T0, args.outputs);
        uint first_row = tile / blocks * T1 + gl_SubgroupID * ROWS;
        fetch(first_output, end);
        MatrixA a[R * STEPS];
        [[unroll]] for (uint r = 0u; r < R; r++) {
            [[unroll]] for (uint n = 0u; n < OWN_WORDS; n++) {
                uint i = gl_SubgroupInvocationID + n * SUBGROUP_SIZE;
                uint row = min(first_row + r * MATRIX_M + i / WORDS, args.rows - 1u);
                uint word = i % WORDS;
                uvec4 words = word < args.inputs / 8u ? quads_x[(args.x_at + row * args.x_row) / 8u + word] : uvec4(0u);
                if (i < MATRIX_M * WORDS) own_words[own + i / WORDS * PITCH + word] = words;
            }
            subgroup_sync();
            [[unroll]] for (uint k = 0u; k < STEPS; k++) coopMatLoad(a[r * STEPS + k], own_words, own + k * MATRIX_K / 8u, PITCH, ROW_MAJOR);
            subgroup_sync();
        }
        uint place = 0u;
        barrier(); // until the weights of the tile before have been read
        put_down(place);
        barrier();
        for (uint o = first_output; o < end; o += OUTPUTS) {
            if (o + OUTPUTS < end) fetch(o + OUTPUTS, end);
            MatrixSum sums[R * TILES];
            [[unroll]] for (uint i = 0u; i < R * TILES; i++) sums[i] = MatrixSum(0.0);
            [[unroll]] for (uint k = 0u; k < STEPS; k++) {
                [[unroll]] for (uint t = 0u; t < TILES; t++) {
                    MatrixB b;
                    coopMatLoad(b, weights, place + t * MATRIX_N * PITCH + k * MATRIX_K / 8u, PITCH, COLUMN_MAJOR);
                    [[unroll]] for (uint r = 0u; r < R; r++) sums[r * TILES + t] = coopMatMulAdd(a[r * STEPS + k], b, sums[r * TILES + t]);
                }
            }
            [[unroll]] for (uint r = 0u; r < R; r++) {
                [[unroll]] for (uint t = 0u; t < TILES; t++)
                    coopMatStore(sums[r * TILES + t], own_words, own + t * MATRIX_N / 4u, PITCH, ROW_MAJOR);
                subgroup_sync();
                put_sums(own, first_row + r * MATRIX_M, o, end, aligned);
                subgroup_sync();
            }
            place = PLACE - place;
            if (o + OUTPUTS < end) put_down(place);
            barrier();
        }
    }
}
