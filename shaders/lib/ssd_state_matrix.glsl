// The matrix rows of ssd_state multiply nothing: they read and write rows of 16 bits, P / (4 QUADS) lanes of a subgroup to a row
// n, 4 QUADS columns a lane. A workgroup walks T0 rows of one (b, h). Memories are read AHEAD chunks in advance, since a step of
// the walk is short. Shared memory: none. A subgroup holds at least one row.
#extension GL_KHR_shader_subgroup_shuffle : require
#include "lib/matrix.glsl"
#include "lib/ssd_matrix.glsl"
layout(std430, binding = 1) readonly buffer Pairs_memory { uvec2 pairs_memory[]; };
layout(std430, binding = 8) writeonly buffer Pairs_hin { uvec2 pairs_hin[]; };

const uint AHEAD = 8u;
const uint OWN = 4u * QUADS;

// Of one chunk.
struct Ahead {
    uvec2 words[QUADS];
    float size, total; // its row's scale, its log-decay
};

void main()
{
    const uint TEAM = SIZE_P / OWN;
    uint blocks = (SIZE_N + T0 - 1u) / T0;
    bool has_open = has(args.flags, HAS_OPEN);
    for (uint tile = gl_WorkGroupID.x; tile < args.tiles; tile += gl_NumWorkGroups.x) {
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
        for (uint r = LANE / TEAM; r < T0; r += LANES / TEAM) {
            uint n = tile % blocks * T0 + r;
            uint p = LANE % TEAM * OWN;
            bool valid = n < SIZE_N;
            uint own = (head * SIZE_N + min(n, SIZE_N - 1u)) * SIZE_P + p;
            vec4 state[QUADS];
            [[unroll]] for (uint q = 0u; q < QUADS; q++) {
                state[q] = vec4(0.0);
                if (has(args.flags, HAS_H)) {
                    [[unroll]] for (uint e = 0u; e < 4u; e++) state[q][e] = load_h(own + 4u * q + e);
                }
            }
            Ahead ahead[AHEAD];
#define READ_AHEAD(first) \
            [[unroll]] for (uint i = 0u; i < AHEAD; i++) { \
                uint j = min((first) + i, used - 1u); \
                uint row = memory_row(position, b, min(j, walked - min(walked, 1u)), h) + min(n, SIZE_N - 1u); \
                ahead[i].total = load_decay(decays + (j + 1u) * args.H); \
                ahead[i].size = j < walked ? load_scale(args.scale_at + row) : 0.0; \
                [[unroll]] for (uint q = 0u; q < QUADS; q++) \
                    ahead[i].words[q] = j < walked ? pairs_memory[(args.memory_at + row * SIZE_P + p) / 4u + q] : uvec2(0u); \
            }
            READ_AHEAD(0u)
            float total = 0.0;
            for (uint first = 0u; first < used; first += AHEAD) {
                Ahead now[AHEAD];
                [[unroll]] for (uint i = 0u; i < AHEAD; i++) now[i] = ahead[i];
                READ_AHEAD(first + AHEAD)
                [[unroll]] for (uint i = 0u; i < AHEAD; i++) {
                    uint j = first + i;
                    if (j < used) {
                        vec4 enter[QUADS];
                        [[unroll]] for (uint q = 0u; q < QUADS; q++) enter[q] = state[q];
                        total = now[i].total;
                        if (j == 0u) {
                            float before = load_decay(decays);
                            float keep = exp_neg(before);
                            total += before;
                            [[unroll]] for (uint q = 0u; q < QUADS; q++) {
                                enter[q] *= keep;
                                if (has_open) {
                                    [[unroll]] for (uint e = 0u; e < 4u; e++) enter[q][e] += load_open(own + 4u * q + e);
                                }
                            }
                        }
                        float square = 0.0;
                        [[unroll]] for (uint q = 0u; q < QUADS; q++) square += dot(enter[q], enter[q]);
                        [[unroll]] for (uint lanes = 1u; lanes < HEAD / OWN; lanes *= 2u) {
                            if (lanes < TEAM) square += subgroupShuffleXor(square, lanes);
                        }
                        float mean = square / float(SIZE_P) + args.eps;
                        float factor = inversesqrt(mean);
                        if (valid) {
                            uint row = ((b * args.M + j) * args.H + h) * SIZE_N + n;
                            [[unroll]] for (uint q = 0u; q < QUADS; q++) {
                                vec4 value = enter[q] * factor;
                                pairs_hin[(args.hin_at + row * SIZE_P + p) / 4u + q] =
                                    uvec2(pack_elements(value.x, value.y), pack_elements(value.z, value.w));
                            }
                            if (p == 0u) store_hin_scale(args.hin_scale_at + row, mean * factor);
                        }
                        if (j < walked) {
                            float keep = exp_neg(total);
                            [[unroll]] for (uint q = 0u; q < QUADS; q++) {
                                vec4 memory = vec4(unpack_elements(now[i].words[q].x), unpack_elements(now[i].words[q].y));
                                state[q] = keep * state[q] + now[i].size * memory;
                            }
                        }
                    }
                }
            }
            if (valid) {
                [[unroll]] for (uint q = 0u; q < QUADS; q++) {
                    [[unroll]] for (uint e = 0u; e < 4u; e++) {
                        uint at = own + 4u * q + e;
                        if (has(args.flags, HAS_H)) store_h(at, state[q][e]);
                        if (has_open) store_open(at, closes ? 0.0 : load_tail(at));
                    }
                }
                if (has_open && n == 0u && p == 0u) store_open_decay(head, closes ? 0.0 : total);
            }
        }
    }
}
