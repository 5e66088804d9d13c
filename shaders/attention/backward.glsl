// Products of blocks of BLOCK tokens for the weights of their pairs, and products with those weights, for 64 lanes.
// Lane (i, j) of 8 x 8 holds lines 4 i to 4 i + 3 and columns 4 j to 4 j + 3 of BLOCK x BLOCK, or columns 4 j and 32 + 4 j of BLOCK x SLAB.
// Shared memory: 16 PANEL + 32 BLOCK PITCH + 8 BLOCK bytes, 14,080.
const uint BLOCK = 32u;
const uint SLAB = 64u;
const uint DEPTH = 16u;
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
void multiply_weights(uint from, inout vec4 sums[8])
{
    for (uint k = 0u; k < DEPTH; k++) {
        vec4 a = weights[(from + k) * PITCH + LANE / 8u];
        vec4 b = panel[k * SLAB_PITCH + LANE % 8u];
        vec4 c = panel[k * SLAB_PITCH + 8u + LANE % 8u];
        [[unroll]] for (uint r = 0u; r < 4u; r++) {
            sums[2u * r] += a[r] * b;
            sums[2u * r + 1u] += a[r] * c;
        }
    }
}
void multiply_slopes(uint from, inout vec4 sums[8])
{
    for (uint k = 0u; k < DEPTH; k++) {
        vec4 a = slopes[(from + k) * PITCH + LANE / 8u];
        vec4 b = panel[k * SLAB_PITCH + LANE % 8u];
        vec4 c = panel[k * SLAB_PITCH + 8u + LANE % 8u];
        [[unroll]] for (uint r = 0u; r < 4u; r++) {
            sums[2u * r] += a[r] * b;
            sums[2u * r + 1u] += a[r] * c;
        }
    }
}
