#version 460
#extension GL_GOOGLE_include_directive : require
// loss += the sum of parts[2 t], correct += the sum of parts[2 t + 1].
//
// parts rows x 2; loss 1, f32; correct 1, i32. One workgroup: lane l adds up the rows l, l + SUM_LANES, .. in order, with what each addition
// lost (Neumaier), then the lanes are added in pairs. Shared memory: 4 SUM_LANES + 4 LANES bytes.
#include "lib/dart.glsl"
#include "table/loss_sum.glsl"
READS(parts) READS_WRITES(loss) READS_WRITES_AS(int, whole, correct)
#include "lib/neumaier.glsl"

shared int hits[SUM_LANES];

void main()
{
    for (uint tile = gl_WorkGroupID.x; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        Neumaier sum = Neumaier(0.0, 0.0);
        int count = 0;
        for (uint t = LANE; t < args.rows; t += LANES) {
            add_to(sum, load_parts(2u * t));
            count += load_parts(2u * t + 1u) > 0.0 ? 1 : 0;
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
