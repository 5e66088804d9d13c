// How the slabs of matrix_product.glsl, whose sizes these are, come from memory: fetch asks for a lane's words of a slab, put_down brings them to
// shared memory, rows of x first. With NORMED x is multiplied by norm on the way, and its squares are added up. With QUANTISED a lane reads whole
// blocks of 32, whose weights are rounded to x's type on the way: the numbers that embed_quantised makes of them. With -DAHEAD besides, loads of
// words and blocks have no conditions: others stand in for those past the end of a row, which become 0 in shared memory (faster here, slower for
// weights of 16 bits; H100, November 2026).
#ifdef QUANTISED
// pack_elements makes NaN of what is near the end of bf16's range, where weights may lie.
uvec2 rounded_four(vec4 v)
{
#ifdef MATRIX_BF16
    return as_16bit(TYPE_BF16, v);
#else
    return uvec2(pack_elements(v.x, v.y), pack_elements(v.z, v.w));
#endif
}

Block weight_next[OUTPUT_BLOCKS];
#else
uvec4 weight_next[OUTPUT_WORDS];
#endif
#ifdef NORMED
Words x_next[ROW_WORDS];
Eight scale_next;
float squares[ROW_WORDS];
shared float row_squares[T1 * PITCH]; // a part each of the lanes that read a row
#else
uvec4 x_next[ROW_WORDS];
#endif

// The lane's words of a slab: e counts lines of LANES / WORDS rows.
void fetch(uint first_row, uint first_output, uint slab)
{
    uint word = slab * WORDS + LANE % WORDS;
    bool inside = word < args.inputs / 8u;
#ifdef AHEAD
    word = min(word, args.inputs / 8u - 1u);
    inside = true;
#endif
    [[unroll]] for (uint e = 0u; e < ROW_WORDS; e++) {
        uint row = min(first_row + LANE / WORDS + e * LINES, args.rows - 1u);
#ifdef NORMED
#ifdef SHORT
        x_next[e].low = inside ? quads_x[(args.x_at + row * args.x_row) / 8u + word] : uvec4(0u);
#else
        uint quad = (args.x_at + row * args.x_row) / 4u + 2u * word;
        x_next[e].low = inside ? quads_x[quad] : uvec4(0u);
        x_next[e].high = inside ? quads_x[quad + 1u] : uvec4(0u);
#endif
    }
    scale_next = load_eight_norm(args.norm_at + 8u * min(word, args.inputs / 8u - 1u));
#else
        x_next[e] = inside ? quads_x[(args.x_at + row * args.x_row) / 8u + word] : uvec4(0u);
    }
#endif
#ifdef QUANTISED
    [[unroll]] for (uint e = 0u; e < OUTPUT_BLOCKS; e++) {
        uint i = LANE + e * LANES;
        uint row = min(first_output + i / BLOCKS, args.outputs - 1u);
        uint block = slab * BLOCKS + i % BLOCKS;
#ifdef AHEAD
        weight_next[e] = block_at(args.weight_at + row * args.weight_row, args.inputs, min(block, args.inputs / 32u - 1u));
#else
        if (block < args.inputs / 32u) weight_next[e] = block_at(args.weight_at + row * args.weight_row, args.inputs, block);
        else weight_next[e] = Block(uvec4(0u), uvec4(0u), 0.0, 0.0);
#endif
    }
#else
    [[unroll]] for (uint e = 0u; e < OUTPUT_WORDS; e++) {
        uint row = min(first_output + LANE / WORDS + e * LINES, args.outputs - 1u);
        weight_next[e] = inside ? quads_weight[(args.weight_at + row * args.inputs) / 8u + word] : uvec4(0u);
    }
#endif
}

void put_down(uint slab)
{
#ifdef AHEAD
    bool inside = slab * WORDS + LANE % WORDS < args.inputs / 8u;
#else
    const bool inside = true; // what is not has been fetched as 0
#endif
    uint at = LANE / WORDS * PITCH + LANE % WORDS;
    [[unroll]] for (uint e = 0u; e < ROW_WORDS; e++) {
#ifdef NORMED
#ifdef SHORT
        Eight v = eight_of(OPERAND_TYPE, x_next[e]);
#else
        Eight v = Eight(uintBitsToFloat(x_next[e].low), uintBitsToFloat(x_next[e].high));
#endif
        squares[e] += dot(v.low, v.low) + dot(v.high, v.high);
        vec4 low = v.low * scale_next.low;
        vec4 high = v.high * scale_next.high;
        slabs[at + e * LINES * PITCH] = uvec4(pack_elements(low.x, low.y), pack_elements(low.z, low.w), pack_elements(high.x, high.y),
                                              pack_elements(high.z, high.w));
#else
        slabs[at + e * LINES * PITCH] = inside ? x_next[e] : uvec4(0u);
#endif
    }
#ifdef QUANTISED
    [[unroll]] for (uint e = 0u; e < OUTPUT_BLOCKS; e++) {
        uint i = LANE + e * LANES;
        if (i < T0 * BLOCKS) {
            [[unroll]] for (uint j = 0u; j < 4u; j++) {
                Eight v = weights_of(weight_next[e], j);
                uvec4 words = uvec4(rounded_four(v.low), rounded_four(v.high));
#ifdef AHEAD
                if (slab * BLOCKS + i % BLOCKS >= args.inputs / 32u) words = uvec4(0u);
#endif
                slabs[(T1 + i / BLOCKS) * PITCH + i % BLOCKS * 4u + j] = words;
            }
        }
    }
#else
    [[unroll]] for (uint e = 0u; e < OUTPUT_WORDS; e++) slabs[at + (T1 + e * LINES) * PITCH] = weight_next[e];
#endif
}
