#version 460
#extension GL_GOOGLE_include_directive : require
// cum_t = sum over k <= t in the chunk of -exp(a_log) step_k as a two-float number, decay = cum at the chunk's end;
// step = clamp(softplus(dt + dt_bias), dt_min, dt_max), or dt as it is.
// dt B L H; a_log, dt_bias H; open_decay B H; cum B H L 3; decay B M+1 H.
// One workgroup takes T0 chunks (neighbouring heads), SLAB tokens at a time: all lanes compute steps, T0 lanes add
// them up in order, all lanes write. T0 divides the local size.
// Shared memory: 12 T0 SLAB bytes.
// Guards: exp only of negative numbers; the sum is precise, with the rounding error of each addition carried along.
#include "lib/dart.glsl"
PUSH(SsdDecayArgs)
READS(0, dt)
READS(1, a_log)
READS(2, dt_bias)
READS(3, seq)
READS(4, open_decay)
WRITES(5, cum)
WRITES(6, decay)
#include "lib/seq.glsl"

const uint SLAB = 64u;
const uint STRIDE = LANES / T0;
shared float steps[SLAB * T0];
shared float highs[SLAB * T0]; // log-decay of a token, then its sum
shared float lows[SLAB * T0];

void main()
{
    uint slot = LANE % T0;
    uint items = args.H * args.M * args.B;
    for (uint tile = gl_WorkGroupID.x; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        bool valid = tile * T0 + slot < items;
        uint item = min(tile * T0 + slot, items - 1u);
        uint h = item % args.H;
        uint j = item / args.H % args.M;
        uint b = item / args.H / args.M;
        Chunk chunk = chunk_of(seq_position(b), seq_count(b, args.L), args.S, j);
        uint size = valid && chunk.begin < chunk.end ? chunk.end - chunk.begin : 0u;
        float a_log = load_a_log(args.a_log_at + h);
        float a = a_log > 0.0 ? -1.0 / exp_neg(-a_log) : -exp_neg(a_log);
        float bias = has(args.flags, HAS_BIAS) ? load_dt_bias(args.dt_bias_at + h) : 0.0;

        float high = 0.0;
        float low = 0.0;
        for (uint first = 0u; first < min(args.S, args.L); first += SLAB) {
            for (uint k = LANE / T0; k < SLAB; k += STRIDE) {
                if (first + k >= size) continue;
                float value = load_dt(args.dt_at + (b * args.L + chunk.begin + first + k) * args.dt_row + h);
                if (!has(args.flags, IS_STEP)) value = min(max(softplus(value + bias), args.dt_min), args.dt_max);
                steps[k * T0 + slot] = value;
                highs[k * T0 + slot] = a * value;
            }
            barrier();
            if (LANE < T0) {
                uint top = min(SLAB, size - min(size, first));
                for (uint k = 0u; k < top; k++) {
                    precise float term = highs[k * T0 + slot];
                    precise float sum = high + term;
                    precise float part = sum - high;
                    precise float error = (high - (sum - part)) + (term - part);
                    precise float rest = low + error;
                    precise float rounded = sum + rest;
                    precise float lost = rest - (rounded - sum);
                    high = rounded;
                    low = lost;
                    highs[k * T0 + slot] = high;
                    lows[k * T0 + slot] = low;
                }
            }
            barrier();
            for (uint k = LANE / T0; k < SLAB; k += STRIDE) {
                if (first + k >= size) continue;
                uint to = CUM_STRIDE * ((b * args.H + h) * args.L + chunk.begin + first + k);
                store_cum(to, highs[k * T0 + slot]);
                store_cum(to + 1u, lows[k * T0 + slot]);
                store_cum(to + 2u, steps[k * T0 + slot]);
            }
            barrier();
        }
        if (LANE < T0 && valid) {
            store_decay((b * (args.M + 1u) + 1u + j) * args.H + h, high);
            if (j == 0u) {
                float open = has(args.flags, HAS_OPEN) ? load_open_decay(b * args.H + h) : 0.0;
                store_decay(b * (args.M + 1u) * args.H + h, open);
            }
        }
    }
}
