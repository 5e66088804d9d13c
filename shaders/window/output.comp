// One token of each sequence from hin and the tokens of its window: y = sum_k (c . b_k) keep_k step_k x_k + keep_-1 c hin
// + d x; with -DGATED times SiLU(z), window_gated.
//
// rows B WINDOW (H P + G N); steps B WINDOW H 2; c B G N; hin B H N P; hin_scale B H N; y B H P. A workgroup makes T0 heads of
// one group, which share the products c . b_k; N / 8 lanes share a row of b, P / 8 one of x or hin. All that the first head
// reads is asked for at once, hin even before it is known how many tokens the window holds, what a later one reads while the
// head before it is added up; what heads have in common, and the sums over lanes, is done for all of them together. With -DLOW_REGISTERS:
// lanes are summed up head by head, so that more workgroups share a processor. With -DTOGETHER (N128_P64, LANES a multiple of N): the window is asked
// for before the position is known as well, and nothing is waited for before all has been asked for.
// n = 128 with -DN128_P64, else MAX_STATE. Shared memory: 4 (n + T0 (2 WINDOW + 1 + n)) + 16 max(2 HEADS LANES, WINDOW (n / 8 + 1) / 4 + 1)
// bytes. Guards: exp only of numbers <= 0.
#version 460
#extension GL_GOOGLE_include_directive : require
#include "lib/dart.glsl"
#ifdef GATED
#include "table/window_gated.glsl"
READS(z)
#else
#include "table/window_output.glsl"
#endif
READS(rows) READS(steps) READS(c) READS(hin) READS(hin_scale) READS(d) READS(seq) WRITES(y)
#include "lib/seq.glsl"
#include "window.glsl"
#include "lib/eight.glsl"
#include "lib/together.glsl"
READS_EIGHT(rows) READS_EIGHT(hin)

#ifdef N128_P64
const uint N = 128u;
const uint P = 64u;
const uint MAX_N = N;
#else
#define N args.N
#define P args.P
const uint MAX_N = MAX_STATE;
#endif

// Words of a lane that are fetched ahead of all else: with AHEAD 8 what P 64, N 128 and a full
// window come to with 128 lanes, with AHEAD 4 with 256.
const uint HIN_AHEAD = AHEAD;
const uint X_AHEAD = AHEAD > 4u ? AHEAD / 4u : 1u;
const uint B_AHEAD = AHEAD / 2u;
const uint PITCH = MAX_N / 8u + 1u;
#ifdef LOW_REGISTERS
const uint HEADS = 1u; // heads whose sums over lanes are taken at a time
#else
const uint HEADS = T0;
#endif
const uint SUMS = 2u * HEADS * gl_WorkGroupSize.x;
const uint PRODUCTS = WINDOW * PITCH / 4u + 1u;
shared float c_now[MAX_N];
shared float c_scaled[T0 * MAX_N]; // c times the scale of hin's row
shared vec4 work[SUMS > PRODUCTS ? SUMS : PRODUCTS]; // products of c and b_k, a part each of N / 8 lanes, then all lanes' sums
shared vec4 decays_of[T0 * WINDOW / 4u]; // of the slots, in logarithms
shared float weights[T0 * WINDOW];       // of x: c . b, what decays leave and step
shared float keeps_all[T0];

#ifdef GATED // with TOGETHER
const uint GATES = (T0 * P + LANES - 1u) / LANES;
shared float gates[T0 * P];
#endif

#define PRODUCT(i) work[(i) / 4u][(i) % 4u]

Words hin_ahead[HIN_AHEAD];
Words x_ahead[X_AHEAD];
Words b_ahead[B_AHEAD];

// Is what a lane fetches at a time all that there is for it? Known when the pipeline is made, where N and P are.
bool once_hin() { return HIN_AHEAD * (LANES / (P / 8u)) >= N; }
bool once_x() { return X_AHEAD * (LANES / (P / 8u)) >= WINDOW; }
bool once_b() { return B_AHEAD * (LANES / (N / 8u)) >= WINDOW; }

// Rows from `line` on, so many lines apart; past the end the last one again.
void fetch_hin(uint at, uint line)
{
    uint lines = LANES / (P / 8u);
    [[unroll]] for (uint i = 0u; i < HIN_AHEAD; i++)
        hin_ahead[i] = load_words_hin(at + min(line + i * lines, N - 1u) * P);
}
void fetch_x(uint at, uint line, uint n, uint pitch)
{
    uint lines = LANES / (P / 8u);
    [[unroll]] for (uint i = 0u; i < X_AHEAD; i++) x_ahead[i] = load_words_rows(at + min(line + i * lines, n - 1u) * pitch);
}
void fetch_b(uint at, uint line, uint n, uint pitch)
{
    uint lines = LANES / (N / 8u);
    [[unroll]] for (uint i = 0u; i < B_AHEAD; i++) b_ahead[i] = load_words_rows(at + min(line + i * lines, n - 1u) * pitch);
}

void add(inout Eight sum, float weight, Eight v)
{
    sum.low += weight * v.low;
    sum.high += weight * v.high;
}

// Tokens that the window holds, the new one included; 0 for a sequence without one.
uint tokens_of(uint count, uint position) { return count == 0u ? 0u : window_slot(position) + 1u; }

#ifdef TOGETHER
// Shared memory for the heads from first_h on, N <= LANES; returns tokens_of. What the position does not decide is on its way before the position is
// known, with the words that fetch_... asked for: of slots without a token as well, whose elements nobody uses.
uint prepare(uint b, uint g, uint first_h, uint count)
{
    const uint SCALES = (T0 * N + LANES - 1u) / LANES;
    const uint STEPS = (T0 * WINDOW + LANES - 1u) / LANES;
    float scales[SCALES], decays[STEPS], step_sizes[STEPS];
    uint position = seq_position(b);
    uint tokens = seq_count(b, 1u);
    float c = load_c(args.c_at + b * args.c_row + g * N + LANE % N);
    uint bits = position | tokens | floatBitsToUint(c);
    [[unroll]] for (uint i = 0u; i < HIN_AHEAD; i++) bits |= hin_ahead[i].low.x;
    [[unroll]] for (uint i = 0u; i < B_AHEAD; i++) bits |= b_ahead[i].low.x;
    [[unroll]] for (uint i = 0u; i < X_AHEAD; i++) bits |= x_ahead[i].low.x;
    [[unroll]] for (uint i = 0u; i < SCALES; i++) {
        uint e = min(LANE + i * LANES, count * N - 1u);
        scales[i] = has(args.flags, HAS_HIN_SCALE) ? load_hin_scale(args.hin_scale_at + (b * args.H + first_h) * N + e) : 1.0;
        bits |= floatBitsToUint(scales[i]);
    }
    [[unroll]] for (uint i = 0u; i < STEPS; i++) {
        uint e = min(LANE + i * LANES, count * WINDOW - 1u);
        uint at = 2u * ((b * WINDOW + e % WINDOW) * args.H + first_h + e / WINDOW);
        decays[i] = load_steps(at);
        step_sizes[i] = load_steps(at + 1u);
        bits |= floatBitsToUint(decays[i]) | floatBitsToUint(step_sizes[i]);
    }
    uint none = nothing(bits);
    uint n = tokens_of(tokens + none, position + none);
    if (LANE < N) c_now[LANE] = c;
    [[unroll]] for (uint i = 0u; i < SCALES; i++) { // LANES is a multiple of N: c is that of all of them
        uint e = LANE + i * LANES;
        if (e < count * N) c_scaled[e] = c * scales[i];
    }
    [[unroll]] for (uint i = 0u; i < STEPS; i++) {
        uint e = LANE + i * LANES;
        if (e < count * WINDOW) {
            decays_of[e / 4u][e % 4u] = e % WINDOW < n ? decays[i] : 0.0;
            weights[e] = e % WINDOW < n ? step_sizes[i] : 0.0;
        }
    }
    return n;
}
#endif

void main()
{
    uint x_team = P / 8u; // lanes that share a row
    uint b_team = N / 8u;
    uint x_lines = LANES / x_team; // rows at a time
    uint b_lines = LANES / b_team;
    uint x_line = LANE / x_team; // those from x_lines on idle
    uint b_line = LANE / b_team;
    uint b_word = LANE % b_team;
    uint pitch = args.H * P + args.G * N;
    uint heads = args.H / args.G; // of a group
    uint blocks = (heads + T0 - 1u) / T0;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint b = tile / (blocks * args.G);
        uint g = tile / blocks % args.G;
        uint first_h = g * heads + tile % blocks * T0;
        uint count = min(T0, (g + 1u) * heads - first_h);
        uint head = b * args.H + first_h;
        uint hin_at = args.hin_at + head * N * P + 8u * (LANE % x_team);
        fetch_hin(hin_at, x_line);
        uint x_at = args.rows_at + b * WINDOW * pitch + first_h * P + 8u * (LANE % x_team);
        uint b_at = args.rows_at + b * WINDOW * pitch + args.H * P + g * N + 8u * b_word;
#ifdef TOGETHER
        fetch_b(b_at, b_line, WINDOW, pitch);
        fetch_x(x_at, x_line, WINDOW, pitch);
#ifdef GATED
        float z[GATES];
        [[unroll]] for (uint i = 0u; i < GATES; i++) z[i] = load_z(args.z_at + b * args.z_row + first_h * P + min(LANE + i * LANES, count * P - 1u));
#endif
        uint n = prepare(b, g, first_h, count);
#ifdef GATED
        [[unroll]] for (uint i = 0u; i < GATES; i++)
            if (LANE + i * LANES < count * P) gates[LANE + i * LANES] = silu(z[i]);
#endif
#else
        for (uint i = LANE; i < N; i += LANES) {
            float c = load_c(args.c_at + b * args.c_row + g * N + i);
            c_now[i] = c;
            for (uint k = 0u; k < count; k++) {
                float scale = has(args.flags, HAS_HIN_SCALE) ? load_hin_scale(args.hin_scale_at + (head + k) * N + i) : 1.0;
                c_scaled[k * MAX_N + i] = c * scale;
            }
        }
        uint n = tokens_of(seq_count(b, 1u), seq_position(b));
#endif
        if (n == 0u) continue;
#ifndef TOGETHER
        fetch_b(b_at, b_line, n, pitch);
        fetch_x(x_at, x_line, n, pitch);
        for (uint e = LANE; e < count * WINDOW; e += LANES) {
            uint slot = e % WINDOW;
            uint at = 2u * ((b * WINDOW + slot) * args.H + first_h + e / WINDOW);
            decays_of[e / 4u][e % 4u] = slot < n ? load_steps(at) : 0.0;
            weights[e] = slot < n ? load_steps(at + 1u) : 0.0;
        }
#endif
        barrier();
        if (b_line < b_lines) {
            uint from = 8u * b_word;
            vec4 low = vec4(c_now[from], c_now[from + 1u], c_now[from + 2u], c_now[from + 3u]);
            vec4 high = vec4(c_now[from + 4u], c_now[from + 5u], c_now[from + 6u], c_now[from + 7u]);
            for (uint first = b_line; first < n; first += B_AHEAD * b_lines) {
                if (!once_b() && first != b_line) fetch_b(b_at, first, n, pitch);
                [[unroll]] for (uint i = 0u; i < B_AHEAD; i++) {
                    uint k = first + i * b_lines;
                    if (k < n) {
                        Eight v = eight_of(DTYPE_OF(rows), b_ahead[i]);
                        PRODUCT(k * PITCH + b_word) = dot(low, v.low) + dot(high, v.high);
                    }
                }
            }
        }
        barrier();
        for (uint e = LANE; e < count * WINDOW; e += LANES) {
            uint slot = e % WINDOW;
            float after = 0.0;
            for (uint k = 0u; k < WINDOW / 4u; k++)
                after += sum_where(decays_of[e / WINDOW * (WINDOW / 4u) + k], greaterThan(4u * k + uvec4(0u, 1u, 2u, 3u), uvec4(slot)));
            float product = 0.0; // c . b
            for (uint i = 0u; i < b_team && slot < n; i += 4u) { // four at a time, as each takes its time
                uint at = slot * PITCH + i;
                vec4 four = vec4(PRODUCT(at), PRODUCT(at + 1u), PRODUCT(at + 2u), PRODUCT(at + 3u));
                product += sum_where(four, lessThan(i + uvec4(0u, 1u, 2u, 3u), uvec4(b_team)));
            }
            weights[e] *= product * exp_neg(after);
            if (slot == 0u) keeps_all[e / WINDOW] = exp_neg(after + decays_of[e / 4u].x);
        }
        barrier();
        for (uint own = 0u; own < count; own++) {
            Eight sum = Eight(vec4(0.0), vec4(0.0));
            for (uint first = x_line; first < N; first += HIN_AHEAD * x_lines) {
                if (!once_hin() && first != x_line) fetch_hin(hin_at + own * N * P, first);
                [[unroll]] for (uint i = 0u; i < HIN_AHEAD; i++) {
                    uint row = first + i * x_lines;
                    if (row < N) add(sum, c_scaled[own * MAX_N + row], eight_of(DTYPE_OF(hin), hin_ahead[i]));
                }
            }
            if (own + 1u < count) fetch_hin(hin_at + (own + 1u) * N * P, x_line);
            float keep = keeps_all[own];
            sum = Eight(keep * sum.low, keep * sum.high);
            for (uint first = x_line; first < n; first += X_AHEAD * x_lines) {
                if (!once_x() && first != x_line) fetch_x(x_at + own * P, first, n, pitch);
                [[unroll]] for (uint i = 0u; i < X_AHEAD; i++) {
                    uint k = first + i * x_lines;
                    if (k < n) add(sum, weights[own * WINDOW + k], eight_of(DTYPE_OF(rows), x_ahead[i]));
                }
            }
            if (own + 1u < count) fetch_x(x_at + (own + 1u) * P, x_line, n, pitch);
            // Plane by plane, so that neighbouring lanes use neighbouring words.
            uint held = HEADS < T0 ? 0u : own;
            work[2u * held * LANES + LANE] = sum.low;
            work[(2u * held + 1u) * LANES + LANE] = sum.high;
            if (HEADS < T0 || own + 1u == count) {
                barrier();
                for (uint e = LANE; e < (held + 1u) * P; e += LANES) {
                    uint h = first_h + own - held + e / P;
                    uint p = e % P;
                    uint from = (2u * (e / P) + (p & 4u) / 4u) * LANES + p / 8u;
                    float total = 0.0;
                    if (has(args.flags, HAS_D))
                        total = load_d(args.d_at + h) * load_rows(args.rows_at + (b * WINDOW + n - 1u) * pitch + h * P + p);
                    for (uint line = 0u; line < x_lines; line += 4u) {
                        vec4 four;
                        [[unroll]] for (uint i = 0u; i < 4u; i++)
                            four[i] = work[from + min(line + i, x_lines - 1u) * x_team][p & 3u];
                        total += sum_where(four, lessThan(line + uvec4(0u, 1u, 2u, 3u), uvec4(x_lines)));
                    }
#ifdef GATED
                    total *= gates[own * P + p];
#endif
                    store_y(args.y_at + b * args.y_row + h * P + p, total);
                }
                barrier();
            }
        }
    }
}
