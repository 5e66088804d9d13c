#version 460
#extension GL_GOOGLE_include_directive : require
// With n = x i, i = 1 / sqrt(mean(x^2) + eps), v = up_y weight: grad_x = i (v - n mean(v n)) = i v - x i^3 mean(v x), and
// partial[tile] = the sum of up_y n over the tile's rows; rows s = rows_t of x and grad_x, as in norm; from, copy: args.h.
//
// x, grad_x, from any x width; weight width; rows, from_rows rows; up_y, copy rows x width; partial tiles x width, f32. A workgroup takes T0
// rows: TEAM lanes add up a row, then a lane takes a column of all rows, so that reads run along rows both times. grad_x or copy may be
// up_y.
// Shared memory: 8 T0 (TEAM + 2) + 4 T0 bytes. Guards: eps > 0; sums in a fixed order.
#include "lib/dart.glsl"
#include "table/norm_backward.glsl"
READS(x) READS(weight) READS(rows) READS(up_y) READS_WRITES(grad_x) READS(from) READS(from_rows)
WRITES(copy) WRITES(partial)

const uint TEAM = 16u;
shared vec2 parts[T0 * (TEAM + 1u)];
shared vec2 factors[T0]; // i, i^3 mean(v x)
shared int sources[T0];  // the row of x; -1: none

void main()
{
    uint member = LANE % TEAM;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint first = tile * T0;
        uint count = min(T0, args.rows - first);
        barrier();
        for (uint row = LANE; row < count; row += LANES)
            sources[row] = has(args.flags, HAS_ROWS) ? load_int_rows(args.rows_at + first + row) : int(first + row);
        barrier();
        for (uint row = LANE / TEAM; row < count; row += LANES / TEAM) {
            vec2 sum = vec2(0.0);
            if (sources[row] >= 0) {
                uint x_at = args.x_at + uint(sources[row]) * args.x_row;
                uint up_at = args.up_y_at + (first + row) * args.up_y_row;
                for (uint i = member; i < args.width; i += TEAM) {
                    float x = load_x(x_at + i);
                    sum += vec2(x, load_up_y(up_at + i) * load_weight(args.weight_at + i)) * x;
                }
            }
            parts[row * (TEAM + 1u) + member] = sum;
        }
        barrier();
        for (uint row = LANE; row < count; row += LANES) {
            vec2 sum = vec2(0.0);
            for (uint k = 0u; k < TEAM; k++) sum += parts[row * (TEAM + 1u) + k];
            sum /= float(args.width);
            float inverse = 1.0 / sqrt(sum.x + args.eps);
            factors[row] = vec2(inverse, inverse * inverse * inverse * sum.y);
        }
        barrier();
        for (uint i = LANE; i < args.width; i += LANES) {
            float weight = load_weight(args.weight_at + i);
            float sum = 0.0;
            for (uint row = 0u; row < count; row++) {
                if (sources[row] < 0) continue;
                float x = load_x(args.x_at + uint(sources[row]) * args.x_row + i);
                float up = load_up_y(args.up_y_at + (first + row) * args.up_y_row + i);
                uint to = args.grad_x_at + uint(sources[row]) * args.grad_x_row + i;
                float grad = factors[row].x * up * weight - factors[row].y * x;
                sum += up * x * factors[row].x;
                if (has(args.flags, IS_ADD)) grad += load_grad_x(to);
                int of = has(args.flags, HAS_FROM) ? load_int_from_rows(args.from_rows_at + first + row) : -1;
                if (of >= 0) grad += load_from(args.from_at + uint(of) * args.from_row + i);
                store_grad_x(to, grad);
                if (has(args.flags, WRITES_COPY)) store_copy(args.copy_at + (first + row) * args.copy_row + i, grad);
            }
            store_partial(tile * args.width + i, sum);
        }
    }
}
