#version 460
#extension GL_GOOGLE_include_directive : require
// loss += the sum of parts[2 t], correct += the sum of parts[2 t + 1], which are whole numbers.
//
// parts rows x 2; loss 1, f32; correct 1, i32. One workgroup: lane l adds up the rows l, l + LANES, .. in order, with what each addition
// lost (Neumaier), then the lanes are added in pairs. AHEAD rows are fetched at once, as one workgroup has nothing else to wait with.
// Shared memory: 8 LANES bytes.
#include "lib/dart.glsl"
#include "table/loss_sum.glsl"
READS_AS(vec2, pairs, parts) READS_WRITES(loss) READS_WRITES_AS(int, whole, correct)
#include "lib/neumaier.glsl"

const uint AHEAD = 16u;
shared int hits[LANES];

void main()
{
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        Neumaier sum = Neumaier(0.0, 0.0);
        int count = 0;
        for (uint first = LANE; first < args.rows; first += AHEAD * LANES) {
            vec2 pairs[AHEAD];
            [[unroll]] for (uint i = 0u; i < AHEAD; i++) pairs[i] = pairs_parts[min(first + i * LANES, args.rows - 1u)];
            [[unroll]] for (uint i = 0u; i < AHEAD; i++) {
                if (first + i * LANES >= args.rows) continue;
                add_to(sum, pairs[i].x);
                count += int(pairs[i].y);
            }
        }
        hits[LANE] = count;
        for (uint half_size = LANES / 2u; half_size > 0u; half_size /= 2u) {
            barrier();
            if (LANE < half_size) hits[LANE] += hits[LANE + half_size];
        }
        float total = workgroup_sum(sum.total + sum.lost);
        if (LANE == 0u) {
            store_loss(args.loss_at, load_loss(args.loss_at) + total);
            whole_correct[args.correct_at] += hits[0];
        }
    }
}
