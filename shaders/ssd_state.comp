#version 460
#extension GL_GOOGLE_include_directive : require
// The walk over chunks, element by element of N x P: h = exp(total_j) h + mem_j, where memory[j] gives mem_j and
// becomes the state entering chunk j; see args.h for the chunk that is open at the start or the end.
// decay B M+1 H; memory B M H N P; h, open B H N P; open_decay B H; dh B M H N P.
// One workgroup walks T0 elements of one (b, h), a lane T0 / LANES of them. Memories are read AHEAD chunks in advance,
// since each step of the walk is short and waits for memory only.
// Shared memory: none. Guards: exponents are clamped to <= 0; empty chunks are neither read nor written.
#include "lib/dart.glsl"
PUSH(SsdStateArgs)
READS(0, decay)
READS_WRITES(1, memory)
READS_WRITES(2, h)
READS_WRITES(3, open)
WRITES(4, open_decay)
READS(5, seq)
WRITES(6, dh)
#include "lib/seq.glsl"

const uint AHEAD = 4u;

void main()
{
    uint elements = args.N * args.P;
    uint blocks = (elements + T0 - 1u) / T0;
    for (uint tile = gl_WorkGroupID.x; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint block = tile % blocks;
        uint head = tile / blocks; // b H + h
        uint b = head / args.H;
        uint h = head % args.H;
        uint count = seq_count(b, args.L);
        if (count == 0u) continue;
        uint offset = seq_position(b) % args.S;
        uint used = min((offset + count + args.S - 1u) / args.S, args.M);
        bool closes = used * args.S - offset <= count; // the last chunk
        bool has_open = has(args.flags, HAS_OPEN);
        uint decays = b * (args.M + 1u) * args.H + h;

        for (uint e = block * T0 + LANE; e < min(block * T0 + T0, elements); e += LANES) {
            float open = has_open ? load_open(head * elements + e) : 0.0;
            float state = has(args.flags, HAS_H) ? load_h(head * elements + e) : 0.0;
            float total = 0.0;
            for (uint first = 0u; first < used; first += AHEAD) {
                float memories[AHEAD];
                [[unroll]] for (uint i = 0u; i < AHEAD; i++) {
                    uint j = min(first + i, used - 1u);
                    memories[i] = load_memory(((b * args.M + j) * args.H + h) * elements + e);
                }
                [[unroll]] for (uint i = 0u; i < AHEAD; i++) {
                    uint j = first + i;
                    if (j < used) {
                        float enter = state;
                        float chunk = memories[i];
                        total = load_decay(decays + (j + 1u) * args.H);
                        if (j == 0u) {
                            float before = load_decay(decays);
                            enter = exp_neg(before) * state + open;
                            chunk += exp_neg(total) * open;
                            total += before;
                        }
                        uint at = ((b * args.M + j) * args.H + h) * elements + e;
                        store_memory(at, enter);
                        if (has(args.flags, HAS_DH)) store_dh(args.dh_at + at, chunk);
                        open = chunk;
                        if (j + 1u < used || closes || !has_open) state = exp_neg(total) * state + chunk;
                    }
                }
            }
            if (has(args.flags, HAS_H)) store_h(head * elements + e, state);
            if (has_open) {
                store_open(head * elements + e, closes ? 0.0 : open);
                if (e == 0u) store_open_decay(head, closes ? 0.0 : total);
            }
        }
    }
}
