// The rows {from, to} that row t of a conversion stands for. Without a `to` there is nothing to do, without a `from` row `to` becomes 0.
// Include after READS(seq).
ivec2 row_pair(uint t)
{
    if (has(args.flags, HAS_FROM)) return ivec2(load_int_seq(args.seq_at + t), int(t));
    if (!has(args.flags, HAS_ROWS)) return ivec2(int(t));
    ivec2 pair = ivec2(load_int_seq(args.seq_at + 2u * t), load_int_seq(args.seq_at + 2u * t + 1u));
    return pair.x < 0 ? ivec2(-1) : pair;
}
