#version 460
#extension GL_GOOGLE_include_directive : require
// The walk over chunks: hin_j = h, then h = exp(total_j) h + mem_j; see args.h for the chunk that is open at the start or
// the end. Memories and hin raw, or rows divided by scale_n = sqrt(mean_p^2 + eps).
// decay B M+1 H; memory, hin B M H N P; scale, hin_scale B M H N; h, open, tail B H N P; open_decay B H.
// One workgroup walks four rows n of one (b, h), a lane every LANES-th column of all four, and reads memories a chunk ahead,
// since each step of the walk is short and waits for memory only. T0 is 4; LANES is at least
// MAX_STATE / 4. With -DP64 for P up to 64. Shared memory: 16 LANES bytes.
// Guards: exponents are clamped to <= 0; empty chunks are neither read nor written; eps > 0.
#include "lib/dart.glsl"
#include "table/ssd_state.glsl"
READS(decay) READS(memory) READS(scale) READS(seq) READS(tail) READS_WRITES(h) READS_WRITES(open) WRITES(open_decay)
WRITES(hin) WRITES(hin_scale)
#define PACKS
#include "lib/seq.glsl"
#include "lib/quads.glsl"
#define SSD_MEMORY
#include "ssd.glsl"

#ifdef P64
const uint BLOCKS = 64u / LANES;
#else
const uint BLOCKS = MAX_STATE / LANES;
#endif

// The memory of four rows, raw, from its first row on.
void load_memories(out vec4 memories[BLOCKS], uint row, uint rows)
{
    vec4 scales = vec4(1.0);
    [[unroll]] for (uint r = 0u; r < 4u; r++)
        if (has(args.flags, HAS_SCALE)) scales[r] = load_scale(args.scale_at + row + min(r, rows - 1u));
    [[unroll]] for (uint i = 0u; i < BLOCKS; i++) {
        uint p = min(i * LANES + LANE, args.P - 1u);
        memories[i] = vec4(0.0);
        if (i * LANES < args.P) {
            [[unroll]] for (uint r = 0u; r < 4u; r++)
                memories[i][r] = scales[r] * load_memory(args.memory_at + (row + min(r, rows - 1u)) * args.P + p);
        }
    }
}

void main()
{
    uint row_blocks = (args.N + T0 - 1u) / T0;
    bool has_open = has(args.flags, HAS_OPEN);
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint n_first = tile % row_blocks * T0;
        uint head = tile / row_blocks; // b H + h
        uint b = head / args.H;
        uint h = head % args.H;
        Sequence sequence = sequence_of(b);
        uint count = sequence.count;
        if (count == 0u) continue;
        uint position = sequence.position;
        uint offset = position % args.S;
        uint used = min((offset + count + args.S - 1u) / args.S, args.M);
        bool closes = used * args.S - offset <= count; // the last chunk
        uint slots = slot_of(sequence, b, args.M, args.S);
        uint decays = (slots + b) * args.H + h;
        uint rows = min(T0, args.N - n_first);
        uint own = (head * args.N + n_first) * args.P;

        vec4 state[BLOCKS];
        [[unroll]] for (uint i = 0u; i < BLOCKS; i++) {
            uint p = min(i * LANES + LANE, args.P - 1u);
            state[i] = vec4(0.0);
            if (i * LANES < args.P && has(args.flags, HAS_H)) {
                [[unroll]] for (uint r = 0u; r < 4u; r++) state[i][r] = load_h(own + min(r, rows - 1u) * args.P + p);
            }
        }
        uint folded = closes || !has_open ? used : used - 1u; // chunks whose memories are read
        vec4 next[BLOCKS]; // read a chunk ahead
        if (folded > 0u) load_memories(next, memory_row(position, b, 0u, h) + n_first, rows);
        float total = 0.0;
        for (uint j = 0u; j < used; j++) {
            uint hin_at = ((slots + j) * args.H + h) * args.N + n_first;
            float before = j == 0u ? load_decay(decays) : 0.0;
            total = before + load_decay(decays + (j + 1u) * args.H);
            vec4 enters[BLOCKS];
            vec4 squares = vec4(0.0);
            [[unroll]] for (uint i = 0u; i < BLOCKS; i++) {
                uint p = i * LANES + LANE;
                enters[i] = state[i];
                if (j == 0u && has_open && i * LANES < args.P) {
                    [[unroll]] for (uint r = 0u; r < 4u; r++)
                        enters[i][r] = exp_neg(before) * state[i][r] +
                                       load_open(own + min(r, rows - 1u) * args.P + min(p, args.P - 1u));
                }
                if (p < args.P) squares += enters[i] * enters[i];
                if (j < folded) state[i] = exp_neg(total) * state[i] + next[i];
            }
            if (j + 1u < folded) load_memories(next, memory_row(position, b, j + 1u, h) + n_first, rows);
            vec4 inverses = vec4(1.0);
            if (has(args.flags, HAS_HIN_SCALE)) {
                barrier();
                vec4 s = sqrt(workgroup_sum4(squares) / float(args.P) + args.eps);
                inverses = 1.0 / s;
                if (LANE < rows) store_hin_scale(args.hin_scale_at + hin_at + LANE, s[LANE]);
            }
            [[unroll]] for (uint i = 0u; i < BLOCKS; i++) {
                uint p = i * LANES + LANE;
                if (p < args.P) {
                    [[unroll]] for (uint r = 0u; r < 4u; r++)
                        if (r < rows) store_hin(args.hin_at + (hin_at + r) * args.P + p, enters[i][r] * inverses[r]);
                }
            }
        }
        [[unroll]] for (uint i = 0u; i < BLOCKS; i++) {
            uint p = i * LANES + LANE;
            if (p < args.P) {
                [[unroll]] for (uint r = 0u; r < 4u; r++) {
                    uint at = own + r * args.P + p;
                    if (r < rows && has(args.flags, HAS_H)) store_h(at, state[i][r]);
                    if (r < rows && has_open) store_open(at, closes ? 0.0 : load_tail(at));
                }
            }
        }
        if (has_open && n_first == 0u && LANE == 0u) store_open_decay(head, closes ? 0.0 : total);
    }
}
