// What the kernels of small memories on cooperative matrices share: N is 16 T1, 16 or 32, P a multiple of 16, at most 64. A workgroup has T0 tokens,
// a subgroup OWN of them. LINES rows w of memories lie in shared memory, of which a subgroup multiplies LINES_ONCE at a time, one memory or two.
// Include after the bindings dh, as quads, and factor; the kernel's arguments have H, P, dh_at and factor_at.
// Shared memory: 148 LINES + SUBGROUPS 16 (PARTS + OPERANDS) bytes: 28,928 with T0 64 and T1 1.
const uint STATE = T1 == 2u ? 32u : 16u;          // N
const uint WIDTH = 64u;                           // the most columns P
const uint OWN = T0 / SUBGROUPS;
const uint LINES = 64u;
const uint LINES_ONCE = 32u;
const uint TOGETHER = LINES_ONCE / STATE;         // memories
const uint PITCH = WIDTH / 8u + 1u;               // 16-byte words from one row of w or of en to the next
const uint PART_PITCH = STATE / 4u + 1u;          // ... from one token of the parts to the next
const uint OUT_PITCH = WIDTH / 8u + 1u;           // ... where the parts are half the columns of a result
const uint PARTS = TOGETHER * OWN * PART_PITCH;   // not below OWN OUT_PITCH
const uint OPERANDS = OWN * PITCH;
const uint ITEMS = (TOGETHER * OWN + SUBGROUP_SIZE - 1u) / SUBGROUP_SIZE; // pairs (memory, token) of a lane
const uint ROW_TILES = LINES_ONCE / MATRIX_M;
const uint STATE_TILES = STATE / MATRIX_M;
const uint TOKEN_TILES = OWN / MATRIX_N;          // of tokens, as columns
const uint TOKEN_ROWS = OWN / MATRIX_M;           // ... as rows
const uint DEPTH_TILES = WIDTH / MATRIX_K;
const uint COLUMN_TILES = WIDTH / MATRIX_N;
shared uvec4 memory[LINES * PITCH];               // w
shared float factors[LINES];
shared uvec4 operands[SUBGROUPS * OPERANDS];          // 16-bit operands of the subgroup
shared vec4 parts[SUBGROUPS * PARTS];             // f32 matrices of the subgroup on their way in or out, token by token

MatrixB verifier[DEPTH_TILES][TOKEN_TILES];       // en^T
MatrixSum query[STATE_TILES][TOKEN_TILES];        // qn^T
MatrixSum sums[TOKEN_ROWS][COLUMN_TILES];         // tokens x P

uint as_element(uint word)
{
#ifndef MATRIX_BF16
    if (DTYPE_OF(dh) == TYPE_BF16) return pack_elements(uintBitsToFloat(word << 16), uintBitsToFloat(word & 0xffff0000u));
#endif
    return word;
}

// The rows of the memories of head h from m_first on, by the whole workgroup; those from `seen` on are 0. slots: of the sequence's first memory.
void put_lines(uint slots, uint h, uint m_first, uint seen)
{
    uint width = args.P / 8u;
    for (uint i = LANE; i < LINES * width; i += LANES) {
        uint line = i / width;
        uint m = m_first + line / STATE;
        uint at = (((slots + m) * args.H + h) * STATE + line % STATE) * args.P;
        uvec4 words = m < seen ? quads_dh[(args.dh_at + at) / 8u + i % width] : uvec4(0u);
        memory[line * PITCH + i % width] = uvec4(as_element(words.x), as_element(words.y), as_element(words.z), as_element(words.w));
    }
    for (uint i = LANE; i < LINES; i += LANES) {
        uint m = m_first + i / STATE;
        factors[i] = m < seen ? load_factor(args.factor_at + ((slots + m) * args.H + h) * STATE + i % STATE) : 0.0;
    }
}

#ifdef AHEAD
// The same in two steps, so that other work lies between them: what a lane asks for, and what it then puts.
const uint LINE_WORDS = (LINES * WIDTH / 8u + LANES - 1u) / LANES;
const uint FACTORS = (LINES + LANES - 1u) / LANES;
uvec4 next_lines[LINE_WORDS];
float next_factors[FACTORS];
void fetch_lines(uint slots, uint h, uint m_first, uint seen)
{
    uint width = args.P / 8u;
    [[unroll]] for (uint x = 0u; x < LINE_WORDS; x++) {
        uint i = LANE + x * LANES;
        uint line = i / width;
        uint m = m_first + line / STATE;
        next_lines[x] = uvec4(0u);
        if (line < LINES && m < seen)
            next_lines[x] = quads_dh[(args.dh_at + (((slots + m) * args.H + h) * STATE + line % STATE) * args.P) / 8u + i % width];
    }
    [[unroll]] for (uint x = 0u; x < FACTORS; x++) {
        uint i = LANE + x * LANES;
        uint m = m_first + i / STATE;
        next_factors[x] = 0.0;
        if (i < LINES && m < seen) next_factors[x] = load_factor(args.factor_at + ((slots + m) * args.H + h) * STATE + i % STATE);
    }
}
void put_fetched_lines()
{
    uint width = args.P / 8u;
    [[unroll]] for (uint x = 0u; x < LINE_WORDS; x++) {
        uint i = LANE + x * LANES;
        uvec4 words = next_lines[x];
        if (i / width < LINES)
            memory[i / width * PITCH + i % width] = uvec4(as_element(words.x), as_element(words.y), as_element(words.z), as_element(words.w));
    }
    [[unroll]] for (uint x = 0u; x < FACTORS; x++)
        if (LANE + x * LANES < LINES) factors[LANE + x * LANES] = next_factors[x];
}
#endif

// Eight elements of a token among the parts.
void put_part(uint part, uint t, uint eight, uvec4 words)
{
    parts[part + t * PART_PITCH + 2u * eight] = vec4(unpack_elements(words.x), unpack_elements(words.y));
    parts[part + t * PART_PITCH + 2u * eight + 1u] = vec4(unpack_elements(words.z), unpack_elements(words.w));
}
// Where matrix (i, j) of LINES_ONCE rows (m, n) x tokens lies among the parts, column by column PART_PITCH apart.
uint part_at(uint part, uint i, uint j) { return part + (i / STATE_TILES * OWN + j * MATRIX_N) * PART_PITCH + i % STATE_TILES * MATRIX_M / 4u; }
// The sum over n of a pair (memory, token).
float part_sum(uint part, uint item)
{
    vec4 sum = vec4(0.0);
    [[unroll]] for (uint q = 0u; q < STATE / 4u; q++) sum += parts[part + item * PART_PITCH + q];
    return sum.x + sum.y + (sum.z + sum.w);
}
// Columns p to p + WIDTH / 2 of sums, to the parts.
void put_columns(uint part, uint p)
{
    [[unroll]] for (uint j = 0u; j < COLUMN_TILES; j++) {
        if (j * MATRIX_N >= p && j * MATRIX_N < min(p + WIDTH / 2u, args.P)) {
            [[unroll]] for (uint i = 0u; i < TOKEN_ROWS; i++)
                coopMatStore(sums[i][j], parts, part + i * MATRIX_M * OUT_PITCH + (j * MATRIX_N - p) / 4u, OUT_PITCH, ROW_MAJOR);
        }
    }
}
