// What the kernels of the backward pass share: which tokens see which memories. The kernel's arguments have L, S and M.

// Memories below this number are seen by token t.
uint seen_by(uint position, uint t) { return min((position + t) / args.S, args.M); }
// The first token that sees memory m, L where none of the piece can: whose border may lie beyond 2^32.
uint first_to_see(uint position, uint m)
{
    if (m >= (position + args.L - 1u) / args.S) return args.L;
    uint border = (m + 1u) * args.S;
    return border > position ? border - position : 0u;
}
