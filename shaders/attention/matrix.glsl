// Sizes and shared memory of attention_matrix.comp, and what it does to single words: values that are not finite, results, weights.

#if HEAD == 64
#define DEPTH 64u // such rows are for just that
#else
#define DEPTH args.D
#endif
const uint KEYS = MATRIX_M < 16u ? 16u : T1; // small matrices make for many, which compile slowly
const uint ROWS = T0 / SUBGROUPS;
const uint R = ROWS / MATRIX_M;
const uint KEY_TILES = KEYS / MATRIX_N;
const uint DEPTH_TILES = HEAD / MATRIX_K;
const uint HEAD_TILES = HEAD / MATRIX_N;
const uint WEIGHT_TILES = KEYS / MATRIX_K;
const uint PITCH = HEAD / 8u + 1u; // 16-byte words a row in shared memory, odd to spread the banks
const uint QUADS = KEYS * HEAD / 8u;
const uint FETCH = (QUADS + LANES - 1u) / LANES;
const uint PART = MATRIX_M * MATRIX_K; // floats of a subgroup's scratch memory
const uint ELEMENTS = MATRIX_M * MATRIX_N / SUBGROUP_SIZE; // components of an accumulator in a lane
const uint QUERY_WORDS = MATRIX_M * MATRIX_K / 8u; // 16-byte words of a tile of queries
const uint QUERY_FETCH = (QUERY_WORDS + SUBGROUP_SIZE - 1u) / SUBGROUP_SIZE;
const uint RESULT_STORES = (MATRIX_M * MATRIX_N / 8u + SUBGROUP_SIZE - 1u) / SUBGROUP_SIZE;
const float SLACK = 8.0;
const float LOG2_E = 1.44269504;
const float LN_2 = 0.693147181;

shared uvec4 keys[KEYS * PITCH];
shared uvec4 values[KEYS * PITCH];
// Vectors, because matrices want addresses of whole 16 bytes.
shared vec4 scratch[SUBGROUPS * PART / 4u];
#ifndef MATRIX2
shared uvec4 packed[SUBGROUPS * PART / 8u];
#endif
shared vec4 table[(MATRIX_N + 1u) * MATRIX_M / 4u]; // column of each element, row by row; then the rows
shared uint wild; // some value of a block with masked tokens is not finite

// The 16-bit elements that are not finite, as masks.
uvec4 wild_16bit(uvec4 words)
{
#ifdef MATRIX_BF16
    const uint exponent = 0x7f80u;
#else
    const uint exponent = 0x7c00u;
#endif
    uvec4 low = mix(uvec4(0u), uvec4(0xffffu), equal(words & exponent, uvec4(exponent)));
    return mix(low, low | 0xffff0000u, equal(words >> 16 & exponent, uvec4(exponent)));
}

// Eight columns of o from element `at` on.
void store_eight(uint at, vec4 low, vec4 high)
{
    uint type = DTYPE_OF(o);
    if (type == TYPE_F32) {
        quads_o[at / 4u] = floatBitsToUint(low);
        quads_o[at / 4u + 1u] = floatBitsToUint(high);
    } else {
        uvec4 words;
        words.x = bits_16bit(type, low.x) | bits_16bit(type, low.y) << 16;
        words.y = bits_16bit(type, low.z) | bits_16bit(type, low.w) << 16;
        words.z = bits_16bit(type, high.x) | bits_16bit(type, high.y) << 16;
        words.w = bits_16bit(type, high.z) | bits_16bit(type, high.w) << 16;
        quads_o[at / 8u] = words;
    }
}

#include "lib/rounded.glsl"

// A row's value in every column, from scratch.
#define LOAD_ROWS(matrix, first) coopMatLoad(matrix, scratch, (first) / 4u, 0u, COLUMN_MAJOR)
