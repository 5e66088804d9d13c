// sma for one token over memories of 16 bits, N 128 and P 64: what sma_step.comp says, with 16-byte loads.
// A team of lanes takes a whole memory at a time: 8 lanes share a row n, each with 8 columns p, and each has FETCH rows in
// flight. The key and value weights of the rows lie in shared memory; the logit is added up there.
// Shared memory: 1024 + TEAMS (1280 + 1024) bytes.
// Guards: as in sma_step.comp; memories that the token does not see are not read.
#include "dart.glsl"
#include "log.glsl"
PUSH(SmaStepArgs)
READS(0, qn)
READS(1, en)
READS(2, c)
layout(std430, binding = 3) readonly buffer Block_dh { uvec4 quads_dh[]; };
READS(4, factor)
READS(5, seq)
WRITES(6, partial)
#include "seq.glsl"

const uint N = 128u;
const uint P = 64u;
const uint TEAM = 32u;
const uint COLUMNS = P / 8u;      // lanes of a row
const uint BLOCKS = TEAM / COLUMNS; // rows at once
const uint ROWS = N / BLOCKS;     // rows of a lane
const uint FETCH = 8u;
#define TEAMS (LANES / TEAM)
shared vec2 queries[N];                       // qn, c
shared vec2 weights[(LANES / TEAM) * N];      // of the memory that a team looks at: key, value
shared vec4 parts[LANES / 4u];                // of the logits
shared float found[(LANES / TEAM) * BLOCKS * P];
shared vec2 ends[LANES / TEAM];               // top, den

vec2 pair_of(uint word)
{
    return DTYPE_OF(3) == TYPE_F16 ? unpackHalf2x16(word) : vec2(uintBitsToFloat(word << 16), uintBitsToFloat(word & 0xffff0000u));
}

void main()
{
    uint team = LANE / TEAM;
    uint lane = LANE % TEAM;
    uint column = lane % COLUMNS;
    uint block = lane / COLUMNS;
    bool raw = has(args.flags, IS_RAW);
    for (uint tile = gl_WorkGroupID.x; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint split = tile % args.splits;
        uint head = tile / args.splits;
        uint b = head / args.H;
        uint h = head % args.H;
        uint g = h / (args.H / args.G);
        if (seq_count(b, 1u) == 0u) continue;
        uint seen = seq_position(b) / args.S;
        seen = seen > args.first ? min(seen - args.first, args.count) : 0u;
        uint run = (args.count + args.splits - 1u) / args.splits;
        uint end = min((split + 1u) * run, seen);

        barrier();
        for (uint n = LANE; n < N; n += LANES)
            queries[n] = vec2(load_qn((b * args.G + g) * N + n), load_c(args.c_at + b * args.c_row + g * N + n));
        float verifier[8];
        [[unroll]] for (uint i = 0u; i < 8u; i++) verifier[i] = load_en((b * args.G + g) * P + column * 8u + i);
        float top = LOWEST;
        float den = 0.0;
        float sums[8];
        [[unroll]] for (uint i = 0u; i < 8u; i++) sums[i] = 0.0;
        uint rows = ((b * args.capacity + split * run + team) * args.H + h) * N;
        uvec4 fetched[FETCH];
        if (split * run + team < end) {
            [[unroll]] for (uint i = 0u; i < FETCH; i++) fetched[i] = quads_dh[(args.dh_at + rows * P) / 8u + lane + i * TEAM];
        }
        for (uint first = split * run; first < end; first += TEAMS) {
            uint m = first + team;
            bool busy = m < end;
            bool more = m + TEAMS < end;
            uint next = rows + TEAMS * args.H * N;
            uint at = (args.dh_at + rows * P) / 8u + lane;
            barrier();
            for (uint n = lane; n < N; n += TEAM) {
                float factor = busy ? load_factor(args.factor_at + rows + n) : 0.0;
                vec2 query = queries[n];
                weights[team * N + n] = raw ? vec2(query.x * factor, query.y) : vec2(query.x, query.y * factor);
            }
            barrier();
            float logit = 0.0;
            float values[8];
            [[unroll]] for (uint i = 0u; i < 8u; i++) values[i] = 0.0;
            if (busy) {
                for (uint from = 0u; from < ROWS; from += FETCH) {
                    [[unroll]] for (uint i = 0u; i < FETCH; i++) {
                        vec2 weight = weights[team * N + (from + i) * BLOCKS + block];
                        float key = 0.0;
                        [[unroll]] for (uint j = 0u; j < 4u; j++) {
                            vec2 pair = pair_of(fetched[i][j]);
                            key += verifier[2u * j] * pair.x + verifier[2u * j + 1u] * pair.y;
                            values[2u * j] += weight.y * pair.x;
                            values[2u * j + 1u] += weight.y * pair.y;
                        }
                        logit += weight.x * key;
                        // The last rows go to work while the next memory's first ones are on their way.
                        if (from + FETCH < ROWS) fetched[i] = quads_dh[at + (from + FETCH + i) * TEAM];
                        else if (more) fetched[i] = quads_dh[(args.dh_at + next * P) / 8u + lane + i * TEAM];
                    }
                }
            }
            parts[LANE / 4u][LANE % 4u] = logit;
            barrier();
            vec4 total = parts[team * (TEAM / 4u)];
            [[unroll]] for (uint i = 1u; i < TEAM / 4u; i++) total += parts[team * (TEAM / 4u) + i];
            logit = (total.x + total.y) + (total.z + total.w);
            float new_top = busy ? max(top, logit) : top;
            float keep = exp_neg(top - new_top);
            float gain = busy ? exp_neg(logit - new_top) : 0.0;
            den = den * keep + gain;
            top = new_top;
            [[unroll]] for (uint i = 0u; i < 8u; i++) sums[i] = sums[i] * keep + gain * values[i];
            rows = next;
        }
        if (lane == 0u) ends[team] = vec2(top, den);
        [[unroll]] for (uint i = 0u; i < 8u; i++) found[(team * BLOCKS + block) * P + column * 8u + i] = sums[i];
        barrier();
        float high = ends[0].x;
        for (uint i = 1u; i < TEAMS; i++) high = max(high, ends[i].x);
        uint to = tile * (P + 2u);
        if (LANE == 0u) {
            float total = 0.0;
            for (uint i = 0u; i < TEAMS; i++) total += ends[i].y * exp_neg(ends[i].x - high);
            store_partial(to, high);
            store_partial(to + 1u, total);
        }
        for (uint p = LANE; p < P; p += LANES) {
            float sum = 0.0;
            for (uint i = 0u; i < TEAMS; i++) {
                float part = 0.0;
                for (uint k = 0u; k < BLOCKS; k++) part += found[(i * BLOCKS + k) * P + p];
                sum += part * exp_neg(ends[i].x - high);
            }
            store_partial(to + 2u + p, sum);
        }
    }
}
