// Products of blocks of BLOCK tokens for the weights of their pairs, and products with those weights, for 128 lanes.
// Lane (i, j) of 16 x 8 holds lines 2 i and 2 i + 1 and columns 4 j to 4 j + 3 of BLOCK x BLOCK, and of each of the PARTS parts of 32 columns
// of BLOCK x SLAB.
// Shared memory: 16 PANEL + 16 BLOCK PITCH + 8 BLOCK bytes, 7,168: GCN holds four waves a SIMD with up to 8 KiB.
const uint BLOCK = 32u;
const uint PARTS = 2u;
const uint SLAB = 32u * PARTS;
const uint DEPTH = 8u;
const uint PITCH = BLOCK / 4u + 1u;
const uint SLAB_PITCH = SLAB / 4u + 1u;
const uint PANEL = 2u * DEPTH * PITCH; // not below DEPTH SLAB_PITCH
shared vec4 panel[PANEL];
shared vec4 weights[BLOCK * PITCH]; // of a line, four columns each; then what else has this shape
shared float lses[BLOCK];
shared float dots[BLOCK];

// The place in weights of own line r.
uint own_place(uint r) { return (LANE / 8u * 2u + r) * PITCH + LANE % 8u; }
// Own lines of column k of four lines each.
vec2 own_pair(vec4 four) { return LANE / 8u % 2u == 0u ? four.xy : four.zw; }

// sums += lines of a panel x columns of the one behind it.
void multiply_pair(inout vec4 sums[2])
{
    for (uint k = 0u; k < DEPTH; k++) {
        vec2 a = own_pair(panel[k * PITCH + LANE / 16u]);
        vec4 b = panel[(DEPTH + k) * PITCH + LANE % 8u];
        [[unroll]] for (uint r = 0u; r < 2u; r++) sums[r] += a[r] * b;
    }
}
// Element (token i, depth k) of the lines (which 0) or of the columns (1).
void put_pair(uint which, uint i, uint k, float value) { panel[(which * DEPTH + k) * PITCH + i / 4u][i % 4u] = value; }

// An element of DEPTH rows of the second product, and the product with DEPTH lines of weights from `from` on, transposed.
void put_row(uint k, uint column, float value) { panel[k * SLAB_PITCH + column / 4u][column % 4u] = value; }
void multiply_weights(uint from, inout vec4 sums[2u * PARTS])
{
    for (uint k = 0u; k < DEPTH; k++) {
        vec2 a = own_pair(weights[(from + k) * PITCH + LANE / 16u]);
        [[unroll]] for (uint part = 0u; part < PARTS; part++) {
            vec4 b = panel[k * SLAB_PITCH + 8u * part + LANE % 8u];
            [[unroll]] for (uint r = 0u; r < 2u; r++) sums[PARTS * r + part] += a[r] * b;
        }
    }
}

// Columns 32 part to 32 part + 31 of sums of BLOCK x SLAB, into weights.
void put_part(uint part, vec4 sums[2u * PARTS])
{
    [[unroll]] for (uint r = 0u; r < 2u; r++) weights[own_place(r)] = part == 0u ? sums[PARTS * r] : sums[PARTS * r + 1u];
}
