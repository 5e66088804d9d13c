// What the scan's matrix rows share. They take 16-bit operands (FITS_TILES, FITS_SSD_SCAN): S at most 256, N at most 128, P 16, 32
// or 64, memories normalised, hin too but in bf16 without HAS_HIN_SCALE. With -DN128_P64 the sizes N and P are known.
#ifdef N128_P64
#define SIZE_N 128u
#define SIZE_P 64u
#else
#define SIZE_N args.N
#define SIZE_P args.P
#endif
const uint MAX_CHUNK = 256u; // largest S
const uint MAX_N = 128u;
const uint HEAD = 64u;       // columns that tiles are made for; P divides it
// exp(x), x <= 0, where the result is about to be rounded to 16 bits: the built-in one is within 3 + 2 |x| ulp, that is
// 1.1e-5 for results above 2^-126, and below what f16 keeps (4.9e-4) everywhere.
float decay_exp(float x) { return exp(min(x, 0.0)); }

// A power of two not below x >= 0, clear of the ends of f32's range so that its inverse is a number, too.
float power_above(float x) { return clamp(uintBitsToFloat(floatBitsToUint(x) + 0x7fffffu & 0x7f800000u), exp2(-120.0), exp2(120.0)); }

// Eight values rounded.
uvec4 pack_eight(vec4 low, vec4 high)
{
    return uvec4(pack_elements(low.x, low.y), pack_elements(low.z, low.w), pack_elements(high.x, high.y), pack_elements(high.z, high.w));
}
#ifdef MATRIX_BF16
#define CUT RAISED // of numbers that are cut to bf16
#else
#define CUT 1.0
#endif
// Eight elements times a factor, as operands of a product. To bf16 they are raised and cut, not rounded, for a third of the instructions; numbers of
// 8 digits stay what they are.
uvec4 scale_eight(uvec4 words, float factor)
{
#ifdef MATRIX_BF16
    factor *= CUT;
    uvec4 low = floatBitsToUint(uintBitsToFloat(words << 16) * factor);
    uvec4 high = floatBitsToUint(uintBitsToFloat(words & 0xffff0000u) * factor);
    return low >> 16 | high & 0xffff0000u;
#else
    return pack_eight(vec4(unpack_elements(words.x), unpack_elements(words.y)) * factor,
                      vec4(unpack_elements(words.z), unpack_elements(words.w)) * factor);
#endif
}

#ifdef MATRIX_BF16
// Two values cut to bf16, in a word.
uint join_pair(float low, float high)
{
#ifdef MATRIX2
    // NVIDIA: halves moved as f16 are one instruction, a permutation of bytes. (Elsewhere a NaN of f16 may be made another.)
    return packFloat2x16(f16vec2(unpackFloat2x16(floatBitsToUint(low)).y, unpackFloat2x16(floatBitsToUint(high)).y));
#else
    return floatBitsToUint(low) >> 16 | floatBitsToUint(high) & 0xffff0000u;
#endif
}
uvec4 join_eight(vec4 low, vec4 high)
{
    return uvec4(join_pair(low.x, low.y), join_pair(low.z, low.w), join_pair(high.x, high.y), join_pair(high.z, high.w));
}
// scale_eight by a factor that is raised already.
uvec4 cut_eight(uvec4 words, float factor)
{
    vec4 low = uintBitsToFloat(words << 16) * factor;
    vec4 high = uintBitsToFloat(words & 0xffff0000u) * factor;
    return uvec4(join_pair(low.x, high.x), join_pair(low.y, high.y), join_pair(low.z, high.z), join_pair(low.w, high.w));
}
#endif
