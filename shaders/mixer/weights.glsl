// The weights' share of mixer.glsl; include after READS(weight) and READS_EIGHT(weight). weights_quantised.glsl has the same for quantised rows.

bool weights_fit() { return aligned_weight(args.weight_at, args.inputs); }

// sums += v . weight over inputs i .. i + 7 of all outputs.
void add_products(uint first_output, uint i, Eight v)
{
    [[unroll]] for (uint first = 0u; first < OUTPUTS; first += AT_ONCE) {
        Eight w[AT_ONCE];
        [[unroll]] for (uint k = 0u; k < AT_ONCE; k++)
            w[k] = load_eight_weight(args.weight_at + min(first_output + first + k, args.outputs - 1u) * args.inputs + i);
        [[unroll]] for (uint k = 0u; k < AT_ONCE; k++)
            sums[first + k] = add_four(add_four(sums[first + k], v.low, w[k].low), v.high, w[k].high);
    }
}
void add_product(uint first_output, uint i, float v)
{
    [[unroll]] for (uint o = 0u; o < OUTPUTS; o++)
        sums[o] += v * load_weight(args.weight_at + min(first_output + o, args.outputs - 1u) * args.inputs + i);
}
