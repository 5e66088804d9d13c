#version 460
#extension GL_GOOGLE_include_directive : require
// linear on cooperative matrices (linear_base.comp has the formula), tile by tile as matrix_product.glsl says, shared memory included.
// With -DQUANTISED linear_quantised, whose formula linear_quantised_few.comp has.
#include "lib/dart.glsl"
#include "linear.glsl"
#include "matrix_product.glsl"

void main() { multiply_tiles(); }
