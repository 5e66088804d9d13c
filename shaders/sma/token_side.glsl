// What a subgroup of sma_backward_token_side multiplies: Z = e w^T and U = up_r w^T of its MATRIX_M tokens and its half of the n, key = q w over that
// half, and the sums that they go to. Include after matrix.glsl and the bindings.
const uint N = 128u;
const uint P = 64u;
const uint HALF = N / 2u;                            // the n of a subgroup
const uint TOKENS = SUBGROUPS / 2u * MATRIX_M;       // two subgroups share MATRIX_M tokens
const uint PITCH = P / 8u + 1u;                      // 16-byte words from one row of w, e or up_r to the next
const uint Q_PITCH = N / 8u + 1u;                    // ... of q on its way into matrices
const uint F32_PITCH = N / 4u + 1u;                  // ... of N floats
const uint E_PITCH = P / 4u + 1u;                    // ... of P floats
const uint PART_PITCH = MATRIX_N / 4u + 1u;
const uint PARTS = SUBGROUPS * MATRIX_M * PART_PITCH;
const uint ROW_TILES = HALF / MATRIX_N;              // of Z and U
const uint DEPTH_TILES = P / MATRIX_K;
const uint KEY_DEPTH = HALF / MATRIX_K;
const uint COLUMN_TILES = P / MATRIX_N;              // of key
const uint ELEMENTS = MATRIX_M * MATRIX_N / SUBGROUP_SIZE;
const uint WORDS = ROW_TILES * ELEMENTS / 2u;        // of q or c as they lie in Z and U, two elements each
shared uvec4 memory[N * PITCH];                      // w; before and after all memories q, c and the sums
shared uvec4 verifier[TOKENS * PITCH];               // e
shared uvec4 incoming[TOKENS * PITCH];               // up_r
shared vec4 parts[2u * PARTS];                       // of the logits, then of v . up_r: matrices that a row's sum is left of
shared float scales[N];
shared float weights[SUBGROUPS * 2u * MATRIX_M];     // delta, then g, of a subgroup's tokens
#ifdef READS_SHARED
shared uint read_words[WORDS * LANES];               // those of c, word after word; a lane reads what it wrote
#else
uint read_words[WORDS];
#endif

MatrixA query[KEY_DEPTH];
uint query_words[WORDS];
MatrixSum z[ROW_TILES];
MatrixSum u[ROW_TILES];
MatrixSum sum_q[ROW_TILES];
MatrixSum sum_c[ROW_TILES];
MatrixSum sum_e[COLUMN_TILES];

// How often a loop over matrices runs. Where there are many small ones it is a number that compilers do not know: unrolled, lavapipe's takes minutes.
uint times(uint count) { return MATRIX_K < 16u ? count + gl_WorkGroupID.y : count; }

uint read_word(uint i, uint thread)
{
#ifdef READS_SHARED
    return read_words[i * LANES + thread];
#else
    return read_words[i];
#endif
}

// z and u; own: the first token among those of the workgroup, n0: the first n.
void multiply_rows(uint own, uint n0)
{
    [[unroll]] for (uint j = 0u; j < ROW_TILES; j++) {
        z[j] = MatrixSum(0.0);
        u[j] = MatrixSum(0.0);
    }
    [[unroll]] for (uint k = 0u; k < times(DEPTH_TILES); k++) {
        MatrixA e, up;
        coopMatLoad(e, verifier, own * PITCH + k * (MATRIX_K / 8u), PITCH, ROW_MAJOR);
        coopMatLoad(up, incoming, own * PITCH + k * (MATRIX_K / 8u), PITCH, ROW_MAJOR);
        [[unroll]] for (uint j = 0u; j < ROW_TILES; j++) {
            MatrixB w;
            coopMatLoad(w, memory, (n0 + j * MATRIX_N) * PITCH + k * (MATRIX_K / 8u), PITCH, COLUMN_MAJOR);
            z[j] = coopMatMulAdd(e, w, z[j]);
            u[j] = coopMatMulAdd(up, w, u[j]);
        }
    }
}

// U becomes scale U, and the parts of subgroup s what q Z and c U add up to. zero is 0, which compilers must not know: they would unpack q once for
// all memories, into twice the registers.
void put_parts(uint s, uint n0, uint thread, uint zero)
{
    MatrixSum of_z = MatrixSum(0.0);
    MatrixSum of_u = MatrixSum(0.0);
    [[unroll]] for (uint j = 0u; j < ROW_TILES; j++) {
        MatrixSum scale;
        coopMatLoad(scale, scales, n0 + j * MATRIX_N, 0u, ROW_MAJOR);
        u[j] *= scale;
        [[unroll]] for (uint i = 0u; i < ELEMENTS; i += 2u) {
            uint at = (j * ELEMENTS + i) / 2u;
            vec2 by_q = unpack_elements(query_words[at] ^ zero);
            vec2 by_c = unpack_elements(read_word(at, thread) ^ zero);
            of_z[i] += z[j][i] * by_q.x;
            of_z[i + 1u] += z[j][i + 1u] * by_q.y;
            of_u[i] += u[j][i] * by_c.x;
            of_u[i + 1u] += u[j][i + 1u] * by_c.y;
        }
    }
    coopMatStore(of_z, parts, s * MATRIX_M * PART_PITCH, PART_PITCH, ROW_MAJOR);
    coopMatStore(of_u, parts, PARTS + s * MATRIX_M * PART_PITCH, PART_PITCH, ROW_MAJOR);
}

// The sums over Z and U, by the weights of subgroup s; returns delta.
MatrixSum add_rows(uint s)
{
    MatrixSum by;
    coopMatLoad(by, weights, s * 2u * MATRIX_M + MATRIX_M, 0u, COLUMN_MAJOR);
    [[unroll]] for (uint j = 0u; j < ROW_TILES; j++) sum_c[j] += by * u[j];
    coopMatLoad(by, weights, s * 2u * MATRIX_M, 0u, COLUMN_MAJOR);
    [[unroll]] for (uint j = 0u; j < ROW_TILES; j++) sum_q[j] += by * z[j];
    return by;
}
void add_key(MatrixSum by, uint n0)
{
    [[unroll]] for (uint j = 0u; j < times(COLUMN_TILES); j++) {
        MatrixSum key = MatrixSum(0.0);
        [[unroll]] for (uint k = 0u; k < KEY_DEPTH; k++) {
            MatrixB w;
            coopMatLoad(w, memory, (n0 + k * MATRIX_K) * PITCH + j * (MATRIX_N / 8u), PITCH, ROW_MAJOR);
            key = coopMatMulAdd(query[k], w, key);
        }
        sum_e[j] += by * key;
    }
}

// 16-bit rows of the workgroup's tokens to where w lies, as f32: eight columns q of token t.
void put_f32(uint t, uint q, uvec4 words)
{
    uint to = t * F32_PITCH + 2u * q;
    memory[to] = floatBitsToUint(vec4(unpack_elements(words.x), unpack_elements(words.y)));
    memory[to + 1u] = floatBitsToUint(vec4(unpack_elements(words.z), unpack_elements(words.w)));
}
// Those of this subgroup, as they lie in Z.
MatrixSum take_f32(uint own, uint n0, uint j)
{
    MatrixSum rows;
    coopMatLoad(rows, memory, own * F32_PITCH + (n0 + j * MATRIX_N) / 4u, F32_PITCH, ROW_MAJOR);
    return rows;
}
