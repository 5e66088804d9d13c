// sums += A B, a tile of LINES x COLUMNS in the registers of a workgroup, DEPTH steps at a time from two panels in shared memory.
// The kernel defines ROWS, 8 or 16 (a workgroup has 8 ROWS lanes), LINES, 2 ROWS or a multiple of 4 ROWS, and COLUMNS, a multiple of 32; it
// fills the panels with put_a and put_b, and calls multiply between two barriers. Lane (i, j) of ROWS x 8 holds OWN_LINES lines and
// 4 OWN_QUADS columns of the tile. For what comes then, the kernel takes the tile out of the registers in strips of ROWS lines: between two
// barriers put_strip(k), k < OWN_LINES, after which any lane reads strip_at(row, column) of line strip_line(k, row). A loop over k that is
// not unrolled keeps the code small. The strip lies where the panels were.
// Shared memory: 4 DEPTH (LINES + COLUMNS + 8) bytes; GCN holds four waves a SIMD with up to 4 KiB for 64 lanes and 8 KiB for 128.
const uint DEPTH = 8u;
const uint A_PITCH = LINES / 4u + 1u;
const uint B_PITCH = COLUMNS / 4u + 1u;
const uint OWN_LINES = LINES / ROWS;
const uint OWN_QUADS = COLUMNS / 32u;
const uint TOGETHER = min(OWN_LINES, 4u); // lines of a lane that lie beside one another
const uint STRIP = ROWS * COLUMNS;        // elements
shared vec4 panel[DEPTH * (A_PITCH + B_PITCH)]; // A, then B; or a strip
vec4 sums[OWN_LINES * OWN_QUADS];               // of own line l, columns 4 q to 4 q + 3: l OWN_QUADS + q

void clear_sums()
{
    [[unroll]] for (uint i = 0u; i < OWN_LINES * OWN_QUADS; i++) sums[i] = vec4(0.0);
}
void put_a(uint line, uint k, float value) { panel[k * A_PITCH + line / 4u][line % 4u] = value; }
void put_b(uint column, uint k, float value) { panel[DEPTH * A_PITCH + k * B_PITCH + column / 4u][column % 4u] = value; }
void multiply()
{
    uint row = LANE / 8u;
    for (uint k = 0u; k < DEPTH; k++) {
        vec4 b[OWN_QUADS];
        [[unroll]] for (uint q = 0u; q < OWN_QUADS; q++) b[q] = panel[DEPTH * A_PITCH + k * B_PITCH + q * 8u + LANE % 8u];
        [[unroll]] for (uint l = 0u; l < OWN_LINES; l += TOGETHER) {
            vec4 a = panel[k * A_PITCH + (l * ROWS + row * TOGETHER) / 4u];
            if (TOGETHER == 2u) a.xy = row % 2u == 0u ? a.xy : a.zw;
            [[unroll]] for (uint r = 0u; r < TOGETHER; r++) {
                [[unroll]] for (uint q = 0u; q < OWN_QUADS; q++) sums[(l + r) * OWN_QUADS + q] += a[r] * b[q];
            }
        }
    }
}

uint strip_line(uint k, uint row) { return (k / TOGETHER * ROWS + row) * TOGETHER + k % TOGETHER; }
float strip_at(uint row, uint column) { return panel[row * (COLUMNS / 4u) + column / 4u][column % 4u]; }
void put_strip(uint k)
{
    [[unroll]] for (uint l = 0u; l < OWN_LINES; l++) {
        if (l == k) {
            [[unroll]] for (uint q = 0u; q < OWN_QUADS; q++) panel[LANE / 8u * (COLUMNS / 4u) + q * 8u + LANE % 8u] = sums[l * OWN_QUADS + q];
        }
    }
}
