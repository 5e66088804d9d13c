#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_KHR_shader_subgroup_shuffle : require
// sma_backward_token_side on cooperative matrices, for N 128, P 64 and normalised memories w of the 16-bit type of q, e, c and up_r: see args.h.
// Of q and e before their norms, with f the product of the factors that the norms give them and scale that of row n of the memory:
//   Z = e w^T, U = up_r w^T (tokens x N), key = q w (tokens x P);  logit = f sum_n q Z;  v . up_r = sum_n c scale U;
//   to_q += delta Z;  grad_c += g scale U;  to_e += delta key;  then both norms.
// All operands of products are inputs as they are, everything else is f32.
// A workgroup takes T0 tokens of a (b, group, part), TOKENS at a time, head after head, the memories one by one through shared memory; the tiles
// that see most memories come first. Two subgroups share MATRIX_M tokens, each takes half of the n. What a row of Z or U adds up to passes through
// shared memory, where both subgroups add up both halves. q and c are also kept as they lie in Z (elements of matrices of one type and use lie
// alike).
// With AHEAD the next memory is fetched while key is multiplied, for which AMD's and NVK's compilers have too few registers.
// Shared memory: 16 (PITCH (N + 2 TOKENS) + 2 PARTS) + 4 N + 8 SUBGROUPS MATRIX_M + 20 TOKENS bytes, with READS_SHARED 4 WORDS LANES more: with
// matrices of 16 x 16 x 16 29,248 for 2 subgroups, 47,744 with READS_SHARED for 4.
// Guards: exponents are clamped to <= 0; tokens past the count are not read and count as 0; g and slope of what a token does not see are not written
// and count as 0; r counts only where a token sees two memories or more.
#include "lib/dart.glsl"
#include "lib/matrix.glsl"
#include "lib/eight.glsl"
#include "table/sma_backward_token_side.glsl"
READS_AS(uvec4, quads, q) READS_AS(uvec4, quads, e) READS_AS(uvec4, quads, c) READS_AS(uvec4, quads, dh) READS_AS(float, floats, factor) READS(seq)
READS_EIGHT(r) READS_AS(float, floats, lse) READS_AS(uvec4, quads, up_r) WRITES_AS(float, floats, g) WRITES_AS(float, floats, slope)
WRITES_EIGHT(grad_q) WRITES_EIGHT(grad_e) READS_WRITES_AS(uvec4, quads, grad_c) LOADS_EIGHT(grad_c)
#define PACKS
#include "lib/seq.glsl"
#include "sma/backward.glsl"
#include "sma/token_side.glsl"

const uint OWN = MATRIX_M > SUBGROUP_SIZE ? MATRIX_M / SUBGROUP_SIZE : 1u; // tokens of a lane
const uint SHARES = MATRIX_M > SUBGROUP_SIZE ? 1u : SUBGROUP_SIZE / MATRIX_M; // lanes of a token
const uint COPIES = N * P / 8u / LANES;
const uint SCALES = (N + LANES - 1u) / LANES;
const uint TURNS = (TOKENS * 4u + LANES - 1u) / LANES;
const uint EIGHTHS = P / 32u;
shared vec2 norms[TOKENS];     // 1 / rms(q), 1 / rms(e)
shared float factors[TOKENS];  // f
shared float dots[TOKENS];     // r . up_r
shared float logs[TOKENS];     // lse

uvec4 next_rows[COPIES];       // of the next memory, then of the next head
float next_scales[SCALES];
uvec4 next_up[TURNS * EIGHTHS];
Words next_r[TURNS * EIGHTHS];
float next_log[TURNS];
#include "sma/token_side_rows.glsl"

void main()
{
    uint s = gl_SubgroupID;
    uint lane = gl_SubgroupInvocationID;
    uint thread = s * SUBGROUP_SIZE + lane;
    uint own = s / 2u * MATRIX_M;
    uint n0 = s % 2u * HALF;
    uint tiles = (args.L + T0 - 1u) / T0;
    uint of_tile = args.G * args.B;
    uint in_part = args.H / args.G / args.parts;
    uint passes = T0 / TOKENS;
    uint all_rows = has(args.flags, HAS_CU) ? args.T : args.B * args.L;
    for (uint tile = WORKGROUP; tile < args.tiles * passes; tile += gl_NumWorkGroups.x) {
        uint part = tile / passes % args.parts;
        uint item = tile / passes / args.parts;
        uint group = item % args.G;
        uint b = item % of_tile / args.G;
        uint first = (tiles - 1u - item / of_tile) * T0 + tile % passes * TOKENS;
        Sequence piece = sequence_of(b);
        if (first >= piece.span) continue;
        uint live = first < piece.count ? min(piece.count - first, TOKENS) : 0u;
        uint seen = live > 0u ? seen_by(piece.position, first + live - 1u) : 0u;
        uint token = piece.row + first;
        uint slots = slot_of(piece, b, args.M, args.S);
        take_tokens(s, thread, own, n0, token, live, group);
        uint sees[OWN];
        [[unroll]] for (uint x = 0u; x < OWN; x++) {
            uint t = own + (lane + x * SUBGROUP_SIZE) % MATRIX_M;
            sees[x] = t < live ? seen_by(piece.position, first + t) : 0u;
        }
        [[unroll]] for (uint j = 0u; j < ROW_TILES; j++) {
            sum_q[j] = MatrixSum(0.0);
            sum_c[j] = MatrixSum(0.0);
        }
        [[unroll]] for (uint j = 0u; j < COLUMN_TILES; j++) sum_e[j] = MatrixSum(0.0);
        uint h = (group * args.parts + part) * in_part;
        uint h_end = h + in_part;
        uint m = 0u;
#ifdef AHEAD
        if (seen > 0u) fetch_memory(thread, (slots * args.H + h) * N);
#endif
        while (seen > 0u && h < h_end) {
            barrier(); // all are done with the memory before
            if (m == 0u) {
                fetch_head(thread, token, live, h);
                put_head(thread, live);
            }
#ifndef AHEAD
            fetch_memory(thread, ((slots + m) * args.H + h) * N);
#endif
            put_memory(thread);
            barrier();
            multiply_rows(own, n0);
            put_parts(s, n0, thread, m >> 31);
            barrier();
            [[unroll]] for (uint x = 0u; x < OWN; x++) {
                uint line = (lane + x * SUBGROUP_SIZE) % MATRIX_M;
                uint t = own + line;
                vec2 sum = vec2(0.0);
                [[unroll]] for (uint part = 0u; part < MATRIX_N / 2u; part += SHARES) {
                    uint i = part + lane / MATRIX_M;
                    if (i >= MATRIX_N / 2u) continue;
                    uint at = ((s / 2u * 2u + i / (MATRIX_N / 4u)) * MATRIX_M + line) * PART_PITCH + i % (MATRIX_N / 4u);
                    sum += vec2(dot(parts[at], vec4(1.0)), dot(parts[PARTS + at], vec4(1.0)));
                }
                [[unroll]] for (uint apart = MATRIX_M; apart < SUBGROUP_SIZE; apart *= 2u) sum += subgroupShuffleXor(sum, apart);
                float weight = m < sees[x] ? exp_neg(sum.x * factors[t] - logs[t]) : 0.0;
                float delta = m < sees[x] && sees[x] > 1u ? weight * (sum.y - dots[t]) : 0.0;
                if (lane < MATRIX_M) {
                    weights[s * 2u * MATRIX_M + line] = delta;
                    weights[(s * 2u + 1u) * MATRIX_M + line] = weight;
                    uint to = (h * args.M + m) * all_rows + token + t;
                    if (m < sees[x] && n0 == 0u) floats_g[to] = weight;
                    if (m < sees[x] && n0 != 0u) floats_slope[to] = delta * factors[t];
                }
            }
            subgroup_sync();
            MatrixSum by = add_rows(s);
            m++;
            if (m == seen) {
                m = 0u;
                h++;
            }
#ifdef AHEAD // Z and U are done with: their registers are free for what comes next, while key is multiplied
            if (h < h_end) fetch_memory(thread, ((slots + m) * args.H + h) * N);
#endif
            add_key(by, n0);
        }
        put_gradients(s, thread, own, n0, token, live, piece.span - first, group, part);
    }
}
