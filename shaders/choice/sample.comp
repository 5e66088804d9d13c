// ids[t] = the lowest index of the largest logit of row t where the temperature of the row is not above 0. Elsewhere
// ids[t] ~ softmax(logits_t / temperature) over the top_k largest logits: the first kept index, in index order, whose
// running sum of exp((logit - max) / temperature) exceeds u times the total, else the last kept index; 0 when nothing
// is kept. u = word 0 of Philox4x32-10 / 2^32 (Salmon et al. 2011).
//
// logits rows x width, part rows blocks 2 (argmax_part), settings rows x SETTING_WORDS, seq rows x 2, ids rows. A
// workgroup makes one row. The largest logit comes from the parts of the row. To sample, the workgroup finds the order
// (order.glsl) of the last kept logit eight bits at a time by counting, then every lane sums a contiguous segment, and
// one lane picks.
// Shared memory: 1024 + 16 LANES bytes at most. Guards: -inf has weight 0, NaN is never kept, exp of numbers <= 0 only;
// the sums that pick are made in the same order as those that add up to the total.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/dart.glsl"
#include "table/sample.glsl"
READS(logits) READS(part) READS(settings) READS(seq) WRITES(ids)
#include "order.glsl"

const uint NEGATIVE_INFINITY = 0x007fffffu; // as an order

shared uint counts[256];
shared uint bucket, above; // of the last kept logit: its digit, and how many logits have larger ones
shared float sums[gl_WorkGroupSize.x];
shared uint lasts[gl_WorkGroupSize.x]; // 1 + the last kept index of a segment

uint philox(uvec4 counter, uvec2 key)
{
    for (uint i = 0u; i < 10u; i++) {
        uint high0, low0, high1, low1;
        umulExtended(0xd2511f53u, counter.x, high0, low0);
        umulExtended(0xcd9e8d57u, counter.z, high1, low1);
        counter = uvec4(high1 ^ counter.y ^ key.x, low1, high0 ^ counter.w ^ key.y, low0);
        key += uvec2(0x9e3779b9u, 0xbb67ae85u);
    }
    return counter.x;
}

// The smallest order among the keep largest numbers of a row, and how many numbers equal to it are kept. With no more
// numbers than keep it is 1, below all of them.
void find_threshold(uint from, uint keep, out uint threshold, out uint ties)
{
    threshold = 0u;
    for (uint shift = 24u;; shift -= 8u) {
        for (uint i = LANE; i < 256u; i += LANES) counts[i] = 0u;
        barrier();
        for (uint i = LANE; i < args.width; i += LANES) {
            uint order = order_of(load_logits(from + i));
            bool same = shift == 24u || (order ^ threshold) >> (shift + 8u) == 0u;
            if (order != 0u && same) atomicAdd(counts[(order >> shift) & 255u], 1u);
        }
        barrier();
        if (LANE == 0u) {
            uint larger = 0u;
            uint digit = 255u;
            while (digit > 0u && larger + counts[digit] < keep) larger += counts[digit--];
            bucket = larger + counts[digit] < keep ? 256u : digit;
            above = larger;
        }
        barrier();
        uint digit = bucket;
        uint larger = above;
        barrier();
        if (digit == 256u) { // only in the first round
            threshold = 1u;
            ties = 0u;
            return;
        }
        threshold |= digit << shift;
        keep -= larger;
        if (shift == 0u) break;
    }
    ties = keep;
}

// Is this row left alone? The same in every lane.
bool keeps_id(uint tile)
{
    const uint wanted = HAS_SEQ | KEEPS_ENDED;
    return (args.flags & wanted) == wanted && load_int_seq(args.seq_at + 2u * tile + 1u) == 0;
}

// The order of the largest logit of the row, 0 where there is no number, and its lowest index.
uint largest_of(uint tile, out uint index)
{
    uint best = 0u;
    uint where = 0u;
    for (uint i = LANE; i < args.blocks; i += LANES) {
        uint at = 2u * (tile * args.blocks + i);
        uint order = words_part[at];
        if (order > best) {
            best = order;
            where = words_part[at + 1u];
        }
    }
    uint top = workgroup_max_uint(best);
    uint lowest = ~workgroup_max_uint(best == top ? ~where : 0u);
    index = top == 0u ? 0u : lowest;
    return top;
}

void main()
{
    uint segment = (args.width + LANES - 1u) / LANES;
    for (uint tile = gl_WorkGroupID.x; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        if (keeps_id(tile)) continue;
        uint chosen;
        uint top = largest_of(tile, chosen);
        uint setting = args.settings_at + SETTING_WORDS * tile;
        int bits = load_int_settings(setting);
        if (bits <= 0 || bits > 0x7f800000) { // not above 0, which is NaN, too
            if (LANE == 0u) words_ids[args.ids_at + tile] = chosen;
            continue;
        }
        float temperature = intBitsToFloat(bits);
        uint top_k = uint(load_int_settings(setting + 1u));
        uvec2 seed = uvec2(load_int_settings(setting + 2u), load_int_settings(setting + 3u));
        uint from = args.logits_at + tile * args.logits_row;
        uint threshold = 1u;
        uint ties = 0u;
        if (top_k != 0u && top_k < args.width) find_threshold(from, top_k, threshold, ties);

        uint begin = min(LANE * segment, args.width);
        uint end = min(begin + segment, args.width);
        uint equal = 0u;
        if (ties > 0u) {
            for (uint i = begin; i < end; i++) {
                if (order_of(load_logits(from + i)) == threshold) equal++;
            }
        }
        float largest = uintBitsToFloat((top & 0x80000000u) != 0u ? top & 0x7fffffffu : ~top);
        lane_words[LANE] = equal;
        barrier();
        uint skipped = 0u; // ties in earlier segments
        for (uint i = 0u; i < LANE; i++) skipped += lane_words[i];
        ties -= min(ties, skipped);

        precise float sum = 0.0;
        uint last = 0u;
        uint left = ties;
        for (uint i = begin; i < end; i++) {
            float logit = load_logits(from + i);
            uint order = order_of(logit);
            if (order < threshold || order == threshold && left == 0u) continue;
            if (order == threshold) left--;
            last = i + 1u;
            if (order == NEGATIVE_INFINITY) continue;
            sum += order == top ? 1.0 : exp_neg((logit - largest) / temperature);
        }
        sums[LANE] = sum;
        lasts[LANE] = last;
        barrier();

        uint position = 0u; // after this piece
        if (has(args.flags, HAS_SEQ)) {
            uint at = args.seq_at + 2u * tile;
            position = uint(load_int_seq(at) + load_int_seq(at + 1u));
        }
        uint random = philox(uvec4(position, tile, 0u, 0u), seed);
        float u = min(float(random) * (1.0 / 4294967296.0), 0.99999994); // rounding may not reach 1
        precise float total = 0.0;
        for (uint i = 0u; i < LANES; i++) total += sums[i];
        precise float before = 0.0;
        uint picker = LANES; // the segment in which the running sum passes u total
        uint final = 0u;
        for (uint i = 0u; i < LANES; i++) {
            precise float after = before + sums[i];
            if (after > u * total && picker == LANES) picker = i;
            if (picker == LANES) before = after;
            final = max(final, lasts[i]);
        }
        if (picker == LANES && LANE == 0u) words_ids[args.ids_at + tile] = max(final, 1u) - 1u;
        if (picker == LANE) {
            sum = 0.0;
            left = ties;
            uint id = last - 1u;
            for (uint i = begin; i < end; i++) {
                float logit = load_logits(from + i);
                uint order = order_of(logit);
                if (order < threshold || order == threshold && left == 0u) continue;
                if (order == threshold) left--;
                if (order == NEGATIVE_INFINITY) continue;
                sum += order == top ? 1.0 : exp_neg((logit - largest) / temperature);
                precise float running = before + sum;
                if (running > u * total) {
                    id = i;
                    break;
                }
            }
            words_ids[args.ids_at + tile] = id;
        }
        barrier();
    }
}
