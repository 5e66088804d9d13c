// The weights' share of mixer.glsl for quantised rows (dart_quantise). Include after mixer.glsl; declares
// the binding `weight`.
#include "dense/quantised.glsl"

// Rows start at multiples of 16 bytes and have whole blocks.
bool weights_fit() { return true; }

// The quarter of a block that holds its numbers 8 j to 8 j + 7; of q4 it is the whole block.
struct Part {
    uvec4 words;
    float scale, minimum;
};

Part part_at(uint o, uint i)
{
    uint blocks = args.inputs / 32u;
    uint row = (blocks * (FOUR_BITS ? 20u : 34u) + 15u) / 16u * 16u;
    uint at = args.weight_at + min(o, args.outputs - 1u) * row;
    uint scales = at + blocks * (FOUR_BITS ? 16u : 32u) + i / 32u * 2u;
    Part part;
    part.words = quads_weight[at / 16u + (FOUR_BITS ? i / 32u : i / 16u)];
    part.scale = bf16_at(scales);
    part.minimum = FOUR_BITS ? bf16_at(scales + 2u * blocks) : 0.0;
    return part;
}

// Its numbers, not yet scaled; i is a multiple of 8.
Eight numbers_at(Part part, uint i)
{
    if (FOUR_BITS) return numbers_of(Block(part.words, uvec4(0u), part.scale, part.minimum), i / 8u % 4u);
    uvec2 words = i / 8u % 2u == 0u ? part.words.xy : part.words.zw;
    return Eight(four_bytes(words.x), four_bytes(words.y));
}

// sums += v . weight over inputs i .. i + 7 of all outputs: scale (v . n) + minimum (sum v).
void add_products(uint first_output, uint i, Eight v)
{
    float all = FOUR_BITS ? dot(v.low, vec4(1.0)) + dot(v.high, vec4(1.0)) : 0.0;
    [[unroll]] for (uint first = 0u; first < OUTPUTS; first += AT_ONCE) {
        Part w[AT_ONCE];
        [[unroll]] for (uint k = 0u; k < AT_ONCE; k++) w[k] = part_at(first_output + first + k, i);
        [[unroll]] for (uint k = 0u; k < AT_ONCE; k++) {
            Eight n = numbers_at(w[k], i);
            float product = add_four(add_four(0.0, v.low, n.low), v.high, n.high);
            sums[first + k] += w[k].scale * product + (FOUR_BITS ? w[k].minimum * all : 0.0);
        }
    }
}
void add_product(uint first_output, uint i, float v)
{
    uint k = i % 8u;
    [[unroll]] for (uint o = 0u; o < OUTPUTS; o++) {
        Part w = part_at(first_output + o, i);
        Eight n = numbers_at(w, i - k);
        sums[o] += v * (w.scale * (k < 4u ? n.low[k] : n.high[k - 4u]) + w.minimum);
    }
}
