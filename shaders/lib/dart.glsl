// What every kernel includes: arguments, storage types, elementary functions, reductions, geometry of chunks.
//
// A shader includes this file, then "table/KERNEL.glsl", which the build makes from the kernel's lines of the table. That file declares
// the arguments, `args`, and the number of each binding. The shader then declares the bindings that it uses, by their names in the
// table, in one or more of these forms:
//   READS(x), WRITES(x), READS_WRITES(x)   elements of any type: load_x(i), load_int_x(i), store_x(i, value)
//   READS_EIGHT(x), WRITES_EIGHT(x)        eight neighbours at a time (lib/eight.glsl)
//   READS_AS(uvec4, quads, x), WRITES_AS, READS_WRITES_AS
//                                          the memory as an array quads_x of uvec4; `volatile` may stand before the type
//   READS_WRITES_COHERENT(uint, words, x)  an array words_x of uint through which workgroups of one launch pass values
// A shader does not compile if it uses a name that the table lacks, reads a binding that the table marks WRITE, or writes one
// marked READ. The build refuses a shader that states the number of a binding itself, or that accesses binding x and never reads
// args.x_at where the kernel has it.
// A shader loops `for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x)`, with a barrier before it uses shared
// memory again. A launch that is cut runs a range of its tiles: args.tiles is then the end of the range.
//
// Storage types are specialisation constants: a binding is an array of 32-bit words, and load_x(i) extracts element i. With
// -DSTORE16, 16-bit stores use 16-bit storage. Without it a store replaces its half of the word by two atomics, which is safe while
// another invocation stores into the other half.
#extension GL_EXT_control_flow_attributes : enable
#ifdef STORE16
#extension GL_EXT_shader_16bit_storage : require
#endif
#if defined(SUBGROUP) || defined(MATRIX_F16) || defined(MATRIX_BF16)
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_arithmetic : require
#endif
#if defined(FLOAT16) || defined(MATRIX_F16) || defined(MATRIX2)
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#endif
#ifdef MATRIX_BF16
#extension GL_EXT_bfloat16 : require
#endif
#if defined(MATRIX_F16) || defined(MATRIX_BF16)
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_cooperative_matrix : require
#endif
#ifdef MATRIX2
#extension GL_NV_cooperative_matrix2 : require
#endif

#define DART_GLSL
#include "../args.h"

layout(constant_id = 0) const uint DTYPES = 0;
layout(constant_id = 1) const uint T0 = 1;
layout(constant_id = 2) const uint T1 = 1;
layout(local_size_x_id = 3) in;
layout(constant_id = 8) const bool IS_RANGE = false; // 4 to 7, 9: lib/matrix.glsl
layout(constant_id = 10) const bool IS_DIRECTED = false;

const uint TYPE_F32 = 0u;
const uint TYPE_F16 = 1u;
const uint TYPE_BF16 = 2u;
const uint TYPE_I32 = 3u;

#define LANE gl_LocalInvocationID.x
#define LANES gl_WorkGroupSize.x

// The first tile of the workgroup. IS_RANGE and IS_DIRECTED are specialisation constants, so that pipelines of whole launches contain no code for
// ranges, and those of devices without launches that go backwards none for them: such a launch has workgroups of another z.
#define WORKGROUP (IS_DIRECTED && gl_WorkGroupID.z != 0u ? gl_NumWorkGroups.x - 1u - gl_WorkGroupID.x : gl_WorkGroupID.x)
#define FIRST_TILE (IS_RANGE ? range_begin + WORKGROUP : WORKGROUP)

// The type of a binding's elements. table/KERNEL.glsl defines BINDING_x for every binding; READABLE_x and WRITABLE_x, the same
// number, only for bindings that the table lets a shader read or write.
#define DTYPE_OF(name) ((DTYPES >> (2u * BINDING_##name)) & 3u)

// Element i as f32, from the word that holds it (word_of). type is a specialisation constant, so that one branch is left.
float element_of(uint type, uint word, uint i)
{
    if (type == TYPE_F32) return uintBitsToFloat(word);
    if (type == TYPE_I32) return float(int(word));
    if (type == TYPE_F16) return (i & 1u) == 0u ? unpackHalf2x16(word).x : unpackHalf2x16(word).y;
    return uintBitsToFloat((i & 1u) == 0u ? word << 16 : word & 0xffff0000u);
}
uint word_of(uint type, uint i) { return type == TYPE_F16 || type == TYPE_BF16 ? i >> 1 : i; }

// Rounding to nearest even, by integers: the conversions of a driver may round in another way.
uint bf16_bits(float value)
{
    uint u = floatBitsToUint(value);
    uint rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
    return (u & 0x7fffffffu) > 0x7f800000u ? (u >> 16) | 0x40u : rounded;
}
#ifdef STORE16
uint f16_bits(float value) // with branches: Intel's compiler then keeps more in registers
{
    uint u = floatBitsToUint(value);
    uint sign = (u >> 16) & 0x8000u;
    uint a = u & 0x7fffffffu;
    if (a > 0x7f800000u) return sign | 0x7e00u;
    if (a >= 0x477ff000u) return sign | 0x7c00u;
    if (a < 0x38800000u) { // below 2^-14: a multiple of 2^-24
        if (a < 0x33000000u) return sign;
        uint shift = 126u - (a >> 23);
        uint mantissa = (a & 0x7fffffu) | 0x800000u;
        uint kept = mantissa >> shift;
        uint lost = mantissa & ((1u << shift) - 1u);
        uint half_unit = 1u << (shift - 1u);
        return sign | (kept + (lost > half_unit || (lost == half_unit && (kept & 1u) != 0u) ? 1u : 0u));
    }
    uint rebased = a - 0x38000000u;
    return sign | ((rebased + 0xfffu + ((rebased >> 13) & 1u)) >> 13);
}
#else
uint f16_bits(float value) // without: a store has one for each way that it may go, and some compilers take seconds for their branches
{
    uint u = floatBitsToUint(value);
    uint a = u & 0x7fffffffu;
    // Below 2^-14 f16 has multiples of 2^-24, and so has f32 from 0.5 to 1: the sum rounds.
    uint small = floatBitsToUint(uintBitsToFloat(a) + 0.5) - 0x3f000000u;
    uint bits = a < 0x38800000u ? small : (a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13;
    bits = a >= 0x477ff000u ? 0x7c00u : bits;
    bits = a > 0x7f800000u ? 0x7e00u : bits;
    return ((u >> 16) & 0x8000u) | bits;
}
#endif
uint bits_16bit(uint type, float value) { return type == TYPE_F16 ? f16_bits(value) : bf16_bits(value); }

#define READS(name) \
    layout(std430, binding = READABLE_##name) readonly buffer Block_##name { uint words_##name[]; }; \
    float load_##name(uint i) { return element_of(DTYPE_OF(name), words_##name[word_of(DTYPE_OF(name), i)], i); } \
    int load_int_##name(uint i) { return int(words_##name[i]); }

#ifdef STORE16
#define STORES(name) \
    layout(std430, binding = WRITABLE_##name) buffer Elements16_##name { uint16_t elements16_##name[]; }; \
    void store_##name(uint i, float value) \
    { \
        if (DTYPE_OF(name) == TYPE_F32) words_##name[i] = floatBitsToUint(value); \
        else if (DTYPE_OF(name) == TYPE_I32) words_##name[i] = uint(int(value)); \
        else elements16_##name[i] = uint16_t(bits_16bit(DTYPE_OF(name), value)); \
    }
#else
#define STORES(name) \
    void store_##name(uint i, float value) \
    { \
        if (DTYPE_OF(name) == TYPE_F32) words_##name[i] = floatBitsToUint(value); \
        else if (DTYPE_OF(name) == TYPE_I32) words_##name[i] = uint(int(value)); \
        else { \
            uint shift = (i & 1u) * 16u; \
            atomicAnd(words_##name[i >> 1], ~(0xffffu << shift)); \
            atomicOr(words_##name[i >> 1], bits_16bit(DTYPE_OF(name), value) << shift); \
        } \
    }
#endif
// READABLE_x + 0 * WRITABLE_x is the number of the binding, and compiles only if both are defined.
#define READS_WRITES(name) \
    layout(std430, binding = READABLE_##name + 0 * WRITABLE_##name) buffer Block_##name { uint words_##name[]; }; \
    float load_##name(uint i) { return element_of(DTYPE_OF(name), words_##name[word_of(DTYPE_OF(name), i)], i); } \
    int load_int_##name(uint i) { return int(words_##name[i]); } \
    STORES(name)
#define WRITES(name) \
    layout(std430, binding = WRITABLE_##name) buffer Block_##name { uint words_##name[]; }; \
    STORES(name)
#define READS_AS(element, view, name) \
    layout(std430, binding = READABLE_##name) readonly buffer View_##view##_##name { element view##_##name[]; };
#define WRITES_AS(element, view, name) \
    layout(std430, binding = WRITABLE_##name) writeonly buffer View_##view##_##name { element view##_##name[]; };
#define READS_WRITES_AS(element, view, name) \
    layout(std430, binding = READABLE_##name + 0 * WRITABLE_##name) buffer View_##view##_##name { element view##_##name[]; };
#define READS_WRITES_COHERENT(element, view, name) \
    layout(std430, binding = READABLE_##name + 0 * WRITABLE_##name) coherent buffer View_##view##_##name { element view##_##name[]; };

bool has(uint flags, uint flag) { return (flags & flag) != 0u; }

// Stands for -infinity, which the specification does not require shaders to support.
const float LOWEST = -3.4e38;

// exp for x <= 0 (larger x is taken as 0); relative error below 2 ulp for results above 2^-126, 0 below exp(-87.3).
// The specification allows the built-in exp an error of 3 + 2 |x| ulp, which is too much for long decays.
float exp_neg(float x)
{
    float inside = clamp(x, -87.3, 0.0); // one path for all lanes; an early return here costs some compilers minutes
    precise float n = floor(inside * 1.44269504 + 0.5);
    precise float r = inside - n * 0.693359375;
    r = r + n * 2.12194440e-4;
    precise float p = 1.9875691500e-4;
    p = p * r + 1.3981999507e-3;
    p = p * r + 8.3334519073e-3;
    p = p * r + 4.1665795894e-2;
    p = p * r + 1.6666665459e-1;
    p = p * r + 5.0000001201e-1;
    p = p * r * r + r + 1.0;
    return x > -87.3 ? p * uintBitsToFloat(uint(int(n) + 127) << 23) : 0.0;
}
// log(1 + y) for 0 <= y <= 1, as 2 atanh(y / (2 + y)).
float log1p_unit(float y)
{
    precise float s = y / (2.0 + y);
    precise float w = s * s;
    precise float p = 1.0 / 17.0;
    p = p * w + 1.0 / 15.0;
    p = p * w + 1.0 / 13.0;
    p = p * w + 1.0 / 11.0;
    p = p * w + 1.0 / 9.0;
    p = p * w + 1.0 / 7.0;
    p = p * w + 1.0 / 5.0;
    p = p * w + 1.0 / 3.0;
    return 2.0 * (s + s * w * p);
}
float softplus(float x) { return max(x, 0.0) + log1p_unit(exp_neg(-abs(x))); }
float silu(float x)
{
    float e = exp_neg(-abs(x));
    return x * ((x >= 0.0 ? 1.0 : e) / (1.0 + e));
}

// Sums and maxima over the workgroup, the same value in every lane, in a fixed order. Call in uniform flow; the
// shared array is free again on return.
#ifdef SUBGROUP
shared float lane_values[gl_WorkGroupSize.x / 4u]; // one a subgroup, which has four lanes or more
float workgroup_sum(float value)
{
    value = subgroupAdd(value);
    if (subgroupElect()) lane_values[gl_SubgroupID] = value;
    barrier();
    float sum = 0.0;
    for (uint i = 0u; i < gl_NumSubgroups; i++) sum += lane_values[i];
    barrier();
    return sum;
}
float workgroup_max(float value)
{
    value = subgroupMax(value);
    if (subgroupElect()) lane_values[gl_SubgroupID] = value;
    barrier();
    float top = lane_values[0];
    for (uint i = 1u; i < gl_NumSubgroups; i++) top = max(top, lane_values[i]);
    barrier();
    return top;
}
#else
shared float lane_values[gl_WorkGroupSize.x];
float workgroup_sum(float value)
{
    lane_values[LANE] = value;
    for (uint half_size = LANES / 2u; half_size > 0u; half_size /= 2u) {
        barrier();
        if (LANE < half_size) lane_values[LANE] += lane_values[LANE + half_size];
    }
    barrier();
    float sum = lane_values[0];
    barrier();
    return sum;
}
float workgroup_max(float value)
{
    lane_values[LANE] = value;
    for (uint half_size = LANES / 2u; half_size > 0u; half_size /= 2u) {
        barrier();
        if (LANE < half_size) lane_values[LANE] = max(lane_values[LANE], lane_values[LANE + half_size]);
    }
    barrier();
    float top = lane_values[0];
    barrier();
    return top;
}
#endif
