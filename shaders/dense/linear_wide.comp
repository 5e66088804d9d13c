#version 460
#extension GL_GOOGLE_include_directive : require
// The rows of linear for many rows without matrices, where subgroups are wide: a workgroup of 128 lanes makes SIDE = 64
// outputs of 64 rows. Both operands come in slabs of DEPTH inputs, line by line as they lie in memory, four words of 16 bytes
// a line; lane l sums rows l / 16 + 8 r and outputs l % 16 + 16 o, so that a word is used for 4 or 8 sums at once.
// With -DFLOAT16, for f16 x and weight, the operands stay f16 in shared memory and in registers: half the bytes to read, and
// on AMD from RDNA on the conversion is part of the multiplication (v_fma_mix_f32). Products and sums are f32 either way.
// Inputs are a multiple of 16, lines begin at whole 16 bytes. Shared memory: 8 KiB, which lets a GCN SIMD hold four waves.
#include "lib/dart.glsl"
#include "linear.glsl"
const uint SIDE = 64u;   // T0 and T1
const uint ROWS = 8u;    // of a lane
const uint OUTPUTS = 4u; // of a lane
const uint WORDS = 4u;   // of a line
const uint RIGHT = SIDE * WORDS;
#ifdef FLOAT16
const uint DEPTH = 8u * WORDS;
#define WORD uvec4
#define SUM_WORD(sum, a, b) \
    sum = add_four(add_four(sum, four_f16(a.xy), four_f16(b.xy)), four_f16(a.zw), four_f16(b.zw));
#else
const uint DEPTH = 4u * WORDS;
#define WORD vec4
#define SUM_WORD(sum, a, b) sum = add_four(sum, a, b);
#endif
shared WORD slabs[2u * SIDE * WORDS];

// Lines beside one another keep their words in other places, or their lanes would read the same banks.
uint place(uint line, uint word) { return line * WORDS + (word ^ (line / 2u % WORDS)); }

#ifdef FLOAT16
#define STAGE(name, to, line, word, at) \
    slabs[to + place(line, word)] = \
        begin + 8u * (word) < args.inputs ? quads_##name[(at) / 8u + begin / 8u + (word)] : uvec4(0u);
#else
#define STAGE(name, to, line, word, at) \
    if (word % 2u == 0u) { \
        Eight v = load_eight_##name((at) + begin + 4u * (word)); \
        slabs[to + place(line, word)] = v.low; \
        slabs[to + place(line, word + 1u)] = v.high; \
    }
#endif

void main()
{
    uint blocks = (args.outputs + SIDE - 1u) / SIDE;
    uint lane_row = LANE / 16u;
    uint lane_output = LANE % 16u;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint first_output = tile % blocks * SIDE;
        uint first_row = tile / blocks * SIDE;
        float sums[ROWS][OUTPUTS];
        [[unroll]] for (uint r = 0u; r < ROWS; r++) {
            [[unroll]] for (uint o = 0u; o < OUTPUTS; o++) sums[r][o] = 0.0;
        }
        for (uint begin = 0u; begin < args.inputs; begin += DEPTH) {
            barrier();
#ifdef FLOAT16
            [[unroll]] for (uint e = 0u; e < SIDE * WORDS; e += 128u) {
                uint line = (e + LANE) / WORDS;
                uint word = LANE % WORDS;
#else
            {
                uint line = LANE / 2u;
                uint word = LANE % 2u * 2u;
#endif
                STAGE(x, 0u, line, word, args.x_at + min(first_row + line, args.rows - 1u) * args.x_row)
                STAGE(weight, RIGHT, line, word, args.weight_at + min(first_output + line, args.outputs - 1u) * args.inputs)
            }
            barrier();
            for (uint word = 0u; word < WORDS; word++) {
                WORD w[OUTPUTS];
                uint row_at = place(lane_row, word);
                uint output_at = RIGHT + place(lane_output, word);
                [[unroll]] for (uint o = 0u; o < OUTPUTS; o++) w[o] = slabs[output_at + 16u * WORDS * o];
                [[unroll]] for (uint r = 0u; r < ROWS; r++) {
                    WORD v = slabs[row_at + 8u * WORDS * r];
                    [[unroll]] for (uint o = 0u; o < OUTPUTS; o++) { SUM_WORD(sums[r][o], v, w[o]) }
                }
            }
        }
        [[unroll]] for (uint r = 0u; r < ROWS; r++) {
            uint row = first_row + lane_row + 8u * r;
            [[unroll]] for (uint o = 0u; o < OUTPUTS; o++) {
                uint column = first_output + lane_output + 16u * o;
                if (row < args.rows && column < args.outputs) put(row, column, sums[r][o]);
            }
        }
    }
}
