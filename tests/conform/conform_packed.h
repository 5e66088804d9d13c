/* Packed documents, forward. */
#ifndef DARTLM_CONFORM_PACKED_H
#define DARTLM_CONFORM_PACKED_H

#include "conform_data.h"

void conform_packed_conv(conform_data *d);
void conform_packed_ssd(conform_data *d);
void conform_packed_sma(conform_data *d);
void conform_packed_attention(conform_data *d);

/* Memories first .. first + M - 1 of a sequence in their stored form, of all heads: M H N P, and scales M H N. */
typedef struct stored_run {
    uint64_t first, M;
    const double *dh, *scale;
} stored_run;
/* State-memory attention of one token and head h by the definition, on stored memories: key dh, value scale dh. It sees memories below `limit`, which
 * the runs have. qn: the normed query / sqrt(N). */
void conform_attend_stored(const conform_case *c, uint32_t h, const stored_run *runs, uint32_t count, uint64_t limit, const double *qn,
                           const double *en, const double *read, double *r, double *lse);
/* What is rounded to 16 bits before r is, as a share of it. */
double conform_roundings_of_r(const conform_data *d, uint32_t launches);

#endif
