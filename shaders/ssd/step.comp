#version 460
#extension GL_GOOGLE_include_directive : require
// One token: open' = exp(a_1) open + step b x, y = c (exp(a_0 + a_1) h + open') + d x; see args.h for what is kept.
// x, y B H P; b, c B G N; cum B H 3; decay B 2 H; h, open B H N P; open_decay B H; dh B 1 H N P.
// One workgroup takes T0 columns p of one (b, h): LANES / T0 lanes share a column and take its rows n in turn,
// AHEAD = T1 rows at a time. T0 divides LANES.
// Shared memory: 2048 + 4 LANES bytes. Guards: exponents are clamped to <= 0.
#include "lib/dart.glsl"
#include "table/ssd_step.glsl"
READS(x) READS(b) READS(c) READS(cum) READS(decay) READS(d) READS(seq) READS_WRITES(h) READS_WRITES(open)
WRITES(open_decay) WRITES(dh) WRITES(y)
#include "lib/seq.glsl"

const uint AHEAD = T1;
const uint PARTS = LANES / T0;
shared vec2 bc[MAX_STATE];
shared float partial[LANES];

float states[AHEAD];
float opens[AHEAD];

void fetch(uint base, uint first)
{
    if (has(args.flags, HAS_OPEN)) { // and h
        [[unroll]] for (uint i = 0u; i < AHEAD; i++) {
            uint at = base + min(first + i * PARTS, args.N - 1u) * args.P;
            states[i] = load_h(at);
            opens[i] = load_open(at);
        }
    } else {
        [[unroll]] for (uint i = 0u; i < AHEAD; i++) {
            uint at = base + min(first + i * PARTS, args.N - 1u) * args.P;
            states[i] = has(args.flags, HAS_H) ? load_h(at) : 0.0;
            opens[i] = 0.0;
        }
    }
}

void main()
{
    uint part = LANE / T0;
    uint p_blocks = (args.P + T0 - 1u) / T0;
    bool has_h = has(args.flags, HAS_H);
    bool has_open = has(args.flags, HAS_OPEN);
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint head = tile / p_blocks; // b H + h
        uint b = head / args.H;
        uint h = head % args.H;
        uint g = h / (args.H / args.G);
        // All that is read is asked for before any of it is waited for.
        uint column = tile % p_blocks * T0 + LANE % T0;
        uint p = min(column, args.P - 1u);
        uint base = head * args.N * args.P + p;
        fetch(base, part);
        barrier();
        for (uint n = LANE; n < args.N; n += LANES) {
            uint at = g * args.N + n;
            bc[n] = vec2(load_b(args.b_at + b * args.b_row + at), load_c(args.c_at + b * args.c_row + at));
        }
        float x = load_x(args.x_at + b * args.x_row + h * args.P + p);
        bool closes = has_open && (seq_position(b) + 1u) % args.S == 0u;
        float step_size = load_cum(CUM_STRIDE * head + 2u);
        float decay = load_decay((2u * b + 1u) * args.H + h);
        float total = load_decay(2u * b * args.H + h) + decay;
        float keep_open = exp_neg(decay);
        float keep_h = exp_neg(total);
        bool keeps_dh = has(args.flags, HAS_DH) && (!has(args.flags, HAS_CLOSED) || (seq_position(b) + 1u) % args.S == 0u);
        float write = step_size * x;
        if (seq_count(b, 1u) == 0u) continue;
        barrier();
        float sum = 0.0;
        if (column < args.P) {
            for (uint first = part; first < args.N; first += AHEAD * PARTS) {
                if (first != part) fetch(base, first);
                [[unroll]] for (uint i = 0u; i < AHEAD; i++) {
                    uint n = first + i * PARTS;
                    if (n < args.N) {
                        uint at = base + n * args.P;
                        float open = keep_open * opens[i] + bc[n].x * write;
                        float state = keep_h * states[i] + open;
                        sum += bc[n].y * state;
                        if (keeps_dh) store_dh(args.dh_at + at, open);
                        if (has_h && (closes || !has_open)) store_h(at, state);
                        if (has_open) store_open(at, closes ? 0.0 : open);
                    }
                }
            }
        }
        partial[LANE] = sum;
        barrier();
        if (LANE < T0 && column < args.P) {
            [[unroll]] for (uint i = 1u; i < PARTS; i++) sum += partial[LANE + i * T0];
            if (has(args.flags, HAS_D)) sum += load_d(args.d_at + h) * x;
            store_y(args.y_at + b * args.y_row + h * args.P + p, sum);
        }
        if (has_open && tile % p_blocks == 0u && LANE == 0u) store_open_decay(head, closes ? 0.0 : total);
    }
}
