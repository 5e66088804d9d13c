/* Quantised weights for conformance. */
#ifndef CONFORM_WEIGHTS_H
#define CONFORM_WEIGHTS_H

#include "conform_data.h"

typedef struct conform_quantised {
    conform_tensor *bytes;
    dart_tensor t;
    double *values; /* rows x width, as the definition in runtime.h reads them; the caller frees them */
} conform_quantised;

/* Random rows, q4 with `four`, else q8, of numbers with a root mean square of about `size`. */
conform_quantised conform_quantised_make(conform_data *d, uint32_t rows, uint32_t width, bool four, double size);

#endif
