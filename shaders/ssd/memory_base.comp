#version 460
#extension GL_GOOGLE_include_directive : require
// memory[n, p] = sum over tokens t of a chunk of exp(cum_end - cum_t) step_t b_t[n] x_t[p], for the first chunk plus what
// is open; raw, or each row divided by scale_n = sqrt(mean_p^2 + eps). An open last chunk goes to tail as well.
// x B L H P; b B L G N; cum B H L 3; decay B M+1 H; open, tail B H N P; memory B M H N P; scale B M H N.
// One workgroup computes T0 rows n of one head, WIDTH columns at a time: a lane owns COLUMNS columns with all T0 rows in
// registers, reads its x once and shares b in slabs of SLAB tokens. Normalised rows that are wider than WIDTH are computed
// twice, the first time for their squares. T0 is a multiple of 4, T1 is 1.
// Shared memory: 4 SLAB (T0 + 1) + 4 T0 (LANES + 2) bytes.
// Guards: exponents are clamped to <= 0 and come from two-float differences; tokens past the chunk are never read; eps > 0.
#include "lib/dart.glsl"
#include "table/ssd_memory.glsl"
READS(x) READS(b) READS(cum) READS(decay) READS(seq) READS(open) WRITES(memory) WRITES(scale) WRITES(tail)
#define PACKS
#include "lib/seq.glsl"
#define SSD_CUM
#define SSD_MEMORY
#include "ssd.glsl"

const uint SLAB = 32u;
const uint QUADS = T0 / 4u;
const uint COLUMNS = 2u;
const uint WIDTH = COLUMNS * LANES;
shared vec4 b_slab[SLAB * QUADS];
shared float factors[SLAB];
shared float squares[T0 * (LANES + 1u)];
shared float inverses[T0];

void main()
{
    uint n_blocks = (args.N + T0 - 1u) / T0;
    bool scaled = has(args.flags, HAS_SCALE);
    uint p_blocks = (args.P + WIDTH - 1u) / WIDTH;
    uint last_round = scaled && p_blocks > 1u ? p_blocks : 0u;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint n_first = tile % n_blocks * T0;
        uint rest = tile / n_blocks;
        uint h = rest % args.H;
        rest /= args.H;
        uint j = rest % args.M;
        uint b = rest / args.M;
        uint g = h / (args.H / args.G);
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

        for (uint round = 0u; round < last_round + p_blocks; round++) {
            uint p_first = round % p_blocks * WIDTH;
            vec4 sums[QUADS * COLUMNS];
            [[unroll]] for (uint q = 0u; q < QUADS * COLUMNS; q++) sums[q] = vec4(0.0);
            uint x_first[COLUMNS];
            [[unroll]] for (uint i = 0u; i < COLUMNS; i++)
                x_first[i] = args.x_at + h * args.P + min(p_first + LANE + i * LANES, args.P - 1u);
            for (uint t_first = 0u; t_first < size; t_first += SLAB) {
                barrier();
                for (uint i = LANE; i < SLAB * QUADS; i += LANES) {
                    uint t = min(t_first + i / QUADS, size - 1u);
                    uint n = n_first + i % QUADS * 4u;
                    vec4 value;
                    [[unroll]] for (uint r = 0u; r < 4u; r++)
                        value[r] = load_b(args.b_at + (token + t) * args.b_row + g * args.N + min(n + r, args.N - 1u));
                    b_slab[i] = value;
                }
                for (uint i = LANE; i < SLAB; i += LANES) {
                    vec3 at = cum_at(cum + min(t_first + i, size - 1u));
                    factors[i] = exp_neg(cum_between(at.xy, end)) * at.z;
                }
                barrier();
                uint top = min(SLAB, size - t_first);
                for (uint k = 0u; k < top; k++) {
                    float factor = factors[k];
                    uint x_row = (token + t_first + k) * args.x_row;
                    float value[COLUMNS];
                    [[unroll]] for (uint i = 0u; i < COLUMNS; i++) value[i] = load_x(x_first[i] + x_row) * factor;
                    [[unroll]] for (uint q = 0u; q < QUADS; q++) {
                        vec4 weight = b_slab[k * QUADS + q];
                        [[unroll]] for (uint i = 0u; i < COLUMNS; i++) sums[i * QUADS + q] += weight * value[i];
                    }
                }
            }
            if (j == 0u && has(args.flags, HAS_OPEN)) {
                float still = exp_neg(load_decay((slot_of(sequence, b, args.M, args.S) + b + 1u) * args.H + h));
                [[unroll]] for (uint i = 0u; i < COLUMNS; i++) {
                    uint p = min(p_first + LANE + i * LANES, args.P - 1u);
                    [[unroll]] for (uint q = 0u; q < QUADS; q++) {
                        [[unroll]] for (uint r = 0u; r < 4u; r++)
                            sums[i * QUADS + q][r] += still * load_open(own + min(n_first + 4u * q + r, args.N - 1u) * args.P + p);
                    }
                }
            }

            if (scaled && round < p_blocks) {
                [[unroll]] for (uint q = 0u; q < QUADS; q++) {
                    vec4 square = vec4(0.0);
                    [[unroll]] for (uint i = 0u; i < COLUMNS; i++) {
                        vec4 value = sums[i * QUADS + q];
                        if (p_first + LANE + i * LANES < args.P) square += value * value;
                    }
                    [[unroll]] for (uint r = 0u; r < 4u; r++) {
                        uint at = (4u * q + r) * (LANES + 1u) + LANE;
                        squares[at] = square[r] + (round > 0u ? squares[at] : 0.0);
                    }
                }
                barrier();
                for (uint i = LANE; i < T0 && round + 1u == p_blocks; i += LANES) {
                    float sum = 0.0;
                    for (uint k = 0u; k < LANES; k++) sum += squares[i * (LANES + 1u) + k];
                    float s = sqrt(sum / float(args.P) + args.eps);
                    inverses[i] = 1.0 / s;
                    if (kept && n_first + i < args.N) store_scale(args.scale_at + row + n_first + i, s);
                }
                barrier();
            }
            bool whole = kept && round >= last_round;
            bool open = round < p_blocks && has(args.flags, HAS_OPEN) && !chunk.closes;
            [[unroll]] for (uint i = 0u; i < COLUMNS; i++) {
                uint p = p_first + LANE + i * LANES;
                if (p < args.P) {
                    [[unroll]] for (uint q = 0u; q < QUADS; q++) {
                        [[unroll]] for (uint r = 0u; r < 4u; r++) {
                            uint n = n_first + 4u * q + r;
                            float value = sums[i * QUADS + q][r];
                            if (n < args.N && open) store_tail(own + n * args.P + p, value);
                            if (n < args.N && whole)
                                store_memory(args.memory_at + (row + n) * args.P + p, scaled ? value * inverses[4u * q + r] : value);
                        }
                    }
                }
            }
        }
    }
}
