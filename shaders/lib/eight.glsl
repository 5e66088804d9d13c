// Eight elements at a time: a binding of 16-bit elements is read and written in words of 16 bytes, a binding of f32 in two such
// words. `at` is a multiple of 8 (16-bit) or 4 (f32). Use beside the READS, WRITES or READS_WRITES of the same binding.
struct Eight {
    vec4 low, high;
};

// sum + a . b, one product after another.
float add_four(float sum, vec4 a, vec4 b)
{
    sum += a.x * b.x;
    sum += a.y * b.y;
    sum += a.z * b.z;
    sum += a.w * b.w;
    return sum;
}

bool is_16bit(uint type) { return type == TYPE_F16 || type == TYPE_BF16; }
vec4 four_16bit(uint type, uvec2 words)
{
    if (type == TYPE_F16) return vec4(unpackHalf2x16(words.x), unpackHalf2x16(words.y));
    return uintBitsToFloat(uvec4(words.x << 16, words.x & 0xffff0000u, words.y << 16, words.y & 0xffff0000u));
}
#ifdef FLOAT16
// four_16bit for f16 through 16-bit registers, so that the compiler can make the conversion part of a multiplication.
vec4 four_f16(uvec2 words) { return vec4(unpackFloat2x16(words.x), unpackFloat2x16(words.y)); }
#endif
uvec2 as_16bit(uint type, vec4 v)
{
    return uvec2(bits_16bit(type, v.x) | bits_16bit(type, v.y) << 16, bits_16bit(type, v.z) | bits_16bit(type, v.w) << 16);
}

// SiLU for results of `type`. For 16-bit results the built-in exp is accurate enough: its error is at most 3 + 2 |x| ulp, 2^-15 of
// the result at x = -80. Below -80 the exponent stays at 80, so that exp does not overflow; the result is then about x 2^-115.
vec4 silu_four(uint type, vec4 v)
{
    if (is_16bit(type)) return v / (1.0 + exp(min(-v, vec4(80.0))));
    return vec4(silu(v.x), silu(v.y), silu(v.z), silu(v.w));
}

// Eight elements as they lie in memory, 16-bit elements in `low`. Loads can be issued long before eight_of converts them.
struct Words {
    uvec4 low, high;
};
Eight eight_of(uint type, Words w)
{
    if (is_16bit(type)) return Eight(four_16bit(type, w.low.xy), four_16bit(type, w.low.zw));
    return Eight(uintBitsToFloat(w.low), uintBitsToFloat(w.high));
}

#define LOADS_EIGHT(name) \
    bool aligned_##name(uint at, uint row) { return (at | row) % (is_16bit(DTYPE_OF(name)) ? 8u : 4u) == 0u; } \
    Words load_words_##name(uint at) \
    { \
        if (is_16bit(DTYPE_OF(name))) return Words(quads_##name[at / 8u], uvec4(0u)); \
        return Words(quads_##name[at / 4u], quads_##name[at / 4u + 1u]); \
    } \
    Eight load_eight_##name(uint at) { return eight_of(DTYPE_OF(name), load_words_##name(at)); }
#define READS_EIGHT(name) \
    READS_AS(uvec4, quads, name) \
    LOADS_EIGHT(name)
#define WRITES_EIGHT(name) \
    layout(std430, binding = WRITABLE_##name) buffer View_quads_##name { uvec4 quads_##name[]; }; \
    void store_eight_##name(uint at, Eight v) \
    { \
        if (is_16bit(DTYPE_OF(name))) { \
            quads_##name[at / 8u] = uvec4(as_16bit(DTYPE_OF(name), v.low), as_16bit(DTYPE_OF(name), v.high)); \
        } else { \
            quads_##name[at / 4u] = floatBitsToUint(v.low); \
            quads_##name[at / 4u + 1u] = floatBitsToUint(v.high); \
        } \
    }
