// Position and count of a sequence, and the chunks of its piece (see args.h). Include after READS(seq), in a kernel whose arguments
// have flags and seq_at.
uint seq_position(uint b) { return has(args.flags, HAS_SEQ) ? uint(max(load_int_seq(args.seq_at + 2u * b), 0)) : 0u; }
uint seq_count(uint b, uint L)
{
    return has(args.flags, HAS_SEQ) ? min(uint(max(load_int_seq(args.seq_at + 2u * b + 1u), 0)), L) : L;
}

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
