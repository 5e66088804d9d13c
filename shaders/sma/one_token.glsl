// attend(): state-memory attention of one token over the memories of one split, which have 16 bits, N 128 and P 64, with 16-byte
// loads. A team of lanes takes a whole memory
// at a time: 8 lanes share a row n, each with 8 columns p, and each has FETCH rows in flight (8: 96 registers on an H200, 16: 168),
// of few sequences the first of them before it is known whether the token sees the memory: its place is there. Many sequences fill the
// device without that, and would read the room of memories that do not exist yet. With -DAT_MOST_FEW there are few always, and no branch
// stands before the first loads. Rows of a lane stand in fours, so that their factors come in one load; nothing but the logit passes between lanes.
// With -DWHOLE the team is the workgroup, of at most 256 lanes: of one or two memories, which many sequences of a server have, every lane has
// its part, and all of it is on its way at once.
// Shared memory: 1024 + TEAMS (BLOCKS 256 + 8) + 4 LANES bytes.
// Include after lib/seq.glsl and lib/quads.glsl, in a kernel that says how its bindings and results lie: e_row(), begin(head) for what a
// result needs besides, store_end(split, head, top, den), store_sum(split, head, p, sum, top, den) and, in uniform flow, finish(head).
READS_AS(uvec4, quads, dh) READS_AS(vec4, quads, factor)

const uint FEW = 8u; // sequences
const uint N = 128u;
const uint P = 64u;
#ifdef WHOLE
const uint TEAM = LANES;
#else
const uint TEAM = 32u;
#endif
const uint COLUMNS = P / 8u;        // lanes of a row
const uint BLOCKS = TEAM / COLUMNS; // rows at once
const uint ROWS = N / BLOCKS;       // rows of a lane
#define TEAMS (LANES / TEAM)
shared vec4 queries[N / 4u];
shared vec4 reads[N / 4u];
shared vec4 parts[LANES / 4u]; // of the logits
shared vec4 found[(LANES / TEAM) * BLOCKS * P / 4u];
shared vec2 ends[LANES / TEAM]; // top, den

uvec4 fetched[FETCH];
vec4 factors[FETCH / 4u];

// Row 4 (i / 4) BLOCKS + 4 block + i % 4 of a lane, for `from` <= i < from + FETCH.
uint row_of(uint i, uint block) { return i / 4u * 4u * BLOCKS + 4u * block + i % 4u; }
void fetch_row(uint rows, uint from, uint i, uint block, uint column)
{
    fetched[i] = quads_dh[args.dh_at / 8u + (rows + row_of(from + i, block)) * COLUMNS + column];
}
void fetch_factor(uint rows, uint from, uint j, uint block)
{
    factors[j] = quads_factor[(args.factor_at + rows + row_of(from + 4u * j, block)) / 4u];
}

vec2 pair_of(uint word)
{
    if (DTYPE_OF(dh) == TYPE_F16) return unpackHalf2x16(word);
    return vec2(uintBitsToFloat(word << 16), uintBitsToFloat(word & 0xffff0000u));
}

// The sum over a team's lanes, the same in each of them. Call in uniform flow.
float team_sum(float value, uint team)
{
#ifdef WHOLE
    return workgroup_sum(value);
#else
    if (gl_SubgroupSize == TEAM) return subgroupAdd(value);
    barrier();
    parts[LANE / 4u][LANE % 4u] = value;
    barrier();
    vec4 total = parts[team * (TEAM / 4u)];
    [[unroll]] for (uint i = 1u; i < TEAM / 4u; i++) total += parts[team * (TEAM / 4u) + i];
    return (total.x + total.y) + (total.z + total.w);
#endif
}

void attend()
{
    bool subgroup = gl_SubgroupSize == TEAM;
    uint team = subgroup ? gl_SubgroupID : LANE / TEAM;
    uint lane = subgroup ? gl_SubgroupInvocationID : LANE % TEAM;
    uint column = lane % COLUMNS;
    uint block = lane / COLUMNS;
    bool raw = has(args.flags, IS_RAW);
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint split = tile % args.splits;
        uint head = tile / args.splits;
        uint b = head / args.H;
        uint h = head % args.H;
        uint g = h / (args.H / args.G);
        begin(head);
        uint run = (args.count + args.splits - 1u) / args.splits;
        uint rows = ((b * args.capacity + min(split * run + team, args.count - 1u)) * args.H + h) * N;
#ifdef AT_MOST_FEW
        const bool fetches = true;
#else
        bool fetches = true;
        if (args.B > FEW) fetches = args.first + split * run + team < seq_position(b) / args.S && seq_count(b, 1u) != 0u;
#endif
        if (fetches) {
            [[unroll]] for (uint i = 0u; i < FETCH; i++) fetch_row(rows, 0u, i, block, column);
            [[unroll]] for (uint j = 0u; j < FETCH / 4u; j++) fetch_factor(rows, 0u, j, block);
        }

        barrier();
        vec4 squares = vec4(0.0);
        for (uint n = LANE; n < N; n += LANES) {
            float q = load_q(args.q_at + b * args.q_row + g * N + n);
            queries[n / 4u][n % 4u] = q;
            reads[n / 4u][n % 4u] = load_c(args.c_at + b * args.c_row + g * N + n);
            squares.x += q * q;
        }
        float verifier[8];
        [[unroll]] for (uint i = 0u; i < 8u; i++) {
            verifier[i] = load_e(args.e_at + b * e_row() + g * P + column * 8u + i);
            if (team == 0u && block == 0u) squares.y += verifier[i] * verifier[i];
        }
        if (seq_count(b, 1u) == 0u) continue;
        uint seen = seq_position(b) / args.S;
        seen = seen > args.first ? min(seen - args.first, args.count) : 0u;
        uint end = min((split + 1u) * run, seen);
        squares = workgroup_sum4(squares);
        float q_factor = inversesqrt(squares.x / float(N) + args.eps) * inversesqrt(float(N));
        float e_factor = inversesqrt(squares.y / float(P) + args.eps);
        [[unroll]] for (uint i = 0u; i < 8u; i++) verifier[i] *= e_factor;
        float top = LOWEST;
        float den = 0.0;
        float sums[8];
        [[unroll]] for (uint i = 0u; i < 8u; i++) sums[i] = 0.0;
        for (uint first = split * run; first < end; first += TEAMS) {
            bool busy = first + team < end;
            bool more = first + team + TEAMS < end;
            uint next = rows + TEAMS * args.H * N;
            float logit = 0.0;
            float values[8];
            [[unroll]] for (uint i = 0u; i < 8u; i++) values[i] = 0.0;
            if (busy) {
                [[unroll]] for (uint from = 0u; from < ROWS; from += FETCH) {
                    bool within = from + FETCH < ROWS;
                    [[unroll]] for (uint j = 0u; j < FETCH / 4u; j++) {
                        uint four = row_of(from + 4u * j, block) / 4u;
                        vec4 query = queries[four];
                        vec4 read = reads[four];
                        if (raw) query *= factors[j];
                        else read *= factors[j];
                        [[unroll]] for (uint k = 0u; k < 4u; k++) {
                            uvec4 words = fetched[4u * j + k];
                            // The next rows, or the next memory's first ones, are on their way while these go to work.
                            if (within) fetch_row(rows, from + FETCH, 4u * j + k, block, column);
                            else if (more) fetch_row(next, 0u, 4u * j + k, block, column);
                            float key = 0.0;
                            [[unroll]] for (uint i = 0u; i < 4u; i++) {
                                vec2 pair = pair_of(words[i]);
                                key += verifier[2u * i] * pair.x + verifier[2u * i + 1u] * pair.y;
                                values[2u * i] += read[k] * pair.x;
                                values[2u * i + 1u] += read[k] * pair.y;
                            }
                            logit += query[k] * key;
                            if (k == 0u) { // not before the first row: Tiger Lake's compiler has a register too few for both
                                if (within) fetch_factor(rows, from + FETCH, j, block);
                                else if (more) fetch_factor(next, 0u, j, block);
                            }
                        }
                    }
                }
            }
            logit = team_sum(logit, team) * q_factor;
            float new_top = busy ? max(top, logit) : top;
            float keep = exp_neg(top - new_top);
            float gain = busy ? exp_neg(logit - new_top) : 0.0;
            den = den * keep + gain;
            top = new_top;
            [[unroll]] for (uint i = 0u; i < 8u; i++) sums[i] = sums[i] * keep + gain * values[i];
            rows = next;
        }
        if (lane == 0u) ends[team] = vec2(top, den);
        uint place = ((team * BLOCKS + block) * P + column * 8u) / 4u;
        found[place] = vec4(sums[0], sums[1], sums[2], sums[3]);
        found[place + 1u] = vec4(sums[4], sums[5], sums[6], sums[7]);
        barrier();
        float high = ends[0].x;
        for (uint i = 1u; i < TEAMS; i++) high = max(high, ends[i].x);
        float total = 0.0;
#ifdef WHOLE
        const bool totals = true;
#else
        bool totals = LANE == 0u; // with it in every lane Tiger Lake spills six registers instead of one
#endif
        if (totals)
            for (uint i = 0u; i < TEAMS; i++) total += ends[i].y * exp_neg(ends[i].x - high);
        if (LANE == 0u) store_end(split, head, high, total);
        for (uint p = LANE; p < P; p += LANES) {
            float sum = 0.0;
            for (uint i = 0u; i < TEAMS; i++) {
                float part = 0.0;
                for (uint k = 0u; k < BLOCKS; k++) part += found[((i * BLOCKS + k) * P + p) / 4u][p % 4u];
                sum += part * exp_neg(ends[i].x - high);
            }
            store_sum(split, head, p, sum, high, total);
        }
        finish(head);
    }
}
