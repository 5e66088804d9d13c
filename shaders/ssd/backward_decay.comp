#version 460
#extension GL_GOOGLE_include_directive : require
// The gradients of the log-decays of a chunk, of its steps and dt, and its shares of the gradients of a_log, dt_bias and d; see args.h.
// dt, grad_dt B L H; a_log, dt_bias H; cum B H L 3; sums B M H pairs 64; token B L H 4; carry B M H N; of_a_log, of_bias, of_d B M H.
// A workgroup of 64 lanes takes one (b, j, h), a lane every 64th token: forwards for the sums of tokens before one, backwards for those of
// later ones. Shared memory: 12 LANES bytes. Guards: exp of negative numbers only; no sum is the difference of two others.
#include "lib/dart.glsl"
#include "table/ssd_backward_decay.glsl"
READS(dt) READS(a_log) READS(dt_bias) READS(cum) READS(sums) READS_WRITES(token) READS(carry) READS(seq) WRITES(grad_dt)
WRITES(of_a_log) WRITES(of_bias) WRITES(of_d)
#define PACKS
#include "lib/seq.glsl"
#define SSD_CUM
#include "ssd.glsl"
#include "backward.glsl"

const uint SIDE = SCORE_SIDE;
shared float scan[LANES];

// The sum of the values of the lanes up to this one, or from this one on; in a fixed order.
float running_sum(float value, bool backwards)
{
    uint place = backwards ? LANES - 1u - LANE : LANE;
    barrier();
    scan[place] = value;
    for (uint apart = 1u; apart < LANES; apart *= 2u) {
        barrier();
        float other = place >= apart ? scan[place - apart] : 0.0;
        barrier();
        scan[place] += other;
    }
    barrier();
    return scan[place];
}

// The shares of all pairs of tiles in the sum of z over u >= k > s.
float crossing(uint at, uint k, uint tiles)
{
    uint tile = k / SIDE;
    float sum = load_sums(at + (tile * (tile + 1u) / 2u + tile) * 64u + k % SIDE);
    for (uint i = tile; i < tiles; i++) {
        for (uint c = 0u; c <= tile; c++) {
            uint pair = at + (i * (i + 1u) / 2u + c) * 64u;
            if (i == tile && c < tile) sum += load_sums(pair + k % SIDE);
            else if (i > tile && c == tile) sum += load_sums(pair + SIDE + k % SIDE);
            else if (i > tile && c < tile) sum += load_sums(pair);
        }
    }
    return sum;
}

void main()
{
    uint side = (args.C + SIDE - 1u) / SIDE;
    uint pairs = side * (side + 1u) / 2u;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint h = tile % args.H;
        Place at = place_of(tile / args.H);
        if (at.size == 0u && has(args.flags, HAS_CU)) continue;
        uint cum = cum_of(at, h);
        uint own_sums = (at.slot * args.H + h) * pairs * 64u;
        float a_log = load_a_log(args.a_log_at + h);
        float a = a_log > 0.0 ? -1.0 / exp_neg(-a_log) : -exp_neg(a_log);
        float bias = has(args.flags, HAS_BIAS) ? load_dt_bias(args.dt_bias_at + h) : 0.0;
        float carried = 0.0;
        for (uint n = LANE; n < args.N && at.size > 0u; n += LANES) carried += load_carry((at.slot * args.H + h) * args.N + n);
        carried = workgroup_sum(carried);
        uint blocks = (at.size + LANES - 1u) / LANES;
        float before = 0.0;
        for (uint block = 0u; block < blocks; block++) {
            uint k = block * LANES + LANE;
            uint to = ((at.token + min(k, at.size - 1u)) * args.H + h) * 4u + 1u;
            float written = k < at.size ? load_token(to) : 0.0;
            running_sum(written, false);
            if (k < at.size) store_token(to, before + (LANE > 0u ? scan[LANE - 1u] : 0.0)); // of the tokens before
            before += scan[LANES - 1u];
            barrier();
        }
        float later = 0.0;
        vec3 totals = vec3(0.0);
        for (uint block = blocks; block-- > 0u;) {
            uint k = block * LANES + LANE;
            bool there = k < at.size;
            uint from = ((at.token + min(k, at.size - 1u)) * args.H + h) * 4u;
            float sum = running_sum(there ? load_token(from + 3u) : 0.0, true);
            float read_later = later + sum;
            later += scan[LANES - 1u];
            barrier();
            if (there) {
                float step_size = cum_at(cum + k).z;
                float grad_a = crossing(own_sums, k, (at.size + SIDE - 1u) / SIDE) + read_later + load_token(from + 1u) + carried;
                float grad = load_token(from) + a * grad_a;
                if (!has(args.flags, IS_STEP)) {
                    float raw = load_dt(args.dt_at + (at.token + k) * args.dt_row + h) + bias;
                    float soft = softplus(raw);
                    float e = exp_neg(-abs(raw));
                    grad = soft >= args.dt_min && soft <= args.dt_max ? grad * ((raw >= 0.0 ? 1.0 : e) / (1.0 + e)) : 0.0;
                }
                store_grad_dt(args.grad_dt_at + (at.token + k) * args.grad_dt_row + h, grad);
                totals += vec3(a * step_size * grad_a, grad, load_token(from + 2u));
            }
        }
        float sum_a_log = workgroup_sum(totals.x);
        float sum_bias = workgroup_sum(totals.y);
        float sum_d = workgroup_sum(totals.z);
        if (LANE == 0u) {
            uint to = at.slot * args.H + h;
            store_of_a_log(to, sum_a_log);
            store_of_bias(to, sum_bias);
            store_of_d(to, sum_d);
        }
    }
}
