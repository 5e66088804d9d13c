// Part of main() in the matrix rows of ssd_output, where their loop over tiles begins: the tokens and heads of tile `tile`.
// Tiles go in blocks of STRETCH chunks and head blocks, in each the last tokens first: their tiles take up to twice as long as those
// of the first, so that short ones end it all, and processors that get every so many-th tile get some of each.
        const uint STRETCH = 64u;
        uint stretch = tile / (STRETCH * t_blocks) * STRETCH;
        uint in_stretch = tile - stretch * t_blocks;
        uint width = min(STRETCH, args.tiles / t_blocks - stretch);
        uint t_first = (t_blocks - 1u - in_stretch / width) * T1;
        uint rest = stretch + in_stretch % width;
        uint block_first = rest % h_blocks * T0;
        rest /= h_blocks;
        uint g = rest % args.G;
        rest /= args.G;
        uint j = rest % args.M;
        uint b = rest / args.M;
        uint block_heads = min(T0, group_heads - block_first);
        Chunk chunk = chunk_of(seq_position(b), seq_count(b, args.L), args.S, j);
        uint size = chunk.begin < chunk.end ? chunk.end - chunk.begin : 0u;
        if (t_first >= size) continue;
        uint token = b * args.L + chunk.begin;
        uint t_end = min(t_first + T1, size);
