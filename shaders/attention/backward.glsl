// Products of blocks of BLOCK tokens for the weights of their pairs, and products with those weights, for 64 lanes.
// Lane (i, j) of 8 x 8 holds lines 4 i to 4 i + 3 and columns 4 j to 4 j + 3 of BLOCK x BLOCK, and of each of the PARTS parts of 32 columns of
// BLOCK x SLAB. The kernel defines PARTS: 2, or 1 where it holds the sums of two products.
// Shared memory: 16 PANEL + 32 BLOCK PITCH + 8 BLOCK bytes, 11,776.
const uint BLOCK = 32u;
const uint SLAB = 32u * PARTS;
const uint DEPTH = 8u;
const uint PITCH = BLOCK / 4u + 1u;
const uint SLAB_PITCH = SLAB / 4u + 1u;
const uint PANEL = 2u * DEPTH * PITCH; // not below DEPTH SLAB_PITCH
shared vec4 panel[PANEL];
shared vec4 weights[BLOCK * PITCH];  // of a line, four columns each
shared vec4 slopes[BLOCK * PITCH];
shared float lses[BLOCK];
shared float dots[BLOCK];

// sums += lines of a panel x columns of the one behind it.
void multiply_pair(inout vec4 sums[4])
{
    for (uint k = 0u; k < DEPTH; k++) {
        vec4 a = panel[k * PITCH + LANE / 8u];
        vec4 b = panel[(DEPTH + k) * PITCH + LANE % 8u];
        [[unroll]] for (uint r = 0u; r < 4u; r++) sums[r] += a[r] * b;
    }
}
// Element (token i, depth k) of the lines (which 0) or of the columns (1).
void put_pair(uint which, uint i, uint k, float value) { panel[(which * DEPTH + k) * PITCH + i / 4u][i % 4u] = value; }

// An element of DEPTH rows of the second product, and the product with DEPTH lines of weights or slopes from `from` on.
void put_row(uint k, uint column, float value) { panel[k * SLAB_PITCH + column / 4u][column % 4u] = value; }
#define MULTIPLY(name, factors) \
    void name(uint from, inout vec4 sums[4u * PARTS]) \
    { \
        for (uint k = 0u; k < DEPTH; k++) { \
            vec4 a = factors[(from + k) * PITCH + LANE / 8u]; \
            [[unroll]] for (uint part = 0u; part < PARTS; part++) { \
                vec4 b = panel[k * SLAB_PITCH + 8u * part + LANE % 8u]; \
                [[unroll]] for (uint r = 0u; r < 4u; r++) sums[PARTS * r + part] += a[r] * b; \
            } \
        } \
    }
MULTIPLY(multiply_weights, weights)
MULTIPLY(multiply_slopes, slopes)

// Columns 32 part to 32 part + 31 of sums of BLOCK x SLAB, into slopes or weights.
void put_part(uint part, vec4 sums[4u * PARTS], bool into_slopes)
{
    [[unroll]] for (uint r = 0u; r < 4u; r++) {
        vec4 four = part == 0u ? sums[PARTS * r] : sums[PARTS * r + PARTS - 1u];
        uint at = (LANE / 8u * 4u + r) * PITCH + LANE % 8u;
        if (into_slopes) slopes[at] = four;
        else weights[at] = four;
    }
}
