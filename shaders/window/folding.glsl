// Which windows a launch folds, see args.h, and who does what: all workgroups look at all sequences and share out the heads of those that fold, so
// that few workgroups, which is what a launch with nothing to do wants, fold the heads of a single sequence side by side. Include after lib/seq.glsl,
// slot.glsl and takes(m), whether this launch stores memory m, in a kernel with the arguments of window_fold or window_folds.
// Shared memory: 8 LANES + LANES / 8 + 4 bytes.
const uint FLAGS = (LANES + 31u) / 32u;
shared uint flags[FLAGS];    // which of the sequences fold
shared uvec2 folding[LANES]; // those: b, position

bool every() { return has(args.flags, IS_EVERY); }
bool fresh() { return has(args.flags, IS_FRESH); }
// A decoding step, in which chunks may close.
bool is_step() { return !every() && !fresh(); }
bool closes_at(uint position) { return is_step() && has(args.flags, HAS_OPEN) && (position + 1u) % args.S == 0u; }
uint tokens_at(uint position) { return fresh() ? 0u : window_slot(position) + (is_step() ? 1u : 0u); }

// Does this launch fold the windows of sequence b?
bool folds(uint b, uint position)
{
    if (!every() && seq_count(b, 1u) == 0u) return false;
    if (is_step() && tokens_at(position) < WINDOW && (position + 1u) % args.S != 0u) return false;
    return closes_at(position) ? takes(position / args.S) : !has(args.flags, IS_LATER);
}

// Lists those of the LANES sequences from `first` on that fold, in their order, the same in every workgroup. Returns how many.
uint list_folding(uint first)
{
    uint own = first + LANE;
    if (LANE < FLAGS) flags[LANE] = 0u;
    barrier();
    uint position = own < args.B ? seq_position(own) : 0u;
    bool mine = own < args.B && folds(own, position);
    if (mine) atomicOr(flags[LANE / 32u], 1u << LANE % 32u);
    barrier();
    uint count = 0u;
    uint before = 0u;
    for (uint i = 0u; i < FLAGS; i++) {
        uint all = flags[i];
        uint lower = i < LANE / 32u ? all : i == LANE / 32u ? all & ((1u << LANE % 32u) - 1u) : 0u;
        count += uint(bitCount(all));
        before += uint(bitCount(lower));
    }
    if (mine) folding[before] = uvec2(own, position);
    barrier();
    return count;
}
