// Full windows, and those of chunks that close, go into the matrices: now = keep_-1 open + sum_k keep_k step_k b_k^T x_k, and
// so on, see args.h. Most tiles of most steps have nothing to do.
//
// rows B WINDOW (H P + G N); steps B WINDOW H 2; h, open, hin B H N P; open_decay B H; hin_scale B H N; to B capacity H N P;
// scale B capacity H N. P / 8 lanes share ROWS rows n (1 or 2), each with eight columns of all of them; as many slots as there is room
// for go through shared memory at a time, x times its weight and b. What a head reads is asked for before the weights are made.
// Shared memory: 8 (MAX_STATE SLOTS + LANES + WINDOW) + LANES / 8 + 4 bytes. Guards: exp only of numbers <= 0; eps > 0.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/dart.glsl"
#include "table/window_fold.glsl"
READS(rows) READS_WRITES(steps) READS(seq) READS_WRITES(open_decay) WRITES(hin) WRITES(hin_scale) WRITES(to)
WRITES(scale)
#include "lib/seq.glsl"
#include "window.glsl"
bool takes(uint m) { return m >= args.first && m - args.first < args.count; }
#include "folding.glsl"
#include "lib/eight.glsl"
READS_EIGHT(rows) WRITES_EIGHT(hin) WRITES_EIGHT(to) READS_WRITES_AS(vec4, quads, h) READS_WRITES_AS(vec4, quads, open)

const uint STAGED = SLOTS * MAX_STATE / 2u;
// Of a slot: columns 0 to 3 of all words of x, columns 4 to 7 of them, b. Then, two a quad, the squares of hin and of the memory, by
// the lanes of a row; ROWS LANES of them fit.
shared vec4 staged[STAGED];

void put_squares(uint i, vec2 v)
{
    staged[i / 2u][2u * (i % 2u)] = v.x;
    staged[i / 2u][2u * (i % 2u) + 1u] = v.y;
}
vec2 squares_at(uint i) { return vec2(staged[i / 2u][2u * (i % 2u)], staged[i / 2u][2u * (i % 2u) + 1u]); }

void fold_head(uint b, uint position, uint h)
{
    uint team = args.P / 8u;
    uint lines = LANES / team;
    uint line = LANE / team; // those from `lines` on idle
    uint word = LANE % team;
    uint words = team + args.N / 8u; // of a slot
    uint at_once = STAGED / (2u * words);
    uint pitch = args.H * args.P + args.G * args.N;
    bool has_open = has(args.flags, HAS_OPEN);
    bool closes = closes_at(position);
    uint n = tokens_at(position);
    uint head = b * args.H + h;
    vec2 own = own_slot(b, h, n);
    float total = has_open ? load_open_decay(head) : 0.0;
    float keep = 1.0;
    float keep_h = 1.0;
    uint x_at = args.rows_at + b * WINDOW * pitch + h * args.P;
    // behind x's words
    uint b_at = args.rows_at + b * WINDOW * pitch + args.H * args.P + h / (args.H / args.G) * args.N - args.P;
    uint slot = ((b * args.capacity + position / args.S - args.first) * args.H + h) * args.N;
    for (uint first = 0u; first < args.N; first += ROWS * lines) {
        uint row = min(first + ROWS * line, args.N - ROWS);
        uint at = ((head * args.N + row) * args.P + 8u * word) / 4u;
        uint down = args.P / 4u; // to the next row
        vec4 low[ROWS];
        vec4 high[ROWS];
        vec4 old_low[ROWS];
        vec4 old_high[ROWS];
        [[unroll]] for (uint r = 0u; r < ROWS; r++) {
            low[r] = has_open ? quads_open[at + r * down] : quads_h[at + r * down];
            high[r] = has_open ? quads_open[at + r * down + 1u] : quads_h[at + r * down + 1u];
            old_low[r] = has_open ? quads_h[at + r * down] : vec4(0.0);
            old_high[r] = has_open ? quads_h[at + r * down + 1u] : vec4(0.0);
        }
        if (first == 0u) {
            weigh_slots(own); // all lanes have read steps and open_decay
            keep = exp_neg(log_decay_of_all);
            total = has_open ? total + log_decay_of_all : 0.0;
            keep_h = exp_neg(total);
            if (LANE < WINDOW) {
                uint zero = 2u * ((b * WINDOW + LANE) * args.H + h);
                words_steps[zero] = 0u; // 0.0; an f32 like all of steps
                words_steps[zero + 1u] = 0u;
            }
            if (LANE == 0u && has_open) store_open_decay(head, closes ? 0.0 : total);
        }
        [[unroll]] for (uint r = 0u; r < ROWS; r++) {
            low[r] *= keep;
            high[r] *= keep;
        }
        for (uint k = 0u; k < n; k += at_once) {
            uint slots = min(at_once, n - k);
            barrier();
            for (uint e = LANE; e < slots * words; e += LANES) {
                uint j = e / words;
                uint part = e % words;
                bool of_x = part < team;
                Eight v = load_eight_rows((of_x ? x_at : b_at) + (k + j) * pitch + 8u * part);
                float weight = of_x ? keeps[k + j] : 1.0;
                uint to = 2u * j * words + (of_x ? part : 2u * part);
                staged[to] = weight * v.low;
                staged[to + (of_x ? team : 1u)] = weight * v.high;
            }
            barrier();
            for (uint j = 0u; j < slots; j++) {
                uint from = 2u * j * words;
                vec4 x_low = staged[from + word];
                vec4 x_high = staged[from + team + word];
                vec4 keys = staged[from + 2u * team + row / 4u];
                [[unroll]] for (uint r = 0u; r < ROWS; r++) {
                    float key = keys[row % 4u + r];
                    low[r] += key * x_low;
                    high[r] += key * x_high;
                }
            }
        }
        barrier(); // all lanes have read `staged`
        [[unroll]] for (uint r = 0u; r < ROWS; r++) {
            old_low[r] = keep_h * old_low[r] + low[r]; // without open: what is there
            old_high[r] = keep_h * old_high[r] + high[r];
            put_squares(r * LANES + LANE, vec2(dot(old_low[r], old_low[r]) + dot(old_high[r], old_high[r]),
                                               dot(low[r], low[r]) + dot(high[r], high[r])));
        }
        barrier();
        if (line < lines && first + ROWS * line < args.N) {
            // A loop that holds another is not unrolled by every compiler, and would index the arrays in memory.
            vec2 roots[ROWS];
            [[unroll]] for (uint r = 0u; r < ROWS; r++) roots[r] = vec2(0.0);
            for (uint k = 0u; k < team; k++) {
                [[unroll]] for (uint r = 0u; r < ROWS; r++) roots[r] += squares_at(r * LANES + line * team + k);
            }
            [[unroll]] for (uint r = 0u; r < ROWS; r++) {
                vec2 root = sqrt(roots[r] / float(args.P) + args.eps);
                if (closes || !has_open) {
                    quads_h[at + r * down] = old_low[r];
                    quads_h[at + r * down + 1u] = old_high[r];
                }
                if (has_open) {
                    quads_open[at + r * down] = closes ? vec4(0.0) : low[r];
                    quads_open[at + r * down + 1u] = closes ? vec4(0.0) : high[r];
                }
                if (closes) {
                    if (word == 0u) store_scale(args.scale_at + slot + row + r, root.y);
                    store_eight_to(args.to_at + (slot + row + r) * args.P + 8u * word,
                                   Eight(low[r] / root.y, high[r] / root.y));
                }
                Eight state = Eight(old_low[r], old_high[r]);
                if (has(args.flags, HAS_HIN_SCALE)) {
                    if (word == 0u) store_hin_scale(args.hin_scale_at + head * args.N + row + r, root.x);
                    state = Eight(state.low / root.x, state.high / root.x);
                }
                store_eight_hin(args.hin_at + 4u * (at + r * down), state);
            }
        }
        barrier();
    }
}

void main()
{
    for (uint first = 0u; first < args.B; first += LANES) {
        uint heads = list_folding(first) * args.H;
        for (uint item = WORKGROUP; item < heads; item += gl_NumWorkGroups.x) {
            uvec2 own = folding[item / args.H];
            fold_head(own.x, own.y, item % args.H);
        }
        barrier(); // all lanes have read `folding`
    }
}
