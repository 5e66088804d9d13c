// Words of eight 16-bit elements of q, c and e, and the powers of two that they are multiplied by.

// The largest power of two that is not above x.
float power_below(float x) { return uintBitsToFloat(floatBitsToUint(max(x, 1.17549435e-38)) & 0x7f800000u); }

vec2 unpack(uint type, uint word)
{
    return type == TYPE_F16 ? unpackHalf2x16(word) : vec2(uintBitsToFloat(word << 16), uintBitsToFloat(word & 0xffff0000u));
}
// Times a power of two: exact, but for what is too small for f16.
uint pack(uint type, vec2 value)
{
    return type == TYPE_F16 ? packFloat2x16(f16vec2(value)) : bf16_bits(value.x) | bf16_bits(value.y) << 16;
}
uvec4 times(uint from, uint to, uvec4 words, float factor)
{
    uvec4 result;
    [[unroll]] for (uint i = 0u; i < 4u; i++) result[i] = pack(to, unpack(from, words[i]) * factor);
    return result;
}
float squares_of(uint type, uvec4 words)
{
    float sum = 0.0;
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        vec2 value = unpack(type, words[i]);
        sum += dot(value, value);
    }
    return sum;
}
float largest_of(uint type, uvec4 words)
{
    float most = 0.0;
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        vec2 value = abs(unpack(type, words[i]));
        most = max(most, max(value.x, value.y));
    }
    return most;
}
