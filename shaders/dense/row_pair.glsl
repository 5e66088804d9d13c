// The rows {from, to} that row t of a conversion stands for. Include after READS(seq).
ivec2 row_pair(uint t)
{
    if (!has(args.flags, HAS_ROWS)) return ivec2(int(t));
    return ivec2(load_int_seq(args.seq_at + 2u * t), load_int_seq(args.seq_at + 2u * t + 1u));
}
