/* The safetensors format: eight bytes of header length, a JSON header, then the tensors without gaps. Every byte of
 * a file is untrusted: whatever is not a complete, consistent file is DART_BAD_DATA with the place in the text. */
#ifndef DART_SAFETENSORS_H
#define DART_SAFETENSORS_H

#include "base/base.h"

#define SAFETENSORS_MAX_RANK 8
typedef enum safetensors_dtype {
    SAFETENSORS_F32,
    SAFETENSORS_F16,
    SAFETENSORS_BF16,
    SAFETENSORS_F64,
    SAFETENSORS_C64,
    SAFETENSORS_F8_E4M3,
    SAFETENSORS_F8_E5M2,
    SAFETENSORS_F8_E8M0,
    SAFETENSORS_I64,
    SAFETENSORS_I32,
    SAFETENSORS_I16,
    SAFETENSORS_I8,
    SAFETENSORS_U64,
    SAFETENSORS_U32,
    SAFETENSORS_U16,
    SAFETENSORS_U8,
    SAFETENSORS_BOOL,
    SAFETENSORS_DTYPE_COUNT
} safetensors_dtype;
const char *safetensors_dtype_name(safetensors_dtype dtype); /* as in the file: "F32" */
size_t safetensors_dtype_size(safetensors_dtype dtype);      /* bytes of an element; 0 for other values */
/* true for F32, F16, BF16 and I32, which ops know. */
bool safetensors_dtype_to_dart(safetensors_dtype dtype, dart_dtype *out);

typedef struct safetensors_tensor {
    const char *name; /* UTF-8 without control characters */
    const void *data; /* at any address: files need not align. Little endian, row-major. */
    uint64_t bytes;
    uint64_t elements;
    uint64_t shape[SAFETENSORS_MAX_RANK];
    uint32_t rank;  /* 0: a scalar */
    uint32_t shard; /* number of the file that holds it, 0 for the first */
    safetensors_dtype dtype;
} safetensors_tensor;

typedef struct safetensors safetensors;

/* path: a .safetensors file, an index (its name ends in .json), or a folder with model.safetensors or else
 * model.safetensors.index.json. Files stay mapped until safetensors_close. */
dart_status safetensors_open(const char *path, base_report *report, safetensors **file);
/* One file that is already in memory and stays there; name is for messages. */
dart_status safetensors_open_memory(const void *data, uint64_t bytes, const char *name, base_report *report,
                                    safetensors **file);
void safetensors_close(safetensors **file);

size_t safetensors_count(const safetensors *file);
/* In byte order of the names, index < count. */
const safetensors_tensor *safetensors_at(const safetensors *file, size_t index);
/* NULL when there is none. */
const safetensors_tensor *safetensors_find(const safetensors *file, const char *name);
/* The value of a key of __metadata__ of the first shard, or NULL. */
const char *safetensors_metadata(const safetensors *file, const char *key);
/* Elements first .. first + count - 1 as f32, whatever their address. The dtype is F32, F16 or BF16. */
void safetensors_to_f32(const safetensors_tensor *tensor, uint64_t first, size_t count, float *to);

/* Writes name, dtype, rank, shape and data of each entry (its bytes, elements and shard are ignored), with metadata
 * {"format": "pt"}, which Hugging Face asks for. The file appears under its name only when complete. */
dart_status safetensors_write(const char *path, const safetensors_tensor *entries, size_t count, base_report *report);
/* With more metadata: pairs_count pairs of UTF-8, each key once and not "format". progress, which may be NULL, advances by one an entry. */
typedef struct safetensors_pair {
    const char *key, *value;
} safetensors_pair;
dart_status safetensors_write_with(const char *path, const safetensors_tensor *entries, size_t count, const safetensors_pair *pairs,
                                   size_t pairs_count, base_progress *progress, base_report *report);

#endif
