// What sma_small.comp holds of a subgroup's tokens, how it gets there (take_tokens), and a memory's way into their softmax (add_memory). Formulas,
// shapes, shared memory and guards stand in sma_small.comp. Include after lines.glsl.
const uint STATE_DEPTH = STATE / MATRIX_K;        // of n, as the inner index
const uint STATE_COLUMNS = STATE / MATRIX_N;      // of n, as columns
const uint JOINED = MATRIX_K / MATRIX_N;          // accumulators of a left operand
const uint READ_PITCH = STATE / 8u + 1u;          // 16-byte words from one token of c to the next
const uint ELEMENTS = MATRIX_M * MATRIX_N / SUBGROUP_SIZE; // components of an accumulator in a lane
const float SLACK = 8.0;
const float LOG2_E = 1.44269504;
const float LN_2 = 0.693147181;
shared float16_t scales[LINES];
shared float powers[LINES / STATE];               // of two, by which the scales of a memory are divided
shared float firsts[SUBGROUPS * OWN];             // of a token: a number on its way into matrices
shared float seconds[SUBGROUPS * OWN];

MatrixA verify[TOKEN_ROWS * DEPTH_TILES];         // en
MatrixSum asked[TOKEN_ROWS * STATE_COLUMNS];      // qn
MatrixA read[TOKEN_ROWS * STATE_DEPTH];           // c
MatrixSum unit[TOKEN_ROWS];                       // log2 e times what makes a sum a logit
MatrixSum bound[TOKEN_ROWS];                      // the token sees memories below that number
MatrixSum top[TOKEN_ROWS];
MatrixSum den[TOKEN_ROWS];

// The first `live` tokens from `row` on, on their way into matrices; those past the count are 0.
void take_tokens(uint s, uint lane, uint row, uint live, uint group)
{
    uint part = s * PARTS;
    uint operands_at = s * OPERANDS;
    uint width = args.P / 8u;
    subgroup_sync();
    for (uint i = lane; i < OWN * width; i += SUBGROUP_SIZE) {
        uint t = i / width;
        uint at = ((row + t) * args.G + group) * width + i % width;
        operands[operands_at + t * PITCH + i % width] = t < live ? quads_en[at] : uvec4(0u);
    }
    for (uint i = lane; i < OWN * STATE / 8u; i += SUBGROUP_SIZE) {
        uint t = i / (STATE / 8u);
        uint q = i % (STATE / 8u);
        uvec4 words = t < live ? quads_qn[((row + t) * args.G + group) * STATE / 8u + q] : uvec4(0u);
        put_part(part, t, q, words);
    }
    subgroup_sync();
    [[unroll]] for (uint i = 0u; i < TOKEN_ROWS; i++) {
        [[unroll]] for (uint k = 0u; k < DEPTH_TILES; k++)
            if (k * MATRIX_K < args.P)
                coopMatLoad(verify[i * DEPTH_TILES + k], operands, operands_at + i * MATRIX_M * PITCH + k * MATRIX_K / 8u, PITCH, ROW_MAJOR);
        [[unroll]] for (uint n = 0u; n < STATE_COLUMNS; n++)
            coopMatLoad(asked[i * STATE_COLUMNS + n], parts, part + i * MATRIX_M * PART_PITCH + n * MATRIX_N / 4u, PART_PITCH, ROW_MAJOR);
        coopMatLoad(unit[i], firsts, s * OWN + i * MATRIX_M, 0u, COLUMN_MAJOR);
        coopMatLoad(bound[i], seconds, s * OWN + i * MATRIX_M, 0u, COLUMN_MAJOR);
    }
    subgroup_sync();
    for (uint i = lane; i < OWN * STATE / 8u; i += SUBGROUP_SIZE) {
        uint t = i / (STATE / 8u);
        uint q = i % (STATE / 8u);
        operands[operands_at + t * READ_PITCH + q] = t < live ? quads_c[(args.c_at + (row + t) * args.c_row + group * STATE) / 8u + q] : uvec4(0u);
    }
    subgroup_sync();
    [[unroll]] for (uint i = 0u; i < TOKEN_ROWS; i++) {
        [[unroll]] for (uint k = 0u; k < STATE_DEPTH; k++)
            coopMatLoad(read[i * STATE_DEPTH + k], operands, operands_at + i * MATRIX_M * READ_PITCH + k * MATRIX_K / 8u, READ_PITCH, ROW_MAJOR);
        [[unroll]] for (uint j = 0u; j < COLUMN_TILES; j++) sums[i][j] = MatrixSum(0.0);
        top[i] = MatrixSum(LOWEST);
        den[i] = MatrixSum(0.0);
    }
}

#ifdef MATRIX2
float sum_of(const in float a, const in float b) { return a + b; }
#else
// sum += the sums over the columns of u, rounded to f16, in every column.
void add_columns(inout MatrixSum sum, MatrixSum u[JOINED], uint part, uint operands_at, uint lane)
{
    MatrixA left;
    [[unroll]] for (uint n = 0u; n < JOINED; n++) coopMatStore(u[n], parts, part + n * MATRIX_N / 4u, MATRIX_K / 4u, ROW_MAJOR);
    subgroup_sync();
    for (uint i = lane; i < MATRIX_M * MATRIX_K / 8u; i += SUBGROUP_SIZE) {
        vec4 low = parts[part + 2u * i];
        vec4 high = parts[part + 2u * i + 1u];
        operands[operands_at + i] = uvec4(pack_elements(low.x, low.y), pack_elements(low.z, low.w),
                                    pack_elements(high.x, high.y), pack_elements(high.z, high.w));
    }
    subgroup_sync();
    coopMatLoad(left, operands, operands_at, MATRIX_K / 8u, ROW_MAJOR);
    subgroup_sync();
    sum = coopMatMulAdd(left, MatrixB(1.0), sum);
}
#endif

// Memory m, whose rows begin at `line`, into den and sums. all: every token of the subgroup sees it.
void add_memory(uint m, bool all, uint line, uint part, uint operands_at, uint lane)
{
    MatrixSum u[TOKEN_ROWS * JOINED];
    [[unroll]] for (uint i = 0u; i < TOKEN_ROWS * JOINED; i++) u[i] = MatrixSum(0.0);
    [[unroll]] for (uint n = 0u; n < STATE_COLUMNS; n++) {
        MatrixSum z[TOKEN_ROWS];
        [[unroll]] for (uint i = 0u; i < TOKEN_ROWS; i++) z[i] = MatrixSum(0.0);
        [[unroll]] for (uint k = 0u; k < DEPTH_TILES; k++) {
            if (k * MATRIX_K < args.P) {
                MatrixB w;
                coopMatLoad(w, memory, (line + n * MATRIX_N) * PITCH + k * MATRIX_K / 8u, PITCH, COLUMN_MAJOR);
                [[unroll]] for (uint i = 0u; i < TOKEN_ROWS; i++) z[i] = coopMatMulAdd(verify[i * DEPTH_TILES + k], w, z[i]);
            }
        }
        [[unroll]] for (uint i = 0u; i < TOKEN_ROWS; i++) u[i * JOINED + n % JOINED] += z[i] * asked[i * STATE_COLUMNS + n];
    }
    float power = powers[line / STATE];
    MatrixSum gain[TOKEN_ROWS];
    [[unroll]] for (uint i = 0u; i < TOKEN_ROWS; i++) {
        MatrixSum logit = MatrixSum(0.0);
#ifdef MATRIX2
        coopMatReduceNV(logit, u[i], gl_CooperativeMatrixReduceRowNV, sum_of);
#else
        MatrixSum high[JOINED];
        MatrixSum low[JOINED];
        [[unroll]] for (uint n = 0u; n < JOINED; n++) {
            [[unroll]] for (uint e = 0u; e < ELEMENTS; e++) {
                float value = u[i * JOINED + n][e];
                high[n][e] = uintBitsToFloat(floatBitsToUint(value) & 0xffffe000u); // 11 digits; compilers drop conversions there and back
                low[n][e] = value - high[n][e];
            }
        }
        add_columns(logit, high, part, operands_at, lane);
        add_columns(logit, low, part, operands_at, lane);
#endif
        bool beyond = false; // the reference, by more than SLACK
        [[unroll]] for (uint e = 0u; e < ELEMENTS; e++) {
            logit[e] = float(m) < bound[i][e] ? logit[e] * unit[i][e] : LOWEST;
            beyond = beyond || logit[e] > top[i][e] + SLACK;
        }
        if (subgroupOr(beyond ? 1u : 0u) != 0u) {
            MatrixSum keep;
            [[unroll]] for (uint e = 0u; e < ELEMENTS; e++) {
                float before = top[i][e];
                float after = logit[e] > before + SLACK ? logit[e] : before;
                keep[e] = exp2(before - after);
                top[i][e] = after;
            }
            den[i] *= keep;
            [[unroll]] for (uint j = 0u; j < COLUMN_TILES; j++) sums[i][j] *= keep;
        }
        [[unroll]] for (uint e = 0u; e < ELEMENTS; e++) {
            float weight = float(m) < bound[i][e] ? exp2(logit[e] - top[i][e]) : 0.0;
            den[i][e] += weight;
            gain[i][e] = weight * power;
        }
    }
    MatrixA scale[STATE_DEPTH];
    [[unroll]] for (uint k = 0u; k < STATE_DEPTH; k++) coopMatLoad(scale[k], scales, line + k * MATRIX_K, 0u, ROW_MAJOR);
    [[unroll]] for (uint i = 0u; i < TOKEN_ROWS; i++) {
        MatrixA by[STATE_DEPTH];
        [[unroll]] for (uint k = 0u; k < STATE_DEPTH; k++) by[k] = scale[k] * read[i * STATE_DEPTH + k];
        [[unroll]] for (uint j = 0u; j < COLUMN_TILES; j++) {
            if (j * MATRIX_N < args.P) {
                MatrixSum value = MatrixSum(0.0);
                [[unroll]] for (uint k = 0u; k < STATE_DEPTH; k++) {
                    MatrixB w;
                    coopMatLoad(w, memory, (line + k * MATRIX_K) * PITCH + j * MATRIX_N / 8u, PITCH, ROW_MAJOR);
                    value = coopMatMulAdd(by[k], w, value);
                }
                if (all) {
                    [[unroll]] for (uint e = 0u; e < ELEMENTS; e++) sums[i][j][e] += value[e] * gain[i][e];
                } else {
                    [[unroll]] for (uint e = 0u; e < ELEMENTS; e++) sums[i][j][e] += gain[i][e] == 0.0 ? 0.0 : value[e] * gain[i][e];
                }
            }
        }
    }
}
