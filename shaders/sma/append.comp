#version 460
#extension GL_GOOGLE_include_directive : require
// For chunks that close inside the run: s = sqrt(mean_p dh[n, p]^2 + eps), to = dh / s, scale = s.
// dh B M H N P; to B capacity H N P; scale B capacity H N.
// One workgroup takes T0 rows n of one (b, j, h): TEAM neighbouring lanes read a row together, then one lane adds up
// their parts. TEAM divides LANES. Shared memory: 4 T0 (TEAM + 2) bytes. Guards: eps > 0.
#include "lib/dart.glsl"
#include "table/sma_append.glsl"
READS(dh) READS(seq) WRITES(to) WRITES(scale)
#include "lib/seq.glsl"

const uint TEAM = 16u;
shared float parts[T0 * (TEAM + 1u)];
shared float inverses[T0];

void main()
{
    uint member = LANE % TEAM;
    uint blocks = (args.N + T0 - 1u) / T0;
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint n_first = tile % blocks * T0;
        uint rest = tile / blocks;
        uint h = rest % args.H;
        rest /= args.H;
        uint j = rest % args.M;
        uint b = rest / args.M;
        uint position = seq_position(b);
        Chunk chunk = chunk_of(position, seq_count(b, args.L), args.S, j);
        uint m = position / args.S + j;
        bool kept = chunk.closes && m >= args.first && m - args.first < args.count;
        if (!kept) continue;

        uint from = ((b * args.M + j) * args.H + h) * args.N + n_first;
        uint to = ((b * args.capacity + m - args.first) * args.H + h) * args.N + n_first;
        uint rows = min(T0, args.N - n_first);
        barrier();
        for (uint row = LANE / TEAM; row < rows; row += LANES / TEAM) {
            float sum = 0.0;
            for (uint p = member; p < args.P; p += TEAM) {
                float value = load_dh(args.dh_at + (from + row) * args.P + p);
                sum += value * value;
            }
            parts[row * (TEAM + 1u) + member] = sum;
        }
        barrier();
        for (uint row = LANE; row < rows; row += LANES) {
            float sum = 0.0;
            for (uint i = 0u; i < TEAM; i++) sum += parts[row * (TEAM + 1u) + i];
            float s = sqrt(sum / float(args.P) + args.eps);
            store_scale(args.scale_at + to + row, s);
            inverses[row] = 1.0 / s;
        }
        barrier();
        for (uint row = LANE / TEAM; row < rows; row += LANES / TEAM) {
            for (uint p = member; p < args.P; p += TEAM) {
                float value = load_dh(args.dh_at + (from + row) * args.P + p);
                store_to(args.to_at + (to + row) * args.P + p, value * inverses[row]);
            }
        }
    }
}
