// Products in the registers of 128 lanes, 64 columns wide: lane l holds columns 4 (l % 16) .. + 3 of LINES / 8 lines. The
// right operand lies in shared memory as [k][column / 4], DEPTH rows of k at a time. The kernel does the rest, including the left
// operand. A kernel should take at most 64 registers and 8 KiB of shared memory, so that a SIMD of AMD's GCN holds four waves.
const uint COLUMNS = 64u;
const uint QUADS = COLUMNS / 4u;
const uint OWN_LINES = LINES / 8u;
#define OWN_COLUMN (LANE % 16u * 4u)

// Four consecutive elements from `at` on, of which `left` >= 1 exist; the last of those stands for missing ones.
#define FOUR(load, at, left) \
    vec4(load(at), load((at) + min(1u, (left) - 1u)), load((at) + min(2u, (left) - 1u)), load((at) + min(3u, (left) - 1u)))
