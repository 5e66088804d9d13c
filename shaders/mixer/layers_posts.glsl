// How the workgroups of layers.comp pass numbers to one another: words with tags, rows of them, and what a stage gathers of both products.

void post(uint at, float value)
{
    uint64_t word = (uint64_t(tag) << 32) | uint64_t(floatBitsToUint(value));
    atomicStore(posts_posts[at], word, gl_ScopeDevice, gl_StorageSemanticsNone, gl_SemanticsRelaxed);
}
uint64_t look(uint at) { return atomicLoad(posts_posts[at], gl_ScopeDevice, gl_StorageSemanticsNone, gl_SemanticsRelaxed); }
// 0 where the word is there.
uint is_missing(uint64_t word) { return uint(word >> 32) ^ tag; }
float number(uint64_t word) { return uintBitsToFloat(uint(word & 0xffffffffUL)); }
// Of a word that never came the other lanes learn at the next barrier.
void give_up() { gave_up = 1u; }
// The words at two places, which may be one.
vec2 take(uint at, uint other)
{
    uint64_t word;
    uint64_t next;
    uint missing = 1u;
    [[dont_unroll]] for (uint tries = 0u; missing != 0u && tries < PATIENCE; tries++) {
        word = look(at);
        next = look(other);
        missing = is_missing(word) | is_missing(next);
    }
    if (missing != 0u) give_up();
    return vec2(number(word), number(next));
}

// ---- Rows of inputs ----

void put(uint i, float value)
{
    if (i % 8u < 4u) low[i / 8u][i % 4u] = value;
    else high[i / 8u][i % 4u] = value;
}
// The sum of `value` over the workgroup: subgroups leave theirs in sums. If IS_WIDE all lanes add them up and get the sum; else those that need it
// do so when they finish outputs of a product (sum_of_all): dart-130m takes 3 % less time so, dart-780m 3 % more (H200, November 2026).
float leave_sum(float value)
{
    value = add_lanes(value);
    if (lane == 0u) sums[subgroup] = value;
    barrier();
    if (!IS_WIDE) return 0.0;
    float sum = 0.0;
    [[unroll]] for (uint i = 0u; i < SUBGROUPS; i += SUBGROUP_SIZE) sum += i + lane < SUBGROUPS ? sums[i + lane] : 0.0;
    return add_lanes(sum);
}
float sum_of_all(float left)
{
    if (IS_WIDE) return left;
    float sum = 0.0;
    [[unroll]] for (uint i = 0u; i < SUBGROUPS; i++) sum += sums[i];
    return sum;
}
// Eight sums over the workgroup. Lanes may still read those of the call before.
void add_eight_over_all(inout vec4 one, inout vec4 other)
{
    [[unroll]] for (uint apart = SUBGROUP_SIZE / 2u; apart > 0u; apart /= 2u) {
        one += subgroupShuffleXor(one, apart);
        other += subgroupShuffleXor(other, apart);
    }
    barrier();
    if (lane == 0u) {
        sums4[subgroup] = one;
        sums4[SUBGROUPS + subgroup] = other;
    }
    barrier();
    one = vec4(0.0);
    other = vec4(0.0);
    [[unroll]] for (uint i = 0u; i < SUBGROUPS; i += SUBGROUP_SIZE) {
        if (i + lane < SUBGROUPS) {
            one += sums4[i + lane];
            other += sums4[SUBGROUPS + i + lane];
        }
    }
    const uint MOST = SUBGROUPS < SUBGROUP_SIZE ? SUBGROUPS : SUBGROUP_SIZE;
    [[unroll]] for (uint apart = MOST / 2u; apart > 0u; apart /= 2u) {
        one += subgroupShuffleXor(one, apart);
        other += subgroupShuffleXor(other, apart);
    }
    one = subgroupShuffle(one, 0u);
    other = subgroupShuffle(other, 0u);
}
// Waits for the row that is posted at `at`, six numbers of a lane at a time: more take registers that hold weights. low and high become the row times
// its norm; returns what leave_sum does of its squares. ASK asks for weights while the first look is on its way.
#define TAKES_ROW(name, COUNT, ASK) \
    float name(uint at, Floats norm, uint layer) \
    { \
        const uint AT_ONCE = SMALLER(CEIL_DIV(COUNT, SIZE), 6u); \
        uint64_t words[AT_ONCE]; \
        [[unroll]] for (uint k = 0u; k < AT_ONCE; k++) words[k] = look(at + min(LANE + k * SIZE, COUNT - 1u)); \
        ASK; \
        uint missing = 0u; \
        [[unroll]] for (uint k = 0u; k < AT_ONCE; k++) missing |= is_missing(words[k]); \
        float squares = 0.0; \
        [[dont_unroll]] for (uint first = LANE; first < COUNT; first += AT_ONCE * SIZE) { \
            float norms[AT_ONCE]; \
            [[unroll]] for (uint k = 0u; k < AT_ONCE; k++) norms[k] = norm.v[min(first + k * SIZE, COUNT - 1u)]; \
            [[dont_unroll]] for (uint tries = 0u; missing != 0u && tries < PATIENCE; tries++) { \
                missing = 0u; \
                [[unroll]] for (uint k = 0u; k < AT_ONCE; k++) words[k] = look(at + min(first + k * SIZE, COUNT - 1u)); \
                [[unroll]] for (uint k = 0u; k < AT_ONCE; k++) missing |= is_missing(words[k]); \
            } \
            if (missing != 0u) give_up(); \
            [[unroll]] for (uint k = 0u; k < AT_ONCE; k++) { \
                if (COUNT % (AT_ONCE * SIZE) == 0u || first + k * SIZE < COUNT) { \
                    put(first + k * SIZE, number(words[k]) * norms[k]); \
                    squares += number(words[k]) * number(words[k]); \
                } \
            } \
            missing = 1u; \
        } \
        return leave_sum(squares); \
    }
// What an item reads of the products: memories, item 0, or the scan of a head. In taken, for memories: q, e, c; for a scan: z, x, b, c, the step, the
// gate.
void gather(uint item)
{
    uint one, other;
    if (item > 0u) {
        uint head = item - 1u;
        one = LANE < P ? head * P + LANE : LANE < 2u * P ? I + head * P + LANE - P : 2u * I + LANE - 2u * P;
        other = LANE + SIZE < STEP ? 2u * I + LANE + SIZE - 2u * P : LANE + SIZE == STEP ? I + CHANNELS + head :
                LANE + SIZE == STEP + 1u && has(args.flags, HAS_OPEN) ? R + QUERIES : one;
    } else {
        one = LANE < QUERIES ? R + LANE : 2u * I + N + LANE - QUERIES;
        other = LANE + SIZE < QUERIES + N ? 2u * I + N + LANE + SIZE - QUERIES : one;
    }
    barrier(); // taken and found are free
    vec2 values = take(PROJ_AT + one, PROJ_AT + other);
    taken[LANE] = values.x;
    taken[LANE + SIZE] = values.y;
    barrier();
}
