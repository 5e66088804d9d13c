// What sma_registers.comp holds, in shared memory and in a subgroup's registers, and a memory's way through it: fetch brings it into
// registers, put from there into shared memory, step multiplies it and takes it into the softmax. Its reasons stand in sma_registers.comp.

const uint N = 128u;
const uint P = 64u;
const uint TOKENS = SUBGROUPS * MATRIX_M;
const uint PASSES = T0 / TOKENS;
const uint ROWS = N / MATRIX_K;                     // matrices of a memory
const uint COLUMNS = P / MATRIX_N;
const uint PITCH = P / 8u + 1u;                     // 16-byte words of a row, as below
const uint MEMORY = N * PITCH;
const uint TOKEN_PITCH = N / 8u + 1u;               // of qn and c, and of P floats
const uint PART_PITCH = MATRIX_N / 2u + 1u;         // pairs
const uint ELEMENTS = MATRIX_M * MATRIX_N / SUBGROUP_SIZE;
const uint COPIES = N * P / 8u / LANES;             // 16-byte words that a lane brings of a memory
const uint QUERIES = MATRIX_M * N / 8u / SUBGROUP_SIZE; // of qn, and of c
const uint VERIFIERS = MATRIX_M * P / 8u / SUBGROUP_SIZE;
const uint SHARED_TILE = TOKENS * TOKEN_PITCH > 2u * MEMORY ? TOKENS * TOKEN_PITCH : 2u * MEMORY;
shared uvec4 tile_dh[SHARED_TILE];                  // two memories; before them qn, c and en, after them the results
shared uvec4 scales[2u * N / 8u];
shared vec2 parts[TOKENS * PART_PITCH];             // logits in matrices of equal columns
shared float keeps[TOKENS];                         // what becomes of the results so far
shared float gains[TOKENS];                         // weight of the new value
shared float powers[4];                             // of two, which the scales of a memory were divided by

MatrixA query[ROWS];
MatrixA read[ROWS];
uint verifier[COLUMNS * ELEMENTS / 2u];
MatrixSum results[COLUMNS];
uvec4 copies[COPIES];
vec4 scale;
float top, den, unit;                               // of the lane's token; logits are in units of log 2
uint own, limit;

float sum_of(const in float a, const in float b) { return a + b; }
uint to_f16(uint word)
{
    if (DTYPE_OF(dh) == TYPE_F16) return word;
    return packFloat2x16(f16vec2(vec2(uintBitsToFloat(word << 16), uintBitsToFloat(word & 0xffff0000u))));
}
void sync()
{
    subgroupMemoryBarrierShared();
    subgroupBarrier();
}

void fetch(uint rows)
{
    [[unroll]] for (uint i = 0u; i < COPIES; i++) copies[i] = quads_dh[(args.dh_at + rows * P) / 8u + i * LANES + LANE];
    scale = quads_factor[(args.factor_at + rows) / 4u + gl_SubgroupInvocationID % (N / 4u)];
}
void put(uint m)
{
    [[unroll]] for (uint i = 0u; i < COPIES; i++) {
        uint at = i * LANES + LANE;
        tile_dh[(m & 1u) * MEMORY + at / (P / 8u) * PITCH + at % (P / 8u)] =
            uvec4(to_f16(copies[i].x), to_f16(copies[i].y), to_f16(copies[i].z), to_f16(copies[i].w));
    }
    vec4 sizes = abs(scale);
    float most = max(max(sizes.x, sizes.y), max(sizes.z, sizes.w));
    [[unroll]] for (uint apart = 1u; apart < N / 4u; apart *= 2u) most = max(most, subgroupShuffleXor(most, apart));
    uint power = clamp(floatBitsToUint(most) & 0x7f800000u, 0x00800000u, 0x7e000000u);
    float inverse = uintBitsToFloat(0x7f000000u - power);
    if (LANE < N / 4u) {
        scales[(m & 1u) * (N / 8u) + LANE / 2u][LANE % 2u * 2u] = packFloat2x16(f16vec2(scale.xy * inverse));
        scales[(m & 1u) * (N / 8u) + LANE / 2u][LANE % 2u * 2u + 1u] = packFloat2x16(f16vec2(scale.zw * inverse));
    }
    if (LANE == 0u) powers[m & 3u] = uintBitsToFloat(power);
}

MatrixB memory_of(uint m, uint k, uint j)
{
    MatrixB memory;
    coopMatLoad(memory, tile_dh, (m & 1u) * MEMORY + k * MATRIX_K * PITCH + j * (MATRIX_N / 8u), PITCH, ROW_MAJOR);
    return memory;
}
// c times the scales of memory m.
MatrixA factor_of(uint m, uint k)
{
    MatrixA factor;
    coopMatLoad(factor, scales, ((m & 1u) * N + k * MATRIX_K) / 8u, 0u, ROW_MAJOR);
    factor *= read[k];
    return factor;
}

// Memory m, while the one at `next` comes. all: every token sees it.
void step(uint m, uint next, const bool all)
{
    uint lane = gl_SubgroupInvocationID;
    MatrixSum keys[COLUMNS];
    MatrixSum values[COLUMNS];
    [[unroll]] for (uint j = 0u; j < COLUMNS; j++) {
        keys[j] = MatrixSum(0.0);
        values[j] = MatrixSum(0.0);
    }
    fetch(next);
    [[unroll]] for (uint k = 0u; k < ROWS; k++) {
        MatrixA factor = factor_of(m, k);
        [[unroll]] for (uint j = 0u; j < COLUMNS; j++) {
            MatrixB memory = memory_of(m, k, j);
            keys[j] = coopMatMulAdd(query[k], memory, keys[j]);
            values[j] = coopMatMulAdd(factor, memory, values[j]);
        }
        // All subgroups begin at once: with the loads of three more rounds ahead of its first product each waits for those of
        // all others (1.34 ms, so 1.32; after every round 1.34).
        if (k == 0u) subgroupMemoryBarrierShared();
    }
    // m >> 31 is 0, which compilers do not know: they would unpack en once for all memories, into twice the registers.
    uint zero = m >> 31;
    MatrixSum sums;
    [[unroll]] for (uint i = 0u; i < ELEMENTS; i++) {
        float sum = 0.0;
        [[unroll]] for (uint j = 0u; j < COLUMNS; j++)
            sum += keys[j][i] * unpack_elements(verifier[(j * ELEMENTS + i) / 2u] ^ zero)[i & 1u];
        sums[i] = sum;
    }
    MatrixSum total;
    coopMatReduceNV(total, sums, gl_CooperativeMatrixReduceRowNV, sum_of);
    coopMatStore(total, parts, own * PART_PITCH, PART_PITCH, ROW_MAJOR);
    sync();
    float logit = parts[(own + lane % MATRIX_M) * PART_PITCH].x * unit;
    bool visible = all || args.first + m < limit;
    float high = visible ? max(top, logit) : top;
    float keep_own = exp2(max(top - high, -150.0));
    float gain = visible ? exp2(max(logit - high, -150.0)) : 0.0;
    den = den * keep_own + gain;
    top = high;
    if (lane < MATRIX_M) {
        keeps[own + lane] = keep_own;
        gains[own + lane] = gain * powers[m & 3u];
    }
    put(m + 1u);
    sync();
    MatrixSum keep, weight;
    coopMatLoad(keep, keeps, own, 0u, COLUMN_MAJOR);
    coopMatLoad(weight, gains, own, 0u, COLUMN_MAJOR);
    [[unroll]] for (uint j = 0u; j < COLUMNS; j++) {
        if (!all) {
            [[unroll]] for (uint i = 0u; i < ELEMENTS; i++) values[j][i] = weight[i] == 0.0 ? 0.0 : values[j][i];
        }
        results[j] = results[j] * keep + values[j] * weight;
    }
}
