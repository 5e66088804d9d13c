// How the matrix rows of ssd_output write y, binding 8, of any type.
WRITES_AS(uvec4, quads, y)

uint half_pair(float low, float high) { return half_bits(DTYPE_OF(y), low) | half_bits(DTYPE_OF(y), high) << 16; }
// Eight neighbours of y, from element `at` on.
void put_eight(uint at, vec4 low, vec4 high)
{
    if (DTYPE_OF(y) == TYPE_F32) {
        quads_y[at / 4u] = floatBitsToUint(low);
        quads_y[at / 4u + 1u] = floatBitsToUint(high);
    } else if (DTYPE_OF(y) == DTYPE_OF(x)) {
        quads_y[at / 8u] = pack_eight(low, high);
    } else {
        quads_y[at / 8u] = uvec4(half_pair(low.x, low.y), half_pair(low.z, low.w), half_pair(high.x, high.y), half_pair(high.z, high.w));
    }
}
