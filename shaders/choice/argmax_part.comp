// The largest of T0 consecutive logits of a row as an order-preserving integer, and its lowest index; NaN never wins.
//
// logits rows x width; part rows blocks 2. Shared memory: 4 LANES bytes.
// Guards: logits are compared as order-preserving integers, so that infinities and NaN need no care of the device.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/dart.glsl"
#include "table/argmax_part.glsl"
READS(logits) WRITES(part)
#include "order.glsl"

const uint AHEAD = 8u;

void main()
{
    uint blocks = (args.width + T0 - 1u) / T0;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint from = args.logits_at + tile / blocks * args.logits_row;
        uint begin = tile % blocks * T0;
        uint best = 0u;
        uint where = 0u;
        uint end = min(begin + T0, args.width);
        for (uint first = begin + LANE; first < end; first += AHEAD * LANES) {
            float values[AHEAD]; // asked for together, past the end the last one again
            [[unroll]] for (uint k = 0u; k < AHEAD; k++) values[k] = load_logits(from + min(first + k * LANES, end - 1u));
            [[unroll]] for (uint k = 0u; k < AHEAD; k++) {
                uint order = order_of(values[k]);
                if (order > best) {
                    best = order;
                    where = min(first + k * LANES, end - 1u);
                }
            }
        }
        uint top = workgroup_max_uint(best);
        // The lowest index is the largest complement.
        uint lowest = ~workgroup_max_uint(best == top ? ~where : 0u);
        if (LANE == 0u) {
            words_part[2u * tile] = top;
            words_part[2u * tile + 1u] = lowest;
        }
    }
}
