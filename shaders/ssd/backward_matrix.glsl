// What the matrix rows of the backward pass share. They take chunks of at most 256 tokens, N at most 128, P at most 64, multiples of 16, and 16-bit
// operands (FITS_TILES, FITS_SSD_SCAN). What a product takes besides these (decays, c.b, gradients of c.b) is rounded once on its way into shared
// memory; what is only added stays f32. Include after matrix.glsl and backward.glsl.
//
// A workgroup makes tiles of SIDE tokens in eight subgroups: ROW_GROUPS bands of OWN_ROWS lines, and as many bands of columns as are left.
const uint SIDE = 64u;
const uint WORDS = HEAD / 8u;      // 16-byte words of a row of 64 elements
const uint PITCH = WORDS + 1u;     // the odd word puts rows that are read together into different banks
const uint PANEL = SIDE * PITCH;   // words of 64 rows
const uint UNITS = SIDE * WORDS / LANES; // words of a lane
const uint ROW_GROUPS = 4u;
const uint OWN_ROWS = SIDE / ROW_GROUPS;
const uint TM = OWN_ROWS / MATRIX_M;
// Sums of a subgroup on their way to its lanes: OWN_ROWS rows of 32 columns, in words of four.
const uint PART = 32u;
const uint PART_PITCH = PART / 4u + 1u;
const uint PART_WORDS = OWN_ROWS * PART_PITCH;
const uint PART_ITEMS = OWN_ROWS * PART / 8u; // words of 16-bit elements in it
const uint OWN_ITEMS = PART_ITEMS / SUBGROUP_SIZE;

vec4 low_four(uvec4 words) { return vec4(unpack_elements(words.x), unpack_elements(words.y)); }
vec4 high_four(uvec4 words) { return vec4(unpack_elements(words.z), unpack_elements(words.w)); }

// Loads TM left operands: lines from `line` on and elements from `depth` on of rows of `pitch` words; TURNED: rows are the depth.
#define LOAD_LINES(left, memory, at, line, depth, pitch) \
    [[unroll]] for (uint i_ = 0u; i_ < TM; i_++) \
        coopMatLoad(left[i_], memory, (at) + ((line) + i_ * MATRIX_M) * (pitch) + (depth) / 8u, pitch, ROW_MAJOR);
#define LOAD_LINES_TURNED(left, memory, at, line, depth, pitch) \
    [[unroll]] for (uint i_ = 0u; i_ < TM; i_++) \
        coopMatLoad(left[i_], memory, (at) + (depth) * (pitch) + ((line) + i_ * MATRIX_M) / 8u, pitch, COLUMN_MAJOR);

#ifdef MATRIX_BF16
const float LIFT = 1.0; // c . b is divided by this where it is multiplied
#else
const float LIFT = 64.0; // products of c and b beyond what f16 holds
// What f16 operands are divided by, a power of two, for the largest of them to lie in [2^13, 2^14].
float unit_of(float largest)
{
    return clamp(uintBitsToFloat(floatBitsToUint(largest) + 0x7fffffu & 0x7f800000u), exp2(-90.0), exp2(100.0)) * exp2(-14.0);
}
#endif
