/* What the judges of backward passes share: tensors of a case on the tape, and gradients compared with the tape's. */
#ifndef DARTLM_CONFORM_BACKWARD_H
#define DARTLM_CONFORM_BACKWARD_H

#include "conform_data.h"
#include "conform_seq.h"
#include "definition.h"

#include "dartlm/ops_backward.h"

/* The tensor's values as an input of the calculation. */
tape_vector backward_whole(tape *t, const conform_tensor *tensor);
/* Compares a gradient with that of v; before: what the tensor held and is added to, or NULL. limits: bound and operands,
 * relative to what each gradient would be like if no terms cancelled; the rest is set here. */
void backward_compare(conform_data *d, const char *name, const conform_tensor *tensor, const tape *t, tape_vector v, const double *before,
                      conform_limits limits);

/* Whether a row of the kernel ran that rounds an up_y of f32 to the type of the other operand: those for matrices. */
bool backward_rounds(const conform_data *d, const char *kernel);

/* Sequences of B L rows as documents of the definition: those tokens that count, one sequence behind the other. With CASE_SEQ the counts run
 * from L down, the last of three or more sequences is empty, and positions are multiples of S. With CASE_PACKED the documents are packed. */
typedef struct backward_rows {
    uint64_t rows; /* B L, or T of packed documents */
    size_t tokens;
    uint64_t *row_of; /* of each token */
    definition_documents documents;
    size_t *begin;
    int32_t *seq; /* B 2 */
    conform_packing packing; /* T 0: not packed */
    dart_tensor cu;          /* of packed documents */
} backward_rows;
void backward_rows_make(conform_data *d, backward_rows *rows);
/* The tensor of positions and counts, NULL without CASE_SEQ. */
conform_tensor *backward_seq(conform_data *d, const backward_rows *rows);
/* Slots of chunks where there are M a sequence, and that of chunk j of sequence b. */
uint64_t backward_slots(const backward_rows *rows, size_t S, size_t M);
uint64_t backward_slot(const backward_rows *rows, size_t b, size_t j, size_t S, size_t M);
void backward_rows_free(backward_rows *rows);
/* The tokens' values: on the tape, and as an array for free(). */
tape_vector backward_input(tape *t, const conform_tensor *tensor, const backward_rows *rows);
double *backward_gather(const conform_tensor *tensor, const backward_rows *rows);
/* Matrices B M .. of the chunks that have tokens, document by document, for free(). */
double *backward_chunks(const conform_tensor *tensor, const backward_rows *rows, size_t S, size_t M);
/* backward_compare of the rows of tokens; other rows must be 0, or what they were if added to; beside packed documents not written. */
void backward_compare_rows(conform_data *d, const char *name, const conform_tensor *tensor, const backward_rows *rows, const tape *t, tape_vector v,
                           const double *before, conform_limits limits);
/* backward_compare of matrices B M .., which are 0 for chunks without tokens, and not written where packed documents have no chunk. */
void backward_compare_chunks(conform_data *d, const char *name, const conform_tensor *tensor, const backward_rows *rows, size_t S, size_t M,
                             const tape *t, tape_vector v, conform_limits limits);

#endif
