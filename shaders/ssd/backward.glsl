// What the kernels of the backward pass share: the chunk of a tile, places in scratch, decays between tokens. Include after
// lib/seq.glsl and ssd.glsl, with SSD_CUM where cum is read.

struct Place {
    uint b, j, slot;  // chunk j of sequence b; slot: of its matrices
    uint token, size; // its first row, and its tokens (0: empty)
};
Place place_of(uint index)
{
    Place at;
    at.j = index % args.M;
    at.b = index / args.M;
    at.slot = index;
    Chunk chunk = chunk_of(seq_position(at.b), seq_count(at.b, args.L), args.S, at.j);
    at.size = chunk.begin < chunk.end ? chunk.end - chunk.begin : 0u;
    at.token = at.b * args.L + chunk.begin;
    return at;
}

#ifdef SSD_CUM
// The element of cum_at for the first token of the chunk.
uint cum_of(Place at, uint h) { return (at.b * args.H + h) * args.L + (at.token - at.b * args.L); }
#endif

// Row and column tile of a pair.
uvec2 pair_of(uint pair)
{
    uint i = uint((sqrt(8.0 * float(pair) + 1.0) - 1.0) * 0.5);
    while (i * (i + 1u) / 2u > pair) i--;
    while ((i + 1u) * (i + 2u) / 2u <= pair) i++;
    return uvec2(i, pair - i * (i + 1u) / 2u);
}
