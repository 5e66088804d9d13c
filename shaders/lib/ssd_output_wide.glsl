// The rows of ssd_output for large devices without matrices: a workgroup of 128 lanes computes 64 tokens of T0 heads of a
// group, 64 columns at a time, in products of 64 x 64. c . b of 64 sources is computed once for the heads. The sums are kept
// relative to the cumulative decay at the end of the last block of sources below the tile, so that only the block on the
// diagonal needs an exponential per element and head.
// Shared memory: that of a product with its tile, and 12 SIDE bytes: 26.9 KiB.
#define PRODUCT_TILE
#include "lib/product.glsl"
shared float factors[SIDE];
shared vec2 walk[SIDE]; // of the block's sources

// Right operand: sources (or states) k_first .. as rows of columns; at: of row 0 and the first column.
#define STAGE_ROWS(load, at, pitch, k_first, last, factor) \
    for (uint i = LANE; i < DEPTH * QUADS; i += LANES) { \
        uint k = k_first + i / QUADS; \
        uint column = min(4u * (i % QUADS), columns - 1u); \
        vec4 value = FOUR(load, (at) + min(k, last) * (pitch) + column, columns - column); \
        slabs[RIGHT + i / QUADS * PITCH + i % QUADS] = value * (factor); \
    }
// Tokens as lines: states n_first .. of each; lines past the last one repeat it, states past N are 0.
#define STAGE_LINES(load, to, at, pitch, first, last) \
    for (uint i = LANE; i < DEPTH * QUADS; i += LANES) { \
        uint n = n_first + i % DEPTH; \
        uint line = (first) + 4u * (i / DEPTH); \
        vec4 value = vec4(0.0); \
        if (n < args.N) { \
            [[unroll]] for (uint r = 0u; r < 4u; r++) value[r] = load((at) + min(line + r, last) * (pitch) + n); \
        } \
        slabs[(to) + i % DEPTH * PITCH + i / DEPTH] = value; \
    }

float hin_size(uint row) { return has(args.flags, HAS_HIN_SCALE) ? load_hin_scale(args.hin_scale_at + row) : 1.0; }

void main()
{
    uint in_group = args.H / args.G;
    uint h_blocks = (in_group + T0 - 1u) / T0;
    uint t_blocks = (args.C + SIDE - 1u) / SIDE;
    for (uint tile = gl_WorkGroupID.x; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint t_first = tile % t_blocks * SIDE;
        uint rest = tile / t_blocks;
        uint h_first = rest % h_blocks * T0;
        rest /= h_blocks;
        uint g = rest % args.G;
        rest /= args.G;
        uint j = rest % args.M;
        uint b = rest / args.M;
        Chunk chunk = chunk_of(seq_position(b), seq_count(b, args.L), args.S, j);
        uint size = chunk.begin < chunk.end ? chunk.end - chunk.begin : 0u;
        if (t_first >= size) continue;
        uint t_end = min(t_first + SIDE, size);
        uint token = b * args.L + chunk.begin;
        uint b_at = args.b_at + token * args.b_row + g * args.N;
        uint c_at = args.c_at + token * args.c_row + g * args.N;
        uint first_head = g * in_group + h_first;
        uint last_head = g * in_group + in_group - 1u;

        for (uint p_first = 0u; p_first < args.P; p_first += SIDE) {
            uint columns = min(SIDE, args.P - p_first);
            vec4 sums[T0][8];
            [[unroll]] for (uint head = 0u; head < T0; head++) {
                [[unroll]] for (uint i = 0u; i < 8u; i++) sums[head][i] = vec4(0.0);
            }
            for (uint n_first = 0u; n_first < args.N; n_first += DEPTH) {
                barrier();
                STAGE_LINES(load_c, LEFT, c_at, args.c_row, t_first, size - 1u)
                [[unroll]] for (uint head = 0u; head < T0; head++) {
                    uint row = ((b * args.M + j) * args.H + min(first_head + head, last_head)) * args.N;
                    if (head > 0u) barrier();
                    STAGE_ROWS(load_hin, args.hin_at + row * args.P + p_first, args.P, n_first, args.N - 1u,
                               hin_size(row + min(k, args.N - 1u)))
                    barrier();
                    multiply(sums[head], LEFT);
                }
            }

            for (uint s_first = 0u; s_first < t_end; s_first += SIDE) {
                bool below = s_first < t_first;
                vec4 products[8];
                [[unroll]] for (uint i = 0u; i < 8u; i++) products[i] = vec4(0.0);
                for (uint n_first = 0u; n_first < args.N; n_first += DEPTH) {
                    barrier();
                    STAGE_LINES(load_c, LEFT, c_at, args.c_row, t_first, size - 1u)
                    STAGE_LINES(load_b, RIGHT, b_at, args.b_row, s_first, size - 1u)
                    barrier();
                    multiply(products, LEFT);
                }
                [[unroll]] for (uint head = 0u; head < T0; head++) {
                    uint h = min(first_head + head, last_head);
                    uint cum = (b * args.H + h) * args.L + chunk.begin;
                    vec2 before = s_first > 0u ? cum_at(cum + s_first - 1u).xy : vec2(0.0);
                    vec2 after = cum_at(cum + min(s_first + SIDE, size) - 1u).xy;
                    barrier();
                    for (uint i = LANE; i < SIDE; i += LANES) {
                        vec3 at = cum_at(cum + min(s_first + i, size - 1u));
                        factors[i] = (below ? exp_neg(cum_between(at.xy, after)) : 1.0) * at.z;
                        walk[i] = at.xy;
                    }
                    barrier();
                    if (below) {
                        float factor = exp_neg(cum_between(before, after));
                        [[unroll]] for (uint i = 0u; i < 8u; i++) sums[head][i] *= factor;
                    } else {
                        [[unroll]] for (uint i = 0u; i < 8u; i++)
                            sums[head][i] *= exp_neg(cum_between(before, walk[OWN_LINE + i]));
                    }
                    if (!below || head == 0u) {
                        [[unroll]] for (uint column = 0u; column < 4u; column++) {
                            vec2 source = walk[OWN_COLUMN + column];
                            [[unroll]] for (uint q = 0u; q < 2u; q++) {
                                vec4 weight;
                                [[unroll]] for (uint r = 0u; r < 4u; r++) {
                                    uint line = OWN_LINE + 4u * q + r;
                                    weight[r] = products[4u * q + r][column];
                                    // Within the choice: all 32 exponentials at once would take twice the registers.
                                    if (!below)
                                        weight[r] = OWN_COLUMN + column <= line
                                                        ? weight[r] * exp_neg(cum_between(source, walk[line])) : 0.0;
                                }
                                slabs[TILE + (OWN_COLUMN + column) * PITCH + OWN_LINE / 4u + q] = weight;
                            }
                        }
                    }
                    for (uint s = 0u; s < min(SIDE, t_end - s_first); s += DEPTH) {
                        barrier();
                        STAGE_ROWS(load_x, args.x_at + (token + s_first) * args.x_row + h * args.P + p_first, args.x_row, s,
                                   size - 1u - s_first, factors[k])
                        barrier();
                        if (below || s < OWN_LINE + 8u) multiply(sums[head], TILE + s * PITCH); // else all weights are 0
                    }
                }
            }

            [[unroll]] for (uint head = 0u; head < T0; head++) {
                uint h = first_head + head;
                float skip = has(args.flags, HAS_D) ? load_d(args.d_at + min(h, last_head)) : 0.0;
                [[unroll]] for (uint i = 0u; i < 8u; i++) {
                    uint t = t_first + OWN_LINE + i;
                    [[unroll]] for (uint column = 0u; column < 4u; column++) {
                        if (h <= last_head && t < t_end && OWN_COLUMN + column < columns) {
                            uint at = h * args.P + p_first + OWN_COLUMN + column;
                            float value = sums[head][i][column];
                            if (has(args.flags, HAS_D)) value += skip * load_x(args.x_at + (token + t) * args.x_row + at);
                            store_y(args.y_at + (token + t) * args.y_row + at, value);
                        }
                    }
                }
            }
        }
    }
}
