// Position and count of a sequence, and the chunks of its piece (see args.h). Include after READS(seq), in a kernel whose arguments
// have flags and seq_at.
uint seq_position(uint b) { return has(args.flags, HAS_SEQ) ? uint(max(load_int_seq(args.seq_at + 2u * b), 0)) : 0u; }
uint seq_count(uint b, uint L)
{
    return has(args.flags, HAS_SEQ) ? min(uint(max(load_int_seq(args.seq_at + 2u * b + 1u), 0)), L) : L;
}

#ifdef PACKS // for shaders that take packed sequences; args has B, L and T besides
// A sequence and where it lies, packed or not: its token t in row `row` + t; in what has a row of tokens for each of H heads, token t of
// head h at row H + h span + t.
struct Sequence { uint position, count, row, span; };
uint cu_at(uint b) { return min(uint(max(load_int_seq(args.seq_at + b), 0)), args.T); }
Sequence sequence_of(uint b)
{
    if (!has(args.flags, HAS_CU)) return Sequence(seq_position(b), seq_count(b, args.L), b * args.L, args.L);
    uint begin = cu_at(b);
    uint end = cu_at(b + 1u);
    uint count = end > begin ? min(end - begin, args.L) : 0u;
    return Sequence(0u, count, begin, count);
}
// The slot of its chunk 0 where there are M a sequence, of S tokens.
uint slot_of(Sequence own, uint b, uint M, uint S) { return has(args.flags, HAS_CU) ? own.row / S + b : b * M; }
// The last packed sequence that begins at or before the row.
uint sequence_with(uint row)
{
    uint first = 0u;
    uint end = args.B;
    while (end - first > 1u) {
        uint middle = first + (end - first) / 2u;
        if (cu_at(middle) <= row) first = middle;
        else end = middle;
    }
    return first;
}
#endif

struct Chunk {
    uint begin, end; // tokens of the piece; begin >= end: empty
    bool closes;
};
Chunk chunk_of(uint position, uint count, uint S, uint j)
{
    uint o = position % S;
    Chunk chunk;
    chunk.begin = j == 0u ? 0u : j * S - o;
    uint border = (j + 1u) * S - o;
    chunk.end = min(count, border);
    chunk.closes = border <= count;
    return chunk;
}
