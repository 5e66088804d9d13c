// The two-float cumulative log-decay. Include after READS(cum), in a kernel whose bindings have it.

// hi, lo and step of one token; i counts tokens as cum does.
vec3 cum_at(uint i)
{
    uint at = CUM_STRIDE * i;
    return vec3(load_cum(at), load_cum(at + 1u), load_cum(at + 2u));
}

// Log-decay from one token to a later one. The halves are subtracted apart, so that close tokens keep their digits.
float cum_between(vec2 earlier, vec2 later)
{
    precise float high = later.x - earlier.x;
    precise float low = later.y - earlier.y;
    return high + low;
}
