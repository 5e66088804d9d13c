// What the kernels of the backward pass share: the chunk of a tile, places in scratch, decays between tokens. Include after
// lib/seq.glsl with PACKS, and ssd.glsl, with SSD_CUM where cum is read.

struct Place {
    uint slot;        // of its matrices
    uint token, size; // its first row, and its tokens (0: empty)
#ifdef SSD_CUM
    uint cum, span; // elements of cum_at: of its first token and head 0, from head to head
#endif
};
// Chunk j of sequence b, index j + M b.
Place place_of(uint index)
{
    Place at;
    uint j = index % args.M;
    uint b = index / args.M;
    Sequence sequence = sequence_of(b);
    at.slot = slot_of(sequence, b, args.M, args.S) + j;
    Chunk chunk = chunk_of(sequence.position, sequence.count, args.S, j);
    at.size = chunk.begin < chunk.end ? chunk.end - chunk.begin : 0u;
    at.token = sequence.row + chunk.begin;
#ifdef SSD_CUM
    at.cum = sequence.row * args.H + chunk.begin;
    at.span = sequence.span;
#endif
    return at;
}

#ifdef SSD_CUM
// The element of cum_at for the first token of the chunk.
uint cum_of(Place at, uint h) { return at.cum + h * at.span; }
#endif

// Row and column tile of a pair.
uvec2 pair_of(uint pair)
{
    uint i = uint((sqrt(8.0 * float(pair) + 1.0) - 1.0) * 0.5);
    while (i * (i + 1u) / 2u > pair) i--;
    while ((i + 1u) * (i + 2u) / 2u <= pair) i++;
    return uvec2(i, pair - i * (i + 1u) / 2u);
}
