// The rows of ssd_memory for large devices without matrices: a workgroup of 128 lanes computes 64 rows n of one head, 64
// columns at a time, as a product over the chunk's tokens. Normalised rows that are wider are computed twice, the first time
// for their squares. Shared memory: that of a product, and 4 LANES + 4 SIDE (16 + 1) bytes: 13.3 KiB.
#include "lib/product.glsl"
shared float factors[LANES]; // of as many tokens
shared float squares[SIDE * (16u + 1u)];

void main()
{
    uint n_blocks = (args.N + SIDE - 1u) / SIDE;
    bool scaled = has(args.flags, HAS_SCALE);
    uint p_blocks = (args.P + SIDE - 1u) / SIDE;
    uint last_round = scaled && p_blocks > 1u ? p_blocks : 0u;
    for (uint tile = gl_WorkGroupID.x; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint n_first = tile % n_blocks * SIDE;
        uint rest = tile / n_blocks;
        uint h = rest % args.H;
        rest /= args.H;
        uint j = rest % args.M;
        uint b = rest / args.M;
        uint position = seq_position(b);
        Chunk chunk = chunk_of(position, seq_count(b, args.L), args.S, j);
        if (chunk.begin >= chunk.end) continue;
        uint size = chunk.end - chunk.begin;
        uint token = b * args.L + chunk.begin;
        uint cum = (b * args.H + h) * args.L + chunk.begin;
        uint own = (b * args.H + h) * args.N * args.P;
        uint m = position / args.S + j;
        bool kept = !has(args.flags, HAS_RUN) || (chunk.closes && m >= args.first && m - args.first < args.count);
        uint row = kept ? memory_row(position, b, j, h) : 0u;
        vec2 end = cum_at(cum + size - 1u).xy;
        uint lines = min(SIDE, args.N - n_first);
        uint b_at = args.b_at + token * args.b_row + h / (args.H / args.G) * args.N + n_first;

        for (uint round = 0u; round < last_round + p_blocks; round++) {
            uint p_first = round % p_blocks * SIDE;
            uint columns = min(SIDE, args.P - p_first);
            uint x_at = args.x_at + token * args.x_row + h * args.P + p_first;
            vec4 sums[8];
            [[unroll]] for (uint i = 0u; i < 8u; i++) sums[i] = vec4(0.0);
            for (uint t_first = 0u; t_first < size; t_first += DEPTH) {
                barrier();
                if (t_first % LANES == 0u) {
                    vec3 at = cum_at(cum + min(t_first + LANE, size - 1u));
                    factors[LANE] = t_first + LANE < size ? exp_neg(cum_between(at.xy, end)) * at.z : 0.0;
                    barrier();
                }
                for (uint i = LANE; i < DEPTH * QUADS; i += LANES) {
                    uint k = i / QUADS;
                    uint t = min(t_first + k, size - 1u);
                    uint line = min(4u * (i % QUADS), lines - 1u);
                    uint column = min(4u * (i % QUADS), columns - 1u);
                    vec4 key = FOUR(load_b, b_at + t * args.b_row + line, lines - line);
                    vec4 value = FOUR(load_x, x_at + t * args.x_row + column, columns - column);
                    slabs[LEFT + k * PITCH + i % QUADS] = key * factors[(t_first + k) % LANES];
                    slabs[RIGHT + k * PITCH + i % QUADS] = value;
                }
                barrier();
                multiply(sums, LEFT);
            }
            if (j == 0u && has(args.flags, HAS_OPEN)) {
                float still = exp_neg(load_decay((b * (args.M + 1u) + 1u) * args.H + h));
                [[unroll]] for (uint i = 0u; i < 8u; i++) {
                    uint at = own + (n_first + min(OWN_LINE + i, lines - 1u)) * args.P + p_first;
                    [[unroll]] for (uint column = 0u; column < 4u; column++)
                        sums[i][column] += still * load_open(at + min(OWN_COLUMN + column, columns - 1u));
                }
            }

            float inverses[8];
            [[unroll]] for (uint i = 0u; i < 8u; i++) inverses[i] = 1.0;
            if (scaled && round < p_blocks) {
                [[unroll]] for (uint i = 0u; i < 8u; i++) {
                    float square = 0.0;
                    [[unroll]] for (uint column = 0u; column < 4u; column++)
                        if (OWN_COLUMN + column < columns) square += sums[i][column] * sums[i][column];
                    uint at = (OWN_LINE + i) * 17u + LANE % 16u;
                    squares[at] = square + (round > 0u ? squares[at] : 0.0);
                }
                barrier();
                if (round + 1u == p_blocks && LANE < SIDE) {
                    float sum = 0.0;
                    for (uint k = 0u; k < 16u; k++) sum += squares[LANE * 17u + k];
                    float s = sqrt(sum / float(args.P) + args.eps);
                    if (kept && LANE < lines) store_scale(args.scale_at + row + n_first + LANE, s);
                    squares[LANE * 17u + 16u] = 1.0 / s;
                }
                barrier();
            }
            if (scaled && round >= last_round) {
                [[unroll]] for (uint i = 0u; i < 8u; i++) inverses[i] = squares[(OWN_LINE + i) * 17u + 16u];
            }
            bool whole = kept && round >= last_round;
            bool open = round < p_blocks && has(args.flags, HAS_OPEN) && !chunk.closes;
            [[unroll]] for (uint i = 0u; i < 8u; i++) {
                [[unroll]] for (uint column = 0u; column < 4u; column++) {
                    if (OWN_LINE + i < lines && OWN_COLUMN + column < columns) {
                        uint n = n_first + OWN_LINE + i;
                        uint p = p_first + OWN_COLUMN + column;
                        if (open) store_tail(own + n * args.P + p, sums[i][column]);
                        if (whole) store_memory(args.memory_at + (row + n) * args.P + p, sums[i][column] * inverses[i]);
                    }
                }
            }
            barrier();
        }
    }
}
