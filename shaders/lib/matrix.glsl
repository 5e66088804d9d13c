// Cooperative matrices of one subgroup, 16-bit operands and f32 sums, in the sizes that the device offers. For variants
// compiled with -DMATRIX_F16 or -DMATRIX_BF16 (and -DMATRIX2 where NV_cooperative_matrix2 is used too); include after
// dart.glsl, which asks for the extensions. The workgroup is SUBGROUPS whole subgroups.
//
// Which lane holds which element is unknown, so shaders access elements through memory. The stride of a matrix that is loaded from
// 16-byte words (uvec4) counts such words.
layout(constant_id = 4) const uint MATRIX_M = 16;
layout(constant_id = 5) const uint MATRIX_N = 16;
layout(constant_id = 6) const uint MATRIX_K = 16;
layout(constant_id = 7) const uint SUBGROUP_SIZE = 32;
layout(constant_id = 9) const bool LOCKSTEP = false; // src/vulkan/vk_quirks.c

#define SUBGROUPS (LANES / SUBGROUP_SIZE)

#ifdef MATRIX_BF16
#define ELEMENT bfloat16_t
#else
#define ELEMENT float16_t
#endif
#define MatrixA coopmat<ELEMENT, gl_ScopeSubgroup, MATRIX_M, MATRIX_K, gl_MatrixUseA>
#define MatrixB coopmat<ELEMENT, gl_ScopeSubgroup, MATRIX_K, MATRIX_N, gl_MatrixUseB>
#define MatrixSum coopmat<float, gl_ScopeSubgroup, MATRIX_M, MATRIX_N, gl_MatrixUseAccumulator>
#define ROW_MAJOR gl_CooperativeMatrixLayoutRowMajor
#define COLUMN_MAJOR gl_CooperativeMatrixLayoutColumnMajor

// Numbers that are cut to bf16 are raised by this before. What cutting takes on average, half a last digit or 2^-7 (0.5 / m) of 1 <= m < 2, is added,
// 0.3607 2^-7 being the mean over m. That leaves an error of 0.31 last digits on average (rounding: 0.29), of 0.64 at most.
#define RAISED 1.002818

#ifdef MATRIX_BF16
// Rounds to the 8 binary digits of bf16, nearest even: adding 2^16 value leaves no room for more digits. The product 2^16 value is
// exact, so that fma gives the same result whether it is fused or not. Infinity becomes NaN.
float rounded_bf16(float value)
{
    precise float sum = fma(value, 65536.0, value);
    precise float result = fma(value, -65536.0, sum);
    return result;
}
#endif
// Two values rounded to ELEMENT, as they lie in a word.
uint pack_elements(float low, float high)
{
#ifdef MATRIX_BF16
    return floatBitsToUint(rounded_bf16(low)) >> 16 | floatBitsToUint(rounded_bf16(high)) & 0xffff0000u;
#else
    return packFloat2x16(f16vec2(low, high));
#endif
}
vec2 unpack_elements(uint word)
{
#ifdef MATRIX_BF16
    return vec2(uintBitsToFloat(word << 16), uintBitsToFloat(word & 0xffff0000u));
#else
    return vec2(unpackFloat2x16(word));
#endif
}

// Makes the writes of the subgroup's lanes to shared memory visible to its other lanes. Where a driver's subgroupBarrier waits for the whole
// workgroup, that hangs or gives wrong results as soon as subgroups take different branches. The lanes of its subgroups run in lockstep, so that
// a memory barrier is enough.
void subgroup_sync()
{
    if (LOCKSTEP) subgroupMemoryBarrierShared();
    else subgroupBarrier();
}
