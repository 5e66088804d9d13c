// What the kernels share that walk over the chunks of a sequence on cooperative matrices: a workgroup of two subgroups takes a group of one or two
// heads, a subgroup a head. Chunks have at most SIDE tokens, N is SIDE, P a multiple of SIDE, at most WIDTH; what lies past them counts as 0.
// Include after matrix.glsl, ssd.glsl and head.glsl.
//
// A block is SIDE x SIDE elements: TILES sums, or the left or right operands of as many. An f32 operand is the sum of two elements, `high` cut off
// and `low` rounded, which together are off by 2^-16 of it (bf16), 2^-22 (f16). In f16 a block is divided by a power of two first, its unit, so
// that its largest element lies in [2^13, 2^14].
const uint SIDE = 16u;
const uint WIDTH = 64u;
const uint HEADS = 2u;
const uint ROW_TILES = SIDE / MATRIX_M;
const uint COLUMN_TILES = SIDE / MATRIX_N;
const uint DEPTH_TILES = SIDE / MATRIX_K;
const uint TILES = ROW_TILES * COLUMN_TILES;
const uint LEFT_TILES = ROW_TILES * DEPTH_TILES;
const uint RIGHT_TILES = DEPTH_TILES * COLUMN_TILES;
const uint BLOCKS = WIDTH / SIDE;
const uint ELEMENTS = MATRIX_M * MATRIX_N / SUBGROUP_SIZE; // components of a sum in a lane

// In words of 16 bytes, from one row to the next: of WIDTH and of SIDE 16-bit elements, and of SIDE floats. Odd, to spread the banks.
const uint PITCH = WIDTH / 8u + 1u;
const uint LINE = SIDE / 8u + 1u;
const uint QUADS = SIDE / 4u + 1u;
const uint PANEL = SIDE * PITCH;
const uint SQUARE = SIDE * LINE;
const uint FLOATS = SIDE * QUADS;

// Values of a head's tokens, as rows of SIDE floats.
const uint OF_STEP = 0u;
const uint OF_WRITTEN = 1u; // keep_s step_s
const uint OF_READ = 2u;    // exp(cum_t)
const uint OF_KEEP = 3u;
const uint OF_HIGH = 4u;    // cum, in two floats
const uint OF_LOW = 5u;
const uint OF_RAW = 6u;     // dt with its bias
#define TOKEN(kind, head, t) tokens[(((kind) * HEADS + (head)) * SIDE + (t)) / 4u][(t) % 4u]
#define TOKENS_AT(kind, head) (((kind) * HEADS + (head)) * SIDE / 4u)

shared uvec4 panels[HEADS * PANELS * PANEL]; // 16-bit elements; PANELS of a head: x, then up_y
shared uvec4 gains[HEADS * 2u * PANEL];      // an f32 operand of a head, N x WIDTH, high then low
shared uvec4 keys[HEADS * 2u * SQUARE];      // b, then c; a copy for each head
shared vec4 parts[HEADS * FLOATS];           // a block on its way between matrices and lanes
shared vec4 tokens[HEADS * KINDS * SIDE / 4u];

#define EACH_TILE(n) [[unroll]] for (uint n = 0u; n < TILES; n++)
#define EACH_ELEMENT(n, e) EACH_TILE(n) [[unroll]] for (uint e = 0u; e < ELEMENTS; e++)
// Arguments of the macros below may name any variable that does not end in _.
#define EACH_ROW_TILE(i, j, m, n) [[unroll]] for (uint i = 0u; i < m; i++) [[unroll]] for (uint j = 0u; j < n; j++)

// Blocks of sums in memory, row by row or (TURNED) column by column; a value for each row in all columns, a value for each column in all rows.
#define LOAD_SUM(block, memory, at, pitch) \
    EACH_ROW_TILE(row_, column_, ROW_TILES, COLUMN_TILES) \
        coopMatLoad(block[row_ * COLUMN_TILES + column_], memory, (at) + row_ * MATRIX_M * (pitch) + column_ * MATRIX_N / 4u, pitch, ROW_MAJOR);
#define LOAD_SUM_TURNED(block, memory, at, pitch) \
    EACH_ROW_TILE(row_, column_, ROW_TILES, COLUMN_TILES) \
        coopMatLoad(block[row_ * COLUMN_TILES + column_], memory, (at) + column_ * MATRIX_N * (pitch) + row_ * MATRIX_M / 4u, pitch, COLUMN_MAJOR);
#define STORE_SUM(block, memory, at, pitch) \
    EACH_ROW_TILE(row_, column_, ROW_TILES, COLUMN_TILES) \
        coopMatStore(block[row_ * COLUMN_TILES + column_], memory, (at) + row_ * MATRIX_M * (pitch) + column_ * MATRIX_N / 4u, pitch, ROW_MAJOR);
#define STORE_SUM_TURNED(block, memory, at, pitch) \
    EACH_ROW_TILE(row_, column_, ROW_TILES, COLUMN_TILES) \
        coopMatStore(block[row_ * COLUMN_TILES + column_], memory, (at) + column_ * MATRIX_N * (pitch) + row_ * MATRIX_M / 4u, pitch, COLUMN_MAJOR);
#define LOAD_OF_ROWS(block, at) \
    EACH_ROW_TILE(row_, column_, ROW_TILES, COLUMN_TILES) \
        coopMatLoad(block[row_ * COLUMN_TILES + column_], tokens, (at) + row_ * MATRIX_M / 4u, 0u, COLUMN_MAJOR);
#define LOAD_OF_COLUMNS(block, at) \
    EACH_ROW_TILE(row_, column_, ROW_TILES, COLUMN_TILES) \
        coopMatLoad(block[row_ * COLUMN_TILES + column_], tokens, (at) + column_ * MATRIX_N / 4u, 0u, ROW_MAJOR);

// Operands of 16-bit elements in memory; TURNED: what lies there is transposed.
#define LOAD_LEFT(left, memory, at, pitch) \
    EACH_ROW_TILE(row_, depth_, ROW_TILES, DEPTH_TILES) \
        coopMatLoad(left[row_ * DEPTH_TILES + depth_], memory, (at) + row_ * MATRIX_M * (pitch) + depth_ * MATRIX_K / 8u, pitch, ROW_MAJOR);
#define LOAD_LEFT_TURNED(left, memory, at, pitch) \
    EACH_ROW_TILE(row_, depth_, ROW_TILES, DEPTH_TILES) \
        coopMatLoad(left[row_ * DEPTH_TILES + depth_], memory, (at) + depth_ * MATRIX_K * (pitch) + row_ * MATRIX_M / 8u, pitch, COLUMN_MAJOR);
#define LOAD_RIGHT(right, memory, at, pitch) \
    EACH_ROW_TILE(depth_, column_, DEPTH_TILES, COLUMN_TILES) \
        coopMatLoad(right[depth_ * COLUMN_TILES + column_], memory, (at) + depth_ * MATRIX_K * (pitch) + column_ * MATRIX_N / 8u, pitch, ROW_MAJOR);
#define LOAD_RIGHT_TURNED(right, memory, at, pitch) \
    EACH_ROW_TILE(depth_, column_, DEPTH_TILES, COLUMN_TILES) \
        coopMatLoad(right[depth_ * COLUMN_TILES + column_], memory, (at) + column_ * MATRIX_N * (pitch) + depth_ * MATRIX_K / 8u, pitch, \
                    COLUMN_MAJOR);

// Block `first` of sums += left right.
#define ADD_PRODUCT(sum, first, left, right) \
    EACH_ROW_TILE(row_, column_, ROW_TILES, COLUMN_TILES) [[unroll]] for (uint depth_ = 0u; depth_ < DEPTH_TILES; depth_++) { \
        uint at_ = (first) * TILES + row_ * COLUMN_TILES + column_; \
        sum[at_] = coopMatMulAdd(left[row_ * DEPTH_TILES + depth_], right[depth_ * COLUMN_TILES + column_], sum[at_]); \
    }
#ifdef MATRIX_BF16
#define UNIT_OF(largest) 1.0
#define OVER(value, unit) (value)
const uint KEPT = 0xffff0000u;
float low_part(float value, float high) { return rounded_bf16(value - high); }
uint join_elements(float a, float b) { return floatBitsToUint(a) >> 16 | floatBitsToUint(b) & 0xffff0000u; }
#define ADD_SPLIT(sum, first, high, low, right, unit) \
    ADD_PRODUCT(sum, first, low, right) \
    ADD_PRODUCT(sum, first, high, right)
#define LARGEST(largest, value)
#else
// A power of two, clear of the ends of f32's range.
float unit_of(float largest)
{
    return clamp(uintBitsToFloat(floatBitsToUint(subgroupMax(largest)) + 0x7fffffu & 0x7f800000u), exp2(-90.0), exp2(100.0)) * exp2(-14.0);
}
#define UNIT_OF(largest) unit_of(largest)
#define OVER(value, unit) ((value) / (unit))
const uint KEPT = 0xffffe000u;
float low_part(float value, float high) { return value - high; }
uint join_elements(float a, float b) { return packFloat2x16(f16vec2(a, b)); }
#define ADD_SPLIT(sum, first, high, low, right, unit) { \
        MatrixSum of_unit[TILES]; \
        EACH_TILE(n) of_unit[n] = MatrixSum(0.0); \
        ADD_PRODUCT(of_unit, 0u, low, right) \
        ADD_PRODUCT(of_unit, 0u, high, right) \
        EACH_TILE(n) sum[(first) * TILES + n] += of_unit[n] * unit; \
    }
#define LARGEST(largest, value) largest = max(largest, abs(value));
#endif
float high_part(float value) { return uintBitsToFloat(floatBitsToUint(value) & KEPT); }
// Eight values divided by `unit`, in two words.
void split_eight(vec4 a, vec4 b, float unit, out uvec4 high, out uvec4 low)
{
    a = OVER(a, unit);
    b = OVER(b, unit);
    vec4 high_a = vec4(high_part(a.x), high_part(a.y), high_part(a.z), high_part(a.w));
    vec4 high_b = vec4(high_part(b.x), high_part(b.y), high_part(b.z), high_part(b.w));
    high = uvec4(join_elements(high_a.x, high_a.y), join_elements(high_a.z, high_a.w), join_elements(high_b.x, high_b.y),
                 join_elements(high_b.z, high_b.w));
    low = uvec4(join_elements(low_part(a.x, high_a.x), low_part(a.y, high_a.y)), join_elements(low_part(a.z, high_a.z), low_part(a.w, high_a.w)),
                join_elements(low_part(b.x, high_b.x), low_part(b.y, high_b.y)), join_elements(low_part(b.z, high_b.z), low_part(b.w, high_b.w)));
}

// high + low = a block of sums / unit, as left operands. By way of parts and of `memory`, at word `at` (high) and `at + apart` (low), which
// hold it afterwards; with MATRIX2 in registers, and KEEP_LEFT puts it there. What else reads that memory has passed a subgroup_sync.
#ifdef MATRIX2
#define TO_LEFT(block, high, low, unit, memory, at, pitch, apart) { \
        float largest = 0.0; \
        EACH_ELEMENT(n, e) { LARGEST(largest, block[n][e]) } \
        unit = UNIT_OF(largest); \
        EACH_TILE(n) { \
            MatrixSum rest = block[n]; \
            [[unroll]] for (uint e = 0u; e < ELEMENTS; e++) { \
                float value = OVER(block[n][e], unit); \
                float cut = high_part(value); \
                block[n][e] = cut; \
                rest[e] = low_part(value, cut); \
            } \
            high[n] = MatrixA(block[n]); \
            low[n] = MatrixA(rest); \
        } \
    }
#define KEEP_LEFT(high, low, memory, at, pitch, apart) \
    EACH_ROW_TILE(row_, depth_, ROW_TILES, DEPTH_TILES) { \
        uint to_ = (at) + row_ * MATRIX_M * (pitch) + depth_ * MATRIX_K / 8u; \
        coopMatStore(high[row_ * DEPTH_TILES + depth_], memory, to_, pitch, ROW_MAJOR); \
        coopMatStore(low[row_ * DEPTH_TILES + depth_], memory, to_ + (apart), pitch, ROW_MAJOR); \
    }
#else
#define TO_LEFT(block, high, low, unit, memory, at, pitch, apart) { \
        float largest = 0.0; \
        EACH_ELEMENT(n, e) { LARGEST(largest, block[n][e]) } \
        unit = UNIT_OF(largest); \
        STORE_SUM(block, parts, part_at, QUADS) \
        subgroup_sync(); \
        for (uint i = lane; i < SIDE * SIDE / 8u; i += SUBGROUP_SIZE) { \
            uint from = part_at + i / 2u * QUADS + i % 2u * 2u; \
            uint to = (at) + i / 2u * (pitch) + i % 2u; \
            split_eight(parts[from], parts[from + 1u], unit, memory[to], memory[to + (apart)]); \
        } \
        subgroup_sync(); \
        LOAD_LEFT(high, memory, at, pitch) \
        LOAD_LEFT(low, memory, (at) + (apart), pitch) \
    }
#define KEEP_LEFT(high, low, memory, at, pitch, apart)
#endif

// To `memory` the rows of b or c in keys from `from` on times a value of each token, in the form of TO_LEFT with pitch LINE, and unit.
#define PUT_SCALED(from, kind, unit, memory, at) { \
        vec4 scaled[2u * KEY_WORDS]; \
        float largest = 0.0; \
        [[unroll]] for (uint n = 0u; n < KEY_WORDS; n++) { \
            uint i = min(lane + n * SUBGROUP_SIZE, SIDE * SIDE / 8u - 1u); \
            uvec4 words = keys[(from) + i / 2u * LINE + i % 2u]; \
            float by = TOKEN(kind, own, i / 2u); \
            scaled[2u * n] = by * vec4(unpack_elements(words.x), unpack_elements(words.y)); \
            scaled[2u * n + 1u] = by * vec4(unpack_elements(words.z), unpack_elements(words.w)); \
            [[unroll]] for (uint c = 0u; c < 4u; c++) { \
                LARGEST(largest, scaled[2u * n][c]) \
                LARGEST(largest, scaled[2u * n + 1u][c]) \
            } \
        } \
        unit = UNIT_OF(largest); \
        [[unroll]] for (uint n = 0u; n < KEY_WORDS; n++) { \
            uint i = lane + n * SUBGROUP_SIZE; \
            uint to = (at) + i / 2u * LINE + i % 2u; \
            if (i < SIDE * SIDE / 8u) split_eight(scaled[2u * n], scaled[2u * n + 1u], unit, memory[to], memory[to + SQUARE]); \
        } \
    }

// A chunk's elements in registers, 16 bytes a word: x or up_y of a head, b or c of a group, dt with its bias. A load under a condition may end with a
// move where paths meet, and that waits for it: FETCH takes others for those that are not there, and PUT makes them 0.
const uint WORDS = (SIDE * WIDTH / 8u + SUBGROUP_SIZE - 1u) / SUBGROUP_SIZE;
const uint KEY_WORDS = (SIDE * SIDE / 8u + SUBGROUP_SIZE - 1u) / SUBGROUP_SIZE;
const uint TOKEN_WORDS = (SIDE + SUBGROUP_SIZE - 1u) / SUBGROUP_SIZE;
#define FETCH_PANEL(next, name, row, size) \
    [[unroll]] for (uint n = 0u; n < WORDS; n++) { \
        uint i = lane + n * SUBGROUP_SIZE; \
        uint p = i % (WIDTH / 8u) * 8u; \
        uint line = min(i / (WIDTH / 8u), (size) - 1u); \
        next[n] = quads_##name[(args.name##_at + (row + line) * args.name##_row + h * args.P + min(p, args.P - 8u)) / 8u]; \
    }
#define FETCH_KEYS(next, name, row, size) \
    [[unroll]] for (uint n = 0u; n < KEY_WORDS; n++) { \
        uint i = lane + n * SUBGROUP_SIZE; \
        uint line = min(i / 2u, (size) - 1u); \
        next[n] = quads_##name[(args.name##_at + (row + line) * args.name##_row + g * SIDE + i % 2u * 8u) / 8u]; \
    }
#define FETCH_STEPS(next, row, size) \
    [[unroll]] for (uint n = 0u; n < TOKEN_WORDS; n++) { \
        uint t = lane + n * SUBGROUP_SIZE; \
        next[n] = raw_of(row + min(t, (size) - 1u), h, head); \
    }
#define PUT_PANEL(next, at, size) \
    [[unroll]] for (uint n = 0u; n < WORDS; n++) { \
        uint i = lane + n * SUBGROUP_SIZE; \
        bool is = there && i / (WIDTH / 8u) < (size) && i % (WIDTH / 8u) * 8u < args.P; \
        panels[(at) + i / (WIDTH / 8u) * PITCH + i % (WIDTH / 8u)] = is ? next[n] : uvec4(0u); \
    }
#define PUT_KEYS(next, at, size) \
    [[unroll]] for (uint n = 0u; n < KEY_WORDS; n++) { \
        uint i = lane + n * SUBGROUP_SIZE; \
        if (i < SIDE * SIDE / 8u) keys[(at) + i / 2u * LINE + i % 2u] = i / 2u < (size) ? next[n] : uvec4(0u); \
    }
#define PUT_STEPS(next, size) \
    [[unroll]] for (uint n = 0u; n < TOKEN_WORDS; n++) { \
        uint t = lane + n * SUBGROUP_SIZE; \
        if (t < SIDE) { \
            bool is = there && t < (size); \
            TOKEN(OF_RAW, own, t) = is ? next[n] : 0.0; \
            TOKEN(OF_STEP, own, t) = is ? step_of(next[n]) : 0.0; \
        } \
    }

// cum and what follows from it, from the steps of the head, which have passed a subgroup_sync.
void put_decays(uint own, uint lane, Head head)
{
    for (uint t = lane; t < SIDE; t += SUBGROUP_SIZE) {
        vec2 sum = vec2(0.0);
        vec2 cum = vec2(0.0);
        [[unroll]] for (uint q = 0u; q < SIDE / 4u; q++) {
            vec4 step = tokens[TOKENS_AT(OF_STEP, own) + q];
            [[unroll]] for (uint c = 0u; c < 4u; c++) {
                sum = add_pairs(sum, vec2(head.a * step[c], 0.0));
                cum = 4u * q + c <= t ? sum : cum;
            }
        }
        float keep = exp_neg(cum_between(cum, sum));
        TOKEN(OF_HIGH, own, t) = cum.x;
        TOKEN(OF_LOW, own, t) = cum.y;
        TOKEN(OF_KEEP, own, t) = keep;
        TOKEN(OF_WRITTEN, own, t) = keep * TOKEN(OF_STEP, own, t);
        TOKEN(OF_READ, own, t) = exp_neg(cum.x);
    }
}

// Of the components of a block (s, t): bit e, s <= t; bit 16 + e, s = t. Turned: of a block (t, s).
uint places[TILES];
void find_places(uint lane, uint part_at, bool turned)
{
    for (uint i = lane; i < SIDE * SIDE / 4u; i += SUBGROUP_SIZE)
        [[unroll]] for (uint c = 0u; c < 4u; c++) parts[part_at + i / 4u * QUADS + i % 4u][c] = float(i % 4u * 4u + c) - float(i / 4u);
    subgroup_sync();
    MatrixSum apart[TILES];
    LOAD_SUM(apart, parts, part_at, QUADS)
    EACH_TILE(n) places[n] = 0u;
    EACH_ELEMENT(n, e) {
        float later = turned ? -apart[n][e] : apart[n][e];
        places[n] |= (later >= 0.0 ? 1u << e : 0u) | (later == 0.0 ? 65536u << e : 0u);
    }
    subgroup_sync();
}
