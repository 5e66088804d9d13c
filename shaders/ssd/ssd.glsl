// What the scan's kernels share: the two-float cumulative log-decay (and with READS(cum) its elements), and where memories lie.

// a + b for two-float numbers.
vec2 add_pairs(vec2 a, vec2 b)
{
    precise float sum = a.x + b.x;
    precise float part = sum - a.x;
    precise float error = (a.x - (sum - part)) + (b.x - part);
    precise float rest = (a.y + b.y) + error;
    precise float rounded = sum + rest;
    precise float lost = rest - (rounded - sum);
    return vec2(rounded, lost);
}

// Log-decay from one token to a later one. The halves are subtracted apart, so that close tokens keep their digits.
float cum_between(vec2 earlier, vec2 later)
{
    precise float high = later.x - earlier.x;
    precise float low = later.y - earlier.y;
    return high + low;
}

#ifdef SSD_CUM
// hi, lo and step of one token; i counts tokens as cum does.
vec3 cum_at(uint i)
{
    uint at = CUM_STRIDE * i;
    return vec3(load_cum(at), load_cum(at + 1u), load_cum(at + 2u));
}
#endif

#ifdef SSD_MEMORY
// The first row of chunk j's memory of head h.
uint memory_row(uint position, uint b, uint j, uint h)
{
#ifdef PACKS
    uint own = slot_of(sequence_of(b), b, args.M, args.S) + j;
#else
    uint own = b * args.M + j;
#endif
    uint slot = has(args.flags, HAS_RUN) ? b * args.capacity + position / args.S + j - args.first : own;
    return (slot * args.H + h) * args.N;
}
#endif
