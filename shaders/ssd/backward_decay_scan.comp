#version 460
#extension GL_GOOGLE_include_directive : require
// ssd_backward_decay for chunks of at most 256 tokens: a workgroup takes a (b, j, h), a lane a token. Sums over earlier and later tokens are those
// of a subgroup's lanes and of whole subgroups; those of later ones go over the tokens in reverse.
// dt, grad_dt B L H; a_log, dt_bias H; cum B H L 3; sums B M H pairs 64; token B L H 4; carry B M H N; of_a_log, of_bias, of_d B M H.
// LANES is 256. Shared memory: 2,304 bytes. Guards: exp of negative numbers only; no sum is the difference of two others.
#include "lib/dart.glsl"
#include "table/ssd_backward_decay.glsl"
READS(dt) READS(a_log) READS(dt_bias) READS(cum) READS(sums) READS(token) READS_AS(vec4, quads, token) READS(carry) READS(seq) WRITES(grad_dt)
WRITES(of_a_log) WRITES(of_bias) WRITES(of_d)
#define PACKS
#include "lib/seq.glsl"
#define SSD_CUM
#include "ssd.glsl"
#include "backward.glsl"

const uint SIDE = SCORE_SIDE;
const uint TILES = LANES / SIDE; // of the sums of z
shared float wholes[TILES * TILES];
shared float later[LANES];
shared vec4 parts[LANES / 4u]; // of a subgroup: what its tokens wrote, read, what the state carries

void main()
{
    uint side = (args.C + SIDE - 1u) / SIDE;
    uint pairs = side * (side + 1u) / 2u;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint h = tile % args.H;
        Place at = place_of(tile / args.H);
        if (at.size == 0u && has(args.flags, HAS_CU)) continue;
        uint own = at.slot * args.H + h;
        uint k = gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
        uint turned = LANES - 1u - k;
        bool there = k < at.size;
        float a_log = load_a_log(args.a_log_at + h);
        float a = a_log > 0.0 ? -1.0 / exp_neg(-a_log) : -exp_neg(a_log);
        float raw = 0.0;
        float step_size = 0.0;
        vec4 of = vec4(0.0);
        float read = 0.0; // of token `turned`
        if (there) {
            of = quads_token[(at.token + k) * args.H + h];
            raw = load_dt(args.dt_at + (at.token + k) * args.dt_row + h) + (has(args.flags, HAS_BIAS) ? load_dt_bias(args.dt_bias_at + h) : 0.0);
            step_size = cum_at(cum_of(at, h) + k).z;
        }
        if (turned < at.size) read = load_token(((at.token + turned) * args.H + h) * 4u + 3u);
        float carried = 0.0;
        for (uint n = k; n < args.N && at.size > 0u; n += LANES) carried += load_carry(own * args.N + n);
        // The shares of pairs of tiles in the sum of z over u >= k > s: of later rows, of earlier columns, and of both.
        uint tiles = (at.size + SIDE - 1u) / SIDE;
        uint sums = own * pairs * 64u;
        uint own_tile = k / SIDE;
        float crossing = 0.0;
        if (own_tile < tiles) {
            uint rows = sums + own_tile * (own_tile + 1u) / 2u * 64u + k % SIDE;
            for (uint c = 0u; c <= own_tile; c++) crossing += load_sums(rows + c * 64u);
            for (uint i = own_tile + 1u; i < tiles; i++) crossing += load_sums(sums + (i * (i + 1u) / 2u + own_tile) * 64u + SIDE + k % SIDE);
        }
        barrier();
        for (uint e = k; e < TILES * TILES; e += LANES) {
            uint i = e / TILES;
            uint c = e % TILES;
            wholes[e] = c < i && i < tiles ? load_sums(sums + (i * (i + 1u) / 2u + c) * 64u) : 0.0;
        }
        float before = subgroupExclusiveAdd(of.y);
        float from = subgroupInclusiveAdd(read);
        vec4 part = vec4(subgroupAdd(of.y), subgroupAdd(read), subgroupAdd(carried), 0.0);
        if (subgroupElect()) parts[gl_SubgroupID] = part;
        barrier();
        float outside = 0.0;
        for (uint s = 0u; s < gl_NumSubgroups; s++) {
            outside += parts[s].z;
            if (s < gl_SubgroupID) {
                before += parts[s].x;
                from += parts[s].y;
            }
        }
        later[turned] = from;
        for (uint i = own_tile + 1u; i < tiles; i++) {
            for (uint c = 0u; c < own_tile; c++) crossing += wholes[i * TILES + c];
        }
        barrier();
        float grad_a = crossing + (before + later[k]) + outside;
        float grad = of.x + a * grad_a;
        if (!has(args.flags, IS_STEP)) {
            float soft = softplus(raw);
            float e = exp_neg(-abs(raw));
            grad = soft >= args.dt_min && soft <= args.dt_max ? grad * ((raw >= 0.0 ? 1.0 : e) / (1.0 + e)) : 0.0;
        }
        if (there) store_grad_dt(args.grad_dt_at + (at.token + k) * args.grad_dt_row + h, grad);
        part = vec4(subgroupAdd(there ? a * step_size * grad_a : 0.0), subgroupAdd(there ? grad : 0.0), subgroupAdd(of.z), 0.0);
        if (subgroupElect()) parts[gl_SubgroupID] = part;
        barrier();
        if (k == 0u) {
            vec4 sum = vec4(0.0);
            for (uint s = 0u; s < gl_NumSubgroups; s++) sum += parts[s];
            store_of_a_log(own, sum.x);
            store_of_bias(own, sum.y);
            store_of_d(own, sum.z);
        }
    }
}
