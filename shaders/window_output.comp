// One token of each sequence from hin and the tokens of its window: y = sum_k (c . b_k) keep_k step_k x_k + keep_-1 c hin
// + d x.
//
// rows B WINDOW (H P + G N); steps B WINDOW H 2; c B G N; hin B H N P; hin_scale B H N; y B H P. A workgroup makes T0 heads of
// one group, which share the products c . b_k; N / 8 lanes share a row of b, P / 8 one of x or hin. What a head reads is asked
// for in words of eight elements while the head before it is added up.
// Shared memory: 4 (35 WINDOW + 2 MAX_STATE + 9 LANES + 1) bytes. Guards: exp only of numbers <= 0.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/dart.glsl"
PUSH(WindowOutputArgs)
READS(0, rows)
READS(1, steps)
READS(2, c)
READS(3, hin)
READS(4, hin_scale)
READS(5, d)
READS(6, seq)
WRITES(7, y)
#include "lib/seq.glsl"
#include "lib/window.glsl"
#include "lib/eight.glsl"
READS_EIGHT(0, rows)
READS_EIGHT(3, hin)

// Words of a lane that are fetched ahead of all else: with AHEAD 8 what P 64, N 128 and a full
// window come to with 128 lanes.
const uint HIN_AHEAD = AHEAD;
const uint X_AHEAD = AHEAD / 4u;
const uint B_AHEAD = AHEAD / 2u;
shared float c_scaled[MAX_STATE]; // c times the scale of hin's row
shared float c_now[MAX_STATE];
const uint PITCH = MAX_STATE / 8u + 1u;
shared float products[WINDOW * PITCH + 3u]; // of c and b_k, a part each of N / 8 lanes
shared vec4 sums[2u * gl_WorkGroupSize.x];

Words hin_ahead[HIN_AHEAD];
Words x_ahead[X_AHEAD];
Words b_ahead[B_AHEAD];

// Rows from `line` on, so many lines apart; past the end the last one again.
void fetch_hin(uint at, uint line)
{
    uint lines = LANES / (args.P / 8u);
    [[unroll]] for (uint i = 0u; i < HIN_AHEAD; i++)
        hin_ahead[i] = load_words_hin(at + min(line + i * lines, args.N - 1u) * args.P);
}
void fetch_x(uint at, uint line, uint n, uint pitch)
{
    uint lines = LANES / (args.P / 8u);
    [[unroll]] for (uint i = 0u; i < X_AHEAD; i++) x_ahead[i] = load_words_rows(at + min(line + i * lines, n - 1u) * pitch);
}
void fetch_b(uint at, uint line, uint n, uint pitch)
{
    uint lines = LANES / (args.N / 8u);
    [[unroll]] for (uint i = 0u; i < B_AHEAD; i++) b_ahead[i] = load_words_rows(at + min(line + i * lines, n - 1u) * pitch);
}

float scale_of(uint head)
{
    return has(args.flags, HAS_HIN_SCALE) ? load_hin_scale(args.hin_scale_at + head * args.N + min(LANE, args.N - 1u)) : 1.0;
}

void add(inout Eight sum, float weight, Eight v)
{
    sum.low += weight * v.low;
    sum.high += weight * v.high;
}

void main()
{
    uint x_team = args.P / 8u; // lanes that share a row
    uint b_team = args.N / 8u;
    uint x_lines = LANES / x_team; // rows at a time
    uint b_lines = LANES / b_team;
    uint x_line = LANE / x_team; // those from x_lines on idle
    uint b_line = LANE / b_team;
    uint b_word = LANE % b_team;
    uint pitch = args.H * args.P + args.G * args.N;
    uint heads = args.H / args.G; // of a group
    uint blocks = (heads + T0 - 1u) / T0;
    for (uint tile = gl_WorkGroupID.x; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint b = tile / (blocks * args.G);
        uint g = tile / blocks % args.G;
        uint h = g * heads + tile % blocks * T0;
        uint end = min(h + T0, (g + 1u) * heads);
        if (seq_count(b, 1u) == 0u) continue;
        uint n = window_slot(seq_position(b)) + 1u;
        uint hin_at = args.hin_at + 8u * (LANE % x_team);
        uint x_at = args.rows_at + b * WINDOW * pitch + 8u * (LANE % x_team);
        uint b_at = args.rows_at + b * WINDOW * pitch + args.H * args.P + g * args.N + 8u * b_word;
        uint head = b * args.H + h;
        fetch_b(b_at, b_line, n, pitch);
        fetch_hin(hin_at + head * args.N * args.P, x_line);
        fetch_x(x_at + h * args.P, x_line, n, pitch);
        vec2 own = own_slot(b, h, n);
        float scale = scale_of(head);
        for (uint i = LANE; i < args.N; i += LANES) c_now[i] = load_c(args.c_at + b * args.c_row + g * args.N + i);
        barrier();
        if (b_line < b_lines) {
            uint from = 8u * b_word;
            vec4 low = vec4(c_now[from], c_now[from + 1u], c_now[from + 2u], c_now[from + 3u]);
            vec4 high = vec4(c_now[from + 4u], c_now[from + 5u], c_now[from + 6u], c_now[from + 7u]);
            for (uint first = b_line; first < n; first += B_AHEAD * b_lines) {
                if (first != b_line) fetch_b(b_at, first, n, pitch);
                [[unroll]] for (uint i = 0u; i < B_AHEAD; i++) {
                    uint k = first + i * b_lines;
                    if (k < n) {
                        Eight v = eight_of(DTYPE_OF(0), b_ahead[i]);
                        products[k * PITCH + b_word] = dot(low, v.low) + dot(high, v.high);
                    }
                }
            }
        }
        barrier();
        float product = 0.0; // c . b of this lane's slot
        if (LANE < n) {
            for (uint i = 0u; i < b_team; i += 4u) { // four at a time, as each takes its time
                uint at = LANE * PITCH + i;
                vec4 four = vec4(products[at], products[at + 1u], products[at + 2u], products[at + 3u]);
                product += sum_where(four, lessThan(i + uvec4(0u, 1u, 2u, 3u), uvec4(b_team)));
            }
        }
        for (; h < end; h++, head++) {
            uint own_x = args.rows_at + (b * WINDOW + n - 1u) * pitch + h * args.P;
            float skip = has(args.flags, HAS_D) ? load_d(args.d_at + h) * load_rows(own_x + min(LANE, args.P - 1u)) : 0.0;
            if (LANE < args.N) c_scaled[LANE] = c_now[LANE] * scale;
            for (uint i = LANE + LANES; i < args.N; i += LANES) {
                c_scaled[i] = c_now[i];
                if (has(args.flags, HAS_HIN_SCALE)) c_scaled[i] *= load_hin_scale(args.hin_scale_at + head * args.N + i);
            }
            weigh_slots(vec2(own.x, own.y * product));
            Eight sum = Eight(vec4(0.0), vec4(0.0));
            if (x_line < x_lines) {
                for (uint first = x_line; first < args.N; first += HIN_AHEAD * x_lines) {
                    if (first != x_line) fetch_hin(hin_at + head * args.N * args.P, first);
                    [[unroll]] for (uint i = 0u; i < HIN_AHEAD; i++) {
                        uint row = first + i * x_lines;
                        if (row < args.N) add(sum, c_scaled[row], eight_of(DTYPE_OF(3), hin_ahead[i]));
                    }
                }
                float keep = exp_neg(log_decay_of_all);
                sum = Eight(keep * sum.low, keep * sum.high);
                for (uint first = x_line; first < n; first += X_AHEAD * x_lines) {
                    if (first != x_line) fetch_x(x_at + h * args.P, first, n, pitch);
                    [[unroll]] for (uint i = 0u; i < X_AHEAD; i++) {
                        uint k = first + i * x_lines;
                        if (k < n) add(sum, keeps[k], eight_of(DTYPE_OF(0), x_ahead[i]));
                    }
                }
            }
            if (h + 1u < end) { // the next head's, while this one's sums are added up
                fetch_hin(hin_at + (head + 1u) * args.N * args.P, x_line);
                fetch_x(x_at + (h + 1u) * args.P, x_line, n, pitch);
                own = own_slot(b, h + 1u, n);
                scale = scale_of(head + 1u);
            }
            // Plane by plane, so that neighbouring lanes use neighbouring words.
            sums[LANE] = sum.low;
            sums[LANES + LANE] = sum.high;
            barrier();
            for (uint p = LANE; p < args.P; p += LANES) { // more than once with few lanes only
                uint from = (p & 4u) / 4u * LANES + p / 8u;
                float total = skip;
                if (p != LANE && has(args.flags, HAS_D)) total = load_d(args.d_at + h) * load_rows(own_x + p);
                for (uint line = 0u; line < x_lines; line += 4u) {
                    vec4 four;
                    [[unroll]] for (uint i = 0u; i < 4u; i++)
                        four[i] = sums[from + min(line + i, x_lines - 1u) * x_team][p & 3u];
                    total += sum_where(four, lessThan(line + uvec4(0u, 1u, 2u, 3u), uvec4(x_lines)));
                }
                store_y(args.y_at + b * args.y_row + h * args.P + p, total);
            }
        }
        barrier();
    }
}
