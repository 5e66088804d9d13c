#version 460
#extension GL_GOOGLE_include_directive : require
// The rows of ssd_memory for devices with wide subgroups and no matrices: a workgroup of 128 lanes computes 64 rows n of one
// head, 64 columns at a time, as a product over the chunk's tokens: a lane makes lines 8 (l / 16) .. + 7. x is multiplied by
// the decay as it is staged. Normalised rows that are wider are computed twice, the first time for their squares.
// With -DTILES, for sizes that fit tiles, x and b are read eight elements at a time. With -DFLOAT16 besides, for f16 x and b,
// b stays f16 in shared memory and in registers (see dense/linear_wide.comp). Shared memory: 4.8 KiB, 6.8 KiB with -DFLOAT16.
#include "lib/dart.glsl"
#include "table/ssd_memory.glsl"
READS(x) READS(b) READS(cum) READS(decay) READS(seq) READS(open) WRITES(memory) WRITES(scale) WRITES(tail)
#define PACKS
#include "lib/seq.glsl"
#define SSD_CUM
#define SSD_MEMORY
#include "ssd.glsl"
const uint LINES = 64u;
#include "lib/product.glsl"
#ifdef TILES
#include "lib/eight.glsl"
READS_EIGHT(x) READS_EIGHT(b)
#endif
#ifdef FLOAT16
const uint DEPTH = 16u;
shared vec4 slabs[DEPTH * QUADS];
shared uvec4 keys[DEPTH * LINES / 8u];
#else
const uint DEPTH = 8u;
const uint KEYS = DEPTH * QUADS;
shared vec4 slabs[2u * DEPTH * QUADS];
#endif
shared float factors[LANES]; // of as many tokens
shared float totals[LINES];  // of the squares, then 1 / scale
#define OWN_LINE (LANE / 16u * OWN_LINES)

// The squares of a lane's columns, in the slabs between products.
#define SQUARE(line, part) slabs[(line) * 4u + (part) / 4u][(part) % 4u]

// sums += keys slabs.
void multiply(inout vec4 sums[OWN_LINES])
{
    [[unroll]] for (uint k = 0u; k < DEPTH; k++) {
#ifdef FLOAT16
        uvec4 q = keys[k * (LINES / 8u) + LANE / 16u];
        vec4 low = four_f16(q.xy);
        vec4 high = four_f16(q.zw);
#else
        vec4 low = slabs[KEYS + k * QUADS + LANE / 16u * 2u];
        vec4 high = slabs[KEYS + k * QUADS + LANE / 16u * 2u + 1u];
#endif
        vec4 value = slabs[k * QUADS + LANE % 16u];
        [[unroll]] for (uint i = 0u; i < 4u; i++) {
            sums[i] += low[i] * value;
            sums[4u + i] += high[i] * value;
        }
    }
}

void main()
{
    uint n_blocks = (args.N + LINES - 1u) / LINES;
    bool scaled = has(args.flags, HAS_SCALE);
    uint p_blocks = (args.P + COLUMNS - 1u) / COLUMNS;
    uint last_round = scaled && p_blocks > 1u ? p_blocks : 0u;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint n_first = tile % n_blocks * LINES;
        uint rest = tile / n_blocks;
        uint h = rest % args.H;
        rest /= args.H;
        uint j = rest % args.M;
        uint b = rest / args.M;
        Sequence sequence = sequence_of(b);
        uint position = sequence.position;
        Chunk chunk = chunk_of(position, sequence.count, args.S, j);
        if (chunk.begin >= chunk.end) continue;
        uint size = chunk.end - chunk.begin;
        uint token = sequence.row + chunk.begin;
        uint cum = sequence.row * args.H + h * sequence.span + chunk.begin;
        uint own = (b * args.H + h) * args.N * args.P;
        uint m = position / args.S + j;
        bool kept = !has(args.flags, HAS_RUN) || (chunk.closes && m >= args.first && m - args.first < args.count);
        uint row = kept ? memory_row(position, b, j, h) : 0u;
        vec2 end = cum_at(cum + size - 1u).xy;
        uint lines = min(LINES, args.N - n_first);
        uint b_at = args.b_at + token * args.b_row + h / (args.H / args.G) * args.N + n_first;

        for (uint round = 0u; round < last_round + p_blocks; round++) {
            uint p_first = round % p_blocks * COLUMNS;
            uint columns = min(COLUMNS, args.P - p_first);
            uint x_at = args.x_at + token * args.x_row + h * args.P + p_first;
            vec4 sums[OWN_LINES];
            [[unroll]] for (uint i = 0u; i < OWN_LINES; i++) sums[i] = vec4(0.0);
            for (uint t_first = 0u; t_first < size; t_first += DEPTH) {
                barrier();
                if (t_first % LANES == 0u) {
                    vec3 at = cum_at(cum + min(t_first + LANE, size - 1u));
                    factors[LANE] = t_first + LANE < size ? exp_neg(cum_between(at.xy, end)) * at.z : 0.0;
                    barrier();
                }
#ifdef TILES
                uint t = t_first + LANE % (8u * DEPTH) / 8u; // eight lanes a token
                float factor = factors[t % LANES];
                t = min(t, size - 1u);
                uint eight = LANE % 8u;
                uint b_from = b_at + t * args.b_row + min(8u * eight, lines - 8u);
#ifdef FLOAT16
                keys[LANE] = quads_b[b_from / 8u];
#else
                if (LANE >= 8u * DEPTH) {
                    Eight key = load_eight_b(b_from);
                    slabs[2u * LANE] = key.low;
                    slabs[2u * LANE + 1u] = key.high;
                } else
#endif
                {
                    Eight value = load_eight_x(x_at + t * args.x_row + min(8u * eight, columns - 8u));
                    slabs[2u * LANE] = value.low * factor;
                    slabs[2u * LANE + 1u] = value.high * factor;
                }
#else
                uint t = t_first + LANE / QUADS;
                float factor = factors[t % LANES];
                t = min(t, size - 1u);
                uint line = min(4u * (LANE % QUADS), lines - 1u);
                uint column = min(4u * (LANE % QUADS), columns - 1u);
                slabs[KEYS + LANE] = FOUR(load_b, b_at + t * args.b_row + line, lines - line);
                slabs[LANE] = FOUR(load_x, x_at + t * args.x_row + column, columns - column) * factor;
#endif
                barrier();
                multiply(sums);
            }
            if (j == 0u && has(args.flags, HAS_OPEN)) {
                float still = exp_neg(load_decay((slot_of(sequence, b, args.M, args.S) + b + 1u) * args.H + h));
                [[unroll]] for (uint i = 0u; i < OWN_LINES; i++) {
                    uint at = own + (n_first + min(OWN_LINE + i, lines - 1u)) * args.P + p_first;
                    [[unroll]] for (uint column = 0u; column < 4u; column++)
                        sums[i][column] += still * load_open(at + min(OWN_COLUMN + column, columns - 1u));
                }
            }

            float inverses[OWN_LINES];
            [[unroll]] for (uint i = 0u; i < OWN_LINES; i++) inverses[i] = 1.0;
            if (scaled && round < p_blocks) {
                barrier();
                [[unroll]] for (uint i = 0u; i < OWN_LINES; i++) {
                    float square = 0.0;
                    [[unroll]] for (uint column = 0u; column < 4u; column++)
                        if (OWN_COLUMN + column < columns) square += sums[i][column] * sums[i][column];
                    SQUARE(OWN_LINE + i, LANE % 16u) = square;
                }
                barrier();
                if (LANE < LINES) {
                    float sum = round > 0u ? totals[LANE] : 0.0;
                    [[unroll]] for (uint i = 0u; i < 4u; i++) {
                        vec4 four = slabs[LANE * 4u + i];
                        sum += four.x;
                        sum += four.y;
                        sum += four.z;
                        sum += four.w;
                    }
                    if (round + 1u == p_blocks) {
                        float s = sqrt(sum / float(args.P) + args.eps);
                        if (kept && LANE < lines) store_scale(args.scale_at + row + n_first + LANE, s);
                        sum = 1.0 / s;
                    }
                    totals[LANE] = sum;
                }
                barrier();
            }
            if (scaled && round >= last_round) {
                [[unroll]] for (uint i = 0u; i < OWN_LINES; i++) inverses[i] = totals[OWN_LINE + i];
            }
            bool whole = kept && round >= last_round;
            bool open = round < p_blocks && has(args.flags, HAS_OPEN) && !chunk.closes;
            [[unroll]] for (uint i = 0u; i < OWN_LINES; i++) {
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
