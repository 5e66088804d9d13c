/* The tensors of a case that failed, as safetensors of f64: input.NN, in the order in which the runner makes them and NN from 1 on; expected.NAME
 * and got.NAME of each tensor that is compared. Rows lie side by side, whatever views the case made; NaN: not to be written, or not written. */
#ifndef DARTLM_CONFORM_DUMP_H
#define DARTLM_CONFORM_DUMP_H

#include "conform.h"

enum { CONFORM_MOST_DUMPED = 40 + 2 * CONFORM_MAX_RESULTS };

typedef struct conform_dumped {
    char name[40];
    uint64_t rows, width;
    double *values;
} conform_dumped;

typedef struct conform_dump {
    conform_dumped entries[CONFORM_MOST_DUMPED];
    uint32_t count;
} conform_dump;



struct conform_data;
struct conform_tensor;
void conform_dump_result(conform_dump *dump, const char *name, const struct conform_tensor *tensor, const double *got, const double *expected);
void conform_dump_ints(conform_dump *dump, const char *name, const struct conform_tensor *tensor, const int32_t *expected);
void conform_dump_inputs(conform_dump *dump, const struct conform_data *d);
bool conform_dump_write(conform_dump *dump, const char *path);
void conform_dump_free(conform_dump *dump);

#endif
