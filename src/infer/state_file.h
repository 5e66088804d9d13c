/* The file of dart_state_save: docs/state-file.md has every byte of it. */
#ifndef DART_STATE_FILE_H
#define DART_STATE_FILE_H

#include "state.h"

enum { STATE_FILE_ALIGN = BACKEND_ALIGN, STATE_FILE_CONFIG = 15 };
#define STATE_FILE_MAGIC "DARTSTAT"
#define STATE_FILE_VERSION 1u

/* The first bytes, little-endian. Behind them: for each sequence its position and the token chosen for it, -1 without one; then the M of each
 * block of memories; zeros up to a multiple of STATE_FILE_ALIGN. */
typedef struct state_file_header {
    char magic[8];
    uint32_t version, sequences;
    uint64_t bytes;       /* of the file */
    uint64_t fingerprint; /* of the model's weights */
    uint32_t config[STATE_FILE_CONFIG];
    uint32_t S, sma;
    uint32_t activations, memories; /* dart_dtype */
    uint32_t blocks;
    uint32_t unread;      /* of older files: tokens that a Transformer's cache had room for */
    uint32_t unused;
    uint64_t checksum;    /* of these bytes with 0 here, and of the tables */
} state_file_header;
_Static_assert(sizeof(state_file_header) == 128, "the header has no gaps");

/* Where one tensor lies within a section. */
typedef enum state_file_kind { STATE_FILE_PART, STATE_FILE_MEMORIES, STATE_FILE_SCALES, STATE_FILE_KEYS, STATE_FILE_VALUES } state_file_kind;
typedef struct state_file_run {
    state_file_kind kind;
    uint32_t index; /* of the part, or of the sequence in the file */
    dart_dtype dtype;
    uint64_t at, elements;
} state_file_run;

/* What a header and its tables say. */
typedef struct state_file {
    state_file_header header;
    const int32_t *positions; /* sequences pairs: position, token */
    const uint32_t *blocks;
    uint64_t head_bytes;      /* of the header with its tables */
    uint64_t last_bytes;      /* of the first section: the rows of WORK_LAST, */
    uint64_t seen_at;         /* and from here on those of WORK_SEEN */
    uint64_t layer_bytes;     /* of every other section, one a layer */
    state_file_run *runs;     /* of every layer, for free() */
    uint32_t runs_count;
} state_file;

/* The numbers of a configuration that a state depends on. */
void state_file_config(const dart_model_config *config, uint32_t words[STATE_FILE_CONFIG]);
/* The bytes of the header and its tables; 0: too many. */
uint64_t state_file_head_bytes(const state_file_header *header);
/* Places all tensors by header and positions, and computes head_bytes, last_bytes, layer_bytes and *total, the file's bytes. DART_OUT_OF_MEMORY,
 * or DART_BAD_DATA for a file that no memory could hold. */
dart_status state_file_place(state_file *file, const dart_state *state, uint64_t *total, base_report *report, const char *name);
/* Of a header and its tables; head has file->head_bytes with the checksum's bytes as they are. */
uint64_t state_file_head_checksum(const void *head, uint64_t bytes);
/* Fills *file from bytes that may be anything, and checks that it is whole, undamaged, of this state's model and shape, and has `sequences`
 * sequences. Everything but section checksums. The tables point into data. */
dart_status state_file_parse(state_file *file, dart_state *state, uint32_t sequences, const uint8_t *data, uint64_t bytes, const char *name);
/* The seed of a section's checksum: sections neither change places nor come from another file. */
static inline uint64_t state_file_seed(const state_file *file, uint32_t section) { return file->header.checksum + section; }

#endif
