/* What unit_adopt computes: y = x weight^T, in one buffer. */
#ifndef DARTLM_TESTS_ADOPT_H
#define DARTLM_TESTS_ADOPT_H

#include "host.h"

enum { T = 5, W = 64, BYTES = T * W * 4, WEIGHT_AT = 4096, Y_AT = 32768, ALL = HOST_ALL };

void fill_inputs(float *values);
dart_status linear(dart_stream *stream, dart_buffer *buffer);
void write_inputs(dart_buffer *buffer);
/* What a normally opened device gives. */
void expect(float *y, uint32_t without);

void mapped_memory_is_used(void **unused);
void own_memory_is_told(void **unused);
void a_separate_queue_works_beside_graphics(void **unused);
void an_adopted_device_shares(void **unused);

#endif
