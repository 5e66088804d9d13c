#version 460
#extension GL_GOOGLE_include_directive : require
// g and slope of sma_backward_scores and the sums of sma_backward_sums in one pass over the memories: see args.h.
// qn, of_q B L G N; en, of_e B L G P; c, grad_c B L G N; r, up_r B L H P; lse B L H; g, slope B L H M; dh B M H N P, factor B M H N.
// A workgroup of 128 lanes takes T0 = 32 tokens of a (b, group), head after head, and 32 rows of memories w at a time: two memories of up to 16 rows,
// or one. It multiplies those rows once: with Z = w en and U = w up_r (32 rows x 32 tokens each, in registers)
//   logit = sum_n qn key Z;  v . up_r = sum_n c value U;  of_q += slope key Z;  grad_c += g value U;  of_e += (slope qn key)^T w.
// Lane (i, j) of 8 x 16 holds rows i + 8 r, r < 4, of Z and U at the tokens j and j + 16, of of_q and grad_c alike, and of of_e the tokens 4 i to
// 4 i + 3 x the columns 4 j to 4 j + 3. Shared memory: 31,872 bytes.
// Guards: exponents are clamped to <= 0; memories that no token of the tile sees and rows past N count as 0; g and slope of what a token does not see
// are not written and count as 0.
#include "lib/dart.glsl"
#include "table/sma_backward_tokens.glsl"
READS(qn) READS(en) READS(c) READS(dh) READS(factor) READS(seq) READS(r) READS(lse) READS(up_r)
WRITES(g) WRITES(slope) WRITES(of_q) WRITES(of_e) READS_WRITES(grad_c)
#define PACKS
#include "lib/seq.glsl"
#include "sma/backward.glsl"
const uint TOKENS = 32u;
const uint ROWS = 32u;
const uint WIDTH = 64u;   // the most columns P
const uint SHARE = 16u;   // elements of w that a lane loads, four at a time: ROWS WIDTH / 128
const uint PITCH = 17u;   // vec4s from one row of w, en or up_r to the next: lanes beside one another then read other banks
const uint W_PITCH = 10u; // ... of `weighted`

shared vec4 memory[ROWS * PITCH];         // w
shared vec4 columns[2u * TOKENS * PITCH]; // en of the tokens, then up_r
shared vec4 weighted[ROWS * W_PITCH];     // slope qn key of (row, token); before that the lanes' parts of logits and of v . up_r
shared float weights[4u * TOKENS];        // of the first memory slope, then g; then those of the second
shared float factors[ROWS];

void main()
{
    uint tiles = (args.L + TOKENS - 1u) / TOKENS;
    uint in_group = args.H / args.G;
    bool raw = has(args.flags, IS_RAW);
    uint padded = args.N <= ROWS / 2u ? ROWS / 2u : ROWS; // rows from one memory to the next
    uint together = ROWS / padded;
    uint quads = (args.P + 3u) / 4u;
    // Of the lanes of a subgroup of 32, four have different i and eight different j.
    uint i = LANE / 64u * 4u + LANE % 32u / 8u;
    uint j = LANE / 32u % 2u * 8u + LANE % 8u;
    uint token = LANE % TOKENS; // for which a lane of the first two times 32 makes weights
    uint put = LANE / TOKENS;   // ... of this memory of those taken together
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint first = tile % tiles * TOKENS;
        uint group = tile / tiles % args.G;
        uint b = tile / tiles / args.G;
        Sequence sequence = sequence_of(b);
        if (first >= sequence.span) continue;
        uint count = sequence.count;
        uint position = sequence.position;
        uint row = sequence.row + first;
        uint slots = slot_of(sequence, b, args.M, args.S);
        uint span = sequence.span;
        uint seen = first < count ? seen_by(position, min(first + TOKENS, count) - 1u) : 0u;
        uint own = first + token < count ? seen_by(position, first + token) : 0u;
        barrier();
        for (uint e = LANE; e < TOKENS * WIDTH; e += LANES) {
            uint t = e / WIDTH;
            uint p = e % WIDTH;
            columns[t * PITCH + p / 4u][p % 4u] = first + t < count && p < args.P ? load_en(((row + t) * args.G + group) * args.P + p) : 0.0;
        }
        // Of row i + 8 r and token j + 16 k: 2 r + k.
        float sum_q[8];
        float sum_c[8];
        [[unroll]] for (uint x = 0u; x < 8u; x++) sum_q[x] = sum_c[x] = 0.0;
        vec4 sum_e[4];
        [[unroll]] for (uint k = 0u; k < 4u; k++) sum_e[k] = vec4(0.0);

        for (uint h = group * in_group; h < (group + 1u) * in_group && seen > 0u; h++) {
            barrier();
            for (uint e = LANE; e < TOKENS * WIDTH; e += LANES) {
                uint t = e / WIDTH;
                uint p = e % WIDTH;
                bool live = first + t < count && p < args.P;
                columns[(TOKENS + t) * PITCH + p / 4u][p % 4u] = live ? load_up_r(args.up_r_at + (row + t) * args.up_r_row + h * args.P + p) : 0.0;
            }
            float along = 0.0; // of four lanes a token
            for (uint p = LANE % 4u; p < args.P && first + LANE / 4u < count; p += 4u)
                along += load_r(args.r_at + (row + LANE / 4u) * args.r_row + h * args.P + p) *
                         load_up_r(args.up_r_at + (row + LANE / 4u) * args.up_r_row + h * args.P + p);
            weights[LANE] = along;
            barrier();
            uint head = (row + token) * args.H + h;
            float dot_r = weights[4u * token] + weights[4u * token + 1u] + weights[4u * token + 2u] + weights[4u * token + 3u];
            float lse = own > 0u ? load_lse(args.lse_at + head) : 0.0;
            for (uint m_first = 0u; m_first < seen; m_first += together) {
                barrier();
                [[dont_unroll]] for (uint x = 0u; x < SHARE; x += 4u) {
                    float of_w[4];
                    [[unroll]] for (uint k = 0u; k < 4u; k++) {
                        uint line = ((x + k) * LANES + LANE) / WIDTH;
                        uint p = LANE % WIDTH;
                        uint m = m_first + line / padded;
                        uint n = line % padded;
                        bool live = m < seen && n < args.N && p < args.P;
                        of_w[k] = live ? load_dh(args.dh_at + (((slots + m) * args.H + h) * args.N + n) * args.P + p) : 0.0;
                    }
                    [[unroll]] for (uint k = 0u; k < 4u; k++) {
                        uint line = ((x + k) * LANES + LANE) / WIDTH;
                        memory[line * PITCH + LANE % WIDTH / 4u][LANE % 4u] = of_w[k];
                    }
                }
                if (LANE < ROWS) {
                    uint m = m_first + LANE / padded;
                    uint n = LANE % padded;
                    factors[LANE] = m < seen && n < args.N ? load_factor(args.factor_at + ((slots + m) * args.H + h) * args.N + n) : 0.0;
                }
                barrier();

                float z[8];
                float u[8];
                [[unroll]] for (uint x = 0u; x < 8u; x++) z[x] = u[x] = 0.0;
                [[dont_unroll]] for (uint q = 0u; q < quads; q++) {
                    vec4 w[4];
                    [[unroll]] for (uint k = 0u; k < 4u; k++) w[k] = memory[(i + 8u * k) * PITCH + q];
                    [[unroll]] for (uint t = 0u; t < 2u; t++) {
                        vec4 of = columns[(j + 16u * t) * PITCH + q];
                        [[unroll]] for (uint x = 0u; x < 16u; x++) z[x % 4u * 2u + t] += w[x % 4u][x / 4u] * of[x / 4u];
                        of = columns[(TOKENS + j + 16u * t) * PITCH + q];
                        [[unroll]] for (uint x = 0u; x < 16u; x++) u[x % 4u * 2u + t] += w[x % 4u][x / 4u] * of[x / 4u];
                    }
                }
                // The factors: keys of raw memories, values of normalised ones. Then the logit and v . up_r of each memory, first over a lane's rows.
                float part[8]; // 4 (which memory) + 2 (logit, or v . up_r) + k
                [[unroll]] for (uint x = 0u; x < 8u; x++) part[x] = 0.0;
                [[unroll]] for (uint x = 0u; x < 8u; x++) {
                    float factor = factors[i + 8u * (x / 2u)];
                    z[x] *= raw ? factor : 1.0;
                    u[x] *= raw ? 1.0 : factor;
                    uint n = (i + 8u * (x / 2u)) % padded;
                    uint t = j + 16u * (x % 2u);
                    if (n < args.N && first + t < count) { // read for each memory, from a cache: registers are scarcer
                        part[x / 4u * 4u + x % 2u] += load_qn(((row + t) * args.G + group) * args.N + n) * z[x];
                        part[x / 4u * 4u + 2u + x % 2u] += load_c(args.c_at + (row + t) * args.c_row + group * args.N + n) * u[x];
                    }
                }
                [[unroll]] for (uint x = 0u; x < 8u; x++) {
                    if (x >= 4u && together == 1u) continue;
                    float sum = together == 1u ? part[x % 4u] + part[4u + x % 4u] : part[x];
                    uint t = j + 16u * (x % 2u);
                    weighted[(x / 2u * 8u + i) * W_PITCH + t / 4u][t % 4u] = sum;
                }
                barrier();
                if (put < together) {
                    float logit = 0.0;
                    float value = 0.0;
                    for (uint k = 0u; k < 8u; k++) {
                        logit += weighted[(put * 16u + k) * W_PITCH + token / 4u][token % 4u];
                        value += weighted[(put * 16u + 8u + k) * W_PITCH + token / 4u][token % 4u];
                    }
                    uint m = m_first + put;
                    float weight = 0.0;
                    float slope = 0.0;
                    if (m < own) {
                        weight = exp_neg(logit - lse);
                        slope = own == 1u ? 0.0 : weight * (value - dot_r);
                        store_g(head * args.M + m, weight);
                        store_slope(head * args.M + m, slope);
                    }
                    weights[2u * put * TOKENS + token] = slope;
                    weights[(2u * put + 1u) * TOKENS + token] = weight;
                }
                barrier();
                [[unroll]] for (uint x = 0u; x < 8u; x++) {
                    uint line = i + 8u * (x / 2u);
                    uint t = j + 16u * (x % 2u);
                    uint of_memory = line / padded * 2u * TOKENS + t;
                    float slope = weights[of_memory];
                    sum_q[x] += slope * z[x];
                    sum_c[x] += weights[of_memory + TOKENS] * u[x];
                    uint n = line % padded;
                    float key = n < args.N && first + t < count ? load_qn(((row + t) * args.G + group) * args.N + n) : 0.0;
                    weighted[line * W_PITCH + t / 4u][t % 4u] = slope * key * (raw ? factors[line] : 1.0);
                }
                barrier();
                [[dont_unroll]] for (uint line = 0u; line < ROWS && j < quads; line += 4u) {
                    [[unroll]] for (uint x = 0u; x < 4u; x++) {
                        vec4 by = weighted[(line + x) * W_PITCH + i];
                        vec4 w = memory[(line + x) * PITCH + j];
                        [[unroll]] for (uint k = 0u; k < 4u; k++) sum_e[k] += by[k] * w;
                    }
                }
            }
        }

        [[unroll]] for (uint x = 0u; x < 8u; x++) {
            uint n = i + 8u * (x / 2u);
            uint t = j + 16u * (x % 2u);
            if (n >= args.N || first + t >= span) continue; // rows 16 to 31 of two memories are rows of the second, and belong to n below 16
            bool two = together == 2u;
            store_of_q(((row + t) * args.G + group) * args.N + n, two ? sum_q[x] + sum_q[(x + 4u) % 8u] : sum_q[x]);
            float of_c = two ? sum_c[x] + sum_c[(x + 4u) % 8u] : sum_c[x];
            uint to = args.grad_c_at + (row + t) * args.grad_c_row + group * args.N + n;
            bool adds = has(args.flags, IS_ADD);
            if (!adds || first + t < count) store_grad_c(to, adds ? load_grad_c(to) + of_c : of_c);
        }
        [[unroll]] for (uint x = 0u; x < 16u; x++) {
            uint t = 4u * i + x / 4u;
            uint p = 4u * j + x % 4u;
            if (p < args.P && first + t < span) store_of_e(((row + t) * args.G + group) * args.P + p, sum_e[x / 4u][x % 4u]);
        }
    }
}
