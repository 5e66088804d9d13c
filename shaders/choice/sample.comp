// Chooses ids[t] by the settings of row t, see args.h: the lowest index of the largest logit where the temperature is not above 0. Elsewhere
// ids[t] ~ softmax(logits_t / temperature) over what top_k, top_p and min_p keep: the first kept index, in index order, whose running sum of
// exp((logit - max) / temperature) exceeds u times the total, else the last kept index; 0 when nothing is kept. u = word 0 of Philox4x32-10 /
// 2^32. Logits here are those of ids below ids_below, after the repetition penalty.
//
// logits rows x width, part rows blocks 2 (argmax_part), settings rows x SETTING_WORDS, seq rows x 2, seen rows x ceil(width / 32), ids rows. A
// workgroup makes one row. The largest logit comes from the parts of the row where they hold it. To sample, the workgroup finds the order
// (order.glsl) of the last kept logit (kept.glsl), then every lane sums a contiguous segment, and one lane picks; where all logits are kept,
// draw.glsl. Shared memory: 4,232 + 80 LANES bytes at most. Guards: -inf has weight 0, NaN is never kept, exp of numbers <= 0 only; the sums that
// pick are made in the same order as those that add up to the total, but for draw.glsl. The bit of the id before is set when all lanes have
// read the set.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/dart.glsl"
#include "table/sample.glsl"
READS(logits) READS(part) READS(settings) READS(seq) READS_WRITES(seen) READS_WRITES(ids)
#include "order.glsl"

const uint NEGATIVE_INFINITY = 0x007fffffu; // as an order
const uint INFINITE = 0x7f800000u;          // the bits of a number

// Of the row, the same in every lane.
uint row_from, row_width, row_seen;
uint row_past;     // the id before, where it is to be marked, else one that no logit has
float row_penalty; // 0: none
float row_temperature, row_largest;
float row_least; // min_p, 0: none
uint row_top; // the order of the largest logit

float penalised(uint i, float logit)
{
    if (row_penalty == 0.0) return logit;
    bool was = i == row_past || (words_seen[row_seen + i / 32u] >> (i % 32u) & 1u) != 0u;
    if (!was) return logit;
    return logit < 0.0 ? logit * row_penalty : logit / row_penalty;
}
float logit_at(uint i) { return penalised(i, load_logits(row_from + i)); }
float weight_of(float logit, uint order)
{
    if (order == NEGATIVE_INFINITY) return 0.0;
    return order == row_top ? 1.0 : exp_neg((logit - row_largest) / row_temperature);
}
#include "philox.glsl"
#include "kept.glsl"
#include "draw.glsl"

shared uint lasts[gl_WorkGroupSize.x]; // 1 + the last kept index of a segment

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
    if (row_penalty == 0.0 && index < row_width) return top;
    best = 0u; // the parts know no penalty and all ids
    FOR_LOGITS(
        if (order > best) {
            best = order;
            where = i;
        }
    )
    top = workgroup_max_uint(best);
    lowest = ~workgroup_max_uint(best == top ? ~where : 0u);
    index = top == 0u ? 0u : lowest;
    return top;
}

// What the settings of a row say before anything is looked at.
void begin_row(uint tile, uint setting)
{
    row_from = args.logits_at + tile * args.logits_row;
    row_seen = args.seen_at + tile * ((args.width + 31u) / 32u);
    uint below = uint(load_int_settings(setting + 7u)) & ~ROW_ZERO;
    row_width = below == 0u ? args.width : min(below, args.width);
    row_past = has(args.flags, MARKS_IDS) ? words_ids[args.ids_at + tile] : ~0u;
    uint penalty = uint(load_int_settings(setting + 6u));
    bool counts = has(args.flags, HAS_SEEN) && penalty > 0u && penalty < INFINITE && penalty != 0x3f800000u; // above 0, not 1
    row_penalty = counts ? uintBitsToFloat(penalty) : 0.0;
}

// Marks the id before. All lanes must have read the set, and passed a barrier since.
void end_row()
{
    if (LANE == 0u && row_past < args.width) words_seen[row_seen + row_past / 32u] |= 1u << (row_past % 32u);
}

void main()
{
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        if (keeps_id(tile)) continue;
        uint chosen;
        uint setting = args.settings_at + SETTING_WORDS * tile;
        begin_row(tile, setting);
        uint top = largest_of(tile, chosen);
        int bits = load_int_settings(setting);
        if (bits <= 0 || bits > 0x7f800000) { // not above 0, which is NaN, too
            if (LANE == 0u) words_ids[args.ids_at + tile] = chosen;
            end_row();
            continue;
        }
        row_temperature = intBitsToFloat(bits);
        row_top = top;
        row_largest = of_order(top);
        uint top_k = uint(load_int_settings(setting + 1u));
        uvec2 seed = uvec2(load_int_settings(setting + 2u), load_int_settings(setting + 3u));
        uint top_p = uint(load_int_settings(setting + 4u));
        uint min_p = uint(load_int_settings(setting + 5u));
        row_least = min_p > 0u && min_p < INFINITE ? uintBitsToFloat(min_p) : 0.0;
        uint threshold = 1u;
        uint ties = 0u;
        if (top_k != 0u && top_k < row_width) find_threshold(top_k, threshold, ties);
        if (top_p > 0u && top_p < 0x3f800000u && top > NEGATIVE_INFINITY) cut_by_mass(uintBitsToFloat(top_p), threshold, ties);

        uint position = 0u; // after this piece
        if (has(args.flags, HAS_SEQ)) {
            uint at = args.seq_at + 2u * tile;
            position = uint(load_int_seq(at) + load_int_seq(at + 1u));
        }
        uint place = (uint(load_int_settings(setting + 7u)) & ROW_ZERO) != 0u ? 0u : tile;
        uint random = philox(uvec4(position, place, 0u, 0u), seed);
        float u = min(float(random) * (1.0 / 4294967296.0), 0.99999994); // rounding may not reach 1
        if (threshold == 1u && ties == 0u) {
            uint drawn = draw_of_all(u);
            if (LANE == 0u) words_ids[args.ids_at + tile] = drawn;
            barrier();
            end_row();
            continue;
        }

        uint segment = (row_width + LANES - 1u) / LANES;
        uint begin = min(LANE * segment, row_width);
        uint end = min(begin + segment, row_width);
        uint equal = 0u;
        if (ties > 0u) {
            for (uint i = begin; i < end; i++) {
                if (order_of(logit_at(i)) == threshold) equal++;
            }
        }
        lane_words[LANE] = equal;
        barrier();
        uint skipped = 0u; // ties in earlier segments
        for (uint i = 0u; i < LANE; i++) skipped += lane_words[i];
        ties -= min(ties, skipped);

        precise float sum = 0.0;
        uint last = 0u;
        uint left = ties;
        for (uint i = begin; i < end; i++) {
            float logit = logit_at(i);
            uint order = order_of(logit);
            if (order < threshold || order == threshold && left == 0u) continue;
            if (order == threshold) left--;
            float weight = weight_of(logit, order);
            if (weight < row_least) continue;
            last = i + 1u;
            sum += weight;
        }
        sums[LANE] = sum;
        lasts[LANE] = last;
        barrier();

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
                float logit = logit_at(i);
                uint order = order_of(logit);
                if (order < threshold || order == threshold && left == 0u) continue;
                if (order == threshold) left--;
                float weight = weight_of(logit, order);
                if (weight == 0.0 || weight < row_least) continue;
                sum += weight;
                precise float running = before + sum;
                if (running > u * total) {
                    id = i;
                    break;
                }
            }
            words_ids[args.ids_at + tile] = id;
        }
        barrier();
        end_row();
    }
}
