#version 460
#extension GL_GOOGLE_include_directive : require
// y_b += RMSNorm(x_b) norm . weight^T where a count is above 0, see WindowBackArgs: tile by tile as dense/matrix_product.glsl says with NORMED,
// SHORT and ENDS, shared memory included. What a lane adds to is asked for before the product.
//
// x B inputs, weight outputs inputs, bf16; norm inputs; y B outputs, f32.
#include "lib/dart.glsl"
#include "table/window_back.glsl"
READS(x) READS(norm) READS(weight) READS_WRITES(y) READS(seq)
#include "lib/eight.glsl"
READS_EIGHT(x) READS_EIGHT(norm) READS_EIGHT(weight)
READS_AS(vec4, fours, y)

struct Ends {
    vec4 before;
    int count;
};
Ends fetch_ends(uint row, uint column)
{
    uint b = min(row, args.rows - 1u);
    return Ends(fours_y[(args.y_at + b * args.y_row + min(column, args.outputs - 4u)) / 4u], load_int_seq(args.seq_at + 2u * b + 1u));
}
void finish(uint b, uint column, vec4 v, Ends ends);

#define NORMED
#define SHORT
#define ENDS
#include "dense/matrix_product.glsl"

void finish(uint b, uint column, vec4 v, Ends ends)
{
    if (ends.count > 0) store_four_y(args.y_at + b * args.y_row + column, ends.before + v);
}

void main() { multiply_tiles(); }
