// The products of sma_backward_tokens with one memory or two, LINES_ONCE rows w in shared memory from `line` on, as sma/lines.glsl lays them out:
// Z = w en^T and U = scale w up_r^T, rows (m, n) x tokens, and the sums that they and weights go to. Include after lines.glsl.
const uint BY_PITCH = LINES_ONCE / 8u + 1u; // 16-byte words from one token of slope qn to the next
shared float weights[SUBGROUPS * 2u * TOGETHER * OWN]; // slope, then g, of the tokens; memory after memory

MatrixB verifier_rest[DEPTH_TILES][TOKEN_TILES]; // what is left of en^T once it is rounded
MatrixB incoming[DEPTH_TILES][TOKEN_TILES];      // up_r^T
MatrixSum read[STATE_TILES][TOKEN_TILES];        // c^T
MatrixSum sum_q[STATE_TILES][TOKEN_TILES];       // of_q^T
MatrixSum sum_c[STATE_TILES][TOKEN_TILES];       // of c^T
MatrixSum z[ROW_TILES][TOKEN_TILES];
MatrixSum u[ROW_TILES][TOKEN_TILES];

void multiply_pair(uint line)
{
    [[unroll]] for (uint i = 0u; i < ROW_TILES; i++) {
        [[unroll]] for (uint j = 0u; j < TOKEN_TILES; j++) {
            z[i][j] = MatrixSum(0.0);
            u[i][j] = MatrixSum(0.0);
        }
        [[unroll]] for (uint k = 0u; k < DEPTH_TILES; k++) {
            if (k * MATRIX_K < args.P) {
                MatrixA w;
                coopMatLoad(w, memory, (line + i * MATRIX_M) * PITCH + k * MATRIX_K / 8u, PITCH, ROW_MAJOR);
                [[unroll]] for (uint j = 0u; j < TOKEN_TILES; j++) {
                    z[i][j] = coopMatMulAdd(w, verifier_rest[k][j], z[i][j]);
                    z[i][j] = coopMatMulAdd(w, verifier[k][j], z[i][j]);
                    u[i][j] = coopMatMulAdd(w, incoming[k][j], u[i][j]);
                }
            }
        }
        MatrixSum scale;
        coopMatLoad(scale, factors, line + i * MATRIX_M, 0u, COLUMN_MAJOR);
        [[unroll]] for (uint j = 0u; j < TOKEN_TILES; j++) u[i][j] *= scale;
    }
}

// To the parts: what adds up to logits, then, of_values, to v . up_r.
void put_products(uint part, bool of_values)
{
    [[unroll]] for (uint i = 0u; i < ROW_TILES; i++) {
        [[unroll]] for (uint j = 0u; j < TOKEN_TILES; j++) {
            MatrixSum of_n;
            if (of_values) of_n = u[i][j] * read[i % STATE_TILES][j];
            else of_n = z[i][j] * query[i % STATE_TILES][j];
            coopMatStore(of_n, parts, part_at(part, i, j), PART_PITCH, COLUMN_MAJOR);
        }
    }
}

// The sums, by the weights from weight_at on and slope qn from operands_at on, tokens x rows (m, n).
void add_pair(uint weight_at, uint operands_at, uint line)
{
    [[unroll]] for (uint i = 0u; i < ROW_TILES; i++) {
        [[unroll]] for (uint j = 0u; j < TOKEN_TILES; j++) {
            MatrixSum by;
            uint at = weight_at + i / STATE_TILES * 2u * OWN + j * MATRIX_N;
            coopMatLoad(by, weights, at, 0u, ROW_MAJOR);
            sum_q[i % STATE_TILES][j] += by * z[i][j];
            coopMatLoad(by, weights, at + OWN, 0u, ROW_MAJOR);
            sum_c[i % STATE_TILES][j] += by * u[i][j];
        }
    }
    [[unroll]] for (uint k = 0u; k < LINES_ONCE / MATRIX_K; k++) {
        MatrixA by[TOKEN_ROWS];
        [[unroll]] for (uint i = 0u; i < TOKEN_ROWS; i++)
            coopMatLoad(by[i], operands, operands_at + i * MATRIX_M * BY_PITCH + k * MATRIX_K / 8u, BY_PITCH, ROW_MAJOR);
        [[unroll]] for (uint j = 0u; j < COLUMN_TILES; j++) {
            if (j * MATRIX_N < args.P) {
                MatrixB w;
                coopMatLoad(w, memory, (line + k * MATRIX_K) * PITCH + j * MATRIX_N / 8u, PITCH, ROW_MAJOR);
                [[unroll]] for (uint i = 0u; i < TOKEN_ROWS; i++) sums[i][j] = coopMatMulAdd(by[i], w, sums[i][j]);
            }
        }
    }
}
