#version 460
#extension GL_GOOGLE_include_directive : require
// v = RMSNorm(x) norm . weight^T on cooperative matrices, for products without channels: what project_base.comp computes of them, tile
// by tile as dense/matrix_product.glsl says with NORMED, shared memory included.
#include "lib/dart.glsl"
#include "table/mixer_project.glsl"
READS(x) READS(norm) READS(weight) WRITES(y) READS(taps) READS(bias) READS_WRITES(tail) READS(seq) READS(a_log)
READS(dt_bias) READS(open_decay) WRITES(cum)
#include "lib/seq.glsl"
#define NORMED
#include "lib/eight.glsl"
READS_EIGHT(x) READS_EIGHT(norm) READS_EIGHT(weight)
void put(uint row, uint column, float value) { store_y(args.y_at + row * args.y_row + column, value); }
#include "dense/matrix_product.glsl"

void main() { multiply_tiles(); }
