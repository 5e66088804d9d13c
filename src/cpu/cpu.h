/* The CPU backend: kernels as plain functions over host memory, run tile by tile on a pool of threads. */
#ifndef DART_CPU_H
#define DART_CPU_H

#include "runtime/backend.h"

#define CPU_ALIGN 64u
#define CPU_SCRATCH (256u * 1024u) /* floats of scratch a thread */

/* A binding of a launch: its address on the host, NULL when absent, and its dtype. */
typedef struct cpu_tensor {
    void *data;
    dart_dtype dtype;
} cpu_tensor;

/* One tile of one launch. */
typedef struct cpu_task {
    const void *args;
    const cpu_tensor *bindings;
    uint32_t T0, T1, tile;
    float *scratch; /* CPU_SCRATCH floats of this thread, contents undefined */
} cpu_task;

typedef void (*cpu_kernel)(const cpu_task *task);

/* Indexed by kernel_row.slot. NULL for a variant that this build lacks; the device then does not report the capability that the variant
 * needs. */
extern const cpu_kernel cpu_kernels[];

/* A recorded launch with everything that a tile needs. */
typedef struct cpu_launch {
    cpu_kernel kernel;
    cpu_tensor bindings[KERNEL_MAX_BINDINGS];
    uint32_t args[KERNEL_MAX_ARGS / 4];
    uint32_t T0, T1, first, end; /* tiles first to end - 1 */
    bool barrier, backwards;
} cpu_launch;

/* Progress of one launch while a recording runs, defined in cpu_pool.c. */
typedef struct cpu_progress cpu_progress;

typedef struct cpu_pool cpu_pool;
/* threads > 0 counts the caller of cpu_pool_run, too. */
dart_status cpu_pool_create(uint32_t threads, base_report *report, cpu_pool **pool);
void cpu_pool_destroy(cpu_pool *pool);
/* Bytes of the array `progress` for `count` launches. */
size_t cpu_progress_bytes(size_t count);
/* Runs the launches and returns when all are done. Launches between two barriers may overlap. Calls from several threads run one after
 * another. */
void cpu_pool_run(cpu_pool *pool, const cpu_launch *launches, cpu_progress *progress, size_t count);

/* Memory aligned to CPU_ALIGN; NULL on failure. */
void *cpu_aligned_alloc(size_t bytes);
void cpu_aligned_free(void *memory);

/* Whether processor and operating system offer AVX2, FMA and F16C. */
bool cpu_detect_avx2(void);
/* The name of the processor, "CPU" if unknown. */
void cpu_detect_name(char *name, size_t size);

#define CPU_DECLARE_plain(id) void cpu_##id##_plain(const cpu_task *task);
#define CPU_DECLARE_few(id) void cpu_##id##_few(const cpu_task *task);
#define CPU_DECLARE_avx2(id) void cpu_##id##_avx2(const cpu_task *task);
#define CPU_DECLARE_few_avx2(id) void cpu_##id##_few_avx2(const cpu_task *task);
#define CPU_DECLARE_blas(id) void cpu_##id##_blas(const cpu_task *task);
#define CPU_ROW(id, variant, needs, fits, T0, T1, max_rows) CPU_DECLARE_##variant(id)
#include "kernels.def"

/* The partials of one head of sma_step or attention_step, and the r and lse that receive their merge; see shaders/sma/args.h. */
typedef struct cpu_parts {
    const float *partial;
    uint32_t splits, P;
    size_t group, group_size; /* as in SmaMergeArgs; group = splits: one behind the other */
    const cpu_tensor *r;
    size_t r_at;
    float *lse;
    bool merge; /* IS_MERGE: also with the r and lse in memory */
} cpu_parts;
/* Merges the partials into r and lse. scratch: P floats. */
void cpu_merge_parts(const cpu_parts *parts, float *scratch);

/* ---- Pieces and chunks, see shaders/args.h ---- */
typedef struct cpu_piece {
    uint32_t position, count;
} cpu_piece;

static inline cpu_piece cpu_piece_of(uint32_t flags, const cpu_tensor *seq, uint32_t seq_at, uint32_t b, uint32_t L)
{
    cpu_piece piece = {0, L};
    if (flags & HAS_SEQ) {
        const int32_t *at = (const int32_t *)seq->data + seq_at + 2 * (size_t)b;
        piece.position = at[0] > 0 ? (uint32_t)at[0] : 0;
        piece.count = at[1] > 0 ? (uint32_t)at[1] : 0;
        if (piece.count > L) piece.count = L;
    }
    return piece;
}

/* A sequence and where it lies, packed or not: its token t in row `row` + t; in what has a row of tokens for each of H heads, token t of head h at
 * row H + h span + t. */
typedef struct cpu_sequence {
    cpu_piece piece;
    uint32_t b;
    size_t row, span;
    bool packed;
} cpu_sequence;

static inline cpu_sequence cpu_sequence_of(uint32_t flags, const cpu_tensor *seq, uint32_t seq_at, uint32_t b, uint32_t L, uint32_t T)
{
    if ((flags & HAS_CU) == 0)
        return (cpu_sequence){.piece = cpu_piece_of(flags, seq, seq_at, b, L), .b = b, .row = (size_t)b * L, .span = L};
    const int32_t *cu = (const int32_t *)seq->data + seq_at + b;
    const uint32_t begin = cu[0] <= 0 ? 0 : (uint32_t)cu[0] < T ? (uint32_t)cu[0] : T;
    const uint32_t end = cu[1] <= 0 ? 0 : (uint32_t)cu[1] < T ? (uint32_t)cu[1] : T;
    const uint32_t length = end <= begin ? 0 : end - begin < L ? end - begin : L;
    return (cpu_sequence){.piece = {0, length}, .b = b, .row = begin, .span = length, .packed = true};
}
/* The slot of its chunk 0 where there are M a sequence, of S tokens. */
static inline size_t cpu_slot(const cpu_sequence *of, uint32_t M, uint32_t S)
{
    return of->packed ? of->row / S + of->b : (size_t)of->b * M;
}
/* The last of B packed sequences that begins at or before the row. */
static inline uint32_t cpu_sequence_with(const cpu_tensor *seq, uint32_t seq_at, uint32_t B, size_t row)
{
    const int32_t *cu = (const int32_t *)seq->data + seq_at;
    uint32_t first = 0, end = B;
    while (end - first > 1) {
        const uint32_t middle = first + (end - first) / 2;
        if (cu[middle] <= (int64_t)row) first = middle;
        else end = middle;
    }
    return first;
}

typedef struct cpu_chunk {
    uint32_t begin, end; /* begin >= end: empty */
    bool closes;
} cpu_chunk;

static inline cpu_chunk cpu_chunk_of(cpu_piece piece, uint32_t S, uint32_t j)
{
    uint64_t offset = piece.position % S;
    uint64_t begin = j ? (uint64_t)j * S - offset : 0;
    uint64_t border = ((uint64_t)j + 1) * S - offset;
    cpu_chunk chunk;
    chunk.begin = begin < piece.count ? (uint32_t)begin : piece.count;
    chunk.end = border < piece.count ? (uint32_t)border : piece.count;
    chunk.closes = border <= piece.count;
    return chunk;
}

static inline uint32_t cpu_min(uint32_t a, uint32_t b) { return a < b ? a : b; }
static inline uint32_t cpu_blocks(uint32_t count, uint32_t block) { return count / block + (count % block != 0); }

#endif
