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

// Components are reached by whole vectors: SwiftShader takes minutes over loops that write v[c].
uvec4 columns(uint i) { return uvec4(i, i + 1u, i + 2u, i + 3u); }

// `yes` where all bits of `where` are set, `no` where none is. In place of a choice by a bool: AMD's compiler keeps the bools of all words of a row.
vec4 choose(ivec4 where, vec4 yes, vec4 no)
{
    uvec4 bits = uvec4(where);
    return uintBitsToFloat((floatBitsToUint(yes) & bits) | (floatBitsToUint(no) & ~bits));
}
// All bits where a < 0.
ivec4 below_zero(ivec4 a) { return a >> 31; }

// Four logits of the row at `row` from column i on; LOWEST past its width. Without branches, as judge is: compilers take long over those of many
// words.
vec4 logits_at(uint row, uint i)
{
    uint last = (args.width - 1u) / 4u;
    return choose(below_zero(ivec4(columns(i)) - int(args.width)), uintBitsToFloat(quads_logits[row / 4u + min(i / 4u, last)]), vec4(LOWEST));
}

// What a lane found in its logits.
struct Judgement {
    uvec4 beaten, exponents; // one is the choice in place of the target; the largest exponents, as bits
};
const uvec4 NOT_FINITE = uvec4(0x7f800000u);
// Adds the logits from column i on.
void judge(inout Judgement j, vec4 v, uint i, uint target, float own)
{
    uvec4 ties = uvec4(equal(v, vec4(own))) & uvec4(lessThan(columns(i), uvec4(target)));
    j.beaten |= uvec4(greaterThan(v, vec4(own))) | ties;
    j.exponents = max(j.exponents, floatBitsToUint(v) & NOT_FINITE);
}
// 1: the target is not the choice; 2: a logit is not finite.
float trouble_of(Judgement j)
{
    if (any(equal(j.exponents, NOT_FINITE))) return 2.0;
    return any(notEqual(j.beaten, uvec4(0u))) ? 1.0 : 0.0;
}
// The logits from column i on, with `value` for the target.
vec4 with_target(vec4 v, uint i, uint target, float value) { return choose(below_zero(ivec4(columns(i) ^ target) - 1), vec4(value), v); }

float largest(vec4 v) { return max(max(v.x, v.y), max(v.z, v.w)); }
vec4 exps(vec4 v, float top) { return vec4(exp_neg(v.x - top), exp_neg(v.y - top), exp_neg(v.z - top), exp_neg(v.w - top)); }
float sum_of(vec4 v) { return (v.x + v.y) + (v.z + v.w); }

// The slopes of the logits from column i on, whose exponentials are v.
void put_slopes(uint to, uint i, vec4 v, float factor, uint target, float of_target)
{
    store_four_slopes(to + i, with_target(v * factor, i, target, of_target));
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
