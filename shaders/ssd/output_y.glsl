// How the matrix rows of ssd_output write y, binding 8, of any type.
WRITES_AS(uvec4, quads, y)

uint pair_16bit(float low, float high) { return bits_16bit(DTYPE_OF(y), low) | bits_16bit(DTYPE_OF(y), high) << 16; }
// Eight neighbours of y, from element `at` on.
void put_eight(uint at, vec4 low, vec4 high)
{
    if (DTYPE_OF(y) == TYPE_F32) {
        quads_y[at / 4u] = floatBitsToUint(low);
        quads_y[at / 4u + 1u] = floatBitsToUint(high);
    } else if (DTYPE_OF(y) == DTYPE_OF(x)) {
        quads_y[at / 8u] = pack_eight(low, high);
    } else {
        quads_y[at / 8u] = uvec4(pair_16bit(low.x, low.y), pair_16bit(low.z, low.w), pair_16bit(high.x, high.y), pair_16bit(high.z, high.w));
    }
}
