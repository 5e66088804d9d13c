#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_shuffle : require
// The matrix rows of ssd_state multiply nothing: they read and write rows of 16 bits, P / OWN lanes of a subgroup to a row n,
// OWN columns a lane. A workgroup walks T0 rows of one (b, h). A step of the walk is short, so memories are read AHEAD chunks
// in advance, each into the registers of the one that was just taken up, and where entering states are normalised, the norms of
// AHEAD of them are summed side by side. Chunks past the last are walked as well, with a memory of 0 that nothing has decayed
// before, so that no step hangs on a condition. Shared memory: none. A subgroup holds at least one row and has at least AHEAD lanes.
#include "lib/dart.glsl"
#include "table/ssd_state.glsl"
READS(decay) READS(memory) READS(scale) READS(seq) READS(tail) READS_WRITES(h) READS_WRITES(open) WRITES(open_decay)
WRITES(hin) WRITES(hin_scale)
#include "lib/seq.glsl"
#define SSD_MEMORY
#include "ssd.glsl"

#include "lib/matrix.glsl"
#include "matrix.glsl"
READS_AS(uvec2, pairs, memory) WRITES_AS(uvec2, pairs, hin)

const uint AHEAD = 8u;
const uint OWN = 4u * QUADS;

void main()
{
    const uint TEAM = SIZE_P / OWN;
    uint blocks = (SIZE_N + T0 - 1u) / T0;
    uint pitch = args.H * SIZE_N; // rows from one chunk to the next
    uint own_chunk = gl_SubgroupInvocationID % AHEAD;
    bool has_open = has(args.flags, HAS_OPEN);
    bool normalised = has(args.flags, HAS_HIN_SCALE);
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint head = tile / blocks; // b H + h
        uint b = head / args.H;
        uint h = head % args.H;
        uint count = seq_count(b, args.L);
        if (count == 0u) continue;
        uint position = seq_position(b);
        uint offset = position % args.S;
        uint used = min((offset + count + args.S - 1u) / args.S, args.M);
        bool closes = used * args.S - offset <= count;     // the last chunk
        uint walked = has_open && !closes ? used - 1u : used; // chunks that the state takes up
        uint decays = b * (args.M + 1u) * args.H + h;
        float before = load_decay(decays);
        for (uint r = LANE / TEAM; r < T0; r += LANES / TEAM) {
            uint n = tile % blocks * T0 + r;
            uint p = LANE % TEAM * OWN;
            bool valid = n < SIZE_N;
            uint line = min(n, SIZE_N - 1u);
            uint own = (head * SIZE_N + line) * SIZE_P + p;
            uint memory_first = memory_row(position, b, 0u, h) + line;
            uint hin_first = (b * args.M * args.H + h) * SIZE_N + line;

            uvec2 words[AHEAD * QUADS];
            float sizes[AHEAD]; // their rows' scales
#define READ(i, j) \
            { \
                uint row = memory_first + (j) * pitch; \
                bool is = (j) < walked; \
                sizes[i] = is ? load_scale(args.scale_at + row) : 0.0; \
                [[unroll]] for (uint q = 0u; q < QUADS; q++) \
                    words[(i) * QUADS + q] = is ? pairs_memory[(args.memory_at + row * SIZE_P + p) / 4u + q] : uvec2(0u); \
            }
            // The log-decay of the group's chunk that has this lane's number.
#define DECAY(first) \
            ((first) + own_chunk < walked ? load_decay(decays + ((first) + own_chunk + 1u) * args.H) : 0.0)
            [[unroll]] for (uint i = 0u; i < AHEAD; i++) READ(i, i)
            float next = DECAY(0u);
            vec4 state[QUADS];
            vec4 open[QUADS];
            [[unroll]] for (uint q = 0u; q < QUADS; q++) {
                state[q] = vec4(0.0);
                open[q] = vec4(0.0);
                if (has(args.flags, HAS_H)) {
                    [[unroll]] for (uint e = 0u; e < 4u; e++) state[q][e] = load_h(own + 4u * q + e);
                    state[q] *= exp_neg(before);
                }
                if (has_open) {
                    [[unroll]] for (uint e = 0u; e < 4u; e++) open[q][e] = load_open(own + 4u * q + e);
                }
            }
            for (uint first = 0u; first < used; first += AHEAD) {
                float keeps = exp_neg(next);
                next = DECAY(first + AHEAD);
                vec4 enter[AHEAD * QUADS];
                float squares[AHEAD];
                [[unroll]] for (uint i = 0u; i < AHEAD; i++) {
                    float keep = subgroupShuffle(keeps, i);
                    squares[i] = 0.0;
                    [[unroll]] for (uint q = 0u; q < QUADS; q++) {
                        uvec2 word = words[i * QUADS + q];
                        enter[i * QUADS + q] = state[q];
                        if (i == 0u && first == 0u) enter[q] += open[q];
                        if (normalised) squares[i] += dot(enter[i * QUADS + q], enter[i * QUADS + q]);
                        state[q] = keep * state[q] + sizes[i] * vec4(unpack_elements(word.x), unpack_elements(word.y));
                    }
                    READ(i, first + AHEAD + i)
                }
                if (normalised) {
                    [[unroll]] for (uint lanes = 1u; lanes < HEAD / OWN; lanes *= 2u) {
                        if (lanes < TEAM) {
                            [[unroll]] for (uint i = 0u; i < AHEAD; i++) squares[i] += subgroupShuffleXor(squares[i], lanes);
                        }
                    }
                    [[unroll]] for (uint i = 0u; i < AHEAD; i++) {
                        float mean = squares[i] / float(SIZE_P) + args.eps;
                        float factor = inversesqrt(mean);
                        [[unroll]] for (uint q = 0u; q < QUADS; q++) enter[i * QUADS + q] *= factor;
                        if (valid && first + i < used && p == 0u)
                            store_hin_scale(args.hin_scale_at + hin_first + (first + i) * pitch, mean * factor);
                    }
                }
                [[unroll]] for (uint i = 0u; i < AHEAD; i++) {
                    if (valid && first + i < used) {
                        uint at = (args.hin_at + (hin_first + (first + i) * pitch) * SIZE_P + p) / 4u;
                        [[unroll]] for (uint q = 0u; q < QUADS; q++) {
                            vec4 value = enter[i * QUADS + q];
                            pairs_hin[at + q] = uvec2(pack_elements(value.x, value.y), pack_elements(value.z, value.w));
                        }
                    }
                }
            }
            if (valid) {
                [[unroll]] for (uint q = 0u; q < QUADS; q++) {
                    [[unroll]] for (uint e = 0u; e < 4u; e++) {
                        uint at = own + 4u * q + e;
                        // A piece within the open chunk leaves h alone; what was walked with had decayed.
                        if (has(args.flags, HAS_H) && walked > 0u) store_h(at, state[q][e]);
                        if (has_open) store_open(at, closes ? 0.0 : load_tail(at));
                    }
                }
                if (has_open && n == 0u && p == 0u)
                    store_open_decay(head, closes ? 0.0 : load_decay(decays + used * args.H) + (used == 1u ? before : 0.0));
            }
        }
    }
}
