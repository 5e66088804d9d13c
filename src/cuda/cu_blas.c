/* Matrix products by cuBLASLt: the rows CUDA_BLAS_ROW of linear and its gradients. The library is opened at run time, as the driver is. */
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
    DESC_TRANSA = 3, /* then B */
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
    for (size_t i = 0; i < COUNT_OF(names) && blas->library == NULL; i++) blas->library = base_library_open(names[i]);
    if (blas->library == NULL) return false;
#define CU_FIND(member, symbol, parameters) \
    if (!base_library_find(blas->library, symbol, &blas->member, sizeof blas->member)) goto fail;
    CU_BLAS_FUNCTIONS(CU_FIND)
#undef CU_FIND
    return true;
fail:
    cu_blas_unload(blas);
    return false;
}

void cu_blas_unload(cu_blas *blas)
{
    if (blas->library != NULL) base_library_close(blas->library);
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
    base_lock(&cu_code);
    status = BLAS(device, cublasLtCreate, &device->choices.handle);
    base_unlock(&cu_code);
    if (status == DART_OK) return DART_OK;
    base_mutex_destroy(&device->choices.mutex);
    device->choices.handle = NULL;
    return status;
}

void cu_blas_close(cu_device *device)
{
    if (device->choices.handle == NULL) return;
    base_lock(&cu_code);
    device->blas->cublasLtDestroy(device->choices.handle);
    base_unlock(&cu_code);
    base_mutex_destroy(&device->choices.mutex);
}

/* ---- Products ---- */

enum { LEFT, RIGHT, RESULT }; /* of cu_choice_key.matrices */

/* result (+)= left right, column by column, as the library sees memory: a row of a tensor is a column of its matrix. */
typedef struct product {
    cu_choice_key key;
    uint64_t addresses[3];
    bool adds;
} product;

static uint32_t dtype_of(const cu_launch *launch, int binding) { return launch->dtypes >> (2 * binding) & 3; }

/* The largest power of two up to 256 that divides the address. */
static uint32_t alignment(uint64_t address) { return (uint32_t)((address | 256) & (~(address | 256) + 1)); }

/* The tensor's rows from element `at` of the binding on, each `width` elements, `row` apart. */
static void take(product *p, int place, const cu_launch *launch, int binding, uint32_t at, uint32_t rows, uint32_t width, uint32_t row,
                 bool transposed)
{
    const uint32_t type = dtype_of(launch, binding);
    const uint64_t address = launch->bindings.address[binding] + at * dart_dtype_size((dart_dtype)type);
    p->addresses[place] = address;
    p->key.matrices[place] = (cu_choice_matrix){.type = type, .lines = width, .columns = rows, .leading = row, .transposed = transposed,
                                                .alignment = alignment(address)};
}

static product product_of(const cu_launch *launch)
{
    product p = {0};
    if (launch->id == KERNEL_linear_backward_x) { /* grad_x' = weight' up_y' */
        const struct LinearBackwardXArgs *a = &launch->args.linear_backward_x;
        take(&p, LEFT, launch, BINDING_linear_backward_x_weight, a->weight_at, a->outputs, a->inputs, a->inputs, false);
        take(&p, RIGHT, launch, BINDING_linear_backward_x_up_y, a->up_y_at, a->rows, a->outputs, a->up_y_row, false);
        take(&p, RESULT, launch, BINDING_linear_backward_x_grad_x, a->grad_x_at, a->rows, a->inputs, a->grad_x_row, false);
        p.adds = (a->flags & IS_ADD) != 0;
    } else if (launch->id == KERNEL_linear_backward_weight) { /* grad_weight' = x' up_y'^T */
        const struct LinearBackwardWeightArgs *a = &launch->args.linear_backward_weight;
        take(&p, LEFT, launch, BINDING_linear_backward_weight_x, a->x_at, a->rows, a->inputs, a->x_row, false);
        take(&p, RIGHT, launch, BINDING_linear_backward_weight_up_y, a->up_y_at, a->rows, a->outputs, a->up_y_row, true);
        take(&p, RESULT, launch, BINDING_linear_backward_weight_grad_weight, a->grad_weight_at, a->outputs, a->inputs, a->inputs, false);
        p.adds = (a->flags & IS_ADD) != 0;
    } else { /* y' = weight'^T x' */
        const struct LinearArgs *a = &launch->args.linear;
        take(&p, LEFT, launch, BINDING_linear_weight, a->weight_at, a->outputs, a->inputs, a->inputs, true);
        take(&p, RIGHT, launch, BINDING_linear_x, a->x_at, a->rows, a->inputs, a->x_row, false);
        take(&p, RESULT, launch, BINDING_linear_y, a->y_at, a->rows, a->outputs, a->y_row, false);
        p.adds = (a->flags & IS_ADD) != 0;
    }
    return p;
}

/* ---- Descriptions ---- */

typedef struct description {
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t matrices[3];
} description;

static void forget(const cu_device *device, description *d)
{
    for (int i = 0; i < 3; i++)
        if (d->matrices[i] != NULL) device->blas->cublasLtMatrixLayoutDestroy(d->matrices[i]);
    if (d->product != NULL) device->blas->cublasLtMatmulDescDestroy(d->product);
}

static dart_status describe(const cu_device *device, const cu_choice_key *key, description *d)
{
    const int32_t transposed = TRANSPOSED;
    dart_status status = DART_OK;
    memset(d, 0, sizeof *d);
    TRY(BLAS(device, cublasLtMatmulDescCreate, &d->product, COMPUTE_F32, TYPE_F32));
    for (int i = 0; i < 3; i++) {
        const cu_choice_matrix *m = &key->matrices[i];
        if (m->transposed)
            TRY(BLAS(device, cublasLtMatmulDescSetAttribute, d->product, DESC_TRANSA + i, &transposed, sizeof transposed));
        TRY(BLAS(device, cublasLtMatrixLayoutCreate, &d->matrices[i], types[m->type], m->lines, m->columns, m->leading));
    }
    return DART_OK;
fail:
    forget(device, d);
    return status;
}

/* ---- Choosing ---- */

/* Whether the library can compute the described product by choice->algorithm, and with which workspace. */
static bool computes(const cu_device *device, const description *d, cu_choice *choice)
{
    cu_blas_heuristic answer = {0};
    const int result = device->blas->cublasLtMatmulAlgoCheck(device->choices.handle, d->product, d->matrices[LEFT], d->matrices[RIGHT],
                                                             d->matrices[RESULT], d->matrices[RESULT], &choice->algorithm, &answer);
    choice->workspace_bytes = answer.workspace_bytes;
    return result == BLAS_SUCCESS && answer.state == BLAS_SUCCESS && answer.workspace_bytes <= MAX_WORKSPACE;
}

/* Asks the library; choice->found stays false where it has no algorithm. */
static dart_status choose(cu_device *device, const cu_choice_key *key, cu_choice *choice)
{
    const uint64_t workspace = MAX_WORKSPACE;
    const uint32_t reduction = REDUCTION_IN_COMPUTE_TYPE;
    static const int places[] = {LEFT, RIGHT, RESULT, RESULT};
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
        TRY(BLAS(device, cublasLtMatmulPreferenceSetAttribute, preference, PREF_MIN_ALIGNMENT_A_BYTES + i, &key->matrices[places[i]].alignment,
                 sizeof key->matrices[places[i]].alignment));
    /* That nothing is supported is an answer, too. */
    base_lock(&cu_code);
    const int result = device->blas->cublasLtMatmulAlgoGetHeuristic(device->choices.handle, d.product, d.matrices[LEFT], d.matrices[RIGHT],
                                                                    d.matrices[RESULT], d.matrices[RESULT], preference, 1, &heuristic, &count);
    base_unlock(&cu_code);
    choice->found = result == BLAS_SUCCESS && count > 0 && heuristic.state == BLAS_SUCCESS;
    choice->workspace_bytes = heuristic.workspace_bytes;
    choice->algorithm = heuristic.algorithm;
fail:
    if (preference != NULL) device->blas->cublasLtMatmulPreferenceDestroy(preference);
    forget(device, &d);
    return status;
}

/* The key with the next number of rows, those of activations in linear, of which there are eight from each power of two to the next: the library
 * chooses for it. Left alone, it has code of its own for many numbers of rows and loads it when it first runs, which takes several milliseconds, and
 * a server's prompts have another number each time. */
static cu_choice_key rounded(const cu_launch *launch, const cu_choice_key *key)
{
    enum { FEW = 128, CLASSES = 8 };
    cu_choice_key k = *key;
    const uint32_t rows = key->matrices[RIGHT].columns;
    uint32_t power = FEW;
    if (launch->id != KERNEL_linear || rows <= FEW) return k;
    while (power <= rows / 2) power *= 2;
    k.matrices[RIGHT].columns = k.matrices[RESULT].columns = (uint32_t)base_round_up(rows, power / CLASSES);
    return k;
}

/* The choice for a number of rows that has not been asked for of late. */
static dart_status choose_for_rows(cu_device *device, const cu_launch *launch, cu_choice *choice)
{
    const cu_choices *all = &device->choices;
    const cu_choice_key near = rounded(launch, &choice->key);
    const cu_choice *like = NULL;
    description d;
    dart_status status = DART_OK;
    for (uint32_t i = 0; i < CU_CHOICES && like == NULL; i++) {
        const cu_choice_key of = rounded(launch, &all->last[i].key);
        if (memcmp(&of, &near, sizeof near) == 0) like = &all->last[i];
    }
    if (like != NULL) {
        choice->found = like->found;
        choice->algorithm = like->algorithm;
    } else {
        status = choose(device, &near, choice);
        if (memcmp(&near, &choice->key, sizeof near) == 0) return status; /* the answer is for these rows */
    }
    if (status == DART_OK) status = describe(device, &choice->key, &d);
    if (status != DART_OK) return status;
    const bool fits = choice->found && computes(device, &d, choice);
    forget(device, &d);
    return fits ? DART_OK : choose(device, &choice->key, choice);
}

dart_status cu_blas_choose(cu_device *device, const cu_launch *launch, cu_choice *choice)
{
    cu_choices *all = &device->choices;
    const product p = product_of(launch);
    const uint32_t type = p.key.matrices[LEFT].type, result_type = p.key.matrices[RESULT].type;
    memset(choice, 0, sizeof *choice);
    choice->key = p.key;
    if (p.key.matrices[RIGHT].type != type || (result_type != type && result_type != DART_F32)) return DART_OK;
    /* Its bf16 results are rounded before they are added and again after it (1.45 times the error of one rounding on an H200,
     * whether or not sums are split). */
    if (p.adds && result_type != DART_F32) return DART_OK;
    dart_status status = DART_OK;
    base_lock(&all->mutex);
    for (uint32_t i = 0; i < CU_CHOICES; i++) {
        if (memcmp(&all->last[i].key, &choice->key, sizeof choice->key) != 0) continue;
        *choice = all->last[i];
        goto done;
    }
    status = choose_for_rows(device, launch, choice);
    if (status == DART_OK) all->last[all->next++ % CU_CHOICES] = *choice;
done:
    base_unlock(&all->mutex);
    return status;
}

/* ---- Running ---- */

dart_status cu_blas_run(cu_device *device, const cu_launch *launch, const cu_choice *choice, const cu_stream *stream, CUstream to)
{
    const product p = product_of(launch);
    const float alpha = 1.0f, beta = p.adds ? 1.0f : 0.0f;
    const void *left = (const void *)(uintptr_t)p.addresses[LEFT], *right = (const void *)(uintptr_t)p.addresses[RIGHT];
    void *result = (void *)(uintptr_t)p.addresses[RESULT];
    description d;
    dart_status status = describe(device, &p.key, &d);
    if (status != DART_OK) return status;
    if (!stream->capturing) base_lock(&cu_code); /* the library loads an algorithm's code when it first runs */
    status = BLAS(device, cublasLtMatmul, device->choices.handle, d.product, &alpha, left, d.matrices[LEFT], right, d.matrices[RIGHT], &beta, result,
                  d.matrices[RESULT], result, d.matrices[RESULT], &choice->algorithm, (void *)(uintptr_t)stream->workspace,
                  choice->workspace_bytes, to);
    if (!stream->capturing) base_unlock(&cu_code);
    forget(device, &d);
    return status;
}
