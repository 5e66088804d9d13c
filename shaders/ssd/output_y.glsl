// How the matrix rows of ssd_output write y, binding 8, of any type.
layout(std430, binding = 8) writeonly buffer Quads_y { uvec4 quads_y[]; };

uint half_pair(float low, float high) { return half_bits(DTYPE_OF(8), low) | half_bits(DTYPE_OF(8), high) << 16; }
// Eight neighbours of y, from element `at` on.
void put_eight(uint at, vec4 low, vec4 high)
{
    if (DTYPE_OF(8) == TYPE_F32) {
        quads_y[at / 4u] = floatBitsToUint(low);
        quads_y[at / 4u + 1u] = floatBitsToUint(high);
    } else if (DTYPE_OF(8) == DTYPE_OF(0)) {
        quads_y[at / 8u] = pack_eight(low, high);
    } else {
        quads_y[at / 8u] = uvec4(half_pair(low.x, low.y), half_pair(low.z, low.w), half_pair(high.x, high.y), half_pair(high.z, high.w));
    }
}
