#version 460
#extension GL_GOOGLE_include_directive : require
// One token, as step.comp computes it, with h, for N = 128 and P = 64, in words of 16 bytes. A workgroup takes T0 = 16 columns of one (b, h): four
// lanes share a row of them, and a lane has ROWS rows, LANES = 4 N / ROWS. All that is read is on its way together.
// Shared memory: 16 LANES bytes. Guards: exponents are clamped to <= 0.
#include "lib/dart.glsl"
#include "table/ssd_step.glsl"
READS(x) READS(b) READS(c) READS(cum) READS(decay) READS(d) READS(seq) READS_WRITES(h) READS_WRITES(open)
WRITES(open_decay) WRITES(dh) WRITES(y)
READS_WRITES_AS(vec4, quads, h) READS_WRITES_AS(vec4, quads, open)
#include "lib/seq.glsl"
#include "lib/together.glsl"

const uint N = 128u;
const uint P = 64u;
const uint COLUMNS = 16u;
const uint WORDS = COLUMNS / 4u; // of a row
const uint GROUPS = N / ROWS;
shared vec4 found[gl_WorkGroupSize.x];

void main()
{
    uint word = LANE % WORDS;
    uint group = LANE / WORDS;
    bool has_open = has(args.flags, HAS_OPEN);
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint head = tile / (P / COLUMNS); // b H + h
        uint b = head / args.H;
        uint h = head % args.H;
        uint n_at = h / (args.H / args.G) * N + group;
        uint column = tile % (P / COLUMNS) * COLUMNS + 4u * word;
        uint at = (head * N + group) * P + column;
        vec4 states[ROWS];
        vec4 opens[ROWS];
        float keys[ROWS];
        float reads[ROWS];
        uint count = seq_count(b, 1u);
        uint position = seq_position(b);
        uint bits = count | position;
        [[unroll]] for (uint r = 0u; r < ROWS; r++) {
            states[r] = quads_h[(at + r * GROUPS * P) / 4u];
            opens[r] = has_open ? quads_open[(at + r * GROUPS * P) / 4u] : vec4(0.0);
            keys[r] = load_b(args.b_at + b * args.b_row + n_at + r * GROUPS);
            reads[r] = load_c(args.c_at + b * args.c_row + n_at + r * GROUPS);
            bits |= floatBitsToUint(states[r].x) | floatBitsToUint(opens[r].x) | floatBitsToUint(keys[r]) | floatBitsToUint(reads[r]);
        }
        vec4 x;
        [[unroll]] for (uint i = 0u; i < 4u; i++) {
            x[i] = load_x(args.x_at + b * args.x_row + h * P + column + i);
            bits |= floatBitsToUint(x[i]);
        }
        float step_size = load_cum(CUM_STRIDE * head + 2u);
        float decay = load_decay((2u * b + 1u) * args.H + h);
        float before = load_decay(2u * b * args.H + h);
        float skip = has(args.flags, HAS_D) ? load_d(args.d_at + h) : 0.0;
        bits |= floatBitsToUint(step_size) | floatBitsToUint(decay) | floatBitsToUint(before) | floatBitsToUint(skip);
        uint none = nothing(bits);
        decay += uintBitsToFloat(none);
        if (count + none == 0u) continue;
        float total = before + decay;
        float keep_open = exp_neg(decay);
        float keep_h = exp_neg(total);
        bool ends = (position + none + 1u) % args.S == 0u; // the chunk
        bool closes = has_open && ends;
        bool keeps_dh = has(args.flags, HAS_DH) && (!has(args.flags, HAS_CLOSED) || ends);
        vec4 write = step_size * x;
        vec4 sum = vec4(0.0);
        [[unroll]] for (uint r = 0u; r < ROWS; r++) {
            vec4 open = keep_open * opens[r] + keys[r] * write;
            vec4 state = keep_h * states[r] + open;
            sum += reads[r] * state;
            uint to = at + r * GROUPS * P;
            if (keeps_dh) {
                [[unroll]] for (uint i = 0u; i < 4u; i++) store_dh(args.dh_at + to + i, open[i]);
            }
            if (closes || !has_open) quads_h[to / 4u] = state;
            if (has_open) quads_open[to / 4u] = closes ? vec4(0.0) : open;
        }
        found[LANE] = sum;
        barrier();
        const uint SHARERS = 8u; // lanes that add up the sums of a word
        if (LANE < SHARERS * WORDS) {
            for (uint i = LANE + SHARERS * WORDS; i < LANES; i += SHARERS * WORDS) sum += found[i];
            found[LANE] = sum;
        }
        barrier();
        if (LANE < WORDS) {
            [[unroll]] for (uint i = 1u; i < SHARERS; i++) sum += found[LANE + i * WORDS];
            sum += skip * x;
            [[unroll]] for (uint i = 0u; i < 4u; i++) store_y(args.y_at + b * args.y_row + h * P + column + i, sum[i]);
        }
        if (has_open && tile % (P / COLUMNS) == 0u && LANE == 0u) store_open_decay(head, closes ? 0.0 : total);
        barrier();
    }
}
