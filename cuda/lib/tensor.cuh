// Matrix products on tensor cores: 16-bit operands, f32 sums.
//
// A tile in shared memory is rows of 64 elements, 128 bytes, from an address that is a multiple of 1024. Piece i (16 bytes) of row r
// lies at piece i ^ (r % 8): ldmatrix then reads eight rows from eight different banks, and the order is that of wgmma's 128-byte
// swizzle.
// A fragment of the left operand is 16 x 16, in the registers of a warp: lane 4 g + c holds rows g (0, 2) and g + 8 (1, 3),
// columns 2 c, 2 c + 1 (0, 1) and 2 c + 8, 2 c + 9 (2, 3). Sums are 16 x 64 a warp: sum[4 i ..] are columns 8 i + 2 c and
// 8 i + 2 c + 1 of row g, then of row g + 8. A warpgroup multiplies 64 rows at once, 16 a warp, in the same layout.
#ifndef DART_TENSOR_CUH
#define DART_TENSOR_CUH

#include "dart.cuh"

constexpr uint32_t tile_row = 128; // bytes
extern __shared__ __align__(1024) char tensor_memory[];

// The value of lane 0. The compiler then knows that whole warps take a branch on the value; otherwise it makes wgmma wait at every step.
__device__ __forceinline__ uint32_t uniform(uint32_t value) { return __shfl_sync(0xffffffffu, value, 0); }

// ---- 16-bit pairs ----

template <bool bf> __device__ __forceinline__ uint32_t pack(float low, float high)
{
    uint32_t pair;
    if (bf) {
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    } else {
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    }
    return pair;
}
template <bool bf> __device__ __forceinline__ float2 unpack(uint32_t pair)
{
    if (bf) return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
    return make_float2(from_half(pair & 0xffffu), from_half(pair >> 16));
}
// Factors for a pair of elements. bf16: each factor as a sum of two bf16 numbers, x the rounded factors and y the remainders. Two bf16x2
// instructions then multiply a pair as accurately as f32 with one rounding, up to 2^-17 of the product. f16: the factors in f32,
// as the range of f16 is too small for remainders.
template <bool bf> __device__ __forceinline__ uint2 factors_of(float low, float high)
{
    if (!bf) return make_uint2(__float_as_uint(low), __float_as_uint(high));
    const uint32_t hi = pack<true>(low, high);
    const float2 rounded = unpack<true>(hi);
    return make_uint2(hi, pack<true>(low - rounded.x, high - rounded.y));
}
template <bool bf> __device__ __forceinline__ uint32_t multiply_pair(uint32_t pair, uint2 by)
{
    if (!bf) {
        const float2 v = unpack<false>(pair);
        return pack<false>(v.x * __uint_as_float(by.x), v.y * __uint_as_float(by.y));
    }
    uint32_t rest;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(rest) : "r"(pair), "r"(by.y), "r"(0x80008000u)); /* adds -0: mul.bf16x2 needs sm_90 */
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(pair) : "r"(pair), "r"(by.x), "r"(rest));
    return pair;
}
// Eight elements, each pair times the factors `by`.
template <bool bf> __device__ __forceinline__ uint4 scale8(const uint4 &from, uint2 by)
{
    return make_uint4(multiply_pair<bf>(from.x, by), multiply_pair<bf>(from.y, by), multiply_pair<bf>(from.z, by),
                      multiply_pair<bf>(from.w, by));
}
// exp(min(x, 0)), within 2 ulp. NaN stays NaN.
__device__ __forceinline__ float decay_exp(float x)
{
    float y;
    asm("{\n\t.reg .f32 t;\n\tmul.ftz.f32 t, %1, 0f3fb8aa3b;\n\tmin.ftz.NaN.f32 t, t, 0f00000000;\n\tex2.approx.ftz.f32 %0, t;\n\t}"
        : "=f"(y) : "f"(x));
    return y;
}
// exp(to - from), at most 1, of cumulative log-decays as two floats.
__device__ __forceinline__ float decay_between(float2 to, float2 from) { return decay_exp((to.x - from.x) + (to.y - from.y)); }
__device__ __forceinline__ float inverse_root(float x)
{
    float y;
    asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// The largest of the non-negative numbers of a warp; NaN counts as larger than all.
__device__ __forceinline__ float warp_top(float value)
{
    return __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(value)));
}
// The largest power of two not above a non-negative number, at least 2^-40. 1 for numbers from 2^40 on, infinity and NaN: no factor
// would bring their products into the range of f16, and with 1 smaller numbers of the row keep their digits.
__device__ __forceinline__ float unit_below(float number)
{
    const float power = __uint_as_float(__float_as_uint(number) & 0x7f800000u);
    return power < 0x1p40f ? fmaxf(power, 0x1p-40f) : 1.0f;
}

// Adds the first 2 count values of two lanes that lie `lanes` apart. The lower lane keeps the sums of the first count values, the upper
// lane the others.
template <uint32_t count, uint32_t size> __device__ __forceinline__ void add_halves(float (&v)[size], uint32_t lanes)
{
    const bool upper = threadIdx.x & lanes;
#pragma unroll
    for (uint32_t i = 0; i < count; i++) {
        const float give = upper ? v[i] : v[i + count];
        v[i] = (upper ? v[i + count] : v[i]) + __shfl_xor_sync(0xffffffffu, give, lanes);
    }
}

// ---- Shared memory ----

__device__ __forceinline__ uint32_t shared_address(const void *at) { return uint32_t(__cvta_generic_to_shared(at)); }
__device__ __forceinline__ uint32_t tile_at(uint32_t row, uint32_t piece)
{
    return row * tile_row + ((piece ^ (row & 7u)) << 4);
}
// Barrier among `count` threads, by a number from 1 to 15 that these threads share.
__device__ __forceinline__ void barrier(uint32_t number, uint32_t count)
{
    asm volatile("bar.sync %0, %1;" ::"r"(number), "r"(count) : "memory");
}
// Makes ordinary stores to shared memory visible to wgmma after the next barrier.
__device__ __forceinline__ void stores_done()
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}
// Asynchronous copy of up to 16 bytes; the rest of the 16 becomes 0 without a read.
__device__ __forceinline__ void copy_bytes(uint32_t to, const void *from, uint32_t bytes)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
// Asynchronous copy of 16 bytes; zeros without a read unless there is set.
__device__ __forceinline__ void copy16(uint32_t to, const void *from, bool there) { copy_bytes(to, from, there ? 16 : 0); }
__device__ __forceinline__ void copies_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// Waits until at most the last `left` groups of this thread's copies are unfinished. The others are then visible to this thread.
template <int left> __device__ __forceinline__ void copies_landed()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(left) : "memory");
}
// copies_landed, for all threads and wgmma: a barrier must follow, after which the copies are visible to them.
template <int left> __device__ __forceinline__ void copies_wait()
{
    copies_landed<left>();
    stores_done();
}
// Copies rows x 64 elements of 16 bits into a tile, from rows that lie `row` elements apart, with `threads` threads. Rows from `valid`
// on, and elements from 8 `pieces` of a row on, become zero.
template <uint32_t rows, uint32_t threads>
__device__ __forceinline__ void copy_tile(uint32_t to, const uint16_t *from, uint32_t row, uint32_t valid, uint32_t thread,
                                          uint32_t pieces = 8)
{
    static_assert(rows * 8 % threads == 0 && threads % 64 == 0, "whole passes of whole eights of rows");
    const uint32_t r = thread / 8, first = to + tile_at(r, thread % 8);
    const uint16_t *at = from + uint64_t(r) * row + thread % 8 * 8;
#pragma unroll
    for (uint32_t i = 0; i < rows * 8 / threads; i++, at += threads / 8 * uint64_t(row))
        copy16(first + i * (threads / 8 * tile_row), at, r + i * (threads / 8) < valid && thread % 8 < pieces);
}
// 16 bytes of a tile: piece 0 to 7 of a row.
__device__ __forceinline__ uint4 get16(const char *tile, uint32_t row, uint32_t piece)
{
    return *reinterpret_cast<const uint4 *>(tile + tile_at(row, piece));
}
__device__ __forceinline__ void put16(char *tile, uint32_t row, uint32_t piece, const uint4 &v)
{
    *reinterpret_cast<uint4 *>(tile + tile_at(row, piece)) = v;
}

// ---- Products ----

// Loads four matrices of 8 x 8 elements. Lane l passes the address of row l % 8 of matrix l / 8 and receives elements 2 (l % 4) and
// 2 (l % 4) + 1 of row l / 4 of each matrix; turned: of column l / 4.
__device__ __forceinline__ void load_matrices(uint32_t (&m)[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(at) : "memory");
}
__device__ __forceinline__ void load_matrices_turned(uint32_t (&m)[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(m[0]), "=r"(m[1]), "=r"(m[2]), "=r"(m[3]) : "r"(at) : "memory");
}
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// The inverse of load_matrices: stores fragments as rows. Lane l passes the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void store_matrices(uint32_t at, const uint32_t (&m)[4])
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                 ::"r"(at), "r"(m[0]), "r"(m[1]), "r"(m[2]), "r"(m[3]) : "memory");
}
#endif
// Sums of 16 x 16 += fragment x four matrices. Matrices 0 and 1 are the first and the second 8 of depth for columns 0 to 7, matrices 2
// and 3 for columns 8 to 15.
template <bool bf> __device__ __forceinline__ void multiply_16(float *sums, const uint32_t (&a)[4], const uint32_t (&b)[4])
{
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        float *sum = &sums[4 * half];
#define DART_MMA(type) \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, " \
                 "{%0, %1, %2, %3};" \
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3]) \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[2 * half]), "r"(b[2 * half + 1]))
        if (bf) DART_MMA("bf16");
        else DART_MMA("f16");
#undef DART_MMA
    }
}
// sums += fragment x right operand for one warp. The right operand is 16 columns (the depth) of the 64 rows of a tile. at: the address
// of the tile plus 32 bytes for each 16 columns before.
template <bool bf> __device__ __forceinline__ void multiply_lines(float (&sums)[32], const uint32_t (&a)[4], uint32_t at)
{
    const uint32_t lane = threadIdx.x % 32, tile = at & ~1023u, within = at & 1023u;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        uint32_t b[4];
        const uint32_t row = 16 * i + lane % 8 + lane / 16 * 8;
        load_matrices(b, tile + tile_at(row, within / 16 + lane / 8 % 2));
        multiply_16<bf>(&sums[8 * i], a, b);
    }
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// The rest of this section is for a warpgroup: four warps, the first a multiple of four. Together they multiply 64 rows, 16 a warp.
// Products are asynchronous: they read operands and change sums until products_wait or products_leave has waited for them.

// Descriptor of 64 x 16 or 16 x 64 elements of a tile for wgmma: eight rows are 1024 bytes, kind 1 is the 128-byte swizzle. The next
// 16 of depth lie 2048 bytes on where depth runs over rows, 32 bytes on where it runs along them.
__device__ __forceinline__ uint64_t operand_at(uint32_t at)
{
    return uint64_t((at & 0x3ffffu) >> 4) | uint64_t(1024 >> 4) << 16 | uint64_t(1024 >> 4) << 32 | 1ull << 62;
}
// The address lies in the low word and does not overflow it.
__device__ __forceinline__ uint64_t operand_on(uint64_t operand, uint32_t bytes)
{
    return (operand & 0xffffffff00000000u) | (uint32_t(operand) + (bytes >> 4));
}

// Call after writing fragments or sums, before the first product that uses them.
__device__ __forceinline__ void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
// Waits until at most the last `count` committed groups are unfinished.
template <int count> __device__ __forceinline__ void products_leave()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(count) : "memory");
}
// Commits the products so far and waits for all. Accesses to sums stay behind it.
__device__ __forceinline__ void products_wait(float (&sums)[32])
{
    asm volatile("wgmma.commit_group.sync.aligned;\n\twgmma.wait_group.sync.aligned 0;" ::: "memory");
#pragma unroll
    for (int i = 0; i < 32; i++) asm volatile("" : "+f"(sums[i])::"memory");
}
#define DART_SUMS(s) \
    "+f"(s[0]), "+f"(s[1]), "+f"(s[2]), "+f"(s[3]), "+f"(s[4]), "+f"(s[5]), "+f"(s[6]), "+f"(s[7]), "+f"(s[8]), "+f"(s[9]), \
        "+f"(s[10]), "+f"(s[11]), "+f"(s[12]), "+f"(s[13]), "+f"(s[14]), "+f"(s[15]), "+f"(s[16]), "+f"(s[17]), "+f"(s[18]), \
        "+f"(s[19]), "+f"(s[20]), "+f"(s[21]), "+f"(s[22]), "+f"(s[23]), "+f"(s[24]), "+f"(s[25]), "+f"(s[26]), "+f"(s[27]), \
        "+f"(s[28]), "+f"(s[29]), "+f"(s[30]), "+f"(s[31])
#define DART_NEW_SUMS(s) \
    "=f"(s[0]), "=f"(s[1]), "=f"(s[2]), "=f"(s[3]), "=f"(s[4]), "=f"(s[5]), "=f"(s[6]), "=f"(s[7]), "=f"(s[8]), "=f"(s[9]), \
        "=f"(s[10]), "=f"(s[11]), "=f"(s[12]), "=f"(s[13]), "=f"(s[14]), "=f"(s[15]), "=f"(s[16]), "=f"(s[17]), "=f"(s[18]), \
        "=f"(s[19]), "=f"(s[20]), "=f"(s[21]), "=f"(s[22]), "=f"(s[23]), "=f"(s[24]), "=f"(s[25]), "=f"(s[26]), "=f"(s[27]), \
        "=f"(s[28]), "=f"(s[29]), "=f"(s[30]), "=f"(s[31])
#define DART_WGMMA(type) \
    "wgmma.mma_async.sync.aligned.m64n64k16.f32." type "." type " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, " \
    "%14, %15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
// s += fragment x right operand (operand_at). lines: the depth of the operand runs along its rows, else over them.
template <bool bf, bool lines = false>
__device__ __forceinline__ void multiply(float (&s)[32], const uint32_t (&a)[4], uint64_t right)
{
    if (bf)
        asm volatile(DART_WGMMA("bf16") "{%32, %33, %34, %35}, %36, 1, 1, 1, %37;"
                     : DART_SUMS(s) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(right), "n"(int(!lines)));
    else
        asm volatile(DART_WGMMA("f16") "{%32, %33, %34, %35}, %36, 1, 1, 1, %37;"
                     : DART_SUMS(s) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(right), "n"(int(!lines)));
}
// s = fragment x right operand, whatever s holds.
template <bool bf, bool lines = false>
__device__ __forceinline__ void multiply_first(float (&s)[32], const uint32_t (&a)[4], uint64_t right)
{
#define DART_FIRST "{%32, %33, %34, %35}, %36, 0, 1, 1, %37;"
    if (bf)
        asm volatile(DART_WGMMA("bf16") DART_FIRST : DART_NEW_SUMS(s) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(right), "n"(int(!lines)));
    else
        asm volatile(DART_WGMMA("f16") DART_FIRST : DART_NEW_SUMS(s) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(right), "n"(int(!lines)));
#undef DART_FIRST
}
// s += left x right, both operands in shared memory, the left one of 64 lines. transposed: its depth runs over rows, too.
template <bool bf, bool transposed, bool lines = false> __device__ __forceinline__ void multiply(float (&s)[32], uint64_t left, uint64_t right)
{
    if (bf)
        asm volatile(DART_WGMMA("bf16") "%32, %33, 1, 1, 1, %34, %35;"
                     : DART_SUMS(s) : "l"(left), "l"(right), "n"(int(transposed)), "n"(int(!lines)));
    else
        asm volatile(DART_WGMMA("f16") "%32, %33, 1, 1, 1, %34, %35;"
                     : DART_SUMS(s) : "l"(left), "l"(right), "n"(int(transposed)), "n"(int(!lines)));
}
// s = left x right, whatever s holds, both operands in shared memory as lines.
template <bool bf> __device__ __forceinline__ void multiply_first(float (&s)[32], uint64_t left, uint64_t right)
{
    if (bf) asm volatile(DART_WGMMA("bf16") "%32, %33, 0, 1, 1, 0, 0;" : DART_NEW_SUMS(s) : "l"(left), "l"(right));
    else asm volatile(DART_WGMMA("f16") "%32, %33, 0, 1, 1, 0, 0;" : DART_NEW_SUMS(s) : "l"(left), "l"(right));
}
#undef DART_WGMMA
#undef DART_SUMS
#undef DART_NEW_SUMS
// s = (first) or += left x right for 32 columns: the left operand lies in shared memory as lines, the depth of the right one runs over its rows,
// of which it is 64 bytes. s[4 i ..] as for 64 columns.
template <bool bf, bool first> __device__ __forceinline__ void multiply_narrow(float (&s)[16], uint64_t left, uint64_t right)
{
#define DART_WGMMA(type, mode, adds) \
    asm volatile("wgmma.mma_async.sync.aligned.m64n32k16.f32." type "." type " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, " \
                 "%14, %15}, %16, %17, " adds ", 1, 1, 0, 1;" \
                 : mode(s[0]), mode(s[1]), mode(s[2]), mode(s[3]), mode(s[4]), mode(s[5]), mode(s[6]), mode(s[7]), mode(s[8]), mode(s[9]), \
                   mode(s[10]), mode(s[11]), mode(s[12]), mode(s[13]), mode(s[14]), mode(s[15]) \
                 : "l"(left), "l"(right))
    if (bf && first) DART_WGMMA("bf16", "=f", "0");
    else if (bf) DART_WGMMA("bf16", "+f", "1");
    else if (first) DART_WGMMA("f16", "=f", "0");
    else DART_WGMMA("f16", "+f", "1");
#undef DART_WGMMA
}
#endif

__device__ __forceinline__ void clear(float (&sums)[32])
{
#pragma unroll
    for (int i = 0; i < 32; i++) sums[i] = 0.0f;
}

// ---- Rows of results ----

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// Stores 16 x 64 sums of a warp as 16-bit rows of a tile that belongs to the warp.
template <bool bf> __device__ __forceinline__ void put_rows(const float (&v)[32], char *tile)
{
    // Lane l passes stmatrix the address of row l % 8 of matrix l / 8: rows 0 to 7 and 8 to 15 of 8 columns, then of the next 8.
    const uint32_t lane = threadIdx.x % 32, at = shared_address(tile);
#pragma unroll
    for (uint32_t i = 0; i < 8; i += 2) {
        const uint32_t m[4] = {pack<bf>(v[4 * i], v[4 * i + 1]), pack<bf>(v[4 * i + 2], v[4 * i + 3]),
                               pack<bf>(v[4 * i + 4], v[4 * i + 5]), pack<bf>(v[4 * i + 6], v[4 * i + 7])};
        store_matrices(at + tile_at(lane % 16, i + lane / 16), m);
    }
}
#endif

// Stores 16 x 64 sums of a warp as 16-bit rows in global memory, `row` elements apart, through 1 KiB of shared memory that belongs to
// the warp (stage). Rows from `valid` on are not written.
template <bool bf>
__device__ __forceinline__ void store_rows(uint16_t *to, uint32_t row, uint32_t valid, const float (&v)[32], char *stage)
{
    const uint32_t lane = threadIdx.x % 32;
    uint16_t *at = to + uint64_t(lane / 8) * row + lane % 8 * 8;
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        __syncwarp();
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
        // Lane l passes stmatrix the address of row l % 8 of matrix l / 8, 8 columns each.
#pragma unroll
        for (uint32_t i = 0; i < 8; i += 4)
            asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
                         ::"r"(shared_address(stage) + tile_at(lane % 8, i + lane / 8)),
                           "r"(pack<bf>(v[4 * i + 2 * half], v[4 * i + 2 * half + 1])),
                           "r"(pack<bf>(v[4 * i + 4 + 2 * half], v[4 * i + 5 + 2 * half])),
                           "r"(pack<bf>(v[4 * i + 8 + 2 * half], v[4 * i + 9 + 2 * half])),
                           "r"(pack<bf>(v[4 * i + 12 + 2 * half], v[4 * i + 13 + 2 * half])) : "memory");
#else
#pragma unroll
        for (uint32_t i = 0; i < 8; i++)
            *reinterpret_cast<uint32_t *>(stage + tile_at(lane / 4, i) + lane % 4 * 4) =
                pack<bf>(v[4 * i + 2 * half], v[4 * i + 2 * half + 1]);
#endif
        __syncwarp();
#pragma unroll
        for (uint32_t i = 0; i < 2; i++, at += 4 * uint64_t(row)) {
            const uint4 sixteen = get16(stage, 4 * i + lane / 8, lane % 8);
            if (8 * half + 4 * i + lane / 8 < valid) *reinterpret_cast<uint4 *>(at) = sixteen;
        }
    }
}

#endif
