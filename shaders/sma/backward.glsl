// What the kernels of the backward pass share: which tokens see which memories. The kernel's arguments have S and M.

// Memories below this number are seen by token t.
uint seen_by(uint position, uint t) { return min((position + t) / args.S, args.M); }
// The first token that sees memory m, at least the count where none does.
uint first_to_see(uint position, uint m)
{
    uint border = (m + 1u) * args.S;
    return border > position ? border - position : 0u;
}
