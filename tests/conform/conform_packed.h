/* Packed documents, forward. */
#ifndef DARTLM_CONFORM_PACKED_H
#define DARTLM_CONFORM_PACKED_H

#include "conform_data.h"

void conform_packed_conv(conform_data *d);
void conform_packed_ssd(conform_data *d);
void conform_packed_sma(conform_data *d);
void conform_packed_attention(conform_data *d);

#endif
