#version 460
#extension GL_GOOGLE_include_directive : require
// attention_backward_k (-DOF_KEYS) and attention_backward_q on cooperative matrices, as backward_matrix.comp computes them, for heads of a multiple
// of 16 up to 64 and operands of the matrices' element type (args.h). With own rows x, y and passing rows X, Y (k, v and q, up_o for the keys; q,
// up_o and k, v for the queries):
//   w = exp(scale x X^T - lse), u = w (y Y^T - dot);  keys: grad_v = w Y, grad_k = scale u X;  queries: grad_q = scale u X.
// One workgroup takes T0 own tokens of a (b, head or group), R tiles of MATRIX_M rows a subgroup, and BLOCK passing tokens at a time, whose rows, lse
// and dot lie in one of two stages of shared memory. Those of the next block come through registers into the other stage, so that a block costs one
// barrier. They are asked for late, between the weights of the block at hand and its last products, where few other registers are in use. These
// loads are without branches (tokens past the count are the last one, with a weight of 0) and volatile, so that they stay before the subgroup's
// barrier that follows them.
// Own rows, w, u and sums are matrices of the subgroup; w and u become left operands by conversion (-DMATRIX2) and are rounded once, sums are f32.
// Blocks that every row of the subgroup sees whole go through code without masks.
// T0 is a multiple of SUBGROUPS MATRIX_M, BLOCK of MATRIX_K, MATRIX_K equals MATRIX_N, SUBGROUP_SIZE >= MATRIX_M.
// Shared memory: 592 BLOCK (queries 576) + 4 SUBGROUPS MATRIX_M MATRIX_K + 4 MATRIX_M (MATRIX_N + 1) bytes.
// Guards: exponents are clamped to <= 0; of tokens past the count nothing is read; own columns from D on are 0.
#include "lib/dart.glsl"
#include "lib/matrix.glsl"
#ifdef OF_KEYS
#include "table/attention_backward_k.glsl"
WRITES(grad_k) WRITES_AS(uvec4, quads, grad_k) WRITES(grad_v) WRITES_AS(uvec4, quads, grad_v)
READS_AS(volatile uvec4, quads, q) READS_AS(uvec4, quads, k) READS_AS(uvec4, quads, v) READS_AS(volatile uvec4, quads, up_o)
#else
#include "table/attention_backward_q.glsl"
WRITES(grad_q) WRITES_AS(uvec4, quads, grad_q)
READS_AS(uvec4, quads, q) READS_AS(volatile uvec4, quads, k) READS_AS(volatile uvec4, quads, v) READS_AS(uvec4, quads, up_o)
#endif
READS_AS(volatile float, floats, lse) READS_AS(volatile float, floats, dot) READS(seq)
#define PACKS
#include "lib/seq.glsl"

const uint HEAD = 64u;
const uint BLOCK = 32u;
const uint ROWS = T0 / SUBGROUPS;
const uint R = ROWS / MATRIX_M;
const uint OTHER_TILES = BLOCK / MATRIX_N;
const uint DEPTH_TILES = HEAD / MATRIX_K;
const uint HEAD_TILES = HEAD / MATRIX_N;
const uint WEIGHT_TILES = BLOCK / MATRIX_K;
const uint WORDS = HEAD / 8u;
const uint PITCH = WORDS + 1u; // 16-byte words a row in shared memory, odd to spread the banks
const uint HALF = BLOCK * PITCH;
const uint STAGE = 2u * HALF;
const uint QUADS = BLOCK * WORDS;
const uint FETCH = (QUADS + LANES - 1u) / LANES;
const uint FETCH_FLOATS = (2u * BLOCK + LANES - 1u) / LANES;
const uint PART = MATRIX_M * MATRIX_K; // floats of a subgroup's scratch memory
const uint ELEMENTS = MATRIX_M * MATRIX_N / SUBGROUP_SIZE; // components of an accumulator in a lane
const uint OWN_WORDS = MATRIX_M * MATRIX_K / 8u; // 16-byte words of a tile of own rows
const float LOG2_E = 1.44269504;
const float NOTHING = -3e38; // as an exponent

shared uvec4 xs[2u * STAGE]; // passing rows x of a block, then its rows y
// Vectors, because matrices want addresses of whole 16 bytes.
shared vec4 scratch[SUBGROUPS * PART / 4u];
shared vec4 table[(MATRIX_N + 1u) * MATRIX_M / 4u]; // column of each element, row by row; then the rows
#ifdef OF_KEYS
shared vec4 floats[BLOCK]; // of each stage: -lse of the passing tokens, in powers of 2; then -dot
#endif

MatrixSum sums[R * HEAD_TILES];
#ifdef OF_KEYS
MatrixSum sums_v[R * HEAD_TILES];
#else
MatrixSum own_lse[R]; // as floats
MatrixSum own_dot[R];
#endif
MatrixA x[R * DEPTH_TILES];
MatrixA y[R * DEPTH_TILES];
uvec4 next_x[FETCH];
uvec4 next_y[FETCH];
#ifdef OF_KEYS
float next_floats[FETCH_FLOATS];
#endif

#include "lib/rounded.glsl"
#include "attention/backward_matrix.glsl"
#include "attention/backward_late.glsl"

void main()
{
    uint lane = gl_SubgroupInvocationID;
    uint part = gl_SubgroupID * PART;
    uint blocks = (args.L + T0 - 1u) / T0;
    uint in_group = args.H / args.G;
    uint head_quads = args.D / 8u;
#ifdef OF_KEYS
    uint heads = args.G;
#else
    uint heads = args.H;
#endif
    for (uint i = LANE; i < (MATRIX_N + 1u) * MATRIX_M / 4u; i += LANES)
        table[i] = vec4(i * 4u % (i < MATRIX_N * MATRIX_M / 4u ? MATRIX_N : MATRIX_M)) + vec4(0.0, 1.0, 2.0, 3.0);
    for (uint tile = FIRST_TILE; tile < args.tiles; tile += gl_NumWorkGroups.x) {
        uint own_head = tile / blocks % heads;
        Sequence sequence = sequence_of(tile / blocks / heads);
#ifdef OF_KEYS
        uint first = tile % blocks * T0; // of the workgroup's own tokens
        uint begin = first / BLOCK * BLOCK;
        uint end = sequence.count;
        uint h = own_head * in_group;
        uint h_last = h + in_group - 1u;
        uint group = own_head;
#else
        uint first = (blocks - 1u - tile % blocks) * T0; // the longest first
        uint begin = 0u;
        uint end = min(first + T0, sequence.count);
        uint h = own_head;
        uint h_last = h;
        uint group = h / in_group;
#endif
        if (first >= sequence.span) continue;
        uint own_first = first + gl_SubgroupID * ROWS; // of the subgroup
        uint steps = first < sequence.count ? (end - begin + BLOCK - 1u) / BLOCK * (h_last - h + 1u) : 0u; // none: nothing but zeros

        barrier();
        TAKE_OWN(x, own_x)
        TAKE_OWN(y, own_y)
#ifndef OF_KEYS
        [[unroll]] for (uint r = 0u; r < R; r++) {
            uint line = own_first + r * MATRIX_M + lane % MATRIX_M;
            uint at = (sequence.row + line) * args.H + h;
            bool is = line < sequence.count;
            if (lane < MATRIX_M) {
                scratch[(part + lane) / 4u][lane % 4u] = is ? -floats_lse[args.lse_at + at] * LOG2_E : 0.0;
                scratch[(part + MATRIX_M + lane) / 4u][lane % 4u] = is ? -floats_dot[at] : 0.0;
            }
            subgroup_sync();
            LOAD_ROWS(own_lse[r], part);
            LOAD_ROWS(own_dot[r], part + MATRIX_M);
            subgroup_sync();
        }
#endif
        [[unroll]] for (uint n = 0u; n < R * HEAD_TILES; n++) {
            sums[n] = MatrixSum(0.0);
#ifdef OF_KEYS
            sums_v[n] = MatrixSum(0.0);
#endif
        }

        if (steps > 0u) {
            uint now = begin; // first token of the block that is multiplied,
            uint at = begin;  // of the one that was fetched last
            fetch(sequence, at, h, group, head_quads);
            barrier();
            put(sequence, at, 0u);
#define GO_ON(place) \
            place += BLOCK; \
            if (place >= end) { \
                place = begin; \
                h = min(h + 1u, h_last); /* past the last block fetches for nobody: a condition costs more */ \
            }
            GO_ON(at)
            for (uint step = 0u; step < steps; step++) {
                uint stage = step % 2u;
                barrier(); // the stage is here, and all are done with the other one
#ifdef OF_KEYS
                bool whole = now >= own_first + ROWS - 1u && now > 0u;
#else
                bool whole = now + BLOCK <= own_first + 1u && own_first > 0u;
#endif
                if (whole) meet(false, stage, now, own_first, sequence, at, h, group, head_quads);
                else meet(true, stage, now, own_first, sequence, at, h, group, head_quads);
                put(sequence, at, 1u - stage);
                GO_ON(at)
                now = now + BLOCK < end ? now + BLOCK : begin;
            }
        }
#ifdef OF_KEYS
        STORE(grad_k, sums, args.scale)
        STORE(grad_v, sums_v, 1.0)
#else
        STORE(grad_q, sums, args.scale)
#endif
    }
}
