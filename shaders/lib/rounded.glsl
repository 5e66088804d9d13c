// A number that the conversion to the element type of matrices leaves as it is. NVIDIA's driver (580.159, H200) cuts f32 off when it makes
// bf16 of it, which shifted every result of attention by half a unit (2.3 times the error of one rounding, seen).
// With -DCUTS (DART_CAP_MATRIX_CUTS) the conversion is what cuts off, and numbers have been raised by CUT before.
#ifdef CUTS
#define CUT RAISED
#else
#define CUT 1.0
#endif
const float LOG2_CUT = log2(CUT);
float rounded(float value)
{
#if defined(MATRIX2) && defined(MATRIX_BF16) && !defined(CUTS)
    return uintBitsToFloat((floatBitsToUint(value) + 0x8000u) & 0xffff0000u);
#else
    return value;
#endif
}
