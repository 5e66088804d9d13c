// Products of 64 x 64 in the registers of 128 lanes: lane l holds lines 8 (l / 16) .. + 7 and columns 4 (l % 16) .. + 3.
// Operands lie in shared memory as [k][line / 4], PITCH vec4 a row, DEPTH rows of k at a time where they are staged: the left
// one at LEFT, the right one at RIGHT, and a left one of SIDE rows at TILE with -DPRODUCT_TILE.
// Shared memory: 32 DEPTH PITCH bytes, and 16 SIDE PITCH for the tile.
const uint SIDE = 64u;
const uint QUADS = SIDE / 4u;
const uint PITCH = QUADS + 1u;
const uint DEPTH = 16u;
const uint LEFT = 0u;
const uint RIGHT = DEPTH * PITCH;
const uint TILE = 2u * DEPTH * PITCH;
#ifdef PRODUCT_TILE
shared vec4 slabs[(2u * DEPTH + SIDE) * PITCH];
#else
shared vec4 slabs[2u * DEPTH * PITCH];
#endif
#define OWN_LINE (LANE / 16u * 8u)
#define OWN_COLUMN (LANE % 16u * 4u)

// sums += left right over DEPTH rows; barriers are the caller's.
void multiply(inout vec4 sums[8], uint left)
{
    uint lines = left + LANE / 16u * 2u;
    uint columns = RIGHT + LANE % 16u;
    [[unroll]] for (uint k = 0u; k < DEPTH; k++) {
        vec4 a = slabs[lines + k * PITCH];
        vec4 b = slabs[lines + k * PITCH + 1u];
        vec4 value = slabs[columns + k * PITCH];
        [[unroll]] for (uint i = 0u; i < 4u; i++) {
            sums[i] += a[i] * value;
            sums[4u + i] += b[i] * value;
        }
    }
}

// Four elements in a row from `at` on, of which `left` are there; the last one is repeated.
#define FOUR(load, at, left) \
    vec4(load(at), load((at) + min(1u, (left) - 1u)), load((at) + min(2u, (left) - 1u)), load((at) + min(3u, (left) - 1u)))
