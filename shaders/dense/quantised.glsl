// Rows of quantised weights (dart_quantise), in blocks of 32 numbers. Include after lib/eight.glsl and the table of a kernel with binding `weight`,
// whose type is 0 for q8 and 1 for q4.
READS(weight) READS_AS(uvec4, quads, weight)
const bool FOUR_BITS = DTYPE_OF(weight) == 1u;

// A block as it lies in memory, 4-bit numbers in `low`. Loads can be under way long before numbers_of takes it apart.
struct Block {
    uvec4 low, high;
    float scale, minimum;
};

float bf16_at(uint byte)
{
    uint word = words_weight[byte / 4u];
    return uintBitsToFloat((byte & 2u) == 0u ? word << 16 : word & 0xffff0000u);
}

// Block b of the row of `width` numbers that begins at byte `at`.
Block block_at(uint at, uint width, uint b)
{
    uint scales = at + (FOUR_BITS ? width / 2u : width);
    Block block;
    if (FOUR_BITS) {
        block.low = quads_weight[at / 16u + b];
        block.high = uvec4(0u);
        block.minimum = bf16_at(scales + width / 16u + 2u * b);
    } else {
        block.low = quads_weight[at / 16u + 2u * b];
        block.high = quads_weight[at / 16u + 2u * b + 1u];
        block.minimum = 0.0;
    }
    block.scale = bf16_at(scales + 2u * b);
    return block;
}

vec4 four_bytes(uint word) { return vec4(ivec4(int(word << 24), int(word << 16), int(word << 8), int(word)) >> 24); }

// The small numbers 8 j to 8 j + 7 of a block.
Eight numbers_of(Block block, uint j)
{
    if (FOUR_BITS) {
        uvec4 low = (block.low >> (4u * j)) & 15u;
        uvec4 high = (block.low >> (16u + 4u * j)) & 15u;
        return Eight(vec4(uvec4(low.x, high.x, low.y, high.y)), vec4(uvec4(low.z, high.z, low.w, high.w)));
    }
    uvec4 half_block = j < 2u ? block.low : block.high;
    uvec2 words = (j & 1u) == 0u ? half_block.xy : half_block.zw;
    return Eight(four_bytes(words.x), four_bytes(words.y));
}

// The same as weights: scale n + minimum. The product is exact in f32, so that a fused sum rounds as two steps do.
Eight weights_of(Block block, uint j)
{
    Eight n = numbers_of(block, j);
    return Eight(n.low * block.scale + block.minimum, n.high * block.scale + block.minimum);
}
