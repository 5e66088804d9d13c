/* Matrix products by cuBLASLt: the rows CUDA_BLAS_ROW of kernel linear. The library is opened at run time, as the driver is. */
#include "cu.h"

#include <stdlib.h>
#include <string.h>

/* Values of the library's interface. */
enum {
    BLAS_SUCCESS = 0,
    BLAS_ALLOC_FAILED = 3,
    TYPE_F32 = 0,
    TYPE_F16 = 2,
    TYPE_BF16 = 14,
    COMPUTE_F32 = 68,
    TRANSPOSED = 1,
    DESC_TRANSA = 3,
    PREF_MAX_WORKSPACE_BYTES = 1,
    PREF_REDUCTION_SCHEME_MASK = 3,
    PREF_MIN_ALIGNMENT_A_BYTES = 5, /* then B, C, D */
    REDUCTION_IN_COMPUTE_TYPE = 2   /* parts of a sum are kept in f32 and added in a fixed order */
};
#define MAX_WORKSPACE (32u << 20) /* what cuBLAS itself takes on compute capability 9.0 */

static const int types[] = {[DART_F32] = TYPE_F32, [DART_F16] = TYPE_F16, [DART_BF16] = TYPE_BF16};

bool cu_blas_load(cu_blas *blas)
{
#if defined(_WIN32)
    static const char *const names[] = {"cublasLt64_13.dll", "cublasLt64_12.dll"};
#else
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"};
#endif
    memset(blas, 0, sizeof *blas);
    for (size_t i = 0; i < COUNT_OF(names) && blas->library == NULL; i++) blas->library = cu_library_open(names[i]);
    if (blas->library == NULL) return false;
#define CU_FIND(member, symbol, parameters) \
    if (!cu_library_find(blas->library, symbol, &blas->member, sizeof blas->member)) goto fail;
    CU_BLAS_FUNCTIONS(CU_FIND)
#undef CU_FIND
    return true;
fail:
    cu_blas_unload(blas);
    return false;
}

void cu_blas_unload(cu_blas *blas)
{
    if (blas->library != NULL) cu_library_close(blas->library);
    blas->library = NULL;
}

static dart_status check(const cu_device *device, int result, const char *function)
{
    if (result == BLAS_SUCCESS) return DART_OK;
    return base_fail(device->report, result == BLAS_ALLOC_FAILED ? DART_OUT_OF_MEMORY : DART_INTERNAL, "%s: cuBLAS error %d",
                     function, result);
}
#define BLAS(device, function, ...) check((device), (device)->blas->function(__VA_ARGS__), #function)

dart_status cu_blas_open(cu_device *device)
{
    dart_status status = base_mutex_init(&device->choices.mutex);
    if (status != DART_OK) return status;
    status = BLAS(device, cublasLtCreate, &device->choices.handle);
    if (status == DART_OK) return DART_OK;
    base_mutex_destroy(&device->choices.mutex);
    device->choices.handle = NULL;
    return status;
}

void cu_blas_close(cu_device *device)
{
    if (device->choices.handle == NULL) return;
    device->blas->cublasLtDestroy(device->choices.handle);
    base_mutex_destroy(&device->choices.mutex);
}

/* ---- Descriptions ---- */

/* Column by column, as the library sees memory: y' (outputs x rows) = weight'^T (outputs x inputs) x' (inputs x rows). */
typedef struct description {
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t weight, x, y;
} description;

static void forget(const cu_device *device, description *d)
{
    if (d->y != NULL) device->blas->cublasLtMatrixLayoutDestroy(d->y);
    if (d->x != NULL) device->blas->cublasLtMatrixLayoutDestroy(d->x);
    if (d->weight != NULL) device->blas->cublasLtMatrixLayoutDestroy(d->weight);
    if (d->product != NULL) device->blas->cublasLtMatmulDescDestroy(d->product);
}

static dart_status describe(const cu_device *device, const cu_choice_key *key, description *d)
{
    const int32_t transposed = TRANSPOSED;
    dart_status status = DART_OK;
    memset(d, 0, sizeof *d);
    TRY(BLAS(device, cublasLtMatmulDescCreate, &d->product, COMPUTE_F32, TYPE_F32));
    TRY(BLAS(device, cublasLtMatmulDescSetAttribute, d->product, DESC_TRANSA, &transposed, sizeof transposed));
    TRY(BLAS(device, cublasLtMatrixLayoutCreate, &d->weight, types[key->type], key->inputs, key->outputs, key->inputs));
    TRY(BLAS(device, cublasLtMatrixLayoutCreate, &d->x, types[key->type], key->inputs, key->rows, key->x_row));
    TRY(BLAS(device, cublasLtMatrixLayoutCreate, &d->y, types[key->y_type], key->outputs, key->rows, key->y_row));
    return DART_OK;
fail:
    forget(device, d);
    return status;
}

/* ---- Choosing ---- */

static uint64_t address_of(const cu_launch *launch, int binding, uint32_t at, uint32_t dtype)
{
    return launch->bindings.address[binding] + at * dart_dtype_size((dart_dtype)dtype);
}
static uint32_t dtype_of(const cu_launch *launch, int binding) { return launch->dtypes >> (2 * binding) & 3; }

/* The largest power of two up to 256 that divides the address. */
static uint32_t alignment(uint64_t address) { return (uint32_t)((address | 256) & (~(address | 256) + 1)); }

static cu_choice_key key_of(const cu_launch *launch)
{
    const struct LinearArgs *args = &launch->args.linear;
    const uint32_t type = dtype_of(launch, BINDING_linear_x), y_type = dtype_of(launch, BINDING_linear_y);
    return (cu_choice_key){
        .type = type, .y_type = y_type, .rows = args->rows, .inputs = args->inputs, .outputs = args->outputs,
        .x_row = args->x_row, .y_row = args->y_row,
        .x_alignment = alignment(address_of(launch, BINDING_linear_x, args->x_at, type)),
        .weight_alignment = alignment(address_of(launch, BINDING_linear_weight, args->weight_at, type)),
        .y_alignment = alignment(address_of(launch, BINDING_linear_y, args->y_at, y_type))};
}

/* Asks the library; choice->found stays false where it has no algorithm. */
static dart_status choose(cu_device *device, cu_choice *choice)
{
    const cu_choice_key *key = &choice->key;
    const uint64_t workspace = MAX_WORKSPACE;
    const uint32_t reduction = REDUCTION_IN_COMPUTE_TYPE;
    const uint32_t alignments[] = {key->weight_alignment, key->x_alignment, key->y_alignment, key->y_alignment};
    cublasLtMatmulPreference_t preference = NULL;
    cu_blas_heuristic heuristic = {0};
    description d;
    int count = 0;
    dart_status status = describe(device, key, &d);
    if (status != DART_OK) return status;
    TRY(BLAS(device, cublasLtMatmulPreferenceCreate, &preference));
    TRY(BLAS(device, cublasLtMatmulPreferenceSetAttribute, preference, PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof workspace));
    TRY(BLAS(device, cublasLtMatmulPreferenceSetAttribute, preference, PREF_REDUCTION_SCHEME_MASK, &reduction, sizeof reduction));
    for (int i = 0; i < 4; i++)
        TRY(BLAS(device, cublasLtMatmulPreferenceSetAttribute, preference, PREF_MIN_ALIGNMENT_A_BYTES + i, &alignments[i],
                 sizeof alignments[i]));
    /* That nothing is supported is an answer, too. */
    const int result = device->blas->cublasLtMatmulAlgoGetHeuristic(device->choices.handle, d.product, d.weight, d.x, d.y, d.y,
                                                                    preference, 1, &heuristic, &count);
    choice->found = result == BLAS_SUCCESS && count > 0 && heuristic.state == BLAS_SUCCESS;
    choice->workspace_bytes = heuristic.workspace_bytes;
    choice->algorithm = heuristic.algorithm;
fail:
    if (preference != NULL) device->blas->cublasLtMatmulPreferenceDestroy(preference);
    forget(device, &d);
    return status;
}

dart_status cu_blas_choose(cu_device *device, const cu_launch *launch, cu_choice *choice)
{
    cu_choices *all = &device->choices;
    memset(choice, 0, sizeof *choice);
    choice->key = key_of(launch);
    const uint32_t weight_type = dtype_of(launch, BINDING_linear_weight);
    const bool adds = (launch->args.linear.flags & IS_ADD) != 0;
    if (weight_type != choice->key.type || (choice->key.y_type != weight_type && choice->key.y_type != DART_F32)) return DART_OK;
    /* Its bf16 results are rounded before they are added and again after it (1.45 times the error of one rounding on an H200,
     * whether or not sums are split). */
    if (adds && choice->key.y_type != DART_F32) return DART_OK;
    dart_status status = DART_OK;
    base_lock(&all->mutex);
    for (uint32_t i = 0; i < CU_CHOICES; i++) {
        if (memcmp(&all->last[i].key, &choice->key, sizeof choice->key) != 0) continue;
        *choice = all->last[i];
        goto done;
    }
    status = choose(device, choice);
    if (status == DART_OK) all->last[all->next++ % CU_CHOICES] = *choice;
done:
    base_unlock(&all->mutex);
    return status;
}

/* ---- Running ---- */

dart_status cu_blas_run(cu_device *device, const cu_launch *launch, const cu_choice *choice, const cu_stream *stream)
{
    const struct LinearArgs *args = &launch->args.linear;
    const cu_choice_key *key = &choice->key;
    const float alpha = 1.0f, beta = args->flags & IS_ADD ? 1.0f : 0.0f;
    const uint64_t weight = address_of(launch, BINDING_linear_weight, args->weight_at, key->type);
    const uint64_t x = address_of(launch, BINDING_linear_x, args->x_at, key->type);
    const uint64_t y = address_of(launch, BINDING_linear_y, args->y_at, key->y_type);
    description d;
    dart_status status = describe(device, key, &d);
    if (status != DART_OK) return status;
    status = BLAS(device, cublasLtMatmul, device->choices.handle, d.product, &alpha, (const void *)(uintptr_t)weight, d.weight,
                  (const void *)(uintptr_t)x, d.x, &beta, (const void *)(uintptr_t)y, d.y, (void *)(uintptr_t)y, d.y,
                  &choice->algorithm, (void *)(uintptr_t)stream->workspace, choice->workspace_bytes, stream->handle);
    forget(device, &d);
    return status;
}
