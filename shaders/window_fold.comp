// Full windows, and those of chunks that close, go into the matrices: now = keep_-1 open + sum_k keep_k step_k b_k^T x_k, and
// so on, see args.h. Most tiles of most steps have nothing to do.
//
// rows B WINDOW (H P + G N); steps B WINDOW H 2; h, open, hin B H N P; open_decay B H; hin_scale B H N; to B capacity H N P;
// scale B capacity H N. A workgroup folds T0 heads of one sequence, one after another, few workgroups being what a launch with
// nothing to do costs: P / 8 lanes share a row n, each with eight columns; SLOTS slots at a time go through shared memory.
// Shared memory: 8 MAX_STATE SLOTS + 8 LANES + 8 WINDOW + 4 bytes. Guards: exp only of numbers <= 0; eps > 0.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/dart.glsl"
PUSH(WindowFoldArgs)
READS(0, rows)
READS_WRITES(1, steps)
READS(2, seq)
READS_WRITES(5, open_decay)
WRITES(6, hin)
WRITES(7, hin_scale)
WRITES(8, to)
WRITES(9, scale)
#include "lib/seq.glsl"
#include "lib/window.glsl"
#include "lib/eight.glsl"
READS_EIGHT(0, rows)
WRITES_EIGHT(6, hin)
WRITES_EIGHT(8, to)
layout(std430, binding = 3) buffer Quads_h { vec4 quads_h[]; };
layout(std430, binding = 4) buffer Quads_open { vec4 quads_open[]; };

shared vec4 staged[SLOTS * MAX_STATE / 2u]; // of that many slots x, times its weight, and b
shared vec2 squares[gl_WorkGroupSize.x]; // of hin and of the memory, by the lanes of a row

Eight weighted(float a, Eight u, Eight v) { return Eight(a * u.low + v.low, a * u.high + v.high); }
float square(Eight v) { return dot(v.low, v.low) + dot(v.high, v.high); }

void main()
{
    uint team = args.P / 8u;
    uint lines = LANES / team;
    uint line = LANE / team;
    uint word = LANE % team;
    uint words = team + args.N / 8u; // of a slot
    uint pitch = args.H * args.P + args.G * args.N;
    bool has_open = has(args.flags, HAS_OPEN);
    bool every = has(args.flags, IS_EVERY);
    uint blocks = (args.H + T0 - 1u) / T0;
    for (uint tile = gl_WorkGroupID.x; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint b = tile / blocks;
        uint first_h = tile % blocks * T0;
        uint position = seq_position(b);
        uint n = has(args.flags, IS_FRESH) ? 0u : window_slot(position) + (every ? 0u : 1u);
        bool ends = !every && (position + 1u) % args.S == 0u;
        bool closes = ends && has_open;
        uint m = position / args.S;
        bool in_run = closes && m >= args.first && m - args.first < args.count;
        if (!every && (seq_count(b, 1u) == 0u || (n < WINDOW && !ends))) continue;
        if (closes ? !in_run : has(args.flags, IS_LATER)) continue;

        for (uint h = first_h; h < min(first_h + T0, args.H); h++) {
            uint head = b * args.H + h;
            weigh_slots(own_slot(b, h, n));
            float keep = exp_neg(log_decay_of_all);
            float total = has_open ? load_open_decay(head) + log_decay_of_all : 0.0;
            float keep_h = exp_neg(total);
            barrier(); // all lanes have read open_decay
            if (LANE < WINDOW) {
                uint at = 2u * ((b * WINDOW + LANE) * args.H + h);
                store_steps(at, 0.0);
                store_steps(at + 1u, 0.0);
            }
            if (LANE == 0u && has_open) store_open_decay(head, closes ? 0.0 : total);

            uint x_at = args.rows_at + b * WINDOW * pitch + h * args.P;
            // behind x's words
            uint b_at = args.rows_at + b * WINDOW * pitch + args.H * args.P + h / (args.H / args.G) * args.N - args.P;
            uint slot = ((b * args.capacity + m - args.first) * args.H + h) * args.N;
            for (uint first = 0u; first < args.N; first += lines) {
                uint row = min(first + line, args.N - 1u);
                uint own = head * args.N + row;
                uint at = own * args.P + 8u * word;
                Eight now;
                if (has_open) now = Eight(quads_open[at / 4u], quads_open[at / 4u + 1u]);
                else now = Eight(quads_h[at / 4u], quads_h[at / 4u + 1u]);
                now = Eight(keep * now.low, keep * now.high);
                for (uint k = 0u; k < n; k += SLOTS) {
                    uint slots = min(SLOTS, n - k);
                    barrier();
                    for (uint e = LANE; e < slots * words; e += LANES) {
                        uint j = e / words;
                        uint part = e % words;
                        Eight v = load_eight_rows((part < team ? x_at : b_at) + (k + j) * pitch + 8u * part);
                        float weight = part < team ? keeps[k + j] : 1.0;
                        staged[2u * e] = weight * v.low;
                        staged[2u * e + 1u] = weight * v.high;
                    }
                    barrier();
                    for (uint j = 0u; j < slots; j++) {
                        uint x = 2u * (j * words + word);
                        float key = staged[2u * (j * words + team) + row / 4u][row % 4u];
                        now = weighted(key, Eight(staged[x], staged[x + 1u]), now);
                    }
                }
                Eight state = now;
                if (has_open) state = Eight(keep_h * quads_h[at / 4u] + now.low, keep_h * quads_h[at / 4u + 1u] + now.high);
                squares[LANE] = vec2(square(state), square(now));
                barrier();
                if (line < lines && first + line < args.N) {
                    vec2 root = vec2(0.0);
                    for (uint k = 0u; k < team; k++) root += squares[line * team + k];
                    root = sqrt(root / float(args.P) + args.eps);
                    if (closes || !has_open) {
                        quads_h[at / 4u] = state.low;
                        quads_h[at / 4u + 1u] = state.high;
                    }
                    if (has_open) {
                        quads_open[at / 4u] = closes ? vec4(0.0) : now.low;
                        quads_open[at / 4u + 1u] = closes ? vec4(0.0) : now.high;
                    }
                    if (closes) {
                        if (word == 0u) store_scale(args.scale_at + slot + row, root.y);
                        now = Eight(now.low / root.y, now.high / root.y);
                        store_eight_to(args.to_at + (slot + row) * args.P + 8u * word, now);
                    }
                    if (has(args.flags, HAS_HIN_SCALE)) {
                        if (word == 0u) store_hin_scale(args.hin_scale_at + own, root.x);
                        state = Eight(state.low / root.x, state.high / root.x);
                    }
                    store_eight_hin(args.hin_at + at, state);
                }
                barrier();
            }
        }
    }
}
