// Four elements at a time: a binding of 16-bit elements is read and written in words of 8 bytes, a binding of f32 in words of 16. `at` is a
// multiple of 4. Include after lib/eight.glsl; use beside the READS or WRITES of the same binding.
vec4 four_of(uint type, uvec4 words) { return is_16bit(type) ? four_16bit(type, words.xy) : uintBitsToFloat(words); }
#define READS_FOUR(name) \
    READS_AS(uvec2, pairs, name) \
    READS_AS(uvec4, quads, name) \
    uvec4 load_words_##name(uint at) { return is_16bit(DTYPE_OF(name)) ? uvec4(pairs_##name[at / 4u], 0u, 0u) : quads_##name[at / 4u]; } \
    vec4 load_four_##name(uint at) { return four_of(DTYPE_OF(name), load_words_##name(at)); }
#define WRITES_FOUR(name) \
    WRITES_AS(uvec2, pairs, name) \
    WRITES_AS(uvec4, quads, name) \
    void store_four_##name(uint at, vec4 v) \
    { \
        if (is_16bit(DTYPE_OF(name))) pairs_##name[at / 4u] = as_16bit(DTYPE_OF(name), v); \
        else quads_##name[at / 4u] = floatBitsToUint(v); \
    }
