// sums += A B, a tile of LINES x COLUMNS in the registers of 64 lanes, DEPTH steps at a time from two panels in shared memory.
// The kernel defines LINES and COLUMNS, multiples of 32, fills the panels with put_a and put_b, and calls multiply between two barriers.
// Lane (i, j) of 8 x 8 holds OWN_LINES lines and 4 OWN_QUADS columns of the tile. For what comes then, the kernel takes the tile out of the
// registers in strips of eight lines: between two barriers put_strip(k), k < OWN_LINES, after which any lane reads strip_at(row, column)
// of line strip_line(k, row). A loop over k that is not unrolled keeps the code small.
// Shared memory: 4 DEPTH (LINES + COLUMNS + 8) + 32 COLUMNS bytes.
const uint DEPTH = 16u;
const uint A_PITCH = LINES / 4u + 1u;
const uint B_PITCH = COLUMNS / 4u + 1u;
const uint OWN_LINES = LINES / 8u;
const uint OWN_QUADS = COLUMNS / 32u;
shared vec4 panel_a[DEPTH * A_PITCH];
shared vec4 panel_b[DEPTH * B_PITCH];
vec4 sums[OWN_LINES * OWN_QUADS]; // of own line l, columns 4 q to 4 q + 3: l OWN_QUADS + q

shared vec4 strip[8u * COLUMNS / 4u];

void clear_sums()
{
    [[unroll]] for (uint i = 0u; i < OWN_LINES * OWN_QUADS; i++) sums[i] = vec4(0.0);
}
void put_a(uint line, uint k, float value) { panel_a[k * A_PITCH + line / 4u][line % 4u] = value; }
void put_b(uint column, uint k, float value) { panel_b[k * B_PITCH + column / 4u][column % 4u] = value; }
void multiply()
{
    for (uint k = 0u; k < DEPTH; k++) {
        vec4 b[OWN_QUADS];
        [[unroll]] for (uint q = 0u; q < OWN_QUADS; q++) b[q] = panel_b[k * B_PITCH + q * 8u + LANE % 8u];
        [[unroll]] for (uint l = 0u; l < OWN_LINES; l += 4u) {
            vec4 a = panel_a[k * A_PITCH + l / 4u * 8u + LANE / 8u];
            [[unroll]] for (uint r = 0u; r < 4u; r++) {
                [[unroll]] for (uint q = 0u; q < OWN_QUADS; q++) sums[(l + r) * OWN_QUADS + q] += a[r] * b[q];
            }
        }
    }
}

uint strip_line(uint k, uint row) { return k / 4u * 32u + row * 4u + k % 4u; }
float strip_at(uint row, uint column) { return strip[row * (COLUMNS / 4u) + column / 4u][column % 4u]; }
void put_strip(uint k)
{
    [[unroll]] for (uint l = 0u; l < OWN_LINES; l++) {
        if (l == k) {
            [[unroll]] for (uint q = 0u; q < OWN_QUADS; q++) strip[LANE / 8u * (COLUMNS / 4u) + q * 8u + LANE % 8u] = sums[l * OWN_QUADS + q];
        }
    }
}
