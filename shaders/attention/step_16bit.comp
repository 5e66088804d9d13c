#version 460
#extension GL_GOOGLE_include_directive : require
// attention for one token, over the tokens of one split, with keys and values of 16 bits in whole 16-byte words:
// partial = {top, den, acc[D]}, top = max score, den = sum exp(score - top), acc = sum exp(score - top) v.
// q B H D; k, v B C G D; partial B H splits D+2; D a multiple of 8 and at most MAX_HEAD.
// One workgroup takes one (b, h, split). WORDS lanes share a token, 8 columns each, so that a row is read in one piece; a lane
// fetches the keys and the values of PASSES tokens at once, which keeps enough loads in flight. Then a lane owns the score of
// one token, and in the end one or two columns of the sums.
// PASSES is at most WORDS. Shared memory: 4 (PASSES + 1) LANES + 36 LANES bytes.
// Guards: differences from the running maximum are clamped to <= 0, LOWEST stands for -infinity.
#include "lib/dart.glsl"
#include "table/attention_step.glsl"
READS(q) READS_AS(uvec4, quads, k) READS_AS(uvec4, quads, v) READS(seq) WRITES(partial)
#include "lib/seq.glsl"

shared float products[PASSES * LANES + LANES];
shared float weights[LANES];
shared vec4 sums[2u * LANES];

// Eight elements of 16 bits.
void unpack(uvec4 words, out vec4 low, out vec4 high)
{
    const uint type = DTYPE_OF(k);
    [[unroll]] for (uint i = 0u; i < 4u; i++) {
        low[i] = element_of(type, words[i / 2u], i);
        high[i] = element_of(type, words[2u + i / 2u], i);
    }
}

void main()
{
    uint words = args.D > 64u ? 16u : 8u; // lanes of a token
    uint rows = LANES / words;            // tokens side by side
    uint batch = PASSES * rows;
    uint word = LANE % words;
    bool inside = word < args.D / 8u;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint split = tile % args.splits;
        uint head = tile / args.splits;
        uint b = head / args.H;
        uint h = head % args.H;
        uint g = h / (args.H / args.G);
        if (seq_count(b, 1u) == 0u) continue;
        uint position = seq_position(b);
        uint seen = position < args.first ? 0u : min(position - args.first + 1u, args.C);
        uint run = args.splits * STEP_TOKENS;
        run = (seen + run - 1u) / run * STEP_TOKENS;
        uint end = min((split + 1u) * run, seen);

        vec4 query_low = vec4(0.0);
        vec4 query_high = vec4(0.0);
        if (inside) {
            uint at = args.q_at + b * args.q_row + h * args.D + word * 8u;
            [[unroll]] for (uint i = 0u; i < 4u; i++) {
                query_low[i] = args.scale * load_q(at + i);
                query_high[i] = args.scale * load_q(at + 4u + i);
            }
        }
        uint k_at = (args.k_at + g * args.D) / 8u + min(word, args.D / 8u - 1u);
        uint v_at = (args.v_at + g * args.D) / 8u + min(word, args.D / 8u - 1u);
        float top = LOWEST;
        float den = 0.0;
        vec4 low = vec4(0.0);
        vec4 high = vec4(0.0);
        for (uint s = split * run; s < end; s += batch) {
            uvec4 keys[PASSES];
            uvec4 values[PASSES];
            [[unroll]] for (uint i = 0u; i < PASSES; i++) {
                uint row = b * args.C + min(s + i * rows + LANE / words, end - 1u);
                keys[i] = quads_k[k_at + row * (args.k_row / 8u)];
                values[i] = quads_v[v_at + row * (args.v_row / 8u)];
            }
            [[unroll]] for (uint i = 0u; i < PASSES; i++) {
                vec4 key_low;
                vec4 key_high;
                unpack(keys[i], key_low, key_high);
                products[(i * rows + LANE / words) * (words + 1u) + word] = dot(query_low, key_low) + dot(query_high, key_high);
            }
            barrier();
            bool owner = LANE < batch && s + LANE < end;
            float score = 0.0;
            for (uint i = 0u; i < words; i++) score += products[min(LANE, batch - 1u) * (words + 1u) + i];
            float new_top = max(top, workgroup_max(owner ? score : LOWEST));
            float keep = exp_neg(top - new_top);
            float weight = owner ? exp_neg(score - new_top) : 0.0;
            top = new_top;
            den = den * keep + weight;
            weights[LANE] = weight;
            barrier();
            low *= keep;
            high *= keep;
            [[unroll]] for (uint i = 0u; i < PASSES; i++) {
                vec4 value_low;
                vec4 value_high;
                unpack(values[i], value_low, value_high);
                float share = weights[i * rows + LANE / words]; // 0 past the end, where the last token is repeated
                low += share * value_low;
                high += share * value_high;
            }
        }
        den = workgroup_sum(den);
        sums[2u * LANE] = low;
        sums[2u * LANE + 1u] = high;
        barrier();
        uint to = tile * (args.D + 2u);
        if (LANE == 0u) {
            store_partial(to, top);
            store_partial(to + 1u, den);
        }
        for (uint column = LANE; column < args.D; column += LANES) {
            float sum = 0.0;
            for (uint i = 0u; i < rows; i++) sum += sums[2u * (i * words) + column / 4u][column % 4u];
            store_partial(to + 2u + column, sum);
        }
        barrier();
    }
}
