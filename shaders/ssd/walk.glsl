// What the kernels share that walk over the chunks of a sequence: a workgroup of 128 lanes takes a group of one or two heads, 64 lanes a head
// (a team). Chunks have at most SIDE tokens, N is at most SIDE, P at most WIDTH; all that lies past them counts as 0. Include after the READS of x,
// dt, b, a_log and dt_bias, and, with TILES, lib/eight.glsl and READS_EIGHT(x) READS_EIGHT(b).
//
// In shared memory a panel holds WIDTH columns for each token or row n of both heads, with PITCH quads from one to the next; a square holds SIDE
// columns, with LINE quads. Lanes beside one another then read other banks.

const uint SIDE = 16u;
const uint WIDTH = 64u;
const uint TEAMS = 2u;
const uint TEAM = LANES / TEAMS;
const uint PITCH = 17u;
const uint LINE = 5u;
const uint PANEL = TEAMS * SIDE * PITCH;
const uint SQUARE = SIDE * LINE;

#define OWN_TEAM (LANE / TEAM)
#define OWN (LANE % TEAM) // the lane within its team
// A lane's part of N x P, or of tokens x P: four rows and the columns 4 OWN_QUAD to 4 OWN_QUAD + 3. Rows n are 4 OWN_ROW + a; tokens OWN_ROW + 4 a.
#define OWN_ROW (OWN / 8u % 4u)
#define OWN_QUAD (OWN % 8u + OWN / 32u * 8u)

shared vec2 cums[TEAMS * SIDE]; // of the tokens of both heads
shared float steps[TEAMS * SIDE];
shared float keeps[TEAMS * SIDE];

// to = x or up_y of `size` tokens of the heads h_first and, where `both`, h_first + 1, from a row on.
#ifdef TILES
#define STAGE_PANEL(name, to, row, h_first, both, size) \
    [[unroll]] for (uint e = LANE; e < TEAMS * SIDE * WIDTH / 8u; e += LANES) { \
        uint p = e % 8u * 8u; \
        uint head = e / 8u % TEAMS; \
        uint t = e / 8u / TEAMS; \
        Eight value = Eight(vec4(0.0), vec4(0.0)); \
        if (t < size && p < args.P && (head == 0u || both)) \
            value = load_eight_##name(args.name##_at + (row + t) * args.name##_row + (h_first + head) * args.P + p); \
        uint at = (head * SIDE + t) * PITCH + p / 4u; \
        to[at] = value.low; \
        to[at + 1u] = value.high; \
    }
#define STAGE_SQUARE(name, to, row, g, size) \
    if (LANE < SIDE * SIDE / 8u) { \
        uint t = LANE / 2u; \
        Eight value = Eight(vec4(0.0), vec4(0.0)); \
        if (t < size) value = load_eight_##name(args.name##_at + (row + t) * args.name##_row + g * args.N + LANE % 2u * 8u); \
        to[t * LINE + LANE % 2u * 2u] = value.low; \
        to[t * LINE + LANE % 2u * 2u + 1u] = value.high; \
    }
#else
#define STAGE_PANEL(name, to, row, h_first, both, size) \
    for (uint e = LANE; e < TEAMS * SIDE * WIDTH; e += LANES) { \
        uint p = e % WIDTH; \
        uint head = e / WIDTH % TEAMS; \
        uint t = e / WIDTH / TEAMS; \
        bool there = t < size && p < args.P && (head == 0u || both); \
        to[(head * SIDE + t) * PITCH + p / 4u][p % 4u] = \
            there ? load_##name(args.name##_at + (row + t) * args.name##_row + (h_first + head) * args.P + p) : 0.0; \
    }
#define STAGE_SQUARE(name, to, row, g, size) \
    for (uint e = LANE; e < SIDE * SIDE; e += LANES) { \
        uint t = e / SIDE; \
        uint n = e % SIDE; \
        to[t * LINE + n / 4u][n % 4u] = \
            t < size && n < args.N ? load_##name(args.name##_at + (row + t) * args.name##_row + g * args.N + n) : 0.0; \
    }
#endif

#include "head.glsl"

// The lane of token OWN < SIDE: cums and keeps from all steps of the head, which have passed a barrier.
void put_cums(Head head)
{
    vec2 sum = vec2(0.0);
    vec2 own = vec2(0.0);
    for (uint t = 0u; t < SIDE; t++) {
        sum = add_pairs(sum, vec2(head.a * steps[OWN_TEAM * SIDE + t], 0.0));
        if (t <= OWN) own = sum;
    }
    cums[OWN_TEAM * SIDE + OWN] = own;
    keeps[OWN_TEAM * SIDE + OWN] = exp_neg(cum_between(own, sum));
}
// The log-decay of the whole chunk.
float total_of(uint head) { return cums[head * SIDE + SIDE - 1u].x; }

// sum[a] += sum over the tokens t of weights_t lines_t[n] columns_t, rows n = 4 OWN_ROW + a of N x P.
#define ADD_OUTER(sum, lines, weights, columns, size) \
    for (uint t = 0u; t < size; t++) { \
        vec4 along = lines[t * LINE + OWN_ROW] * weights[OWN_TEAM * SIDE + t]; \
        vec4 of = columns[(OWN_TEAM * SIDE + t) * PITCH + OWN_QUAD]; \
        [[unroll]] for (uint a = 0u; a < 4u; a++) sum[a] += along[a] * of; \
    }
// sum[a] += sum over k < count of lines_s[k] columns_k, tokens s = OWN_ROW + 4 a; lines begins at quad `from`, count is rounded up to quads.
#define ADD_INNER(sum, lines, from, columns, count) \
    for (uint k = 0u; k < count; k += 4u) { \
        vec4 line[4]; \
        [[unroll]] for (uint a = 0u; a < 4u; a++) line[a] = lines[(from) + (OWN_ROW + 4u * a) * LINE + k / 4u]; \
        [[unroll]] for (uint c = 0u; c < 4u; c++) { \
            vec4 of = columns[(OWN_TEAM * SIDE + k + c) * PITCH + OWN_QUAD]; \
            [[unroll]] for (uint a = 0u; a < 4u; a++) sum[a] += line[a][c] * of; \
        } \
    }

// Four columns of matrix row `row` (of P) from column p on, of `state` f32; past N and P they are 0 and not written. Unrolled, here and below: NVK
// keeps what a loop indexes in local memory.
#ifdef TILES
#define READS_STATE(name) \
    vec4 load_state_##name(uint at, uint row, uint p) { return p < args.P ? quads_##name[(at + row * args.P + p) / 4u] : vec4(0.0); }
#define WRITES_STATE(name) \
    void store_state_##name(uint at, uint row, uint p, vec4 value) { if (p < args.P) quads_##name[(at + row * args.P + p) / 4u] = value; }
#else
#define READS_STATE(name) \
    vec4 load_state_##name(uint at, uint row, uint p) \
    { \
        vec4 value = vec4(0.0); \
        [[unroll]] for (uint i = 0u; i < 4u; i++) \
            if (p + i < args.P) value[i] = load_##name(at + row * args.P + p + i); \
        return value; \
    }
#define WRITES_STATE(name) \
    void store_state_##name(uint at, uint row, uint p, vec4 value) \
    { \
        [[unroll]] for (uint i = 0u; i < 4u; i++) \
            if (p + i < args.P) store_##name(at + row * args.P + p + i, value[i]); \
    }
#endif

// Four neighbouring elements of a token, of which `room` are there.
#ifdef TILES
#define WRITES_FOUR(name) \
    WRITES_AS(uvec2, pairs, name) \
    WRITES_AS(uvec4, quads, name) \
    void store_four_##name(uint at, uint room, vec4 value) \
    { \
        if (room == 0u) return; \
        if (is_16bit(DTYPE_OF(name))) pairs_##name[at / 4u] = as_16bit(DTYPE_OF(name), value); \
        else quads_##name[at / 4u] = floatBitsToUint(value); \
    }
#else
#define WRITES_FOUR(name) \
    WRITES(name) \
    void store_four_##name(uint at, uint room, vec4 value) \
    { \
        [[unroll]] for (uint i = 0u; i < 4u; i++) \
            if (i < room) store_##name(at + i, value[i]); \
    }
#endif
