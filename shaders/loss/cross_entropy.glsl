// What the rows of cross_entropy share. Include after lib/dart.glsl and table/cross_entropy.glsl.
//
// logits rows x logits_row, f32; slopes rows x slopes_row, f32 or 16 bits; targets rows; share 1; parts rows x 2. A workgroup takes a row, in
// words of four logits. What a row reads of its logits it has read before it writes slopes to the same place.
// Guards: lse - logit is a difference from the largest logit plus a logarithm of at least 1. The target's logit is left out of the sum of
// exponentials, `rest`, so that its slope -share rest / total keeps its digits. A row with a logit that is not finite gives NaN, found by its
// bits, whatever the device makes of NaN in arithmetic. Words of a row end past its width: what lies there counts as LOWEST.
READS(logits) READS_AS(uvec4, quads, logits) READS(targets) READS(share) WRITES(parts)
#include "lib/eight.glsl"
#include "lib/four.glsl"
#include "lib/log.glsl"
WRITES_FOUR(slopes)

float broken() { return uintBitsToFloat(0x7fc00000u); }

// Four logits of the row at `row` from column i on.
vec4 logits_at(uint row, uint i)
{
    vec4 v = uintBitsToFloat(quads_logits[(row + i) / 4u]);
    [[unroll]] for (uint c = 0u; c < 4u; c++) v[c] = i + c < args.width ? v[c] : LOWEST;
    return v;
}

// Raises trouble to 1 if one of the logits from column i on is the choice in place of the target, to 2 if one is not finite. Leaves LOWEST for
// the target.
void judge(inout vec4 v, uint i, uint target, float own, inout float trouble)
{
    uvec4 exponents = floatBitsToUint(v) & 0x7f800000u;
    if (any(equal(exponents, uvec4(0x7f800000u)))) trouble = 2.0;
    [[unroll]] for (uint c = 0u; c < 4u; c++) {
        if (v[c] > own || (v[c] == own && i + c < target)) trouble = max(trouble, 1.0);
        v[c] = i + c == target ? LOWEST : v[c];
    }
}

float largest(vec4 v) { return max(max(v.x, v.y), max(v.z, v.w)); }
vec4 exps(vec4 v, float top) { return vec4(exp_neg(v.x - top), exp_neg(v.y - top), exp_neg(v.z - top), exp_neg(v.w - top)); }
float sum_of(vec4 v) { return (v.x + v.y) + (v.z + v.w); }

// The slopes of the logits from column i on, whose exponentials are v.
void put_slopes(uint to, uint i, vec4 v, float factor, uint target, float of_target)
{
    v *= factor;
    [[unroll]] for (uint c = 0u; c < 4u; c++) v[c] = i + c == target ? of_target : v[c];
    store_four_slopes(to + i, v);
}

void put_parts(uint to, float share, float trouble, float highest, float own, float total)
{
    store_parts(to, trouble > 1.0 ? broken() : share * ((highest - own) + log_above_one(total)));
    store_parts(to + 1u, trouble > 0.0 ? 0.0 : 1.0);
}

void put_nothing(uint to, uint slopes)
{
    for (uint i = 4u * LANE; i < args.width && has(args.flags, HAS_GRADIENT); i += 4u * LANES) store_four_slopes(slopes + i, vec4(0.0));
    if (LANE == 0u) {
        store_parts(to, 0.0);
        store_parts(to + 1u, 0.0);
    }
}
