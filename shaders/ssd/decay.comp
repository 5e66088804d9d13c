#version 460
#extension GL_GOOGLE_include_directive : require
// cum_t = sum over k <= t in the chunk of -exp(a_log) step_k as a two-float number, decay = cum at the chunk's end;
// step = clamp(softplus(dt + dt_bias), dt_min, dt_max), or dt as it is.
// dt B L H; a_log, dt_bias H; open_decay B H; cum B H L 3; decay B M+1 H.
// One workgroup takes T0 chunks (neighbouring heads), PARTS SEGMENT tokens at a time: a lane adds up SEGMENT tokens in order,
// the ends of the parts are added up by doubling, always in the same order. T0 divides the local size.
// Shared memory: 12 T0 PARTS SEGMENT + 8 LANES bytes.
// Guards: exp only of negative numbers; the sums are precise, with the rounding error of each addition carried along.
#include "lib/dart.glsl"
#include "table/ssd_decay.glsl"
READS(dt) READS(a_log) READS(dt_bias) READS(seq) READS(open_decay) WRITES(cum) WRITES(decay)
#define PACKS
#include "lib/seq.glsl"
#include "ssd.glsl"

const uint PARTS = LANES / T0; // of a chunk, one lane each
const uint SLAB = PARTS * SEGMENT;
shared float staged[T0 * SLAB * CUM_STRIDE];
shared vec2 ends[LANES];       // of the parts: their sums, then with all before them

void main()
{
    uint slot = LANE % T0;
    uint part = LANE / T0;
    uint items = args.H * args.M * args.B;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        bool valid = tile * T0 + slot < items;
        uint item = min(tile * T0 + slot, items - 1u);
        uint h = item % args.H;
        uint j = item / args.H % args.M;
        uint b = item / args.H / args.M;
        Sequence sequence = sequence_of(b);
        Chunk chunk = chunk_of(sequence.position, sequence.count, args.S, j);
        uint size = valid && chunk.begin < chunk.end ? chunk.end - chunk.begin : 0u;
        float a_log = load_a_log(args.a_log_at + h);
        float a = a_log > 0.0 ? -1.0 / exp_neg(-a_log) : -exp_neg(a_log);
        float bias = has(args.flags, HAS_BIAS) ? load_dt_bias(args.dt_bias_at + h) : 0.0;
        vec2 total = vec2(0.0);
        uint longest = min(args.S, args.L);
        for (uint first = 0u; first < longest; first += SLAB) {
            uint parts = min(PARTS, (longest - first + SEGMENT - 1u) / SEGMENT); // that have tokens
            float steps[SEGMENT];
            [[unroll]] for (uint k = 0u; k < SEGMENT; k++) {
                uint t = first + part * SEGMENT + k;
                steps[k] = t < size ? load_dt(args.dt_at + (sequence.row + chunk.begin + t) * args.dt_row + h) : 0.0;
            }
            vec2 sums[SEGMENT];
            vec2 sum = vec2(0.0);
            [[unroll]] for (uint k = 0u; k < SEGMENT; k++) {
                if (!has(args.flags, IS_STEP)) steps[k] = min(max(softplus(steps[k] + bias), args.dt_min), args.dt_max);
                if (first + part * SEGMENT + k >= size) steps[k] = 0.0;
                sum = add_pairs(sum, vec2(a * steps[k], 0.0));
                sums[k] = sum;
            }
            barrier();
            ends[LANE] = sum;
            for (uint m = T0; m < T0 * parts; m *= 2u) {
                barrier();
                vec2 other = LANE >= m ? ends[LANE - m] : vec2(0.0);
                barrier();
                if (LANE >= m) ends[LANE] = add_pairs(other, ends[LANE]);
            }
            barrier();
            vec2 base = add_pairs(total, part > 0u ? ends[LANE - T0] : vec2(0.0));
            total = add_pairs(total, ends[T0 * (parts - 1u) + slot]);
            [[unroll]] for (uint k = 0u; k < SEGMENT; k++) {
                vec2 value = add_pairs(base, sums[k]);
                uint at = (slot * SLAB + part * SEGMENT + k) * CUM_STRIDE;
                staged[at] = value.x;
                staged[at + 1u] = value.y;
                staged[at + 2u] = steps[k];
            }
            barrier();
            for (uint i = 0u; i < T0; i++) {
                uint one = tile * T0 + i;
                if (one < items) {
                    uint one_h = one % args.H;
                    uint one_j = one / args.H % args.M;
                    uint one_b = one / args.H / args.M;
                    Sequence lies = sequence_of(one_b);
                    Chunk of = chunk_of(lies.position, lies.count, args.S, one_j);
                    uint of_size = of.begin < of.end ? of.end - of.begin : 0u;
                    uint top = min(SLAB, of_size - min(of_size, first)) * CUM_STRIDE;
                    uint to = CUM_STRIDE * (lies.row * args.H + one_h * lies.span + of.begin + first);
                    for (uint k = LANE; k < top; k += LANES) store_cum(to + k, staged[i * SLAB * CUM_STRIDE + k]);
                }
            }
        }
        if (LANE < T0 && valid && (size > 0u || !has(args.flags, HAS_CU))) {
            uint at = (slot_of(sequence, b, args.M, args.S) + b) * args.H + h;
            store_decay(at + (j + 1u) * args.H, total.x);
            if (j == 0u) store_decay(at, has(args.flags, HAS_OPEN) ? load_open_decay(b * args.H + h) : 0.0);
        }
    }
}
